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
from tests.suite.tables import each_case
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
            first_charge = ctx.durable_execute_async(charge, 1)
            second_charge = ctx.durable_execute_async(charge, number)
            await ctx.gather(first_charge, second_charge)
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
    first, *remaining_steps = event.input
    await perform(ctx, first)
    return [*(Then(steps=steps) for steps in remaining_steps), OutputEvent(output=len(remaining_steps))]


async def go_on(event: Any, ctx: RunnerContext) -> None:
    await perform(ctx, event.steps)


def note(event: Any, ctx: RunnerContext) -> None:
    ctx.short_term_memory.set("noted", ctx.short_term_memory.get("noted", 0) + 1)


def agent() -> Agent:
    retry = RetryPolicy(max_attempts=50, initial_interval=0.001, non_retryable=(ValueError,))
    policies: dict[str, Any] = {"on_error": OnError.DEAD_LETTER, "retry": retry}
    random_agent = Agent(name="random").add_action("begin", [InputEvent], begin, **policies)
    return random_agent.add_action("go_on", [Then], go_on, **policies).add_action("note", [Then], note)


def program(rng: random.Random) -> Program:
    """What the executions of actions in a run do."""
    kinds = ["charge", "charge", "mail", "declined", "both", "agent", "stumble", "wait"]

    def steps() -> list[tuple[str, int]]:
        chosen_steps = [(rng.choice(kinds), rng.randint(2, 9)) for _ in range(rng.randint(0, 4))]
        return [*chosen_steps, ("fail", 0)] if rng.random() < 0.15 else chosen_steps

    return [steps() for _ in range(rng.randint(1, 3))]


class Looking(TraceRecorder):
    """Finds out at random moments that its runs last."""

    def call_recorded(self, run: Any, action: str, function: str, number: Any) -> None:
        super().call_recorded(run, action, function, number)
        if Chance.rng.random() < 0.3:
            self.record_lasting_runs()


class Attempts:
    """The recorders of all attempts, and what they have written."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[TraceRecorder, list[TraceRecord]]] = []
        patch.setattr(assembly, "recorder_of", self.recorder)
        patch.setattr(runs, "LASTS_SECONDS", -1.0)
        self.starts: list[int] = []
        reset = Crashes._restore_moment

        def noted(crashes: Crashes, *what: Any) -> None:
            self.starts.append(len(self.made))
            reset(crashes, *what)

        patch.setattr(Crashes, "_restore_moment", noted)

    def recorder(self, config: Any, subtask: Any, on_drop: Any) -> TraceRecorder:
        sink = Keeping()
        recorder = Looking(subtask, TraceLevel.CALLS, TraceWriter({"kept": sink}, 10**6))
        self.made.append((recorder, sink.records))
        return recorder

    def written(self, nth: int) -> list[TraceRecord]:
        recorder, records = self.made[nth]
        assert recorder.writer.flush()
        return list(records)


def story(run: RunTrace) -> list[Any]:
    """All that a reader learns of a run, but for times and for attempts that others followed.

    Calls of agents are those of the action: the journal does not know the agent.
    """
    parts = [record for record in run.records if record.is_end and not is_attempt(record)]
    parents = {agent_part.span_id: agent_part.parent_id for agent_part in parts if agent_part.kind == "agent"}
    shown: set[Any] = set()
    for part in parts:
        # A failure is in the journal only when something follows it. Before that, it may be repeated.
        name = "" if part.kind == "call" and part.outcome == "failed" else part.span_id
        parent = parents.get(part.parent_id or "", part.parent_id) or ""
        if part.kind != "agent":
            shown.add((part.kind, part.name, part.outcome, name, parent))
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
        Chance.rng = rng
        Chance.failing = 0.4
        with OperatorHarness(agent(), lambda _: "k", crash="everywhere", forced_replay=False) as harness:
            signals = sum(kind == "wait" for action_steps in steps for kind, _ in action_steps)
            for number in range(1 + signals):
                previous_records = attempts.written(0) if attempts.made else []
                if number:
                    harness.signal("k", "go")
                    harness.run_until_idle()
                else:
                    harness.push_all([steps])
                whole = attempts.written(0)
                ends = [*attempts.starts[1:], len(attempts.made)]
                for start, end in zip(attempts.starts, ends, strict=True):
                    # Without a second attempt, the kill was not reached: other attempts of actions failed.
                    if end == start + 2:
                        yield Kill(
                            whole, previous_records, attempts.written(start), attempts.written(start + 1)
                        )
                attempts.starts.clear()


def formatted(span: int) -> str:
    return format(span, "016x")


def check(kill: Kill, left: int) -> None:
    """Check the trace that has the first records of the attempt that was killed."""
    records = [*kill.before, *kill.killed[:left], *kill.after]
    (whole,), (run,) = by_run(kill.whole).values(), by_run(records).values()
    assert story(run) == story(whole)
    assert run.status == whole.status
    assert by_run(records[::-1]) == {run.run_id: run}
    ends = [record for record in run.records if record.is_end]
    assert len({end.span_id for end in ends}) == len(ends)
    finished = run.status in FINAL
    if finished:
        assert {end.parent_id for end in ends} - {end.span_id for end in ends} == {None}
    spans = Counter(span.context.span_id for span in spans_of(records))
    # What records nothing is executed again, and so is a run of it.
    durable = {end.parent_id for end in ends if end.kind == "call" and end.outcome == "ok"}
    again = {end.span_id for end in ends if end.kind != "call" and end.span_id not in durable}
    again -= {end.span_id for end in ends if end.kind == "run"} if durable else set()
    again |= {
        record.span_id
        for record in kill.after
        if record.outcome == "suspended" and record.attributes.get("calls")
    }
    assert [span for span in map(formatted, spans) if spans[int(span, 16)] > 1 and span not in again] == []
    ended_anew = {record.span_id for record in kill.after if record.kind == "action" and not record.replayed}
    if finished and any(record.kind == "call" and record.parent_id in ended_anew for record in kill.after):
        # An action ended after the kill, so the run did, too.
        assert int(span_id(run.run_id), 16) in spans
    if finished and left == len(kill.killed):
        parents = {span.parent.span_id for span in spans_of(records) if span.parent is not None}
        # Its end was in the journal: nothing says that it was exported, too.
        journal = {int(end.span_id, 16) for end in ends if end.replayed}
        assert [formatted(parent) for parent in parents - spans.keys() - journal] == []


@pytest.mark.nightly(beyond=6)
@pytest.mark.parametrize("seed", [29, *range(25)])
def test_a_trace_with_kills_tells_the_story_of_a_run_without(seed: int) -> None:
    rng = random.Random(seed)
    steps = program(rng)
    for place, kill in enumerate(explored(rng, steps)):
        most = len(kill.killed)
        # What a checkpoint has is not replayed, and a loss of its records is final.
        for remaining_count in {0, most, rng.randint(0, most)} if kill.after else {most}:
            try:
                check(kill, remaining_count)
            except AssertionError as error:
                where = f"kill {place}, {remaining_count} of {most} records left"
                raise AssertionError(f"{where}: {steps}") from error


async def go_on_once(event: Any, ctx: RunnerContext) -> Any:
    await perform(ctx, event.input)
    return OutputEvent(output=0)


async def pay(event: Any, ctx: RunnerContext) -> Any:
    return OutputEvent(output=await ctx.durable_execute_async(charge, 1))


def noted(then: Any) -> Agent:
    """An agent whose first action makes no durable call."""
    noting_agent = Agent(name="noting").add_action("note", [InputEvent], note)
    return noting_agent.add_action("then", [InputEvent], then)


@each_case(
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
        records = [record for nth in range(len(attempts.made)) for record in attempts.written(nth)]
    (run,) = by_run(records).values()
    assert run.status == "completed"
    assert Counter(record.name for record in run.records if record.kind == "action") == {"note": 1, "then": 1}
    spans = Counter(format(span.context.span_id, "016x") for span in spans_of(records))
    assert spans == dict.fromkeys((record.span_id for record in run.records if record.is_end), 1)
