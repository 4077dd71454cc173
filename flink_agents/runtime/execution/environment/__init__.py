"""The environment that all runs of a subtask share: agent, routes, codec, observers, services of the loop.

The services are the limits, the open clients, durable calls and calls of other agents.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import Context
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from typing_extensions import override

from flink_agents.api.agents.observers import RunObserver
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.common.policies import OnError, OnSuspend
from flink_agents.api.context.asking import Answer
from flink_agents.api.durable import DurableCallable
from flink_agents.api.errors import ResourceUnavailableError, StoreNotConfiguredError
from flink_agents.api.events.signals import TimersAtEnd
from flink_agents.api.resources import ResourceType
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.plan import BoundAction, LoadedAgent
from flink_agents.plan.analysis.functions import is_async_generator, is_generator
from flink_agents.runtime.concurrency.bridge import (
    CLIENT_CLOSE_SECONDS,
    Outcome,
    cancelled_from_outside,
    is_close,
)
from flink_agents.runtime.execution.environment.events import (
    EventRecords,
    OutputChecks,
    ReceivedValues,
    Routes,
)
from flink_agents.runtime.execution.limits import Limiters
from flink_agents.runtime.journal.journals import Journals
from flink_agents.runtime.metrics.observers import OBSERVER_ERRORS, Observers
from flink_agents.runtime.metrics.run_metrics import LocalMetricGroup, RunMetrics
from flink_agents.runtime.serde import typenames
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.raised_texts import users_traceback
from flink_agents.runtime.state.memory import ReadWatch

_log = bounded_logger("flink_agents.clients")


class Durable(Protocol):
    """Makes durable calls. A ``step`` is the ``action_run.ActionRun`` that makes the call."""

    def call(
        self, step: Any, callable_: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any], /
    ) -> Coroutine[Any, Any, Any]:
        """Return a coroutine that makes a call, for an action that runs on the event loop."""
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
        self.task: asyncio.Task[None] = Context().run(loop.create_task, self._own_client())

    def end(self) -> None:
        """Start to close the client. If it is still opening, cancel that."""
        if self.opened.done():
            # The task that opened the client also closes it: some libraries require that.
            self._end.set()
        else:
            self.task.cancel()

    async def _own_client(self) -> None:
        """Open the client, wait for :meth:`end`, and close the client: the body of the task that owns it."""
        try:
            async with AsyncExitStack() as stack:
                value = await self._open_manager(stack)
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

    async def _open_manager(self, stack: AsyncExitStack) -> Any:
        """Enter the user's context manager, on whose exit ``stack`` closes it; return the open client.

        Raises:
            ResourceUnavailableError: The user's function returned no context manager.
        """
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
        agent: The agent, which has the functions that open clients.
    """

    def __init__(self, agent: LoadedAgent) -> None:
        self._agent = agent
        self._clients: dict[str, _Client] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bind the clients to ``loop``."""
        self._loop = loop

    def is_on_loop(self) -> bool:
        """Return True if the caller runs on the agent loop, where clients live."""
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
        """Return True if the client ``name`` is open."""
        client = self._clients.get(name)
        return client is not None and client.opened.done() and not client.task.done()

    def opening_task(self, name: str) -> asyncio.Task[None] | None:
        """Return the task that opens the client ``name``, if there is one."""
        client = self._clients.get(name)
        return None if client is None or client.opened.done() else client.task

    def name_of_owned(self, task: object) -> str | None:
        """Return the name of the client that ``task`` owns, if there is one. Thread-safe."""
        return next((name for name, client in list(self._clients.items()) if client.task is task), None)

    async def get(self, name: str) -> Outcome:
        """Return the client ``name``, or the error of opening it. Waits until it is open.

        The first call opens it. If that fails, the next call tries again.
        """
        client = self._clients.get(name)
        if client is None or (client.opened.done() and client.task.done()):
            client = self._clients[name] = _Client(name, _context_manager(self._agent.client(name)))
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


def _context_manager(function: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that creates the context manager of a client: a generator function becomes one."""
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
        clients: The open clients of the subtask.
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


def _wall_clock() -> int:
    """Return milliseconds since the epoch."""
    return int(time.time() * 1000)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Observers and metrics of runs. Any thread may use it.

    Attributes:
        metrics: Metrics of the user's actions.
        run_metrics: Metrics of the runtime.
        observers: All observers of runs, the runtime's metrics among them.
    """

    metrics: LocalMetricGroup
    run_metrics: RunMetrics
    observers: Observers

    @classmethod
    def create(
        cls,
        agent_name: str,
        metrics: LocalMetricGroup,
        run_metrics: RunMetrics,
        other_observers: Sequence[RunObserver],
    ) -> Telemetry:
        """Build it with ``other_observers``, third-party observers whose errors are logged and counted."""

        def count() -> None:
            run_metrics.count(OBSERVER_ERRORS)

        return cls(metrics, run_metrics, Observers(run_metrics, other_observers, count, agent_name))


class RunEnvironment:
    """The parts that all runs of an operator share. Any thread may use it, but ``services`` are the loop's.

    Args:
        agent: The agent. Its libraries are imported.
        config: Options of the job.
        codec: Encodes memory, events and recorded values as bytes.
        telemetry: Observers and metrics of runs.
        services: What actions use on the event loop.
        journals: The journals of durable calls; None if no store is configured.
        clock: Returns the wall-clock time in milliseconds, on any thread.
        pause: Waits for the given seconds, before the next attempt of a call or an action.
        submission: Identifies the submission of the job: another one may have other code.
        seconds: Returns the time that durations are measured with, as ``time.monotonic`` does.
        make_loop: Creates the event loop of the given ``AgentLoop``, for tests; None for the usual one.
        traces_outputs: True if outputs carry their lineage.

    Attributes:
        events: Converts events to records.
        routes: Finds the actions that an event triggers.
        output_checks: Compares outputs with the declared types.
        received: Converts values from outside.
        on_error: Policy for actions without an ``on_error`` of their own.
        on_unhandled: Policy for events that no action accepts.
        max_events: Maximum number of events of a run.
        run_deadline: Maximum duration of a run, or None.
        reorder_timeout: Time that a restored key waits for its recorded inputs.
        interleaves: True if inputs interleave with suspended runs of their key.
        inline: True if runs start on Flink's task thread. The parts of an interleaved run are recorded from
            its start, which only the event loop does.
        memory_expires: True if short-term memory expires in state.
        traces_memory: True if runs log their reads of memory: a replay may find it expired, or changed.
        traces_inputs: True if an observer or an output uses the id of the message that was a run's input.
        skips_timers: True if waits do not last until their time when the input has ended.
        reads: Finds mutable values that actions read from memory and changed, but did not write.
        may_record: True if a run may be recorded: there is a store, and not all actions are ``def`` functions
            that certainly make no durable steps.
    """

    def __init__(
        self,
        agent: LoadedAgent,
        config: Configuration,
        codec: ValueCodec,
        telemetry: Telemetry,
        services: LoopServices,
        journals: Journals | None = None,
        clock: Callable[[], int] = _wall_clock,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        submission: str = "",
        seconds: Callable[[], float] = time.monotonic,
        make_loop: Callable[[Any], asyncio.AbstractEventLoop] | None = None,
        traces_outputs: bool = False,
    ) -> None:
        typenames.allow_modules(agent.modules(), config.get(AgentOptions.STATE_MODULES))
        agent.load_providers()
        self.agent = agent
        self.config = config
        self.codec = codec
        self.events = EventRecords(codec, agent.event_types)
        self.routes = Routes(agent.actions)
        self.output_checks = OutputChecks(agent.output_type, agent.side_outputs)
        chats = any(resource.type is ResourceType.CHAT_MODEL for resource in agent.plan.resources)
        self.received = ReceivedValues(codec, chats)
        self.telemetry = telemetry
        self.services = services
        self.journals = journals
        self.clock = clock
        self.pause = pause
        self.submission = submission
        self.seconds = seconds
        self.make_loop = make_loop
        if journals is not None:
            agent.leave_thread()
            telemetry.run_metrics.add_gauges("store", journals.store.metrics)
        self.may_record = journals is not None and any(
            action.is_async or action.off_thread for action in agent.actions
        )
        self.reads = ReadWatch()
        self.on_error, self.on_unhandled = default_policies(agent, config)
        # Options that are read for each run or key: looking one up takes several calls.
        self.max_events: int = config.get(AgentOptions.MAX_EVENTS)
        self.run_deadline: timedelta | None = config.get(AgentOptions.RUN_DEADLINE)
        self.reorder_timeout: timedelta = config.get(AgentOptions.REORDER_TIMEOUT)
        self.interleaves = agent.settings.on_suspend is OnSuspend.INTERLEAVE
        self.inline = config.get(AgentOptions.INLINE) and not self.interleaves
        self.memory_expires = config.get(AgentOptions.SHORT_TERM_TTL) is not None
        self.traces_memory = self.interleaves or self.memory_expires
        self.traces_outputs = traces_outputs
        self.traces_inputs = traces_outputs or bool(telemetry.observers.others)
        self.skips_timers = TimersAtEnd(config.get(AgentOptions.TIMERS_AT_END)) is TimersAtEnd.SKIP

    def for_sub_agent(self, agent: LoadedAgent, durable: Durable) -> RunEnvironment:
        """Create the environment of a sub-agent that actions of this agent call, in the same subtask.

        Args:
            agent: The sub-agent.
            durable: Makes the durable calls of its actions.
        """
        name = agent.name
        telemetry = self.telemetry
        observers = telemetry.observers.others
        services = LoopServices(agent)
        services.durable = durable
        services.sub_agents = self.services.sub_agents
        services.limits.open_as(self.services.limits)
        environment = type(self)(
            agent,
            self.config,
            self.codec,
            Telemetry.create(name, telemetry.metrics.get_sub_group(name), telemetry.run_metrics, observers),
            services,
            clock=self.clock,
            pause=self.pause,
            seconds=self.seconds,
        )
        environment.reads.strict = self.reads.strict
        return environment

    def move_off_thread(self, action: BoundAction) -> None:
        """Let an action start on the event loop from now on, not on Flink's task thread."""
        action.off_thread = True
        self.may_record = self.journals is not None


def default_policies(agent: LoadedAgent, config: Configuration) -> tuple[OnError, OnError]:
    """Return the policies for actions without ``on_error``, and for events that no action accepts."""
    settings = agent.settings
    on_error = OnError(settings.on_error or config.get(AgentOptions.ON_ERROR))
    return on_error, OnError(settings.on_unhandled or config.get(AgentOptions.ON_UNHANDLED))
