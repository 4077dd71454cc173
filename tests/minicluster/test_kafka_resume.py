"""A source of Kafka with an end, in a job that continues from a checkpoint, on a real broker."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action
from flink_agents.api.errors import JobFailedError
from flink_agents.connectors.kafka import kafka_source
from flink_agents.testing.kafka import KafkaBroker
from tests.cluster.local_job import LocalJob

pytestmark = [pytest.mark.minicluster, pytest.mark.own_conditions]

LAST = "the last one of the first job"


class FailsAfterCheckpoint(Agent):
    """Fails at the last record that is there, behind a checkpoint of all other ones.

    Args:
        directory: Has the checkpoints.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: Any) -> OutputEvent:
        if event.input == LAST and not (self.directory / "failed").exists():
            count = len(checkpoints(self.directory))
            give_up = time.monotonic() + 60
            while len(checkpoints(self.directory)) < count + 2:
                assert time.monotonic() < give_up, "no checkpoint"
                await asyncio.sleep(0.05)
            (self.directory / "failed").write_text("once")
            raise OSError("down")
        return OutputEvent(output=event.input)


def checkpoints(directory: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    paths = [path.parent for path in directory.glob("checkpoints/*/chk-*/_metadata")]
    return sorted(paths, key=lambda path: int(path.name.removeprefix("chk-")))


def send(client: dict[str, Any], topic: str, *records: tuple[int, str]) -> None:
    producer = KafkaProducer(**client)
    for partition, text in records:
        producer.send(topic, value=text.encode(), partition=partition)
    producer.flush()
    producer.close()


@pytest.mark.nightly
def test_a_source_ends_after_a_restore(
    agents_environment: Callable[..., AgentsExecutionEnvironment], kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    """One partition is in the middle, one has ended, one is empty, and one came later."""
    client: dict[str, Any] = {"bootstrap_servers": kafka_broker.bootstrap_servers}
    topic = uuid.uuid4().hex
    admin: Any = KafkaAdminClient(**client)
    admin.create_topics({topic: {"num_partitions": 3, "replication_factor": 1}})
    send(client, topic, (1, "ended"), (0, "read"), (0, LAST))
    flink = {
        "execution.checkpointing.interval": "100 ms",
        "execution.checkpointing.dir": (tmp_path / "checkpoints").as_uri(),
        "execution.checkpointing.num-retained": "100",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "restart-strategy.type": "none",
    }

    def outputs(**options: str) -> Any:
        env = agents_environment(parallelism=2, flink={**flink, **options})
        texts = kafka_source(env, topic, value=str, stop={0: 3, 1: 1, 2: 0}, on_error="fail", **client)
        output_texts = (
            env.from_datastream(texts, lambda text: text).apply(FailsAfterCheckpoint(tmp_path)).to_list()
        )
        env.execute()
        return output_texts

    with pytest.raises(JobFailedError, match="down"):
        outputs()
    send(client, topic, (0, "after the restore"))
    admin.create_partitions({topic: 4})
    admin.close()
    path = {"execution.state-recovery.path": checkpoints(tmp_path)[-1].as_uri()}
    # The collector of outputs has another identity in each job.
    restored = outputs(**path, **{"execution.state-recovery.ignore-unclaimed-state": "true"})
    assert sorted(restored) == ["after the restore", LAST]


class Passing(Agent):
    """Emits its inputs."""

    @action(InputEvent)
    def pass_on(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=event.input)


@pytest.mark.nightly
def test_the_end_lies_before_an_open_transaction(
    agents_environment: Callable[..., AgentsExecutionEnvironment], kafka_broker: KafkaBroker
) -> None:
    client: dict[str, Any] = {"bootstrap_servers": kafka_broker.bootstrap_servers}
    topic = uuid.uuid4().hex
    admin: Any = KafkaAdminClient(**client)
    admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}})
    admin.close()
    send(client, topic, (0, "before"))
    producer: Any = KafkaProducer(**client, transactional_id=topic, transaction_timeout_ms=600_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, value=b"committed", partition=0)
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send(topic, value=b"open", partition=0).get(60)
    send(client, topic, (0, "behind it"))

    def outputs(**properties: str) -> list[Any]:
        env = agents_environment()
        texts = kafka_source(
            env, topic, value=str, stop="latest", on_error="fail", properties=properties, **client
        )
        output_texts = env.from_datastream(texts, lambda text: text).apply(Passing()).to_list()
        env.execute()
        return sorted(output_texts)

    try:
        assert outputs() == ["before", "committed"]
        uncommitted = {"isolation.level": "read_uncommitted"}
        assert outputs(**uncommitted) == ["before", "behind it", "committed", "open"]
    finally:
        producer.abort_transaction()
        producer.close()


def test_offsets_of_an_idle_source_are_committed_with_its_checkpoint(
    agents_environment: Callable[..., AgentsExecutionEnvironment], kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    """The reader waits for a record for ten seconds: about a hundred checkpoints."""
    client: dict[str, Any] = {"bootstrap_servers": kafka_broker.bootstrap_servers}
    topic = uuid.uuid4().hex
    admin: Any = KafkaAdminClient(**client)
    admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}})
    admin.close()
    flink = {
        "execution.checkpointing.interval": "100 ms",
        "execution.checkpointing.dir": (tmp_path / "checkpoints").as_uri(),
    }
    env = agents_environment(flink=flink)
    texts = kafka_source(env, topic, value=str, group=topic, on_error="fail", **client)
    env.from_datastream(texts, lambda text: text).apply(Passing()).to_datastream().print()
    consumer: Any = KafkaConsumer(**client, group_id=topic, enable_auto_commit=False)

    def number() -> int:
        return max((int(path.name.removeprefix("chk-")) for path in checkpoints(tmp_path)), default=0)

    def has_committed(offset: int) -> bool:
        return consumer.committed(TopicPartition(topic, 0)) == offset

    with LocalJob(env, tmp_path / "none") as job:
        passed: list[int] = []
        for offset in (1, 2, 3):
            send(client, topic, (0, str(offset)))
            checkpoint_number = number()
            job.wait_for("the offset", lambda offset=offset: has_committed(offset))
            passed.append(number() - checkpoint_number)
    consumer.close()
    # Of the first one, the reader looks for the coordinator of the group.
    assert min(passed[1:]) < 50
