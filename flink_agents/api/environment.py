"""``AgentsExecutionEnvironment``: applies agents to streams and runs the job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flink_agents.api.agents.agent import Agent
from flink_agents.api.agents.observers import ObserverSource
from flink_agents.api.common.providers import LateFunction
from flink_agents.api.events.event_time import EventTime
from flink_agents.api.settings.options import Configuration
from flink_agents.api.tables import OnChange

CREATE = LateFunction()
"""Creates the environment of a job from PyFlink's two environments and options; imported when called."""


class AgentStream(ABC):
    """The output of an agent that was applied to a stream."""

    @abstractmethod
    def to_datastream(self, output_type: Any = None) -> Any:
        """Return the outputs as a PyFlink ``DataStream``.

        Args:
            output_type: Python type or PyFlink ``TypeInformation`` of the values, which are then plain values
                even if the agent was applied with ``lineage=True``. Default: the agent's declared type,
                otherwise pickled Python objects.
        """

    @abstractmethod
    def to_table(self, schema: Any = None, *, rowtime: str | None = None) -> Any:
        """Return the outputs as a PyFlink ``Table``.

        Args:
            schema: Column names and types (a pydantic model, a dataclass, or a mapping of names to Python
                types). Default: the columns that the agent declares.
            rowtime: Name of an extra column with the event time of each output and the watermarks of the
                stream, for windows in SQL. The agent is applied with ``EventTime.hold_watermarks()``.
                Default: no such column.

        Raises:
            UnsupportedTableError: The columns are unknown, the environment has no tables, or the outputs have
                no event time.
        """

    @abstractmethod
    def to_list(self) -> list[Any]:
        """Return a list that ``execute()`` fills with the outputs of a bounded job."""

    @abstractmethod
    def side_output(self, tag: str) -> Any:
        """Return the side output ``tag`` of the agent as a ``DataStream``.

        Raises:
            UnknownSideOutputError: The agent declares no such tag.
        """

    @abstractmethod
    def dead_letters(self) -> Any:
        """Return the events that the agent could not handle, as a ``DataStream`` of ``DeadLetter``."""

    @abstractmethod
    def unmatched_signals(self) -> Any:
        """Return the signals that no run received, as a ``DataStream`` of ``UnmatchedSignal``."""

    @abstractmethod
    def approvals(self) -> Any:
        """Return the approval requests of its actions and their outcomes, as a ``DataStream``.

        For each request it has an :class:`ApprovalRequest`, and later an :class:`ApprovalOutcome` with the
        same id.
        """

    @abstractmethod
    def late_outputs(self) -> Any:
        """Return the outputs of runs that took longer than ``max_hold``, as a ``DataStream``.

        Raises:
            UnknownSideOutputError: The agent was not applied with ``late="side"``.
        """


class AgentInput(ABC):
    """A keyed stream of inputs, to which you apply an agent."""

    @abstractmethod
    def with_signals(self, signals: Any, key_selector: Callable[[Any], Any] | None = None) -> AgentInput:
        """Return the same stream, with signals for waiting runs.

        A silent stream of signals does not hold back event time or the end of a bounded input. State is the
        same with and without signals, so you can add them to a job and remove them.

        Args:
            signals: A PyFlink ``DataStream`` of :class:`Signal`.
            key_selector: Returns the key of a signal, with the type of the stream's keys. Default:
                ``Signal.key``.

        Raises:
            JobDefinitionError: An argument has another type.
        """

    @abstractmethod
    def apply(
        self,
        agent: Agent | type[Agent] | str,
        *,
        name: str | None = None,
        parallelism: int | None = None,
        max_parallelism: int | None = None,
        event_time: EventTime | None = None,
        observers: Sequence[ObserverSource] = (),
        lineage: bool = False,
    ) -> AgentStream:
        """Let ``agent`` handle the stream.

        Args:
            agent: An instance, a class without required arguments, or the name of an agent
                of a loaded YAML file.
            name: Name of the agent in this job. Default: its own.
            parallelism: Number of subtasks. Default: the environment's.
            max_parallelism: Number of Flink's key groups, the highest parallelism to which its state can be
                rescaled. Default: the environment's.
            event_time: Policy for timestamps and watermarks: outputs keep those of their inputs, or have
                none. Default: ``EventTime.ignore()``.
            observers: Observers of runs: instances of ``RunObserver``, of which each subtask gets a pickled
                copy, or classes or functions without arguments that create one in each subtask.
            lineage: True if outputs and side outputs are ``TracedOutput``: the value with the run that
                emitted it and the message that started the run. A Kafka sink writes these into headers.

        Raises:
            ObserverError: One of ``observers`` is not an observer, or cannot be pickled.
            AgentDefinitionError: The agent is invalid; the message names file and line.
            AgentCycleError: The stream comes from the same agent.
            DuplicateAgentError: Another agent of the job has that name.
        """


class AgentsExecutionEnvironment(ABC):
    """Entry point: streams in, agents applied, job run.

    ::

        env = AgentsExecutionEnvironment.get_execution_environment()
        greetings = env.from_list(["Ada", "Alan"], key_selector=str).apply(Greeter()).to_list()
        env.execute()
    """

    @staticmethod
    def get_execution_environment(
        env: Any = None, t_env: Any = None, config: Mapping[str, Any] | None = None
    ) -> AgentsExecutionEnvironment:
        """Return the environment around a PyFlink job.

        Args:
            env: A ``StreamExecutionEnvironment``. Default: a new one, in thread mode.
            t_env: A ``StreamTableEnvironment`` on it. Default: created when tables are used.
            config: Options by key (see ``AgentOptions``).

        Raises:
            SetupError: This machine or process cannot run the job; the message has the fix.
            OptionError: An option is unknown, or its value is invalid.
        """
        return CREATE(env, t_env, config)

    @property
    @abstractmethod
    def stream_env(self) -> Any:
        """PyFlink's ``StreamExecutionEnvironment`` of the job."""

    @property
    @abstractmethod
    def table_env(self) -> Any:
        """PyFlink's ``StreamTableEnvironment`` on the same job."""

    @property
    @abstractmethod
    def config(self) -> Configuration:
        """The options of the job; set them before agents are applied."""

    @abstractmethod
    def from_datastream(self, stream: Any, key_selector: Callable[[Any], Any] | None = None) -> AgentInput:
        """Return a PyFlink ``DataStream`` as inputs of an agent.

        Args:
            stream: The stream, which has no keys yet.
            key_selector: Returns the key of a record. It is required.

        Raises:
            JobDefinitionError: An argument is missing or has another type, or the stream is keyed already.
        """

    @abstractmethod
    def from_table(
        self,
        table: Any,
        key_selector: Callable[[Any], Any] | str | None = None,
        *,
        value: Any = None,
        changes: OnChange = "fail",
    ) -> AgentInput:
        """Return the rows of a PyFlink ``Table`` as inputs.

        If a column of the table has watermarks, inputs have its time as their event time, and its watermarks.
        Dates and times of SQL become those of Python: ``TIMESTAMP`` is a ``datetime`` without zone,
        ``TIMESTAMP_LTZ`` one in UTC, both to the microsecond.

        Args:
            table: The table.
            key_selector: Returns the key of an input, or is the name of the key column.
            value: Type of the inputs: a pydantic model, a dataclass, or another type that pydantic can create
                from the columns. Default: a ``Row`` with names.
            changes: Policy for updates and deletes. ``"fail"``: the table has none. ``"latest"``: each row as
                it is after an insert or update; deletes are dropped. ``"all"``: each change, as a
                ``TableChange``.

        Raises:
            UnsupportedTableError: The table has updates or deletes, and the policy rejects them; several of
                its columns have watermarks; or the policy is unknown.
            JobDefinitionError: The table or the key selector has another type.
        """

    @abstractmethod
    def from_list(
        self, records: Iterable[Any], key_selector: Callable[[Any], Any] | None = None
    ) -> AgentInput:
        """Return records in memory as a bounded stream of inputs.

        Args:
            records: The records, in order.
            key_selector: Returns the key of a record. It is required.

        Raises:
            JobDefinitionError: An argument is missing, or has another type.
        """

    @abstractmethod
    def load_yaml(self, *paths: str | Path) -> AgentsExecutionEnvironment:
        """Load the agents of YAML files, so that ``apply`` accepts their names."""

    @abstractmethod
    def collect(self, stream: Any) -> list[Any]:
        """Return a list that ``execute()`` fills with the records of a ``DataStream`` of the bounded job."""

    @abstractmethod
    def add_check(self, check: Callable[[], None]) -> None:
        """Add a function that ``execute()`` calls first; it raises an error if the job cannot work."""

    @abstractmethod
    def execute(self, job_name: str | None = None) -> Any:
        """Run the job to its end, fill the lists, and return PyFlink's result.

        Raises:
            JobFailedError: The job failed; the message starts with your own line.
            DeadLettersNotReadError: A policy writes dead letters that nothing reads.
        """
