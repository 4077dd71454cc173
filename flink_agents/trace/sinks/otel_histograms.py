"""Exports histograms of tokens and durations of requests to models, named by the GenAI conventions.

They are computed from the records of calls. A replay records no call, so each request counts once.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from flink_agents.api.common.logs import bounded_logger
from flink_agents.trace import operations
from flink_agents.trace.operations import operation_of
from flink_agents.trace.records import TraceRecord
from flink_agents.trace.sinks.otel_resource import resource_of

_log = bounded_logger("flink_agents.trace")

TOKENS = "gen_ai.client.token.usage"
DURATION = "gen_ai.client.operation.duration"

_TOKEN_BOUNDS = [4.0**power for power in range(14)]
_SECONDS_BOUNDS = [0.01 * 2.0**power for power in range(14)]
"""Bucket boundaries of the conventions."""

_NAMES = {operations.CHAT: "chat", operations.EMBEDDING: "embeddings"}
_TOKEN_TYPES = {"input_tokens": "input", "output_tokens": "output"}
_UNKNOWN = "_OTHER"

_TRACES = "/v1/traces"
_METRICS = "/v1/metrics"


class GenAiHistograms:
    """Counts requests of one subtask, and exports the histograms every minute from a thread of the SDK.

    Values are cumulative, so a failed export loses nothing. Each task attempt is a separate series, by
    ``service.instance.id``.

    Args:
        endpoint: Address of the collector for traces, from which the one for metrics is derived. Default:
            ``OTEL_EXPORTER_OTLP_ENDPOINT`` or ``OTEL_EXPORTER_OTLP_METRICS_ENDPOINT``.
        agent: Name of the agent.
        subtask: Number of the subtask.
        seconds: Timeout of an export in seconds, including its retries.
    """

    def __init__(self, endpoint: str | None, agent: str, subtask: int, seconds: float) -> None:
        self._endpoint = endpoint
        self._agent_and_subtask = agent, subtask
        self._seconds = seconds
        self._provider: Any = None
        self._tokens: Any = None
        self._durations: Any = None
        # A request that failed does not name its provider.
        self._providers: dict[str, str] = {}
        self._wanted = self._is_wanted()

    def count_requests(self, records: Iterable[TraceRecord]) -> None:
        """Add the requests to models among records to the histograms, except replayed ones."""
        for record in records if self._wanted else ():
            if record.kind != "call" or record.replayed:
                continue
            kind, target, _ = operation_of(record.name)
            if kind in _NAMES:
                self._count_request(record, _NAMES[kind], target)

    def close(self) -> None:
        """Export all counts, and end the thread; waits at most the timeout of an export."""
        provider = self._provider
        self._provider = None
        self._wanted = False
        if provider is not None:
            provider.shutdown(timeout_millis=self._seconds * 1000)

    def _count_request(self, record: TraceRecord, operation: str, target: str) -> None:
        if self._provider is None:
            self._create_histograms()
        facts = record.attributes
        labels = self._attributes(facts, operation, target)
        if record.seconds is not None:
            error_label = (
                {"error.type": str(facts.get("error", _UNKNOWN))} if record.outcome == "failed" else {}
            )
            self._durations.record(record.seconds, labels | error_label)
        for name, kind in _TOKEN_TYPES.items():
            if name in facts:
                self._tokens.record(facts[name], labels | {"gen_ai.token.type": kind})

    def _attributes(self, facts: Mapping[str, Any], operation: str, target: str) -> dict[str, Any]:
        model = facts.get("model")
        provider = facts.get("provider")
        if provider is not None:
            self._providers[target] = provider
        attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": provider or self._providers.get(target, _UNKNOWN),
            "gen_ai.request.model": model or target,
        }
        return attributes | ({"gen_ai.response.model": model} if model else {})

    def _is_wanted(self) -> bool:
        if os.environ.get("OTEL_METRICS_EXPORTER", "").strip().lower() == "none":
            return False
        if self._endpoint is not None and not self._endpoint.rstrip("/").endswith(_TRACES):
            _log.warning(
                "no histograms of tokens are exported: trace.otlp-endpoint does not end with %s, so that the "
                "address for metrics is not known",
                _TRACES,
            )
            return False
        return True

    def _create_histograms(self) -> None:
        """Create exporter and histograms at the first request, as most jobs have none."""
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # pyright: ignore[reportMissingImports]
            OTLPMetricExporter,
        )
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        address = self._endpoint and self._endpoint.rstrip("/").removesuffix(_TRACES) + _METRICS
        exporter = OTLPMetricExporter(endpoint=address or None, timeout=self._seconds)
        reader = PeriodicExportingMetricReader(exporter, export_timeout_millis=self._seconds * 1000)
        self._provider = MeterProvider([reader], self._resource(), shutdown_on_exit=False)
        meter = self._provider.get_meter("flink_agents")
        self._tokens = meter.create_histogram(
            TOKENS,
            unit="{token}",
            description="Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKEN_BOUNDS,
        )
        self._durations = meter.create_histogram(
            DURATION,
            unit="s",
            description="GenAI operation duration.",
            explicit_bucket_boundaries_advisory=_SECONDS_BOUNDS,
        )

    def _resource(self) -> Any:
        agent, subtask = self._agent_and_subtask
        instance = f"{agent}-{subtask}-{uuid.uuid4().hex[:12]}"
        return resource_of(agent, {"service.instance.id": instance})
