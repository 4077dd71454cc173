"""``flink-agents top``: a live table of the agents of a cluster, and of their unfinished runs."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flink_agents.cli.errors import prints_errors
from flink_agents.cli.runs.places import Client, Files, Topic, TracePlace, configured_directory

if TYPE_CHECKING:
    from flink_agents.cli.runs.metrics import AgentMetrics
    from flink_agents.runtime.flink.following.backpressure import JobFlow
    from flink_agents.runtime.flink.following.rest import ClusterRest
    from flink_agents.runtime.flink.resume.local_jobs import LocalJobState
    from flink_agents.trace.reading import RunTrace

    Flows = Sequence[tuple[str, JobFlow]]

DEFAULT_CLUSTER = "http://localhost:8081"
MOST_RUNS = 8
LIVE_SECONDS = 2.0
ONCE_SECONDS = 1.0

COLUMNS = (
    "agent",
    "job",
    "events/s",
    "in flight",
    "queued",
    "suspended",
    "oldest wait",
    "actions p50/p99",
    "commit p99",
    "journal",
    "blocked",
    "downstream",
    "tokens/min",
    "USD/min",
    "stuck",
    "letters",
)


@prints_errors
def top(
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="REST address of the cluster. Default: the local jobs of this directory, else "
            "http://localhost:8081.",
        ),
    ] = None,
    path: Files = None,
    trace_topic: Topic = None,
    client: Client = None,
    interval: Annotated[
        float | None,
        typer.Option(min=0.2, help="Seconds between two readings. Default: 2, and 1 with --once."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one table, and end.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object a reading, with the fields of the table.")
    ] = False,
) -> None:
    """Show what the agents of local jobs or a cluster do, as a table that renews itself. Ctrl-C ends it.

    Flink fetches metrics every 10 seconds. Rates are empty until they are known: --once can take 25 seconds.
    With a trace, it also shows unfinished runs: those that wait or take longest come first.
    """
    from rich.console import Console
    from rich.live import Live

    from flink_agents.cli.runs.metrics import IDLE_SECONDS, Refreshes

    place = TracePlace(path, trace_topic, client)
    sources = Sources(cluster, place)
    traced = (
        path is not None or trace_topic is not None or (cluster is None and configured_directory().exists())
    )
    console = Console(width=200 if once or not sys.stdout.isatty() else None)
    readings = Refreshes()
    readings.add_reading(sources.read_metrics())
    show: Callable[..., Any] = as_object if as_json else render_screen
    if once or not (as_json or console.is_terminal):
        end = time.monotonic() + IDLE_SECONDS
        # A job that has just started has no metrics of agents yet.
        while not readings.has_rates and (readings.latest or sources.read_flows()) and time.monotonic() < end:
            time.sleep(interval or ONCE_SECONDS)
            readings.add_reading(sources.read_metrics())
        runs = _read_runs(place) if traced else ()
        shown = show(
            readings.latest, readings.base, runs, sources.read_flows(), stopped=sources.stopped_jobs()
        )
        return typer.echo(json.dumps(shown)) if as_json else console.print(shown)
    try:
        with ExitStack() as stack:
            live = None
            if not as_json:
                table = render_screen(readings.latest, (), ())
                live = stack.enter_context(Live(table, console=console, screen=True, auto_refresh=False))
            while True:
                time.sleep(interval or LIVE_SECONDS)
                now, problem = _read_metrics(sources)
                readings.add_reading(now)
                runs = _read_runs(place) if traced else ()
                shown = show(
                    readings.latest,
                    readings.base,
                    runs,
                    sources.read_flows(),
                    problem,
                    sources.stopped_jobs(),
                )
                typer.echo(json.dumps(shown)) if live is None else live.update(shown, refresh=True)
    except KeyboardInterrupt:
        return


class Sources:
    """The REST interfaces that ``top`` reads: of one cluster, or of all running local jobs.

    Args:
        cluster: Address of a cluster. None: local jobs, or without them the cluster of this machine.
        place: The trace; local jobs near it are found.
    """

    def __init__(self, cluster: str | None, place: TracePlace) -> None:
        self._cluster = cluster
        self._place = place

    def read_metrics(self) -> list[AgentMetrics]:
        """Read the metrics of all agents.

        Raises:
            ClusterUnavailableError: The cluster does not answer.
        """
        from flink_agents.cli.runs.metrics import read_metrics

        return [metrics for rest_client in self._rest_clients() for metrics in read_metrics(rest_client)]

    def read_flows(self) -> Flows:
        """Read how data flows through each running job, with the name of the job."""
        return [flow for rest_client in self._rest_clients() for flow in _read_flows(rest_client)]

    def stopped_jobs(self) -> list[str]:
        """Describe each job that does not run: its state and its last failure."""
        local = [" ".join(job.describe_stop()) for job in self._local_jobs() if _should_run(job)]
        return [
            *local,
            *(line for rest_client in self._rest_clients() for line in _stopped_jobs(rest_client)),
        ]

    def _local_jobs(self) -> list[LocalJobState]:
        if self._cluster is not None:
            return []
        return [job for job in self._place.local_jobs().values() if job.runs or _should_run(job)]

    def _rest_clients(self) -> list[ClusterRest]:
        from flink_agents.runtime.flink.following.rest import ClusterRest

        jobs = self._local_jobs()
        if self._cluster is None and jobs:
            return [ClusterRest(job.address) for job in jobs if job.address is not None]
        return [ClusterRest(self._cluster or DEFAULT_CLUSTER)]


def _should_run(job: LocalJobState) -> bool:
    """Return True if a new start of a local job would resume it."""
    from flink_agents.runtime.flink.resume.local_jobs import RESUMABLE, JobState

    return job.state in (*RESUMABLE, JobState.PAUSED)


def _read_metrics(sources: Sources) -> tuple[list[AgentMetrics], str]:
    """Read the metrics; if that fails, return none and the reason.

    So the table survives restarts of clusters.
    """
    from flink_agents.api.errors import AgentsError

    try:
        return sources.read_metrics(), ""
    except AgentsError as error:
        return [], error.message


def _read_flows(rest_client: ClusterRest) -> Sequence[tuple[str, JobFlow]]:
    """Read how data flows through each running job of a cluster; nothing if the cluster does not answer."""
    from flink_agents.api.errors import AgentsError
    from flink_agents.runtime.flink.following.backpressure import UNKNOWN, running_flows

    try:
        return list(running_flows(rest_client.get))
    except (AgentsError, *UNKNOWN):
        return ()


def _stopped_jobs(rest_client: ClusterRest) -> list[str]:
    """Describe each job of a cluster that should run and does not: its state and its last failure.

    Such a job has no metrics, so it is not in the table.
    """
    from flink_agents.api.errors import AgentsError
    from flink_agents.cli.runs.why import not_running
    from flink_agents.runtime.flink.following.rest import WANTED_ENDS, jobs_in

    try:
        jobs = [job for job in jobs_in(rest_client.get) if job["state"] not in WANTED_ENDS]
        return [" ".join(lines) for job in jobs if (lines := list(not_running(rest_client, job)))]
    except AgentsError:
        return []


def _read_runs(place: TracePlace) -> list[RunTrace]:
    from flink_agents.api.errors import AgentsError
    from flink_agents.trace.reading import by_run
    from flink_agents.trace.rendering import UNFINISHED

    try:
        runs = by_run(place.read_records()).values()
    except AgentsError:
        # There is no trace yet, or the brokers are unreachable.
        return []
    return sorted((run for run in runs if run.status in UNFINISHED), key=lambda run: run.begun)[:MOST_RUNS]


def render_screen(
    now: Sequence[AgentMetrics],
    previous_readings: Sequence[AgentMetrics],
    runs: Sequence[RunTrace],
    flows: Flows = (),
    problem: str = "",
    stopped: Sequence[str] = (),
) -> Any:
    """Return the table of metrics and runs.

    Args:
        now: The latest metrics of each agent.
        previous_readings: Earlier metrics of each agent, from which rates are computed; empty for no rates.
        runs: Unfinished runs.
        flows: How data flows through each job, with the name of the job.
        problem: Why the metrics are old; empty if they are not.
        stopped: Lines about jobs that do not run.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from flink_agents.trace.rendering import escape_controls

    earlier = {
        previous_metrics.identity: previous_metrics
        for previous_metrics in previous_readings
        if previous_metrics not in now
    }
    agents = Table(*COLUMNS, title="agents", title_justify="left", expand=False)
    for metrics in now:
        agents.add_row(*map(Text, _table_row(metrics, earlier.get(metrics.identity), flows)))
    parts: list[Any] = [agents]
    parts += [Text(escape_controls(line), style="yellow") for line in _slow_lines(flows)]
    parts = [*(Text(escape_controls(line), style="red") for line in stopped), *parts]
    if problem:
        parts.insert(0, Text(f"these figures are old: {problem}", style="red"))
    if runs:
        table = Table(
            "run", "agent", "key", "status", "since", "for", title="unfinished runs", title_justify="left"
        )
        for run in runs:
            table.add_row(*map(Text, _run_row(run)))
        parts.append(table)
    return Group(*parts)


def as_object(
    now: Sequence[AgentMetrics],
    previous_readings: Sequence[AgentMetrics],
    runs: Sequence[RunTrace],
    flows: Flows = (),
    problem: str = "",
    stopped: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the content of :func:`render_screen` for JSON. None stands for what is not known."""
    earlier = {
        previous_metrics.identity: previous_metrics
        for previous_metrics in previous_readings
        if previous_metrics not in now
    }
    return {
        "read_at_ms": round(1000 * time.time()),
        "problem": problem or None,
        "not_running": list(stopped),
        "agents": [agent_figures(metrics, earlier.get(metrics.identity), flows) for metrics in now],
        "backpressure": list(_slow_lines(flows)),
        "runs": [dict(zip(RUN_FIELDS, map(_finite_or_none, _run_values(run)), strict=True)) for run in runs],
    }


def _slow_lines(flows: Flows) -> Iterator[str]:
    """Yield a sentence about each operator that slows agents down."""
    for job, flow in flows:
        for bottleneck in flow.bottlenecks():
            yield f"{job}: {bottleneck}"


def _downstream_share(agent: AgentMetrics, flows: Flows) -> float | None:
    """Return the share of time, 0 to 1, that an agent waits for downstream operators; None if unknown."""
    shares = [flow.blocked_share(agent.agent) for _, flow in flows if flow.job == agent.job_id]
    return max((share for share in shares if share is not None), default=None)


def agent_figures(
    metrics: AgentMetrics, previous_metrics: AgentMetrics | None, flows: Flows = ()
) -> dict[str, Any]:
    """Return the figures of an agent by name, in the order of the columns, and the state of its job.

    Args:
        metrics: Its latest metrics.
        previous_metrics: Earlier metrics, from which rates are computed; None for no rates.
        flows: How data flows through each job, with the name of the job.
    """
    sums = metrics.sums
    most = metrics.most
    actions = [name for name in most if name.startswith("runtime.action.")]
    p50, p99 = (
        max((most[name] for name in actions if name.endswith(f".latency_us_p{percent}")), default=None)
        for percent in (50, 99)
    )
    blocked = metrics.per_second("runtime.backpressure_ms", previous_metrics)
    tokens = [
        metrics.total_per_second(ending, previous_metrics) for ending in (".input_tokens", ".output_tokens")
    ]
    rates = [rate for rate in tokens if rate is not None]
    cost = metrics.total_per_second(".cost_micro_usd", previous_metrics)
    fields: dict[str, Any] = {
        "agent": metrics.agent,
        "job": metrics.job,
        "job_id": metrics.job_id,
        "state": metrics.state,
        "events_per_second": metrics.per_second("runtime.events", previous_metrics),
        "in_flight": sums.get("runtime.runs_in_flight"),
        "queued": sums.get("runtime.runs_queued"),
        "suspended": sums.get("runtime.waits_suspended"),
        "oldest_wait_seconds": _scale(most.get("runtime.waits_oldest_ms"), 1e3),
        "action_p50_seconds": _scale(p50, 1e6),
        "action_p99_seconds": _scale(p99, 1e6),
        "commit_p99_seconds": _scale(most.get("runtime.commit_delay_us_p99"), 1e6),
        "journal_seconds": _scale(most.get("runtime.store_append_micros"), 1e6),
        "blocked_share": _scale(blocked, 1e3),
        "downstream_share": _downstream_share(metrics, flows),
        "tokens_per_minute": 60 * sum(rates) if rates else None,
        "usd_per_minute": None if cost is None else 60 * cost / 1e6,
        "stuck": sums.get("runtime.runs_stuck"),
        "dead_letters": sums.get("runtime.events_dead_lettered"),
    }
    return {name: _finite_or_none(value) for name, value in fields.items()}


def _finite_or_none(value: Any) -> Any:
    """Return a value; None for NaN and infinities, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _scale(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _table_row(metrics: AgentMetrics, previous_metrics: AgentMetrics | None, flows: Flows) -> Iterator[str]:
    from flink_agents.trace.rendering import escape_controls, format_duration

    of = agent_figures(metrics, previous_metrics, flows)
    yield escape_controls(metrics.agent)
    yield escape_controls(metrics.job) + ("" if metrics.state == "RUNNING" else f" ({metrics.state})")
    for name in ("events_per_second", "in_flight", "queued", "suspended"):
        yield _format_number(of[name])
    yield _format_duration(of["oldest_wait_seconds"])
    p50 = of["action_p50_seconds"]
    p99 = of["action_p99_seconds"]
    yield "" if p50 is None or p99 is None else f"{format_duration(p50)} / {format_duration(p99)}"
    yield _format_duration(of["commit_p99_seconds"])
    yield _format_duration(of["journal_seconds"])
    for name in ("blocked_share", "downstream_share"):
        yield "" if of[name] is None else f"{100 * of[name]:.0f} %"
    yield _format_number(of["tokens_per_minute"])
    yield "" if of["usd_per_minute"] is None else f"{of['usd_per_minute']:.4g}"
    yield _format_number(of["stuck"])
    yield _format_number(of["dead_letters"])


RUN_FIELDS = ("run", "agent", "key", "status", "since_seconds", "for")


def _run_values(run: RunTrace) -> tuple[Any, ...]:
    from flink_agents.cli.keys import shown_key
    from flink_agents.trace.rendering import wait_text

    last = run.last
    waits = "; ".join(map(wait_text, last.attributes.get("waits", ())))
    reason = waits or str(last.attributes.get("for") or "")
    return run.run_id, last.agent, shown_key(last.key), run.status, max(0.0, time.time() - run.begun), reason


def _run_row(run: RunTrace) -> tuple[str, ...]:
    from flink_agents.trace.rendering import escape_controls, format_duration

    name, agent, key, status, age, reason = _run_values(run)
    return (
        name,
        escape_controls(agent),
        escape_controls(key)[:40],
        status,
        format_duration(age),
        escape_controls(reason)[:60],
    )


def _format_number(value: float | None) -> str:
    return (
        "" if value is None else f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:,.1f}"
    )


def _format_duration(value: float | None) -> str:
    from flink_agents.trace.rendering import format_duration

    return "" if not value else format_duration(value)
