"""An MCP server for tests, in a separate process: ``shop.py COUNTS [--http PORT | --sse PORT]``.

Each thing that it does it writes into the file COUNTS, one line each, which the tests count.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import anyio
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.prompts.base import AssistantMessage, UserMessage
from mcp_types import ToolAnnotations

COUNTS = Path(sys.argv[1])
PICTURE = b"\x89PNG\r\n\x1a\n not a real one"

server = MCPServer("shop")


def note(line: str) -> None:
    """Write down what is done."""
    with COUNTS.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


note(f"start {os.getpid()}")


@server.tool()
def price_of(item: str) -> float:
    """Say what an item costs."""
    note(f"price_of {item}")
    return 2.5 * len(item)


@server.tool()
def order(item: str, number: int, ctx: Context[Any, Any]) -> dict[str, Any]:
    """Order an item."""
    meta = ctx.request_context.meta or {}
    key = dict(meta).get("flink-agents/idempotency-key", "none")
    note(f"order {item} {number} {key}")
    return {"item": item, "number": number}


@server.tool()
def refuse(reason: str) -> str:
    """Refuse."""
    note(f"refuse {reason}")
    raise ValueError(reason)


@server.tool()
def big(size: int) -> str:
    """Give a long text."""
    note(f"big {size}")
    return "x" * size


@server.tool()
async def slow(seconds: float) -> str:
    """Take its time."""
    note(f"slow {seconds}")
    await anyio.sleep(seconds)
    return "late"


@server.tool()
def freeze() -> str:
    """Stop the whole process, with all that it does."""
    note("freeze")
    os.kill(os.getpid(), signal.SIGSTOP)
    return "thawed"


@server.tool()
def die() -> str:
    """End the process in the middle of a call."""
    note("die")
    os._exit(3)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def die_once() -> str:
    """End the process at the first call."""
    note("die_once")
    if COUNTS.read_text("utf-8").count("die_once\n") == 1:
        os._exit(3)
    return "alive"


@server.tool()
def chatter() -> str:
    """Write what is no message where messages are expected."""
    note("chatter")
    if "--http" not in sys.argv and "--sse" not in sys.argv:
        os.write(1, b"this is { no JSON\n" * 3)
    return "heard"


@server.tool()
def secret() -> str:
    """Tell what was given in the environment."""
    return os.environ.get("SHOP_TOKEN", "nothing")


if "--more" in sys.argv:

    @server.tool()
    def later() -> str:
        """Be there in a later version."""
        note("later")
        return "new"


GROWN: list[str] = []

if "--extra" in sys.argv:

    @server.tool(structured_output=False)
    def look_at(item: str, number: int = 1, size: int = 20) -> list[Any]:
        """Show what an item looks like."""
        note(f"look_at {item}")
        return [f"This is {item}.", *[Image(data=PICTURE + b"x" * size, format="png")] * number]

    @server.tool()
    def grow(name: str, description: str) -> str:
        """Have another tool from now on."""
        note(f"grow {name}")

        def grown(item: str) -> str:
            note(f"{name} {item}")
            return f"{name} of the server"

        server.remove_tool(name) if name in GROWN else GROWN.append(name)
        server.add_tool(grown, name=name, description=description)
        return "done"


if "--many" in sys.argv:
    for number in range(60):
        server.add_tool(price_of, name=f"tool_{number}", description=f"Tool {number}. " + "It helps. " * 140)


@server.prompt()
def greet(customer: str, tone: str = "kindly") -> list[UserMessage | AssistantMessage]:
    """Greet a customer."""
    note(f"greet {customer}")
    return [UserMessage(f"Greet {customer} {tone}."), AssistantMessage("Of course.")]


@server.resource("shop://opening-hours")
def opening_hours() -> str:
    """When the shop is open."""
    note("opening_hours")
    return "nine to five"


@server.resource("shop://picture", mime_type="image/png")
def picture() -> bytes:
    """What the shop looks like."""
    note("picture")
    return PICTURE


if __name__ == "__main__":
    for flag, transport in (("--http", "streamable-http"), ("--sse", "sse")):
        if flag in sys.argv:
            port = int(sys.argv[sys.argv.index(flag) + 1])
            server.run(transport, port=port)  # type: ignore[call-overload]
            break
    else:
        if "--late" in sys.argv:
            time.sleep(30)
        server.run("stdio")
