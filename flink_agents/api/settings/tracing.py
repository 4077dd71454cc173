"""The options of the trace, its levels, and the names of its sinks."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Any, cast

from flink_agents.api.common.option_values import option
from flink_agents.api.common.providers import Providers
from flink_agents.api.errors.trace import UnknownTraceSinkError


class TraceLevel(StrEnum):
    """The amount of trace records of a run. Each level includes the previous one.

    Attributes:
        OFF: No records; no recorder is attached.
        RUNS: The start and end of each run, its waits and its failures.
        CALLS: Also its actions and durable steps, with their durations.
        CONTENT: Also requests and results of durable steps, redacted and cut.
    """

    OFF = "off"
    RUNS = "runs"
    CALLS = "calls"
    CONTENT = "content"

    @property
    def rank(self) -> int:
        """The position of the level, from 0 for ``OFF``: a higher one has more records."""
        return list(TraceLevel).index(self)


TRACE_SINKS = Providers("flink_agents.trace_sinks", "trace sink", UnknownTraceSinkError)
"""Each provider is a function that creates a sink from a ``flink_agents.trace.sinks.TraceTarget``."""


class TraceOptions:
    """Amount and destination of the trace records of runs, and the topic of answers to requests."""

    TRACE_LEVEL = option("trace.level", TraceLevel, TraceLevel.OFF)(
        "Amount of records. runs: begin, end, waits. calls: also actions and durable steps. content: "
        "also requests and results."
    )
    TRACE_LEVELS = option("trace.levels", cast("type[dict[str, Any]]", dict))(
        "Levels of single agents and actions: trace.levels.AGENT and trace.levels.AGENT.ACTION."
    )
    TRACE_SINKS = option("trace.sinks", str, "jsonl")(
        "Sinks, separated by commas: jsonl, kafka, log, otel, or an installed one."
    )
    TRACE_SAMPLE = option("trace.sample-percent", int, 100, minimum=1)(
        "Share of keys that is recorded, with all of their runs."
    )
    TRACE_CONTENT = option("trace.max-content", int, 4096, minimum=16)(
        "Characters of a request or a result that are recorded."
    )
    TRACE_QUEUE = option("trace.queue", int, 10_000, minimum=1)(
        "Records that can wait for the sinks. Further ones are dropped and counted."
    )
    TRACE_DIRECTORY = option("trace.directory", str, "flink-agents-trace")("Directory of the sink jsonl.")
    TRACE_FILE_MB = option("trace.file-size-mb", int, 16, minimum=1)(
        "MiB at which the sink jsonl starts a new file."
    )
    TRACE_FILE_AGE = option("trace.file-age", timedelta, "1 h", minimum="1 s")(
        "Age at which the sink jsonl starts a new file."
    )
    TRACE_TOTAL_MB = option("trace.total-size-mb", int, 256, minimum=2)(
        "MiB of all files of a subtask; the oldest are removed."
    )
    TRACE_KAFKA_SERVERS = option("trace.kafka.bootstrap-servers", str)("Brokers of the sink kafka.")
    TRACE_KAFKA_TOPIC = option("trace.kafka.topic", str, "flink-agents-trace")("Topic of the sink kafka.")
    TRACE_KAFKA_CLIENT = option("trace.kafka.client", cast("type[dict[str, Any]]", dict))(
        "Options of kafka-python for it."
    )
    ANSWERS_TOPIC = option("answers.kafka.topic", str)(
        "Topic for answers to `why`, `runs end` and `erase`. Default: only the log."
    )
    ANSWERS_SERVERS = option("answers.kafka.bootstrap-servers", str)("Brokers of that topic.")
    ANSWERS_CLIENT = option("answers.kafka.client", cast("type[dict[str, Any]]", dict))(
        "Options of kafka-python for it."
    )
    TRACE_OTLP_ENDPOINT = option("trace.otlp-endpoint", str)(
        "Address of the sink otel, such as http://localhost:4318/v1/traces. Default: "
        "OTEL_EXPORTER_OTLP_ENDPOINT."
    )
