"""The reads of memory of a run, recorded so that a replay reads the same values.

If memory expires, or if runs return in another order, a replay would find other memory than the first
execution and make other calls. So each append includes the reads before it: each node once, as it was before
the run. They are in records of the kind RUN after the header, in parts that a store accepts.

The parts of a run saw different memory. State has the writes of its earlier parts, and other runs may have
changed these values since then. So a replay of an earlier part sees the values that were read at that time,
with the writes of that part on top. These writes change nothing. The last part sees memory as it is now, and
its writes are the changes of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

from typing_extensions import override

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.api.resources.memory import MemoryScope
from flink_agents.runtime.journal.records import END_OF_PART, LAYOUT, fields_of
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.keyed_state import MapSlot
from flink_agents.runtime.state.memory import MemoryTree, Undo, Written

Read = tuple[str, "bytes | None | dict[str, bytes]"]
"""The bytes of a node by its path, or None if it did not exist; or the bytes of all nodes below a path."""


class ReadLog:
    """Logs which nodes of memory a run reads, each once, in order.

    Any thread of the run adds to it; the event loop reads it.
    """

    __slots__ = ("_branches", "_nodes", "reads")

    def __init__(self) -> None:
        self.reads: list[Read] = []
        self._nodes: set[str] = set()
        self._branches: set[str] = set()

    def node(self, path: str, data: bytes | None) -> None:
        """Log the read of a node: its bytes, or None if it did not exist."""
        if path not in self._nodes:
            self._nodes.add(path)
            self.reads.append((path, data))

    def branch(self, path: str, nodes: dict[str, bytes]) -> None:
        """Log the read of all nodes below a path, by path."""
        if path not in self._branches:
            self._branches.add(path)
            self._nodes.update(nodes)
            self.reads.append((path, nodes))

    def skip_recorded(self, reads: Iterable[Read]) -> None:
        """Do not log these reads again: an earlier attempt has recorded them."""
        for path, content in reads:
            if isinstance(content, dict):
                self._branches.add(path)
                self._nodes.update(content)
            else:
                self._nodes.add(path)


def overlaid(cached: dict[str, bytes | None], reads: Iterable[Read]) -> dict[str, bytes | None]:
    """Return memory as it was when it was read. Nodes that were not read are as in ``cached``."""
    nodes = dict(cached)
    for path, content in reads:
        if isinstance(content, dict):
            prefix = path + "." if path else ""
            for node_path in [nested_path for nested_path in nodes if nested_path.startswith(prefix)]:
                del nodes[node_path]
            nodes.update(content)
        else:
            nodes[path] = content
    return nodes


def packed_reads(codec: ValueCodec, seq: int, reads: list[Read], first: int, limit: int) -> Iterator[Record]:
    """Yield records with reads of memory; if these are large, each has a part of their bytes.

    Args:
        codec: Encodes the reads.
        seq: Sequence number of the run.
        reads: The reads.
        first: The number of reads that were recorded before.
        limit: The most bytes of a record.
    """
    data = codec.encode([list(read) for read in reads])
    size = max(limit // 2, 1)
    for start in range(0, len(data), size):
        part = [LAYOUT, start == 0, start + size >= len(data), data[start : start + size]]
        yield Record(RecordKind.RUN, seq, "", 1 + first + start, codec.encode_record(part))


def recorded_reads(codec: ValueCodec, records: Iterable[Record]) -> list[Read]:
    """Return the reads of a run from all its records. Reads whose last part was not stored do not count."""
    reads = list[Read]()
    parts = b""
    for record in records:
        if record.kind is RecordKind.RUN and 0 < record.index < END_OF_PART:
            begins, ends, part = fields_of(codec, record.data, 3)
            parts = part if begins else parts + part
            if ends:
                decoded_reads: list[Any] = codec.decode(parts)
                reads += [(path, content) for path, content in decoded_reads]
    return reads


class TracedTree(MemoryTree):
    """A memory that logs the reads of nodes that the run has not written.

    Attributes:
        log: The reads so far.
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
        """Show the memory that an earlier attempt of the run read. State may differ by now."""
        self.cached = overlaid(self.cached, reads)
        self.log.skip_recorded(reads)
        self._replays = True

    def raw(self, path: str) -> bytes | None:
        """Return the bytes of the node at ``path``, or None.

        Logs the read if the run has not written the node.
        """
        data = super().raw(path)
        if path not in self._written:
            self.log.node(path, data)
        return data

    def paths_below(self, path: str) -> list[str]:
        """Return the paths of all nodes inside ``path``. Log the nodes that existed before the run."""
        paths = super().paths_below(path)
        prefix = path + "." if path else ""
        cached = self.cached.items()
        self.log.branch(path, {p: data for p, data in cached if data is not None and p.startswith(prefix)})
        return paths

    def changes(self) -> dict[str, bytes | None]:
        """Return the writes that count as changes, by path; None stands for a removed node."""
        # The present value of a node does not show if a write changes it, so all writes count.
        return dict(reversed(self._written.items())) if self._replays else super().changes()


class OldPartTree(TracedTree):
    """The memory of a part of a run that has ended. State already has the writes of that part."""

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
        """Let reads and writes go to the memory of the part with a number."""
        self._at = part

    def enter(self, part: int) -> None:
        """Let reads and writes go to the memory of a part, unless they go to that of a later part."""
        self._at = max(self._at, part)

    @property
    def _part(self) -> TracedTree:
        return self._parts[self._at]

    @override
    def raw(self, path: str) -> bytes | None:
        return self._part.raw(path)

    @override
    def write_node(self, path: str, data: bytes | None) -> None:
        # The undo log gets the written nodes of the part, which the write belongs to.
        self._part.write_node(path, data)

    @property
    @override
    def written(self) -> Written:
        return self._part.written

    @override
    def paths_below(self, path: str) -> list[str]:
        return self._part.paths_below(path)

    @override
    def nodes(self) -> dict[str, bytes]:
        return self._parts[-1].nodes()

    @override
    def changes(self) -> dict[str, bytes | None]:
        """Return the writes of the last part, which are the changes of the run."""
        return self._parts[-1].changes()

    @override
    def fork(self, undo: Undo) -> Self:
        forked_tree = super().fork(undo)
        earlier_parts = self._parts[: self._at]
        later_parts = self._parts[self._at + 1 :]
        forked_tree._parts = [*earlier_parts, self._part.fork(undo), *later_parts]
        return forked_tree
