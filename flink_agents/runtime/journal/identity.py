"""The identity of journals: the name of those of an agent in a job, and the position of those in a file.

The name is the ``journal_id`` of a store, and the group whose owners exclude each other. It is ``job/agent``,
which can be split at the last slash, if the name of the agent has no slash. If it has one, the parts are
written with their length. So no two pairs of names give the same string.

A store ``sqlite`` counts the transactions that append records. The number is stored in the file,
and never decreases; so a copy with a lower number than was seen lacks records.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

_FLINK_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_SIZED = re.compile(r"([0-9]+):", re.ASCII)


def journal_name(job: str, agent: str) -> str:
    """Return the name of the journals of an agent in a job.

    Args:
        job: Identity of the job: its ``job-identifier``, or Flink's id at the first start.
        agent: Name of the agent.
    """
    if "/" not in agent:
        return f"{job}/{agent}"
    # This form has no slash, so it differs from all names above.
    job = _escaped(job)
    agent = _escaped(agent)
    return f"{len(job)}:{job}:{agent}"


def split_journal_name(name: str) -> tuple[str, str]:
    """Return job and agent of a journal name; the whole text and an empty agent if it is no such name."""
    if "/" in name:
        job, _, agent = name.rpartition("/")
        return job, agent
    sized = _SIZED.match(name)
    if sized is not None:
        begin = sized.end()
        # No name is longer than 9 digits can express, and int() rejects very long numbers.
        end = begin + int(sized[1][:9])
        job = _unescaped(name[begin:end])
        agent = _unescaped(name[end + 1 :])
        if journal_name(job, agent) == name:
            return job, agent
    return name, ""


def is_flink_job_id(text: str) -> bool:
    """Return True if ``text`` has the form of Flink's job ids, which no ``job-identifier`` has."""
    return _FLINK_ID.fullmatch(text) is not None


def _escaped(text: str) -> str:
    """Return ``text`` without slashes."""
    return text.replace("%", "%25").replace("/", "%2F")


def _unescaped(text: str) -> str:
    """Return the text that :func:`_escaped` got."""
    return text.replace("%2F", "/").replace("%25", "%")


POSITION = "position"
"""The name of the position in the table ``meta`` of a store ``sqlite``."""


@dataclass(frozen=True)
class JournalPosition:
    """The position of the journals of a store.

    Attributes:
        store_id: Id of the store.
        number: Number of transactions that have appended records.
    """

    store_id: str
    number: int


def journal_position(path: Path) -> JournalPosition:
    """Return the position of the journals in the file ``path``.

    Raises:
        sqlite3.Error: There is no such file, or it cannot be read.
    """
    with closing(_connected(path)) as connection:
        metadata = dict(connection.execute("SELECT name, value FROM meta").fetchall())
    return JournalPosition(str(metadata.get("store_id", "")), int(metadata.get(POSITION, 0)))


def raise_position(path: Path, number: int) -> None:
    """Set the position in the file ``path``, so that an older copy with missing records is accepted.

    Raises:
        sqlite3.Error: The file cannot be written.
    """
    with closing(_connected(path)) as connection, connection:
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (POSITION, str(number)))


def _connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=5.0)
