"""One execution of one action on one event: its input, the events it sends, its calls and its coroutines."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from functools import partial
from threading import get_ident
from typing import Any, Literal, cast

from flink_agents.api.common.current import current_action_run
from flink_agents.api.context import RunnerContext
from flink_agents.api.errors import ContextMisuseError, MissingAwaitError
from flink_agents.api.events import Event, Lineage, OutputEvent, lineage_of_sent, stamp, with_lineage
from flink_agents.plan import BoundAction
from flink_agents.runtime.execution.calls.delivery import Delivery
from flink_agents.runtime.execution.calls.durable_code import (
    durable_function,
    find_durable_function,
    name_of,
    running,
)
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.environment.events import Route, no_event, too_many_events, unknown_event
from flink_agents.runtime.execution.limits import MoveToLoop, Slot
from flink_agents.runtime.execution.retry import RetryState
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.waits.run_waits import outputs_of
from flink_agents.runtime.execution.waits.swallowed import cancel_again
from flink_agents.runtime.journal.run_journal import RunJournal
from flink_agents.runtime.serde.raised_texts import close_unawaited
from flink_agents.runtime.state.memory import MemoryTree, MutableRead, note_read
from flink_agents.runtime.state.suspended import StoredWait

current_step: ContextVar[ActionRun | None] = cast("Any", current_action_run)
"""The execution of the action whose code runs. Tasks that it starts inherit it."""

MOST_NOTED = 64
"""If an action has created more coroutines than this, those that it already awaits are dropped."""


class ActionRun:
    """One execution of one action on one event, with all that the runtime knows about it.

    Args:
        shared: The agent's shared objects.
        run: The run that it belongs to.
        action: The action, bound to its agent.
        event: The event that the action handles.

    Attributes:
        sent: The events that the action emitted, in order.
        side: Pairs of tag and value for side outputs, or None.
        awaited: The awaitable that the action returned, or None.
        mark: The length of the run's undo log when the execution began.
        task: The task that awaits the user's code, or None.
        tasks: The tasks that the action started on the event loop, or None.
        thread: The thread that executes it.
        slot: Its slot among the executions in flight; None on Flink's task thread, and before it has one.
        has_ended: True if the execution has ended. A thread that cannot be stopped may still run after that.
        needs_loop: True if it runs on Flink's task thread and cannot finish there.
        retry_state: The attempts before it, and their times; None for most.
        delivery: Delivers outcomes to it, in order; None if nothing can be recorded.
        calls: The same if its end has to be recorded: it made a durable call, waited, or has records; else
            None.
        context: The context that its code got; None before the call and after the end.
        agent_calls: The number of agents that each of its tasks called, by the path of the task; or None.
        suspended: The waits that are open while its run is being suspended, or None.
        put: The number of events and of side outputs that it had emitted when it was suspended.
        unawaited: Coroutines that its code has to await, some of which it may have awaited; or None.
        reads: The mutable values that it read from memory, or None; False if nothing checks them.
        variables: The context in which its code is executed, until its end; None before the call.
    """

    __slots__ = (
        "_path",
        "action",
        "agent_calls",
        "awaited",
        "calls",
        "context",
        "delivery",
        "event",
        "has_ended",
        "mark",
        "needs_loop",
        "put",
        "reads",
        "retry_state",
        "run",
        "sent",
        "shared",
        "side",
        "slot",
        "suspended",
        "task",
        "tasks",
        "thread",
        "unawaited",
        "variables",
    )

    def __init__(self, shared: RunEnvironment, run: Run, action: BoundAction, event: Event) -> None:
        self.shared = shared
        self.run = run
        self.action = action
        self.event = event
        self.sent: list[Event] = []
        self.side: list[tuple[str, Any]] | None = None
        self.awaited: Any = None
        self.task: asyncio.Task[Any] | None = None
        self.tasks: list[Any] | None = None
        self.retry_state: RetryState | None = None
        self.slot: Slot | None = None
        self.needs_loop = False
        self.calls: Delivery | None = None
        self.delivery: Delivery | None = None
        self.mark = len(run.undo)
        self.context: RunnerContext | None = None
        self.agent_calls: dict[str, int] | None = None
        self.suspended: list[StoredWait] | None = None
        self.put: tuple[int, int] = (0, 0)
        self.unawaited: list[Coroutine[Any, Any, Any]] | None = None
        self.reads: list[MutableRead] | Literal[False] | None = None
        self.variables: Context | None = None
        self.thread = get_ident()
        self.has_ended = False
        self._path: str | None = None

    @property
    def path(self) -> str:
        """The path that identifies the execution within its run. A replay gives the same path."""
        if self._path is None:
            parts: list[str] = []
            lineage: Lineage | None = lineage_of_sent(self.event)
            while lineage is not None and lineage.parent is not None:
                parts.append(f"{lineage.action}[{lineage._ordinal}]")
                lineage = lineage.parent
            self._path = "/".join((*reversed(parts), self.action.name))
        return self._path

    def end(self) -> None:
        """End the execution. From here on, each use of its context is an error."""
        self.has_ended = True
        # They refer to each other: without this, only Python's garbage collector would free them.
        self.context = self.unawaited = self.variables = None

    def succeed(self, seconds: float | None = None) -> None:
        """End the execution. The events that it emitted become part of the run.

        Args:
            seconds: The seconds that its code took, for observers; None if they do not learn of the end.
        """
        run = self.run
        sent = self.sent
        if seconds is not None:
            observers = self.shared.telemetry.observers
            if run.state.notes is not None or observers.events_sent is not None:
                self._notify_ended(seconds)
            elif self.slot is None:
                observers.action_ended_unnoted(run.state, self.action.name, seconds, True)
            else:
                observers.action_ended(run.state, self.action.name, seconds, False)
        self.has_ended = True
        self.context = self.unawaited = self.variables = None
        run.emitted += len(sent)
        if run.waits is not None:
            # Its outputs leave, except those that left when the run was suspended.
            outputs = outputs_of(self)
            run.queue.extend([event for event in sent if not isinstance(event, OutputEvent)])
            run.put_out(self.path, [event.output for event in outputs], self.side or [])
            return
        # If the run waits later, its replay must not execute the step again.
        if run.ended is not None:
            run.ended.append((self, len(run.undo)))
        run.queue += sent
        if self.side is not None:
            run.side_outputs.extend(self.side)

    def _notify_ended(self, seconds: float) -> None:
        """Note, or notify observers, that the execution has ended."""
        observers = self.shared.telemetry.observers
        state = self.run.state
        name = self.action.name
        notes = state.notes
        is_inline = self.slot is None
        is_noted = notes is not None and notes.folds and (is_inline or not notes.lasts)
        is_unnoted = is_inline or is_noted
        notify_sent = observers.events_sent_unnoted if is_unnoted else observers.events_sent
        types = tuple([event.event_type for event in self.sent])
        if types and notify_sent is not None:
            # Right before they learn of the end.
            notify_sent(state, name, types)
        notify_ended = observers.action_ended_unnoted if is_unnoted else observers.action_ended
        notify_ended(state, name, seconds, is_inline)
        if notes is not None and is_noted:
            # If the writer of the trace takes the steps of the run meanwhile, the next report takes this one.
            notes.steps.append((None, name, None if is_inline else time.time(), seconds, types))

    def context_here(self) -> RunnerContext | None:
        """Return the context if the calling code may use it; else None."""
        return self.context if find_durable_function() is None and get_ident() == self.thread else None

    @property
    def own_code_of(self) -> str | None:
        """The name of the action if its own code runs; None inside a durable function."""
        return self.action.name if not self.has_ended and find_durable_function() is None else None

    def has_to_await(self, action_coroutine: Coroutine[Any, Any, Any]) -> None:
        """Note a coroutine that the action's code has to await."""
        noted = self.unawaited
        if noted is None:
            noted = self.unawaited = []
        elif len(noted) >= MOST_NOTED:
            noted[:] = _forgotten(noted)
        noted.append(action_coroutine)

    def note_of_reads(self) -> Callable[[MemoryTree, str, Any], None] | None:
        """Return a function that notes the values that the action reads; None if nothing checks them."""
        if self.reads is None:
            watch = self.shared.reads
            name = self.action.name
            if watch.strict:
                self.reads = []
            elif skipped := watch.skips.get(name):
                watch.skips[name] = skipped - 1
                self.reads = False
            else:
                self.reads = watch.begin(name)
        return partial(note_read, self.reads) if self.reads is not False else None

    def abandon(self) -> None:
        """Close the coroutine that the action returned, if it has not started: it never will."""
        if self.run.following is self:
            # It refers to the run: both would be garbage of a cycle.
            self.run.following = None
        if asyncio.iscoroutine(self.awaited):
            self.awaited.close()

    def require_slot(self) -> Slot:
        """Return its slot among the executions in flight.

        Raises:
            MoveToLoop: It has no slot, because it runs on Flink's task thread.
        """
        if self.slot is None:
            self.needs_loop = True
            raise MoveToLoop
        return self.slot

    def guard(self) -> None:
        """Raise if the calling code may not use the context.

        Raises:
            ContextMisuseError: It is a durable function, or another thread, or the execution has ended.
            asyncio.CancelledError: It has swallowed the suspension of its run.
        """
        # No durable function runs on Flink's thread, where an execution has no slot.
        if (
            not self.has_ended
            and get_ident() == self.thread
            and (self.slot is None or (durable_function.get() is None and running.function is None))
        ):
            return
        function = find_durable_function()
        if function is not None:
            raise ContextMisuseError(
                f"the context of action {self.action.name!r} is used inside the durable function "
                f"{name_of(function)!r}, which is not executed again on replay",
                expected="a function that gets what it needs as arguments, and returns what follows from it",
                found=f"a use of ctx, or of memory or a resource of it, in {name_of(function)}",
                fix="read memory, get clients and draw random numbers in the action, before the call; "
                "write memory, send events and make durable calls in the action, after it",
            )
        if not self.has_ended:
            raise ContextMisuseError(
                f"the context of action {self.action.name!r} is used from another thread",
                fix="read memory before the other thread starts, and write what it returns afterwards",
            )
        delivery = self.delivery if get_ident() == self.thread else None
        if self.suspended is not None and delivery is not None and not delivery.closed:
            cancel_again(self)
        raise ContextMisuseError(
            f"the context of action {self.action.name!r} is used after the action ended",
            fix="await what the action starts, and keep values instead of ctx or memory objects",
        )

    def emit(self, event: Event, recorded: bool = False) -> None:
        """Add an event to those that the action sent.

        Args:
            event: The event.
            recorded: True if it comes from a record, so it was checked when the action sent it.

        Raises:
            NotAnEventError: It is not an event.
            UnknownEventError: No action handles it.
        """
        self.guard()
        route = self.shared.routes.find_route(event)
        if route is None:
            raise no_event(self.action.name, event)
        self.emit_routed(event, route, recorded)

    def emit_routed(self, event: Event, route: Route, recorded: bool = False) -> None:
        """Add an event with a known route to those that the action sent; see :meth:`emit`.

        Raises:
            EventLimitError: The run has emitted ``run.max-events`` events.
            OutputTypeError: It is an output that does not have the declared type.
            UnknownEventError: No action handles it.
        """
        sent = self.sent
        if self.run.emitted + len(sent) >= self.shared.max_events:
            raise too_many_events(self.shared.max_events)
        lineage = Lineage(lineage_of_sent(self.event), self.action.name, len(sent))
        if route.leaves:
            if not recorded:
                checks = self.shared.output_checks
                value = cast("OutputEvent", event).output
                # Most agents declare no type. Then only a value that was not awaited is rejected.
                if checks.any or hasattr(type(value), "__await__"):
                    carried = checks.check(self.action.name, value)
                    if carried is not value:
                        event = event.model_copy(update={"output": carried})
            # No action sees it, so an event that is sent twice needs no copy.
            stamp(event, lineage)
        elif route.actions or recorded:
            event = with_lineage(event, lineage)
        else:
            raise unknown_event(self.action.name, event, self.shared.routes)
        sent.append(event)


def journal_of(step: ActionRun) -> RunJournal:
    """Return the journal of the run that an execution belongs to. A durable call always has one."""
    journal = step.run.journal
    assert journal is not None
    return journal


def check_awaited(step: ActionRun) -> None:
    """Check that an execution that succeeded has awaited its coroutines.

    Raises:
        MissingAwaitError: It has not.
    """
    noted = step.unawaited or []
    step.unawaited = None
    if any(task.cancelled() or not task.done() for task in step.tasks or ()):
        # The coroutine may belong to a task that was cancelled before it started.
        return
    forgotten = _forgotten(noted)
    if not forgotten:
        return
    called = forgotten[0].__qualname__
    for coroutine in forgotten:
        close_unawaited(coroutine)
    write = "write await" if step.action.is_async else "write async def, and await"
    raise MissingAwaitError(
        f"action {step.action.name!r} ended without awaiting {called}(...): it did nothing",
        expected="an await, or a task, for each call that gives something to be awaited",
        found="a call without an await",
        fix=f"{write} {called}(...); close() a call that you do not want",
    )


def _forgotten(noted: list[Coroutine[Any, Any, Any]]) -> list[Coroutine[Any, Any, Any]]:
    """Return the coroutines of ``noted`` that have not started: nothing has awaited them."""
    return [coroutine for coroutine in noted if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED]
