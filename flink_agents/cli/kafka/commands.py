"""``flink-agents kafka``: a Kafka broker for development, without Docker, and Flink's connector."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flink_agents.cli.errors import prints_errors
from flink_agents.cli.kafka.records import kafka_read, kafka_send
from flink_agents.cli.kafka.topics import client_options, topic_app

if TYPE_CHECKING:
    from flink_agents.testing.kafka import KafkaBroker

NOT_RUNNING = 1
"""Exit code of ``status`` if no broker runs."""

UNSENDABLE = 1
"""Exit code of ``redrive`` if a letter cannot be sent."""

kafka_app = typer.Typer(
    help="Run Kafka for development, manage topics and their records, download its connector, and redrive "
    "dead letters.",
    no_args_is_help=True,
)
kafka_app.add_typer(topic_app, name="topic")
kafka_app.command("send")(kafka_send)
kafka_app.command("read")(kafka_read)


class _Security(StrEnum):
    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"


Data = Annotated[Path | None, typer.Option("--data", help="Its directory. Default: .flink-agents/kafka.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, with the arguments for clients.")]


@kafka_app.command("start")
@prints_errors
def kafka_start(
    data: Data = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port for clients. Default: as before, else a free one."),
    ] = None,
    security: Annotated[
        _Security | None,
        typer.Option(help="Security of client connections. Default: as before, else PLAINTEXT."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Start a broker, unless it is running, and wait until it answers."""
    broker = _own_broker(data, port, security)
    started = broker.start()
    if as_json:
        _print_json(broker)
    else:
        typer.echo(f"Kafka {'runs' if started else 'already runs'} at {broker.bootstrap_servers}")
        _print_places(broker)


@kafka_app.command("fetch-connector")
@prints_errors
def kafka_connector() -> None:
    """Print the path of Flink's Kafka connector, and download it if it is missing.

    The library for zstd comes with it. If jobs on a cluster should not ship them, copy both files into
    Flink's lib, on each machine.
    """
    from flink_agents.connectors.kafka.connector_jar import connector_jar, zstd_jar

    typer.echo(connector_jar())
    if (zstd := zstd_jar()) is not None:
        typer.echo(f"with the library for zstd: {zstd}", err=True)


@kafka_app.command("redrive")
@prints_errors
def kafka_redrive(
    dead_letters: Annotated[str, typer.Argument(help="The topic of dead letters.")],
    client: Annotated[
        str,
        typer.Option(
            "--bootstrap-servers",
            metavar="HOST:PORT|JSON",
            help="Addresses of the brokers, or options of kafka-python as JSON.",
        ),
    ],
    to: Annotated[
        str | None, typer.Option("--to", help="Target topic. Default: the topic that each letter came from.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    error_type: Annotated[str | None, typer.Option(help="Only those with this class of error.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of letters to read.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show them, and write nothing.")] = False,
    max_request_size: Annotated[
        int | None, typer.Option(min=1, help="Largest size of a letter in bytes. Default: 1 MiB.")
    ] = None,
) -> None:
    """Send dead letters back to the topic that a job reads, each once.

    Letters that --agent and --error-type exclude, those beyond --limit, and those that cannot be sent stay
    for the next time. Exits with 1 if any cannot be sent.
    """
    from flink_agents.connectors.kafka.dead_letters.redrive import Letter, redrive

    def choose(letter: Letter) -> bool:
        return (agent is None or letter.agent == agent) and error_type in (None, letter.error_type)

    def print_letter(letter: Letter, topic: str | None) -> None:
        key = f"key {letter.failed_key}: " if letter.failed_key else ""
        typer.echo(f"{letter.place} -> {topic or 'left out'}: {key}{letter.error.splitlines()[0]}")

    options = client_options(client)
    done = redrive(
        dead_letters,
        to,
        choose=choose,
        limit=limit,
        dry_run=dry_run,
        on_letter=print_letter if dry_run else _ignore_letter,
        max_request_size=max_request_size,
        **options,
    )
    for letter in done.unsendable:
        typer.echo(f"{letter.place} cannot be sent: {letter.reason}", err=True)
    for topic, count in sorted(done.topics.items()):
        typer.echo(f"{count} {'would go' if dry_run else 'went'} back into {topic}")
    unsendable = f", {len(done.unsendable)} cannot be sent" if done.unsendable else ""
    typer.echo(f"{sum(done.topics.values())} in all, {done.left_out} left out{unsendable}")
    if done.unsendable:
        raise typer.Exit(UNSENDABLE)


def _ignore_letter(letter: Any, topic: str | None) -> None:
    """Do nothing: without ``--dry-run``, letters are not listed."""


@kafka_app.command("stop")
@prints_errors
def kafka_stop(data: Data = None) -> None:
    """Stop the broker; its records are kept."""
    typer.echo("Kafka is stopped" if _own_broker(data).stop() else "no Kafka runs here")


@kafka_app.command("status")
@prints_errors
def kafka_status(data: Data = None, as_json: Json = False) -> None:
    """Show if the broker runs, and where. Exits with 1 if it does not."""
    broker = _own_broker(data)
    status = broker.status()
    if as_json:
        _print_json(broker)
    elif status.running:
        typer.echo(f"Kafka runs at {status.bootstrap_servers}, process {status.pid}")
        _print_places(broker)
    else:
        typer.echo("Kafka does not run")
        _print_places(broker)
    if not status.running:
        raise typer.Exit(NOT_RUNNING)


def _own_broker(data: Path | None, port: int | None = None, security: _Security | None = None) -> KafkaBroker:
    from flink_agents.testing.kafka import DEFAULT_DATA, KafkaBroker

    chosen = None if security is None else security.value
    return KafkaBroker(data or DEFAULT_DATA, port=port, security=chosen)


def _print_places(broker: KafkaBroker) -> None:
    status = broker.status()
    typer.echo(f"  directory  {status.data}")
    if status.security not in (None, "PLAINTEXT"):
        typer.echo(f"  security   {status.security}; --json has the arguments for clients")


def _print_json(broker: KafkaBroker) -> None:
    status = broker.status()
    document = {
        "running": status.running,
        "pid": status.pid,
        "bootstrap_servers": status.bootstrap_servers,
        "security": status.security,
        "data": str(status.data),
        "log": str(status.log),
        "version": status.version,
        "client_options": None if status.bootstrap_servers is None else broker.client_options,
    }
    typer.echo(json.dumps(document, indent=2))
