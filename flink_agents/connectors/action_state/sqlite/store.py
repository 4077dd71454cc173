"""The store ``sqlite``: one file on a local disk, for jobs whose subtasks run on one machine.

Several subtasks and several processes share the file. Network file systems are not supported:
SQLite's log needs memory that all processes share. An append costs one disk flush at low
load; at high load many share one (:mod:`~flink_agents.connectors.action_state.sqlite.writer`).

The file grows with its records: pruning frees pages, which new records reuse, and of which many
are returned to the file system. The last fully pruned journals keep one small row each
(:mod:`~flink_agents.connectors.action_state.sqlite.removals`).
"""

from __future__ import annotations

import asyncio
import functools
import sqlite3
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from typing_extensions import override

from flink_agents.api.action_state import (
    MAX_RECORD_BYTES,
    REMOVALS,
    JournalInfo,
    JournalKey,
    Owner,
    Record,
    StoreStats,
    check_records,
    closed_error,
    in_use_error,
)
from flink_agents.api.errors import JournalOutdatedError, StoreMismatchError
from flink_agents.api.settings.stores import read_options
from flink_agents.connectors.action_state.group_writer import OnEnd
from flink_agents.connectors.action_state.sqlite import reader
from flink_agents.connectors.action_state.sqlite.file import (
    open_file,
    read_store_id,
    stored_bytes,
    translate,
)
from flink_agents.connectors.action_state.sqlite.writer import (
    Forget,
    OtherLease,
    SqliteWrite,
    SQLiteWriter,
    all_owners,
    claim_file,
)
from flink_agents.connectors.action_state.threaded import ThreadedStore

T = TypeVar("T")

CLOSE_SECONDS = 10.0
"""Time that :meth:`~SQLiteStore.close` waits for the disk."""

_ID_BYTES = 16
_POSITION_BYTES = 8

POLLS_PER_LEASE = 40
"""Number of checks per lease by a job that waits for another job's lease."""


class SQLiteStore(ThreadedStore[SqliteWrite]):
    """A store in one file. It is opened once.

    Args:
        path: The file, on a local disk.
        lease_seconds: Seconds that another job waits for this one after a crash.
        busy_seconds: Seconds that an append waits for other writers.
        max_record_bytes: Maximum size of a record's data in bytes.
        removals: Minimum number of fully pruned journals that the store remembers, to reject states that are
            too old.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        lease_seconds: float = 10.0,
        busy_seconds: float = 30.0,
        max_record_bytes: int = MAX_RECORD_BYTES,
        removals: int = REMOVALS,
    ) -> None:
        self.path = Path(path).expanduser().absolute()
        super().__init__(str(self.path), CLOSE_SECONDS)
        self._lease_seconds = lease_seconds
        self._busy_seconds = busy_seconds
        self._max_record_bytes = max_record_bytes
        self._removals = removals
        self._store_id = ""
        self._marker = b""
        self._known_hashes: frozenset[int] | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> SQLiteStore:
        """Return a store for options by their names below ``action-state.sqlite.``."""
        values = read_options("sqlite", options)
        return cls(
            values["path"],
            lease_seconds=values["lease"].total_seconds(),
            busy_seconds=values["busy-timeout"].total_seconds(),
            max_record_bytes=values["max-record-bytes"],
            removals=values["max-tombstones"],
        )

    @property
    @override
    def store_id(self) -> str:
        """UUID of the file; a copy of the file has the same one."""
        self._require_open()
        return self._store_id

    @property
    @override
    def max_record_bytes(self) -> int:
        return self._max_record_bytes

    @override
    def metrics(self) -> Mapping[str, int]:
        return self.measured.values()

    # -- open -------------------------------------------------------------------------

    async def _connect(
        self, owner: Owner | None, opened: list[Callable[[], object]]
    ) -> tuple[Callable[[OnEnd], SQLiteWriter], list[Callable[[], object]]]:
        self._connection = await self._in_thread(lambda: self._open_file(owner, opened))
        writer_connection = await self._in_thread(lambda: self._open_file(owner, opened))
        self._store_id = await self._run_query(read_store_id)
        self._marker = uuid.UUID(self._store_id).bytes
        if owner is not None:
            await self._claim_file(owner)
            self._known_hashes = await self._run_query(reader.known_journals)
        create_writer = functools.partial(
            SQLiteWriter,
            writer_connection,
            self.path,
            owner,
            asyncio.get_running_loop(),
            self._lease_seconds,
            self._busy_seconds,
            self._removals,
            self.measured,
        )
        return create_writer, [self._connection.close]

    def _open_file(self, owner: Owner | None, opened: list[Callable[[], object]]) -> sqlite3.Connection:
        connection = open_file(self.path, owner is not None, self._busy_seconds)
        opened.append(connection.close)
        return connection

    async def _claim_file(self, owner: Owner) -> None:
        """Become the owner that may append; wait for the lease of another job, if that no longer renews it.

        Raises:
            JobIdentifierInUseError: Another job renews its lease, so it is alive.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        first_leases: frozenset[OtherLease] = frozenset()
        ended: frozenset[OtherLease] = frozenset()
        while True:
            try_claim = functools.partial(
                claim_file,
                owner=owner,
                lease_seconds=self._lease_seconds,
                busy_seconds=self._busy_seconds,
                ended=ended,
            )
            alive = await self._run_query(try_claim)
            if not alive:
                return
            first_leases = first_leases or alive
            if renewed := alive - first_leases:
                raise in_use_error(owner, min(renewed).job_id)
            if loop.time() - started >= max(lease.seconds for lease in alive):
                ended = first_leases
            await asyncio.sleep(min(lease.seconds for lease in alive) / POLLS_PER_LEASE)

    # -- writing ----------------------------------------------------------------------

    @override
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        writer = self._writer
        if writer is None or self._closed or self._owner is None or self._ended.done():
            writer = self._require_owned()
        records = tuple(records)
        check_records(records, self._max_record_bytes)
        if records:
            await writer.submit_with_future(SqliteWrite(journal, records))

    @override
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        await self._require_open().submit_with_future(SqliteWrite(journal, (), through_seq))

    @override
    async def forget(self, journal_id: str) -> None:
        writer = self._require_owned()
        await writer.submit_with_future(Forget(journal_id))

    # -- reading ----------------------------------------------------------------------

    async def _run_query(self, question: Callable[..., T], *arguments: Any) -> T:
        """Return ``question(connection, *arguments)``, called on the reader thread.

        Raises:
            StoreError: SQLite or the file system failed.
            StoreClosedError: The connection is closed.
        """
        try:
            return await self._in_thread(lambda: question(self._connection, *arguments))
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, sqlite3.ProgrammingError):
                raise closed_error() from error
            raise translate(error, self.path) from error

    @override
    async def scan(
        self, journal: JournalKey, from_seq: int | None = None, to_seq: int | None = None
    ) -> list[Record]:
        self._require_open()
        return await self._run_query(reader.scan_records, journal, from_seq, to_seq)

    @override
    async def pruned_through(self, journal: JournalKey) -> int:
        self._require_open()
        return await self._run_query(reader.pruned_through, journal)

    @override
    def may_have(self, journal: JournalKey, marker: bytes | None = None, pending: bool = True) -> bool:
        if self._writer is None or self._closed or self._ended.done():
            self._require_open()
        return self._known_hashes is None or hash(journal) in self._known_hashes

    @override
    async def rebuild(
        self, journal: JournalKey | None = None, marker: bytes | None = None, pending: bool = True
    ) -> None:
        """Check that state belongs to this file, and that the file is not older than that state.

        Nothing is read: queries go to the file. The arguments ``journal`` and ``pending`` have no effect.

        Raises:
            StoreMismatchError: The state belongs to another file.
            JournalOutdatedError: The file is an older copy.
        """
        self._require_open()
        if marker is not None and marker[:_ID_BYTES] != self._marker:
            raise StoreMismatchError(
                f"the state to restore belongs to another store than {self.path}",
                expected=f"store {self._store_id}",
                found=_describe_marker(marker),
                fix="configure the path of the file that the job used before",
            )
        if marker is not None:
            await self.check_position(marker[_ID_BYTES:])

    @override
    def recovery_marker(self, journal: JournalKey) -> bytes:
        """Return the id and the position of the file, by which a later attempt detects an older copy."""
        writer = self._writer
        if not isinstance(writer, SQLiteWriter):
            raise closed_error()
        if self._closed or self._ended.done():
            self._require_open()
        return self._marker + writer.position.to_bytes(_POSITION_BYTES, "big")

    @override
    def position(self) -> bytes:
        """Return the number of transactions that have appended records, as last read, in 8 bytes."""
        writer = self._writer
        if not isinstance(writer, SQLiteWriter):
            raise closed_error()
        return writer.position.to_bytes(_POSITION_BYTES, "big")

    @override
    async def check_position(self, position: bytes) -> None:
        seen, present = (
            int.from_bytes(position_bytes, "big") for position_bytes in (position, self.position())
        )
        if seen > present:
            raise JournalOutdatedError(
                f"the file {self.path} is an older copy: durable steps that it lacks would be repeated",
                expected=f"position {seen} or later",
                found=f"position {present}",
                fix="restore the file and the checkpoint from one backup, or start without that state",
            )

    @override
    async def journals(
        self, journal_id: str | None = None, after: JournalKey | None = None, limit: int = 1000
    ) -> list[JournalInfo]:
        self._require_open()
        return await self._run_query(reader.list_journals, journal_id, after, limit)

    @override
    async def stats(self) -> StoreStats:
        self._require_open()
        journals, records, data_bytes = await self._run_query(reader.read_totals)
        owners = await self._run_query(all_owners)
        size = await self._in_thread(lambda: stored_bytes(self.path))
        return StoreStats(journals, records, data_bytes, size, owners)


def _describe_marker(marker: bytes) -> str:
    if len(marker) != _ID_BYTES + _POSITION_BYTES:
        return f"a marker of {len(marker)} bytes"
    return f"store {uuid.UUID(bytes=marker[:_ID_BYTES])}"
