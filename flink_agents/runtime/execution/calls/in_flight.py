"""Stores the records of durable calls, and lets calls in flight finish when an attempt of the job ends.

A call in flight may have taken effect already. If the process is still running when the attempt of the job
ends, the call can finish and be recorded within a grace period, so that the next attempt does not repeat it.
Nothing starts in that period: no call, and no retry of a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors import RecordTooLargeError, StoreError
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.concurrency.bridge import Bridge
from flink_agents.runtime.execution.calls.attempts import AttemptedCall
from flink_agents.runtime.execution.calls.delivery import Delivery
from flink_agents.runtime.execution.environment import RunEnvironment
from flink_agents.runtime.journal.calls import Number, Outcome

_log = bounded_logger("flink_agents.durable")

_NO_OUTCOMES: Mapping[Number, Outcome] = {}


class CallsInFlight:
    """The durable calls of a subtask that have not ended, and their way to the store. For the loop only.

    Args:
        shared: The agent's shared objects.
        bridge: Leads to the event loop, and knows if the attempt of the job is over.
        fail: Ends the attempt of the job because of an error.

    Attributes:
        bridge: Leads to the event loop, and knows if the attempt of the job is over.
        codec: Encodes arguments, results and errors as bytes.
        observers: Observers of runs, which are notified of calls.
        fail: Ends the attempt of the job because of an error.
        on_call: Called with each durable call before anything else happens; for debugging, or None.
        tells_of_calls: True if anything is told of calls that are made for the first time.
        grace: The seconds for which calls in flight may finish at the end of an attempt.
        broken: True if the store failed, so that nothing can be recorded any longer.
        closed: True if the grace period is over, so that nothing is recorded any longer.
    """

    def __init__(self, shared: RunEnvironment, bridge: Bridge, fail: Callable[[BaseException], None]) -> None:
        self.bridge = bridge
        self.codec = shared.codec
        self.observers = shared.telemetry.observers
        self.fail = fail
        self.on_call = shared.journals.on_call if shared.journals is not None else None
        observers = self.observers
        self.tells_of_calls = not (
            self.on_call is observers.call_begun_anew is observers.call_request is None
        )
        self.grace = shared.config.get(AgentOptions.SHUTDOWN_GRACE).total_seconds()
        self.broken = self.closed = False
        self._in_flight: set[AttemptedCall] = set()

    # -- records ----------------------------------------------------------------------

    async def store(
        self,
        append: Callable[[], Awaitable[None]],
        delivery: Delivery | None = None,
        outcomes: Mapping[Number, Outcome] = _NO_OUTCOMES,
        late: bool = False,
    ) -> Mapping[Number, Outcome]:
        """Store records, wait until they are durable, and return the outcomes among them.

        If they cannot be stored, the attempt of the job ends. Then this waits for the cancellation.
        What cancelled actions do in their clean-up is not recorded.

        Args:
            append: Appends them to the journal.
            delivery: Remembers ``outcomes`` once they are stored, so that retries of the action find them.
            outcomes: The outcomes among the records.
            late: True if a call was made before the end of the attempt, so that its record may follow.

        Raises:
            RecordTooLargeError: A record is larger than the store accepts.
        """
        try:
            # A later record must not be stored if an earlier one may be missing.
            if self.broken or self.bridge.closed:
                await self._refuse(late)
            try:
                await append()
            except RecordTooLargeError:
                raise
            except StoreError as error:
                # First, so that no other call starts an append.
                self.broken = True
                self.fail(error)
            else:
                if delivery is not None and outcomes:
                    delivery.mark_recorded(outcomes)
                return outcomes
            # Outside of the handler: a frame that waits inside would keep the error alive as its context.
            await self._wait_for_end()
        except asyncio.CancelledError:
            if delivery is not None:
                # The append may or may not have reached the store. The action's next attempt must know that.
                delivery.note_unsure(outcomes)
            raise

    async def _refuse(self, late: bool) -> None:
        """Return if a record may be stored although the attempt has ended; else wait, or raise."""
        if late and self.bridge.closed and not (self.broken or self.closed):
            return
        await self._wait_for_end()

    async def _wait_for_end(self) -> NoReturn:
        """Wait for the cancellation, so that the action cannot resume, whatever it catches."""
        if self.bridge.closed:
            raise asyncio.CancelledError
        await self.bridge.loop.create_future()
        raise AssertionError("nothing but a cancellation ends this wait")

    # -- calls in flight --------------------------------------------------------------

    def begin(self, call: AttemptedCall, own_task: asyncio.Task[Any] | None) -> None:
        """Count a call as in flight. Its run waits for it.

        Args:
            call: The call.
            own_task: The action's own task if that makes the call; None if the running task does.
        """
        call.in_own_task = own_task is not None
        call.task = own_task or asyncio.current_task()
        self._in_flight.add(call)
        call.step.run.state.begin_wait(call)

    def end(self, call: AttemptedCall) -> None:
        """Note that a call has ended, recorded or not."""
        self._in_flight.discard(call)
        call.step.run.state.end_wait(call)
        call.task = None
        if call.ended is not None and not call.ended.done():
            call.ended.set_result(None)

    @property
    def busy_keys(self) -> set[str]:
        """Keys whose actions make calls in their own tasks that must not be cancelled yet."""
        return {call.step.run.key_text for call in self._in_flight if call.effective and call.in_own_task}

    async def drain(self) -> None:
        """Let calls in flight finish and be recorded, for a bounded time. After that, none is recorded."""
        # Without a store, results cannot be recorded, so waiting has no use.
        seconds = 0.0 if self.broken else self.grace
        loop = asyncio.get_running_loop()
        awaited = list[asyncio.Future[None]]()
        for call in list(self._in_flight):
            if call.effective:
                call.ended = loop.create_future()
                awaited.append(call.ended)
            elif call.task is not None:
                # It waits for a thread or for a retry, so cancelling it loses no effect.
                call.task.cancel()
        if awaited and seconds > 0:
            _, late = await asyncio.wait(awaited, timeout=seconds)
            if late:
                _log.warning(
                    "%d durable calls did not end within %g s of the end of the attempt: the next one makes "
                    "them again",
                    len(late),
                    seconds,
                )
        # From here on, late results are dropped: the next attempt repeats these calls.
        self.closed = True
        for call in list(self._in_flight):
            # A call in the action's own task is cancelled with that task.
            if call.task is not None and not call.in_own_task:
                call.task.cancel()
