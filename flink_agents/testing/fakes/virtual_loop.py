"""The event loop of a harness, whose timers follow the clock of the harness."""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
import sys
import weakref
from collections.abc import Callable
from contextvars import Context
from itertools import count
from threading import get_ident
from typing import Any

from typing_extensions import override

from flink_agents.runtime.execution.calls.delivery import Delivery, current_delivery
from flink_agents.runtime.loop.action_loop import ActionLoop
from flink_agents.runtime.loop.agent_loop import AgentLoop
from flink_agents.runtime.loop.watchdog import Watchdog
from flink_agents.testing.fakes.clock import (
    IDLE_SECONDS,
    QUIET_LOOKS,
    SHORT_SECONDS,
    SLICE_SECONDS,
    Clock,
    RealTime,
)
from flink_agents.testing.fakes.outside_work import OutsideWork, waits_for_outside

LEAST_SECONDS = 1e-6
"""The shortest time between the call that sets a timer and the timer, if the time is not far ahead."""


SHORTEST_SECONDS = 0.001
"""Real time before a loop that has just worked looks again if time may move; it doubles each further time."""

_OWN = (
    "flink_agents.connectors.",
    "flink_agents.runtime.loop.agent_loop",
    "flink_agents.runtime.loop.replays",
    "flink_agents.runtime.retention.",
    "flink_agents.testing.fakes.outside",
)
"""Modules of the runtime whose timers are no part of a run, so that they follow real time."""

_BETWEEN = ("asyncio.", "flink_agents.runtime.loop.action_loop", __name__)


class IdleSelector(selectors.DefaultSelector):
    """A selector that lets the time of the harness move while the loop waits."""

    loop: VirtualLoop

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the ready files; if there are none and ``timeout`` is not 0, wait for work."""
        self.loop.note_work()
        self.loop.adapt_resolution()
        # Also while code of a run never waits: what was submitted meanwhile starts by such a timer.
        if self.loop.call_own_timers():
            timeout = 0
        if timeout is not None and timeout <= 0 and not self.loop.has_files:
            # What threads hand over is called without a look at the file by which they wake the loop.
            return []
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        return self.loop.wait_for_work(super().select)


class ClockedSelectorLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is that of a harness.

    Attributes:
        clock: The clock of the harness.
        ahead: Seconds that have passed for this loop alone, since it began to close.
    """

    clock: Clock
    ahead = 0.0

    @override
    def time(self) -> float:
        return self.clock.loop_seconds() + self.ahead


class VirtualLoop(ActionLoop, ClockedSelectorLoop):
    """The event loop of an agent loop in a harness, whose timers follow the clock of the harness.

    Args:
        clock: The clock of the harness.
        agent: The agent loop that it serves.
    """

    moves_wall_clock = True

    def __init__(self, clock: Clock, agent: AgentLoop) -> None:
        selector = IdleSelector()
        selector.loop = self
        self.clock = clock
        self._agent = weakref.ref(agent)
        self._numbers = count()
        self._own_timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._is_resting = False
        # The timer with which runs start that were submitted soon after others.
        self._drain: asyncio.TimerHandle | None = None
        # The real seconds until it looks again if time stands still.
        self._pause = SHORTEST_SECONDS
        # The looks without a timer since something has happened.
        self._looks = 0
        # The timer that comes next, and the real time that has passed while the loop waited for it.
        self._awaited_due: float | None = None
        self._waited = 0.0
        self._outside = OutsideWork(agent, self)
        super().__init__(selector)
        self._files = len(selector.get_map())
        clock.add_loop(self)

    # -- time -------------------------------------------------------------------------

    @override
    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        if not _is_of_runtime(callback):
            # Code that computes what is left of a time may be wrong by a rounding error again and again.
            when = (
                when if delivery_of(context) is not None else max(when, self.own_time() + self._least_seconds)
            )
            return super().call_at(when, callback, *args, context=context)
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if getattr(callback, "__func__", None) is AgentLoop._drain:  # pyright: ignore[reportPrivateUsage]
            self._drain = handle
        due = RealTime.seconds() + when - self.own_time()
        heapq.heappush(self._own_timers, (due, next(self._numbers), handle))
        return handle

    @property
    def _least_seconds(self) -> float:
        # A float of many years has large parts.
        return max(LEAST_SECONDS, 4 * math.ulp(self.own_time()))

    def adapt_resolution(self) -> None:
        """Set the resolution of timers so that adding it changes the time: asyncio fires due timers by it."""
        self._clock_resolution = self._least_seconds / 2

    @property
    def own_timers(self) -> list[asyncio.TimerHandle]:
        """The timers of the runtime itself, which follow real time."""
        return [timer for _, _, timer in self._own_timers]

    @property
    def virtual_timers(self) -> list[asyncio.TimerHandle]:
        """The timers of runs, which follow the clock of the harness."""
        return self._scheduled  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def next_due(self) -> float | None:
        """Time of the loop at which its next timer fires; None without timers."""
        first = self.virtual_timers[:1]
        return min((timer.when() for timer in first if not timer.cancelled()), default=None)

    @property
    def agent(self) -> AgentLoop | None:
        """The agent loop that it serves; None if that is garbage-collected, or not started yet."""
        # Before its thread runs this loop, it has no attributes, and other loops of the clock look at it.
        return self._agent() if self.is_running() else None

    # -- for the clock ----------------------------------------------------------------

    @property
    def is_at_rest(self) -> bool:
        """True if it has nothing to execute before its next timer. For any thread."""
        if not self._is_resting or self._ready:  # pyright: ignore[reportAttributeAccessIssue]
            return False
        due = self.next_due
        agent = self.agent
        return (due is None or due > self.own_time()) and not (
            agent is not None and agent._inbox  # pyright: ignore[reportPrivateUsage]
        )

    @property
    def has_runs(self) -> bool:
        """True if it executes runs, or reads their records."""
        agent = self.agent
        return agent is not None and bool(agent._tasks)  # pyright: ignore[reportPrivateUsage]

    @property
    def has_files(self) -> bool:
        """True if it watches sockets or other files, besides the one by which threads wake it."""
        return len(self._selector.get_map()) > self._files  # pyright: ignore[reportAttributeAccessIssue]

    def waits_for_outside(self) -> bool:
        """Return True if a run waits for a thread, socket or store: for nothing that the loop itself ends."""
        return self.has_runs and self._outside.is_there(self.has_files)

    def may_be_woken(self) -> bool:
        """Return True if a thread or socket may give the loop work, for a run or not."""
        return any(not timer.cancelled() for timer in self.own_timers) or self._outside.may_come()

    def while_test_waits(self, act: Callable[[], bool | None]) -> bool | None:
        """Call ``act`` and return its result, if the test's thread waits for this loop; else return None."""
        agent = self.agent
        return None if agent is None else agent._bridge.act_meanwhile(act)  # pyright: ignore[reportPrivateUsage]

    def notify_test(self) -> None:
        """Wake the test's thread, so that it looks for work."""
        agent = self.agent
        if agent is not None:
            self.call_soon_threadsafe(agent._notify)  # pyright: ignore[reportPrivateUsage]

    def start_submitted(self) -> None:
        """Let runs that were submitted start now that the test waits. For any thread."""
        if self._drain is not None:
            self.wake()

    def wake(self) -> None:
        """Wake the loop, so that it looks at its timers. For any thread."""
        own_thread: int = self._thread_id  # pyright: ignore[reportAttributeAccessIssue]
        if self._is_resting and not self.is_closed() and own_thread != get_ident():
            self._write_to_self()  # pyright: ignore[reportAttributeAccessIssue]

    @override
    def close(self) -> None:
        self.clock.remove_loop(self)
        super().close()

    # -- waiting ----------------------------------------------------------------------

    def wait_for_work(self, select: Callable[[float], Any]) -> Any:
        """Wait until there is something to execute; return the ready files.

        Args:
            select: Waits for files, for a number of seconds, and returns the ready ones.
        """
        self._is_resting = True
        try:
            while True:
                due = self.next_due
                if self._ready or (due is not None and due <= self.own_time()):  # pyright: ignore[reportAttributeAccessIssue]
                    return []
                if self.call_own_timers():
                    return []
                seconds, passes = self._next_look(due)
                if seconds <= 0:
                    continue
                self._pause = min(2 * self._pause, SLICE_SECONDS)
                began = RealTime.seconds()
                ready = select(min(seconds, self._seconds_of_own_timer()))
                if passes:
                    self._waited += RealTime.seconds() - began
                if ready:
                    return ready
        finally:
            self._is_resting = False

    def note_work(self) -> None:
        """Tell the clock that the loop executes something, unless only its watchdog does."""
        # A copy: Flink's thread may append to it meanwhile.
        for handle in tuple(self._ready):  # pyright: ignore[reportAttributeAccessIssue]
            if getattr(handle._callback, "__func__", None) is not Watchdog._note_turn:  # pyright: ignore[reportPrivateUsage]
                self.clock.note_work()
                self._pause = SHORTEST_SECONDS
                self._looks = 0
                return

    def _next_look(self, due: float | None) -> tuple[float, bool]:
        """Return the real seconds until the loop looks again, and True if its next timer counts them.

        Args:
            due: Time of its next timer; None without one.
        """
        if due != self._awaited_due:
            self._awaited_due = due
            self._waited = 0.0
        remaining_seconds = None if due is None else due - self.own_time() - self._waited
        if remaining_seconds is not None and remaining_seconds <= 0:
            self._pass_really()
            return 0.0, False
        if self._is_closing:
            return self._next_look_at_end(remaining_seconds)
        if remaining_seconds is not None and remaining_seconds <= SHORT_SECONDS:
            return remaining_seconds, True
        if not self.clock.may_move:
            if not self.has_runs:
                return IDLE_SECONDS, False
            if self._looks < QUIET_LOOKS:
                self._looks += 1
                return SLICE_SECONDS, False
        has_moved = self.clock.move_on()
        if has_moved:
            return 0.0, False
        if has_moved is False:
            return SLICE_SECONDS if remaining_seconds is None else min(remaining_seconds, SLICE_SECONDS), True
        return self._pause, False

    def _next_look_at_end(self, rest: float | None) -> tuple[float, bool]:
        self.clock.remove_loop(self)
        if rest is None:
            return SLICE_SECONDS, False
        # Code that looks again and again at a process gives it the time to end.
        if rest <= SHORT_SECONDS or waits_for_outside(self):
            return min(rest, SLICE_SECONDS), True
        self._pass_really()
        return 0.0, False

    def _pass_really(self) -> None:
        """Move the time of the harness to the next timer, whose real duration has passed."""
        assert self._awaited_due is not None
        remaining_seconds = max(0.0, self._awaited_due - self.own_time())
        self._waited = 0.0
        if self._is_closing:
            # The clock of the harness stands still: what comes now is no part of its test.
            self.ahead += remaining_seconds
        else:
            self.clock.pass_really(remaining_seconds)

    @property
    def _is_closing(self) -> bool:
        agent = self.agent
        return agent is None or agent._bridge.closed  # pyright: ignore[reportPrivateUsage]

    # -- timers of the runtime --------------------------------------------------------

    def _seconds_of_own_timer(self) -> float:
        return max(0.0, self._own_timers[0][0] - RealTime.seconds()) if self._own_timers else IDLE_SECONDS

    def call_own_timers(self) -> bool:
        """Schedule the callbacks of the runtime's timers that are due; return True if there are any."""
        called = False
        if self.clock.test_waits and (drain := self._drain) is not None:
            # The test submits nothing more.
            self._drain = None
            if not drain.cancelled():
                drain.cancel()
                if (agent := self.agent) is not None:
                    self.call_soon(agent._drain)  # pyright: ignore[reportPrivateUsage]
                    called = True
        while self._own_timers and self._own_timers[0][0] <= RealTime.seconds():
            handle = heapq.heappop(self._own_timers)[2]
            if not handle.cancelled():
                self._ready.append(handle)  # pyright: ignore[reportAttributeAccessIssue]
                called = True
        return called


def delivery_of(context: Context | None) -> Delivery | None:
    """Return the delivery in whose context a timer is set; None outside of actions."""
    delivery = current_delivery.get() if context is None else context.get(current_delivery)
    return None if delivery is None or delivery.closed else delivery


def _is_of_runtime(callback: Any) -> bool:
    """Return True if the runtime sets a timer for itself, by the callback and the calling code."""
    if str(getattr(callback, "__module__", "")).startswith(_OWN):
        return True
    frame = sys._getframe(2)
    while frame is not None and frame.f_code is not asyncio.BaseEventLoop.run_forever.__code__:
        name = str(frame.f_globals.get("__name__"))
        if not name.startswith(_BETWEEN):
            # This one awaits a function of the user.
            return name.startswith(_OWN) and frame.f_code.co_name != "_record_result"
        frame = frame.f_back
    return False
