"""Replays a run from its journal, without effects: for debugging.

Actions are executed; durable steps return their recorded results. The replay ends at the first step
that has no record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flink_agents.api.action_state import JournalKey, Owner, Record, RecordKind
from flink_agents.api.agents.agent import Agent
from flink_agents.api.durable import OnJobChange
from flink_agents.api.errors import RunNotReplayableError
from flink_agents.api.settings.options import AgentOptions
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.calls.call import DurableCall
from flink_agents.runtime.execution.limits import ControlFlow
from flink_agents.runtime.journal.identity import split_journal_name
from flink_agents.runtime.journal.records import RunHeader
from flink_agents.runtime.operator.assembly import OperatorHost
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.keys import decode_key
from flink_agents.runtime.state.delayed import DelayedInput
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.testing.fakes.state import FakeBackend, KeyState
from flink_agents.testing.fakes.waits import PendingWait
from flink_agents.testing.harness import OperatorHarness


@dataclass
class RunReplay:
    """The outcome of a replay.

    Attributes:
        calls: Each durable call in the order in which it was made: action, number in its task, function,
            arguments as text.
        outputs: The outputs of the run.
        memory: Short-term memory of the key after the run, by dotted path; that before the run if it did not
            complete.
        ended: Why it ended early; None if it completed or waits.
        waits: What the run waits for; empty if it does not wait.
    """

    calls: list[tuple[str, int, str, str]] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)
    ended: str | None = None
    waits: list[PendingWait] = field(default_factory=list[PendingWait])


class EndOfReplay(ControlFlow):
    """Raised at the call at which a replay ends. It is no ``Exception``, so that actions do not catch it."""


def replay_run(
    agent: Agent | type[Agent], journal: JournalKey, records: Sequence[Record], until_call: int | None = None
) -> RunReplay:
    """Replay a run of an agent from its records.

    Args:
        agent: The agent, or its class.
        journal: The journal of the run's key.
        records: All records of the run, in the order in which they were appended.
        until_call: Number of durable steps after which to stop; None for all that have records.

    Raises:
        RunNotReplayableError: The run's header lacks its input, or there is none.
        ActionFailedError: The agent fails, as it may have done in the recorded run.
    """
    codec = ValueCodec()
    header = _read_header(codec, records)
    replay = RunReplay()

    def note_call(step: ActionRun, call: DurableCall) -> None:
        name = call.identity.function
        number = call.number.nth
        replay.calls.append((step.action.name, number, name, call.identity.request or ""))
        if until_call is not None and len(replay.calls) > until_call:
            raise EndOfReplay(f"before call {number} of action {step.action.name}: {name}")
        if call.recorded is None:
            raise EndOfReplay(f"call {number} of action {step.action.name}, {name}, has no record")

    place = _place_with(journal, records)
    key = decode_key(journal.key)
    job_id, name = split_journal_name(journal.journal_id)
    config = {AgentOptions.ON_JOB_CHANGE.key: OnJobChange.ADOPT}
    store: Any = {"store": lambda: MemoryStore(place), "auto_run": False}
    harness = _ReplayHarness(note_call, agent, lambda record: key, name=name, config=config, **store)
    with harness:
        head = Head(job_id, records[0].seq, store=place.store_id)
        packed_input = header.input or b""
        record, timestamp = codec.decode(packed_input)
        is_delayed = isinstance(record, DelayedInput)
        state = _state_before(head, header.memory or {}, packed_input if is_delayed else None)
        harness.restore(replace(harness.snapshot(), keys={journal.key: state}))
        try:
            if not is_delayed:
                harness.push(record, timestamp)
            harness.run_until_idle()
        except EndOfReplay as end:
            replay.ended = str(end)
        else:
            replay.waits = harness.waits(key)
        replay.outputs = list(harness.outputs)
        replay.memory = harness.memory(key)
    return replay


class _ReplayHarness(OperatorHarness):
    """A harness that passes each durable call to ``on_call``, which may raise :class:`EndOfReplay`."""

    def __init__(
        self, on_call: Callable[[ActionRun, DurableCall], None], *arguments: Any, **options: Any
    ) -> None:
        self._on_call = on_call
        super().__init__(*arguments, **options)

    def _create_host(self, number: int, parallelism: int, backend: FakeBackend) -> OperatorHost:
        return replace(super()._create_host(number, parallelism, backend), on_call=self._on_call)


def _state_before(head: Head, memory: Mapping[str, bytes], delayed: bytes | None) -> KeyState:
    """Return the state of the key before the run.

    Args:
        head: The head of the key.
        memory: Its encoded memory by path.
        delayed: The packed delayed event that started the run, which is due in that state; None for another
            input.
    """
    state = KeyState()
    head.nodes = dict(memory)
    if delayed is None:
        state.rested = head.pack()
    else:
        head.inputs = {0: delayed}
        head.next_pending = 1
        state.busy = head.pack()
    return state


def _read_header(codec: ValueCodec, records: Sequence[Record]) -> RunHeader:
    """Return the header of a run.

    Raises:
        RunNotReplayableError: It is missing, or has no input.
    """
    header = next((record for record in records if record.kind is RecordKind.RUN), None)
    if header is None:
        raise RunNotReplayableError(
            "this run has no records", fix="choose a run that 'flink-agents journal show' lists"
        )
    run_header = RunHeader.unpack(codec, header.data)
    if run_header.input is None:
        raise RunNotReplayableError(
            "the input of this run was too large to be recorded, or this is a further part of a run",
            fix="replay it in a test: push the input to an OperatorHarness",
        )
    return run_header


def _place_with(journal: JournalKey, records: Sequence[Record]) -> MemoryPlace:
    """Return a place in memory with the records, except those of whole actions: actions are executed."""
    place = MemoryPlace()

    async def fill() -> None:
        store = MemoryStore(place)
        await store.open(Owner.create("replay", "replay"))
        await store.append(journal, [record for record in records if record.kind is not RecordKind.ACTION])
        await store.close()

    asyncio.run(fill())
    return place
