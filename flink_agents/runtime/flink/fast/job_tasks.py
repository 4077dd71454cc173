"""The tasks of a job before it runs: Flink's own translation of the graph, and changes of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pyflink.datastream import StreamExecutionEnvironment
from pyflink.java_gateway import get_gateway

from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.resume.records.operators import Task, TaskInput

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
