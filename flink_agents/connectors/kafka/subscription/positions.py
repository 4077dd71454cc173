"""Positions at which a source begins and ends, and how often it looks for new partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors import KafkaStreamError
from flink_agents.connectors.kafka.client import QUESTION_MS, create_consumer, translate_client_errors
from flink_agents.connectors.kafka.subscription.topics_read import Topics, reads_topic

DISCOVERY = "partition.discovery.interval.ms"
"""The name of Flink's property; its connector for tables has an option instead."""

_log = bounded_logger("flink_agents.kafka")

Start = Literal["earliest", "latest", "committed"] | datetime | Mapping[int, int]
"""Start of a source: a named position, the time of the first record, or offsets by partition."""

Stop = Literal["latest", "committed"] | datetime | Mapping[int, int]
"""End of a source: the end at its start, the time of the first record to leave out, or offsets."""

_STARTS = {"earliest": "earliest-offset", "latest": "latest-offset", "committed": "group-offsets"}
_STOPS = {"latest": "latest-offset", "committed": "group-offsets"}


def start_options(start: Start, topics: Sequence[str], group: str | None) -> dict[str, str]:
    """Return the connector's options for the start position of a source.

    Args:
        start: The position.
        topics: Names of the topics; empty for a pattern.
        group: The consumer group; None without one.

    Raises:
        KafkaStreamError: The position is invalid.
    """
    if start == "committed" and group is None:
        raise _position_error("start", start, "a group, whose offsets they are", "name it: group=...")
    return _position_options("start", "scan.startup", _STARTS, start, topics)


def stop_options(stop: Stop | None, topics: Sequence[str], group: str | None) -> dict[str, str]:
    """Return the connector's options for the end position of a source; empty for an unbounded one.

    Args:
        stop: The position; None for never.
        topics: Names of the topics; empty for a pattern.
        group: The consumer group; None without one.

    Raises:
        KafkaStreamError: The position is invalid.
    """
    if stop is None:
        return {}
    if stop == "committed" and group is None:
        raise _position_error("stop", stop, "a group, whose offsets they are", "name it: group=...")
    return _position_options("stop", "scan.bounded", _STOPS, stop, topics)


def _position_options(
    argument: str, prefix: str, names: Mapping[str, str], position: Any, topics: Sequence[str]
) -> dict[str, str]:
    """Return the connector's options for a position.

    Args:
        argument: ``start`` or ``stop``, for errors.
        prefix: Prefix of the options.
        names: The connector's mode for each named position.
        position: The position.
        topics: Names of the topics; empty for a pattern.

    Raises:
        KafkaStreamError: The position is invalid.
    """
    if isinstance(position, str) and position in names:
        return {f"{prefix}.mode": names[position]}
    if isinstance(position, datetime):
        if position.tzinfo is None:
            raise _position_error(argument, position, "a time with its zone", "datetime(..., tzinfo=UTC)")
        if position > datetime.now(UTC):
            # Flink would take the present end, and read earlier records or none of the later ones.
            expected = "a time that has passed: records until then are there when the job starts"
            raise _position_error(
                argument, position, expected, "run the job after that time, or filter by timestamp"
            )
        return {
            f"{prefix}.mode": "timestamp",
            f"{prefix}.timestamp-millis": str(round(position.timestamp() * 1000)),
        }
    if isinstance(position, Mapping) and position:
        if len(topics) != 1:
            raise _position_error(
                argument, position, "one topic, whose offsets they are", "create one source for each topic"
            )
        if not all(_is_offset(value) for pair in position.items() for value in pair):
            raise _position_error(
                argument, position, "numbers of partitions and offsets, from 0", f"correct {argument}="
            )
        offsets = ";".join(f"partition:{number},offset:{offset}" for number, offset in position.items())
        return {f"{prefix}.mode": "specific-offsets", f"{prefix}.specific-offsets": offsets}
    expected = f"{', '.join(map(repr, names))}, a datetime, or a mapping of partitions to offsets"
    raise _position_error(argument, position, expected, f"correct {argument}=")


def _position_error(
    argument: str, position: Any, expected: str, fix: str, found: str | None = None
) -> KafkaStreamError:
    return KafkaStreamError(
        f"a Kafka source cannot {argument} at {position!r}",
        expected=expected,
        found=found or repr(position),
        fix=fix,
    )


def _is_offset(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def discovery_options(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the connector's option for how often it looks for new partitions; empty for its default.

    Raises:
        KafkaStreamError: The property ``partition.discovery.interval.ms`` is not a number.
    """
    text = properties.get(DISCOVERY)
    if text is None:
        return {}
    try:
        return {"scan.topic-partition-discovery.interval": f"{max(0, int(text))} ms"}
    except ValueError as error:
        raise KafkaStreamError(
            f"the property {DISCOVERY!r} of a Kafka source is not a number",
            expected="milliseconds; 0 or less to look only at the start",
            found=repr(text),
            fix="correct it, or omit it: the default is 5 minutes",
        ) from error


# -- what only the brokers know ------------------------------------------------------


def needs_brokers(start: Start, stop: Stop | None) -> bool:
    """Return True if only the brokers know whether a source can begin and end there."""
    return isinstance(start, Mapping) or isinstance(stop, Mapping) or stop == "committed"


def check_positions(
    topics: Topics,
    start: Start,
    stop: Stop | None,
    group: str | None,
    client: Mapping[str, Any],
    properties: Mapping[str, str],
) -> None:
    """Ask the brokers if each partition has the offsets at which a source begins and ends.

    Flink would begin other partitions at the group's offset or at their first record, and read none of those
    that should end. If an offset is beyond the last one, it would begin at the first record. If the brokers
    do not answer, nothing is checked.

    Raises:
        KafkaStreamError: A partition has no offset, or there is no such partition or offset.
    """
    if any(name.startswith(("sasl.", "ssl.", "security.")) for name in properties):
        # Only the Java client has the login.
        return
    try:
        ends, committed = _read_offsets(topics, group if stop == "committed" else None, client)
    except KafkaStreamError as error:
        _log.warning("the brokers cannot be asked for the offsets of %s: %s", topics, error.found)
        return
    for argument, position in (("start", start), ("stop", stop)):
        if isinstance(position, Mapping):
            _check_offsets(argument, position, ends)
    missing = sorted(place for place, offset in committed.items() if offset is None)
    if missing:
        raise _position_error(
            "stop",
            stop,
            f"a committed offset of the group {group!r} for each partition",
            "run the job of that group first, or choose another stop=",
            f"none for {', '.join(missing)}",
        )


def _check_offsets(argument: str, offsets: Mapping[int, int], places: Mapping[str, int]) -> None:
    # Offsets are those of one topic.
    """Check that offsets name each partition, and that no start is beyond the end of its partition."""
    ends = {int(place.rpartition("/")[2]): end for place, end in places.items()}
    if not ends:
        # There is no such topic, which is an error of the job.
        return
    if offsets.keys() != ends.keys():
        raise _position_error(
            argument,
            dict(offsets),
            f"an offset for each partition: {', '.join(map(str, sorted(ends)))}",
            f"name each partition: {argument}={{{', '.join(f'{number}: ...' for number in sorted(ends))}}}",
        )
    beyond = [f"{number}: {offset}" for number, offset in offsets.items() if offset > ends[number]]
    if beyond and argument == "start":
        detail = f"{', '.join(beyond)}; the ends are {dict(sorted(ends.items()))}"
        raise _position_error(
            argument, dict(offsets), "offsets that the partitions have", f"correct {argument}=", detail
        )


def _read_offsets(
    topics: Topics, group: str | None, client: Mapping[str, Any]
) -> tuple[dict[str, int], dict[str, int | None]]:
    """Ask the brokers for the end offset and the committed offset of each partition.

    Both are by ``topic/partition``. The committed ones are empty without a group, and None for a partition
    without one.
    """
    from kafka.structs import TopicPartition

    options: dict[str, Any] = {"bootstrap_timeout_ms": QUESTION_MS, "enable_auto_commit": False, **client}
    consumer = create_consumer(group_id=group, **options)
    try:
        with translate_client_errors(client.get("bootstrap_servers")):
            partitions = {
                f"{topic}/{number}": TopicPartition(topic, number)
                for topic in sorted(consumer.topics())
                if reads_topic(topics, topic)
                for number in sorted(consumer.partitions_for_topic(topic) or ())
            }
            ends = consumer.end_offsets(list(partitions.values())) if partitions else {}
            committed = {
                place: consumer.committed(partition) for place, partition in partitions.items() if group
            }
    finally:
        consumer.close()
    return {place: ends[partition] for place, partition in partitions.items()}, committed
