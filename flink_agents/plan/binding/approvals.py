"""Makes an action wait for an approval before it starts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flink_agents.api.common.awaited import truth_of
from flink_agents.api.context import RunnerContext
from flink_agents.api.events import Event, lineage_of_sent, stamp
from flink_agents.api.events.approvals import ApprovalDeniedEvent, arguments_of, changed_event
from flink_agents.api.settings import ActionSettings

Call = Callable[[Event, RunnerContext], Any]


def with_approval(name: str, call: Call, settings: ActionSettings, tells: bool) -> Call:
    """Return a function that waits for an approval, and then calls an action.

    Args:
        name: Name of the action.
        call: The action, an ``async def`` function.
        settings: Its settings.
        tells: True if an action of the agent takes the event that reports a denial.
    """
    needed = settings.needs_approval
    seconds = settings.approval_timeout

    async def approved(event: Event, ctx: RunnerContext) -> Any:
        if truth_of(needed(event), f"needs_approval of action {name!r}") if callable(needed) else needed:
            outcome = await ctx.request_approval(
                f"action {name}", arguments_of(event), timeout=seconds, check=partial(_check, event)
            )
            if not outcome.approved:
                return ApprovalDeniedEvent(outcome=outcome, event=event) if tells else None
            if outcome.changed:
                event = _changed(event, outcome.arguments)
        result = call(event, ctx)
        return result if inspect.isasyncgen(result) else await result

    return approved


def _check(event: Event, arguments: Mapping[str, Any]) -> None:
    changed_event(event, arguments)


def _changed(event: Event, arguments: Mapping[str, Any]) -> Event:
    changed = changed_event(event, arguments)
    stamp(changed, lineage_of_sent(event))
    return changed
