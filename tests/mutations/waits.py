"""The mutations of pauses and waits for signals, which programs with such operations find."""

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
        suspended, actor.suspended = actor.suspended, None
        before(self, actor)
        actor.suspended = suspended

    return begin


@mutation("ends-not-sent-along", "runtime.journal.kept:KeptJournal._keep", waits=True)
def ends_not_sent_along(before: Any) -> Any:
    """The end of a wait does not go to the store with the record that depends on it."""

    def keep(self: Any, records: Any) -> None:
        self.kept += records

    return keep


@mutation("store-forgotten", "runtime.journal.kept:KeptJournal.__init__", waits=True)
def store_forgotten(before: Any) -> Any:
    """A suspended run that goes on does not look at what the store has of it besides state."""

    def init(self: Any, *args: Any) -> None:
        suspension = args[6] if len(args) > 6 else None
        if suspension is not None:
            args = (*args[:5], (), *args[6:])
        before(self, *args)

    return init


@mutation("ends-not-kept", "runtime.execution.waits.run_waits:OutlastingWait._settle", waits=True)
def ends_not_kept(before: Any) -> Any:
    """The end of a wait is kept nowhere, so that a replay waits once more."""
    from flink_agents.runtime.journal.kept import KeptJournal

    KeptJournal.keep_outcomes = lambda self, step, outcomes: None
    return before
