"""The reads of memory of a run, recorded so that a replay reads the same values.

If memory expires, or if runs return in another order, a replay would find other memory than the first
execution and make other calls. So each append includes the reads before it: each node once, as it was before
the run. They are in records of the kind RUN after the header, in parts that a store accepts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.runtime.journal.records import fields_of, with_layout
from flink_agents.runtime.serde.codec import ValueCodec

Read = tuple[str, "bytes | None | dict[str, bytes]"]
"""The bytes of a node by its path, or None if it did not exist; or the bytes of all nodes below a path."""


class ReadLog:
    """The reads of a run, in order. Any thread of the run adds to it; the event loop reads it."""

    __slots__ = ("_branches", "_nodes", "reads")

    def __init__(self) -> None:
        self.reads: list[Read] = []
        self._nodes: set[str] = set()
        self._branches: set[str] = set()

    def node(self, path: str, data: bytes | None) -> None:
        """Note that a node was read."""
        if path not in self._nodes:
            self._nodes.add(path)
            self.reads.append((path, data))

    def branch(self, path: str, nodes: dict[str, bytes]) -> None:
        """Note that all nodes below a path were read."""
        if path not in self._branches:
            self._branches.add(path)
            self._nodes.update(nodes)
            self.reads.append((path, nodes))

    def know(self, reads: Iterable[Read]) -> None:
        """Do not log these reads again: they were recorded before."""
        for path, what in reads:
            if isinstance(what, dict):
                self._branches.add(path)
                self._nodes.update(what)
            else:
                self._nodes.add(path)


def overlaid(cached: dict[str, bytes | None], reads: Iterable[Read]) -> dict[str, bytes | None]:
    """Return memory as it was when it was read. Nodes that were not read are as in ``cached``."""
    nodes = dict(cached)
    for path, what in reads:
        if isinstance(what, dict):
            prefix = path + "." if path else ""
            for node_path in [nested_path for nested_path in nodes if nested_path.startswith(prefix)]:
                del nodes[node_path]
            nodes.update(what)
        else:
            nodes[path] = what
    return nodes


def packed_reads(codec: ValueCodec, seq: int, reads: list[Read], first: int, limit: int) -> Iterator[Record]:
    """Yield the records of reads.

    Args:
        codec: Encodes them.
        seq: Sequence number of the run.
        reads: The reads.
        first: The number of reads that were recorded before.
        limit: The most bytes of a record.
    """
    data = codec.encode([list(read) for read in reads])
    size = max(limit // 2, 1)
    for start in range(0, len(data), size):
        part = [start == 0, start + size >= len(data), data[start : start + size]]
        yield Record(RecordKind.RUN, seq, "", 1 + first + start, with_layout(codec, part))


def recorded_reads(codec: ValueCodec, records: Iterable[Record]) -> list[Read]:
    """Return the reads of a run from all its records. Reads whose last part was not stored do not count."""
    reads = list[Read]()
    parts = b""
    for record in records:
        if record.kind is RecordKind.RUN and record.index > 0:
            begins, ends, part = fields_of(codec, record.data, 3)
            parts = part if begins else parts + part
            if ends:
                decoded_reads: list[Any] = codec.decode(parts)
                reads += [(path, what) for path, what in decoded_reads]
    return reads
