"""The world outside of the operator: effects, a service that knows idempotency keys, transcripts."""

from __future__ import annotations

import asyncio
import random
import re
import threading
from collections import Counter
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

from flink_agents.api.action_state import Record, RecordKind

ENDED = re.compile(rb"(?:did|failed) <([\w./#-]+)>")
"""What a record of a call that ended says of it; a value or an error that a call gave holds its place."""

_process: ContextVar[int] = ContextVar("process")
"""Number of the process in which an action runs, for all that it calls."""

_gone_threads: WeakSet[threading.Thread] = WeakSet()
"""Threads of processes that are gone. On a loaded machine, they outlive their process for a while."""

Entry = tuple[Any, ...]
"""Something that an action did or saw: what, where, and details."""


@dataclass
class Attempt:
    """One execution of one action.

    Attributes:
        entries: What it did and saw, in order.
        stored: The calls whose ends were stored when it was over; None as long as it goes on.
        phase: Number of the phase in which it ran.
    """

    phase: int
    entries: list[Entry] = field(default_factory=list)
    stored: frozenset[str] | None = None

    @property
    def ended(self) -> bool:
        """Whether it came to its end, however."""
        return bool(self.entries) and self.entries[-1][0] in ("end", "raised")


class Service:
    """A service outside: the same key is the same request, and gets the same answer.

    Attributes:
        requests: Requests by key.
        keys: Keys by request.
        learned: What was passed to it by the place that passed it.
    """

    def __init__(self) -> None:
        self.requests: dict[str, str] = {}
        self.keys: dict[str, str] = {}
        self.learned: dict[str, str] = {}
        self.complaints: list[str] = []

    def charge(self, request: str, key: str) -> None:
        """Take a request that has a key."""
        if World.is_gone():
            return
        previous_request = self.requests.setdefault(key, request)
        if previous_request != request:
            self.complaints.append(f"the idempotency key of {previous_request} came with {request}")
        previous_key = self.keys.setdefault(request, key)
        if previous_key != key:
            self.complaints.append(f"{request} was charged twice, with two idempotency keys")

    def learn(self, place: str, token: str) -> None:
        """Learn a token that the action made up."""
        if World.is_gone():
            return
        previous_token = self.learned.setdefault(place, token)
        if previous_token != token:
            self.complaints.append(f"{place} made up two tokens: {previous_token} and {token}")


class World:
    """All of it; one program at a time. Nothing here is taken back by a crash.

    Attributes:
        effects: How often each call took effect, by its place in the program.
        acknowledged: Places of calls whose end was acknowledged as stored, or found stored after a crash.
        complaints: What must not be.
        service: The service with keys.
        attempts: Executions of actions, by input and event.
        waits: How often actions and calls came to a point at which they wait.
        hangs_at: At which of these the present attempt dies; None for at none of them.
        freezes: Whether it dies as a whole there; otherwise a call stands still, and the rest goes on.
        hanging: Set when it does.
        dead: Whether nothing that happens counts any more: the process is gone.
        chance: Decides how long calls and the store take; not what they answer.
        phase: Number of the present phase: a new one begins with each operator.
        process: The same, counted over all programs.
    """

    effects: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    acknowledged: set[str] = set()
    complaints: list[str] = []
    service = Service()
    attempts: dict[str, list[Attempt]] = {}
    waits = 0
    hangs_at: int | None = None
    freezes = False
    hanging = threading.Event()
    dead = False
    buried = threading.Event()
    chance = random.Random(0)
    phase = 0
    process = 0

    @classmethod
    def is_gone(cls) -> bool:
        """Return True if the process of the calling action is gone."""
        return cls.dead or _process.get(cls.process) != cls.process

    @classmethod
    def forget(cls, seed: int) -> None:
        """Begin a program."""
        _let_threads_go()
        cls.effects.clear()
        cls.tried.clear()
        cls.acknowledged.clear()
        cls.complaints.clear()
        cls.service = Service()
        cls.attempts = {}
        cls.waits = 0
        cls.hangs_at = None
        cls.freezes = False
        cls.dead = False
        cls.hanging.clear()
        cls.buried.clear()
        cls.chance = random.Random(seed)
        cls.phase = 0
        cls.process += 1

    @classmethod
    def next_phase(cls, stored: Iterable[str]) -> None:
        """The operator has died; what it did not see of the store is known now."""
        cls.acknowledged.update(stored)
        for attempts in cls.attempts.values():
            last = attempts[-1]
            # What follows is the end of what died, and no part of it.
            last.entries = list(last.entries)
            last.stored = last.stored if last.stored is not None else frozenset(cls.acknowledged)
        cls.phase += 1
        cls.process += 1
        cls.hangs_at = None
        cls.dead = False
        cls.hanging.clear()
        cls.buried.clear()

    @classmethod
    def begin(cls, label: str) -> list[Entry]:
        """An execution of an action begins; returns where it notes what it sees."""
        _process.set(-1 if threading.current_thread() in _gone_threads else cls.process)
        if cls.is_gone():
            return []
        attempts = cls.attempts.setdefault(label, [])
        if attempts and attempts[-1].stored is None:
            attempts[-1].stored = frozenset(cls.acknowledged)
        attempts.append(Attempt(cls.phase))
        return attempts[-1].entries

    @classmethod
    def effect(cls, place: str) -> None:
        """Take effect."""
        if cls.is_gone():
            return
        if place in cls.acknowledged:
            cls.complaints.append(f"{place} was recorded, and took effect again")
        cls.effects[place] += 1


def freeze() -> None:
    """The process is gone: cut the transcripts of its attempts off from what is left of them here."""
    World.dead = True
    _let_threads_go()
    for attempts in World.attempts.values():
        attempts[-1].entries = list(attempts[-1].entries)
    World.buried.set()


def _let_threads_go() -> None:
    _gone_threads.update(thread for thread in threading.enumerate() if thread is not threading.main_thread())


def places_in(records: Iterable[Record]) -> set[str]:
    """Calls whose end is among records."""
    places: set[str] = set()
    for record in records:
        if record.kind is RecordKind.CALL:
            places.update(place.decode() for place in ENDED.findall(record.data))
    return places


def is_last() -> bool:
    """Whether the attempt dies at this point."""
    number = World.waits
    World.waits += 1
    return number == World.hangs_at and not World.dead


def die() -> None:
    """Let nothing happen on this thread any more, until the rest of the attempt counts for nothing."""
    World.hanging.set()
    World.buried.wait(60)


async def wait_outside() -> None:
    """A point at which the attempt may die while a call goes on."""
    if is_last():
        if World.freezes:
            die()
        World.hanging.set()
        await asyncio.get_running_loop().create_future()


def wait_inside() -> None:
    """A point at which the attempt may die while an action waits for something else than a call."""
    if is_last():
        die()


async def take_time() -> None:
    """Take a random time, often none: as long as something outside takes."""
    await wait_outside()
    drawn = World.chance.random()
    if drawn < 0.45:
        return
    if drawn < 0.8:
        for _ in range(World.chance.randint(1, 4)):
            await asyncio.sleep(0)
    else:
        await asyncio.sleep(World.chance.choice((0.0003, 0.0006, 0.001)))
