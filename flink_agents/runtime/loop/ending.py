"""Ends runs that a user wants to end. A run in flight is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from flink_agents.api.errors.runs import RunEndedError
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.loop.entries import QueuedInput


def check_not_ended(actor: KeyActor, run: Run, waiting: QueuedInput) -> None:
    """Check that no user wants to end a run that is about to be executed; otherwise end it.

    Raises:
        RunEndedError: A user wants to end it.
    """
    if (error := _wanted(actor, run.sequence_number)) is not None:
        run.state.ended_by = error
        if waiting.step is not None:
            # Flink's task thread has started this step, and it will never be awaited.
            waiting.step.end()
            waiting.step.abandon()
        raise error


def end_if_executed(tasks: Mapping[asyncio.Task[None], KeyActor], actor: KeyActor, seq: int) -> None:
    """Cancel a run if it is in flight. Only for the loop's thread."""
    state = actor.state
    if state is None or not state.executing or state.sequence_number != seq or state.ended_by is not None:
        return
    state.ended_by = _wanted(actor, seq)
    for task, working in tasks.items():
        if working is actor and state.ended_by is not None:
            task.cancel()


def ended_here() -> None:
    """Clear the cancellation of the running task, because it was handled."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def _wanted(actor: KeyActor, seq: int) -> RunEndedError | None:
    mark = actor.ends.get(seq)
    if mark is None:
        return None
    _, reason, by, run = mark
    who = f" by {by}" if by else ""
    return RunEndedError(
        f"the run {run} was ended{who}" + (f": {reason}" if reason else ""),
        expected="the end of the run by its own code",
        found="a request of `flink-agents runs end`",
        fix="put the dead letter back, if the input is to be handled after all",
    )
