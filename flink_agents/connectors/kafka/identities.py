"""Names of sources and sinks in a job: part of their identities in savepoints, so no two may share one.

A number in place of a name would be unsafe: a source that is added before another one would get its offsets.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyflink.datastream import DataStream, StreamExecutionEnvironment

from flink_agents.api.common.places import authors_place
from flink_agents.api.errors import KafkaStreamError
from flink_agents.runtime.flink import compat as flink_compat


@dataclass(frozen=True)
class _Use:
    transformation: int
    place: str | None


_uses: dict[tuple[int, str], _Use] = {}
"""The latest use of an identity, by the environment."""


def note_use(env: StreamExecutionEnvironment, identity: str, stream: DataStream) -> None:
    """Register that a source or sink of the job has an identity. It is free again once the job is submitted.

    Args:
        env: PyFlink's environment.
        identity: The identity, part of the ids of operators in savepoints.
        stream: A stream of the source or the sink.
    """
    use = _Use(flink_compat.transformation_id(stream), authors_place())
    _uses[_key(env, identity)] = use


def is_used(env: StreamExecutionEnvironment, identity: str) -> bool:
    """Return True if a source or sink of the job that is being defined has this identity."""
    use = _uses.get(_key(env, identity))
    return use is not None and use.transformation in flink_compat.transformation_ids(env)


def check_unused(env: StreamExecutionEnvironment, identity: str, called: str, fix: str) -> None:
    """Check that no source or sink of the job that is being defined has an identity.

    Args:
        env: PyFlink's environment.
        identity: The identity.
        called: What shares it, in the plural, for the error: ``Kafka sinks named 'a'``.
        fix: How to give one of them another identity, for the error.

    Raises:
        KafkaStreamError: Another source or sink has the identity.
    """
    if is_used(env, identity):
        raise KafkaStreamError(
            f"the job has two {called}",
            expected="a name for each, by which a savepoint finds its state",
            found=f"the other one at {_uses[_key(env, identity)].place}",
            fix=fix,
            where=authors_place(),
        )


def _key(env: StreamExecutionEnvironment, identity: str) -> tuple[int, str]:
    return flink_compat.identity_of_environment(flink_compat.java_environment(env)), identity
