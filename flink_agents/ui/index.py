"""The console's index of records: a file of SQLite, to which new records are added."""

from __future__ import annotations

import hashlib
import sqlite3
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors.trace import TraceFormatError
from flink_agents.trace.folding import unfold_records
from flink_agents.trace.reading import by_run
from flink_agents.trace.records import TraceRecord
from flink_agents.ui.merging import COLUMNS, RunRow, storable_text
from flink_agents.ui.settings import CHOSEN_JOB
from flink_agents.ui.sources import Lines, Source

_log = bounded_logger("flink_agents.ui")

BATCH = 1000
REPEATS = "\x00repeats"
"""Marks the place of records whose ids others have. They do not count."""

POLL_SECONDS = 0.5
MOST_RECORDS = 4_000_000
"""Maximum number of records in the index. Beyond it, the oldest ones are removed."""

_SCHEMA = f"""
CREATE TABLE runs (
    {", ".join(COLUMNS)},
    PRIMARY KEY (run_id)
) WITHOUT ROWID;
CREATE INDEX runs_ended ON runs (ended, job);
CREATE INDEX runs_status ON runs (status, ended, agent, job);
CREATE INDEX runs_agent ON runs (agent, ended, job);
CREATE INDEX runs_seconds ON runs (seconds, status, job);
CREATE INDEX runs_begun ON runs (begun, status, job) WHERE status IN ('running', 'waiting', 'suspended');
CREATE INDEX runs_key ON runs (key, sequence);
CREATE INDEX runs_error ON runs (error_class, ended) WHERE error_class != '';
CREATE TABLE records (id INTEGER PRIMARY KEY, name INTEGER UNIQUE, run_id TEXT, place TEXT, body BLOB);
CREATE INDEX records_run ON records (run_id);
CREATE TABLE counts (
    job, agent, kind, name, outcome, number, seconds, PRIMARY KEY (job, agent, kind, name, outcome)
);
CREATE INDEX runs_job ON runs (job);
"""

# Without the hint, SQLite copies a table that a query names twice. Before 3.35, it neither did nor knew it.
_AS = "AS NOT MATERIALIZED" if sqlite3.sqlite_version_info >= (3, 35) else "AS"

# In what follows, the names of the tables mean their rows of one job. The sign keeps the index of the order.
_OF_JOB = (
    f"WITH runs {_AS} (SELECT * FROM main.runs WHERE +job = ?), "
    f"counts {_AS} (SELECT * FROM main.counts WHERE job = ?)"
)


class TraceIndex:
    """Stores records in a temporary file. Readers never wait for the writer.

    Args:
        sources: The sources of records.
        most: Maximum number of records; beyond it, the oldest runs are removed.

    Attributes:
        invalid: Number of lines that were no records.
        problem: The last error of a source; empty if the last read of all sources succeeded.
        ready: Set when the records that existed at the start were read.
    """

    def __init__(self, sources: Sequence[Source] = (), most: int = MOST_RECORDS) -> None:
        self._sources = sources
        self._most = most
        self._directory = tempfile.TemporaryDirectory(prefix="flink-agents-ui-")
        self._path = Path(self._directory.name) / "index.sqlite"
        self._local = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._opening = threading.Lock()
        self._writing = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.invalid = 0
        self.problem = ""
        self.ready = threading.Event()
        self._writer = self._connect()
        self._writer.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;" + _SCHEMA)

    # -- reading ----------------------------------------------------------------------

    def query(self, sql: str, values: Iterable[Any] = ()) -> list[sqlite3.Row]:
        """Return the rows of a query about the chosen job. Thread-safe."""
        job = CHOSEN_JOB.get()
        return self.query_all(f"{_OF_JOB} {sql}", (job, job, *values)) if job else self.query_all(sql, values)

    def query_all(self, sql: str, values: Iterable[Any] = ()) -> list[sqlite3.Row]:
        """Return the rows of a query about all jobs. Thread-safe."""
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect()
            connection.execute("PRAGMA query_only=ON")
            connection.row_factory = sqlite3.Row
        return connection.execute(sql, tuple(values)).fetchall()

    def jobs(self) -> list[str]:
        """Return the identities of all jobs with runs."""
        # Each one is looked up in the index of SQLite: a scan of all runs would take long.
        jobs: list[str] = []
        sql = "SELECT job FROM main.runs WHERE job > ? ORDER BY job LIMIT 1"
        while rows := self.query(sql, [jobs[-1] if jobs else ""]):
            jobs.append(rows[0]["job"])
        return jobs

    def records(self, run_ids: Sequence[str]) -> Iterator[TraceRecord]:
        """Yield the records of the runs with these ids."""
        marks = ",".join("?" * len(run_ids))
        rows = self.query(f"SELECT body FROM records WHERE run_id IN ({marks}) ORDER BY id", run_ids)
        return unfold_records(TraceRecord.from_json(row["body"]) for row in rows)

    # -- following --------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread that reads the sources every :data:`POLL_SECONDS`."""
        self._thread = threading.Thread(
            target=self._follow_sources, name="flink-agents-ui-index", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread, close all connections and sources, and remove the file."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        for source in self._sources:
            source.close()
        with self._opening:
            for connection in self._opened:
                connection.close()
        self._directory.cleanup()

    def refresh(self) -> None:
        """Read the new records of all sources, and add them."""
        problem = ""
        for source in self._sources:
            try:
                for portion in source.read():
                    if isinstance(portion, Lines):
                        self._add_portion(portion)
                    else:
                        self._remove_records(storable_text(portion.place))
                    if self._closing.is_set():
                        return
            except Exception as error:  # a broker that is away: it may come back
                problem = f"{type(error).__name__}: {error}"
                _log.warning("the trace cannot be read: %s", problem)
        self.problem = problem
        self.ready.set()

    def _follow_sources(self) -> None:
        while not self._closing.is_set():
            self.refresh()
            self._closing.wait(POLL_SECONDS)

    # -- writing ----------------------------------------------------------------------

    def _add_portion(self, portion: Lines) -> None:
        lines = [line for line in portion.lines if line]
        for start in range(0, len(lines), BATCH):
            parsed_lines = list(self._parse_lines(lines[start : start + BATCH]))
            with self._writing, self._writer:
                self._add_records(parsed_lines, storable_text(portion.place))
            # At once: a source may have more records than fit.
            self._limit_size()

    def _parse_lines(self, lines: Iterable[bytes]) -> Iterator[tuple[TraceRecord, bytes]]:
        for line in lines:
            try:
                yield TraceRecord.from_json(line), line
            except TraceFormatError:
                self.invalid += 1

    def _add_records(self, parsed_lines: Sequence[tuple[TraceRecord, bytes]], place: str) -> None:
        """Store records, and update the rows of their runs and the counts.

        A record whose id is stored already is kept as a repeat, and does not count. The rows of such runs are
        created again from all of their records.
        """
        names = [_record_number(record.id) for record, _ in parsed_lines]
        stored_names = self._stored_names(names)
        stored_names |= self._stored_names(
            [
                _record_number(_repeated_name(pair[0]))
                for name, pair in zip(names, parsed_lines, strict=True)
                if name in stored_names
            ]
        )
        rows = self._read_rows({storable_text(record.run_id) for record, _ in parsed_lines})
        counts = Counts()
        new: list[tuple[int, str, str, bytes]] = []
        for name, (record, line) in zip(names, parsed_lines, strict=True):
            run_id = storable_text(record.run_id)
            row = rows.get(run_id)
            if row is None:
                row = rows[run_id] = _first_row(run_id, record)
            row.repeats |= record.replayed or name in stored_names
            if name in stored_names:
                # Readers choose one of the two.
                if (name := _record_number(_repeated_name(record))) not in stored_names:
                    stored_names.add(name)
                    new.append((name, run_id, place + REPEATS, line))
                continue
            stored_names.add(name)
            new.append((name, run_id, place, line))
            for unfolded_record in unfold_records([record]):
                row.add_record(unfolded_record)
                counts.count_record(row, unfolded_record)
        write = self._writer.executemany
        write("INSERT INTO records (name, run_id, place, body) VALUES (?, ?, ?, ?)", new)
        self._write_rows(rows.values(), counts)
        if repeats := [run_id for run_id, row in rows.items() if row.repeats]:
            self._rebuild_rows(repeats)

    def _write_rows(self, rows: Iterable[RunRow], counts: Counts) -> None:
        write = self._writer.executemany
        marks = ",".join("?" * len(COLUMNS))
        write(f"INSERT OR REPLACE INTO runs VALUES ({marks})", [row.values() for row in rows])
        on_conflict = (
            "ON CONFLICT DO UPDATE SET number = number + excluded.number, "
            "seconds = seconds + excluded.seconds"
        )
        write(f"INSERT INTO counts VALUES (?, ?, ?, ?, ?, ?, ?) {on_conflict}", counts.rows())

    def _remove_records(self, place: str) -> None:
        """Remove the records of a file that was removed or rewritten: its records may come again."""
        with self._writing, self._writer:
            counts = Counts(-1)
            runs = dict[str, RunRow]()
            for run_id, body in self._writer.execute(
                "SELECT run_id, body FROM records WHERE place = ?", (place,)
            ):
                record = TraceRecord.from_json(body)
                row = runs.setdefault(run_id, _first_row(run_id, record))
                for unfolded_record in unfold_records([record]):
                    counts.count_record(row, unfolded_record)
            places = place, place + REPEATS
            for (run_id,) in self._writer.execute("SELECT run_id FROM records WHERE place = ?", places[1:]):
                runs.setdefault(run_id, RunRow(run_id))
            self._writer.execute("DELETE FROM records WHERE place IN (?, ?)", places)
            names = list(runs)
            for start in range(0, len(names), BATCH):
                self._rebuild_rows(names[start : start + BATCH])
            self._write_rows((), counts)
            self._writer.execute("DELETE FROM counts WHERE number <= 0")

    def _rebuild_rows(self, run_ids: list[str]) -> None:
        """Create the rows of runs from all of their stored records."""
        self._query_values("DELETE FROM runs WHERE run_id IN", run_ids)
        rows = self._query_values("SELECT body FROM records WHERE run_id IN", run_ids)
        runs = by_run(unfold_records(TraceRecord.from_json(body) for (body,) in rows))
        self._write_rows([RunRow.from_run(run) for run in runs.values()], Counts())

    def _stored_names(self, names: list[int]) -> set[int]:
        rows = self._query_values("SELECT name FROM records WHERE name IN", names)
        return {row[0] for row in rows}

    def _read_rows(self, ids: set[str]) -> dict[str, RunRow]:
        rows = self._query_values(f"SELECT {', '.join(COLUMNS)} FROM runs WHERE run_id IN", list(ids))
        return {row[0]: RunRow(*row) for row in rows}

    def _query_values(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return self._writer.execute(f"{sql} ({','.join('?' * len(values))})", values).fetchall()

    def _limit_size(self) -> None:
        newest = self._writer.execute("SELECT max(id), min(id) FROM records").fetchone()
        if newest[0] is not None and newest[0] - newest[1] >= self._most:
            # A tenth at once: what follows reads all of the index.
            self._forget_runs("id <= ?", newest[0] - self._most * 9 // 10)

    def _forget_runs(self, which: str, value: Any) -> None:
        with self._writing, self._writer:
            self._writer.execute(f"DELETE FROM records WHERE {which}", (value,))
            self._writer.execute("DELETE FROM runs WHERE run_id NOT IN (SELECT run_id FROM records)")

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=30, check_same_thread=False)
        connection.execute("PRAGMA cache_size=-32000")
        with self._opening:
            self._opened.append(connection)
        return connection


def _repeated_name(record: TraceRecord) -> str:
    """Return the name under which a record is stored if another one has its id."""
    return f"{record.id}:{record.time}:{record.replayed}"


def _first_row(run_id: str, record: TraceRecord) -> RunRow:
    row = RunRow.from_record(record)
    row.run_id = run_id
    return row


class Counts:
    """Numbers and seconds of records by agent, kind, name and outcome, for the graphs.

    Args:
        sign: 1 to add records, -1 to remove them.
    """

    def __init__(self, sign: int = 1) -> None:
        self._sign = sign
        self._number = Counter[tuple[str, ...]]()
        self._seconds: defaultdict[tuple[str, ...], float] = defaultdict(float)

    def count_record(self, row: RunRow, record: TraceRecord) -> None:
        """Count a record of the run with this row, unless a replay repeated it."""
        if record.replayed:
            return
        what = row.job, row.agent, *map(storable_text, (record.kind, record.name, record.outcome))
        self._number[what] += self._sign
        self._seconds[what] += self._sign * (record.seconds or 0.0)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the counts as rows of their table."""
        return [(*what, number, self._seconds[what]) for what, number in self._number.items()]


def _record_number(name: str) -> int:
    """Return a number by the id of a record: an index of numbers is smaller than one of texts."""
    digest = hashlib.blake2b(storable_text(name).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
