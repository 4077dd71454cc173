"""The operator's access to Flink: keys, timers, calls and outputs, through known internals of PyFlink."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from pyflink.datastream import OutputTag, RuntimeContext

from flink_agents.api.errors import AgentsError
from flink_agents.runtime.flink.fast.edges import PromptFlush
from flink_agents.runtime.flink.fast.internals import (
    FlinkKeys,
    FlinkOperatorState,
    KeyedOperation,
    TimestampCollector,
)
from flink_agents.runtime.flink.fast.reflection import unfit_part_error
from flink_agents.runtime.operator.emission import Emission
from flink_agents.runtime.state.keyed_state import Timers


def wall_clock_ms() -> int:
    """Return the milliseconds since the epoch."""
    return int(time.time() * 1000)


class FastPath:
    """Calls from Flink without PyFlink's generators, and outputs that go to Flink immediately.

    Args:
        function: The function that creates this in its ``open``.
        collector: Flink's collector.
        tags: The side outputs.

    Raises:
        UnsupportedExecutionError: PyFlink or Flink differs from the known versions.
    """

    def __init__(
        self,
        function: Any,
        collector: TimestampCollector,
        tags: dict[str, OutputTag],
    ) -> None:
        self._flush = PromptFlush(collector.flush_of_task(), wall_clock_ms)
        self._has_unflushed = False
        self._operation = KeyedOperation(function)
        self._outlet = self._operation.outlet(
            collector, {tag: output_tag.tag_id for tag, output_tag in tags.items()}
        )

    def emit(self, emission: Emission) -> None:
        """Emit all outputs of an emission."""
        if emission.outputs or emission.side_outputs:
            self._outlet.emit_values(emission.outputs, emission.side_outputs)
            self._has_unflushed = True

    def flush(self, timers: Timers) -> None:
        """Send what has left to its readers, now or with a timer; called at the end of each call of Flink."""
        if self._has_unflushed:
            self._has_unflushed = not self._flush.flush_after_call(timers, bool(self._outlet.waiting))

    def remaining_outputs(self) -> Iterator[Any]:
        """Return the emitted outputs that Flink has to iterate over."""
        return self._outlet.remaining_outputs()

    def replace_functions(self, process: Callable[[str, Any], Any], on_timer: Callable[[int], None]) -> None:
        """Make Flink call these functions from now on."""
        self._operation.replace(process, on_timer, self._outlet)


class OperatorAccess:
    """The PyFlink internals that an operator uses.

    Args:
        function: The function that creates this in its ``open``.
        context: The runtime context of the operator, whose states are registered.
        tags: The side outputs.

    Attributes:
        keys: All keys of the subtask.
        journals: The state of the operator that names the store.
        timers: Timers of the current key.
        collector: Flink's collector.
        fast_path: Calls and outputs.

    Raises:
        UnsupportedExecutionError: PyFlink, Flink or the state backend differs from the known ones.
    """

    def __init__(self, function: Any, context: RuntimeContext, tags: dict[str, OutputTag]) -> None:
        try:
            self.keys = FlinkKeys(context)
            self.timers: Timers = self.keys.timers
            self.collector = TimestampCollector(context)
            self.journals = FlinkOperatorState(context)
            self.fast_path = FastPath(function, self.collector, tags)
        except AgentsError:
            raise
        except Exception as error:
            # Whatever another release raises: it is not supported.
            raise unfit_part_error(f"{type(error).__name__}: {error}") from error
