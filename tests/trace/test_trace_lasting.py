"""A run that ends soon and well is one line. Readers get the same records as from lines of their own."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OnError, OutputEvent, RetryPolicy, RunnerContext, redaction
from flink_agents.api.settings.tracing import TraceLevel
from flink_agents.runtime.execution import phases
from flink_agents.testing import OperatorHarness
from flink_agents.trace.folding import unfold_records
from flink_agents.trace.reading import by_run, read_files
from flink_agents.trace.recording import runs
from flink_agents.trace.recording.recorder import TracedSubtask, TraceRecorder
from flink_agents.trace.records import TraceRecord
from flink_agents.trace.sinks.jsonl import JsonlSink
from flink_agents.trace.sinks.kafka import KafkaSink
from flink_agents.trace.sinks.kafka_topic import KafkaTopic
from flink_agents.trace.sinks.otel import spans_of
from flink_agents.trace.writer import TraceWriter
from tests.runtime.observer_tools import Listener
from tests.suite.tables import each_case
from tests.trace.hour import Nth, Outcome, Phase, Run, Wait, ended, observers_of, turn
from tests.trace.test_trace_facts import asking
from tests.trace.test_trace_folding import checking, reply, reply_async
from tests.trace.test_trace_parents import buying
from tests.trace.test_trace_records import PLAIN, paying, records_in

pytestmark = pytest.mark.own_conditions


def double(number: int) -> int:
    return 2 * number


def flaky(number: int) -> int:
    flaky.calls += 1  # pyright: ignore[reportFunctionMemberAccess]
    if flaky.calls == 1:  # pyright: ignore[reportFunctionMemberAccess]
        raise ConnectionError("not now")
    return number


async def many(event: Any, ctx: RunnerContext) -> Any:
    ctx.short_term_memory.set("a", 1)
    ctx.short_term_memory.set("b", "two")
    doubled = await ctx.durable_execute_async(double, event.input)
    two = await asyncio.gather(*(ctx.durable_execute_async(double, number) for number in range(3)))
    return OutputEvent(output=[doubled, *two])


async def again(event: Any, ctx: RunnerContext) -> Any:
    doubled = await ctx.durable_execute_async(double, event.input)
    return OutputEvent(output=await ctx.durable_execute_async(flaky, doubled))


async def wait(event: Any, ctx: RunnerContext) -> Any:
    await ctx.durable_execute_async(double, event.input)
    await ctx.wait_for_signal("paid", timeout=3600)
    return OutputEvent(output=await ctx.durable_execute_async(double, event.input))


def agent_of(function: Any, **options: Any) -> Agent:
    return Agent(name="lasting").add_action("act", [InputEvent], function, **options)


RETRIES = {"on_error": OnError.RETRY, "retry": RetryPolicy(max_attempts=3, initial_interval=0.01)}


def traced_records(agent: Agent, value: Any, directory: Path, level: str) -> list[TraceRecord]:
    flaky.calls = 0  # pyright: ignore[reportFunctionMemberAccess]
    options = {"trace.level": level, "trace.directory": str(directory)}
    with OperatorHarness(agent, lambda _: "k", config=options, **PLAIN) as harness:
        harness.push_all([value, value])
        harness.signal("k", "paid")
        harness.run_until_idle()
    return list(read_files(directory))


def facts(records: list[TraceRecord]) -> list[Any]:
    """All that does not depend on the clock."""
    shown: list[Any] = []
    for record in records:
        times = ("phases", "since")
        attributes = {name: value for name, value in record.attributes.items() if name not in times}
        attributes |= {"phases": sorted(record.attributes.get("phases", {}))}
        attributes |= {name: bool(attributes[name]) for name in ("request", "result") if name in attributes}
        attributes |= {"waits": [wait["id"] for wait in attributes.get("waits", ())]}
        # The id of an attempt that failed has its time.
        name = (
            "" if record.kind in ("action", "attempt", "call") and record.outcome == "failed" else record.id
        )
        shown.append(
            (
                record.kind,
                record.name,
                record.outcome,
                name,
                record.parent_id,
                record.trace,
                record.replayed,
                attributes,
            )
        )
    return sorted((fact for fact in shown if fact[2] != "started"), key=str)


@each_case(
    "name, agent, value, lines",
    [
        ("on Flink's thread", checking(reply), "two", 1),
        ("from Flink's thread to the loop", checking(reply_async), "two", 1),
        ("one call", paying(), 5, 1),
        ("many calls", agent_of(many), 5, 1),
        ("a chat", asking(), "which?", 1),
        ("a dead letter", checking(reply), "bad", 3),
        ("a call that fails", paying(), -1, 4),
        ("a call of two attempts", agent_of(again, **RETRIES), 5, None),
        ("a suspension", agent_of(wait), 5, None),
        ("a called agent", buying(), "both", None),
    ],
)
@pytest.mark.parametrize("level", ["runs", "calls", "content"])
def test_readers_get_the_same_from_one_line_as_from_many(
    name: str, agent: Agent, value: Any, lines: int | None, level: str, tmp_path: Path
) -> None:
    folded_records = traced_records(agent, value, tmp_path / name, level)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "MOST_STEPS", -1)
        patch.setattr("flink_agents.trace.recording.recorder.MOST_STEPS", -1)
        many = traced_records(agent, value, tmp_path / f"{name}, each", level)
    assert facts(folded_records) == facts(many)
    if level == "calls" and lines is not None:
        (file,) = (tmp_path / name).iterdir()
        # Two inputs.
        assert len(file.read_bytes().splitlines()) == 2 * lines
    for run in by_run(folded_records).values():
        inside = [part for part in run.records if part.kind != "run"]
        assert all(run.begun - 1e-5 <= part.time - (part.seconds or 0) for part in inside)
        assert all(part.time <= run.ended for part in inside)


@each_case(
    "name, agent, value",
    [
        ("on Flink's thread", checking(reply), "two"),
        ("from Flink's thread to the loop", checking(reply_async), "one"),
        ("a call", paying(), 5),
        ("a dead letter", checking(reply), "bad"),
        ("a suspension", agent_of(wait), 5),
    ],
)
def test_an_observer_is_told_the_same_beside_a_trace(
    name: str, agent: Agent, value: Any, tmp_path: Path
) -> None:
    reports: dict[str, Any] = {}
    for level in ("off", "runs", "calls", "content"):
        options = {"trace.level": level, "trace.directory": str(tmp_path / level)}
        with OperatorHarness(agent, lambda _: "k", config=options, observers=[Listener], **PLAIN) as harness:
            (listener,) = [observer for observer in harness.observers if isinstance(observer, Listener)]
            harness.push_all([value])
            harness.signal("k", "paid")
            harness.run_until_idle()
        reports[level] = listener.told, listener.phases, listener.wrong
    assert reports["off"][0] and not reports["off"][2]
    assert all(report == reports["off"] for report in reports.values())


@each_case(
    "name, where, method, error",
    [
        ("no thread", TraceWriter, "start", RuntimeError("can't start new thread")),
        ("no line", runs.RunRecorder, "queue_lines", ValueError("no line")),
        ("no record", runs.RunRecorder, "_record_end", ValueError("no record")),
    ],
)
def test_a_trace_that_fails_does_not_fail_the_run(
    name: str, where: Any, method: str, error: Exception, tmp_path: Path
) -> None:
    def fail(*arguments: Any) -> None:
        raise error

    dropped: list[Exception] = []
    options = {"trace.level": "calls", "trace.directory": str(tmp_path / method)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "AT_ONCE", 1)
        patch.setattr(TraceWriter, "count_unmade", lambda self, error: dropped.append(error))
        patch.setattr(where, method, fail)
        with OperatorHarness(checking(reply), lambda _: "k", config=options, **PLAIN) as harness:
            assert harness.push_all(["bad", "one"]) == ["one"]
    assert error in dropped


def test_an_action_that_succeeds_after_a_retry_names_its_attempt(tmp_path: Path) -> None:
    records = traced_records(agent_of(again, **RETRIES), 5, tmp_path, "calls")
    attempts = [
        (record.outcome, record.attributes.get("attempt")) for record in records if record.kind == "action"
    ]
    assert attempts == [("failed", None), ("ok", 2), ("ok", None)]


class Keeping:
    def __init__(self) -> None:
        self.records: list[TraceRecord] = []

    def write(self, records: Any) -> None:
        self.records += records

    def close(self) -> None:
        pass


class Traced:
    """A recorder with a clock that is turned by hand."""

    def __init__(self) -> None:
        self.kept = Keeping()
        self.at = 1000.0
        writer = TraceWriter({"kept": self.kept}, 10**6)
        subtask = TracedSubtask("job", "a", 0)
        self.recorder = TraceRecorder(subtask, TraceLevel.CALLS, writer, now=lambda: self.at)

    def close(self) -> list[TraceRecord]:
        self.recorder.closed()
        # Sinks that take records get each of them.
        return self.kept.records


def hooks(recorder: TraceRecorder, run: Run, on_loop: bool) -> list[Any]:
    """What the runtime tells of a run, one by one."""
    first_phase, running = (Phase.QUEUED, Phase.RUNNING) if on_loop else (Phase.RUNNING, Phase.RUNNING)
    reports: list[Any] = [lambda: turn(recorder, run, first_phase, None)]
    if on_loop:
        reports.append(lambda: turn(recorder, run, running, Phase.QUEUED))
    for action in ("read", "pay", "pay"):
        if on_loop:
            for nth, function in enumerate(("charge", "charge", "mail")):
                reports += [
                    partial(recorder.call_begun, run, action, function, Nth(nth), False),
                    lambda: turn(recorder, run, Phase.CALL, Phase.RUNNING),
                    partial(recorder.call_recorded, run, action, function, Nth(nth)),
                    lambda: turn(recorder, run, Phase.RUNNING, Phase.CALL),
                ]
        reports += [
            lambda action=action: ended(recorder, run, action, ("Paid", "Paid"), not on_loop, 0.001),
        ]
    if on_loop:
        reports.append(lambda: turn(recorder, run, Phase.FINISHED, Phase.RUNNING))
    return [*reports, lambda: turn(recorder, run, Phase.COMMITTED, run.phase)]


@each_case("on_loop", [(True,), (False,)])
def test_a_run_that_is_found_to_last_loses_nothing_and_repeats_nothing(on_loop: bool) -> None:
    """The writer's thread looks between any two reports of the run."""
    plain = Traced()
    for hook in hooks(plain.recorder, Run(1), on_loop):
        plain.at += 0.001
        hook()
    wanted = facts(plain.close())
    assert len(wanted) == (13 if on_loop else 4)
    last = len(hooks(plain.recorder, Run(1), on_loop))
    for place in range(1, last + 1):
        traced = Traced()
        for number, hook in enumerate(hooks(traced.recorder, Run(1), on_loop), 1):
            traced.at += 0.001
            hook()
            if number == place:
                traced.at += 2
                traced.recorder.record_lasting_runs()
                traced.recorder.record_lasting_runs()
        records = traced.close()
        assert facts(records) == wanted, place
        starts = [record for record in records if record.outcome == "started"]
        # A run that has ended has no start.
        assert [(start.time, start.seconds) for start in starts] == (
            [(1000.001, 0.0)] if place < last else []
        )
        assert not traced.recorder.unfinished_count


@each_case("on_loop", [(True,), (False,)])
def test_times_are_the_same_in_one_line_and_in_many(on_loop: bool) -> None:
    times: list[dict[str, Any]] = []
    for most in (50, -1):
        traced = Traced()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runs, "MOST_STEPS", most)
            patch.setattr("flink_agents.trace.recording.recorder.MOST_STEPS", most)
            for hook in hooks(traced.recorder, Run(1), on_loop):
                traced.at += 0.25
                hook()
        times.append(
            {record.id: (round(record.time, 5), round(record.seconds or 0, 5)) for record in traced.close()}
        )
    assert times[0] == times[1] and len(times[0]) == (13 if on_loop else 4)


def test_each_moment_of_a_run_belongs_to_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two actions wait at a time: the newest wait counts, then the earlier one again."""
    traced = Traced()
    at = [100.0]
    monkeypatch.setattr(phases, "clock", lambda: at[0])
    run = phases.RunState("k", 1, observers_of(traced.recorder), Phase.QUEUED, at[0])
    run.identity = "job"
    run.begin(at[0] + 1)
    call = phases.WaitPhase(Phase.CALL, "charge")
    slot = phases.WaitPhase(Phase.SLOT, "a slot")
    for seconds, change in ((2, run.begin_wait), (4, run.begin_wait), (8, run.end_wait), (16, run.end_wait)):
        at[0] += seconds
        change(slot if seconds in (4, 8) else call)
    at[0] += 32
    run.finish(at[0])
    run.commit(at[0])
    (record,) = traced.close()
    assert record.attributes["phases"] == {"queued": 1.0, "call": 4.0 + 16.0, "slot": 8.0}


def test_a_call_that_ends_after_its_action_keeps_its_parent() -> None:
    traced = Traced()
    run = Run(1)
    for phase, previous_phase in ((Phase.QUEUED, None), (Phase.RUNNING, Phase.QUEUED)):
        turn(traced.recorder, run, phase, previous_phase)
    traced.recorder.call_begun(run, "pay", "charge", Nth(), False)
    traced.recorder.action_ended(run, "pay", 0.001, False)
    traced.recorder.call_recorded(run, "pay", "charge", Nth())
    traced.recorder.action_ended(run, "pay", 0.001, False)
    turn(traced.recorder, run, Phase.COMMITTED, Phase.RUNNING)
    records = traced.close()
    (call,) = [record for record in records if record.kind == "call"]
    assert call.parent_id == next(record.span_id for record in records if record.kind == "action")


class Interrupted(dict[Any, Any]):
    """Runs that end soon. While the writer's thread takes one out, the thread of the run goes on."""

    def __init__(self, before: Any, after: Any) -> None:
        super().__init__()
        self.before = before
        self.after = after

    def pop(self, *arguments: Any) -> Any:
        before_hook = self.before
        self.before = None
        if before_hook is not None:
            before_hook()
        segment = super().pop(*arguments)
        after = self.after
        self.after = None
        if after is not None:
            after()
        return segment


@each_case(
    "when, step, wanted",
    [
        ("before", "action", {("run", "started"): 1, ("action", "ok"): 2, ("run", "completed"): 1}),
        ("after", "action", {("run", "started"): 1, ("action", "ok"): 2, ("run", "completed"): 1}),
        ("before", "end", {("action", "ok"): 1, ("run", "completed"): 1}),
    ],
)
def test_a_run_goes_on_while_the_writer_finds_that_it_lasts(when: str, step: str, wanted: Any) -> None:
    traced, run = Traced(), Run(1)

    def action() -> None:
        traced.recorder.action_ended(run, "read", 0.001, True)

    def end() -> None:
        turn(traced.recorder, run, Phase.COMMITTED, Phase.RUNNING)

    steps = {"action": action, "end": end}
    first, last = (steps[step], None) if when == "before" else (None, steps[step])
    traced.recorder._short = Interrupted(first, last)  # pyright: ignore[reportPrivateUsage]
    turn(traced.recorder, run, Phase.RUNNING, None)
    action()
    traced.at += 2
    traced.recorder.record_lasting_runs()
    if step != "end":
        end()
    assert not traced.recorder.unfinished_count
    assert Counter((record.kind, record.outcome) for record in traced.close()) == wanted


def test_a_secret_that_becomes_known_is_hidden_in_further_lines() -> None:
    secret = "the-pass-of-alice-4711"
    traced = Traced()
    records: list[TraceRecord] = []
    for is_known in (False, True):
        if is_known:
            redaction.add_secrets(secret)
        run = Run(int(is_known))
        run.key_text = secret
        for hook in hooks(traced.recorder, run, False):
            hook()
        traced.recorder.writer.flush(60)
        records = list(unfold_records(traced.kept.records))
    assert {record.key for record in records[:4]} == {secret} and {record.key for record in records[4:]} == {
        "***"
    }
    traced.close()


def test_a_topic_gets_the_same_lines_as_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sent: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(KafkaTopic, "send_records", lambda self, records: sent.extend(records))
    sinks: Any = {"kafka": KafkaSink("localhost:1", "trace"), "jsonl": JsonlSink(tmp_path, "a-0-")}
    recorder = TraceRecorder(TracedSubtask("job", "a", 0), TraceLevel.CALLS, TraceWriter(sinks))
    for number in range(3):
        for hook in hooks(recorder, Run(number), number > 0):
            hook()
    failing = Run(4)
    turn(recorder, failing, Phase.RUNNING, None)
    recorder.action_failed(failing, "read", ValueError("no"))
    turn(recorder, failing, Phase.FAILED, Phase.RUNNING)
    recorder.closed()
    (file,) = tmp_path.iterdir()
    assert [line for _, line in sent] == file.read_bytes().splitlines() and len(sent) == 5
    assert all(key.decode() == TraceRecord.from_json(line).run_id for key, line in sent)


def test_a_look_at_any_moment_loses_nothing_and_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer's thread looks all the time, and takes each run for one that lasts."""
    monkeypatch.setattr(runs, "LASTS_SECONDS", -1.0)
    traced, over = Traced(), threading.Event()

    def look() -> None:
        while not over.is_set():
            traced.recorder.record_lasting_runs()

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for number in range(1500):
            for hook in hooks(traced.recorder, Run(number), number % 2 == 0):
                hook()
    finally:
        over.set()
        looking.join()
    records = traced.close()
    ends = Counter(record.id for record in records if record.outcome != "started")
    assert set(ends.values()) == {1} and len(ends) == 750 * (13 + 4)
    parents = {record.span_id for record in records if record.is_end}
    assert all(record.parent_id in parents for record in records if record.is_end and record.kind != "run")
    assert not traced.recorder.unfinished_count


def test_steps_of_runs_that_have_not_ended_are_written_at_the_end_of_the_attempt() -> None:
    traced = Traced()
    for hook in hooks(traced.recorder, Run(1), True)[:12]:
        hook()
    records = traced.close()
    assert Counter((record.kind, record.outcome) for record in records) == {
        ("run", "started"): 1,
        ("call", "ok"): 2,
    }


def test_a_suspended_run_goes_on_as_a_further_segment() -> None:
    traced = Traced()
    run = Run(1)
    for hook in hooks(traced.recorder, run, True)[:6]:
        hook()
    run.open_waits = (Wait(),)
    turn(traced.recorder, run, Phase.SUSPENDED, Phase.RUNNING)
    turn(traced.recorder, run, Phase.QUEUED, Phase.SUSPENDED)
    turn(traced.recorder, run, Phase.RUNNING, Phase.QUEUED)
    traced.recorder.call_replayed(run, "read", "charge", Nth(), Outcome())
    traced.recorder.call_begun(run, "read", "charge", Nth(1), False)
    traced.recorder.call_recorded(run, "read", "charge", Nth(1))
    traced.recorder.action_ended(run, "read", 0.1, False)
    turn(traced.recorder, run, Phase.COMMITTED, Phase.RUNNING)
    records = traced.close()
    calls = [record for record in records if record.kind == "call"]
    assert len({call.id for call in calls}) == len(calls) == 2
    assert [record.outcome for record in records if record.kind == "run"] == ["suspended", "completed"]
    assert len(list(spans_of(records))) == 5


def appears(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)


def recorders() -> list[TraceRecorder]:
    return [candidate for candidate in gc.get_objects() if type(candidate) is TraceRecorder]


def test_inputs_that_leave_the_queue_of_a_suspended_key_are_forgotten(tmp_path: Path) -> None:
    all_queued = tmp_path / "all-queued"

    async def pay(event: Any, ctx: RunnerContext) -> Any:
        await asyncio.to_thread(appears, all_queued)
        return OutputEvent(output=await ctx.wait_for_signal(f"paid-{event.input}"))

    agent = Agent(name="paid").add_action("pay", [InputEvent], pay)
    config = {"trace.level": "calls", "trace.directory": str(tmp_path)}
    of_other_tests = recorders()
    with OperatorHarness(agent, lambda value: "key", config=config, auto_run=False, **PLAIN) as harness:
        for number in range(5):
            harness.push(number)
        (recorder,) = [
            recorder_candidate
            for recorder_candidate in recorders()
            if recorder_candidate not in of_other_tests
        ]
        assert recorder.unfinished_count == 5
        all_queued.touch()
        for number in range(5):
            harness.run_until_idle()
            assert not recorder.unfinished_count
            harness.signal("key", f"paid-{number}", number)
        harness.run_until_idle()
        assert harness.outputs == [*range(5)]
    completed = [
        record for record in records_in(tmp_path) if (record.kind, record.outcome) == ("run", "completed")
    ]
    assert len(completed) == 5
