"""Opens the start of a local job: decides if it resumes, and warns if durable steps would run again.

If it restores a checkpoint or savepoint, it completes the graph of the job before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pyflink.datastream import StreamExecutionEnvironment

from flink_agents.api.common.durations import duration_text
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.common.places import authors_place
from flink_agents.api.errors import KafkaStreamError
from flink_agents.api.settings.local_jobs import Accept
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.following import console, executions
from flink_agents.runtime.flink.inputs.open_ends import leave_gate
from flink_agents.runtime.flink.internals.graph import start_tasks, tasks_of
from flink_agents.runtime.flink.resume import java, policy
from flink_agents.runtime.flink.resume.checks import GivenInputs, no_inputs, recorded_identity
from flink_agents.runtime.flink.resume.java import read_restored
from flink_agents.runtime.flink.resume.job_run import JobFolder
from flink_agents.runtime.flink.resume.local_start import LocalStart, say_beginning
from flink_agents.runtime.flink.resume.policy import Program, ScriptStart, recovery_path, script_start
from flink_agents.runtime.flink.resume.start_decision import Request, begin_start
from flink_agents.runtime.flink.resume.state_fit import GATE_SOURCE, IGNORE, RestoredJob, RestoredOperator
from flink_agents.runtime.flink.resume.transactions import bound_transactions
from flink_agents.runtime.flink.stores import StoreChoice

SHORTEST_TIMEOUT = "internal.flink-agents.transaction-timeout-ms"
"""Exactly-once sinks store here the time that brokers keep their transactions."""

_log = bounded_logger("flink_agents.resume")


@dataclass(frozen=True)
class ResumableAgent:
    """The facts about an agent that are needed to resume it.

    Attributes:
        name: Its name.
        plan: Fingerprint of its plan.
        store: The store of its durable steps; None if it makes none.
    """

    name: str
    plan: str
    store: StoreChoice | None


def open_start(
    env: StreamExecutionEnvironment,
    config: Configuration,
    name: str | None,
    agents: Iterable[ResumableAgent],
    inputs: Callable[[], GivenInputs] = no_inputs,
) -> LocalStart | None:
    """Open a start of a local job; return None if the job does not resume.

    Args:
        env: PyFlink's environment of the job.
        config: Options of the job.
        name: The name that was passed to ``execute``.
        agents: The agents of the job.
        inputs: Returns the inputs of the job; called if it resumes.

    Raises:
        ResumeError: The job cannot start.
        StoreError: The journal does not match.
    """
    agents = list(agents)
    flink = flink_compat.configuration_of(env)
    decision = policy.decide_resume(config, name, bool(agents), flink)
    if name is None or decision.state_dir is None:
        _print_lost_work(decision, agents)
        return None
    script = script_start(decision.state_dir, decision.script, policy.arguments())
    if name in script.names:
        second = policy.ResumeDecision(
            None,
            reason="the script has run a job of that name already",
            fix="choose a different name for each job",
        )
        _print_lost_work(second, agents)
        return None
    fresh = policy.wants_fresh(config)
    if fresh and not script.names:
        script.start_over()
    folder = JobFolder.for_job(decision.state_dir, name)
    return _begin_start(folder, config, name, agents, fresh, script, flink, inputs(), decision.program)


def _begin_start(
    folder: JobFolder,
    config: Configuration,
    name: str,
    agents: list[ResumableAgent],
    fresh: bool,
    script: ScriptStart,
    flink: Mapping[str, str],
    inputs: GivenInputs,
    program: Program | None,
) -> LocalStart:
    timeout = flink.get(SHORTEST_TIMEOUT)
    stores = [agent.store.with_path(str(folder.journal)) for agent in agents if agent.store is not None]
    journal = next((store.file for store in stores if store.file is not None), None)
    request = Request(
        name,
        config.get(AgentOptions.JOB_IDENTIFIER),
        {agent.name: agent.plan for agent in agents},
        fresh,
        Accept(config.get(AgentOptions.ACCEPT)),
        journal,
        None if timeout is None else int(timeout) / 1000,
        inputs,
        config.get(AgentOptions.SAVEPOINT),
        program,
        lambda identifier: recorded_identity(stores, folder, identifier),
    )
    beginning = begin_start(folder, request, java.JavaLock(folder.lock), java.read_checkpoint, script)
    script.record_job_start(name)
    if beginning.skipped:
        console.print_line(
            f"job {name!r} had finished before the script was ended: its outputs are taken from there "
            "(to start over: --fresh)"
        )
    else:
        say_beginning(beginning, beginning.chosen)
    return LocalStart(beginning, config, journal)


def _print_lost_work(decision: policy.ResumeDecision, agents: list[ResumableAgent]) -> None:
    """Warn about durable steps that the next start would repeat."""
    durable = [agent.name for agent in agents if agent.store is not None]
    if durable and (policy.main_script() is not None or "script" in decision.reason):
        _log.warning(
            "this job does not resume if its process dies: %s. The next start would repeat the durable "
            "steps of %s. To make it resume: %s",
            decision.reason,
            ", ".join(durable),
            decision.fix,
        )


def print_longest_downtime(env: StreamExecutionEnvironment, name: str) -> None:
    """Print how long a job with exactly-once outputs may be down."""
    timeout = flink_compat.configuration_of(env).get(SHORTEST_TIMEOUT)
    if timeout is not None:
        console.print_line(
            f"job {name!r}: after a crash, start it again within {duration_text(int(timeout) / 1000)}: "
            "the brokers drop uncommitted outputs then"
        )


def may_enable(env: StreamExecutionEnvironment) -> bool:
    """Return True if the job of ``env`` is local and has agents, so that :func:`open_start` sees it."""
    target = flink_compat.configuration_of(env).get("execution.target", "local")
    return target == "local" and executions.is_enlisted(env)


def check_checkpoints(env: StreamExecutionEnvironment, config: Configuration | None = None) -> None:
    """Check that a job whose sinks commit with checkpoints has checkpoints, and often enough.

    Raises:
        KafkaStreamError: It has none, or too few.
    """
    noted = SHORTEST_TIMEOUT in flink_compat.configuration_of(env)
    if noted and not env.get_checkpoint_config().is_checkpointing_enabled():
        raise KafkaStreamError(
            "a sink of the job commits with checkpoints, but the job takes none",
            expected="checkpoints for delivery='exactly-once'",
            found="no checkpoints",
            fix="name a local job, env.execute('orders'), so that it takes checkpoints; or call "
            "enable_checkpointing(...) of PyFlink's environment; or write at-least-once",
            where=authors_place(),
        )
    bound_transactions(env, config)


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
