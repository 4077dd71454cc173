"""Limits, clients, durable calls and other agents: all that actions use on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import Context
from typing import Any, Protocol

from typing_extensions import override

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.context.asking import Answer
from flink_agents.api.durable import DurableCallable
from flink_agents.api.errors import ResourceUnavailableError, StoreNotConfiguredError
from flink_agents.plan import LoadedAgent
from flink_agents.plan.analysis.functions import is_async_generator, is_generator
from flink_agents.runtime.concurrency.bridge import (
    CLIENT_CLOSE_SECONDS,
    Outcome,
    cancelled_from_outside,
    is_close,
)
from flink_agents.runtime.execution.limits import Limiters
from flink_agents.runtime.serde.raised_texts import users_traceback

_log = bounded_logger("flink_agents.clients")


class Durable(Protocol):
    """Makes durable calls. A ``step`` is an ``action_run.ActionRun``."""

    def call(
        self, step: Any, callable_: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any], /
    ) -> Coroutine[Any, Any, Any]:
        """Make a call for an action that runs on the event loop."""
        ...

    def call_from_thread(
        self, step: Any, callable_: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any], /
    ) -> Any:
        """Make a call for an action that runs in a thread, and block until it ends."""
        ...


class SubAgentCaller(Protocol):
    """Lets actions call other agents. A ``caller`` is an ``action_run.ActionRun``."""

    def prepare_call(
        self, caller: Any, agent: Any, event: Any, traced: bool
    ) -> Callable[[], Coroutine[Any, Any, Answer]]:
        """Prepare a call of ``agent`` with ``event``; return a function that makes it."""
        ...

    async def close(self) -> None:
        """Close the clients and resources of the sub-agents."""
        ...


class NoStore(Durable):
    """Rejects durable calls, because no store is configured."""

    @override
    def call(
        self, step: Any, callable_: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        raise StoreNotConfiguredError(
            "a durable call has no store that it could be recorded in",
            expected="the option action-state.store",
            found="no store",
            fix="set action-state.store to 'sqlite', or to another store that all workers reach",
        )

    @override
    def call_from_thread(
        self, step: Any, callable_: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        return self.call(step, callable_, args, kwargs)


class _Client:
    """A client and the task that owns it: many must be closed by the task that opened them."""

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self.name = name
        self._make = make
        self._end = asyncio.Event()
        # A future would not pass on every exception.
        self.opened: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        # Without the context of the first caller: the client outlives it.
        loop = asyncio.get_running_loop()
        self.task: asyncio.Task[None] = Context().run(loop.create_task, self._live())

    def end(self) -> None:
        """Start closing it."""
        if self.opened.done():
            # The task that opened the client also closes it: some libraries require that.
            self._end.set()
        else:
            self.task.cancel()

    async def _live(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                value = await self._enter(stack)
                if not self.opened.done():
                    self.opened.set_result(Outcome(value))
                await self._end.wait()
        except BaseException as error:
            if is_close(error):
                raise
            # The attempt ends. Callers that still wait are cancelled, too.
            if cancelled_from_outside(error):
                self.opened.cancel()
                raise
            if self.opened.done():
                _log.error("the client %s raised when it was closed:\n%s", self.name, users_traceback(error))
            else:
                self.opened.set_result(Outcome(error=error))

    async def _enter(self, stack: AsyncExitStack) -> Any:
        manager = self._make()
        if hasattr(type(manager), "__aenter__"):
            return await stack.enter_async_context(manager)
        if hasattr(type(manager), "__enter__"):
            return stack.enter_context(manager)
        raise ResourceUnavailableError(
            f"the client {self.name!r} cannot be opened",
            expected="a generator function, or a function that returns a context manager",
            found=type(manager).__qualname__,
            fix="write @client above a function that yields the client once",
        )


class Clients:
    """The clients of a subtask. All methods run on the agent loop.

    Args:
        agent: The agent.
    """

    def __init__(self, agent: LoadedAgent) -> None:
        self._agent = agent
        self._clients: dict[str, _Client] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bind the clients to ``loop``."""
        self._loop = loop

    def at_hand(self) -> bool:
        """True if the caller runs on the agent loop, where clients live."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def check(self, name: str) -> None:
        """Check that the agent has a client ``name``.

        Raises:
            ResourceNotFoundError: It has none.
        """
        self._agent.client(name)

    def is_open(self, name: str) -> bool:
        """True if the client ``name`` is open."""
        client = self._clients.get(name)
        return client is not None and client.opened.done() and not client.task.done()

    def opens_in(self, name: str) -> asyncio.Task[None] | None:
        """Return the task that opens the client ``name``, if there is one."""
        client = self._clients.get(name)
        return None if client is None or client.opened.done() else client.task

    def lives_in(self, task: object) -> str | None:
        """Return the name of the client that ``task`` owns, if there is one. Thread-safe."""
        return next((name for name, client in list(self._clients.items()) if client.task is task), None)

    async def get(self, name: str) -> Outcome:
        """Return the client ``name``, opened at the first call; if that fails, the next call tries again."""
        client = self._clients.get(name)
        if client is None or (client.opened.done() and client.task.done()):
            client = self._clients[name] = _Client(name, _manager(self._agent.client(name)))
        # One waiting caller may be cancelled; the others keep waiting.
        return await asyncio.shield(client.opened)

    async def close(self) -> None:
        """Close all clients, in bounded time. Errors are logged."""
        tasks = {client.task: client for client in self._clients.values() if not client.task.done()}
        for client in tasks.values():
            client.end()
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=CLIENT_CLOSE_SECONDS)
        for task in late:
            _log.warning("the client %s did not close within %g s", tasks[task].name, CLIENT_CLOSE_SECONDS)
            task.cancel()


def _manager(function: Callable[[], Any]) -> Callable[[], Any]:
    if is_async_generator(function):
        return asynccontextmanager(function)
    if is_generator(function):
        return contextmanager(function)
    return function


class LoopServices:
    """All that actions use on the event loop. The loop's thread opens and closes it.

    Flink's task thread creates it. Until the loop exists, there are no durable calls and no other agents.

    Args:
        agent: The agent, bound to its code.
        around_durable: Wraps the object that makes durable calls; for tests.

    Attributes:
        limits: Limits of actions and tools.
        clients: Clients of the subtask.
        durable: Makes durable calls.
        sub_agents: Lets actions call other agents; None before the event loop exists.
    """

    def __init__(
        self, agent: LoadedAgent, around_durable: Callable[[Durable], Durable] = lambda durable: durable
    ) -> None:
        self.limits = Limiters(agent)
        self.clients = Clients(agent)
        self.durable: Durable = NoStore()
        self.sub_agents: SubAgentCaller | None = None
        self._around_durable = around_durable

    def register_durable(self, durable: Durable) -> None:
        """Enable durable calls. The agent loop registers itself when it is created."""
        self.durable = self._around_durable(durable)
