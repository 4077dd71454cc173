"""The console's index: what is new, what is gone, and the same answers as the command line."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flink_agents.trace.erasing import erase_files
from flink_agents.trace.reading import by_run, read_files
from flink_agents.trace.rendering import run_row
from flink_agents.ui import queries
from flink_agents.ui.index import TraceIndex
from flink_agents.ui.queries import RunFilter
from flink_agents.ui.sources import Lines, Removed, TraceFiles
from tests.suite.tables import each_case
from tests.trace.test_trace_kills import explored, program
from tests.ui.samples import NOW, many, records_of_run, write

pytestmark = pytest.mark.own_conditions

STARTED = records_of_run(0, "sa", "running")[0].to_json().encode()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[TraceIndex]:
    trace_index = TraceIndex([TraceFiles(tmp_path)])
    yield trace_index
    trace_index.close()


def rows(index: TraceIndex, **asked: object) -> list[str]:
    run_rows, total = queries.find_runs(index, RunFilter(**asked))  # type: ignore[arg-type]
    assert total >= len(run_rows)
    return [row["status"] for row in run_rows]


def test_the_index_says_the_same_of_each_run_as_the_command_line(index: TraceIndex, tmp_path: Path) -> None:
    records = list(many(300, NOW))
    random.Random(3).shuffle(records)
    # Each record twice, in any order and any file: as after restarts.
    write(tmp_path, records[: len(records) // 2], "a-0")
    write(tmp_path, records[len(records) // 3 :], "b-0")
    index.refresh()
    expected = by_run(read_files(tmp_path))
    rows_by_id = {row["run_id"]: row for row in index.query("SELECT * FROM runs")}
    assert rows_by_id.keys() == expected.keys()
    for run_id, run in expected.items():
        row = rows_by_id[run_id]
        assert (row["status"], row["begun"], row["ended"]) == (run.status, run.begun, run.ended)
        assert row["calls"] == sum(record.kind == "call" for record in run.records)
        trace: Any = queries.find_run(index, run_id)
        assert {record.id for record in trace[1].records} == {record.id for record in run.records}


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("reverse", [False, True])
def test_the_index_says_the_same_of_runs_after_kills(
    reverse: bool, index: TraceIndex, tmp_path: Path
) -> None:
    rng = random.Random(7)
    wanted: dict[str, Any] = {}
    for number in range(12):
        kills = [kill for kill in explored(rng, program(rng)) if kill.after]
        kill = rng.choice(kills)
        remaining_count = rng.randint(0, len(kill.killed))
        name = f"{number:024x}"
        parts = [
            [replace(record, run_id=name, span_id=f"{name}{record.span_id}") for record in part]
            for part in (kill.before, kill.killed[:remaining_count], kill.after)
        ]
        for place, part in enumerate(parts[::-1] if reverse else parts):
            write(tmp_path, part, f"{number}-{place}")
            index.refresh()
        wanted |= by_run(record for part in parts for record in part)
    rows_by_id = {row["run_id"]: row for row in index.query("SELECT * FROM runs")}
    assert rows_by_id.keys() == wanted.keys()
    for run_id, run in wanted.items():
        row = rows_by_id[run_id]
        shown = run_row(run)
        assert row["calls"] == shown["calls"], run_id
        assert (row["status"], row["begun"], row["ended"]) == (run.status, run.begun, run.ended), run_id
        page = queries.find_run(index, run_id)[1]  # type: ignore[index]
        assert (page.records, page.last, page.spent(NOW)) == (run.records, run.last, run.spent(NOW)), run_id


def test_only_what_is_new_is_read(index: TraceIndex, tmp_path: Path) -> None:
    first = records_of_run(0, "sa", "suspended")
    file = write(tmp_path, first)
    index.refresh()
    assert rows(index) == ["suspended"]
    line = records_of_run(1, "sa", "completed")[-1].to_json()
    with file.open("a") as opened:
        opened.write(line[:50])
    index.refresh()
    assert rows(index) == ["suspended"]
    with file.open("a") as opened:
        opened.write(line[50:] + "\n")
    index.refresh()
    assert sorted(rows(index)) == ["completed", "suspended"]
    assert list(TraceFiles(tmp_path / "missing").read()) == []
    source = TraceFiles(tmp_path)
    assert [type(change) for change in source.read()] == [Lines]
    assert list(source.read()) == []


def test_a_run_that_resumes_runs_again(index: TraceIndex, tmp_path: Path) -> None:
    suspended_records = records_of_run(0, "sa", "suspended")
    # The start of the second segment has the id of the first one: readers drop it, the status does not.
    again = replace(suspended_records[0], time=NOW + 10)
    write(tmp_path, [*suspended_records, again])
    index.refresh()
    assert rows(index) == ["running"]
    write(tmp_path, [replace(suspended_records[-1], time=NOW + 20)])
    index.refresh()
    assert rows(index) == ["suspended"]
    write(tmp_path, [replace(records_of_run(0, "sa", "completed")[-1], time=NOW + 15)])
    index.refresh()
    assert rows(index) == ["completed"]


def test_files_that_are_removed_leave_the_index(index: TraceIndex, tmp_path: Path) -> None:
    removed_file = write(tmp_path, records_of_run(0, "sa", "completed"), "a-0")
    write(tmp_path, records_of_run(1, "sa", "dead-lettered"), "b-0")
    index.refresh()
    assert len(rows(index)) == 2
    removed_file.unlink()
    index.refresh()
    assert rows(index) == ["dead-lettered"]


def test_a_file_that_begins_anew_is_read_anew(tmp_path: Path) -> None:
    file = write(tmp_path, records_of_run(0, "sa", "completed"))
    source = TraceFiles(tmp_path)
    list(source.read())
    file.write_text(records_of_run(1, "sb", "running")[0].to_json() + "\n")
    assert [type(change) for change in source.read()] == [Removed, Lines]


def test_the_index_is_bounded(tmp_path: Path) -> None:
    index = TraceIndex([TraceFiles(tmp_path)], most=100)
    write(tmp_path, list(many(200, NOW)))
    index.refresh()
    row = index.query("SELECT count(*), max(id) - min(id) FROM records")[0]
    assert 50 < row[0] <= 100 and row[1] < 100
    newest = max(run.ended for run in by_run(read_files(tmp_path)).values())
    assert index.query("SELECT max(ended) FROM runs")[0][0] == newest
    index.close()


@each_case(
    "line",
    [
        b"{}",
        b"[]",
        b"\xff\xfe",
        b'{"version": 99}',
        b"nonsense",
        STARTED.replace(b'"sa"', b"7"),
        STARTED.replace(b'"sequence_number":0', b'"sequence_number":"x"'),
        STARTED.replace(b'"attributes":{}', b'"attributes":[]'),
        STARTED.replace(b'"time":', b'"time":1e999,"was":'),
    ],
)
def test_lines_that_are_no_records_are_counted(line: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("trace")
    (place / "a.trace.jsonl").write_bytes(line + b"\n")
    index = TraceIndex([TraceFiles(place)])
    index.refresh()
    assert (index.invalid, rows(index)) == (1, [])
    index.close()


@each_case(
    "asked, number",
    [
        ({}, 5),
        ({"status": "completed"}, 1),
        ({"agent": "orders"}, 4),
        ({"agent": "others"}, 0),
        ({"key": "sa"}, 3),
        ({"text": "100%"}, 1),
        ({"text": "0%"}, 1),
        ({"text": "1_0"}, 0),
        ({"text": "no stock"}, 2),
        ({"error": "OutOfStockError"}, 2),
        ({"since": 1.0}, 0),
        ({"slow": True, "status": "failed"}, 1),
        ({"page": 1}, 0),
        ({"text": "' OR 1=1 --"}, 0),
    ],
)
def test_runs_are_searched(
    asked: dict[str, object], number: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("trace")
    for place_number, (key, status) in enumerate(
        [("sa", "completed"), ("sa", "failed"), ("sa", "dead-lettered"), ("s100%", "suspended")]
    ):
        write(place, records_of_run(place_number, key, status))
    write(place, records_of_run(9, "sb", "running", agent="refunds"))
    index = TraceIndex([TraceFiles(place)])
    index.refresh()
    assert len(rows(index, **asked)) == number
    index.close()


def test_a_source_that_is_away_is_told_and_comes_back(tmp_path: Path) -> None:
    class Away(TraceFiles):
        away = True

        def read(self) -> Iterator[Lines | Removed]:
            if self.away:
                raise OSError("the broker is away")
            yield from super().read()

    source = Away(tmp_path)
    index = TraceIndex([source])
    index.refresh()
    assert "the broker is away" in index.problem
    source.away = False
    write(tmp_path, records_of_run(0, "sa", "completed"))
    index.refresh()
    assert (index.problem, rows(index)) == ("", ["completed"])
    index.close()


def everything(index: TraceIndex) -> list[list[tuple[object, ...]]]:
    names = "job, agent, kind, name, outcome, number"
    return [
        [tuple(row) for row in index.query(sql)]
        for sql in (f"SELECT {names} FROM counts ORDER BY {names}", "SELECT * FROM runs ORDER BY run_id")
    ]


@each_case("change", ["erased", "erased in an open file", "copied", "removed", "cut"])
def test_an_index_that_follows_changes_is_as_a_new_one(
    change: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("trace")
    file = write(
        place, [record for run in range(20) for record in records_of_run(run, f"sk{run}", "completed")]
    )
    whole = records_of_run(99, "stwo", "suspended")
    for number, part in enumerate((whole[:2], whole[2:])):
        write(place, part, f"part-{number}")
    index = TraceIndex([TraceFiles(place)])
    index.refresh()
    previous_state = everything(index)
    if change.startswith("erased"):
        os.utime(file, ns=(1, 1))
        assert erase_files(place, {"sk3", "stwo"}, 0.0 if change == "erased" else 1e-10).records == 8
    elif change == "copied":
        os.replace(shutil.copy(place / "part-0.trace.jsonl", place / "copy"), place / "part-0.trace.jsonl")
    elif change == "removed":
        (place / "part-1.trace.jsonl").unlink()
    else:
        os.truncate(file, 1000)
    index.refresh()
    fresh = TraceIndex([TraceFiles(place)])
    fresh.refresh()
    assert everything(index) == everything(fresh)
    assert (everything(index) == previous_state) == (change == "copied")
    index.close()
    fresh.close()


def test_the_index_is_bounded_while_a_source_is_read(tmp_path: Path) -> None:
    """A trace of 10 GB does not fit into the directory for temporary files."""
    most = 0

    class Long:
        def read(self) -> Iterator[Lines]:
            nonlocal most
            for start in range(0, 3000, 100):
                yield Lines("topic/0", [record.to_json().encode() for record in records[start : start + 100]])
                most = max(most, index.query("SELECT count(*) FROM records")[0][0])

        def close(self) -> None:
            pass

    records = list(many(1000, NOW))[:3000]
    index = TraceIndex([Long()], most=500)
    index.refresh()
    assert 400 < most <= 600
    index.close()


def test_a_line_that_never_ends_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines that lose their power leave files with millions of zeros."""
    monkeypatch.setattr("flink_agents.ui.sources.CHUNK", 1000)
    file = write(tmp_path, records_of_run(0, "sa", "completed"))
    with file.open("ab") as opened:
        opened.write(bytes(100_000))
    source = TraceFiles(tmp_path)
    assert sum(len(change.lines) for change in source.read() if isinstance(change, Lines)) == 5
    assert list(source.read()) == []
    with file.open("ab") as opened:
        opened.write(b"\n" + STARTED + b"\n")
    (more,) = source.read()
    assert isinstance(more, Lines) and [len(line) for line in more.lines] == [100_000, len(STARTED)]
