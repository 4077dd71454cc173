"""All metrics of a job, as a table: the reference page and the alert rules are checked against it.

``python -m flink_agents.runtime.metrics.table`` writes ``docs/metrics.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

RUNTIME = "runtime"
ACTION = "runtime.action.NAME"
CHAT = "chat.NAME"
LETTERS = "runtime.dead_letters"
REACT = "react"

COUNTER = "counter"
GAUGE = "gauge"
METER = "meter"
HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """A metric.

    Attributes:
        name: Its name.
        kind: Its type in Flink.
        meaning: What it measures.
        group: Its group, below the group of the agent.
        always: True if each job has it from the beginning; False if it appears with its first event.
    """

    name: str
    kind: str
    meaning: str
    group: str = RUNTIME
    always: bool = False


METRICS: tuple[Metric, ...] = (
    Metric("events", COUNTER, "Inputs whose run was committed.", always=True),
    Metric("events_per_second", METER, "The same, as a rate.", always=True),
    Metric("actions", COUNTER, "Executions of actions that succeeded.", always=True),
    Metric("actions_per_second", METER, "The same, as a rate.", always=True),
    Metric("runs_in_flight", GAUGE, "Runs on the event loop.", always=True),
    Metric("runs_queued", GAUGE, "Runs that the event loop has not started.", always=True),
    Metric("runs_spilled", GAUGE, "Inputs in state until the queue of their key has room.", always=True),
    Metric("commit_delay_us", HISTOGRAM, "Microseconds from the end of a run to its commit.", always=True),
    Metric(
        "backpressure_ms",
        COUNTER,
        "Milliseconds without taking input.",
        always=True,
    ),
    Metric("runs_stuck", COUNTER, "Runs that took longer than `run.stuck-after`.", always=True),
    Metric("loop_blocked", COUNTER, "Times that code blocked the event loop for too long.", always=True),
    Metric(
        "loop_lag_ms", GAUGE, "The longest block of the event loop of the last 30 to 60 seconds.", always=True
    ),
    Metric("keys_forgotten", COUNTER, "Idle keys whose state was removed."),
    Metric("action_failures", COUNTER, "Attempts of actions that raised."),
    Metric("action_retries", COUNTER, "Attempts after one that raised."),
    Metric("action_timeouts", COUNTER, "Attempts that took longer than `timeout`."),
    Metric("events_ignored", COUNTER, "Events dropped by the policy `ignore`."),
    Metric("events_dead_lettered", COUNTER, "Events that became dead letters."),
    Metric("ERROR@ACTION", COUNTER, "Dead letters by reason: at most 50 reasons, and `Others@`.", LETTERS),
    Metric("observer_errors", COUNTER, "Exceptions of observers."),
    Metric("trace_drops", COUNTER, "Trace records that were dropped."),
    Metric("waits_suspended", GAUGE, "Suspended runs that this task attempt has seen."),
    Metric("waits_timer", GAUGE, "Suspended runs that wait for a time."),
    Metric("waits_signal", GAUGE, "Suspended runs that wait for a signal."),
    Metric("waits_approval", GAUGE, "Suspended runs that wait for an approval."),
    Metric("waits_oldest_ms", GAUGE, "Age of the oldest of these waits."),
    Metric("signals_unmatched", COUNTER, "Signals that no run took."),
    Metric("delayed_events_left", COUNTER, "Delayed events sent after the end of the input."),
    Metric("event_time_behind_ms", GAUGE, "How far the output watermark lags behind."),
    Metric("event_time_late_outputs", COUNTER, "Runs with late outputs."),
    Metric("action_calls_recorded", COUNTER, "Durable steps whose result was recorded."),
    Metric("action_calls_replayed", COUNTER, "Durable steps answered from the journal."),
    Metric("action_call_retries", COUNTER, "Further attempts of durable steps."),
    Metric(
        "action_calls_reexecuted", COUNTER, "Steps without a record in a repeated run: perhaps made twice."
    ),
    Metric("action_replays", COUNTER, "Actions taken from their record."),
    Metric("action_mismatches", COUNTER, "Actions that made other steps than recorded."),
    Metric("inputs_held_back", COUNTER, "Inputs that waited for an earlier recorded one."),
    Metric("runs_reordered", COUNTER, "Recorded runs that continued without their turn."),
    Metric("runs_replayed_late", COUNTER, "Recorded runs whose input came late."),
    Metric("runs_abandoned", COUNTER, "Recorded runs whose input never came."),
    Metric("runs_pruned", COUNTER, "Runs whose records were pruned."),
    Metric("prune_errors", COUNTER, "Journals for which pruning failed."),
    Metric("runs_unpruned", GAUGE, "Runs whose records wait for checkpoints."),
    Metric("journals_unpruned", GAUGE, "Journals whose records wait for checkpoints."),
    Metric("rest_reachable", GAUGE, "1 if Flink's REST interface answers, else 0."),
    Metric("rest_errors", COUNTER, "Requests to it without a usable answer."),
    Metric("rest_answers_older", COUNTER, "Answers older than the previous one."),
    Metric("store_appends", GAUGE, "Writes to the journal."),
    Metric("store_append_bytes", GAUGE, "Bytes written to the journal."),
    Metric("store_append_errors", GAUGE, "Writes to the journal that failed."),
    Metric("store_append_batch", GAUGE, "Median size of the last 512 writes, in records."),
    Metric("store_append_micros", GAUGE, "Median time of the last 512 writes, in microseconds."),
    Metric("store_rebuild_records", GAUGE, "Kafka: records read after a restore."),
    Metric("store_rebuild_millis", GAUGE, "Kafka: the time that took, in milliseconds."),
    Metric("store_runs_kept", GAUGE, "Kafka: runs that are not pruned."),
    Metric("store_batches_kept", GAUGE, "Kafka: batches that are needed."),
    Metric("store_batches_removed", GAUGE, "Kafka: batches that were removed."),
    Metric("store_tombstones_kept", GAUGE, "Kafka: tombstones that are needed."),
    Metric(
        "latency_us",
        HISTOGRAM,
        "Microseconds, without limits and pauses.",
        ACTION,
        True,
    ),
    Metric("failures", COUNTER, "Attempts that raised.", ACTION),
    Metric("retries", COUNTER, "Attempts after one that raised.", ACTION),
    Metric("timeouts", COUNTER, "Attempts that took longer than `timeout`.", ACTION),
    Metric("requests", COUNTER, "Requests to the chat model `NAME`.", CHAT),
    Metric("failures", COUNTER, "Requests that failed.", CHAT),
    Metric("latency_ms", HISTOGRAM, "Milliseconds of a request that was answered.", CHAT),
    Metric("limit_wait_ms", COUNTER, "Milliseconds that requests waited for limits.", CHAT),
    Metric("input_tokens", COUNTER, "Tokens of requests.", CHAT),
    Metric("output_tokens", COUNTER, "Tokens of answers.", CHAT),
    Metric("cost_micro_usd", COUNTER, "Price of answers in millionths of a US dollar.", CHAT),
    Metric(
        "fallbacks",
        COUNTER,
        "Conversations that got the `fallback` as the answer.",
        REACT,
    ),
)
"""All of them, in the order of the reference page."""


HEAD = """# Metrics

Watch a job with these metrics, and raise alerts. Each subtask reports them through Flink's metric system, in
the group `flink_agents` and the name of the agent. `ctx.agent_metric_group` is the same group, and
`ctx.action_metric_group` one with the name of the action.

```yml
# config.yaml of Flink
metrics.reporter.prometheus.factory.class: org.apache.flink.metrics.prometheus.PrometheusReporterFactory
metrics.reporter.prometheus.port: 9250-9260
```

Prometheus then has the metric `events` of the agent `Refunds` as
`flink_taskmanager_job_task_operator_flink_agents_Refunds_runtime_events`. A histogram is four gauges:
`_count`, `_p50`, `_p95` and `_p99` of the last 1,000 values. A counter appears when it is first counted.

[alerts.yml](alerts.yml) has rules for Prometheus: stuck runs, a blocked loop, old waits, dead letters and
cost, failing checkpoints, a slow journal, dropped trace records. Change the limits to what fits your job.

In the harness, `harness.metrics` has the metrics of the agent and `harness.run_metrics` those of the runtime.
"""


def page() -> str:
    """Return the reference page."""
    return "\n".join([HEAD, *_lists()])


def _lists() -> Iterator[str]:
    for group in dict.fromkeys(metric.group for metric in METRICS):
        yield f"## `{group}`\n"
        yield from (
            f"- `{metric.name}` ({metric.kind}): {metric.meaning}"
            for metric in METRICS
            if metric.group == group
        )
        yield ""


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/metrics.md")
    target.write_text(page(), encoding="utf-8")
