"""Limits of concurrency (actions in flight) and of rate (starts per time).

All limits belong to one subtask and live on its event loop. An action that holds a slot of
``run.max-in-flight`` never waits for a limit or for another slot. It takes its own limit first and its slot
after that. While one of its tools waits for a limit, it gives the slot back.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from threading import get_ident
from typing import Any

from aiolimiter import AsyncLimiter

from flink_agents.api.agents.observers import Phase
from flink_agents.api.common.policies import RateLimit
from flink_agents.api.errors import ContextMisuseError
from flink_agents.api.resources import Tool
from flink_agents.plan import BoundAction, LoadedAgent
from flink_agents.runtime.concurrency.bridge import Bridge
from flink_agents.runtime.execution.phases import RunState
from flink_agents.runtime.execution.waits.run_waits import in_turn


class Slots:
    """A number of slots. Code that waits for a slot gets it in the order of arrival.

    Args:
        limit: The number of slots: how many callers have one at a time.
    """

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def full(self) -> bool:
        """True if the next caller would have to wait."""
        return self._free <= 0

    def take_now(self) -> bool:
        """Take a slot if one is free; returns True if it did."""
        if self._free <= 0:
            return False
        self._free -= 1
        return True

    async def take_slot(self) -> None:
        """Take a slot, and wait until one is free."""
        if self.take_now():
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                # The slot was handed over before the cancellation came.
                self.release_slot()
            raise

    def take_back(self) -> None:
        """Take a slot without waiting. If none is free, the limit is exceeded by one."""
        self._free -= 1

    def release_slot(self) -> None:
        """Give a slot to the caller that has waited longest."""
        self._free += 1
        while self._free > 0 and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._free -= 1
                waiter.set_result(None)


class Slot:
    """The slot that one execution of an action has among all that are in flight.

    Args:
        slots: The slots of ``run.max-in-flight``.
        state: The state of the run, which shows what it waits for.
        limiter: The limits of the action, which the execution has acquired; None if there are none.
        held: True if the execution has taken one of the slots.

    Attributes:
        state: The state of the run, which shows what it waits for.
    """

    __slots__ = ("_ended", "_held", "_limiter", "_slots", "_waits", "state")

    def __init__(
        self, slots: Slots, state: RunState, limiter: Limiter | None = None, held: bool = False
    ) -> None:
        self._slots = slots
        self._limiter = limiter
        self.state = state
        self._held = held
        self._ended = False
        self._waits = 0

    def take_now(self) -> bool:
        """Take a slot if one is free; returns True if it did."""
        self._held = self._slots.take_now()
        return self._held

    async def take_slot(self) -> None:
        """Wait until a slot is free, and take it."""
        try:
            with self.state.waiting(Phase.SLOT, "a slot of run.max-in-flight"):
                await self._slots.take_slot()
        except BaseException:
            self.end()
            raise
        self._held = True

    def end(self) -> None:
        """Give back the slot, and then the place in the limits: the execution has ended."""
        self._ended = True
        if self._held:
            self._held = False
            self._slots.release_slot()
        if self._limiter is not None:
            self._limiter.release()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Release the slot while the action waits for a limit.

        After that, the action takes its slot back without waiting. If it waited while it holds a lock of the
        user's code, the action that has the slot could wait for that lock: a deadlock.
        """
        self._waits += 1
        self._release()
        try:
            yield
        finally:
            self._waits -= 1
            if not (self._waits or self._held or self._ended):
                self._held = True
                self._slots.take_back()

    def _release(self) -> None:
        if self._held:
            self._held = False
            self._slots.release_slot()


class Limiter:
    """The limits of one action or tool.

    Args:
        owner: The action or tool, as text for people.
        max_concurrency: The most executions at a time, or None.
        rate: The most starts in a period, or None.
    """

    def __init__(self, owner: str, max_concurrency: int | None, rate: RateLimit | None) -> None:
        self._owner = owner
        self._slots = None if max_concurrency is None else Slots(max_concurrency)
        self._rate = None if rate is None else AsyncLimiter(rate.calls, rate.per)

    @property
    def busy(self) -> bool:
        """True if the next caller would have to wait."""
        if self._slots is not None and self._slots.full:
            return True
        return self._rate is not None and not self._rate.has_capacity()

    async def acquire(self, state: RunState | None) -> None:
        """Wait until another execution may start. The rate counts from there, so it comes last.

        Args:
            state: The state of the run that waits; None outside of any run.
        """
        if self._slots is not None:
            if state is not None and self._slots.full:
                with state.waiting(Phase.LIMIT, f"max_concurrency of {self._owner}"):
                    await self._slots.take_slot()
            else:
                await self._slots.take_slot()
        if self._rate is not None:
            try:
                if state is not None and not self._rate.has_capacity():
                    with state.waiting(Phase.LIMIT, f"rate limit of {self._owner}"):
                        await self._rate.acquire()
                else:
                    await self._rate.acquire()
            except BaseException:
                self.release()
                raise

    def release(self) -> None:
        """Free the place of an execution that has ended, in ``max_concurrency``."""
        if self._slots is not None:
            self._slots.release_slot()


class ControlFlow(BaseException):
    """An exception of the runtime that passes through code of actions. No policy handles it."""


class RunSuspended(ControlFlow):
    """All waits of a run outlast its execution. The run resumes when one of them ends."""


class MoveToLoop(ControlFlow):
    """A step needs to wait, which Flink's task thread must not do. It starts again on the event loop.

    It is not an ``Exception``, so the user's own ``except Exception`` does not catch it.
    """


_within: ContextVar[tuple[Limiter, ...]] = ContextVar("limiters", default=())
"""The limits that the running code has taken already.

So a tool that calls itself does not wait for itself.
"""


class Limiters:
    """The limits of all actions and tools of a subtask.

    Args:
        agent: The agent, whose actions declare their limits.
    """

    def __init__(self, agent: LoadedAgent) -> None:
        self._actions = {
            action.name: Limiter("the action", action.settings.max_concurrency, action.settings.rate_limit)
            for action in agent.actions
            if action.settings.max_concurrency is not None or action.settings.rate_limit is not None
        }
        self._tools: dict[str, Limiter] = {}
        self._bridge: Bridge | None = None
        self._thread = 0

    def open(self, bridge: Bridge, thread: int) -> None:
        """Attach the limits to the event loop of ``bridge``, which runs in ``thread``."""
        self._bridge = bridge
        self._thread = thread

    def open_as(self, other_limiters: Limiters) -> None:
        """Attach the limits to the event loop of ``other_limiters``."""
        self._bridge = other_limiters._bridge
        self._thread = other_limiters._thread

    def of_action(self, action: BoundAction) -> Limiter | None:
        """Return the limits of ``action``; None if it has none."""
        return self._actions.get(action.name)

    def limited(self, tool: Tool, slot: Callable[[], Slot | None]) -> Tool:
        """Return ``tool`` with its limits, for one step.

        Args:
            tool: The tool, whose settings have the limits.
            slot: Returns the slot of the calling step; raises ``MoveToLoop`` on Flink's task thread.
        """
        settings = tool.settings
        if settings.max_concurrency is None and settings.rate_limit is None:
            return tool
        if tool.name not in self._tools:
            self._tools[tool.name] = Limiter(
                f"tool {tool.name!r}", settings.max_concurrency, settings.rate_limit
            )
        limiter = self._tools[tool.name]
        if inspect.iscoroutinefunction(tool.func):
            return tool.through(lambda function: self._async(function, limiter, slot))
        return tool.through(lambda function: self._sync(function, limiter, slot, tool.name))

    def _async(
        self, function: Callable[..., Any], limiter: Limiter, slot: Callable[[], Slot | None]
    ) -> Callable[..., Any]:
        """Return an ``async def`` tool that waits for its limits first."""

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            async with entered(limiter, slot()):
                return await function(*args, **kwargs)

        return call

    def _sync(
        self, function: Callable[..., Any], limiter: Limiter, slot: Callable[[], Slot | None], name: str
    ) -> Callable[..., Any]:
        """Return a ``def`` tool that waits for its limits first, which blocks the calling thread."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            slot_of_step = slot()
            if get_ident() == self._thread:
                raise ContextMisuseError(
                    f"the tool {name!r} has limits and is def, so that it may have to wait",
                    expected="a call from a def action, or from another thread",
                    found="a call in an async def action",
                    fix=f"make the tool async def, or write await asyncio.to_thread({name}, ...)",
                )
            if limiter in _within.get():
                return function(*args, **kwargs)
            bridge = self._bridge
            assert bridge is not None
            bridge.wait_for(lambda: _acquire(limiter, slot_of_step))
            token = _within.set((*_within.get(), limiter))
            result = None
            try:
                result = function(*args, **kwargs)
            finally:
                _within.reset(token)
                if not inspect.isawaitable(result):
                    # If the loop is closed, nothing waits for the limit.
                    bridge.hand(limiter.release)
            return _until_done(limiter, result) if inspect.isawaitable(result) else result

        return call


@asynccontextmanager
async def entered(limiter: Limiter, slot: Slot | None) -> AsyncIterator[None]:
    """Wait until ``limiter`` has room, and count as one of its executions inside the block.

    Args:
        limiter: The limits.
        slot: The slot of the action that waits, released meanwhile; None if it has none.
    """
    if limiter in _within.get():
        yield
        return
    await _acquire(limiter, slot)
    token = _within.set((*_within.get(), limiter))
    try:
        yield
    finally:
        _within.reset(token)
        limiter.release()


async def _until_done(limiter: Limiter, result: Awaitable[Any]) -> Any:
    """Await the result of a def tool that wraps an async one; it holds the limit until then."""
    token = _within.set((*_within.get(), limiter))
    try:
        return await result
    finally:
        _within.reset(token)
        limiter.release()


async def _acquire(limiter: Limiter, slot: Slot | None) -> None:
    """Wait for ``limiter``. Inside an action, the end of the wait is an outcome in its order."""
    await in_turn("a limit", lambda: _acquire_without_slot(limiter, slot), limiter.release)


async def _acquire_without_slot(limiter: Limiter, slot: Slot | None) -> None:
    """Wait for ``limiter``; if that takes time, lend the slot of the action meanwhile."""
    state = None if slot is None else slot.state
    if slot is not None and limiter.busy:
        with slot.lent():
            await limiter.acquire(state)
    else:
        await limiter.acquire(state)
