"""Wraps everything that PyFlink's public API lacks or gets wrong, in one place.

Each function names the trap that it covers; ``docs/design/pyflink.md`` describes how each was found. No other
code in the package touches a private attribute of PyFlink, the Java gateway or a Java object.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pyflink.java_gateway as java_gateway
from py4j.protocol import Py4JError
from pyflink.common import Time, TypeInformation, Types
from pyflink.common.typeinfo import BasicType, RowTypeInfo
from pyflink.datastream import DataStream, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors.base import Sink, StreamTransformer, SupportsPreprocessing
from pyflink.datastream.state import MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from pyflink.util.java_utils import get_field_value, get_j_env_configuration

from flink_agents.runtime.state.keyed_state import (
    BUSY_STATE,
    DELAYED_STATE,
    HEAD_STATE,
    MEMORY_STATE,
    PENDING_STATE,
    UNPRUNED_STATE,
    KeyedState,
)

_ANNOUNCED = "internal.flink-agents.main-classes"
"""The key of an announcement; not an option of agents, whose names are checked."""

# -- inside a task ------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskInfo:
    """The job and the subtask that an operator instance runs in.

    Attributes:
        job_id: Flink's id of the job, 32 hexadecimal digits.
        job_name: The job's name.
        subtask: Index of the subtask, from 0.
        parallelism: Number of subtasks.
        attempt: Number of the attempt, from 0.
    """

    job_id: str
    job_name: str
    subtask: int
    parallelism: int
    attempt: int


def task_info(context: RuntimeContext) -> TaskInfo:
    """Return the task in which the operator of ``context`` runs.

    PyFlink 2.3 calls Java methods that Flink 2 moved to ``getTaskInfo()``, and has none for the job.
    """
    java = _java_context(context)
    task = java.getTaskInfo()
    return TaskInfo(
        job_id=java.getJobInfo().getJobId().toString(),
        job_name=str(java.getJobInfo().getJobName()),
        subtask=task.getIndexOfThisSubtask(),
        parallelism=task.getNumberOfParallelSubtasks(),
        attempt=task.getAttemptNumber(),
    )


def _java_context(context: RuntimeContext) -> Any:
    """Return Java's context, which each task has: process mode is rejected."""
    inner: Any = context
    return inner._runtime_context


def watch_operators(
    arrives: Callable[[str, str, bytes, str | None], Any], loaded: Callable[[Any], None]
) -> None:
    """Call functions before and after each Python operator of this worker is unpickled.

    PyFlink has no hook for it, and the operators of a job, PyFlink's own functions among them, are unpickled
    in no particular order: the first one decides which modules are loaded.

    Args:
        arrives: Gets the id and the name of the operator's job, the pickle, and the job's announcement
            (:func:`announce_to_workers`).
        loaded: Gets the result of ``arrives``; None if it raised.
    """
    from pyflink.fn_execution.embedded import operations

    original = operations.extract_process_function
    if getattr(original, "is_watched", False):
        return

    def extract_process_function(proto: Any, context: Any, *remaining_arguments: Any) -> Any:
        job = context.getJobInfo()
        arrived = None
        try:
            announced = dict(context.getJobConfiguration().toMap()).get(_ANNOUNCED)
            arrived = arrives(str(job.getJobId().toString()), str(job.getJobName()), proto.payload, announced)
            return original(proto, context, *remaining_arguments)
        finally:
            loaded(arrived)

    watched: Any = extract_process_function
    watched.is_watched = True
    operations.extract_process_function = watched


def task_configuration(context: RuntimeContext) -> dict[str, str]:
    """Return Flink's configuration, as the TaskManager and the job see it.

    PyFlink's context does not show it. It includes options from the TaskManager's command line,
    and, in a local cluster, the cluster's options, which are in no file.
    """
    java = _java_context(context)
    options: dict[str, str] = {}
    for configuration in (java.getTaskManagerRuntimeInfo().getConfiguration(), java.getJobConfiguration()):
        options.update({str(key): str(value) for key, value in dict(configuration.toMap()).items()})
    return options


def keyed_state(context: RuntimeContext, memory_ttl_ms: int | None) -> KeyedState:
    """Return the agent's states. Their names and types are part of every savepoint.

    Values are bytes in ``PICKLED_BYTE_ARRAY`` states, the cheapest of PyFlink's
    (``docs/design/core.md``; ``PRIMITIVE_ARRAY`` converts byte by byte).
    """
    head = ValueStateDescriptor(HEAD_STATE, Types.PICKLED_BYTE_ARRAY())
    busy = ValueStateDescriptor(BUSY_STATE, Types.PICKLED_BYTE_ARRAY())
    pending = MapStateDescriptor(PENDING_STATE, Types.LONG(), Types.PICKLED_BYTE_ARRAY())
    memory = MapStateDescriptor(MEMORY_STATE, Types.STRING(), Types.PICKLED_BYTE_ARRAY())
    unpruned = ValueStateDescriptor(UNPRUNED_STATE, Types.PICKLED_BYTE_ARRAY())
    delayed = MapStateDescriptor(DELAYED_STATE, Types.LONG(), Types.PICKLED_BYTE_ARRAY())
    if memory_ttl_ms is not None:
        memory.enable_time_to_live(_state_ttl(memory_ttl_ms))
    return KeyedState(
        context.get_state(head),
        context.get_state(busy),
        context.get_map_state(pending),
        context.get_map_state(memory),
        context.get_state(unpruned),
        context.get_map_state(delayed),
        memory_ttl_ms is not None,
    )


def _state_ttl(milliseconds: int) -> StateTtlConfig:
    return (
        StateTtlConfig.new_builder(Time.milliseconds(milliseconds))
        .set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)
        .set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)
        .build()
    )


def cancellation_check() -> Callable[[], None]:
    """Return a function that raises ``InterruptedError`` once Flink has cancelled the task of this thread.

    A plain wait in Python does not notice the interrupt: with it a cancel took 15 s (measured).
    """
    pemja: Any = importlib.import_module("pemja")  # Only a worker has it.
    thread = pemja.findClass("java.lang.Thread").currentThread()

    def check() -> None:
        if thread.isInterrupted():
            raise InterruptedError("the task was cancelled")

    return check


# -- in the driver ------------------------------------------------------------------------


def configuration_of(env: StreamExecutionEnvironment) -> dict[str, str]:
    """Return all of Flink's options for ``env``, by name."""
    return dict(get_j_env_configuration(env._j_stream_execution_environment).toMap())


def set_options(env: StreamExecutionEnvironment, values: dict[str, str]) -> None:
    """Set Flink options on an existing environment."""
    from pyflink.common import Configuration

    configuration = Configuration()
    for key, value in values.items():
        configuration.set_string(key, value)
    env.configure(configuration)


def announce_to_workers(env: StreamExecutionEnvironment, text: str) -> None:
    """Pass a string to workers, which get it before they unpickle any operator of the job."""
    set_options(env, {_ANNOUNCED: text})


def _jvm() -> Any:
    return java_gateway.get_gateway().jvm


def java_stream(stream: DataStream) -> Any:
    """Return the Java stream of a Python stream."""
    return stream._j_data_stream


def transformation_of(stream: DataStream) -> Any:
    """Return the transformation that produces ``stream``: the node of Flink's job graph, as a Java object."""
    return java_stream(stream).getTransformation()


def transformation_ids_before(stream: DataStream) -> set[int]:
    """Return the ids of all transformations upstream of ``stream``, and its own."""
    return {predecessor.getId() for predecessor in transformation_of(stream).getTransitivePredecessors()}


def transformation_id(stream: DataStream) -> int:
    """Return the id of the transformation that produces ``stream``."""
    return transformation_of(stream).getId()


def transformation_ids(env: StreamExecutionEnvironment) -> set[int]:
    """Return the ids of the operators of the job that is being built."""
    return {transformation.getId() for transformation in java_environment(env).getTransformations()}


def parallelism_of(stream: DataStream) -> int:
    """Return the number of subtasks of the operator that produces ``stream``."""
    return transformation_of(stream).getParallelism()


def can_have_watermarks(stream: DataStream) -> bool:
    """Return True if ``stream`` may have watermarks, or if that is unknown."""
    ahead = [transformation_of(stream)]
    seen = set[int]()
    while ahead:
        transformation = ahead.pop()
        if transformation.getId() in seen:
            continue
        seen.add(transformation.getId())
        makes = _makes_watermarks(transformation)
        if makes:
            return True
        if makes is None:
            ahead.extend(transformation.getInputs())
    return False


def _makes_watermarks(transformation: Any) -> bool | None:
    """Return True if the transformation generates watermarks; None if it forwards those of its inputs."""
    kind = transformation.getClass().getSimpleName()
    if kind == "LegacySourceTransformation" or "WatermarkAssigner" in str(transformation.getName()):
        return True  # A function of the user, or a table.
    if kind not in ("SourceTransformation", "TimestampsAndWatermarksTransformation"):
        return None
    try:
        generator = transformation.getWatermarkStrategy().createWatermarkGenerator(None)
        return generator.getClass().getSimpleName() != "NoWatermarksGenerator"
    except Py4JError:  # A strategy that uses its context.
        return True


class Collector:
    """Fetches the pickled records of a job's stream from Flink, in batches.

    ``executeAndCollect`` runs a separate job and fetches single records through the
    gateway (2 ms each, measured); this attaches to the common job and fetches a list at a time.

    Args:
        stream: A stream of pickled Python objects.
    """

    _BATCH = 2000

    def __init__(self, stream: DataStream) -> None:
        self._iterator = java_stream(stream).collectAsync()

    def batches(self) -> Iterator[list[bytes]]:
        """Yield lists of records, each as its pickled bytes, until the stream ends."""
        import pickle

        jvm = _jvm()
        guava = jvm.org.apache.flink.shaded.guava33.com.google.common.collect
        pickler = jvm.org.apache.flink.api.python.shaded.net.razorvine.pickle.Pickler()
        while True:
            batch = jvm.java.util.ArrayList()
            guava.Iterators.addAll(batch, guava.Iterators.limit(self._iterator, self._BATCH))
            if batch.isEmpty():
                return
            yield pickle.loads(pickler.dumps(batch))

    def close(self) -> None:
        """Release the resources that the job holds for the collector."""
        self._iterator.close()


# -- types --------------------------------------------------------------------------------


def without_jvm(kind: Any) -> Any:
    """Return a copy of a PyFlink type without JVM objects, so that it can be pickled; else ``kind``.

    A type caches its JVM object, and creates it again if it is missing.
    """
    if isinstance(kind, list):
        return [without_jvm(inner_type) for inner_type in cast("list[Any]", kind)]
    if not isinstance(kind, TypeInformation):
        return kind
    copied_type = copy.copy(kind)
    vars(copied_type).update(
        {name: without_jvm(attribute) for name, attribute in vars(kind).items()}, _j_typeinfo=None
    )
    return copied_type


def names_of_row(kind: RowTypeInfo) -> list[str]:
    """Return the names of a row's fields, if any. Without names, the public method calls the JVM."""
    return list(kind._field_names or ())  # pyright: ignore[reportPrivateUsage]


def basic_type_of(kind: TypeInformation) -> BasicType | None:
    """Return the kind of a basic type, such as ``BasicType.LONG``; None if ``kind`` is another type."""
    return getattr(kind, "_basic_type", None)


def inner_types_of(kind: TypeInformation) -> tuple[TypeInformation, ...]:
    """Return the item types of an array, list or map: keys before values. Else only the JVM has them."""
    names = ("elem_type", "_element_type", "_key_type_info", "_value_type_info")
    return tuple(vars(kind)[name] for name in names if name in vars(kind))


# -- tables as sources and sinks ----------------------------------------------------------


def on_class_path(class_name: str) -> bool:
    """Return True if Flink itself has the Java class, so that no job has to bring it."""
    try:
        _jvm().java.lang.ClassLoader.getSystemClassLoader().loadClass(class_name)
    except Py4JError:
        return False
    return True


def add_jar(env: StreamExecutionEnvironment, uri: str) -> None:
    """Add a jar file to a job; PyFlink would list a jar twice if it is added twice."""
    if uri not in configuration_of(env).get("pipeline.jars", ""):
        env.add_jars(uri)


def name_source(stream: DataStream, name: str, uid: str) -> None:
    """Give a table's source a name and a stable identity.

    Flink derives the identity of a table source from the whole graph of the job: after any change
    of the job, a savepoint's offsets would be lost.
    """
    for transformation in transformation_of(stream).getTransitivePredecessors():
        if transformation.getClass().getSimpleName() == "SourceTransformation":
            transformation.setName(name)
            transformation.setUid(uid)
            return
    raise TypeError(f"the table of {name} has no source")


class TableSink(Sink, SupportsPreprocessing, StreamTransformer):
    """A sink for ``DataStream.sink_to`` that writes through a table.

    PyFlink's ``sink_to`` accepts sinks that Java knows, or asks a sink to transform its stream first. This
    one then replaces the stream, and inserts into its table. It also gives the table sink a stable
    identity, by which its transactions are found.

    Args:
        insert: Inserts a stream into the table, as part of the job. Returns the name of the sink in the job,
            and its identity in savepoints.
    """

    def __init__(self, insert: Callable[[DataStream], tuple[str, str]]) -> None:
        super().__init__(cast("Any", None))
        self._insert = insert

    def get_transformer(self) -> TableSink:
        """Return this sink, which transforms the stream."""
        return self

    def apply(self, ds: DataStream) -> Any:
        """Return the object that ``sink_to`` uses as the stream."""
        return _InsertedStream(self, ds)

    def insert(self, stream: DataStream) -> Any:
        """Insert the stream, and return the transformation of the sink."""
        env = java_stream(stream).getExecutionEnvironment()
        previous_ids = {transformation.getId() for transformation in env.getTransformations()}
        name, uid = self._insert(stream)
        added = [
            transformation
            for transformation in env.getTransformations()
            if transformation.getId() not in previous_ids
        ]
        sinks = [
            transformation
            for transformation in added
            if transformation.getClass().getSimpleName() == "SinkTransformation"
        ]
        if len(sinks) != 1:
            names = [transformation.getName() for transformation in added]
            raise TypeError(f"a table became {len(sinks)} sinks in {names}")
        sinks[0].setName(name)
        sinks[0].setUid(uid)
        return sinks[0]


class _InsertedStream:
    """Replaces Python's and Java's stream in ``DataStream.sink_to``."""

    def __init__(self, sink: TableSink, stream: DataStream) -> None:
        self._sink = sink
        self._stream = stream
        self._j_data_stream = self

    def sinkTo(self, _: Any) -> _InsertedSink:
        return _InsertedSink(self._sink.insert(self._stream))


class _InsertedSink:
    """Replaces Java's ``DataStreamSink`` in PyFlink's, whose settings are those of the transformation."""

    def __init__(self, transformation: Any) -> None:
        self.name = transformation.setName
        self.uid = transformation.setUid
        self.setUidHash = transformation.setUidHash
        self.setParallelism = transformation.setParallelism
        self.setDescription = transformation.setDescription
        self.slotSharingGroup = transformation.setSlotSharingGroup


# -- running jobs -------------------------------------------------------------------------


def java_text(error: Any) -> str:
    """Return Java's message for an error from the gateway, with all its causes."""
    return f"{error.java_exception.toString()}\n{error}"


def log_to(path: str, configuration: Callable[[str], str | None]) -> None:
    """Redirect the log of this JVM to a file; ``configuration`` is that of ``logs.configuration_beside``."""
    system = _jvm().java.lang.System
    log4j = _jvm().org.apache.logging.log4j
    system.setProperty("log.file", path)
    if (changed := configuration(str(system.getProperty("log4j.configurationFile") or ""))) is None:
        return log4j.core.config.Configurator.reconfigure()
    # Flink's RPC system has a class loader, and so a log context, of its own: it reads the property later.
    system.setProperty("log4j.configurationFile", changed)
    log4j.util.PropertiesUtil.getProperties().reload()
    log4j.core.config.Configurator.reconfigure(_jvm().java.net.URI(changed))


class _Listener:
    """Implements Java's ``JobListener``; Java calls it in the thread that submits."""

    def __init__(self, submitted: Callable[[Any], None]) -> None:
        self._submitted = submitted

    def onJobSubmitted(self, client: Any, error: Any) -> None:
        if client is not None:
            self._submitted(client)

    def onJobExecuted(self, result: Any, error: Any) -> None:
        pass

    class Java:
        implements = ["org.apache.flink.core.execution.JobListener"]


def listen_for_jobs(env: StreamExecutionEnvironment, submitted: Callable[[Any], None]) -> None:
    """Call ``submitted`` with Java's client of each job of an environment, including tables' jobs."""
    java_environment(env).registerJobListener(_Listener(submitted))


def rest_address(client: Any) -> str:
    """Return the REST address of a job's minicluster, as a URL; no public method has it."""
    return str(get_field_value(client, "miniCluster").getRestAddress().get().toString())


def close_minicluster(client: Any) -> None:
    """Stop the minicluster of a job, without waiting for its end."""
    get_field_value(client, "miniCluster").closeAsync()


def java_environment(env: StreamExecutionEnvironment) -> Any:
    """Return the Java environment of a Python environment."""
    return env._j_stream_execution_environment


def identity_of_environment(java_env: Any) -> int:
    """Return an identity for a Java environment, as long as it exists."""
    return _jvm().java.lang.System.identityHashCode(java_env)


def environment_of_tables(tables: Any) -> Any:
    """Return the Java stream environment of a table environment."""
    return tables._j_tenv.execEnv()
