"""The folder of a local job, and the record of its job run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flink_agents.api.errors import JobFolderError
from flink_agents.runtime.flink.resume.job_run import (
    BoundedInput,
    JobFolder,
    JobRun,
    RunRecord,
    Start,
    escape_name,
    write_atomically,
)
from tests.suite.tables import each_case

NAMES = [
    "orders",
    "a/b",
    "a%2Fb",
    "..",
    ".",
    "",
    " x",
    "x ",
    "a" * 300,
    "a" * 301,
    "Zahlung für Köln",
    "\udc80",
    "a\nb",
]

NO_RECORDS = [
    "",
    "{",
    "[]",
    "{}",
    '{"version": 2, "name": "x"}',
    '{"version": 1}',
    '{"version": 1, "name": "x", "starts": [1]}',
]


def test_each_name_has_a_folder_of_its_own() -> None:
    folder_names = {escape_name(name) for name in NAMES if name}
    assert len(folder_names) == len(NAMES) - 1
    for name in folder_names:
        assert "/" not in name and name not in (".", "..") and len(name.encode()) < 255
        assert name == name.strip()


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = JobFolder.for_job(tmp_path, "orders")
    folder.create()
    record = RunRecord(folder)
    assert record.read() is None
    run = JobRun(
        "orders",
        generation=2,
        starts=(Start(1, "ab" * 16, "2026-01-01T00:00:00Z", 2, 7),),
        inputs={"list": BoundedInput(3, "d")},
        outputs={"0": {"file": "x"}},
        plans={"Shop": "f"},
    )
    record.write(run)
    assert record.read() == run
    assert record.set(checkpointed=True) == record.read() == replace(run, checkpointed=True)


def test_a_record_that_is_none_is_an_error(tmp_path: Path) -> None:
    folder = JobFolder.for_job(tmp_path, "orders")
    folder.create()

    @each_case("text", NO_RECORDS, ids=repr)
    def check(text: str) -> None:
        folder.record.write_text(text)
        with pytest.raises(JobFolderError, match="FA3201"):
            RunRecord(folder).read()

    check()


def test_setting_aside_keeps_everything_but_the_lock(tmp_path: Path) -> None:
    folder = JobFolder.for_job(tmp_path, "orders")
    folder.create()
    folder.lock.touch()
    assert folder.place_aside() is None
    folder.record.write_text("1")
    (folder.checkpoints / "a").mkdir(parents=True)
    first = folder.place_aside()
    assert first is not None
    folder.set_aside(first)
    folder.set_aside(first)  # a process died after it had moved all
    folder.record.write_text("2")
    second = folder.place_aside()
    assert second is not None and first != second
    assert sorted(path.name for path in (tmp_path / first).iterdir()) == ["checkpoints", "job-run.json"]
    assert sorted(path.name for path in folder.path.iterdir()) == ["job-run.json", "lock"]
    assert (tmp_path / second / "job-run.json").read_text() == "2"


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_atomically(path, "one")
    write_atomically(path, "two", durable=False)
    assert path.read_text() == "two"
    assert [file.name for file in tmp_path.iterdir()] == ["x"]
