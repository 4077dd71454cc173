"""The end of an attempt of a sub-agent's action: an outcome that the calling action waits for.

So it has its place in the order of the outcomes of the calling action, and a replay delivers it there. If the
attempt failed, a replay takes the error from the record, as with a durable call, and does not execute it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from flink_agents.api.action_state import RecordKind
from flink_agents.runtime.concurrency.bridge import Outcome as CodeOutcome, carried, thrown
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.outcomes.action_tasks import OwnFuture
from flink_agents.runtime.execution.outcomes.delivery import Delivery, outside
from flink_agents.runtime.execution.outcomes.pending_outcomes import PendingOutcome
from flink_agents.runtime.execution.waits.approvals import asked_inside, forget_asked
from flink_agents.runtime.journal.calls import Mismatch, Outcome, attempts_task
from flink_agents.runtime.journal.records import FAILED, WaitRecord
from flink_agents.runtime.journal.run_journal import RunJournal
from flink_agents.runtime.serde import exceptions as failures

WHAT = "an action of a sub-agent"
"""The object of the wait, as text. It has no name, so that a sub-agent and its actions can be renamed."""

_ROOM = 256
"""An upper bound for the bytes of a record besides its error and the requests for approvals."""


class AttemptFuture(OwnFuture):
    """The future for the end of an attempt.

    Attributes:
        inner: The task of the attempt, so that stacks show it.
    """

    inner: asyncio.Task[Any] | None = None


class AttemptEnd(PendingOutcome):
    """The end of an attempt of a sub-agent's action.

    Args:
        root: The action of the job's agent.
        delivery: Delivers outcomes to it.
        path: The path of the action of the sub-agent; see ``journal.calls``.
        outer: The attempts of the enclosing sub-agents.

    Attributes:
        path: The path of the action of the sub-agent.
        future: Ends when the outcome is delivered.
        attempt: The attempt, after those of the enclosing sub-agents.
        name: The name of the attempt in state.
    """

    encloses = True

    __slots__ = (
        "_delivery",
        "_error",
        "_root",
        "_starting",
        "attempt",
        "future",
        "name",
        "path",
    )

    def __init__(self, root: ActionRun, delivery: Delivery, path: str, outer: str) -> None:
        super().__init__(delivery.number(RecordKind.WAIT, attempts_task(path)))
        self._root = root
        self._delivery = delivery
        self._error: BaseException | None = None
        self._starting = False
        self.path = path
        self.attempt = f"{outer}.{self.number.nth}" if outer else str(self.number.nth)
        self.name = f"{path}!{self.attempt}"
        self.future = AttemptFuture(loop=asyncio.get_running_loop())

    @property
    def recorded(self) -> Outcome | None:
        """The recorded end of the attempt, or None."""
        return self._delivery.recorded(self.number)

    @property
    def has_succeeded(self) -> bool:
        """True if the attempt has succeeded according to its record."""
        return isinstance(self.recorded, WaitRecord) and self.recorded.end is None

    @property
    def has_to_continue(self) -> bool:
        """True if the attempt has succeeded, or went on, according to the records."""
        return self.has_succeeded or self._delivery.is_replaying(self.path)

    @property
    def outlasts(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True while the user's code is executed: then its own waits decide if the run can be suspended."""
        inner = self.future.inner
        return inner is not None and not inner.done()

    @property
    def in_transit(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True if the attempt is about to start, or has just ended."""
        return self.performing is not None and not self.performing.done() and not self.outlasts

    def start(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Start the attempt, or skip its outcomes if it failed according to its record.

        Raises:
            Mismatch: The record is that of another action.
        """
        recorded = self.recorded
        if recorded is not None and not (isinstance(recorded, WaitRecord) and recorded.what == WHAT):
            recorded_wait = recorded.what if isinstance(recorded, WaitRecord) else recorded.call
            raise self._delivery.note_mismatch(Mismatch(self.number, recorded_wait, WHAT))
        if recorded is not None and not self.has_succeeded:
            self._delivery.pass_over(self.path, recorded.order)
            return
        self.restart(self.attempt.strip("0.") != "")
        # The calling action is not at rest before the code has started, so that all of it happens in order.
        self._delivery.ready += 1
        self._starting = True
        context = outside()
        self.perform(make(), context).add_done_callback(self._end, context=context)

    def let_rest(self) -> None:
        """Note that the code of the attempt has started, or that the attempt waits before that."""
        if self._starting:
            self._starting = False
            self._delivery.unready()

    def restart(self, repeats: bool = True) -> None:
        """Prepare for the code of the attempt, with what the attempts before it, if any, have got."""
        # The requests of a failed attempt are those of the next one.
        forget_asked(self._root, self.path)
        self._delivery.restart(self.path, repeats)

    async def cancel(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Cancel the attempt, and wait for the end of its code: its clean-up goes first.

        Args:
            tasks: Tasks that its code started.
        """
        self._delivery.detach_wait(self)
        self._delivery.forget_repeated(self.path)
        self._delivery.end_attempt(self.path)
        inner = self.future.inner
        if inner is None or inner.done():
            self.stop()
            return
        # Here and not from outside, so that it happens in order.
        running = [inner, *(task for task in tasks if not task.done())]
        for task in running:
            task.cancel()
        # If its code swallows that, further cancellations reach it as well: it must not outlive this action.
        end_of_code: Any = asyncio.gather(*running, return_exceptions=True)
        end_of_code.inner = inner
        await end_of_code

    def is_there(self) -> bool:
        """Return True if the attempt has ended. Its code has to be executed again if it succeeded."""
        return self.performing is None or self.performing.done()

    def deliver(self, outcome: Outcome) -> None:
        """Hand the record of the end to the executor."""
        if not self.future.done():
            self.future.set_result(outcome)

    def abandon_wait(self) -> None:
        """End the wait without an outcome."""
        self.future.cancel()

    def result(self) -> ActionRun:
        """Return the execution that has succeeded; raise the error of one that has failed."""
        outcome = None
        record = self.future.result()
        if self.performing is not None:
            outcome = self.performing.result()
        if record.end is None:
            self._delivery.end_attempt(self.path)
            assert outcome is not None
            return outcome.result()
        # What it asked for before it failed stays, as with other actions.
        self._delivery.end_failed_attempt(self.path, record.order)
        if self._root.run.waits is not None:
            self._root.run.waits.forget_unawaited(self._delivery, self.path)
        codec = self._root.shared.codec
        described, encoded_requests = codec.decode(record.value)
        rebuilt = failures.rebuild(codec, described)
        if outcome is None:
            self._root.side = [*(self._root.side or ()), *((tag, value) for tag, value in encoded_requests)]
            raise rebuilt
        error = self._error
        self._error = None
        assert error is not None
        # Code that catches it must behave in the same way on replay, which has the record only.
        raise error if type(rebuilt) is type(error) else failures.first_time(rebuilt, error)

    def _end(self, task: asyncio.Task[CodeOutcome]) -> None:
        self.let_rest()
        if task.cancelled() or self.gone or self._delivery.closed:
            return
        delivery = self._delivery
        code_outcome = task.result()
        error = code_outcome.raised
        if error is not None:
            delivery.forget_repeated(self.path)
        if delivery.mismatch is not None or (self.recorded is not None and error is not None):
            # The replay cannot continue, or it differs from its record for good.
            self.gone = True
            self.future.set_exception(carried(error) if error is not None else asyncio.CancelledError())
        elif self.recorded is not None:
            delivery.deliver_next()
        else:
            self._error = error
            delivery.end(self, self._record(error))

    def _record(self, error: BaseException | None) -> WaitRecord:
        delivery = self._delivery
        root = self._root
        record = WaitRecord(WHAT, int(time.time() * 1000), delivery.next_place(), delivery.elapsed())
        if error is None:
            return record
        codec = root.shared.codec
        journal = root.run.journal
        assert isinstance(journal, RunJournal)
        requests = [list(entry) for entry in asked_inside(root, self.path)]
        used_bytes = _ROOM + len(codec.encode(requests))
        described = failures.describe(codec, thrown(error), failures.room(journal.limit, used_bytes))
        return record._replace(end=FAILED, value=codec.encode([described, requests]))
