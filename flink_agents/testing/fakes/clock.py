"""The time of a harness: one clock for its operator, and for the event loops of its subtasks.

Time stands still while code runs. If all event loops have nothing to do, the test's thread waits for them,
and no thread or socket has work for them, it moves to the next timer at once. While there is such work, a
timer fires after its real duration.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from flink_agents.runtime.loop.agent_loop import AgentLoop

START = 1_700_000_000_000
"""Wall-clock time at which a harness starts, in milliseconds."""

BASE_SECONDS = 1000.0
"""The time of the event loops at that moment."""

SLICE_SECONDS = 0.02
"""Longest real time before an event loop without work looks again if time may move."""

IDLE_SECONDS = 5.0
"""The same for an event loop without runs. It is woken when it gets some; many harnesses are never closed."""

HANG_LOOKS = 250
"""Number of looks of each loop that find that nothing can happen, before runs count as hanging.

Looks are counted, not time: a machine that is too busy to let a thread work does not let a loop look either.
They take five seconds at least.
"""

QUIET_LOOKS = 10
"""Looks of a loop without timers, after something has happened, before it examines what its runs wait for.

Nearly always something happens before that, and then this costs nothing.
"""

SHORT_SECONDS = 0.05
"""Timers up to this duration take it really: code may look again and again at what a thread does."""

_MILLISECOND_ERROR = 1e-3
"""Times in seconds are floats, so a whole millisecond may be a little less."""


class RealTime:
    """The real time, as functions that a test cannot patch in ``time``."""

    seconds = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)


class ClockedLoop(Protocol):
    """The event loop of a subtask, as the clock of the harness sees it."""

    @property
    def agent(self) -> AgentLoop | None:
        """The agent loop that it serves; None once that is garbage-collected."""
        ...

    @property
    def next_due(self) -> float | None:
        """Time of the loop at which its next timer fires; None without timers."""
        ...

    @property
    def is_at_rest(self) -> bool:
        """True if it has nothing to execute before its next timer. For any thread."""
        ...

    @property
    def has_runs(self) -> bool:
        """True if it executes runs, or reads their records."""
        ...

    def waits_for_outside(self) -> bool:
        """Return True if a run waits for a thread, socket or store: for nothing that the loop itself ends."""
        ...

    def may_be_woken(self) -> bool:
        """Return True if a thread or socket may give the loop work, for a run or not."""
        ...

    def while_test_waits(self, act: Callable[[], bool | None]) -> bool | None:
        """Call ``act`` and return its result, if the test's thread waits for this loop; else return None."""
        ...

    def notify_test(self) -> None:
        """Wake the test's thread, so that it looks for work."""

    def wake(self) -> None:
        """Wake the loop, so that it looks at its timers. For any thread."""

    def start_submitted(self) -> None:
        """Let runs that were submitted start now that the test waits. For any thread."""


class Clock:
    """The wall clock in milliseconds, and the time of event loops in seconds.

    Not part of the harness, so that nothing refers back to it.

    Attributes:
        is_real: True while timers take real time, because the test waits for a limited time.
        test_waits: True while the test waits for the end of runs.
        hanging: The loop whose runs nothing can end; None if there is none.
        lock: Held while time moves.
    """

    def __init__(self) -> None:
        self.is_real = False
        self.test_waits = False
        self.hanging: ClockedLoop | None = None
        self.lock = threading.RLock()
        self._wall = 0.0
        self._seconds = BASE_SECONDS
        self._began = RealTime.seconds()
        self._loops: weakref.WeakSet[ClockedLoop] = weakref.WeakSet()
        self._next_due: Callable[[int], int | None] = _no_delayed_event
        self._is_flying = False
        self._looks = 0

    # -- reading ----------------------------------------------------------------------

    def __call__(self) -> int:
        """Return the wall-clock time in milliseconds since the epoch."""
        return self.time

    @property
    def time(self) -> int:
        """The wall-clock time in milliseconds. If it is set to a later time, the loops move along."""
        return START + int(self._wall * 1000 + _MILLISECOND_ERROR)

    @time.setter
    def time(self, time_ms: int) -> None:
        with self.lock:
            remaining_seconds = (time_ms - START) / 1000 - self._wall
            if remaining_seconds > 0:
                self._move_loops(remaining_seconds)
            self.set_wall_clock(time_ms)

    def loop_seconds(self) -> float:
        """Return the time of the loops in seconds, which never goes back."""
        return self._seconds

    def stamp(self) -> float:
        """Return the time by which durations are measured: that of the loops, plus the real time so far.

        So the records of two equal outcomes have different times: equal records would count as one.
        """
        return self._seconds + RealTime.seconds() - self._began

    # -- moving -----------------------------------------------------------------------

    def set_wall_clock(self, time_ms: int) -> None:
        """Set the wall clock, but not the time of the loops, when the harness returns to another moment."""
        self._wall = (time_ms - START) / 1000

    def pass_to(self, time_ms: int, patience: float) -> None:
        """Move to a time; each timer of the loops before it fires at its own time. Waits for their code.

        Args:
            time_ms: The wall-clock time in milliseconds since the epoch.
            patience: Real seconds to wait for a loop that executes code.
        """
        while True:
            self._wait_for_loops(patience)
            loop_seconds = self._rest_of_loops()
            remaining_seconds = (time_ms - START) / 1000 - self._wall
            # Code that looks again every millisecond must not make an hour longer than that.
            if loop_seconds is None or loop_seconds > remaining_seconds or loop_seconds <= SHORT_SECONDS:
                break
            self._move_loops(loop_seconds)
        self.time = time_ms

    @contextmanager
    def fly_to_delayed(self, next_due: Callable[[int], int | None]) -> Iterator[None]:
        """Let time also pass to delayed events: the end of a bounded input waits for them.

        Args:
            next_due: Returns the first time after its argument at which a delayed event is due; None if none.
        """
        self._next_due = next_due
        self._is_flying = True
        for loop in self._loops_now():
            loop.wake()
        try:
            yield
        finally:
            self._next_due = _no_delayed_event
            self._is_flying = False

    def _move_loops(self, seconds: float) -> None:
        with self.lock:
            self._wall += seconds
            self._seconds += seconds
            self._looks = 0
            for loop in self._loops_now():
                due = loop.next_due
                if due is not None and due <= self._seconds:
                    loop.wake()

    @contextmanager
    def while_waiting(self) -> Iterator[None]:
        """Start submitted runs at once while the test waits; else those of several keys start together."""
        self.test_waits = True
        for loop in self._loops_now():
            loop.start_submitted()
        try:
            yield
        finally:
            self.test_waits = False

    # -- for the loops ----------------------------------------------------------------

    def add_loop(self, loop: ClockedLoop) -> None:
        """Add an event loop whose timers follow this clock."""
        with self.lock:
            self._loops.add(loop)

    def remove_loop(self, loop: ClockedLoop) -> None:
        """Remove a loop that is closing."""
        with self.lock:
            self._loops.discard(loop)

    def pass_really(self, seconds: float) -> None:
        """Move the time by real seconds that have passed.

        The wall clock moves only while the test waits for the end of runs.
        """
        loops = () if self.is_real else self._loops_now()
        test_waits = any(loop.while_test_waits(lambda: True) for loop in loops)
        with self.lock:
            # Other loops need not be woken: the same time passes for them.
            self._wall += seconds if test_waits else 0.0
            self._seconds += seconds
            self._looks = 0

    @property
    def may_move(self) -> bool:
        """True if there is a time to move to: a timer of a loop, or a delayed event."""
        return self._is_flying or self._rest_of_loops() is not None

    def move_on(self) -> bool | None:
        """Move to the next timer, if the loops have nothing else to do.

        Returns:
            True if time has moved. False if work outside of the loops keeps it from moving, so that real time
            counts.
            None if it cannot move now.
        """
        if self.is_real:
            return False
        loops = self._loops_now()
        for loop in loops:
            moved = loop.while_test_waits(lambda: self._move_on(loops))
            if moved is not None:
                return moved
        return None

    def note_work(self) -> None:
        """Note that a loop executes code, so that its runs do not hang."""
        self._looks = 0

    def _move_on(self, loops: list[ClockedLoop]) -> bool | None:
        with self.lock:
            if not any(loop.has_runs for loop in loops) and self._next_due(self.time) is None:
                return None
            are_at_rest = all(loop.is_at_rest for loop in loops)
            if are_at_rest and any(loop.waits_for_outside() for loop in loops):
                self._looks = 0
                return False
            # Again: a thread that is idle by now has handed its result to its loop before.
            if not (are_at_rest and all(loop.is_at_rest for loop in loops)):
                self._looks = 0
                return None
            loop_seconds = self._rest_of_loops()
            due = self._next_due(self.time)
            if due is not None and (loop_seconds is None or (due - self.time) / 1000 <= loop_seconds):
                self._move_loops((due - START) / 1000 - self._wall)
                for loop in loops:
                    loop.notify_test()
                return True
            if loop_seconds is not None:
                self._move_loops(loop_seconds)
                return True
            self._note_hang(loops)
            return None

    def _note_hang(self, loops: list[ClockedLoop]) -> None:
        """Mark a loop as hanging, if enough looks have found that nothing can happen."""
        self._looks = 0 if any(loop.may_be_woken() for loop in loops) else self._looks + 1
        if self._looks >= HANG_LOOKS * len(loops):
            self.hanging = next((loop for loop in loops if loop.has_runs), None)

    def _loops_now(self) -> list[ClockedLoop]:
        with self.lock:
            return list(self._loops)

    def _rest_of_loops(self) -> float | None:
        """Return the seconds until the next timer of any loop; None without timers."""
        dues = [loop.next_due for loop in self._loops_now()]
        return min((max(0.0, due - self._seconds) for due in dues if due is not None), default=None)

    def _wait_for_loops(self, patience: float) -> None:
        """Wait until no loop executes code, at most ``patience`` seconds.

        Code that only polls does not count.
        """
        end = RealTime.seconds() + patience
        while not all(loop.is_at_rest or self._is_polling(loop) for loop in self._loops_now()):
            if RealTime.seconds() >= end:
                return
            RealTime.sleep(0.0005)

    def _is_polling(self, loop: ClockedLoop) -> bool:
        due = loop.next_due
        return due is not None and 0 < due - self._seconds <= SHORT_SECONDS


def _no_delayed_event(after_ms: int) -> int | None:
    return None
