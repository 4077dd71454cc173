"""Changes the graph of a job before it runs, in ways that Flink has no public method for."""

from __future__ import annotations

from typing import Any

from pyflink.datastream import DataStream, StreamExecutionEnvironment
from pyflink.java_gateway import get_gateway

from flink_agents.runtime.flink import compat as flink_compat

_SOURCES = ("SourceTransformation", "LegacySourceTransformation")
_STRATEGIES = ("SourceTransformation", "TimestampsAndWatermarksTransformation")

_CHECKPOINTED = "org.apache.flink.streaming.api.checkpoint.CheckpointedFunction"


def _transformation(stream: DataStream) -> Any:
    return flink_compat.java_stream(stream).getTransformation()


def input_type_of(stream: DataStream) -> Any:
    """Return the Java type of the records that the operator of ``stream`` gets."""
    return _transformation(stream).getInputs().get(0).getOutputType()


def is_bounded_and_never_idle(stream: DataStream) -> bool:
    """Return True if all sources of ``stream`` end, and none of its inputs is ever idle.

    The watermark of an idle input is ignored, so it would be unknown whether the input has ended.
    """
    for each in _transformation(stream).getTransitivePredecessors():
        kind = each.getClass().getSimpleName()
        if kind in _SOURCES and each.getBoundedness().name() != "BOUNDED":
            return False
        if kind in _STRATEGIES and "Idleness" in each.getWatermarkStrategy().getClass().getSimpleName():
            return False
    return True


def add_input(stream: DataStream, source: DataStream, other: DataStream) -> None:
    """Give the operator of ``stream`` another input with as many subtasks, each of which forwards to one.

    Args:
        stream: The operator's output.
        source: The source of the new input.
        other: The new input.

    Raises:
        Py4JError: This version of Flink is not supported.
    """
    operator = _transformation(stream)
    jvm: Any = get_gateway().jvm
    for each in (_transformation(source), _transformation(other)):
        each.setParallelism(operator.getParallelism())
        group = operator.getSlotSharingGroup()
        if group.isPresent():
            each.setSlotSharingGroup(group.get())
    both = jvm.java.util.ArrayList()
    both.add(operator.getInputs().get(0))
    both.add(_transformation(other))
    union = jvm.org.apache.flink.streaming.api.transformations.UnionTransformation(both)
    field = operator.getClass().getDeclaredField("input")
    field.setAccessible(True)
    field.set(operator, union)


def restarting_sources_of(env: StreamExecutionEnvironment) -> list[str]:
    """Return the names of sources that store no position: they start over if the job restarts or resumes."""
    jvm: Any = get_gateway().jvm
    checkpointed = jvm.java.lang.Class.forName(_CHECKPOINTED)
    outputs = flink_compat.java_environment(env).getTransformations()
    # By id: several outputs may have the same source.
    found: dict[int, str] = {}
    for source in [one for output in outputs for one in output.getTransitivePredecessors()]:
        # Sources of Flink's newer interface always store their position.
        if source.getClass().getSimpleName() != "LegacySourceTransformation":
            continue
        if not checkpointed.isInstance(source.getOperator().getUserFunction()):
            found[source.getId()] = str(source.getName())
    return list(found.values())
