"""Completes the graph of a job before it runs, so that it can restore its checkpoint or savepoint."""

from __future__ import annotations

from collections.abc import Mapping

from pyflink.datastream import StreamExecutionEnvironment

from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.inputs.open_ends import leave_gate
from flink_agents.runtime.flink.internals.graph import start_tasks, tasks_of
from flink_agents.runtime.flink.resume.policy import recovery_path
from flink_agents.runtime.flink.resume.records.java import read_restored
from flink_agents.runtime.flink.resume.records.operators import RestoredOperator
from flink_agents.runtime.flink.resume.state_fit import GATE_SOURCE, IGNORE, RestoredJob


def fit_to_state(env: StreamExecutionEnvironment, places: Mapping[str, str | None]) -> None:
    """Fit the graph of a job to the checkpoint or savepoint that it starts from, if it starts from one.

    Args:
        env: PyFlink's environment.
        places: The user's line with ``apply``, for each agent.

    Raises:
        StateMismatchError: The job cannot restore it.
    """
    flink = flink_compat.configuration_of(env)
    path = recovery_path(flink)
    content = None if path is None else read_restored(path)
    if content is None:
        return
    ignores = flink.get(IGNORE, "false").lower() == "true"
    restored = RestoredJob(content.states, tasks_of(env), places)
    gates = set() if ignores else _closed_gates(restored.unclaimed_operators())
    for agent in sorted(gates & set(places)):
        leave_gate(env, agent)
    newcomers = restored.new_operators() - {""}
    if newcomers:
        start_tasks(env, newcomers)
    if gates or newcomers:
        restored = RestoredJob(content.states, tasks_of(env), places)
    restored.check_restore(ignores)


def _closed_gates(states: list[RestoredOperator]) -> set[str]:
    """Return the agents that had a gate, and have none now: an input of theirs does not end any more."""
    return {state.uid.removeprefix(GATE_SOURCE) for state in states if state.uid.startswith(GATE_SOURCE)}
