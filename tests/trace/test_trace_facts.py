"""What records say of requests to models, of memory, and of runs that have not ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, ChatModel, InputEvent, OutputEvent, RetryPolicy, RunnerContext, UsageLimits
from flink_agents.api.agents.observers import Phase
from flink_agents.api.events.approvals import APPROVAL_SIGNAL
from flink_agents.api.settings.tracing import TraceLevel
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ScriptedModel
from flink_agents.trace.reading import by_run
from flink_agents.trace.recording.facts import facts_of
from flink_agents.trace.recording.recorder import TracedSubtask, TraceRecorder
from flink_agents.trace.records import TraceRecord
from flink_agents.trace.rendering import explain_key, run_object, tree_lines
from flink_agents.trace.writer import TraceWriter
from tests.suite.tables import each_case
from tests.trace.hour import Nth
from tests.trace.test_trace_records import PLAIN, records_in
from tests.trace.test_trace_sinks import record

pytestmark = pytest.mark.own_conditions

USAGE = {"input_tokens": 7, "output_tokens": 0}
ANSWER = {"kind": "response", "model_name": "m", "usage": USAGE, "finish_reason": "stop"}


@each_case(
    "name, value, wanted",
    [
        ("chat", {"response": ANSWER, "cost": 0.5}, {"model": "m", "input_tokens": 7, "cost": 0.5}),
        ("whole agent", ANSWER, {"model": "m", "input_tokens": 7, "finish_reason": "stop"}),
        ("no price", {"response": ANSWER, "cost": None}, {"model": "m"}),
        ("refused", {"refused": "no"}, {"finish_reason": "refused"}),
        ("of a user", {"response": 7}, {}),
        ("of a user, too", {"refused": True, "order": 1}, {}),
        ("text", "response", {}),
        ("broken", {"kind": "response", "usage": 3, "model_name": 4, "finish_reason": None}, {}),
    ],
)
def test_the_facts_of_a_result(name: str, value: Any, wanted: dict[str, Any]) -> None:
    facts = facts_of(value)
    assert {fact: facts.get(fact) for fact in wanted} == wanted
    assert wanted or not facts
    assert "cost" in wanted or "cost" not in facts


@each_case(
    "wait, kind",
    [
        ({"kind": "timer", "name": None}, "timer"),
        ({"kind": "signal", "name": "paid"}, "signal"),
        ({"kind": "signal", "name": APPROVAL_SIGNAL}, "approval"),
        ({"kind": "hour", "name": "7"}, "hour"),
        ({"name": "paid"}, "signal"),
        ({"name": None}, "timer"),
    ],
)
def test_a_wait_as_an_object_has_its_kind(wait: dict[str, Any], kind: str) -> None:
    (run,) = by_run([record(outcome="suspended", attributes={"waits": [wait]})]).values()
    assert [shown["kind"] for shown in run_object(run)["waits"]] == [kind]


def model() -> ScriptedModel:
    return ScriptedModel("tea")


async def ask(event: Any, ctx: RunnerContext) -> OutputEvent:
    ctx.short_term_memory.set("last", event.input)
    result = await ctx.chat("clerk", event.input, limits=UsageLimits(requests=3))
    if event.input == "wait":
        await ctx.wait_for_signal("paid")
    return OutputEvent(output=result.output)


def asking() -> Agent:
    agent = Agent(name="asking").add_action("ask", [InputEvent], ask)
    agent.add_resource("clerk", "chat_model", ChatModel(clazz=f"{__name__}:model"))
    return agent


def traced_records(directory: Path, level: str, value: str = "which?") -> list[TraceRecord]:
    options = {"trace.level": level, "trace.directory": str(directory)}
    with OperatorHarness(asking(), lambda value: "k", config=options, **PLAIN) as harness:
        harness.push_all([value])
    return list(records_in(directory))


def test_a_chat_request_has_its_model_and_tokens(tmp_path: Path) -> None:
    records = traced_records(tmp_path, "calls")
    (call,) = [record for record in records if record.kind == "call"]
    assert call.name == "chat:clerk" and call.attributes["model"]
    assert call.attributes["input_tokens"] > 0 and call.attributes["output_tokens"] > 0
    assert not {"request", "result"} & call.attributes.keys()
    (run,) = by_run(records).values()
    assert "tokens in" in "\n".join(tree_lines(run))


@each_case("level, value", [("calls", "which?"), ("runs", "which?"), ("runs", "wait")])
def test_memory_is_named_with_its_sizes(level: str, value: str, tmp_path: Path) -> None:
    written = [
        record.attributes["memory"]
        for record in traced_records(tmp_path / level / value, level, value)
        if "memory" in record.attributes
    ]
    if level == "runs":
        assert written == []
    else:
        assert [set(sizes) for sizes in written] == [{"last"}] and written[0]["last"] > 0


class Seen:
    """A run as its recorder sees it."""

    key = key_text = "k"
    sequence_number = 3
    identity = "job"
    open_waits = ()
    parent = traceparent = None

    def __init__(self, phase: Phase, since: float, waits_for: str) -> None:
        self.phase = phase
        self.since = since
        self.waits_for = waits_for


@each_case(
    "name, phase, waits_for, age, status, words",
    [
        ("young", Phase.CALL, "charge", 1.0, "running", "has not ended"),
        ("call", Phase.CALL, "charge", 9.0, "waiting", "durable call charge is in attempt 3"),
        ("pause", Phase.RETRY, "a pause before attempt 3", 9.0, "waiting", "a pause before attempt 3 since"),
        ("slot", Phase.SLOT, "a slot of run.max-in-flight", 9.0, "waiting", "a slot of run.max-in-flight"),
        ("limit", Phase.LIMIT, "rate limit of the tool x", 9.0, "waiting", "rate limit of the tool x"),
        ("queued", Phase.QUEUED, "", 9.0, "waiting", "earlier runs of its key"),
        ("client", Phase.CLIENT, "", 9.0, "waiting", "waits for a client"),
        ("your code", Phase.RUNNING, "", 9.0, "running", "executes your code since"),
        ("no input", Phase.INPUT, "", 0.0, "waiting", "its input to come again"),
    ],
)
def test_runs_that_do_not_end_are_recorded_once(
    name: str, phase: Phase, waits_for: str, age: float, status: str, words: str
) -> None:
    written_records: list[TraceRecord] = []

    class Keeping:
        def write(self, records: Any) -> None:
            written_records.extend(records)

        def close(self) -> None:
            pass

    writer = TraceWriter({"kept": Keeping()})
    clock = [100.0]
    subtask = TracedSubtask("job", "paying", 0)
    recorder = TraceRecorder(subtask, TraceLevel.CALLS, writer, now=lambda: 1000.0, clock=lambda: clock[0])
    run: Any = Seen(Phase.QUEUED, 100.0, "")
    recorder.phase_changed(run, None)
    if phase is Phase.CALL:
        recorder.call_begun(run, "pay", "charge", Nth(), False)
        recorder.call_retried(run, "pay", "charge", Nth(), 3)
    run.phase = phase
    run.waits_for = waits_for
    recorder.phase_changed(run, Phase.QUEUED)
    clock[0] += age
    for _ in range(3):
        recorder.record_lasting_runs()
    recorder.closed()
    (run_trace,) = by_run(written_records).values()
    assert len(run_trace.records) == (1 if age == 1.0 else 2)
    assert run_trace.status == status
    assert words in "\n".join(explain_key([run_trace], "k"))
    assert sum(record.is_end for record in run_trace.records) == 0


class Busy:
    """A service that takes the third request."""

    asked = 0


async def busy(text: str) -> str:
    Busy.asked += 1
    if Busy.asked < 3:
        raise ConnectionError(f"429 Too Many Requests, number {Busy.asked}")
    return text


async def ask_busy(event: Any, ctx: RunnerContext) -> OutputEvent:
    policy = RetryPolicy(max_attempts=5, initial_interval=0.01)
    return OutputEvent(output=await ctx.durable_execute_async(busy, event.input, retry=policy))


def test_an_attempt_of_a_call_that_failed_says_why(tmp_path: Path) -> None:
    Busy.asked = 0
    agent = Agent(name="asking").add_action("ask", [InputEvent], ask_busy)
    options = {"trace.level": "calls", "trace.directory": str(tmp_path)}
    with OperatorHarness(agent, lambda value: "k", config=options, **PLAIN) as harness:
        assert harness.push_all(["x"]) == ["x"]
    records = list(records_in(tmp_path))
    (call,) = [record for record in records if record.kind == "call"]
    attempts = [record for record in records if record.kind == "attempt"]
    assert [(attempt.attributes["attempt"], attempt.outcome) for attempt in attempts] == [
        (1, "failed"),
        (2, "failed"),
    ]
    assert {attempt.parent_id for attempt in attempts} == {call.parent_id} and call.attributes["attempt"] == 3
    assert "number 2" in attempts[-1].attributes["message"] and len({attempt.id for attempt in attempts}) == 2
    # Before the call has ended, it is the answer to why the key does not continue.
    unfinished = by_run(
        [record for record in records if record.kind in ("attempt",) or record.outcome == "started"]
    )
    explanation = "\n".join(explain_key(unfinished.values(), "k"))
    assert (
        "Durable call" in explanation
        and "failed 2 time(s)" in explanation
        and "429 Too Many Requests" in explanation
    )
    assert "ask again" in explanation
