"""Runs a peer's processes, waits for their marks, and counts CPU, memory and effects from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.peers.environments import HERE, Environment
from benchmarks.peers.peer import Peer, Role

PROGRAMS = HERE / "programs"
SAMPLE_SECONDS = 0.2
POLL_SECONDS = 0.02
MARK_SECONDS = {"rate": 120.0, "latency": 90.0, "kill": 120.0}
"""How long a run of a mode waits for its next mark."""
KILL_AT = 0.4
"""The share of all effects after which the worker is killed."""

Figures = dict[str, float]


class PeerFailed(Exception):
    """A peer's process ended too early, or a mark did not come in time."""


@dataclass
class Running:
    """The processes of a peer.

    Attributes:
        peer: Which one.
        environment: Where it runs.
        mode: The mode of ``workload``.
        inputs: How many inputs there are.
        folder: Where its data is.
    """

    peer: Peer
    environment: Environment
    mode: str
    inputs: int
    folder: Path
    processes: list[tuple[Role, subprocess.Popen[str]]] = field(default_factory=list)
    peak: int = 0
    _lines: deque[tuple[float, str]] = field(default_factory=deque[tuple[float, str]])
    _at: int = 0
    _ports: dict[str, str] = field(default_factory=dict[str, str])

    def start(self, only_workers: bool = False) -> None:
        """Start all processes, or the workers again."""
        self._ports = self._ports or {
            name: str(_free_port()) for name in ("PORT", "INGRESS", "ADMIN", "NODE")
        }
        for role in self.peer.roles:
            if role.worker or not only_workers:
                self.processes.append((role, self._start(role)))

    def _start(self, role: Role) -> subprocess.Popen[str]:
        names = {
            "python": str(self.environment.python),
            "ours": sys.executable,
            "npm": str(self.environment.npm),
            "programs": str(PROGRAMS),
            "mode": self.mode,
            "inputs": str(self.inputs),
            "folder": str(self.folder),
        }
        log = (self.folder / "log").open("a")
        process = subprocess.Popen(
            [part.format(**names) for part in role.command],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            text=True,
            env=os.environ | self._ports | _restate_settings(self._ports),
            cwd=self.folder,
            start_new_session=True,
        )
        return process

    def _read(self) -> None:
        """Take the lines that were written to the file of marks since the last look."""
        file = self.folder / "marks"
        if file.exists():
            with file.open("rb") as marks:
                marks.seek(self._at)
                for line in marks:
                    if line.endswith(b"\n"):
                        at, _, mark = line.decode().strip().partition(" ")
                        self._lines.append((float(at), mark))
                        self._at += len(line)

    def wait_for(self, mark: str) -> tuple[float, str]:
        """Return the line that begins with a mark, and when it was written, once it is there."""
        for _ in self.polls(repr(mark)):
            self._read()
            while self._lines:
                at, line = self._lines.popleft()
                if line.startswith(mark):
                    return at, line
        raise AssertionError  # polls() raises first

    def wait_for_effects(self, count: int) -> None:
        """Return when there are more than so many effects."""
        for _ in self.polls(f"{count} effects"):
            if len(_effects(self.folder)) > count:
                return

    def polls(self, awaited: str) -> Iterator[None]:
        """Yield again and again, for as long as what is awaited can still come.

        Raises:
            PeerFailed: The program ended, or the time is over.
        """
        seconds = MARK_SECONDS[self.mode]
        deadline = time.monotonic() + seconds
        sampled = 0.0
        while time.monotonic() < deadline:
            # A program that ends just now may have written what is awaited: look once more after it.
            ended = [process.poll() for role, process in self.processes if role.marks]
            yield
            if any(status is not None for status in ended):
                raise PeerFailed(f"{self.peer.name}: exit {ended} before {awaited}\n{self._log()}")
            if time.monotonic() - sampled > SAMPLE_SECONDS:
                sampled = time.monotonic()
                self.peak = max(self.peak, self.memory())
            time.sleep(POLL_SECONDS)
        raise PeerFailed(f"{self.peer.name}: no {awaited} after {seconds:.0f} s\n{self._log()}")

    def _log(self) -> str:
        return (self.folder / "log").read_text()[-3000:]

    def cpu(self) -> float:
        """Return the CPU seconds of all processes that count, with their children."""
        return sum(_cpu(process.pid) for role, process in self.processes if role.counted)

    def memory(self) -> int:
        """Return the resident bytes of all processes that count."""
        return sum(_memory(process.pid) for role, process in self.processes if role.counted)

    def kill_workers(self) -> None:
        """Kill the workers and all that they started."""
        for role, process in self.processes:
            if role.worker:
                _kill(process)
        # What a dead worker wrote is not of the next one.
        self._read()
        self._lines.clear()
        self.processes = [(role, process) for role, process in self.processes if not role.worker]

    def stop(self) -> None:
        """Kill everything that is left."""
        for _, process in self.processes:
            _kill(process)


@contextlib.contextmanager
def running(peer: Peer, environment: Environment, mode: str, inputs: int) -> Iterator[Running]:
    """Run a peer in a new folder, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix=f"peer-{peer.name}-") as folder:
        program = Running(peer, environment, mode, inputs, Path(folder))
        try:
            program.start()
            yield program
        finally:
            program.stop()


def measure_rate(peer: Peer, environment: Environment, inputs: int) -> Figures:
    """Return steps per second, CPU per step, and the peak of memory."""
    start_seconds = time.time()
    with running(peer, environment, "rate", inputs) as program:
        first, _ = program.wait_for("first")
        warm, _ = program.wait_for("warm")
        cpu = program.cpu()
        end, _ = program.wait_for("end")
        # The program waits until its CPU time is read.
        cpu = program.cpu() - cpu
        (program.folder / "read").touch()
        steps = 2 * (inputs - int(0.2 * inputs))
        return {
            "steps_per_second": steps / (end - warm),
            "cpu_ms_per_step": 1000 * cpu / steps,
            "peak_mib": max(program.peak, program.memory()) / 2**20,
            "first_output_seconds": first - start_seconds,
        }


def measure_latency(peer: Peer, environment: Environment, inputs: int) -> Figures:
    """Return the latency of an input at twenty per second, in milliseconds."""
    with running(peer, environment, "latency", inputs) as program:
        figures = json.loads(program.wait_for("{")[1])
        return {f"{name}_ms": value for name, value in figures.items()}


def measure_kill(peer: Peer, environment: Environment, inputs: int) -> Figures:
    """Kill the worker in the middle, start it again, and count the effects of steps.

    An input's second step begins when its first one is recorded. So a first step whose effect comes
    again although the second one had begun is one that was repeated after its record.
    """
    with running(peer, environment, "kill", inputs) as program:
        program.wait_for("ready")
        program.wait_for_effects(int(KILL_AT * 2 * inputs))
        program.kill_workers()
        previous_effects = _effects(program.folder)
        start_seconds = time.time()
        program.start(only_workers=True)
        program.wait_for_effects(len(previous_effects))
        again = time.time() - start_seconds
        program.wait_for("end")
        effects = _effects(program.folder)
        recorded = {f"charge {line.split()[1]}" for line in previous_effects if line.startswith("notify")}
        return {
            "effects": 2 * inputs,
            "before_the_kill": len(previous_effects),
            "lost": 2 * inputs - len(set(effects)),
            "repeated": len(effects) - len(set(effects)),
            "repeated_after_record": len(recorded.intersection(effects[len(previous_effects) :])),
            "works_again_seconds": again,
        }


def _effects(folder: Path) -> list[str]:
    file = folder / "effects"
    return file.read_text().splitlines() if file.exists() else []


def _tree(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _cpu(pid: int) -> float:
    total = 0.0
    for process in _tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _memory(pid: int) -> int:
    total = 0
    for process in _tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total


def _kill(process: subprocess.Popen[str]) -> None:
    for tree_process in _tree(process.pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            tree_process.send_signal(signal.SIGKILL)
    process.wait()


def _free_port() -> int:
    with socket.socket() as free_socket:
        free_socket.bind(("127.0.0.1", 0))
        return free_socket.getsockname()[1]


def _restate_settings(ports: dict[str, str]) -> dict[str, str]:
    """Return the settings of Restate's server, which reads them from its environment."""
    return {
        "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ports['INGRESS']}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{ports['ADMIN']}",
        "RESTATE_BIND_ADDRESS": f"127.0.0.1:{ports['NODE']}",
        "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{ports['NODE']}",
        "RESTATE_LOG_FILTER": "warn",
        "DO_NOT_TRACK": "1",
    }
