"""Agents on PyFlink streams: inputs, the operator's place in the job, and its outputs."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyflink.common import TypeInformation, Types
from pyflink.datastream import DataStream, OutputTag

from flink_agents.api.agent import Agent
from flink_agents.api.environment import AgentInput, AgentStream
from flink_agents.api.errors import UnknownSideOutputError
from flink_agents.api.policies import DEAD_LETTER_TAG, OnError
from flink_agents.plan import AgentCode, AgentPlan, BoundAgent, bind, compile_agent
from flink_agents.runtime.flink_types import columns_of, row_type, stream_type
from flink_agents.runtime.keys import KeyEncoder
from flink_agents.runtime.main_module import MainModule
from flink_agents.runtime.operator import ActionExecutionOperator
from flink_agents.runtime.rows import ToRow

if TYPE_CHECKING:
    from flink_agents.runtime.environment import FlinkAgentsEnvironment


class ShippedFunction:
    """A function that brings the user's ``__main__`` classes to the worker with it."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.main = MainModule()
        self.function = function

    def __call__(self, value: Any) -> Any:
        """Call the function."""
        return self.function(value)


class _Lookup:
    """Gives the record of an index."""

    def __init__(self, records: Sequence[Any]) -> None:
        self._records = [pickle.dumps(record) for record in records]

    def __call__(self, index: int) -> Any:
        return pickle.loads(self._records[index])


def list_source(environment: FlinkAgentsEnvironment, records: Sequence[Any]) -> DataStream:
    """A bounded stream of ``records``, in order, that resumes where a checkpoint left it.

    PyFlink's ``from_collection`` begins anew after a failure; a number sequence does not.
    """
    from pyflink.common import WatermarkStrategy
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource

    last = max(len(records) - 1, 0)
    numbers = environment.stream_env.from_source(
        NumberSequenceSource(0, last), WatermarkStrategy.no_watermarks(), "list"
    ).set_parallelism(1)
    if not records:
        numbers = numbers.filter(lambda number: False).set_parallelism(1)
    return numbers.map(ShippedFunction(_Lookup(records))).set_parallelism(1)


class FlinkAgentInput(AgentInput):
    """See :class:`AgentInput`."""

    def __init__(
        self, environment: FlinkAgentsEnvironment, stream: DataStream, key_selector: Callable[[Any], Any]
    ) -> None:
        self._environment = environment
        self._stream = stream
        self._key_selector = key_selector

    def apply(
        self,
        agent: Agent | type[Agent] | str,
        *,
        name: str | None = None,
        parallelism: int | None = None,
        max_parallelism: int | None = None,
    ) -> AgentStream:
        """See :class:`AgentInput`."""
        resolved = self._environment.agent(agent)
        plan = compile_agent(resolved, name)
        code = AgentCode.of(resolved)
        bound = bind(plan, code)
        self._environment.admit(plan.name, self._stream)
        side_types = _side_types(bound, self._environment)
        operator = ActionExecutionOperator(plan, code, self._environment.config, side_types)
        keyed = self._stream.key_by(ShippedFunction(KeyEncoder(self._key_selector)), key_type=Types.STRING())
        stream = keyed.process(operator, output_type=stream_type(bound.output_type))
        stream = stream.name(f"agent {plan.name}").uid(f"flink-agents-{plan.name}").disable_chaining()
        if parallelism is not None:
            stream = stream.set_parallelism(parallelism)
        if max_parallelism is not None:
            stream = stream.set_max_parallelism(max_parallelism)
        applied = FlinkAgentStream(self._environment, plan, bound, stream, side_types)
        self._environment.register(applied)
        return applied


def _side_types(bound: BoundAgent, environment: FlinkAgentsEnvironment) -> dict[str, TypeInformation]:
    types = {tag: stream_type(kind) for tag, kind in bound.side_outputs.items()}
    if OnError.DEAD_LETTER in environment.policies_of(bound):
        types[DEAD_LETTER_TAG] = Types.PICKLED_BYTE_ARRAY()
    return types


class FlinkAgentStream(AgentStream):
    """See :class:`AgentStream`."""

    def __init__(
        self,
        environment: FlinkAgentsEnvironment,
        plan: AgentPlan,
        bound: BoundAgent,
        stream: DataStream,
        side_types: dict[str, TypeInformation],
    ) -> None:
        self.plan = plan
        self.stream = stream
        self._environment = environment
        self._bound = bound
        self._side = {tag: stream.get_side_output(OutputTag(tag, kind)) for tag, kind in side_types.items()}
        self.dead_letters_read = False

    @property
    def writes_dead_letters(self) -> bool:
        """Whether a policy of the agent sends events to the dead letters."""
        return DEAD_LETTER_TAG in self._side

    def to_datastream(self, output_type: Any = None) -> DataStream:
        """See :class:`AgentStream`."""
        if output_type is None:
            return self.stream
        return self.stream.map(ShippedFunction(_identity), output_type=stream_type(output_type))

    def to_table(self, schema: Any = None) -> Any:
        """See :class:`AgentStream`."""
        columns = columns_of(schema if schema is not None else self._bound.output_type)
        rows = self.stream.map(ShippedFunction(ToRow(list(columns))), output_type=row_type(columns))
        return self._environment.table_env.from_data_stream(rows)

    def to_list(self) -> list[Any]:
        """See :class:`AgentStream`."""
        return self._environment.collect(self.stream)

    def side_output(self, tag: str) -> DataStream:
        """See :class:`AgentStream`."""
        if tag not in self._side or tag == DEAD_LETTER_TAG:
            raise UnknownSideOutputError(
                f"agent {self.plan.name!r} has no side output {tag!r}",
                expected="one of " + (", ".join(self._bound.side_outputs) or "none declared"),
                fix=f"declare it on the agent: side_outputs = {{{tag!r}: str}}",
            )
        return self._side[tag]

    def dead_letters(self) -> DataStream:
        """See :class:`AgentStream`."""
        self.dead_letters_read = True
        if DEAD_LETTER_TAG not in self._side:
            kind = Types.PICKLED_BYTE_ARRAY()
            self._side[DEAD_LETTER_TAG] = self.stream.get_side_output(OutputTag(DEAD_LETTER_TAG, kind))
        return self._side[DEAD_LETTER_TAG]


def _identity(value: Any) -> Any:
    return value
