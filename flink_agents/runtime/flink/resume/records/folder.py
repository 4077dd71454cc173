"""The folder of a named local job, with the data that its next start resumes from."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from flink_agents.api.errors.resume import JobFolderError

STATE_DIR = Path(".flink-agents")
"""Directory of the jobs' folders, in the directory of the script, unless ``local.state-dir`` is set."""

JOBS = "jobs"
SET_ASIDE = "set-aside"
SCRIPTS = "scripts"
LONGEST_NAME = 120


def escape_name(name: str) -> str:
    """Return the name of a job as a directory name; different names stay different."""
    text = quote(name, safe=" ()+,=@", errors="surrogatepass")
    if text.startswith((".", " ")):
        text = f"%{ord(text[0]):02X}{text[1:]}"
    if text.endswith(" "):
        text = f"{text[:-1]}%20"
    if len(text) > LONGEST_NAME:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        text = f"{text[:LONGEST_NAME]}%~{digest}"
    return text


@dataclass(frozen=True)
class JobFolder:
    """The folder of one job.

    Attributes:
        path: The folder, absolute.
    """

    path: Path

    @classmethod
    def for_job(cls, state_dir: Path, name: str) -> JobFolder:
        """Return the folder of the job ``name``, which need not exist."""
        return cls(state_dir.absolute() / JOBS / escape_name(name))

    @property
    def state_dir(self) -> Path:
        """The directory of the jobs of a script."""
        return self.path.parent.parent

    @property
    def record(self) -> Path:
        """The file with the record of the job run."""
        return self.path / "job-run.json"

    @property
    def progress(self) -> Path:
        """The file with the progress of the job run, which a start writes repeatedly."""
        return self.path / "progress.json"

    @property
    def lock(self) -> Path:
        """The file that the process running the job locks.

        It is never removed, and only that process opens it.
        """
        return self.path / "lock"

    @property
    def journal(self) -> Path:
        """The journal of the store ``sqlite``."""
        return self.path / "journal.sqlite"

    @property
    def checkpoints(self) -> Path:
        """Flink's retained checkpoints, in directories named by the Flink id of each start."""
        return self.path / "checkpoints"

    @property
    def savepoints(self) -> Path:
        """Savepoints with which starts were stopped, in directories named by the number of each start."""
        return self.path / "savepoints"

    @property
    def outputs(self) -> Path:
        """Outputs that are collected into lists, for the whole job run."""
        return self.path / "outputs"

    def create(self) -> None:
        """Create the folder if it does not exist.

        Raises:
            OSError: It cannot be created, or written to.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        probe = self.path / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()

    def place_aside(self) -> str | None:
        """Create a directory for the old data, with a copy of the record.

        Returns:
            Its path below the directory of the jobs; None if there is nothing to move.
        """
        if not any(path != self.lock for path in self.path.iterdir()):
            return None
        target = self._free_aside_path()
        target.mkdir(parents=True)
        if self.record.exists():
            shutil.copy2(self.record, target)
        return str(target.relative_to(self.state_dir))

    def set_aside(self, place: str) -> None:
        """Move everything except the lock and the record to a directory; repeat it after a crash.

        The lock stays: this process holds it.

        Args:
            place: The result of :meth:`place_aside`.
        """
        target = self.state_dir / place
        target.mkdir(parents=True, exist_ok=True)
        for path in self.path.iterdir():
            if path not in (self.lock, self.record):
                path.rename(target / path.name)
        sync_directory(self.path)

    def _free_aside_path(self) -> Path:
        home = self.state_dir / SET_ASIDE
        stem = f"{self.path.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        number = 1
        while (target := home / (stem if number == 1 else f"{stem}-{number}")).exists():
            number += 1
        return target


def unusable_directory_error(path: Path, error: OSError) -> JobFolderError:
    """Return the error about a directory that cannot be created, or written to."""
    return JobFolderError(
        f"the folder of the job cannot be used: {path}",
        found=str(error),
        fix="set local.state-dir to a directory that you may write to, on a disk with free space",
    )


def find_leftovers(folder: JobFolder) -> list[str]:
    """Return the names of data that a job run has left in its folder."""
    parts = (folder.progress, folder.journal, folder.checkpoints, folder.savepoints, folder.outputs)
    return [part.name for part in parts if part.exists()]


def record_gone(folder: JobFolder, remaining_names: list[str]) -> JobFolderError:
    """Return the error about a folder that has data, but no record of its job run."""
    return JobFolderError(
        f"the record of the job run is gone: {folder.record}",
        expected="the record, or an empty folder",
        found=", ".join(remaining_names),
        fix="restore the whole folder from a backup, or start over with --fresh, which moves it aside",
    )


def sync_directory(path: Path) -> None:
    """Make a directory's entries survive a crash of the machine."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, text: str, durable: bool = True) -> None:
    """Replace a file atomically: a reader gets the old or the new text, also after a crash.

    Args:
        path: The file.
        text: The new content.
        durable: Wait until the new text survives a crash of the machine.
    """
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    new.replace(path)
    if durable:
        sync_directory(path.parent)
