"""What one run waits for, takes and puts out while it can be suspended. All of it is for the agent loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol, cast

from flink_agents.api.common.policies import DEAD_LETTER_TAG
from flink_agents.api.events import Event, OutputEvent
from flink_agents.runtime.execution.delivery import Delivery
from flink_agents.runtime.execution.shared import RunEnvironment
from flink_agents.runtime.execution.waits.active_mailbox import ActiveMailbox
from flink_agents.runtime.journal.calls import Outcome
from flink_agents.runtime.journal.records import SIGNAL, WaitRecord
from flink_agents.runtime.state.mailbox import StoredSignal
from flink_agents.runtime.state.suspended import StoredWait

_LETTER = "\x00"
"""Stands behind the path of an execution where its dead letters are counted."""


class Execution(Protocol):
    """What an ``action_run.ActionRun`` has sent."""

    sent: list[Event]
    side: list[tuple[str, Any]] | None
    shared: RunEnvironment

    @property
    def path(self) -> str:
        """What distinguishes it from others of its run."""
        ...


class RunParts(Protocol):
    """Shows the code of a run that is committed part by part the memory of the part that it replays."""

    def begin(self, path: str) -> None:
        """Show the memory with which an attempt of an execution begins."""
        ...

    def replay(self, path: str) -> None:
        """Show the memory with which an execution ended, all of which is taken from its record."""
        ...

    def void(self, path: str) -> None:
        """Forget what an execution recorded: it is executed anew."""
        ...

    def delivery(self, path: str, *arguments: Any) -> Delivery:
        """Make what delivers outcomes to an execution, given the arguments of ``Delivery``."""
        ...


class RunWaits:
    """What one run waits for, and what has left of it when it was suspended before.

    Args:
        mail: The signals of its key.
        open: The waits that were open when it was suspended.
        left: How many outputs and side outputs of each execution have left already, by its path.
        failed: Failed attempts of the execution that waited, by its path.
        over: When its waits end, in milliseconds since the epoch; None for never.
        parts: Its parts if it is committed part by part; else None.
        ends_part: True if its records say that a part of it ended behind them, and so does again.

    Attributes:
        mail: See above.
        over: See above.
        failed: See above.
        parts: See above.
        ends_part: See above.
        put: How many outputs and side outputs of each execution there were, with those that had left.
        taken: Identities of the signals that it took since it began, or went on.
        returned: Signals that it took before it was suspended, which is void: state has them no more.
        recorded: Identities and names of the signals among those that only the store knows of.
        refused: Signals whose values are not what it waits for, each with what is wrong with it.
        unawaited: Waits that nobody has begun to await, nor asked for their id, with their executions.
    """

    def __init__(
        self,
        mail: ActiveMailbox,
        open: Iterable[StoredWait],
        left: Mapping[str, tuple[int, int]],
        failed: Mapping[str, Any],
        over: int | None = None,
        parts: RunParts | None = None,
        ends_part: bool = False,
    ) -> None:
        self.mail = mail
        self.over = over
        self.parts = parts
        self.ends_part = ends_part
        self._deadlines = {replace(one, deadline=None): one.deadline for one in open}
        self._left = left
        self.failed = failed
        self.put: dict[str, tuple[int, int]] = {}
        self._final: dict[str, tuple[int, int]] = {}
        self.taken: list[str] = []
        self.returned: list[StoredSignal] = []
        self.recorded: list[tuple[str, str | None]] = []
        self.refused: list[tuple[StoredSignal, str]] = []
        self.unawaited: dict[object, Delivery] = {}

    @property
    def may_be_suspended(self) -> bool:
        """Whether the run may be suspended: at the end of the input, it waits in memory."""
        return self.ends_part or not self.mail.ended

    def deadline(self, wait: StoredWait, seconds: float | None) -> int | None:
        """Return when a wait ends by itself, in milliseconds. A deadline from before a suspension stays.

        Args:
            wait: The wait, without a deadline.
            seconds: How long it may take; None for no limit.
        """
        if wait in self._deadlines:
            return self._deadlines[wait]
        return None if seconds is None else self.mail.clock() + max(0, -int(-seconds * 1000 // 1))

    def give_back(self, outcomes: Iterable[Outcome]) -> None:
        """Let waits take the signals again that are among the outcomes of an execution, which are void."""
        taken = [one for one in outcomes if isinstance(one, WaitRecord) and one.end == SIGNAL]
        for mail in self.mail.put_back(taken):
            if mail.identity in self.taken:
                self.taken.remove(mail.identity)
            else:
                self.returned.append(mail)

    def put_out(
        self, path: str, outputs: list[Any], side: list[tuple[str, Any]]
    ) -> tuple[list[Any], list[tuple[str, Any]]]:
        """What of an execution's outputs has not left; counts all of them.

        A dead letter comes in place of all that an execution put out, and so is counted by itself.
        """
        letters = [one for one in side if one[0] == DEAD_LETTER_TAG]
        if letters and path[-1:] != _LETTER:
            own = self.put_out(path, outputs, [one for one in side if one[0] != DEAD_LETTER_TAG])
            return own[0], own[1] + self.put_out(path + _LETTER, [], letters)[1]
        outputs_before, side_before = self.put.get(path, (0, 0))
        self.put[path] = outputs_before + len(outputs), side_before + len(side)
        outputs_left, side_left = self._left.get(path, (0, 0))
        return outputs[max(0, outputs_left - outputs_before) :], side[max(0, side_left - side_before) :]

    @property
    def outputs_left(self) -> int:
        """How many outputs had left before the run went on."""
        return sum(outputs for outputs, _ in self._left.values())

    @property
    def side_outputs_left(self) -> int:
        """How many side outputs had left before the run went on, without dead letters."""
        return sum(side for path, (_, side) in self._left.items() if path[-1:] != _LETTER)

    def waited(self, step: Execution) -> None:
        """Note that what an execution has put out stays, even if it fails: a wait of it has ended.

        It may have left when the run was suspended, and may not where the end of the wait was recorded.
        """
        self._final[step.path] = len(outputs_of(step)), len(step.side or ())

    def final(self, step: Execution) -> tuple[list[OutputEvent], list[tuple[str, Any]]]:
        """What stays of an execution that has failed."""
        outputs, side = self._final.get(step.path, (0, 0))
        return outputs_of(step)[:outputs], (step.side or [])[:side]

    def left(self) -> dict[str, tuple[int, int]]:
        """How many outputs of each execution have left when the run is suspended now."""
        counts = dict(self._left)
        for path, (outputs, side) in self.put.items():
            before = counts.get(path, (0, 0))
            counts[path] = max(outputs, before[0]), max(side, before[1])
        return {path: both for path, both in counts.items() if both != (0, 0)}


def outputs_of(step: Execution) -> list[OutputEvent]:
    """The events of an execution that leave the agent."""
    routes = step.shared.routes
    found = [(routes.of(event), event) for event in step.sent]
    return [cast("OutputEvent", event) for route, event in found if route is not None and route.leaves]
