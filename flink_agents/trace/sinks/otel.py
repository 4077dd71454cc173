"""Exports records as OpenTelemetry spans over OTLP/HTTP, named by the GenAI conventions (extra ``otel``).

A span of recorded work is exported at most once. Records of starts and of replayed work become no spans, and
a batch that the collector rejects is dropped. A running job also exports histograms of tokens and durations.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from flink_agents.api.common.installation import install_command
from flink_agents.api.errors.trace import TraceError, TraceOptionError
from flink_agents.api.settings.options import AgentOptions
from flink_agents.trace import operations
from flink_agents.trace.folding import unfold_records
from flink_agents.trace.operations import operation_of
from flink_agents.trace.records import TraceRecord, span_id, span_of_context
from flink_agents.trace.sinks.otel_histograms import GenAiHistograms
from flink_agents.trace.sinks.otel_resource import resource_of
from flink_agents.trace.target import TraceTarget

EXPORT_SECONDS = 10

_HEXADECIMAL = re.compile("[0-9a-fA-F]+")


class OtelSink:
    """Sends spans to a collector.

    Args:
        endpoint: URL of the collector for traces. Default: ``OTEL_EXPORTER_OTLP_ENDPOINT``.
        seconds: Timeout of an export in seconds, including its retries.
        histograms: Counts requests to models for metrics. None: only spans are exported.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        seconds: float = EXPORT_SECONDS,
        histograms: GenAiHistograms | None = None,
    ) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http import (  # pyright: ignore[reportMissingImports]
                trace_exporter,
            )
        except ImportError as error:
            raise TraceOptionError(
                "the trace sink 'otel' needs a package that is not installed",
                expected="opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http",
                found=str(error),
                fix=install_command("otel"),
            ) from error
        self._exporter = trace_exporter.OTLPSpanExporter(endpoint=endpoint, timeout=int(seconds))
        self._histograms = histograms

    @classmethod
    def from_target(cls, target: TraceTarget) -> OtelSink:
        """Create the sink of a subtask from the options of its job."""
        endpoint = target.config.get(AgentOptions.TRACE_OTLP_ENDPOINT)
        histograms = GenAiHistograms(endpoint, target.agent, target.subtask, EXPORT_SECONDS)
        return cls(endpoint, histograms=histograms)

    def write(self, records: Sequence[TraceRecord]) -> None:
        """Export the spans of records; blocks until the collector has answered.

        Raises:
            TraceError: The collector did not accept them.
        """
        from opentelemetry.sdk.trace.export import SpanExportResult

        if self._histograms is not None:
            self._histograms.count_requests(records)
        spans = list(spans_of(records))
        if spans and self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise TraceError(
                "the collector did not take spans",
                expected="an answer 200",
                found="an error, which the log of opentelemetry has",
                fix="check the option trace.otlp-endpoint and the collector",
            )

    def close(self) -> None:
        """Export the last counts of histograms, and close the connections to the collector."""
        if self._histograms is not None:
            self._histograms.close()
        self._exporter.shutdown()


def spans_of(records: Iterable[TraceRecord]) -> Iterable[Any]:
    """Yield a span for each record of an end that was not replayed. Records with invalid ids are skipped."""
    for record in unfold_records(records):
        if not record.is_end or record.replayed:
            continue
        try:
            span = span_of(record)
        except ValueError:
            # Another program wrote the record: its ids are not hexadecimal.
            continue
        yield span


def span_of(record: TraceRecord) -> Any:
    """Return the OpenTelemetry span of a record.

    Raises:
        ValueError: An id of the record is not hexadecimal.
    """
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

    def context(span: str) -> SpanContext:
        flags = TraceFlags(TraceFlags.SAMPLED)
        ids = _parse_id(record.trace_id, 32), _parse_id(span, 16)
        return SpanContext(*ids, is_remote=False, trace_flags=flags)

    name, operation = _span_name(record)
    end = _nanoseconds(record.time)
    has_failed = record.outcome in ("failed", "dead-lettered")
    is_segment = record.kind == "run" and record.parent_id is not None
    return ReadableSpan(
        _encodable_text(name),
        context=context(record.span_id),
        parent=context(parent) if (parent := _parent_span(record)) else None,
        resource=_create_resource(
            _encodable_text(record.agent),
            _encodable_text(record.job),
            *map(os.environ.get, _RESOURCE_VARIABLES),
        ),
        attributes=_span_attributes(record, operation),
        kind=SpanKind.CLIENT if operation in ("chat", "embeddings") else SpanKind.INTERNAL,
        links=[Link(context(span_id(record.run_id)))] if is_segment else [],
        status=Status(StatusCode.ERROR, _error_text(record)) if has_failed else Status(),
        # Collectors take a span without a duration for a wrong one.
        start_time=max(0, end - max(1, _nanoseconds(record.seconds or 0.0))),
        end_time=end,
    )


_MOST_NANOSECONDS = (1 << 64) - 1
_MOST_INTEGER = (1 << 63) - 1


def _parse_id(text: str, digits: int) -> int:
    if len(text) != digits or _HEXADECIMAL.fullmatch(text) is None:
        raise ValueError(f"not an id of {digits} hexadecimal digits")
    return int(text, 16)


def _nanoseconds(seconds: float) -> int:
    return min(max(1, int(seconds * 1e9)), _MOST_NANOSECONDS)


def _encodable_text(text: str) -> str:
    """Replace what UTF-8 cannot encode: one such span would cost the whole batch."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _attribute_value(value: Any) -> Any:
    """Return a value in a type that attributes of spans can have, else as text."""
    if isinstance(value, str):
        return _encodable_text(value)
    if isinstance(value, int) and abs(value) > _MOST_INTEGER:
        return str(value)
    return value


_RESOURCE_VARIABLES = ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES")


@lru_cache(maxsize=64)
def _create_resource(agent: str, job: str, *variables: str | None) -> Any:
    """Return the resource of an agent. Cached by the variables: creating it runs detectors of the SDK."""
    return resource_of(agent, {"flink.job.identity": job})


_OPERATIONS = {
    operations.CHAT: ("chat", "gen_ai.request.model"),
    operations.TOOL: ("execute_tool", "gen_ai.tool.name"),
    operations.MCP: ("mcp", "mcp.server.name"),
    operations.EMBEDDING: ("embeddings", "gen_ai.request.model"),
    operations.RETRIEVAL: ("retrieval", "gen_ai.data_source.id"),
    operations.MEMORY: ("update_memory", "gen_ai.data_source.id"),
}
"""Names of the conventions by kind of call: the operation, and the attribute of its target."""

_MCP_TOOL = "call_tool:"
_MCP_METHODS = {
    "call_tool": "tools/call",
    "list_tools": "tools/list",
    "list_resources": "resources/list",
    "read_resource": "resources/read",
    "list_prompts": "prompts/list",
    "get_prompt": "prompts/get",
}

_FACTS = {
    "model": "gen_ai.response.model",
    "provider": "gen_ai.provider.name",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cache_read_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_write_tokens": "gen_ai.usage.cache_creation.input_tokens",
    "finish_reason": "gen_ai.response.finish_reasons",
}
"""Names of the conventions for facts about a request to a model."""


def _parent_span(record: TraceRecord) -> str | None:
    """Return the id of a record's parent span, for a run that of its input; None if it has none."""
    context = record.attributes.get("traceparent")
    if record.kind == "run" and record.parent_id is None and isinstance(context, str):
        return span_of_context(context)
    return record.parent_id


def _span_name(record: TraceRecord) -> tuple[str, str]:
    """Return the name of a span, and its operation in the GenAI conventions."""
    if record.kind in ("run", "agent"):
        return f"invoke_agent {record.name}", "invoke_agent"
    if record.kind == "call":
        kind, target, request = operation_of(record.name)
        if kind == operations.MCP and request.startswith(_MCP_TOOL):
            return f"execute_tool {request.removeprefix(_MCP_TOOL)}", "execute_tool"
        if kind:
            operation, _ = _OPERATIONS[kind]
            # The model itself, if the answer names it; else the resource of the agent.
            target = str(record.attributes.get("model", target)) if kind == operations.CHAT else target
            return f"{operation} {target}", operation
    return f"{record.kind} {record.name}", record.kind


def _span_attributes(record: TraceRecord, operation: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.agent.name": _encodable_text(record.agent),
        "flink_agents.run.id": record.run_id,
        "flink_agents.key": _encodable_text(record.key),
        "flink_agents.sequence_number": record.sequence_number,
        "flink_agents.outcome": record.outcome,
        "flink_agents.subtask": record.subtask,
        "flink_agents.attempt": record.attempt,
    }
    kind, target, request = operation_of(record.name) if record.kind == "call" else ("", "", "")
    if kind:
        model = record.attributes.get("model") if kind == operations.CHAT else None
        attributes[_OPERATIONS[kind][1]] = _encodable_text(str(model or target))
    if kind == operations.MCP and request:
        method, _, name = request.partition(":")
        attributes["mcp.method.name"] = _encodable_text(_MCP_METHODS.get(method, method))
        attributes |= {"gen_ai.tool.name": _encodable_text(name)} if request.startswith(_MCP_TOOL) else {}
    for name, value in record.attributes.items():
        if name in _FACTS:
            # A list, as the conventions have it: one answer has one reason.
            value = _attribute_value(value)
            attributes[_FACTS[name]] = [value] if name == "finish_reason" else value
        elif name == "error":
            value = value.get("error") if isinstance(value, Mapping) else value
            attributes["error.type"] = _encodable_text(str(value))
        elif isinstance(value, str | int | float | bool):
            attributes[_encodable_text(f"flink_agents.{name}")] = _attribute_value(value)
    return attributes


def _error_text(record: TraceRecord) -> str | None:
    error = record.attributes.get("error")
    return (
        _encodable_text(str(error.get("error") if isinstance(error, Mapping) else error)) if error else None
    )
