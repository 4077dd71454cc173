"""Chooses the operator's path: through known internals of PyFlink, or the public one.

The log reports once per operator the parts that are not used, with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pyflink.datastream import OutputTag, RuntimeContext

from flink_agents.api.common.logs import bounded_logger
from flink_agents.runtime.flink.fast.edges import PromptFlush
from flink_agents.runtime.flink.fast.internals import (
    FlinkKeys,
    FlinkOperatorState,
    KeyedOperation,
    TimestampCollector,
    Unfit,
)
from flink_agents.runtime.operator.emission import Emission
from flink_agents.runtime.state.keyed_state import Timers

_log = bounded_logger("flink_agents.fast_path")

T = TypeVar("T")


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
        Unfit: PyFlink or Flink differs from the known versions.
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

    def leave(self, emission: Emission) -> None:
        """Emit all outputs of an emission."""
        if emission.outputs or emission.side_outputs:
            self._outlet.put(emission.outputs, emission.side_outputs)
            self._has_unflushed = True

    def flush(self, timers: Timers) -> None:
        """Send what has left to its readers, now or with a timer; called at the end of each call of Flink."""
        if self._has_unflushed:
            self._has_unflushed = not self._flush.after(timers, bool(self._outlet.waiting))

    def rest(self) -> Iterator[Any]:
        """Return the emitted outputs that Flink has to iterate over."""
        return self._outlet.rest()

    def install(self, process: Callable[[str, Any], Any], on_timer: Callable[[int], None]) -> None:
        """Make Flink call these functions from now on."""
        self._operation.replace(process, on_timer, self._outlet)


class OperatorAccess:
    """The PyFlink internals that an operator can use; None for each one that it cannot.

    Attributes:
        keys: All keys of the subtask.
        journals: The state of the operator that names the store.
        timers: Timers of the current key; None if ``keys`` is.
        collector: Flink's collector.
        fast_path: Calls and outputs; also None if the job has turned it off.
    """

    def __init__(
        self, function: Any, context: RuntimeContext, tags: dict[str, OutputTag], fast: bool, name: str
    ) -> None:
        self._name = name
        self.keys = self._look(
            lambda: FlinkKeys(context),
            "pending inputs in a savepoint of a fast path continue only with the next input of their key",
        )
        self.timers: Timers | None = self.keys.timers if self.keys is not None else None
        self.collector = self._look(
            lambda: TimestampCollector(context),
            "outputs at the end of a bounded input have the time of a timer",
        )
        self.journals: FlinkOperatorState | None = None
        if self.collector is not None:
            self.journals = self._look(
                lambda: FlinkOperatorState(context),
                "deleted journals are found only when a key comes whose steps they had",
            )
        self.fast_path: FastPath | None = None
        collector = self.collector
        if fast and self.keys is not None and collector is not None:
            self.fast_path = self._look(
                lambda: FastPath(function, collector, tags),
                "the operator is as fast as PyFlink lets it",
            )

    def _look(self, make: Callable[[], T], otherwise: str) -> T | None:
        try:
            return make()
        except Unfit as unfit:
            why = str(unfit)
        except Exception as error:
            # Whatever another version raises: it is not supported.
            why = f"{type(error).__name__}: {error}"
        _log.warning("agent %s: %s; so %s", self._name, why, otherwise)
        return None
