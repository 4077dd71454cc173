"""Bounds how deep conversations lie in one another: tools of a conversation may hold others.

A tool that is code of an action can talk to the model that called it. Such conversations are bounded one by
one by their own limits, but nothing else bounds how many of them wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from flink_agents.api.errors import NestedChatsError

MOST_NESTED = 10
"""How many conversations may lie in one another. Agents that hand work on need three or four."""

_under_way: ContextVar[tuple[str, ...]] = ContextVar("flink_agents_conversations", default=())
"""Who holds the conversations that the running code lies in, from the outermost on."""


@contextmanager
def nested(holder: str) -> Iterator[None]:
    """Hold a conversation within those that the calling task lies in.

    Args:
        holder: Who holds it, for the error: ``the chat model 'analyst'``.

    Raises:
        NestedChatsError: There are too many already.
    """
    around = _under_way.get()
    if len(around) >= MOST_NESTED:
        raise NestedChatsError(
            f"{len(around)} conversations are nested, and a tool starts one more",
            expected=f"at most {MOST_NESTED}",
            found=" -> ".join([*around[-3:], holder]),
            fix="give the inner conversation no tool that leads back to it, by tools=... of the chat model "
            "or of the agent that it asks",
        )
    mine = (*around, holder)
    _under_way.set(mine)
    try:
        yield
    finally:
        # A task that is dropped while it waits is closed in the context of somebody else.
        if _under_way.get() is mine:
            _under_way.set(around)
