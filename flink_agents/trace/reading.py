"""Reads records from files, and groups them by run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from flink_agents.api.errors.trace import TraceError, TraceFormatError, TraceNotFoundError
from flink_agents.trace.durations import RunTimes, Spent, status_of, take_times, time_spent
from flink_agents.trace.folding import unfold_records
from flink_agents.trace.records import FINAL, STARTED, TraceRecord
from flink_agents.trace.sinks.jsonl import SUFFIX


@dataclass
class RunTrace:
    """All records of one run, without duplicates, ordered by time.

    Attributes:
        run_id: Id of the run.
        records: Records of the run.
        repeats: Further records of the same facts, from replays and other attempts, ordered by time.
    """

    run_id: str
    records: list[TraceRecord] = field(default_factory=list[TraceRecord])
    repeats: list[TraceRecord] = field(default_factory=list[TraceRecord])

    @property
    def last(self) -> TraceRecord:
        """The latest record about the whole run; without one, the latest record of all."""
        run_records = [record for record in self.records if record.kind == "run"]
        # What ends a run is the last word, whatever a clock of another machine says.
        ends = [record for record in run_records if record.outcome in FINAL]
        last = (ends or run_records or self.records)[-1]
        if not last.is_end:
            # A replay may have come to the same suspension.
            ends = [repeat for repeat in self.repeats if repeat.kind == "run" and repeat.is_end]
            later = [end for end in ends if end.time >= last.time]
            return [last, *later][-1]
        return last

    @property
    def status(self) -> str:
        """Its status, one of the six in ``STATUSES`` of ``records``, such as ``completed``."""
        return status_of(self.last)

    @property
    def begun(self) -> float:
        """Start of its first record, in seconds since the epoch."""
        return min(record.time - (record.seconds or 0.0) for record in (*self.records, *self.repeats))

    @property
    def ended(self) -> float:
        """Time of its last record, in seconds since the epoch."""
        return max(record.time for record in self.records)

    @property
    def seconds(self) -> float:
        """Time between its start and its last record, in seconds."""
        return self.ended - self.begun

    @property
    def times(self) -> RunTimes:
        """The times of its phases, and its status, computed from all records."""
        times = RunTimes(begun=self.begun, ended=self.ended)
        repeated = set(map(id, self.repeats))
        for record in sorted([*self.records, *self.repeats], key=_record_place) if repeated else self.records:
            if id(record) not in repeated:
                take_times(times, record)
            if record.kind == "run":
                times.status = status_of(record)
                times.decided = record.time
        times.status = self.status
        times.decided = self.last.time
        return times

    def spent(self, now: float | None = None) -> Spent:
        """Divide its time into parts; until ``now``, in seconds since the epoch, if it has not ended."""
        return time_spent(self.times, time.time() if now is None else now)

    def children(self) -> dict[str, list[TraceRecord]]:
        """Return the records of each span's children by the id of the span, in the order of their start."""
        children: dict[str, list[TraceRecord]] = {}
        for record in sorted(
            self.records, key=lambda span_record: span_record.time - (span_record.seconds or 0.0)
        ):
            if record.is_end and record.parent_id is not None:
                children.setdefault(record.parent_id, []).append(record)
        return children

    def roots(self) -> list[TraceRecord]:
        """Return the records whose parent has no record, except records of starts."""
        spans = {record.span_id for record in self.records if record.is_end}
        ends = [record for record in self.records if record.is_end]
        return [record for record in ends if record.parent_id is None or record.parent_id not in spans]


def read_files(place: Path, skipped: Callable[[TraceError], None] | None = None) -> Iterator[TraceRecord]:
    """Read a file of records, or all files of a directory. A truncated last line is skipped.

    Args:
        place: The file or directory.
        skipped: Receives the error of a line that is not a record, or of a file that cannot be read, and
            reading continues. Without it, the error is raised.

    Raises:
        TraceNotFoundError: The file does not exist, or the directory has no file of records.
        TraceFormatError: A line is not a record.
    """
    for file in trace_files(place):
        try:
            yield from unfold_records(_read_file(file, skipped))
        except FileNotFoundError:
            # The sink removed it meanwhile, to make room.
            continue
        except OSError as error:
            skip_error(unusable_file_error(file, error), skipped)


def trace_files(place: Path) -> list[Path]:
    """Return the files with records: the given one, or all in a directory and below it, sorted.

    Raises:
        TraceNotFoundError: There is none.
    """
    files = sorted(place.rglob(f"*{SUFFIX}")) if place.is_dir() else [place]
    # Others, such as pipes, can block for ever.
    if regular_files := [file for file in files if file.is_file()]:
        return regular_files
    raise TraceNotFoundError(
        f"there is no trace at {place}",
        expected=f"a file of records, or a directory with files *{SUFFIX}",
        found="nothing",
        fix="set trace.level for the job, and give the directory of its option trace.directory",
    )


def unusable_file_error(file: Path, error: OSError) -> TraceNotFoundError:
    """Return the error for a trace file that cannot be read or written, because of ``error``."""
    return TraceNotFoundError(
        f"the trace file {file} cannot be used",
        expected="a file of the sink jsonl, which the user that runs the job can read",
        found=f"{type(error).__name__}: {error}",
        fix="run the command as that user",
    )


def skip_error(error: TraceError, skipped: Callable[[TraceError], None] | None) -> None:
    """Pass an error to ``skipped``, or raise it without one."""
    if skipped is None:
        raise error
    skipped(error)


def _read_file(file: Path, skipped: Callable[[TraceError], None] | None) -> Iterator[TraceRecord]:
    with file.open("rb") as opened:
        for number, line in enumerate(opened, 1):
            if line == b"\n":
                continue
            try:
                yield TraceRecord.from_json(line)
            except TraceFormatError as error:
                # Without an end of line, the process that wrote it died, or is writing.
                if line.endswith(b"\n"):
                    skip_error(error.at(f"{file}:{number}"), skipped)


def by_run(records: Iterable[TraceRecord]) -> dict[str, RunTrace]:
    """Group records by run, whatever their order; return the runs by id, in the order of their start.

    Of several records of a span, the one that counts is from the execution, not from a replay; of several
    executions, from the last one. The others become ``repeats`` of the run.
    """
    records_by_run: dict[str, dict[object, TraceRecord]] = {}
    repeats: dict[str, list[TraceRecord]] = {}
    for record in records:
        run_records = records_by_run.setdefault(record.run_id, {})
        # Each segment of a run has a start, with the same id. A span has one end.
        name = record.span_id if record.is_end else record.id
        name = (name, record.time) if record.outcome == STARTED else name
        other_record = run_records.get(name)
        if other_record is not None:
            repeat, record = sorted((record, other_record), key=_record_rank)
            repeats.setdefault(record.run_id, []).append(repeat)
        run_records[name] = record
    runs = [
        _run_of(run, unique_records, repeats.get(run, [])) for run, unique_records in records_by_run.items()
    ]
    return {run.run_id: run for run in sorted(runs, key=lambda run: (run.begun, run.run_id))}


def _run_of(run_id: str, unique_records: dict[object, TraceRecord], repeats: list[TraceRecord]) -> RunTrace:
    repeats.sort(key=lambda repeat: (_record_place(repeat), repeat.to_json()))
    spans = {record.span_id for record in unique_records.values() if record.is_end}
    parents = {repeat.span_id: repeat.parent_id for repeat in repeats if repeat.parent_id in spans}
    records = [
        # The record of the agent that made the call was lost, and the journal does not name it.
        replace(record, parent_id=parents[record.span_id])
        if record.parent_id not in spans and record.span_id in parents
        else record
        for record in unique_records.values()
    ]
    return RunTrace(run_id, sorted(records, key=_record_place), repeats)


def _record_rank(record: TraceRecord) -> tuple[bool, bool, float, int, str]:
    executed = not record.replayed
    return record.outcome in FINAL, executed, record.time, record.attempt, record.to_json()


def _record_place(record: TraceRecord) -> tuple[float, bool, bool, str]:
    # Its own record is the last one of a run, but for that of its start.
    return record.time, record.kind == "run", record.outcome != STARTED, record.id
