"""Random programs of an agent, each with a crash at every point in turn, against the same without one.

    python -m tests.random_programs --programs 10000 --seed 1

A program is a list of inputs of a few keys, and for each input what the action does with it: memory,
durable calls that return or raise, parallel calls, pauses, outputs, nested events. It runs once
without a crash. Then it runs with a crash, at several of the points at which it waits in turn: the
store fails at an append in one of several ways, or the operator is thrown away while an action or a
call waits. The operator is restored from a checkpoint, and the program goes on; the inputs that
come again may come in another order among keys. Outputs per key, memory and side outputs have to be
the same, and no effect may be repeated whose record was acknowledged.

A failure prints the program, and the command that runs it again.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from flink_agents import Agent, Event, InputEvent, OutputEvent, RetryPolicy
from flink_agents.api.action_state import JournalKey, Record, RecordKind
from flink_agents.api.errors import StoreError
from flink_agents.runtime.codec import ValueCodec
from flink_agents.runtime.journal.records import CallRecord
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Choose, Fault, Faults

KEYS = ("a", "b", "c")
CRASHES = 2
"""How many of its crash points are tried of one program; which ones, the seed says."""

SHARE = 50
"""How many programs a process takes at a time."""

Op = tuple[Any, ...]


class World:
    """What calls did outside: no crash takes it back.

    Attributes:
        effects: How often each call took effect, by its identity.
        tried: How often each call was tried that raises the first times.
        waits: How often actions and calls came to a point at which they wait.
        hangs_at: At which of these the present attempt dies; None for at none of them.
        hanging: Set when it does.
    """

    effects: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    waits = 0
    hangs_at: int | None = None
    hanging = threading.Event()


async def wait() -> None:
    """A point at which the attempt may die."""
    number = World.waits
    World.waits += 1
    if number == World.hangs_at:
        World.hanging.set()
        await asyncio.get_running_loop().create_future()
    await asyncio.sleep(0)


class Nested(Event):
    place: str
    ops: list[Any]


class CallFailed(Exception):
    """What a call raises."""


def work(place: str) -> str:
    """A call that returns."""
    World.effects[place] += 1
    return f"did {place}"


async def work_async(place: str) -> str:
    """The same on the loop."""
    await wait()
    done = work(place)
    await wait()
    return done


def fail(place: str) -> None:
    """A call that raises."""
    World.effects[place] += 1
    raise CallFailed(place)


async def fail_at_first(place: str) -> str:
    """A call that raises the first time."""
    World.tried[place] += 1
    await wait()
    if World.tried[place] % 2:
        raise ConnectionError(place)
    return work(place)


AT_ONCE = RetryPolicy(initial_interval=0)
CALLS = {"call": work, "call async": work_async, "call failing": fail, "call retried": fail_at_first}


async def _call(ctx: Any, kind: str, place: str) -> str:
    settings = {"retry": AT_ONCE} if kind == "call retried" else {}
    return await ctx.durable_execute_async(CALLS[kind], place, **settings)


async def execute(ctx: Any, place: str, ops: Sequence[Op]) -> list[Event]:
    """Do what a program says; ``place`` names the execution."""
    sent: list[Event] = []
    for number, (kind, *args) in enumerate(ops):
        here = f"{place}.{number}"
        if kind == "pause":
            await wait()
        elif kind == "parallel":
            await _parallel(ctx, here, args[0])
        elif kind in CALLS:
            await _one_call(ctx, kind, here, caught=bool(args))
        elif kind in ("set", "append", "delete"):
            _change_memory(ctx.short_term_memory, kind, here, *args)
        else:
            sent += _send(ctx, kind, here, *args)
    return sent


async def _parallel(ctx: Any, here: str, kinds: Sequence[str]) -> None:
    calls = [_call(ctx, kind, f"{here}/{number}") for number, kind in enumerate(kinds)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    ctx.short_term_memory.set("last", [str(result) for result in results])


async def _one_call(ctx: Any, kind: str, here: str, caught: bool) -> None:
    try:
        ctx.short_term_memory.set("last", await _call(ctx, kind, here))
    except CallFailed as error:
        if not caught:
            raise
        ctx.short_term_memory.append("list", f"caught {error}")


def _change_memory(memory: Any, kind: str, here: str, path: str = "list") -> None:
    if kind == "set":
        memory.set(path, f"{here} after {memory.get('last', None)}")
    elif kind == "append":
        memory.append(path, here)
    elif memory.exists(path):
        memory.delete(path)


def _send(ctx: Any, kind: str, here: str, arg: Any = None) -> list[Event]:
    if kind == "raise":
        raise ValueError(here)
    if kind == "nested":
        return [Nested(place=here, ops=[list(op) for op in arg])]
    if kind == "side":
        ctx.emit_to("audit", (ctx.key, here))
        return []
    return [OutputEvent(output=(ctx.key, here, ctx.short_term_memory.get(arg, None), str(ctx.uuid4())))]


async def begin(event: InputEvent, ctx: Any) -> list[Event]:
    """The action of inputs."""
    _, place, ops = event.input
    return await execute(ctx, place, ops)


async def go_on(event: Nested, ctx: Any) -> list[Event]:
    """The action of nested events."""
    return await execute(ctx, event.place, [tuple(op) for op in event.ops])


class RandomAgent(Agent):
    """Executes programs; what fails becomes a dead letter."""

    side_outputs = {"audit": tuple}
    on_error = "dead-letter"


def agent() -> Agent:
    """The agent of all programs."""
    made = RandomAgent(name="random")
    return made.add_action("begin", [InputEvent], begin).add_action("go_on", [Nested], go_on)


# -- programs ---------------------------------------------------------------------------

SIMPLE = (
    ("set", "x"),
    ("set", "y.z"),
    ("append",),
    ("delete", "x"),
    ("pause",),
    ("emit", "x"),
    ("emit", "last"),
    ("side",),
)
CALLED = (
    ("call", "caught"),
    ("call async", "caught"),
    ("call failing", "caught"),
    ("call failing",),
    ("call retried", "caught"),
)


def _ops(chance: random.Random, depth: int) -> list[Op]:
    ops: list[Op] = []
    for _ in range(chance.randint(1, 4)):
        drawn = chance.random()
        if drawn < 0.4:
            ops.append(chance.choice(SIMPLE))
        elif drawn < 0.75:
            ops.append(chance.choice(CALLED))
        elif drawn < 0.87:
            ops.append(("parallel", [chance.choice([*CALLS]) for _ in range(chance.randint(2, 3))]))
        elif drawn < 0.97 and depth:
            ops.append(("nested", _ops(chance, depth - 1)))
        elif drawn >= 0.97:
            ops.append(("raise",))
    return ops


def program(seed: int) -> list[Any]:
    """The inputs of the program with that seed: key, name, what is done."""
    chance = random.Random(seed)
    return [(chance.choice(KEYS), f"i{number}", _ops(chance, 1)) for number in range(chance.randint(2, 4))]


def readable(inputs: Iterable[Any]) -> str:
    """A program for people."""
    lines = []
    for key, name, ops in inputs:
        lines.append(f"  input {name} of key {key!r}")
        lines += [f"    {number}: {' '.join(map(str, op))}" for number, op in enumerate(ops)]
    return "\n".join(lines)


# -- running ----------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a program left behind."""

    outputs: dict[str, list[Any]]
    memory: dict[str, Any]
    audit: dict[str, list[Any]]
    letters: dict[str, list[str]]
    effects: Counter[str] = field(default_factory=Counter)


def observed(harness: OperatorHarness) -> Outcome:
    """What a harness shows of a program."""
    outputs = {key: [output for output in harness.outputs if output[0] == key] for key in KEYS}
    memory = {key: harness.memory(key) for key in KEYS}
    audit = {key: [value for value in harness.side_output("audit") if value[0] == key] for key in KEYS}
    letters = {
        key: [
            f"{letter.action} {letter.error_message}" for letter in harness.dead_letters if letter.key == key
        ]
        for key in KEYS
    }
    return Outcome(outputs, memory, audit, letters, Counter(World.effects))


class Runner:
    """One harness for all programs: to compile an agent takes longer than to run one of them."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.harness = OperatorHarness(
            agent(),
            lambda record: record[0],
            store=lambda: self.faults.store(),
            settle=False,
            forced_serialization=False,
            forced_replay=False,
            forced_restart=False,
        )
        self._empty = self.harness.snapshot()

    def begin(self, choose: Choose | None = None) -> tuple[OperatorHarness, Faults]:
        """The harness, with nothing in it, and its store."""
        _forget()
        self.faults = Faults(choose)
        self.harness.restore(self._empty)
        return self.harness, self.faults

    def close(self) -> None:
        """End it."""
        self.harness.close()


def _forget() -> None:
    World.effects.clear()
    World.tried.clear()
    World.waits, World.hangs_at = 0, None
    World.hanging.clear()


def run_plain(runner: Runner, inputs: Sequence[Any]) -> tuple[Outcome, int, int]:
    """Run a program without a crash; returns also how many appends it made, and how often it waited."""
    harness, faults = runner.begin()
    for record in inputs:
        harness.push(record)
    harness.settle(30)
    return observed(harness), len(faults.appends), World.waits


@dataclass(frozen=True)
class Crash:
    """Where and how a program crashes.

    Attributes:
        point: Number of the append, or of the wait.
        fault: What becomes of the append; None where it is a wait.
        checkpoint: Behind how many inputs the checkpoint is taken, if the crash is not before it.
        order: Seed of the order in which the inputs behind it come again.
    """

    point: int
    fault: Fault | None
    checkpoint: int
    order: int

    def choose(self, asked: int, journal: JournalKey, records: Sequence[Record]) -> Fault | None:
        """The fault of an append."""
        return self.fault if asked == self.point else None

    def __str__(self) -> str:
        where = f"append {self.point} ({self.fault.value})" if self.fault else f"wait {self.point}"
        return f"crash at {where}, checkpoint before input {self.checkpoint}, order {self.order}"


def run_with_crash(runner: Runner, inputs: Sequence[Any], crash: Crash) -> tuple[Outcome, set[str]]:
    """Run a program with a crash; returns also the calls that were recorded before it."""
    harness, faults = runner.begin(crash.choose)
    if crash.fault is None:
        World.hangs_at = crash.point
    snapshot, taken = harness.snapshot(), 0
    try:
        for number, record in enumerate(inputs):
            if number == crash.checkpoint:
                snapshot, taken = harness.snapshot(), number
            harness.push(record)
        _settle(harness, faults)
    except StoreError:
        pass
    harness.restore(snapshot)
    stored = _recorded(faults)
    faults.choose, World.hangs_at = None, None
    for number in _shuffled(random.Random(crash.order), inputs, taken):
        harness.push(inputs[number])
    harness.settle(30)
    return observed(harness), stored


def _settle(harness: OperatorHarness, faults: Faults) -> None:
    """Let all run to its end, or to an append that hangs."""
    until = time.monotonic() + 30
    while not (faults.hanging.is_set() or World.hanging.is_set()) and time.monotonic() < until:
        try:
            harness.settle(0.002)
        except TimeoutError:
            continue
        return


def _shuffled(chance: random.Random, inputs: Sequence[Any], first: int) -> list[int]:
    """The inputs from ``first`` on in another order, though in that of each key."""
    queues = {key: [n for n in range(first, len(inputs)) if inputs[n][0] == key] for key in KEYS}
    order = []
    while left := [key for key in KEYS if queues[key]]:
        order.append(queues[chance.choice(left)].pop(0))
    return order


def _recorded(faults: Faults) -> set[str]:
    """The calls that were recorded: their effects must not be repeated."""
    codec, found = ValueCodec(False), set[str]()
    for _, records, fault in faults.appends:
        if fault is None or fault.stores:
            calls = (record for record in records if record.kind is RecordKind.CALL)
            requests = (str(CallRecord.unpack(codec, record.data).call.request) for record in calls)
            found.update(request.removeprefix("place=").strip("'") for request in requests)
    return found


class ProgramFailed(AssertionError):
    """A program that crashed did something else than without a crash."""


def check(runner: Runner, seed: int) -> int:
    """Run the program with that seed with crashes; returns how many.

    Raises:
        ProgramFailed: It did not do the same.
    """
    inputs = program(seed)
    plain, appends, waits = run_plain(runner, inputs)
    chance = random.Random(seed)
    points = chance.sample(range(appends + waits), min(CRASHES, appends + waits))
    for point in points:
        fault = chance.choice(list(Fault)) if point < appends else None
        at = point if fault is not None else point - appends
        crash = Crash(at, fault, chance.randint(0, len(inputs) - 1), chance.getrandbits(16))
        try:
            crashed, stored = run_with_crash(runner, inputs, crash)
            _compare(plain, crashed, stored)
        except Exception as error:
            raise ProgramFailed(
                f"program {seed} failed: {crash}\n{readable(inputs)}\n{type(error).__name__}: {error}\n"
                f"again: python -m tests.random_programs --programs 1 --seed {seed}"
            ) from error
    return len(points)


def _compare(plain: Outcome, crashed: Outcome, stored: set[str]) -> None:
    for name in ("outputs", "memory", "audit", "letters"):
        expected, found = getattr(plain, name), getattr(crashed, name)
        if expected != found:
            raise AssertionError(f"{name}: expected {expected}, found {found}")
    if set(plain.effects) != set(crashed.effects):
        raise AssertionError(f"effects: {set(plain.effects) ^ set(crashed.effects)}")
    for place, count in crashed.effects.items():
        if count > (1 if place in stored else 2):
            known = "was recorded, and" if place in stored else "with one crash"
            raise AssertionError(f"{place} {known} took effect {count} times")


def run(programs: int, seed: int) -> int:
    """Check ``programs`` programs from ``seed`` on; returns the number of crashes."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    runner = Runner()
    try:
        return sum(check(runner, number) for number in range(seed, seed + programs))
    finally:
        runner.close()
        logging.disable(disabled)


def run_in_processes(programs: int, seed: int, workers: int) -> int:
    """The same in several processes: a program spends most of its time on waiting."""
    starts = range(seed, seed + programs, SHARE)
    counts = [min(SHARE, seed + programs - start) for start in starts]
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        return sum(pool.map(run, counts, starts))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.random_programs", description=__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2 * (os.cpu_count() or 1))
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    try:
        crashes = run_in_processes(options.programs, options.seed, options.workers)
    except ProgramFailed as failed:
        print(failed, file=sys.stderr)
        return 1
    took = time.perf_counter() - began
    print(f"{options.programs} programs from seed {options.seed}, {crashes} crashes, {took:.1f} s")
    return 0


if __name__ == "__main__":
    # Under its own name, by which classes are found again.
    from tests import random_programs

    sys.exit(random_programs.main())
