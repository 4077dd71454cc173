"""The options of the trace, which are part of :class:`flink_agents.AgentOptions`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

from flink_agents.api.option_values import option
from flink_agents.api.tracing import TraceLevel


class TraceOptions:
    """What is recorded of runs, and where the records go."""

    TRACE_LEVEL = option("trace.level", TraceLevel, TraceLevel.OFF)(
        "How much is recorded of each run. runs: its begin, its end, its waits. calls: also actions and "
        "durable calls. content: also their requests and results, redacted."
    )
    TRACE_LEVELS = option("trace.levels", cast("type[dict[str, Any]]", dict))(
        "Levels of single agents and actions: trace.levels.AGENT and trace.levels.AGENT.ACTION."
    )
    TRACE_SINKS = option("trace.sinks", str, "jsonl")(
        "Where records go, separated by commas: jsonl, kafka, log, otel, or an installed sink."
    )
    TRACE_SAMPLE = option("trace.sample-percent", int, 100, minimum=1)(
        "The share of keys that is recorded. All runs of a key are recorded, or none."
    )
    TRACE_CONTENT = option("trace.max-content", int, 4096, minimum=16)(
        "How many characters of a request or a result are recorded."
    )
    TRACE_QUEUE = option("trace.queue", int, 10_000, minimum=1)(
        "How many records of a subtask can wait for the sinks. Further ones are dropped and counted."
    )
    TRACE_DIRECTORY = option("trace.directory", str, "flink-agents-trace")(
        "Directory of the sink jsonl; a relative one is below the working directory of the worker."
    )
    TRACE_FILE_MB = option("trace.file-size-mb", int, 16, minimum=1)(
        "Size in MiB at which the sink jsonl begins a new file."
    )
    TRACE_FILE_AGE = option("trace.file-age", timedelta, "1 h", minimum="1 s")(
        "Age at which the sink jsonl begins a new file."
    )
    TRACE_TOTAL_MB = option("trace.total-size-mb", int, 256, minimum=2)(
        "How many MiB the files of a subtask may hold. The oldest files are removed."
    )
    TRACE_KAFKA_SERVERS = option("trace.kafka.bootstrap-servers", str)(
        "Brokers of the sink kafka, separated by commas."
    )
    TRACE_KAFKA_TOPIC = option("trace.kafka.topic", str, "flink-agents-trace")("Topic of the sink kafka.")
    TRACE_OTLP_ENDPOINT = option("trace.otlp-endpoint", str)(
        "Address to which the sink otel posts traces, such as http://localhost:4318/v1/traces. Default: what "
        "OTEL_EXPORTER_OTLP_ENDPOINT says."
    )
