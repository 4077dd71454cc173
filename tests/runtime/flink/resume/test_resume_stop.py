"""A local job is stopped with a savepoint, by a Java whose answers are written down."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from flink_agents.api.settings.options import Configuration
from flink_agents.runtime.flink.resume import java, local_start as module
from flink_agents.runtime.flink.resume.job_run import JobFolder, JobRun, RunRecord, Start, iso_now
from flink_agents.runtime.flink.resume.local_start import LocalStart
from flink_agents.runtime.flink.resume.start_decision import StartDecision
from tests.suite.tables import each_case


class Free:
    """A lock that nobody else has."""

    def acquire(self) -> bool:
        """Take it."""
        return True

    def release(self) -> None:
        """Let go of it."""


@dataclass
class Flink:
    """Answers attempts to stop a job.

    Attributes:
        answers: What an attempt does: leaves a savepoint, and tells of it, or fails.
        tried: How many attempts there were.
        cancelled: True if the job was cancelled.
    """

    answers: list[tuple[bool, bool]]
    tried: int = 0
    cancelled: bool = False
    over: Callable[[], None] = lambda: None

    def stop(self, client: object, directory: Path, seconds: float) -> str:
        """Answer an attempt."""
        leaves, tells = self.answers[min(self.tried, len(self.answers) - 1)]
        self.tried += 1
        path = directory / f"savepoint-{self.tried}"
        if leaves:
            path.mkdir(parents=True)
            (path / "_metadata").touch()
        if tells:
            return str(path)
        if self.tried == len(self.answers):
            self.over()
        raise java.SavepointFailed("tasks are starting")

    def cancel(self, client: object) -> None:
        """Cancel the job."""
        self.cancelled = True


NOTHING = (False, False)
LEFT = (True, False)
TOLD = (True, True)

STOPS: list[tuple[str, list[tuple[bool, bool]], str | None, int]] = [
    ("at once", [TOLD], "savepoint-1", 1),
    ("while tasks start", [NOTHING, NOTHING, TOLD], "savepoint-3", 3),
    ("the job went on after a savepoint", [LEFT, TOLD], "savepoint-2", 2),
    ("complete when nobody waited any more", [NOTHING, LEFT], "savepoint-2", 2),
    ("the job finished by itself", [NOTHING], None, 1),
]


@each_case(("answers", "savepoint", "tried"), [row[1:] for row in STOPS], ids=[row[0] for row in STOPS])
def test_a_stop_is_tried_until_it_succeeds_and_is_never_taken_for_the_end(
    answers: list[tuple[bool, bool]],
    savepoint: str | None,
    tried: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = JobFolder.for_job(tmp_path_factory.mktemp("jobs"), "orders")
    folder.create()
    job_start = Start(1, "a" * 32, iso_now(), 1, 1)
    run = RunRecord(folder).write(JobRun("orders", identifier="orders", starts=(job_start,)))
    start = LocalStart(StartDecision(folder, run, "orders", {}, Free()), Configuration(), None)
    start._start, start._run, start._client = job_start, run, object()
    start._signals.code = signal.SIGTERM + 128
    # What the last attempt says comes when the job is over.
    flink = Flink(answers, over=start._over.set)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "STOP_AGAIN_SECONDS", 0.01)
        patch.setattr(java, "stop_with_savepoint", flink.stop)
        patch.setattr(java, "cancel_job", flink.cancel)
        start._stop_job()
    assert (flink.tried, flink.cancelled) == (tried, False)
    run_record = RunRecord(folder)
    if savepoint is None:
        start.record_finish([])
        assert (seen := run_record.read()) is not None and seen.finished is not None
        return
    with pytest.raises(SystemExit, match="143"):
        start.record_finish([])
    seen = run_record.read()
    assert seen is not None and seen.finished is None
    assert seen.starts == (replace(job_start, stopped=True),)
    # An attempt before it left nothing that counts as newer than a later checkpoint.
    assert [path.name for path in (folder.savepoints / "1").iterdir()] == [savepoint]


def test_a_stop_that_takes_too_long_cancels_the_job_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = JobFolder.for_job(tmp_path, "orders")
    folder.create()
    job_start = Start(1, "a" * 32, iso_now(), 1, 1)
    run = RunRecord(folder).write(JobRun("orders", identifier="orders", starts=(job_start,)))
    config = Configuration({"local.stop-timeout": "100 ms"})
    start = LocalStart(StartDecision(folder, run, "orders", {}, Free()), config, None)
    start._start, start._run, start._client = job_start, run, object()
    flink = Flink([NOTHING])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(java, "stop_with_savepoint", flink.stop)
        patch.setattr(java, "cancel_job", flink.cancel)
        start._stop_job()
    assert flink.cancelled
    assert "within 0.1 s: tasks are starting; the job is cancelled" in capsys.readouterr().err


@each_case("error", [None, KeyboardInterrupt(), ValueError("a typo")])
def test_a_process_that_lives_on_records_that_its_lock_proves_nothing_before_it_releases_it(
    error: BaseException | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = JobFolder.for_job(tmp_path_factory.mktemp("jobs"), "orders")
    folder.create()
    job_start = Start(1, "a" * 32, iso_now(), 1, 1, lock="boot:1:2")
    run = RunRecord(folder).write(JobRun("orders", identifier="orders", starts=(job_start,)))
    locks_at_release: list[str] = []

    class NotingLock(Free):
        def release(self) -> None:
            seen = RunRecord(folder).read()
            assert seen is not None and seen.last_start is not None
            locks_at_release.append(seen.last_start.lock)

    start = LocalStart(StartDecision(folder, run, "orders", {}, NotingLock()), Configuration(), None)
    start.__exit__(None if error is None else type(error), error, None)
    assert locks_at_release == [""]
    # If it cannot record that, only its end releases the lock.
    folder.record.unlink()
    start.__exit__(None, None, None)
    assert locks_at_release == [""]


BEGINNINGS = {
    "starting 'orders' over: its former data is in": JobRun("orders", 2, aside="set-aside/orders-1"),
    "'orders' has finished: this is job run 2": JobRun("orders", 2),
    "resuming 'orders' from the beginning": JobRun(
        "orders", 2, starts=(Start(1, "a" * 32, iso_now(), 1, 1),)
    ),
    "": JobRun("orders"),
}
"""What the console says of the start of a job run."""


@each_case(("says", "run"), list(BEGINNINGS.items()))
def test_a_start_says_whether_durable_steps_are_made_again(
    says: str, run: JobRun, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = JobFolder.for_job(tmp_path_factory.mktemp("jobs"), "orders")
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.console, "print_line", lines.append)
        module.say_beginning(StartDecision(folder, run, "orders", {}, Free()), None)
    assert [line.startswith(says) for line in lines[1:]] == ([True] if says else [])
