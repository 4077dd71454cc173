"""Where runs and their parts belong: called agents, what a call is, and traces that cross agents and jobs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext
from flink_agents.api.lineage import TracedOutput, traceparent_of
from flink_agents.connectors.envelopes import EnvelopeReader, write_envelope
from flink_agents.connectors.kafka.records import KafkaRecord
from flink_agents.connectors.kafka.sink import as_record
from flink_agents.testing import OperatorHarness
from flink_agents.trace.operations import Operation, operation_of
from flink_agents.trace.reading import by_run
from flink_agents.trace.records import TraceRecord, span_id
from flink_agents.trace.rendering import tree_lines
from flink_agents.trace.sinks.otel import spans_of
from tests.suite.tables import each_case
from tests.trace.test_trace_records import PLAIN, records_in

pytestmark = pytest.mark.own_conditions

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def price(item: str) -> int:
    if item == "nothing":
        raise ValueError("no such item")
    return len(item)


async def quote(event: Any, ctx: RunnerContext) -> Any:
    return OutputEvent(output=await ctx.durable_execute_async(price, event.input))


def pricing() -> Agent:
    return Agent(name="pricing").add_action("quote", [InputEvent], quote)


async def buy(event: Any, ctx: RunnerContext) -> Any:
    what = event.input.value if isinstance(event.input, KafkaRecord) else event.input
    if what == "both":
        got = await asyncio.gather(ctx.call_agent(pricing(), "ab"), ctx.call_agent(pricing(), "abc"))
        return OutputEvent(output=got)
    try:
        answer = await ctx.call_agent(pricing(), what)
    except ValueError:
        return OutputEvent(output="none")
    return OutputEvent(output=answer)


def buying() -> Agent:
    return Agent(name="buying").add_action("buy", [InputEvent], buy)


def options(directory: Path) -> dict[str, Any]:
    return {"trace.level": "calls", "trace.directory": str(directory)}


def traced(
    agent: Agent, directory: Path, inputs: list[Any], **more: Any
) -> tuple[list[Any], list[TraceRecord]]:
    with OperatorHarness(agent, lambda value: "k", config=options(directory), **PLAIN, **more) as harness:
        outputs = harness.push_all(inputs)
    return outputs, list(records_in(directory))


@each_case(
    "function, wanted",
    [
        ("charge", Operation("", "charge")),
        ("module:charge", Operation("", "module:charge")),
        ("chat:claude", Operation("chat", "claude")),
        ("tool:lookup", Operation("tool", "lookup")),
        ("mcp:files:call_tool:read", Operation("mcp", "files", "call_tool:read")),
        ("mcp:files:list_tools", Operation("mcp", "files", "list_tools")),
        ("embed:small", Operation("embedding", "small")),
        ("vector_store:docs.query", Operation("retrieval", "docs", "query")),
        ("vector_store:docs.get", Operation("retrieval", "docs", "get")),
        ("vector_store:docs.add", Operation("vector-store", "docs", "add")),
    ],
)
def test_a_call_is_what_its_name_says(function: str, wanted: Operation) -> None:
    assert operation_of(function) == wanted


@each_case(
    "what, agents, outcome",
    [("abcd", 1, "ok"), ("both", 2, "ok"), ("nothing", 1, "failed")],
)
def test_a_called_agent_is_a_part_of_the_action(what: str, agents: int, outcome: str, tmp_path: Path) -> None:
    _, records = traced(buying(), tmp_path / what, [what])
    agent_records = [record for record in records if record.kind == "agent"]
    (action,) = [record for record in records if record.kind == "action" and record.name == "buy"]
    assert [(record.name, record.outcome, record.parent_id) for record in agent_records] == [
        ("pricing", outcome, action.span_id)
    ] * agents
    assert len({record.span_id for record in agent_records}) == agents
    calls = [record for record in records if record.kind == "call"]
    assert {call.parent_id for call in calls} == {record.span_id for record in agent_records}
    (run,) = by_run(records).values()
    shown = "\n".join(tree_lines(run))
    assert "agent pricing" in shown and "price  " in shown
    assert [span.name for span in spans_of(agent_records)] == ["invoke_agent pricing"] * agents


def test_a_called_agent_that_is_replayed_has_no_second_span(tmp_path: Path) -> None:
    async def wait(event: Any, ctx: RunnerContext) -> Any:
        answer = await ctx.call_agent(pricing(), event.input)
        await ctx.wait_for_signal("go")
        return OutputEvent(output=answer)

    agent = Agent(name="waiting").add_action("wait", [InputEvent], wait)
    with OperatorHarness(agent, lambda _: "k", config=options(tmp_path), **PLAIN) as harness:
        harness.push_all(["abc"])
        harness.signal("k", "go")
        harness.run_until_idle()
    agent_records = [record for record in records_in(tmp_path) if record.kind == "agent"]
    assert [record.replayed for record in agent_records] == [False, True]
    assert len({record.id for record in agent_records}) == 1 and len(list(spans_of(agent_records))) == 1


def test_a_run_continues_the_trace_of_its_message(tmp_path: Path) -> None:
    record = KafkaRecord("abc", headers={"traceparent": GIVEN.encode()}, topic="t", partition=0, offset=7)
    (output,), records = traced(buying(), tmp_path / "one", [record], lineage=True)
    trace, span = GIVEN.split("-")[1:3]
    assert {part.trace_id for part in records} == {trace}
    (run,) = [part for part in records if part.kind == "run" and part.outcome == "completed"]
    assert run.attributes["parent"] == "t/0/7" and run.attributes["traceparent"] == GIVEN
    spans = {exported_span.name: exported_span for exported_span in spans_of(records)}
    assert format(spans["invoke_agent buying"].parent.span_id, "016x") == span

    # What it emits carries the trace on: to the next agent, through Kafka, and through files.
    assert isinstance(output, TracedOutput)
    wanted = f"00-{trace}-{span_id(run.run_id)}-01"
    written = EnvelopeReader(int)(write_envelope(output))
    for carried in (output, as_record(output), written):
        assert traceparent_of(carried) == wanted
        _, below = traced(pricing_numbers(), tmp_path / type(carried).__name__, [carried])
        last = [part for part in below if part.kind == "run"][-1]
        assert last.trace_id == trace and last.attributes["parent"] == output.lineage.id


def pricing_numbers() -> Agent:
    async def take(event: Any, ctx: RunnerContext) -> Any:
        return OutputEvent(output=1)

    return Agent(name="next").add_action("take", [InputEvent], take)


@each_case(
    "header",
    [
        b"",
        b"nonsense",
        b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01",
        b"00-0af7651916cd43dd8448eb211c80319c-" + b"0" * 16 + b"-01",
        b"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        b"\xff\xfe",
    ],
)
def test_an_invalid_trace_context_begins_a_trace_of_its_own(header: bytes, tmp_path: Path) -> None:
    record = KafkaRecord("abc", headers={"traceparent": header})
    _, records = traced(buying(), tmp_path / str(hash(header)), [record])
    assert {part.trace for part in records} == {None}
    assert "traceparent" not in records[-1].attributes
