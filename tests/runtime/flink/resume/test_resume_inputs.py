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
from flink_agents.runtime.flink.following.outputs import ListFile, link_to, new_link, remove_link
from flink_agents.runtime.flink.resume.checks import (
    GivenInputs,
    GivenList,
    as_recorded,
    check_lists,
    given_inputs,
    restarting_sources,
    warning_of,
)
from flink_agents.runtime.flink.resume.job_run import JobRun, Start
from tests.suite.tables import each_case


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
    ([1], None, "no longer has this list"),
]


def _describe_lists(*lists: Any) -> GivenInputs:
    return given_inputs([GivenList(records, "job.py:7") for records in lists if records is not None], ())


@each_case(("before", "now"), SAME, ids=repr)
def test_equal_lists_are_the_same(before: list[Any], now: list[Any]) -> None:
    run = JobRun("orders", inputs=_describe_lists(before).lists)
    assert JobRun.from_json(run.to_json()) == run
    check_lists(run, _describe_lists(now))


@each_case(("before", "now", "found"), OTHERS, ids=repr)
def test_a_changed_list_is_rejected(before: list[Any], now: list[Any] | None, found: str) -> None:
    run = JobRun("orders", inputs=_describe_lists([0], before).lists)
    with pytest.raises(InputChangedError, match=found) as caught:
        check_lists(run, _describe_lists([0], now))
    assert "list 2" in str(caught.value)


def test_a_job_run_from_before_lists_were_recorded_resumes() -> None:
    check_lists(JobRun("orders"), _describe_lists([1]))
    assert as_recorded([1]).length == 1


def test_sources_that_begin_anew_are_named() -> None:
    run = JobRun("orders")
    inputs = given_inputs((), ["Collection Source"])
    assert (
        warning_of(_describe_lists([1])) is None
        and restarting_sources(run, _describe_lists([1]), False) is None
    )
    assert "'Collection Source' keeps no position" in (warning_of(inputs) or "")
    assert "'Collection Source' starts over" in (restarting_sources(run, inputs, True) or "")
    with pytest.raises(SourceNotResumableError, match="Collection Source"):
        restarting_sources(run, inputs, False)


def _part(path: Path, *lines: tuple[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = [f"{place} {base64.b64encode(pickle.dumps(value)).decode()}\n" for place, value in lines]
    path.write_text("".join(text))


def test_outputs_are_read_in_their_order_through_a_link(tmp_path: Path) -> None:
    outputs = tmp_path / "my outputs"
    link = str(tmp_path / "link")
    link_to(outputs, link)
    _part(outputs / "0" / "part-b", ("1.0.1 -1", "first"), ("1.0.2 -1", "second"))
    _part(outputs / "0" / "part-a", ("1.1.1 1", "fourth"), ("1.0.3 0", "third"))
    _part(outputs / "0" / ".part-c.inprogress", ("1.0.9 1", "never committed"))
    link_to(outputs, link)
    assert ListFile(Path(link), "0", {1: None}).read() == ["first", "second", "third", "fourth"]
    assert ListFile(outputs, "1", {1: None}).read() == []
    remove_link(link)
    remove_link(link)
    remove_link(None)
    assert outputs.is_dir() and not Path(link).exists()
    assert new_link() != new_link()


LINES = ("1.0.1 -1", "1.0.2 1", "1.0.3 2", "2.0.1 2", "2.0.2 3", "3.0.1 1", "3.0.2 2", "1.0.2 1")
"""Place and last barrier of outputs: of three starts; one of them was committed twice."""

LINEAGES: list[tuple[str, list[tuple[int, int]], str]] = [
    ("no resumption", [(0, 0)], "1.0.1 1.0.2 1.0.3"),
    ("from the newest", [(0, 0), (1, 3)], "1.0.1 1.0.2 1.0.3 2.0.1 2.0.2"),
    ("from an older one", [(0, 0), (1, 2)], "1.0.1 1.0.2 2.0.1 2.0.2"),
    ("from the first one", [(0, 0), (1, 1)], "1.0.1 2.0.1 2.0.2"),
    ("from nothing", [(0, 0), (0, 0)], "2.0.1 2.0.2"),
    ("twice, each from the newest", [(0, 0), (1, 2), (2, 4)], "1.0.1 1.0.2 2.0.1 2.0.2 3.0.1 3.0.2"),
    ("the second time from an older one", [(0, 0), (1, 2), (2, 3)], "1.0.1 1.0.2 2.0.1 3.0.1 3.0.2"),
    ("from the start before the last", [(0, 0), (1, 2), (1, 1)], "1.0.1 3.0.1 3.0.2"),
    ("from a newer one of that start", [(0, 0), (1, 2), (1, 3)], "1.0.1 1.0.2 1.0.3 3.0.1 3.0.2"),
    ("the last start has no outputs", [(0, 0), (1, 2), (2, 3), (1, 2)], "1.0.1 1.0.2"),
    ("from the savepoint of another job", [(0, 77), (0, 77)], "2.0.1 2.0.2"),
]


@each_case(("starts", "wanted"), [row[1:] for row in LINEAGES], ids=[row[0] for row in LINEAGES])
def test_outputs_that_a_later_start_emits_again_do_not_count(
    starts: list[tuple[int, int]], wanted: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever times and names the files have: those of a copied folder say nothing."""
    outputs = tmp_path_factory.mktemp("outputs")
    for number, line in enumerate(LINES):
        _part(outputs / "0" / f"part-{number}", (line, line.partition(" ")[0]))
        os.utime(outputs / "0" / f"part-{number}", (10, 10))
    run = JobRun(
        "orders",
        starts=tuple(
            Start(number, f"{number}", "", 1, 1, parent=parent, resumed=resumed)
            for number, (parent, resumed) in enumerate(starts, 1)
        ),
    )
    lineage = JobRun.from_json(run.to_json()).lineage()
    places = ListFile(outputs, "0", lineage).read()
    numbers = {start.number for start in run.starts}
    assert places == [place for place in wanted.split() if int(place[0]) in numbers]
