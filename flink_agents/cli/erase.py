"""``flink-agents erase``: removes a key from a job, its journal and its traces, and lists what remains."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flink_agents.cli.errors import prints_errors
from flink_agents.cli.runs.places import AnswersTopic, Client, Topic
from flink_agents.cli.runs.requests import NO_ANSWER, REJECTED_CODE, Yes, key_value, requests_to

if TYPE_CHECKING:
    from flink_agents.runtime.flink.following.rest import ClusterRest
    from flink_agents.ui.key_requests import KeyRequests

OPEN_SECONDS = 3600.0
"""A trace file that was changed within this time may still be written."""


@prints_errors
def erase(
    key: Annotated[str, typer.Argument(help="The key, as JSON or as it is: order-1, 7.")],
    signals: Annotated[str | None, typer.Option(help="The topic that the job reads signals from.")] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="URL", help="REST address of the job's cluster.")
    ] = None,
    answers: AnswersTopic = None,
    client: Client = None,
    path: Annotated[Path | None, typer.Option("--path", help="Directory or file of trace records.")] = None,
    trace_topic: Topic = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="A topic that holds the key, to report for how long; any number.")
    ] = None,
    store: Annotated[str | None, typer.Option(help="The store of the journal.")] = None,
    journal: Annotated[str | None, typer.Option(metavar="FILE", help="The journal as a file.")] = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for the job.")] = 60.0,
    yes: Yes = False,
) -> None:
    """Remove the memory, journal and traces of a key, and list what remains where and until when.

    The key must have no unfinished run: end it first, with 'flink-agents runs end'. It can be repeated.
    """
    from flink_agents.runtime.flink.following.rest import ClusterRest

    if not any((signals, path, store, journal, trace_topic, topic)):
        raise typer.BadParameter(
            "name a place of the key: --signals, --path, --store, --trace-topic, --topic"
        )
    if not yes:
        typer.confirm(f"Remove all data of key {key!r}?", abort=True)
    rest = None if cluster is None else ClusterRest(cluster)
    code = 0
    if signals is not None:
        code = _in_state(key, requests_to(signals, client, rest, answers), timeout)
    for line in (
        *(_in_journal(key, store, journal) if code == 0 and (store or journal) else ()),
        *(_in_files(key, path) if path is not None else ()),
        *(_in_topics([*filter(None, (trace_topic, signals)), *(topic or ())], client)),
        *(_in_checkpoints(rest) if rest is not None else ()),
    ):
        typer.echo(line)
    typer.echo(
        "long-term memory and topics of your own: remove the key there yourself (docs/observability.md)"
    )
    if code:
        raise typer.Exit(code)


def _in_state(key: str, requests: KeyRequests, seconds: float) -> int:
    from flink_agents.api.events.key_requests import ERASED, erase_request

    answers = requests.ask(erase_request(key_value(key)), seconds)
    if not requests.answered:
        typer.echo("state: the request is sent; with --answers or --cluster, the job's answer is shown")
        return 0
    if not answers:
        typer.echo(f"state: the job has not answered within {seconds:g} s", err=True)
        return NO_ANSWER
    for one in answers:
        if one.get("outcome") != ERASED:
            typer.echo(f"state of {one.get('agent')}: rejected: {one.get('reason')}", err=True)
            return REJECTED_CODE
        left = "its number of runs stays" if one.get("known", True) else "it had nothing"
        typer.echo(f"state of {one.get('agent')}: erased {one.get('values', 0)} values of memory; {left}")
    return 0


def _in_journal(key: str, store: str | None, journal: str | None) -> Iterator[str]:
    from flink_agents.cli.journals import operations
    from flink_agents.cli.runs.commands import forms

    place = operations.Place(store, {} if journal is None else {"path": journal})
    for text in sorted(forms(key)):
        for found in place.ask(partial(operations.show_key, text=text, job=None, run=None)):
            runs = found["runs"]
            if not runs:
                yield f"journal of {found['job']}: nothing"
                continue
            last = runs[-1]["run"]
            prune = partial(operations.prune_key, text=text, job=found["job"], through=last)
            removed = sum(one["removed"] for one in place.ask(prune))
            yield f"journal of {found['job']}: removed {removed} records, through sequence {last}"


def _in_files(key: str, path: Path) -> Iterator[str]:
    from flink_agents.cli.runs.commands import forms
    from flink_agents.trace.erasing import erase_files

    done = erase_files(path, forms(key), time.time() - OPEN_SECONDS)
    yield f"trace files: removed {done.records} records from {done.files} files"


def _in_topics(topics: list[str], client: str | None) -> Iterator[str]:
    if not topics:
        return
    from flink_agents.cli.kafka.topics import client_options
    from flink_agents.connectors.kafka.topics import describe_topic

    for name in dict.fromkeys(topics):
        config = describe_topic(name, **client_options(client)).config
        yield f"topic {name}: {_retention(config)}"


def _retention(config: Any) -> str:
    policy = str(config.get("cleanup.policy", "delete"))
    if "delete" not in policy:
        return "compacted: records of the key stay until later ones of the same message key replace them"
    try:
        milliseconds = int(config.get("retention.ms", 604_800_000))
    except ValueError:
        milliseconds = -1
    if milliseconds < 0:
        return "records of the key stay: the topic keeps them for ever (retention.ms)"
    days = f"{milliseconds / 86_400_000:g} days"
    return f"records of the key stay for {days} after they were written (retention.ms)"


def _in_checkpoints(rest: ClusterRest) -> Iterator[str]:
    for job in rest.get("/jobs/overview").get("jobs", ()):
        if job["state"] in ("FINISHED", "CANCELED"):
            continue
        latest = rest.get(f"/jobs/{job['jid']}/checkpoints").get("latest", {})
        done = latest.get("completed") or {}
        yield (
            f"checkpoints of {job['name']}: those before now hold the key until Flink removes them; "
            f"the latest is number {done.get('id', 'none')}"
        )
        saved = latest.get("savepoint")
        if saved:
            yield f"savepoint {saved.get('external_path')}: holds the key until you remove it"
