"""Approval requests: a wait for a signal, with a request before it and an outcome after it.

Both leave through the side output of approvals, like all outputs of an action: the request when the run is
suspended, the outcome when it is suspended again or committed. So a crash repeats neither of them. The id of
a request derives from its run.

But a run can end without its code: a user ends it, or new code cannot continue it, asks for something else,
or does not ask. So the stored form of a wait has its request. When a resumed run is suspended again or ends,
the requests before and after are compared, and what the code has not emitted is added. It leaves in the same
update of the key.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flink_agents.api.common.durations import duration_text
from flink_agents.api.common.policies import DEAD_LETTER_TAG, DeadLetter
from flink_agents.api.errors import NoMoreSignalsError, RunDeadlineError, SignalTimeoutError
from flink_agents.api.events.approvals import (
    APPROVAL_SIGNAL,
    APPROVALS_TAG,
    ApprovalOutcome,
    ApprovalRequest,
    ApprovalResponse,
    Check,
    Decision,
    outcome_of,
    wait_of_request,
)
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.calls.delivery import Delivery
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.waits.kinds import signal_wait_of
from flink_agents.runtime.execution.waits.run_waits import is_of_task_inside, tag_of_task
from flink_agents.runtime.journal.calls import is_of_sub_agent
from flink_agents.runtime.metrics.observers import Observers
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.suspended import StoredWait


@dataclass(frozen=True)
class ApprovalArguments:
    """The arguments of ``ctx.request_approval``.

    Attributes:
        what: The operation to approve.
        arguments: Its arguments; JSON values.
        seconds: Seconds after which the request counts as denied; None for never.
        check: Raises ``ValueError`` if a response brings arguments that are not allowed; or None.
    """

    what: str
    arguments: Mapping[str, Any]
    seconds: float | None
    check: Check | None


class _Answers:
    """Converts the values of signals to responses, and rejects those that do not fit the request.

    Args:
        check: Checks arguments, or None.

    Attributes:
        request: The request. It is created when its wait has an id.
    """

    request: ApprovalRequest

    def __init__(self, check: Check | None) -> None:
        self._check = check

    def __call__(self, value: Any) -> ApprovalResponse:
        """Return the response that a signal holds.

        Raises:
            ValueError: It is for another request, or its arguments are not allowed.
            ValidationError: It is no response.
        """
        response = ApprovalResponse.model_validate(value)
        if response.id != self.request.id:
            raise ValueError(f"the request is {self.request.id}")
        if response.approved and response.arguments is not None:
            changed = {**self.request.arguments, **response.arguments}
            (self._check or self._check_names)(changed)
        return response

    def _check_names(self, changed: Mapping[str, Any]) -> None:
        """Reject a misspelled argument: the approval would execute the call with the unchanged one."""
        arguments = self.request.arguments
        unknown = sorted(changed.keys() - arguments.keys())
        if unknown:
            raise ValueError(f"{self.request.what} has no {', '.join(unknown)}, but {', '.join(arguments)}")


async def approval_of(
    step: ActionRun, delivery: Delivery | None, wanted: ApprovalArguments
) -> ApprovalOutcome:
    """Request an approval, and return its outcome.

    Args:
        step: The execution of the action.
        delivery: The delivery of the code that runs; None if the code belongs to no action.
        wanted: The arguments of the request.

    Raises:
        ContextMisuseError: The action cannot wait.
    """
    answers = _Answers(wanted.check)
    wait = signal_wait_of(step, delivery, APPROVAL_SIGNAL, answers, wanted.seconds)
    answers.request = request = _request(step, wait.id, wait.deadline, wanted)
    wait.request = pack_request(request, step.shared.codec)
    put = partial(_put_aside, step, wait.number.task)
    put(request)
    # A replay that finds the answer in a record no longer knows when the request would have expired.
    request = replace(request, expires_at=None)
    try:
        outcome = outcome_of(request, await wait)
    except SignalTimeoutError:
        # It may have expired before its timeout was removed from the code.
        limit = "its timeout" if wanted.seconds is None else duration_text(wanted.seconds)
        reason = f"no answer came within {limit}"
        outcome = ApprovalOutcome(request, Decision.EXPIRED, request.arguments, reason=reason)
    except NoMoreSignalsError:
        reason = "the input has ended, so that no answer will come"
        outcome = ApprovalOutcome(request, Decision.ENDED, request.arguments, reason=reason)
    except RunDeadlineError:
        _end(put, request, Decision.EXPIRED, "its run has taken for too long")
        raise
    except asyncio.CancelledError:
        if step.suspended is None and not step.has_ended:
            _end(put, request, Decision.ENDED, "the action waits for it no more")
        raise
    put(outcome)
    if (tell := step.shared.telemetry.observers.approval_ended) is not None:
        tell(step.run.state, step.action.name, wait.id, outcome)
    return outcome


def asked_inside(step: ActionRun, path: str) -> list[tuple[str, Any]]:
    """Return the requests, and their outcomes, of the sub-agent's action with that path."""
    return [entry for entry in step.side or () if is_of_task_inside(entry[0], path)]


def forget_asked(step: ActionRun, path: str) -> None:
    """Remove the requests of an attempt of a sub-agent's action: the next attempt makes them again.

    Those that have left do not leave twice.
    """
    if step.side and step.run.waits is not None:
        step.run.waits.forget(step, path)


def _end(put: Callable[..., None], request: ApprovalRequest, decision: Decision, reason: str) -> None:
    """Emit the outcome of a request whose end the action learns of by an error."""
    put(ApprovalOutcome(request, decision, request.arguments, reason=reason))


def _request(
    step: ActionRun, wait_id: str, deadline: int | None, wanted: ApprovalArguments
) -> ApprovalRequest:
    """Return the request whose answer a wait is for; ``deadline`` is in milliseconds since the epoch."""
    run = step.run
    # The id covers the request, not only the number of the run. A new job starts to number its runs at 0, and
    # after a restart another input may get the number of a lost run. An answer to its request must not fit.
    requested = json.dumps([wanted.what, wanted.arguments], sort_keys=True)
    path = f"{step.event.id}\x00{wait_id}\x00approval\x00{requested}"
    digest = hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return ApprovalRequest(
        id=f"{wait_id}|{digest}",
        agent=step.shared.agent.name,
        action=step.action.name,
        key=run.key,
        what=wanted.what,
        arguments=wanted.arguments,
        # Not the clock: a replay must find the same value.
        began_at=run.started_at,
        expires_at=deadline,
    )


def _put_aside(step: ActionRun, task: str, value: ApprovalRequest | ApprovalOutcome) -> None:
    """Emit a request of a task, or its outcome, which leaves even if the action fails later."""
    if step.side is None:
        step.side = []
    tag = tag_of_task(APPROVALS_TAG, task) if is_of_sub_agent(task) else APPROVALS_TAG
    step.side.append((tag, value))
    if isinstance(value, ApprovalOutcome) and step.run.waits is not None:
        step.run.waits.outcomes[value.request.id] = value
        step.run.waits.waited(step)


_PATH = "settled-requests"
"""The path under which the side outputs of :func:`settle_requests` are counted."""

_MOST_REASON = 500
"""The most characters of the reason of an outcome."""


def pack_request(request: ApprovalRequest, codec: ValueCodec) -> bytes:
    """Return the form of a request in state. The run has its key."""
    fields = [request.id, request.agent, request.action, request.what]
    return codec.encode([*fields, dict(request.arguments), request.began_at, request.expires_at])


def settle_requests(
    run: Run,
    suspended_waits: Iterable[StoredWait],
    after: Iterable[StoredWait] | None,
    codec: ValueCodec,
    observers: Observers,
) -> None:
    """Add requests and outcomes to the side outputs of a run that its code has not emitted.

    Args:
        run: The run, which is about to be suspended again or committed.
        suspended_waits: The open waits when it was suspended before.
        after: The open waits now; None if the run has ended.
        codec: Decodes the requests of stored waits.
        observers: Learn of the outcomes.
    """
    previous_waits = list(suspended_waits)
    earlier = _requests(previous_waits, run, codec)
    pending = _requests(after or (), run, codec)
    if not (earlier or pending):
        return
    emitted = [value for tag, value in run.side_outputs if tag == APPROVALS_TAG]
    requested = {value.id for value in emitted if isinstance(value, ApprovalRequest)}
    ended = {value.request.id for value in emitted if isinstance(value, ApprovalOutcome)}
    # An earlier version of this package stored no requests.
    unknown = {wait.id(run.key_text, run.sequence_number) for wait in previous_waits if wait.request is None}
    settled: list[ApprovalRequest | ApprovalOutcome] = []
    for id, request in pending.items():
        if id not in requested and wait_of_request(id) not in unknown and earlier.get(id) != request:
            # Other arguments, or another time at which it expires. Lists show the latest one of an id.
            settled.append(request)
    for id, request in earlier.items():
        if id not in pending and id not in ended:
            outcome = _outcome(run, request, after is None)
            settled.append(outcome)
            if (notify := observers.approval_ended) is not None:
                notify(run.state, request.action, wait_of_request(id), outcome)
    run.side_outputs += [(APPROVALS_TAG, value) for value in settled]
    if settled and run.waits is not None:
        run.waits.add_counted(_PATH, len(settled))


def _requests(waits: Iterable[StoredWait], run: Run, codec: ValueCodec) -> dict[str, ApprovalRequest]:
    """Return the requests of waits, by id."""
    requests: dict[str, ApprovalRequest] = {}
    for wait in waits:
        if wait.request is not None:
            id, agent, action, what, arguments, began_at, expires_at = codec.decode(wait.request)
            request = ApprovalRequest(id, agent, action, run.key, what, arguments, began_at, expires_at)
            requests[id] = request
    return requests


def _outcome(run: Run, request: ApprovalRequest, is_over: bool) -> ApprovalOutcome:
    """Return the outcome of a request that nothing waits for any more."""
    learned: ApprovalOutcome | None = None if run.waits is None else run.waits.outcomes.get(request.id)
    if learned is not None:
        # New code emits fewer side outputs, so that this one counted as one that had left.
        return learned
    request = replace(request, expires_at=None)
    reason = _reason(run.side_outputs, is_over)[:_MOST_REASON]
    return ApprovalOutcome(request, Decision.ENDED, request.arguments, reason=reason)


def _reason(side_outputs: Iterable[tuple[str, Any]], is_over: bool) -> str:
    """Return the reason of an outcome: the error of a dead letter, or that the run or the wait has ended."""
    letters = [value for tag, value in side_outputs if tag == DEAD_LETTER_TAG]
    if letters and isinstance(letters[0], DeadLetter):
        letter = letters[0]
        # An error of this package has further lines, with a fix.
        return f"its run has ended: {(letter.error_message or letter.error_type).splitlines()[0]}"
    return "its run has ended" if is_over else "the action waits for it no more"
