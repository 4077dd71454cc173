"""Checks the work in the state of restored keys: can the present code continue it?

If it cannot, ``on_error`` and ``on_unhandled`` apply when the time of that work comes. If these make the job
fail, it should fail now and not in an hour: a suspended run or a delayed event may wait for long. Only a few
keys are checked at a time, so that a large state does not delay the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from flink_agents.api.common.policies import OnError
from flink_agents.api.durable import OnPlanChange
from flink_agents.api.errors import PlanChangedError, StateError
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.execution.waits.changed_code import (
    check_suspended,
    event_of_input,
    no_action_takes,
)
from flink_agents.runtime.serde.keys import decode_key
from flink_agents.runtime.state.keyed_state import Head, KeyedState, Keys
from flink_agents.runtime.state.suspended import Suspension

_FAIL = (OnError.FAIL, OnError.RETRY)


class PendingWork:
    """Checks the suspended runs and delayed events of the current key. Only for Flink's task thread.

    Args:
        shared: The agent's shared objects.
        state: Keyed state.

    Attributes:
        needed: True if any work could fail the job later.
    """

    def __init__(self, shared: RunEnvironment, state: KeyedState) -> None:
        self._shared = shared
        self._state = state
        self._runs = shared.on_error in _FAIL
        self._events = shared.on_unhandled in _FAIL
        policy = OnPlanChange(shared.config.get(AgentOptions.ON_PLAN_CHANGE))
        self._plan = shared.agent.plan.fingerprint if policy is OnPlanChange.FAIL else None
        self.needed = self._runs or self._events or self._plan is not None

    def unchecked(self, keys: Keys, waiting: Sequence[Any]) -> Iterable[Any]:
        """Return the keys with delayed events, and those that may have suspended runs."""
        return [*keys.delaying(), *waiting]

    def check(self, head: Head, key_text: str) -> None:
        """Check the suspended runs and delayed events of the current key.

        Raises:
            PlanChangedError: The job would fail when their time comes.
            StateError: The present code cannot read some of them.
        """
        for run in head.suspended:
            suspension = self._state.pending.suspension(run.number)
            if suspension is not None:
                packed = suspension.input or self._state.pending.get(run.number)
                self._check_run(suspension, packed, key_text)
        if head.delayed_due is not None:
            for _, packed in self._state.delayed.all():
                self._check_event(packed)

    def _check_run(self, suspension: Suspension, packed: bytes | None, key_text: str) -> None:
        if self._plan is not None and suspension.plan not in ("", self._plan):
            raise PlanChangedError(
                f"key {decode_key(key_text)!r} has a suspended run of another plan",
                expected=f"the plan {suspension.plan[:12]}",
                found=self._plan[:12],
                fix="finish these runs with the former plan, or set action-state.on-plan-change to "
                "'continue-compatible'",
            )
        if self._runs and packed is not None:
            check_suspended(suspension, event_of_input(packed, self._shared), self._shared)

    def _check_event(self, packed: bytes) -> None:
        try:
            event = event_of_input(packed, self._shared)
        except StateError:
            if self._runs:
                raise
            return
        route = self._shared.routes.find_route(event)
        if self._events and route is not None and not (route.leaves or route.actions):
            raise no_action_takes(event, self._shared)
