"""Short-term memory of a run of several parts, which saw different memory.

State has the writes of its earlier parts, and other runs may have changed these values since then. So a
replay of an earlier part sees the values that were read at that time, with the writes of that part on top.
These writes change nothing. The last part sees memory as it is now, and its writes are the changes of the
run.
"""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from flink_agents.runtime.journal.memory.reads import Read, ReadLog, overlaid
from flink_agents.runtime.journal.memory.traced_memory import TracedTree
from flink_agents.runtime.state.memory import MemoryTree, Undo, Written


class OldPartTree(TracedTree):
    """The memory of a part that has ended. State already has its writes."""

    __slots__ = ()

    applied = True


class PartTree(MemoryTree):
    """The memory of a run of several parts. Each part has its own tree, and the run sees one at a time.

    Args:
        present: The memory of the last part.
        reads: The reads of each of the earlier parts, in order.
        undo: Log of the run's writes.

    Attributes:
        log: The reads of the last part.
    """

    __slots__ = ("_at", "_parts", "log")

    def __init__(self, present: TracedTree, reads: Sequence[Sequence[Read]], undo: Undo) -> None:
        super().__init__(present.scope, present.codec, None, undo, present.expires)
        self.log: ReadLog = present.log
        # If code reads a value that it did not read in that part, it sees the value of the next part.
        nodes = dict(present.cached)
        parts = list[TracedTree]()
        for of_part in reversed(reads):
            nodes = overlaid(nodes, of_part)
            parts.append(OldPartTree(self.scope, present.codec, None, undo, present.expires, nodes))
        # In order, so that the index is the number of the part.
        self._parts = [*reversed(parts), present]
        self._at = 0

    def go_to(self, part: int) -> None:
        """Show the memory of a part."""
        self._at = part

    def enter(self, part: int) -> None:
        """Show the memory of a part, unless that of a later part is shown."""
        self._at = max(self._at, part)

    @property
    def _part(self) -> TracedTree:
        return self._parts[self._at]

    @override
    def raw(self, path: str) -> bytes | None:
        return self._part.raw(path)

    @override
    def put(self, path: str, data: bytes | None) -> None:
        # The undo log gets the written nodes of the part, which the write belongs to.
        self._part.put(path, data)

    @property
    @override
    def written(self) -> Written:
        return self._part.written

    @override
    def below(self, path: str) -> list[str]:
        return self._part.below(path)

    @override
    def nodes(self) -> dict[str, bytes]:
        return self._parts[-1].nodes()

    @override
    def changes(self) -> dict[str, bytes | None]:
        """Return the writes of the last part."""
        return self._parts[-1].changes()

    @override
    def fork(self, undo: Undo) -> PartTree:
        twin = PartTree(self._parts[-1], (), undo)
        twin._parts = [*self._parts[: self._at], self._part.fork(undo), *self._parts[self._at + 1 :]]
        twin._at = self._at
        return twin
