"""``flink-agents signal`` and ``flink-agents approvals``: answers for waiting runs, through Kafka topics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from flink_agents.api.events.approvals import ApprovalRequest, ApprovalResponse, wait_of_request
from flink_agents.cli.errors import prints_errors
from flink_agents.cli.kafka.next_steps import shell_word
from flink_agents.cli.keys import shown_key
from flink_agents.cli.local_jobs import local_jobs
from flink_agents.cli.texts import named_values, plain_text

if TYPE_CHECKING:
    from flink_agents.connectors.kafka.requests.desk import KafkaApprovals
    from flink_agents.runtime.flink.resume.local_jobs import LocalJobState

NOT_PENDING = 1
"""Exit code if no such request is pending, or the answer is invalid for it."""

OTHERWISE = 3
"""Exit code of ``--wait`` if the outcome of the request differs from the answer."""

NO_OUTCOME = 4
"""Exit code of ``--wait`` if the request is still pending after the timeout."""

approvals_app = typer.Typer(help="List and answer requests for approval.", no_args_is_help=True)

Servers = Annotated[
    str,
    typer.Option(
        "--bootstrap-servers",
        metavar="HOST:PORT|JSON",
        help="Addresses of the brokers, or options of kafka-python as JSON.",
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="An option of kafka-python, name=value; any number of them."),
]
Requests = Annotated[str, typer.Option("--topic", help="The topic of requests.")]
Signals = Annotated[str, typer.Option("--signals", help="The topic that the job reads signals from.")]
Id = Annotated[str, typer.Argument(help="The id of the request, as 'list' prints it, with its quotes.")]
By = Annotated[str | None, typer.Option("--by", help="Your name, for the record.")]
Wait = Annotated[
    bool, typer.Option("--wait", help="Wait until the job has processed the answer, and print the outcome.")
]
Timeout = Annotated[float, typer.Option("--timeout", min=0, help="Timeout of --wait, in seconds.")]
LOCAL = "localhost:9092"

MOST_FOREIGN = 5
"""Maximum number of invalid records that are listed."""


@prints_errors
def signal(
    topic: Annotated[str, typer.Option(help="The topic that the job reads signals from.")],
    name: Annotated[str, typer.Option(help="Name of the signal: that of ctx.wait_for_signal.")],
    key: Annotated[
        str | None,
        typer.Option(help="The key as JSON, an array for a tuple: order-1, 7, '[\"a\", 1]'."),
    ] = None,
    value: Annotated[
        str, typer.Option("--value", metavar="JSON", help="Value of the signal, as JSON.")
    ] = "null",
    id: Annotated[
        str | None,
        typer.Option("--id", help="Id of the signal: if it is sent again, it counts once."),
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option("--wait", help="The id of the wait, which includes the key."),
    ] = None,
    bootstrap_servers: Servers = LOCAL,
    option: Options = None,
) -> None:
    """Send a signal to the runs of a key that wait for it, now or later."""
    if (key is None) == (wait is None):
        raise typer.BadParameter("pass either --key or --wait")
    from flink_agents.api.events.signals import Signal
    from flink_agents.connectors.kafka.requests.signal_keys import entered_key

    sent = Signal(name, _parse_json(value, "--value"), None if key is None else entered_key(key), id, wait)
    _open_desk(bootstrap_servers, option, signals=topic).send([sent])
    typer.echo(f"sent {name} to {topic}")


@approvals_app.command("list")
@prints_errors
def approvals_list(
    topic: Requests,
    bootstrap_servers: Servers = LOCAL,
    option: Options = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List pending requests, the oldest first."""
    desk = _open_desk(bootstrap_servers, option, requests=topic)
    requests = _pending_requests(desk)
    jobs = list(local_jobs().values())
    if as_json:
        return typer.echo(
            json.dumps(
                [
                    _as_object(pending_request, _stopped_job(pending_request, jobs))
                    for pending_request in requests
                ],
                indent=2,
            )
        )
    for request in requests:
        expiry = "" if request.expires_at is None else f", expires {_format_time(request.expires_at)}"
        typer.echo(shell_word(request.id))
        typer.echo(
            plain_text(
                f"  {request.what} of {request.agent}, key {_shown_key(request)}, "
                f"since {_format_time(request.began_at)}{expiry}"
            )
        )
        typer.echo(plain_text(f"  {json.dumps(dict(request.arguments), ensure_ascii=False)}"))
    typer.echo(f"{len(requests)} pending")
    stopped = {
        id(job): job
        for pending_request in requests
        if (job := _stopped_job(pending_request, jobs)) is not None
    }
    for line in [line for job in stopped.values() for line in job.describe_stop()]:
        typer.echo(plain_text(line))


def _shown_key(request: ApprovalRequest) -> str:
    """Return the key of a request for display; its canonical text if JSON does not have it."""
    canonical = wait_of_request(request.id).rsplit("|", 4)[0]
    return canonical if shown_key(canonical) == canonical else repr(request.key)


def _stopped_job(request: ApprovalRequest, jobs: Sequence[LocalJobState]) -> LocalJobState | None:
    """Return the local job that made a request, if it does not run; None if it runs or is not known.

    A request names only its agent, so the first stopped job with that agent is returned.
    """
    from flink_agents.runtime.flink.resume.local_jobs import RESUMABLE, JobState

    agent_jobs = [job for job in jobs if request.agent in job.run.plans]
    if any(job.runs for job in agent_jobs):
        return None
    return next((job for job in agent_jobs if job.state in (*RESUMABLE, JobState.PAUSED)), None)


def _as_object(request: ApprovalRequest, job: LocalJobState | None) -> dict[str, Any]:
    """Return a request for JSON; the names of its times end with their unit.

    ``job`` is its stopped job, or None.
    """
    from flink_agents.connectors.kafka.requests.desk import request_json

    values: dict[str, Any] = json.loads(request_json(request))
    times = {f"{name}_ms": values.pop(name) for name in ("began_at", "expires_at")}
    return values | times | {"job_state": None if job is None else job.as_object()}


@approvals_app.command("approve")
@prints_errors
def approvals_approve(
    id: Id,
    topic: Requests,
    signals: Signals,
    arguments: Annotated[
        str | None, typer.Option("--arguments", help="Arguments that replace those of the request, as JSON.")
    ] = None,
    by: By = None,
    wait: Wait = False,
    timeout: Timeout = 60.0,
    new_arguments: Annotated[
        bool, typer.Option("--new-arguments", help="Also accept arguments that the request does not show.")
    ] = False,
    bootstrap_servers: Servers = LOCAL,
    option: Options = None,
) -> None:
    """Approve a request, with its own arguments or others."""
    changed = None if arguments is None else _parse_json(arguments, "--arguments")
    if changed is not None and not isinstance(changed, dict):
        raise typer.BadParameter("--arguments takes a JSON object")
    response = ApprovalResponse(id=id, approved=True, arguments=changed, by=by)
    desk = _open_desk(bootstrap_servers, option, signals, topic)
    _send_answer(desk, response, timeout if wait else None, new_arguments)


@approvals_app.command("deny")
@prints_errors
def approvals_deny(
    id: Id,
    topic: Requests,
    signals: Signals,
    reason: Annotated[
        str | None, typer.Option("--reason", help="The reason, also for a model that asked.")
    ] = None,
    by: By = None,
    wait: Wait = False,
    timeout: Timeout = 60.0,
    bootstrap_servers: Servers = LOCAL,
    option: Options = None,
) -> None:
    """Deny a request."""
    response = ApprovalResponse(id=id, approved=False, reason=reason, by=by)
    _send_answer(_open_desk(bootstrap_servers, option, signals, topic), response, timeout if wait else None)


def _send_answer(
    desk: KafkaApprovals, response: ApprovalResponse, seconds: float | None, new_arguments: bool = False
) -> None:
    """Check an answer, send it unless it was sent before, and wait for the outcome if asked to.

    Args:
        desk: Reads the requests and sends the answer.
        response: The answer.
        seconds: Timeout of the wait; None to wait for nothing.
        new_arguments: True to accept arguments that the request does not show.

    Raises:
        typer.Exit: The request is not pending, or was answered otherwise, or the outcome differs.
    """
    from flink_agents.connectors.kafka.requests.desk import request_with

    request = request_with(response.id, _pending_requests(desk))
    if request is None:
        why = "it was answered, it has expired, or its run has ended"
        _exit_with_error(f"no request {response.id} is pending: {why}, if there was one")
    _check_arguments(request, response, new_arguments)
    what = f"{request.what} of {request.agent}"
    decision = "approval" if response.approved else "denial"
    earlier = next(iter(desk.answered(request)), None)
    if earlier is not None and not _is_same(earlier, response):
        earlier_answer = f"{what} was answered already: {_describe_answer(earlier)}"
        _exit_with_error(f"{earlier_answer}; the first answer counts, and this one is not sent")
    if earlier is None:
        desk.answer(response)
    typer.echo(
        plain_text(
            f"sent the {decision} of {what}"
            if earlier is None
            else f"the {decision} of {what} was sent before"
        )
    )
    if seconds is not None:
        _wait_for_end(desk, request, response, seconds)


def _check_arguments(request: ApprovalRequest, response: ApprovalResponse, new_arguments: bool) -> None:
    unknown = [name for name in response.arguments or () if name not in request.arguments]
    if unknown and not new_arguments:
        argument_names = ", ".join(map(repr, request.arguments)) or "no arguments"
        _exit_with_error(
            f"{request.what} of {request.agent} has no argument {unknown[0]!r}, it has {argument_names}; "
            "for one that it accepts but does not show, add --new-arguments"
        )


def _is_same(earlier: ApprovalResponse, response: ApprovalResponse) -> bool:
    return (earlier.approved, earlier.arguments) == (response.approved, response.arguments)


def _describe_answer(answer: ApprovalResponse) -> str:
    """Describe an answer: approved or denied, by whom, and why."""
    by = "" if answer.by is None else f" by {answer.by}"
    changed = "" if answer.arguments is None else f" with {json.dumps(answer.arguments)}"
    return f"{'approved' if answer.approved else 'denied'}{by}{changed}"


def _wait_for_end(
    desk: KafkaApprovals, request: ApprovalRequest, response: ApprovalResponse, seconds: float
) -> None:
    """Wait until a request has ended, and print the outcome.

    Raises:
        typer.Exit: It is still pending after ``seconds``, or the outcome differs from the answer.
    """
    what = f"{request.what} of {request.agent}"
    ended = desk.outcome(request, seconds)
    if ended is None:
        why = f"the job does not read {desk.signals_topic}, or no wait accepts the answer"
        typer.echo(plain_text(f"{what} is still pending after {seconds:g} s: {why}"), err=True)
        raise typer.Exit(NO_OUTCOME)
    by = "" if ended.by is None else f" by {ended.by}"
    why = "" if ended.reason is None else f": {ended.reason}"
    typer.echo(plain_text(f"{ended.decision or 'ended'} {what}{by}{why}"))
    if ended.decision and ended.approved != response.approved:
        raise typer.Exit(OTHERWISE)


def _pending_requests(desk: KafkaApprovals) -> list[ApprovalRequest]:
    """Return the pending requests, and print the records that are not requests."""
    requests = desk.pending()
    for foreign_record in desk.foreign[:MOST_FOREIGN]:
        typer.echo(plain_text(str(foreign_record)), err=True)
    if len(desk.foreign) > MOST_FOREIGN:
        typer.echo(f"skipped {len(desk.foreign)} such records", err=True)
    return requests


def _exit_with_error(text: str) -> NoReturn:
    typer.echo(plain_text(text), err=True)
    raise typer.Exit(NOT_PENDING)


def _open_desk(
    servers: str, options: Sequence[str] | None, signals: str | None = None, requests: str | None = None
) -> KafkaApprovals:
    from flink_agents.cli.kafka.topics import client_options
    from flink_agents.connectors.kafka.requests.desk import KafkaApprovals

    kafka_options: dict[str, Any] = {
        name: int(value) if value.isdecimal() else value
        for name, value in named_values(options, "--option").items()
    }
    return KafkaApprovals(signals, requests, **{**client_options(servers), **kafka_options})


def _parse_json(text: str, option: str) -> Any:
    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    try:
        value = json.loads(text, parse_constant=refuse)
        # 1e999 is valid JSON, but becomes infinity.
        json.dumps(value, allow_nan=False)
        return value
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{option} takes JSON: {error}") from None


def _format_time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(" ", "seconds")
