"""Restate: a virtual object per key, its steps as ``ctx.run_typed``, the counter in its state.

The measuring process starts Restate's server, and sends the inputs through its HTTP ingress.
"""

from __future__ import annotations

import asyncio
import os

import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config
from workload import charge, notify

counter = restate.VirtualObject("Counter")


@counter.handler()
async def handle(ctx: restate.ObjectContext, number: int) -> int:
    """Make the two steps of an input, and count."""
    await ctx.run_typed("charge", charge, number=number)
    await ctx.run_typed("notify", notify, number=number)
    count = (await ctx.get("count", type_hint=int) or 0) + 1
    ctx.set("count", count)
    return count


def main() -> None:
    """Serve the object over HTTP/2 without TLS, as the SDK's guide says for hypercorn."""
    config = Config()
    config.bind = [f"127.0.0.1:{os.environ['PORT']}"]
    config.loglevel = "ERROR"
    asyncio.run(serve(restate.app([counter]), config))


if __name__ == "__main__":
    main()
