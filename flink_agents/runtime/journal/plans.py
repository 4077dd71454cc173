"""The plans in a store, and the results that its runs share.

Each run's header has the fingerprint of its plan. The parts that the fingerprint covers are in the store,
once per plan, so a later plan can be compared with them part by part.

A shared result, such as the list of tools of a server, is large and the same in each run. So the store has it
once, and records refer to it. All shared results are read when the store is opened. So a replay waits for
nothing that the run did not wait for.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Container, Iterable, Mapping
from typing import Any, cast

from flink_agents.api.action_state import PLANS as PLANS, ActionStateStore
from flink_agents.api.durable import OnPlanChange
from flink_agents.api.errors import PlanChangedError, RecordsPrunedError, StoreError
from flink_agents.plan import AgentPlan
from flink_agents.runtime.serde.codec import ValueCodec

_PREFIX = "\x00value "
"""Prefix of the names of shared results among the plans of a store. No fingerprint has it."""

_DIGEST = "digest of a shared result"
"""Key of the object that replaces a shared result in a record."""

_SMALL = 1000
"""Results up to this number of bytes are stored in the record itself."""

_FRAME = 8
"""An upper bound for the bytes of a reference before the text of its first key."""

MOST_SHARED = 1000
"""The most results that are shared.

Results that always differ belong into the records of runs, which are pruned.
"""


class Plans:
    """The plans in a store, by which a recorded run is compared with the present plan.

    Args:
        store: The store.
        plan: The present plan.
        policy: The policy if another plan recorded a run.
    """

    def __init__(self, store: ActionStateStore, plan: AgentPlan, policy: OnPlanChange) -> None:
        self._store = store
        self._parts = plan.recovery_parts()
        self._agent = plan.name
        self._policy = policy
        self.fingerprint = plan.fingerprint
        self._changes: dict[str, list[str]] = {}

    async def remember(self) -> None:
        """Store the present plan, unless the store has it."""
        data = json.dumps(self._parts, sort_keys=True).encode()
        await self._store.remember_plan(self.fingerprint, data)

    async def check(self, fingerprint: str) -> None:
        """Check that the policy lets the present plan continue a run of another one.

        Args:
            fingerprint: Fingerprint of the plan that recorded the run.

        Raises:
            PlanChangedError: The policy is to fail.
        """
        if fingerprint == self.fingerprint or self._policy is not OnPlanChange.FAIL:
            return
        if fingerprint not in self._changes:
            data = await self._store.recall_plan(fingerprint)
            old = None if data is None else json.loads(data)
            self._changes[fingerprint] = changes(old, self._parts) if old else ["its plan is not known"]
        raise PlanChangedError(
            f"agent {self._agent!r} has unfinished runs of another plan",
            expected=f"the plan {fingerprint[:12]}",
            found=f"{self.fingerprint[:12]}: " + "; ".join(self._changes[fingerprint]),
            fix="finish these runs with the former plan, or set action-state.on-plan-change to "
            "'continue-compatible'",
        )


def check_actions(
    agent: str, action_names: Container[str], first_actions: Container[str], steps: Iterable[str]
) -> None:
    """Check that an agent still has the actions that a run has records of.

    Args:
        agent: The name of the agent.
        action_names: The names of its actions.
        first_actions: The names of the actions that handle the event which the run started with.
        steps: The paths of the executions with records.

    Raises:
        PlanChangedError: It lacks some, or they handle other events.
    """
    paths = [[part.partition("[")[0] for part in step.split("/")] for step in steps]
    lost = sorted({name for path in paths for name in path if name not in action_names})
    if lost:
        raise PlanChangedError(
            f"agent {agent!r} has an unfinished run with records of actions that it lacks: {', '.join(lost)}",
            expected="the actions that the run began with, under the same names",
            found="an agent without them: they were renamed or removed",
            fix=give_back("the actions their former names back"),
        )
    moved = sorted({path[0] for path in paths if path[0] not in first_actions})
    if moved:
        raise PlanChangedError(
            f"agent {agent!r} has an unfinished run with records of actions that take other events now: "
            f"{', '.join(moved)}",
            expected="the triggers that the actions had when the run began",
            found="actions that do not take the event which the run began with",
            fix=give_back("the actions their former triggers back"),
        )


def give_back(what: str) -> str:
    """Return the fix for a run that the present code cannot continue.

    Args:
        what: What the code has to get back, such as ``the actions their former names back``.
    """
    return (
        f"give {what}, or finish these runs with the former code; with on_error = 'dead-letter' on the "
        "agent, such a run ends as a dead letter and the job continues"
    )


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return the differences between two plans, as text; by the parts of ``AgentPlan.recovery_parts``."""
    differences: list[str] = []
    for kind in ("actions", "events", "resources"):
        old_parts = old.get(kind, {})
        new_parts = new.get(kind, {})
        differences += [f"{kind[:-1]} {name} is gone" for name in sorted(old_parts.keys() - new_parts.keys())]
        differences += [f"{kind[:-1]} {name} is new" for name in sorted(new_parts.keys() - old_parts.keys())]
        for name in sorted(old_parts.keys() & new_parts.keys()):
            if old_parts[name] != new_parts[name]:
                differences.append(
                    f"{kind[:-1]} {name} changed{_changed_fields(old_parts[name], new_parts[name])}"
                )
    other_names = sorted((old.keys() | new.keys()) - {"actions", "events", "resources"})
    differences += [f"{name} changed" for name in other_names if old.get(name) != new.get(name)]
    return differences


def _changed_fields(old_part: Any, new_part: Any) -> str:
    """Return the names of the fields that differ, in parentheses; empty if the parts have no fields."""
    if not isinstance(old_part, dict) or not isinstance(new_part, dict):
        return ""
    names = sorted(
        name for name in old_part.keys() | new_part.keys() if old_part.get(name) != new_part.get(name)
    )
    return f" ({', '.join(names)})"


# -- shared results ------------------------------------------------------------------


class SharedValues:
    """Large results of calls that the records of several runs share, in one store.

    Args:
        store: The store.
        codec: Encodes references to shared results.
    """

    def __init__(self, store: ActionStateStore, codec: ValueCodec) -> None:
        self._store = store
        self._codec = codec
        self._compressed: dict[str, bytes] = {}

    def open(self, plans: Mapping[str, bytes]) -> None:
        """Load the shared results, which the store has among its plans."""
        self._compressed = {
            name.removeprefix(_PREFIX): data for name, data in plans.items() if name.startswith(_PREFIX)
        }

    async def packed(self, data: bytes) -> bytes:
        """Store a large encoded result if it is new, and return a reference to it; else return ``data``."""
        if len(data) <= _SMALL:
            return data
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        if not await self._store_result(digest, data):
            return data
        return self._codec.encode({_DIGEST: digest, "bytes": len(data)})

    def unpacked(self, data: bytes) -> bytes:
        """Return the encoded result from the form that :meth:`packed` returned.

        Raises:
            RecordsPrunedError: The store does not have it any longer.
        """
        # A result may have classes that only its declared type gives, so only references are decoded.
        if len(data) > _SMALL or _DIGEST.encode() not in data[: len(_DIGEST) + _FRAME]:
            return data
        reference: Any = self._codec.decode(data)
        if not isinstance(reference, dict) or _DIGEST not in reference:
            return data
        digest = str(cast("dict[str, Any]", reference)[_DIGEST])
        compressed = self._compressed.get(digest)
        if compressed is None:
            raise RecordsPrunedError(
                "a record names a result that it shares with other runs, and the store does not have it",
                expected="the whole store, with the plans and shared results that all runs have in common",
                found=f"no shared result {digest}",
                fix="restore the store as a whole; 'flink-agents journal copy' copies them, too",
            )
        return zlib.decompress(compressed)

    async def _store_result(self, digest: str, data: bytes) -> bool:
        """Store a result, or return False if that is impossible, so that the record has to contain it."""
        if digest in self._compressed:
            return True
        if len(self._compressed) >= MOST_SHARED:
            return False
        compressed = zlib.compress(data)
        try:
            await self._store.remember_plan(_PREFIX + digest, compressed)
        except StoreError:
            # The record is stored next. If the store is gone, that append ends the attempt.
            return False
        self._compressed[digest] = compressed
        return True
