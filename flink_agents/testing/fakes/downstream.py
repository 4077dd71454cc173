"""The event time of a subtask as downstream streams see it."""

from __future__ import annotations

from flink_agents.runtime.operator.low_watermark import NO_TIMESTAMP, LowWatermark


class DownstreamView:
    """Accepts rows like downstream tables: a row first, then the watermark in it.

    Args:
        low: The output watermark of the subtask.
    """

    def __init__(self, low: LowWatermark) -> None:
        self._low = low
        self._told: dict[str, int] = {}

    @property
    def is_idle(self) -> bool:
        """True as long as no row has come, so that downstream streams do not wait for the subtask."""
        return "" not in self._told

    def watermark(self, tag: str = "") -> int:
        """Return the watermark of the stream ``tag``; ``NO_TIMESTAMP`` before the first."""
        return self._told.get(tag, NO_TIMESTAMP)

    def row(self, tag: str = "") -> int:
        """Accept a row, and return the watermark before it."""
        before, carried = self.watermark(tag), self._low.take(tag)
        self._told[tag] = before if carried is None else max(before, carried)
        return before

    def carriers(self) -> None:
        """Accept the due rows that have a watermark but no output."""
        for tag in self._low.due():
            self.row(tag)
