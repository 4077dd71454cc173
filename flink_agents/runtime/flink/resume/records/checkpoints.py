"""Finds the checkpoint, or savepoint, that a start resumes from."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from flink_agents.runtime.flink.resume.records.folder import JobFolder
from flink_agents.runtime.flink.resume.records.java import CheckpointContent
from flink_agents.runtime.flink.resume.records.job_run import JobRun, Start

METADATA = "_metadata"
"""Flink writes this file last, so a checkpoint with it is complete."""

_DIRECTORY = re.compile(r"chk-(\d+)")


@dataclass(frozen=True)
class Candidate:
    """A complete checkpoint or savepoint.

    Attributes:
        path: Its directory.
        start: The number of the start that took it; 0 if another job took it.
        number: Its number, if the directory's name has it; savepoints are the newest of their start.
        savepoint: True if it is a savepoint.
    """

    path: Path
    start: int
    number: float
    savepoint: bool = False

    @property
    def completed_at(self) -> datetime:
        """The time of its completion, in local time."""
        return datetime.fromtimestamp((self.path / METADATA).stat().st_mtime)


@dataclass(frozen=True)
class Chosen:
    """The checkpoint to resume from.

    Attributes:
        candidate: The checkpoint or savepoint.
        content: Its metadata.
        damaged: Newer damaged ones, each with the reason, newest first.
    """

    candidate: Candidate
    content: CheckpointContent
    damaged: tuple[tuple[Candidate, str], ...] = ()

    @property
    def title(self) -> str:
        """Its name in the console."""
        kind = "savepoint" if self.candidate.savepoint else "checkpoint"
        created_at = self.candidate.completed_at
        when = (
            f"{created_at:%H:%M:%S}"
            if created_at.date() == datetime.now().date()
            else f"{created_at:%Y-%m-%d %H:%M:%S}"
        )
        return f"{kind} {self.content.number} of {when}"


def directory_of(folder: JobFolder, start: Start) -> Path:
    """Return the directory in which Flink stores the checkpoints of a start."""
    home = folder.checkpoints if start.checkpoints is None else Path(start.checkpoints)
    return home / start.job_id


def find_numbered(directory: Path) -> dict[int, Path]:
    """Return the checkpoints below ``directory``, complete or not, by their numbers."""
    matches = {path: _DIRECTORY.fullmatch(path.name) for path in directory.glob("chk-*")}
    return {int(match[1]): path for path, match in matches.items() if match is not None}


def find_complete(directory: Path) -> dict[int, Path]:
    """Return the complete checkpoints below ``directory``, by their numbers."""
    return {number: path for number, path in find_numbered(directory).items() if (path / METADATA).is_file()}


def find_candidates(folder: JobFolder, run: JobRun) -> list[Candidate]:
    """Return the checkpoints and savepoints of a job run, newest first: by start and number, not by time."""
    all_candidates = [] if run.origin is None else [origin_of(run.origin)]
    for start in run.starts:
        for number, path in find_complete(directory_of(folder, start)).items():
            all_candidates.append(Candidate(path, start.number, number))
        for path in (folder.savepoints / str(start.number)).glob(f"*/{METADATA}"):
            all_candidates.append(Candidate(path.parent, start.number, float("inf"), savepoint=True))
    return sorted(all_candidates, key=lambda candidate: (candidate.start, candidate.number), reverse=True)


def origin_of(place: str) -> Candidate:
    """Return the savepoint of another job that a job run starts from, for a path or a URL of Flink."""
    return Candidate(Path(os.path.abspath(re.sub("^file:(//)?", "", place))), 0, float("inf"), savepoint=True)


def digest_of(directory: Path) -> str:
    """Return a checksum of all files of a checkpoint: it detects damage that sizes do not show."""
    checksum = 0
    for path in sorted(directory.iterdir()):
        checksum = zlib.crc32(path.name.encode(), checksum)
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                checksum = zlib.crc32(block, checksum)
    return f"{checksum:08x}"


def key_of(directory: Path) -> str:
    """Return the name of a checkpoint's checksum, which does not depend on the place of its folder."""
    return f"{directory.parent.name}/{directory.name}"


def choose_checkpoint(
    checkpoint_candidates: list[Candidate],
    read: Callable[[Path], CheckpointContent],
    digests: Mapping[str, str],
) -> tuple[Chosen | None, list[str]]:
    """Return the newest undamaged checkpoint, and the problems of newer ones.

    Args:
        checkpoint_candidates: The candidates, newest first.
        read: Returns the metadata of a checkpoint.
        digests: Checksums of checkpoints, as far as they exist.
    """
    damaged: list[tuple[Candidate, str]] = []
    for candidate in checkpoint_candidates:
        try:
            content = read(candidate.path)
            problem = _content_problem(content) or _digest_problem(candidate, digests)
        except (ValueError, OSError) as error:
            content = None
            problem = f"its metadata cannot be read: {error}"
        if content is not None and problem is None:
            return Chosen(candidate, content, tuple(damaged)), [
                _describe_damaged(damage) for damage in damaged
            ]
        damaged.append((candidate, problem or ""))
    return None, [_describe_damaged(damage) for damage in damaged]


def _content_problem(content: CheckpointContent) -> str | None:
    for file in content.files:
        try:
            size = file.path.stat().st_size
        except OSError:
            return f"{file.path.name} is missing"
        if size < file.size:
            return f"{file.path.name} has {size} of {file.size} bytes"
    return None


def _digest_problem(candidate: Candidate, digests: Mapping[str, str]) -> str | None:
    wanted = digests.get(key_of(candidate.path))
    return None if wanted in (None, digest_of(candidate.path)) else "its content has changed"


def _describe_damaged(damaged: tuple[Candidate, str]) -> str:
    candidate, problem = damaged
    return f"{candidate.path.parent.name}/{candidate.path.name}: {problem}"
