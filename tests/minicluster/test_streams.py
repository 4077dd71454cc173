"""Agents in Flink itself: what the harness cannot show, because PyFlink and Flink do it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psutil
import pytest
from pydantic import BaseModel
from pyflink.common import Types
from pyflink.datastream import DataStream, RuntimeExecutionMode
from pyflink.table import EnvironmentSettings, StreamTableEnvironment

from flink_agents import Agent, AgentsExecutionEnvironment, Event, InputEvent, OutputEvent, action
from flink_agents.api.common.policies import OnError
from flink_agents.api.errors import (
    AgentCycleError,
    DeadLettersNotReadError,
    DuplicateAgentError,
    JobDefinitionError,
    JobFailedError,
    UnknownSideOutputError,
    UnsupportedExecutionError,
)

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]


class Order(BaseModel):
    customer: str
    number: int


class Placed(Event):
    order: Order


class Counted(Event):
    order: Order
    count: int


class CountingAgent(Agent):
    """Three actions in a chain; counts the orders of each customer."""

    @action(InputEvent)
    def read(self, event: InputEvent, ctx: Any) -> Placed:
        return Placed(order=event.input)

    @action(Placed)
    def count(self, event: Placed, ctx: Any) -> Counted:
        count = ctx.short_term_memory.get("count", 0) + 1
        ctx.short_term_memory.set("count", count)
        return Counted(order=event.order, count=count)

    @action(Counted, when=lambda event: event.order.number >= 0)
    async def emit(self, event: Counted, ctx: Any) -> OutputEvent:
        return OutputEvent(
            output=(event.order.customer, event.order.number, event.count, ctx.sequence_number)
        )


def orders(count: int, customers: int) -> list[Order]:
    return [Order(customer=f"c{number % customers}", number=number) for number in range(count)]


def per_key(outputs: list[tuple[Any, ...]]) -> dict[Any, list[tuple[Any, ...]]]:
    fields_by_key: dict[Any, list[tuple[Any, ...]]] = {}
    for key, *fields in outputs:
        fields_by_key.setdefault(key, []).append(tuple(fields))
    return fields_by_key


def expected(count: int, customers: int) -> dict[str, list[tuple[int, int, int]]]:
    return {
        f"c{key}": [(number, place + 1, place) for place, number in enumerate(range(key, count, customers))]
        for key in range(customers)
    }


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("inline", [True, False])
def test_chain_memory_and_order_of_each_key(agents_environment: MakeEnvironment, inline: bool) -> None:
    env = agents_environment(parallelism=2, config={"run.inline": inline})
    stream = env.from_list(orders(300, 7), lambda order: order.customer).apply(CountingAgent)
    outputs = stream.to_list()
    env.execute()
    # Without the inline path, all that waits at the end of the input is drained.
    assert per_key(outputs) == expected(300, 7)


class TimedAgent(Agent):
    @action(InputEvent)
    def stamp(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=(event.input[0], event.input[1], ctx.timestamp))


class SumAgent(Agent):
    output_type = str

    @action(InputEvent)
    def show(self, event: InputEvent, ctx: Any) -> OutputEvent:
        start, numbers, stamps = event.input
        return OutputEvent(output=f"\N{HOT BEVERAGE} {start} {sum(numbers)} {stamps} {ctx.timestamp}")


def test_window_between_two_agents(agents_environment: MakeEnvironment) -> None:
    from pyflink.common import Time, WatermarkStrategy
    from pyflink.common.watermark_strategy import TimestampAssigner
    from pyflink.datastream import ProcessWindowFunction
    from pyflink.datastream.window import TumblingEventTimeWindows

    class Stamps(TimestampAssigner):
        def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
            return value[1]

    class Collect(ProcessWindowFunction[Any, Any, Any, Any]):
        def process(self, key: Any, context: Any, elements: Any) -> Any:
            items = sorted(elements)
            yield context.window().start, [n for _, n, _ in items], [t for *_, t in items]

    env = agents_environment()
    flink: Any = env.stream_env
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Stamps())
    source = flink.from_collection([("k", 100 * n) for n in range(20)])
    timed = env.from_datastream(source.assign_timestamps_and_watermarks(strategy), lambda r: r[0]).apply(
        TimedAgent
    )
    windows = (
        timed.to_datastream()
        .key_by(lambda record: record[0])
        .window(TumblingEventTimeWindows.of(Time.milliseconds(1000)))
        .process(Collect())
    )
    outputs = env.from_datastream(windows, lambda window: "all").apply(SumAgent).to_list()
    env.execute()
    first = list(range(0, 1000, 100))
    second = list(range(1000, 2000, 100))
    assert outputs == [
        f"\N{HOT BEVERAGE} 0 {sum(first)} {first} 999",
        f"\N{HOT BEVERAGE} 1000 {sum(second)} {second} 1999",
    ]


class ForgetfulAgent(Agent):
    @action(InputEvent)
    def count(self, event: InputEvent, ctx: Any) -> OutputEvent:
        import time

        time.sleep(event.input)
        if event.input:
            # The worker is in Flink's JVM. A gateway would be another one, below it.
            children = psutil.Process().children(recursive=True)
            assert not [child for child in children if "java" in child.name()]
        seen = ctx.short_term_memory.get("seen", 0) + 1
        ctx.short_term_memory.set("seen", seen)
        return OutputEvent(output=seen)


def test_short_term_memory_expires(agents_environment: MakeEnvironment) -> None:
    env = agents_environment(config={"memory.short-term.ttl": timedelta(milliseconds=400)})
    outputs = env.from_list([0.0, 0.0, 1.0, 0.0], lambda record: "k").apply(ForgetfulAgent).to_list()
    env.execute()
    assert outputs == [1, 2, 1, 2]


class SortingAgent(Agent):
    """Sends records to side outputs, to the dead letters, to nobody, and odd values to the main output."""

    side_outputs = {"text": str, "any": None}

    @action(InputEvent, on_error=OnError.DEAD_LETTER)
    def sort(self, event: InputEvent, ctx: Any) -> OutputEvent | None:
        value = event.input
        if isinstance(value, str):
            ctx.emit_to("text", value)
        elif isinstance(value, dict):
            ctx.emit_to("any", value)
        elif value == 13:
            ctx.emit_to("text", "is taken back")
            raise ValueError("bad luck")
        elif value is not None:
            return OutputEvent(output=value)
        return None


def test_side_outputs_dead_letters_and_odd_values(agents_environment: MakeEnvironment) -> None:
    records = ["a", {"b": (1,)}, 13, None, (), (1,), [], "\N{GRINNING FACE}", b"\x00", 1.5]
    env = agents_environment()
    stream = env.from_list(records, lambda record: "k").apply(SortingAgent)
    collect = env.collect
    text, any_, dead = (
        collect(side)
        for side in (stream.side_output("text"), stream.side_output("any"), stream.dead_letters())
    )
    outputs = stream.to_list()
    env.execute()
    assert outputs == [(), (1,), [], b"\x00", 1.5]
    assert text == ["a", "\N{GRINNING FACE}"]
    assert any_ == [{"b": (1,)}]
    [letter] = dead
    assert (letter.agent, letter.action, letter.key, letter.sequence_number) == (
        "SortingAgent",
        "sort",
        "k",
        2,
    )
    assert (letter.event, letter.error_type, letter.error_message) == (
        InputEvent(input=13),
        "ValueError",
        "bad luck",
    )
    assert "test_streams.py:" in letter.where


def test_dead_letters_must_be_read(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    stream = env.from_list([13], lambda record: "k").apply(SortingAgent)
    stream.to_list()
    with pytest.raises(UnknownSideOutputError, match="'texts'"):
        stream.side_output("texts")
    with pytest.raises(DeadLettersNotReadError, match=r"^tests/\S+:\d+ in test_dead.* agent 'SortingAgent'"):
        env.execute()


def test_a_stream_of_another_type_than_its_values_says_where(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    env.from_list(["a"], str).apply(DoublingAgent).to_datastream(Types.INT()).print()
    other_type = r"^tests/\S+:\d+ in test_a_stream.*: an output is not of the stream's type\n"
    with pytest.raises(JobFailedError, match=other_type + r"  expected: .* Integer.*\n  found: str 'aa'"):
        env.execute()


class DoublingAgent(Agent):
    def __init__(self, factor: int = 2) -> None:
        self.factor = factor

    @action(InputEvent)
    def double(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=event.input * self.factor)


def test_several_agents_in_one_job(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    modulus = 3  # the selector is a closure
    first = env.from_list(range(1, 6), lambda number: number % modulus).apply(DoublingAgent)
    second = env.from_datastream(first.to_datastream(), str).apply(DoublingAgent(factor=10), name="tenfold")
    empty = env.from_list([], str).apply(DoublingAgent, name="idle")
    lists = first.to_list(), second.to_list(), empty.to_list()
    env.execute()
    assert [sorted(outputs) for outputs in lists] == [[2, 4, 6, 8, 10], [20, 40, 60, 80, 100], []]


@pytest.mark.nightly
def test_an_environment_runs_one_job_after_the_other(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    for start in (1, 10):
        outputs = env.from_list([start], str).apply(DoublingAgent).to_list()
        env.execute()
        assert outputs == [2 * start]


def test_cycles_and_equal_names_are_errors(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    numbers = env.from_list([1], str)
    stream = numbers.apply(DoublingAgent).to_datastream()
    with pytest.raises(AgentCycleError, match=r"^tests/\S+:\d+ in test_cycles.*'DoublingAgent'"):
        env.from_datastream(stream.map(lambda value: value), str).apply(DoublingAgent)
    with pytest.raises(DuplicateAgentError, match=r"^tests/\S+:\d+ in test_cycles.*'DoublingAgent'"):
        numbers.apply(DoublingAgent)
    with pytest.raises(JobDefinitionError, match="keyed already"):
        env.from_datastream(stream.key_by(str), str)


def test_process_mode_is_refused(agents_environment: MakeEnvironment) -> None:
    with pytest.raises(UnsupportedExecutionError, match="thread"):
        agents_environment(flink={"python.execution-mode": "process"})


def test_batch_mode_is_rejected(agents_environment: MakeEnvironment) -> None:
    for mode in ("BATCH", "AUTOMATIC"):
        env = agents_environment(flink={"execution.runtime-mode": mode})
        env.from_list([1], str).apply(DoublingAgent).to_list()
        with pytest.raises(UnsupportedExecutionError, match=rf"^tests/\S+ in test_batch_.*is {mode}"):
            env.execute()


def test_batch_mode_is_rejected_however_the_job_is_run(agents_environment: MakeEnvironment) -> None:
    runs: list[Callable[[AgentsExecutionEnvironment, DataStream], Any]] = [
        lambda env, stream: env.execute(),
        lambda env, stream: env.stream_env.execute("the job"),
        lambda env, stream: env.stream_env.execute_async("the job"),
        lambda env, stream: stream.execute_and_collect(),
    ]
    for run in runs:
        env = agents_environment()
        stream = env.from_list([1, 2], str).apply(DoublingAgent).to_datastream()
        env.stream_env.set_runtime_mode(RuntimeExecutionMode.BATCH)
        with pytest.raises(UnsupportedExecutionError, match="BATCH"):
            run(env, stream)


def test_tables_in_batch_mode_are_rejected(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    tables = StreamTableEnvironment.create(env.stream_env, EnvironmentSettings.in_batch_mode())
    rows = tables.from_elements([("a", 1)], ["name", "number"])
    with pytest.raises(UnsupportedExecutionError, match="BATCH"):
        env.from_table(rows, "name")
    doubled = env.from_list([1], str).apply(DoublingAgent).to_datastream(Types.INT())
    tables.execute_sql("CREATE TABLE nowhere (number INT) WITH ('connector' = 'blackhole')")
    with pytest.raises(UnsupportedExecutionError, match="BATCH"):
        tables.from_data_stream(doubled).execute_insert("nowhere")


def test_names_and_parallelism_of_the_operator(agents_environment: MakeEnvironment) -> None:
    env = agents_environment(parallelism=2)
    agent = env.from_list([1], str).apply(DoublingAgent, name="twice", parallelism=1, max_parallelism=16)
    transformation: Any = agent.to_datastream()._j_data_stream.getTransformation()
    assert transformation.getName() == "agent twice"
    assert transformation.getUid() == "flink-agents-twice"
    assert (transformation.getParallelism(), transformation.getMaxParallelism()) == (1, 16)


class FailingAgent(Agent):
    @action(InputEvent)
    def fail(self, event: InputEvent, ctx: Any) -> OutputEvent:
        if event.input == 3:
            raise LookupError("no such order")
        return OutputEvent(output=event.input)


def test_a_failing_action_names_the_users_line_first(
    agents_environment: MakeEnvironment, capfd: pytest.CaptureFixture[str]
) -> None:
    env = agents_environment()
    env.from_list(range(5), lambda number: "k").apply(FailingAgent).to_list()
    with pytest.raises(JobFailedError) as raised:
        env.execute("the job")
    line = FailingAgent.fail.__code__.co_firstlineno + 3
    first, *remaining_lines = str(raised.value).split("\n")
    assert f"test_streams.py:{line} in " in first
    text = "\n".join([first, *remaining_lines])
    for part in ("LookupError: no such order", "FailingAgent", "fail", "'k'", "the job"):
        assert part in text
    assert "java" not in text.split("fix:")[0]
    assert "LookupError: no such order" in capfd.readouterr().err


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize(
    ("selector", "found"),
    [
        (lambda record: [record], "a key of type builtins.list"),
        (lambda record: 1 / 0, "ZeroDivisionError"),
        (lambda record: float("nan"), "a key is NaN"),
    ],
)
def test_a_record_without_usable_key_is_a_named_error(
    agents_environment: MakeEnvironment, selector: Callable[[Any], Any], found: str
) -> None:
    env = agents_environment()
    env.from_list(["record 1"], selector).apply(FailingAgent).to_list()
    with pytest.raises(JobFailedError) as raised:
        env.execute()
    assert found in str(raised.value)
    assert "record 1" in str(raised.value)
