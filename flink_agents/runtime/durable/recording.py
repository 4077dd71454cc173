"""Stores what executions of actions record, as long as their attempt of the job may."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NoReturn

from flink_agents.api.errors import RecordTooLargeError, StoreError
from flink_agents.runtime.concurrency.bridge import Bridge
from flink_agents.runtime.durable.in_flight import InFlight
from flink_agents.runtime.execution.context import ActionRun
from flink_agents.runtime.journal.calls import Call, Number, Outcome, StepCalls
from flink_agents.runtime.journal.run_journal import RunJournal


class Recording:
    """Stores records, and ends the attempt where that fails. Only the thread of the agent loop uses it.

    Args:
        bridge: Leads to the agent loop, and knows whether the attempt is over.
        fail: Ends the attempt of the job because of an error.
        on_call: Told of each call, before anything else happens; for debugging, or None.

    Attributes:
        bridge: See above.
        fail: See above.
        on_call: See above.
        in_flight: The calls that go on.
        broken: Whether the store failed: nothing can be recorded any more.
    """

    def __init__(
        self,
        bridge: Bridge,
        fail: Callable[[BaseException], None],
        on_call: Callable[[Any, Call], None] | None = None,
    ) -> None:
        self.bridge = bridge
        self.fail = fail
        self.on_call = on_call
        self.in_flight = InFlight(bridge)
        self.broken = False

    async def stored(self, append: Coroutine[Any, Any, None], late: bool = False) -> None:
        """Wait until records are stored. Where they cannot be, the attempt of the job ends.

        Nor is anything stored of what an action does when it is cancelled by the end of the attempt.

        Args:
            append: Stores them.
            late: Whether they are of a call that was made before the end of the attempt.

        Raises:
            RecordTooLargeError: One is larger than the store takes.
        """
        if self.broken or self.bridge.over:
            await self._refuse(append, late)
        try:
            return await append
        except RecordTooLargeError:
            raise
        except StoreError as error:
            self._break(error)
        # Behind the handler: who waits there would keep the error, and be its context.
        await self._wait_for_end()

    async def kept(
        self,
        calls: StepCalls,
        outcomes: Mapping[Number, Outcome],
        append: Coroutine[Any, Any, None],
        late: bool = False,
    ) -> int:
        """Store outcomes, and let further attempts of the execution find them; returns how many.

        Args:
            calls: Those of the execution.
            outcomes: What is stored.
            append: Stores it.
            late: Whether it is of a call that was made before the end of the attempt.
        """
        try:
            # What ``stored`` does, without a coroutine more for each call.
            if self.broken or self.bridge.over:
                await self._refuse(append, late)
            try:
                await append
            except RecordTooLargeError:
                raise
            except StoreError as error:
                self._break(error)
            else:
                calls.keep(outcomes)
                return len(outcomes)
            await self._wait_for_end()
        except asyncio.CancelledError:
            # They may be stored or not. The next attempt of the action must know.
            calls.unsure.update(outcomes)
            raise

    async def _refuse(self, append: Coroutine[Any, Any, None], late: bool) -> None:
        """Return where a record may be stored although the attempt has ended; raise or wait where not."""
        if late and self.bridge.over and not (self.broken or self.in_flight.over):
            return
        append.close()
        await self._wait_for_end()

    def _break(self, error: StoreError) -> None:
        """End the attempt, since the store failed."""
        self.broken = True
        self.fail(error)

    async def _wait_for_end(self) -> NoReturn:
        """Let nothing follow, whatever the action catches or does besides: it waits for its cancellation."""
        if self.bridge.over:
            raise asyncio.CancelledError
        await self.bridge.loop.create_future()
        raise AssertionError("nobody ends the wait but by cancelling it")


def journal_of(step: ActionRun) -> RunJournal:
    """The journal of the run that an execution belongs to, where its calls can be recorded."""
    assert step.run.journal is not None
    return step.run.journal
