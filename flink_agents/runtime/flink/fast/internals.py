"""What the fast path uses of PyFlink 2.3 and Flink that is not a public API; all of it stands here.

Nothing is taken on trust: when the operator opens, each part is looked for, and compared with the versions
and shapes that are written down here. A part that differs is not used (:class:`Unfit` says what differs), and
the operator goes by PyFlink's public way, which does the same at another price. ``docs/design/fast-path.md``
says why each part is sound.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Generator, Iterable
from types import FrameType
from typing import Any

from pyflink.datastream import RuntimeContext
from pyflink.version import __version__ as pyflink_version

from flink_agents.runtime.flink.stand_ins import not_none
from flink_agents.runtime.state.keyed_state import DELAYED_STATE, PENDING_STATE, UNPRUNED_STATE, Timers

VERSIONS = ("2.3.",)
"""Versions of PyFlink whose shape was looked at, by their beginning."""

BACKENDS = ("HeapKeyedStateBackend", "RocksDBKeyedStateBackend")
"""Keyed state backends between whose keys the operator may go. That of batch jobs has one key only."""

OPERATOR = "org.apache.flink.streaming.api.operators.python.embedded.EmbeddedPythonKeyedProcessOperator"
PLAIN_OPERATOR = "org.apache.flink.streaming.api.operators.python.embedded.EmbeddedPythonProcessOperator"
ITERATOR = "org.apache.flink.streaming.api.operators.python.embedded.EmbeddedPythonIterator"
SOURCE_OPERATOR = "org.apache.flink.streaming.api.operators.SourceOperator"
COORDINATOR = "subtaskCheckpointCoordinator"
NO_CHECKPOINT = -1
COLLECTOR = "org.apache.flink.streaming.api.operators.TimestampedCollector"


class Unfit(Exception):
    """A part is not as it is known here; the text says which."""


def check_version() -> None:
    """Compare PyFlink with the versions that are known here.

    Raises:
        Unfit: It is another one.
    """
    if not pyflink_version.startswith(VERSIONS):
        raise Unfit(f"PyFlink is {pyflink_version}, and only {', '.join(VERSIONS)}* are known")


# -- keys -----------------------------------------------------------------------------------


class FlinkKeys:
    """The keys of a subtask, by its keyed state backend (``operator.keys.Keys``).

    Flink calls ``setCurrentKey`` of the backend itself, before each call of the operator. Timers ask
    the backend which key is current, so that they follow.

    Args:
        context: The runtime context of the operator, whose states are registered.

    Raises:
        Unfit: A part is missing, or is not known here.
    """

    def __init__(self, context: RuntimeContext) -> None:
        check_version()
        python: Any = _attribute(context, "_keyed_state_backend")
        self._context: Any = _attribute(python, "_function_context")
        backend: Any = _attribute(python, "_keyed_state_backend")
        kind = _class_name(backend).rpartition(".")[2]
        if kind not in BACKENDS:
            raise Unfit(f"the keyed state backend is {kind}, and only {', '.join(BACKENDS)} are known")
        self._backend = backend
        self.text: Callable[[], str] = _attribute(self._context, "get_current_key")
        self.current_key: Callable[[], Any] = _method(backend, "getCurrentKey")
        self.switch: Callable[[Any], None] = _method(backend, "setCurrentKey")
        self._get_keys = _method(backend, "getKeys")

    @property
    def timers(self) -> Timers:
        """Timers of whichever key is current."""
        return JavaTimers(_attribute(self._context.timer_service(), "_j_timer_service"))

    def waiting(self) -> list[tuple[str, Any]]:
        """Text and key of all keys that have inputs in state."""
        found: list[tuple[str, Any]] = []
        for key in self._keys_of(PENDING_STATE):
            self.switch(key)
            found.append((self.text(), key))
        return found

    def unpruned(self) -> list[Any]:
        """All keys whose records are to be pruned."""
        return self._keys_of(UNPRUNED_STATE)

    def delaying(self, most: int | None = None) -> list[Any]:
        """Keys that have delayed events: all of them, or at most so many."""
        return self._keys_of(DELAYED_STATE, most)

    def _keys_of(self, state: str, most: int | None = None) -> list[Any]:
        """All keys that have something in a state, whose other keys Flink does not look at."""
        pemja: Any = importlib.import_module("pemja")
        namespace = pemja.findClass("org.apache.flink.runtime.state.VoidNamespace").INSTANCE
        stream = self._get_keys(state, namespace)
        try:
            iterator = stream.iterator()
            keys: list[Any] = []
            while (most is None or len(keys) < most) and iterator.hasNext():
                keys.append(iterator.next())
        finally:
            stream.close()
        return keys


class JavaTimers:
    """Timers of the current key, without a call of Python in between.

    Args:
        service: Flink's timer service.
    """

    def __init__(self, service: Any) -> None:
        self.current_watermark: Callable[[], int] = _method(service, "currentWatermark")
        self.register_processing_time_timer: Callable[[int], None] = _method(
            service, "registerProcessingTimeTimer"
        )
        self.register_event_time_timer: Callable[[int], None] = _method(service, "registerEventTimeTimer")
        self.delete_event_time_timer: Callable[[int], None] = _method(service, "deleteEventTimeTimer")


# -- outputs --------------------------------------------------------------------------------


class Collector:
    """Flink's collector behind the operator, which adds to each output the timestamp of the call.

    Args:
        context: The runtime context of the operator.

    Raises:
        Unfit: A part is missing, or is not known here.
    """

    def __init__(self, context: RuntimeContext) -> None:
        check_version()
        inner: Any = _attribute(
            _attribute(_attribute(context, "_keyed_state_backend"), "_function_context"), "_j_context"
        )
        if _class_name(inner) != f"{OPERATOR}$ContextImpl":
            raise Unfit(f"the context is a {_class_name(inner)}")
        self._operator = _field(inner, "this$0").get(inner)
        if _class_name(self._operator) != OPERATOR:
            raise Unfit(f"the operator is a {_class_name(self._operator)}")
        self._field = _field(self._operator, "collector")
        if str(self._field.getType().getName()) != COLLECTOR:
            raise Unfit(f"the collector is a {self._field.getType().getName()}")
        self.timestamp: Callable[[], int] = _method(inner, "timestamp")

    def collect(self, output: Any) -> None:
        """Let an output leave, as the bytes that Flink has of it."""
        self._made()
        self.collect(output)

    def erase_timestamp(self) -> None:
        """Let what leaves in the present call have no timestamp."""
        self._made()
        self.erase_timestamp()

    def _made(self) -> None:
        # The operator makes it when its function has been opened.
        java = self._field.get(self._operator)
        self.collect, self.erase_timestamp = _method(java, "collect"), _method(java, "eraseTimestamp")  # type: ignore[method-assign]


# -- calls ----------------------------------------------------------------------------------


class Operation:
    """PyFlink's operation around the function of a keyed operator: what Flink calls for records and timers.

    PyFlink 2.3 puts three generators around each call, and Flink looks up ``hasNext``, ``next`` and
    ``close`` of what it returns by reflection. So an empty iterator of Java does as well, and costs less.

    Args:
        function: The function, in whose ``open`` this is made.

    Raises:
        Unfit: A part is missing, or is not known here.
    """

    def __init__(self, function: Any) -> None:
        check_version()
        from pyflink.fn_execution.datastream.embedded import operations as functions
        from pyflink.fn_execution.embedded import converters, operations

        self._operation: Any = _caller(operations.OneInputFunctionOperation)
        main: Any = _attribute(self._operation, "_main_operation")
        if (
            _attribute(self._operation, "_chained_operations")
            or type(main) is not functions.OneInputOperation
        ):
            raise Unfit("the function is chained to others")
        if {"process_element", "on_timer"} & {*vars(self._operation), *vars(main)}:
            raise Unfit("the operation has been changed already")
        closed = inspect.getclosurevars(_attribute(main, "_process_element_func")).nonlocals
        if getattr(closed.get("process_element"), "__self__", None) is not function:
            raise Unfit("the operation calls another function")
        self._side = inspect.getclosurevars(closed["process_func"]).nonlocals.get("side_output_context")
        of: Any = _attribute(self._operation, "_input_data_converter")
        if type(of) is not converters.RowDataConverter or len(of._field_data_converters) != 2:
            raise Unfit(f"the input comes by a {type(of).__name__}")
        key, record = of._field_data_converters
        if type(key) is not converters.IdentityDataConverter:
            raise Unfit(f"the key comes by a {type(key).__name__}")
        self._record_of: Callable[[Any], Any] = record.to_internal
        to: Any = _attribute(self._operation, "_output_data_converter")
        self._to_external: Callable[[Any], Any] = to.to_external
        self._pickles = type(to) is converters.PickleDataConverter
        pemja: Any = importlib.import_module("pemja")
        if pemja.findClass(ITERATOR) is None:
            raise Unfit("Flink iterates over results in another way")
        self._nothing = pemja.findClass("org.apache.flink.util.CloseableIterator").empty()

    def outlet(self, collector: Collector, tags: dict[str, str]) -> Outlet:
        """Where outputs of the function leave.

        Args:
            collector: Flink's collector.
            tags: Ids of the side outputs by tag.
        """
        to_side = None if self._side is None else _attribute(self._side, "collect")
        # What is not pickled is converted by Flink once more, where it iterates over what a call returns.
        return Outlet(collector if self._pickles else None, self._to_external, to_side, tags)

    def replace(
        self, process: Callable[[str, Any], Any], on_timer: Callable[[int], None], outlet: Outlet
    ) -> None:
        """Let Flink call functions whose outputs go to ``outlet``.

        Args:
            process: Gets the key and the record; returns None, or a generator that Flink has to go through.
            on_timer: Gets the time of the timer.
            outlet: Takes outputs.
        """
        record_of, nothing, rest = self._record_of, self._nothing, outlet.rest

        def process_element(row: Any) -> Any:
            key, record = row[1]
            more = process(key, record_of(record))
            if more is not None:
                return more
            return rest() if outlet.waiting else nothing

        def fire(timestamp: int) -> Any:
            on_timer(timestamp)
            return rest() if outlet.waiting else nothing

        self._operation.process_element = process_element
        self._operation.on_timer = fire


class Outlet:
    """Takes the outputs of a call of the function, in order.

    Args:
        collector: Flink's collector; None if outputs are returned to Flink at the end of the call.
        to_external: Makes what Flink has of an output.
        to_side: Takes the id of a side output and a value.
        tags: Ids of the side outputs by tag.

    Attributes:
        waiting: Outputs that are not returned yet.
    """

    def __init__(
        self,
        collector: Collector | None,
        to_external: Callable[[Any], Any],
        to_side: Callable[[str, Any], None] | None,
        tags: dict[str, str],
    ) -> None:
        self._collector = collector
        self._to_external = to_external
        self._to_side = to_side
        self._tags = tags
        self.waiting: list[Any] = []

    def put(self, outputs: Iterable[Any], side_outputs: Iterable[tuple[str, Any]]) -> None:
        """Let values leave, side outputs first, as on PyFlink's own way."""
        for tag, value in side_outputs:
            assert self._to_side is not None, f"the job has no side output {tag!r}"
            self._to_side(self._tags[tag], value)
        if self._collector is None:
            self.waiting += [self._to_external(value) for value in outputs]
            return
        for value in outputs:
            self._collector.collect(self._to_external(not_none(value)))

    def rest(self) -> Generator[Any, None, None]:
        """What Flink has to iterate over."""
        waiting, self.waiting = self.waiting, []
        yield from waiting


# -- watermarks -----------------------------------------------------------------------------


def emit_watermark(timestamp: int) -> None:
    """Let a watermark leave an operator that has no key; to be called where its function is opened.

    No public function of PyFlink emits a watermark, and no strategy of Flink has one before the first record.

    Args:
        timestamp: The watermark.

    Raises:
        Unfit: A part is missing, or is not known here.
    """
    operator = _plain_operator()
    pemja: Any = importlib.import_module("pemja")
    watermark = pemja.findClass("org.apache.flink.streaming.api.watermark.Watermark")(timestamp)
    _method(_field(operator, "output").get(operator), "emitWatermark")(watermark)


class OwnSource:
    """The source in whose chain the present function is; to be made where that is opened.

    Raises:
        Unfit: A part is missing, or is not known here; or the function is in no chain with a source.
    """

    def __init__(self) -> None:
        task = _method(_plain_operator(), "getContainingTask")()
        source = _field(task, "mainOperator").get(task)
        if _class_name(source) != SOURCE_OPERATOR:
            raise Unfit(f"the task begins with a {_class_name(source)}")
        self._stop = _method(source, "stop")

    def finish(self) -> None:
        """End the source as one that is bounded; only for the thread of its task."""
        pemja: Any = importlib.import_module("pemja")
        self._stop(pemja.findClass("org.apache.flink.runtime.io.network.api.StopMode").DRAIN)


def _plain_operator() -> Any:
    """The operator without a key whose function is opened now."""
    check_version()
    from pyflink.fn_execution.embedded import operations

    main: Any = _attribute(_caller(operations.OneInputFunctionOperation), "_main_operation")
    closed = inspect.getclosurevars(_attribute(main, "_process_element_func")).nonlocals
    inner: Any = _attribute(closed.get("function_context"), "_j_context")
    if _class_name(inner) != f"{PLAIN_OPERATOR}$ContextImpl":
        raise Unfit(f"the context is a {_class_name(inner)}")
    return _field(inner, "this$0").get(inner)


# -- checkpoints ----------------------------------------------------------------------------


class Barriers:
    """Tells which checkpoint barrier the task of a function has passed; to be made where that is opened.

    No function of PyFlink hears of barriers in thread mode. Flink's task thread sets this number when a
    barrier arrives, before the next record, so a read in that thread is exact.

    Args:
        context: The runtime context of the function.

    Raises:
        Unfit: A part is missing, or is not known here.
    """

    def __init__(self, context: RuntimeContext) -> None:
        check_version()
        environment = _value(_attribute(context, "_runtime_context"), "taskEnvironment")
        restored = _method(_method(environment, "getTaskStateManager")(), "getRestoreCheckpointId")()
        self._restored = int(restored.get()) if restored.isPresent() else NO_CHECKPOINT
        coordinator = _value(_value(_value(environment, "containingTask"), "invokable"), COORDINATOR)
        self._coordinator, self._last = coordinator, _field(coordinator, "lastCheckpointId")
        self.passed()

    def passed(self) -> int:
        """Return the number of the last checkpoint that the task has taken part in, or was restored from."""
        return max(int(self._last.get(self._coordinator)), self._restored)


# -- looking --------------------------------------------------------------------------------


def _caller(kind: type) -> Any:
    """The object of that class whose method has called the present one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("self")
        if type(found) is kind:
            return found
        frame = frame.f_back
    raise Unfit(f"no {kind.__name__} has opened the function")


def _attribute(owner: Any, name: str) -> Any:
    found = getattr(owner, name, None)
    if found is None:
        raise Unfit(f"{type(owner).__name__} has no {name}")
    return found


def _class_name(java: Any) -> str:
    return str(java.getClass().getName())


def _method(java: Any, name: str) -> Any:
    try:
        return getattr(java, name)
    except (AttributeError, SystemError):  # pemja sets no error for what is missing
        raise Unfit(f"{_class_name(java)} has no method {name}") from None


def _field(java: Any, name: str) -> Any:
    """A field of a Java object, of its class or one above."""
    kind = java.getClass()
    while kind is not None:
        for field in kind.getDeclaredFields():
            if str(field.getName()) == name:
                field.setAccessible(True)
                return field
        kind = kind.getSuperclass()
    raise Unfit(f"{_class_name(java)} has no field {name}")


def _value(java: Any, name: str) -> Any:
    """The value of a field of a Java object."""
    return _field(java, name).get(java)
