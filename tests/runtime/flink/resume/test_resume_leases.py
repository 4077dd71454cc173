"""The lease of a start whose process has ended is not waited for; that of any other start is."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from resume_world import PLANS, REQUEST, World, chosen

from flink_agents.runtime.flink.resume import job_run
from flink_agents.runtime.flink.resume.job_run import JobRun, Moment, Start, iso_now
from tests.suite.tables import each_case

SCRIPT = Path(__file__).with_name("leasing_process.py")


class Starter:
    """Starts processes of one job.

    Args:
        directory: The directory of their store and folders.
    """

    def __init__(self, directory: Path) -> None:
        self.state_dir = directory / "state"
        self.lease_seconds = 3600.0
        self._journal = directory / "journal.sqlite"
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, job_id: str, steps: int = 3, state_dir: Path | None = None) -> subprocess.Popen[str]:
        """Start a process, and let it do some of its steps."""
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(state_dir or self.state_dir), job_id],
            env={
                **os.environ,
                "JOURNAL": str(self._journal),
                "LEASE_SECONDS": str(self.lease_seconds),
                "PYTHONPATH": str(SCRIPT.parents[4]),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        for step in ("locked", "recorded", "open")[:steps]:
            if step != "locked":
                answer = self.next_step(process)
            else:
                assert process.stdout is not None
                answer = process.stdout.readline().strip()
            assert answer == step
        return process

    @staticmethod
    def next_step(process: subprocess.Popen[str]) -> str:
        """Let a process do its next step, and return what it prints."""
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    @staticmethod
    def kill(process: subprocess.Popen[str]) -> None:
        process.kill()
        process.wait()

    def end_all(self) -> None:
        for process in self._processes:
            with process:
                process.kill()


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(tmp_path)
    yield starter
    starter.end_all()


def test_a_start_after_a_kill_waits_for_no_lease_wherever_the_process_was_killed(starter: Starter) -> None:
    """The lease is an hour long."""
    starter.kill(starter.start("job-1"))
    starter.kill(starter.start("job-2", steps=1))
    starter.kill(starter.start("job-3", steps=2))
    fourth = starter.start("job-4")
    assert starter.next_step(fourth) == "appended"


def test_a_process_that_is_stopped_is_not_dead(starter: Starter) -> None:
    first = starter.start("job-1")
    first.send_signal(signal.SIGSTOP)
    second = starter.start("job-2", steps=0)
    assert second.stdout is not None and second.stdout.readline() == "JobFolderInUseError\n"
    first.send_signal(signal.SIGCONT)
    assert starter.next_step(first) == "appended"


def test_one_of_two_starts_at_once_replaces_a_killed_process(starter: Starter) -> None:
    starter.kill(starter.start("job-1"))
    both = [starter.start(job_id, steps=0) for job_id in ("job-2", "job-3")]
    answers = [process.stdout.readline().strip() for process in both if process.stdout is not None]
    assert sorted(answers) == ["JobFolderInUseError", "locked"]
    winner = both[answers.index("locked")]
    assert [starter.next_step(winner) for _ in range(3)] == ["recorded", "open", "appended"]


def test_a_copy_of_the_folder_proves_nothing_about_a_job_that_shares_the_store(starter: Starter) -> None:
    """As on another machine. The copy waits, sees that the lease is renewed, and has replaced nothing."""
    starter.lease_seconds = 1.5
    first = starter.start("job-1")
    copied_dir = starter.state_dir.with_name("copied")
    shutil.copytree(starter.state_dir, copied_dir)
    copy = starter.start("job-2", steps=2, state_dir=copied_dir)
    assert starter.next_step(copy) == "JobIdentifierInUseError"
    assert starter.next_step(first) == "appended"


# -- which starts are known to have ended -------------------------------------------------------


def _replace_lock(world: World) -> None:
    world.folder.lock.rename(world.folder.path / "former-lock")
    world.folder.lock.touch()


def _move_folder(world: World) -> None:
    home = world.folder.state_dir
    home.rename(home.with_name("moved"))
    world.folder = job_run.JobFolder.for_job(home.with_name("moved"), "orders")


def _copy_folder(world: World) -> None:
    home = world.folder.state_dir
    shutil.copytree(home, home.with_name("copied"))
    world.folder = job_run.JobFolder.for_job(home.with_name("copied"), "orders")


def _release_lock(world: World) -> None:
    world.record.set_start(lock="")


def _reboot(world: World) -> None:
    assert world.run.last_start is not None
    world.record.set_start(lock=world.run.last_start.lock.replace(Moment.now().boot, "another-boot"))


CHANGES: list[tuple[Callable[[World], None], bool]] = [
    (lambda world: None, True),
    (_move_folder, True),
    (_copy_folder, False),
    (_replace_lock, False),
    (_release_lock, False),
    (_reboot, False),
]


@each_case(("change", "dead"), CHANGES, ids=[change.__name__ for change, _ in CHANGES])
def test_a_start_has_ended_if_it_held_the_same_lock(
    change: Callable[[World], None], dead: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = World(tmp_path_factory.mktemp("jobs") / "state")
    world.folder.lock.touch()
    start = Start(1, "a" * 32, iso_now(), 1, 1, lock=world.folder.lock_identity())
    world.run = world.record.write(JobRun("orders", identifier="orders", plans=PLANS, starts=(start,)))
    change(world)
    beginning = world.begin()
    assert chosen(beginning) is None and beginning.ended_jobs == (["a" * 32] if dead else [])
    fresh = world.begin(replace(REQUEST, fresh=True))
    assert not fresh.run.starts and fresh.ended_jobs == beginning.ended_jobs


def test_a_system_without_an_id_of_its_boot_proves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(job_run, "_BOOT_ID", tmp_path / "none")
    world.folder.lock.touch()
    assert world.folder.lock_identity() == ""
    world.start(1)
    assert world.begin().ended_jobs == []
