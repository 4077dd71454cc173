"""Ends an operator and starts another one in its place, with inputs in the same order or another."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from flink_agents.api.errors import AgentConfigurationError
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.testing.fakes.state import Snapshot
from flink_agents.testing.records import Records
from flink_agents.testing.subtasks.driver import HarnessSubtask
from flink_agents.testing.subtasks.meters import MetricSums
from flink_agents.testing.subtasks.waits import WaitsShown

T = TypeVar("T")

Reorder = int | Callable[[list[Any]], Sequence[Any]]
"""A seed, or a function that returns the given inputs in another order."""


def reorder_inputs(inputs: Sequence[T], reorder: Reorder | None, record_of: Callable[[T], Any]) -> list[T]:
    """Return inputs in the order in which they come again after a restore.

    Args:
        inputs: The inputs in their original order.
        reorder: None for that order. A seed for any order, as if each input had its own source. Or a function
            that returns the inputs in another order.
        record_of: Returns what that function gets for an input.

    Raises:
        AgentConfigurationError: The function returns other inputs than it got.
    """
    input_list = list(inputs)
    if reorder is None:
        return input_list
    if isinstance(reorder, int):
        random.Random(reorder).shuffle(input_list)
        return input_list
    records = [record_of(original_input) for original_input in input_list]
    reordered_records = list(reorder(list(records)))
    if sorted(map(id, reordered_records)) != sorted(map(id, records)):
        raise AgentConfigurationError(
            "reorder returned other inputs than it got",
            expected=f"the same {len(input_list)} inputs in any order",
            found=repr(reordered_records)[:300],
            fix="return a permutation of the list: lambda inputs: inputs[::-1]",
        )
    inputs_by_record: dict[int, list[T]] = {}
    for record, matching_input in zip(records, input_list, strict=True):
        inputs_by_record.setdefault(id(record), []).append(matching_input)
    return [inputs_by_record[id(record)].pop(0) for record in reordered_records]


class Restarts(WaitsShown, Records):
    """Takes checkpoints, and returns to one. A base class of ``OperatorHarness``."""

    codec: ValueCodec
    _inputs: list[tuple[Any, int | None]] | None
    _max_parallelism: int
    _meters: MetricSums

    def close(self) -> None:
        """End the operator, and wait for its threads."""
        self._end_subtasks(wait=True)

    def _end_subtasks(self, wait: bool) -> None:
        for subtask in self._subtasks:
            subtask.processor.close(wait)
        self._subtasks = []

    def checkpoint(self) -> Snapshot:
        """Take a checkpoint like :meth:`snapshot`, without keeping the inputs that follow."""
        keys = {key: state.copy() for task in self._subtasks for key, state in task.backend.keys.items()}
        side = {tag: len(values) for tag, values in self._side.items()}
        inputs = len(self._inputs or ())
        journals = tuple(task.backend.journals.copy() for task in self._subtasks)
        return Snapshot(keys, len(self.outputs), side, self._max_parallelism, inputs, journals=journals)

    def copy_outside_state(self) -> dict[str, Any]:
        """Return copies of what is not in the state of keys: outputs, clock and watermark, by name."""
        side = {tag: list(values) for tag, values in self._side.items()}
        return {
            "outputs": list(self.outputs),
            "timestamps": list(self.timestamps),
            "lows": list(self.lows),
            "side": side,
            "side_times": {tag: list(times) for tag, times in self._side_times.items()},
            "time": self._clock.time,
            "watermark": self.current_watermark,
        }

    def return_to(self, snapshot: Snapshot, kept_values: Mapping[str, Any], parallelism: int) -> None:
        """Start an operator from ``snapshot``, with the outputs, clock and watermark in ``kept_values``."""
        self.close()
        self._meters = MetricSums()
        self._restore_copies(kept_values)
        self._start_operator(parallelism, snapshot)

    def set_aside(self) -> tuple[list[HarnessSubtask], MetricSums]:
        """Remove the operator without ending it, and return it for :meth:`take_back`."""
        aside = self._subtasks, self._meters
        self._subtasks = []
        return aside

    def take_back(
        self, aside: tuple[list[HarnessSubtask], MetricSums], kept_values: Mapping[str, Any]
    ) -> None:
        """End the present operator, and continue with one that was set aside, and with ``kept_values``."""
        self.close()
        self._subtasks, self._meters = aside
        self._restore_copies(kept_values)

    @property
    def busy(self) -> bool:
        """True if any key has work that is not committed."""
        return any(subtask.processor.actors for subtask in self._subtasks)

    def _restore_copies(self, kept_values: Mapping[str, Any]) -> None:
        # Tests hold references to these lists.
        self.outputs[:], self.timestamps[:] = kept_values["outputs"], kept_values["timestamps"]
        self.lows[:] = kept_values["lows"]
        for tag in {*self._side, *kept_values["side"]}:
            self._outputs_of(tag)[:] = kept_values["side"].get(tag, [])
            self.side_times(tag)[:] = kept_values["side_times"].get(tag, [])
        self._clock.set_wall_clock(kept_values["time"])
        self.current_watermark = kept_values["watermark"]
