"""The places of trace records: files, a topic of Kafka, or the logs of a cluster's TaskManagers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flink_agents.cli.local_jobs import local_jobs
from flink_agents.cli.texts import plain_text

if TYPE_CHECKING:
    from flink_agents.api.errors.trace import TraceError
    from flink_agents.runtime.flink.resume.local_jobs import LocalJobState
    from flink_agents.trace.records import TraceRecord

TRACE_TOPIC = "the topic that the sink kafka of the trace writes"

Files = Annotated[
    Path | None,
    typer.Option("--path", help="Directory or file of records. Default: that of trace.directory."),
]
Topic = Annotated[str | None, typer.Option("--trace-topic", help="A topic of records, of the sink kafka.")]
Client = Annotated[
    str | None,
    typer.Option(
        "--client", metavar="HOST:PORT|JSON", help="The brokers, or options of kafka-python as JSON."
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster", metavar="URL", help="REST address of a cluster, to read records of the sink log."
    ),
]


AnswersTopic = Annotated[
    str | None,
    typer.Option(
        "--answers", help="The topic that the option answers.kafka.topic of the job names. Default: the logs."
    ),
]


@dataclass
class TracePlace:
    """The places of trace records.

    Attributes:
        path: Directory or file of records. Default: ``trace.directory``, if nothing else is named.
        topic: Topic of records; None for none.
        client: The option ``--client``: addresses of brokers, or options of kafka-python as JSON.
        cluster: REST address of a cluster, whose logs are read; None for none.
        problems: Errors of the lines and files that the last read skipped.
    """

    path: Path | None = None
    topic: str | None = None
    client: str | None = None
    cluster: str | None = None
    problems: list[TraceError] = field(default_factory=list)
    _reported: int = 0

    def read_records(self) -> Iterator[TraceRecord]:
        """Yield all records. Lines that are no records are skipped, and noted in ``problems``.

        Raises:
            TraceNotFoundError: There are no files, or the logs have no records.
            KafkaStreamError: The brokers cannot be reached, or have no such topic.
            ClusterUnavailableError: The cluster does not answer.
        """
        self.problems = []
        if self.topic is not None:
            yield from self._read_topic(self.topic)
        if self.cluster is not None:
            yield from self._read_logs(self.cluster)
        if self.path is not None or (self.topic is None and self.cluster is None):
            from flink_agents.trace.reading import read_files

            yield from read_files(self.path or configured_directory(), self.problems.append)

    def local_jobs(self) -> dict[str, LocalJobState]:
        """Return the local jobs near the trace by identity; none if a cluster is named."""
        if self.cluster is not None:
            return {}
        return local_jobs(self.path or (configured_directory() if self.topic is None else None))

    def report_skipped(self) -> None:
        """Print to stderr what the last read skipped, unless that was printed before."""
        if len(self.problems) > self._reported:
            first = self.problems[0]
            where = f"{first.where}: " if first.where else ""
            detail = f": {first.found}" if first.found else ""
            parts = "1 part" if len(self.problems) == 1 else f"{len(self.problems)} parts"
            typer.echo(
                plain_text(f"left out {parts} of the trace; the first: {where}{first.message}{detail}"),
                err=True,
            )
        self._reported = len(self.problems)

    def _read_topic(self, topic: str) -> Iterator[TraceRecord]:
        from flink_agents.cli.kafka.topics import client_options
        from flink_agents.connectors.kafka.client import translate_client_errors
        from flink_agents.connectors.kafka.requests.latest import reader_of, records_until_now

        with (
            translate_client_errors(),
            reader_of(topic, client_options(self.client), TRACE_TOPIC) as (consumer, partitions),
        ):
            consumer.seek_to_beginning(*partitions)
            records = records_until_now(consumer, partitions)
            yield from self._unfold_lines(record.value for record in records if record.value is not None)

    def _read_logs(self, address: str) -> Iterator[TraceRecord]:
        from flink_agents.runtime.flink.following.rest import ClusterRest
        from flink_agents.trace.log_lines import read_marked
        from flink_agents.trace.sinks.log import MARK

        for log in ClusterRest(address).task_logs():
            yield from self._unfold_lines(read_marked(log, MARK))

    def _unfold_lines(self, lines: Iterable[Any]) -> Iterator[TraceRecord]:
        from flink_agents.trace.folding import unfold_records

        return unfold_records(self._parse_lines(lines))

    def _parse_lines(self, lines: Iterable[Any]) -> Iterator[TraceRecord]:
        from flink_agents.api.errors.trace import TraceFormatError
        from flink_agents.trace.records import TraceRecord

        for line in lines:
            try:
                yield TraceRecord.from_dict(line) if isinstance(line, dict) else TraceRecord.from_json(line)
            except TraceFormatError as error:
                self.problems.append(error)


def configured_directory() -> Path:
    """Return the directory in the option ``trace.directory``."""
    from flink_agents.api.settings.options import AgentOptions, Configuration

    return Path(Configuration.load().get(AgentOptions.TRACE_DIRECTORY)).expanduser()
