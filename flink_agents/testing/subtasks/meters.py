"""Metrics of an agent and its runtime, as if one operator had done everything once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flink_agents.runtime.metrics.run_metrics import LocalMetricGroup
from flink_agents.testing.fakes.state import gauges_of, sum_of
from flink_agents.testing.subtasks.driver import HarnessSubtask

Values = Mapping[str, int | float]
"""Values of metrics by dotted name."""


class MetricSums:
    """Adds up metrics over operators that replace one another. A gauge has its present value.

    Args:
        previous_values: Values up to the start of the present operator; None for none.
        left_out: Values of the present operator that were already counted; None for none.
    """

    def __init__(
        self, previous_values: MetricValues | None = None, left_out: MetricValues | None = None
    ) -> None:
        self._earlier_sums = previous_values or MetricValues({}, {})
        self._left_out = left_out or MetricValues({}, {})

    def sum_metrics(self, subtasks: Sequence[HarnessSubtask]) -> MetricValues:
        """Return the values up to now: of earlier operators, and of the subtasks of the present one."""
        previous_values = self._earlier_sums
        left_out = self._left_out
        return MetricValues(
            _add_metrics(previous_values.agent, left_out.agent, subtasks, _of_agent),
            _add_metrics(previous_values.runtime, left_out.runtime, subtasks, _of_runtime),
        )


class MetricValues:
    """Values of metrics by dotted name, summed over subtasks.

    Args:
        agent: Metrics of the agent.
        runtime: Metrics of the runtime.
    """

    def __init__(self, agent: Values, runtime: Values) -> None:
        self.agent = dict(agent)
        self.runtime = dict(runtime)


def _of_agent(subtask: HarnessSubtask) -> LocalMetricGroup:
    return subtask.shared.telemetry.metrics


def _of_runtime(subtask: HarnessSubtask) -> LocalMetricGroup:
    return subtask.shared.telemetry.run_metrics.group


def _add_metrics(
    previous_values: Values,
    left_out: Values,
    subtasks: Sequence[HarnessSubtask],
    of: Callable[[HarnessSubtask], LocalMetricGroup],
) -> Values:
    present = sum_of(map(of, subtasks))
    gauges = {name for subtask in subtasks for name in gauges_of(of(subtask))}
    counts = {
        name: previous_values.get(name, 0) + value - left_out.get(name, 0)
        for name, value in present.items()
        if name not in gauges
    }
    return {**previous_values, **present, **counts}
