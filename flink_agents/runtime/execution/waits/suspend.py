"""Decides that a run is suspended: its actions have come to rest, and wait only for timers and signals.

``loop.suspender`` then makes the stored form of the run.
"""

from __future__ import annotations

import asyncio

from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.outcomes.delivery import outside
from flink_agents.runtime.execution.waits.durable_wait import DurableWait
from flink_agents.runtime.execution.waits.run_waits import RunWaits


def suspend_at_rest(step: ActionRun, waits: RunWaits) -> None:
    """Schedule the suspension of a run, unless something else can still wake it."""
    if step.suspended is None and waits.may_be_suspended:
        outside().run(asyncio.get_running_loop().call_soon, suspend, step, waits)


def suspend(step: ActionRun, waits: RunWaits) -> None:
    """End an execution whose waits outlast it, and leave these waits in ``step.suspended``.

    Its code sees a cancellation. Whatever it does with that, it can change nothing of the run any longer.
    """
    delivery = step.delivery
    if delivery is None or step.suspended is not None or not (waits.may_be_suspended and delivery.outlasts):
        return
    step.suspended = [wait.leave_open() for wait in delivery.waits if isinstance(wait, DurableWait)]
    if delivery.deadlines and step.retry_state is not None:
        step.retry_state.ran = {timed.name: timed.before + timed.wait.ran for timed in delivery.deadlines}
    # Outputs from here on come from code that handles the cancellation, and are dropped.
    step.put = len(step.sent), len(step.side or ())
    journal = step.run.journal
    assert journal is not None
    if delivery.unrecorded:
        # The action has seen these outcomes. A replay needs them to come to the same place.
        outcomes = dict(delivery.unrecorded)
        journal.keep_outcomes(step.path, outcomes)
        delivery.mark_recorded(outcomes)
    step.end()
    delivery.interrupt()
