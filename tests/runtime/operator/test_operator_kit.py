"""What the test kit shows: hangs, counts under forced conditions, recorded calls, checkpoints."""

from __future__ import annotations

import asyncio
import re
import runpy
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.api.errors import ActionFailedError, AgentConfigurationError, RecordsPrunedError
from flink_agents.runtime.operator.heartbeat import MOST_COMMITS
from flink_agents.testing import OperatorHarness
from flink_agents.testing.fakes import clock

CHARGED: list[Any] = []
GATE = threading.Event()


async def charge(order: str) -> str:
    CHARGED.append(order)
    if order == "refused":
        raise ValueError("no money")
    return f"receipt of {order}"


class Shop(Agent):
    @action(InputEvent)
    async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        ctx.agent_metric_group.get_counter("paid").inc()
        try:
            return OutputEvent(output=await ctx.durable_execute_async(charge, event.input))
        except ValueError as error:
            return OutputEvent(output=str(error))


@pytest.fixture(autouse=True)
def _empty() -> None:
    CHARGED.clear()


# -- hangs -----------------------------------------------------------------------------


def test_hang_says_key_action_and_stack() -> None:
    class Hanging(Agent):
        @action(InputEvent)
        async def ask(self, event: InputEvent, ctx: Any) -> None:
            await self.wait_for_ever()

        async def wait_for_ever(self) -> None:
            await asyncio.Event().wait()

    with OperatorHarness(Hanging, str, hang_after=0.1) as harness:
        with pytest.raises(TimeoutError, match="no run ended within 0.1 s") as caught:
            harness.push("ada")
    text = str(caught.value)
    assert "action ask of agent Hanging, key 'ada', sequence 0" in text
    assert re.search(r'test_operator_kit\.py", line \d+, in wait_for_ever\n\s+await asyncio\.Event', text)


def test_a_hang_is_noticed_if_a_test_freezes_the_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(Agent):
        @action(InputEvent)
        async def ask(self, event: InputEvent, ctx: Any) -> None:
            await asyncio.Event().wait()

    def read() -> float:
        raise AssertionError("this clock may stand still, or jump")

    with OperatorHarness(Hanging, str, hang_after=0.1) as harness:
        monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=read))
        with pytest.raises(TimeoutError, match="no run ended within 0.1 s"):
            harness.push("ada")


@pytest.mark.executes_once
def test_hang_of_a_thread_says_where_that_stands() -> None:
    class Blocking(Agent):
        @action(InputEvent, blocking=True)
        def ask(self, event: InputEvent, ctx: Any) -> None:
            GATE.wait(60)

    GATE.clear()
    with OperatorHarness(Blocking, forced_serialization=False, hang_after=0.1) as harness:
        with pytest.raises(TimeoutError) as caught:
            harness.push("ada")
        GATE.set()
    assert "waits for its thread of the pool" in str(caught.value)
    assert "GATE.wait(60)" in str(caught.value)


# -- counts ----------------------------------------------------------------------------


@pytest.mark.parametrize("forced", [{}, {"forced_replay": True}, {"forced_restart": True}])
def test_metrics_count_each_thing_once_whatever_is_forced(forced: dict[str, bool]) -> None:
    with OperatorHarness(Shop, **forced) as harness:  # pyright: ignore[reportArgumentType]
        harness.push_all(["o1", "o2", "refused"])
        runtime = harness.run_metrics
        assert harness.metrics["paid"] == 3
    assert {name: runtime.get(name) for name in ("events", "actions", "action_calls_recorded")} == {
        "events": 3,
        "actions": 3,
        "action_calls_recorded": 2,
    }
    assert runtime["action.pay.latency_us"] == 3
    assert runtime.get("action_calls_replayed", 0) == 0


def test_counts_go_on_after_an_input_that_failed() -> None:
    class Failing(Agent):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
            return OutputEvent(output=await ctx.durable_execute_async(charge, event.input))

    with OperatorHarness(Failing, config={"actions.on-error": "ignore"}, forced_replay=True) as harness:
        harness.push_all(["o1", "refused", "o2"])
        assert harness.run_metrics["action_failures"] == 1
        assert harness.run_metrics["events"] == 3


# -- recorded calls --------------------------------------------------------------------


def test_recorded_calls_of_a_key() -> None:
    with OperatorHarness(Shop, key_selector=lambda order: order[:1]) as harness:
        harness.push_all(["o1", "refused", "o2"])
        first, second = harness.recorded_calls("o")
        assert (first.sequence_number, first.action, first.value, first.error) == (
            0,
            "pay",
            "receipt of o1",
            None,
        )
        assert first.function.endswith(":charge") and first.request == "order='o1'"
        assert (second.sequence_number, second.value) == (1, "receipt of o2")
        (refused,) = harness.recorded_calls("r")
        assert isinstance(refused.error, ValueError) and refused.error.args == ("no money",)
        assert harness.recorded_calls("nobody") == []


def test_agent_without_a_store_has_no_recorded_calls() -> None:
    class Plain(Agent):
        @action(InputEvent)
        def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
            return OutputEvent(output=event.input)

    with OperatorHarness(Plain) as harness:
        harness.push("a")
        assert harness.recorded_calls() == []


def test_recorded_calls_can_be_read_where_a_loop_runs() -> None:
    async def read() -> list[Any]:
        return [call.value for call in harness.recorded_calls()]

    with OperatorHarness(Shop) as harness:
        harness.push("o1")
        assert asyncio.run(read()) == ["receipt of o1"]


# -- checkpoints -----------------------------------------------------------------------


@pytest.mark.executes_once
def test_completed_checkpoint_prunes_what_was_recorded_before_it() -> None:
    """Restarted behind the snapshot, as some conditions force, an operator waits for a later one."""
    with OperatorHarness(Shop, checkpoints=True) as harness:
        harness.push("o1")
        snapshot = harness.snapshot()
        harness.push("o2")
        assert len(harness.recorded_calls()) == 2
        harness.complete(snapshot)
        assert [call.value for call in harness.recorded_calls()] == ["receipt of o2"]
        harness.restore(snapshot)
        assert harness.push("o2") == ["receipt of o2"]
    assert CHARGED.count("o2") == 1


def test_snapshot_that_does_not_complete_prunes_nothing() -> None:
    with OperatorHarness(Shop, checkpoints=True) as harness:
        harness.push("o1")
        aborted = harness.snapshot()
        harness.abort(aborted)
        assert len(harness.recorded_calls()) == 1
        for act in (harness.complete, harness.restore):
            with pytest.raises(AgentConfigurationError, match="aborted"):
                act(aborted)
        harness.push("o2")
        harness.complete(harness.snapshot())
        assert harness.recorded_calls() == []


def test_restore_from_a_snapshot_that_is_not_retained_misses_records() -> None:
    with OperatorHarness(Shop, checkpoints=True) as harness:
        first = harness.snapshot()
        harness.push("o1")
        harness.complete(harness.snapshot())
        harness.restore(first)
        with pytest.raises((RecordsPrunedError, ActionFailedError), match="pruned|removed"):
            harness.push("o1")


def test_restored_keys_are_pruned_by_a_later_checkpoint() -> None:
    with OperatorHarness(Shop, checkpoints=True) as harness:
        snapshot = harness.snapshot()
        harness.push("o1")
        harness.restore(snapshot)
        harness.push_all(["o1", "o2"])
        harness.complete(harness.snapshot())
        assert harness.recorded_calls() == []


def test_harness_without_checkpoints_says_how_to_have_them() -> None:
    with OperatorHarness(Shop) as harness:
        for act in (harness.complete, harness.abort):
            with pytest.raises(AgentConfigurationError, match="checkpoints=True"):
                act(harness.snapshot())


class EndsAtOnce(Agent):
    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await asyncio.sleep(0)
        return OutputEvent(output=event.input)


@pytest.mark.own_conditions
def test_more_keys_end_at_once_than_a_beat_looks_at() -> None:
    conditions: dict[str, Any] = {"auto_run": False, "forced_replay": False, "forced_restart": False}
    with OperatorHarness(EndsAtOnce, lambda number: number, hang_after=60, **conditions) as harness:
        for number in range(2 * MOST_COMMITS + 1):
            harness.push(number)
        harness.run_until_idle()
        assert len(harness.outputs) == 2 * MOST_COMMITS + 1


class Naps(Agent):
    """Sleeps, and has keys that come once."""

    on_suspend = "interleave"

    @action(InputEvent)
    async def nap(self, event: InputEvent, ctx: Any) -> OutputEvent:
        if event.input[1]:
            await ctx.sleep(30)
        return OutputEvent(output=event.input[0])


@pytest.mark.own_conditions
def test_a_timer_of_an_idle_key_commits_the_run_of_another_one() -> None:
    conditions = {"crash": None, "forced_restart": False, "forced_replay": False}
    config = {"state.idle-key-ttl": "10 s"}
    with OperatorHarness(Naps, lambda record: record[0], config=config, **conditions) as harness:
        harness.signal("idle", "x", 1)
        harness.restore(harness.snapshot())
        assert harness.push(("busy", False)) == ["busy"]
        harness.push(("sleeper", True))
        assert [wait.deadline for wait in harness.waits("sleeper")] == [harness.current_time + 30_000]


SCRIPT = """
from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.testing import OperatorHarness

CHARGED = []


def charge(order):
    CHARGED.append(order)
    return order


class Payments(Agent):
    @action(InputEvent)
    def pay(self, event, ctx):
        return OutputEvent(output=ctx.durable_execute(charge, event.input))


OUTPUTS = OperatorHarness(Payments(), crash=None, forced_restart=False, forced_replay=False).push("o1")
"""


@pytest.mark.own_conditions
def test_an_agent_of_a_main_script_changes_the_globals_of_the_script(tmp_path: Path) -> None:
    script = tmp_path / "payments.py"
    script.write_text(SCRIPT)
    names = runpy.run_path(str(script), run_name="__main__")
    assert (names["OUTPUTS"], names["CHARGED"]) == (["o1"], ["o1"])
