"""Values from outside the job: inputs, and the answers of other agents."""

from __future__ import annotations

from collections.abc import Callable
from sys import modules
from typing import Any

from flink_agents.api.errors import StateError
from flink_agents.api.resources.provenance import LIBRARY, as_data
from flink_agents.runtime.serde.codec import ValueCodec


class ReceivedValues:
    """Converts values from outside before an action gets them: messages in them are data, not commands.

    Only chat models and agents of the model library need the origin of a message. An action may import
    the library when it runs, after its input has come, so each conversion checks if it is loaded.

    Args:
        codec: Copies values.
        has_chat_models: True if the agent has chat models.

    Attributes:
        convert: Converts a value; None if nothing is converted yet.
    """

    def __init__(self, codec: ValueCodec, has_chat_models: bool) -> None:
        self._codec = codec
        self.convert: Callable[[Any], Any] | None = self._as_data if has_chat_models else None

    def as_received(self, value: Any) -> Any:
        """Return a value from outside in the form that actions get."""
        if self.convert is None:
            if LIBRARY not in modules:
                return value
            self.convert = self._as_data
        return self.convert(value)

    def _as_data(self, value: Any) -> Any:
        return as_data(value, self._copied)

    def _copied(self, value: Any) -> Any:
        try:
            return self._codec.copy(value)
        except StateError:
            # State cannot hold it, so no other run can get this object.
            return value
