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
from flink_agents.cli.runs.places import Client, Files, Topic, TracePlace

if TYPE_CHECKING:
    from flink_agents.cli.runs.metrics import AgentMetrics
    from flink_agents.runtime.flink.following.backpressure import JobFlow
    from flink_agents.runtime.flink.following.rest import ClusterRest
    from flink_agents.trace.reading import RunTrace

    Flows = Sequence[tuple[str, JobFlow]]

MOST_RUNS = 8
LIVE_SECONDS, ONCE_SECONDS = 2.0, 1.0

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
        str, typer.Option(metavar="URL", help="REST address of the cluster.")
    ] = "http://localhost:8081",
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
    """Show what the agents of a cluster do, as a table that renews itself. Ctrl-C ends it.

    Flink fetches metrics every 10 seconds. Rates are empty until they are known: --once can take 25 seconds.
    With a trace, it also shows unfinished runs: those that wait or take longest come first.
    """
    from rich.console import Console
    from rich.live import Live

    from flink_agents.cli.runs.metrics import IDLE_SECONDS, Refreshes, read_metrics
    from flink_agents.runtime.flink.following.rest import ClusterRest

    rest, place = ClusterRest(cluster), TracePlace(path, trace_topic, client)
    traced = path is not None or trace_topic is not None
    console = Console(width=200 if once or not sys.stdout.isatty() else None)
    readings = Refreshes()
    readings.add(list(read_metrics(rest)))
    show: Callable[..., Any] = as_object if as_json else screen
    if once or not (as_json or console.is_terminal):
        end = time.monotonic() + IDLE_SECONDS
        while readings.latest and not readings.known and time.monotonic() < end:
            time.sleep(interval or ONCE_SECONDS)
            readings.add(list(read_metrics(rest)))
        runs = _runs(place) if traced else ()
        shown = show(readings.latest, readings.base, runs, _flows(rest), stopped=_stopped(rest))
        return typer.echo(json.dumps(shown)) if as_json else console.print(shown)
    try:
        with ExitStack() as stack:
            live = None
            if not as_json:
                table = screen(readings.latest, (), ())
                live = stack.enter_context(Live(table, console=console, screen=True, auto_refresh=False))
            while True:
                time.sleep(interval or LIVE_SECONDS)
                now, problem = _reading(rest)
                readings.add(now)
                runs = _runs(place) if traced else ()
                shown = show(
                    readings.latest, readings.base, runs, _flows(rest), problem, stopped=_stopped(rest)
                )
                typer.echo(json.dumps(shown)) if live is None else live.update(shown, refresh=True)
    except KeyboardInterrupt:
        return


def _reading(rest: Any) -> tuple[list[AgentMetrics], str]:
    """Return the metrics, or the reason why there are none: the table survives a restart of the cluster."""
    from flink_agents.api.errors import AgentsError
    from flink_agents.cli.runs.metrics import read_metrics

    try:
        return list(read_metrics(rest)), ""
    except AgentsError as error:
        return [], error.message


def _flows(rest: ClusterRest) -> Flows:
    """Return the flow of data of each running job; nothing if the cluster is gone."""
    from flink_agents.api.errors import AgentsError
    from flink_agents.runtime.flink.following.backpressure import UNKNOWN, running_flows

    try:
        return list(running_flows(rest.get))
    except (AgentsError, *UNKNOWN):
        return ()


def _stopped(rest: ClusterRest) -> list[str]:
    """Return the state and the last failure of each job that should run and does not.

    A job in a loop of restarts has no metrics, so it is not in the table.
    """
    from flink_agents.api.errors import AgentsError
    from flink_agents.cli.runs.why import not_running
    from flink_agents.runtime.flink.following.rest import WANTED_ENDS, jobs_in

    try:
        jobs = [job for job in jobs_in(rest.get) if job["state"] not in WANTED_ENDS]
        return [" ".join(lines) for job in jobs if (lines := list(not_running(rest, job)))]
    except AgentsError:
        return []


def _runs(place: TracePlace) -> list[RunTrace]:
    from flink_agents.api.errors import AgentsError
    from flink_agents.trace.reading import by_run
    from flink_agents.trace.rendering import UNFINISHED

    try:
        found = by_run(place.read()).values()
    except AgentsError:
        # There is no trace yet, or the brokers are unreachable.
        return []
    return sorted((one for one in found if one.status in UNFINISHED), key=lambda one: one.begun)[:MOST_RUNS]


def screen(
    now: Sequence[AgentMetrics],
    before: Sequence[AgentMetrics],
    runs: Sequence[RunTrace],
    flows: Flows = (),
    problem: str = "",
    stopped: Sequence[str] = (),
) -> Any:
    """Return the table of metrics and runs.

    Args:
        now: The metrics of each agent.
        before: The previous metrics.
        runs: Unfinished runs.
        flows: How the data of jobs flows, with their names.
        problem: The reason why the metrics are old; empty if they are not.
        stopped: The jobs that do not run, with their last failures.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from flink_agents.trace.rendering import safe

    earlier = {one.identity: one for one in before if one not in now}
    agents = Table(*COLUMNS, title="agents", title_justify="left", expand=False)
    for one in now:
        agents.add_row(*map(Text, _row(one, earlier.get(one.identity), flows)))
    parts: list[Any] = [agents]
    parts += [Text(safe(line), style="yellow") for line in _slowed(flows)]
    parts = [*(Text(safe(line), style="red") for line in stopped), *parts]
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
    before: Sequence[AgentMetrics],
    runs: Sequence[RunTrace],
    flows: Flows = (),
    problem: str = "",
    stopped: Sequence[str] = (),
) -> dict[str, Any]:
    """Convert the table of :func:`screen` to an object for JSON. Times are in seconds; None is not known."""
    earlier = {one.identity: one for one in before if one not in now}
    return {
        "time": time.time(),
        "problem": problem or None,
        "not_running": list(stopped),
        "agents": [figures(one, earlier.get(one.identity), flows) for one in now],
        "backpressure": list(_slowed(flows)),
        "runs": [dict(zip(RUN_FIELDS, map(_finite, _run_values(run)), strict=True)) for run in runs],
    }


def _slowed(flows: Flows) -> Iterator[str]:
    """Yield what slows agents down, in words."""
    for job, flow in flows:
        for one in flow.bottlenecks():
            yield f"{job}: {one}"


def _downstream(agent: AgentMetrics, flows: Flows) -> float | None:
    """Return the share of time that an agent waits for downstream operators; None if it is not known."""
    found = [flow.blocked_share(agent.agent) for _, flow in flows if flow.job == agent.job_id]
    return max((one for one in found if one is not None), default=None)


def figures(one: AgentMetrics, before: AgentMetrics | None, flows: Flows = ()) -> dict[str, Any]:
    """Return the figures of an agent: the columns of the table, in their order, with the agent's state."""
    sums, most = one.sums, one.most
    actions = [name for name in most if name.startswith("runtime.action.")]
    p50, p99 = (
        max((most[name] for name in actions if name.endswith(f".latency_us_p{percent}")), default=None)
        for percent in (50, 99)
    )
    blocked = one.per_second("runtime.backpressure_ms", before)
    tokens = [one.total_per_second(ending, before) for ending in (".input_tokens", ".output_tokens")]
    known = [rate for rate in tokens if rate is not None]
    cost = one.total_per_second(".cost_micro_usd", before)
    found: dict[str, Any] = {
        "agent": one.agent,
        "job": one.job,
        "job_id": one.job_id,
        "state": one.state,
        "events_per_second": one.per_second("runtime.events", before),
        "in_flight": sums.get("runtime.runs_in_flight"),
        "queued": sums.get("runtime.runs_queued"),
        "suspended": sums.get("runtime.waits_suspended"),
        "oldest_wait_seconds": _scaled(most.get("runtime.waits_oldest_ms"), 1e3),
        "action_p50_seconds": _scaled(p50, 1e6),
        "action_p99_seconds": _scaled(p99, 1e6),
        "commit_p99_seconds": _scaled(most.get("runtime.commit_delay_us_p99"), 1e6),
        "journal_seconds": _scaled(most.get("runtime.store_append_micros"), 1e6),
        "blocked_share": _scaled(blocked, 1e3),
        "downstream_share": _downstream(one, flows),
        "tokens_per_minute": 60 * sum(known) if known else None,
        "usd_per_minute": None if cost is None else 60 * cost / 1e6,
        "stuck": sums.get("runtime.runs_stuck"),
        "dead_letters": sums.get("runtime.events_dead_lettered"),
    }
    return {name: _finite(value) for name, value in found.items()}


def _finite(value: Any) -> Any:
    """Return a value, or None for a number that JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _row(one: AgentMetrics, before: AgentMetrics | None, flows: Flows) -> Iterator[str]:
    from flink_agents.trace.rendering import safe, took

    of = figures(one, before, flows)
    yield safe(one.agent)
    yield safe(one.job) + ("" if one.state == "RUNNING" else f" ({one.state})")
    for name in ("events_per_second", "in_flight", "queued", "suspended"):
        yield _number(of[name])
    yield _took(of["oldest_wait_seconds"])
    p50, p99 = of["action_p50_seconds"], of["action_p99_seconds"]
    yield "" if p50 is None or p99 is None else f"{took(p50)} / {took(p99)}"
    yield _took(of["commit_p99_seconds"])
    yield _took(of["journal_seconds"])
    for name in ("blocked_share", "downstream_share"):
        yield "" if of[name] is None else f"{100 * of[name]:.0f} %"
    yield _number(of["tokens_per_minute"])
    yield "" if of["usd_per_minute"] is None else f"{of['usd_per_minute']:.4g}"
    yield _number(of["stuck"])
    yield _number(of["dead_letters"])


RUN_FIELDS = ("run", "agent", "key", "status", "since_seconds", "for")


def _run_values(run: RunTrace) -> tuple[Any, ...]:
    from flink_agents.cli.keys import shown_key
    from flink_agents.trace.rendering import wait_text

    last = run.last
    waits = "; ".join(map(wait_text, last.attributes.get("waits", ())))
    said = waits or str(last.attributes.get("for") or "")
    return run.run_id, last.agent, shown_key(last.key), run.status, max(0.0, time.time() - run.begun), said


def _run_row(run: RunTrace) -> tuple[str, ...]:
    from flink_agents.trace.rendering import safe, took

    name, agent, key, status, age, said = _run_values(run)
    return name, safe(agent), safe(key)[:40], status, took(age), safe(said)[:60]


def _number(value: float | None) -> str:
    return (
        "" if value is None else f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:,.1f}"
    )


def _took(value: float | None) -> str:
    from flink_agents.trace.rendering import took

    return "" if not value else took(value)
