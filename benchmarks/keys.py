"""The memory and storage of keys that come once each: ``python -m benchmarks.keys KEYS``.

Each key has one run with one durable call: the header of the run with the call's record, then the end of
its action. It is committed, found in checkpoints, and pruned, by the code that a job uses; there is no
Flink. Two processes follow each other:

``run``      sees all keys. ``memory_bytes_per_key`` is the growth of the process in the second half of
             them, ``store_bytes_per_key`` that of the store.
``restart``  is the next attempt after a process that was killed. ``restart_seconds`` are from its
             start until the runs of 1,000 new keys are recorded.

For a store in Kafka, that is what compaction leaves, not the size of files that wait for it (``retained``).
With ``--store none`` nothing is stored: the rest is the cost of measuring.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.brokers import broker_for_jobs, kafka_options
from benchmarks.retained import retained_bytes
from benchmarks.store import Nothing
from flink_agents import Agent, InputEvent, RunnerContext, action
from flink_agents.api.action_state import Owner, Record, RecordKind
from flink_agents.api.durable import Prune
from flink_agents.api.settings.options import Configuration
from flink_agents.api.settings.stores import open_store
from flink_agents.plan import compile_agent
from flink_agents.runtime.journal.journals import Journals
from flink_agents.runtime.metrics.run_metrics import RunMetrics
from flink_agents.runtime.retention.checkpoints import CheckpointPoller, CheckpointView, Listener
from flink_agents.runtime.retention.pruning import Pruner
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.keyed_state import Head

JOB = "benchmark"
STEP = "_input_event/ask"
DATA = b"x" * 200
AT_A_TIME = 200
KEYS_OF_RESTART = 1000

CHECKPOINT_KEYS = 5000
"""The number of keys after which a checkpoint completes, and a request to Flink is due."""


class Asking(Agent):
    """The agent whose journals these are."""

    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: RunnerContext) -> None:
        """Never called."""


class Checkpoints(CheckpointPoller):
    """Flink, which completes a checkpoint with each answer, and keeps one."""

    def __init__(self) -> None:
        super().__init__((), JOB)
        self._listener: Listener | None = None
        self._id = 0

    def listen(self, listener: Listener) -> None:
        """Tell ``listener`` of all answers."""
        self._listener = listener

    def forget(self, listener: Listener) -> None:
        """Tell it nothing more."""
        self._listener = None

    def complete(self) -> None:
        """Complete a checkpoint, and answer."""
        if self._listener is not None:
            self._id += 1
            self._listener.asking()
            self._listener.answered(
                CheckpointView(1, self._id, highest=self._id, discarded=max(0, self._id - 1))
            )


class Subtask:
    """The journals of a subtask.

    Args:
        store: Name of its store.
        options: Options of the store.
    """

    def __init__(self, store: str, options: dict[str, Any]) -> None:
        opened_store = Nothing() if store == "none" else open_store(store, options)
        owner = Owner.create(JOB, f"{JOB}/Asking")
        self.store = opened_store
        self.flink = Checkpoints()
        self.metrics = RunMetrics(())
        pruner = Pruner(Prune.CHECKPOINTS, 0, self.metrics, self.flink, True)
        self.journals = Journals(
            lambda: opened_store,
            owner,
            ValueCodec(),
            compile_agent(Asking()),
            Configuration(),
            JOB,
            None,
            pruner,
            None,
        )

    async def see(self, key: str) -> None:
        """Run the only input of a key."""
        journals = self.journals
        journal = journals.key(JOB, key)
        if journals.may_have(Head(JOB), key, False):
            await journals.recorded(journal, 0, None, False)
        self.store.recovery_marker(journal)
        begin = Record(RecordKind.RUN, 0, "", 0, DATA), Record(RecordKind.CALL, 0, STEP, 0, DATA)
        await self.store.append(journal, begin)
        await self.store.append(journal, [Record(RecordKind.ACTION, 0, STEP, 1, DATA)])
        self.store.recovery_marker(journal)
        journals.committed(journal, 0, 1)

    async def see_all(self, keys: Iterator[str]) -> None:
        """Run the inputs of some keys, with checkpoints between them."""
        seen = 0

        async def work() -> None:
            nonlocal seen
            for key in keys:
                await self.see(key)
                seen += 1
                if seen % CHECKPOINT_KEYS == 0:
                    self.flink.complete()

        await asyncio.gather(*(work() for _ in range(AT_A_TIME)))

    async def settle(self, keys: int) -> None:
        """Complete checkpoints until the runs of all keys are pruned."""
        pruned = self.metrics.group.get_counter("runs_pruned")
        while pruned.get_count() < keys:
            self.flink.complete()
            await asyncio.sleep(0.05)


def _names(first: int, last: int, prefix: str = "order") -> Iterator[str]:
    return (f"s{prefix}-{number:010}" for number in range(first, last))


def _resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


async def run(store: str, options: dict[str, Any], keys: int) -> dict[str, float]:
    """See all keys; what grew in the second half of them. The process has to be ended then."""
    subtask = Subtask(store, options)
    await subtask.journals.open()
    start_seconds = time.perf_counter()
    half = keys // 2
    await subtask.see_all(_names(0, half))
    await subtask.settle(half)
    resident = _resident_bytes()
    stored = await _stored_bytes(store, options)
    waited = time.perf_counter()
    await subtask.see_all(_names(half, keys))
    await subtask.settle(keys)
    seconds = time.perf_counter() - waited
    grown = _resident_bytes() - resident
    return {
        "keys_per_second": (keys - half) / seconds,
        "first_half_seconds": waited - start_seconds,
        "memory_bytes_per_key": grown / (keys - half),
        "store_bytes_per_key": (await _stored_bytes(store, options) - stored) / (keys - half),
        "store_mb": await _stored_bytes(store, options) / 1e6,
        "memory_mb": _resident_bytes() / 1e6,
    }


async def _stored_bytes(store: str, options: dict[str, Any]) -> float:
    """What the store takes, as another process sees it: this one is measured."""
    if store == "none":
        return 0
    return (await asyncio.to_thread(_in_a_process, "size", store, options, 0))["bytes"]


async def size(store: str, options: dict[str, Any]) -> dict[str, float]:
    """What a store takes; in Kafka, what compaction leaves of it."""
    if store == "kafka":
        return {"bytes": await asyncio.to_thread(retained_bytes, options)}
    looking = open_store(store, options)
    await looking.open(None)
    stats = await looking.stats()
    await looking.close()
    return {"bytes": stats.stored_bytes or 0}


async def restart(store: str, options: dict[str, Any]) -> dict[str, float]:
    """Open the store once more, and see keys that never came before."""
    start_seconds = time.perf_counter()
    subtask = Subtask(store, options)
    await subtask.journals.open()
    await subtask.see_all(_names(0, KEYS_OF_RESTART, "new"))
    seconds = time.perf_counter() - start_seconds
    await subtask.journals.close()
    return {"restart_seconds": seconds}


def _in_a_process(task: str, store: str, options: dict[str, Any], keys: int) -> dict[str, float]:
    command = ["--task", task, "--store", store, "--options", json.dumps(options), str(keys)]
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks.keys", *command], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(answer.stdout.splitlines()[-1])


def _run_task(task: str, store: str, options: dict[str, Any], keys: int) -> None:
    tasks = {"run": lambda: run(store, options, keys), "size": lambda: size(store, options)}
    tasks["restart"] = lambda: restart(store, options)
    print(json.dumps(asyncio.run(tasks[task]())), flush=True)
    if task == "run":
        os._exit(0)  # as if it were killed: it gives nothing back


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keys", description=__doc__)
    parser.add_argument("keys", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--store", default="sqlite", choices=["sqlite", "kafka", "none"])
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--options", type=json.loads, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.task:
        _run_task(parsed.task, parsed.store, parsed.options, parsed.keys)
        return
    with tempfile.TemporaryDirectory() as directory:
        with broker_for_jobs() if parsed.store == "kafka" else nullcontext():
            options = {"path": str(Path(directory) / "store.db")} if parsed.store == "sqlite" else {}
            options = kafka_options() if parsed.store == "kafka" else options
            figures = _in_a_process("run", parsed.store, options, parsed.keys)
            if parsed.store != "none":
                figures |= _in_a_process("restart", parsed.store, options, parsed.keys)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
