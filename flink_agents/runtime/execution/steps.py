"""Walks the chain of a run and executes its actions; the same on every thread.

A *step* is one attempt of an action on an event. ``StepExecutor`` knows what a step may do and what follows
from its end. What it does with a step that has to wait is the matter of a :class:`Way`: on Flink's thread,
which must not wait, the step is handed over to the agent loop.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator
from contextlib import aclosing, closing
from itertools import chain
from typing import Any, cast

from flink_agents.api.awaited_methods import truth_of
from flink_agents.api.current import called_action_run
from flink_agents.api.durable import OnMismatch
from flink_agents.api.errors import (
    ActionFailedError,
    ActionInterruptedError,
    AgentsError,
    RetriesExhaustedError,
    StateError,
)
from flink_agents.api.events import Event, InputEvent, OutputEvent
from flink_agents.api.logs import bounded_logger
from flink_agents.api.policies import DEAD_LETTER_TAG, DeadLetter, FailedAttempt, OnError, RetryPolicy
from flink_agents.plan import BoundAction
from flink_agents.runtime.concurrency.outcomes import thrown
from flink_agents.runtime.execution.context import ActionRun, context_type
from flink_agents.runtime.execution.limits import RuntimeSignal
from flink_agents.runtime.execution.retry import Trial, is_of_deployment, is_retryable, next_trial, record
from flink_agents.runtime.execution.routing import not_accepted
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.execution.waits.changed_code import (
    LETTER_PATH,
    agent_policy,
    begin_event,
    given_up_event,
    no_action_takes,
    unhandled_policy,
)
from flink_agents.runtime.execution.waits.forgotten import check_awaited
from flink_agents.runtime.execution.ways import HandOver, Inline, Way
from flink_agents.runtime.serde.raised_texts import told_error
from flink_agents.runtime.serde.redacted import redacted
from flink_agents.runtime.serde.tracebacks import text_of, users_place, users_traceback
from flink_agents.runtime.state.delayed import DelayedInput
from flink_agents.runtime.state.pending import UnreadableInput
from flink_agents.runtime.state.reads import check_reads

FAILURES = (BaseException,)
"""What an action can raise: whatever it is, it is the action's failure, with the author's line."""

ENDS = (KeyboardInterrupt, GeneratorExit)
"""What no policy passes by: one is meant for the program, the other closes the coroutine that executes
the run, so that nothing can follow in it."""

_log = bounded_logger("flink_agents.run")


class StepExecutor:
    """Executes the steps of runs.

    Args:
        shared: What all runs share.

    Attributes:
        observers: Who is told of what runs do.
    """

    def __init__(self, shared: RunEnvironment) -> None:
        self._shared = shared
        self.observers = shared.observers
        self._inline = Inline(self)
        self._context_type = context_type(shared.agent.context_class)
        self._on_error = agent_policy(shared)
        self._retry = shared.agent.retry
        self._on_unhandled = unhandled_policy(shared)
        # Whether an action makes durable calls may show only when it does, in each process anew.
        self._owned = {
            action.name
            for action in shared.agent.actions
            if shared.journals is not None or self._retry_of(action) is not None
        }

    def begin(self, run: Run, record: Any) -> None:
        """Let ``run`` start with ``record``, an input or an event that another run sent with a delay.

        Raises:
            StateError: The code has changed, so that it cannot.
        """
        kind = type(record)
        begins = kind is DelayedInput or kind is UnreadableInput
        run.queue.append(begin_event(run, record, self._shared) if begins else run.input_event(record))
        run.steps = self._walk(run)

    def advance(self, run: Run) -> ActionRun | None:
        """Execute steps on this thread up to the first one that cannot end here.

        Returns:
            That step; None at the end of the run. It has what is to be awaited, or it was not
            called yet: because it must not run on this thread, or as a further attempt.

        Raises:
            ActionFailedError: An action raised and its policy is to fail.
            UnhandledEventError: No action accepted an event and the policy is to fail.
        """
        try:
            # Nothing is awaited on this way, so that the coroutine ends at once.
            self.execute(run, self._inline).send(None)
        except StopIteration:
            return None
        except HandOver as handing_over:
            return handing_over.step
        except BaseException:
            run.state.fail()
            raise
        raise AssertionError("a step waits on Flink's thread")

    async def execute(self, run: Run, way: Way, first: ActionRun | None = None) -> None:
        """Execute what is left of a run, step by step and attempt by attempt.

        Args:
            run: The run.
            way: What is done with its steps.
            first: The step that it goes on with, where another thread began it.
        """
        for step in run.steps if first is None else chain((first,), run.steps):
            if run.journal is not None and step is not first and way.replayed(step):
                continue
            attempt: ActionRun | None = step
            while attempt is not None:
                if attempt.trial is not None and attempt.trial.delay:
                    await way.pause(attempt)
                if run.journal is not None:
                    way.begin(attempt)
                following: ActionRun | None = None
                try:
                    if (awaitable := way.perform(attempt)) is not None:
                        await awaitable
                except RuntimeSignal:
                    raise
                except FAILURES as error:
                    following = await way.failed(attempt, error)
                else:
                    self.succeed(attempt)
                finally:
                    if attempt.tasks is not None:
                        await way.end_tasks(attempt)
                attempt = following

    # -- one step ---------------------------------------------------------------------

    def call(self, step: ActionRun) -> None:
        """Call the action and emit what it returns; what has to be awaited stays in the step.

        One that may be executed again gets an event of its own: what it changes in that reaches neither
        its next attempt nor other actions, which would not see it after a replay.
        """
        action, event = step.action, step.event
        if action.name in self._owned:
            event = self._shared.events.own(event)
        step.context = self._context_type(step)
        token = called_action_run.set(step)
        try:
            result = action.call(event, step.context)
            if result is not None:
                self._emit(step, result)
            if step.unawaited is not None and step.awaited is None:
                check_awaited(step)
            if step.reads and step.awaited is None:
                check_reads(step)
        finally:
            called_action_run.reset(token)

    async def wait(self, step: ActionRun) -> None:
        """Await what :meth:`call` left; the step belongs to the thread of the running loop."""
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
        if step.unawaited is not None:
            check_awaited(step)
        if step.reads:
            check_reads(step)

    def succeed(self, step: ActionRun) -> None:
        """End a step: what it emitted becomes part of the run."""
        step.end()
        run = step.run
        run.emitted += len(step.sent)
        if run.waits is not None:
            self._put(step)
            return
        run.queue += step.sent
        if step.side is not None:
            run.side_outputs.extend(step.side)

    def _put(self, step: ActionRun) -> None:
        """Put out what an execution of a run did that may have been suspended, but what has left then."""
        outputs: list[Any] = []
        for event in step.sent:
            route = self._shared.routes.of(event)
            if route is not None and route.leaves:
                outputs.append(cast("OutputEvent", event).output)
            else:
                step.run.queue.append(event)
        step.run.put_out(step.path, outputs, step.side or [])

    def failed(self, step: ActionRun, error: BaseException) -> ActionRun | None:
        """End an attempt that raised: what it did is taken back, and its policies followed.

        Returns:
            The next attempt; None where the run goes on without.

        Raises:
            ActionFailedError: There is none, and the policy is to fail.
        """
        error = redacted(thrown(error))
        self.observers.action_failed(step.run.state, step.action.name, error)
        retry = self._retry_of(step.action)
        if retry is not None and not isinstance(error, ENDS):
            seed = f"{step.event.id}\x00{step.action.name}"
            trial = next_trial(retry, step.trial, error, seed, self.now())
            if trial is not None:
                return self._again(step, error, trial)
        self.fail(step, error)
        return None

    def anew(self, step: ActionRun) -> ActionRun:
        """Take back what an attempt did; returns another one that takes its place."""
        self._take_back(step)
        following = ActionRun(self._shared, step.run, step.action, step.event)
        following.trial = step.trial
        return following

    def refuse(self, step: ActionRun, error: AgentsError, policy: OnMismatch) -> None:
        """End a step whose replay is not what was recorded.

        Raises:
            ActionFailedError: The policy is to fail.
        """
        self._take_back(step)
        self.observers.action_mismatched(step.run.state, step.action.name)
        where = step.action.where
        if policy is not OnMismatch.DEAD_LETTER:
            raise self._action_failed(step, error, where, ()) from error
        self._put_final(step)
        self._give_up(step.run, step.action, step.event, error, where, OnError.DEAD_LETTER, (), step.path)

    def fail(self, step: ActionRun, error: BaseException) -> None:
        """End a step that raised, for good.

        Raises:
            ActionFailedError: The policy is to fail.
        """
        self._take_back(step)
        action, event = step.action, step.event
        where = users_place(error, action)
        policy = self._policy_of(action)
        attempts = _attempts(step, error)
        ends = isinstance(error, ENDS) or is_of_deployment(error)
        if policy in (OnError.FAIL, OnError.RETRY) or ends:
            raise self._action_failed(step, error, where, attempts) from error
        self._put_final(step)
        self._give_up(step.run, action, event, error, where, policy, attempts, step.path)

    def _put_final(self, step: ActionRun) -> None:
        """Put out what an execution had put out before it waited."""
        if step.run.waits is not None:
            outputs, side = step.run.waits.final(step)
            step.run.put_out(step.path, [event.output for event in outputs], side)

    def refuse_input(self, run: Run, record: Any, error: AgentsError) -> None:
        """End a run before its begin, whose input cannot wait: state cannot hold it.

        Raises:
            AgentsError: The policy is to fail.
        """
        if self._on_error in (OnError.FAIL, OnError.RETRY):
            raise error
        self._give_up(run, None, run.input_event(record), error, "", self._on_error)

    def give_up(self, run: Run, record: Any, error: StateError) -> None:
        """End a run that this code cannot continue; it leaves nothing but what has left before.

        Raises:
            StateError: The policy is to fail.
        """
        if self._on_error in (OnError.FAIL, OnError.RETRY):
            raise error
        run.clear()
        event = given_up_event(run, record, self._shared)
        self._give_up(run, None, event, error, "", self._on_error, path=LETTER_PATH)

    # -- attempts ---------------------------------------------------------------------

    def now(self) -> float:
        """The present, in seconds of the clock that attempts are measured by."""
        return time.monotonic()

    def _policy_of(self, action: BoundAction) -> OnError:
        return OnError(action.settings.on_error or self._on_error)

    def _retry_of(self, action: BoundAction) -> RetryPolicy | None:
        retry = action.settings.retry or self._retry
        if retry is None and self._policy_of(action) is OnError.RETRY:
            return RetryPolicy()
        return retry

    def _again(self, step: ActionRun, error: BaseException, trial: Trial) -> ActionRun:
        self._take_back(step)
        following = ActionRun(self._shared, step.run, step.action, step.event)
        following.trial = trial
        self.observers.action_retried(step.run.state, step.action.name, len(trial.failed) + 1)
        _log.info(
            "%s: attempt %d of action %s of agent %s, key %r, sequence %d, failed; next in %.3g s: %s: %s",
            users_place(error, step.action),
            len(trial.failed),
            step.action.name,
            self._shared.agent_name,
            step.run.key,
            step.run.sequence_number,
            trial.delay,
            type(error).__name__,
            text_of(error),
        )
        return following

    def leave_thread(self, step: ActionRun) -> ActionRun:
        """Begin a step anew that must not go on here; the next time it does not even begin here."""
        self._take_back(step)
        self._shared.leaves_thread(step.action)
        return ActionRun(self._shared, step.run, step.action, step.event)

    def _take_back(self, step: ActionRun) -> None:
        step.end()
        step.run.rollback(step.mark)

    # -- the chain --------------------------------------------------------------------

    def _walk(self, run: Run) -> Iterator[ActionRun]:
        """What is to be executed next, as long as there is something."""
        queue, routes = run.queue, self._shared.routes
        known = routes.by_class
        while queue:
            event = queue.popleft()
            route = known.get(type(event)) or routes.of(event)
            assert route is not None
            if route.leaves:
                run.outputs.append(cast("OutputEvent", event).output)
                continue
            handled = False
            for action in route.actions:
                accepted = action.settings.when is None or self._accepts(run, action, event)
                if accepted:
                    yield ActionRun(self._shared, run, action, event)
                # A condition that raised is a failure of the action, with its own policy.
                handled = handled or accepted is not False
            if not handled:
                self._unhandled(run, event)

    def _accepts(self, run: Run, action: BoundAction, event: Event) -> bool | None:
        """Whether the condition of ``action`` holds; None if it raised."""
        assert action.settings.when is not None
        if run.state.started:
            # The watchdog names the action whose condition blocks the loop.
            run.state.action_run = ActionRun(self._shared, run, action, event)
        try:
            said = action.settings.when(event)
            return said if type(said) is bool else truth_of(said, f"the condition of action {action.name!r}")
        except FAILURES as raised:
            error = redacted(raised)
            self.observers.action_failed(run.state, action.name, error)
            self.fail(ActionRun(self._shared, run, action, event), error)
            return None

    def _emit(self, step: ActionRun, result: Any) -> None:
        routes = self._shared.routes
        if (route := routes.by_class.get(type(result)) or routes.of(result)) is not None:
            step.take(result, route)
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

    def _emit_all(self, step: ActionRun, events: Iterable[Any]) -> None:
        for event in events:
            if event is not None:
                step.emit(event)

    # -- failures ---------------------------------------------------------------------

    def _action_failed(
        self, step: ActionRun, error: BaseException, where: str, attempts: tuple[FailedAttempt, ...]
    ) -> ActionFailedError:
        message, details = told_error(error, step.action.is_async)
        retry = self._retry_of(step.action) if attempts else None
        # Where the last error is one that is not tried again, the attempts did not run out.
        ran_out = retry is not None and is_retryable(retry, error)
        failure = RetriesExhaustedError if ran_out else ActionFailedError
        if isinstance(error, KeyboardInterrupt):
            failure = ActionInterruptedError
        return failure(
            f"{type(error).__name__}: {message}",
            agent=self._shared.agent_name,
            action=step.action.name,
            key=step.run.key,
            sequence_number=step.run.sequence_number,
            event=step.event.event_type,
            attempts=attempts,
            where=where,
            **details,
        )

    def _unhandled(self, run: Run, event: Event) -> None:
        route = self._shared.routes.of(event)
        assert route is not None
        if route.actions:
            place = f"key {run.key!r}, sequence {run.sequence_number}"
            error = not_accepted(self._shared.agent_name, event, route.actions, place)
        else:
            error = no_action_takes(event, self._shared)
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
        attempts: tuple[FailedAttempt, ...] = (),
        path: str = "",
    ) -> None:
        """Leave a trace of an event that the agent goes on without."""
        name = action.name if action is not None else None
        self.observers.event_given_up(run.state, event.event_type, policy is OnError.DEAD_LETTER)
        _log.warning(
            "%s: %s of agent %s, key %r, sequence %d (%s): %s: %s",
            where or "unhandled",
            f"action {name}" if name else f"event {event.event_type}",
            self._shared.agent_name,
            run.key,
            run.sequence_number,
            policy.value,
            type(error).__name__,
            text_of(error),
        )
        if policy is OnError.DEAD_LETTER:
            self._shared.run_metrics.count_letter(name, error)
            letter = self._dead_letter(run, name, event, error, where, attempts)
            run.put_out(path, [], [(DEAD_LETTER_TAG, letter)])

    def _dead_letter(
        self,
        run: Run,
        action: str | None,
        event: Event,
        error: BaseException,
        where: str,
        attempts: tuple[FailedAttempt, ...],
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
            error_message=text_of(error),
            where=where,
            traceback=users_traceback(error),
            attempts=attempts,
            run_input=None if isinstance(event, InputEvent) else run.record,
        )


def _attempts(step: ActionRun, error: BaseException) -> tuple[FailedAttempt, ...]:
    """All attempts of a step whose last one raised ``error``; none where that was the only one."""
    failed = step.trial.failed if step.trial is not None else ()
    return (*failed, record(len(failed) + 1, error)) if failed else ()
