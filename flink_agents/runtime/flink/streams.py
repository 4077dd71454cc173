"""Agents on PyFlink streams: inputs, the operator, and its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import cloudpickle
from pyflink.common import TypeInformation, Types
from pyflink.datastream import DataStream, OutputTag
from typing_extensions import override

from flink_agents.api.agents.agent import Agent
from flink_agents.api.agents.observers import ObserverSource, check_observers
from flink_agents.api.common.places import authors_place
from flink_agents.api.common.policies import DEAD_LETTER_TAG
from flink_agents.api.environment import AgentInput, AgentStream
from flink_agents.api.errors import (
    AgentDefinitionError,
    ObserverError,
    UnknownSideOutputError,
    UnsupportedTableError,
)
from flink_agents.api.errors.base import suggest
from flink_agents.api.events.approvals import APPROVALS_TAG
from flink_agents.api.events.event_time import LATE_TAG, EventTime
from flink_agents.api.events.signals import UNMATCHED_SIGNALS_TAG
from flink_agents.api.lineage import TracedOutput
from flink_agents.api.settings.options import AgentOptions
from flink_agents.plan import AgentCode, AgentPlan, LoadedAgent
from flink_agents.plan.binding.needs import needs_approvals
from flink_agents.plan.compile.compiler import compile_with_code
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.function import ActionExecutionOperator
from flink_agents.runtime.flink.inputs.given import check_parallelism, check_selector, check_stream
from flink_agents.runtime.flink.inputs.signals import KeyOfEither, KeysOfUnion, SignalEnd, join_signals
from flink_agents.runtime.flink.internals.graph import is_bounded, name_keys, name_list
from flink_agents.runtime.flink.job import AppliedAgent, Job
from flink_agents.runtime.flink.resume.opening import ResumableAgent
from flink_agents.runtime.flink.shipping.class_copies import check_shippable
from flink_agents.runtime.flink.shipping.main_module import ShippedFunction, unchanged
from flink_agents.runtime.flink.stores import StoreChoice
from flink_agents.runtime.flink.values.rows import ToRow, rowtime_schema, with_types
from flink_agents.runtime.flink.values.tables import envelope_type, restamp, write_rows
from flink_agents.runtime.flink.values.types import CarriedValues, columns_of, row_type_sent, stream_type
from flink_agents.runtime.operator.assembly import emitted_tags, side_streams
from flink_agents.runtime.operator.services.service import EndTimes
from flink_agents.runtime.serde.keys import KeyEncoder
from flink_agents.trace.answer_topic import answer_topic_of
from flink_agents.trace.recording.assembly import check_trace_options


class FlinkAgentInput(AgentInput):
    """A keyed PyFlink stream, to which an agent can be applied.

    Args:
        job: The job of the agent.
        agents: Named agents.
        stream: The input.
        key_selector: Returns the key of a record.
        size: The number of records, if it is known.
        list_source: The source of the list, if the input is one.
    """

    def __init__(
        self,
        job: Job,
        agents: Mapping[str, Agent],
        stream: DataStream,
        key_selector: Callable[[Any], Any],
        size: int | None = None,
        list_source: DataStream | None = None,
    ) -> None:
        self._job = job
        self._agents = agents
        self._stream = stream
        self._key_selector = key_selector
        self._size = size
        self._list_source = list_source
        self._signals: SignalEnd | None = None

    @override
    def with_signals(
        self, signals: DataStream, key_selector: Callable[[Any], Any] | None = None
    ) -> FlinkAgentInput:
        signals = check_stream("with_signals", signals)
        if key_selector is not None:
            check_selector("with_signals", key_selector)
        stream = join_signals(self._stream, signals, key_selector)
        keys = KeyOfEither(self._key_selector)
        agent_input = FlinkAgentInput(self._job, self._agents, stream, keys, list_source=self._list_source)
        agent_input._signals = self._signals or SignalEnd(endless=not is_bounded(self._stream))
        return agent_input

    @override
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
        check_parallelism(parallelism, max_parallelism)
        resolved = self._resolve_agent(agent)
        plan, code = compile_with_code(resolved, name)
        code = _portable_code(code)
        bound = self._bind_agent(plan, code)
        self._job.check_agent(plan.name, self._stream)
        event_time = event_time or EventTime.ignore()
        side_types = _side_types(bound, self._job, event_time, lineage)
        output_type = Types.PICKLED_BYTE_ARRAY() if lineage else stream_type(bound.output_type)
        observers = _check_observers(check_observers(observers))
        all_types = (
            dict.fromkeys(emitted_tags(bound, self._job.config, event_time), Types.PICKLED_BYTE_ARRAY())
            | side_types
        )
        store = StoreChoice.for_agent(self._job.config, bound, self._job.is_local)
        stream = self._add_operator(plan, code, event_time, all_types, output_type, store, observers, lineage)
        if parallelism is not None:
            stream.set_parallelism(parallelism)
        if max_parallelism is not None:
            stream.set_max_parallelism(max_parallelism)
        applied = AppliedAgent(plan.name, stream, DEAD_LETTER_TAG in side_types, event_time, lineage)
        applied.inputs, applied.place = self._size, authors_place()
        applied.resumable = _resumable_agent(plan, store, self._job)
        applied.needs_approvals = needs_approvals(bound)
        applied.has_signals = self._signals is not None
        self._job.add_agent(applied)
        return FlinkAgentStream(self._job, applied, bound, all_types)

    def _bind_agent(self, plan: AgentPlan, code: AgentCode) -> LoadedAgent:
        """Bind the agent to its code, and check that it can run with the options of the job."""
        bound = LoadedAgent(plan, code)
        if not self._job.is_local:
            bound.check_cluster(self._job.config)
        self._job.resource_options.add(bound)
        check_trace_options(self._job.config)
        answer_topic_of(self._job.config)
        return bound

    def _add_operator(
        self,
        plan: AgentPlan,
        code: AgentCode,
        event_time: EventTime,
        side_types: dict[str, TypeInformation],
        output_type: TypeInformation,
        store: StoreChoice | None,
        observers: Sequence[ObserverSource],
        lineage: bool,
    ) -> DataStream:
        """Return the operator of the agent, on the keyed input."""
        source = self._stream
        watermarks = True
        uid = f"flink-agents-{plan.name}"
        if event_time.holds:
            watermarks = flink_compat.can_have_watermarks(source)
            output_type = envelope_type()
            side_types = {tag: Types.PICKLED_BYTE_ARRAY() for tag in side_types}
        operator = ActionExecutionOperator(
            plan,
            code,
            self._job.config,
            side_types,
            event_time,
            watermarks,
            store,
            self._key_selector,
            observers,
            lineage,
            EndTimes(self._job.level),
        )
        uses = [self._key_selector] if self._job.config.get(AgentOptions.CHECK_CODE) else []
        keys = ShippedFunction(KeyEncoder(self._key_selector), uses)
        check_shippable("the key selector", keys)
        check_shippable(f"the agent {plan.name!r}", operator)
        selector = keys if self._signals is None else KeysOfUnion(keys, self._signals)
        keyed = source.key_by(selector, key_type=Types.STRING())
        name_keys(keyed, plan.name)
        if self._list_source is not None:
            name_list(self._list_source, plan.name)
        stream = keyed.process(operator, output_type=output_type)
        return stream.name(f"agent {plan.name}").uid(uid).disable_chaining()

    def _resolve_agent(self, agent: Agent | type[Agent] | str) -> Agent:
        """Return the agent that an argument of ``apply`` is, or names."""
        if isinstance(agent, str):
            if agent not in self._agents:
                raise AgentDefinitionError(
                    f"no loaded file describes an agent {agent!r}",
                    expected="one of " + (", ".join(self._agents) or "none: call load_yaml first"),
                    found=repr(agent),
                    fix=suggest(agent, self._agents, "name an agent of a file that load_yaml(...) has read"),
                    where=authors_place(),
                )
            return self._agents[agent]
        return agent() if isinstance(agent, type) else agent


def _resumable_agent(plan: AgentPlan, store: StoreChoice | None, job: Job) -> ResumableAgent | None:
    """Return the facts that a local job needs to resume the agent; None if the job is not local."""
    if not job.is_local:
        return None
    return ResumableAgent(plan.name, plan.fingerprint, store)


def _portable_code(code: AgentCode) -> AgentCode:
    """Return the code of an agent with types that can be sent to workers."""
    side_outputs = {tag: flink_compat.without_jvm(kind) for tag, kind in code.side_outputs.items()}
    return replace(code, output_type=flink_compat.without_jvm(code.output_type), side_outputs=side_outputs)


def _side_types(
    bound: LoadedAgent, job: Job, event_time: EventTime, lineage: bool
) -> dict[str, TypeInformation]:
    """Return the types of all side outputs of the agent, by tag."""
    pickled = Types.PICKLED_BYTE_ARRAY()
    tags = side_streams(bound, job.config, event_time)
    if lineage:
        return dict.fromkeys(tags, pickled)
    types = {tag: stream_type(kind) for tag, kind in bound.side_outputs.items()}
    late = stream_type(bound.output_type)
    default_types = {
        DEAD_LETTER_TAG: pickled,
        LATE_TAG: late,
    }
    return {tag: types.get(tag) or default_types[tag] for tag in tags}


class FlinkAgentStream(AgentStream):
    """The PyFlink streams of an agent's outputs.

    Args:
        job: The job of the agent.
        applied: The job's entry for the agent, with its main stream.
        bound: The agent's code, with the Python types of its outputs.
        side_types: Flink's types of the side outputs, by tag.
    """

    def __init__(
        self, job: Job, applied: AppliedAgent, bound: LoadedAgent, side_types: dict[str, TypeInformation]
    ) -> None:
        self._job = job
        self._applied = applied
        self._bound = bound
        self._side_types = side_types
        self._side_streams: dict[str, DataStream] = {}
        self._stream = applied.stream
        if applied.event_time.holds:
            tables = job.tables_idle_after(applied.event_time.idle_timeout)
            kind = Types.PICKLED_BYTE_ARRAY() if applied.lineage else stream_type(bound.output_type)
            self._stream = restamp(tables, applied.stream, "", kind)

    @override
    def to_datastream(self, output_type: Any = None) -> DataStream:
        if output_type is None:
            return self._stream
        place = authors_place() or "to_datastream"
        self._applied.typed.append(place)
        typed = CarriedValues(self._value, output_type, place)
        return self._stream.map(ShippedFunction(typed), output_type=stream_type(output_type))

    @override
    def to_table(self, schema: Any = None, *, rowtime: str | None = None) -> Any:
        columns = columns_of(schema if schema is not None else self._bound.output_type)
        if rowtime is not None and (not self._applied.event_time.holds or rowtime in columns):
            raise _no_rowtime(self._applied.name, rowtime, list(columns))
        values = self._stream.map(ShippedFunction(self._value)) if self._applied.lineage else self._stream
        rows = write_rows(values, ToRow(columns, authors_place()), list(columns), row_type_sent(columns))
        tables = self._job.table_env
        if rowtime is None:
            return with_types(tables.from_data_stream(rows), columns)
        return with_types(tables.from_data_stream(rows, rowtime_schema(rowtime)), columns, rowtime)

    @override
    def to_list(self) -> list[Any]:
        return self._job.collect(self._stream)

    @override
    def side_output(self, tag: str) -> DataStream:
        if tag not in self._bound.side_outputs:
            raise UnknownSideOutputError(
                f"agent {self._applied.name!r} has no side output {tag!r}",
                expected=", ".join(self._bound.side_outputs) or "a declared one; the agent declares none",
                found=repr(tag),
                fix=suggest(
                    tag, self._bound.side_outputs, f"declare it on the agent: side_outputs = {{{tag!r}: str}}"
                ),
                where=authors_place(),
            )
        return self._side_output(tag)

    @override
    def dead_letters(self) -> DataStream:
        self._applied.dead_letters_read = True
        return self._side_output(DEAD_LETTER_TAG)

    @override
    def unmatched_signals(self) -> DataStream:
        return self._side_output(UNMATCHED_SIGNALS_TAG)

    @override
    def approvals(self) -> DataStream:
        self._applied.approvals_read = True
        return self._side_output(APPROVALS_TAG)

    @override
    def late_outputs(self) -> DataStream:
        if LATE_TAG not in self._side_types:
            raise UnknownSideOutputError(
                f"agent {self._applied.name!r} has no stream of late outputs",
                fix="apply it with event_time=EventTime.hold_watermarks(..., late='side')",
                where=authors_place(),
            )
        self._applied.late_outputs_read = True
        return self._side_output(LATE_TAG)

    @property
    def _value(self) -> Callable[[Any], Any]:
        """Return the function that extracts the plain value of an output."""
        return _plain_output if self._applied.lineage else unchanged

    def _side_output(self, tag: str) -> DataStream:
        """Return a side output. It costs nothing unless the job reads it: Flink drops what has no reader."""
        if tag not in self._side_streams:
            self._side_streams[tag] = self._side_stream(tag, self._side_types[tag])
        return self._side_streams[tag]

    def _side_stream(self, tag: str, kind: TypeInformation) -> DataStream:
        if self._applied.event_time.holds:
            tables = self._job.tables_idle_after(self._applied.event_time.idle_timeout)
            return restamp(tables, self._applied.stream, tag, kind)
        return self._applied.stream.get_side_output(OutputTag(tag, kind))


def _no_rowtime(agent: str, rowtime: str, columns: list[str]) -> UnsupportedTableError:
    is_taken = rowtime in columns
    return UnsupportedTableError(
        f"the outputs of agent {agent!r} cannot have the event-time column {rowtime!r}",
        expected="a name that no other column has" if is_taken else "outputs with event time",
        found=", ".join(columns) if is_taken else "an agent that was applied with EventTime.ignore()",
        fix="choose another name" if is_taken else "apply it with event_time=EventTime.hold_watermarks()",
        where=authors_place(),
    )


def _check_observers(observers: Sequence[ObserverSource]) -> Sequence[ObserverSource]:
    """Return ``observers``, if they can be shipped to workers.

    Raises:
        ObserverError: One of them cannot be pickled.
    """
    for observer in observers:
        try:
            cloudpickle.dumps(observer)
        except Exception as error:
            raise ObserverError(
                "an observer cannot be pickled, so it cannot be sent to workers",
                found=f"{type(observer).__qualname__}: {type(error).__name__}: {error}",
                fix="pass its class, or a function that creates it: each subtask calls the function",
                where=authors_place(),
            ) from error
    return observers


def _plain_output(output: TracedOutput) -> Any:
    return output.value
