"""The job of ``python -m benchmarks scale``, which ``flink run`` submits.

    job.py WORKLOAD INPUTS KEYS FOLDER PROBED OPTIONS

``count``    two chained ``def`` actions with a counter
``durable``  two durable steps and a counter
``sleep``    each input sleeps for a day

If ``PROBED`` is 1, probes without end follow the inputs, twenty a second. The files of ``FOLDER`` say how far
the job is: ``count-PID-SUBTASK`` has the number of inputs. Once there is a file ``probe``, the next probe of
each process writes ``heap-PID``, the bytes of Java's heap that are in use, and ``probe-PID``, its arrival.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.common import discard
from flink_agents import Agent, AgentsExecutionEnvironment, Event, InputEvent, OutputEvent, action

ENDLESS = 10**12
PROBE_SECONDS = 0.05
EVERY = 100
"""So many inputs are written at once."""


async def respond(number: int) -> int:
    """Return at once."""
    return number


class Progress:
    """Writes how many inputs a subtask has finished."""

    def __init__(self, inputs: int, folder: str) -> None:
        self._inputs = inputs
        self._folder = Path(folder)
        self._count = 0
        self._file: int | None = None

    def is_probe(self, number: int) -> bool:
        """Return True if an input is a probe, and note when the first one that is wanted arrived."""
        if number < self._inputs:
            return False
        note_once(self._folder, "probe", time.time)
        return True

    def tick(self) -> None:
        """Count an input."""
        self._count += 1
        if self._count % EVERY:
            return
        if self._file is None:
            path = self._folder / f"count-{os.getpid()}-{id(self)}"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.pwrite(self._file, struct.pack("<q", self._count), 0)


def note_once(folder: Path, name: str, measure: Callable[[], float]) -> None:
    """Write a figure of this process to a file, if it is wanted and was not written before."""
    file = folder / f"{name}-{os.getpid()}"
    if (folder / "probe").exists() and not file.exists():
        draft = folder / f"draft-{file.name}"
        draft.write_text(str(measure()), "ascii")
        draft.rename(file)


def heap_bytes() -> float:
    """Return the bytes of Java's heap that are in use. Only for threads of Flink."""
    import pemja

    java: Any = pemja
    java.findClass("java.lang.System").gc()
    runtime = java.findClass("java.lang.Runtime").getRuntime()
    return float(runtime.totalMemory()) - float(runtime.freeMemory())


class Read(Event):
    """An input, read by the first action."""

    number: int


class Counting(Agent):
    """Two chained actions; the second counts."""

    def __init__(self, inputs: int, folder: str) -> None:
        self.progress = Progress(inputs, folder)

    @action(InputEvent)
    def read(self, event: InputEvent, ctx: Any) -> Read:
        return Read(number=event.input)

    @action(Read)
    def count(self, event: Read, ctx: Any) -> OutputEvent | None:
        if self.progress.is_probe(event.number):
            return None
        count = ctx.short_term_memory.get("count", 0) + 1
        ctx.short_term_memory.set("count", count)
        self.progress.tick()
        return OutputEvent(output=count)


class Calling(Agent):
    """Makes two durable steps for each input, and counts."""

    def __init__(self, inputs: int, folder: str) -> None:
        self.progress = Progress(inputs, folder)

    @action(InputEvent)
    async def call(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await ctx.durable_execute_async(respond, event.input)
        await ctx.durable_execute_async(respond, event.input)
        count = ctx.short_term_memory.get("count", 0) + 1
        ctx.short_term_memory.set("count", count)
        self.progress.tick()
        return OutputEvent(output=count)


class Sleeping(Agent):
    """Sleeps for a day."""

    def __init__(self, inputs: int, folder: str) -> None:
        self.progress = Progress(inputs, folder)

    @action(InputEvent)
    async def sleep(self, event: InputEvent, ctx: Any) -> None:
        if self.progress.is_probe(event.input):
            return
        try:
            await ctx.sleep(timedelta(days=1))
        finally:
            self.progress.tick()


WORKLOADS = {"count": Counting, "durable": Calling, "sleep": Sleeping}


def main(
    workload: str, inputs: int, keys: int, folder: str, is_probed: bool, options: dict[str, Any]
) -> None:
    """Submit the job."""
    from pyflink.common import WatermarkStrategy
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource

    def pace(number: int) -> int:
        if number >= inputs:
            time.sleep(PROBE_SECONDS)
            note_once(Path(folder), "heap", heap_bytes)
        return number

    def key_of(number: int) -> int:
        return number % keys if number < inputs else number  # A probe does not wait for a key that sleeps.

    environment = AgentsExecutionEnvironment.get_execution_environment(config=options)
    sequence = NumberSequenceSource(0, (ENDLESS if is_probed else inputs) - 1)
    numbers = environment.stream_env.from_source(sequence, WatermarkStrategy.no_watermarks(), "numbers")
    agent = WORKLOADS[workload](inputs=inputs, folder=folder)
    keyed = environment.from_datastream(numbers.map(pace), key_of)
    discard(keyed.apply(agent).to_datastream())
    environment.execute(f"scale {workload}")


if __name__ == "__main__":
    workload, inputs, keys, folder, probed, options = sys.argv[1:]
    main(workload, int(inputs), int(keys), folder, probed == "1", json.loads(options))
