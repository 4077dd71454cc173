"""The handled messages of a partition, which may have gaps, as the metadata of an offset.

A consumer group stores an offset, and a string of at most 4 KiB next to it. The offset is that of the first
message that was left out. The string marks the later messages that were handled, as compressed bits.
"""

from __future__ import annotations

import base64
import zlib

from flink_agents.api.errors import KafkaStreamError

MOST_TEXT = 4000
"""Brokers take 4,096 bytes (``offset.metadata.max.bytes``)."""

_VERSION = "1:"


class ReadMarks:
    """The handled messages of a partition.

    Args:
        begin: The first offset that was not handled, as far as is known.

    Attributes:
        begin: The first offset that was not handled.
        read: True if any message was noted.
    """

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.read = False
        self._end = begin
        self._done: set[int] = set()
        self._first_left: int | None = None

    @classmethod
    def of(cls, offset: int, text: str) -> ReadMarks:
        """Return the object for a string that :meth:`text` made."""
        made = cls(offset)
        if text.startswith(_VERSION):
            bits = zlib.decompress(base64.b64decode(text.removeprefix(_VERSION)))
            made._done = {
                offset + 8 * at + bit for at, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1
            }
        return made

    def is_done(self, offset: int) -> bool:
        """Return True if the message at ``offset`` was handled."""
        return offset < self.begin or offset in self._done

    def note(self, offset: int, done: bool) -> None:
        """Record a message as handled. Messages come in order, except those that were handled earlier."""
        self.read = True
        self._end = offset + 1
        if done:
            self._done.add(offset)
        elif self._first_left is None:
            self._first_left = offset
        # Offsets between messages belong to transactions, and not to any message.
        self.begin = self._first_left if self._first_left is not None else self._end

    def text(self) -> str:
        """Return the handled messages after :attr:`begin` as a string.

        Raises:
            KafkaStreamError: The string is too long, because there are too many gaps.
        """
        done = [offset - self.begin for offset in self._done if offset >= self.begin]
        if not done:
            return ""
        bits = bytearray(max(done) // 8 + 1)
        for one in done:
            bits[one // 8] |= 1 << one % 8
        text = _VERSION + base64.b64encode(zlib.compress(bytes(bits), 9)).decode("ascii")
        if len(text) > MOST_TEXT:
            raise KafkaStreamError(
                "too many dead letters are skipped for the brokers to store which",
                expected=f"a mark of at most {MOST_TEXT} characters for each partition",
                found=f"{len(text)} characters for {max(done)} letters",
                fix="redrive the skipped letters first, or use --limit",
            )
        return text
