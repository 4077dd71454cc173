"""The processes to kill, and the moments."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

SCRIPT = Path(__file__).with_name("job.py")
ROOT = SCRIPT.parents[2]
PATIENCE = 300.0

VICTIMS = ("tree", "script", "jvm")
MOMENTS = ("running", "first second", "restore", "checkpoint", "end", "twice")


class Stuck(Exception):
    """The job does not move, or ended when it should not."""


@dataclass
class Start:
    """One execution of the script.

    Args:
        settings: What the script gets.
        log: The file of what it prints.
        script: The script.
        jvm_args: Further options of its JVM.
    """

    settings: dict[str, Any]
    log: Path
    script: Path = SCRIPT
    jvm_args: str = ""
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        environment = {**os.environ, "LOCAL_CHAOS": json.dumps(self.settings), "PYTHONPATH": str(ROOT)}
        environment["JVM_ARGS"] = (
            environment.get("JVM_ARGS", "") + f" -XX:TieredStopAtLevel=1 {self.jvm_args}"
        )
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(self.script)],
                cwd=self.settings["directory"],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._from = self.log.stat().st_size

    def jvms(self) -> list[psutil.Process]:
        """Return the processes that the script has started."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def tree(self) -> list[psutil.Process]:
        """Return the script's process and those that it has started."""
        try:
            return [psutil.Process(self.process.pid), *self.jvms()]
        except psutil.NoSuchProcess:
            return []

    def printed(self) -> str:
        """Return what this start has printed so far."""
        with self.log.open("rb") as log:
            log.seek(self._from)
            return log.read().decode(errors="replace")

    def kill(self, victim: str) -> None:
        """Kill a victim, and wait until the others have ended."""
        jvms = self.jvms()
        if not jvms:
            victim = "script"
        if victim in ("tree", "jvm"):
            for jvm in jvms:
                _kill(jvm)
        if victim in ("tree", "script"):
            self.process.kill()
        self.process.wait(PATIENCE)
        _, alive = psutil.wait_procs(jvms, 60)
        if alive:
            raise Stuck(f"{victim} was killed, and {alive} live on")

    def stop(self) -> int:
        """Stop with a savepoint, as supervisors do; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        pass


@dataclass
class Killer:
    """Kills starts.

    Args:
        folder: The folder of the job.
        effects: Returns how many effects there are.
        total: Effects of an undisturbed run.
        chance: Chooses.
    """

    folder: Path
    effects: Callable[[], int]
    total: int
    chance: random.Random

    def wait_until(self, start: Start, what: str, condition: Callable[[], bool]) -> bool:
        """Wait for something; returns False if the script ended before."""
        end = time.monotonic() + PATIENCE
        while not condition():
            if start.process.poll() is not None:
                return False
            if time.monotonic() > end:
                start.kill("tree")
                raise Stuck(f"waited for {what}; {self.effects()} effects\n{start.printed()[-3000:]}")
            time.sleep(0.005)
        return True

    def strike(self, start: Start, moment: str, victim: str, reached: int) -> bool:
        """Kill a victim at a moment; returns False if the script ended before.

        Args:
            start: The start.
            moment: One of ``MOMENTS``.
            victim: One of ``VICTIMS``.
            reached: The least number of effects to wait for.
        """
        match moment:
            case "first second" | "twice":
                time.sleep(self.chance.uniform(0.0, 1.0))
            case "restore":
                if not self.wait_until(
                    start, "the line of resuming", lambda: "job 'orders': " in start.printed()
                ):
                    return False
                time.sleep(self.chance.uniform(0.0, 4.0))
            case "checkpoint":
                if not (
                    self.wait_until(start, f"{reached} effects", lambda: self.effects() >= reached)
                    and self.wait_until(start, "a checkpoint that has begun", self._checkpoint_begun)
                ):
                    return False
            case "end":
                if not self.wait_until(start, "all effects", lambda: self.effects() >= self.total):
                    return False
                time.sleep(self.chance.uniform(0.0, 1.5))
            case _:
                if not self.wait_until(start, f"{reached} effects", lambda: self.effects() >= reached):
                    return False
                time.sleep(self.chance.uniform(0.0, 0.7))
        if start.process.poll() is not None:
            return False
        start.kill(victim)
        return True

    def _checkpoint_begun(self) -> bool:
        checkpoints = self.folder.glob("checkpoints/*/chk-*")
        return any(not (checkpoint / "_metadata").exists() for checkpoint in checkpoints)
