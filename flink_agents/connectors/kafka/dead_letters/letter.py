"""A message in a topic of dead letters."""

from __future__ import annotations

import json
from dataclasses import dataclass

from flink_agents.connectors.kafka.headers import CUT, ERROR, ERROR_TYPE, FAILED_AGENT, FAILED_KEY, ORIGIN
from flink_agents.connectors.kafka.headers.mapping import KafkaHeaders
from flink_agents.runtime.serde.keys import decode_key


@dataclass(frozen=True)
class Letter:
    """A message in a topic of dead letters.

    Attributes:
        value: Its value, as bytes.
        key: Its key.
        headers: Its headers.
        timestamp: Milliseconds since 1970.
        place: Its place: ``topic/partition/offset``.
        missing: The reason why a cut letter has no original; None if it has one, or is whole.
    """

    value: bytes | None
    key: bytes | None
    headers: KafkaHeaders
    timestamp: int
    place: str
    missing: str | None = None

    @property
    def error(self) -> str:
        """Class and message of the error."""
        return f"{self._header_text(ERROR_TYPE)}: {self._header_text(ERROR)}"

    @property
    def error_type(self) -> str:
        """Class of the error."""
        return self._header_text(ERROR_TYPE)

    @property
    def agent(self) -> str:
        """Name of the agent that could not handle it; empty if a source could not read it."""
        return self._header_text(FAILED_AGENT)

    @property
    def failed_key(self) -> str:
        """The key of the failed run as text; empty if a source rejected the record."""
        text = self._header_text(FAILED_KEY)
        try:
            value = decode_key(text, from_outside=True) if text else ""
        except Exception:  # A key of a class, or of another program.
            return text
        return value if isinstance(value, str) else json.dumps(value, default=str)

    @property
    def origin(self) -> str | None:
        """The topic that it came from, if it is known."""
        return self._header_text(ORIGIN).rsplit("/", 2)[0] or None

    @property
    def origin_place(self) -> tuple[str, int, int] | None:
        """Topic, partition and offset that it came from, if they are known."""
        parts = self._header_text(ORIGIN).rsplit("/", 2)
        if len(parts) != 3 or not (parts[1].isdigit() and parts[2].isdigit()):
            return None
        return parts[0], int(parts[1]), int(parts[2])

    @property
    def cut_size(self) -> int | None:
        """The size of the whole value in bytes if the letter has only its start."""
        text = self._header_text(CUT)
        return int(text) if text.isdigit() else None

    def _header_text(self, name: str) -> str:
        return (self.headers.get(name) or b"").decode("utf-8", "replace")
