"""Inputs that overtake a suspended run, beside what else an agent does: delayed events, approvals, questions.

Tests that crash do so before and after each append and each commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, Event, InputEvent, OutputEvent, RetryPolicy, action
from flink_agents.api.errors import ActionFailedError, NoMoreSignalsError, RunDeadlineError
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.testing import OperatorHarness

CALLED: list[str] = []
"""What durable calls did outside."""


@pytest.fixture(autouse=True)
def nothing_called() -> Iterator[None]:
    CALLED.clear()
    yield
    CALLED.clear()


async def call(what: str) -> str:
    CALLED.append(what)
    return f"did {what}"


def count(ctx: Any, name: str) -> int:
    """Count up what all runs share, and log who did; returns what was there before."""
    memory = ctx.short_term_memory
    previous_count: int = memory.get("n", 0)
    memory.set("n", previous_count + 1)
    memory.append("log", name)
    return previous_count


class Later(Event):
    what: str


class Sending(Agent):
    """Sends delayed events before and behind its wait; ``plain`` does not wait."""

    on_suspend = "interleave"

    @action(InputEvent)
    async def act(self, event: Any, ctx: Any) -> Any:
        name = event.input
        count(ctx, name)
        await ctx.durable_execute_async(call, name)
        if name != "plain":
            ctx.send_event(Later(what=f"{name} before"), delay=10)
            await ctx.wait_for_signal(name)
            await ctx.durable_execute_async(call, f"{name} behind")
            ctx.send_event(Later(what=f"{name} behind"), delay=10)
        return OutputEvent(output=(name, count(ctx, f"{name} end")))

    @action(Later)
    async def later(self, event: Later, ctx: Any) -> Any:
        previous_count = count(ctx, event.what)
        await ctx.durable_execute_async(call, f"later {event.what}")
        if event.what == "b before":
            await ctx.sleep(30)
        return OutputEvent(output=(event.what, previous_count, count(ctx, f"{event.what} end")))


@pytest.mark.executes_once
def test_delayed_events_overtake_and_are_overtaken() -> None:
    with OperatorHarness(Sending, crash="everywhere") as harness:
        harness.push_all(["a", "b", "plain"])
        assert harness.outputs == [("plain", 3)]
        assert [getattr(delayed_event.event, "what", None) for delayed_event in harness.delayed()] == [
            "a before",
            "b before",
        ]
        harness.advance_time(10_000)
        assert harness.outputs[1:] == [("a before", 4, 5)]
        harness.signal(0, "b", 1)
        assert harness.outputs[2:] == [("b", 7)]
        harness.advance_time(10_000)
        assert harness.outputs[3:] == [("b behind", 8, 9)]
        harness.signal(0, "a", 1)
        harness.advance_time(10_000)
        assert harness.outputs[4:] == [("a", 10), ("a behind", 11, 12)]
        harness.advance_time(10_000)
        assert harness.outputs[6:] == [("b before", 6, 13)]
        assert harness.waits() == harness.delayed() == []
        assert len(harness.memory()["log"]) == harness.memory()["n"] == 14
    assert len(CALLED) == len(set(CALLED)) == 9


@pytest.mark.executes_once
def test_delayed_events_wait_behind_too_many_runs() -> None:
    config = {"run.max-suspended-per-key": 1}
    with OperatorHarness(Sending, crash="everywhere", config=config) as harness:
        harness.push("a")
        harness.advance_time(20_000)
        assert (harness.outputs, harness.delayed()) == ([], [])
        harness.push("plain")
        harness.signal(0, "a", 1)
        assert harness.outputs == [("a", 1), ("a before", 2, 3), ("plain", 5)]


@pytest.mark.executes_once
def test_the_end_of_the_input_ends_waits_and_delayed_events() -> None:
    with OperatorHarness(Ends) as harness:
        harness.push_all("abc")
        outputs = sorted(harness.end_input())
        assert outputs == ["a ended", "a later", "b ended", "b later", "c ended", "c later"]
        assert harness.memory()["n"] == 6


class Ends(Agent):
    on_suspend = "interleave"

    @action(InputEvent)
    async def act(self, event: Any, ctx: Any) -> Any:
        ctx.send_event(Later(what=event.input), delay=5)
        try:
            await ctx.wait_for_signal("never")
        except NoMoreSignalsError:
            count(ctx, "ended")
            return OutputEvent(output=f"{event.input} ended")

    @action(Later)
    async def later(self, event: Later, ctx: Any) -> Any:
        await ctx.sleep(5)
        count(ctx, "later")
        return OutputEvent(output=f"{event.what} later")


class Approved(Agent):
    """Asks before it does what an input with a capital says."""

    on_suspend = "interleave"

    @action(InputEvent, needs_approval=lambda event: event.input.isupper(), approval_timeout=60)
    async def act(self, event: Any, ctx: Any) -> Any:
        return OutputEvent(
            output=(event.input, count(ctx, event.input), await ctx.durable_execute_async(call, event.input))
        )


@pytest.mark.executes_once
def test_what_needs_an_approval_is_overtaken() -> None:
    with OperatorHarness(Approved, crash="everywhere") as harness:
        harness.push_all(["A", "b", "C", "d"])
        assert [output[:2] for output in harness.outputs] == [("b", 0), ("d", 1)]
        first, second = harness.approvals
        harness.approve(second)
        harness.approve(first)
        assert [output[:2] for output in harness.outputs[2:]] == [("C", 2), ("A", 3)]
        assert harness.approvals == [] and harness.state().pending == {}
    assert CALLED == ["b", "d", "C", "A"]


@pytest.mark.executes_once
def test_approvals_that_nobody_gives_end_while_others_go_on() -> None:
    with OperatorHarness(Approved, crash="everywhere") as harness:
        harness.push_all(["A", "b", "C"])
        harness.advance_time(60_000)
        assert [outcome.decision.value for outcome in harness.approval_outcomes] == ["expired", "expired"]
        harness.push("d")
        assert [output[:2] for output in harness.outputs] == [("b", 0), ("d", 1)]
        assert harness.state().pending == {}


class Clerk(Agent):
    """Waits for an answer, with memory of its own."""

    @action(InputEvent)
    async def act(self, event: Any, ctx: Any) -> Any:
        previous_count = count(ctx, event.input)
        await ctx.durable_execute_async(call, f"clerk {event.input}")
        answer = await ctx.wait_for_signal(event.input)
        return OutputEvent(output=(previous_count, answer, count(ctx, "said")))


class Asking(Agent):
    on_suspend = "interleave"

    @action(InputEvent)
    async def act(self, event: Any, ctx: Any) -> Any:
        previous_count = count(ctx, event.input)
        answer = None if event.input == "plain" else await ctx.call_agent(Clerk(), event.input)
        return OutputEvent(output=(event.input, previous_count, answer, count(ctx, "end")))


@pytest.mark.executes_once
def test_an_agent_that_is_asked_waits_and_is_overtaken() -> None:
    with OperatorHarness(Asking, crash="everywhere") as harness:
        harness.push_all(["a", "b", "plain"])
        assert harness.outputs == [("plain", 2, None, 3)]
        harness.signal(0, "b", "yes")
        harness.signal(0, "a", "no")
        answers = [
            (name, previous_count, answer[1], end)
            for name, previous_count, answer, end in harness.outputs[1:]
        ]
        assert answers == [("b", 1, "yes", 4), ("a", 0, "no", 5)]
    assert CALLED == ["clerk a", "clerk b"]


def failing(policy: str) -> Agent:
    """An agent whose action fails behind its second wait, with that policy."""

    async def act(event: Any, ctx: Any) -> Any:
        name = event.input
        yield OutputEvent(output=(name, 0, count(ctx, name)))
        if name == "plain":
            return
        await ctx.wait_for_signal("one")
        yield OutputEvent(output=(name, 1, count(ctx, f"{name} one")))
        await ctx.wait_for_signal("two")
        ctx.short_term_memory.set("n", 1_000)
        yield OutputEvent(output=(name, 2, await ctx.durable_execute_async(call, name)))
        raise ValueError("behind the wait")

    class Fails(Agent):
        on_suspend = "interleave"

    retry = RetryPolicy(max_attempts=2, initial_interval=0.001) if policy == "retry" else None
    return Fails().add_action("act", [InputEvent], act, on_error=policy, retry=retry)


@pytest.mark.executes_once
@pytest.mark.parametrize("policy", ["ignore", "dead-letter", "retry", "fail"])
def test_an_action_that_fails_in_a_later_part(policy: str) -> None:
    fails = policy in ("retry", "fail")
    with OperatorHarness(failing(policy), crash=None if fails else "everywhere") as harness:
        harness.push("a")
        harness.push("plain")
        harness.signal(0, "one")
        assert harness.outputs == [("a", 0, 0), ("plain", 0, 1), ("a", 1, 2)]
        if fails:
            with pytest.raises(ActionFailedError, match="behind the wait"):
                harness.signal(0, "two")
            return
        harness.signal(0, "two")
        assert harness.push("plain") == [("plain", 0, 3)]
        assert len(harness.dead_letters) == (policy == "dead-letter")
        assert harness.memory() == {"n": 4, "log": ["a", "plain", "a one", "plain"]}
        assert harness.state().pending == {} and harness.unmatched_signals == []
    assert CALLED == ["a"]


class Limited(Agent):
    on_suspend = "interleave"
    seconds: float | None = None

    @action(InputEvent)
    async def act(self, event: Any, ctx: Any) -> Any:
        name = event.input
        seen = [count(ctx, event.input)]
        try:
            for part in "12":
                await ctx.wait_for_signal(f"{name}{part}", timeout=self.seconds)
                seen.append(count(ctx, f"{name}{part}"))
                await ctx.durable_execute_async(call, f"{name}{part}")
        except RunDeadlineError:
            name += " late"
        except TimeoutError:
            name += " timed out"
        return OutputEvent(output=(name, *seen, count(ctx, "end")))


class Hurried(Limited):
    seconds = 8


@pytest.mark.executes_once
def test_a_deadline_counts_from_the_begin_of_the_first_part() -> None:
    config = {"run.deadline": "10 s"}
    with OperatorHarness(Hurried, crash="everywhere", config=config) as harness:
        harness.push_all("ab")
        harness.advance_time(6_000)
        harness.signal(0, "b1")
        harness.advance_time(1_999)
        assert harness.outputs == []
        harness.advance_time(1)
        assert harness.outputs == [("a timed out", 0, 3)]
        harness.advance_time(2_000)
        assert harness.outputs[1:] == [("b late", 1, 2, 4)]
        assert harness.state().pending == {}


@pytest.mark.executes_once
@pytest.mark.parametrize("policy", ["interleave", "block"])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_deadline_that_has_passed_at_a_restore(policy: str, parallelism: int) -> None:
    class Changed(Limited):
        on_suspend = policy

    options: dict[str, Any] = {"crash": None, "config": {"run.deadline": "10 s"}, "name": "one"}
    options["store"] = partial(MemoryStore, MemoryPlace())
    with OperatorHarness(Limited, **options) as old_harness:
        old_harness.push_all("ab")
        old_harness.signal(0, "b1")
        snapshot = old_harness.snapshot()
    with OperatorHarness(Changed, **options) as behind:
        behind.restore(snapshot, parallelism=parallelism)
        behind.advance_time(20_000)
        assert sorted(output[0] for output in behind.outputs) == ["a late", "b late"]
        assert behind.memory()["n"] == 5


@pytest.mark.executes_once
@pytest.mark.parametrize(
    "order", [("block", "interleave"), ("interleave", "block"), ("interleave", "block", "interleave")]
)
@pytest.mark.parametrize("store", ["memory", "sqlite", "none"])
def test_the_policy_changes_from_savepoint_to_savepoint(
    order: tuple[str, ...], store: str, tmp_path: Path
) -> None:
    config: dict[str, Any] = {"run.deadline": "1 d"}
    options: dict[str, Any] = {"crash": None, "config": config, "name": "one"}
    if store == "memory":
        options["store"] = partial(MemoryStore, MemoryPlace())
    elif store == "sqlite":
        config |= {"action-state.store": "sqlite", "action-state.sqlite.path": str(tmp_path / "calls.db")}
    harnesses: list[OperatorHarness] = []
    signals = iter(["a1", "b1", "a2", "b2"])
    for number, policy in enumerate(order):
        agent = Pausing() if store == "none" else Calling()
        agent.on_suspend = policy
        harness = OperatorHarness(agent, **options, parallelism=1 + number)
        if harnesses:
            harness.restore(harnesses[-1].snapshot(), parallelism=1 + number)
        else:
            harness.push_all("ab")
        harnesses.append(harness)
        harness.signal(0, next(signals), 1)
    for signal in signals:
        harnesses[-1].signal(0, signal, 1)
    outputs = [output for harness in harnesses for output in harness.outputs]
    assert sorted(outputs) == [("a", 3), ("b", 3)]
    last = harnesses[-1]
    assert last.memory()["n"] == 6
    assert sorted(last.memory()["log"]) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert last.state().pending == {} and last.unmatched_signals == []
    for harness in harnesses:
        harness.close()
    if store != "none":
        assert sorted(CALLED) == sorted(["a1", "a2", "b1", "b2"])


class Calling(Agent):
    """Waits twice, and makes a call behind each wait."""

    @action(InputEvent)
    async def act(self, event: Any, ctx: Any) -> Any:
        name = event.input
        count(ctx, f"{name}0")
        for part in "12":
            await ctx.wait_for_signal(f"{name}{part}")
            await ctx.durable_execute_async(call, f"{name}{part}")
            count(ctx, f"{name}{part}")
        return OutputEvent(output=(name, 3))


class Pausing(Agent):
    """The same without a durable call, and so without a store."""

    @action(InputEvent)
    async def act(self, event: Any, ctx: Any) -> Any:
        name = event.input
        count(ctx, f"{name}0")
        for part in "12":
            await ctx.wait_for_signal(f"{name}{part}")
            count(ctx, f"{name}{part}")
        return OutputEvent(output=(name, 3))


async def first_of(*waits: Awaitable[Any]) -> Any:
    """Return what comes first, and wait for nothing else."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    done, pending_tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending_tasks:
        task.cancel()
    await asyncio.gather(*pending_tasks, return_exceptions=True)
    return min(task.result() for task in done)


class Two(Agent):
    """``both`` waits for two signals side by side, ``either`` for the first, ``right`` for one of them."""

    on_suspend = "interleave"

    @action(InputEvent)
    async def act(self, event: Any, ctx: Any) -> Any:
        if event.input == "both":
            result = await ctx.gather(ctx.wait_for_signal("left"), ctx.wait_for_signal("right"))
        elif event.input == "either":
            result = await first_of(ctx.wait_for_signal("left"), ctx.wait_for_signal("right"))
        elif event.input == "right":
            result = await ctx.wait_for_signal("right")
        else:
            result = await ctx.durable_execute_async(GATE.wait)
        return OutputEvent(output=(event.input, result))


class Gate:
    """A call that goes on until a test says so."""

    def __init__(self) -> None:
        self.opens: Callable[[], bool] = lambda: True

    async def wait(self) -> str:
        while not self.opens():
            await asyncio.sleep(0.001)
        return "open"


GATE = Gate()


@pytest.mark.executes_once
def test_a_signal_is_for_the_run_that_waited_when_it_came() -> None:
    """A run that has a wake-up, and its turn behind others, loses no signal to these."""
    opened: list[bool] = []
    GATE.opens = lambda: bool(opened)
    with OperatorHarness(Two, auto_run=False, crash=None) as harness:
        harness.push("both")
        harness.run_until_idle()
        harness.push("gate")
        harness.push("right")
        harness.signal(0, "left", 1)
        harness.signal(0, "right", 2)
        harness.signal(0, "right", 3)
        opened.append(True)
        harness.run_until_idle()
        assert sorted(harness.outputs, key=str) == [("both", [1, 2]), ("gate", "open"), ("right", 3)]
        assert harness.unmatched_signals == []


@pytest.mark.executes_once
def test_a_signal_goes_to_others_if_its_run_does_not_wait_for_it_any_more() -> None:
    opened: list[bool] = []
    GATE.opens = lambda: bool(opened)
    with OperatorHarness(Two, auto_run=False, crash=None) as harness:
        harness.push("either")
        harness.run_until_idle()
        harness.push("gate")
        harness.signal(0, "left", 1)
        harness.signal(0, "right", 2)
        opened.append(True)
        harness.run_until_idle()
        harness.push("right")
        harness.run_until_idle()
        assert sorted(harness.outputs) == [("either", 1), ("gate", "open"), ("right", 2)]


class Drawing(Agent):
    """Calls with what it draws before and behind its wait."""

    on_suspend = "interleave"

    @action(InputEvent)
    async def act(self, event: Any, ctx: Any) -> Any:
        drawn = [str(ctx.uuid4())]
        await ctx.durable_execute_async(call, drawn[0])
        if event.input != "plain":
            await ctx.wait_for_signal(event.input)
            drawn.append(str(ctx.uuid4()))
            await ctx.durable_execute_async(call, drawn[1])
        return OutputEvent(output=(event.input, *drawn))


@pytest.mark.executes_once
def test_a_fork_goes_on_with_what_a_run_has_drawn() -> None:
    store = partial(MemoryStore, MemoryPlace())
    with OperatorHarness(
        Drawing, name="one", crash=None, store=store, job_id="one", config={"job-identifier": "one"}
    ) as origin:
        origin.push_all(["a", "plain"])
        snapshot = origin.snapshot()
        expected = origin.signal(0, "a", 1)
    config = {"job-identifier": "two", "action-state.on-job-change": "fork"}
    with OperatorHarness(Drawing, name="one", crash=None, store=store, job_id="two", config=config) as fork:
        fork.restore(snapshot)
        assert fork.signal(0, "a", 1) == expected
        fork.restore(fork.snapshot())
        fork.push("b")
        fork.restore(fork.snapshot())
        assert [output[0] for output in fork.signal(0, "b", 1)] == ["b"]
    # The fork makes for itself what its origin did behind the savepoint.
    assert len(CALLED) == 6 and len(set(CALLED)) == 5
