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
        value: Its value, or the start of it (:attr:`cut_size`); None for a deletion.
        key: Its key; None if it has none.
        headers: Its headers.
        timestamp: Its timestamp in milliseconds since the epoch.
        place: Its place: ``topic/partition/offset``.
        missing: Why the original of a cut letter cannot be read; None if it was read, or the letter is not
            cut.
    """

    value: bytes | None
    key: bytes | None
    headers: KafkaHeaders
    timestamp: int
    place: str
    missing: str | None = None

    @property
    def error(self) -> str:
        """Class and message of the error; empty without that header."""
        return f"{self._header_text(ERROR_TYPE)}: {self._header_text(ERROR)}"

    @property
    def error_type(self) -> str:
        """Class name of the error; empty without that header."""
        return self._header_text(ERROR_TYPE)

    @property
    def agent(self) -> str:
        """Name of the agent that could not handle it; empty if a source could not read it."""
        return self._header_text(FAILED_AGENT)

    @property
    def failed_key(self) -> str:
        """The key of the failed run: a string as it is, another value as JSON.

        Empty if a source rejected the record.
        """
        text = self._header_text(FAILED_KEY)
        try:
            value = decode_key(text, from_outside=True) if text else ""
        except Exception:  # A key of a class, or of another program.
            return text
        return value if isinstance(value, str) else json.dumps(value, default=str)

    @property
    def origin(self) -> str | None:
        """The topic that the letter came from; None if its headers do not say."""
        return self._header_text(ORIGIN).rsplit("/", 2)[0] or None

    @property
    def origin_place(self) -> tuple[str, int, int] | None:
        """Topic, partition and offset that the letter came from; None if its headers do not say."""
        parts = self._header_text(ORIGIN).rsplit("/", 2)
        if len(parts) != 3 or not (parts[1].isdigit() and parts[2].isdigit()):
            return None
        return parts[0], int(parts[1]), int(parts[2])

    @property
    def cut_size(self) -> int | None:
        """Size of the whole value in bytes; None if the letter is not cut."""
        text = self._header_text(CUT)
        return int(text) if text.isdigit() else None

    def _header_text(self, name: str) -> str:
        return (self.headers.get(name) or b"").decode("utf-8", "replace")
