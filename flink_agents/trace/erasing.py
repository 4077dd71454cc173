"""Removes the records of a key from trace files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from flink_agents.trace.reading import trace_files, unusable_file_error


class Erased(NamedTuple):
    """The result of removing a key from files.

    Attributes:
        records: Number of removed records.
        files: Number of files that contained them.
        held: Number of these files that a job may still write to, so that new records can appear.
    """

    records: int
    files: int
    held: int


def erase_files(place: Path, keys: Collection[str], recent: float = 0.0) -> Erased:
    """Remove the records of a key from the files of a trace. Each file is replaced atomically.

    Args:
        place: A file, or a directory.
        keys: The canonical texts that the key may have.
        recent: Seconds since the epoch. Files changed later may be open, so their records are overwritten
            with line breaks. 0: no file is open.

    Raises:
        TraceNotFoundError: There is no such file or directory, or a file cannot be read or written.
    """
    records = files = held = 0
    for file in trace_files(place):
        try:
            removed, is_open = _erase_records(file.resolve(), keys, recent)
        except FileNotFoundError:
            # The sink removed it meanwhile, to make room.
            continue
        except OSError as error:
            raise unusable_file_error(file, error) from error
        records += removed
        files += removed > 0
        held += is_open and removed > 0
    return Erased(records, files, held)


def _erase_records(file: Path, keys: Collection[str], recent: float) -> tuple[int, bool]:
    """Remove the records of a key from a file; return their number, and True if the file may be open."""
    status = file.stat()
    lines = file.read_bytes().split(b"\n")
    of_key = [_is_record_of(line, keys) for line in lines]
    removed = sum(of_key)
    is_open = status.st_mtime >= recent > 0
    if removed and (is_open or status.st_nlink > 1):
        # Its writer appends where it is, and its other names stay: what is removed is blanked, nothing moves.
        _blank_lines(file, lines, of_key)
        return removed, is_open
    if removed:
        remaining_lines = [line for line, is_of_key in zip(lines, of_key, strict=True) if not is_of_key]
        _replace_file(file, b"\n".join(remaining_lines), status)
        return removed, False
    return 0, is_open


def _blank_lines(file: Path, lines: Sequence[bytes], are_blank: Sequence[bool]) -> None:
    with file.open("r+b") as opened:
        position = 0
        for line, is_blank in zip(lines, are_blank, strict=True):
            if is_blank:
                opened.seek(position)
                opened.write(b"\n" * len(line))
            position += len(line) + 1


def _replace_file(file: Path, content: bytes, status: os.stat_result) -> None:
    new_file = file.with_name(f"{file.name}.erasing")
    descriptor = os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    shutil.copymode(file, new_file)
    with suppress(PermissionError):
        # Who may read it stays the same, if the superuser removes the key.
        os.chown(new_file, status.st_uid, status.st_gid)
    os.replace(new_file, file)


def _is_record_of(line: bytes, keys: Collection[str]) -> bool:
    """Return True if a line is a record of one of the keys; of an incomplete line, if it may be one."""
    if not line:
        return False
    try:
        return json.loads(line)["key"] in keys
    except (ValueError, RecursionError, LookupError, TypeError):
        # It is cut: what names the key goes, whatever it is, also a part of the name.
        _, separator, key_prefix = line.rpartition(b'"key":')
        escaped = [json.dumps(key).encode() for key in keys]
        return (
            any(escaped_key[1:-1] in line for escaped_key in escaped)
            or any(key.encode("utf-8", "surrogatepass") in line for key in keys)
            or (
                bool(separator)
                and len(key_prefix) > 1
                and any(escaped_key.startswith(key_prefix) for escaped_key in escaped)
            )
        )
