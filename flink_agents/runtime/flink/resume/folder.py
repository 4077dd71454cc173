"""The folder in which a local job with a name keeps what its next start resumes from."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

STATE_DIR = Path(".flink-agents")
"""Where folders of jobs are, in the directory of the script, if ``local.state-dir`` says nothing else."""

JOBS = "jobs"
SET_ASIDE = "set-aside"
LONGEST_NAME = 120


def escaped(name: str) -> str:
    """Return the name of a job as one name of a directory, different for different names."""
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
    def of(cls, state_dir: Path, name: str) -> JobFolder:
        """Return the folder of the job ``name``, which need not exist."""
        return cls(state_dir.absolute() / JOBS / escaped(name))

    @property
    def record(self) -> Path:
        """The file with what is recorded of the job run."""
        return self.path / "job-run.json"

    @property
    def progress(self) -> Path:
        """The file with how far the job run has come, which a start writes again and again."""
        return self.path / "progress.json"

    @property
    def lock(self) -> Path:
        """The file that the process locks which runs the job. It stays; nobody else opens it."""
        return self.path / "lock"

    @property
    def journal(self) -> Path:
        """The journal of the store ``sqlite``."""
        return self.path / "journal.sqlite"

    @property
    def checkpoints(self) -> Path:
        """Flink's retained checkpoints, below the Flink id of each start."""
        return self.path / "checkpoints"

    @property
    def savepoints(self) -> Path:
        """Savepoints with which starts were stopped, below the number of each start."""
        return self.path / "savepoints"

    @property
    def outputs(self) -> Path:
        """Outputs that are collected into lists, for the whole job run."""
        return self.path / "outputs"

    def make(self) -> None:
        """Make the folder if it is not there.

        Raises:
            OSError: It cannot be made, or written to.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        probe = self.path / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()

    def set_aside(self) -> Path | None:
        """Move all but the lock to a folder of its own, and return that; None if there is nothing to move.

        The lock is left where it is: the process that moves the rest holds it.
        """
        found = [one for one in self.path.iterdir() if one != self.lock] if self.path.is_dir() else []
        if not found:
            return None
        target = self._aside()
        target.mkdir(parents=True)
        # The record goes last: if the process dies before, the next start still knows of the job run.
        for one in sorted(found, key=lambda path: path == self.record):
            one.rename(target / one.name)
        sync_directory(self.path)
        return target

    def _aside(self) -> Path:
        home = self.path.parent.parent / SET_ASIDE
        stem = f"{self.path.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        number = 1
        while (target := home / (stem if number == 1 else f"{stem}-{number}")).exists():
            number += 1
        return target


def sync_directory(path: Path) -> None:
    """Let a directory's entries survive a crash of the machine."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, text: str, durable: bool = True) -> None:
    """Replace a file: whoever reads it finds the old text or the new one, also after a crash.

    Args:
        path: The file.
        text: What it is to hold.
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
