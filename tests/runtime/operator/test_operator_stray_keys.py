"""UnmatchedSignals say whose they are: who reads the stream of strays knows the key of each."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.testing import OperatorHarness

Make = Callable[..., OperatorHarness]

ADA = ("customer", "ada")
ALAN = ("customer", "alan")


class Listens(Agent):
    """Puts out the number that a signal says."""

    @action(InputEvent)
    async def listen(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.wait_for_signal("said", int))


def strays(harness: OperatorHarness) -> list[tuple[str, Any, Any]]:
    return [
        (str(unmatched_signal.reason), unmatched_signal.signal.key, unmatched_signal.signal.value)
        for unmatched_signal in harness.unmatched_signals
    ]


def listening(agent_harness: Make, **config: Any) -> OperatorHarness:
    harness = agent_harness(Listens, key_selector=lambda name: ("customer", name), config=config)
    harness.push_all(["ada", "alan"])
    return harness


def test_a_signal_that_does_not_fit_names_its_key(agent_harness: Make) -> None:
    harness = listening(agent_harness)
    harness.signal(ALAN, "said", "much")
    harness.signal(ADA, "said", object)
    assert strays(harness) == [("invalid", ALAN, "much"), ("invalid", ADA, object)]


def test_a_second_signal_names_its_key(agent_harness: Make) -> None:
    harness = listening(agent_harness)
    harness.signal(ADA, "said", 1, id="s-1")
    harness.signal(ADA, "said", 2, id="s-1")
    assert strays(harness) == [("duplicate", ADA, 2)]


def test_a_signal_that_nobody_took_names_its_key(agent_harness: Make) -> None:
    harness = listening(agent_harness, **{"signals.ttl": "1 h"})
    harness.signal(ALAN, "shouted", 1)
    harness.advance_time(timedelta(hours=1))
    assert strays(harness) == [("expired", ALAN, 1)]


def test_a_signal_that_is_left_at_the_end_names_its_key(agent_harness: Make) -> None:
    harness = agent_harness(Listens, key_selector=lambda name: ("customer", name))
    harness.signal(ADA, "said", 1)
    harness.end_input()
    assert strays(harness) == [("end-of-input", ADA, 1)]
