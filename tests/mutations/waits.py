"""The mutations of pauses, waits for signals and delayed events. Programs with these find them."""

from __future__ import annotations

from typing import Any

from tests.mutations.mutation import mutation


@mutation("outputs-leave-again", "runtime.execution.waits.run_waits:RunWaits.put_out", waits=True)
def outputs_leave_again(before: Any) -> Any:
    """What left when a run was suspended leaves once more when it goes on."""

    def put_out(self: Any, path: str, outputs: Any, side: Any) -> Any:
        before(self, path, outputs, side)
        return outputs, side

    return put_out


@mutation("runs-behind-suspended", "runtime.loop.agent_loop:AgentLoop._begin", waits=True)
def runs_behind_suspended(before: Any) -> Any:
    """The input behind a suspended run begins before that is in state."""

    def begin(self: Any, actor: Any) -> None:
        suspended = actor.suspended
        actor.suspended = None
        before(self, actor)
        actor.suspended = suspended

    return begin


@mutation("ends-not-sent-along", "runtime.journal.run_journal:RunJournal.add_records", waits=True)
def ends_not_sent_along(before: Any) -> Any:
    """The end of a wait does not go to the store with the record that depends on it."""

    def add_records(self: Any, records: Any) -> None:
        self.records += records

    return add_records


@mutation("store-forgotten", "runtime.journal.run_journal:RunJournal._restore", waits=True)
def store_forgotten(before: Any) -> Any:
    """A suspended run that goes on does not look at what the store has of it besides state."""

    def restore(self: Any, recorded: Any, suspension: Any) -> None:
        before(self, recorded if suspension is None else (), suspension)

    return restore


@mutation("ends-not-kept", "runtime.execution.waits.durable_wait:DurableWait._end_by", waits=True)
def ends_not_kept(before: Any) -> Any:
    """The end of a wait is kept nowhere, so that a replay waits once more."""
    from flink_agents.runtime.journal.run_journal import RunJournal

    RunJournal.keep_outcomes = lambda self, step, outcomes: None
    return before


@mutation("delayed-sent-again", "runtime.execution.waits.run_waits:RunWaits.put_out", waits=True)
def delayed_sent_again(before: Any) -> Any:
    """What was sent with a delay before a run was suspended is sent once more when it goes on."""
    from flink_agents.api.events import DELAYED_TAG

    def put_out(self: Any, path: str, outputs: Any, side: Any) -> Any:
        later = [side_output for side_output in side if side_output[0] == DELAYED_TAG]
        outputs, side_outputs = before(
            self, path, outputs, [side_output for side_output in side if side_output[0] != DELAYED_TAG]
        )
        return outputs, [*side_outputs, *later]

    return put_out


@mutation("delayed-not-found-again", "runtime.operator.services.delayed:delayed_input", waits=True)
def delayed_not_found_again(before: Any) -> Any:
    """The input that a delayed event will be is another one in each attempt, so that its run is not found."""
    import time
    from dataclasses import replace

    def delayed_input(run: Any, sent: Any) -> Any:
        input_event = before(run, sent)
        return replace(input_event, upstream=f"{input_event.upstream} {time.monotonic_ns()}")

    return delayed_input


@mutation("delayed-delivered-again", "runtime.operator.services.delayed:Delays.come_in", waits=True)
def delayed_delivered_again(before: Any) -> Any:
    """An event stays in state once it is an input, and comes a second time."""

    def come_in(self: Any, head: Any, key_text: str, timers: Any, early: bool = False) -> None:
        state = self._state.delayed
        delayed_events = state.list_events()
        before(self, head, key_text, timers, early)
        if delayed_events and not getattr(self, "came", False):
            self.came = True
            head.delayed_due = state.add(*delayed_events[0])
            self._state.write(head)
            timers.register_processing_time_timer(max(head.delayed_due, self._clock()) + 1)

    return come_in


@mutation("outcomes-of-approvals-lost", "runtime.execution.waits.approvals:_put_aside", waits=True)
def outcomes_of_approvals_lost(before: Any) -> Any:
    """The end of a request does not leave where the action fails behind it."""

    def put_aside(step: Any, value: Any, ends: bool = False) -> None:
        before(step, value)

    return put_aside
