"""An exactly-once sink whose checkpoints fail: readers of a broker miss no output, and see none twice."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition
from pyflink.common import Types

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action
from flink_agents.api.errors import JobFailedError, KafkaTransactionError
from flink_agents.connectors.kafka import kafka_sink, kafka_source
from flink_agents.connectors.kafka.topics import create_topic
from flink_agents.runtime.flink.internals.java_objects import field_value
from flink_agents.runtime.flink.resume.transactions import bound_transactions, guarded_sinks
from flink_agents.testing.kafka import KafkaBroker
from tests.suite.tables import each_case

pytestmark = [pytest.mark.minicluster, pytest.mark.own_conditions]

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]


@dataclass
class Course:
    """The checkpoints of a job, and the topic of its outputs.

    Attributes:
        client: Options of kafka-python.
        topic: The topic of the outputs.
        folder: Has the checkpoints, and files that say how far the job has come.
        late: True if checkpoints fail at their end, when the sink has prepared its transaction.
    """

    client: dict[str, Any]
    topic: str
    folder: Path
    late: bool = False

    def feed(self, *texts: str) -> None:
        """Write inputs of the job."""
        producer = KafkaProducer(**self.client)
        for text in texts:
            producer.send(f"{self.topic}-in", value=text.encode(), partition=0)
        producer.flush()
        producer.close()

    def is_first(self, event: str) -> bool:
        """Return True at the first call for an event."""
        try:
            (self.folder / event).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def break_checkpoints(self) -> None:
        """Let all further checkpoints fail: Flink cannot create their folders, or not complete them."""
        (home,) = (self.folder / "checkpoints").iterdir()
        newest = max((int(path.name[4:]) for path in home.glob("chk-*")), default=0)
        for number in range(newest + 1, newest + 1000):
            path = home / f"chk-{number}"
            if self.late:
                (path / "_metadata" / "full").mkdir(parents=True, exist_ok=True)
            else:
                with contextlib.suppress(IsADirectoryError):
                    path.touch()

    def has_none_in_work(self) -> bool:
        folders = [path for path in self.folder.glob("checkpoints/*/chk-*") if path.is_dir()]
        return all((path / "_metadata").exists() for path in folders)

    def repair_checkpoints(self) -> None:
        for path in self.folder.glob("checkpoints/*/chk-*"):
            if path.is_file():
                path.unlink()
            elif (path / "_metadata" / "full").exists():
                shutil.rmtree(path)

    def completed(self) -> set[str]:
        files = self.folder.glob("checkpoints/*/chk-*/_metadata")
        return {path.parent.name for path in files if path.is_file()}

    def end(self, isolation: Any) -> int:
        """The offset behind the last record that a consumer can read now."""
        consumer: Any = KafkaConsumer(**self.client, group_id=None, isolation_level=isolation)
        try:
            partition = TopicPartition(self.topic, 0)
            return consumer.end_offsets([partition])[partition]
        finally:
            consumer.close()

    def has_open_transaction(self) -> bool:
        return self.end("read_committed") < self.end("read_uncommitted")

    def outputs(self) -> list[str]:
        """All outputs that readers of committed records see."""
        consumer: Any = KafkaConsumer(
            **self.client, auto_offset_reset="earliest", group_id=None, isolation_level="read_committed"
        )
        try:
            partition = TopicPartition(self.topic, 0)
            consumer.assign([partition])
            end = self.end("read_uncommitted")
            output_values: list[str] = []
            while (consumer.position(partition) or 0) < end:
                for records in consumer.poll(timeout_ms=500).values():
                    output_values += [record.value.decode() for record in records]
            return output_values
        finally:
            consumer.close()


async def until(condition: Callable[[], Any]) -> None:
    """Wait for a condition that needs brokers or files."""
    give_up = time.monotonic() + 120
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < give_up, "it did not happen"
        await asyncio.sleep(0.05)


class ChecksFail(Agent):
    """Its output "two" is in no checkpoint until the brokers have aborted its transaction.

    Then, and after a failure that this causes, checkpoints work. The input ends after that, or before it.
    """

    def __init__(self, course: Course, *, ends: bool = False) -> None:
        self.course = course
        self.ends = ends

    @action(InputEvent)
    async def hand_on(self, event: InputEvent, ctx: Any) -> OutputEvent | None:
        course = self.course
        if event.input == "two":
            if course.is_first("broken"):
                if not self.ends:
                    await until(course.outputs)
                course.break_checkpoints()
                await until(course.has_none_in_work)
            else:
                course.repair_checkpoints()
        if event.input == "three":
            if course.is_first("waited"):
                await self.wait()
            if not self.ends and course.is_first("fed"):
                await asyncio.to_thread(course.feed, "four")
            # Nothing is written any more: only the commit meets the transaction.
            return None
        return OutputEvent(output=event.input)

    async def wait(self) -> None:
        course = self.course
        await until(course.has_open_transaction)
        await until(lambda: not course.has_open_transaction())
        completed = course.completed()
        course.repair_checkpoints()
        if not self.ends:
            await until(lambda: course.completed() - completed)


class FailsOnce(Agent):
    """It fails at "two", when the output before it has just been committed."""

    def __init__(self, course: Course) -> None:
        self.course = course

    @action(InputEvent)
    async def hand_on(self, event: InputEvent, ctx: Any) -> OutputEvent:
        if event.input == "two":
            await until(self.course.outputs)
            if self.course.is_first("failed"):
                raise RuntimeError("failed on purpose")
        if event.input == "three" and self.course.is_first("fed"):
            # No checkpoint would complete behind the end of the input.
            await asyncio.to_thread(self.course.feed, "four")
        return OutputEvent(output=event.input)


class Fenced(Agent):
    """Another program takes the transaction of output "two" away."""

    def __init__(self, course: Course) -> None:
        self.course = course

    @action(InputEvent)
    async def hand_on(self, event: InputEvent, ctx: Any) -> OutputEvent:
        course = self.course
        if event.input == "two" and course.is_first("broken"):
            await until(course.outputs)
            course.break_checkpoints()
            await until(course.has_none_in_work)
        if event.input == "three" and course.is_first("fenced"):
            await until(course.has_open_transaction)
            await asyncio.to_thread(self.fence)
            completed = course.completed()
            course.repair_checkpoints()
            # No checkpoint would complete behind the end of the input.
            await until(lambda: course.completed() - completed)
            await asyncio.to_thread(course.feed, "four")
        return OutputEvent(output=event.input)

    def fence(self) -> None:
        # Flink names a transaction after the checkpoint before it. On a slow machine, there were many.
        newest = max(int(name[4:]) for name in self.course.completed())
        for number in range(newest, newest + 60):
            producer: Any = KafkaProducer(
                **self.course.client, transactional_id=f"{self.course.topic}-0-{number}"
            )
            producer.init_transactions()
            producer.close()
            if not self.course.has_open_transaction():
                return
        raise AssertionError(f"no transaction from number {newest} on is open")


@pytest.fixture
def course(kafka_broker: KafkaBroker, tmp_path: Path) -> Course:
    course = Course(dict(kafka_broker.client_options), f"outputs-{uuid.uuid4().hex[:8]}", tmp_path)
    create_topic(course.topic, **course.client)
    create_topic(f"{course.topic}-in", **course.client)
    course.feed("one", "two", "three")
    return course


def run(
    make_environment: MakeEnvironment,
    course: Course,
    agent: Agent,
    timeout: float,
    flink: Mapping[str, str],
    *,
    options: Mapping[str, Any] = MappingProxyType({}),
    stop: int = 4,
) -> None:
    settings = {
        "execution.checkpointing.interval": "200 ms",
        "execution.checkpointing.dir": (course.folder / "checkpoints").as_uri(),
        "execution.checkpointing.num-retained": "3",
    }
    config = {"local.restart.delay": "0.2 s", "local.restart.attempts": 20, **options}
    env = make_environment(flink={**settings, **flink}, config=config)
    texts = kafka_source(
        env, f"{course.topic}-in", value=str, stop={0: stop}, on_error="fail", **course.client
    )
    handed = env.from_datastream(texts, lambda text: "key").apply(agent)
    sink = kafka_sink(
        course.topic,
        delivery="exactly-once",
        transactional_id=course.topic,
        transaction_timeout=timedelta(seconds=timeout),
        **course.client,
    )
    handed.to_datastream().sink_to(sink)
    env.execute()


MANY = {"execution.checkpointing.tolerable-failed-checkpoints": "1000000"}
RARE = {"execution.checkpointing.interval": "2 s"}


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize(
    ("flink", "late", "ends"),
    [
        pytest.param(MANY, False, False, id="tolerated"),
        # The restart finds a checkpoint whose transaction was committed.
        pytest.param(MANY | RARE, True, False, id="prepared"),
        pytest.param({}, False, False, id="by default", marks=pytest.mark.nightly),
        pytest.param({}, False, True, id="at the end"),
    ],
)
def test_readers_miss_nothing_if_checkpoints_fail(
    agents_environment: MakeEnvironment, course: Course, flink: dict[str, str], late: bool, ends: bool
) -> None:
    course.late = late
    run(agents_environment, course, ChecksFail(course, ends=ends), 8, flink, stop=3 if ends else 4)
    assert (course.folder / "waited").exists()
    assert course.outputs() == (["one", "two"] if ends else ["one", "two", "four"])


@pytest.mark.nightly
def test_a_restart_repeats_a_commit_without_harm(agents_environment: MakeEnvironment, course: Course) -> None:
    """Brokers refuse it, since they have made it."""
    seldom = {"execution.checkpointing.interval": "4 s"}
    run(agents_environment, course, FailsOnce(course), 600, seldom, options={"local.restart.attempts": 1})
    assert course.outputs() == ["one", "two", "three", "four"]


def test_a_commit_that_brokers_refuse_fails_the_job(
    agents_environment: MakeEnvironment, course: Course
) -> None:
    """Each restart meets it again."""
    with pytest.raises(JobFailedError, match="refuse to commit outputs of the sink of topic") as failed:
        run(agents_environment, course, Fenced(course), 120, MANY, options={"local.restart.attempts": 1})
    assert "[FA7110]" in str(failed.value)
    assert "test_kafka_transactions.py" in str(failed.value).split("\n", 1)[0]
    assert course.outputs() == ["one"]


@pytest.mark.nightly
def test_a_job_goes_on_without_outputs_that_it_accepts_as_lost(
    agents_environment: MakeEnvironment, course: Course
) -> None:
    run(agents_environment, course, Fenced(course), 120, MANY, options={"local.accept": "lost-outputs"})
    assert course.outputs() == ["one", "three", "four"]


@each_case(
    "flink",
    [
        {"execution.checkpointing.interval": "4 s"},
        {"execution.checkpointing.interval": "1 h"},
        {"execution.checkpointing.min-pause": "5 s"},
        {"execution.checkpointing.timeout": "1 min"},
        {"execution.checkpointing.timeout": "3 s", "execution.checkpointing.interval": "1 s"},
    ],
    ids=str,
)
def test_checkpoints_that_come_too_late_are_refused_at_the_start(
    agents_environment: MakeEnvironment, course: Course, flink: dict[str, str]
) -> None:
    with pytest.raises(KafkaTransactionError) as refused:
        run(agents_environment, course, ChecksFail(course), 4, flink)
    text = str(refused.value)
    assert "within 4 s" in text and "execution.checkpointing.interval" in text
    assert "transaction_timeout=" in text and "transaction.max.timeout.ms" in text


def test_a_job_has_two_exactly_once_sinks(agents_environment: MakeEnvironment, course: Course) -> None:
    env = agents_environment(flink={"execution.checkpointing.interval": "1 s"})
    texts = env.stream_env.from_collection(["one"], Types.STRING())
    for seconds in (60, 120):
        sink = kafka_sink(
            course.topic,
            delivery="exactly-once",
            transactional_id=f"{course.topic}-{seconds}",
            name=str(seconds),
            transaction_timeout=timedelta(seconds=seconds),
            **course.client,
        )
        texts.sink_to(sink)
    bound_transactions(env.stream_env)
    limits_ms = [field_value(sink, "limitMs") for sink in guarded_sinks(env.stream_env)]
    # Half of the shorter transaction, without an interval, is for a checkpoint.
    assert limits_ms == [60_000 - 29_500, 120_000 - 29_500]
