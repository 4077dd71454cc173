"""The conformance suite finds what a store in files loses, tears or hides when the power fails."""

from __future__ import annotations

import pickle
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flink_agents.api.action_state import JournalKey, Owner, Record
from flink_agents.api.errors import StoreFormatError
from flink_agents.connectors.action_state.journals import Journal
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.testing.store_conformance import Stores
from flink_agents.testing.store_conformance.power_loss import PowerLossCases, tear_files
from tests.suite.tables import each_case

_FRAME = struct.Struct("<II")


class LogStore(MemoryStore):
    """A store with one log, without a defect. Only one is open at a time."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.log = directory / "log"

    async def open(self, owner: Owner | None) -> None:
        self._place = MemoryPlace()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        data = self.log.read_bytes() if self.log.exists() else b""
        entries, end = self.entries(data)
        self.recover(data, end)
        for entry in entries:
            self.apply(*entry)
        await super().open(owner)
        if not entries:
            self.write(("identity", self._place.store_id))

    def entries(self, data: bytes) -> tuple[list[Any], int]:
        entries: list[Any] = []
        at = 0
        while len(data) - at >= _FRAME.size:
            size, checksum = _FRAME.unpack_from(data, at)
            content = data[at + _FRAME.size : at + _FRAME.size + size]
            if not content or len(content) < size or zlib.crc32(content) != checksum:
                break
            entries.append(pickle.loads(content))
            at += _FRAME.size + size
        return entries, at

    def recover(self, data: bytes, end: int) -> None:
        self.log.write_bytes(data[:end])

    def write(self, *entries: Any) -> None:
        contents = [pickle.dumps(entry) for entry in entries]
        self.flush(b"".join(_FRAME.pack(len(content), zlib.crc32(content)) + content for content in contents))

    def flush(self, data: bytes) -> None:
        with open(self.log, "ab") as log:
            log.write(data)

    def apply(self, kind: str, *values: Any) -> None:
        if kind == "identity":
            [self._place.store_id] = values
        elif kind == "append":
            for record in values[1]:
                runs = self._place.journals.setdefault(values[0], Journal()).runs
                runs.setdefault(record.seq, []).append(record)
        elif kind == "prune":
            self._place.prune(values[0], values[1], self._removals)
        else:
            for journal in [
                journal_key for journal_key in self._place.journals if journal_key.journal_id == values[0]
            ]:
                del self._place.journals[journal]

    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        await super().append(journal, records)
        self.write(("append", journal, list(records)))

    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        await super().prune(journal, through_seq)
        self.write(("prune", journal, through_seq))

    async def forget(self, journal_id: str) -> None:
        await super().forget(journal_id)
        self.write(("forget", journal_id))


class NeverFlushes(LogStore):
    """Its bytes leave the process when it is closed."""

    buffered: ClassVar[dict[Path, bytes]] = {}

    def flush(self, data: bytes) -> None:
        self.buffered[self.log] = self.buffered.get(self.log, b"") + data

    async def close(self) -> None:
        await super().close()
        super().flush(self.buffered.pop(self.log, b""))


class FlushesEveryOtherAppend(NeverFlushes):
    def flush(self, data: bytes) -> None:
        if self.log in self.buffered:
            LogStore.flush(self, self.buffered.pop(self.log) + data)
        else:
            super().flush(data)


class FlushesOnlyAppends(LogStore):
    async def prune(self, journal: JournalKey, through_seq: int) -> None:
        await MemoryStore.prune(self, journal, through_seq)


class ForgetsInMemory(LogStore):
    async def forget(self, journal_id: str) -> None:
        await MemoryStore.forget(self, journal_id)


class WritesRecordByRecord(LogStore):
    async def append(self, journal: JournalKey, records: Sequence[Record]) -> None:
        await MemoryStore.append(self, journal, records)
        self.write(*(("append", journal, [record]) for record in records))


class KeepsTheTornEnd(LogStore):
    """What it appends later is hidden by the rest of a torn entry."""

    def recover(self, data: bytes, end: int) -> None:
        pass


class RejectsTheTornEnd(LogStore):
    def recover(self, data: bytes, end: int) -> None:
        if end < len(data):
            raise StoreFormatError("the log is damaged")


class ForgetsAllIfTorn(LogStore):
    def entries(self, data: bytes) -> tuple[list[Any], int]:
        entries, end = super().entries(data)
        return (entries, end) if end == len(data) else ([], 0)


class TrustsZeros(LogStore):
    def entries(self, data: bytes) -> tuple[list[Any], int]:
        entries, end = super().entries(data)
        if data[end:] and not any(data[end:]):
            raise ValueError("an entry is empty")
        return entries, end


class HasOneId(LogStore):
    async def open(self, owner: Owner | None) -> None:
        await super().open(owner)
        self._place.store_id = "8d3f3f6e-3f5b-4f0c-9f3c-0d3c0c2a7f11"


BROKEN = [
    NeverFlushes,
    FlushesEveryOtherAppend,
    FlushesOnlyAppends,
    ForgetsInMemory,
    WritesRecordByRecord,
    KeepsTheTornEnd,
    RejectsTheTornEnd,
    ForgetsAllIfTorn,
    TrustsZeros,
    HasOneId,
]
CASES = [name for name in dir(PowerLossCases) if name.startswith("test_")]


def failed_cases(store: Callable[[Path], MemoryStore], directory: Path) -> list[str]:
    failed: list[str] = []
    for name in CASES:
        case: Any = getattr(PowerLossCases(), name)
        place = directory / name
        try:
            case(Stores(lambda place=place: store(place), place))
        except (Exception, pytest.fail.Exception):
            failed.append(name)
    return failed


def test_a_log_without_a_defect_passes_all(tmp_path: Path) -> None:
    assert failed_cases(LogStore, tmp_path) == []


@each_case("store", BROKEN, ids=lambda store: store.__name__)
def test_a_defect_of_a_log_is_found(store: type[LogStore], tmp_path: Path) -> None:
    assert failed_cases(store, tmp_path / store.__name__)


def test_each_case_about_a_loss_of_power_finds_a_defect(tmp_path: Path) -> None:
    failing_cases = {name for store in BROKEN for name in failed_cases(store, tmp_path / store.__name__)}
    assert sorted(failing_cases) == CASES


def test_only_files_that_grew_are_torn() -> None:
    previous_files = {"log": b"one", "small": b"1", "same": b"s"}
    after = {"log": b"one, two", "small": b"22", "same": b"s", "new": b"n"}
    torn_files = list(tear_files(previous_files, after))
    assert {files["small"] for files in torn_files} == {b"22"} and {
        files["same"] for files in torn_files
    } == {b"s"}
    assert {files["log"] for files in torn_files} >= {b"one,", b"one, tw", b"one,\0\0\0\0", b"one, tw\0"}
    assert list(tear_files(previous_files, previous_files)) == []
