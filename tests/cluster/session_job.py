"""The job of the tests of session clusters: an agent from a module that is shipped with the job.

Each output is a line with what the agent says, the key, how many inputs of the key there were, and the
process. Runs under ``flink run``, or is added to an environment by :func:`build`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from typing import Any

from flink_agents import Agent, AgentsExecutionEnvironment

KEYS = 3
FOREVER = 10**9
PAUSE = 0.01


class Append:
    """Writes lines to a file, which may be the same for several jobs."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, line: str) -> str:
        with open(self.path, "a", encoding="ascii") as stream:
            stream.write(f"{line} {os.getpid()}\n")
        return line


def slowly(number: int) -> int:
    time.sleep(PAUSE)
    return number


def key_of(number: int) -> int:
    return number % KEYS


def build(env: AgentsExecutionEnvironment, agent: type[Agent], output: str, records: int) -> None:
    """Add the job to an environment."""
    from pyflink.common import Types, WatermarkStrategy
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource

    flink: Any = env.stream_env
    source = NumberSequenceSource(0, records - 1)
    numbers = flink.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    numbers = numbers.map(slowly).uid("slowly")
    outputs: Any = env.from_datastream(numbers, key_of).apply(agent, name="teller").to_datastream()
    outputs.map(Append(output), output_type=Types.STRING()).uid("append").print().uid("print")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--module", required=True, help="the module of the class Teller")
    parser.add_argument("--output", required=True, help="file for the lines")
    parser.add_argument("--records", type=int, default=FOREVER)
    options = parser.parse_args()
    teller: Any = importlib.import_module(options.module)
    env = AgentsExecutionEnvironment.get_execution_environment()
    build(env, teller.Teller, options.output, options.records)
    env.execute(f"job of {options.module}")


if __name__ == "__main__":
    main()
