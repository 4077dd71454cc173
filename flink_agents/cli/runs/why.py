"""``flink-agents why``: the state of a key, by trace, logs, journal, and the job's own answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flink_agents.cli.errors import ERROR_EXIT, from_command_line, prints_errors, report_errors
from flink_agents.cli.keys import key_texts, key_value, shown_key
from flink_agents.cli.local_jobs import stopped_jobs
from flink_agents.cli.runs.places import AnswersTopic, Client, Files, Topic, TracePlace

if TYPE_CHECKING:
    from flink_agents.runtime.flink.following.rest import ClusterRest
    from flink_agents.runtime.flink.resume.local_jobs import LocalJobState
    from flink_agents.trace.reading import RunTrace

NOTHING_FOUND = 1
"""Exit code if no source knows the key."""

MOST_LINES = 3
NOT_LOGGED = "The logs name no run of the key that takes long. That proves nothing."

NOT_STUCK = {True: "The key is not stuck. ", False: "", None: "Perhaps the key is not stuck. "}
"""The words for a key whose agent waits for downstream operators: by trace, nothing of it is unfinished."""


Cluster = Annotated[
    str | None,
    typer.Option("--cluster", metavar="URL", help="REST address of a cluster; its logs are read, too."),
]
Signals = Annotated[
    str | None,
    typer.Option("--signals", help="The topic that the job reads signals from: the job is asked, too."),
]


@prints_errors
def why(
    context: typer.Context,
    key: Annotated[str, typer.Argument(help="The key, as JSON or as it is: order-1, 7.")],
    path: Files = None,
    trace_topic: Topic = None,
    client: Client = None,
    cluster: Cluster = None,
    signals: Signals = None,
    answers: AnswersTopic = None,
    requests: Annotated[str | None, typer.Option(help="The topic of requests for approvals.")] = None,
    dead_letters: Annotated[str | None, typer.Option(help="The topic of dead letters.")] = None,
    store: Annotated[str | None, typer.Option(help="The store of the journal.")] = None,
    journal: Annotated[str | None, typer.Option(metavar="FILE", help="The journal as a file.")] = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for the job's answer.")] = 20.0,
) -> None:
    """Explain what a key does, and what it waits for.

    It reads the trace. With --cluster, it also reads the logs of TaskManagers, so it works without a trace.
    With --signals, it asks the job itself.
    """
    from flink_agents.runtime.flink.following.rest import ClusterRest

    rest_client = None if cluster is None else ClusterRest(cluster)
    can_ask = rest_client is not None or answers is not None
    if not can_ask and "signals" in from_command_line(context):
        raise typer.BadParameter(
            "--signals needs --answers or --cluster, where the job answers", param_hint="--signals"
        )
    has_other_sources = bool(
        rest_client or requests or dead_letters or store or journal or (signals and can_ask)
    )
    place = TracePlace(path, trace_topic, client, cluster if path is None else None)
    failures: set[str] = set()
    runs: list[RunTrace] = []
    with report_errors(failures):
        runs = _read_runs(place, key, has_other_sources)
    stopped = stopped_jobs(runs, place.local_jobs())
    if stopped:
        # Nothing ends a run or takes an answer now, and the job is not there to be asked.
        can_ask = False
    sources: list[Callable[[], Said]] = [
        partial(_explain_stopped, stopped),
        partial(_explain_runs, runs, key, has_other_sources, bool(stopped)),
        partial(_explain_ending, runs, key, None if stopped else signals, client, cluster),
        partial(_count_letters, dead_letters, client, key),
        partial(_explain_approvals, requests, signals, client, key, bool(stopped)),
        partial(_explain_journal, store, journal, key),
        *(
            (partial(_explain_logs, rest_client, key), partial(_explain_trouble, rest_client, runs))
            if rest_client is not None
            else ()
        ),
        partial(_ask_job, signals if can_ask else None, answers, client, rest_client, key, timeout),
    ]
    _print_sources(sources, failures)


def _print_sources(sources: Iterable[Callable[[], Said]], failures: set[str]) -> None:
    """Print what each source says of the key; a source that fails does not stop the others.

    Args:
        sources: Functions that return what they know.
        failures: Texts of errors that were printed.

    Raises:
        typer.Exit: A source failed, or none knows the key.
    """
    from flink_agents.trace.rendering import escape_controls

    is_explained = False
    for source in sources:
        explains_key = False
        lines = list[str]()
        with report_errors(failures):
            explains_key, lines = source()
        if is_explained and lines == [NOT_LOGGED]:
            # Another source explained the key already.
            continue
        is_explained = is_explained or explains_key
        for line in lines:
            typer.echo(escape_controls(line))
    if failures:
        raise typer.Exit(ERROR_EXIT)
    if not is_explained:
        raise typer.Exit(NOTHING_FOUND)


Said = tuple[bool, list[str]]
"""True if a source knows the key, and its lines."""


def _explain_stopped(jobs: Sequence[LocalJobState]) -> Said:
    return bool(jobs), [line for job in jobs for line in job.describe_stop()]


def _read_runs(place: TracePlace, key: str, has_other_sources: bool) -> list[RunTrace]:
    from flink_agents.api.errors.trace import TraceNotFoundError
    from flink_agents.trace.reading import by_run

    canonical_keys = key_texts(key)
    try:
        runs = by_run(record for record in place.read_records() if record.key in canonical_keys)
    except TraceNotFoundError:
        if not has_other_sources:
            raise
        return []
    place.report_skipped()
    return list(runs.values())


def _explain_runs(runs: list[RunTrace], key: str, has_other_sources: bool, is_stopped: bool) -> Said:
    from flink_agents.trace import rendering

    if not runs and has_other_sources:
        return False, ["The trace has no run of the key, or there is no trace."]
    lines = rendering.explain_key(runs, key)
    return bool(runs), [line for line in lines if not (is_stopped and line == rendering.RESTARTS)]


def _explain_ending(
    runs: list[RunTrace], key: str, signals: str | None, client: str | None, cluster: str | None
) -> Said:
    """Return the command that ends the first unfinished run, if that executes code or waits for a call."""
    from flink_agents.cli.kafka import next_steps
    from flink_agents.cli.kafka.topics import client_options
    from flink_agents.trace.records import QUEUED_FOR, UNFINISHED

    unfinished = [run for run in runs if run.status in UNFINISHED]
    first = min(unfinished, key=lambda run: run.last.sequence_number, default=None)
    if signals is None or first is None or first.status not in ("running", "waiting"):
        return False, []
    if first.last.attributes.get("for") == QUEUED_FOR:
        return False, []
    command = next_steps.end_run(first.run_id, key, signals, client_options(client), cluster)
    return False, ["To end it as a dead letter:", f"  {command}"]


def _count_letters(topic: str | None, client: str | None, key: str) -> Said:
    """Count the dead letters of the key in a topic that were not sent back, and describe the last one."""
    if topic is None:
        return False, []
    from flink_agents.cli.kafka import next_steps
    from flink_agents.cli.kafka.topics import client_options
    from flink_agents.connectors.kafka.dead_letters.redrive import Letter, redrive
    from flink_agents.trace.rendering import format_time

    shown_keys = {shown_key(form) for form in key_texts(key)}
    letters = list[Letter]()

    def add_letter(letter: Letter, _: str | None) -> None:
        if letter.failed_key in shown_keys:
            letters.append(letter)

    # Nothing is written: any target does for letters whose origin is unknown.
    options = client_options(client)
    redrive(topic, topic, dry_run=True, on_letter=add_letter, **options)
    if not letters:
        return False, [f"The topic {topic} has no dead letter of the key."]
    last = max(letters, key=lambda letter: letter.timestamp)
    error = last.error.partition("\n")[0]
    return True, [
        f"{len(letters)} dead letter(s) of the key are in {topic}, the last from "
        f"{format_time(last.timestamp / 1000)}: {error}",
        "To send all letters of the topic back, once the cause is corrected:",
        f"  {next_steps.redrive_command(topic, last.origin, options)}",
    ]


def _explain_approvals(
    topic: str | None, answers: str | None, client: str | None, key: str, is_stopped: bool = False
) -> Said:
    if topic is None:
        return False, []
    from flink_agents.api.events.approvals import wait_of_request
    from flink_agents.cli.kafka import next_steps
    from flink_agents.cli.kafka.topics import client_options
    from flink_agents.connectors.kafka.requests.pending import PendingRequests
    from flink_agents.trace.rendering import format_time

    canonical_keys = key_texts(key)
    lines = list[str]()
    options = client_options(client)
    requests = PendingRequests(topic, options)
    with closing(requests):
        pending = requests.read()
    for request in pending:
        # Of its id, since a key can be of a class that is not here.
        if wait_of_request(request.id).rsplit("|", 4)[0] not in canonical_keys:
            continue
        expires = f", expires {format_time(request.expires_at / 1000)}" if request.expires_at else ""
        began = format_time(request.began_at / 1000)
        lines.append(f"It waits for an approval of {request.what} since {began}{expires}.")
        command = f"  {next_steps.approve_command(request.id, topic, answers, options)}"
        lines.append("The job takes an answer when it runs again." if is_stopped else command)
    is_explained = bool(lines)
    if requests.foreign:
        # One line: a wrong topic can have a million of them.
        lines.append(
            f"{len(requests.foreign)} record(s) of the topic {topic} are not requests for approvals."
        )
    return is_explained, lines


def _explain_journal(store: str | None, journal: str | None, key: str) -> Said:
    if store is None and journal is None:
        return False, []
    from flink_agents.cli.journals import operations

    place = operations.Place(store, {} if journal is None else {"path": journal})
    lines = list[str]()
    for text in sorted(key_texts(key)):
        journals = place.run_query(partial(operations.show_key, text=text, job=None, run=None))
        for key_journal in journals:
            lines += list(_journal_lines(key_journal))
    return bool(lines), lines


def _journal_lines(key_journal: dict[str, Any]) -> Iterator[str]:
    runs = key_journal.get("runs") or []
    if not runs:
        return
    last = runs[-1]
    calls = [record["function"] for record in last["records"] if record.get("function")]
    calls_text = f", with {', '.join(calls[-MOST_LINES:])}" if calls else ""
    number = f"the last is sequence {last['run']}{calls_text}"
    yield f"The journal of job {key_journal['job']} has {len(runs)} run(s); {number}."


def _explain_logs(rest_client: ClusterRest, key: str) -> Said:
    """Return the latest lines about runs of the key that watchdogs have logged."""
    from flink_agents.api.events.key_requests import WATCH_MARK
    from flink_agents.trace.answers import describe_watched
    from flink_agents.trace.log_lines import read_marked

    canonical_keys = key_texts(key)
    watch_lines = [
        line
        for log in rest_client.task_logs()
        for line in read_marked(log, WATCH_MARK)
        if line.get("key") in canonical_keys
    ]
    watch_lines.sort(key=lambda line: line.get("time") or 0)
    if not watch_lines:
        return False, [NOT_LOGGED]
    return True, [describe_watched(line) for line in watch_lines[-MOST_LINES:]]


def _explain_trouble(rest_client: ClusterRest, runs: Collection[RunTrace]) -> Said:
    """Explain what keeps jobs from continuing: failures, checkpoints, backpressure.

    Args:
        rest_client: The cluster.
        runs: The runs of the key. Only jobs with one of their agents are explained; if empty, all jobs are.
    """
    from flink_agents.runtime.flink.following.rest import WANTED_ENDS, jobs_in
    from flink_agents.trace.records import UNFINISHED

    agents = {run.last.agent for run in runs}
    at_rest = all(run.status not in UNFINISHED for run in runs) if runs else None
    jobs = jobs_in(rest_client.get)
    return False, [
        line
        for job in jobs
        if job["state"] not in WANTED_ENDS
        for line in _job_lines(rest_client, job, agents, at_rest)
    ]


def _job_lines(
    rest_client: ClusterRest, job: dict[str, Any], agents: Collection[str], at_rest: bool | None
) -> Iterator[str]:
    place = f"/jobs/{job['jid']}"
    if agents and not operators_of(rest_client, job["jid"]) & {f"agent {name}" for name in agents}:
        return
    yield from not_running(rest_client, job)
    checkpoints = rest_client.get(f"{place}/checkpoints")
    failed = checkpoints.get("counts", {}).get("failed")
    if failed and _last_failed(checkpoints.get("latest") or {}):
        yield f"{failed} checkpoint(s) of the job {job['name']} have failed, the last one among them."
    yield from _flow_lines(rest_client, job, agents, at_rest)


def not_running(rest_client: ClusterRest, job: dict[str, Any]) -> Iterator[str]:
    """Yield the state and the last failure of a job; nothing if it runs."""
    from flink_agents.runtime.flink.following.rest import last_failure

    if job["state"] != "RUNNING":
        yield f"The job {job['name']} is {job['state']}."
        if failure := last_failure(rest_client.get, job["jid"]):
            yield f"Its last failure: {failure.cause}"


def operators_of(rest_client: ClusterRest, job_id: str) -> set[str]:
    """Return the names of a job's operators; that of an agent is ``agent NAME``."""
    from flink_agents.runtime.flink.following.rest import vertices_of

    return {name for vertex in vertices_of(rest_client.get, job_id) for name in vertex["name"].split(" -> ")}


def _last_failed(latest: dict[str, Any]) -> bool:
    """Return True if the last checkpoint that failed is newer than the last completed one."""
    ids = [(latest.get(outcome) or {}).get("id", -1) for outcome in ("failed", "completed")]
    return ids[0] >= ids[1]


def _flow_lines(
    rest_client: ClusterRest, job: dict[str, Any], agents: Collection[str], at_rest: bool | None
) -> Iterator[str]:
    """Yield which operator slows the job down, or which agent gets no input.

    Args:
        rest_client: The cluster.
        job: The job, as Flink describes it.
        agents: Names of the agents to explain; empty for all.
        at_rest: True if the key has no unfinished run, False if it has one, None if that is not known.
    """
    from flink_agents.runtime.flink.following.backpressure import settled_flow

    flow = settled_flow(rest_client.get, job["jid"])
    bottlenecks = flow.bottlenecks(agents)
    for bottleneck in bottlenecks:
        yield str(bottleneck)
        concerns_agents = bottleneck.agents and (not agents or {*bottleneck.agents} & {*agents})
        yield (NOT_STUCK[at_rest] if concerns_agents else "") + bottleneck.meaning
    for name in flow.idle_agents() if at_rest is not False and not bottlenecks else ():
        if not agents or name in agents:
            yield f"No input arrives at the agent {name}: Flink reports that its tasks are idle."


def _ask_job(
    topic: str | None,
    answers: str | None,
    client: str | None,
    rest_client: ClusterRest | None,
    key: str,
    seconds: float,
) -> Said:
    if topic is None:
        return False, []
    from flink_agents.api.events.key_requests import inspect_request
    from flink_agents.cli.runs.requests import requests_to
    from flink_agents.trace.answers import describe_answer

    job_answers = requests_to(topic, client, rest_client, answers).ask_agents(
        inspect_request(key_value(key)), seconds
    )
    if not job_answers:
        return False, [
            f"The job has not answered within {seconds:g} s: it may be down, be under backpressure, or not "
            f"read {topic}."
        ]
    key_answers = [answer for answer in job_answers if answer.get("known", True)]
    lines = [line for answer in key_answers or job_answers for line in describe_answer(answer)]
    return bool(key_answers), ["The job says:", *lines]
