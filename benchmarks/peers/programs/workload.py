"""The workload that every peer runs: per input two durable steps and a counter of its key.

Standard library only, since each peer has its own environment.

    python PROGRAM.py rate|latency|kill INPUTS FOLDER

``rate``     all inputs at once
``latency``  twenty inputs per second
``kill``     all inputs at once; each step takes 2 ms, and its effect is a line in ``FOLDER/effects``.
             Started again after SIGKILL, the program has to finish the work.

A program writes lines to ``FOLDER/marks``, each with its time: ``ready`` when it can take inputs, ``first``
after the first output, ``warm`` after a fifth, ``end`` after the last one, and for ``latency`` some JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

KEYS = 5000
PER_SECOND = 20
WARM_UP = 0.2
STEP_SECONDS = 0.002
READ_SECONDS = 10.0
"""How long a program waits at most until the measuring process has read its CPU time."""

# A worker that the program starts has other arguments, but the same environment.
if len(sys.argv) == 4 and sys.argv[1] in ("rate", "latency", "kill"):
    os.environ["PEER_WORKLOAD"] = json.dumps(sys.argv[1:])
MODE, _inputs, _folder = json.loads(os.environ["PEER_WORKLOAD"])
INPUTS = int(_inputs)
FOLDER = Path(_folder)
_effects = os.open(FOLDER / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT) if MODE == "kill" else None


def key_of(number: int) -> str:
    """Return the key of an input."""
    return f"k{number % KEYS}"


def print_line(line: str) -> None:
    """Write a line where the measuring process reads it: workers of PyFlink have no standard output."""
    with (FOLDER / "marks").open("a") as marks:
        marks.write(f"{time.time():.6f} {line}\n")


def wait_for_file(name: str, seconds: float) -> None:
    """Return when a file is in the folder, or after some seconds."""
    deadline = time.monotonic() + seconds
    while not (FOLDER / name).exists() and time.monotonic() < deadline:
        time.sleep(0.01)


async def effect(step: str, number: int) -> int:
    """Do what a step does outside of the process."""
    if _effects is not None:
        os.write(_effects, f"{step} {number}\n".encode())
        await asyncio.sleep(STEP_SECONDS)
    return number


async def charge(number: int) -> int:
    """Make the first step of an input."""
    return await effect("charge", number)


async def notify(number: int) -> int:
    """Make the second step of an input."""
    return await effect("notify", number)


async def arrivals() -> AsyncIterator[tuple[int, float]]:
    """Yield each input when it is to be sent, with the time."""
    begin = time.time()
    for number in range(INPUTS):
        at = begin + number / PER_SECOND if MODE == "latency" else begin
        if at > time.time():
            await asyncio.sleep(at - time.time())
        yield number, at


async def send_all(send: Callable[[int], Awaitable[object]], in_flight: int, progress: Progress) -> None:
    """Send all inputs, with at most so many in flight, and count each one whose result has come."""
    slots = asyncio.Semaphore(in_flight)
    running: set[asyncio.Task[None]] = set()

    async def send_input(number: int, at: float) -> None:
        await send(number)
        slots.release()
        progress.output(at)

    async for number, at in arrivals():
        await slots.acquire()
        task = asyncio.create_task(send_input(number, at))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)


class Progress:
    """Counts the outputs, and prints the marks that the measuring process waits for."""

    def __init__(self) -> None:
        self.seen = 0
        self._latencies: list[float] = []

    def ready(self) -> None:
        """Say that inputs can come."""
        print_line("ready")

    def output(self, sent: float) -> bool:
        """Count an output of an input that was sent at ``sent``; return True after the last one."""
        self.seen += 1
        self._latencies.append(time.time() - sent)
        if self.seen == 1:
            print_line("first")
        if self.seen == int(INPUTS * WARM_UP):
            print_line("warm")
        if self.seen == INPUTS:
            self.end()
        return self.seen >= INPUTS

    def end(self) -> None:
        """Say that all inputs are finished, and keep the process until its CPU time has been read."""
        print_line("end")
        if MODE == "rate":
            wait_for_file("read", READ_SECONDS)
        if MODE == "latency":
            steady = sorted(self._latencies[int(INPUTS * WARM_UP) :])
            share = {"p50": 0.5, "p99": 0.99}
            figures = {name: 1000 * steady[int(at * (len(steady) - 1))] for name, at in share.items()}
            print_line(json.dumps(figures))
