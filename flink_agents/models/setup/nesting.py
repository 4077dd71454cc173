"""Limits the depth of nested conversations: tools of a conversation may start others.

A tool that is code of an action can talk to the model that called it. Each conversation has its own limits,
but those do not limit how many of them wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from flink_agents.api.errors import NestedChatsError

MOST_NESTED = 10
"""Maximum depth of nested conversations. Agents that delegate work need three or four."""

_under_way: ContextVar[tuple[str, ...]] = ContextVar("flink_agents_conversations", default=())
"""Holders of the conversations around the running code, the outermost first."""


@contextmanager
def nested(holder: str) -> Iterator[None]:
    """Enter a conversation that is nested in those of the calling task.

    Args:
        holder: Holder of the conversation, for the error: ``the chat model 'analyst'``.

    Raises:
        NestedChatsError: Too many conversations are nested.
    """
    around = _under_way.get()
    if len(around) >= MOST_NESTED:
        raise NestedChatsError(
            f"{len(around)} conversations are nested, and a tool starts one more",
            expected=f"at most {MOST_NESTED}",
            found=" -> ".join([*around[-3:], holder]),
            fix="pass the inner conversation no tool that leads back to it, by tools=... of the chat model "
            "or of the agent that it calls",
        )
    mine = (*around, holder)
    _under_way.set(mine)
    try:
        yield
    finally:
        # A task that is dropped while it waits is closed in another task's context.
        if _under_way.get() is mine:
            _under_way.set(around)
