"""The processor time of a job that has nothing to do.

``python -m benchmarks.idle PARALLELISM EVENTS SECONDS [MS]``; ``MS`` is Flink's own buffer timeout.
Two Kafka sources, an agent, a window and seven Kafka sinks. Some records pass through the whole job; after
that, all topics are silent while the processor time of the job's processes is read.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import uuid
from typing import Any

import psutil

from benchmarks.brokers import ADDRESS
from benchmarks.common import agents, print_figures
from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.connectors.kafka import kafka_sink, kafka_source
from flink_agents.connectors.kafka.topics import create_topic

SETTLE_SECONDS = 40.0
"""Time after the first output, in which the JVM compiles what it has just run."""


class Clerk(Agent):
    """Answers each input."""

    output_type = dict

    @action(InputEvent)
    def answer(self, event: InputEvent, ctx: Any) -> OutputEvent:
        """Emit the input."""
        return OutputEvent(output=event.input)


def count(values: Any) -> dict[str, int]:
    """Count the values of a window."""
    return {"count": len(list(values))}


class Topics:
    """The topics of the job.

    Args:
        servers: Addresses of the brokers.
        partitions: Number of partitions of each topic.
    """

    def __init__(self, servers: str, partitions: int) -> None:
        self.client: dict[str, Any] = {"bootstrap_servers": servers}
        self._prefix = f"idle-{uuid.uuid4().hex[:8]}"
        names = ("orders", "changes", "orders-dead", "changes-dead", "answers", "letters", "counts")
        names += ("totals", "audit")
        self._names = {name: f"{self._prefix}-{name}" for name in names}
        for topic in self._names.values():
            create_topic(topic, partitions=partitions, **self.client)

    def __getitem__(self, name: str) -> str:
        return self._names[name]

    def send(self, events: int) -> None:
        """Write records to the sources, by turns."""
        from kafka import KafkaProducer

        producer: Any = KafkaProducer(**self.client)
        for number in range(events):
            producer.send(self["changes" if number % 2 else "orders"], b'{"customer": "ada"}')
        producer.flush()
        producer.close()

    def wait_for_answers(self, number: int) -> None:
        """Wait until the agent's outputs are in their topic."""
        from flink_agents.connectors.kafka.topics import describe_topic

        while describe_topic(self["answers"], **self.client).records < number:
            time.sleep(0.5)


def build(environment: Any, topics: Topics) -> None:
    """Add the job to an environment."""
    from pyflink.common import Time
    from pyflink.datastream.functions import ProcessWindowFunction
    from pyflink.datastream.window import TumblingProcessingTimeWindows

    class Count(ProcessWindowFunction):
        def process(self, key: Any, context: Any, elements: Any) -> Any:
            yield count(elements)

    client = topics.client
    orders = kafka_source(environment, topics["orders"], dead_letters=topics["orders-dead"], **client)
    changes = kafka_source(environment, topics["changes"], dead_letters=topics["changes-dead"], **client)
    inputs = environment.from_datastream(orders.union(changes), lambda record: record["customer"])
    applied = inputs.apply(Clerk)
    answers = applied.to_datastream()
    windows = answers.key_by(lambda record: record["customer"]).window(
        TumblingProcessingTimeWindows.of(Time.seconds(5))
    )
    counts = windows.process(Count())
    answers.sink_to(kafka_sink(topics["answers"], **client))
    answers.sink_to(kafka_sink(topics["audit"], **client))
    applied.dead_letters().sink_to(kafka_sink(topics["letters"], **client))
    counts.sink_to(kafka_sink(topics["counts"], **client))
    counts.sink_to(kafka_sink(topics["totals"], **client))


def processor_seconds() -> float:
    """Return the processor time of this process and its children."""
    process = psutil.Process()
    times = [tree_process.cpu_times() for tree_process in (process, *process.children(recursive=True))]
    return sum(times_of_process.user + times_of_process.system for times_of_process in times)


def watch(topics: Topics, events: int, seconds: float) -> None:
    """Measure the job once it has answered, and end the processes."""
    topics.send(events)
    topics.wait_for_answers(events)
    time.sleep(SETTLE_SECONDS)
    previous_cpu_seconds = processor_seconds()
    began = time.monotonic()
    time.sleep(seconds)
    used = processor_seconds() - previous_cpu_seconds
    print_figures(cpu_percent=100 * used / (time.monotonic() - began))
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(0)


def main(parallelism: int, events: int, seconds: float, buffer_timeout_ms: int | None = None) -> None:
    """Run the job."""
    environment = agents()
    environment.stream_env.set_parallelism(parallelism)
    if buffer_timeout_ms is not None:
        environment.stream_env.set_buffer_timeout(buffer_timeout_ms)
    topics = Topics(os.environ[ADDRESS], parallelism)
    build(environment, topics)
    threading.Thread(target=watch, args=(topics, events, seconds), daemon=True).start()
    environment.execute("idle")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), *map(int, sys.argv[4:]))
