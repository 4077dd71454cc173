"""Approval requests: a wait for a signal, with a request before it and an outcome after it.

Both leave through the side output of approvals, like all outputs of an action: the request when the run is
suspended, the outcome when it is suspended again or committed. So a crash repeats neither of them. The id of
a request derives from its run.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flink_agents.api.common.durations import duration_text
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
)
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.outcomes.delivery import Delivery
from flink_agents.runtime.execution.waits.kinds import signal_wait_of
from flink_agents.runtime.execution.waits.requests import pack_request
from flink_agents.runtime.execution.waits.run_waits import is_of_task_inside, tag_of_task
from flink_agents.runtime.journal.calls import is_of_sub_agent


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
    asks = json.dumps([wanted.what, wanted.arguments], sort_keys=True)
    path = f"{step.event.id}\x00{wait_id}\x00approval\x00{asks}"
    mark = hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return ApprovalRequest(
        id=f"{wait_id}|{mark}",
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
    """Emit a request of a task, or its outcome. An outcome leaves even if the action fails later."""
    if step.side is None:
        step.side = []
    tag = tag_of_task(APPROVALS_TAG, task) if is_of_sub_agent(task) else APPROVALS_TAG
    step.side.append((tag, value))
    if isinstance(value, ApprovalOutcome) and step.run.waits is not None:
        step.run.waits.outcomes[value.request.id] = value
        step.run.waits.waited(step)
