"""Flink savepoints, with waiting inputs and runs in flight.

``savepoints/NAME.gz`` is the only file of a savepoint, and ``NAME.sqlite.gz`` is the store of its job.
``python -m tests.minicluster.golden_savepoints`` made them, in an empty directory. After the first release
they are never rewritten, since the savepoints of users are not either.
"""

from __future__ import annotations

import asyncio
import gzip
import sqlite3
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from flink_agents import Agent, AgentsExecutionEnvironment, EventTime, InputEvent, OutputEvent, action
from tests.cluster.heartbeats import Heartbeats, read_beats
from tests.cluster.local_job import LAST, LocalJob

MADE = Path(__file__).with_name("savepoints")

KEYS = 7
DONE = 2 * KEYS
"""So many numbers were committed before the savepoint: two of each key."""

NUMBERS = 5 * KEYS
"""Of the others, one of each key was in flight, behind its first durable call, and two waited for it."""

HOLD = EventTime.hold_watermarks(max_hold=timedelta(minutes=10))
EVENT_TIMES = {"orders": None, "held_orders": HOLD}
"""What is in the files, by name."""

BASE = 1_000_000
STEP = 10

_effects: Heartbeats | None = None


def stamp(number: int) -> int:
    """Event time of a number."""
    return BASE + STEP * number


def charge(number: int, idempotency_key: str) -> str:
    """The first durable call."""
    assert _effects is not None
    _effects.write("charge", number)
    return idempotency_key


async def ship(number: int, paid: str, idempotency_key: str) -> str:
    """The second one."""
    assert _effects is not None
    _effects.write("ship", number)
    return f"{number}: {paid} {idempotency_key}"


class Orders(Agent):
    """Two durable calls, between which it waits for ever, or not at all.

    Args:
        path: Gets a line for each call.
        ends: From which number on it waits for ever.
    """

    def __init__(self, path: str, ends: int) -> None:
        self.path = path
        self.ends = ends

    @action(InputEvent, when=lambda event: event.input != LAST)
    async def order(self, event: InputEvent, ctx: Any) -> OutputEvent:
        global _effects
        # Where it writes is no argument of a call: arguments are recorded.
        _effects = effects = Heartbeats(self.path)
        number = event.input
        count = ctx.short_term_memory.get("count", 0) + 1
        ctx.short_term_memory.set("count", count)
        paid = await ctx.durable_execute_async(charge, number)
        if number >= self.ends:
            effects.write("waits", number)
            await asyncio.Event().wait()
        sent = await ctx.durable_execute_async(ship, number, paid)
        return OutputEvent(output=(number, count, ctx.sequence_number, sent, ctx.timestamp))

    @action(InputEvent, when=lambda event: event.input == LAST)
    def last(self, event: InputEvent, ctx: Any) -> None:
        Heartbeats(self.path).write("last", LAST)


def key_of(number: int) -> int:
    """Key of a number."""
    return LAST if number == LAST else number % KEYS


def config_of(name: str, store: Path) -> dict[str, Any]:
    """Options of a job, which its savepoint and its journals depend on."""
    return {
        "job-identifier": f"golden-{name}",
        "action-state.store": "sqlite",
        "action-state.sqlite.path": str(store),
    }


def flink_of(backend: str) -> dict[str, str]:
    """Options of Flink: all state lies in the one file of the savepoint."""
    return {
        "state.backend.type": backend,
        "execution.checkpointing.data-inline-threshold": "1 mb",
        "pipeline.max-parallelism": "128",
    }


def timed(stream: Any) -> Any:
    """A stream with the timestamps of its numbers."""
    from pyflink.common import WatermarkStrategy
    from pyflink.common.watermark_strategy import TimestampAssigner

    class Stamps(TimestampAssigner):
        def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
            return stamp(value)

    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Stamps())
    return stream.assign_timestamps_and_watermarks(strategy)


def paced(number: int) -> list[int]:
    """The numbers at once, then one that says that all have come, then nothing."""
    if number < NUMBERS:
        return [number]
    time.sleep(0.01)
    return [LAST] if number == NUMBERS else []


def make_savepoint(env: AgentsExecutionEnvironment, name: str, directory: Path) -> str:
    """Let a job come to where all keys wait; returns its savepoint."""
    from pyflink.common import WatermarkStrategy
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource

    flink: Any = env.stream_env
    beats = directory / f"{name}.beats"
    outputs = directory / f"{name}.outputs"
    committed = Heartbeats(str(outputs))
    source = flink.from_source(NumberSequenceSource(0, 10**12), WatermarkStrategy.no_watermarks(), "numbers")
    # Without its own name, a source of the same form would claim its state.
    numbers = source.uid("golden numbers").flat_map(paced)
    if name == "held_orders":
        numbers = timed(numbers)
    stream = env.from_datastream(numbers, key_of).apply(
        Orders(str(beats), DONE), name=name, event_time=EVENT_TIMES[name]
    )
    stream.to_datastream().map(lambda output: committed.write("output", output[0])).print()
    with LocalJob(env, beats) as job:
        job.wait_for("keys that wait", lambda: counted(beats, "waits") == KEYS)
        job.wait_for("the last number", lambda: counted(beats, "last") == 1)
        job.wait_for("outputs", lambda: counted(outputs, "output") == DONE)
        return job.stop_with_savepoint(directory.resolve() / "savepoints")


def counted(file: Path, what: str) -> int:
    """How many lines of a kind there are."""
    return sum(beat.kind == what for beat in read_beats(file)) if file.exists() else 0


def unpacked(name: str, directory: Path) -> tuple[str, Path]:
    """Where a savepoint lies, and its store, in files that may be changed."""
    savepoint = directory / f"savepoint-{name}"
    store = directory / f"{name}.sqlite"
    savepoint.mkdir()
    (savepoint / "_metadata").write_bytes(gzip.decompress((MADE / f"{name}.gz").read_bytes()))
    store.write_bytes(gzip.decompress((MADE / f"{name}.sqlite.gz").read_bytes()))
    return savepoint.as_uri(), store


def pack(savepoint: Path, store: Path, name: str) -> None:
    """Keep a savepoint, and the store of its job."""
    (metadata,) = savepoint.iterdir()
    connection = sqlite3.connect(store)
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.execute("VACUUM")
    connection.close()
    for file, suffix in ((metadata, ".gz"), (store, ".sqlite.gz")):
        (MADE / f"{name}{suffix}").write_bytes(gzip.compress(file.read_bytes(), mtime=0))


def write() -> None:
    """Make the files; what else jobs write lies in the working directory."""
    import flink_agents_pytest as fixtures

    # Plans have the arguments of their agent, and stores have plans.
    directory = Path()
    MADE.mkdir(exist_ok=True)
    environment: Any = fixtures.agents_environment
    make_environment = getattr(environment, "__wrapped__", environment)()
    for name in EVENT_TIMES:
        store = directory / f"{name}.sqlite"
        env = make_environment(flink=flink_of("hashmap"), config=config_of(name, store))
        savepoint = make_savepoint(env, name, directory)
        pack(Path(savepoint.removeprefix("file:")), store, name)


if __name__ == "__main__":
    # Records name functions by their module, which is no main script in tests.
    from tests.minicluster import golden_savepoints

    golden_savepoints.write()
