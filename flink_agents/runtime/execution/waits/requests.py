"""Approval requests in the state of suspended runs, and outcomes of those that nothing waits for any more.

A request and its outcome leave as side outputs of the action that waits. But a run can end without its code:
a user ends it, or new code cannot continue it, asks for something else, or does not ask. So the stored form
of a wait has its request. When a resumed run is suspended again or ends, the requests before and after are
compared, and what the code has not emitted is added. It leaves in the same update of the key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from flink_agents.api.common.policies import DEAD_LETTER_TAG, DeadLetter
from flink_agents.api.events.approvals import (
    APPROVALS_TAG,
    ApprovalOutcome,
    ApprovalRequest,
    Decision,
    wait_of_request,
)
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.metrics.observers import Observers
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.suspended import StoredWait

_PATH = "settled-requests"
"""The path under which these side outputs are counted."""

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
        codec: Decodes requests.
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
    letters = [value for tag, value in side_outputs if tag == DEAD_LETTER_TAG]
    if letters and isinstance(letters[0], DeadLetter):
        letter = letters[0]
        # An error of this package has further lines, with a fix.
        return f"its run has ended: {(letter.error_message or letter.error_type).splitlines()[0]}"
    return "its run has ended" if is_over else "the action waits for it no more"
