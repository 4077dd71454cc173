"""Delivers to an action what it waits for: one outcome at a time, in the same order in each execution.

What an action does between two outcomes follows from its code alone, as long as all that it awaits is
durable calls, waits of its context, and asyncio among its own tasks. So an execution is fixed by the order
of its outcomes. The first time they are delivered in the order in which they come, each when the action has
*come to rest*: when none of its tasks could go on. A replay delivers those that were recorded in the same
order at the same points, and begins nothing anew before the last of them.

That an action has come to rest is counted: ``runtime.loop.action_loop`` counts the handles that belong to it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any
from zlib import crc32

from flink_agents.runtime.concurrency.bridge import Bridge
from flink_agents.runtime.journal.calls import CallReplay, Number, Outcome

current_delivery: ContextVar[Delivery | None] = ContextVar("delivery", default=None)
"""That of the action whose code runs; what the action starts inherits it."""

MAX_INTERRUPTS = 100
"""How often an execution is cancelled that catches that, and waits again for what never comes."""


class PendingOutcome:
    """An outcome that an action waits for.

    Args:
        number: Its number.

    Attributes:
        gone: Whether the action waits for it no more.
        ended: Whether it is there, delivered or not.
        performing: What leads to it, outside of the action; None before that begins.
        stopped: Whether that was cancelled, since nobody waits for the outcome.
        not_before: Seconds since the begin of the execution before which it does not come.
        outlasts: Whether its run can be suspended while the action waits for nothing else.
    """

    outlasts = False

    __slots__ = ("ended", "gone", "not_before", "number", "performing", "stopped")

    def __init__(self, number: Number) -> None:
        self.number = number
        self.not_before = 0.0
        self.gone = self.ended = self.stopped = False
        self.performing: asyncio.Task[Any] | None = None

    def begin(self) -> None:
        """Begin what leads to the outcome."""

    def is_there(self) -> bool:
        """Whether it can be delivered, now that a replay has come to it."""
        return True

    def deliver(self, outcome: Outcome) -> None:
        """Give it to who waits for it."""
        raise NotImplementedError

    def drop(self) -> None:
        """Let nobody wait for it any more: the execution is over."""

    def stop(self) -> None:
        """Cancel what leads to it; once it is there, it is recorded all the same."""
        if self.performing is not None and not (self.ended or self.performing.done()):
            self.stopped = True
            self.performing.cancel()

    def perform(self, coroutine: Coroutine[Any, Any, Any], context: Context) -> asyncio.Task[Any]:
        """Let a coroutine lead to the outcome: in a task that is none of the action's."""
        loop = asyncio.get_running_loop()
        self.performing = asyncio.Task(coroutine, loop=loop, context=context)
        return self.performing


class QueuedOutcome:
    """An outcome that waits for its turn.

    Args:
        pending: Of what it is the outcome.
        outcome: The outcome; None as long as it is being recorded.

    Attributes:
        outcome: See above.
        recorded: Whether there is a record of it.
    """

    __slots__ = ("outcome", "pending", "recorded")

    def __init__(self, pending: PendingOutcome, outcome: Outcome | None) -> None:
        self.pending = pending
        self.outcome = outcome
        self.recorded = False


class Delivery:
    """Delivers the outcomes that one execution of an action waits for.

    Args:
        calls: The outcomes of the execution.
        seed: What distinguishes the execution from others, and is the same on replay.
        stuck: Called where the recorded outcome that is next can never be asked for.
        describe: Tells in words where a task waits, and for what.
        bridge: Knows whether the attempt of the job is over.

    Attributes:
        calls: See above.
        awaits: Where tasks were seen to await what is no outcome, while recorded ones were delivered.
        performing: What leads to outcomes of calls, or led to them.
        ready: How many handles of the action are scheduled or run.
        running: Whether one of them runs.
        counted: Whether they are counted: an action that only makes one call after the other needs no count.
        failing: Whether the action has raised, so that its calls may end before it is executed again.
        fired: Whether a timer of the action has fired.
        over: Whether the execution has ended.
        others: Tasks that durable calls of the action made.
        interrupted: How often the execution was cancelled, since it could not go on.
        main: The task that executes the action; None where a thread does.
        tasks: Tasks that the action made, in the order in which it made them.
        unawaited: Coroutines of durable calls that nobody has begun to await, by the number of the call.
        children: How many of them the action made itself.
        now: Seconds since the begin, as the execution sees them: they stand still between two outcomes.
        at_rest: Called when all that the action waits for outlasts its execution; None where the run cannot
            be suspended.
    """

    # What most executions never change is kept by the class: one is made for each event.
    ready = 0
    running = counted = failing = fired = over = False
    interrupted = children = 0
    now = 0.0
    main: asyncio.Task[Any] | None = None
    at_rest: Callable[[], None] | None = None
    _expects = False

    def __init__(
        self,
        calls: CallReplay,
        seed: tuple[Any, ...],
        stuck: Callable[[Number, Outcome], None],
        describe: Callable[[asyncio.Task[Any]], str],
        bridge: Bridge,
    ) -> None:
        self.calls = calls
        self._seed = seed
        self._stuck = stuck
        self._describe = describe
        self._bridge = bridge
        self._replay = calls.in_order()
        self._begun = self._origin = time.monotonic()
        self.awaits: dict[str, None] = {}
        self.others: list[asyncio.Task[Any]] = []
        self.performing: list[PendingOutcome] = []
        self.tasks: list[ActionTask] = []
        self.unawaited: dict[Number, Coroutine[Any, Any, Any]] = {}

    def _open(self) -> None:
        """Make what an execution needs that waits for more than one call after the other."""
        self._expects = True
        self._pending: dict[Number, PendingOutcome] = {}
        self._gone: set[Number] = set()
        self._deferred: list[PendingOutcome] = []
        self._ended: deque[QueuedOutcome] = deque()

    # -- handles of the action --------------------------------------------------------

    def execute(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        """Run a handle of the action; the last one that is ready brings it to rest."""
        self.running = True
        try:
            callback(*args)
        finally:
            self.running = False
            self.ready -= 1
            if not self.ready:
                self.rest()

    def count(self, loop: asyncio.AbstractEventLoop) -> None:
        """Count handles from here on: the action does more than to wait for one call after the other."""
        self.counted = True
        if not self._expects:
            self._open()
        # The one that runs was not counted.
        self.ready += 1
        outside().run(loop.call_soon, self.unready)

    def unready(self) -> None:
        """A handle that was counted runs no more, or never."""
        self.ready -= 1
        if not (self.ready or self.running):
            self.rest()

    def task_path(self) -> str:
        """The way to the task that runs; see ``journal.calls``."""
        if not (self.tasks or self.over):
            return ""
        try:
            task = asyncio.current_task()
        except RuntimeError:
            return ""
        return task.path if isinstance(task, ActionTask) and task.delivery is self else ""

    # -- outcomes ---------------------------------------------------------------------

    @property
    def replaying(self) -> bool:
        """Whether recorded outcomes are still to be delivered."""
        return bool(self._replay) and not self.over

    @property
    def deferred(self) -> list[PendingOutcome]:
        """What begins behind the last recorded outcome."""
        return [pending for pending in self._deferred if not pending.gone]

    def expect(self, pending: PendingOutcome) -> None:
        """The action begins to wait for an outcome."""
        if not self._expects:
            self._open()
        self._pending[pending.number] = pending
        if not self._replay:
            pending.begin()
        elif self.calls.recorded(pending.number) is None:
            self._deferred.append(pending)
        if self.main is None:
            # The thread of the action waits.
            self.ready = 0
        if not self.ready:
            self.rest()

    def take(self, number: Number) -> Outcome | None:
        """The recorded outcome that is next, if it has that number: for an action that waits for one only."""
        if self._replay[0][0] != number:
            return None
        _, outcome = self._replay.popleft()
        self.now = max(self.now, outcome.elapsed / 1e6)
        self._begun = time.monotonic() - self.now
        return outcome

    def leave(self, pending: PendingOutcome) -> None:
        """The action waits for an outcome no more: it cancelled what waited."""
        if not pending.gone and self._pending.pop(pending.number, None) is not None:
            pending.gone = True
            self._gone.add(pending.number)

    def end(self, pending: PendingOutcome, outcome: Outcome | None = None) -> QueuedOutcome:
        """An outcome is there; it is delivered behind those that came before it.

        Args:
            pending: Of what it is the outcome.
            outcome: The outcome; None where it is recorded first, and :meth:`settle` called then.
        """
        ended = QueuedOutcome(pending, outcome)
        self._ended.append(ended)
        if outcome is not None and not self.ready:
            self.rest()
        return ended

    def settle(self, ended: QueuedOutcome, outcome: Outcome) -> None:
        """An outcome was recorded, and can be delivered."""
        ended.outcome, ended.recorded = outcome, True
        if not self.ready:
            self.rest()

    def forget(self, pending: PendingOutcome) -> None:
        """An outcome that was to be recorded never is: it holds up none that came behind it."""
        before, self._ended = self._ended, deque[QueuedOutcome]()
        self._ended.extend(one for one in before if one.pending is not pending or one.outcome is not None)
        if not self.ready:
            self.rest()

    def elapsed(self) -> int:
        """Microseconds since the begin of the execution. They go on where a replay has come to its end."""
        return int(1e6 * max(self.now, time.monotonic() - self._begun))

    def time(self) -> float:
        """Return what code of the action sees as the time of the loop."""
        return self._origin + self.now

    def rest(self) -> None:
        """Deliver the next outcome, if the action has come to rest and there is one."""
        while not (self.ready or self.over):
            if self._replay:
                if not self._deliver_recorded():
                    return
                continue
            deferred, self._deferred = self._deferred, []
            for pending in deferred:
                if not pending.gone:
                    pending.begin()
            if self.ready:
                # What began may have ended at once, and was delivered.
                return
            if not self._ended or self._ended[0].outcome is None:
                if self.at_rest is not None and self.outlasts:
                    self.at_rest()
                return
            self._deliver_new(self._ended.popleft())

    def _deliver_recorded(self) -> bool:
        """Deliver the recorded outcome that is next; returns whether more may be."""
        number, outcome = self._replay[0]
        if number not in self._gone:
            pending = self._pending.get(number)
            if pending is None:
                if self._bridge.over:
                    # What was cancelled asks for nothing more, and its clean-up may wait for a timer.
                    self._end_replay()
                    return True
                if not self._awaits_others():
                    self._stuck(number, outcome)
                return False
            if not pending.is_there():
                return False
            self._replay.popleft()
            self._give(pending, outcome)
            self._begun = time.monotonic() - self.now
        else:
            self._replay.popleft()
        return True

    def _end_replay(self) -> None:
        """Go on without what was recorded; what a record would have led to begins now."""
        self._replay.clear()
        for number, pending in list(self._pending.items()):
            if self.calls.recorded(number) is not None and pending.performing is None:
                pending.begin()

    def _deliver_new(self, ended: QueuedOutcome) -> None:
        pending = ended.pending
        if pending.gone:
            return
        assert ended.outcome is not None
        if not ended.recorded:
            self.calls.seen(pending.number, ended.outcome)
        self._give(pending, ended.outcome)

    def _give(self, pending: PendingOutcome, outcome: Outcome) -> None:
        self._pending.pop(pending.number, None)
        self.now = max(self.now, outcome.elapsed / 1e6, pending.not_before)
        if self.main is None:
            # The thread of the action goes on, until it waits again.
            self.ready = 1
        self.running = True
        try:
            pending.deliver(outcome)
        finally:
            self.running = False

    @property
    def waits(self) -> list[PendingOutcome]:
        """What the action waits for."""
        return list(self._pending.values()) if self._expects else []

    @property
    def outlasts(self) -> bool:
        """Whether the action has come to rest, and all that it waits for outlasts its execution."""
        if self.ready or self.over or self.main is None or not self._expects:
            return False
        if self._replay or self._ended or not self._pending:
            return False
        if not all(one.outlasts for one in self._pending.values()):
            return False
        return not any(_awaits_foreign(task, self) for task in self._all_tasks())

    # -- the end ----------------------------------------------------------------------

    def interrupt(self) -> None:
        """Cancel the execution, which can never go on; in bounded number, whatever it does with that."""
        if self.main is not None and self.interrupted < MAX_INTERRUPTS:
            self.interrupted += 1
            self.main.cancel()

    def close(self) -> None:
        """The execution is over: nothing is delivered any more."""
        self.over = True
        if self._expects:
            waiting, self._pending = list(self._pending.values()), {}
            for pending in waiting:
                pending.drop()
            self._deferred.clear()
        # Nothing of an execution may be in a circle of references.
        self._stuck = _ignore
        self.at_rest = None
        if self.main is not None:
            for _ in range(self.interrupted):
                self.main.uncancel()
            self.main = None
        if self.tasks:
            self.tasks = []
        for coroutine in self.unawaited.values():
            coroutine.close()
        self.unawaited.clear()

    # -- what is no outcome -----------------------------------------------------------

    def woken_from_outside(self) -> None:
        """A handle was scheduled by nothing of the action: what it awaits may be no outcome."""
        if self.replaying:
            for task in self._all_tasks():
                future = getattr(task, "_fut_waiter", None)
                if future is not None and future.done() and is_foreign(future, self):
                    self.awaits[self._describe(task)] = None

    def _awaits_others(self) -> bool:
        """Whether some task waits for what is no outcome, and may go on by itself."""
        found = [task for task in self._all_tasks() if _awaits_foreign(task, self)]
        self.awaits.update(dict.fromkeys(map(self._describe, found)))
        return bool(found)

    def _all_tasks(self) -> list[asyncio.Task[Any]]:
        tasks: list[asyncio.Task[Any]] = [task for task in self.tasks if not task.done()]
        return [self.main, *tasks] if self.main is not None else tasks

    def hash_of(self, ordinal: int) -> int:
        """The hash of the task that the execution made at ``ordinal``."""
        return (crc32(repr(self._seed).encode("utf-8", "surrogatepass")) + ordinal * _SPREAD) & _HASH_MASK


def _ignore(number: Number, outcome: Outcome) -> None:
    """Nothing is delivered any more."""


_SPREAD = 0x9E3779B97F4A7C15
_HASH_MASK = (1 << 61) - 1


class ActionTask(asyncio.Task[Any]):
    """A task that an action made.

    Its hash follows from the order in which the tasks of its execution were made. So sets of tasks, as
    those of ``asyncio.wait`` and ``asyncio.TaskGroup``, have the same order in each execution.

    Attributes:
        delivery: That of the execution.
        path: The way to the task; see ``journal.calls``.
        children: How many tasks it made.
    """

    def __init__(self, coroutine: Any, *, delivery: Delivery, parent: str, **options: Any) -> None:
        self.delivery = delivery
        self.children = 0
        maker = _maker(delivery)
        self.path = f"{parent}.{maker.children}" if parent else str(maker.children)
        maker.children += 1
        self._hash = delivery.hash_of(len(delivery.tasks))
        delivery.tasks.append(self)
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._hash


def _maker(delivery: Delivery) -> ActionTask | Delivery:
    """What counts the tasks that the running code makes."""
    task = asyncio.current_task()
    return task if isinstance(task, ActionTask) and task.delivery is delivery else delivery


def outside() -> Context:
    """A copy of the context whose code belongs to no action."""
    context = copy_context()
    context.run(current_delivery.set, None)
    return context


# -- futures -------------------------------------------------------------------------


class OwnFuture(asyncio.Future[Any]):
    """A future that ends by an outcome, or by a task of the same action.

    Attributes:
        over: What else it stands for, if that may be anything.
    """

    over: Collection[Any] = ()


def is_foreign(future: Any, delivery: Delivery) -> bool:
    """Whether ``future`` may end by something that is no outcome of the action."""
    if isinstance(future, OwnFuture):
        return any(is_foreign(one, delivery) for one in future.over)
    if isinstance(future, ActionTask):
        return future.delivery is not delivery
    if type(future).__name__ == "_GatheringFuture":
        return any(is_foreign(child, delivery) for child in getattr(future, "_children", ()))
    return True


def _awaits_foreign(task: asyncio.Task[Any], delivery: Delivery) -> bool:
    future = getattr(task, "_fut_waiter", None)
    return future is not None and is_foreign(future, delivery)
