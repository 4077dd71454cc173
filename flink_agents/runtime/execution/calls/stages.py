"""The stages of durable calls: one for each need besides the call of a plain ``async def`` function.

:func:`call_type` decides once for each set of features which stages a call has. So a call tests for none of
them on its way.

``async def`` functions run on the event loop. Other functions run in a thread: for actions on the loop, in a
thread of the pool; for actions in a thread, in that same thread. So no thread of the pool waits for another.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache, partial
from typing import Any

from typing_extensions import override

from flink_agents.api.agents.observers import Phase
from flink_agents.api.common.current import in_context, isolated
from flink_agents.api.durable import IDEMPOTENCY_KEY, NOT_DONE, DurableCallable, Feature, takes_argument
from flink_agents.api.errors import ActionTimeoutError
from flink_agents.api.resources.provenance import as_data
from flink_agents.runtime.concurrency.timeouts import within
from flink_agents.runtime.execution.calls.attempts import as_coroutine, resume_by_any_task
from flink_agents.runtime.execution.calls.call import DurableCall
from flink_agents.runtime.execution.calls.durable_code import durable_function
from flink_agents.runtime.execution.calls.results import result_type_of
from flink_agents.runtime.journal.calls import Number, Outcome
from flink_agents.runtime.journal.plans import SharedValues
from flink_agents.runtime.journal.records import CallRecord


class TimedCall(DurableCall):
    """A call of an ``async def`` function with a timeout."""

    @override
    async def call_async(self, function: partial[Any]) -> Any:
        self.variables = context = isolated()
        self.enter_function()
        inner = as_coroutine(context.run(function))
        self.awaited = inner
        context.run(durable_function.set, function.func)
        inside = in_context(context, inner, resume_by_any_task, function.func)
        result = await self.in_time(inside, context)
        await self.settle_cancellations()
        return result


class CallInThread(DurableCall):
    """A call of a function that is not ``async def``."""

    @override
    def attempt(self) -> Awaitable[Any]:
        return self.call_in_thread(self.bind())


class CallWithArguments(DurableCall):
    """A call whose function gets its idempotency key, or open clients of the agent."""

    @override
    def bind(self) -> partial[Any]:
        callable_ = self._callable
        return self.bind_copies(callable_, callable_.wants_key, self.clients)


class CallWithClients(CallWithArguments):
    """A call whose function gets open clients of the agent."""

    @override
    async def attempt(self) -> Any:
        self.clients = await self._open_clients()
        return await super().attempt()

    async def _open_clients(self) -> dict[str, Any]:
        """Return the clients that the function needs, by name. Opens those that are not open yet."""
        clients = self.step.shared.services.clients
        opened_clients = dict[str, Any]()
        for name in self._callable.clients:
            with self.step.run.state.waiting(Phase.CLIENT, f"the client {name!r} to open") as wait:
                wait.awaited = partial(clients.opening_task, name)
                opened = clients.get(name)
                timely = opened if self._callable.seconds is None else within(self.deadline, opened)
                opened_clients[name] = (await timely).peek()
        return opened_clients


class AnnouncedCall(DurableCall):
    """A call that the outside can recognize, so that its run is bound to its input before it is made."""

    announces = True


class ReconciledCall(AnnouncedCall):
    """A call with a reconciler, which is asked first if the call may have been made before."""

    _is_undone = False

    @override
    async def attempt(self) -> Any:
        # If the last attempt took effect, the function must not run.
        if self.may_have_run and not self._is_undone:
            result = await self._ask_reconciler()
            if result is not NOT_DONE:
                return result
            self._is_undone = True
            self.leave_function()
        return await super().attempt()

    def _ask_reconciler(self) -> Awaitable[Any]:
        """Call the reconciler with a copy of the arguments, and with the key and clients that it takes."""
        reconciler: Callable[..., Any] | None = self._callable.reconciler
        assert reconciler is not None
        taken_clients = {
            name: client for name, client in self.clients.items() if takes_argument(reconciler, name)
        }
        question = self.bind_copies(
            DurableCallable(reconciler), takes_argument(reconciler, IDEMPOTENCY_KEY), taken_clients
        )
        is_async = inspect.iscoroutinefunction(reconciler)
        return self.call_async(question) if is_async else self.call_in_thread(question)


class CallOfUnknownOutcome(DurableCall):
    """A call that must not be repeated: if it is cut off, its outcome stays unknown."""

    @override
    async def execute(self) -> Any:
        cut_off = self.step.run.cut_off
        if cut_off is not None and (self.step.path, self.number) in cut_off:
            return self._unknown_result("the action was cancelled during the call")
        return await super().execute()

    @override
    def note_cut_off(self) -> None:
        unknown = self._callable.unknown
        assert unknown is not None
        if not unknown.repeats and self.inside:
            run = self.step.run
            run.cut_off = {*(run.cut_off or ()), (self.step.path, self.number)}

    @override
    def end_without_result(self, error: BaseException) -> Any:
        if isinstance(error, ActionTimeoutError):
            return self._unknown_result(f"it took longer than {self._callable.seconds:g} seconds")
        return super().end_without_result(error)

    def _unknown_result(self, reason: str) -> Any:
        """Return the result that the caller of a request gets if its outcome is unknown, for ``reason``."""
        assert self._callable.unknown is not None
        return self._callable.unknown.result(reason, self.key)


class CallOfResultType(DurableCall):
    """A call whose result has a declared type."""

    @override
    def pack_result(self, result: Any) -> bytes:
        return result_type_of(self._callable.result_type).encode(self._in_flight.codec, result)

    @override
    def success(self, data: bytes, place: tuple[int, int]) -> CallRecord:
        text = result_type_of(self._callable.result_type).text
        return super().success(data, place)._replace(result_type=text)

    @override
    def unpack_result(self, data: bytes, outcome: CallRecord) -> Any:
        # Pydantic made the value. So its messages count as data, like those of a record.
        result_type = result_type_of(self._callable.result_type)
        return as_data(result_type.decode(self._in_flight.codec, data, outcome.result_type))


class CallOfSharedResult(DurableCall):
    """A call whose result the store holds once for all runs."""

    @override
    async def store_outcome(self, outcome: CallRecord) -> Mapping[Number, Outcome]:
        if outcome.value is not None:
            outcome = outcome._replace(value=await self._values.packed(outcome.value))
        return await super().store_outcome(outcome)

    @override
    def unpack_result(self, data: bytes, outcome: CallRecord) -> Any:
        return super().unpack_result(self._values.unpacked(data), outcome)

    @property
    def _values(self) -> SharedValues:
        """The values that calls with ``shared=True`` store once for all runs."""
        journals = self.step.shared.journals
        assert journals is not None
        return journals.values


STAGES: dict[Feature, type[DurableCall]] = {
    Feature.UNKNOWN: CallOfUnknownOutcome,
    Feature.CLIENTS: CallWithClients,
    Feature.RECONCILER: ReconciledCall,
    Feature.KEY: CallWithArguments,
    Feature.THREAD: CallInThread,
    Feature.TIMEOUT: TimedCall,
    Feature.SHARED: CallOfSharedResult,
    Feature.RESULT_TYPE: CallOfResultType,
}
"""The stage of each feature. An earlier one encloses a later one: clients open before a reconciler asks."""


@lru_cache
def call_type(features: frozenset[Feature]) -> type[DurableCall]:
    """Return the class of the calls of functions with these features: their stages around the plain call."""
    stages = [stage for feature, stage in STAGES.items() if feature in features]
    if Feature.KEY in features:
        stages.append(AnnouncedCall)
    return type("DurableCall", (*stages, DurableCall), {}) if stages else DurableCall
