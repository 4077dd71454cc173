"""Inputs that wait for their turn: their bytes, and their entries in the state of the current key."""

from __future__ import annotations

from typing import Any

from flink_agents.api.errors import UnserializableValueError
from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.operator.low_watermark import LowWatermark
from flink_agents.runtime.state.keyed_state import Head, KeyedState


class Refused(Exception):
    """An input has to wait, and state cannot hold it.

    Args:
        error: What is wrong with it.
    """

    def __init__(self, error: UnserializableValueError) -> None:
        super().__init__(str(error))
        self.error = error


class Intake:
    """Puts inputs of the current key into state. Only for Flink's thread.

    Args:
        shared: What all runs share.
        state: Keyed state.
        low: The low watermark; None where outputs need no timestamps.
    """

    def __init__(self, shared: RunEnvironment, state: KeyedState, low: LowWatermark | None) -> None:
        self._shared = shared
        self._state = state
        self._low = low

    def packed(self, record: Any, timestamp: int | None) -> bytes:
        """The bytes of an input.

        Raises:
            Refused: State cannot hold it.
        """
        try:
            return self._shared.codec.encode([record, timestamp])
        except UnserializableValueError as error:
            raise Refused(error) from error

    def packed_early(self, record: Any, timestamp: int | None) -> bytes | None:
        """The bytes of the input of a run that may have a journal; else None, as where state cannot hold it.

        The journal has the input's digest, so that it is taken before an action changes the input in place.
        """
        if not self._shared.may_record:
            return None
        try:
            return self.packed(record, timestamp)
        except Refused:
            return None

    def store(self, head: Head, key_text: str, packed: bytes, timestamp: int | None) -> None:
        """Put the bytes of an input into state; they stay there until its run is committed."""
        self._state.pending.put(head.next_pending, packed)
        if self._low is not None:
            self._low.stored(key_text, head.next_pending, timestamp)
        head.next_pending += 1
        self._state.head.update(head.pack())
