"""Finds records that a job writes and reads again without end, before it runs.

A job must not read its own dead letters or requests for approvals, whichever of its sources reads them: each
would become another one. Outputs may flow back if a source names their topic, since a loop of events can be
the purpose of a job; a pattern that matches them is taken for a mistake, unless the source has an end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pyflink.datastream import DataStream, StreamExecutionEnvironment

from flink_agents.api.common.places import authors_place
from flink_agents.api.common.policies import DEAD_LETTER_TAG
from flink_agents.api.errors import KafkaStreamError
from flink_agents.connectors.kafka.subscription.topics_read import Topics, reads_topic
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.internals.graph import side_output_tags

DEAD_LETTERS = "kafka-dead-letters"
"""Tag of the dead letters of a source."""


class Carried(StrEnum):
    """The kind of records that a sink writes."""

    LETTERS = "dead letters"
    REQUESTS = "requests for approvals"
    OUTPUTS = "outputs"


@dataclass(frozen=True)
class TopicReader:
    """A Kafka source of the job.

    Attributes:
        label: Name of the source, for errors.
        topics: Its topics.
        servers: Addresses of its brokers.
        has_end: True if it is bounded.
        transformation: Id of its stream's transformation in Flink.
        place: The author's line that created it; None if it is not known.
    """

    label: str
    topics: Topics
    servers: frozenset[str]
    has_end: bool
    transformation: int
    place: str | None

    def reads(self, writer: TopicWriter) -> bool:
        """Return True if the source reads the records of a sink in a way that the author cannot mean."""
        if not self.servers & writer.servers or not reads_topic(self.topics, writer.topic):
            return False
        return writer.carried is not Carried.OUTPUTS or (
            isinstance(self.topics, re.Pattern) and not self.has_end
        )


@dataclass(frozen=True)
class TopicWriter:
    """A Kafka sink of the job.

    Attributes:
        topic: Its topic.
        servers: Addresses of its brokers.
        carried: The kind of records that it writes.
        upstream: Ids of the transformations before it in Flink.
        transformation: Id of its stream's transformation in Flink.
    """

    topic: str
    servers: frozenset[str]
    carried: Carried
    upstream: frozenset[int]
    transformation: int


@dataclass
class _Declared:
    readers: list[TopicReader] = field(default_factory=list[TopicReader])
    writers: list[TopicWriter] = field(default_factory=list[TopicWriter])
    requests: set[int] = field(default_factory=set[int])


_jobs: dict[int, _Declared] = {}
"""Declared sources and sinks, by the environment."""


def note_source(
    env: StreamExecutionEnvironment,
    label: str,
    topics: Topics,
    options: Mapping[str, str],
    stream: DataStream,
) -> None:
    """Register a source, for :func:`check_loops`.

    Args:
        env: PyFlink's environment.
        label: Name of the source, for errors.
        topics: Its topics.
        options: The connector's options of the source.
        stream: The stream of the source.
    """
    has_end = "scan.bounded.mode" in options
    number = flink_compat.transformation_id(stream)
    reader = TopicReader(label, topics, _broker_set(options), has_end, number, authors_place())
    _job_of(env).readers.append(reader)


def note_sink(
    env: StreamExecutionEnvironment,
    topic: str,
    options: Mapping[str, str],
    stream: DataStream,
    rows: DataStream,
) -> None:
    """Register a sink.

    Args:
        env: PyFlink's environment.
        topic: Its topic.
        options: The connector's options of the sink.
        stream: The stream that the sink writes.
        rows: The rows that the connector gets.
    """
    job = _job_of(env)
    carried = Carried.OUTPUTS
    if flink_compat.transformation_id(stream) in job.requests:
        carried = Carried.REQUESTS
    elif side_output_tags(stream) & {DEAD_LETTER_TAG, DEAD_LETTERS}:
        carried = Carried.LETTERS
    upstream = frozenset(flink_compat.transformation_ids_before(stream))
    number = flink_compat.transformation_id(rows)
    job.writers.append(TopicWriter(topic, _broker_set(options), carried, upstream, number))


def note_requests(env: StreamExecutionEnvironment, stream: DataStream) -> None:
    """Register a stream of requests for approvals, so that :func:`note_sink` knows what its sink writes."""
    _job_of(env).requests.add(flink_compat.transformation_id(stream))


def check_loops(env: StreamExecutionEnvironment) -> None:
    """Check that the job that is being defined does not read records of its own without end.

    Raises:
        KafkaStreamError: A source reads what a sink behind it writes.
    """
    job = _job_of(env)
    transformation_ids = flink_compat.transformation_ids(env)
    # Those of a job that was submitted before are no part of this one.
    readers = [reader for reader in job.readers if reader.transformation in transformation_ids]
    writers = [writer for writer in job.writers if writer.transformation in transformation_ids]
    for writer, reader in find_loops(readers, writers):
        raise KafkaStreamError(
            f"the {reader.label} reads {writer.carried} of its own job from topic {writer.topic!r}, and "
            "each leads to further ones, for ever",
            expected="a topic that no source before its sink reads",
            found=f"topics={reader.topics!r}, {writer.carried} to {writer.topic!r}",
            fix="write them to another topic, or name the topics of the source without this one",
            where=reader.place,
        )


def find_loops(
    readers: Sequence[TopicReader], writers: Sequence[TopicWriter]
) -> Iterator[tuple[TopicWriter, TopicReader]]:
    """Yield each sink together with a source that reads its records and leads to it.

    The source may lead to the sink by other topics of the job.
    """
    following = {
        reader.transformation: [
            follower
            for writer in writers
            if reader.transformation in writer.upstream
            for follower in readers
            if follower.reads(writer)
        ]
        for reader in readers
    }
    for writer in writers:
        for reader in readers:
            if reader.reads(writer) and _reachable_readers(reader, following) & writer.upstream:
                yield writer, reader


def _reachable_readers(reader: TopicReader, following: Mapping[int, Sequence[TopicReader]]) -> set[int]:
    """Return the ids of the sources that get records of a source: itself, and others by topics."""
    reached = {reader.transformation}
    unread = [reader]
    while unread:
        for follower in following[unread.pop().transformation]:
            if follower.transformation not in reached:
                reached.add(follower.transformation)
                unread.append(follower)
    return reached


def _job_of(env: StreamExecutionEnvironment) -> _Declared:
    return _jobs.setdefault(
        flink_compat.identity_of_environment(flink_compat.java_environment(env)), _Declared()
    )


def _broker_set(options: Mapping[str, str]) -> frozenset[str]:
    return frozenset(server.strip() for server in options["properties.bootstrap.servers"].split(","))
