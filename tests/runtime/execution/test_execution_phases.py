"""A run is in one phase at a time, and observers are told of each change."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from observer_tools import Listener, observed_by

from flink_agents import Agent, InputEvent, OutputEvent, RateLimit, RetryPolicy, action, client
from flink_agents.api.agents.observers import FOLLOWS, ObservedRun, Phase, RunObserver
from flink_agents.api.errors import ActionFailedError
from flink_agents.runtime.execution.phases import RunState, WaitPhase
from flink_agents.runtime.metrics.observers import Observers
from flink_agents.testing import OperatorHarness

pytestmark = pytest.mark.executes_once

ON_THE_LOOP = [Phase.RUNNING, Phase.QUEUED, Phase.RUNNING]
"""How a run begins on Flink's thread and goes on on the loop."""

END = [Phase.FINISHED, Phase.COMMITTED]


@pytest.fixture
def listener() -> Iterator[Listener]:
    observer = Listener()
    with observed_by(observer):
        yield observer
    assert not observer.wrong


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def harness_of(act: Any, config: dict[str, Any] | None = None, **options: Any) -> OperatorHarness:
    agent = Agent(name="observed").add_action("act", [InputEvent], act, **options)
    return OperatorHarness(
        agent, lambda record: record, config=config or {}, forced_serialization=False, auto_run=False
    )


def inline(event: InputEvent, ctx: Any) -> OutputEvent:
    return OutputEvent(output=event.input)


async def on_loop(event: InputEvent, ctx: Any) -> OutputEvent:
    return OutputEvent(output=event.input)


def test_run_on_flinks_thread_has_two_phases(listener: Listener) -> None:
    with harness_of(inline) as harness:
        assert harness.push("k") == ["k"]
        assert harness.run_metrics["events"] == 1
    assert listener.phases == {"k": [Phase.RUNNING, Phase.COMMITTED]}
    assert listener.told == [("ended", "k", "act", "inline"), ("committed", "k", "inline")]


def test_run_on_the_loop_is_queued_and_finished(listener: Listener) -> None:
    with harness_of(on_loop) as harness:
        harness.push("k")
        assert harness.run_until_idle() == ["k"]
    assert listener.phases == {"k": [*ON_THE_LOOP, *END]}
    assert listener.told == [("ended", "k", "act", "on the loop"), ("committed", "k", "on the loop")]


def test_inputs_that_wait_are_queued(listener: Listener) -> None:
    with harness_of(on_loop, {"run.inline": False}) as harness:
        harness.push_all(["k", "k"])
        harness.run_until_idle()
    run = [Phase.QUEUED, Phase.RUNNING, *END]
    assert sorted(listener.phases["k"], key=lambda phase: phase.value) == sorted(
        2 * run, key=lambda phase: phase.value
    )


def test_error_fails_the_run(listener: Listener) -> None:
    def fails(event: InputEvent, ctx: Any) -> None:
        raise ValueError

    async def fails_on_loop(event: InputEvent, ctx: Any) -> None:
        raise ValueError

    for act in (fails, fails_on_loop):
        with pytest.raises(ActionFailedError), harness_of(act) as harness:
            harness.push(act.__name__)
            harness.run_until_idle()
    assert listener.phases == {
        "fails": [Phase.RUNNING, Phase.FAILED],
        "fails_on_loop": [*ON_THE_LOOP, Phase.FAILED],
    }


def test_pause_before_the_next_attempt_is_a_phase(listener: Listener) -> None:
    errors = [OSError()]

    async def act(event: InputEvent, ctx: Any) -> None:
        if errors:
            raise errors.pop()

    with harness_of(act, retry=RetryPolicy(initial_interval=0.01)) as harness:
        harness.push("k")
        harness.run_until_idle()
    assert listener.phases["k"] == [*ON_THE_LOOP, Phase.RETRY, Phase.RUNNING, *END]
    assert "a pause before attempt 2" in listener.waits["k"]
    assert listener.told[:2] == [("failed", "k", "act", "OSError"), ("retried", "k", "act", 2)]


@pytest.mark.parametrize(
    ("config", "options", "phase", "what"),
    [
        ({"run.max-in-flight": 1}, {}, Phase.SLOT, "a slot of run.max-in-flight"),
        ({}, {"max_concurrency": 1}, Phase.LIMIT, "max_concurrency of the action"),
        ({}, {"rate_limit": RateLimit(1, per=0.2)}, Phase.LIMIT, "rate limit of the action"),
    ],
)
def test_waiting_for_a_slot_or_a_limit_is_a_phase(
    config: dict[str, Any], options: dict[str, Any], phase: Phase, what: str, listener: Listener
) -> None:
    leave = threading.Event()

    async def act(event: InputEvent, ctx: Any) -> None:
        while not leave.is_set():
            await asyncio.sleep(0.001)

    with harness_of(act, config, **options) as harness:
        harness.push_all(["first", "second"])
        until(lambda: phase in listener.phases.get("second", ()))
        leave.set()
        harness.run_until_idle()
    assert listener.phases["first"] == [*ON_THE_LOOP, *END]
    assert listener.phases["second"] == [*ON_THE_LOOP, phase, Phase.RUNNING, *END]
    assert what in listener.waits["second"]


def test_waiting_for_a_thread_is_a_phase(listener: Listener) -> None:
    leave = threading.Event()

    def act(event: InputEvent, ctx: Any) -> None:
        assert leave.wait(30)

    with harness_of(act, {"run.pool-size": 1}, blocking=True) as harness:
        harness.push_all(["first", "second"])
        until(lambda: Phase.THREAD in listener.phases.get("second", ()))
        assert harness.run_metrics["runs_in_flight"] == 2
        leave.set()
        harness.run_until_idle()
    assert listener.phases["second"] == [*ON_THE_LOOP, Phase.THREAD, Phase.RUNNING, *END]


def test_waiting_for_a_client_is_a_phase(listener: Listener) -> None:
    class WithClient(Agent):
        @client
        async def slow(self) -> AsyncIterator[int]:
            await asyncio.sleep(0)
            yield 1

        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: Any) -> None:
            await ctx.client("slow")

    with OperatorHarness(WithClient, lambda record: record, forced_serialization=False) as harness:
        harness.push("opens")
        harness.push("finds it open")
    assert listener.phases["opens"] == [*ON_THE_LOOP, Phase.CLIENT, Phase.RUNNING, *END]
    assert listener.phases["finds it open"] == [*ON_THE_LOOP, *END]


async def fetch(number: int) -> int:
    return number


def fetch_in_a_thread(number: int) -> int:
    return number


async def calls(event: InputEvent, ctx: Any) -> OutputEvent:
    first = await ctx.durable_execute_async(fetch, 1)
    return OutputEvent(output=first + await ctx.durable_execute_async(fetch_in_a_thread, 2))


def test_durable_calls_are_phases_and_are_told(listener: Listener) -> None:
    with harness_of(calls, {"action-state.store": "memory"}) as harness:
        harness.push("k")
        assert harness.run_until_idle() == [3]
    phases = [*ON_THE_LOOP, Phase.CALL, Phase.RUNNING, Phase.CALL, Phase.RUNNING, *END]
    assert listener.phases["k"] == phases
    assert any(what.startswith("durable call ") and what.endswith("fetch") for what in listener.waits["k"])
    assert listener.told == [
        ("begun", "k", "act", "fetch", False),
        ("records", "k", "act", 1),
        ("recorded", "k", "act", "fetch"),
        ("begun", "k", "act", "fetch_in_a_thread", False),
        ("records", "k", "act", 1),
        ("recorded", "k", "act", "fetch_in_a_thread"),
        # An end that is not in the journal is none.
        ("records", "k", "act", 1),
        ("ended", "k", "act", "on the loop"),
        ("committed", "k", "on the loop"),
    ]


def test_replay_is_told(listener: Listener) -> None:
    with harness_of(calls, {"action-state.store": "memory"}) as harness:
        start = harness.snapshot()
        harness.push("k")
        harness.run_until_idle()
        listener.told.clear()
        listener.phases.clear()
        harness.restore(start)
        harness.push("k")
        harness.run_until_idle()
    assert listener.told == [("action replayed", "k", "act"), ("committed", "k", "on the loop")]
    assert listener.phases["k"] == [Phase.RECORDS, Phase.QUEUED, Phase.RUNNING, *END]


def test_phase_is_that_of_the_wait_that_began_last() -> None:
    listener = Listener()
    state = RunState("suser", 0, Observers(listener), Phase.QUEUED)
    state.begin(1.0)
    first = WaitPhase(Phase.CALL, "first")
    second = WaitPhase(Phase.CLIENT, "second")
    state.begin_wait(first)
    state.begin_wait(second)
    assert (state.phase, state.waits_for) == (Phase.CLIENT, "second")
    state.end_wait(second)
    assert (state.phase, state.waits_for, state.since) == (Phase.CALL, "first", first.since)
    state.begin_wait(second)
    state.end_wait(first)
    assert (state.phase, state.waits_for) == (Phase.CLIENT, "second")
    state.end_wait(second)
    assert (state.phase, state.waits_for) == (Phase.RUNNING, "")
    state.finish(2.0)
    # A thread that cannot be stopped goes on.
    state.begin_wait(first)
    assert (state.phase, state.since) == (Phase.FINISHED, 2.0)
    assert not listener.wrong


def test_each_phase_has_successors_and_a_suspended_run_is_queued_again() -> None:
    assert FOLLOWS.keys() == {None, *Phase}
    assert FOLLOWS[Phase.SUSPENDED] == {Phase.QUEUED}
    reached = set[Phase]().union(*FOLLOWS.values())
    assert reached == set(Phase)


def test_observer_that_raises_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(RunObserver):
        def committed(self, run: ObservedRun, seconds: float | None) -> None:
            raise ValueError("broken")

    listener = Listener()
    with observed_by(Broken(), listener), harness_of(inline) as harness:
        assert harness.push("k") == ["k"]
        assert harness.run_metrics["events"] == 1
    assert ("committed", "k", "inline") in listener.told
    assert "an observer of runs raised" in caplog.text


def test_whoever_waits_for_a_run_learns_what_it_does() -> None:
    async def never(event: InputEvent, ctx: Any) -> None:
        await asyncio.Event().wait()

    with harness_of(never, {"run.max-in-flight": 1}) as harness:
        harness.push_all(["first", "second"])
        with pytest.raises(TimeoutError, match="no run ended within 0.1 s: runs are in flight: ") as caught:
            harness.run_until_idle(0.1)
    text = str(caught.value)
    assert "key 'first', sequence 0, running, for " in text
    assert "key 'second', sequence 0, waits for a slot of run.max-in-flight, for " in text
