"""``flink-agents kafka send`` and ``read``: records of a topic, on the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flink_agents.cli.errors import prints_errors
from flink_agents.cli.kafka.topics import Client, Data, Json, Name, client_options
from flink_agents.cli.texts import plain_text

if TYPE_CHECKING:
    from flink_agents.connectors.kafka.headers.mapping import KafkaHeaders
    from flink_agents.connectors.kafka.records_of_topics import RawRecord


class _Start(StrEnum):
    BEGINNING = "beginning"
    END = "end"


@prints_errors
def kafka_send(
    topic: Name,
    value: Annotated[
        str | None, typer.Argument(help="The value of one record. Default: a record for each line of stdin.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="The key of all records.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", help="A header of all records, name=value; any number."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", exists=True, dir_okay=False, help="Read the lines of this file.")
    ] = None,
    records: Annotated[
        bool, typer.Option("--records", help="Lines are records, as 'kafka read --json' prints them.")
    ] = False,
    client: Client = None,
    data: Data = None,
) -> None:
    """Write records to a topic: one value, or each line of a file or of stdin, such as JSON lines."""
    from flink_agents.connectors.kafka.records_of_topics import send_records

    if value is not None and (file is not None or records):
        raise typer.BadParameter("give a value, or lines with --file, --records or on stdin")
    lines = iter([value.encode()]) if value is not None else _read_lines(file)
    number = send_records(
        topic, _parse_records(lines, key, _parse_headers(header), records), **client_options(client, data)
    )
    typer.echo(f"sent {number} record{'' if number == 1 else 's'} to {topic}")


@prints_errors
def kafka_read(
    topic: Name,
    start: Annotated[_Start, typer.Option("--from", help="Where to start.")] = _Start.BEGINNING,
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of records.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for further records, until Ctrl+C.")] = False,
    as_json: Json = False,
    client: Client = None,
    data: Data = None,
) -> None:
    """Print the committed records of a topic: place, key and value, or lines of JSON with all of them."""
    from flink_agents.connectors.kafka.records_of_topics import read_records, record_as_json

    options = client_options(client, data)
    records = read_records(topic, from_end=start is _Start.END, follow=follow, **options)
    with suppress(KeyboardInterrupt):
        for record in islice(records, limit):
            typer.echo(record_as_json(record) if as_json else _record_line(record))


def _read_lines(file: Path | None) -> Iterator[bytes]:
    """Yield the lines of a file, or of stdin, without line breaks; skip empty ones."""
    with nullcontext(sys.stdin.buffer) if file is None else file.open("rb") as stream:
        for line in stream:
            if content := line.rstrip(b"\r\n"):
                yield content


def _parse_headers(options: Sequence[str] | None) -> KafkaHeaders:
    from flink_agents.connectors.kafka.headers.mapping import KafkaHeaders

    pairs: list[tuple[str, bytes]] = []
    for option in options or ():
        name, equals, content = option.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"--header takes name=value, not {option!r}")
        pairs.append((name, content.encode()))
    return KafkaHeaders(tuple(pairs))


def _parse_records(
    lines: Iterator[bytes], key: str | None, headers: KafkaHeaders, are_records: bool
) -> Iterator[RawRecord]:
    from flink_agents.connectors.kafka.headers.mapping import KafkaHeaders
    from flink_agents.connectors.kafka.records import KafkaRecord
    from flink_agents.connectors.kafka.records_of_topics import record_of_json

    encoded_key = None if key is None else key.encode()
    for line in lines:
        record = record_of_json(line) if are_records else KafkaRecord(line)
        own_key = record.key if encoded_key is None else encoded_key
        own_headers = KafkaHeaders((*KafkaHeaders.of(record.headers).pairs, *headers.pairs))
        yield KafkaRecord(record.value, own_key, own_headers, record.timestamp)


def _record_line(record: RawRecord) -> str:
    place = f"{record.partition}/{record.offset}"
    return f"{place}\t{_content_text(record.key)}\t{_content_text(record.value)}"


def _content_text(content: bytes | None) -> str:
    return "-" if content is None else plain_text(content.decode("utf-8", "backslashreplace"))
