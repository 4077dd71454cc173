"""The first minutes of a new user: steps with the installed package, and their expected results."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from tests.release.environment import InstalledWheel

JOB_OUTPUT = [
    "ada: cake costs 4.00, 7.00 so far",
    "ada: tea costs 3.00, 3.00 so far",
    "alan: coffee costs 6.00, 6.00 so far",
]
"""The last lines of the job of a new project."""


def first_minutes(environment: InstalledWheel, directory: Path) -> Iterator[str]:
    """Do each step, and yield what it has shown.

    Args:
        environment: Where the wheel is installed.
        directory: Where the project is made.

    Raises:
        RuntimeError: A command failed, or printed something else.
    """
    version = environment.run("flink-agents", "version", cwd=directory).strip()
    _expect(version == f"flink-agents-python {metadata.version('flink-agents-python')}", version)
    yield version
    environment.run("flink-agents", "new", "my-agent", cwd=directory)
    project = directory / "my-agent"
    tested = environment.run("python", "-m", "pytest", "-q", cwd=project).splitlines()[-1]
    _expect(tested.startswith("2 passed"), tested)
    yield f"the new project's tests: {tested}"
    shown = environment.run("flink-agents", "plan", "show", "my_agent:MyAgent", cwd=project)
    _expect("InputEvent -> OutputEvent" in shown, shown)
    yield "flink-agents plan show"
    printed = environment.run("python", "job.py", cwd=project)
    _expect(printed.splitlines()[-3:] == JOB_OUTPUT, printed)
    yield "the new project's job"


def _expect(met: bool, printed: str) -> None:
    if not met:
        raise RuntimeError(f"It printed something else:\n{printed[-4000:]}")
