"""Installs the locked requirements, and reports the progress on stderr.

A terminal has one line, which changes; a log gets a line every ten seconds.

Usage: ``python _install.py LOCK ARGUMENTS...``, where the arguments are those of ``pip install``.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

EVERY_SECONDS = 10.0
"""The pause between two lines of a log."""

_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9][\w.-]*)(?:\[[^]]*\])?==", re.MULTILINE)
_COLLECTING = re.compile(r"^Collecting (?P<name>[\w.-]+)")
_DOWNLOADING = re.compile(r"^ +Downloading (?P<file>\S+) \((?P<size>[\d.]+ [kMG]B)\)")
_BUILDING = re.compile(r"^ *Building wheel for (?P<name>[\w.-]+)")


class Progress:
    """The stages of an installation: packages are downloaded, built, and installed.

    Args:
        total: The number of packages.
        installed: Returns how many packages are installed.
    """

    def __init__(self, total: int, installed: Callable[[], int]) -> None:
        self._total = total
        self._installed = installed
        self._collected = 0
        self._current = ""
        self._is_installing = False

    def read(self, line: str) -> None:
        """Take a line of pip's output."""
        if match := _COLLECTING.match(line):
            self._collected += 1
            self._current = match["name"]
        elif match := _DOWNLOADING.match(line):
            self._current = f"{match['file'].split('-')[0]}, {match['size']}"
        elif match := _BUILDING.match(line):
            self._current = f"builds {match['name']}"
        elif line.startswith("Installing collected packages"):
            self._is_installing = True

    def text(self) -> str:
        """Return the present state."""
        if self._is_installing:
            return f"installed {min(self._installed(), self._total)} of {self._total} packages"
        current = f": {self._current}" if self._current else ""
        return f"downloaded {self._collected} of {self._total} packages{current}"


class Report:
    """Shows a progress.

    Args:
        stream: The terminal or the log.
        clock: Returns the time in seconds.
    """

    def __init__(self, stream: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._start = clock()
        self._next = self._start + EVERY_SECONDS

    def show(self, text: str, is_last: bool = False) -> None:
        """Show a text: at once on a terminal; in a log if it is time for a line, or if it is the last one."""
        now = self._clock()
        line = f"set-up: {now - self._start:4.0f} s  {text}"
        if self._stream.isatty():
            # Return to the start of the line, and clear what was longer.
            self._stream.write(f"\r{line}\033[K" + "\n" * is_last)
        elif is_last or now >= self._next:
            self._next = now + EVERY_SECONDS
            self._stream.write(f"{line}\n")
        self._stream.flush()


def install(lock: Path, arguments: list[str], report: Report) -> int:
    """Run pip, and return its exit code; if it fails, show the end of its output."""
    total = len(_REQUIREMENT.findall(lock.read_text("utf-8")))
    packages = Path(sysconfig.get_path("purelib"))
    progress = Progress(total, lambda: len(list(packages.glob("*.dist-info"))))
    command = [sys.executable, "-m", "pip", "install", "--progress-bar", "off", *arguments]
    last_lines: deque[str] = deque(maxlen=20)
    done = threading.Event()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as pip:

        def tick() -> None:
            while not done.wait(0.5):
                report.show(progress.text())

        ticker = threading.Thread(target=tick)
        ticker.start()
        assert pip.stdout is not None
        for line in pip.stdout:
            last_lines.append(line)
            progress.read(line)
        code = pip.wait()
        done.set()
        ticker.join()
    report.show(progress.text() if code else f"installed {total} packages", is_last=True)
    if code:
        sys.stderr.writelines(last_lines)
    return code


if __name__ == "__main__":
    raise SystemExit(install(Path(sys.argv[1]), sys.argv[2:], Report(sys.stderr)))
