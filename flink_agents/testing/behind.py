"""The view that streams behind a subtask have of its event time."""

from __future__ import annotations

from flink_agents.runtime.operator.low_watermark import NO_TIMESTAMP, LowWatermark


class Behind:
    """Takes rows as the tables behind the operator do: a row first, then the low watermark that it carries.

    Args:
        low: The low watermark of the subtask.
    """

    def __init__(self, low: LowWatermark) -> None:
        self._low = low
        self._told: dict[str, int] = {}

    @property
    def is_idle(self) -> bool:
        """True while no row has come, so that streams behind do not wait for the subtask."""
        return "" not in self._told

    def watermark(self, tag: str = "") -> int:
        """Return the watermark of the stream ``tag``; ``NO_TIMESTAMP`` before the first."""
        return self._told.get(tag, NO_TIMESTAMP)

    def row(self, tag: str = "") -> int:
        """Take a row; returns the watermark that was before it."""
        before, carried = self.watermark(tag), self._low.take(tag)
        self._told[tag] = before if carried is None else max(before, carried)
        return before

    def carriers(self) -> None:
        """Take the rows without an output that are due."""
        for tag in self._low.due():
            self.row(tag)
