"""A job that is being built: its agents, and the lists that its streams fill."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyflink.datastream import DataStream, StreamExecutionEnvironment

from flink_agents.api.agents.job_guard import check_may_run
from flink_agents.api.common.places import authors_place
from flink_agents.api.errors import (
    AgentCycleError,
    ApprovalsNotAnsweredError,
    DeadLettersNotReadError,
    DuplicateAgentError,
    JobDefinitionError,
)
from flink_agents.api.events.event_time import EventTime, LateOutputs
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.plan.binding.needs import ResourceOptions
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.following.console import is_terminal, new_log
from flink_agents.runtime.flink.following.executions import (
    RecordIterator,
    by_pyflink,
    collect_async,
    keep_job,
    run_through_job,
)
from flink_agents.runtime.flink.following.local_jobs import (
    REFRESH,
    JobFacts,
    LocalJob,
    bound_rest_ports,
    bound_restarts,
)
from flink_agents.runtime.flink.following.outputs import Collecting, ListReader, Outputs
from flink_agents.runtime.flink.inputs.given import check_mode_of_tables, check_runtime_mode
from flink_agents.runtime.flink.inputs.open_ends import keep_open
from flink_agents.runtime.flink.internals.graph import (
    forward_at_once,
    is_bounded_job,
    name_operators,
    restarting_sources_of,
)
from flink_agents.runtime.flink.internals.java_objects import check_version
from flink_agents.runtime.flink.launch import gateway
from flink_agents.runtime.flink.logs import configuration_beside, rocksdb_settings
from flink_agents.runtime.flink.resume.checks import GivenInputs, GivenList, given_inputs
from flink_agents.runtime.flink.resume.local_start import LocalStart
from flink_agents.runtime.flink.resume.opening import (
    ResumableAgent,
    check_checkpoints,
    fit_to_state,
    open_start,
    print_longest_downtime,
)
from flink_agents.runtime.flink.resume.transactions import TOLERABLE, is_set
from flink_agents.runtime.flink.shipping.main_module import ShippedFunction, announcement, unchanged
from flink_agents.runtime.flink.shipping.user_modules import MAIN

_IDLE_TIMEOUT = "table.exec.source.idle-timeout"


@dataclass
class AppliedAgent:
    """An agent of the job.

    Attributes:
        name: Its name.
        stream: Its output.
        writes_dead_letters: True if a policy of the agent sends events there.
        event_time: Its handling of event time.
        lineage: True if its outputs are ``TracedOutput``.
        dead_letters_read: True if the stream of dead letters is used.
        late_outputs_read: True if the stream of late outputs is used.
        inputs: The number of its inputs, if it is known.
        needs_approvals: True if an action or a tool of it, or of a sub-agent, needs some, by their plans.
        has_signals: True if it gets signals.
        place: The user's line with ``apply``.
        typed: The user's line with the output type.
        level: Number of agents of the job that were applied before it.
        stays_open: True if the end of its input waits for its runs with checkpoints.
        approvals_read: True if the stream of approval requests is used.
        resumable: The facts that a local job needs to resume it.
    """

    name: str
    stream: DataStream
    writes_dead_letters: bool
    event_time: EventTime = field(default_factory=EventTime.ignore)
    lineage: bool = False
    dead_letters_read: bool = False
    late_outputs_read: bool = False
    inputs: int | None = None
    needs_approvals: bool = False
    has_signals: bool = False
    approvals_read: bool = False
    place: str | None = None
    resumable: ResumableAgent | None = None
    typed: list[str] = field(default_factory=list[str])
    level: int = 0
    stays_open: bool = False

    def check_streams_used(self) -> None:
        """Check that the job reads the streams without which outputs get lost, or runs wait forever.

        Raises:
            DeadLettersNotReadError: A policy writes dead letters, and their stream is not used.
            JobDefinitionError: The stream of late outputs is not used.
            ApprovalsNotAnsweredError: The requests for approvals are not used, or cannot be answered.
        """
        if self.writes_dead_letters and not self.dead_letters_read:
            raise DeadLettersNotReadError(
                f"agent {self.name!r} sends failed events to its dead letters, but their stream is not used",
                expected="dead_letters() of the applied agent, with a sink",
                found="a policy 'dead-letter' of the agent or of one of its actions",
                where=self.place,
                fix="consume the stream that dead_letters() of the applied agent returns, "
                "for example dead_letters().print()",
            )
        if self.event_time.late is LateOutputs.SIDE and not self.late_outputs_read:
            raise JobDefinitionError(
                f"agent {self.name!r} sends late outputs to a separate stream, which is not used",
                expected="late_outputs() of the applied agent, with a sink",
                found="event_time with late='side'",
                where=self.place,
                fix="consume the stream that late_outputs() of the applied agent returns, or use "
                "another policy for late=",
            )
        if self.needs_approvals and not (self.approvals_read and self.has_signals):
            raise ApprovalsNotAnsweredError(
                f"agent {self.name!r} needs approvals, but its runs would wait forever",
                expected="a stream of signals that answer, and a sink for approvals()",
                found="no signals" if not self.has_signals else "no sink for approvals()",
                fix="call with_signals(...) before apply(...), and consume the stream that approvals() "
                "of the applied agent returns",
                where=self.place,
            )


class Job:
    """A job that is being built.

    Args:
        stream_env: PyFlink's environment.
        table_env: PyFlink's table environment, made at its first use if it is None.
        config: The options.
    """

    def __init__(self, stream_env: StreamExecutionEnvironment, table_env: Any, config: Configuration) -> None:
        self.stream_env = stream_env
        self.config = config
        self.resource_options = ResourceOptions(config)
        self._table_env = table_env
        self._own_tables: Any = None
        self._applied: dict[str, AppliedAgent] = {}
        self._collecting: list[Collecting] = []
        self._lists: list[GivenList] = []
        self._checks: list[Callable[[], None]] = []
        self._facts = JobFacts("agents")
        self._local: LocalJob | None = None
        self._listens = False
        self._start: LocalStart | None = None
        run_through_job(self, stream_env)

    @property
    def table_env(self) -> Any:
        """PyFlink's table environment on the same job."""
        if self._table_env is None:
            from pyflink.table import StreamTableEnvironment

            self._table_env = StreamTableEnvironment.create(self.stream_env)
        return self._table_env

    def tables_idle_after(self, timeout: timedelta) -> Any:
        """Return a table environment for agents, whose sources become idle after ``timeout`` without a row.

        The user's own tables keep their settings.
        """
        if self._own_tables is None:
            from pyflink.table import StreamTableEnvironment

            self._own_tables = StreamTableEnvironment.create(self.stream_env)
        milliseconds = timeout // timedelta(milliseconds=1)
        self._own_tables.get_config().set(_IDLE_TIMEOUT, f"{milliseconds} ms")
        return self._own_tables

    # -- agents -----------------------------------------------------------------------

    def check_agent(self, name: str, source: DataStream) -> None:
        """Check that an agent called ``name`` can be applied to ``source``.

        Raises:
            AgentCycleError: ``source`` comes from the output of that agent.
            DuplicateAgentError: The job has another agent of that name.
        """
        applied_agent = self._applied.get(name)
        if applied_agent is None:
            return
        upstream_ids = flink_compat.transformation_ids_before(source)
        if flink_compat.transformation_id(applied_agent.stream) in upstream_ids:
            raise AgentCycleError(
                f"the output of agent {name!r} flows back into agent {name!r}",
                expected="streams from one agent to another one, without a cycle",
                found=f"the agent that is applied at {applied_agent.place}",
                where=authors_place(),
                fix="let the agent loop with events inside itself, which run.max-events limits; for two "
                "stages with the same code, apply the second one with another name=; or send the records of "
                "the cycle through a Kafka topic",
            )
        raise DuplicateAgentError(
            f"the job applies two agents named {name!r}",
            expected="one agent of each name",
            found=f"the other one at {applied_agent.place}",
            where=authors_place(),
            fix="choose another name for one of them: apply(agent, name='...'); names scope memory and state",
        )

    @property
    def level(self) -> int:
        """The number of agents that have been applied in the job so far."""
        return len(self._applied)

    def add_agent(self, applied: AppliedAgent) -> None:
        """Add an agent that was applied to a stream of the job."""
        applied.level = self.level
        self._applied[applied.name] = applied
        keep_job(self)
        self._announce_classes()

    def _begin_next_job(self) -> None:
        """Forget all parts of this job: what is built from now on belongs to the next one."""
        self._applied = {}
        self._checks = []
        self._lists = []

    def note_list(self, records: Sequence[Any]) -> None:
        """Record a list that the job reads, for the comparison with a resumed job's."""
        self._lists.append(GivenList(records, authors_place()))

    def add_check(self, check: Callable[[], None]) -> None:
        """Add a function to call before the job runs; it raises if the job cannot work."""
        self._checks.append(check)

    # -- results ----------------------------------------------------------------------

    def collect(self, stream: DataStream) -> list[Any]:
        """Return a list that :meth:`execute` fills with the records of ``stream``."""
        from pyflink.common import Types

        if stream.get_type() != Types.PICKLED_BYTE_ARRAY():
            stream = stream.map(ShippedFunction(unchanged))
        outputs = Outputs()
        self._collecting.append(Collecting(stream, outputs))
        return outputs

    # -- running ----------------------------------------------------------------------

    def execute(self, job_name: str | None = None) -> Any:
        """Run the job to its end and fill the lists.

        Raises:
            JobFailedError: The job failed.
            DeadLettersNotReadError: A policy writes dead letters, and their stream is not used.
            JobDefinitionError: The stream of late outputs is not used.
            ApprovalsNotAnsweredError: The requests for approvals are not used, or cannot be answered.
        """
        from pyflink.common import JobExecutionResult

        job_name = self._prepare_job(job_name, resumes=True)
        facts = self._facts
        start = self._start
        local = self.is_local
        waits = local or bool(self._collecting)
        try:
            if start is not None and start.skips:
                return self._skip_finished(start)
            if not waits:
                self._begin_next_job()
                with by_pyflink():
                    return self.stream_env.execute(job_name)
            with start or nullcontext():
                client, readers = self._submit_job(job_name)
                if self._local is not None:
                    result = JobExecutionResult(self._local.wait_for_result())
                else:
                    result = client.get_job_execution_result().result()
                for reader in readers:
                    reader.finish()
                if start is not None:
                    start.record_finish([reader.outputs for reader in readers])
                return result
        except Py4JJavaError as error:
            raise facts.job_error(flink_compat.java_text(error)) from None
        except Py4JError:
            # The JVM crashed while it got the job. Python would keep calling it for each object of Java.
            if not local or not gateway.is_gone(gateway.GONE_SECONDS):
                raise
            gateway.leave_alone()
            raise facts.lost_task_manager_error("the JVM") from None
        finally:
            self._start = None

    def _skip_finished(self, start: LocalStart) -> Any:
        """Skip a job that has finished, and fill its lists with its outputs."""
        from pyflink.common import JobExecutionResult

        collecting = self._collecting
        self._collecting = []
        self._begin_next_job()
        for collection in collecting:
            collection.outputs.submitted = True
        for collection, outputs in zip(collecting, start.beginning.stored_outputs(), strict=False):
            collection.outputs.extend(outputs)
        return JobExecutionResult(start.skip_job(self.stream_env))

    def execute_async(self, job_name: str | None = None) -> Any:
        """Submit the job, and return PyFlink's client of it. The lists are filled while it runs."""
        client, _ = self._submit_job(self._prepare_job(job_name))
        return client

    def execute_and_collect(self, stream: DataStream, job_name: str | None, limit: int | None) -> Any:
        """Run the job, and return an iterator over the records of ``stream``, or a list of the first ones."""
        job_name = self._prepare_job(job_name)
        facts = self._facts
        records = collect_async(stream)
        try:
            self._submit_job(job_name)
        except Py4JJavaError as error:
            raise facts.job_error(flink_compat.java_text(error)) from None
        local = self._local
        self._local = None
        if local is not None:
            local.reports_itself()

        def explain(error: Py4JJavaError) -> Exception:
            if local is not None:
                return local.explain_error(error)
            return facts.job_error(flink_compat.java_text(error))

        explained = RecordIterator(records, explain)
        if limit is None:
            return explained
        with explained:
            return list(itertools.islice(explained, limit))

    def before_tables(self, tables: Any) -> None:
        """Prepare a job that tables run, which may include only some of the agents."""
        for applied in self._applied.values():
            check_mode_of_tables(tables, applied.place)
        self._prepare_job(None, has_tables=True)

    def _prepare_job(self, job_name: str | None, resumes: bool = False, has_tables: bool = False) -> str:
        """Check the job, set the options that it needs, and return its name.

        Args:
            job_name: The name that was passed.
            resumes: True if the job may resume.
            has_tables: True if tables run it, which add operators later.
        """
        check_may_run(job_name)
        check_version()
        for applied in self._applied.values():
            check_runtime_mode(self.stream_env, applied.place)
            applied.check_streams_used()
        self.resource_options.check()
        for check in self._checks:
            check()
        if self.is_local:
            self._start = self._open_start(job_name if resumes else None)
        check_checkpoints(self.stream_env, self.config)
        if self.is_local and self.stream_env.get_checkpoint_config().is_checkpointing_enabled():
            bound_restarts(self.stream_env, self.config)
            bound_rest_ports(self.stream_env)
        self._announce_classes()
        if self._start is None or not self._start.skips:
            self._attach_lists()
            self._keep_ends_open()
        name_operators(self.stream_env)
        agents = self._applied.values()
        forward_at_once(self.stream_env, [agent.stream for agent in agents])
        if not has_tables and (self._start is None or not self._start.skips):
            fit_to_state(self.stream_env, {agent.name: agent.place for agent in agents})
        job_name = job_name or " -> ".join(self._applied) or "agents"
        print_longest_downtime(self.stream_env, job_name)
        self._facts = JobFacts(
            job_name,
            untimed=[agent.name for agent in agents if not agent.event_time.holds],
            typed=[place for agent in agents for place in agent.typed],
            totals={agent.name: agent.inputs for agent in agents if agent.inputs is not None},
            java_trace=self.is_local and bool(self.config.get(AgentOptions.JAVA_TRACE)),
        )
        if self.is_local:
            self._prepare_to_follow()
        return job_name

    def _open_start(self, job_name: str | None) -> LocalStart | None:
        """Open the start of a local job, which may resume the last one."""
        agents = [agent.resumable for agent in self._applied.values() if agent.resumable is not None]
        start = open_start(self.stream_env, self.config, job_name, agents, self._announced_inputs)
        if start is not None and not start.skips:
            start.configure_job(self.stream_env)
        return start

    def _announced_inputs(self) -> GivenInputs:
        return given_inputs(self._lists, restarting_sources_of(self.stream_env))

    def _attach_lists(self) -> None:
        """Let the streams fill their lists; if the job resumes, through files that have all outputs."""
        new = [collection for collection in self._collecting if collection.source is None]
        if self._start is None:
            for new_collection in new:
                new_collection.source = flink_compat.Collector(new_collection.stream)
            return
        names = name_operators(self.stream_env, [collection.stream for collection in new])
        for new_collection, name in zip(new, names, strict=True):
            new_collection.source = self._start.list_file(name, new_collection.stream)

    def _prepare_to_follow(self) -> None:
        """Give a local job its own log and short REST refresh intervals."""
        flink = flink_compat.configuration_of(self.stream_env)
        settings = REFRESH | rocksdb_settings(self.config)
        missing = {key: value for key, value in settings.items() if key not in flink}
        if missing:
            flink_compat.set_options(self.stream_env, missing)
        if (log := new_log(self._facts.name)) is not None:
            flink_compat.log_to(str(log), configuration_beside(log, self.config))
        bounded = is_terminal() and is_bounded_job(self.stream_env)
        self._facts = replace(self._facts, log=log, bounded=bounded)
        if not self._listens:
            self._listens = True
            # Java holds its listeners, and would keep the job in memory.
            this: weakref.ref[Job] = weakref.ref(self)
            flink_compat.listen_for_jobs(self.stream_env, lambda client: _notify_job(this, client))

    def follow_submitted(self, client: Any) -> None:
        """Start to follow the local job that Java's ``client`` has submitted."""
        start = self._start
        self._local = LocalJob(client, self._facts, None if start is None else start.may_restart)
        if start is not None:
            start.follow_job(client, self._facts.log)
        self._local.start()

    def _submit_job(self, job_name: str) -> tuple[Any, list[ListReader]]:
        """Submit the job, and return its client and the readers of its lists."""
        self._local = None
        collecting = self._collecting
        self._collecting = []
        self._begin_next_job()
        try:
            with by_pyflink():
                client = self.stream_env.execute_async(job_name)
        finally:
            if self._start is not None:
                self._start.remove_options(self.stream_env)
        for submitted_collection in collecting:
            submitted_collection.outputs.submitted = True
        return client, [collection.start_reader() for collection in collecting]

    @property
    def is_local(self) -> bool:
        """True if the job runs in a cluster that this process starts, not on a real one."""
        flink = flink_compat.configuration_of(self.stream_env)
        return flink.get("execution.target", "local") == "local"

    def _announce_classes(self) -> None:
        """Send the main script's classes to workers before any operator brings them."""
        text = announcement(sys.modules[MAIN])
        if text is not None:
            flink_compat.announce_to_workers(self.stream_env, text)

    def _keep_ends_open(self) -> None:
        """Add gates, so that checkpoints complete while the end of a bounded input waits for runs."""
        checkpoints = self.stream_env.get_checkpoint_config().is_checkpointing_enabled()
        if not checkpoints or not self._applied:
            return
        for name, applied in self._applied.items():
            if not applied.stays_open:
                applied.stays_open = keep_open(self.stream_env, name, applied.level, applied.stream)
        waits = not all(agent.stays_open for agent in self._applied.values())
        flink = flink_compat.configuration_of(self.stream_env)
        if waits and not is_set(flink, TOLERABLE) and is_bounded_job(self.stream_env):
            # Checkpoints at the end expire, and are no reason to restart the job.
            flink_compat.set_options(self.stream_env, {TOLERABLE: str(2**31 - 1)})


def _notify_job(job: weakref.ref[Job], client: Any) -> None:
    """Notify a job, if it still exists, that it was submitted."""
    live_job = job()
    if live_job is not None:
        live_job.follow_submitted(client)
