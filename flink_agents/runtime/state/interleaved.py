"""Interleaved runs: suspended runs whose key is free for the inputs behind them.

The head of a key lists them, each with what can be told without its entry. What lets one go on is a
*wake-up*: an entry of ``pending`` that has its turn among the inputs of the key. Its bytes follow from the
number of the run and of its part alone, so that what was recorded behind it is found again after a restart.
"""

from __future__ import annotations

from typing import NamedTuple

from flink_agents.runtime.serde.codec import ValueCodec

_WAKE_UP = "wake-up"


class InterleavedRun(NamedTuple):
    """An interleaved run.

    Attributes:
        number: Number of its input, under which its entry stands.
        seq: Its sequence number.
        part: How many of its parts have ended.
        due: When the first of its waits ends by itself, in milliseconds since the epoch; None for never.
        woken: Number of the wake-up that lets it go on; None as long as there is none.
        names: Names of the signals that it waits for, once for each wait.
    """

    number: int
    seq: int
    part: int
    due: int | None
    woken: int | None
    names: list[str]


def wake_up(codec: ValueCodec, run: InterleavedRun) -> bytes:
    """The bytes of a wake-up. An input is a list of two, so that it never looks the same."""
    return codec.encode([_WAKE_UP, run.seq, run.part])
