"""Tests the wheel with the lowest or the newest versions that its requirements allow; needs a package index.

Usage: ``python -m tests.release.bounds lowest``, or ``newest``. uv chooses the versions.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.release.build import ROOT, build
from tests.release.environment import InstalledWheel, run
from tests.release.first_minutes import first_minutes

EXTRAS = ("jvm", "kafka", "mcp", "models", "test", "ui")
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
"""uv's names. The packages that requirements need in turn are new in both."""

IMPORTS = (
    "from flink_agents import AgentsExecutionEnvironment, ReActAgent",
    "from flink_agents.models.engine import FlinkDurability",
    "from flink_agents.testing.models import ModelServer, ScriptedModel",
    "from flink_agents.ui.app import make_app",
    "from flink_agents.connectors.kafka import kafka_sink, kafka_source",
)


def choose_versions(bound: str, directory: Path) -> Path:
    """Write the versions for this Python to a file of constraints, and return it."""
    constraints = directory / f"{bound}.txt"
    extras = [argument for extra in EXTRAS for argument in ("--extra", extra)]
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    command = [find_uv(directory), "pip", "compile", "--quiet", "--resolution", RESOLUTIONS[bound]]
    subprocess.run(
        [*command, "--python-version", python, *extras, "--output-file", str(constraints), "pyproject.toml"],
        cwd=ROOT,
        check=True,
    )
    return constraints


def find_uv(directory: Path) -> str:
    """Return the path of uv; if there is none, install it below ``directory``."""
    installed = shutil.which("uv")
    if installed is not None:
        return installed
    venv.create(directory / "uv", with_pip=True)
    program = directory / "uv" / "bin"
    run([str(program / "python"), "-m", "pip", "install", "-q", "uv"], directory)
    return str(program / "uv")


def check(bound: str, directory: Path) -> Iterator[str]:
    """Install the wheel with the versions of a bound, and yield what the first steps of a user show."""
    constraints = choose_versions(bound, directory)
    wheel = build(directory / "release").wheel
    environment = InstalledWheel(directory / "env", wheel, EXTRAS, downloads=True, constraints=constraints)
    yield from first_minutes(environment, directory)
    for statement in IMPORTS:
        environment.run("python", "-W", "error::ImportWarning", "-c", statement, cwd=directory)
        yield statement
    environment.run("flink-agents", "doctor", cwd=directory)
    yield "flink-agents doctor"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a bound and print each step; an error names the command that failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.release.bounds", description=__doc__)
    parser.add_argument("bound", choices=sorted(RESOLUTIONS))
    bound = parser.parse_args(arguments).bound
    with tempfile.TemporaryDirectory(prefix="flink-agents-bounds-") as temporary:
        for line in check(bound, Path(temporary)):
            print(f"{bound}: {line}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
