"""Puts inputs that have to wait into the state of their key."""

from __future__ import annotations

from typing import Any

from flink_agents.api.errors import UnserializableValueError
from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.operator.services.hooks import Hooks
from flink_agents.runtime.state.keyed_state import Head, KeyedState


class InputRejected(Exception):
    """An input has to wait, and state cannot hold it.

    Args:
        error: The reason.
    """

    def __init__(self, error: UnserializableValueError) -> None:
        super().__init__(str(error))
        self.error = error


class InputQueueWriter:
    """Puts inputs of the current key into state. Only for Flink's task thread.

    Args:
        shared: The agent's shared objects.
        state: Keyed state.
        hooks: The hooks of key services.
    """

    def __init__(self, shared: RunEnvironment, state: KeyedState, hooks: Hooks) -> None:
        self._shared = shared
        self._state = state
        self._hooks = hooks

    def packed(self, record: Any, timestamp: int | None) -> bytes:
        """Return the bytes of an input.

        Raises:
            InputRejected: State cannot hold it.
        """
        try:
            return self._shared.codec.encode([record, timestamp])
        except UnserializableValueError as error:
            raise InputRejected(error) from error

    def packed_early(self, record: Any, timestamp: int | None) -> bytes | None:
        """Return the bytes of the input of a run that may have a journal; None if state cannot hold it.

        The journal has the input's digest, which must be taken before an action changes the input in place.
        """
        try:
            return self.packed(record, timestamp)
        except InputRejected:
            return None

    def store(self, head: Head, key_text: str, packed: bytes, timestamp: int | None) -> None:
        """Put the bytes of an input into state; they stay there until its run is committed."""
        # Entry and head are written in one call of Flink, so a checkpoint has both or neither.
        self._state.pending.put(head.next_pending, packed)
        for hook in self._hooks.stored:
            hook(key_text, head.next_pending, timestamp)
        head.next_pending += 1
        self._state.head.update(head.pack())
