"""``flink-agents journal``: inspect the records of durable steps, and remove them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flink_agents.cli.errors import prints_errors, runs_no_jobs
from flink_agents.cli.texts import named_values, plain_text

if TYPE_CHECKING:
    from flink_agents.cli.journals.operations import Place
    from flink_agents.testing.run_replay import RunReplay

CELL = 60
"""Maximum number of characters of a request or outcome in a table; JSON has all."""

NOTHING_FOUND = 1
"""Exit code if there is no such journal."""

NOT_CONFIRMED = 1
"""Exit code if nothing was removed because --yes is missing."""

journal_app = typer.Typer(help="Inspect and manage the journals of durable steps.", no_args_is_help=True)

Store = Annotated[str | None, typer.Option("--store", help="Name of the store. Default: the option's.")]
File = Annotated[str | None, typer.Option("--path", help="Same as --option path=FILE.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="An option of the store, name=value; any number of them."),
]
Job = Annotated[str | None, typer.Option("--job", help="Only this job, as 'list' shows it.")]
Key = Annotated[str, typer.Argument(help="The key as JSON, an array for a tuple: order-1, 7, '[\"a\", 1]'.")]
Raw = Annotated[bool, typer.Option("--raw", help="KEY is the canonical text that 'list --json' shows.")]
Modules = Annotated[
    list[str] | None,
    typer.Option("--module", "-m", help="Import this module, and show values of its classes."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@journal_app.command("list")
@prints_errors
def state_list(
    job: Job = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of journals.")] = 100,
    store: Store = None,
    path: File = None,
    option: Options = None,
    as_json: Json = False,
) -> None:
    """List journals: one for each key of each job."""
    place = _store_place(store, path, option)
    from flink_agents.cli.journals import operations

    # One more shows if there are more.
    journals = place.run_query(lambda opened: operations.list_journals(opened, job, limit + 1))
    if as_json:
        return _print_json(journals[:limit])
    columns = ["job", "key", "runs", "records", "bytes", "first", "last", "pruned"]
    _print_table(columns, ([row[column] for column in columns] for row in journals[:limit]))
    if len(journals) > limit:
        typer.echo(f"there are more than {limit}; see --limit")


@journal_app.command("show")
@prints_errors
@runs_no_jobs
def state_show(
    key: Key,
    raw: Raw = False,
    job: Job = None,
    run: Annotated[int | None, typer.Option(min=0, help="Only the run with this number.")] = None,
    module: Modules = None,
    store: Store = None,
    path: File = None,
    option: Options = None,
    as_json: Json = False,
) -> None:
    """Show the journal of a key: its runs, their durable steps and results.

    Values of classes are shown as data; only the modules in --module are imported.
    """
    place = _store_place(store, path, option)
    from flink_agents.cli.journals import operations

    _import_modules(module or ())
    text = operations.key_text(key, raw)
    journals = place.run_query(lambda opened: operations.show_key(opened, text, job, run, bool(module)))
    if as_json:
        _print_json(journals)
    else:
        for number, journal in enumerate(journals):
            _print_journal(journal, is_first=number == 0)
    _require_results(journals, operations.shown_key(text))


@journal_app.command("replay")
@prints_errors
@runs_no_jobs
def state_replay(
    key: Key,
    run: Annotated[int, typer.Argument(min=0, help="Number of the run.")],
    agent: Annotated[str, typer.Option("--agent", help="module:Agent, file.py:Agent or agents.yaml:Name.")],
    until_call: Annotated[
        int | None, typer.Option("--until-call", min=0, help="Stop after this number of durable steps.")
    ] = None,
    raw: Raw = False,
    job: Job = None,
    store: Store = None,
    path: File = None,
    option: Options = None,
) -> None:
    """Execute a run again, for debugging: durable steps return their recorded results.

    Set breakpoints in the agent's code, or run it under a debugger.
    """
    sys.path.insert(0, str(Path.cwd()))
    place = _store_place(store, path, option)
    from flink_agents.cli.journals import operations
    from flink_agents.plan.files.targets import load_agent
    from flink_agents.testing.run_replay import replay_run

    text = operations.key_text(key, raw)
    run_records = place.run_query(lambda opened: operations.records_of(opened, text, job, run))
    _require_results([run_records] if run_records else [], operations.shown_key(text))
    assert run_records is not None
    replay = replay_run(load_agent(agent), *run_records, until_call)
    calls = [(action, index, name, request[:CELL]) for action, index, name, request in replay.calls]
    if calls:
        _print_table(["action", "call", "function", "request"], calls)
    for output in replay.outputs:
        typer.echo(plain_text(f"output: {output!r}"))
    for name, value in replay.memory.items():
        typer.echo(plain_text(f"memory: {name} = {value!r}"))
    typer.echo(plain_text(_end_of(replay)))


def _end_of(replay: RunReplay) -> str:
    """Describe how a replay ended: completed, waiting, or stopped early and why."""
    from flink_agents.trace.rendering import wait_text

    if replay.waits:
        # Without deadlines: those of the replay are not those of the run.
        waits = "; or ".join(wait_text({"name": wait.name}) for wait in replay.waits)
        return f"the run has not ended: it waits for {waits}"
    return f"ended early: {replay.ended}" if replay.ended else "completed"


@journal_app.command("prune")
@prints_errors
def state_prune(
    key: Key,
    through: Annotated[int, typer.Option(min=0, help="The last run whose records are removed.")],
    raw: Raw = False,
    job: Job = None,
    store: Store = None,
    path: File = None,
    option: Options = None,
    as_json: Json = False,
) -> None:
    """Remove the records of a key's first runs. Then older checkpoints cannot be restored."""
    place = _store_place(store, path, option)
    from flink_agents.cli.journals import operations

    text = operations.key_text(key, raw)
    results = place.run_query(lambda opened: operations.prune_key(opened, text, job, through))
    if as_json:
        _print_json(results)
    else:
        for result in results:
            typer.echo(
                plain_text(
                    f"{_journal_name(result)}: {result['removed']} records removed, "
                    f"pruned through {result['pruned']}"
                )
            )
    _require_results(results, operations.shown_key(text))


@journal_app.command("reset")
@prints_errors
def state_reset(
    job: Annotated[str, typer.Argument(help="The job's identifier, or what 'list' shows of it.")],
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove them; without it, only print what exists.")
    ] = False,
    store: Store = None,
    path: File = None,
    option: Options = None,
    as_json: Json = False,
) -> None:
    """Delete a job's journals. Replayed inputs then repeat their durable steps.

    The command fails while the job is running. A checkpoint of the job can still be restored, which then
    repeats steps.
    """
    import asyncio

    place = _store_place(store, path, option)
    from flink_agents.cli.journals import operations

    rows = place.run_query(lambda opened: operations.journals_of_job(opened, job))
    if yes and rows:
        asyncio.run(operations.forget_jobs(place, [job_row["job"] for job_row in rows]))
    if as_json:
        _print_json(rows)
    else:
        for row in rows:
            counts = f"{row['journals']} journals with {row['records']} records"
            typer.echo(plain_text(f"job {row['job']}: {counts}{' forgotten' if yes else ''}"))
    if not rows:
        typer.echo(plain_text(f"no journal of the job {job}"), err=True)
        raise typer.Exit(NOTHING_FOUND)
    if not yes:
        typer.echo("nothing was removed; repeat with --yes to forget them", err=True)
        raise typer.Exit(NOT_CONFIRMED)


@journal_app.command("copy")
@prints_errors
def state_copy(
    to: Annotated[str, typer.Option("--to", help="Name of the store to copy into: kafka or sqlite.")],
    to_option: Annotated[
        list[str] | None,
        typer.Option("--to-option", help="An option of that store, name=value; any number of them."),
    ] = None,
    store: Store = None,
    path: File = None,
    option: Options = None,
    as_json: Json = False,
) -> None:
    """Copy all journals into another store, so that a job can continue with it.

    Stop the job first. You can interrupt the command and start it again: it copies what is missing.
    """
    import asyncio
    from dataclasses import asdict

    source = _store_place(store, path, option)
    target = _store_place(to, None, to_option)
    from flink_agents.cli.journals.operations import copy_journals

    done = asyncio.run(copy_journals(source, target))
    if as_json:
        return _print_json(asdict(done))
    typer.echo(
        f"copied {done.journals} journals with {done.records} records; {done.appended} of them were missing"
    )


@journal_app.command("stats")
@prints_errors
def state_stats(
    store: Store = None, path: File = None, option: Options = None, as_json: Json = False
) -> None:
    """Show totals of a store, and which subtasks can append to it."""
    place = _store_place(store, path, option)
    from flink_agents.cli.journals import operations

    totals = place.run_query(operations.read_totals)
    if as_json:
        return _print_json(totals)
    owners = totals.pop("owners")
    shown_totals = {name.removesuffix("_bytes"): value for name, value in totals.items()}
    width = max(map(len, shown_totals))
    for name, value in shown_totals.items():
        typer.echo(plain_text(f"{name:<{width}}  {_cell_text(value)}"))
    if owners:
        typer.echo()
        _print_table(["group", "job", "subtask", "parallelism"], (owner.values() for owner in owners))


def _store_place(store: str | None, path: str | None, options: Sequence[str] | None) -> Place:
    from flink_agents.cli.journals.operations import Place

    store_options = named_values(options, "--option")
    if path is not None:
        store_options["path"] = path
    return Place(store, store_options)


def _import_modules(names: Sequence[str]) -> None:
    """Import the modules of ``--module``, also from the current directory, as ``python -m`` does."""
    for name in names:
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        try:
            import_module(name)
        except ImportError as error:
            raise typer.BadParameter(f"--module {name} cannot be imported: {error}") from error


def _require_results(results: list[Any], key: str) -> None:
    if not results:
        typer.echo(plain_text(f"no journal of the key {key}"), err=True)
        raise typer.Exit(NOTHING_FOUND)


def _journal_name(journal: dict[str, Any]) -> str:
    return f"job {journal['job']}, key {journal['key']}"


def _print_journal(journal: dict[str, Any], is_first: bool) -> None:
    if not is_first:
        typer.echo()
    pruned = "" if journal["pruned"] is None else f", pruned through {journal['pruned']}"
    typer.echo(plain_text(f"{_journal_name(journal)}: {len(journal['runs'])} runs{pruned}"))
    for run in journal["runs"]:
        header = run | {"begun": _format_time(run.get("begun_at_ms"))}
        header_text = ", ".join(
            f"{label} {_shorten_text(header[label])}"
            for label in ("begun", "plan", "input", "event", "unreadable")
            if header.get(label)
        )
        typer.echo()
        typer.echo(plain_text(f"run {run['run']}: {header_text or 'no header'}"))
        columns = ["step", "record", "call", "function", "request", "outcome", "attempts", "ended"]
        _print_table(columns, map(_record_row, run["records"]))


def _record_row(record: dict[str, Any]) -> list[Any]:
    # Other records have no call number.
    call = record["index"] if record["record"] in ("call", "intent") else None
    called = [record.get("function"), _shorten_text(record.get("request"))]
    ended = [record.get("attempts"), _format_time(record.get("ended_at_ms"))]
    step = f"{record['step']} task {record['task']}" if "task" in record else record["step"]
    return [step, record["record"], call, *called, _shorten_text(_describe_outcome(record)), *ended]


def _format_time(milliseconds: int | None) -> str | None:
    from flink_agents.cli.journals.values import time_text

    return None if milliseconds is None else time_text(milliseconds)


def _describe_outcome(record: dict[str, Any]) -> str | None:
    if "unreadable" in record:
        return f"unreadable, {record['bytes']} bytes: {record['unreadable']}"
    if "returned" in record:
        return f"returned {record['returned']}"
    if "raised" in record:
        return f"raised {record['raised']}: {record['message']}" if record["raised"] else "cancelled"
    if record["record"] == "action":
        return _describe_effects(record)
    if "awaited" in record:
        return f"{record['awaited']} ended"
    return "earlier records of the step are void" if record["record"] == "rerun" else None


def _describe_effects(record: dict[str, Any]) -> str:
    """Describe what an action did besides its calls: events, side outputs, and written memory."""
    parts = [f"{record['calls']} calls"]
    for label, names in (
        ("emitted", [kind for kind, _ in record["events"]]),
        ("side output", [tag for tag, _ in record["side"]]),
        ("wrote", [*record["short_term"], *record["sensory"]]),
    ):
        if names:
            parts.append(f"{label} {', '.join(names)}")
    return "; ".join(parts)


def _shorten_text(text: str | None) -> str | None:
    shown = None if text is None else plain_text(text)
    return shown if shown is None or len(shown) <= CELL else shown[: CELL - 3] + "..."


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


def _print_table(columns: list[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print rows of cells in columns that are as wide as needed."""
    lines = [columns, *([plain_text(_cell_text(cell)) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cell_text(value: Any) -> str:
    return "-" if value is None else str(value)
