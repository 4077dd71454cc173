"""The operator's access to Flink: keys, timers, calls and outputs, through known internals of PyFlink.

It decides when records leave the buffers of a task. Flink's own way is a thread for each output of each
subtask, which wakes after every buffer timeout: at 2 ms, the threads of an idle job of 30 outputs take an
eighth of a core. Here, an operator in Python forwards each record at once, which needs no thread and costs
little beside a call of Python. An agent may emit more: it flushes at most every :data:`FLUSH_MS`. The threads
of all other outputs wake every :data:`BUFFER_TIMEOUT_MS`.
"""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from typing import Any

from pyflink.datastream import OutputTag, RuntimeContext

from flink_agents.api.errors import AgentsError
from flink_agents.runtime.flink.internals.java_objects import (
    check_version,
    field_of,
    field_value,
    find_caller,
    method_of,
    read_attribute,
    unfit_part_error,
)
from flink_agents.runtime.flink.internals.task import (
    FlinkKeys,
    FlinkOperatorState,
    keyed_context,
    keyed_operator,
)
from flink_agents.runtime.operator.services.service import Emission
from flink_agents.runtime.state.keyed_state import Timers

ITERATOR = "org.apache.flink.streaming.api.operators.python.embedded.EmbeddedPythonIterator"
COLLECTOR = "org.apache.flink.streaming.api.operators.TimestampedCollector"


def wall_clock_ms() -> int:
    """Return the wall-clock time, in milliseconds since the epoch."""
    return int(time.time() * 1000)


class OperatorAccess:
    """The operator's access to Flink: keys, timers, calls, and outputs.

    Flink calls it without PyFlink's generators, and its outputs go to Flink immediately.

    Args:
        function: The function that creates this in its ``open``.
        context: The runtime context of the operator, whose states are registered.
        tags: The side outputs.

    Attributes:
        keys: All keys of the subtask.
        journals: The state of the operator that names the store.
        timers: Timers of the current key.
        collector: Flink's collector.

    Raises:
        UnsupportedExecutionError: PyFlink, Flink or the state backend differs from the known ones.
    """

    def __init__(self, function: Any, context: RuntimeContext, tags: dict[str, OutputTag]) -> None:
        try:
            self.keys = FlinkKeys(context)
            self.timers: Timers = self.keys.timers
            self.collector = TimestampCollector(context)
            self.journals = FlinkOperatorState(context)
            self._flush = PromptFlush(self.collector.flush_of_task(), wall_clock_ms)
            self._has_unflushed = False
            self._operation = KeyedOperation(function)
            self._outlet = self._operation.outlet(
                self.collector, {tag: output_tag.tag_id for tag, output_tag in tags.items()}
            )
        except AgentsError:
            raise
        except Exception as error:
            # Whatever another release raises: it is not supported.
            raise unfit_part_error(f"{type(error).__name__}: {error}") from error

    def emit(self, emission: Emission) -> None:
        """Emit all outputs of an emission."""
        if emission.outputs or emission.side_outputs:
            self._outlet.emit_values(emission.outputs, emission.side_outputs)
            self._has_unflushed = True

    def flush(self) -> None:
        """Send buffered outputs to their readers, now or with a timer; called after each call of Flink."""
        if self._has_unflushed:
            self._has_unflushed = not self._flush.flush_after_call(self.timers, bool(self._outlet.waiting))

    def remaining_outputs(self) -> Iterator[Any]:
        """Yield the emitted outputs that Flink has to iterate over."""
        return self._outlet.remaining_outputs()

    def replace_functions(self, process: Callable[[str, Any], Any], on_timer: Callable[[int], None]) -> None:
        """Make Flink call ``process`` with key and record, and ``on_timer`` with a time, from now on."""
        self._operation.replace(process, on_timer, self._outlet)


# -- when outputs leave their buffers --------------------------------------------------------

BUFFER_TIMEOUT_MS = 20
"""The buffer timeout of a job: of operators in Java, and of what an agent emits outside of its calls."""

FLUSH_MS = 2
"""The shortest interval in which an agent flushes its outputs."""


class PromptFlush:
    """Flushes the outputs of an operator soon after they leave, and rarely if there are many.

    The first output after a pause leaves at once. Others wait for the rest of :data:`FLUSH_MS`, and a timer
    flushes them if no call of the operator does.

    Args:
        flush: Flushes the outputs.
        clock: Returns the wall-clock time in milliseconds.
    """

    def __init__(self, flush: Callable[[], None], clock: Callable[[], int]) -> None:
        self._flush = flush
        self._clock = clock
        self._flushed_ms = 0
        self._timer_ms = 0

    def flush_after_call(self, timers: Timers, is_returned: bool) -> bool:
        """Flush after a call that has emitted outputs, or register a timer for it.

        Args:
            timers: Timers of the current key.
            is_returned: True if outputs leave only when the call has returned.

        Returns:
            True if nothing is left to flush.
        """
        now = self._clock()
        # A clock that was set back does not stop the flushes.
        if not is_returned and not 0 <= now - self._flushed_ms < FLUSH_MS:
            self._flush()
            self._flushed_ms = now
            return True
        if not now <= self._timer_ms <= now + FLUSH_MS:
            self._timer_ms = now + FLUSH_MS
            timers.register_processing_time_timer(self._timer_ms)
        return False


# -- outputs --------------------------------------------------------------------------------


class TimestampCollector:
    """Flink's collector of the operator, which gives each output the timestamp of the call.

    Args:
        context: The runtime context of the operator.

    Raises:
        UnsupportedExecutionError: A part is missing or unknown.
    """

    def __init__(self, context: RuntimeContext) -> None:
        check_version()
        inner = keyed_context(context)
        self._operator = keyed_operator(context)
        self._field = field_of(self._operator, "collector")
        if str(self._field.getType().getName()) != COLLECTOR:
            raise unfit_part_error(f"the collector is a {self._field.getType().getName()}")
        self.timestamp: Callable[[], int] = method_of(inner, "timestamp")

    def collect(self, output: Any) -> None:
        """Emit an output, in the bytes that Flink uses for it."""
        self._bind_java()
        self.collect(output)

    def erase_timestamp(self) -> None:
        """Emit the following outputs of the present call without a timestamp."""
        self._bind_java()
        self.erase_timestamp()

    def flush_of_task(self) -> Callable[[], None]:
        """Return a function that sends all buffered outputs of the operator's task to their readers."""
        task = method_of(self._operator, "getContainingTask")()
        return method_of(field_value(task, "operatorChain"), "flushOutputs")

    def _bind_java(self) -> None:
        # The operator creates it after its function was opened.
        java = self._field.get(self._operator)
        self.collect, self.erase_timestamp = method_of(java, "collect"), method_of(java, "eraseTimestamp")  # type: ignore[method-assign]


# -- calls ----------------------------------------------------------------------------------


class KeyedOperation:
    """PyFlink's operation of a keyed operator: the object that Flink calls for records and timers.

    PyFlink 2.3 wraps each call in three generators, and Flink looks up ``hasNext``, ``next`` and
    ``close`` of the result by reflection. So an empty Java iterator works as well, and costs less.

    Args:
        function: The function that creates this in its ``open``.

    Raises:
        UnsupportedExecutionError: A part is missing or unknown.
    """

    def __init__(self, function: Any) -> None:
        check_version()
        from pyflink.fn_execution.datastream.embedded import operations as functions
        from pyflink.fn_execution.embedded import converters, operations

        self._operation: Any = find_caller(operations.OneInputFunctionOperation)
        main: Any = read_attribute(self._operation, "_main_operation")
        if (
            read_attribute(self._operation, "_chained_operations")
            or type(main) is not functions.OneInputOperation
        ):
            raise unfit_part_error("the function is chained to others")
        if {"process_element", "on_timer"} & {*vars(self._operation), *vars(main)}:
            raise unfit_part_error("the operation has been changed already")
        closed = inspect.getclosurevars(read_attribute(main, "_process_element_func")).nonlocals
        if getattr(closed.get("process_element"), "__self__", None) is not function:
            raise unfit_part_error("the operation calls another function")
        self._side = inspect.getclosurevars(closed["process_func"]).nonlocals.get("side_output_context")
        of: Any = read_attribute(self._operation, "_input_data_converter")
        if type(of) is not converters.RowDataConverter or len(of._field_data_converters) != 2:
            raise unfit_part_error(f"the input comes from a {type(of).__name__}")
        key, record = of._field_data_converters
        if type(key) is not converters.IdentityDataConverter:
            raise unfit_part_error(f"the key comes from a {type(key).__name__}")
        self._record_of: Callable[[Any], Any] = record.to_internal
        to: Any = read_attribute(self._operation, "_output_data_converter")
        self._to_external: Callable[[Any], Any] = to.to_external
        self._pickles = type(to) is converters.PickleDataConverter
        pemja: Any = importlib.import_module("pemja")
        if pemja.findClass(ITERATOR) is None:
            raise unfit_part_error("Flink iterates over results in another way")
        self._nothing = pemja.findClass("org.apache.flink.util.CloseableIterator").empty()

    def outlet(self, collector: TimestampCollector, tags: dict[str, str]) -> Outlet:
        """Return the outlet of the function's outputs.

        Args:
            collector: Flink's collector.
            tags: Ids of the side outputs by tag.
        """
        to_side: Callable[[str, Any], None] | None = None
        read_ids: Collection[str] = ()
        if self._side is not None:
            to_side = read_attribute(self._side, "collect")
            read_ids = read_attribute(self._side, "_side_output_converters")
        # PyFlink fails for a record of a side output that nothing reads.
        tags = {tag: tag_id for tag, tag_id in tags.items() if tag_id in read_ids}
        # Flink converts a result that is not pickled once more, as it iterates over it.
        return Outlet(collector if self._pickles else None, self._to_external, to_side, tags)

    def replace(
        self, process: Callable[[str, Any], Any], on_timer: Callable[[int], None], outlet: Outlet
    ) -> None:
        """Replace the functions that Flink calls; their outputs go to ``outlet``.

        Args:
            process: Gets the key and the record; returns None, or a generator that Flink has to iterate over.
            on_timer: Gets the time of the timer.
            outlet: Takes outputs.
        """
        record_of = self._record_of
        nothing = self._nothing
        emit_waiting = outlet.remaining_outputs

        def process_element(row: Any) -> Any:
            key, record = row[1]
            more = process(key, record_of(record))
            if more is not None:
                return more
            return emit_waiting() if outlet.waiting else nothing

        def fire(timestamp: int) -> Any:
            on_timer(timestamp)
            return emit_waiting() if outlet.waiting else nothing

        self._operation.process_element = process_element
        self._operation.on_timer = fire


class Outlet:
    """Takes the outputs of a call of the function, in order.

    Args:
        collector: Flink's collector; None if outputs are returned to Flink at the end of the call.
        to_external: Converts an output to Flink's form.
        to_side: Takes the id of a side output and a value.
        tags: Ids of the side outputs that the job reads, by tag; values of others are dropped.

    Attributes:
        waiting: Outputs that are not returned yet.
    """

    def __init__(
        self,
        collector: TimestampCollector | None,
        to_external: Callable[[Any], Any],
        to_side: Callable[[str, Any], None] | None,
        tags: dict[str, str],
    ) -> None:
        self._collector = collector
        self._to_external = to_external
        self._to_side = to_side
        self._tags = tags
        self.waiting: list[Any] = []

    def emit_values(self, outputs: Iterable[Any], side_outputs: Iterable[tuple[str, Any]]) -> None:
        """Emit values, side outputs first, as PyFlink does."""
        for tag, value in side_outputs:
            if self._to_side is not None and tag in self._tags:
                self._to_side(self._tags[tag], value)
        if self._collector is None:
            self.waiting += [self._to_external(value) for value in outputs]
            return
        for value in outputs:
            self._collector.collect(self._to_external(not_none(value)))

    def remaining_outputs(self) -> Generator[Any, None, None]:
        """Yield the outputs that wait, for Flink's iterator."""
        waiting = self.waiting
        self.waiting = []
        yield from waiting


class _Nothing:
    """The output ``None``: PyFlink does not pickle None, and Flink's serializers accept no null.

    It becomes ``None`` when it is pickled.
    """

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


_NOTHING = _Nothing()


def not_none(value: Any) -> Any:
    """Return ``value``, or a proxy if it is None."""
    return _NOTHING if value is None else value
