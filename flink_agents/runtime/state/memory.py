"""Memory of one run: a tree of paths over a map in state, with a buffer of changes.

Every node has an entry under its full path: a plain value its encoded bytes, an object the marker ``OBJECT``.
Values are encoded when they are written, so that a value which state cannot hold fails on the user's line.
They are decoded at each read, so that no two readers share an object.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from functools import lru_cache
from typing import Any, NamedTuple, Self

from typing_extensions import override

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.common.places import authors_place
from flink_agents.api.errors import MemoryPathError, StateError, UnsavedChangeError
from flink_agents.api.resources.memory import MemoryObject, MemoryRef, MemoryScope
from flink_agents.runtime.serde.codec import UNCHANGING, ValueCodec, is_unchanging
from flink_agents.runtime.serde.keys import unescape
from flink_agents.runtime.serde.typenames import shorten
from flink_agents.runtime.state.keyed_state import OBJECT, MapSlot, state_key

FIRST_CHECKED = 20
"""The number of executions of each action that are checked in production before sampling starts."""

CHECKED_ONE_IN = 1000
"""After these, one execution in this number is checked."""

_log = bounded_logger("flink_agents.memory")

Guard = Callable[[], None]
"""Raises if the context of an action may not be used, such as after its end."""
ReadNote = Callable[["MemoryTree", str, Any], None]
"""Called with memory, path and value of each mutable value that an action reads."""

Written = dict[str, bytes | None]
"""The encoded nodes that a run wrote to a tree, by path; None for a removed one."""

Undo = list[tuple[Written, MemoryScope | None, str, bool, bytes | None]]
"""The writes of a run, in order.

Each has the written nodes of its tree, the scope (None if state already has the write), the path, True if
it was written before, and the bytes from before. It does not refer to the tree, which refers to this list:
each run would leave a cycle.
"""


@lru_cache(maxsize=8192)
def parents_of(path: str) -> tuple[str, ...]:
    """Return the paths of the objects around ``path``, outermost first.

    Raises:
        MemoryPathError: ``path`` is malformed.
    """
    if not isinstance(path, str) or not path or path[0] == "." or path[-1] == "." or ".." in path:
        raise _malformed(path)
    parts = path.split(".")
    return tuple(".".join(parts[:end]) for end in range(1, len(parts)))


def _malformed(path: object) -> MemoryPathError:
    return MemoryPathError(
        "a memory path is malformed",
        expected="a text: names with dots between them, such as 'order' or 'order.total'",
        found=shorten(path),
    )


class MemoryTree:
    """The nodes of one memory during one run.

    Args:
        slot: The map in state; None for a memory that exists only in this object.
        undo: Log of the run's writes.

    Attributes:
        scope: The kind of memory.
        codec: Encodes values.
        expires: True if entries of the map expire, so that parents must be refreshed.
        cached: Nodes from before the run that were read so far, by path.
        applied: True if state already has the writes to this tree: a run that frees its key made them before.
    """

    applied = False

    __slots__ = ("cached", "codec", "expires", "_loaded", "_slot", "_undo", "_written", "scope")

    def __init__(
        self,
        scope: MemoryScope,
        codec: ValueCodec,
        slot: MapSlot[str] | None,
        undo: Undo,
        expires: bool = False,
        cached: dict[str, bytes | None] | None = None,
    ) -> None:
        self.scope = scope
        self.codec = codec
        self._slot = slot
        self.expires = expires
        self.cached: dict[str, bytes | None] = {} if cached is None else cached
        self._written: Written = {}
        self._undo = undo
        self._loaded = slot is None

    # -- nodes ------------------------------------------------------------------------

    def raw(self, path: str) -> bytes | None:
        """Return the bytes of the node at ``path``, written or from before the run; None if there is none."""
        written = self._written
        if path in written:
            return written[path]
        cached = self.cached
        if path in cached:
            return cached[path]
        if self._loaded or self._slot is None:
            return None
        data = cached[path] = self._slot.get(state_key(path))
        return data

    def write_node(self, path: str, data: bytes | None) -> None:
        """Buffer a write of the node at ``path``, and log it for undoing; None removes the node."""
        written = self._written
        scope = None if self.applied else self.scope
        self._undo.append((written, scope, path, path in written, written.get(path)))
        written[path] = data

    def paths_below(self, path: str) -> list[str]:
        """Return the paths of all nodes inside the object at ``path`` ("" for the root), sorted."""
        self._load()
        prefix = path + "." if path else ""
        nodes = self.cached | self._written
        return sorted(p for p, data in nodes.items() if data is not None and p.startswith(prefix))

    def _load(self) -> None:
        if self._loaded or self._slot is None:
            return
        for key, data in self._slot.items():
            self.cached.setdefault(unescape(key), data)
        self._loaded = True

    # -- values -----------------------------------------------------------------------

    def get(self, path: str, default: Any, guard: Guard) -> Any:
        """Return the value, the object (guarded by ``guard``) or ``default`` at ``path``, if it is valid."""
        parents = parents_of(path)
        data = self.raw(path)
        if data is None:
            if parents:
                self._check_parents(path, parents)
            return default
        if data == OBJECT:
            return TreeObject(self, path, guard)
        return self.codec.decode(data)

    def set(self, path: str, value: Any) -> MemoryRef:
        """Store a plain value at ``path``, and create the objects around it.

        Raises:
            MemoryPathError: The path is malformed, leads through a plain value, or has an object.
            UnserializableValueError: State cannot hold the value.
        """
        data = self.codec.encode(value)
        if parents_of(path):
            self.make_parents(path)
        if self.raw(path) == OBJECT:
            raise MemoryPathError(
                f"{path!r} is an object in {self.scope.value} memory",
                fix=f"delete({path!r}) first, or set one of its fields",
            )
        self.write_node(path, data)
        return MemoryRef(self.scope, path)

    def append(self, path: str, value: Any) -> MemoryRef:
        """Add ``value`` to the list at ``path``, created if nothing is there. Raises as :meth:`set` does."""
        parents_of(path)
        data = self.raw(path)
        items = [] if data is None else self.codec.decode(data) if data != OBJECT else OBJECT
        if not isinstance(items, list):
            raise MemoryPathError(
                f"{path!r} in {self.scope.value} memory is no list",
                found="an object" if items is OBJECT else type(items).__name__,
                fix="append to a path that is empty or holds a list",
            )
        return self.set(path, [*items, value])

    def delete(self, path: str) -> bool:
        """Remove the node at ``path`` and all nodes below it; return True if there was any."""
        parents_of(path)  # Raises if the path is malformed.
        data = self.raw(path)
        nodes = self.paths_below(path) if data == OBJECT else []
        if data is not None:
            nodes.append(path)
        for node in nodes:
            self.write_node(node, None)
        return bool(nodes)

    def new_object(self, path: str, overwrite: bool) -> None:
        """Make sure that an object is at ``path``; reject a plain value unless ``overwrite`` is True."""
        self.make_parents(path)
        data = self.raw(path)
        if data is not None and data != OBJECT and not overwrite:
            raise MemoryPathError(
                f"a plain value is at {path!r} in {self.scope.value} memory",
                fix=f"new_object({path!r}, overwrite=True) replaces it",
            )
        if data != OBJECT or self.expires:
            self.write_node(path, OBJECT)

    def _check_parents(self, path: str, parents: tuple[str, ...]) -> None:
        """Raise if ``path``, which has no node, leads through a plain value."""
        # All nodes around an existing object are objects, so the innermost existing node decides.
        for parent in reversed(parents):
            around = self.raw(parent)
            if around is not None:
                if around != OBJECT:
                    raise self._through_value(path, parent, around)
                break

    def _through_value(self, path: str, parent: str, data: bytes) -> MemoryPathError:
        return MemoryPathError(
            f"{path!r} leads through a plain value in {self.scope.value} memory",
            found=f"{parent!r} holds {type(self.codec.decode(data)).__name__}",
            fix=f"delete({parent!r}) first, or choose another path",
        )

    def make_parents(self, path: str) -> None:
        """Create the objects around ``path`` that do not exist."""
        for parent in parents_of(path):
            data = self.raw(parent)
            if data is None or (self.expires and data == OBJECT):
                self.write_node(parent, OBJECT)
            elif data != OBJECT:
                raise self._through_value(path, parent, data)

    # -- the protocol of a run --------------------------------------------------------

    def fork(self, undo: Undo) -> Self:
        """Return a copy of this tree, whose writes do not reach this one and are logged in ``undo``."""
        forked_tree = copy(self)
        forked_tree._undo = undo
        forked_tree._written = dict(self._written)
        return forked_tree

    @property
    def written(self) -> Written:
        """The nodes that the run wrote, by path; None for a removed one."""
        return self._written

    def nodes(self) -> dict[str, bytes]:
        """Return the existing nodes from before the run that were read so far, by path."""
        if not self.cached:
            return {}
        return {path: data for path, data in self.cached.items() if data is not None}

    def load(self, whole: bool = False) -> dict[str, bytes | None]:
        """Read all nodes, so that nothing is read from state later.

        Args:
            whole: True if state has no other nodes than the known ones.
        """
        if whole:
            self._loaded = True
        self._load()
        return self.cached

    def changes(self) -> dict[str, bytes | None]:
        """Return the writes that differ from the values before; None stands for a removed node.

        Objects come after the nodes inside of them, so that no object expires before its fields.
        """
        changes: dict[str, bytes | None] = {}
        cached = self.cached
        expires = self.expires
        for path, data in reversed(self._written.items()):
            if cached.get(path) != data or (expires and data is not None):
                changes[path] = data
        return changes

    def committed(self, changes: dict[str, bytes | None]) -> None:
        """Note that state has the changes that :meth:`changes` returned."""
        self.cached.update(changes)


def take_back(undo: Undo, mark: int) -> None:
    """Undo the latest writes of a run, until its log has the length ``mark`` again."""
    while len(undo) > mark:
        written, _, path, was_written, data = undo.pop()
        if was_written:
            written[path] = data
        else:
            del written[path]


class TreeObject(MemoryObject):
    """A node of a :class:`MemoryTree`, as one execution of an action sees it.

    Args:
        tree: The memory.
        path: Absolute path of the node; "" for the root.
        guard: Raises if the context may not be used.
        note_read: Called with each mutable value that is read; None if reads are not checked.

    Attributes:
        tree: The memory.
    """

    __slots__ = ("_guard", "_note_read", "_prefix", "tree")

    def __init__(self, tree: MemoryTree, path: str, guard: Guard, note_read: ReadNote | None = None) -> None:
        self.tree = tree
        self._prefix = path + "." if path else ""
        self._guard = guard
        self._note_read = note_read

    def _full(self, path: str) -> str:
        """Return the path from the root for one that is relative to this object."""
        if not isinstance(path, str):
            raise _malformed(path)
        return self._prefix + path

    @override
    def get(self, path: str | MemoryRef, default: Any = None) -> Any:
        self._guard()
        if isinstance(path, MemoryRef):
            if path.scope is not self.tree.scope:
                raise MemoryPathError(
                    f"the reference points into {path.scope.value} memory",
                    expected=self.tree.scope.value,
                    fix="call ref.resolve(ctx)",
                )
            full = path.path
        else:
            full = self._prefix + path if isinstance(path, str) else self._full(path)
        value = self.tree.get(full, default, self._guard)
        if self._note_read is not None and type(value) not in UNCHANGING:
            if isinstance(value, TreeObject):
                value._note_read = self._note_read
            elif not is_unchanging(value):
                self._note_read(self.tree, full, value)
        return value

    @override
    def set(self, path: str, value: Any) -> MemoryRef:
        self._guard()
        return self.tree.set(self._prefix + path if isinstance(path, str) else self._full(path), value)

    @override
    def append(self, path: str, value: Any) -> MemoryRef:
        self._guard()
        return self.tree.append(self._full(path), value)

    @override
    def delete(self, path: str) -> bool:
        self._guard()
        return self.tree.delete(self._full(path))

    @override
    def new_object(self, path: str, overwrite: bool = False) -> MemoryObject:
        self._guard()
        full = self._full(path)
        self.tree.new_object(full, overwrite)
        return TreeObject(self.tree, full, self._guard, self._note_read)

    @override
    def exists(self, path: str) -> bool:
        self._guard()
        full = self._full(path)
        parents_of(full)
        return self.tree.raw(full) is not None

    @override
    def field_names(self) -> list[str]:
        self._guard()
        start = len(self._prefix)
        return sorted({path[start:].split(".", 1)[0] for path in self.tree.paths_below(self._prefix[:-1])})

    @override
    def fields(self) -> dict[str, Any]:
        return {name: self.get(name) for name in self.field_names()}


# -- changes that were not written ---------------------------------------------------
# An action that changes a value which it read, and does not write it, loses the change. In the harness, each
# execution is checked, and such an action fails. In production, the first executions of an action are checked
# and then one in many, and a warning is logged once per action.


class MutableRead(NamedTuple):
    """A mutable value that an action read from memory.

    Attributes:
        tree: The memory.
        path: The path of the value.
        node: The bytes at the path; None if there were none, so that the action got its default.
        encoded: The bytes of the value when it was read.
        value: The value, which the action may have changed since.
        place: The line of the user's code that read it, or None.
    """

    tree: MemoryTree
    path: str
    node: bytes | None
    encoded: bytes
    value: Any
    place: str | None

    def is_lost(self) -> bool:
        """Return True if the value was changed, and memory still has the old bytes."""
        if self.tree.raw(self.path) is not self.node:
            return False  # Each write creates new bytes, even equal ones.
        try:
            return self.tree.codec.encode(self.value) != self.encoded
        except StateError:
            return True


class ReadWatch:
    """Selects the executions of actions that are checked for changes of read values, and checks them.

    Attributes:
        strict: True if all executions are checked, and one that loses a change fails.
        skips: The number of executions of each action that are not checked before the next one that is.
    """

    def __init__(self) -> None:
        self.strict = False
        self.skips: dict[str, int] = {}
        self._checked: dict[str, int] = {}

    def begin(self, action: str) -> list[MutableRead]:
        """Return a new list for the reads of an execution, and select the next execution to check."""
        if not self.strict:
            checked = self._checked[action] = self._checked.get(action, 0) + 1
            if checked >= FIRST_CHECKED:
                self.skips[action] = CHECKED_ONE_IN - 1 - (FIRST_CHECKED if checked == FIRST_CHECKED else 0)
        return []

    def check(self, step: Any, reads: list[MutableRead]) -> None:
        """Check the reads of an execution (``ActionRun``) that succeeded; log the first lost change.

        Raises:
            UnsavedChangeError: It changed a value and did not write it, and the watch is strict.
        """
        lost = next((read for read in reads if read.is_lost()), None)
        if lost is None:
            return
        error = _unwritten(step, lost)
        if self.strict:
            raise error
        self.skips[step.action.name] = sys.maxsize
        _log.warning("%s", error)


def note_read(reads: list[MutableRead], tree: MemoryTree, path: str, value: Any) -> None:
    """Add a value that an execution read to ``reads``, unless state could not hold it."""
    with suppress(StateError):
        reads.append(
            MutableRead(tree, path, tree.raw(path), tree.codec.encode(value), value, authors_place())
        )


def check_reads(step: Any) -> None:
    """Check the reads of an execution (``ActionRun``) that succeeded, if it was selected.

    Raises:
        UnsavedChangeError: It changed a value and did not write it, and the watch is strict.
    """
    if step.reads:
        step.shared.reads.check(step, step.reads)


def _unwritten(step: Any, lost: MutableRead) -> UnsavedChangeError:
    memory = lost.tree.scope.value.replace("-", "_")
    return UnsavedChangeError(
        f"action {step.action.name!r} changed a value that it read from memory, and did not write it",
        expected=f"ctx.{memory}_memory.set({lost.path!r}, value) after the change",
        found=f"{shorten(lost.value)} in the action, which memory does not have",
        fix=f"set it, or call append({lost.path!r}, item) for a list; if the change is for this action "
        "alone, change a copy: copy.deepcopy(value)",
        where=lost.place,
    )
