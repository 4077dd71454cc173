"""Shows the waits and approval requests of runs, and unmatched signals; answers approval requests."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from flink_agents.api.events.approvals import APPROVALS_TAG, ApprovalOutcome, ApprovalRequest
from flink_agents.api.events.signals import UNMATCHED_SIGNALS_TAG, Signal, UnmatchedSignal
from flink_agents.runtime.serde.keys import encode_key
from flink_agents.testing.fakes.state import KeyState
from flink_agents.testing.fakes.waits import PendingDelayed, PendingWait, pending_delayed, waits_in, waits_of
from flink_agents.testing.subtasks.building import Builder
from flink_agents.testing.subtasks.given import check_request


class WaitsShown(Builder):
    """Shows waits and unmatched signals, and answers approval requests.

    A base class of ``OperatorHarness``.
    """

    @abstractmethod
    def signal(
        self, key: Any, name: str, value: Any = None, *, id: str | None = None, wait: str | None = None
    ) -> list[Any]:
        """Send a signal to a key, and return the outputs that follow; see :meth:`OperatorHarness.signal`."""

    def waits(self, key: Any = 0) -> list[PendingWait]:
        """Return the waits of the runs of ``key``, suspended or not: for timers and signals."""
        text = encode_key(key)
        subtask = self._subtask_of(text)
        state = subtask.backend.keys.get(text, KeyState())
        live = subtask.processor.live_waits(text)
        if live is None:
            return waits_in(state, text)
        return waits_of(live) + waits_in(state, text, subtask.processor.live_runs(text))

    def delayed(self, key: Any = 0) -> list[PendingDelayed]:
        """Return the delayed events of ``key``, the first due one first."""
        text = encode_key(key)
        subtask = self._subtask_of(text)
        return pending_delayed(subtask.backend.keys.get(text, KeyState()), subtask.shared)

    @property
    def unmatched_signals(self) -> list[UnmatchedSignal]:
        """All signals that no run has received and that were given up, in order."""
        return self.side_output(UNMATCHED_SIGNALS_TAG)

    # -- approvals ---------------------------------------------------------------------

    @property
    def approvals(self) -> list[ApprovalRequest]:
        """The approval requests without an outcome, in order; each with its latest expiry."""
        ended = {outcome.request.id for outcome in self.approval_outcomes}
        requests = [
            output for output in self.side_output(APPROVALS_TAG) if isinstance(output, ApprovalRequest)
        ]
        # The latest one of each id: a request can get another time at which it expires.
        return [
            request
            for request in {request.id: request for request in requests}.values()
            if request.id not in ended
        ]

    @property
    def approval_outcomes(self) -> list[ApprovalOutcome]:
        """The outcomes of all approval requests that have ended, in order."""
        return [output for output in self.side_output(APPROVALS_TAG) if isinstance(output, ApprovalOutcome)]

    def approve(
        self, request: ApprovalRequest, arguments: Mapping[str, Any] | None = None, by: str | None = None
    ) -> list[Any]:
        """Approve a request, and return the outputs that it caused.

        Args:
            request: One of :attr:`approvals`.
            arguments: Arguments that replace the request's own, by name.
            by: Name of the person who approves it.
        """
        request = check_request(request, "approve")
        return self._send_answer(request.key, request.approve(arguments, by))

    def deny(self, request: ApprovalRequest, reason: str | None = None, by: str | None = None) -> list[Any]:
        """Deny a request, and return the outputs that it caused.

        Args:
            request: One of :attr:`approvals`.
            reason: Why it is denied; the action gets it.
            by: Name of the person who denies it.
        """
        request = check_request(request, "deny")
        return self._send_answer(request.key, request.deny(reason, by))

    def _send_answer(self, key: Any, signal: Signal) -> list[Any]:
        return self.signal(key, signal.name, signal.value, wait=signal.wait)
