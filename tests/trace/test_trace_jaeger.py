"""A real collector takes the spans of a job and of recorded traces, and its API returns their trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flink_agents import Agent, ChatModel, InputEvent, OutputEvent, RetryPolicy, RunnerContext
from flink_agents.cli.main import app
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ScriptedModel, ToolCall
from flink_agents.trace.reading import by_run, read_files
from flink_agents.trace.records import TraceRecord
from flink_agents.trace.sinks.otel import span_of
from tests.trace.jaegers import Jaeger, Span, jaeger
from tests.trace.test_trace_records import PLAIN

pytestmark = [pytest.mark.own_conditions, pytest.mark.nightly]

FAILURES: list[str] = []


def model() -> ScriptedModel:
    return ScriptedModel([ToolCall("price", {"item": "tea"}), "three"] * 4)


def price(item: str) -> int:
    """Price an item."""
    return len(item)


async def handle(event: Any, ctx: RunnerContext) -> OutputEvent:
    reply = (await ctx.chat("clerk", "which?")).output

    async def charge() -> str:
        if event.input not in FAILURES:
            FAILURES.append(event.input)
            raise ConnectionError("the till is away")
        return "charged"

    await ctx.durable_execute_async(charge, retry=RetryPolicy(max_attempts=2, initial_interval=0.001))
    if event.input == "fail":
        raise ValueError("no such order")
    paid = await ctx.wait_for_signal("paid")
    return OutputEvent(output=[reply, paid])


def agent() -> Agent:
    """Asks a model, which calls a tool; charges, at the second attempt; and waits for the payment."""
    clerk = Agent(name="clerk").add_action("handle", [InputEvent], handle, on_error="dead-letter")
    clerk.add_resource("price", "tool", price)
    clerk.add_resource("clerk", "chat_model", ChatModel(clazz=f"{__name__}:model", tools=["price"]))
    return clerk


def run(config: dict[str, Any], **conditions: Any) -> None:
    FAILURES.clear()
    with OperatorHarness(agent(), lambda value: value, config=config, **conditions) as harness:
        harness.push_all(["order", "fail"])
        assert harness.signal("order", "paid", 7) == [["three", 7]]
        assert len(harness.dead_letters) == 1


def wanted(records: list[TraceRecord]) -> dict[str, dict[str, Any]]:
    """The spans of recorded runs, by trace and id."""
    spans_by_trace: dict[str, dict[str, Any]] = {}
    for record in records:
        if record.is_end and not record.replayed:
            spans_by_trace.setdefault(record.trace_id, {})[record.span_id] = span_of(record)
    return spans_by_trace


def check(collector: Jaeger, records: list[TraceRecord]) -> dict[str, Span]:
    """Compare the traces of a collector with records; returns all spans by their names."""
    named: dict[str, Span] = {}
    expected = wanted(records)
    assert len(expected) == 2
    for trace, spans in expected.items():
        got = collector.spans(trace, len(spans))
        assert got.keys() == spans.keys()
        for id, span in spans.items():
            actual_span = got[id]
            parent = "" if span.parent is None else f"{span.parent.span_id:016x}"
            assert (actual_span.name, actual_span.parent) == (span.name, parent)
            assert actual_span.links == tuple(f"{link.context.span_id:016x}" for link in span.links)
            assert actual_span.resource["service.name"] == "clerk"
            # The span of an action that waited starts when it resumed, which is after its first calls.
            warnings = str(actual_span.attributes.pop("@jaeger@warnings", "clock skew"))
            assert "clock skew" in warnings, warnings
            assert actual_span.attributes.keys() == span.attributes.keys()
        named |= {collected_span.name: collected_span for collected_span in got.values()}
        roots = [collected_span for collected_span in got.values() if not collected_span.parent]
        assert [root.name for root in roots] == ["invoke_agent clerk"]
    return named


def test_a_collector_has_the_traces_of_a_job_and_of_files(tmp_path: Path) -> None:
    with jaeger(tmp_path) as collector:
        live = {
            "trace.level": "calls",
            "trace.sinks": "otel,jsonl",
            "trace.directory": str(tmp_path / "live"),
        }
        run(live | {"trace.otlp-endpoint": collector.address, "job-identifier": "live"}, **PLAIN)
        spans = check(collector, list(read_files(tmp_path / "live")))
        expected = {"invoke_agent clerk", "action handle", "chat scripted", "execute_tool price"}
        assert expected <= spans.keys() and any(name.endswith("charge") for name in spans)
        chat = spans["chat scripted"]
        tool_call = spans["execute_tool price"]
        assert chat.attributes["gen_ai.operation.name"] == "chat"
        assert chat.attributes["gen_ai.request.model"] == "scripted"
        assert int(chat.attributes["gen_ai.usage.input_tokens"]) > 0
        assert tool_call.attributes["gen_ai.tool.name"] == "price"
        # The same job with its trace in files, which are sent later.
        recorded = {"trace.level": "calls", "trace.directory": str(tmp_path / "files")}
        run(recorded | {"job-identifier": "recorded"}, **PLAIN)
        for key in ("order", "fail"):
            sent = CliRunner().invoke(
                app, ["trace", "--key", key, "--path", str(tmp_path / "files"), "--otlp", collector.address]
            )
            assert sent.exit_code == 0 and "sent 1 run(s)" in sent.output, sent.output
        records = list(read_files(tmp_path / "files"))
        check(collector, records)
        assert len(by_run(records)) == 2
