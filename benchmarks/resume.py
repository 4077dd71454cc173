"""The cost of resuming local jobs: ``python -m benchmarks.resume JOB ...``.

``static EVENTS KEPT``   steady events per second of an agent with a counter in memory
``durable EVENTS KEPT``  steady durable calls per second, with the journal in SQLite
``again KEYS``           seconds from the start of the process to the first output: of a fresh start, and of a
                         start that resumes a job with a counter for each of so many keys, which was killed

``KEPT`` is 1 if the job resumes, with checkpoints as often as the defaults say, else 0.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import Clock, agents, discard, numbers, print_figures
from flink_agents import Agent, InputEvent, OutputEvent, RunnerContext, action

KEYS = 5000
ENDLESS = 10**12
PATIENCE = 900.0


async def respond(number: int) -> int:
    """Return at once."""
    return number


class Counting(Agent):
    """Counts by key."""

    def __init__(self, events: int) -> None:
        self.clock = Clock(events)

    @action(InputEvent)
    def count(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        """Count."""
        count = ctx.short_term_memory.get("count", 0) + 1
        ctx.short_term_memory.set("count", count)
        self.clock.tick()
        return OutputEvent(output=count)


class Calling(Agent):
    """Makes one durable call for each event."""

    def __init__(self, events: int) -> None:
        self.clock = Clock(events)

    @action(InputEvent)
    async def call(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        """Call."""
        answer = await ctx.durable_execute_async(respond, event.input)
        self.clock.tick()
        return OutputEvent(output=answer)


class Noting(Agent):
    """Counts by key, and notes the first output of a process, and how many there were."""

    def __init__(self, keys: int, directory: str) -> None:
        self.keys = keys
        self.directory = directory
        self.seen = 0

    @action(InputEvent)
    def count(self, event: InputEvent, ctx: RunnerContext) -> None:
        """Count."""
        count = ctx.short_term_memory.get("count", 0) + 1
        ctx.short_term_memory.set("count", count)
        self.seen += 1
        if self.seen in (1, self.keys):
            (Path(self.directory) / f"seen-{self.seen}").write_text(str(time.time()))


def rate(kind: str, events: int, kept: bool) -> None:
    """Run a bounded job, which prints its rate."""
    with tempfile.TemporaryDirectory() as directory:
        config = {"local.state-dir": directory, "local.resume": "require" if kept else "never"}
        if not kept:
            config["action-state.sqlite.path"] = f"{directory}/journal.sqlite"
        environment = agents(config)
        stream = numbers(environment.stream_env, events)
        agent = Counting(events=events) if kind == "static" else Calling(events=events)
        applied = environment.from_datastream(stream, lambda number: number % KEYS).apply(agent)
        discard(applied.to_datastream())
        environment.execute("resume")


def job(keys: int, directory: str) -> None:
    """Run an endless job until somebody kills it."""
    environment = agents({"local.state-dir": f"{directory}/state", "local.resume": "require"})
    stream = numbers(environment.stream_env, ENDLESS)
    applied = environment.from_datastream(stream, lambda number: number % keys).apply(
        Noting(keys=keys, directory=directory)
    )
    discard(applied.to_datastream())
    environment.execute("resume")


def restart_job(keys: int) -> None:
    """Start a job, kill it when its state is whole, start it again."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        fresh = _first_output(keys, directory, 0)
        resumed = _first_output(keys, directory, keys)
        print_figures(fresh_seconds=fresh, resume_seconds=resumed, added_seconds=resumed - fresh)


def _first_output(keys: int, directory: Path, before: int) -> float:
    """Run a start until all keys are in a checkpoint, kill it, and return when its first output came."""
    for note in directory.glob("seen-*"):
        note.unlink()
    start_seconds = time.time()
    command = [sys.executable, "-m", "benchmarks.resume", "job", str(keys), str(directory)]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)
    try:
        first = _wait_for_note(process, directory / "seen-1")
        if not before:
            whole = _wait_for_note(process, directory / f"seen-{keys}")
            _wait_for_checkpoint(process, directory, whole)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        printed = process.communicate()[1]
    if before and "resuming 'resume' from checkpoint" not in printed:
        raise SystemExit(f"the second start did not resume:\n{printed}")
    return first - start_seconds


def _wait_for_note(process: subprocess.Popen[str], note: Path) -> float:
    until = time.monotonic() + PATIENCE
    while not (note.exists() and note.read_text()):
        if process.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"the job did not write {note.name}")
        time.sleep(0.01)
    return float(note.read_text())


def _wait_for_checkpoint(process: subprocess.Popen[str], directory: Path, after: float) -> None:
    until = time.monotonic() + PATIENCE

    def find_checkpoints() -> list[Any]:
        # One that began before all keys were seen may be complete only now.
        checkpoint_files = directory.glob("state/jobs/resume/checkpoints/*/chk-*/_metadata")
        return [
            checkpoint_file
            for checkpoint_file in checkpoint_files
            if checkpoint_file.stat().st_mtime > after + 1
        ]

    numbers_seen: set[str] = set()
    while len(numbers_seen) < 2:
        numbers_seen.update(checkpoint_file.parent.name for checkpoint_file in find_checkpoints())
        if process.poll() is not None or time.monotonic() > until:
            raise SystemExit("the job took no checkpoint")
        time.sleep(0.05)


def main(arguments: list[str]) -> None:
    """Run the job that the arguments name."""
    match arguments:
        case ["static" | "durable" as kind, events, is_journalled]:
            rate(kind, int(events), is_journalled == "1")
        case ["again", keys]:
            restart_job(int(keys))
        case ["job", keys, directory]:
            job(int(keys), directory)
        case _:
            raise SystemExit(json.dumps({"error": f"unknown arguments {arguments}"}))


if __name__ == "__main__":
    main(sys.argv[1:])
