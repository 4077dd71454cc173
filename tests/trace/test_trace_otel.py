"""What a collector gets: spans and histograms by the GenAI conventions, each once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import Agent as ModelAgent
from pydantic_ai.capabilities import Instrumentation
from pydantic_ai.models.instrumented import InstrumentationSettings
from typer.testing import CliRunner

from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext
from flink_agents.api.errors import TraceError
from flink_agents.cli.main import app
from flink_agents.models.engine import FlinkDurability
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ScriptedModel, ToolCall
from flink_agents.trace.records import TraceRecord
from flink_agents.trace.sinks.otel import OtelSink, span_of
from flink_agents.trace.sinks.otel_histograms import DURATION, TOKENS, GenAiHistograms
from tests.suite.tables import each_case
from tests.trace.collectors import Collector, Histogram, attributes_of, collector
from tests.trace.test_trace_facts import asking, traced_records
from tests.trace.test_trace_records import PLAIN
from tests.trace.test_trace_sinks import record

pytestmark = pytest.mark.own_conditions

OTEL = {"trace.level": "calls", "trace.sinks": "otel"}


def call(name: str, outcome: str = "ok", *, replayed: bool = False, **facts: Any) -> TraceRecord:
    run = record(1)
    return TraceRecord(
        *("call", name, outcome, "job", "paying", 0, 0, "sk", 1, run.run_id, "1" * 16, run.span_id),
        *(99.5, 0.5, replayed, {"action": "pay", **facts}),
    )


def test_a_collector_gets_spans() -> None:
    step = call("chat:gpt", "failed", error="OSError", message="gone")
    with collector() as got:
        sink = OtelSink(got.address)
        sink.write([record(1, "started"), step, record(1), record(2, replayed=True)])
        sink.close()
    spans = {span.name: span for span in got.spans()}
    assert set(spans) == {"chat gpt", "invoke_agent paying"}
    chat = spans["chat gpt"]
    root = spans["invoke_agent paying"]
    assert chat.parent_span_id == root.span_id and chat.trace_id == root.trace_id
    assert chat.status.code == 2 and not root.parent_span_id
    assert root.end_time_unix_nano - root.start_time_unix_nano == 2_000_000_000


@pytest.mark.parametrize("status", [500, 404])
def test_a_collector_that_fails_is_an_error(status: int) -> None:
    with collector(status) as got:
        sink = OtelSink(got.address, seconds=1)
        with pytest.raises(TraceError, match="did not take"):
            sink.write([record()])
        sink.close()
    assert got.bodies


@each_case(
    "name, outcome, facts, wanted",
    [
        ("chat:clerk", "ok", {"model": "gpt-9", "provider": "openai"}, "chat gpt-9"),
        ("chat:clerk", "failed", {}, "chat clerk"),
        ("embed:words", "ok", {}, "embeddings words"),
        ("tool:refund", "ok", {}, "execute_tool refund"),
        ("mcp:files:call_tool:read", "ok", {}, "execute_tool read"),
        ("vector_store:manuals.query", "ok", {}, "retrieval manuals"),
        ("vector_store:manuals.add", "ok", {}, "update_memory manuals"),
        ("charge", "ok", {}, "call charge"),
    ],
)
def test_spans_have_the_names_of_the_conventions(
    name: str, outcome: str, facts: dict[str, Any], wanted: str
) -> None:
    span = span_of(call(name, outcome, **facts))
    assert span.name == wanted
    if name == "chat:clerk":
        assert span.attributes["gen_ai.request.model"] == wanted.removeprefix("chat ")


def counted(records: list[TraceRecord]) -> Collector:
    with collector() as got:
        histograms = GenAiHistograms(got.address, "paying", 0, 10)
        histograms.count_requests(records)
        histograms.close()
    return got


def histograms_of(got: Collector, name: str) -> list[Histogram]:
    return [histogram for histogram in got.histograms() if histogram.name == name]


def test_requests_are_counted_by_the_conventions() -> None:
    facts = {"model": "gpt-9", "provider": "openai", "input_tokens": 70, "output_tokens": 3}
    got = counted(
        [
            call("chat:clerk", **facts),
            call("chat:clerk", **facts),
            call("chat:clerk", "failed", error="TimeoutError"),
            call("chat:clerk", replayed=True, **facts),
            call("embed:words"),
            call("tool:refund"),
            call("charge", input_tokens=5),
            record(1),
        ]
    )
    tokens = {
        histogram.attributes["gen_ai.token.type"]: histogram for histogram in histograms_of(got, TOKENS)
    }
    assert {kind: (histogram.count, histogram.sum, histogram.unit) for kind, histogram in tokens.items()} == {
        "input": (2, 140, "{token}"),
        "output": (2, 6, "{token}"),
    }
    assert list(tokens["input"].point.explicit_bounds[:4]) == [1, 4, 16, 64]
    durations = histograms_of(got, DURATION)
    seen = {
        (
            duration.attributes["gen_ai.operation.name"],
            duration.attributes["gen_ai.provider.name"],
            duration.attributes["gen_ai.request.model"],
            duration.attributes.get("error.type"),
        ): (duration.count, duration.sum, duration.unit)
        for duration in durations
    }
    assert seen == {
        ("chat", "openai", "gpt-9", None): (2, 1.0, "s"),
        ("chat", "openai", "clerk", "TimeoutError"): (1, 0.5, "s"),
        ("embeddings", "_OTHER", "words", None): (1, 0.5, "s"),
    }
    assert list(durations[0].point.explicit_bounds[:3]) == [0.01, 0.02, 0.04]
    assert tokens["input"].attributes["gen_ai.response.model"] == "gpt-9"


@each_case(
    "variables, service",
    [
        ({}, "paying"),
        ({"OTEL_SERVICE_NAME": ""}, "paying"),
        ({"OTEL_SERVICE_NAME": "shop"}, "shop"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=shop,deployment.environment=test"}, "shop"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test"}, "paying"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=other", "OTEL_SERVICE_NAME": "shop"}, "shop"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=x,flink.job.identity=x"}, "paying"),
    ],
)
def test_the_environment_may_name_the_service(
    variables: dict[str, str], service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        span = span_of(record(1))
        got = counted([call("chat:clerk", input_tokens=5)])
    assert span.resource.attributes["service.name"] == service
    assert span.resource.attributes["flink.job.identity"] == "job"
    assert span.attributes["gen_ai.agent.name"] == "paying"
    [histogram] = histograms_of(got, TOKENS)
    assert histogram.service == service and histogram.instance.startswith("paying-0-")


def test_without_requests_no_histogram_is_sent() -> None:
    assert counted([record(1), call("charge")]).bodies == []


def test_histograms_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    assert counted([call("chat:clerk", input_tokens=5)]).bodies == []


def test_an_address_of_which_no_other_follows_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), collector() as got:
        histograms = GenAiHistograms(got.address.removesuffix("/v1/traces") + "/spans", "paying", 0, 10)
        histograms.count_requests([call("chat:clerk", input_tokens=5)])
        histograms.close()
    assert got.bodies == [] and "does not end with /v1/traces" in caplog.text


def test_a_collector_for_spans_alone_gets_all_spans(caplog: pytest.LogCaptureFixture) -> None:
    """What becomes of histograms does not drop a span."""
    with collector() as got, collector(500) as broken:
        histograms = GenAiHistograms(broken.address, "paying", 0, 1)
        sink = OtelSink(got.address, histograms=histograms)
        sink.write([call("chat:clerk", input_tokens=5), record(1)])
        sink.close()
    assert len(got.spans()) == 2 and broken.bodies


def test_a_job_counts_each_request_once() -> None:
    """Each run is executed a second time by the harness: from its journal, without a request."""
    with collector() as got:
        config = OTEL | {"trace.otlp-endpoint": got.address}
        with OperatorHarness(
            asking(), lambda value: "k", config=config, forced_replay=True, forced_restart=False, crash=None
        ) as harness:
            harness.push_all(["a", "b", "c"])
    assert sum(histogram.count for histogram in histograms_of(got, DURATION)) == 3
    assert sum(histogram.count for histogram in histograms_of(got, TOKENS)) == 6
    chats = [span for span in got.spans() if span.name.startswith("chat ")]
    assert len(chats) == 3 == len({span.span_id for span in chats})
    assert attributes_of(chats[0].attributes)["gen_ai.usage.input_tokens"] > 0


def test_each_task_attempt_is_a_series_of_its_own() -> None:
    with collector() as got:
        config = OTEL | {"trace.otlp-endpoint": got.address}
        with OperatorHarness(asking(), lambda value: "k", config=config, **PLAIN) as harness:
            harness.push_all(["a", "b"])
            snapshot = harness.checkpoint()
            harness.restore(snapshot)
            harness.push_all(["c"])
    assert sorted(histogram.count for histogram in histograms_of(got, DURATION)) == [1, 2]
    assert len({histogram.instance for histogram in got.histograms()}) == 2


def test_each_segment_of_a_suspended_run_is_a_span_with_a_link() -> None:
    async def wait(event: Any, ctx: RunnerContext) -> OutputEvent:
        first = await ctx.wait_for_signal("paid")
        return OutputEvent(output=[first, await ctx.wait_for_signal("sent")])

    waiting = Agent(name="waiting").add_action("wait", [InputEvent], wait)
    with collector() as got:
        config = OTEL | {"trace.otlp-endpoint": got.address}
        with OperatorHarness(waiting, lambda value: "k", config=config, **PLAIN) as harness:
            harness.push_all(["a"])
            assert harness.signal("k", "paid", 1) == []
            assert harness.signal("k", "sent", 2) == [[1, 2]]
    runs = [span for span in got.spans() if span.name == "invoke_agent waiting"]
    (whole,) = [run for run in runs if not run.links]
    segments = [run for run in runs if run.links]
    assert len(segments) == 2 == len({segment.span_id for segment in segments})
    for linked_segment in segments:
        assert [link.span_id for link in linked_segment.links] == [whole.span_id]
        assert linked_segment.parent_span_id == whole.span_id and linked_segment.trace_id == whole.trace_id
    # Each span is there once: the segments that were replayed are none.
    assert len({span.span_id for span in got.spans()}) == len(got.spans())


def test_a_resumed_run_without_further_calls_has_its_spans_once() -> None:
    """It replays the calls before its suspension. That is no repetition of the run itself."""

    async def pay() -> int:
        return 1

    async def wait(event: Any, ctx: RunnerContext) -> OutputEvent:
        await ctx.durable_execute_async(pay)
        first = await ctx.wait_for_signal("paid")
        return OutputEvent(output=[first, await ctx.wait_for_signal("sent")])

    waiting = Agent(name="waiting").add_action("wait", [InputEvent], wait)
    with collector() as got:
        config = OTEL | {"trace.otlp-endpoint": got.address}
        with OperatorHarness(waiting, lambda value: "k", config=config, **PLAIN) as harness:
            harness.push_all(["a"])
            assert harness.signal("k", "paid", 1) == []
            assert harness.signal("k", "sent", 2) == [[1, 2]]
    spans = got.spans()
    names = sorted(span.name.rpartition(".")[2] for span in spans)
    wanted = ["action wait", *["invoke_agent waiting"] * 3, "pay"]
    assert names == wanted and len({span.span_id for span in spans}) == 5
    assert sum(len(span.links) for span in spans) == 2


EXPORTER = InMemorySpanExporter()
PROVIDER = TracerProvider(shutdown_on_exit=False)
PROVIDER.add_span_processor(SimpleSpanProcessor(EXPORTER))


def price(item: str) -> int:
    """Price an item."""
    return len(item)


clerk = ModelAgent(
    # For two runs: a replay asks nothing.
    ScriptedModel([ToolCall("price", {"item": "tea"}), "three"] * 2),
    name="clerk",
    tools=[price],
    capabilities=[
        FlinkDurability(),
        Instrumentation(settings=InstrumentationSettings(tracer_provider=PROVIDER)),
    ],
)


async def ask_clerk(event: Any, ctx: RunnerContext) -> OutputEvent:
    return OutputEvent(output=(await clerk.run(event.input)).output)


def test_a_replay_repeats_no_span_of_a_whole_agent() -> None:
    """Pydantic AI has spans of its own if somebody turns them on."""
    span_names: list[list[str]] = []
    for replay in (False, True):
        EXPORTER.clear()
        agent = Agent(name="asking").add_action("ask", [InputEvent], ask_clerk)
        with OperatorHarness(
            agent, lambda value: "k", forced_replay=replay, forced_restart=False, crash=None
        ) as harness:
            assert harness.push_all(["which?"]) == ["three"]
        span_names.append(sorted(span.name for span in EXPORTER.get_finished_spans()))
    assert span_names[0] == span_names[1] and len(span_names[0]) >= 4


def test_recorded_traces_are_sent_to_a_collector(tmp_path: Path) -> None:
    traced_records(tmp_path, "calls")
    with collector() as got:
        result = CliRunner().invoke(
            app, ["trace", "--key", "k", "--path", str(tmp_path), "--otlp", got.address]
        )
    assert (result.exit_code, "sent 1 run(s)" in result.output) == (0, True)
    assert {span.name for span in got.spans()} == {"invoke_agent asking", "action ask", "chat scripted"}
    # The job has counted its requests when it made them.
    assert got.histograms() == []
