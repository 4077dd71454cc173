"""``flink-agents erase``: removes a key from a job, its journal and its traces, and lists what remains."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flink_agents.cli.errors import prints_errors
from flink_agents.cli.keys import key_text, key_value, shown_key
from flink_agents.cli.runs.places import AnswersTopic, Client, Topic
from flink_agents.cli.runs.requests import NO_ANSWER, REJECTED_CODE, Yes, requests_to
from flink_agents.cli.texts import plain_text

if TYPE_CHECKING:
    from flink_agents.runtime.flink.following.rest import ClusterRest
    from flink_agents.ui.key_requests import KeyRequests

CANONICAL = re.compile(r"[ce][\w.]+:[\w.]+:|u[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
"""Start of the canonical text of a key that is an object, which a command would take for a string."""

OPEN_SECONDS = 3600.0
"""A trace file that was changed within this time may still be written."""

POLL_SECONDS = 1.0


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
    raw: Annotated[
        bool,
        typer.Option("--raw", help="KEY is the text that 'runs --json' shows, of a key that is no JSON."),
    ] = False,
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
    if not raw and CANONICAL.match(key):
        raise typer.BadParameter("this is the text of an object: add --raw; for a string, add double quotes")
    if not yes:
        typer.confirm(f"Remove all data of key {key if raw else repr(key_value(key))}?", abort=True)
    rest_client = None if cluster is None else ClusterRest(cluster)
    state_answers = (
        []
        if signals is None
        else _erase_from_state(key, raw, requests_to(signals, client, rest_client, answers), timeout)
    )
    covered = partial(_await_checkpoints, rest_client, state_answers, timeout)
    # Each line is printed before the next place is asked, which may be away.
    for line in chain(
        _erase_from_journal(key if raw else key_text(key), store, journal, state_answers, covered)
        if store or journal
        else (),
        _erase_from_files(key, raw, path) if path is not None else (),
        _describe_topics([*filter(None, (trace_topic, signals)), *(topic or ())], client),
        _describe_checkpoints(rest_client) if rest_client is not None else (),
    ):
        typer.echo(plain_text(line))
    typer.echo(
        "long-term memory and topics of your own: remove the key there yourself (docs/observability.md)"
    )


def _erase_from_state(key: str, raw: bool, requests: KeyRequests, seconds: float) -> list[dict[str, Any]]:
    """Ask the job to erase the key from its state, print what it answers, and return the answers.

    Raises:
        typer.Exit: An agent rejects the request, or none answers in time.
    """
    from flink_agents.api.events.key_requests import ERASED, erase_request, for_key_text

    request = for_key_text(erase_request(None), key) if raw else erase_request(key_value(key))
    answers = requests.ask_agents(request, seconds)
    if not requests.can_read_answers:
        typer.echo("state: the request is sent; with --answers or --cluster, the job's answer is shown")
        return []
    if not answers:
        typer.echo(f"state: the job has not answered within {seconds:g} s", err=True)
        raise typer.Exit(NO_ANSWER)
    is_rejected = False
    for answer in answers:
        agent = plain_text(str(answer.get("agent")))
        if answer.get("outcome") != ERASED:
            typer.echo(f"state of {agent}: rejected: {plain_text(str(answer.get('reason')))}", err=True)
            is_rejected = True
            continue
        note = "its number of runs stays" if answer.get("known", True) else "it had nothing"
        typer.echo(
            f"state of {agent}: erased {plain_text(str(answer.get('values', 0)))} values of memory; {note}"
        )
    if is_rejected:
        raise typer.Exit(REJECTED_CODE)
    return answers


def _erase_from_journal(
    text: str,
    store: str | None,
    journal: str | None,
    answers: Sequence[Mapping[str, Any]],
    covered: Callable[[], bool],
) -> Iterator[str]:
    """Remove the journal records of ended runs, and yield a line for each journal.

    A run has ended if the job's own answer says so and a later checkpoint is complete. The records of all
    others are needed: a run that is replayed would repeat its durable steps.

    Args:
        text: Canonical text of the key.
        store: Name of the store; None for the configured one.
        journal: File of the store; None for the configured one.
        answers: The job's answers to the request to erase the key.
        covered: Returns True if the checkpoint is complete; waits for it.
    """
    from flink_agents.cli.journals import operations

    place = operations.Place(store, {} if journal is None else {"path": journal})
    last_ended_runs = {
        str(answer.get("journal")): answer["through"]
        for answer in answers
        if type(answer.get("through")) is int
    }
    for key_journal in place.run_query(partial(operations.show_key, text=text, job=None, run=None)):
        job = key_journal["job"]
        runs = [run["run"] for run in key_journal["runs"]]
        last = max((run for run in runs if run <= last_ended_runs.get(job, -1)), default=None)
        removed = 0
        kept_reason = "no answer of the job says that these runs have ended"
        if last is not None:
            kept_reason = "no checkpoint was completed since the answer: repeat it, with a longer --timeout"
            if covered():
                prune = partial(operations.prune_key, text=text, job=job, through=last)
                removed = sum(result["removed"] for result in place.run_query(prune))
                kept_reason = ""
                runs = [run for run in runs if run > last]
        yield f"journal of {job}: removed {removed} records"
        if runs:
            yield f"journal of {job}: keeps {len(runs)} runs: {kept_reason or 'they came later'}"


def _await_checkpoints(
    rest_client: ClusterRest | None, answers: Sequence[Mapping[str, Any]], seconds: float
) -> bool:
    """Wait until each job of the answering agents has a checkpoint that began after the answer.

    A job that is restored from an earlier one reads the records of runs that ended since then. Returns False
    after ``seconds``, or without a cluster.
    """
    if rest_client is None:
        return False
    from flink_agents.cli.runs.why import operators_of

    until = time.monotonic() + seconds
    times = {f"agent {answer.get('agent')}": float(answer.get("time") or 0) for answer in answers}
    while True:
        coverage = [
            (_latest_checkpoints(rest_client, job).get("completed") or {}).get("trigger_timestamp", 0) / 1000
            > times[name]
            for job in _running_jobs(rest_client)
            for name in operators_of(rest_client, job["jid"]) & times.keys()
        ]
        if coverage and all(coverage):
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(POLL_SECONDS)


def _erase_from_files(key: str, raw: bool, path: Path) -> Iterator[str]:
    from flink_agents.trace.erasing import erase_files

    # A key that JSON does not have is named by its canonical text, as `runs` shows it.
    canonical_keys = {key} if raw else {key_text(key), *([key] if shown_key(key) == key else ())}
    erased = erase_files(path, canonical_keys, time.time() - OPEN_SECONDS)
    yield f"trace files: removed {erased.records} records from {erased.files} files"


def _describe_topics(topics: list[str], client: str | None) -> Iterator[str]:
    if not topics:
        return
    from flink_agents.cli.kafka.topics import client_options
    from flink_agents.connectors.kafka.topics import describe_topic

    for name in dict.fromkeys(topics):
        config = describe_topic(name, **client_options(client)).config
        yield f"topic {name}: {_topic_retention(config)}"


def _topic_retention(config: Any) -> str:
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


def _describe_checkpoints(rest_client: ClusterRest) -> Iterator[str]:
    for job in _running_jobs(rest_client):
        latest = _latest_checkpoints(rest_client, job)
        completed = latest.get("completed") or {}
        yield (
            f"checkpoints of {job['name']}: those before now hold the key until Flink removes them; "
            f"the latest is number {completed.get('id', 'none')}"
        )
        savepoint = latest.get("savepoint")
        if savepoint:
            yield f"savepoint {savepoint.get('external_path')}: holds the key until you remove it"


def _running_jobs(rest_client: ClusterRest) -> list[dict[str, Any]]:
    from flink_agents.runtime.flink.following.rest import ENDED_STATES, jobs_in

    return [job for job in jobs_in(rest_client.get) if job["state"] not in ENDED_STATES]


def _latest_checkpoints(rest_client: ClusterRest, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the latest checkpoints of a job by kind, as Flink describes them; empty if it takes none."""
    from flink_agents.api.errors import ClusterError

    try:
        return rest_client.get(f"/jobs/{job['jid']}/checkpoints").get("latest") or {}
    except ClusterError:
        return {}
