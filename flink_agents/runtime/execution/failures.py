"""Handles errors of actions: a retry, an event that is given up, or a failed job.

The effects of the failed attempt are rolled back first, so no policy sees half an action.

A run of earlier code is checked before it continues. If one of its actions, event classes or its input class
was renamed or removed, the run ends as ``on_error`` of the agent says. Only outputs that have left already
remain of it, and the key continues. An event that no action handles any longer follows ``on_unhandled``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from flink_agents.api.action_state import RecordKind
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.common.policies import DEAD_LETTER_TAG, DeadLetter, FailedAttempt, OnError, RetryPolicy
from flink_agents.api.durable import OnMismatch
from flink_agents.api.errors import (
    ActionFailedError,
    ActionInterruptedError,
    AgentsError,
    PlanChangedError,
    RetriesExhaustedError,
    StateError,
    StateFormatError,
    UnknownTypeNameError,
    UpgradeFailedError,
)
from flink_agents.api.events import Event, InputEvent, NamedEvent
from flink_agents.plan import BoundAction
from flink_agents.runtime.concurrency.bridge import thrown
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.environment.events import not_accepted
from flink_agents.runtime.execution.retry import (
    RetryState,
    is_of_deployment,
    is_retryable,
    next_attempt,
    record,
)
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.journal.calls import task_of
from flink_agents.runtime.journal.plans import check_actions
from flink_agents.runtime.serde.raised_texts import explained_error, shown_text, users_place, users_traceback
from flink_agents.runtime.serde.redacted import redacted
from flink_agents.runtime.state.delayed import DelayedInput
from flink_agents.runtime.state.pending import UnreadableInput, read_input
from flink_agents.runtime.state.suspended import Suspension

CHANGES = (PlanChangedError, StateFormatError, UnknownTypeNameError, UpgradeFailedError)
"""The errors that reading a run raises if the code has changed since the run was written."""

LETTER_PATH = "changed-code"
"""The path under which the dead letter of such a run is counted. No output has left under it before."""

FAILURES = (BaseException,)
"""The exceptions that count as a failure of the action: all of them."""

ENDS = (KeyboardInterrupt,)
"""The exceptions that no policy handles: they are meant for the program."""

_log = bounded_logger("flink_agents.run")


class FailurePolicies:
    """Applies the policies of the agent and its actions when something fails.

    Args:
        shared: The agent's shared objects.

    Attributes:
        observers: Observers of runs.
        emits_letters: False if an error is raised instead: a dead letter has the event of the calling agent.
    """

    emits_letters = True

    def __init__(self, shared: RunEnvironment) -> None:
        self._shared = shared
        self.observers = shared.telemetry.observers
        self._on_error = shared.on_error
        self._retry = shared.agent.settings.retry
        self._on_unhandled = shared.on_unhandled

    def failed(self, step: ActionRun, error: BaseException) -> ActionRun | None:
        """Roll back an attempt that raised, and apply its policies.

        Returns:
            The next attempt; None if the run continues without one.

        Raises:
            ActionFailedError: There is no next attempt, and the policy is to fail.
        """
        error = redacted(thrown(error))
        self.observers.action_failed(step.run.state, step.action.name, error)
        retry = self._retry_of(step.action)
        if retry is not None and not isinstance(error, ENDS):
            seed = f"{step.event.id}\x00{step.action.name}"
            retry_state = next_attempt(retry, step.retry_state, error, seed, self.now())
            if retry_state is not None:
                return self._retry_step(step, error, retry_state)
        self.fail(step, error)
        return None

    def fail_whole_job(self, step: ActionRun, error: BaseException) -> NoReturn:
        """End a step that raised, whatever its policies.

        Raises:
            ActionFailedError: Always.
        """
        error = redacted(thrown(error))
        self.observers.action_failed(step.run.state, step.action.name, error)
        self._roll_back(step)
        attempts = _attempts_of(step, error)
        raise self._action_failed(step, error, users_place(error, step.action), attempts) from error

    def restart(self, step: ActionRun) -> ActionRun:
        """Roll back an attempt, and return one that takes its place without counting as a retry."""
        return self._replace_attempt(step, step.retry_state)

    def mismatched(self, step: ActionRun, error: AgentsError, policy: OnMismatch) -> None:
        """End a step whose replay differs from its records.

        Raises:
            ActionFailedError: The policy is to fail.
        """
        self._roll_back(step)
        self.observers.action_mismatched(step.run.state, step.action.name)
        where = step.action.where
        if policy is not OnMismatch.DEAD_LETTER:
            raise self._action_failed(step, error, where, ()) from error
        self._emit_final_outputs(step)
        self._give_up(step.run, step.action, step.event, error, where, OnError.DEAD_LETTER, (), step.path)

    def fail(self, step: ActionRun, error: BaseException) -> None:
        """End a step that raised and gets no further attempt, as ``on_error`` of its action says.

        Raises:
            ActionFailedError: The policy is to fail.
        """
        self._roll_back(step)
        action = step.action
        event = step.event
        where = users_place(error, action)
        policy = self._policy_of(action)
        attempts = _attempts_of(step, error)
        must_fail_job = isinstance(error, ENDS) or is_of_deployment(error)
        if policy in (OnError.FAIL, OnError.RETRY) or must_fail_job:
            raise self._action_failed(step, error, where, attempts) from error
        self._emit_final_outputs(step)
        run = step.run
        side_output_count = len(run.side_outputs)
        self._give_up(run, action, event, error, where, policy, attempts, step.path)
        if run.waits is None and step.calls is None:
            run.failed.append((step.path, run.side_outputs[side_output_count:]))

    def reject_input(self, run: Run, record: Any, error: AgentsError) -> None:
        """End a run before it starts, because state cannot hold its input while that waits.

        Raises:
            AgentsError: The policy is to fail.
        """
        if self._on_error in (OnError.FAIL, OnError.RETRY):
            raise error
        self._give_up(run, None, run.begin(record), error, "", self._on_error)

    def give_up(self, run: Run, record: Any, error: StateError) -> None:
        """End a run that the present code cannot continue. Only outputs that were already emitted remain.

        Raises:
            StateError: The policy is to fail.
        """
        if self._on_error in (OnError.FAIL, OnError.RETRY):
            raise error
        run.clear()
        event = given_up_event(run, record, self._shared)
        self._give_up(run, None, event, error, "", self._on_error, path=LETTER_PATH)

    def end_run(self, run: Run, record: Any, error: BaseException, where: BaseException) -> None:
        """End a run as a dead letter because a user asked for that.

        Only outputs that were already emitted remain.

        Args:
            run: The run.
            record: Its input, as in ``pending``.
            error: The reason, for the dead letter.
            where: The cancellation that stopped it, whose traceback has the user's line.
        """
        step = run.state.action_run
        run.clear()
        event = given_up_event(run, record, self._shared)
        place = users_place(where, step.action) if step is not None else ""
        self._give_up(
            run,
            step.action if step is not None else None,
            event,
            error,
            place,
            OnError.DEAD_LETTER,
            path=LETTER_PATH,
        )

    def leave_thread(self, step: ActionRun) -> ActionRun:
        """Roll back a step that cannot finish on Flink's task thread; return the attempt for the event loop.

        From now on, the action starts there.
        """
        self._shared.move_off_thread(step.action)
        return self._replace_attempt(step, None)

    def now(self) -> float:
        """Return the time in seconds, by the clock that measures attempts."""
        return self._shared.seconds()

    def _policy_of(self, action: BoundAction) -> OnError:
        """Return ``on_error`` of an action, or that of the agent or the job."""
        return OnError(action.settings.on_error or self._on_error)

    def _retry_of(self, action: BoundAction) -> RetryPolicy | None:
        """Return the retry policy of an action, or the agent's; None for no retries.

        With ``on_error="retry"`` and no policy, it is the default one.
        """
        retry = action.settings.retry or self._retry
        if retry is None and self._policy_of(action) is OnError.RETRY:
            return RetryPolicy()
        return retry

    def _replace_attempt(self, step: ActionRun, retry_state: RetryState | None) -> ActionRun:
        """Roll back an attempt, and return the one that takes its place, with ``retry_state``."""
        self._roll_back(step)
        following = ActionRun(self._shared, step.run, step.action, step.event)
        following.retry_state = retry_state
        return following

    def _retry_step(self, step: ActionRun, error: BaseException, retry_state: RetryState) -> ActionRun:
        """Roll back an attempt that raised, report that, and return the next attempt."""
        following = self._replace_attempt(step, retry_state)
        self.observers.action_retried(step.run.state, step.action.name, len(retry_state.failed) + 1)
        _log.info(
            "%s: attempt %d of action %s of agent %s, key %r, sequence %d, failed; next in %.3g s: %s: %s",
            users_place(error, step.action),
            len(retry_state.failed),
            step.action.name,
            self._shared.agent.name,
            step.run.key,
            step.run.sequence_number,
            retry_state.delay,
            type(error).__name__,
            shown_text(error),
        )
        return following

    def _roll_back(self, step: ActionRun) -> None:
        """End an attempt, and undo what it wrote to memory."""
        step.end()
        step.run.rollback(step.mark)

    def _emit_final_outputs(self, step: ActionRun) -> None:
        """Emit the outputs that an execution emitted before a wait. They may have left with a suspension."""
        if step.run.waits is not None:
            outputs, side = step.run.waits.final(step)
            step.run.put_out(step.path, [event.output for event in outputs], side)

    def _apply_on_unhandled(self, run: Run, event: Event) -> None:
        """Apply ``on_unhandled`` to an event that no action accepts.

        Raises:
            UnhandledEventError: The policy is to fail.
            PlanChangedError: The same, for an event without actions: it was sent before the code changed.
        """
        route = self._shared.routes.find_route(event)
        assert route is not None
        if route.actions:
            place = f"key {run.key!r}, sequence {run.sequence_number}"
            error = not_accepted(self._shared.agent.name, event, route.actions, place)
        else:
            error = no_action_takes(event, self._shared)
        if self._on_unhandled is OnError.FAIL:
            raise error
        self._give_up(run, None, event, error, "", self._on_unhandled)

    def _action_failed(
        self, step: ActionRun, error: BaseException, where: str, attempts: tuple[FailedAttempt, ...]
    ) -> ActionFailedError:
        """Return the error that fails the job because of a step.

        Args:
            step: The step.
            error: The exception that it raised.
            where: The user's line, as ``file:line in name``.
            attempts: All attempts of the step; empty if there was only one.
        """
        message, details = explained_error(error, step.action.is_async)
        retry = self._retry_of(step.action) if attempts else None
        # If the last error is not retryable, the attempts did not run out.
        ran_out = retry is not None and is_retryable(retry, error)
        failure = RetriesExhaustedError if ran_out else ActionFailedError
        if isinstance(error, KeyboardInterrupt):
            failure = ActionInterruptedError
        return failure(
            f"{type(error).__name__}: {message}",
            agent=self._shared.agent.name,
            action=step.action.name,
            key=step.run.key,
            sequence_number=step.run.sequence_number,
            event=step.event.event_type,
            attempts=attempts,
            where=where,
            **details,
        )

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
        """Log an event that the agent gives up, and emit a dead letter if the policy says so."""
        if policy is OnError.DEAD_LETTER and not self.emits_letters:
            raise error
        name = action.name if action is not None else None
        self.observers.event_given_up(run.state, event.event_type, policy is OnError.DEAD_LETTER)
        _log.warning(
            "%s: %s of agent %s, key %r, sequence %d (%s): %s: %s",
            where or "unhandled",
            f"action {name}" if name else f"event {event.event_type}",
            self._shared.agent.name,
            run.key,
            run.sequence_number,
            policy.value,
            type(error).__name__,
            shown_text(error),
        )
        if policy is OnError.DEAD_LETTER:
            self._shared.telemetry.run_metrics.count_letter(name, error)
            letter = DeadLetter(
                agent=self._shared.agent.name,
                action=name,
                key=run.key,
                sequence_number=run.sequence_number,
                timestamp=run.timestamp,
                event=event,
                event_type=event.event_type,
                error_type=type(error).__qualname__,
                error_message=shown_text(error),
                where=where,
                traceback=users_traceback(error),
                attempts=attempts,
                run_input=None if isinstance(event, InputEvent) else run.record,
            )
            run.put_out(path, [], [(DEAD_LETTER_TAG, letter)])


def _attempts_of(step: ActionRun, error: BaseException) -> tuple[FailedAttempt, ...]:
    """Return all attempts of a step whose last one raised ``error``; nothing if there was only one."""
    failed = step.retry_state.failed if step.retry_state is not None else ()
    return (*failed, record(len(failed) + 1, error)) if failed else ()


def check_run(run: Run, suspension: Suspension | None, shared: RunEnvironment) -> None:
    """Check that the agent still has the actions that a run has records of, before the run starts.

    Raises:
        PlanChangedError: It lacks some.
    """
    journal = run.journal
    if journal is not None and journal.replayed:
        _check_actions(journal.steps, run.queue[0], shared)
    if suspension is not None:
        check_suspended(suspension, run.queue[0], shared)


def check_suspended(suspension: Suspension, event: Event, shared: RunEnvironment) -> None:
    """Check that the agent still has the actions of a suspended run that started with ``event``.

    Raises:
        PlanChangedError: It lacks some.
    """
    recorded = {task_of(record.step)[0] for record in suspension.records if record.kind is not RecordKind.RUN}
    _check_actions(recorded | {wait.step for wait in suspension.waits}, event, shared)


def _check_actions(steps: Iterable[str], event: Event, shared: RunEnvironment) -> None:
    """Check that the agent has the actions that the paths of recorded ``steps`` name.

    If no action handles ``event`` any longer, there is nothing to check.
    """
    route = shared.routes.find_route(event)
    if route is not None and not route.actions:
        # The event follows on_unhandled.
        return
    first = {action.name for action in route.actions} if route is not None else set[str]()
    check_actions(shared.agent.name, {action.name for action in shared.agent.actions}, first, steps)


def given_up_event(run: Run, record: object, shared: RunEnvironment) -> Event:
    """Return the event for the dead letter of a run that the present code cannot continue.

    If it cannot be decoded, the event has its bytes.

    Args:
        run: The run.
        record: Its input as ``pending`` had it: a value, a delayed event, or an unreadable input.
        shared: The agent's shared objects.
    """
    if type(record) is UnreadableInput:
        return InputEvent(input=record.packed)
    if type(record) is not DelayedInput:
        return InputEvent(input=record)
    try:
        return shared.events.decode(record.event)
    except StateError:
        pass
    try:
        kind, content, *_ = shared.codec.decode(record.event)
        return NamedEvent(type=kind, attributes=content)
    except StateError:
        return NamedEvent(type="unreadable", attributes={"event": record.event, "sent by": record.action})


def event_of_input(packed: bytes, shared: RunEnvironment) -> Event:
    """Return the event that a run starts with, from the bytes of its input.

    Raises:
        StateError: The code has changed, so that the event cannot be created.
    """
    record, _ = read_input(shared.codec, packed)
    if type(record) is UnreadableInput:
        raise record.error
    return shared.events.decode(record.event) if type(record) is DelayedInput else InputEvent(input=record)


def no_action_takes(event: Event, shared: RunEnvironment) -> PlanChangedError:
    """Return the error of an event that was sent before the code changed, and that no action handles now."""
    return PlanChangedError(
        f"no action of agent {shared.agent.name!r} takes the event {event.event_type!r}, which was sent "
        "before the code changed",
        expected=f"one of {', '.join(sorted(shared.routes.known_types()))}",
        found=event.event_type,
        fix="give the event class its former name and an action, or let these events come with the former "
        "code; with on_unhandled = 'dead-letter' on the agent, the job continues without it",
    )
