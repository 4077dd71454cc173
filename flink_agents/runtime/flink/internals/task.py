"""Parts of a task that are no public API of PyFlink 2.3: keys, timers, state, watermarks, its source.

Each part is checked when the operator opens: it is compared with the versions and shapes that are defined
here. If one differs, the job fails by an ``UnsupportedExecutionError`` that names the difference.
``docs/design/flink-internals.md`` explains why each part is safe.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from pyflink.datastream import RuntimeContext

from flink_agents.api.errors import UnsupportedExecutionError
from flink_agents.runtime.flink.internals.java_objects import (
    check_version,
    class_name,
    field_of,
    field_value,
    find_caller,
    method_of,
    read_attribute,
    task_environment,
    task_of,
    unfit_part_error,
)
from flink_agents.runtime.state.keyed_state import (
    BUSY_STATE,
    DELAYED_STATE,
    JOURNALS_STATE,
    POSITION,
    POSITIONS_STATE,
    UNPRUNED_STATE,
    Timers,
)

BACKENDS = (
    "HeapKeyedStateBackend",
    "RocksDBKeyedStateBackend",
    "ForStSyncKeyedStateBackend",
    "ChangelogKeyedStateBackend",
)
"""Keyed state backends that allow the operator to switch keys. The backend of batch jobs has only one key."""

OPERATOR = "org.apache.flink.streaming.api.operators.python.embedded.EmbeddedPythonKeyedProcessOperator"
PLAIN_OPERATOR = "org.apache.flink.streaming.api.operators.python.embedded.EmbeddedPythonProcessOperator"
SOURCE_OPERATOR = "org.apache.flink.streaming.api.operators.SourceOperator"
COORDINATOR = "subtaskCheckpointCoordinator"
NO_CHECKPOINT = -1


# -- keys -----------------------------------------------------------------------------------


class FlinkKeys:
    """The keys of a subtask, by its keyed state backend (``operator.keys.Keys``).

    Flink calls ``setCurrentKey`` of the backend itself, before each call of the operator. Timers ask
    the backend for the current key, so they follow.

    Args:
        context: The runtime context of the operator, whose states are registered.

    Raises:
        UnsupportedExecutionError: A part is missing or unknown.
    """

    def __init__(self, context: RuntimeContext) -> None:
        check_version()
        python: Any = read_attribute(context, "_keyed_state_backend")
        self._context: Any = read_attribute(python, "_function_context")
        backend: Any = read_attribute(python, "_keyed_state_backend")
        kind = class_name(backend).rpartition(".")[2]
        if kind not in BACKENDS:
            raise UnsupportedExecutionError(
                f"agents do not run on the state backend {kind}",
                expected="hashmap, rocksdb or forst, each with or without changelog",
                found=class_name(backend),
                fix="set state.backend.type to hashmap or rocksdb",
            )
        self._backend = backend
        self.text: Callable[[], str] = read_attribute(self._context, "get_current_key")
        self.current_key: Callable[[], Any] = method_of(backend, "getCurrentKey")
        self.switch: Callable[[Any], None] = method_of(backend, "setCurrentKey")
        self._get_keys = method_of(backend, "getKeys")

    @property
    def timers(self) -> Timers:
        """Timers of the current key."""
        return JavaTimers(read_attribute(self._context.timer_service(), "_j_timer_service"))

    def waiting(self) -> list[tuple[str, Any]]:
        """Return canonical string and key of all keys that have waiting work in state."""
        keys: list[tuple[str, Any]] = []
        for key in self._keys_of(BUSY_STATE):
            self.switch(key)
            keys.append((self.text(), key))
        return keys

    def unpruned(self) -> list[Any]:
        """Return all keys whose records have to be pruned."""
        return self._keys_of(UNPRUNED_STATE)

    def delaying(self, most: int | None = None) -> list[Any]:
        """Return keys that have delayed events: all of them, or a limited number."""
        return self._keys_of(DELAYED_STATE, most)

    def _keys_of(self, state: str, most: int | None = None) -> list[Any]:
        """Return all keys that have a value in a state; Flink does not visit other keys."""
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
    """Timers of the current key, set without Python frames of PyFlink in between.

    Args:
        service: Flink's timer service.
    """

    def __init__(self, service: Any) -> None:
        self.current_watermark: Callable[[], int] = method_of(service, "currentWatermark")
        self.register_processing_time_timer: Callable[[int], None] = method_of(
            service, "registerProcessingTimeTimer"
        )
        self.register_event_time_timer: Callable[[int], None] = method_of(service, "registerEventTimeTimer")


# -- state of the operator ------------------------------------------------------------------


class FlinkOperatorState:
    """The state ``journals`` of the operator (``slots.OperatorSlot``).

    It is a broadcast state: after a change of the parallelism, each subtask gets one of the copies. Subtasks
    that have finished do not prevent checkpoints, as they would with a union state. The copies differ in
    their positions, so that a list has these as well: Flink hands out all of its items.

    Args:
        context: The runtime context of the operator.

    Raises:
        UnsupportedExecutionError: A part is missing or unknown.
    """

    def __init__(self, context: RuntimeContext) -> None:
        check_version()
        find: Any = importlib.import_module("pemja").findClass
        text = find("org.apache.flink.api.common.typeutils.base.StringSerializer").INSTANCE
        copies = find("org.apache.flink.api.common.state.MapStateDescriptor")(JOURNALS_STATE, text, text)
        positions = find("org.apache.flink.api.common.state.ListStateDescriptor")(POSITIONS_STATE, text)
        backend = method_of(keyed_operator(context), "getOperatorStateBackend")()
        self._copies = method_of(backend, "getBroadcastState")(copies)
        self._positions = method_of(backend, "getListState")(positions)
        self._put: Callable[[str, str], None] = method_of(self._copies, "put")
        self._update: Callable[[list[str]], None] = method_of(self._positions, "update")

    def put(self, name: str, value: bytes) -> None:
        """Store ``value`` under ``name``, in place of its last value."""
        text = value.decode("latin-1")
        self._put(name, text)
        if name == POSITION:
            self._update([text])

    def items(self) -> list[tuple[str, bytes]]:
        """Return all entries, with the positions of all subtasks that this one continues."""
        iterator = self._copies.entries().iterator()
        entries = []
        while iterator.hasNext():
            entry = iterator.next()
            entries.append((entry.getKey(), entry.getValue()))
        # Pemja makes a list of Python out of one of Java.
        entries += [(POSITION, position) for position in self._positions.get()]
        return [(str(name), str(text).encode("latin-1")) for name, text in entries]


# -- watermarks -----------------------------------------------------------------------------


def emit_watermark(timestamp: int) -> None:
    """Emit a watermark from an operator without a key; call it when its function is opened.

    No public function of PyFlink emits a watermark, and no strategy of Flink emits one before the first
    record.

    Args:
        timestamp: The watermark.

    Raises:
        UnsupportedExecutionError: A part is missing or unknown.
    """
    operator = _plain_operator()
    pemja: Any = importlib.import_module("pemja")
    watermark = pemja.findClass("org.apache.flink.streaming.api.watermark.Watermark")(timestamp)
    method_of(field_of(operator, "output").get(operator), "emitWatermark")(watermark)


def replace_valve(context: RuntimeContext, name: str, java: str, *arguments: Any) -> None:
    """Replace the valve that combines the watermarks of the inputs of a function's task.

    Call it when the function is opened: no input has been read by then.

    Args:
        context: The runtime context of the function.
        name: The valve's class.
        java: The text of the class, whose constructor takes the number of input channels and ``arguments``.
        *arguments: The further arguments of the constructor.

    Raises:
        UnsupportedExecutionError: A part is missing or unknown.
    """
    check_version()
    pemja: Any = importlib.import_module("pemja")
    task = task_of(context)
    stream = field_value(field_value(task, "inputProcessor"), "input")
    field = field_of(stream, "statusWatermarkValve")
    loader = method_of(task, "getUserCodeClassLoader")()
    kind = pemja.findClass("org.apache.flink.table.runtime.generated.CompileUtils").compile(
        loader, name, java
    )
    channels = method_of(field_value(stream, "checkpointedInputGate"), "getNumberOfInputChannels")()
    # Pemja passes a tuple as Java's array.
    field.set(stream, kind.getConstructors()[0].newInstance((channels, *arguments)))


class OwnSource:
    """The source that the present function is chained to; create it when the function is opened.

    Raises:
        UnsupportedExecutionError: A part is missing or unknown, or the function is not chained to a source.
    """

    def __init__(self) -> None:
        task = method_of(_plain_operator(), "getContainingTask")()
        source = field_of(task, "mainOperator").get(task)
        if class_name(source) != SOURCE_OPERATOR:
            raise unfit_part_error(f"the task starts with a {class_name(source)}")
        self._stop = method_of(source, "stop")

    def end_source(self) -> None:
        """End the source like a bounded one; only for the thread of its task."""
        pemja: Any = importlib.import_module("pemja")
        self._stop(pemja.findClass("org.apache.flink.runtime.io.network.api.StopMode").DRAIN)


def _plain_operator() -> Any:
    """Return the operator without a key whose function is being opened."""
    check_version()
    from pyflink.fn_execution.embedded import operations

    main: Any = read_attribute(find_caller(operations.OneInputFunctionOperation), "_main_operation")
    closed = inspect.getclosurevars(read_attribute(main, "_process_element_func")).nonlocals
    inner: Any = read_attribute(closed.get("function_context"), "_j_context")
    if class_name(inner) != f"{PLAIN_OPERATOR}$ContextImpl":
        raise unfit_part_error(f"the context is a {class_name(inner)}")
    return field_of(inner, "this$0").get(inner)


# -- checkpoints ----------------------------------------------------------------------------


class Barriers:
    """Reads which checkpoint barrier a function's task has passed; create it when the function is opened.

    In thread mode, no PyFlink function is notified of barriers. Flink's task thread sets this number when a
    barrier arrives, before the next record, so a read in that thread is exact.

    Args:
        context: The runtime context of the function.

    Raises:
        UnsupportedExecutionError: A part is missing or unknown.
    """

    def __init__(self, context: RuntimeContext) -> None:
        check_version()
        environment = task_environment(context)
        restored = method_of(method_of(environment, "getTaskStateManager")(), "getRestoreCheckpointId")()
        self._restored = int(restored.get()) if restored.isPresent() else NO_CHECKPOINT
        coordinator = field_value(task_of(context), COORDINATOR)
        self._coordinator, self._last = coordinator, field_of(coordinator, "lastCheckpointId")
        self.last_checkpoint()

    def last_checkpoint(self) -> int:
        """Return the number of the last checkpoint that the task has taken part in, or was restored from."""
        return max(int(self._last.get(self._coordinator)), self._restored)


# -- the task and its operator ------------------------------------------------------------------------------


def keyed_context(context: RuntimeContext) -> Any:
    """Return the Java context that Flink passes to the calls of a keyed function."""
    inner: Any = read_attribute(
        read_attribute(read_attribute(context, "_keyed_state_backend"), "_function_context"), "_j_context"
    )
    if class_name(inner) != f"{OPERATOR}$ContextImpl":
        raise unfit_part_error(f"the context is a {class_name(inner)}")
    return inner


def keyed_operator(context: RuntimeContext) -> Any:
    """Return the Java operator of a keyed function."""
    inner = keyed_context(context)
    operator = field_of(inner, "this$0").get(inner)
    if class_name(operator) != OPERATOR:
        raise unfit_part_error(f"the operator is a {class_name(operator)}")
    return operator
