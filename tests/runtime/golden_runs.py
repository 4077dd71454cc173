"""Runs in flight, as savepoints and journals in their present format have them.

Each entry of ``golden_runs.json.gz`` is a crash: of a program, at one of its appends. It has the state as a
savepoint has it, and what the program did outside; ``golden_runs.sqlite.gz`` is the store that all of them
share. ``python tests/runtime/golden_runs.py`` made them. After the first release they are never rewritten,
since savepoints and journals are not either.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from flink_agents import Agent, Event, InputEvent, OutputEvent, RetryPolicy
from flink_agents.api.durable import NOT_DONE
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore
from flink_agents.testing import OperatorHarness, Snapshot
from flink_agents.testing.fakes.state import KeyState
from flink_agents.testing.faults import Fault, Faults

STATES = Path(__file__).with_name("golden_runs.json.gz")
STORE = Path(__file__).with_name("golden_runs.sqlite.gz")

EFFECTS: list[list[Any]] = []
"""What durable calls did outside: name, arguments, idempotency key."""


# -- what is called ------------------------------------------------------------------


class Receipt(BaseModel):
    order: str
    amount: Decimal


class Refused(Exception):
    def __init__(self, order: str, code: int) -> None:
        super().__init__(order, code)
        self.order = order
        self.code = code


def charge(order: str, amount: int, idempotency_key: str) -> Receipt:
    EFFECTS.append(["charge", order, amount, idempotency_key])
    return Receipt(order=order, amount=Decimal(amount))


async def ship(order: str, to: Any, idempotency_key: str) -> tuple[str, Any]:
    EFFECTS.append(["ship", order, to, idempotency_key])
    return order, to


def refuse(order: str, idempotency_key: str) -> None:
    EFFECTS.append(["refuse", order, idempotency_key])
    raise Refused(order, 402)


def unsteady(order: str, idempotency_key: str) -> int:
    EFFECTS.append(["unsteady", order, idempotency_key])
    tries = sum(effect[:2] == ["unsteady", order] for effect in EFFECTS)
    if tries % 3:
        raise ConnectionError("busy")
    return tries


def reconcile(order: str, amount: int, idempotency_key: str) -> Any:
    done = [effect for effect in EFFECTS if effect == ["charge", order, amount, idempotency_key]]
    return Receipt(order=order, amount=Decimal(amount)) if done else NOT_DONE


# -- programs ------------------------------------------------------------------------


def count(ctx: Any) -> int:
    number = ctx.short_term_memory.get("count", 0) + 1
    ctx.short_term_memory.set("count", number)
    return number


def plain(event: InputEvent, ctx: Any) -> OutputEvent:
    number = count(ctx)
    first = ctx.durable_execute(charge, event.input, number)
    second = ctx.durable_execute(ship, event.input, [str(first.amount), "Berlin"])
    ctx.short_term_memory.set("last", second)
    third = ctx.durable_execute(charge, second[0], 3)
    return OutputEvent(output=[number, first.order, second, str(third.amount)])


async def awaited(event: InputEvent, ctx: Any) -> OutputEvent:
    number = count(ctx)
    first = await ctx.durable_execute_async(charge, event.input, number)
    second = await ctx.durable_execute_async(ship, event.input, {"city": "Berlin", "at": first.amount})
    third = await ctx.durable_execute_async(charge, second[0], 3)
    return OutputEvent(output=[number, first.order, str(third.amount)])


async def gathered(event: InputEvent, ctx: Any) -> OutputEvent:
    first, second = await asyncio.gather(
        ctx.durable_execute_async(charge, event.input, 1), ctx.durable_execute_async(ship, event.input, "a")
    )
    third, fourth = await ctx.gather(
        ctx.durable_execute_async(ship, event.input, "b"), ctx.durable_execute_async(charge, event.input, 2)
    )
    return OutputEvent(output=[count(ctx), str(first.amount), second[1], third[1], str(fourth.amount)])


def caught(event: InputEvent, ctx: Any) -> OutputEvent:
    try:
        ctx.durable_execute(refuse, event.input)
    except Refused as error:
        seen = [error.order, error.code]
    else:
        seen = []
    first = ctx.durable_execute(charge, event.input, 1)
    return OutputEvent(output=[count(ctx), seen, str(first.amount)])


async def caught_async(event: InputEvent, ctx: Any) -> OutputEvent:
    await ctx.durable_execute_async(charge, event.input, 1)
    try:
        await ctx.durable_execute_async(refuse, event.input)
    except Refused as error:
        seen = [error.order, error.code]
    else:
        seen = []
    second = await ctx.durable_execute_async(ship, event.input, seen)
    return OutputEvent(output=[count(ctx), second[1]])


def retried(event: InputEvent, ctx: Any) -> OutputEvent:
    retry = RetryPolicy(max_attempts=5, initial_interval=0.001)
    tries = ctx.durable_execute(unsteady, event.input, retry=retry)
    first = ctx.durable_execute(charge, event.input, tries % 3)
    return OutputEvent(output=[count(ctx), str(first.amount)])


async def retried_action(event: InputEvent, ctx: Any) -> OutputEvent:
    first = await ctx.durable_execute_async(charge, event.input, 1)
    tries = await ctx.durable_execute_async(unsteady, event.input)
    second = await ctx.durable_execute_async(ship, event.input, str(first.amount))
    return OutputEvent(output=[count(ctx), tries % 3, second[1]])


def reconciled(event: InputEvent, ctx: Any) -> OutputEvent:
    first = ctx.durable_execute(charge, event.input, 1, reconciler=reconcile)
    second = ctx.durable_execute(charge, event.input, 2, reconciler=reconcile)
    return OutputEvent(output=[count(ctx), str(first.amount), str(second.amount)])


class Paid(Event):
    order: str
    receipt: Receipt


def pay(event: InputEvent, ctx: Any) -> Paid:
    count(ctx)
    ctx.sensory_memory.set("order", event.input)
    return Paid(order=event.input, receipt=ctx.durable_execute(charge, event.input, 1))


async def deliver(event: Paid, ctx: Any) -> OutputEvent:
    sent = await ctx.durable_execute_async(ship, event.order, str(event.receipt.amount))
    ctx.short_term_memory.set("sent", sent)
    return OutputEvent(output=[ctx.sensory_memory.get("order"), sent[1]])


def chance(event: InputEvent, ctx: Any) -> OutputEvent:
    what = [str(ctx.uuid4()), ctx.random().random(), ctx.now().isoformat()]
    first = ctx.durable_execute(ship, event.input, what)
    second = ctx.durable_execute(ship, event.input, str(ctx.uuid4()))
    return OutputEvent(output=[count(ctx), first[1], second[1]])


async def branch(ctx: Any, order: str, number: int) -> list[str]:
    first = await ctx.durable_execute_async(charge, order, number)
    second = await ctx.durable_execute_async(ship, order, [number, str(first.amount)])
    return [str(first.amount), str(second[1])]


async def branching(event: InputEvent, ctx: Any) -> OutputEvent:
    both = await asyncio.gather(branch(ctx, event.input, 0), branch(ctx, event.input, 1))
    return OutputEvent(output=[count(ctx), both])


def agent_of(act: Callable[..., Any], name: str = "", **options: Any) -> Agent:
    return Agent(name=name or act.__name__).add_action("act", [InputEvent], act, **options)


STRAIGHT: dict[str, Callable[[], Agent]] = {
    **{
        act.__name__: lambda act=act: agent_of(act)
        for act in (plain, awaited, gathered, caught, caught_async, retried, reconciled, chance)
    },
    "ahead": lambda: agent_of(plain, "ahead"),
    "retried_action": lambda: agent_of(
        retried_action, retry=RetryPolicy(max_attempts=5, initial_interval=0.001)
    ),
    "chained": lambda: (
        Agent(name="chained").add_action("pay", [InputEvent], pay).add_action("deliver", [Paid], deliver)
    ),
}
"""Agents whose actions await one thing at a time, or calls side by side that begin together."""

PROGRAMS: dict[str, Callable[[], Agent]] = {**STRAIGHT, "branching": lambda: agent_of(branching)}

UNORDERED = ("gathered", "branching")
"""Programs whose effects come in another order from one execution to the next."""


KEY = "k"
"""The key of all inputs."""

INPUTS = {"ahead": ["second", "third"]}
"""Inputs of the runs that are in flight; of other programs it is ``["second"]``."""


# -- crashes -------------------------------------------------------------------------


@dataclass(frozen=True)
class Crash:
    """What is left of a program that died.

    Attributes:
        program: Its name.
        at: Which append of the runs in flight did not return.
        stored: Whether that append was stored.
        snapshot: The savepoint.
        again: Inputs that came after the savepoint: the source delivers them again, in this order.
        before: What it had done outside.
        calls: How many records of calls of the runs in flight are in the store.
        outputs: What it gave when it was restored.
        after: What it had done outside in the end.
        memory: What it remembered in the end.
    """

    program: str
    at: int
    stored: bool
    snapshot: Snapshot
    again: list[str]
    before: list[list[Any]]
    calls: int
    outputs: list[Any]
    after: list[list[Any]]
    memory: dict[str, Any]

    @property
    def name(self) -> str:
        """A name that is unique in the files."""
        return name_of(self.program, self.at, self.stored, bool(self.again))


def name_of(program: str, at: int, stored: bool, again: bool) -> str:
    """The name of a crash."""
    return f"{program}-{at}{'-stored' if stored else ''}{'-again' if again else ''}"


def harness_of(program: str, name: str, store: Callable[[], Any]) -> OperatorHarness:
    """The operator of a program, with the job identifier ``name``."""
    config = {"job-identifier": name}
    return OperatorHarness(
        PROGRAMS[program](), lambda record: KEY, config=config, auto_run=False, store=store
    )


def make_crash(program: str, at: int, stored: bool, again: bool, file: Path) -> dict[str, Any] | None:
    """Let a program die at an append after its first run; None where the other runs have fewer.

    Args:
        program: Its name.
        at: Which append of those runs.
        stored: Whether that append is stored.
        again: Whether the savepoint is from before those runs, else from their middle.
        file: The store.
    """
    EFFECTS.clear()
    name = name_of(program, at, stored, again)
    faults = Faults(make=lambda: SQLiteStore(file))
    harness = harness_of(program, name, faults.store)
    harness.push("first")
    harness.run_until_idle()
    done, snapshot = len(faults.appends), harness.snapshot()
    fault = Fault.HANGS_STORED if stored else Fault.HANGS
    faults.choose = lambda number, journal, records: fault if number == done + at else None
    inputs = INPUTS.get(program, ["second"])
    for record in inputs:
        harness.push(record)
    [subtask] = harness._subtasks
    while not faults.hanging.wait(0.01):
        if subtask.processor.loop_access.loop.progress == 1 + len(inputs):
            harness.close()
            return None
    if not again:
        snapshot = harness.snapshot()
    previous_effects = plain_json(EFFECTS)
    harness.close()
    return {
        "program": program,
        "at": at,
        "stored": stored,
        "keys": {key: packed(state) for key, state in snapshot.keys.items()},
        "again": inputs[::-1] if again else [],
        "before": previous_effects,
        "calls": calls_in(file, f"{name}/{harness.plan.name}"),
    }


def calls_in(file: Path, journal_id: str) -> int:
    """How many calls of runs after the first one are recorded."""
    connection = sqlite3.connect(file)
    [[number]] = connection.execute(
        "SELECT count(*) FROM records JOIN journals ON journals.id = records.journal "
        "WHERE kind = 3 AND seq > 0 AND journal_id = ?",
        (journal_id.encode(),),
    )
    connection.close()
    return number


def packed(state: KeyState) -> dict[str, Any]:
    """State of a key as JSON."""
    return {
        "rested": None if state.rested is None else state.rested.hex(),
        "busy": None if state.busy is None else state.busy.hex(),
        "pending": {str(number): data.hex() for number, data in state.pending.items()},
        "memory": {path: data.hex() for path, (data, _) in state.memory.items()},
        "processing_timers": sorted(state.processing_timers),
        "event_timers": sorted(state.event_timers),
    }


def unpacked(kept: dict[str, Any]) -> KeyState:
    """State of a key from JSON."""
    return KeyState(
        rested=None if kept["rested"] is None else bytes.fromhex(kept["rested"]),
        busy=None if kept["busy"] is None else bytes.fromhex(kept["busy"]),
        pending={int(number): bytes.fromhex(data) for number, data in kept["pending"].items()},
        memory={path: (bytes.fromhex(data), None) for path, data in kept["memory"].items()},
        processing_timers=set(kept["processing_timers"]),
        event_timers=set(kept["event_timers"]),
    )


def read_crashes() -> list[Crash]:
    """All crashes of the file."""
    return list(map(crash_of, json.loads(gzip.decompress(STATES.read_bytes()))))


def crash_of(kept: dict[str, Any]) -> Crash:
    """A crash as the file has it."""
    snapshot = Snapshot({key: unpacked(state) for key, state in kept["keys"].items()}, 0, {}, 128)
    remaining_fields = {name: value for name, value in kept.items() if name != "keys"}
    return Crash(snapshot=snapshot, **{"outputs": [], "after": [], "memory": {}, **remaining_fields})


def restore(crash: Crash, file: Path) -> tuple[list[Any], dict[str, Any]]:
    """Let a program go on; returns its outputs and its memory, and leaves its effects in ``EFFECTS``."""
    EFFECTS[:] = [*crash.before]
    with harness_of(crash.program, crash.name, lambda: SQLiteStore(file)) as harness:
        harness.restore(crash.snapshot)
        for record in crash.again:
            harness.push(record)
        harness.run_until_idle()
        return plain_json(harness.outputs), plain_json(harness.memory(KEY))


def plain_json(value: Any) -> Any:
    """``value`` as it comes out of a file."""
    return json.loads(json.dumps(value, default=str))


def write() -> None:
    """Make the files."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "store"
        crashes = [stored_crash for program in PROGRAMS for stored_crash in crashes_of(program, file)]
        connection = sqlite3.connect(file)
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("VACUUM")
        connection.close()
        STORE.write_bytes(gzip.compress(file.read_bytes(), mtime=0))
        for crash in crashes:
            if crash["program"] in STRAIGHT:
                crash["outputs"], crash["memory"] = restore(crash_of(crash), file)
                crash["after"] = plain_json(EFFECTS)
    lines = ",\n".join(json.dumps(stored_crash) for stored_crash in crashes)
    STATES.write_bytes(gzip.compress(f"[\n{lines}\n]\n".encode(), mtime=0))


def crashes_of(program: str, file: Path) -> Iterator[dict[str, Any]]:
    """Each crash of a program, of which none comes behind the end of its run."""
    for again, stored in ((False, False), (False, True), (True, False)):
        # With nothing recorded, inputs in another order are other runs.
        at = int(again and program in INPUTS)
        while (crash := make_crash(program, at, stored, again, file)) is not None:
            yield crash
            at += 1


if __name__ == "__main__":
    # Records name functions by their module, which is no main script in tests.
    sys.path.insert(0, str(Path(__file__).parent))
    __import__("golden_runs").write()
