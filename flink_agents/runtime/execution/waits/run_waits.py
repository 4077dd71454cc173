"""The waits of actions that outlast their execution: pauses, and waits for signals.

A wait is an outcome like the end of a durable call. It begins when the action asks for it and no record tells
how it ended; then a signal that waits for it is taken, or it stays open. How it ends is recorded before the
action learns of it, in the memory of the run, and by the store with the next record that may depend on it.
All of it happens on the agent loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from pydantic import TypeAdapter, ValidationError

from flink_agents.api.action_state import RecordKind
from flink_agents.api.events import OutputEvent
from flink_agents.api.policies import DEAD_LETTER_TAG
from flink_agents.api.signals import StrayReason
from flink_agents.runtime.execution.delivery import Delivery, OwnFuture, Pending, outside
from flink_agents.runtime.journal.calls import Mismatch, Outcome, told
from flink_agents.runtime.journal.kept import KeptJournal
from flink_agents.runtime.journal.records import WaitRecord
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.mailbox import OF_ID, Mail
from flink_agents.runtime.state.suspended import OpenWait, wait_id

if TYPE_CHECKING:
    from flink_agents.runtime.execution.context import ActionRun

SIGNAL, TIMEOUT, END, DEADLINE = "signal", "timeout", "end of input", "deadline"
"""How a wait ends: a pause by its ``timeout``, and all of a run by the ``deadline`` of that."""

_LETTER = "\x00"
"""Stands behind the path of an execution where its dead letters are counted."""

LOOK_SECONDS = 0.05, 1.0
"""A wait of a run that goes on is looked at after so long, first and at most: clocks may be set."""


class LiveMail:
    """The signals of a key that has work, and the waits that are open. Only for the agent loop.

    Flink's thread may read how many waits are open for a name.

    Args:
        clock: The wall-clock time in milliseconds.
        mail: Signals that wait.
        ttl: How many milliseconds a signal waits for a run.

    Attributes:
        clock: See above.
        mail: See above.
        open: The waits that are open, in the order in which they were opened.
        ended: Whether the input has ended, so that no signal comes any more.
        skips: Whether pauses end with the input.
    """

    def __init__(self, clock: Callable[[], int], mail: list[Mail], ttl: int) -> None:
        self.clock = clock
        self.mail = mail
        self._ttl = ttl
        self.open: dict[OutlastingWait, None] = {}
        self._owed: list[str] = []
        self.ended = self.skips = False

    def offer(self, mail: Mail) -> None:
        """Let a wait that is open take a signal, or keep it for a later one."""
        if mail.identity in self._owed:
            # It was taken before it came again, as a record says.
            self._owed.remove(mail.identity)
            return
        self.mail.append(mail)
        for wait in list(self.open):
            if wait.take():
                return

    def end_input(self, skips: bool) -> None:
        """Let waits for signals end, and pauses, where they are skipped."""
        self.ended, self.skips = True, skips
        for wait in list(self.open):
            wait.look()

    def forget(self, identity: str) -> None:
        """Remove a signal that a record says was taken."""
        found = next((one for one in self.mail if one.identity == identity), None)
        if found is not None:
            self.mail.remove(found)
        else:
            self._owed.append(identity)

    def put_back(self, taken: Iterable[WaitRecord]) -> list[Mail]:
        """Let waits take signals again, before all others, whose taking is void; returns these."""
        until = self.clock() + self._ttl
        back = [mail_of(one, until) for one in sorted(taken, key=lambda one: one.order)]
        self.mail[:0] = back
        return back

    def open_for(self, name: str) -> int:
        """How many waits are open for the name; for any thread."""
        return sum(wait.name == name for wait in self.open.copy())


class RunWaits:
    """What one run waits for, and what has left of it when it was suspended before.

    Args:
        mail: The signals of its key.
        open: The waits that were open when it was suspended.
        left: How many outputs and side outputs of each execution have left already, by its path.
        failed: Failed attempts of the execution that waited, by its path.
        over: When its waits end, in milliseconds since the epoch; None for never.

    Attributes:
        mail: See above.
        over: See above.
        failed: See above.
        put: How many outputs and side outputs of each execution there were, with those that had left.
        taken: Identities of the signals that it took since it began, or went on.
        returned: Signals that it took before it was suspended, which is void: state has them no more.
        refused: Signals whose values are not what it waits for, each with the reason.
    """

    def __init__(
        self,
        mail: LiveMail,
        open: Iterable[OpenWait],
        left: Mapping[str, tuple[int, int]],
        failed: Mapping[str, Any],
        over: int | None = None,
    ) -> None:
        self.mail = mail
        self.over = over
        self._deadlines = {(one.step, one.task, one.nth, one.name): one.deadline for one in open}
        self._left = left
        self.failed = failed
        self.put: dict[str, tuple[int, int]] = {}
        self._final: dict[str, tuple[int, int]] = {}
        self.taken: list[str] = []
        self.returned: list[Mail] = []
        self.refused: list[tuple[Mail, StrayReason]] = []

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
        """Note that a wait of an execution has ended: what that has put out by then stays, even if it fails.

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


def mail_of(taken: WaitRecord, until: int) -> Mail:
    """The signal that a wait took, as its record tells."""
    assert taken.identity is not None and taken.value is not None
    id = taken.identity.removeprefix(OF_ID) if taken.identity.startswith(OF_ID) else None
    return Mail(taken.identity, taken.name or "", taken.value, id, taken.wait, until)


class OutlastingWait(Pending):
    """A pause, or a wait for a signal.

    Args:
        step: The execution of the action.
        delivery: That of the execution.
        name: Name of the signal; None for a pause.
        kind: Type of the signal's value; None for any.
        seconds: How long it takes, or may take; None for ever.

    Attributes:
        name: See above.
        deadline: When it ends by itself, in milliseconds; None for never, or as long as nobody asked.
        future: Ends when the outcome is delivered.
    """

    outlasts = True

    __slots__ = ("_delivery", "_kind", "_seconds", "_step", "_timer", "deadline", "future", "name")

    def __init__(
        self, step: ActionRun, delivery: Delivery, name: str | None, kind: Any, seconds: float | None
    ) -> None:
        super().__init__(delivery.calls.number(RecordKind.WAIT, delivery.task_path()))
        self._step = step
        self._delivery = delivery
        self._kind = kind
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self.name = name
        self.deadline: int | None = None
        self.future: asyncio.Future[Any] = OwnFuture(loop=asyncio.get_running_loop())

    @property
    def id(self) -> str:
        """The text that names it."""
        run, number = self._step.run, self.number
        return wait_id(run.key_text, run.sequence_number, self._step.path, number.task, number.nth)

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
            raise

    def _compare(self) -> None:
        """End the execution where a replay waits for something else than was recorded."""
        calls = self._delivery.calls
        recorded = calls.recorded(self.number)
        if recorded is not None and (before := told(recorded)) != self.what:
            calls.refuse(Mismatch(self.number, before, self.what))
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
        self._waits.mail.open[self] = None
        if not self.take():
            self.look()

    def take(self) -> bool:
        """End by a signal, if there is one for it."""
        waits = self._waits
        if self.name is None or self.ended or self.gone:
            return False
        now, own = waits.mail.clock(), self.id
        for mail in list(waits.mail.mail):
            wanted = mail.wait == own if mail.wait is not None else mail.name == self.name
            if not wanted or mail.until <= now:
                continue
            waits.mail.mail.remove(mail)
            if mail.name != self.name or not self._fits(mail.value):
                waits.refused.append((mail, StrayReason.INVALID))
                continue
            waits.taken.append(mail.identity)
            self._settle(SIGNAL, mail)
            return True
        return False

    def look(self, number: int = 0) -> None:
        """End if its time has come, or nothing else can end it; look again in time where not."""
        if self.ended or self.gone or self._delivery.over:
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
        if not self.future.done():
            self.future.set_result(outcome)

    def drop(self) -> None:
        """Let nobody wait any more."""
        self._close()
        self.future.cancel()

    def _settle(self, end: str, mail: Mail | None = None) -> None:
        self._close()
        self.ended = True
        delivery, calls, step = self._delivery, self._delivery.calls, self._step
        waits = self._waits
        record = WaitRecord(self.what, waits.mail.clock(), calls.end(), delivery.elapsed(), end)
        if mail is not None:
            record = record._replace(identity=mail.identity, value=mail.value, name=mail.name, wait=mail.wait)
        journal = step.run.journal
        assert isinstance(journal, KeptJournal)
        outcomes: dict[Any, Outcome] = {**calls.unrecorded, self.number: record}
        journal.keep_outcomes(step.path, outcomes)
        calls.keep(outcomes)
        delivery.settle(delivery.end(self), record)

    def _close(self) -> None:
        self._stop()
        self._waits.mail.open.pop(self, None)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fits(self, value: bytes) -> bool:
        try:
            typed(self._codec, self._kind, value)
        except ValidationError:
            return False
        return True

    @property
    def _codec(self) -> ValueCodec:
        return self._step.shared.codec

    @property
    def _waits(self) -> RunWaits:
        waits = self._step.run.waits
        assert waits is not None
        return waits


@lru_cache(maxsize=256)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def typed(codec: ValueCodec, kind: Any, value: bytes) -> Any:
    """The value of a signal as what the action waits for; pydantic raises where it is nothing such."""
    decoded = codec.decode(value)
    return decoded if kind is None else _adapter(kind).validate_python(decoded)
