"""What changed between the plan that recorded runs and the one that is to go on with them.

Each run's header has the fingerprint of its plan. What that covers is kept in the store, once per
plan, so that a later plan can be compared with it part by part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from flink_agents.api.action_state import PLANS as PLANS, ActionStateStore
from flink_agents.api.durable import OnPlanChange
from flink_agents.api.errors import PlanChangedError
from flink_agents.plan import AgentPlan


class Plans:
    """The plans that a store knows.

    Args:
        store: The store.
        plan: The present plan.
        policy: What happens where another plan recorded a run.
    """

    def __init__(self, store: ActionStateStore, plan: AgentPlan, policy: OnPlanChange) -> None:
        self._store = store
        self._parts = plan.recovery_parts()
        self._agent = plan.name
        self._policy = policy
        self.fingerprint = plan.fingerprint
        self._changes: dict[str, list[str]] = {}

    async def remember(self) -> None:
        """Keep the present plan, if it is not there."""
        data = json.dumps(self._parts, sort_keys=True).encode()
        await self._store.remember_plan(self.fingerprint, data)

    async def check(self, fingerprint: str, actions: Iterable[str]) -> None:
        """Check that the present plan can go on with a run of another one.

        Args:
            fingerprint: That of the plan that recorded the run.
            actions: Names of the actions that the run recorded something of.

        Raises:
            PlanChangedError: It cannot, or the policy is to refuse.
        """
        if fingerprint == self.fingerprint:
            return
        if fingerprint not in self._changes:
            data = await self._store.recall_plan(fingerprint)
            old = None if data is None else json.loads(data)
            self._changes[fingerprint] = changes(old, self._parts) if old else ["its plan is not known"]
        changed = self._changes[fingerprint]
        lost = sorted(set(actions) - set(self._parts["actions"]))
        if self._policy is OnPlanChange.REFUSE or lost:
            raise PlanChangedError(
                f"agent {self._agent!r} has unfinished runs of another plan"
                + (f", with records of actions that it lacks: {', '.join(lost)}" if lost else ""),
                expected=f"the plan {fingerprint[:12]}",
                found=f"{self.fingerprint[:12]}: " + "; ".join(changed),
                fix="finish these runs with the former plan, or give actions their former names back"
                if lost
                else "finish these runs with the former plan, or set action-state.on-plan-change to "
                "'continue-compatible'",
            )


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What differs between two plans, in words; by the parts of ``AgentPlan.recovery_parts``."""
    found: list[str] = []
    for kind in ("actions", "events", "resources"):
        before, after = old.get(kind, {}), new.get(kind, {})
        found += [f"{kind[:-1]} {name} is gone" for name in sorted(before.keys() - after.keys())]
        found += [f"{kind[:-1]} {name} is new" for name in sorted(after.keys() - before.keys())]
        for name in sorted(before.keys() & after.keys()):
            if before[name] != after[name]:
                found.append(f"{kind[:-1]} {name} changed{_fields(before[name], after[name])}")
    rest = sorted((old.keys() | new.keys()) - {"actions", "events", "resources"})
    found += [f"{name} changed" for name in rest if old.get(name) != new.get(name)]
    return found


def _fields(before: Any, after: Any) -> str:
    if not isinstance(before, dict) or not isinstance(after, dict):
        return ""
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return f" ({', '.join(names)})"
