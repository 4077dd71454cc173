"""``AgentsExecutionEnvironment`` on PyFlink."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from flink_agents.runtime.jvm import prepare_process

# PyFlink's gateway inherits this process's environment variables, so they come first.
prepare_process()

from pyflink.common import Configuration as FlinkConfiguration  # noqa: E402
from pyflink.datastream import DataStream, KeyedStream, StreamExecutionEnvironment  # noqa: E402

from flink_agents.api.agent import Agent  # noqa: E402
from flink_agents.api.environment import AgentInput, AgentsExecutionEnvironment  # noqa: E402
from flink_agents.api.errors import (  # noqa: E402
    AgentCycleError,
    AgentDefinitionError,
    DeadLettersNotReadError,
    DuplicateAgentError,
    JobDefinitionError,
    UnsupportedExecutionError,
    UnsupportedTableError,
)
from flink_agents.api.options import AgentOptions, Configuration  # noqa: E402
from flink_agents.api.policies import OnError  # noqa: E402
from flink_agents.plan import BoundAgent  # noqa: E402
from flink_agents.runtime import flink_compat  # noqa: E402
from flink_agents.runtime.job_errors import job_failed  # noqa: E402
from flink_agents.runtime.packages import check_conflicting_packages  # noqa: E402
from flink_agents.runtime.rows import Column, NameFields  # noqa: E402
from flink_agents.runtime.streams import (  # noqa: E402
    FlinkAgentInput,
    FlinkAgentStream,
    ShippedFunction,
    list_source,
)

flink_compat.drain_gateway_errors()

_EXECUTION_MODE = "python.execution-mode"
_RESTART_STRATEGY = "restart-strategy.type"


def create(
    env: StreamExecutionEnvironment | None, t_env: Any, config: Mapping[str, Any] | None
) -> FlinkAgentsEnvironment:
    """The environment for ``AgentsExecutionEnvironment.get_execution_environment``."""
    check_conflicting_packages()
    if env is None:
        env = StreamExecutionEnvironment.get_execution_environment(FlinkConfiguration())
    flink = flink_compat.configuration_of(env)
    options = Configuration.load(config, flink)
    _use_thread_mode(env, flink)
    return FlinkAgentsEnvironment(env, t_env, options)


def _use_thread_mode(env: StreamExecutionEnvironment, flink: Mapping[str, str]) -> None:
    mode = flink.get(_EXECUTION_MODE)
    if mode is None:
        flink_compat.configure(env, {_EXECUTION_MODE: "thread"})
    elif mode != "thread":
        raise UnsupportedExecutionError(
            f"{_EXECUTION_MODE} is {mode!r}",
            expected="thread",
            found=mode,
            fix=f"leave {_EXECUTION_MODE} out: PyFlink's process mode loses records when a job with "
            "checkpoints fails (docs/design/pyflink.md)",
        )


class FlinkAgentsEnvironment(AgentsExecutionEnvironment):
    """See :class:`AgentsExecutionEnvironment`.

    Args:
        env: PyFlink's environment.
        t_env: PyFlink's table environment, made at its first use where it is None.
        config: The options.
    """

    def __init__(self, env: StreamExecutionEnvironment, t_env: Any, config: Configuration) -> None:
        self._stream_env = env
        self._table_env = t_env
        self._config = config
        self._yaml_agents: dict[str, Agent] = {}
        self._applied: dict[str, FlinkAgentStream] = {}
        self._collecting: list[tuple[flink_compat.Collector, list[Any]]] = []

    @property
    def stream_env(self) -> StreamExecutionEnvironment:
        """See :class:`AgentsExecutionEnvironment`."""
        return self._stream_env

    @property
    def config(self) -> Configuration:
        """See :class:`AgentsExecutionEnvironment`."""
        return self._config

    @property
    def table_env(self) -> Any:
        """See :class:`AgentsExecutionEnvironment`."""
        if self._table_env is None:
            from pyflink.table import StreamTableEnvironment

            self._table_env = StreamTableEnvironment.create(self.stream_env)
        return self._table_env

    # -- inputs -----------------------------------------------------------------------

    def from_datastream(self, stream: DataStream, key_selector: Callable[[Any], Any]) -> AgentInput:
        """See :class:`AgentsExecutionEnvironment`."""
        if isinstance(stream, KeyedStream):
            raise JobDefinitionError(
                "the stream is keyed already",
                fix="give the stream before key_by, and the key selector here: agents key by a "
                "canonical form of the key",
            )
        return FlinkAgentInput(self, stream, key_selector)

    def from_table(self, table: Any, key_selector: Callable[[Any], Any] | str) -> AgentInput:
        """See :class:`AgentsExecutionEnvironment`."""
        from pyflink.util.exceptions import TableException

        try:
            stream = self.table_env.to_data_stream(table)
        except TableException as error:
            raise UnsupportedTableError(
                "the table has updates or deletes",
                expected="an insert-only table",
                found=str(error).split("\n", 1)[0],
                fix="give a table without updating aggregation, or convert it by to_changelog_stream "
                "and from_datastream",
            ) from error
        named = stream.map(ShippedFunction(NameFields(stream.get_type())))
        selector = Column(key_selector) if isinstance(key_selector, str) else key_selector
        return FlinkAgentInput(self, named, selector)

    def from_list(self, records: Iterable[Any], key_selector: Callable[[Any], Any]) -> AgentInput:
        """See :class:`AgentsExecutionEnvironment`."""
        return FlinkAgentInput(self, list_source(self, list(records)), key_selector)

    def load_yaml(self, *paths: str | Path) -> FlinkAgentsEnvironment:
        """See :class:`AgentsExecutionEnvironment`."""
        from flink_agents.plan import load_yaml

        for path in paths:
            self._yaml_agents |= load_yaml(path)
        return self

    # -- what streams ask of their environment ----------------------------------------

    def agent(self, agent: Agent | type[Agent] | str) -> Agent:
        """The agent that ``apply`` was given."""
        if isinstance(agent, str):
            if agent not in self._yaml_agents:
                raise AgentDefinitionError(
                    f"no loaded file describes an agent {agent!r}",
                    expected="one of " + (", ".join(self._yaml_agents) or "none: call load_yaml first"),
                )
            return self._yaml_agents[agent]
        return agent() if isinstance(agent, type) else agent

    def policies_of(self, bound: BoundAgent) -> set[OnError]:
        """All error policies that runs of the agent can use."""
        agent_wide = bound.on_error or self._config.get(AgentOptions.ON_ERROR)
        unhandled = bound.on_unhandled or self._config.get(AgentOptions.ON_UNHANDLED)
        return {OnError(action.on_error or agent_wide) for action in bound.actions} | {OnError(unhandled)}

    def admit(self, name: str, source: DataStream) -> None:
        """Check that an agent called ``name`` may be applied to ``source``.

        Raises:
            AgentCycleError: ``source`` comes from the output of that agent.
            DuplicateAgentError: The job has another agent of that name.
        """
        other = self._applied.get(name)
        if other is None:
            return
        if flink_compat.transformation_id(other.stream) in flink_compat.transformation_ids_before(source):
            raise AgentCycleError(
                f"the output of agent {name!r} flows back into agent {name!r}",
                fix="let the agent loop by events inside itself; or, for two stages with the same code, "
                "apply the second one with another name=",
            )
        raise DuplicateAgentError(
            f"the job applies two agents named {name!r}",
            fix="give one of them another name: apply(agent, name='...'); names scope memory and state",
        )

    def register(self, applied: FlinkAgentStream) -> None:
        """Remember an applied agent."""
        self._applied[applied.plan.name] = applied

    def collect(self, stream: DataStream) -> list[Any]:
        """See :class:`AgentsExecutionEnvironment`."""
        from pyflink.common import Types

        if stream.get_type() != Types.PICKLED_BYTE_ARRAY():
            stream = stream.map(_identity)
        found: list[Any] = []
        self._collecting.append((flink_compat.Collector(stream), found))
        return found

    # -- running ----------------------------------------------------------------------

    def execute(self, job_name: str | None = None) -> Any:
        """See :class:`AgentsExecutionEnvironment`."""
        from py4j.protocol import Py4JJavaError

        self._check_dead_letters()
        self._bound_restarts()
        job_name = job_name or " -> ".join(self._applied) or "agents"
        collecting, self._collecting = self._collecting, []
        self._applied = {}
        try:
            if not collecting:
                return self.stream_env.execute(job_name)
            client = self.stream_env.execute_async(job_name)
            readers = [_Reader(collector, found) for collector, found in collecting]
            result = client.get_job_execution_result().result()
            for reader in readers:
                reader.finish()
            return result
        except Py4JJavaError as error:
            raise job_failed(job_name, str(error.java_exception.toString()) + "\n" + str(error)) from None

    def _bound_restarts(self) -> None:
        """Let a local job with checkpoints restart a few times; Flink alone would go on for ever."""
        flink = flink_compat.configuration_of(self.stream_env)
        local = flink.get("execution.target", "local") == "local"
        checkpoints = self.stream_env.get_checkpoint_config().is_checkpointing_enabled()
        if local and checkpoints and _RESTART_STRATEGY not in flink:
            delay = self._config.get(AgentOptions.RESTART_DELAY)
            settings = {
                _RESTART_STRATEGY: "fixed-delay",
                "restart-strategy.fixed-delay.attempts": str(self._config.get(AgentOptions.RESTART_ATTEMPTS)),
                "restart-strategy.fixed-delay.delay": f"{int(delay.total_seconds() * 1000)} ms",
            }
            flink_compat.configure(self.stream_env, settings)

    def _check_dead_letters(self) -> None:
        for name, applied in self._applied.items():
            if applied.writes_dead_letters and not applied.dead_letters_read:
                raise DeadLettersNotReadError(
                    f"agent {name!r} sends failed events to its dead letters, and nobody reads them",
                    fix="consume the stream that dead_letters() of the applied agent returns, "
                    "for example dead_letters().print()",
                )


def _identity(value: Any) -> Any:
    return value


class _Reader(threading.Thread):
    """Fills a list while the job runs, so that the job never waits for its reader."""

    def __init__(self, collector: flink_compat.Collector, found: list[Any]) -> None:
        super().__init__(name="agents-collect", daemon=True)
        self._collector = collector
        self._found = found
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Read to the end of the stream."""
        try:
            for batch in self._collector.batches():
                self._found.extend(pickle.loads(record) for record in batch)
        except Exception as error:
            self._error = error

    def finish(self) -> None:
        """Wait for the end of the stream.

        Raises:
            Exception: What reading raised.
        """
        self.join()
        self._collector.close()
        if self._error is not None:
            raise self._error
