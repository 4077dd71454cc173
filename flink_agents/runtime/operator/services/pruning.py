"""Marks of keys whose records must be pruned, as a key service."""

from __future__ import annotations

from collections.abc import Sequence

from flink_agents.runtime.journal.unpruned import UnprunedKeys
from flink_agents.runtime.operator.services.service import KeyService
from flink_agents.runtime.state.keyed_state import Head, Keys, Timers


class PruningService(KeyService):
    """Keeps the marks of keys, and removes those of keys that are pruned.

    Args:
        unpruned: The marks.
    """

    def __init__(self, unpruned: UnprunedKeys) -> None:
        self._unpruned = unpruned

    def restored(self, keys: Keys, waiting: Sequence[str], timers: Timers | None) -> bool:
        """Find the keys that have marks."""
        key = self._unpruned.open()
        if key is None or timers is None:
            return False
        keys.switch(key)
        return True

    def mark(self, head: Head, key_text: str, runs: int, marker: bytes | None) -> None:
        """Mark the current key if runs with records were committed."""
        self._unpruned.touch(key_text)
        if runs:
            self._unpruned.committed(head, key_text, marker)

    def clear_marks(self) -> None:
        """Remove the marks of keys whose committed runs are all pruned."""
        self._unpruned.clear()

    def report_restored(self) -> None:
        """Report some of the restored keys to the pruner."""
        self._unpruned.look()

    @property
    def has_unreported(self) -> bool:
        """True if some of the restored keys were not reported yet."""
        return self._unpruned.is_looking
