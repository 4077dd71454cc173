"""Jobs with separate harnesses and a shared store, for tests of the ownership of journals."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.api.action_state import ActionStateStore, JournalKey, Record, RecordKind
from flink_agents.runtime.journal.identity import journal_name
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.testing import OperatorHarness
from flink_agents.testing.harness import Snapshot

MADE: list[tuple[str, str, str]] = []
"""What calls did outside: which job made it, its input, and its idempotency key."""

CLOSED: set[tuple[str, str]] = set()
"""Which calls of which job do not go on: the job, and the beginning of their text."""

CHANGED = threading.Condition()

FIRST = "1" * 32
SECOND = "2" * 32
THIRD = "3" * 32
"""Flink's ids of jobs."""

Make = Callable[[], ActionStateStore]


def book(job: str, text: str, key: str) -> str:
    with CHANGED:
        assert CHANGED.wait_for(
            lambda: not any(closed_job == job and text.startswith(at) for closed_job, at in CLOSED), 60
        )
    MADE.append((job, text, key))
    return f"{text} by {job}"


def close(job: str, *texts: str) -> None:
    CLOSED.update((job, text) for text in texts)


def open_(job: str | None = None, *texts: str) -> None:
    """Let calls of a job go on: some, all of it, or those of all jobs."""
    with CHANGED:
        opened_calls = {
            (closed_job, text)
            for closed_job, text in CLOSED
            if job in (None, closed_job) and (not texts or text in texts)
        }
        CLOSED.difference_update(opened_calls)
        CHANGED.notify_all()


class Books(Agent):
    """Makes two calls for each input, in the name of a job, which no argument tells."""

    agent_name = "durable"

    def __init__(self, job: str, drawn: bool = False) -> None:
        self.job = job
        self.drawn = drawn

    @action(InputEvent)
    def act(self, event: Any, ctx: Any) -> Any:
        def call(text: str, idempotency_key: str) -> str:
            return book(self.job, text, idempotency_key)

        seen = ctx.short_term_memory.get("seen", 0) + 1
        ctx.short_term_memory.set("seen", seen)
        drawn = [f" {ctx.uuid4()}" if self.drawn else "" for _ in range(2)]
        first_booking = ctx.durable_execute(call, f"{event.input} 1{drawn[0]}", name="book")
        two = ctx.durable_execute(call, f"{event.input} 2{drawn[1]}", name="book")
        return OutputEvent(output=(first_booking, two, seen))


class Job:
    """A job that is driven by a harness of its own."""

    def __init__(self, make: Make, name: str, drawn: bool = False, **config: Any) -> None:
        self.name = name
        named = {} if len(name) == 32 else {"job-identifier": name}
        options = {f"action-state.{key.replace('_', '-')}": value for key, value in config.items()}
        self.harness = OperatorHarness(
            Books(name, drawn),
            config={**named, **options},
            store=make,
            job_id=name if len(name) == 32 else f"{abs(hash(name)):032x}"[:32],
            auto_run=False,
            forced_replay=False,
            forced_restart=False,
        )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *exception: object) -> None:
        open_(self.name)
        self.harness.close()

    def push(self, *inputs: str) -> list[Any]:
        output_count = len(self.harness.outputs)
        for text in inputs:
            self.harness.push(text)
        self.harness.run_until_idle()
        return self.harness.outputs[output_count:]

    def start(self, text: str) -> None:
        """Begin with an input and return when its first call was recorded; the second one waits."""
        close(self.name, f"{text} 2")
        self.harness.push(text)
        while not any(text in str(data) for data in self.recorded()):
            pass

    def go_on(self) -> list[Any]:
        """Let all go on that waits."""
        open_(self.name)
        return self.harness.run_until_idle()

    def recorded(self) -> list[bytes]:
        return [
            record.data for record in all_records(self.harness._make_store) if record.kind is RecordKind.CALL
        ]

    def restore(self, snapshot: Snapshot) -> None:
        self.harness.restore(snapshot)


def all_records(make: Make | None) -> list[Record]:
    assert make is not None

    async def read() -> list[Record]:
        store = make()
        await store.open(None)
        records = [record for info in await store.journals() for record in await store.scan(info.journal)]
        await store.close()
        return records

    return asyncio.run(read())


def prune(make: Make, name: str, snapshot: Snapshot) -> None:
    """Prune what the checkpoint of a job covers."""

    async def run() -> None:
        store = make()
        await store.open(None)
        for key, state in snapshot.keys.items():
            if state.head is not None:
                through = Head.unpack(state.head).next_seq - 1
                await store.prune(JournalKey(journal_name(name, "durable"), key), through)
        await store.close()

    asyncio.run(run())


def made_by(job: str) -> Counter[str]:
    return Counter(text for name, text, _ in MADE if name == job)
