"""``flink-agents kafka topic``: topics of the broker for development, or of any brokers."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from flink_agents.cli.errors import prints_errors
from flink_agents.cli.texts import named_values

topic_app = typer.Typer(help="Create, list and describe topics.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The topic.")]
Client = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        metavar="HOST:PORT|JSON",
        help="Addresses of the brokers, or options of kafka-python as JSON. Default: the broker that "
        "'kafka start' started.",
    ),
]
Data = Annotated[
    Path | None, typer.Option("--data", help="Directory of that broker. Default: .flink-agents/kafka.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@topic_app.command("create")
@prints_errors
def topic_create(
    name: Name,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions.")] = 1,
    replication: Annotated[int, typer.Option(min=1, help="Number of replicas of each partition.")] = 1,
    config: Annotated[
        list[str] | None, typer.Option("--config", help="A setting of the topic, name=value; any number.")
    ] = None,
    client: Client = None,
    data: Data = None,
) -> None:
    """Create a topic, unless it exists."""
    from flink_agents.connectors.kafka.topics import create_topic

    is_new = create_topic(
        name,
        partitions=partitions,
        replication_factor=replication,
        config=named_values(config, "--config"),
        **client_options(client, data),
    )
    typer.echo(f"created topic {name}" if is_new else f"topic {name} already exists")


@topic_app.command("list")
@prints_errors
def topic_list(client: Client = None, data: Data = None, as_json: Json = False) -> None:
    """Print the names of all topics."""
    from flink_agents.connectors.kafka.topics import list_topics

    names = list_topics(**client_options(client, data))
    if as_json:
        typer.echo(json.dumps(names))
        return
    for name in names:
        typer.echo(name)


@topic_app.command("describe")
@prints_errors
def topic_describe(name: Name, client: Client = None, data: Data = None, as_json: Json = False) -> None:
    """Print partitions, replication, the number of records and the settings of a topic."""
    from flink_agents.connectors.kafka.topics import describe_topic

    description = describe_topic(name, **client_options(client, data))
    if as_json:
        typer.echo(json.dumps(asdict(description), indent=2))
        return
    typer.echo(description.name)
    typer.echo(f"  partitions   {description.partitions}")
    typer.echo(f"  replication  {description.replication_factor}")
    typer.echo(f"  records      {description.records}")
    for key, value in sorted(description.config.items()):
        typer.echo(f"  {key}={value}")


def client_options(client: str | None, data: Path | None = None) -> dict[str, Any]:
    """Return options of kafka-python: those that a command got, or those of the broker for development.

    Raises:
        typer.BadParameter: The option is not JSON, though it starts with a brace.
        KafkaStreamError: The option is missing, and no broker for development runs.
    """
    if client is None:
        return _own_broker(data)
    if not client.startswith("{"):
        return {"bootstrap_servers": client}
    try:
        return json.loads(client)
    except ValueError as error:
        raise typer.BadParameter(f"--bootstrap-servers takes HOST:PORT or JSON: {error}") from None


def _own_broker(data: Path | None) -> dict[str, Any]:
    from flink_agents.api.errors import KafkaStreamError
    from flink_agents.testing.kafka import DEFAULT_DATA, KafkaBroker

    broker = KafkaBroker(data or DEFAULT_DATA)
    if not broker.running:
        raise KafkaStreamError(
            "no brokers are named, and no broker for development is running",
            expected="--bootstrap-servers HOST:PORT, or a running broker",
            found=f"no running broker in {broker.status().data}",
            fix="name the brokers with --bootstrap-servers, or start one: flink-agents kafka start",
        )
    return broker.client_options
