"""Limits of how much runs at a time, and of how much begins in a time.

All of them belong to one subtask and live on its agent loop. What holds a slot among the
actions that are executed (``run.max-in-flight``) never waits for a limit or for a slot: an
action takes its own limit first and its slot afterwards, and gives the slot back while a tool
that it calls waits for a limit.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from threading import get_ident
from typing import Any

from aiolimiter import AsyncLimiter

from flink_agents.api.agents.observers import Phase
from flink_agents.api.common.policies import RateLimit
from flink_agents.api.errors import ContextMisuseError
from flink_agents.api.resources import Tool
from flink_agents.plan import BoundAction, BoundAgent
from flink_agents.runtime.concurrency.bridge import Bridge
from flink_agents.runtime.execution.phases import RunState
from flink_agents.runtime.execution.waits.action_waits import in_turn


class Slots:
    """A number of slots; who waits for one gets it in the order of arrival.

    Args:
        limit: How many there are.
    """

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def full(self) -> bool:
        """Whether the next one would have to wait."""
        return self._free <= 0

    def take_now(self) -> bool:
        """Take a place, if there is one; returns whether there was."""
        if self._free <= 0:
            return False
        self._free -= 1
        return True

    async def take(self) -> None:
        """Take a place; wait until there is one."""
        if self.take_now():
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # It was ours already.
                self.give()
            raise

    def take_back(self) -> None:
        """Take a slot at once, even where there is none: then one more than the limit has one."""
        self._free -= 1

    def give(self) -> None:
        """Give a slot to who waits longest."""
        self._free += 1
        while self._free > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                self._free -= 1
                turn.set_result(None)


class Slot:
    """The slot that one execution of an action has among all that are executed.

    Args:
        slots: The slots.
        state: The state of the run.

    Attributes:
        state: See above.
    """

    __slots__ = ("_ended", "_held", "_slots", "_waits", "state")

    def __init__(self, slots: Slots, state: RunState) -> None:
        self._slots = slots
        self.state = state
        self._held = False
        self._ended = False
        self._waits = 0

    def take_now(self) -> bool:
        """Take a slot, if there is one; returns whether there was."""
        self._held = self._slots.take_now()
        return self._held

    async def take(self) -> None:
        """Wait until there is a slot."""
        with self.state.waiting(Phase.SLOT, "a slot of run.max-in-flight"):
            await self._slots.take()
        self._held = True

    def end(self) -> None:
        """Give the slot back: the execution has ended."""
        self._ended = True
        if self._held:
            self._held = False
            self._slots.give()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let others have the slot while the action waits for a limit.

        Afterwards it takes its slot back without waiting. If it waited, an action that holds
        a lock of its author's could wait for one that waits for that lock.
        """
        self._waits += 1
        self._let_go()
        try:
            yield
        finally:
            self._waits -= 1
            if not (self._waits or self._held or self._ended):
                self._held = True
                self._slots.take_back()

    def _let_go(self) -> None:
        if self._held:
            self._held = False
            self._slots.give()


class Limiter:
    """The limits of one action or tool.

    Args:
        owner: Whose limits they are, for people.
        max_concurrency: How many may run at a time, or None.
        rate: How many may begin in a time, or None.
    """

    def __init__(self, owner: str, max_concurrency: int | None, rate: RateLimit | None) -> None:
        self._owner = owner
        self._slots = None if max_concurrency is None else Slots(max_concurrency)
        self._rate = None if rate is None else AsyncLimiter(rate.calls, rate.per)

    @property
    def busy(self) -> bool:
        """Whether the next one would have to wait."""
        if self._slots is not None and self._slots.full:
            return True
        return self._rate is not None and not self._rate.has_capacity()

    async def acquire(self, state: RunState | None) -> None:
        """Wait until one more may begin. The rate counts from there, and so comes last.

        Args:
            state: The state of the run that waits; None outside of any.
        """
        if self._slots is not None:
            if state is not None and self._slots.full:
                with state.waiting(Phase.LIMIT, f"max_concurrency of {self._owner}"):
                    await self._slots.take()
            else:
                await self._slots.take()
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
        """Say that one has ended."""
        if self._slots is not None:
            self._slots.give()


class ControlFlow(BaseException):
    """Something of the runtime's own that goes through code of actions: no policy decides about it."""


class RunSuspended(ControlFlow):
    """All that a run waits for outlasts its execution: nothing of it goes on before that."""


class MoveToLoop(ControlFlow):
    """A step needs what Flink's thread must not wait for: it is begun anew in the pool.

    No ``Exception``, so that the author's own ``except Exception`` lets it pass.
    """


_within: ContextVar[tuple[Limiter, ...]] = ContextVar("limiters", default=())
"""The limits that the running code is inside of: a tool that calls itself does not wait for itself."""


class Limiters:
    """The limits of all actions and tools of a subtask.

    Args:
        agent: The agent.
    """

    def __init__(self, agent: BoundAgent) -> None:
        self._actions = {
            action.name: Limiter("the action", action.settings.max_concurrency, action.settings.rate_limit)
            for action in agent.actions
            if action.settings.max_concurrency is not None or action.settings.rate_limit is not None
        }
        self._tools: dict[str, Limiter] = {}
        self._bridge: Bridge | None = None
        self._thread = 0

    def open(self, bridge: Bridge, thread: int) -> None:
        """Belong to the loop that ``bridge`` leads to, which runs in ``thread``."""
        self._bridge, self._thread = bridge, thread

    def open_as(self, other: Limiters) -> None:
        """Belong to the loop that ``other`` belongs to."""
        self._bridge, self._thread = other._bridge, other._thread

    def of_action(self, action: BoundAction) -> Limiter | None:
        """The limits of ``action``, if it has any."""
        return self._actions.get(action.name)

    def limited(self, tool: Tool, slot: Callable[[], Slot | None]) -> Tool:
        """``tool`` with its limits, for one step.

        Args:
            tool: The tool.
            slot: Gives the slot of the step that calls; raises ``MoveToLoop`` on Flink's thread.
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
        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            async with entered(limiter, slot()):
                return await function(*args, **kwargs)

        return call

    def _sync(
        self, function: Callable[..., Any], limiter: Limiter, slot: Callable[[], Slot | None], name: str
    ) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            held = slot()
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
            bridge.wait_for(lambda: _acquire(limiter, held))
            token = _within.set((*_within.get(), limiter))
            try:
                return function(*args, **kwargs)
            finally:
                _within.reset(token)
                # A closed loop has nobody who waits.
                bridge.hand(limiter.release)

        return call


@asynccontextmanager
async def entered(limiter: Limiter, slot: Slot | None) -> AsyncIterator[None]:
    """Be one of those that ``limiter`` counts; wait in an action's order until there is room.

    Args:
        limiter: The limits.
        slot: The slot of the action that waits, which others have meanwhile; None where it has none.
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


async def _acquire(limiter: Limiter, slot: Slot | None) -> None:
    """Take one of ``limiter``; in an action, when that comes in the order of what the action waits for."""
    await in_turn("a limit", lambda: _take(limiter, slot), limiter.release)


async def _take(limiter: Limiter, slot: Slot | None) -> None:
    state = None if slot is None else slot.state
    if slot is not None and limiter.busy:
        with slot.lent():
            await limiter.acquire(state)
    else:
        await limiter.acquire(state)
