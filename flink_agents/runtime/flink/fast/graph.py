"""Changes the graph of a job before it runs, in ways that Flink has no public method for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pyflink.datastream import DataStream, StreamExecutionEnvironment
from pyflink.java_gateway import get_gateway

from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.fast.edges import BUFFER_TIMEOUT_MS
from flink_agents.runtime.flink.fast.java_classes import JavaClasses

_SOURCES = ("SourceTransformation", "LegacySourceTransformation")
_STRATEGIES = ("SourceTransformation", "TimestampsAndWatermarksTransformation")

_AT_ONCE_MS = 0
_UNSET_MS = -1

_CHECKPOINTED = "org.apache.flink.streaming.api.checkpoint.CheckpointedFunction"


def _transformation(stream: DataStream) -> Any:
    return flink_compat.java_stream(stream).getTransformation()


def _predecessors(stream: DataStream) -> Any:
    return _transformation(stream).getTransitivePredecessors()


def input_type_of(stream: DataStream) -> Any:
    """Return the Java type of the records that the operator of ``stream`` gets."""
    return _transformation(stream).getInputs().get(0).getOutputType()


def is_bounded(stream: DataStream) -> bool:
    """Return True if all sources of ``stream`` end."""
    sources = [
        predecessor
        for predecessor in _predecessors(stream)
        if predecessor.getClass().getSimpleName() in _SOURCES
    ]
    return all(source.getBoundedness().name() == "BOUNDED" for source in sources)


def is_bounded_and_never_idle(stream: DataStream) -> bool:
    """Return True if all sources of ``stream`` end, and none of its inputs is ever idle.

    The watermark of an idle input is ignored, so it would be unknown whether the input has ended.
    """
    for predecessor in _predecessors(stream):
        kind = predecessor.getClass().getSimpleName()
        if (
            kind in _STRATEGIES
            and "Idleness" in predecessor.getWatermarkStrategy().getClass().getSimpleName()
        ):
            return False
    return is_bounded(stream)


def wrap_source(stream: DataStream, name: str, java: str) -> JavaClasses:
    """Replace the source of a stream by a wrapper, and return the wrapper's classes.

    Args:
        stream: A stream with one source, of Flink's newer interface.
        name: The wrapper's class, whose constructor takes the source.
        java: The text of its classes.

    Raises:
        Py4JError: This version of Flink is not supported.
    """
    (transformation,) = [
        predecessor
        for predecessor in _predecessors(stream)
        if predecessor.getClass().getSimpleName() == _SOURCES[0]
    ]
    source = transformation.getSource()
    classes = JavaClasses(java, source.getClass().getClassLoader())
    _replace_field(transformation, "source", classes.create_object(name, source))
    return classes


def wrap_sink(env: StreamExecutionEnvironment, name: str, java: str, texts: Sequence[str]) -> JavaClasses:
    """Replace the newest sink of a job by a wrapper, and return the wrapper's classes.

    Args:
        env: The environment of the job.
        name: The wrapper's class, whose constructor takes an array: the sink, and then ``texts``.
        java: The text of its classes.
        texts: Further arguments of the wrapper.

    Raises:
        Py4JError: This version of Flink is not supported.
    """
    transformations = flink_compat.java_environment(env).getTransformations()
    sinks = [
        transformation
        for transformation in transformations
        if transformation.getClass().getSimpleName() == "SinkTransformation"
    ]
    sink = sinks[-1].getSink()
    classes = JavaClasses(java, sink.getClass().getClassLoader())
    gateway: Any = get_gateway()
    arguments = gateway.new_array(gateway.jvm.Object, 1 + len(texts))
    for index, argument in enumerate([sink, *texts]):
        arguments[index] = argument
    _replace_field(sinks[-1], "sink", classes.create_object(name, arguments))
    return classes


def _replace_field(transformation: Any, name: str, value: Any) -> None:
    """Set a private field of a transformation."""
    field = transformation.getClass().getDeclaredField(name)
    field.setAccessible(True)
    field.set(transformation, value)


def add_input(stream: DataStream, source: DataStream, new_input: DataStream) -> None:
    """Give the operator of ``stream`` another input with as many subtasks, each of which forwards to one.

    Args:
        stream: The operator's output.
        source: The source of the new input.
        new_input: The new input.

    Raises:
        Py4JError: This version of Flink is not supported.
    """
    operator = _transformation(stream)
    jvm: Any = get_gateway().jvm
    for transformation in (_transformation(source), _transformation(new_input)):
        transformation.setParallelism(operator.getParallelism())
        group = operator.getSlotSharingGroup()
        if group.isPresent():
            transformation.setSlotSharingGroup(group.get())
    both = jvm.java.util.ArrayList()
    both.add(operator.getInputs().get(0))
    both.add(_transformation(new_input))
    union = jvm.org.apache.flink.streaming.api.transformations.UnionTransformation(both)
    _replace_field(operator, "input", union)


def restarting_sources_of(env: StreamExecutionEnvironment) -> list[str]:
    """Return the names of sources that store no position: they start over if the job restarts or resumes."""
    jvm: Any = get_gateway().jvm
    checkpointed = jvm.java.lang.Class.forName(_CHECKPOINTED)
    outputs = flink_compat.java_environment(env).getTransformations()
    # By id: several outputs may have the same source.
    names_by_id: dict[int, str] = {}
    for source in [predecessor for output in outputs for predecessor in output.getTransitivePredecessors()]:
        # Sources of Flink's newer interface always store their position.
        if source.getClass().getSimpleName() != "LegacySourceTransformation":
            continue
        if not checkpointed.isInstance(source.getOperator().getUserFunction()):
            names_by_id[source.getId()] = str(source.getName())
    return list(names_by_id.values())


def forward_at_once(env: StreamExecutionEnvironment, flushing: Iterable[DataStream]) -> None:
    """Let the operators of a job that run Python forward each record at once.

    Timeouts that the author has set stay.

    Args:
        env: The environment of the job.
        flushing: The outputs of operators that flush by themselves.
    """
    if env.get_buffer_timeout() != BUFFER_TIMEOUT_MS:
        return
    jvm: Any = get_gateway().jvm
    is_python = jvm.org.apache.flink.python.util.PythonConfigUtil.isPythonDataStreamOperator
    seen = {flink_compat.transformation_id(stream) for stream in flushing}
    for output in flink_compat.java_environment(env).getTransformations():
        for transformation in output.getTransitivePredecessors():
            identity = transformation.getId()
            if identity in seen:
                continue
            seen.add(identity)
            if is_python(transformation) and transformation.getBufferTimeout() == _UNSET_MS:
                transformation.setBufferTimeout(_AT_ONCE_MS)


def side_output_tags(stream: DataStream) -> set[str]:
    """Return the tags of the side outputs that ``stream`` is, or that it unites."""
    tags = set[str]()
    ahead = [(flink_compat.java_stream(stream).getTransformation(), True)]
    while ahead:
        transformation, may_be_mapped = ahead.pop()
        kind = transformation.getClass().getSimpleName()
        inputs = list(transformation.getInputs())
        if kind == "SideOutputTransformation":
            tags.add(str(transformation.getOutputTag().getId()))
        elif kind == "UnionTransformation":
            ahead += [(predecessor, may_be_mapped) for predecessor in inputs]
        elif may_be_mapped and len(inputs) == 1:
            # PyFlink maps each side output to itself; what a map of the author returns is something else.
            ahead.append((inputs[0], False))
    return tags
