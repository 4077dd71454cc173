"""What a job run reads and collects: lists that changed, sources that begin anew, files of outputs."""

from __future__ import annotations

import base64
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flink_agents.api.errors import InputChangedError, SourceNotResumableError
from flink_agents.runtime.flink.following.list_files import ListFile, drop_newer, link_to, new_link, unlink
from flink_agents.runtime.flink.resume.inputs import (
    GivenInputs,
    GivenList,
    as_recorded,
    check_lists,
    given_inputs,
    restarting_sources,
    warning_of,
)
from flink_agents.runtime.flink.resume.job_run import JobRun
from tests.suite.tables import each


@dataclass
class Order:
    number: int
    tags: set[str]


class Strange:
    """Nobody but pickle knows how to store it."""


RECORDS: list[Any] = [1, "a", {"b": 1, "a": {"x", "y"}}, Order(1, {"p", "q"})]

SAME = [
    ([], []),
    ([1, 2], [1, 2]),
    (RECORDS, [1, "a", {"a": {"y", "x"}, "b": 1}, Order(1, {"q", "p"})]),
    ([Strange()], [Strange()]),
]

OTHERS = [
    ([1, 2], [1, 2, 3], "3 records"),
    ([1, 2], [1], "1 records"),
    ([1, 2], [2, 1], "some differ"),
    ([1], [1.0], "some differ"),
    ([1], [True], "some differ"),
    (["a"], ["b"], "some differ"),
    ([Order(1, set())], [Order(2, set())], "some differ"),
    ([Strange()], [object], "some differ"),
    ([1], None, "no such list"),
]


def _given(*lists: Any) -> GivenInputs:
    return given_inputs([GivenList(records, "job.py:7") for records in lists if records is not None], ())


@each(("before", "now"), SAME, ids=repr)
def test_equal_lists_are_the_same(before: list[Any], now: list[Any]) -> None:
    run = JobRun("orders", inputs=_given(before).lists)
    assert JobRun.from_json(run.to_json()) == run
    check_lists(run, _given(now))


@each(("before", "now", "found"), OTHERS, ids=repr)
def test_a_changed_list_is_rejected(before: list[Any], now: list[Any] | None, found: str) -> None:
    run = JobRun("orders", inputs=_given([0], before).lists)
    with pytest.raises(InputChangedError, match=found) as caught:
        check_lists(run, _given([0], now))
    assert "list 2" in str(caught.value)


def test_a_job_run_from_before_lists_were_recorded_resumes() -> None:
    check_lists(JobRun("orders"), _given([1]))
    assert as_recorded([1]).length == 1


def test_sources_that_begin_anew_are_named() -> None:
    run, given = JobRun("orders"), given_inputs((), ["Collection Source"])
    assert warning_of(_given([1])) is None and restarting_sources(run, _given([1]), False) is None
    assert "'Collection Source' keeps no position" in (warning_of(given) or "")
    assert "'Collection Source' begins anew" in (restarting_sources(run, given, True) or "")
    with pytest.raises(SourceNotResumableError, match="Collection Source"):
        restarting_sources(run, given, False)


def _part(path: Path, *lines: tuple[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = [f"{place} {base64.b64encode(pickle.dumps(value)).decode()}\n" for place, value in lines]
    path.write_text("".join(text))


def test_outputs_are_read_in_their_order_through_a_link(tmp_path: Path) -> None:
    outputs, link = tmp_path / "my outputs", str(tmp_path / "link")
    link_to(outputs, link)
    _part(outputs / "0" / "part-b", ("1.0.1", "first"), ("1.0.2", "second"))
    _part(outputs / "0" / "part-a", ("1.1.1", "fourth"), ("1.0.3", "third"))
    _part(outputs / "0" / ".part-c.inprogress", ("1.0.9", "never committed"))
    link_to(outputs, link)
    assert ListFile(Path(link), 0).read() == ["first", "second", "third", "fourth"]
    assert ListFile(outputs, 1).read() == []
    unlink(link)
    unlink(link)
    unlink(None)
    assert outputs.is_dir() and not Path(link).exists()
    assert new_link() != new_link()


def test_outputs_behind_an_older_checkpoint_are_set_aside(tmp_path: Path) -> None:
    """The job puts them out again."""
    checkpoint, outputs = tmp_path / "chk-1", tmp_path / "outputs"
    checkpoint.mkdir()
    for name, at in (("0/part-a", 10), ("0/part-b", 30), ("1/part-c", 10)):
        _part(outputs / name, ("1.0.1", name))
        os.utime(outputs / name, (at, at))
    (checkpoint / "_metadata").touch()
    os.utime(checkpoint / "_metadata", (20, 20))
    assert drop_newer(outputs, checkpoint) == 1
    assert ListFile(outputs, 0).read() == ["0/part-a"] and ListFile(outputs, 1).read() == ["1/part-c"]
    assert drop_newer(outputs, None) == 2
    assert ListFile(outputs, 0).read() == ListFile(outputs, 1).read() == []
    assert drop_newer(tmp_path / "nothing", None) == 0
