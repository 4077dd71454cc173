"""Walks the chain of a run and executes its actions; the same on every thread.

A *step* is one execution of one action on one event. ``StepExecutor`` knows what a step may do
and what follows from its end. It never waits: what has to be awaited is handed to the caller.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator
from contextlib import aclosing, closing
from typing import Any, cast

from flink_agents.api.errors import ActionFailedError, AgentsError, UnhandledEventError
from flink_agents.api.events import Event, OutputEvent
from flink_agents.api.options import AgentOptions
from flink_agents.api.policies import DEAD_LETTER_TAG, DeadLetter, OnError
from flink_agents.plan import BoundAction
from flink_agents.runtime.context import Invocation, context_type
from flink_agents.runtime.failure import users_place, users_traceback
from flink_agents.runtime.run import Run
from flink_agents.runtime.shared import RunEnvironment

FAILURES = (Exception, SystemExit, asyncio.CancelledError)
"""What an action can raise and its policy decides about."""

_log = logging.getLogger("flink_agents.run")


class StepExecutor:
    """Executes the steps of runs.

    Args:
        shared: What all runs share.
    """

    def __init__(self, shared: RunEnvironment) -> None:
        self._shared = shared
        self._context_type = context_type(shared.agent.context_class)
        self._on_error = OnError(shared.agent.on_error or shared.config.get(AgentOptions.ON_ERROR))
        self._on_unhandled = OnError(
            shared.agent.on_unhandled or shared.config.get(AgentOptions.ON_UNHANDLED)
        )

    def begin(self, run: Run, record: Any) -> None:
        """Let ``run`` start with ``record``."""
        run.queue.append(run.input_event(record))
        run.steps = self._walk(run)

    def advance(self, run: Run) -> Invocation | None:
        """Execute steps on this thread up to the first one that cannot end here.

        Returns:
            That step, with what has to be awaited; None at the end of the run.

        Raises:
            ActionFailedError: An action raised and its policy is to fail.
            UnhandledEventError: No action accepted an event and the policy is to fail.
        """
        for action, event in run.steps:
            step = Invocation(self._shared, run, action, event)
            try:
                self.call(step)
            except FAILURES as error:
                self.fail(step, error)
            else:
                if step.awaited is not None:
                    return step
                self.succeed(step)
        return None

    # -- one step ---------------------------------------------------------------------

    def call(self, step: Invocation) -> None:
        """Call the action and emit what it returns; what has to be awaited stays in the step."""
        result = step.action.call(step.event, self._context_type(step))
        if result is not None:
            self._emit(step, result)

    async def wait(self, step: Invocation) -> None:
        """Await what :meth:`call` left, on the thread of the running loop."""
        step.adopt()
        while step.awaited is not None:
            awaited, step.awaited = step.awaited, None
            if inspect.isasyncgen(awaited):
                async with aclosing(cast("AsyncGenerator[Any, None]", awaited)) as events:
                    async for event in events:
                        if event is not None:
                            step.emit(event)
            else:
                result = await cast("Awaitable[Any]", awaited)
                if result is not None:
                    self._emit(step, result)

    def succeed(self, step: Invocation) -> None:
        """End a step: what it emitted becomes part of the run."""
        step.end()
        run = step.run
        run.emitted += len(step.sent)
        for event in step.sent:
            if isinstance(event, OutputEvent):
                run.outputs.append(event.output)
            else:
                run.queue.append(event)
        if step.side is not None:
            run.side_outputs.extend(step.side)

    def fail(self, step: Invocation, error: BaseException) -> None:
        """End a step that raised: what it did is taken back, and its policy followed.

        Raises:
            ActionFailedError: The policy is to fail.
        """
        step.end()
        step.run.rollback(step.mark)
        action, event = step.action, step.event
        where = users_place(error, action)
        policy = action.on_error or self._on_error
        if policy is OnError.FAIL:
            raise self._action_failed(step, error, where) from error
        self._give_up(step.run, action, event, error, where, policy)

    # -- the chain --------------------------------------------------------------------

    def _walk(self, run: Run) -> Iterator[tuple[BoundAction, Event]]:
        """What is to be executed next, as long as there is something."""
        queue, routes = run.queue, self._shared.routes
        while queue:
            event = queue.popleft()
            route = routes.of(event)
            handled = False
            for action in route.actions if route is not None else ():
                accepted = action.when is None or self._accepts(run, action, event)
                if accepted:
                    yield action, event
                # A condition that raised is a failure of the action, with its own policy.
                handled = handled or accepted is not False
            if not handled:
                self._unhandled(run, event)

    def _accepts(self, run: Run, action: BoundAction, event: Event) -> bool | None:
        """Whether the condition of ``action`` holds; None if it raised."""
        assert action.when is not None
        try:
            return bool(action.when(event))
        except FAILURES as error:
            self.fail(Invocation(self._shared, run, action, event), error)
            return None

    def _emit(self, step: Invocation, result: Any) -> None:
        if self._shared.routes.of(result) is not None:
            step.emit(result)
        elif inspect.isgenerator(result):
            # Closed at once where it fails: its own clean-up still belongs to the action.
            with closing(result):
                self._emit_all(step, result)
        elif isinstance(result, list | tuple):
            self._emit_all(step, cast("Iterable[Any]", result))
        elif inspect.isawaitable(result) or inspect.isasyncgen(result):
            step.awaited = result
        else:
            step.emit(result)

    def _emit_all(self, step: Invocation, events: Iterable[Any]) -> None:
        for event in events:
            if event is not None:
                step.emit(event)

    # -- failures ---------------------------------------------------------------------

    def _action_failed(self, step: Invocation, error: BaseException, where: str) -> ActionFailedError:
        details: dict[str, Any] = {}
        message = str(error)
        if isinstance(error, AgentsError):
            details = {"expected": error.expected, "found": error.found, "fix": error.fix}
            message = error.message
        return ActionFailedError(
            f"{type(error).__name__}: {message}",
            agent=self._shared.agent_name,
            action=step.action.name,
            key=step.run.key,
            sequence_number=step.run.sequence_number,
            event=step.event.event_type,
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
