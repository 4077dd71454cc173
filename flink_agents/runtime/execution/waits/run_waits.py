"""The waits of actions that outlast their execution: pauses, and waits for signals.

A wait is an outcome like the end of a durable call. It begins when the action asks for it and no record tells
how it ended; then a signal that waits for it is picked, or it stays open. How it ended is recorded when the
action learns of it, in the memory of the run, and by the store with the next record that may depend on it.
From then on the signal is taken. An action that cancels the wait before that has learnt nothing, and other
waits can take the signal. All of it happens on the agent loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from flink_agents.api.action_state import RecordKind
from flink_agents.api.common.policies import DEAD_LETTER_TAG
from flink_agents.api.events import OutputEvent
from flink_agents.api.resources.provenance import as_data
from flink_agents.runtime.execution.delivery import Delivery, OwnFuture, Pending, outside
from flink_agents.runtime.execution.waits.live_mail import LiveMail
from flink_agents.runtime.execution.waits.parts import RunParts
from flink_agents.runtime.journal.calls import Mismatch, Outcome, told
from flink_agents.runtime.journal.kept import KeptJournal
from flink_agents.runtime.journal.records import WaitRecord
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.tracebacks import text_of
from flink_agents.runtime.state.mailbox import Mail
from flink_agents.runtime.state.suspended import OpenWait, wait_id

if TYPE_CHECKING:
    from flink_agents.runtime.execution.context import ActionRun

SIGNAL, TIMEOUT, END, DEADLINE = "signal", "timeout", "end of input", "deadline"
"""How a wait ends: a pause by its ``timeout``, and all of a run by the ``deadline`` of that."""

Fit = Callable[[Any], Any]
"""Makes of a decoded value what an action waits for; raises where it is nothing such."""

_LETTER = "\x00"
"""Stands behind the path of an execution where its dead letters are counted."""

MOST_TOLD = 1000
"""Characters at most in which an unmatched signal says what is wrong with it."""

LOOK_SECONDS = 0.05, 1.0
"""A wait of a run that goes on is looked at after so long, first and at most: clocks may be set."""


class RunWaits:
    """What one run waits for, and what has left of it when it was suspended before.

    Args:
        mail: The signals of its key.
        open: The waits that were open when it was suspended.
        left: How many outputs and side outputs of each execution have left already, by its path.
        failed: Failed attempts of the execution that waited, by its path.
        over: When its waits end, in milliseconds since the epoch; None for never.
        parts: The parts that it consists of, where it was set aside before; else None.
        ends_part: Whether records say that the run was set aside behind them, and so is again.

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
        mail: LiveMail,
        open: Iterable[OpenWait],
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
        self._deadlines = {(one.step, one.task, one.nth, one.name): one.deadline for one in open}
        self._left = left
        self.failed = failed
        self.put: dict[str, tuple[int, int]] = {}
        self._final: dict[str, tuple[int, int]] = {}
        self.taken: list[str] = []
        self.returned: list[Mail] = []
        self.recorded: list[tuple[str, str | None]] = []
        self.refused: list[tuple[Mail, str]] = []
        self.unawaited: dict[object, Delivery] = {}

    @property
    def may_be_suspended(self) -> bool:
        """Whether the run may be suspended: at the end of the input, it waits in memory."""
        return self.ends_part or not self.mail.ended

    def deadline(self, step: str, task: str, nth: int, name: str | None, seconds: float | None) -> int | None:
        """When a wait ends by itself, in milliseconds; what was said when its run was suspended stays."""
        known = self._deadlines.get((step, task, nth, name), -1)
        if known != -1:
            return known
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

    def waited(self, step: ActionRun) -> None:
        """Note that what an execution has put out stays, even if it fails: a wait of it has ended.

        It may have left when the run was suspended, and may not where the end of the wait was recorded.
        """
        self._final[step.path] = len(outputs_of(step)), len(step.side or ())

    def final(self, step: ActionRun) -> tuple[list[OutputEvent], list[tuple[str, Any]]]:
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


def outputs_of(step: ActionRun) -> list[OutputEvent]:
    """The events of an execution that leave the agent."""
    routes = step.shared.routes
    found = [(routes.of(event), event) for event in step.sent]
    return [cast("OutputEvent", event) for route, event in found if route is not None and route.leaves]


class OutlastingWait(Pending):
    """A pause, or a wait for a signal.

    Args:
        step: The execution of the action.
        delivery: That of the execution.
        name: Name of the signal; None for a pause.
        fit: Makes of a signal's value what the action waits for; None where any value will do.
        seconds: How long it takes, or may take; None for ever.

    Attributes:
        name: See above.
        deadline: When it ends by itself, in milliseconds; None for never, or as long as nobody asked.
        future: Ends when the outcome is delivered.
    """

    outlasts = True

    __slots__ = ("_delivery", "_fit", "_picked", "_seconds", "_step", "_timer", "deadline", "future", "name")

    def __init__(
        self, step: ActionRun, delivery: Delivery, name: str | None, fit: Fit | None, seconds: float | None
    ) -> None:
        super().__init__(delivery.calls.number(RecordKind.WAIT, delivery.task_path()))
        self._step = step
        self._delivery = delivery
        self._fit = fit
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self._picked: Mail | None = None
        self.name = name
        self.deadline: int | None = None
        self.future: asyncio.Future[Any] = OwnFuture(loop=asyncio.get_running_loop())

    @property
    def id(self) -> str:
        """The text that names it."""
        run, number = self._step.run, self.number
        return wait_id(run.key_text, run.sequence_number, self._step.path, number.task, number.nth)

    @property
    def run(self) -> int:
        """Sequence number of the run that waits."""
        return self._step.run.sequence_number

    @property
    def what(self) -> str:
        """What it waits for, for people."""
        return "a pause" if self.name is None else f"signal {self.name!r}"

    @property
    def kept(self) -> OpenWait:
        """What state keeps of it."""
        return OpenWait(self._step.path, self.number.task, self.number.nth, self.name, self.deadline)

    def leave_open(self) -> OpenWait:
        """What state keeps of it where its run is suspended: from here on, nothing but that run ends it.

        A signal that comes while the action is torn down waits for the run as all others do.
        """
        self._close()
        self.gone = True
        return self.kept

    async def outcome(self) -> WaitRecord:
        """Wait until it is delivered how the wait ended."""
        delivery = self._delivery
        if not delivery.counted:
            delivery.count(asyncio.get_running_loop())
        self._compare()
        delivery.expect(self)
        try:
            return await self.future
        except asyncio.CancelledError:
            delivery.leave(self)
            self._close()
            self._give_back()
            raise

    def _compare(self) -> None:
        """End the execution where a replay waits for something else than was recorded."""
        calls = self._delivery.calls
        recorded = calls.recorded(self.number)
        if recorded is None:
            return
        before, now = told(recorded), self.what
        if before == now and isinstance(recorded, WaitRecord) and recorded.value is not None:
            wrong = self._misfit(recorded.value)
            now = now if wrong is None else f"{now} of another type: {wrong}"
        if before != now:
            calls.refuse(Mismatch(self.number, before, now))
            self._step.calls = calls
            self._delivery.interrupt()

    # -- its end ----------------------------------------------------------------------

    def plan(self) -> int | None:
        """Find out when it ends by itself, and return that; it stays from here on."""
        if self.deadline is None:
            number = self.number
            self.deadline = self._waits.deadline(
                self._step.path, number.task, number.nth, self.name, self._seconds
            )
        return self.deadline

    def begin(self) -> None:
        """Take a signal that is there; be open where none is."""
        self.plan()
        mail = self._waits.mail
        mail.open[self] = None
        if mail.resuming:
            # All waits that were open begin in one go.
            outside().run(asyncio.get_running_loop().call_soon, mail.resumed)
        if not self.take():
            self.look()

    def take(self) -> bool:
        """End by a signal, if there is one for it."""
        waits = self._waits
        if self.name is None or self.ended or self.gone or self._delivery.over or waits.ends_part:
            return False
        own, run = self.id, self._step.run.sequence_number
        while (mail := waits.mail.pick(self.name, own, run)) is not None:
            if (wrong := self._wrong(mail)) is not None:
                waits.refused.append((mail, wrong))
                waits.mail.taken(mail)
                continue
            self._picked = mail
            self._settle(SIGNAL, mail)
            return True
        return False

    def look(self, number: int = 0) -> None:
        """End if its time has come, or nothing else can end it; look again in time where not."""
        if self.ended or self.gone or self._delivery.over or self._waits.ends_part:
            return
        mail = self._waits.mail
        if mail.ended and self.name is not None:
            return self._settle(END)
        now = mail.clock()
        if (self.deadline is not None and now >= self.deadline) or (mail.ended and mail.skips):
            return self._settle(TIMEOUT)
        if (over := self._waits.over) is not None and now >= over:
            return self._settle(DEADLINE)
        ends = [at for at in (self.deadline, over) if at is not None]
        if ends:
            self._stop()
            least, most = LOOK_SECONDS
            rest = min((min(ends) - now) / 1000, most, least * 2 ** min(number, 10))
            loop = asyncio.get_running_loop()
            self._timer = outside().run(loop.call_later, max(rest, 0.001), self.look, number + 1)

    def deliver(self, outcome: Outcome) -> None:
        """End the wait."""
        self._waits.waited(self._step)
        if self.future.done():
            return self._give_back()
        if self.ended:
            self._keep(outcome)
        self.future.set_result(outcome)

    def drop(self) -> None:
        """Let nobody wait any more."""
        self._close()
        self._give_back()
        self.future.cancel()

    def _settle(self, end: str, mail: Mail | None = None) -> None:
        self._close()
        self.ended = True
        delivery = self._delivery
        now, order = self._waits.mail.clock(), delivery.calls.end()
        record = WaitRecord(self.what, now, order, delivery.elapsed(), end)
        if mail is not None:
            record = record._replace(identity=mail.identity, value=mail.value, name=mail.name, wait=mail.wait)
        delivery.settle(delivery.end(self), record)

    def _keep(self, outcome: Outcome) -> None:
        """Record how it ended, and take its signal."""
        mail, self._picked = self._picked, None
        if mail is not None:
            self._waits.taken.append(mail.identity)
            self._waits.mail.taken(mail)
        calls, journal = self._delivery.calls, self._step.run.journal
        assert isinstance(journal, KeptJournal)
        outcomes: dict[Any, Outcome] = {**calls.unrecorded, self.number: outcome}
        journal.keep_outcomes(self._step.path, outcomes)
        calls.keep(outcomes)

    def _give_back(self) -> None:
        """Let other waits take the signal that would have ended this one: the action never learns of it."""
        mail, self._picked = self._picked, None
        if mail is not None:
            self._waits.mail.not_taken(mail)

    def _close(self) -> None:
        self._stop()
        self._waits.mail.open.pop(self, None)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wrong(self, mail: Mail) -> str | None:
        """What is wrong with a signal that came for this wait; None where it is what is waited for."""
        return self._misfit(mail.value) if mail.name == self.name else f"the wait is for {self.name!r}"

    def _misfit(self, value: bytes) -> str | None:
        """Why a value is not what is waited for; None where it is."""
        try:
            typed(self._codec, self._fit, value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # what a validator of the author's raises, or a class that is gone
            return f"{type(error).__name__}: {text_of(error)}"[:MOST_TOLD]
        return None

    @property
    def _codec(self) -> ValueCodec:
        return self._step.shared.codec

    @property
    def _waits(self) -> RunWaits:
        waits = self._step.run.waits
        assert waits is not None
        return waits


def typed(codec: ValueCodec, fit: Fit | None, value: bytes) -> Any:
    """The value of a signal as what the action waits for; ``fit`` raises where it is nothing such."""
    decoded = codec.decode(value)
    return as_data(decoded if fit is None else fit(decoded))
