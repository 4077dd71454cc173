"""The parts of an operator that a harness keeps: a checkpoint for tests, and sums of its metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from flink_agents.api.common.metrics import Gauge
from flink_agents.runtime.metrics.metrics import LocalMetricGroup
from flink_agents.testing.fakes.state import KeyState


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint: state and timers of all keys, and the number of outputs so far.

    Attributes:
        keys: State by canonical key string.
        outputs: The number of outputs.
        side_outputs: The number of values of each side output.
        max_parallelism: Number of key groups.
        inputs: Number of inputs that the harness had recorded for :meth:`OperatorHarness.recover`.
        number: Its number, if the harness has ``checkpoints=True``; else 0.
    """

    keys: Mapping[str, KeyState]
    outputs: int
    side_outputs: Mapping[str, int]
    max_parallelism: int
    inputs: int = 0
    number: int = 0


def sum_of(groups: Iterable[LocalMetricGroup]) -> dict[str, int | float]:
    """Return the values of all metrics by dotted name, summed over groups."""
    total: dict[str, int | float] = {}
    for group in groups:
        for name, value in group.values():
            total[name] = total.get(name, 0) + value
    return total


def gauges_of(group: LocalMetricGroup, prefix: str = "") -> Iterator[str]:
    """Return the dotted names of the gauges of a group."""
    # The agent loop adds some meanwhile.
    yield from (prefix + name for name, metric in list(group.metrics.items()) if isinstance(metric, Gauge))
    for name, inner in list(group.groups.items()):
        yield from gauges_of(inner, f"{prefix}{name}.")
