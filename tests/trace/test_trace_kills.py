"""Random runs that are killed at each point, and lose their last records, have the trace of whole runs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from flink_agents import Agent, Event, InputEvent, OnError, OutputEvent, RetryPolicy, RunnerContext
from flink_agents.api.settings.tracing import TraceLevel
from flink_agents.runtime.operator import assembly
from flink_agents.testing import OperatorHarness
from flink_agents.testing.recovery.everywhere import Crashes
from flink_agents.trace.reading import RunTrace, by_run
from flink_agents.trace.recording import runs
from flink_agents.trace.recording.recorder import TraceRecorder
from flink_agents.trace.records import FINAL, TraceRecord, span_id
from flink_agents.trace.sinks.otel import spans_of
from flink_agents.trace.writer import TraceWriter
from tests.suite.tables import each
from tests.trace.test_trace_lasting import Keeping
from tests.trace.test_trace_records import PLAIN

pytestmark = pytest.mark.own_conditions

Program = Sequence[Any]


class Then(Event):
    """Goes to the next action, with what that does."""

    steps: Any


async def charge(amount: int) -> int:
    return amount


async def mail(amount: int) -> int:
    return -amount


def decline(amount: int) -> int:
    raise ValueError("declined")


class Chance:
    """Decides which attempts of actions fail."""

    rng = random.Random(0)
    failing = 0.0


async def perform(ctx: RunnerContext, steps: Program) -> Any:
    """Make the calls of an action."""
    for kind, number in steps:
        if kind == "charge":
            await ctx.durable_execute_async(charge, number)
        elif kind == "mail":
            await ctx.durable_execute_async(mail, number)
        elif kind == "declined":
            with pytest.raises(ValueError):
                await ctx.durable_execute_async(decline, number)
        elif kind == "both":
            one, other = ctx.durable_execute_async(charge, 1), ctx.durable_execute_async(charge, number)
            await ctx.gather(one, other)
        elif kind == "agent":
            await ctx.call_agent(ASKED, number)
        elif kind == "wait":
            await ctx.wait_for_signal("go")
        elif kind == "stumble" and Chance.rng.random() < Chance.failing:
            raise ConnectionError("not now")
        elif kind == "fail":
            raise ValueError("never")


async def answer(event: Any, ctx: RunnerContext) -> Any:
    return OutputEvent(output=await ctx.durable_execute_async(mail, event.input))


ASKED = Agent(name="asked").add_action("answer", [InputEvent], answer)


async def begin(event: Any, ctx: RunnerContext) -> Any:
    first, *rest = event.input
    await perform(ctx, first)
    return [*(Then(steps=steps) for steps in rest), OutputEvent(output=len(rest))]


async def go_on(event: Any, ctx: RunnerContext) -> None:
    await perform(ctx, event.steps)


def note(event: Any, ctx: RunnerContext) -> None:
    ctx.short_term_memory.set("noted", ctx.short_term_memory.get("noted", 0) + 1)


def agent() -> Agent:
    retry = RetryPolicy(max_attempts=50, initial_interval=0.001, non_retryable=(ValueError,))
    policies: dict[str, Any] = {"on_error": OnError.DEAD_LETTER, "retry": retry}
    found = Agent(name="random").add_action("begin", [InputEvent], begin, **policies)
    return found.add_action("go_on", [Then], go_on, **policies).add_action("note", [Then], note)


def program(rng: random.Random) -> Program:
    """What the executions of actions in a run do."""
    kinds = ["charge", "charge", "mail", "declined", "both", "agent", "stumble", "wait"]

    def steps() -> list[tuple[str, int]]:
        made = [(rng.choice(kinds), rng.randint(2, 9)) for _ in range(rng.randint(0, 4))]
        return [*made, ("fail", 0)] if rng.random() < 0.15 else made

    return [steps() for _ in range(rng.randint(1, 3))]


class Looking(TraceRecorder):
    """Finds out at random moments that its runs last."""

    def call_recorded(self, run: Any, action: str, function: str, number: Any) -> None:
        super().call_recorded(run, action, function, number)
        if Chance.rng.random() < 0.3:
            self.look()


class Attempts:
    """The recorders of all attempts, and what they have written."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[TraceRecorder, list[TraceRecord]]] = []
        patch.setattr(assembly, "recorder_of", self.recorder)
        patch.setattr(runs, "LASTS_SECONDS", -1.0)
        self.starts: list[int] = []
        reset = Crashes._reset

        def noted(crashes: Crashes, *what: Any) -> None:
            self.starts.append(len(self.made))
            reset(crashes, *what)

        patch.setattr(Crashes, "_reset", noted)

    def recorder(self, config: Any, subtask: Any, on_drop: Any) -> TraceRecorder:
        kept = Keeping()
        made = Looking(subtask, TraceLevel.CALLS, TraceWriter({"kept": kept}, 10**6))
        self.made.append((made, kept.records))
        return made

    def written(self, nth: int) -> list[TraceRecord]:
        recorder, records = self.made[nth]
        assert recorder.writer.flush()
        return list(records)


def story(run: RunTrace) -> list[Any]:
    """All that a reader learns of a run, but for times and for attempts that others followed.

    Calls of agents are those of the action: the journal does not know the agent.
    """
    parts = [one for one in run.records if one.is_end and not is_attempt(one)]
    parents = {one.span_id: one.parent_id for one in parts if one.kind == "agent"}
    shown: set[Any] = set()
    for one in parts:
        # A failure is in the journal only when something follows it. Before that, it may be repeated.
        name = "" if one.kind == "call" and one.outcome == "failed" else one.span_id
        parent = parents.get(one.parent_id or "", one.parent_id) or ""
        if one.kind != "agent":
            shown.add((one.kind, one.name, one.outcome, name, parent))
    return sorted(shown)


def is_attempt(one: TraceRecord) -> bool:
    """True for a failure after which the action, or the run, began again."""
    ends = {span_id(one.run_id, "action", one.name, number) for number in range(4)}
    return one.outcome == "failed" and (one.kind == "run" or one.kind == "action" and one.span_id not in ends)


@dataclass
class Kill:
    """A step of a test with a kill.

    Attributes:
        whole: The records of the run without a kill, to the end of the step.
        before: The records of the steps before.
        killed: The records of the attempt that was killed.
        after: The records of the next attempt, to the end of the step.
    """

    whole: list[TraceRecord]
    before: list[TraceRecord]
    killed: list[TraceRecord]
    after: list[TraceRecord]


def explored(rng: random.Random, steps: Program) -> Iterator[Kill]:
    """Execute a run once without a kill, and once with each kill."""
    with pytest.MonkeyPatch.context() as patch:
        attempts = Attempts(patch)
        Chance.rng, Chance.failing = rng, 0.4
        with OperatorHarness(agent(), lambda _: "k", crash="everywhere", forced_replay=False) as harness:
            signals = sum(kind == "wait" for one in steps for kind, _ in one)
            for number in range(1 + signals):
                before = attempts.written(0) if attempts.made else []
                if number:
                    harness.signal("k", "go")
                    harness.run_until_idle()
                else:
                    harness.push_all([steps])
                whole, ends = attempts.written(0), [*attempts.starts[1:], len(attempts.made)]
                for one, end in zip(attempts.starts, ends, strict=True):
                    # Without a second attempt, the kill was not reached: other attempts of actions failed.
                    if end == one + 2:
                        yield Kill(whole, before, attempts.written(one), attempts.written(one + 1))
                attempts.starts.clear()


def formatted(span: int) -> str:
    return format(span, "016x")


def check(kill: Kill, left: int) -> None:
    """Check the trace that has the first records of the attempt that was killed."""
    found = [*kill.before, *kill.killed[:left], *kill.after]
    (whole,), (run,) = by_run(kill.whole).values(), by_run(found).values()
    assert story(run) == story(whole)
    assert run.status == whole.status
    assert by_run(found[::-1]) == {run.run_id: run}
    ends = [one for one in run.records if one.is_end]
    assert len({one.span_id for one in ends}) == len(ends)
    finished = run.status in FINAL
    if finished:
        assert {one.parent_id for one in ends} - {one.span_id for one in ends} == {None}
    spans = Counter(span.context.span_id for span in spans_of(found))
    # What records nothing is executed again, and so is a run of it.
    durable = {one.parent_id for one in ends if one.kind == "call" and one.outcome == "ok"}
    again = {one.span_id for one in ends if one.kind != "call" and one.span_id not in durable}
    again -= {one.span_id for one in ends if one.kind == "run"} if durable else set()
    again |= {one.span_id for one in kill.after if one.outcome == "suspended" and one.attributes.get("calls")}
    assert [span for span in map(formatted, spans) if spans[int(span, 16)] > 1 and span not in again] == []
    ended_anew = {one.span_id for one in kill.after if one.kind == "action" and not one.replayed}
    if finished and any(one.kind == "call" and one.parent_id in ended_anew for one in kill.after):
        # An action ended after the kill, so the run did, too.
        assert int(span_id(run.run_id), 16) in spans
    if finished and left == len(kill.killed):
        parents = {span.parent.span_id for span in spans_of(found) if span.parent is not None}
        # Its end was in the journal: nothing says that it was exported, too.
        journal = {int(one.span_id, 16) for one in ends if one.replayed}
        assert [formatted(one) for one in parents - spans.keys() - journal] == []


def test_a_trace_with_kills_tells_the_story_of_a_run_without() -> None:
    for seed in (*range(25), 29):
        rng = random.Random(seed)
        steps = program(rng)
        for place, kill in enumerate(explored(rng, steps)):
            most = len(kill.killed)
            # What a checkpoint has is not replayed, and a loss of its records is final.
            for left in {0, most, rng.randint(0, most)} if kill.after else {most}:
                try:
                    check(kill, left)
                except AssertionError as error:
                    where = f"seed {seed}, kill {place}, {left} of {most} records left"
                    raise AssertionError(f"{where}: {steps}") from error


async def go_on_once(event: Any, ctx: RunnerContext) -> Any:
    await perform(ctx, event.input)
    return OutputEvent(output=0)


async def pay(event: Any, ctx: RunnerContext) -> Any:
    return OutputEvent(output=await ctx.durable_execute_async(charge, 1))


def noted(then: Any) -> Agent:
    """An agent whose first action makes no durable call."""
    found = Agent(name="noting").add_action("note", [InputEvent], note)
    return found.add_action("then", [InputEvent], then)


@each(
    "then, steps, restarts",
    [
        (go_on_once, [("wait", 0)], False),
        (go_on_once, [("charge", 1), ("wait", 0)], False),
        (go_on_once, [("charge", 1), ("wait", 0)], True),
        (pay, [], True),
    ],
)
def test_an_action_has_one_span_in_a_run_that_is_replayed(then: Any, steps: Program, restarts: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        attempts = Attempts(patch)
        with OperatorHarness(noted(then), lambda _: "k", **PLAIN) as harness:
            snapshot = harness.checkpoint()
            for _ in range(1 + restarts):
                harness.push_all([steps])
                if ("wait", 0) in steps:
                    harness.signal("k", "go")
                    harness.run_until_idle()
                if len(attempts.made) <= restarts:
                    harness.restore(snapshot)
        found = [one for nth in range(len(attempts.made)) for one in attempts.written(nth)]
    (run,) = by_run(found).values()
    assert run.status == "completed"
    assert Counter(one.name for one in run.records if one.kind == "action") == {"note": 1, "then": 1}
    spans = Counter(format(span.context.span_id, "016x") for span in spans_of(found))
    assert spans == dict.fromkeys((one.span_id for one in run.records if one.is_end), 1)
