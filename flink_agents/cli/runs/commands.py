"""``flink-agents runs`` and ``trace``: the records of a job's runs."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flink_agents.cli.errors import from_command_line, prints_errors, reported
from flink_agents.cli.keys import key_texts, shown_key
from flink_agents.cli.runs.places import Client, Cluster, Files, Topic, TracePlace
from flink_agents.cli.runs.requests import runs_end
from flink_agents.trace.records import STATUSES, UNFINISHED

if TYPE_CHECKING:
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
        if given := from_command_line(context):
            raise typer.BadParameter(
                f"write --{given[0].replace('_', '-')} behind {context.invoked_subcommand!r}"
            )
        return
    place = TracePlace(path, trace_topic, client, cluster)
    if status is not None and status not in STATUSES:
        raise typer.BadParameter(f"one of {', '.join(STATUSES)}", param_hint="--status")
    least = _since(since)
    shown: dict[str, tuple[str, float]] = {}
    every, failures = _read(place, key), set[str]()
    while True:
        found = [
            run
            for run in every.values()
            if (agent is None or run.last.agent == agent)
            and (status is None or run.status == status)
            and run.ended >= least
            and shown.get(run.run_id) != (run.status, run.ended)
        ]
        if slow:
            found.sort(key=lambda run: -run.spent().total)
        listed = found[:limit] if slow else _newest(found, limit)
        _print(listed, as_json, header=not shown)
        if len(listed) < len(found):
            typer.echo(f"{len(found) - len(listed)} more run(s): use --limit {len(found)}", err=True)
        shown |= {run.run_id: (run.status, run.ended) for run in found}
        if not follow:
            break
        time.sleep(FOLLOW_SECONDS)
        every = _again(place, key, failures)
    if not shown:
        typer.echo(_nothing(every, status), err=True)
        raise typer.Exit(NOTHING_FOUND)


def _again(place: TracePlace, key: str | None, failures: set[str]) -> dict[str, RunTrace]:
    """Read the trace again. An error is reported once, since the job or its cluster may come back."""
    with reported(failures):
        found = _read(place, key)
        failures.clear()
        return found
    return {}


def _newest(found: list[RunTrace], limit: int) -> list[RunTrace]:
    """Return the newest runs, and older ones that have not ended, up to the limit each."""
    older = [run for run in found[:-limit] if run.status in UNFINISHED]
    return [*older[:limit], *found[-limit:]]


def _nothing(every: Mapping[str, RunTrace], status: str | None) -> str:
    """Say that no run was found, and which runs there are."""
    counts = Counter(run.status for run in every.values())
    known = ", ".join(f"{counts[one]} {one}" for one in STATUSES if counts[one]) or "none"
    which = f"no run is {status}" if status else "no run is as asked for"
    return f"{which}; runs of the trace: {known}"


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
    place = TracePlace(path, trace_topic, client, cluster)
    found = [one for name, one in _read(place, key).items() if run is None or name.startswith(run)]
    if not found:
        raise _not_found(run or f"key {key}")
    if html is not None:
        try:
            # A key may be no Unicode.
            html.write_text(rendering.page(found, shown_key), encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise typer.BadParameter(f"{html} cannot be written: {error}", param_hint="--html") from None
        typer.echo(f"wrote {html}")
    if otlp is not None:
        from flink_agents.trace.sinks.otel import OtelSink

        sink = OtelSink(otlp)
        records = [record for one in found for record in one.records]
        sink.write(records)
        sink.close()
        typer.echo(f"sent {len(found)} run(s) to {otlp}")
    if html is None and otlp is None:
        for one in found:
            typer.echo("\n".join(rendering.tree(one, shown_key)))


def _read(place: TracePlace, key: str | None) -> dict[str, RunTrace]:
    from flink_agents.trace.reading import by_run

    wanted = None if key is None else key_texts(key)
    found = by_run(one for one in place.read() if wanted is None or one.key in wanted)
    place.warn()
    return found


def _since(text: str | None) -> float:
    from flink_agents.api.settings.options import AgentOptions

    if text is None:
        return 0.0
    return time.time() - AgentOptions.TRACE_FILE_AGE.parse(text).total_seconds()


def _print(found: list[RunTrace], as_json: bool, header: bool) -> None:
    from flink_agents.trace import rendering

    rows = [rendering.run_row(run) | {"key": shown_key(run.last.key)} for run in found]
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row))
        return
    if header and rows:
        typer.echo(_line(dict(zip(rows[0], rows[0], strict=True))))
    for row in rows:
        typer.echo(rendering.safe(_line(row)))


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


def _line(row: Mapping[str, object]) -> str:
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
