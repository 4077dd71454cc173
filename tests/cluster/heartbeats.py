"""Agents that write a line whenever their code runs, and checks of these lines.

The lines stand outside of the process and name the attempt, so that a step of an attempt that
should be dead is seen, whoever executes it.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from flink_agents import Agent, Event, InputEvent, OutputEvent, action

BEATS_PER_CALL = 5
BEAT_SECONDS = 0.01


@dataclass(frozen=True)
class Beat:
    """A line.

    Attributes:
        attempt: Which instance of the agent wrote it; each attempt of a subtask has its own.
        kind: What ran.
        key: For which key.
    """

    attempt: str
    kind: str
    key: str


class Heartbeats:
    """The file of lines. Is part of agents, and so is made anew with each attempt.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._attempt = uuid4().hex[:8]

    def write(self, kind: str, key: Any) -> None:
        """Write a line; one ``write`` to a file that is appended to is whole."""
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(handle, f"{self._attempt} {kind} {key}\n".encode())
        finally:
            os.close(handle)


def read_beats(path: Path) -> list[Beat]:
    """All lines so far."""
    if not path.exists():
        return []
    return [Beat(*line.split()) for line in path.read_text(encoding="utf-8").splitlines()]


def attempts_of(beats: list[Beat]) -> list[str]:
    """The attempts that wrote, in the order of their first lines."""
    return list(dict.fromkeys(beat.attempt for beat in beats))


def late_beats(beats: list[Beat]) -> list[Beat]:
    """Lines of attempts that had a successor when they wrote.

    Attempts that share a key are of the same subtask, where only the latest may work.
    """
    owner: dict[str, str] = {}
    dead: set[str] = set()
    late: list[Beat] = []
    for beat in beats:
        if beat.attempt in dead:
            late.append(beat)
        else:
            previous = owner.get(beat.key, beat.attempt)
            if previous != beat.attempt:
                dead.add(previous)
            owner[beat.key] = beat.attempt
    return late


class InLoop(Event):
    turn: int


class InPool(Event):
    turn: int


class RestlessAgent(Agent):
    """Runs for ever, in turns on the agent loop and in its pool of threads.

    Args:
        path: The file of lines.
        fails: ``flink`` lets a ``def`` action on Flink's thread raise at a negative input, and
            ``loop`` an awaited one; both only once.
        call_beats: How many lines each call in the pool writes, 10 ms apart.
    """

    def __init__(self, path: str, fails: str = "", call_beats: int = BEATS_PER_CALL) -> None:
        self.path = path
        self.fails = fails
        self.call_beats = call_beats
        self.beats = Heartbeats(path)

    @action(InputEvent)
    def begin(self, event: InputEvent, ctx: Any) -> InLoop:
        self.beats.write("begin", ctx.key)
        if event.input < 0 and self.fails == "flink":
            fail_once(self.path, self.fails)
        return InLoop(turn=event.input)

    @action(InLoop)
    async def wait(self, event: InLoop, ctx: Any) -> InPool:
        if event.turn < 0 and self.fails == "loop":
            fail_once(self.path, self.fails)
        try:
            for _ in range(BEATS_PER_CALL):
                await asyncio.sleep(BEAT_SECONDS)
                self.beats.write("wait", ctx.key)
        finally:
            self.beats.write("end", ctx.key)
        return InPool(turn=event.turn + 1)

    @action(InPool)
    def call(self, event: InPool, ctx: Any) -> InLoop:
        for _ in range(self.call_beats):
            time.sleep(BEAT_SECONDS)
            self.beats.write("call", ctx.key)
        return InLoop(turn=event.turn + 1)


def fail_once(path: str, where: str) -> None:
    """Raise, the first time that this is called for ``path`` in whatever process."""
    try:
        os.close(os.open(f"{path}.failed", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    raise RuntimeError(f"the failure in {where}")


class StubbornAgent(Agent):
    """Has one awaited call for each key, which goes on when it is cancelled.

    Args:
        path: The file of lines. The input -1 fails once.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.beats = Heartbeats(path)

    @action(InputEvent)
    async def wait(self, event: InputEvent, ctx: Any) -> None:
        if event.input < 0:
            fail_once(self.path, "loop")
        while True:
            try:
                await asyncio.sleep(BEAT_SECONDS)
                self.beats.write("wait", ctx.key)
            except asyncio.CancelledError:
                self.beats.write("refused", ctx.key)


class PatientAgent(Agent):
    """Waits for a minute in each call.

    Args:
        path: The file of lines.
    """

    def __init__(self, path: str) -> None:
        self.beats = Heartbeats(path)

    @action(InputEvent)
    async def wait(self, event: InputEvent, ctx: Any) -> OutputEvent:
        self.beats.write("begin", ctx.key)
        try:
            await asyncio.sleep(60)
        finally:
            self.beats.write("end", ctx.key)
        return OutputEvent(output=event.input)
