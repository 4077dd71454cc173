"""Inputs that overtake a suspended run of their key: ``on_suspend = "interleave"``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from flink_agents import Agent, Event, EventTime, InputEvent, OutputEvent, RetryPolicy, action
from flink_agents.api.errors import NoMoreSignalsError, RunDeadlineError, SignalTimeoutError
from flink_agents.testing import OperatorHarness
from tests.suite.factors import factors

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


def note(ctx: Any, name: str, part: int, seen: list[int]) -> OutputEvent:
    """Read and write the paths that all runs share; ``seen`` has what the run read before."""
    memory = ctx.short_term_memory
    seen.append(memory.get("n", 0))
    memory.set("n", seen[-1] + 1)
    memory.append("log", f"{name}{part}")
    memory.set(f"own.{name}", seen[-1])
    return OutputEvent(output=(name, part, tuple(seen)))


class Plain(Agent):
    """Waits as often as its input says: ``r2`` is named r and waits twice."""

    on_suspend = "interleave"

    @action(InputEvent)
    async def act(self, event: Any, ctx: Any) -> Any:
        name = event.input[0]
        seen = list[int]()
        for part in range(int(event.input[1:]) + 1):
            if part:
                await ctx.wait_for_signal(f"{name}:{part}", str)
            yield note(ctx, name, part, seen)


class Calling(Agent):
    """The same, with a durable call in each part."""

    on_suspend = "interleave"

    @action(InputEvent)
    async def act(self, event: Any, ctx: Any) -> Any:
        name = event.input[0]
        seen = list[int]()
        for part in range(int(event.input[1:]) + 1):
            if part:
                await ctx.wait_for_signal(f"{name}:{part}", str)
            await ctx.durable_execute_async(call, f"{name} {part}")
            yield note(ctx, name, part, seen)


def steps_of(runs: list[str]) -> list[list[str]]:
    """All orders of inputs and signals, each signal behind the input of its run and the signals before it."""
    parts = [[run, *(f"{run[0]}:{part}" for part in range(1, int(run[1:]) + 1))] for run in runs]
    names = [place for place, steps in enumerate(parts) for _ in steps]
    orders: list[list[str]] = []
    for order in sorted(set(itertools.permutations(names))):
        remaining_steps = [iter(steps) for steps in parts]
        orders.append([next(remaining_steps[place]) for place in order])
    return orders


def drive(harness: OperatorHarness, steps: list[str], settles: bool = False) -> None:
    """Push inputs, and send signals, which have a colon in their names."""
    for step in steps:
        if ":" in step:
            harness.signal(0, step, "said", id=step)
        else:
            harness.push(step)
        if settles:
            harness.run_until_idle()


def expected_of(steps: list[str]) -> list[tuple[str, int, tuple[int, ...]]]:
    """What each step puts out: the parts in the order in which they could begin."""
    seen: dict[str, list[int]] = {}
    expected: list[tuple[str, int, tuple[int, ...]]] = []
    for number, step in enumerate(steps):
        numbers = seen.setdefault(step[0], [])
        numbers.append(number)
        expected.append((step[0], len(numbers) - 1, tuple(numbers)))
    return expected


def check(harness: OperatorHarness, steps: list[str]) -> None:
    """See that each step took effect once, in order."""
    expected = expected_of(steps)
    assert harness.outputs == expected
    memory = harness.memory(0)
    assert memory["n"] == len(steps)
    assert memory["log"] == [f"{name}{part}" for name, part, _ in expected]
    own_memory = {f"own.{name}": seen[-1] for name, _, seen in expected}
    assert {path: n for path, n in memory.items() if path.startswith("own.")} == own_memory
    assert harness.waits(0) == [] and harness.unmatched_signals == []


RUNS = ["a1", "b1", "c0"]


@factors(strength=1, steps=steps_of(RUNS), agent=[Plain, Calling], ids={"steps": ",".join})
def test_both_runs_write_one_path(agent: type[Agent], steps: list[str]) -> None:
    with OperatorHarness(agent) as harness:
        drive(harness, steps)
        check(harness, steps)


@pytest.mark.nightly(beyond=4)
@pytest.mark.executes_once
@factors(
    strength=1,
    steps=steps_of(RUNS)[::4] + steps_of(["a2", "b1"])[::3],
    ids={"steps": ",".join},
)
def test_a_crash_anywhere_changes_nothing(steps: list[str]) -> None:
    with OperatorHarness(Calling, crash="everywhere") as harness:
        drive(harness, steps)
        check(harness, steps)
    assert CALLED == [f"{name} {part}" for name, part, _ in expected_of(steps)]


@pytest.mark.parametrize("agent", [Plain, Calling])
def test_a_run_waits_several_times(agent: type[Agent]) -> None:
    steps = ["a3", "c0", "a:1", "d0", "a:2", "e0", "a:3", "f0"]
    with OperatorHarness(agent) as harness:
        drive(harness, steps)
        check(harness, steps)


@pytest.mark.executes_once
@pytest.mark.parametrize("steps", steps_of(["a2", "b1", "c0"])[::7], ids=",".join)
@pytest.mark.parametrize("at", range(1, 6))
def test_nothing_is_repeated_behind_an_older_checkpoint(steps: list[str], at: int) -> None:
    """All that came behind a checkpoint comes again, signals first, and takes the turns that it had."""
    with OperatorHarness(Calling, auto_run=False) as harness:
        drive(harness, steps[:at], settles=True)
        snapshot = harness.snapshot()
        drive(harness, steps[at:], settles=True)
        check(harness, steps)
        harness.restore(snapshot)
        drive(harness, sorted(steps[at:], key=lambda step: ":" not in step))
        harness.run_until_idle()
        check(harness, steps)
    assert CALLED == [f"{name} {part}" for name, part, _ in expected_of(steps)]


def test_several_runs_of_a_key_wait_for_one_name() -> None:
    harness = OperatorHarness(OneName)
    harness.push("a")
    assert harness.signal(0, "answer", 1) == [("a", 1)]
    harness.push("b")
    harness.push("c")
    first, second = harness.waits(0)
    assert harness.signal(0, "answer", 2) == []
    assert [str(stray.reason) for stray in harness.unmatched_signals] == ["ambiguous"]
    assert harness.signal(0, "answer", 3, wait=second.id) == [("c", 3)]
    assert harness.signal(0, "answer", 4) == [("b", 4)]
    assert harness.signal(0, "answer", 5, wait=first.id) == []
    assert [str(stray.reason) for stray in harness.unmatched_signals] == ["ambiguous", "duplicate"]


class OneName(Agent):
    on_suspend = "interleave"

    @action(InputEvent)
    async def act(self, event: Any, ctx: Any) -> Any:
        return OutputEvent(output=(event.input, await ctx.wait_for_signal("answer")))


class Sleeps(Agent):
    on_suspend = "interleave"
    side_outputs = {"began": str}

    @action(InputEvent)
    async def act(self, event: Any, ctx: Any) -> Any:
        name, seconds = event.input
        ctx.emit_to("began", name)
        await ctx.sleep(seconds)
        ctx.short_term_memory.append("log", name)
        return OutputEvent(output=name)


def test_pauses_end_each_at_its_time() -> None:
    harness = OperatorHarness(Sleeps)
    for name, seconds in (("a", 30), ("b", 10), ("c", 20), ("d", 0)):
        harness.push((name, seconds))
    assert harness.outputs == ["d"]
    assert harness.advance_time(9_999) == []
    assert harness.advance_time(1) == ["b"]
    assert harness.advance_time(20_000) == ["c", "a"]
    assert harness.memory(0)["log"] == ["d", "b", "c", "a"]
    assert harness.side_output("began") == ["a", "b", "c", "d"]


def test_the_end_of_the_input_ends_all_waits() -> None:
    harness = OperatorHarness(AtEnd)
    for name in "abc":
        harness.push(name)
    assert sorted(harness.end_input()) == ["a ended", "b ended", "c ended"]


class AtEnd(Agent):
    on_suspend = "interleave"

    @action(InputEvent)
    async def act(self, event: Any, ctx: Any) -> Any:
        try:
            await ctx.wait_for_signal("never", timeout=60)
        except NoMoreSignalsError:
            return OutputEvent(output=f"{event.input} ended")
        except SignalTimeoutError:
            return OutputEvent(output=f"{event.input} late")


def test_behind_so_many_runs_inputs_wait() -> None:
    with OperatorHarness(Plain, config={"run.max-suspended-per-key": 2}) as harness:
        drive(harness, ["a1", "b1", "c1", "d0"])
        assert [output[:2] for output in harness.outputs] == [("a", 0), ("b", 0)]
        drive(harness, ["b:1"])
        assert [output[:2] for output in harness.outputs[2:]] == [("b", 1), ("c", 0)]
        drive(harness, ["a:1"])
        assert [output[:2] for output in harness.outputs[4:]] == [("a", 1), ("d", 0)]
        drive(harness, ["c:1"])
        assert harness.memory(0)["n"] == 7


class Waiting(Plain):
    on_suspend = "block"


@pytest.mark.parametrize(("first", "then"), [(Waiting, Plain), (Plain, Waiting)])
def test_the_policy_may_change(first: type[Agent], then: type[Agent]) -> None:
    with (
        OperatorHarness(first, name="agent") as old_harness,
        OperatorHarness(then, name="agent") as behind,
    ):
        drive(old_harness, ["a2", "b0"])
        behind.restore(old_harness.snapshot())
        drive(behind, ["a:1", "c0", "a:2"])
        memory = behind.memory(0)
    assert sorted(memory["log"]) == ["a0", "a1", "a2", "b0", "c0"]
    assert memory["n"] == 5


def test_a_rescale_takes_runs_along() -> None:
    with OperatorHarness(Calling, lambda record: record[1:], parallelism=2) as harness:
        keys = [f"1{number}" for number in range(8)]
        for key in keys:
            harness.push(f"a{key}")
        harness.restore(harness.snapshot(), parallelism=3)
        assert [key for key in keys if harness.waits(key)] == keys


class Failing(Agent):
    """Fails behind its wait."""

    on_suspend = "interleave"
    on_error = "dead-letter"

    @action(InputEvent, retry=RetryPolicy(max_attempts=2, initial_interval=0.001))
    async def act(self, event: Any, ctx: Any) -> Any:
        memory = ctx.short_term_memory
        n = memory.get("n", 0)
        memory.set("n", n + 1)
        yield OutputEvent(output=("before", event.input, n))
        if event.input == "fails":
            await ctx.wait_for_signal("go")
            CALLED.append(f"{n} {memory.get('n')}")
            memory.set("n", 100)
            raise ValueError("behind the wait")


@pytest.mark.executes_once
def test_what_was_committed_before_the_wait_stays_where_the_run_fails() -> None:
    with OperatorHarness(Failing) as harness:
        harness.push("fails")
        harness.push("b")
        harness.signal(0, "go")
        assert CALLED == ["0 2", "0 2"]
        assert harness.memory(0) == {"n": 2}
        assert harness.outputs == [("before", "fails", 0), ("before", "b", 1)]
        [letter] = harness.dead_letters
        assert (letter.sequence_number, len(letter.attempts)) == (0, 2)
        assert harness.push("c") == [("before", "c", 2)]


class Asked(Event):
    n: int


class Done(Event):
    n: int


class Chain(Agent):
    """Three actions, each of which writes; the one in the middle waits in two tasks."""

    on_suspend = "interleave"

    @action(InputEvent)
    def first(self, event: Any, ctx: Any) -> Any:
        memory = ctx.short_term_memory
        n = memory.get("n", 0)
        memory.set("n", n + 1)
        ctx.sensory_memory.set("first", n)
        return Asked(n=n) if event.input == "waits" else OutputEvent(output=n)

    @action(Asked)
    async def second(self, event: Any, ctx: Any) -> Any:
        memory = ctx.short_term_memory
        previous_count = memory.get("n")
        memory.append("log", f"before {event.n} {previous_count}")
        left_count, right = await ctx.gather(self.half(ctx, "left"), self.half(ctx, "right"))
        memory.append("log", f"behind {event.n} {previous_count} {left_count} {right} {memory.get('n')}")
        return Done(n=event.n)

    async def half(self, ctx: Any, name: str) -> int:
        await ctx.wait_for_signal(name)
        n: int = ctx.short_term_memory.get("n")
        ctx.short_term_memory.set("n", n + 10)
        return n

    @action(Done)
    def third(self, event: Any, ctx: Any) -> Any:
        sensory = ctx.sensory_memory.get("first")
        return OutputEvent(output=(event.n, sensory, ctx.short_term_memory.get("n")))


def test_parts_of_several_actions_and_tasks() -> None:
    with OperatorHarness(Chain) as harness:
        harness.push("waits")
        assert harness.push("a") == [1]
        harness.signal(0, "right")
        assert harness.memory(0)["n"] == 12
        assert harness.push("b") == [12]
        assert harness.signal(0, "left") == [(0, 0, 23)]
        assert harness.memory(0)["log"] == ["before 0 1", "behind 0 1 13 2 23"]


class Late(Agent):
    on_suspend = "interleave"

    @action(InputEvent)
    async def act(self, event: Any, ctx: Any) -> Any:
        try:
            if event.input == "waits":
                await ctx.wait_for_signal("never")
        except RunDeadlineError:
            return OutputEvent(output="late")
        return OutputEvent(output=event.input)


def test_the_deadline_of_a_run_ends_its_wait() -> None:
    with OperatorHarness(Late, config={"run.deadline": "10 s"}) as harness:
        harness.push("waits")
        assert harness.push("b") == ["b"]
        assert harness.advance_time(9_999) == []
        assert harness.advance_time(1) == ["late"]


@pytest.mark.executes_once
def test_runs_that_are_set_aside_hold_no_watermark() -> None:
    with OperatorHarness(Late, event_time=EventTime.hold_watermarks()) as harness:
        harness.push("waits", 1_000)
        harness.push("b", 2_000)
        harness.watermark(1_500)
        harness.advance_time(1_000)
        assert harness.output_watermark == 1_500
        harness.watermark(5_000)
        harness.advance_time(1_000)
        assert harness.output_watermark == 5_000
        harness.signal(0, "never")
        assert harness.outputs == ["b", "waits"]
        assert harness.timestamps == [2_000, 1_000]


@pytest.mark.executes_once
def test_memory_that_expires_while_runs_are_set_aside() -> None:
    with OperatorHarness(Calling, crash="everywhere", config={"memory.short-term.ttl": "10 s"}) as harness:
        drive(harness, ["c0", "a2", "b1"])
        harness.advance_time(6_000)
        drive(harness, ["a:1"])
        harness.advance_time(6_000)
        drive(harness, ["b:1", "a:2"])
        # What a run read before its wait is as it was; what it reads behind that has expired, or has not.
        assert harness.outputs[3:] == [("a", 1, (1, 3)), ("b", 1, (2, 4)), ("a", 2, (1, 3, 5))]
        harness.advance_time(11_000)
        assert harness.push("d0") == [("d", 0, (0,))]
