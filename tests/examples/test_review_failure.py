"""The failure of ``--fail``: once, not before a checkpoint, and with a note of what came after."""

# pyright: reportMissingImports=false
from __future__ import annotations

from pathlib import Path

import pytest
import review_failure
from review_data import load_sample
from review_failure import FailOnce, InjectedFailureError

REVIEWS = load_sample()
MIDDLE = len(REVIEWS) // 2


@pytest.fixture
def fail_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FailOnce:
    monkeypatch.setattr(review_failure, "RUN_SECONDS", 0.0)
    return FailOnce(len(REVIEWS), tmp_path / "checkpoints", tmp_path)


def write_checkpoint(directory: Path, *, complete: bool) -> None:
    checkpoint = directory / "checkpoints" / "job" / "chk-1"
    checkpoint.mkdir(parents=True)
    if complete:
        (checkpoint / "_metadata").touch()


def read_from(fail_once: FailOnce, position: int) -> list[int]:
    return [fail_once.hand_on(review).number for review in REVIEWS[position:]]


def fail(fail_once: FailOnce, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, complete=True)
    with pytest.raises(InjectedFailureError, match=f"--fail: failing once, at snippet {MIDDLE + 1}"):
        read_from(fail_once, 0)


def test_does_not_fail_without_a_checkpoint(fail_once: FailOnce) -> None:
    assert read_from(fail_once, 0) == list(range(1, 34))
    assert not fail_once.restored()
    assert "did NOT fail" in fail_once.describe()


def test_a_checkpoint_that_is_being_written_is_none(fail_once: FailOnce, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, complete=False)
    assert read_from(fail_once, 0) == list(range(1, 34))


def test_fails_once_and_goes_on(fail_once: FailOnce, tmp_path: Path) -> None:
    fail(fail_once, tmp_path)
    assert read_from(fail_once, 10) == list(range(11, 34))
    assert fail_once.restored()
    assert fail_once.describe() == (
        "The job failed at snippet 17 and was restored from its checkpoint, at snippet 11."
    )


def test_a_new_beginning_is_no_restore(fail_once: FailOnce, tmp_path: Path) -> None:
    fail(fail_once, tmp_path)
    read_from(fail_once, 0)
    assert not fail_once.restored()
    assert "began ANEW, at snippet 1" in fail_once.describe()
