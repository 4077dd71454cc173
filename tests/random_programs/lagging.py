"""Lets Flink's thread lag behind the agent loop, as on a loaded machine.

What the loop does between two steps of Flink's thread is a matter of luck elsewhere. Here it comes as far
as it can before inputs are handed out, or before what has finished is committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.operator.input_dispatch import InputDispatcher
from flink_agents.runtime.operator.processor import AgentProcessor
from tests.random_programs.world import World

LAG_SECONDS = 0.02
"""How long Flink's thread lags behind at most: some runs go on for longer."""


@contextmanager
def lagging(lags: bool = True) -> Iterator[None]:
    """Let Flink's thread lag behind, if it ``lags``: of each two steps, one of them at random."""
    if not lags:
        yield
        return
    feed = InputDispatcher.feed
    commit = AgentProcessor.commit

    def feed_late(self: InputDispatcher, actor: KeyActor, *others: Any) -> None:
        _wait_for(actor)
        feed(self, actor, *others)

    def commit_late(self: AgentProcessor, actor: KeyActor, *others: Any) -> Any:
        _wait_for(actor)
        return commit(self, actor, *others)

    with (
        patch.object(InputDispatcher, "feed", feed_late),
        patch.object(AgentProcessor, "commit", commit_late),
    ):
        yield


def _wait_for(actor: KeyActor) -> None:
    """Wait until the loop does nothing for a key any more, or for a moment."""
    if World.chance.random() < 0.5:
        return
    until = time.monotonic() + LAG_SECONDS
    while actor.running and time.monotonic() < until:
        time.sleep(0.0005)
