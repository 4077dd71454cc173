"""The job of the test of models on a cluster: numbers, each its own key, for an agent with a chat model."""

from __future__ import annotations

import argparse
from typing import Any

from flink_agents import AgentsExecutionEnvironment
from tests.cluster.chat_agent import ChatAgent
from tests.cluster.durable_job import sink


def main() -> None:
    from pyflink.common import WatermarkStrategy
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource

    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("url", "key", "skills", "output"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--orders", type=int, required=True)
    options = parser.parse_args()
    env: Any = AgentsExecutionEnvironment.get_execution_environment()
    source = NumberSequenceSource(0, options.orders - 1)
    numbers = env.stream_env.from_source(source, WatermarkStrategy.no_watermarks(), "orders").uid("orders")
    agent = ChatAgent(options.url, options.key, options.skills)
    outputs = env.from_datastream(numbers, lambda number: number).apply(agent).to_datastream()
    outputs.sink_to(sink(options.output)).uid("outputs")
    env.execute("chat")


if __name__ == "__main__":
    main()
