"""Gives each operator of a job an identity, by which a checkpoint or savepoint finds its state.

An identity of Flink's own depends on the number of operators before it in the job, and on those that are
chained behind it: after any addition, other operators lose their state, and if their input has ended, Flink
rejects the checkpoint. Here, an identity depends on an operator's name and on the identities of its inputs.
Those of agents, of their keys, of lists and of Kafka's sources depend on nothing before them.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable
from typing import Any

from pyflink.datastream import DataStream, KeyedStream, StreamExecutionEnvironment
from pyflink.java_gateway import get_gateway

from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.resume.state_fit import KEYS, LIST

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
    _set_name(_transformation(stream).getInputs().get(0), KEYS + agent)


def name_list(stream: DataStream, agent: str) -> None:
    """Name the source of a list after the first agent that reads it.

    A number would be unsafe: a list that is added before another one would get its position.
    """
    _set_name(_transformation(stream), LIST + agent)


def _set_name(transformation: Any, uid: str) -> None:
    if transformation.getUid() is None:
        transformation.setUid(uid)


def _transformation(stream: DataStream) -> Any:
    return flink_compat.java_stream(stream).getTransformation()


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
    return [names.name_of(_transformation(stream)) for stream in streams]


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
