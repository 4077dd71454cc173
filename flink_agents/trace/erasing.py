"""Removes the records of a key from trace files."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from flink_agents.api.errors.trace import TraceFormatError
from flink_agents.trace.records import TraceRecord
from flink_agents.trace.sinks.jsonl import SUFFIX


class Erased(NamedTuple):
    """The result of removing a key from files.

    Attributes:
        records: Number of removed records.
        files: Number of files that contained them.
        held: Files that a job may still write to, so that new records can appear.
    """

    records: int
    files: int
    held: int


def erase_files(place: Path, keys: Collection[str], recent: float = 0.0) -> Erased:
    """Rewrite the files of a trace without the records of a key. Each file is replaced atomically.

    Args:
        place: A file, or a directory.
        keys: The canonical texts of the key.
        recent: Files that were changed after this time may be open, so their records are overwritten with
            blanks.
    """
    records = files = held = 0
    for file in sorted(place.rglob(f"*{SUFFIX}")) if place.is_dir() else [place]:
        try:
            removed, is_open = _erase(file, keys, recent)
        except FileNotFoundError:
            # The sink removed it meanwhile, to make room.
            continue
        records += removed
        files += removed > 0
        held += is_open and removed > 0
    return Erased(records, files, held)


def _erase(file: Path, keys: Collection[str], recent: float) -> tuple[int, bool]:
    status = file.stat()
    lines = file.read_bytes().split(b"\n")
    kept = [line for line in lines if not _is_of(line, keys)]
    removed, is_open = len(lines) - len(kept), status.st_mtime >= recent > 0
    if not removed:
        return 0, is_open
    if is_open:
        # Its writer appends where it is: the place of what is removed is blanked, and nothing moves.
        with file.open("r+b") as opened:
            at = 0
            for line in lines:
                if _is_of(line, keys):
                    opened.seek(at)
                    opened.write(b"\n" * len(line))
                at += len(line) + 1
        return removed, True
    beside = file.with_name(f"{file.name}.erasing")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(b"\n".join(kept))
        opened.flush()
        os.fsync(opened.fileno())
    os.replace(beside, file)
    return removed, False


def _is_of(line: bytes, keys: Collection[str]) -> bool:
    if not line:
        return False
    try:
        return TraceRecord.from_json(line).key in keys
    except TraceFormatError:
        # It is cut, or of a newer version: what names the key goes, whatever it is, also a part of the name.
        _, found, rest = line.rpartition(b'"key":')
        escaped = [json.dumps(key).encode() for key in keys]
        return (
            any(one[1:-1] in line for one in escaped)
            or any(key.encode("utf-8", "surrogatepass") in line for key in keys)
            or (bool(found) and len(rest) > 1 and any(one.startswith(rest) for one in escaped))
        )
