"""Delivers outcomes to an action: one at a time, in the same order in each execution.

An action awaits durable calls, waits of its context, and its own tasks. As long as it awaits nothing else,
its code between two outcomes is deterministic. So the order of its outcomes determines the whole execution.
The first time, outcomes are delivered in the order in which they end, each when the action is *at rest*: when
none of its tasks can continue. A replay delivers the recorded outcomes in the same order at the same points.
It starts no new call or wait before the last of them.

The handles of the action are counted to know if it is at rest, see ``runtime.loop.action_loop``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextvars import Context, ContextVar, copy_context
from typing import Any, cast
from zlib import crc32

from flink_agents.api.common import current
from flink_agents.runtime.concurrency.bridge import Bridge
from flink_agents.runtime.execution.calls.pending import (
    ActionTask,
    PendingOutcome,
    QueuedOutcome,
    TimedCode,
    awaits_foreign,
    is_foreign,
    is_task_inside,
)
from flink_agents.runtime.execution.waits.swallowed import SwallowedSuspension
from flink_agents.runtime.journal.calls import ExecutionOutcomes, Number, Outcome, StepRecords, is_inside

current_delivery: ContextVar[Delivery | None] = cast("Any", current.current_delivery)
"""The delivery of the action whose code runs. Tasks that the action starts inherit it."""

MAX_INTERRUPTS = 100
"""The most cancellations of an execution that catches each one and then waits forever again."""


class Delivery(ExecutionOutcomes):
    """Delivers the outcomes that one execution of an action waits for. Used on the event loop only.

    Args:
        path: The path of the execution.
        records: The records of an earlier attempt.
        seed: Identifies the execution, with the same value on replay.
        stuck: Called if the code can never ask for the recorded outcome that is next.
        describe: Returns the place where a task waits, and for what, as text.
        bridge: Knows if the attempt of the job is over.

    Attributes:
        path: The path of the execution.
        awaits: Places where tasks awaited something that is not an outcome, during a replay.
        performing: The calls that have started, finished or not.
        ready: The number of handles of the action that are scheduled or run.
        running: True while one of them runs.
        counted: True if handles are counted. An action that makes one call after the other needs no count.
        failing: True if the action has raised, so its calls may end before the next attempt.
        fired: True if a timer of the action has fired.
        closed: True if the execution has ended.
        others: Tasks that durable functions of the action started.
        interrupted: The number of times that the execution was cancelled because it could not continue.
        main: The task that executes the action; None if a thread does.
        tasks: Tasks that the action started, in order.
        unawaited: Coroutines of durable calls that were not awaited yet, by the number of the call.
        children: The number of tasks that the action started itself, not from another of its tasks.
        own_tasks: The number of all its tasks without those of sub-agents.
        now: Seconds since the start, as the execution sees them. They change only with an outcome.
        swallowed: The cancellations of a suspended run that its code has swallowed; None if there are none.
        at_rest: Called when the action waits for durable waits only; None if the run cannot be suspended.
        show_part: Shows the memory of the part of the run that an outcome belongs to, before it is delivered;
            None if the run has no parts.
        failing_paths: Paths of actions of sub-agents that have raised, so their calls may end.
        deadlines: The code of attempts with timeouts. Empty for most.
    """

    # Attributes of the class, because each event creates a delivery, and most never change these.
    ready = 0
    running = counted = failing = fired = closed = False
    interrupted = children = own_tasks = 0
    now = 0.0
    main: asyncio.Task[Any] | None = None
    at_rest: Callable[[], None] | None = None
    show_part: Callable[[Number], None] | None = None
    swallowed: SwallowedSuspension | None = None
    failing_paths: Collection[str] = ()
    deadlines: tuple[TimedCode, ...] = ()
    awaits: tuple[str, ...] = ()
    others: Sequence[asyncio.Task[Any]] = ()
    performing: Sequence[PendingOutcome] = ()
    tasks: Sequence[ActionTask] = ()
    _replay: deque[tuple[Number, Outcome]] = deque()
    _expects = False
    _passed = -1

    def __init__(
        self,
        path: str,
        records: StepRecords,
        seed: tuple[Any, ...],
        stuck: Callable[[Number, Outcome], None],
        describe: Callable[[asyncio.Task[Any]], str],
        bridge: Bridge,
    ) -> None:
        super().__init__(records)
        self.path = path
        self._seed = seed
        self._stuck = stuck
        self._describe = describe
        self._bridge = bridge
        if records.outcomes:
            self._replay = deque(records.in_order())
        self._seconds = bridge.seconds
        self._begun = self._origin = self._seconds()
        self.unawaited: dict[Number, Coroutine[Any, Any, Any]] = {}

    def _open(self) -> None:
        """Create the collections for an execution that waits for more than one call after the other."""
        self._expects = True
        self._pending: dict[Number, PendingOutcome] = {}
        self._gone: set[Number] = set()
        self._deferred: list[PendingOutcome] = []
        self._ended: deque[QueuedOutcome] = deque()

    # -- handles of the action --------------------------------------------------------

    def execute(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        """Run a handle of the action. If no other handle is ready after it, the action is at rest."""
        self.running = True
        try:
            callback(*args)
        finally:
            self.running = False
            self.ready -= 1
            if not self.ready:
                self.deliver_next()

    def count(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to count handles: the action does more than to wait for one call after the other."""
        self.counted = True
        if not self._expects:
            self._open()
        # The running handle was not counted.
        self.ready += 1
        outside().run(loop.call_soon, self.unready)

    def unready(self) -> None:
        """Note that a handle that was counted has run, or will never run."""
        self.ready -= 1
        if not (self.ready or self.running):
            self.deliver_next()

    def add_call(self, pending: PendingOutcome) -> None:
        """Note that a call starts beside other work of the action."""
        self.performing = self.performing if isinstance(self.performing, list) else []
        self.performing.append(pending)

    def add_other(self, task: asyncio.Task[Any]) -> None:
        """Note a task that a durable function of the action started."""
        self.others = self.others if isinstance(self.others, list) else []
        self.others.append(task)

    def add_task(self, task: ActionTask) -> None:
        """Note a task that the action started."""
        self.tasks = self.tasks if isinstance(self.tasks, list) else []
        self.tasks.append(task)

    def task_path(self) -> str:
        """Return the path of the running task; see ``journal.calls``."""
        if not (self.tasks or self.closed):
            return ""
        try:
            task = asyncio.current_task()
        except RuntimeError:
            return ""
        return task.path if isinstance(task, ActionTask) and task.delivery is self else ""

    # -- outcomes ---------------------------------------------------------------------

    @property
    def replaying(self) -> bool:
        """True if recorded outcomes are still to be delivered."""
        return bool(self._replay) and not self.closed

    @property
    def deferred(self) -> list[PendingOutcome]:
        """The calls and waits that start after the last recorded outcome."""
        return [pending for pending in self._deferred if not pending.gone]

    def expect(self, pending: PendingOutcome) -> None:
        """Note that the action waits for an outcome from now on."""
        if not self._expects:
            self._open()
        if self.deadlines:
            self._count_time(pending)
        # The wait must be known before it starts: it may end at once.
        self._pending[pending.number] = pending
        if not self._replay:
            pending.begin()
        elif self.recorded(pending.number) is None:
            # It is new, so it starts after the last recorded outcome: a replay must not run ahead of its
            # records.
            self._deferred.append(pending)
        if self.main is None:
            # The thread of the action waits.
            self.ready = 0
        if not self.ready:
            self.deliver_next()

    def take_recorded(self, number: Number) -> Outcome | None:
        """Return the next recorded outcome if it has that number; for an action that waits for one only."""
        if self._replay[0][0] != number:
            return None
        _, outcome = self._replay.popleft()
        self._passed = max(self._passed, outcome.order)
        self.now = max(self.now, outcome.elapsed / 1e6)
        self._begun = self._seconds() - self.now
        if self.show_part is not None:
            self.show_part(number)
        return outcome

    def detach_wait(self, pending: PendingOutcome) -> None:
        """Note that the action no longer waits for an outcome: it cancelled the wait."""
        if not pending.gone and self._pending.pop(pending.number, None) is not None:
            pending.gone = True
            # A record of it may come later in a replay. Then it is skipped.
            self._gone.add(pending.number)

    def end(self, pending: PendingOutcome, outcome: Outcome | None = None) -> QueuedOutcome:
        """Add an outcome to the queue. It is delivered after those that came before it.

        Args:
            pending: The wait that ends.
            outcome: The outcome; None if it is recorded first and :meth:`resolve` is called later.
        """
        ended = QueuedOutcome(pending, outcome)
        self._ended.append(ended)
        if outcome is not None and not self.ready:
            self.deliver_next()
        return ended

    def resolve(self, ended: QueuedOutcome, outcome: Outcome) -> None:
        """Note that a queued outcome was recorded and can be delivered."""
        ended.outcome = outcome
        ended.recorded = True
        if not self.ready:
            self.deliver_next()

    def forget(self, pending: PendingOutcome) -> None:
        """Remove an outcome that will never be recorded, so that later ones do not wait for it."""
        # Outcomes that are in the queue keep their order.
        self._ended = deque(
            ended for ended in self._ended if ended.pending is not pending or ended.outcome is not None
        )
        if not self.ready:
            self.deliver_next()

    def elapsed(self) -> int:
        """Return microseconds since the start of the execution. They continue from the end of a replay."""
        return int(1e6 * max(self.now, self._seconds() - self._begun))

    def time(self) -> float:
        """Return the time of the event loop as code of the action sees it."""
        return self._origin + self.now

    def deliver_next(self) -> None:
        """Deliver the next outcome if the action is at rest and there is one."""
        while not (self.ready or self.closed):
            if self._replay:
                if not self._deliver_recorded():
                    return
                continue
            # Emptied first: what starts below may end at once and call this method again.
            deferred = self._deferred
            self._deferred = []
            for pending in deferred:
                if not pending.gone:
                    pending.begin()
            if self.ready:
                # A call that was just started has ended, and its outcome was delivered.
                return
            # The first outcome is still being recorded. Later ones must not pass it.
            if not self._ended or self._ended[0].outcome is None:
                for timed in self.deadlines:
                    timed.wait.set_at_rest(self._outlasts(timed.path))
                if self.at_rest is not None and self.outlasts:
                    self.at_rest()
                return
            self._deliver_new(self._ended.popleft())

    def _deliver_recorded(self) -> bool:
        """Deliver the next recorded outcome; returns True if another one may follow at once."""
        number, outcome = self._replay[0]
        if number not in self._gone:
            pending = self._pending.get(number)
            if pending is None:
                if self._bridge.closed:
                    # Cancelled code repeats no more calls, and its clean-up may wait for a timer.
                    self._end_replay()
                    return True
                if self._is_in_transit() or any(timed.wait.expired for timed in self.deadlines):
                    # An action of a sub-agent that will wait for it has not started yet, or the attempt ends.
                    return False
                if not self._awaits_others():
                    self._stuck(number, outcome)
                return False
            if not pending.is_there():
                return False
            self._replay.popleft()
            self._passed = max(self._passed, outcome.order)
            self._deliver_outcome(pending, outcome)
            self._begun = self._seconds() - self.now
        else:
            self._replay.popleft()
            self._passed = max(self._passed, outcome.order)
        return True

    def _end_replay(self) -> None:
        """Drop the rest of the records, and start the calls and waits that they would have ended."""
        self._replay.clear()
        for number, pending in list(self._pending.items()):
            if self.recorded(number) is not None and pending.performing is None:
                pending.begin()

    def _deliver_new(self, ended: QueuedOutcome) -> None:
        """Deliver an outcome that has no place in the records yet."""
        pending = ended.pending
        assert ended.outcome is not None
        self._passed = ended.outcome.order
        if pending.gone:
            return
        # It is not in the store yet, so it goes with the action's next record.
        if not ended.recorded:
            self.seen(pending.number, ended.outcome)
        self._deliver_outcome(pending, ended.outcome)

    def _deliver_outcome(self, pending: PendingOutcome, outcome: Outcome) -> None:
        if self.show_part is not None:
            self.show_part(pending.number)
        self._pending.pop(pending.number, None)
        if self.deadlines:
            self._count_time(pending)
        # Before the delivery: code that resumes must see the time of this outcome.
        self.now = max(self.now, outcome.elapsed / 1e6, pending.not_before)
        if self.main is None:
            # The thread of the action runs until it waits again.
            self.ready = 1
        self.running = True
        try:
            pending.deliver(outcome)
        finally:
            self.running = False

    @property
    def waits(self) -> list[PendingOutcome]:
        """The outcomes that the action waits for."""
        return list(self._pending.values()) if self._expects else []

    @property
    def outlasts(self) -> bool:
        """True if the action is at rest and waits for durable waits only."""
        if self.ready or self.closed or self.main is None or not self._expects:
            return False
        if self._replay or self._ended:
            return False
        return self._outlasts("")

    def _outlasts(self, path: str) -> bool:
        """Return True if the code with a path, which is at rest, waits for durable waits only."""
        waits = list(self._pending.values())
        if path:
            waits = [pending for pending in waits if is_inside(pending.number.task, path)]
        if all(pending.encloses for pending in waits) or not all(pending.outlasts for pending in waits):
            return False
        tasks = [task for task in self._all_tasks() if not path or is_task_inside(task, path)]
        return not any(awaits_foreign(task, self) for task in tasks)

    # -- actions of sub-agents ----------------------------------------------------------

    def _is_in_transit(self) -> bool:
        """Return True if an action of a sub-agent is about to start or has just ended."""
        return any(pending.in_transit for pending in self._pending.values())

    def _count_time(self, pending: PendingOutcome) -> None:
        """Let the time run of the actions to which the code belongs that waits for an outcome, or gets it."""
        for timed in self.deadlines:
            if is_inside(pending.number.task, timed.path):
                timed.wait.set_at_rest(False)

    def restart(self, path: str, repeats: bool) -> None:
        """Prepare an attempt of an action of a sub-agent.

        Outcomes that an attempt before it has got are delivered again, in their order, before any new one.

        Args:
            path: The path of the action.
            repeats: True if there may have been attempts before it.
        """
        if not self._expects:
            self._open()
        self._gone = {number for number in self._gone if not is_inside(number.task, path)}
        self.failing_paths = [failing for failing in self.failing_paths if not is_inside(failing, path)]
        self.restart_numbers(path)
        if repeats:
            self.forget_repeated(path)
            repeated = self.of_attempts(path, self._passed)
            # An enclosing attempt may repeat its own outcomes meanwhile: they keep their places among these.
            self._replay = deque(sorted([*repeated, *self._replay], key=lambda item: item[1].order))

    def forget_repeated(self, path: str) -> None:
        """Deliver nothing a second time to an attempt of a sub-agent's action, which has ended."""
        self._replay = deque(
            (number, outcome)
            for number, outcome in self._replay
            if outcome.order > self._passed or not is_inside(number.task, path)
        )

    def is_replaying(self, path: str) -> bool:
        """Return True if recorded outcomes of an action of a sub-agent are still to be delivered."""
        return any(
            outcome.order > self._passed and is_inside(number.task, path) for number, outcome in self._replay
        )

    def pass_over(self, path: str, order: int) -> None:
        """Skip the recorded outcomes of an attempt of a sub-agent's action that failed.

        Args:
            path: The path of the action.
            order: The place of the end of the attempt in the order.
        """
        if not self._expects:
            self._open()
        self._gone |= {
            number
            for number, outcome in self._replay
            if outcome.order < order and is_inside(number.task, path)
        }

    def end_failed_attempt(self, path: str, order: int) -> None:
        """Note that an attempt of a sub-agent's action has failed; see the base class."""
        super().end_failed_attempt(path, order)
        for number in [number for number in self.unawaited if is_inside(number.task, path)]:
            # A call that was never awaited was not made.
            self.unawaited.pop(number).close()

    def lets_finish(self, number: Number) -> bool:
        """Return True if a call that the code stops to await may finish, because the code has raised."""
        return self.failing or any(is_inside(number.task, path) for path in self.failing_paths)

    # -- the end ----------------------------------------------------------------------

    def interrupt(self) -> None:
        """Cancel an execution that can never continue. The number of cancellations is bounded."""
        if self.main is not None and self.interrupted < MAX_INTERRUPTS:
            self.interrupted += 1
            self.main.cancel()

    def close(self) -> None:
        """End the delivery with the execution. No outcome is delivered from here on."""
        # First, so that nothing that is cancelled below can start a call.
        self.closed = True
        if self._expects:
            waiting = list(self._pending.values())
            self._pending = {}
            for pending in waiting:
                pending.abandon_wait()
            self._deferred.clear()
        # An execution must not be part of a reference cycle.
        self._stuck = lambda number, outcome: None
        self.at_rest = None
        if self.main is not None:
            for _ in range(self.interrupted):
                # The cancellations came from `interrupt`. They must not end the task of the run.
                self.main.uncancel()
            self.main = None
        if self.tasks:
            self.tasks = ()
        for coroutine in self.unawaited.values():
            # A call that was never awaited was not made.
            coroutine.close()
        self.unawaited.clear()

    # -- awaits that are no outcomes --------------------------------------------------

    def woken_from_outside(self) -> None:
        """Note that something outside of the action woke it: the action may await a foreign future."""
        if self.replaying:
            for task in self._all_tasks():
                future = getattr(task, "_fut_waiter", None)
                if future is not None and future.done() and is_foreign(future, self):
                    self._note_awaits([task])

    def _awaits_others(self) -> bool:
        """Return True if a task awaits something that is not an outcome, so it may continue without one."""
        waiting_tasks = [task for task in self._all_tasks() if awaits_foreign(task, self)]
        self._note_awaits(waiting_tasks)
        return bool(waiting_tasks)

    def _note_awaits(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Note the places where tasks await something that is not an outcome, each one once."""
        self.awaits = tuple(dict.fromkeys((*self.awaits, *map(self._describe, tasks))))

    def _all_tasks(self) -> list[asyncio.Task[Any]]:
        """Return the tasks of the action that have not ended, its main one first."""
        tasks: list[asyncio.Task[Any]] = [task for task in self.tasks if not task.done()]
        return [self.main, *tasks] if self.main is not None else tasks

    def hash_of(self, ordinal: int) -> int:
        """Return the hash of the task that the execution created at position ``ordinal``."""
        return (crc32(repr(self._seed).encode("utf-8", "surrogatepass")) + ordinal * _SPREAD) & _HASH_MASK


_SPREAD = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: spreads consecutive numbers over all hashes."""
_HASH_MASK = (1 << 61) - 1


def outside() -> Context:
    """Return a copy of the running context that belongs to no action."""
    context = copy_context()
    context.run(current_delivery.set, None)
    return context
