"""``AgentsExecutionEnvironment``: applies agents to streams and runs the job."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flink_agents.api.agents.agent import Agent
from flink_agents.api.agents.observers import ObserverSource
from flink_agents.api.events.event_time import EventTime
from flink_agents.api.settings.options import Configuration
from flink_agents.api.tables import OnChange

_IMPLEMENTATION = "flink_agents.runtime.flink.environment"


class AgentStream(ABC):
    """The output of an agent that was applied to a stream."""

    @abstractmethod
    def to_datastream(self, output_type: Any = None) -> Any:
        """Return the outputs as a PyFlink ``DataStream``.

        Args:
            output_type: Python type or PyFlink ``TypeInformation`` of the values, which are then plain ones
                where the agent was applied with ``lineage=True``, too. Default: what the agent declares,
                else pickled Python objects.
        """

    @abstractmethod
    def to_table(self, schema: Any = None, *, rowtime: str | None = None) -> Any:
        """Return the outputs as a PyFlink ``Table``.

        Args:
            schema: Column names and types (a pydantic model, a ``DataTypes.ROW`` or a mapping
                of names to Python types). Default: what the agent declares.
            rowtime: Name of a further column with the event time of each output, which carries the
                watermarks of the stream, for windows in SQL. The agent is applied with
                ``EventTime.hold_watermarks()``. Default: no such column.

        Raises:
            UnsupportedTableError: No columns are known, the environment has no tables, or the outputs have no
                event time.
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
        """Return the events that could not be handled, as a ``DataStream`` of ``DeadLetter``."""

    @abstractmethod
    def unmatched_signals(self) -> Any:
        """Return the signals that no run took, as a ``DataStream`` of ``UnmatchedSignal``.

        Raises:
            UnknownSideOutputError: The agent has no signals, and none of its actions waits.
        """

    @abstractmethod
    def approvals(self) -> Any:
        """Return what its actions ask people, as a ``DataStream`` of requests and of how these ended.

        It has an :class:`ApprovalRequest` for each, and an :class:`ApprovalOutcome` of the same id later.

        Raises:
            UnknownSideOutputError: None of its actions waits.
        """

    @abstractmethod
    def late_outputs(self) -> Any:
        """Return the outputs of runs that were not held for, as a ``DataStream``.

        Raises:
            UnknownSideOutputError: The agent was not applied with ``late="side"``.
        """


class AgentInput(ABC):
    """A keyed stream that waits for its agent."""

    @abstractmethod
    def with_signals(self, signals: Any, key_selector: Callable[[Any], Any] | None = None) -> AgentInput:
        """Return the same stream, with signals for runs that wait.

        A stream of signals that is silent does not hold event time back, and is no end of a bounded input.
        State is the same with and without signals, so that they can be added to a job and taken away.

        Args:
            signals: A PyFlink ``DataStream`` of :class:`Signal`.
            key_selector: Gives the key of a signal, of the type that the keys of the stream have. Default:
                ``Signal.key``.

        Raises:
            JobDefinitionError: One of them is something else.
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
            max_parallelism: Number of key groups. Default: the environment's.
            event_time: Whether outputs keep the timestamps of their inputs and watermarks wait
                for them. Default: ``EventTime.ignore()``.
            observers: Who is told what runs do: instances of ``RunObserver``, which are pickled so that each
                subtask has a copy, or classes or functions without arguments that make one in each subtask.
            lineage: Whether outputs, side outputs too, leave as ``TracedOutput``: the value with the run that
                put it out and the message that began the run. A Kafka sink writes that into headers.

        Raises:
            ObserverError: One of ``observers`` gives no observer, or cannot be pickled.
            AgentDefinitionError: The agent cannot work; the text names file and line.
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
            t_env: A ``StreamTableEnvironment`` on it. Default: made when tables are used.
            config: Options by key (see ``AgentOptions``).

        Raises:
            SetupError: This machine or process cannot run the job; the text says the fix.
            OptionError: An option is unknown or does not fit.
        """
        return importlib.import_module(_IMPLEMENTATION).create(env, t_env, config)

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
        """Return a PyFlink ``DataStream``; ``key_selector`` gives the key of a record.

        Raises:
            JobDefinitionError: One of them is something else, or the stream is keyed already.
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

        Where a column of the table carries watermarks, its time is the event time of the inputs, and the
        watermarks are theirs. Dates and times of SQL are those of Python: ``TIMESTAMP`` is a ``datetime``
        without zone, ``TIMESTAMP_LTZ`` one in UTC, both to the microsecond.

        Args:
            table: The table.
            key_selector: Gives the key of an input, or names the column that is the key.
            value: What a row becomes: a pydantic model, a dataclass, any other type that pydantic makes of
                the columns. Default: a ``Row`` with names.
            changes: What becomes of updates and deletes. ``"fail"``: the table has none. ``"latest"``: each
                row as it is after an insert or update; deletes are dropped. ``"all"``: each change, as a
                ``TableChange``.

        Raises:
            UnsupportedTableError: The table has updates or deletes, and the policy refuses them; several of
                its columns carry watermarks; or there is no such policy.
            JobDefinitionError: There is no table, or no key selector.
        """

    @abstractmethod
    def from_list(
        self, records: Iterable[Any], key_selector: Callable[[Any], Any] | None = None
    ) -> AgentInput:
        """Return records that are at hand, as a bounded stream."""

    @abstractmethod
    def load_yaml(self, *paths: str | Path) -> AgentsExecutionEnvironment:
        """Make the agents of YAML files known to ``apply`` by name."""

    @abstractmethod
    def collect(self, stream: Any) -> list[Any]:
        """Return a list that ``execute()`` fills with the records of a ``DataStream`` of the bounded job."""

    @abstractmethod
    def add_check(self, check: Callable[[], None]) -> None:
        """Have a function called before ``execute()`` runs the job; it raises where the job cannot work."""

    @abstractmethod
    def execute(self, job_name: str | None = None) -> Any:
        """Run the job to its end, fill the lists, return PyFlink's result.

        Raises:
            JobFailedError: The job failed; the text starts with the user's own line.
            DeadLettersNotReadError: A policy writes dead letters that nothing reads.
        """
