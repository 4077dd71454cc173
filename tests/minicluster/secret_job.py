"""A job that shows a secret in every place, and then fails: the script of ``test_secrets_of_jobs``."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flink_agents import (
    Agent,
    AgentsExecutionEnvironment,
    ChatModel,
    ConversationHistory,
    InputEvent,
    MCPServer,
    OutputEvent,
    RetryPolicy,
    RunnerContext,
    action,
    tool,
)

VARIABLE = "CANARY_API_KEY"
LAST = ("fail the job", "plain")

SERVER = """
import os
from mcp.server.mcpserver import MCPServer
shop = MCPServer("shop")

@shop.tool()
def environment() -> dict[str, str]:
    return {"key": os.environ["KEY"], "all": str(dict(os.environ))}

@shop.tool()
def fail() -> str:
    raise ValueError("bad key " + os.environ["KEY"])

shop.run()
"""

FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "json": json.dumps,
    "url": lambda text: quote(text, safe=""),
    "base64": lambda text: base64.b64encode(f"user:{text}".encode()).decode(),
    "repr": lambda text: repr({"headers": {"Authorization": f"Bearer {text}"}}),
    "userinfo": lambda text: f"https://user:{quote(text, safe='')}@service/path",
}
"""Forms in which services and libraries repeat what they were given."""


def shown(form: str) -> str:
    return FORMS[form](os.environ[VARIABLE])


def whole(url: str) -> Any:
    """Make an agent of pydantic-ai on the worker: its client has the key."""
    from pydantic_ai import Agent as ModelAgent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from flink_agents.models.engine import FlinkDurability

    provider = OpenAIProvider(base_url=url, api_key=os.environ[VARIABLE])
    durability = FlinkDurability(model_calls={"retry": RetryPolicy(max_attempts=1)})
    model = OpenAIChatModel("any", provider=provider)
    return ModelAgent(model, name="whole", capabilities=[durability], tools=[show_secret], retries=1)


def show_secret(form: str) -> dict[str, object]:
    """Show the secret."""
    return {"shown": shown(form), shown(form): [shown(form)]}


def fails(form: str) -> None:
    raise PermissionError(13, f"denied to {shown(form)}", shown(form).encode())


class Leaking(Agent):
    """Whatever it does with the secret, it says it."""

    def __init__(self, url: str, folder: str) -> None:
        self.url = url
        self.folder = folder
        server = Path(folder, "server.py")
        server.write_text(SERVER)
        key = {"env": VARIABLE}
        once = {"max_attempts": 1}
        self.add_resource(
            "model",
            "chat_model",
            ChatModel(
                "openai-chat:x",
                base_url=url,
                api_key=key,
                headers={"x-own": key},
                tools=["show"],
                retry=once,
            ),
        )
        arguments: Any = {"command": sys.executable, "args": [str(server), "--token", key]}
        self.add_resource("shop", "mcp_server", MCPServer(**arguments, env={"KEY": key}, retry=once))

    @tool
    @staticmethod
    def show(form: str) -> dict[str, object]:
        """Show the secret."""
        return show_secret(form)

    @action(InputEvent, on_error="dead-letter", when=lambda event: event.input[0] != LAST[0])
    async def use(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        what, form = event.input
        ctx.short_term_memory.set("last", [what, form])
        if what == "chat":
            reply = await ctx.chat("model", form, history=ConversationHistory())
            ctx.short_term_memory.set("said", reply.output)
            return OutputEvent(output=reply.output)
        if what == "whole":
            return OutputEvent(output=(await whole(self.url).run(form)).output)
        if what == "server":
            return OutputEvent(output=await ctx.mcp_server("shop").call_tool(form))
        if what == "durable":
            await ctx.durable_execute_async(fails, form)
        raise self.failure(form)

    @action(InputEvent, when=lambda event: event.input[0] == LAST[0])
    async def fail(self, event: InputEvent, ctx: RunnerContext) -> None:
        """Fail the job once all before is part of a checkpoint."""
        while not Path(self.folder, "checkpointed").exists():
            await asyncio.sleep(0.05)
        raise self.failure(event.input[1])

    @staticmethod
    def failure(form: str) -> Exception:
        try:
            raise KeyError(f"inner {shown(form)}")
        except KeyError as error:
            error.add_note(f"note {shown(form)}")
            log = logging.getLogger("of.the.author")
            log.warning("it is %s, %r, and %s", shown(form), {"in": [shown(form)]}, shown(form).encode())
            log.error("with its stack", exc_info=error)
            failed = ExceptionGroup("all", [ValueError(shown(form)), OSError(5, {"key": shown(form)})])
            failed.__cause__ = error
            return failed


def inputs() -> list[tuple[str, str]]:
    kinds = ("chat", "whole", "code", "durable")
    cases = [(what, form) for what in kinds for form in FORMS]
    cases += [(what, f"show {form}") for what in ("chat", "whole") for form in FORMS]
    return [*cases, ("server", "environment"), ("server", "fail"), LAST]


def main() -> None:
    folder = os.environ["SECRET_JOB"]
    config = {
        "local.checkpoint-interval": "300 ms",
        "local.restart.attempts": 0,
        "trace.level": "content",
        "trace.sinks": "jsonl,log",
        "trace.directory": f"{folder}/trace",
        **json.loads(os.environ["SECRET_JOB_CONFIG"]),
    }
    env = AgentsExecutionEnvironment.get_execution_environment(config=config)
    applied = env.from_list(inputs(), lambda pair: pair[0]).apply(
        Leaking(os.environ["SECRET_JOB_URL"], folder)
    )
    applied.dead_letters().print()
    applied.to_datastream().print()
    env.execute("leaking")


if __name__ == "__main__":
    main()
