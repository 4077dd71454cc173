"""Compares the journal of the store ``sqlite`` with what a job run knows of it, before any effect."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flink_agents.api.errors import JournalMissingError, JournalOutdatedError
from flink_agents.connectors.action_state.positions import (
    JournalPosition,
    journal_position,
    raise_position,
)

AHEAD = 1_000_000
"""The state of keys may have seen a little more of the journal than the last look at it."""


@dataclass(frozen=True)
class SeenJournal:
    """How far a journal had come when a start last looked.

    Attributes:
        path: The file.
        position: Its position.
    """

    path: str
    position: JournalPosition

    def to_json(self) -> dict[str, Any]:
        """Return it for the file of the progress."""
        return {"path": self.path, "store": self.position.store_id, "position": self.position.number}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SeenJournal:
        """Return what :meth:`to_json` gave."""
        return cls(str(values["path"]), JournalPosition(str(values["store"]), int(values["position"])))


def look(path: Path) -> JournalPosition | None:
    """Return how far the journal at ``path`` has come; None if there is none that can be read."""
    with contextlib.suppress(sqlite3.Error, OSError):
        return journal_position(path)
    return None


def no_journal(path: Path, expected: str = "", found: str | None = None) -> JournalMissingError:
    """Return the error about a journal that is gone, or is another one."""
    return JournalMissingError(
        f"the journal of the job run is not there: {path}; recorded durable steps would be made again",
        expected=f"the store {expected}" if expected else "the file",
        found="no journal that can be read" if found is None else f"the store {found}",
        fix="put the file back, with its -wal file if there is one, or start over with --fresh",
    )


def check_journal(seen: SeenJournal, path: Path, accepts_older: bool) -> str | None:
    """Check that a journal has everything that a job run had seen in it.

    Args:
        seen: What was seen.
        path: The file.
        accepts_older: True if an older copy is accepted.

    Returns:
        A warning, if an older copy is accepted.

    Raises:
        JournalMissingError: The file is gone, or is another one.
        JournalOutdatedError: It is an older copy.
    """
    found = look(path)
    if found is None or found.store_id != seen.position.store_id:
        raise no_journal(path, seen.position.store_id, None if found is None else found.store_id)
    if found.number >= seen.position.number:
        return None
    if accepts_older:
        raise_position(path, seen.position.number + AHEAD)
        return f"the journal {path} is an older copy; durable steps that it lacks are made again"
    raise JournalOutdatedError(
        f"the journal {path} is an older copy: durable steps that it lacks would be made again",
        expected=f"position {seen.position.number} or later",
        found=f"position {found.number}",
        fix="restore the whole folder from one backup, so that checkpoint and journal match; or start over "
        "with --fresh; or set local.accept to older-journal to resume all the same",
    )
