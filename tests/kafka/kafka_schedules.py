"""Executes all orders in which several threads can reach their synchronization points.

One thread goes on at a time, from one point to its next one. Orders that lead to the same state go on as
one: a thread's state follows from what it has observed, all else is told by a world's ``shared``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any

TICK = "tick"
"""The choice that lets time pass."""


class _Abandoned(BaseException):
    """Ends a thread whose order is not followed any more; nothing catches it."""


class Actor(threading.Thread):
    """One thread of a world.

    Args:
        world: Where it acts.
        name: What choices call it.
        body: What it does; its result, or the exception, is ``outcome``.
    """

    def __init__(self, world: World, name: str, body: Callable[[], Any]) -> None:
        super().__init__(name=name, daemon=True)
        self._world = world
        self._body = body
        self._turn = threading.Semaphore(0)
        self.at: tuple[str, Callable[[], bool]] | None = ("does not go yet", lambda: False)
        self.observed: list[Hashable] = []
        self.outcome: Any = None

    def run(self) -> None:
        try:
            self._wait_for_turn()
            self.outcome = self._body()
        except _Abandoned:
            return
        except Exception as error:
            self.outcome = error
        self.at = None
        self._world.control.release()

    def reach(self, name: str, ready: Callable[[], bool]) -> None:
        """Stand at a point until the order lets it go on."""
        self.at = (name, ready)
        self.observed.append(name)
        self._world.control.release()
        self._wait_for_turn()

    def go(self) -> None:
        """Let it go on, and wait until it stands again or has ended."""
        assert self.at is not None, f"{self.name} did not come to its end here before: what it does varies"
        self._turn.release()
        self._world.control.acquire()

    def abandon(self) -> None:
        """End it where it stands."""
        if self.at is not None:
            self._world.abandoned = True
            self._turn.release()
        self.join()

    def _wait_for_turn(self) -> None:
        self._turn.acquire()
        if self._world.abandoned:
            raise _Abandoned


class World:
    """What actors share. Subclasses add actors, and say what they share.

    Attributes:
        time: What time it is.
        ticks: How often time has passed.
    """

    tick_seconds = 0.5
    free_ticks = 3
    """So often time may pass at any point; oftener only where nothing else goes on."""

    def __init__(self) -> None:
        self.control = threading.Semaphore(0)
        self.abandoned = False
        self.actors: dict[str, Actor] = {}
        self.time = 0.0
        self.ticks = 0

    def act(self, name: str, body: Callable[[], Any]) -> None:
        """Add an actor."""
        self.actors[name] = Actor(self, name, body)

    def shared(self) -> Hashable:
        """What the actors' next steps depend on, beside what each has observed."""
        raise NotImplementedError

    # -- for the code that actors execute -----------------------------------------------

    def point(self, name: str, ready: Callable[[], bool] = lambda: True) -> None:
        """Let others go first; nothing where no actor calls."""
        if isinstance(actor := threading.current_thread(), Actor):
            actor.reach(name, ready)

    def saw(self, value: Any) -> Any:
        """Note what an actor has observed."""
        if isinstance(actor := threading.current_thread(), Actor):
            actor.observed.append(value)
        return value

    def clock(self, rate: float = 1.0) -> Callable[[], float]:
        """A clock that runs so many times too fast."""
        return lambda: self.saw(self.time * rate)

    def sleeper(self, rate: float = 1.0) -> Callable[[float], None]:
        """A sleep by such a clock."""

        def sleep(seconds: float) -> None:
            until = self.time + seconds / rate
            self.point("sleep", lambda: self.time >= until)

        return sleep

    # -- for who explores ---------------------------------------------------------------

    def choices(self) -> list[str]:
        """Who can go on."""
        choices = [name for name, actor in self.actors.items() if actor.at is not None and actor.at[1]()]
        waiting = any(actor.at is not None for actor in self.actors.values())
        if waiting and (self.ticks < self.free_ticks or (not choices and self._sleeps())):
            choices.append(TICK)
        return choices

    def _sleeps(self) -> bool:
        return any(actor.at is not None and actor.at[0] == "sleep" for actor in self.actors.values())

    def go(self, choice: str) -> None:
        """Let one go on."""
        if choice == TICK:
            self.ticks += 1
            self.time += self.tick_seconds
        else:
            self.actors[choice].go()

    def state(self) -> Hashable:
        """What happens next follows from this alone."""
        seen = tuple((tuple(actor.observed), actor.at is None) for actor in self.actors.values())
        return self.time, self.shared(), seen


def explore(make: Callable[[], World]) -> Iterator[tuple[World, list[str]]]:
    """All worlds in which nobody goes on any more, and the order that led there."""
    seen: set[Hashable] = set()
    todo: list[list[str]] = [[]]
    while todo:
        path = todo.pop()
        world = make()
        for actor in world.actors.values():
            actor.start()
            actor.go()  # to its first point, up to which nothing happens
        try:
            for choice in path:
                world.go(choice)
            while True:
                state = world.state()
                if state in seen:
                    break
                seen.add(state)
                choices = world.choices()
                if not choices:
                    yield world, path
                    break
                todo.extend([*path, other_choice] for other_choice in choices[1:])
                path = [*path, choices[0]]
                world.go(choices[0])
        finally:
            for actor in world.actors.values():
                actor.abandon()
