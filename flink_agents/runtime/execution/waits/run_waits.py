"""The waits of actions, and what a run with durable waits has: its signals, parts, and outputs that left.

Timers and waits for a limit or a client are outcomes with a place in the order of an execution. A run with
durable waits can be suspended.

A run that frees its key while it is suspended has parts. A part ends where the run was suspended: at a wait
of one execution, after all outcomes that were recorded by then. The next outcome of this execution starts the
next part, and so does any later execution.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import Context
from typing import Any, Protocol

from flink_agents.api.action_state import Record, RecordKind
from flink_agents.api.common.policies import DEAD_LETTER_TAG
from flink_agents.api.events import Event, OutputEvent
from flink_agents.api.events.approvals import ApprovalOutcome
from flink_agents.runtime.execution.calls.delivery import Delivery, current_delivery, outside
from flink_agents.runtime.execution.calls.pending import FutureOutcome, PendingOutcome
from flink_agents.runtime.execution.waits.active_mailbox import ActiveMailbox
from flink_agents.runtime.journal.calls import Number, Outcome, is_inside, task_of
from flink_agents.runtime.journal.memory_reads import PartTree
from flink_agents.runtime.journal.records import SIGNAL, WaitRecord
from flink_agents.runtime.state.mailbox import StoredSignal
from flink_agents.runtime.state.suspended import StoredWait


class ActionTimer(PendingOutcome):
    """A timer that an action set. Its end is an outcome.

    Args:
        delivery: The delivery of the action.
        loop: The event loop.
        when: Time of the loop at which the timer fires.
        callback: The function to call then.
        args: Arguments of the callback.
        context: The context in which it is called.
    """

    __slots__ = ("_args", "_callback", "_context", "_delivery", "_fired", "_loop", "_timer", "_when")

    _source_traceback = None
    """Read by ``asyncio`` from the timers that its loop creates."""

    def __init__(
        self,
        delivery: Delivery,
        loop: asyncio.AbstractEventLoop,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context,
    ) -> None:
        super().__init__(delivery.number(RecordKind.WAIT, delivery.task_path()))
        self._delivery = delivery
        self._loop = loop
        self._when = when
        self._callback = callback
        self._args = args
        self._context = context
        self._fired = False
        self.not_before = delivery.now + when - delivery.time()
        self._timer: asyncio.TimerHandle | None = None
        if not (delivery.replaying and delivery.recorded(self.number) is not None):
            self.begin()
        delivery.expect(self)

    def begin(self) -> None:
        """Start the timer of the loop, unless a record ends the wait."""
        if self._timer is None:
            remaining_seconds = self._when - self._delivery.time()
            self._timer = outside().run(self._loop.call_later, remaining_seconds, self._fire)

    def when(self) -> float:
        """Return the time of the loop at which it fires."""
        return self._when

    def cancel(self) -> None:
        """Cancel the timer: its callback is not called."""
        self._stop()
        self._delivery.detach_wait(self)
        self.gone = True

    def cancelled(self) -> bool:
        """Return True if it was cancelled."""
        return self.gone

    def deliver(self, outcome: Outcome) -> None:
        """Call the callback: the end of the timer has its turn."""
        self._stop()
        self._call()

    def abandon_wait(self) -> None:
        """Call the callback if the timer has fired: after the execution, its end needs no turn."""
        if self._fired:
            self._call()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self) -> None:
        """Queue the end of the timer as an outcome; call back at once if the execution is over."""
        self._fired = self._delivery.fired = True
        if self._delivery.closed:
            self._call()
        elif not self.gone:
            self._delivery.end(self, _wait_record(self._delivery, "a timer"))

    def _call(self) -> None:
        self._loop.call_soon(self._callback, *self._args, context=self._context)


class ResourceWait(FutureOutcome):
    """A wait of the context for a limit or a client.

    Args:
        delivery: The delivery of the action.
        what: What is awaited, as text; recorded, too.
        make: Creates the coroutine that waits.
    """

    __slots__ = ("_delivery", "_make", "_what")

    def __init__(self, delivery: Delivery, what: str, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        super().__init__(delivery.number(RecordKind.WAIT, delivery.task_path()))
        self._delivery = delivery
        self._what = what
        self._make = make

    def begin(self) -> None:
        """Start to wait, in a task that does not belong to the action."""
        context = outside()
        self.perform(self._make(), context).add_done_callback(self._end, context=context)

    def is_there(self) -> bool:
        """Return True if the wait has ended. During a replay, it starts here.

        If it started earlier, it could take a slot that another branch needs first.
        """
        if self.performing is None:
            self.begin()
        assert self.performing is not None
        return self.performing.done()

    def deliver(self, outcome: Outcome) -> None:
        """Resume the code that waits, with the result or the error of the wait."""
        performing = self.performing
        assert performing is not None
        if self.future.done():
            return
        if performing.cancelled():
            self.future.cancel()
        elif (error := performing.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(performing.result())

    def _end(self, task: asyncio.Task[Any]) -> None:
        """Queue the end of the wait as an outcome. During a replay, the record has its place already."""
        if not task.cancelled():
            # Mark the exception as retrieved: the waiting code may be gone.
            task.exception()
        if self._delivery.closed or self.gone:
            return
        if self._delivery.replaying:
            self._delivery.deliver_next()
        else:
            self._delivery.end(self, _wait_record(self._delivery, self._what))


async def in_turn(
    what: str, make: Callable[[], Coroutine[Any, Any, Any]], undo: Callable[[], None] = lambda: None
) -> Any:
    """Await a coroutine from ``make``. Inside an action, its end is an outcome with its place in the order.

    Args:
        what: What is awaited, as text; recorded, too.
        make: Creates the coroutine.
        undo: Called if the coroutine has succeeded but the action was cancelled before it got the result.
    """
    delivery = current_delivery.get()
    if delivery is None or delivery.closed:
        return await make()
    pending = ResourceWait(delivery, what, make)
    delivery.expect(pending)
    try:
        return await pending.future
    except asyncio.CancelledError:
        delivery.detach_wait(pending)
        pending.stop()
        if pending.performing is not None and _has_succeeded(pending.performing):
            undo()
        raise


def _has_succeeded(task: asyncio.Task[Any]) -> bool:
    """Return True if a task has succeeded."""
    return task.done() and not task.cancelled() and task.exception() is None


def _wait_record(delivery: Delivery, what: str) -> WaitRecord:
    """Return the record of a wait that ends now, with the next place in the order of outcomes."""
    return WaitRecord(what, int(time.time() * 1000), delivery.next_place(), delivery.elapsed())


_OF_TASK = "\x01"
"""Separates a tag, or the path of an execution, from the task of a sub-agent."""

_LETTER = "\x00"
"""Follows the path of an execution in the counter of its dead letters."""


def tag_of_task(tag: str, task: str) -> str:
    """Return the tag under which an execution holds side outputs of a task of a sub-agent."""
    return f"{tag}{_OF_TASK}{task}"


def is_of_task_inside(tag: str, path: str) -> bool:
    """Return True if a tag is that of a task of the sub-agent's action with that path."""
    _, separator, task = tag.partition(_OF_TASK)
    return bool(separator) and is_inside(task, path)


class Execution(Protocol):
    """The outputs of an ``action_run.ActionRun``.

    Attributes:
        sent: The events that the action emitted.
        side: Pairs of tag and value for side outputs, or None.
    """

    sent: list[Event]
    side: list[tuple[str, Any]] | None

    @property
    def path(self) -> str:
        """The path that identifies the execution within its run."""
        ...


class RunWaits:
    """The durable waits of one run, and the outputs that left when it was suspended.

    Used on the event loop only.

    Args:
        mailbox: The signals of its key.
        open: The waits that were open when it was suspended.
        sent_counts: The number of outputs and side outputs that have left, by the path of their execution.
        failed: Failed attempts of the execution that waited, by its path.
        last_deadline: The deadline of all its waits, in milliseconds since the epoch; None for never.
        parts: The parts of the run if it is committed part by part; else None.
        ends_part: True if records say that a part of the run ended after them, so it must end again.
        has_new_code: True if another submission of the job has suspended it, whose code may differ.

    Attributes:
        mailbox: The signals of its key.
        last_deadline: The deadline of all its waits, in milliseconds since the epoch; None for never.
        failed: Failed attempts of the execution that waited, by its path.
        parts: The parts of the run if it is committed part by part; else None.
        ends_part: True if records say that a part of the run ended after them, so it must end again.
        put: The number of outputs and side outputs of each execution, with those that had left.
        taken: Identities of the signals that it took since it started or resumed.
        returned: Signals that it took before it was suspended, and that are free again. State lacks them.
        recorded: Identities and names of the signals among those that only the store knows of.
        rejected: Signals whose values do not fit, each with the reason.
        outcomes: The outcomes of approval requests that its code has learned of, by the ids of requests.
        unawaited: Waits that were neither awaited nor read for their id, with their executions.
    """

    def __init__(
        self,
        mailbox: ActiveMailbox,
        open: Iterable[StoredWait],
        sent_counts: Mapping[str, tuple[int, int]],
        failed: Mapping[str, Any],
        last_deadline: int | None = None,
        parts: RunParts | None = None,
        ends_part: bool = False,
        has_new_code: bool = False,
    ) -> None:
        self.mailbox = mailbox
        self.last_deadline = last_deadline
        self.parts = parts
        self.ends_part = ends_part
        self._open = {wait.identity: wait for wait in open}
        self._has_new_code = has_new_code
        self._left = sent_counts
        self.failed = failed
        self.put: dict[str, tuple[int, int]] = {}
        self._final: dict[str, tuple[int, int]] = {}
        self.taken: list[str] = []
        self.returned: list[StoredSignal] = []
        self.recorded: list[tuple[str, str | None]] = []
        self.rejected: list[tuple[StoredSignal, str]] = []
        self.outcomes: dict[str, ApprovalOutcome] = {}
        self.unawaited: dict[PendingOutcome, Delivery] = {}

    @property
    def may_be_suspended(self) -> bool:
        """True if the run may be suspended. At the end of the input, it waits in memory."""
        return self.ends_part or not self.mailbox.ended

    def timed(self, wait: StoredWait, seconds: float | None) -> StoredWait:
        """Return a wait with its start and its deadline, in milliseconds of the clock of the key.

        A resumed wait keeps both. If the code may have changed, the timeout in the present code decides,
        counted from the start of the wait: people add one to end runs that wait for too long.

        Args:
            wait: The wait, without times.
            seconds: The timeout in the present code; None for no limit.
        """
        now = self.mailbox.clock()
        stored = self._open.get(wait)
        if stored is None:
            return wait.timed(now, _after(now, seconds))
        if not self._has_new_code:
            return wait.timed(stored.began, stored.deadline)
        assert stored.began is not None
        return wait.timed(stored.began, _after(stored.began, seconds))

    def add_counted(self, path: str, count: int) -> None:
        """Count side outputs under a path as emitted, so that a resumed run does not emit them again."""
        _, side_before = self.put.get(path, self._left.get(path, (0, 0)))
        self.put[path] = 0, side_before + count

    def give_back(self, outcomes: Iterable[Outcome]) -> None:
        """Release the signals that ended waits of an execution, because its outcomes are void."""
        wait_records = [
            outcome for outcome in outcomes if isinstance(outcome, WaitRecord) and outcome.end == SIGNAL
        ]
        for signal in self.mailbox.put_back(wait_records):
            if signal.identity in self.taken:
                self.taken.remove(signal.identity)
            else:
                self.returned.append(signal)

    def forget_unawaited(self, delivery: Delivery, path: str) -> None:
        """Forget the waits that a failed attempt of a sub-agent's action has not awaited."""
        self.unawaited = {
            wait: of
            for wait, of in self.unawaited.items()
            if of is not delivery or not is_inside(wait.number.task, path)
        }

    def put_out(
        self, path: str, outputs: list[Any], side: list[tuple[str, Any]]
    ) -> tuple[list[Any], list[tuple[str, Any]]]:
        """Count the outputs of an execution, and return those that have not left before.

        A dead letter replaces all outputs of its execution, so it has a separate counter. So do the requests
        of each task of a sub-agent: a failed attempt of its action makes them again.
        """
        of_tasks = [entry for entry in side if _OF_TASK in entry[0]]
        if of_tasks:
            side = [entry for entry in side if _OF_TASK not in entry[0]]
            sent, side_left = self.put_out(path, outputs, side)
            for task in dict.fromkeys(tag.partition(_OF_TASK)[2] for tag, _ in of_tasks):
                new_outputs = [entry for entry in of_tasks if entry[0].partition(_OF_TASK)[2] == task]
                named = [(tag.partition(_OF_TASK)[0], value) for tag, value in new_outputs]
                side_left = side_left + self.put_out(path + _OF_TASK + task, [], named)[1]
            return sent, side_left
        letters = [side_output for side_output in side if side_output[0] == DEAD_LETTER_TAG]
        if letters and path[-1:] != _LETTER:
            new_outputs = self.put_out(
                path, outputs, [side_output for side_output in side if side_output[0] != DEAD_LETTER_TAG]
            )
            return new_outputs[0], new_outputs[1] + self.put_out(path + _LETTER, [], letters)[1]
        outputs_before, side_before = self.put.get(path, (0, 0))
        self.put[path] = outputs_before + len(outputs), side_before + len(side)
        outputs_left, side_left = self._left.get(path, (0, 0))
        return outputs[max(0, outputs_left - outputs_before) :], side[max(0, side_left - side_before) :]

    @property
    def outputs_left(self) -> int:
        """The number of outputs that had left before the run resumed."""
        return sum(outputs for outputs, _ in self._left.values())

    @property
    def side_outputs_left(self) -> int:
        """The number of side outputs that had left before the run resumed, without dead letters."""
        return sum(side for path, (_, side) in self._left.items() if path[-1:] != _LETTER)

    def waited(self, step: Execution) -> None:
        """Note that a wait of an execution has ended, so its outputs up to here stay even if it fails.

        They may have left when the run was suspended. If the end of the wait was recorded in the same
        process, they have not, so counting makes both cases equal.
        """
        self._final[step.path] = len(outputs_of(step)), len(step.side or ())

    def forget(self, step: Execution, path: str) -> None:
        """Remove the side outputs of the sub-agent's action at ``path``, which is executed again."""
        side = step.side or []
        outputs, count = self._final.get(step.path, (0, 0))
        final = [entry for entry in side[:count] if not is_of_task_inside(entry[0], path)]
        step.side = [entry for entry in side if not is_of_task_inside(entry[0], path)]
        self._final[step.path] = outputs, len(final)

    def final(self, step: Execution) -> tuple[list[OutputEvent], list[tuple[str, Any]]]:
        """Return the outputs and side outputs of a failed execution that stay: those before its last wait."""
        outputs, side = self._final.get(step.path, (0, 0))
        return outputs_of(step)[:outputs], (step.side or [])[:side]

    def count_sent_outputs(self) -> dict[str, tuple[int, int]]:
        """Return the numbers of outputs and side outputs that have left, by path, if it is suspended now."""
        counts = dict(self._left)
        for path, (outputs, side) in self.put.items():
            outputs_left, side_left = counts.get(path, (0, 0))
            counts[path] = max(outputs, outputs_left), max(side, side_left)
        return {path: sent_counts for path, sent_counts in counts.items() if sent_counts != (0, 0)}


def _after(began: int, seconds: float | None) -> int | None:
    """Return the end of a timeout in milliseconds since the epoch, rounded up; None for no limit."""
    return None if seconds is None else began + max(0, math.ceil(seconds * 1000))


def outputs_of(step: Execution) -> list[OutputEvent]:
    """Return the events of an execution that leave the agent."""
    return [event for event in step.sent if isinstance(event, OutputEvent)]


class RunParts:
    """Shows the code of a run the memory of the part that it is in. Used on the event loop only.

    Args:
        memory: The memory of the run, which can show that of each part.
        records: The records of the earlier parts, in order.
        ends: The end of each of them: the execution that waited, and the number of records by then.
    """

    def __init__(self, memory: PartTree, records: Sequence[Record], ends: Sequence[tuple[str, int]]) -> None:
        self._memory = memory
        self._last = len(ends)
        self._part_of: dict[tuple[str, Number], int] = {}
        self._started_in: dict[str, int] = {}
        self._last_parts: dict[str, int] = {}
        noted_count = 0
        for part, (waiting, count) in enumerate(ends):
            for record in records[noted_count:count]:
                self._note(record, part)
            # The execution that waited started in this part, or in an earlier one.
            self._started_in.setdefault(waiting, part)
            noted_count = count

    def begin(self, path: str) -> None:
        """Note that an attempt of an execution starts, and show the part in which it started first."""
        self._memory.go_to(self._started_in.get(path, self._last))

    def replay(self, path: str) -> None:
        """Note that an execution is taken from its record, and show the part in which it ended."""
        self._memory.go_to(self._last_parts.get(path, self._last))

    def show(self, path: str, number: Number) -> None:
        """Note that an execution gets an outcome, and show the part that the outcome belongs to."""
        self._memory.enter(self._part_of.get((path, number), self._last))

    def void(self, path: str) -> None:
        """Drop the records of an execution: it runs again, in the last part."""
        self._started_in.pop(path, None)
        self._last_parts.pop(path, None)
        for place in [place for place in self._part_of if place[0] == path]:
            del self._part_of[place]

    def _note(self, record: Record, part: int) -> None:
        """Note the part in which a record was made."""
        path, task = task_of(record.step)
        if record.kind in (RecordKind.CALL, RecordKind.WAIT):
            self._part_of[path, Number(record.kind, task, record.index)] = part
        elif record.kind is RecordKind.ACTION:
            self._last_parts[path] = part
        elif record.kind is RecordKind.RERUN:
            self.void(path)
