"""Key services: which of them an agent has, in which order they are called, and that each hook is called."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.runtime.operator.processor import AgentProcessor
from flink_agents.runtime.operator.services.service import HOOKS, Hooks, KeyService
from flink_agents.testing import OperatorHarness
from tests.suite import conditions

pytestmark = pytest.mark.own_conditions

UNFORCED: Any = {**conditions.UNFORCED, "forced_serialization": False}


class Plain(Agent):
    @action(InputEvent)
    def echo(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=event.input)


class Sleeper(Agent):
    @action(InputEvent)
    async def rest(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await ctx.sleep(timedelta(hours=1))
        return OutputEvent(output=event.input)


class Sender(Agent):
    @action(InputEvent)
    def send(self, event: InputEvent, ctx: Any) -> OutputEvent:
        if event.input == "first":
            ctx.send_event(InputEvent(input="second"), delay=timedelta(hours=1))
        return OutputEvent(output=event.input)


def harness_of(agent: Agent, **config: Any) -> OperatorHarness:
    return OperatorHarness(agent, lambda record: record, config=config, **UNFORCED)


def operator_of(harness: OperatorHarness) -> AgentProcessor:
    [task] = harness._subtasks  # pyright: ignore[reportPrivateUsage]
    return task.processor


def hooks_of(harness: OperatorHarness) -> Hooks:
    return operator_of(harness).features.hooks


def called(hooks: Hooks) -> dict[str, list[str]]:
    """The hooks that are not empty, with the names of the services that they call."""
    services_by_hook = {
        name: [type(hook.__self__).__name__ for hook in getattr(hooks, name)] for name in HOOKS
    }
    return {name: services for name, services in services_by_hook.items() if services}


def test_an_agent_without_features_calls_no_service_for_an_input() -> None:
    with harness_of(Plain()) as harness:
        features = operator_of(harness).features
        assert [getattr(features, name) for name in OF_EACH_INPUT] == [None] * len(OF_EACH_INPUT)
        # The hook of timers is called when the first key needs one.
        assert not operator_of(harness).has_key_timers


OF_EACH_INPUT = ("low_watermark", "skipped_runs", "idle_keys", "pruning_marks")
"""Features that the operator calls for each input, or for each run."""


WAITING = ["RequestService", "SignalService", "SuspendedRuns"]


def test_services_of_waits_have_nothing_to_do_until_a_run_waits_or_a_signal_comes() -> None:
    with harness_of(Plain()) as harness:
        assert services_of(harness) == [*WAITING, "Delays"]
        harness.push("x")
        assert not operator_of(harness).has_key_timers
        harness.signal("a", "unheard", 1)
        assert operator_of(harness).has_key_timers
    with harness_of(Sleeper()) as harness:
        assert not operator_of(harness).has_key_timers
        harness.push("x")
        assert operator_of(harness).has_key_timers


def test_services_are_called_in_the_order_of_their_list(tmp_path: Path) -> None:
    config = {
        "state.idle-key-ttl": timedelta(days=1),
        "action-state.store": "sqlite",
        "action-state.sqlite.path": str(tmp_path / "order.db"),
        "job-identifier": "order",
    }
    with harness_of(Sleeper(), **config) as harness:
        names = [type(service).__name__ for service in hooks_of(harness).services]
        assert names == [*WAITING, "Delays", "IdleKeyExpiry"]
        hooks = hooks_of(harness)
        # Signals expire before they could resume a run. A run that is resumed comes before a delayed event of
        # that time, and an idle key goes last.
        fired = ["SignalService", "SuspendedRuns", "Delays", "IdleKeyExpiry"]
        assert called(hooks)["fired"] == fired


def sleeper(on_suspend: str) -> Agent:
    agent = Sleeper()
    agent.on_suspend = on_suspend  # type: ignore[assignment]
    return agent


def services_of(harness: OperatorHarness) -> list[str]:
    return [type(service).__name__ for service in hooks_of(harness).services]


def test_runs_that_an_earlier_agent_let_interleave_are_continued() -> None:
    with harness_of(sleeper("interleave")) as harness:
        harness.push("slow")
        snapshot = harness.snapshot()
    with harness_of(sleeper("block")) as harness:
        harness.restore(snapshot)
        harness.push("slow")
        assert harness.advance_time(timedelta(hours=1)) == ["slow", "slow"]


def test_a_service_wakes_up_when_the_first_key_needs_it() -> None:
    with harness_of(Sender()) as harness:
        assert not operator_of(harness).has_key_timers
        assert harness.push("first") == ["first"]
        assert operator_of(harness).has_key_timers
        assert harness.advance_time(timedelta(hours=1)) == ["second"]


class Recorder(KeyService):
    """Takes down which of its hooks are called."""

    def __init__(self) -> None:
        self.seen: set[str] = set()


def recording(name: str) -> Any:
    def hook(self: Recorder, *arguments: Any) -> bool:
        self.seen.add(name)
        return False

    return hook


for _name in HOOKS:
    setattr(Recorder, _name, recording(_name))


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Recorder]]:
    """Recorders before the services of each operator that is assembled."""
    created_recorders: list[Recorder] = []
    initialize = Hooks.__init__

    def with_recorder(self: Hooks, services: Any) -> None:
        created_recorders.append(Recorder())
        initialize(self, [created_recorders[-1], *services])

    monkeypatch.setattr(Hooks, "__init__", with_recorder)
    yield created_recorders


def test_each_hook_is_called(recorders: list[Recorder]) -> None:
    with harness_of(Sleeper(), **{"run.inline": False}) as harness:
        harness.push("slow")
        harness.push("behind it")
        snapshot = harness.snapshot()
        harness.restore(snapshot)
        harness.advance_time(timedelta(hours=1))
        harness.end_input()
    assert set().union(*(recorder.seen for recorder in recorders)) == set(HOOKS)
