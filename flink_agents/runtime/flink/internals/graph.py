"""Reads and changes the graph of a job before it runs, in ways that Flink has no public method for.

Each operator gets an identity, by which a checkpoint or savepoint finds its state. One of Flink's own depends
on the number of operators before it in the job, and on those that are chained behind it: after any addition,
other operators lose their state, and if their input has ended, Flink rejects the checkpoint. Here, an
identity depends on an operator's name and on the identities of its inputs. Those of agents, of their keys,
of lists and of Kafka's sources depend on nothing before them.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from pyflink.datastream import DataStream, KeyedStream, StreamExecutionEnvironment
from pyflink.java_gateway import get_gateway

from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.compat import transformation_of
from flink_agents.runtime.flink.internals.access import BUFFER_TIMEOUT_MS
from flink_agents.runtime.flink.internals.java_objects import JavaClasses
from flink_agents.runtime.flink.resume.state_fit import KEYS, LIST, Task, TaskInput

_SOURCES = ("SourceTransformation", "LegacySourceTransformation")
_STRATEGIES = ("SourceTransformation", "TimestampsAndWatermarksTransformation")

_AT_ONCE_MS = 0
_UNSET_MS = -1

_CHECKPOINTED = "org.apache.flink.streaming.api.checkpoint.CheckpointedFunction"


def _predecessors(stream: DataStream) -> Any:
    return transformation_of(stream).getTransitivePredecessors()


def input_type_of(stream: DataStream) -> Any:
    """Return the Java type of the records that the operator of ``stream`` gets."""
    return transformation_of(stream).getInputs().get(0).getOutputType()


def is_bounded(stream: DataStream) -> bool:
    """Return True if all sources of ``stream`` end."""
    return all(map(_ends, _predecessors(stream)))


def is_bounded_job(env: StreamExecutionEnvironment) -> bool:
    """Return True if all sources of a job end."""
    ends = flink_compat.java_environment(env).getTransformations()
    return all(_ends(predecessor) for end in ends for predecessor in end.getTransitivePredecessors())


def _ends(transformation: Any) -> bool:
    """Return True unless a transformation is a source that does not end."""
    is_source = transformation.getClass().getSimpleName() in _SOURCES
    return not is_source or transformation.getBoundedness().name() == "BOUNDED"


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
    """Set a private field of a Java transformation, which has no method for it."""
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
    operator = transformation_of(stream)
    jvm: Any = get_gateway().jvm
    for transformation in (transformation_of(source), transformation_of(new_input)):
        transformation.setParallelism(operator.getParallelism())
        group = operator.getSlotSharingGroup()
        if group.isPresent():
            transformation.setSlotSharingGroup(group.get())
    both = jvm.java.util.ArrayList()
    both.add(operator.getInputs().get(0))
    both.add(transformation_of(new_input))
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
    ahead = [(transformation_of(stream), True)]
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


_PHYSICAL = "org.apache.flink.streaming.api.transformations.PhysicalTransformation"
_COUNTERS = re.compile(r"\[\d+\]|\$\d+|(?<=_Source_)\d+")
"""Parts of an operator's name in a table's plan that depend on the rest of the job."""

_PREFIX = "flink-agents:"
_COMPUTED = re.compile(_PREFIX + "[0-9a-f]{24}")
"""The form of computed identities. Each job computes them again: two jobs of one environment may have given
equal ones to operators that a third one has both of."""

_DIGEST_BYTES = 12


def name_keys(stream: KeyedStream, agent: str) -> None:
    """Name the operator that computes the keys of an agent's inputs; PyFlink adds it to a keyed stream."""
    _set_name(transformation_of(stream).getInputs().get(0), KEYS + agent)


def name_list(stream: DataStream, agent: str) -> None:
    """Name the source of a list after the first agent that reads it.

    A number would be unsafe: a list that is added before another one would get its position.
    """
    _set_name(transformation_of(stream), LIST + agent)


def _set_name(transformation: Any, uid: str) -> None:
    if transformation.getUid() is None:
        transformation.setUid(uid)


def name_operators(env: StreamExecutionEnvironment, streams: Iterable[DataStream] = ()) -> list[str]:
    """Give each operator of a job without an identity one that depends only on itself and its inputs.

    Args:
        env: PyFlink's environment.
        streams: Streams of the job.

    Returns:
        A name for each of the streams, which depends only on the stream.
    """
    operators: dict[int, Any] = {}
    for output in flink_compat.java_environment(env).getTransformations():
        for transformation in output.getTransitivePredecessors():
            operators[transformation.getId()] = transformation
    names = _Names(operators)
    # In the order in which they were built: equal ones are numbered.
    for number in sorted(operators):
        names.identity_of(operators[number])
    return [names.name_of(transformation_of(stream)) for stream in streams]


def _author_uid(transformation: Any) -> str | None:
    """Return the uid of an operator, if it is not a computed one."""
    uid = transformation.getUid()
    return None if uid is None or _COMPUTED.fullmatch(uid) else uid


class _Names:
    """The identities of the operators of a job.

    Args:
        operators: The transformations, by id.
    """

    def __init__(self, operators: dict[int, Any]) -> None:
        jvm: Any = get_gateway().jvm
        self._physical = jvm.java.lang.Class.forName(_PHYSICAL)
        self._identities: dict[int, str] = {}
        self._used = {uid for operator in operators.values() if (uid := _author_uid(operator)) is not None}

    def identity_of(self, transformation: Any) -> str:
        """Return the identity of an operator, and of its inputs before."""
        number = transformation.getId()
        if number not in self._identities:
            self._identities[number] = self._new_identity(transformation)
        return self._identities[number]

    def _new_identity(self, transformation: Any) -> str:
        # Before the inputs: those of an operator with an identity do not matter.
        provided_id = _author_uid(transformation) or transformation.getUserProvidedNodeHash()
        if provided_id is not None:
            return str(provided_id)
        inputs = sorted(transformation.getInputs(), key=lambda predecessor: predecessor.getId())
        upstream_identity = ",".join(sorted(self.identity_of(predecessor) for predecessor in inputs))
        kind = transformation.getClass().getSimpleName()
        if not self._physical.isInstance(transformation):
            tag = f"#{transformation.getOutputTag().getId()}" if kind == "SideOutputTransformation" else ""
            return upstream_identity + tag
        text = f"{kind}|{_COUNTERS.sub('', str(transformation.getName()))}|{upstream_identity}"
        uid = self._unused_name(_PREFIX, text)
        transformation.setUid(uid)
        return uid

    def name_of(self, transformation: Any) -> str:
        """Return a name for the stream that a transformation produces."""
        return self._unused_name("", self.identity_of(transformation))

    def _unused_name(self, prefix: str, text: str) -> str:
        """Return a name that nothing else of the job has: equal ones are numbered."""
        for count in itertools.count():
            digest = hashlib.blake2b(f"{text}|{count}".encode(), digest_size=_DIGEST_BYTES)
            name = prefix + digest.hexdigest()
            if name not in self._used:
                self._used.add(name)
                return name
        raise AssertionError  # Numbers do not end.


_TO_ALL = "ALL_TO_ALL"


def tasks_of(env: StreamExecutionEnvironment) -> list[Task]:
    """Return the tasks of the job that is being built, inputs first.

    PyFlink joins operators in Python while it translates the job; it finds nothing to do the second time.
    """
    java: Any = env._generate_stream_graph(clear_transformations=False)  # pyright: ignore[reportPrivateUsage]
    graph = java.getJobGraph()
    vertices = list(graph.getVerticesSortedTopologicallyFromSources())
    numbers = {str(vertex.getID().toString()): number for number, vertex in enumerate(vertices)}
    return [_read_task(vertex, numbers) for vertex in vertices]


def _read_task(vertex: Any, numbers: dict[str, int]) -> Task:
    operators: dict[str, str] = {}
    for pair in vertex.getOperatorIDs():
        identity = pair.getUserDefinedOperatorID().orElse(None) or pair.getGeneratedOperatorID()
        operators[str(identity.toString())] = str(pair.getUserDefinedOperatorUid() or "")
    inputs = tuple(
        TaskInput(
            numbers[str(edge.getSource().getProducer().getID().toString())],
            edge.getDistributionPattern().name() == _TO_ALL,
        )
        for edge in vertex.getInputs()
    )
    name = str(vertex.getName())
    parallelism = int(vertex.getParallelism())
    return Task(name, operators, inputs, parallelism, int(vertex.getMaxParallelism()))


def start_tasks(env: StreamExecutionEnvironment, uids: Collection[str]) -> None:
    """Let the operators with these uids begin tasks of their own."""
    jvm: Any = get_gateway().jvm
    head = jvm.org.apache.flink.streaming.api.operators.ChainingStrategy.HEAD
    seen = set[int]()
    for output in flink_compat.java_environment(env).getTransformations():
        for transformation in output.getTransitivePredecessors():
            if transformation.getId() not in seen and transformation.getUid() in uids:
                transformation.setChainingStrategy(head)
            seen.add(transformation.getId())
