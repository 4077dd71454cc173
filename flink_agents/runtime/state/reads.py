"""Finds values of memory that an action read, changed and did not write, so that the change is lost.

In the harness, each execution is checked, and such an action fails. In production, the first executions of an
action are checked, then one in many, and a warning is logged once per action.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.common.places import authors_place
from flink_agents.api.errors import StateError, UnsavedChangeError
from flink_agents.runtime.serde.typenames import shorten

if TYPE_CHECKING:
    from flink_agents.runtime.state.memory import MemoryTree

FIRST = 20
"""The number of executions of each action that are checked in production before sampling starts."""

ONE_IN = 1000
"""Of the others, one in this number is checked."""

_log = bounded_logger("flink_agents.memory")


class Read(NamedTuple):
    """A mutable value that an action read from memory.

    Attributes:
        tree: The memory.
        path: Its path.
        node: The bytes at the path; None if there were none, so that the action got its default.
        encoded: The bytes of the value.
        value: The value.
        place: The user's line.
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
    """Selects the executions whose reads are checked.

    Attributes:
        strict: True if all are checked, and fail.
        skips: The number of executions of each action that are not checked before the next one that is.
    """

    def __init__(self) -> None:
        self.strict = False
        self.skips: dict[str, int] = {}
        self._checked: dict[str, int] = {}

    def begin(self, action: str) -> list[Read]:
        """Return the list for the reads of an execution, and select the next execution to check."""
        if not self.strict:
            checked = self._checked[action] = self._checked.get(action, 0) + 1
            if checked >= FIRST:
                self.skips[action] = ONE_IN - 1 - (FIRST if checked == FIRST else 0)
        return []

    def check(self, step: Any, reads: list[Read]) -> None:
        """Check the reads of an execution that succeeded.

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


def note_read(reads: list[Read], tree: MemoryTree, path: str, value: Any) -> None:
    """Add a value that an execution read to ``reads``, unless state could not hold it."""
    with suppress(StateError):
        reads.append(Read(tree, path, tree.raw(path), tree.codec.encode(value), value, authors_place()))


def check_reads(step: Any) -> None:
    """Check the reads of an execution that succeeded.

    Raises:
        UnsavedChangeError: It changed a value and did not write it, and the watch is strict.
    """
    if step.reads:
        step.shared.reads.check(step, step.reads)


def _unwritten(step: Any, lost: Read) -> UnsavedChangeError:
    memory = lost.tree.scope.value.replace("-", "_")
    return UnsavedChangeError(
        f"action {step.action.name!r} changed a value that it read from memory, and did not write it",
        expected=f"ctx.{memory}_memory.set({lost.path!r}, value) after the change",
        found=f"{shorten(lost.value)} in the action, which memory does not have",
        fix=f"set it, or call append({lost.path!r}, item) for a list; if the change is for this action "
        "alone, change a copy: copy.deepcopy(value)",
        where=lost.place,
    )
