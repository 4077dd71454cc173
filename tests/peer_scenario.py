"""Two chained actions with effects, and a job that fails every few seconds: no recorded effect is repeated.

    python -m tests.peer_scenario --events 10000 --fail-every 5 --store sqlite

Flink runs in this process. Prints one JSON object; exit code 1 if an effect was repeated after its
record, or lost, or an output is missing or duplicated.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flink_agents import Agent, AgentsExecutionEnvironment, Event, InputEvent, OutputEvent, action
from tests.cluster.counting_check import CommittedOutput
from tests.cluster.durable_agent import note, take_effect
from tests.cluster.durable_check import Effects, Verdict
from tests.cluster.durable_job import sink
from tests.cluster.durable_stores import RunStore

STEPS = ("first", "second")

FLINK = {
    "execution.checkpointing.interval": "500 ms",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1000000",
    "restart-strategy.fixed-delay.delay": "100 ms",
}


@dataclass(frozen=True)
class Scenario:
    """What a run is made of.

    Attributes:
        events: How many numbers the job reads.
        keys: How many keys they have, in turns.
        per_second: Speed of the source.
        fail_every: Seconds from the start of an attempt to its failure.
    """

    events: int = 10_000
    keys: int = 50
    per_second: float = 250
    fail_every: float = 5.0


class Middle(Event):
    number: int
    token: str


class PeerAgent(Agent):
    """Two actions, each with one effect, the second one after the first."""

    output_type = str

    def __init__(self, effects: str) -> None:
        self.effects = effects

    @action(InputEvent)
    async def first(self, event: InputEvent, ctx: Any) -> Middle:
        return Middle(number=event.input, token=await self._effect(ctx, event.input, "first"))

    @action(Middle)
    async def second(self, event: Middle, ctx: Any) -> OutputEvent:
        token = await self._effect(ctx, event.number, "second")
        return OutputEvent(output=f"{ctx.key} {event.number} {event.token} {token}")

    async def _effect(self, ctx: Any, number: int, step: str) -> str:
        token = await ctx.durable_execute_async(effect, self.effects, ctx.key, number, step)
        note(self.effects, "record", ctx.key, number, step, token)
        return token


async def effect(path: str, key: int, number: int, step: str, idempotency_key: str) -> str:
    """Take effect at once."""
    return take_effect(path, key, number, step, idempotency_key)


class Fails:
    """Hands numbers on at a steady speed, and fails after some seconds.

    Args:
        scenario: How fast, and when.
        failures: A file with a line for each failure.
    """

    def __init__(self, scenario: Scenario, failures: str) -> None:
        self._pause = 1 / scenario.per_second
        self._seconds = scenario.fail_every
        self._last = scenario.events - 1
        self._failures = failures
        self._began: float | None = None

    def hand_on(self, number: int) -> int:
        """Hand ``number`` on, or fail."""
        time.sleep(self._pause)
        # Each attempt gets an object of its own.
        self._began = self._began or time.monotonic()
        if time.monotonic() - self._began > self._seconds and number != self._last:
            note(self._failures, "failed at", number)
            raise RuntimeError(f"fails every {self._seconds:g} s")
        return number


def build(env: AgentsExecutionEnvironment, scenario: Scenario, directory: Path) -> None:
    """Add the job to an environment of parallelism 1."""
    from pyflink.common import Types, WatermarkStrategy
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource

    keys, fails = scenario.keys, Fails(scenario, str(directory / "failures"))
    numbers = env.stream_env.from_source(
        NumberSequenceSource(0, scenario.events - 1), WatermarkStrategy.no_watermarks(), "numbers"
    ).map(fails.hand_on, output_type=Types.LONG())
    agent = PeerAgent(str(directory / "effects"))
    stream = env.from_datastream(numbers, lambda number: number % keys).apply(agent)
    stream.to_datastream().sink_to(sink(str(directory / "out")))


def judge(scenario: Scenario, directory: Path, store: RunStore) -> dict[str, Any]:
    """What came of a run; all that must not be is a list of its own."""
    verdict = Verdict()
    lines = (directory / "effects").read_text(encoding="ascii").splitlines()
    calls = {(number % scenario.keys, number, step) for number in range(scenario.events) for step in STEPS}
    Effects(lines, verdict).check(calls)
    outputs = Counter(int(line.split()[1]) for line in CommittedOutput(directory / "out").lines())
    verdict.events = outputs.total()
    verdict.lost += [f"output {number}" for number in range(scenario.events) if number not in outputs]
    verdict.duplicated += [f"output {number}" for number, count in outputs.items() if count > 1]
    verdict.repeated_after_record += store.recorded_twice()
    failures = directory / "failures"
    count = len(failures.read_text().splitlines()) if failures.exists() else 0
    # Nobody kills: what is repeated was in flight when the job failed, which its grace is for.
    return {
        "scenario": "peer",
        "store": store.name,
        "events": verdict.events,
        "failures": count,
        "effects": sum(line.startswith("effect ") for line in lines),
        **verdict.counts(),
        "examples": verdict.examples(),
        "clean": verdict.clean,
    }


def settings(store: RunStore, directory: Path) -> tuple[Mapping[str, str], dict[str, Any]]:
    """Options of Flink, and those of agents."""
    agent_options = {name.removeprefix("flink-agents."): value for name, value in store.flink_options.items()}
    return {**FLINK, "execution.checkpointing.dir": (directory / "checkpoints").as_uri()}, agent_options


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.peer_scenario", description=__doc__)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--keys", type=int, default=50)
    parser.add_argument("--per-second", type=float, default=250)
    parser.add_argument("--fail-every", type=float, default=5.0, help="seconds")
    parser.add_argument("--store", choices=("sqlite", "kafka"), default="sqlite")
    options = parser.parse_args(arguments)
    scenario = Scenario(options.events, options.keys, options.per_second, options.fail_every)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peer-")))
        store = RunStore.for_directory("sqlite", directory)
        if options.store == "kafka":
            from flink_agents.testing.kafka import KafkaBroker

            broker = stack.enter_context(KafkaBroker(directory / "kafka"))
            store = RunStore.in_kafka(broker.bootstrap_servers)
        verdict = run_here(scenario, directory, store)
    print(json.dumps(verdict))
    return 0 if verdict["clean"] else 1


def run_here(scenario: Scenario, directory: Path, store: RunStore) -> dict[str, Any]:
    """Run in this process."""
    from flink_agents.runtime.flink import environment

    flink, config = settings(store, directory)
    configuration = environment.FlinkConfiguration()
    for name, value in flink.items():
        configuration.set_string(name, value)
    stream_env = environment.StreamExecutionEnvironment.get_execution_environment(configuration)
    stream_env.set_parallelism(1)
    env = environment.create_environment(stream_env, None, config)
    build(env, scenario, directory)
    env.execute("peer scenario")
    return judge(scenario, directory, store)


if __name__ == "__main__":
    raise SystemExit(main())
