"""Helpers for tests of durable calls: effects that are counted outside, crashes, journals."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from flink_agents import Agent, InputEvent
from flink_agents.api.action_state import JournalKey, Record, RecordKind
from flink_agents.api.errors import StoreError
from flink_agents.runtime.journal.records import CallRecord
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Choose, Fault, Faults, at_record

EFFECTS: list[Any] = []
"""What durable calls did outside, in order; nothing takes it back."""

SEEN: list[Any] = []
"""What executions of actions saw, in order."""


class Order(BaseModel):
    number: int
    lines: list[str] = []


@dataclass
class Money:
    amount: Decimal
    currency: str


class Point(NamedTuple):
    x: int
    y: int


def effect(value: Any) -> Any:
    """Take effect outside."""
    EFFECTS.append(value)
    return value


async def effect_async(value: Any) -> Any:
    """The same as a coroutine function."""
    EFFECTS.append(value)
    return value


class Service:
    """Makes durable calls for actions of other modules."""

    def call(self, ctx: Any, value: Any) -> Any:
        return self._made(ctx, value)

    def _made(self, ctx: Any, value: Any) -> Any:
        return ctx.durable_execute(effect, value)

    async def call_async(self, ctx: Any, value: Any) -> Any:
        return await ctx.durable_execute_async(effect_async, value)


SERVICE = Service()


def counted() -> Counter[Any]:
    """How often each effect was taken."""
    return Counter(EFFECTS)


def one_action(act: Callable[..., Any], **options: Any) -> Agent:
    """An agent of one action, a function of a module."""
    return Agent(name="durable").add_action("act", [InputEvent], act, **options)


@contextmanager
def crash() -> Iterator[None]:
    """Expect that the attempt ends since the store failed."""
    with pytest.raises(StoreError) as caught:
        yield
    # Its frames lead to the harness, and the operator of the attempt to it: that would be left to the
    # collector of cycles, which may run on the loop's own thread.
    caught.value.__traceback__ = None


def crash_and_replay(
    agent: Agent | type[Agent],
    *records: Any,
    choose: Choose | None = None,
    timestamp: int | None = None,
    **options: Any,
) -> OperatorHarness:
    """Let an agent handle records with a crash, and again after a restore from before all of it.

    The crash is where ``choose`` says, by default where the first action would be recorded: its
    calls are recorded then, and its code runs again.
    """
    faults = Faults(choose or at_record(RecordKind.ACTION, Fault.REFUSED))
    harness = OperatorHarness(agent, store=faults.store, **options)
    snapshot = harness.snapshot()
    with crash():
        for record in records or (None,):
            harness.push(record, timestamp)
    harness.restore(snapshot)
    for record in records or (None,):
        harness.push(record, timestamp)
    return harness


def journal(faults: Faults, key: str | None = None) -> list[Record]:
    """All records that are stored, by journal."""

    async def read() -> list[Record]:
        store = faults.store()
        await store.open(None)
        infos = await store.journals()
        records = [
            record
            for info in infos
            if not info.journal.journal_id.startswith("\x00") and (key is None or info.journal.key == key)
            for record in await store.scan(info.journal)
        ]
        await store.close()
        return records

    return asyncio.run(read())


def journal_keys(faults: Faults) -> list[JournalKey]:
    """All journals that are stored."""

    async def read() -> list[JournalKey]:
        store = faults.store()
        await store.open(None)
        infos = await store.journals()
        return [info.journal for info in infos if not info.journal.journal_id.startswith("\x00")]

    return asyncio.run(read())


def calls_of(records: list[Record]) -> list[CallRecord]:
    """The calls among records."""
    codec = ValueCodec(False)
    return [CallRecord.unpack(codec, record.data) for record in records if record.kind is RecordKind.CALL]


def forget() -> None:
    """Begin a test: nothing took effect, nothing was seen."""
    EFFECTS.clear()
    SEEN.clear()
