"""``scripts/first-hour``: executes ``docs/tutorial.md``, and checks the output.

The wheel is built and installed in a new environment, like in the first block of the page. Each further shell
block is executed unchanged, in the directory of the block before, and each block of Python with a file name
is written there. A ``text`` block after a shell block has lines that it must print, in that order; ``...``
matches anything, and there may be other lines between them. Ports are replaced by free ones.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.release.build import ROOT, build
from tests.release.environment import InstalledWheel

PAGE = ROOT / "docs" / "tutorial.md"
EXTRAS = ("jvm", "kafka", "models", "test")
SECONDS = 300
"""How long one block may take."""

PORTS = ("8081", "9092")
INSTALLS = re.compile(r"python -m venv \.venv|\.venv/bin/pip install .*")
"""Lines that :class:`InstalledWheel` stands for."""

CLEAN_UP = ("flink-agents cluster stop", "flink-agents kafka stop")

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\S+\.py)\n")


class DifferentOutput(Exception):
    """A block ended with an error, or did not print what the page shows."""


@dataclass(frozen=True)
class Step:
    """A block of the page.

    Attributes:
        text: What it says.
        file: The file that it is; None for commands.
        expected: The lines that it must print.
    """

    text: str
    file: str | None = None
    expected: tuple[str, ...] = ()


def steps(page: str) -> Iterator[Step]:
    """Yield the blocks of a page, in order."""
    fences = list(_FENCE.finditer(page))
    for index, fence in enumerate(fences):
        language, text = fence.groups()
        # tests/docs executes blocks of ``python``, too.
        if language in ("py", "python"):
            name = _FILE.match(text)
            assert name is not None, f"a block without a file name: {text[:60]}"
            yield Step(text, file=name[1])
        elif language == "shell":
            yield Step(text, expected=tuple(_shown_behind(page, fences, index)))


def _shown_behind(page: str, fences: Sequence[re.Match[str]], index: int) -> list[str]:
    """The lines of the ``text`` block directly behind a block."""
    if index + 1 == len(fences):
        return []
    following = fences[index + 1]
    adjacent = not page[fences[index].end() : following.start()].strip()
    return following[2].splitlines() if adjacent and following[1] == "text" else []


def with_free_ports(page: str) -> str:
    """Return the page with other ports, since this machine may use those that it names."""
    for port in PORTS:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            page = page.replace(port, str(probe.getsockname()[1]))
    return page


def check(expected: Sequence[str], printed: str) -> None:
    """Check that all expected lines were printed, in order.

    Raises:
        DifferentOutput: One of them was not.
    """
    lines = iter(printed.splitlines())
    for wanted in expected:
        pattern = ".*".join(map(re.escape, wanted.split("...")))
        if not any(re.fullmatch(pattern, line) for line in lines):
            raise DifferentOutput(f"no line like {wanted!r} (in this place) in what was printed:\n{printed}")


class Shell:
    """Executes blocks one after the other.

    Args:
        directory: Where the first one begins.
        environment: Whose commands are found first.
    """

    def __init__(self, directory: Path, environment: InstalledWheel) -> None:
        self.directory = directory
        inherited_variables = {
            name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ
        }
        path = os.pathsep.join([str(environment.directory / "bin"), os.defpath])
        self._environment = inherited_variables | {"PATH": path}

    def run(self, text: str) -> str:
        """Execute a block; returns what it printed.

        Raises:
            DifferentOutput: A command failed, or took too long.
        """
        with tempfile.NamedTemporaryFile() as place, tempfile.TemporaryFile() as output:
            script = f"set -e\n{text}\npwd > {place.name}\n"
            # Daemons that a command starts keep its output open, so that it goes to a file.
            process = subprocess.Popen(
                ["bash", "-c", script],
                cwd=self.directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                status: int | None = process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                status = None
            output.seek(0)
            printed = output.read().decode("utf-8", "replace")
            if status != 0:
                what = f"took more than {SECONDS} s" if status is None else f"ended with {status}"
                raise DifferentOutput(f"it {what}:\n{text}\n{printed}")
            self.directory = Path(Path(place.name).read_text("utf-8").strip())
        return printed


def first_hour(shell: Shell, page: str) -> None:
    """Do all that the page says, and print each command with its time."""
    for step in steps(page):
        if step.file is not None:
            (shell.directory / step.file).write_text(step.text, encoding="utf-8")
            print(f"  wrote {step.file}", flush=True)
            continue
        commands = "\n".join(line for line in step.text.splitlines() if not INSTALLS.fullmatch(line))
        start_seconds = time.monotonic()
        printed = shell.run(commands)
        check(step.expected, printed)
        first, *remaining_commands = commands.splitlines()
        more = f" and {len(remaining_commands)} more" if remaining_commands else ""
        print(f"  {time.monotonic() - start_seconds:5.1f} s  {first}{more}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, install, do the first hour, clean up."""
    parser = argparse.ArgumentParser(prog="scripts/first-hour", description=__doc__)
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to execute")
    options = parser.parse_args(arguments)
    page = with_free_ports(options.page.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="first-hour-") as temporary:
        directory = Path(temporary)
        print("building the wheel, and installing it in an environment of its own", flush=True)
        environment = InstalledWheel(directory / ".venv", build(directory / "build").wheel, EXTRAS)
        shell = Shell(directory, environment)
        try:
            first_hour(shell, page)
        except DifferentOutput as error:
            print(f"the first hour ended early: {error}", file=sys.stderr)
            return 1
        finally:
            for command in CLEAN_UP:
                shell.run(f"{command} || true")
    print("the first hour: each command of the page did what the page says")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
