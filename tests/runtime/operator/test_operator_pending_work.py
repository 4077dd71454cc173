"""Work in restored state that the new code cannot do fails the job at once, not when its time has come."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent
from flink_agents.api.errors import StateError
from flink_agents.testing import OperatorHarness

pytestmark = pytest.mark.own_conditions

PLAIN: dict[str, Any] = {"crash": None, "forced_replay": False, "forced_restart": False}


async def sleep(event: InputEvent, ctx: Any) -> OutputEvent:
    if event.input == 1:
        await ctx.sleep(timedelta(hours=1))
    return OutputEvent(output=event.input)


def agent(action: str, on_suspend: Any = "block") -> Agent:
    built = Agent(name="Sleeps").add_action(action, [InputEvent], sleep)
    built.on_suspend = on_suspend
    return built


@pytest.mark.parametrize("action", ["sleep", "rest"])
def test_a_suspended_run_needs_the_action_that_waits(action: str) -> None:
    with OperatorHarness(agent("sleep"), **PLAIN) as former:
        former.push(1)
        snapshot = former.snapshot()
    with OperatorHarness(agent(action), **PLAIN) as harness:
        if action == "sleep":
            harness.restore(snapshot)
            assert harness.advance_time(timedelta(hours=1)) == [1]
        else:
            with pytest.raises(StateError, match="rest|sleep"):
                harness.restore(snapshot)
                harness.run_until_idle()


def test_so_does_one_whose_key_gets_a_new_input_first() -> None:
    with OperatorHarness(agent("sleep", "interleave"), lambda record: "key", **PLAIN) as former:
        former.push(1)
        snapshot = former.snapshot()
    with OperatorHarness(agent("rest", "interleave"), lambda record: "key", **PLAIN) as harness:
        with pytest.raises(StateError, match="rest|sleep"):
            harness.restore(snapshot)
            harness.push(2)
            harness.run_until_idle()
