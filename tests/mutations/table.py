"""The mutations. To add one: a name, a target, and its replacement.

Each is a defect that the runtime had, or an obvious mistake in one of its parts.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

from tests.mutations.mutation import mutation

# -- numbers, order and rest ---------------------------------------------------------------------


@mutation("flat-numbers", "runtime.execution.calls.delivery:Delivery.task_path")
def flat_numbers(before: Any) -> Any:
    """Calls are numbered in the order in which the action comes to them, and replayed by number.

    Where outcomes come in the recorded order, flat numbers alone are the same each time.
    """
    delivery = import_module("flink_agents.runtime.execution.calls.delivery").Delivery
    delivery.resolve = delivered_at_once(delivery.resolve)
    records = import_module("flink_agents.runtime.journal.calls").StepRecords
    records.in_order = by_number(records.in_order)
    return lambda self: ""


@mutation("reads-unrecorded", "runtime.loop.actor:KeyActor.finish")
def reads_unrecorded(before: Any) -> Any:
    """A run behind one of which nothing is recorded does not record what it reads of memory."""
    head = import_module("flink_agents.runtime.state.keyed_state").Head
    head.unrecorded = property(lambda self: False, lambda self, unrecorded: None)

    def finish(self: Any, run: Any, waiting: Any) -> None:
        before(self, run, waiting)
        self.unrecorded = False

    return finish


@mutation("delivered-at-once", "runtime.execution.calls.delivery:Delivery.resolve")
def delivered_at_once(before: Any) -> Any:
    """An outcome is delivered when it comes, although the action has not come to rest."""
    delivery = import_module("flink_agents.runtime.execution.calls.delivery").Delivery
    end = delivery.end

    def at_once(self: Any) -> None:
        ready = self.ready
        self.ready = 0
        self.deliver_next()
        self.ready += ready

    def settle(self: Any, ended: Any, outcome: Any) -> None:
        before(self, ended, outcome)
        at_once(self)

    def ends(self: Any, pending: Any, outcome: Any = None) -> Any:
        ended = end(self, pending, outcome)
        if outcome is not None:
            at_once(self)
        return ended

    delivery.end = ends
    return settle


@mutation("several-in-one-turn", "runtime.execution.calls.delivery:Delivery._deliver_new")
def several_in_one_turn(before: Any) -> Any:
    """All outcomes that are there are delivered in one turn of the loop."""

    def deliver(self: Any, ended: Any) -> None:
        before(self, ended)
        while self._ended and self._ended[0].outcome is not None:
            before(self, self._ended.popleft())

    return deliver


@mutation("rest-not-counted", "runtime.loop.action_loop:ActionLoop.call_soon")
def rest_not_counted(before: Any) -> Any:
    """Nobody counts what is ready."""
    return asyncio.SelectorEventLoop.call_soon


@mutation("timers-not-recorded", "runtime.loop.action_loop:ActionLoop.call_at")
def timers_not_recorded(before: Any) -> Any:
    """A timer fires when its time has come, in a replay as well."""
    return asyncio.SelectorEventLoop.call_at


@mutation("failure-before-earlier-success", "runtime.execution.calls.delivery:Delivery.end")
def failure_before_earlier_success(before: Any) -> Any:
    """A failure is seen at once, a success that came before it only when it is recorded."""

    def end(self: Any, pending: Any, outcome: Any = None) -> Any:
        ended = before(self, pending, outcome)
        if outcome is not None and ended in self._ended:
            self._ended.remove(ended)
            self._ended.appendleft(ended)
        return ended

    return end


@mutation("by-number", "runtime.journal.calls:StepRecords.in_order")
def by_number(before: Any) -> Any:
    """A replay delivers outcomes by their numbers, not in the order in which they came."""
    return lambda self: sorted(before(self), key=lambda outcome: outcome[0])


@mutation("tasks-by-address", "runtime.execution.calls.pending:ActionTask.__hash__")
def tasks_by_address(before: Any) -> Any:
    """Tasks in sets are ordered by where they lie in memory."""
    return object.__hash__


# -- what is recorded, and when ------------------------------------------------------------------


@mutation("history-not-recorded", "runtime.journal.calls:ExecutionOutcomes.still_unrecorded")
def history_not_recorded(before: Any) -> Any:
    """A call is recorded without the failures and timers that the action had seen when it made it."""
    return lambda self, after: {}


@mutation("given-before-recorded", "runtime.execution.calls.call:DurableCall._recorded")
def given_before_recorded(before: Any) -> Any:
    """The action gets a result while it is being recorded."""
    going_on: set[Any] = set()

    async def recorded(self: Any, value: Any, place: Any) -> Any:
        task = asyncio.ensure_future(before(self, value, place))
        going_on.add(task)
        task.add_done_callback(going_on.discard)
        return self.success(self._encode(value), place)

    return recorded


@mutation("attempts-forget", "runtime.journal.calls:ExecutionOutcomes.mark_recorded")
def attempts_forget(before: Any) -> Any:
    """A further attempt of an action does not know what the one before recorded."""

    def mark_recorded(self: Any, recorded: Any) -> None:
        for number in recorded:
            self.unrecorded.pop(number, None)

    return mark_recorded


@mutation("failures-are-not-read", "runtime.journal.calls:steps_of")
def failures_are_not_read(before: Any) -> Any:
    """A failure that the action went on after is no part of the history."""

    def steps_of(codec: Any, records: Any) -> Any:
        steps = before(codec, records)
        for step in steps.values():
            for number, outcome in list(step.outcomes.items()):
                if getattr(outcome, "error", None) is not None:
                    del step.outcomes[number]
        return steps

    return _also_in(steps_of, "runtime.journal.run_journal", "steps_of")


@mutation("nothing-stored", "connectors.action_state.memory.store:MemoryStore.append")
def nothing_stored(before: Any) -> Any:
    """The store forgets some of what it acknowledges."""
    chance = random.Random(1)

    async def append(self: Any, journal: Any, records: Any) -> None:
        if chance.random() < 0.9:
            await before(self, journal, records)

    return append


# -- identity ------------------------------------------------------------------------------------


@mutation("not-announced", "runtime.execution.calls.call:DurableCall._announce")
def not_announced(before: Any) -> Any:
    """What the outside may learn of a run is not bound to its input before it does."""

    async def announce(self: Any) -> None:
        if self._callable.reconciler is not None:
            await before(self)

    return announce


@mutation("announced-late", "runtime.execution.calls.in_flight:CallsInFlight.store")
def announced_late(before: Any) -> Any:
    """A call begins while its run is still being bound to its input."""
    going_on: set[Any] = set()

    async def store(self: Any, append: Any, *rest: Any, **named: Any) -> Any:
        if getattr(append, "__name__", "") != "bind":
            return await before(self, append, *rest, **named)
        # Nobody's task: whatever becomes of the call, the append goes on.
        task = asyncio.Task(before(self, append), loop=self.bridge.loop)
        going_on.add(task)
        task.add_done_callback(going_on.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    return store


@mutation("any-input", "runtime.journal.order:RecordedRuns.claim")
def any_input(before: Any) -> Any:
    """The next input gets the next number, whatever was recorded under it."""

    def claim(self: Any, digest: bytes) -> int | None:
        return before(self, next(iter(self._unclaimed), digest))

    return claim


@mutation("random-keys", "runtime.execution.calls.attempts:idempotency_key")
def random_keys(before: Any) -> Any:
    """A call has another idempotency key in each attempt."""
    return lambda call: uuid.uuid4().hex


@mutation("random-uuids", "runtime.execution.context:ActionRunContext.uuid4")
def random_uuids(before: Any) -> Any:
    """UUIDs are random."""

    def uuid4(self: Any) -> uuid.UUID:
        before(self)
        return uuid.uuid4()

    return uuid4


@mutation("wall-clock", "runtime.execution.context:ActionRunContext.now")
def wall_clock(before: Any) -> Any:
    """The time of a run is that of the wall clock."""
    return lambda self: datetime.now(UTC)


# -- what an action sees -------------------------------------------------------------------------


@mutation("memory-not-taken-back", "runtime.execution.run:Run.rollback")
def memory_not_taken_back(before: Any) -> Any:
    """What a failed attempt wrote to memory stays."""

    def rollback(self: Any, mark: int) -> None:
        del self.undo[mark:]

    return rollback


@mutation("replayed-without-memory", "runtime.execution.run:Run.write")
def replayed_without_memory(before: Any) -> Any:
    """An action that comes from its record leaves out what it wrote to memory."""
    return lambda self, scope, nodes: None


def _also_in(function: Any, module: str, name: str) -> Any:
    """Replace a function where it was imported by its name."""
    with contextlib.suppress(ImportError):
        setattr(import_module(f"flink_agents.{module}"), name, function)
    return function


# -- what is the same the first time --------------------------------------------------------------


@mutation("arguments-shared", "runtime.execution.calls.attempts:AttemptedCall.bind_copies")
def arguments_shared(before: Any) -> Any:
    """All attempts of a call, and the action, share the objects that were passed."""
    from functools import partial

    def bind_copies(self: Any, callable_: Any, wants_key: bool, clients: Any) -> Any:
        call = before(self, callable_, wants_key, clients)
        first_call = _FIRST.setdefault(id(self), (self, call))[1]
        return partial(callable_.function, *first_call.args, **first_call.keywords)

    return bind_copies


_FIRST: dict[int, Any] = {}


@mutation("payloads-shared", "runtime.execution.environment.events:EventRecords.copy_for_attempt")
def payloads_shared(before: Any) -> Any:
    """What an action changes in its event is seen by the next one, and by its own next attempt."""
    return lambda self, event: event


@mutation("unsure-is-unknown", "runtime.journal.calls:ExecutionOutcomes.take_unsure")
def unsure_is_unknown(before: Any) -> Any:
    """The next attempt of an action does not know what was being recorded when the one before ended."""
    return lambda self: before(self) and {}
