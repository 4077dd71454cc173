"""A real restore: records of keys that never come again leave the store, once the checkpoints allow it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action
from flink_agents.api.settings.stores import open_store
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.testing.kafka import KafkaBroker
from tests.cluster.heartbeats import Heartbeats, read_beats
from tests.cluster.local_job import LAST, LocalJob, start_agent

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]

KEYS = 300
JOB = "unpruned/PayingAgent"


async def charge(number: int) -> int:
    return number


class PayingAgent(Agent):
    """Makes a durable call for each key.

    Args:
        path: Gets a line for each call that was recorded.
    """

    def __init__(self, path: str) -> None:
        self.beats = Heartbeats(path)

    @action(InputEvent, when=lambda event: event.input != LAST)
    async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        paid = await ctx.durable_execute_async(charge, event.input)
        self.beats.write("paid", ctx.key)
        return OutputEvent(output=paid)

    @action(InputEvent, when=lambda event: event.input == LAST)
    def ignore(self, event: InputEvent, ctx: Any) -> None:
        pass


def records(config: dict[str, Any]) -> int:
    """How many records the store has of the job, as somebody sees it who opens it anew."""
    name = config["action-state.store"]
    prefix = f"action-state.{name}."
    options = {key.removeprefix(prefix): value for key, value in config.items() if key.startswith(prefix)}

    async def look() -> int:
        store = open_store(name, options)
        await store.open(None)
        try:
            return sum(info.records for info in await store.journals(JOB, limit=10 * KEYS))
        finally:
            await store.close()

    return asyncio.run(look())


def prunes_keys_that_never_come(
    make: MakeEnvironment, directory: Path, config: dict[str, Any], backend: str
) -> None:
    """Stop a job before anything is pruned, and restore it without any input."""
    from pyflink.common import WatermarkStrategy
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource

    beats = directory / "beats"
    flink = {"state.backend.type": backend}
    with start_agent(make(config=config, flink=flink), PayingAgent(str(beats)), beats, KEYS) as job:
        job.wait_for("recorded calls", lambda: len(read_beats(beats)) >= KEYS)
        savepoint = job.stop_with_savepoint(directory / "savepoints")
    assert records(config) >= KEYS

    def nothing(number: int) -> list[int]:
        time.sleep(0.01)
        return []

    restored = {
        "execution.state-recovery.path": savepoint,
        "execution.state-recovery.ignore-unclaimed-state": "true",
        "execution.checkpointing.interval": "500 ms",
        "execution.checkpointing.dir": (directory / "checkpoints").as_uri(),
    }
    env = make(config=config, flink={**flink, **restored}, parallelism=2)
    source = NumberSequenceSource(0, 10**12), WatermarkStrategy.no_watermarks(), "idle"
    stream_env: Any = env.stream_env
    idle = stream_env.from_source(*source).set_parallelism(1).flat_map(nothing).set_parallelism(1)
    env.from_datastream(idle, lambda number: number).apply(PayingAgent(str(beats))).to_datastream().print()
    with LocalJob(env, beats) as job:
        job.wait_for("the store to be empty", lambda: records(config) == 0)


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["hashmap", pytest.param("rocksdb", marks=pytest.mark.nightly)])
def test_records_in_sqlite_go(agents_environment: MakeEnvironment, tmp_path: Path, backend: str) -> None:
    config = {
        "job-identifier": "unpruned",
        "action-state.store": "sqlite",
        "action-state.sqlite.path": str(tmp_path / "store.sqlite"),
    }
    prunes_keys_that_never_come(agents_environment, tmp_path, config, backend)


@pytest.mark.nightly
def test_records_in_kafka_go(
    agents_environment: MakeEnvironment, tmp_path: Path, kafka_broker: KafkaBroker
) -> None:
    settings = KafkaSettings(kafka_broker.bootstrap_servers, f"unpruned-{tmp_path.name}")
    config = {
        "job-identifier": "unpruned",
        "action-state.store": "kafka",
        "action-state.kafka.bootstrap-servers": settings.bootstrap_servers,
        "action-state.kafka.topic": settings.topic,
    }
    prunes_keys_that_never_come(agents_environment, tmp_path, config, "hashmap")
