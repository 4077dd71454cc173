"""Requests for approvals: a wait for a signal, with a request before it and an outcome behind it.

Both leave by the side output of approvals, as what an action puts out does: the request when the run is
suspended, the outcome when it is suspended again or committed. So a crash repeats neither, and the id of a
request follows from its run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator

from flink_agents.api.approvals import (
    APPROVAL_SIGNAL,
    APPROVALS_TAG,
    ApprovalOutcome,
    ApprovalRequest,
    ApprovalResponse,
    Check,
    Decision,
    outcome_of,
)
from flink_agents.api.errors import NoMoreSignalsError, RunDeadlineError, SignalTimeoutError
from flink_agents.runtime.execution.delivery import Delivery
from flink_agents.runtime.execution.waits.awaited import wait_of

if TYPE_CHECKING:
    from flink_agents.runtime.execution.context import ActionRun


@dataclass(frozen=True)
class Asked:
    """What is asked for.

    Attributes:
        what: What is to be done.
        arguments: With what; JSON values.
        seconds: After which time it counts as denied; None for never.
        check: Raises ``ValueError`` for arguments that an answer must not bring, or None.
    """

    what: str
    arguments: Mapping[str, Any]
    seconds: float | None
    check: Check | None


class _Answers:
    """Tells which answers fit a request.

    Args:
        request: The request.
        check: Checks arguments, or None.
    """

    def __init__(self, request: ApprovalRequest, check: Check | None) -> None:
        self._request = request
        self._check = check

    def __call__(self, response: ApprovalResponse) -> ApprovalResponse:
        if response.id != self._request.id:
            raise ValueError(f"the request is {self._request.id}")
        if response.approved and response.arguments is not None and self._check is not None:
            self._check({**self._request.arguments, **response.arguments})
        return response


async def approval_of(step: ActionRun, delivery: Delivery | None, asked: Asked) -> ApprovalOutcome:
    """Ask for an approval, and return how that ended.

    Args:
        step: The execution of the action that asks.
        delivery: That of the code that runs; None where it belongs to none.
        asked: What is asked for.

    Raises:
        ContextMisuseError: The action cannot wait.
    """
    fitting = _Later()
    kind = Annotated[ApprovalResponse, AfterValidator(fitting)]
    wait = wait_of(step, delivery, APPROVAL_SIGNAL, kind, asked.seconds)
    request = _request(step, wait.id, wait.deadline, asked)
    fitting.check = _Answers(request, asked.check)
    _put_aside(step, request)
    # A replay that finds the answer in a record no longer knows when the request would have expired.
    request = replace(request, expires_at=None)
    try:
        outcome = outcome_of(request, await wait)
    except SignalTimeoutError:
        reason = f"nobody answered within {asked.seconds:g} s"
        outcome = ApprovalOutcome(request, Decision.EXPIRED, request.arguments, reason=reason)
    except NoMoreSignalsError:
        reason = "the input has ended, so that no answer will come"
        outcome = ApprovalOutcome(request, Decision.ENDED, request.arguments, reason=reason)
    except RunDeadlineError:
        reason = "its run has taken for too long"
        _put_aside(step, ApprovalOutcome(request, Decision.EXPIRED, request.arguments, reason=reason))
        raise
    _put_aside(step, outcome)
    return outcome


class _Later:
    """Checks answers to a request that is made when its wait has an id.

    Attributes:
        check: Tells which answers fit.
    """

    check: _Answers

    def __call__(self, response: ApprovalResponse) -> ApprovalResponse:
        return self.check(response)


def _request(step: ActionRun, wait: str, deadline: int | None, asked: Asked) -> ApprovalRequest:
    run = step.run
    # A job that begins anew numbers its runs anew: an answer to a request of an earlier one must not fit.
    path = f"{step.event.id}\x00{wait}\x00approval"
    mark = hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return ApprovalRequest(
        id=f"{wait}|{mark}",
        agent=step.shared.agent_name,
        action=step.action.name,
        key=run.key,
        what=asked.what,
        arguments=asked.arguments,
        # What a replay finds again, which the clock is not.
        began_at=run.started_at,
        expires_at=deadline,
    )


def _put_aside(step: ActionRun, value: ApprovalRequest | ApprovalOutcome) -> None:
    if step.side is None:
        step.side = []
    step.side.append((APPROVALS_TAG, value))
