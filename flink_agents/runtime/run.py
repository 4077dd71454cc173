"""One run: an input and everything that the agent's actions make of it.

A run changes nothing outside itself. What it wrote and emitted is handed to ``commit`` by the
processor once the whole chain has succeeded, so a run that fails leaves no trace.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, closing
from typing import Any, cast

from flink_agents.api.errors import ActionFailedError, AgentsError, UnhandledEventError
from flink_agents.api.events import Event, InputEvent, InputLineage, OutputEvent, stamp
from flink_agents.api.memory import MemoryScope
from flink_agents.api.metrics import MetricGroup
from flink_agents.api.options import AgentOptions, Configuration
from flink_agents.api.policies import DEAD_LETTER_TAG, DeadLetter, OnError
from flink_agents.api.resources import ResourceType, check_resource_type
from flink_agents.plan import BoundAction, BoundAgent
from flink_agents.runtime.codec import ValueCodec
from flink_agents.runtime.context import InvocationContext, context_type
from flink_agents.runtime.failure import users_place, users_traceback
from flink_agents.runtime.keys import decode_key
from flink_agents.runtime.memory import MemoryTree, Undo
from flink_agents.runtime.routing import Routes
from flink_agents.runtime.state import MapSlot

_log = logging.getLogger("flink_agents.run")

_MISSING = object()

FAILURES = (Exception, SystemExit, asyncio.CancelledError)
"""What an action can raise and its policy decides about."""


class Run:
    """The state of one run.

    Args:
        shared: What all runs share.
        journal_id: Identity of the job that the key's runs belong to.
        key_text: Canonical text of the key.
        sequence_number: Number of the run within the key.
        timestamp: Event time of the input in milliseconds, or None.
        started_at: Wall-clock time at which the run began, in milliseconds.
        memory: Short-term memory in state.

    Attributes:
        outputs: What the run emitted to the main output.
        side_outputs: Pairs of tag and value.
        emitted: Number of events that its actions emitted.
        short_term: Memory of the key.
    """

    __slots__ = (
        "_key",
        "_sensory",
        "_shared",
        "_undo",
        "emitted",
        "journal_id",
        "key_text",
        "outputs",
        "sequence_number",
        "short_term",
        "side_outputs",
        "started_at",
        "timestamp",
    )

    def __init__(
        self,
        shared: RunEnvironment,
        journal_id: str,
        key_text: str,
        sequence_number: int,
        timestamp: int | None,
        started_at: int,
        memory: MapSlot[str],
    ) -> None:
        self._shared = shared
        self.journal_id = journal_id
        self.key_text = key_text
        self.sequence_number = sequence_number
        self.timestamp = timestamp
        self.started_at = started_at
        self._undo: Undo = []
        self.short_term = MemoryTree(
            MemoryScope.SHORT_TERM, shared.codec, memory, self._undo, shared.memory_expires
        )
        self._sensory: MemoryTree | None = None
        self.outputs: list[Any] = []
        self.side_outputs: list[tuple[str, Any]] = []
        self.emitted = 0
        self._key: Any = _MISSING

    @property
    def key(self) -> Any:
        """The key, decoded when somebody asks."""
        if self._key is _MISSING:
            self._key = decode_key(self.key_text)
        return self._key

    @property
    def sensory(self) -> MemoryTree:
        """Memory of the run."""
        if self._sensory is None:
            self._sensory = MemoryTree(MemoryScope.SENSORY, self._shared.codec, None, self._undo)
        return self._sensory

    def input_event(self, record: Any) -> Event:
        """The event that starts the run; its id follows from job, key and sequence number."""
        event = InputEvent(input=record)
        stamp(event, InputLineage(self.journal_id, self.key_text, self.sequence_number))
        return event

    def mark(self) -> int:
        """A point to which :meth:`rollback` can return."""
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Take back all writes to memory since ``mark``."""
        while len(self._undo) > mark:
            tree, path, had, data = self._undo.pop()
            tree.take_back(path, had, data)


class RunEnvironment:
    """What all runs of an operator share.

    Args:
        agent: The agent, bound to its code.
        agent_name: Name of the agent in the job.
        config: Options of the job.
        metrics: The agent's metrics.
        codec: Encodes memory.
    """

    def __init__(
        self,
        agent: BoundAgent,
        agent_name: str,
        config: Configuration,
        metrics: MetricGroup,
        codec: ValueCodec,
    ) -> None:
        self.agent = agent
        self.agent_name = agent_name
        self.config = config
        self.metrics = metrics
        self.codec = codec
        self.memory_expires = config.get(AgentOptions.SHORT_TERM_TTL) is not None
        self.max_events: int = config.get(AgentOptions.MAX_EVENTS)
        self.routes = Routes(agent.actions)
        self.side_outputs: Mapping[str, Any] = agent.side_outputs
        self.context_type = context_type(agent.context_class)
        self._resources: dict[tuple[str, ResourceType], Any] = {}

    def resource(self, name: str, resource_type: ResourceType | str) -> Any:
        """The resource, made at its first use."""
        key = (name, check_resource_type(resource_type))
        if key not in self._resources:
            self._resources[key] = self.agent.resource(*key)
        return self._resources[key]


class RunExecutor:
    """Executes runs on the calling thread, from the input to the last event of the chain.

    ``async def`` actions run to their end on the spot.

    Args:
        shared: What all runs share.
    """

    def __init__(self, shared: RunEnvironment) -> None:
        self._shared = shared
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_error = OnError(shared.agent.on_error or shared.config.get(AgentOptions.ON_ERROR))
        self._on_unhandled = OnError(
            shared.agent.on_unhandled or shared.config.get(AgentOptions.ON_UNHANDLED)
        )

    def execute(self, run: Run, record: Any) -> None:
        """Run the whole chain that ``record`` starts; results are left in ``run``.

        Raises:
            ActionFailedError: An action raised and its policy is to fail.
            UnhandledEventError: No action accepted an event and the policy is to fail.
        """
        routes = self._shared.routes
        queue: deque[Event] = deque((run.input_event(record),))
        while queue:
            event = queue.popleft()
            route = routes.of(event)
            handled = False
            for action in route.actions if route is not None else ():
                handled |= self._offer(run, action, event, queue)
            if not handled:
                self._unhandled(run, event)

    def close(self) -> None:
        """End the loop that ``async def`` actions ran on."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    # -- one action -------------------------------------------------------------------

    def _offer(self, run: Run, action: BoundAction, event: Event, queue: deque[Event]) -> bool:
        """Run ``action`` if it accepts ``event``; False if its condition does not hold."""
        ctx = self._shared.context_type(self._shared, run, action, event)
        mark = run.mark()
        try:
            if action.when is not None and not action.when(event):
                return False
            result = action.call(event, ctx)
            if result is not None:
                self._emit_result(ctx, result)
            run.emitted += len(ctx.sent)
        except FAILURES as error:
            run.rollback(mark)
            self._failed(run, action, event, error)
        else:
            self._collect(run, ctx, queue)
        finally:
            ctx.end()
        return True

    def _collect(self, run: Run, ctx: InvocationContext, queue: deque[Event]) -> None:
        for event in ctx.sent:
            if isinstance(event, OutputEvent):
                run.outputs.append(event.output)
            else:
                queue.append(event)
        if ctx.side is not None:
            run.side_outputs.extend(ctx.side)

    def _emit_result(self, ctx: InvocationContext, result: Any) -> None:
        if self._shared.routes.of(result) is not None:
            ctx.send_event(result)
        elif inspect.isgenerator(result):
            # Closed at once where it fails: its own clean-up still belongs to the action.
            with closing(result):
                self._send_all(ctx, result)
        elif isinstance(result, list | tuple):
            self._send_all(ctx, cast("Iterable[Any]", result))
        elif inspect.isawaitable(result) or inspect.isasyncgen(result):
            awaited = self._finish(_consume(result, ctx))
            if awaited is not None:
                self._emit_result(ctx, awaited)
        else:
            ctx.send_event(result)

    def _send_all(self, ctx: InvocationContext, events: Iterable[Any]) -> None:
        for event in events:
            if event is not None:
                ctx.send_event(event)

    def _finish(self, coroutine: Any) -> Any:
        """Run ``coroutine`` to its end, then cancel the tasks that it left behind."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(coroutine)
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    # -- failures ---------------------------------------------------------------------

    def _failed(self, run: Run, action: BoundAction, event: Event, error: BaseException) -> None:
        policy = action.on_error or self._on_error
        where = users_place(error, action)
        if policy is OnError.FAIL:
            raise self._action_failed(run, action, event, error, where) from error
        self._give_up(run, action, event, error, where, policy)

    def _action_failed(
        self, run: Run, action: BoundAction, event: Event, error: BaseException, where: str
    ) -> ActionFailedError:
        details: dict[str, Any] = {}
        message = str(error)
        if isinstance(error, AgentsError):
            details = {"expected": error.expected, "found": error.found, "fix": error.fix}
            message = error.message
        return ActionFailedError(
            f"{type(error).__name__}: {message}",
            agent=self._shared.agent_name,
            action=action.name,
            key=run.key,
            sequence_number=run.sequence_number,
            event=event.event_type,
            where=where,
            **details,
        )

    def _unhandled(self, run: Run, event: Event) -> None:
        route = self._shared.routes.of(event)
        names = ", ".join(action.name for action in route.actions) if route is not None else ""
        error = UnhandledEventError(
            f"no action of {self._shared.agent_name} accepts this {event.event_type!r}: "
            f"key {run.key!r}, sequence {run.sequence_number}",
            expected=f"the condition of one of these actions to hold: {names or 'none'}",
            found=repr(event)[:300],
            fix="add an action for it, or set on_unhandled = 'ignore' or 'dead-letter' on the agent",
        )
        if self._on_unhandled is OnError.FAIL:
            raise error
        self._give_up(run, None, event, error, "", self._on_unhandled)

    def _give_up(
        self,
        run: Run,
        action: BoundAction | None,
        event: Event,
        error: BaseException,
        where: str,
        policy: OnError,
    ) -> None:
        """Leave a trace of an event that the agent goes on without."""
        name = action.name if action is not None else None
        self._shared.metrics.get_counter(
            "events_dead_lettered" if policy is OnError.DEAD_LETTER else "events_ignored"
        ).inc()
        _log.warning(
            "%s: %s of agent %s, key %r, sequence %d (%s): %s: %s",
            where or "unhandled",
            f"action {name}" if name else f"event {event.event_type}",
            self._shared.agent_name,
            run.key,
            run.sequence_number,
            policy.value,
            type(error).__name__,
            error,
        )
        if policy is OnError.DEAD_LETTER:
            run.side_outputs.append((DEAD_LETTER_TAG, self._dead_letter(run, name, event, error, where)))

    def _dead_letter(
        self, run: Run, action: str | None, event: Event, error: BaseException, where: str
    ) -> DeadLetter:
        return DeadLetter(
            agent=self._shared.agent_name,
            action=action,
            key=run.key,
            sequence_number=run.sequence_number,
            timestamp=run.timestamp,
            event=event,
            event_type=event.event_type,
            error_type=type(error).__qualname__,
            error_message=str(error),
            where=where,
            traceback=users_traceback(error),
        )


async def _consume(result: Any, ctx: InvocationContext) -> Any:
    """Await ``result``, or emit what an asynchronous generator yields."""
    if not inspect.isasyncgen(result):
        return await result
    async with aclosing(cast("AsyncGenerator[Any, None]", result)) as events:
        async for event in events:
            if event is not None:
                ctx.send_event(event)
    return None
