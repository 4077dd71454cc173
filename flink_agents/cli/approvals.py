"""``flink-agents signal`` and ``flink-agents approvals``: answers for runs that wait, by topics of Kafka."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flink_agents.api.approvals import ApprovalRequest, ApprovalResponse
from flink_agents.cli.errors import prints_errors

if TYPE_CHECKING:
    from flink_agents.connectors.kafka.desk import KafkaDesk

NOT_PENDING = 1
"""Exit code where no such request is pending."""

approvals_app = typer.Typer(help="See what agents ask people, and answer.", no_args_is_help=True)

Servers = Annotated[
    str, typer.Option("--bootstrap-servers", metavar="HOST:PORT", help="How the brokers are reached.")
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="An option of kafka-python, name=value; any number of them."),
]
Requests = Annotated[str, typer.Option("--topic", help="The topic of requests.")]
Signals = Annotated[str, typer.Option("--signals", help="The topic that the job reads signals from.")]
Id = Annotated[str, typer.Argument(help="The id of the request, as 'list' prints it, with its quotes.")]
By = Annotated[str | None, typer.Option("--by", help="Who decides.")]
LOCAL = "localhost:9092"


@prints_errors
def signal(
    topic: Annotated[str, typer.Option(help="The topic that the job reads signals from.")],
    name: Annotated[str, typer.Option(help="Name of the signal: that of ctx.wait_for.")],
    key: Annotated[
        str | None,
        typer.Option(help="The key as JSON, an array for a tuple: order-1, 7, '[\"a\", 1]'."),
    ] = None,
    value: Annotated[str, typer.Option("--json", help="What it says, as JSON.")] = "null",
    id: Annotated[
        str | None,
        typer.Option("--id", help="Distinguishes it from others of its key: sent again, it counts once."),
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option("--wait", help="The id of the wait that it is for; stands for the key as well."),
    ] = None,
    bootstrap_servers: Servers = LOCAL,
    option: Options = None,
) -> None:
    """Send a signal to the runs of a key that wait for it, or will."""
    if (key is None) == (wait is None):
        raise typer.BadParameter("give either --key or --wait")
    from flink_agents.api.signals import Signal

    sent = Signal(name, _json(value, "--json"), None if key is None else _key(key), id, wait)
    _desk(bootstrap_servers, option, signals=topic).send([sent])
    typer.echo(f"sent {name} to {topic}")


@approvals_app.command("list")
@prints_errors
def approvals_list(
    topic: Requests,
    bootstrap_servers: Servers = LOCAL,
    option: Options = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the requests that nobody has answered, the oldest first."""
    found = _desk(bootstrap_servers, option, requests=topic).pending()
    if as_json:
        from flink_agents.connectors.kafka.desk import request_json

        return typer.echo(json.dumps([json.loads(request_json(one)) for one in found], indent=2))
    for one in found:
        expiry = "" if one.expires_at is None else f", expires {_time(one.expires_at)}"
        typer.echo(_for_a_shell(one.id))
        typer.echo(
            _plain(f"  {one.what} of {one.agent}, key {one.key!r}, since {_time(one.began_at)}{expiry}")
        )
        typer.echo(_plain(f"  {json.dumps(dict(one.arguments), ensure_ascii=False)}"))
    typer.echo(f"{len(found)} pending")


@approvals_app.command("approve")
@prints_errors
def approvals_approve(
    id: Id,
    topic: Requests,
    signals: Signals,
    arguments: Annotated[
        str | None, typer.Option("--arguments", help="Arguments that take the place of its own, as JSON.")
    ] = None,
    by: By = None,
    bootstrap_servers: Servers = LOCAL,
    option: Options = None,
) -> None:
    """Approve a request, with its own arguments or with others."""
    changed = None if arguments is None else _json(arguments, "--arguments")
    if changed is not None and not isinstance(changed, dict):
        raise typer.BadParameter("--arguments takes a JSON object")
    response = ApprovalResponse(id=id, approved=True, arguments=changed, by=by)
    _answer(_desk(bootstrap_servers, option, signals, topic), response)


@approvals_app.command("deny")
@prints_errors
def approvals_deny(
    id: Id,
    topic: Requests,
    signals: Signals,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; a model that asked reads it.")] = None,
    by: By = None,
    bootstrap_servers: Servers = LOCAL,
    option: Options = None,
) -> None:
    """Deny a request."""
    response = ApprovalResponse(id=id, approved=False, reason=reason, by=by)
    _answer(_desk(bootstrap_servers, option, signals, topic), response)


def _answer(desk: KafkaDesk, response: ApprovalResponse) -> None:
    pending: list[ApprovalRequest] = [one for one in desk.pending() if one.id == response.id]
    if not pending:
        typer.echo(_plain(f"no request {response.id} is pending"), err=True)
        raise typer.Exit(NOT_PENDING)
    desk.answer(response)
    typer.echo(
        _plain(f"{'approved' if response.approved else 'denied'} {pending[0].what} of {pending[0].agent}")
    )


def _desk(
    servers: str, options: Sequence[str] | None, signals: str | None = None, requests: str | None = None
) -> KafkaDesk:
    from flink_agents.connectors.kafka.desk import KafkaDesk

    given: dict[str, Any] = {}
    for option in options or ():
        name, equals, value = option.partition("=")
        if not equals:
            raise typer.BadParameter(f"--option takes name=value, not {option!r}")
        given[name] = int(value) if value.isdecimal() else value
    return KafkaDesk(signals, requests, bootstrap_servers=servers, **given)


def _json(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option} takes JSON: {error}") from None


def _key(text: str) -> Any:
    """The key that a text on the command line stands for: JSON, or else itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(" ", "seconds")


def _for_a_shell(text: str) -> str:
    """Return ``text`` as one word of a shell, whatever a key brought into it, in printable characters."""
    if text.isprintable():
        return shlex.quote(text)
    known = {"\\": "\\\\", "'": "\\'"}
    written = (known.get(one, one) if one.isprintable() else f"\\U{ord(one):08x}" for one in text)
    return f"$'{''.join(written)}'"


def _plain(text: str) -> str:
    """Return ``text`` without characters that a terminal would obey."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
