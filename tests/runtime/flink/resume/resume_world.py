"""The folder of a job after some starts, for tests of the next one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flink_agents.runtime.flink.resume.checkpoints import JobProgress, digest_of, key_of
from flink_agents.runtime.flink.resume.checks import SeenJournal
from flink_agents.runtime.flink.resume.java import CheckpointContent, StateFile
from flink_agents.runtime.flink.resume.job_run import JobFolder, JobRun, RunRecord, Start, iso_now
from flink_agents.runtime.flink.resume.policy import ScriptStart
from flink_agents.runtime.flink.resume.start_decision import Request, StartDecision, begin_start

PLANS = {"Shop": "a"}


REQUEST = Request("orders", None, PLANS)


class FreeLock:
    """A lock that nobody else has."""

    held = False

    def acquire(self) -> bool:
        """Take it."""
        self.held = True
        return True

    def release(self) -> None:
        """Let go of it."""
        self.held = False


def read(directory: Path) -> CheckpointContent:
    """Metadata that names the number, and the size of one file of state."""
    number, size = (directory / "_metadata").read_text().split()
    return CheckpointContent(int(number), (StateFile(directory / "state", int(size)),), frozenset())


class World:
    """The folder of a job after some starts.

    Args:
        path: Where folders are.
    """

    def __init__(self, path: Path) -> None:
        self.folder = JobFolder.for_job(path, "orders")
        self.folder.create()
        self.record = RunRecord(self.folder)
        self.run = JobRun("orders", identifier="orders", plans=PLANS)

    def start(self, *numbers: int, savepoint: int | None = None) -> None:
        """Add a start with these checkpoints."""
        start = Start(len(self.run.starts) + 1, f"{len(self.run.starts) + 1:032x}", iso_now(), 2, 1)
        self.run = self.record.write(replace(self.run, starts=(*self.run.starts, start)))
        for number in numbers:
            self._checkpoint(self.checkpoint(number, start.number), number)
        if savepoint is not None:
            self._checkpoint(self.folder.savepoints / str(start.number) / "savepoint-x", savepoint)
        self.progress(checkpoint=max(numbers, default=None))

    def resumed(self, number: int, parent: int, checkpoint: int) -> None:
        """Record that a start resumed from a checkpoint of an earlier one."""
        starts = list(self.run.starts)
        starts[number - 1] = replace(starts[number - 1], parent=parent, resumed=checkpoint)
        self.run = self.record.write(replace(self.run, starts=tuple(starts)))

    def checkpoint(self, number: int, start: int | None = None) -> Path:
        """Where a checkpoint is."""
        return self.folder.checkpoints / f"{start or len(self.run.starts):032x}" / f"chk-{number}"

    def _checkpoint(self, path: Path, number: int) -> None:
        path.mkdir(parents=True)
        (path / "state").write_text("12345")
        (path / "_metadata").write_text(f"{number} 5")

    def progress(self, checkpoint: int | None = None, journal: SeenJournal | None = None) -> None:
        """Write what the last start has seen."""
        paths = self.folder.checkpoints.glob("*/chk-*")
        digests = {key_of(path): digest_of(path) for path in paths}
        seen = JobProgress(len(self.run.starts), checkpoint, 0, journal, digests)
        self.folder.progress.write_text(seen.to_json())

    def begin(self, request: Request = REQUEST, script: ScriptStart | None = None) -> StartDecision:
        """Begin the next start."""
        return begin_start(self.folder, request, FreeLock(), read, script)


def chosen(beginning: StartDecision) -> int | None:
    """The number of the checkpoint that a start resumes from."""
    return None if beginning.chosen is None else beginning.chosen.content.number


def foreign_savepoint(directory: Path, files: str = "12345") -> Path:
    place = directory / "savepoint-of-a-cluster"
    place.mkdir()
    (place / "state").write_text(files)
    (place / "_metadata").write_text("77 5")
    return place
