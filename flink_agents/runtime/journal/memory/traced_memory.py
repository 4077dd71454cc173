"""Short-term memory that logs the reads of a run, so that a replay reads the same values."""

from __future__ import annotations

from flink_agents.api.resources.memory import MemoryScope
from flink_agents.runtime.journal.memory.reads import Read, ReadLog, overlaid
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.keyed_state import MapSlot
from flink_agents.runtime.state.memory import MemoryTree, Undo


class TracedTree(MemoryTree):
    """A memory that logs reads of nodes that the run has not written.

    Attributes:
        log: The reads.
    """

    __slots__ = ("_replays", "log")

    def __init__(
        self,
        scope: MemoryScope,
        codec: ValueCodec,
        slot: MapSlot[str] | None,
        undo: Undo,
        expires: bool = False,
        cached: dict[str, bytes | None] | None = None,
    ) -> None:
        super().__init__(scope, codec, slot, undo, expires, cached)
        self.log = ReadLog()
        self._replays = False

    def replay(self, reads: list[Read]) -> None:
        """Start with the memory that an earlier attempt of the run read. State may differ by now."""
        self.cached = overlaid(self.cached, reads)
        self.log.know(reads)
        self._replays = True

    def raw(self, path: str) -> bytes | None:
        """Return the bytes of the node at ``path``, or None.

        Logs the read if the run has not written the node.
        """
        data = super().raw(path)
        if path not in self._written:
            self.log.node(path, data)
        return data

    def below(self, path: str) -> list[str]:
        """Return the paths of all nodes inside ``path``. Log the nodes that existed before the run."""
        paths = super().below(path)
        prefix = path + "." if path else ""
        cached = self.cached.items()
        self.log.branch(path, {p: data for p, data in cached if data is not None and p.startswith(prefix)})
        return paths

    def fork(self, undo: Undo) -> TracedTree:
        """Return a copy of this tree. Both log their reads in the same log."""
        twin = TracedTree(self.scope, self.codec, self._slot, undo, self.expires, self.cached)
        twin._written = dict(self._written)
        twin._loaded = self._loaded
        twin.log = self.log
        twin._replays = self._replays
        return twin

    def changes(self) -> dict[str, bytes | None]:
        """Return the writes; None stands for a removed node."""
        # The present value of a node does not show if a write changes it, so all writes count.
        return dict(reversed(self._written.items())) if self._replays else super().changes()
