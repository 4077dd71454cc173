"""The check of the cluster tests finds what it is there for."""

from __future__ import annotations

import os
from pathlib import Path

from tests.cluster.counting_check import CommittedOutput, expected_lines, judge

RECORDS = 30
KEYS = 4
GOOD = list(expected_lines(RECORDS, KEYS).values())


def test_the_model_itself_is_clean() -> None:
    verdict = judge(GOOD, RECORDS, KEYS)
    assert verdict.clean
    assert str(verdict) == "30 records; 0 lost; 0 duplicated; 0 out_of_order; 0 wrong"


def test_other_orders_of_keys_are_clean() -> None:
    assert judge(sorted(GOOD, key=lambda line: -int(line.split()[0])), RECORDS, KEYS).clean


def test_a_lost_line() -> None:
    verdict = judge(GOOD[:7] + GOOD[8:], RECORDS, KEYS)
    assert (len(verdict.lost), verdict.duplicated, verdict.clean) == (1, [], False)


def test_a_line_that_came_twice() -> None:
    verdict = judge([*GOOD, GOOD[3]], RECORDS, KEYS)
    assert (verdict.duplicated, verdict.lost, verdict.out_of_order) == ([GOOD[3]], [], [])


def test_two_lines_of_a_key_in_the_wrong_order() -> None:
    verdict = judge([GOOD[1], GOOD[0], *GOOD[2:]], RECORDS, KEYS)
    assert (verdict.out_of_order, verdict.duplicated, verdict.wrong) == ([GOOD[0]], [], [])


def test_wrong_counters_and_unknown_numbers() -> None:
    key, number, place, waited, digest = GOOD[5].split()
    forgot = f"{key} {number} {place} {int(waited) - 1} {digest}"
    verdict = judge([*GOOD[:5], forgot, *GOOD[6:], "0 4000 1 1 1"], RECORDS, KEYS)
    assert len(verdict.wrong) == 2
    assert verdict.lost == []


def test_output_counts_committed_files_once(tmp_path: Path) -> None:
    output = CommittedOutput(tmp_path / "out")
    assert output.count() == 0
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-b-0").write_text("1\n2\n")
    (tmp_path / "out" / ".part-b-1.inprogress").write_text("lost\n")
    assert output.count() == 2
    (tmp_path / "out" / "part-a-0").write_text("3\n")
    os.utime(tmp_path / "out" / "part-a-0", (2**33, 2**33))
    assert output.lines() == ["1", "2", "3"]
