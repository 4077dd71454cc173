"""Checks that a savepoint exists before submitting a job that would wait for it."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import unquote, urlsplit

from flink_agents.api.errors import SubmissionError
from flink_agents.api.errors.base import suggest

METADATA = "_metadata"
_MOST_SHOWN = 5


def check_savepoint(place: str, cluster: str) -> None:
    """Check that a path has a savepoint or a checkpoint, if this machine can see it.

    Args:
        place: A path or URL.
        cluster: Address of the cluster. Paths on other machines are not checked.

    Raises:
        SubmissionError: The path has neither.
    """
    url = urlsplit(place)
    if url.scheme not in ("", "file") or not _is_here(cluster):
        return
    path = Path(unquote(url.path))
    if path.is_file() or (path / METADATA).is_file():
        return
    parent = next((one for one in (path, *path.parents) if one.is_dir()), path)
    names = sorted(one.name for one in parent.iterdir()) if parent.is_dir() else []
    savepoints = [name for name in names if (parent / name / METADATA).is_file()]
    shown = ", ".join((savepoints or names)[:_MOST_SHOWN]) or "nothing"
    missing = path.relative_to(parent).parts
    hint = _deeper(savepoints)
    raise SubmissionError(
        f"no savepoint was found at {path}",
        expected=f"a directory with a file {METADATA}, as flink-agents stop prints it",
        found=f"{parent} has {shown}",
        fix=suggest(missing[0], savepoints, hint) if missing else hint,
    )


def _deeper(savepoints: list[str]) -> str:
    if savepoints:
        return f"name one of the savepoints in it, such as {savepoints[-1]}"
    return "correct --savepoint; flink-agents stop prints the path of a new one"


def _is_here(cluster: str) -> bool:
    host = urlsplit(cluster if "://" in cluster else f"http://{cluster}").hostname or ""
    return host in ("localhost", "127.0.0.1", "::1", socket.gethostname())
