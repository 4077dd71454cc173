"""Which start of the script the jobs of this process belong to.

A script may run several jobs, one after the other. If a start ends in the middle, the next one skips the jobs
that had finished. So each job run remembers its start of the script, and a start that ended well says so.
"""

from __future__ import annotations

import atexit
import json
import sys
import uuid
from contextlib import suppress
from pathlib import Path

from flink_agents.runtime.flink.resume.folder import escaped, write_atomically

SCRIPTS = "scripts"


class ScriptStart:
    """The start of the script that this process is, or the unfinished one that it continues.

    Args:
        state_dir: Where folders of jobs are.
        script: The script.
    """

    def __init__(self, state_dir: Path, script: str) -> None:
        self._path = state_dir.absolute() / SCRIPTS / f"{escaped(script)}.json"
        self._unfinished: set[str] = set()
        self.names: set[str] = set()
        last = self._last()
        self.continues = last is not None
        self.token = last or uuid.uuid4().hex
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._write(ended=False)
        atexit.register(self.end)

    def begun(self, job: str) -> None:
        """Note that a job of the script begins."""
        self.names.add(job)
        self._unfinished.add(job)

    def finished(self, job: str) -> None:
        """Note that it has finished."""
        self._unfinished.discard(job)

    def start_over(self) -> None:
        """Make this a new start of the script, which continues none."""
        self.continues, self.token = False, uuid.uuid4().hex
        self._write(ended=False)

    def end(self) -> None:
        """Note that the script has ended well, if it has."""
        if not self._unfinished and getattr(sys, "last_value", None) is None:
            # The script may have removed the directory: then nothing is left to resume.
            with suppress(FileNotFoundError):
                self._write(ended=True)

    def _last(self) -> str | None:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            return None if found["ended"] else str(found["token"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write(self, ended: bool) -> None:
        write_atomically(self._path, json.dumps({"token": self.token, "ended": ended}) + "\n")


_started: dict[tuple[Path, str], ScriptStart] = {}


def script_start(state_dir: Path, script: str) -> ScriptStart:
    """Return the start of the script that this process is."""
    key = (state_dir.absolute(), script)
    if key not in _started:
        _started[key] = ScriptStart(state_dir, script)
    return _started[key]
