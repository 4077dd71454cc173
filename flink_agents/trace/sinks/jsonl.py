"""Writes records as lines of JSON to the files of a subtask, which are rotated and limited in total size."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from flink_agents.api.settings.options import AgentOptions
from flink_agents.trace.records import TraceRecord
from flink_agents.trace.target import TraceLine, TraceTarget

SUFFIX = ".trace.jsonl"


class JsonlSink:
    """Appends records to files of a directory. Each task attempt starts its own file.

    Args:
        directory: Directory of the files; created if it does not exist.
        prefix: Start of the names of this subtask's files.
        file_bytes: Size in bytes at which a new file starts.
        file_seconds: Age in seconds at which a new file starts.
        total_bytes: Maximum size of all of the subtask's files; the oldest ones are removed.
        now: Returns seconds since the epoch.
    """

    def __init__(
        self,
        directory: Path,
        prefix: str,
        file_bytes: int = 16 << 20,
        file_seconds: float = 3600.0,
        total_bytes: int = 256 << 20,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._prefix = re.sub(r"[^\w.-]", "_", prefix)
        self._file_bytes = min(file_bytes, max(1, total_bytes // 2))
        self._file_seconds = file_seconds
        self._total = total_bytes
        self._now = now
        self._file: BinaryIO | None = None
        self._path: Path | None = None
        self._size = 0
        self._opened_at = 0.0

    @classmethod
    def from_target(cls, target: TraceTarget) -> JsonlSink:
        """Create the sink of a subtask from the options of its job."""
        read = target.config.get
        return cls(
            Path(read(AgentOptions.TRACE_DIRECTORY)).expanduser(),
            f"{target.agent}-{target.subtask}-",
            read(AgentOptions.TRACE_FILE_MB) << 20,
            read(AgentOptions.TRACE_FILE_AGE).total_seconds(),
            read(AgentOptions.TRACE_TOTAL_MB) << 20,
        )

    def write(self, records: Sequence[TraceRecord]) -> None:
        """Append records to the current file. After an error, the next call starts a new file."""
        self.write_lines([(record.run_id, record.to_bytes() + b"\n") for record in records])

    def write_lines(self, records: Sequence[TraceLine]) -> None:
        """Append encoded records to the current file. After an error, the next call starts a new file."""
        try:
            lines: list[bytes] = []
            size = 0
            for _, line in records:
                if lines and self._size + size + len(line) > self._file_bytes:
                    self._append_lines(lines, size)
                    lines = []
                    size = 0
                lines.append(line)
                size += len(line)
            if lines:
                self._append_lines(lines, size)
        except OSError:
            self._abandon_file()
            raise

    def _append_lines(self, lines: Sequence[bytes], size: int) -> None:
        file = self._open_file(size)
        file.write(b"".join(lines))
        self._size += size
        file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            file = self._file
            self._file = None
            file.close()

    def _open_file(self, needed: int) -> BinaryIO:
        old = self._now() - self._opened_at >= self._file_seconds
        if self._file is not None and (old or self._size + needed > self._file_bytes) and self._size:
            self.close()
        if self._file is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._make_room()
            self._opened_at = self._now()
            name = f"{self._prefix}{int(self._opened_at * 1000):013d}-{uuid.uuid4().hex[:8]}{SUFFIX}"
            self._path = self._directory / name
            # Only the owner may read it: it can hold what inputs hold.
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._file = os.fdopen(descriptor, "wb")
            self._size = 0
        return self._file

    def _make_room(self) -> None:
        """Remove the oldest files of the subtask until a full new one fits into the total size."""
        files = sorted(
            path for path in self._directory.glob(f"{self._prefix}*{SUFFIX}") if self._is_own_file(path)
        )
        sizes = [path.stat().st_size for path in files]
        while files and sum(sizes) + self._file_bytes > self._total:
            files.pop(0).unlink(missing_ok=True)
            sizes.pop(0)

    def _is_own_file(self, path: Path) -> bool:
        """Return True if this subtask's agent wrote a file, not one whose name has the same start."""
        unprefixed_name = path.name.removeprefix(self._prefix)
        return re.fullmatch(r"\d{13}-[0-9a-f]{8}" + re.escape(SUFFIX), unprefixed_name) is not None

    def _abandon_file(self) -> None:
        """Close a file after a failed write; its last line may be incomplete."""
        file = self._file
        self._file = None
        if file is not None:
            try:
                file.close()
            except OSError:
                # The rest of its buffer was counted as dropped.
                pass
