"""A source, and options, for tests of jobs that fail."""

from __future__ import annotations

from pathlib import Path

from pyflink.common import WatermarkStrategy
from pyflink.datastream import DataStream
from pyflink.datastream.connectors.number_seq import NumberSequenceSource

from flink_agents import AgentsExecutionEnvironment


def numbers(env: AgentsExecutionEnvironment, count: int) -> DataStream:
    """The numbers below ``count``, in order, which go on where a checkpoint left them.

    PyFlink's ``from_collection`` begins anew after a failure, so that inputs come twice where a
    checkpoint finds it still running.
    """
    source = NumberSequenceSource(0, count - 1)
    return env.stream_env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").set_parallelism(1)


def restarting(directory: Path, interval: str = "200 ms", failures: int = 1) -> dict[str, str]:
    """Options of Flink for a job that goes on after so many failures, with checkpoints in ``directory``."""
    return {
        "execution.checkpointing.interval": interval,
        "execution.checkpointing.dir": (directory / "checkpoints").as_uri(),
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": str(failures),
        "restart-strategy.fixed-delay.delay": "100 ms",
    }
