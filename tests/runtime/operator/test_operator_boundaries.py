"""Values of every kind through every boundary: what comes out is equal, or a named error came before.

Types and values are drawn by a seed, which names the case.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import time
from decimal import Decimal
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import pytest
from java_values import StandInValues, reader_of
from pydantic import AwareDatetime, Field, NaiveDatetime, create_model
from pyflink.common import RowKind
from value_kinds import Draw, form_of

from flink_agents import Agent, Event, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.api.errors import AgentsError, EnvelopeError, KafkaValueError, UnsupportedTableError
from flink_agents.connectors.envelopes import EnvelopeReader, write_envelope
from flink_agents.connectors.kafka.values import ValueReader, write_value
from flink_agents.runtime.flink.values.rows import ReadRows, ToRow
from flink_agents.runtime.flink.values.types import columns_of
from flink_agents.runtime.serde.canonical import digest_of
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

pytestmark = pytest.mark.executes_once

SEEDS = range(400)
LEVELS = 3


class Sent(Event):
    value: Any


def returns(value: Any) -> Any:
    return value


class Boundaries(Agent):
    """Takes a value through the boundary that its input names."""

    side_outputs: Any = {"side": object}

    @action(InputEvent, on_error="dead-letter")
    async def start(self, event: InputEvent[Any], ctx: RunnerContext) -> Any:
        boundary, value = event.input
        if boundary == "memory":
            ctx.short_term_memory.set("value", value)
        elif boundary == "read":
            return OutputEvent(output=ctx.short_term_memory.get("value"))
        elif boundary == "result":
            return OutputEvent(output=await ctx.durable_execute_async(returns, value))
        elif boundary == "event":
            await ctx.durable_execute_async(int)
            return Sent(value=value)
        elif boundary == "delayed":
            ctx.send_event(Sent(value=value), delay=5)
        elif boundary == "side output":
            ctx.emit_to("side", value)
        elif boundary == "signal":
            return OutputEvent(output=await ctx.wait_for_signal("go"))
        elif boundary == "dead letter":
            raise LookupError(boundary)
        return None

    @action(Sent)
    async def take(self, event: Sent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=event.value)


def through(harness: OperatorHarness, boundary: str, value: Any) -> Any:
    """Return what comes out of a boundary of an agent."""
    if boundary == "signal":
        harness.push((boundary, None))
        return harness.signal(0, "go", value)[-1]
    start = len(harness.outputs)
    harness.push((boundary, value))
    if boundary == "memory":
        harness.restore(harness.snapshot())
        return harness.push(("read", None))[-1]
    if boundary == "delayed":
        harness.advance_time(10_000)
    if boundary == "side output":
        return harness.side_output("side")[-1]
    if boundary == "dead letter":
        return harness.dead_letters[-1].event.input[1]
    return harness.outputs[start:][-1]


BOUNDARIES = ("memory", "result", "event", "delayed", "side output", "signal", "dead letter")


@each_case("boundary", BOUNDARIES)
def test_a_value_comes_out_of_an_agent_as_it_went_in(boundary: str, is_night: bool) -> None:
    with OperatorHarness(Boundaries) as harness:
        for seed in SEEDS[:: 4 if is_night else 12]:
            value = Draw(seed).typed(LEVELS)[1]
            if boundary == "side output" and value is None:
                continue
            assert form_of(through(harness, boundary, value)) == form_of(value), f"seed {seed}: {value!r}"


@each_case("seed", SEEDS)
def test_a_value_is_read_from_state_as_it_was_written(seed: int) -> None:
    value = Draw(seed).typed(LEVELS)[1]
    codec = ValueCodec()
    again = codec.decode(codec.encode([value]))[0]
    assert form_of(again) == form_of(value)
    assert digest_of(codec, again) == digest_of(codec, value)


WRITERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "kafka": (lambda value: write_value(value, "value"), lambda kind, data: ValueReader(kind, "value")(data)),
    "envelope": (write_envelope, lambda kind, line: EnvelopeReader(kind)(line).value),
}


@each_case("seed", SEEDS)
@each_case("writer", WRITERS)
def test_a_value_is_read_from_kafka_as_it_was_written(writer: str, seed: int) -> None:
    kind, value = Draw(seed).typed(LEVELS)
    write, read = WRITERS[writer]
    with suppress(KafkaValueError, EnvelopeError):
        again = read(kind, write(value))
        assert form_of(again, exact=False) == form_of(value, exact=False), f"{kind}: {write(value)!r}"


def test_few_values_are_refused() -> None:
    refused = 0
    for seed in SEEDS:
        kind, value = Draw(seed).typed(LEVELS)
        try:
            ValueReader(kind, "value")(write_value(value, "value"))
        except AgentsError:
            refused += 1
    assert refused < len(SEEDS) // 4


class ColumnDraw(Draw):
    """Draws types from what columns hold; three of ten values come from the types of all boundaries."""

    def atom(self) -> tuple[Any, Callable[[], Any]]:
        if self.random.random() < 0.3:
            return super().atom()
        return self.random.choice(
            [
                (int, lambda: self.random.randint(-(2**63), 2**63 - 1)),
                (str, self.text),
                (float, self.random.random),
                (AwareDatetime, lambda: self.moment().astimezone(ZoneInfo("Asia/Kolkata"))),
                (NaiveDatetime, lambda: self.moment().replace(tzinfo=None)),
                (
                    time,
                    lambda: time(self.random.randrange(24), microsecond=self.random.randrange(1000) * 1000),
                ),
                (
                    Annotated[Decimal, Field(max_digits=30, decimal_places=6)],
                    lambda: Decimal(self.random.randint(-(10**30) + 1, 10**30 - 1)).scaleb(-6),
                ),
            ]
        )


def through_a_table(kind: Any, value: Any) -> Any:
    """Return what comes out of a table of one column, or raise the error that names it."""
    columns = columns_of({"value": kind})
    to_row = ToRow(columns)
    to_row.open(StandInValues())
    row = to_row({"value": value})
    row.set_row_kind(RowKind.INSERT)
    readers = {"value": reader_of(columns["value"].sql)}
    optional: Any = kind | None
    model: Any = create_model("Read", value=(optional, ...))
    [read] = ReadRows(readers, model, "fail")(row)
    return read.value


def test_a_value_comes_out_of_a_table_as_it_went_in() -> None:
    carried = 0
    for seed in SEEDS:
        kind, value = ColumnDraw(seed).typed(LEVELS)
        with suppress(UnsupportedTableError):
            read = through_a_table(kind, value)
            carried += 1
            assert form_of(read, exact=False) == form_of(value, exact=False), (
                f"seed {seed}, {kind}: {value!r}"
            )
    assert carried > len(SEEDS) // 4
