"""Start and stop positions of a source, as options of Flink's connector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from flink_agents.api.errors import KafkaStreamError

Start = Literal["earliest", "latest", "committed"] | datetime | Mapping[int, int]
"""Start of a source: a named position, the time of the first record, or offsets by partition."""

Stop = Literal["latest", "committed"] | datetime | Mapping[int, int]
"""End of a source: the end at its start, the time of the first record to leave out, or offsets."""

_STARTS = {"earliest": "earliest-offset", "latest": "latest-offset", "committed": "group-offsets"}
_STOPS = {"latest": "latest-offset", "committed": "group-offsets"}


def start_options(start: Start, topics: Sequence[str], group: str | None) -> dict[str, str]:
    """Return the connector's options for the start position.

    Raises:
        KafkaStreamError: The position is invalid.
    """
    if start == "committed" and group is None:
        raise _wrong("start", start, "a group, whose offsets they are", "name it: group=...")
    return _options("start", "scan.startup", _STARTS, start, topics)


def stop_options(stop: Stop | None, topics: Sequence[str], group: str | None) -> dict[str, str]:
    """Return the connector's options for the end position; none for an unbounded source.

    Raises:
        KafkaStreamError: The position is invalid.
    """
    if stop is None:
        return {}
    if stop == "committed" and group is None:
        raise _wrong("stop", stop, "a group, whose offsets they are", "name it: group=...")
    return _options("stop", "scan.bounded", _STOPS, stop, topics)


def _options(
    argument: str, prefix: str, names: Mapping[str, str], given: Any, topics: Sequence[str]
) -> dict[str, str]:
    if isinstance(given, str) and given in names:
        return {f"{prefix}.mode": names[given]}
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise _wrong(argument, given, "a time with its zone", "datetime(..., tzinfo=UTC)")
        return {
            f"{prefix}.mode": "timestamp",
            f"{prefix}.timestamp-millis": str(round(given.timestamp() * 1000)),
        }
    if isinstance(given, Mapping) and given:
        if len(topics) != 1:
            raise _wrong(
                argument, given, "one topic, whose offsets they are", "create one source for each topic"
            )
        offsets = ";".join(f"partition:{number},offset:{offset}" for number, offset in given.items())
        return {f"{prefix}.mode": "specific-offsets", f"{prefix}.specific-offsets": offsets}
    expected = f"{', '.join(map(repr, names))}, a datetime, or a mapping of partitions to offsets"
    raise _wrong(argument, given, expected, f"correct {argument}=")


def _wrong(argument: str, given: Any, expected: str, fix: str) -> KafkaStreamError:
    return KafkaStreamError(
        f"a Kafka source cannot {argument} at {given!r}", expected=expected, found=repr(given), fix=fix
    )
