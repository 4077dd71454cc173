"""``flink-agents runs`` and ``trace``: the records of a job's runs."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flink_agents.cli.errors import from_command_line, prints_errors, report_errors
from flink_agents.cli.keys import key_texts, shown_key
from flink_agents.cli.local_jobs import stopped_jobs
from flink_agents.cli.runs.places import Client, Cluster, Files, Topic, TracePlace
from flink_agents.cli.runs.requests import check_run_id, runs_end
from flink_agents.cli.texts import plain_text
from flink_agents.trace.records import STATUSES, UNFINISHED

if TYPE_CHECKING:
    from flink_agents.runtime.flink.resume.local_jobs import LocalJobState
    from flink_agents.trace.reading import RunTrace

NOTHING_FOUND = 1
"""Exit code if no run is as asked for."""

FOLLOW_SECONDS = 1.0

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one line for each run.")]


runs_app = typer.Typer(help="List the runs that a job recorded.", invoke_without_command=True)
runs_app.command("end")(runs_end)


@runs_app.callback()
@prints_errors
def runs(
    context: typer.Context,
    path: Files = None,
    trace_topic: Topic = None,
    client: Client = None,
    cluster: Cluster = None,
    key: Annotated[str | None, typer.Option(help="Only runs of this key.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only runs of this agent.")] = None,
    status: Annotated[str | None, typer.Option(help=f"Only runs that are {', '.join(STATUSES)}.")] = None,
    slow: Annotated[
        bool, typer.Option("--slow", help="The longest first: from start to end, or until now.")
    ] = False,
    since: Annotated[str | None, typer.Option(help="Only runs with records of this time, as '2 h'.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Keep listing runs that start or change.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of runs.")] = 100,
    as_json: Json = False,
) -> None:
    """List the runs that a job recorded, the newest last."""
    if context.invoked_subcommand is not None:
        if option_names := from_command_line(context):
            raise typer.BadParameter(
                f"write --{option_names[0].replace('_', '-')} behind {context.invoked_subcommand!r}"
            )
        return
    place = TracePlace(path, trace_topic, client, cluster)
    if status is not None and status not in STATUSES:
        raise typer.BadParameter(f"one of {', '.join(STATUSES)}", param_hint="--status")
    least = _start_of_window(since)
    shown: dict[str, tuple[str, float]] = {}
    stopped_lines: list[str] = []
    every = _read_runs(place, key)
    failures = set[str]()
    while True:
        matching_runs = [
            run
            for run in every.values()
            if (agent is None or run.last.agent == agent)
            and (status is None or run.status == status)
            and run.ended >= least
            and shown.get(run.run_id) != (run.status, run.ended)
        ]
        if slow:
            matching_runs.sort(key=lambda run: -run.spent().total)
        listed = matching_runs[:limit] if slow else _newest_runs(matching_runs, limit)
        jobs = place.local_jobs()
        _print_runs(listed, as_json, not shown, jobs)
        stopped_lines = _print_stopped(listed, jobs, stopped_lines)
        if len(listed) < len(matching_runs):
            typer.echo(
                f"{len(matching_runs) - len(listed)} more run(s): use --limit {len(matching_runs)}", err=True
            )
        shown |= {run.run_id: (run.status, run.ended) for run in matching_runs}
        if not follow:
            break
        time.sleep(FOLLOW_SECONDS)
        every = _read_again(place, key, failures)
    if not shown:
        typer.echo(_no_runs_text(every, status), err=True)
        raise typer.Exit(NOTHING_FOUND)


def _read_again(place: TracePlace, key: str | None, failures: set[str]) -> dict[str, RunTrace]:
    """Read the trace again; print an error once, and return no runs then: the cluster may come back."""
    with report_errors(failures):
        traces = _read_runs(place, key)
        failures.clear()
        return traces
    return {}


def _newest_runs(matching_runs: list[RunTrace], limit: int) -> list[RunTrace]:
    """Return the newest ``limit`` runs, and up to ``limit`` older ones that have not ended."""
    older = [run for run in matching_runs[:-limit] if run.status in UNFINISHED]
    return [*older[:limit], *matching_runs[-limit:]]


def _no_runs_text(every: Mapping[str, RunTrace], status: str | None) -> str:
    """Return the text for an empty list: that no run matches, and which statuses the runs have."""
    counts = Counter(run.status for run in every.values())
    summary = (
        ", ".join(f"{counts[run_status]} {run_status}" for run_status in STATUSES if counts[run_status])
        or "none"
    )
    which = f"no run is {status}" if status else "no run is as asked for"
    return f"{which}; runs of the trace: {summary}"


@prints_errors
def trace(
    run: Annotated[str | None, typer.Argument(help="Id of a run, or its first digits.")] = None,
    key: Annotated[str | None, typer.Option(help="All runs of this key instead.")] = None,
    path: Files = None,
    trace_topic: Topic = None,
    client: Client = None,
    cluster: Cluster = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with a timeline into this file.")] = None,
    otlp: Annotated[str | None, typer.Option(metavar="URL", help="Send spans to this collector.")] = None,
) -> None:
    """Show what runs did, as trees."""
    from flink_agents.trace import rendering

    if (run is None) == (key is None):
        raise typer.BadParameter("pass either RUN or --key")
    if run is not None:
        check_run_id(run)
    place = TracePlace(path, trace_topic, client, cluster)
    traces = [
        traced_run
        for name, traced_run in _read_runs(place, key).items()
        if run is None or name.startswith(run)
    ]
    if not traces:
        raise _not_found(run or f"key {key}")
    if html is not None:
        try:
            # A key may be no Unicode.
            html.write_text(
                rendering.render_page(traces, shown_key), encoding="utf-8", errors="backslashreplace"
            )
        except OSError as error:
            raise typer.BadParameter(f"{html} cannot be written: {error}", param_hint="--html") from None
        typer.echo(f"wrote {html}")
    if otlp is not None:
        from flink_agents.trace.sinks.otel import OtelSink

        sink = OtelSink(otlp)
        records = [record for traced_run in traces for record in traced_run.records]
        sink.write(records)
        sink.close()
        typer.echo(f"sent {len(traces)} run(s) to {otlp}")
    if html is None and otlp is None:
        for run_trace in traces:
            typer.echo("\n".join(rendering.tree_lines(run_trace, shown_key)))


def _read_runs(place: TracePlace, key: str | None) -> dict[str, RunTrace]:
    from flink_agents.trace.reading import by_run

    wanted = None if key is None else key_texts(key)
    traces = by_run(record for record in place.read_records() if wanted is None or record.key in wanted)
    place.report_skipped()
    return traces


def _start_of_window(text: str | None) -> float:
    from flink_agents.api.common.option_values import ConfigOption

    if text is None:
        return 0.0
    age = ConfigOption("--since", timedelta, None, "only runs with records of this time")
    return time.time() - age.parse(text).total_seconds()


def _print_stopped(
    listed_runs: list[RunTrace], jobs: Mapping[str, LocalJobState], printed_lines: list[str]
) -> list[str]:
    """Print which jobs of unfinished runs do not run, if that differs from ``printed_lines``; return it."""
    lines = [line for job in stopped_jobs(listed_runs, jobs) for line in job.describe_stop()]
    if lines and lines != printed_lines:
        for line in lines:
            typer.echo(plain_text(line), err=True)
    return lines or printed_lines


def _print_runs(
    listed_runs: list[RunTrace], as_json: bool, header: bool, jobs: Mapping[str, LocalJobState]
) -> None:
    from flink_agents.trace import rendering

    if as_json:
        for run in listed_runs:
            job = jobs.get(run.last.job)
            more = {"key": shown_key(run.last.key), "job_state": None if job is None else job.as_object()}
            typer.echo(json.dumps(rendering.run_object(run) | more))
        return
    stopped = {job.run.identifier for job in stopped_jobs(listed_runs, jobs)}
    rows = [rendering.run_row(run) | {"key": shown_key(run.last.key)} for run in listed_runs]
    for run, row in zip(listed_runs, rows, strict=True):
        if run.last.job in stopped and run.status in UNFINISHED:
            row["now"] = f"its job does not run; {row['now']}".removesuffix("; ")
    if header and rows:
        typer.echo(_row_line(dict(zip(rows[0], rows[0], strict=True))))
    for row in rows:
        typer.echo(rendering.escape_controls(_row_line(row)))


_WIDTHS = {
    "run": 24,
    "agent": 16,
    "key": 20,
    "sequence": 8,
    "status": 13,
    "begun": 24,
    "took": 9,
    "queued": 9,
    "suspended": 9,
    "calls": 5,
}


def _row_line(row: Mapping[str, object]) -> str:
    cells = [str(row[name])[: 2 * width].ljust(width) for name, width in _WIDTHS.items()]
    return "  ".join([*cells, str(row["error"])[:200] or str(row["now"])]).rstrip()


def _not_found(what: str) -> Exception:
    from flink_agents.api.errors import TraceNotFoundError

    return TraceNotFoundError(
        f"the trace has no records of {what}",
        expected="a run or a key that was recorded",
        found="nothing",
        fix="`flink-agents runs` lists the recorded runs",
    )
