"""The records of durable calls, and how checkpoints prune them, for a test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from flink_agents.api.action_state import ActionStateStore, Record
from flink_agents.api.errors import AgentConfigurationError
from flink_agents.api.settings.options import AgentOptions
from flink_agents.runtime.journal.calls import steps_of
from flink_agents.runtime.journal.identity import split_journal_name
from flink_agents.runtime.journal.records import CallRecord
from flink_agents.runtime.serde import exceptions as failures
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.keys import encode_key
from flink_agents.testing.fakes.checkpoints import FakeFlink
from flink_agents.testing.fakes.state import Snapshot
from flink_agents.testing.subtasks.building import Builder

T = TypeVar("T")


@dataclass(frozen=True)
class RecordedCall:
    """A durable call with a record in the store.

    Attributes:
        sequence_number: Number of the run within its key.
        action: Name of the action that made the call.
        function: Name of the function in records: ``module:qualname``, or the name in its settings.
        request: Its arguments as text, for display.
        value: Its result; None if it raised.
        error: Its error; None if it returned.
        attempts: Number of its attempts.
    """

    sequence_number: int
    action: str
    function: str
    request: str
    value: Any
    error: BaseException | None
    attempts: int


def calls_of(codec: ValueCodec, records: list[Record]) -> list[RecordedCall]:
    """Return the durable calls in the records of a journal, by run and then in the order of their ends."""
    runs: dict[int, list[Record]] = {}
    for record in records:
        runs.setdefault(record.seq, []).append(record)
    calls: list[RecordedCall] = []
    for number, of_run in sorted(runs.items()):
        for path, step in steps_of(codec, of_run).items():
            action = path.rpartition("/")[2]
            calls += [
                _call_of(codec, number, action, outcome)
                for _, outcome in step.in_order()
                if isinstance(outcome, CallRecord)
            ]
    return calls


def _call_of(codec: ValueCodec, number: int, action: str, ended: CallRecord) -> RecordedCall:
    value = None if ended.value is None else codec.decode(ended.value)
    error = None if ended.error is None else failures.rebuild(codec, ended.error)
    request = ended.call.request or ""
    return RecordedCall(number, action, ended.call.function, request, value, error, ended.attempts)


async def records_of(make: Callable[[], ActionStateStore], agent: str, key: Any) -> list[Record]:
    """Read all records of a key of an agent; owners that append are not fenced.

    Args:
        make: Creates a store that is not open.
        agent: Name of the agent.
        key: The key.
    """
    store = make()
    text = encode_key(key)
    records = list[Record]()
    await store.open(None)
    try:
        await store.rebuild()
        for info in await store.journals():
            journal = info.journal
            if journal.key == text and split_journal_name(journal.journal_id)[1] == agent:
                records += await store.scan(journal)
    finally:
        await store.close()
    return records


def answer_of(question: Callable[[], Awaitable[T]]) -> T:
    """Await ``question()`` in a new thread, and return its result: this thread may have a running loop."""
    answers: list[T] = []
    failed: list[BaseException] = []

    async def await_question() -> None:
        answers.append(await question())

    def run() -> None:
        try:
            asyncio.run(await_question())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="harness-records", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return answers[0]


class Records(Builder):
    """The records of durable calls, and checkpoints that prune them. A base class of ``OperatorHarness``."""

    def recorded_calls(self, key: Any = 0) -> list[RecordedCall]:
        """Return the recorded durable calls of a key, by run and then in the order of their ends.

        Calls of pruned runs are missing, and calls of attempts of an action that was retried.
        """
        make_store = self._make_store
        if make_store is None:
            return []
        records = answer_of(lambda: records_of(make_store, self.plan.name, key))
        return calls_of(ValueCodec(self._config.get(AgentOptions.ALLOW_PICKLE)), records)

    def complete(self, snapshot: Snapshot) -> None:
        """Complete a checkpoint, so that the records that only earlier ones need are pruned, as in a job.

        Do not restore earlier snapshots afterwards: records that they need may be missing.

        Raises:
            AgentConfigurationError: The checkpoint was aborted, or the harness lacks ``checkpoints=True``.
        """
        self._checkpoints().complete_checkpoint(snapshot.number)

    def abort(self, snapshot: Snapshot) -> None:
        """Abort a checkpoint: it prunes nothing, and cannot be restored.

        Raises:
            AgentConfigurationError: The harness lacks ``checkpoints=True``.
        """
        self._checkpoints().abort_checkpoint(snapshot.number)

    def _checkpoints(self) -> FakeFlink:
        if self._flink is None:
            raise AgentConfigurationError(
                "the harness does not prune records, so that no checkpoint completes",
                expected="a harness with checkpoints",
                found="checkpoints=False, the default",
                fix="write OperatorHarness(..., checkpoints=True)",
            )
        return self._flink
