"""Agents between tables: every column type arrives, and leaves, as itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pyflink.common import WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner

from flink_agents import Agent, AgentsExecutionEnvironment, EventTime, InputEvent, OutputEvent, action
from flink_agents.api.errors import JobFailedError, UnsupportedTableError

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]


class Place(BaseModel):
    city: str
    zip: int


class Customer(BaseModel):
    name: str
    age: int
    score: float
    active: bool
    photo: bytes
    balance: Decimal
    born: date
    seen: datetime
    wakes: time
    tags: list[str]
    counts: dict[str, int]
    home: Place
    note: str | None


CUSTOMER = Customer(
    name="Ada \N{GRINNING FACE}",
    age=36,
    score=0.5,
    active=True,
    photo=b"\x00\xff",
    balance=Decimal("12.34"),
    born=date(1815, 12, 10),
    seen=datetime(2024, 2, 29, 12, 30, 15, 123000),
    wakes=time(6, 30),
    tags=["a", "b"],
    counts={"x": 1},
    home=Place(city="London", zip=1),
    note=None,
)


class CustomerAgent(Agent):
    output_type = Customer

    @action(InputEvent)
    def pass_on(self, event: InputEvent, ctx: Any) -> OutputEvent:
        ctx.short_term_memory.set("customer", event.input)
        return OutputEvent(output=ctx.short_term_memory.get("customer"))


class RowAgent(Agent):
    @action(InputEvent)
    def show(self, event: InputEvent, ctx: Any) -> OutputEvent:
        ctx.short_term_memory.set("row", event.input)
        row = ctx.short_term_memory.get("row")
        return OutputEvent(output=(ctx.key, {name: row[name] for name in Customer.model_fields}))


@pytest.mark.nightly
def test_columns_keep_their_types(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    table = env.from_list([CUSTOMER], lambda record: record.name).apply(CustomerAgent).to_table()
    outputs = env.from_table(table, "name").apply(RowAgent).to_list()
    env.execute()
    [(key, row)] = outputs
    assert key == CUSTOMER.name
    home = row.pop("home")
    assert {"city": home["city"], "zip": home["zip"]} == CUSTOMER.home.model_dump()
    assert {"photo": bytes(row.pop("photo"))} == {"photo": CUSTOMER.photo}
    assert row == {name: value for name, value in CUSTOMER if name not in ("home", "photo")}


def test_sql_in_between(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    tables: Any = env.table_env
    orders = tables.from_elements([("a", 1), ("b", 2), ("a", 3)], ["customer", "amount"])
    tables.create_temporary_view("orders", orders)
    large = tables.sql_query("SELECT customer, amount * 10 AS amount FROM orders WHERE amount > 1")
    outputs = env.from_table(large, lambda row: row["customer"]).apply(AmountAgent).to_list()
    env.execute()
    assert sorted(outputs) == [("a", 30), ("b", 20)]


class AmountAgent(Agent):
    @action(InputEvent)
    def amount(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=(ctx.key, event.input["amount"]))


def test_a_table_with_updates_is_a_named_error(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    tables: Any = env.table_env
    orders = tables.from_elements([("a", 1)], ["customer", "amount"])
    tables.create_temporary_view("changing", orders)
    totals = tables.sql_query("SELECT customer, SUM(amount) AS total FROM changing GROUP BY customer")
    with pytest.raises(UnsupportedTableError, match="updates"):
        env.from_table(totals, "customer")


@pytest.mark.parametrize(
    ("schema", "text"),
    [(None, "the columns of the table are unknown"), ({"value": complex}, "column 'value'"), ({}, "unknown")],
)
def test_columns_must_be_known(agents_environment: MakeEnvironment, schema: Any, text: str) -> None:
    env = agents_environment()
    stream = env.from_list([1], str).apply(AmountAgent)
    with pytest.raises(UnsupportedTableError, match=text):
        stream.to_table(schema)


class Amount(BaseModel):
    customer: str
    amount: int


class ModelAgent(Agent):
    @action(InputEvent)
    def show(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=(ctx.key, event.input))


def totals_of(env: AgentsExecutionEnvironment) -> Any:
    """A table that changes: the sum of each customer."""
    tables: Any = env.table_env
    env.stream_env.set_parallelism(1)
    orders = tables.from_elements([("a", 1), ("b", 2), ("a", 3)], ["customer", "amount"])
    tables.create_temporary_view("summed", orders)
    return tables.sql_query(
        "SELECT customer, CAST(SUM(amount) AS BIGINT) AS amount FROM summed GROUP BY customer"
    )


@pytest.mark.nightly
def test_rows_become_values_of_a_type(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    table = env.table_env.from_elements([("a", 1), ("b", 2)], ["customer", "amount"])
    outputs = env.from_table(table, "customer", value=Amount).apply(ModelAgent).to_list()
    env.execute()
    assert sorted(outputs) == [
        ("a", Amount(customer="a", amount=1)),
        ("b", Amount(customer="b", amount=2)),
    ]


@pytest.mark.nightly
def test_a_row_that_does_not_fit_its_type_is_named(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    table = env.table_env.from_elements([("a", "much")], ["customer", "amount"])
    env.from_table(table, "customer", value=Amount).apply(ModelAgent).to_list()
    with pytest.raises(JobFailedError, match="does not have the declared type"):
        env.execute()


@pytest.mark.nightly
def test_the_latest_rows_of_a_table_that_changes(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    applied = env.from_table(totals_of(env), "customer", value=Amount, changes="latest").apply(ModelAgent)
    outputs = applied.to_list()
    env.execute()
    assert [row.amount for key, row in outputs if key == "a"] == [1, 4]
    assert [row.amount for key, row in outputs if key == "b"] == [2]


def test_all_changes_of_a_table(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    applied = env.from_table(totals_of(env), "customer", changes="all").apply(ChangeAgent)
    outputs = applied.to_list()
    env.execute()
    assert [change for change in outputs if change[0] == "a"] == [
        ("a", "insert", 1),
        ("a", "update-before", 1),
        ("a", "update-after", 4),
    ]


class ChangeAgent(Agent):
    @action(InputEvent)
    def show(self, event: InputEvent, ctx: Any) -> OutputEvent:
        change = event.input
        return OutputEvent(output=(ctx.key, change.kind, change.value["amount"]))


def test_a_policy_that_there_is_not(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    policy: Any = "sometimes"
    with pytest.raises(UnsupportedTableError, match="unknown policy"):
        env.from_table(totals_of(env), "customer", changes=policy)


class At(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return value[0]


class SlowAgent(Agent):
    output_type = Amount

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        # The first ones take longest.
        await asyncio.sleep(0.3 if event.input[0] < 5000 else 0.0)
        return OutputEvent(output=Amount(customer=event.input[1], amount=event.input[2]))


RECORDS = [(1000, "a", 1), (4000, "b", 2), (9000, "a", 4), (12000, "a", 8), (15000, "b", 16)]


def test_event_time_passes_an_agent_into_windows_of_tables(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    env.stream_env.set_parallelism(1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At())
    stream = env.stream_env.from_collection(RECORDS).assign_timestamps_and_watermarks(strategy)
    applied = env.from_datastream(stream, lambda record: record[1]).apply(
        SlowAgent, event_time=EventTime.hold_watermarks()
    )
    tables: Any = env.table_env
    tables.create_temporary_view("amounts", applied.to_table(rowtime="at"))
    windows = tables.sql_query(
        "SELECT CAST(window_start AS STRING) AS begun, CAST(SUM(amount) AS BIGINT) AS amount FROM "
        "TABLE(TUMBLE(TABLE amounts, DESCRIPTOR(`at`), INTERVAL '10' SECONDS)) "
        "GROUP BY window_start, window_end"
    )
    outputs = env.from_table(windows, "begun").apply(RowsAgent).to_list()
    env.execute()
    assert sorted(amount for _, amount in outputs) == [7, 24]


class RowsAgent(Agent):
    @action(InputEvent)
    def show(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=(ctx.key, event.input["amount"]))


def test_outputs_without_event_time_have_no_such_column(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    applied = env.from_list([CUSTOMER], lambda record: record.name).apply(CustomerAgent)
    with pytest.raises(UnsupportedTableError, match="cannot have the event-time column"):
        applied.to_table(rowtime="at")


# -- tables with watermarks --------------------------------------------------------------------------


ORDERS = [
    ("2024-02-29 12:00:01.123456", "a", 1),
    ("2024-02-29 12:00:04", "b", 2),
    ("2024-02-29 12:00:12", "a", 4),
    ("2024-02-29 12:00:25", "b", 8),
]


def orders_of(env: AgentsExecutionEnvironment, directory: Path) -> Any:
    """A table of SQL whose column ``at`` carries watermarks, with columns of all kinds of time."""
    env.stream_env.set_parallelism(1)
    file = directory / "orders.csv"
    file.write_text("".join(f"{at},{customer},{amount}\n" for at, customer, amount in ORDERS))
    tables: Any = env.table_env
    tables.get_config().set("table.local-time-zone", "Asia/Kolkata")
    tables.execute_sql(
        f"""
        CREATE TEMPORARY TABLE orders (
            `text` STRING, customer STRING, amount BIGINT,
            `at` AS CAST(`text` AS TIMESTAMP(3)),
            exact AS CAST(`text` AS TIMESTAMP(6)),
            moment AS TO_TIMESTAMP_LTZ(1709209815123, 3),
            `day` AS CAST(`text` AS DATE),
            clock AS CAST('06:30:00' AS TIME),
            missing AS CAST(NULL AS TIMESTAMP(3)),
            nested AS ROW(CAST(`text` AS TIMESTAMP(3)), ARRAY[CAST(`text` AS DATE)]),
            WATERMARK FOR `at` AS `at`
        ) WITH ('connector' = 'filesystem', 'path' = '{file.as_uri()}', 'format' = 'csv')
        """
    )
    return tables.from_path("orders")


class TimesAgent(Agent):
    @action(InputEvent)
    def show(self, event: InputEvent, ctx: Any) -> OutputEvent:
        row = event.input
        names = ("at", "exact", "moment", "day", "clock", "missing")
        return OutputEvent(output=(*(row[name] for name in names), list(row["nested"])))


@pytest.mark.nightly
def test_times_of_sql_arrive_as_those_of_python(agents_environment: MakeEnvironment, tmp_path: Path) -> None:
    env = agents_environment()
    outputs = env.from_table(orders_of(env, tmp_path), "customer").apply(TimesAgent).to_list()
    env.execute()
    at = datetime(2024, 2, 29, 12, 0, 1, 123000)
    assert outputs[0] == (
        at,
        datetime(2024, 2, 29, 12, 0, 1, 123456),
        datetime(2024, 2, 29, 12, 30, 15, 123000, tzinfo=UTC),
        date(2024, 2, 29),
        time(6, 30),
        None,
        [at, [date(2024, 2, 29)]],
    )


class OrderRow(BaseModel):
    customer: str
    amount: int
    at: datetime


class SlowOrders(Agent):
    output_type = Amount

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        order = event.input
        # The first ones take longest, and end behind those of later windows.
        await asyncio.sleep(0.3 if order.at.second < 5 else 0.0)
        return OutputEvent(output=Amount(customer=order.customer, amount=order.amount))


@pytest.mark.nightly
@pytest.mark.parametrize("changes", ["fail", "latest"])
def test_watermarks_of_a_table_pass_an_agent(
    agents_environment: MakeEnvironment, tmp_path: Path, changes: Any
) -> None:
    env = agents_environment()
    inputs = env.from_table(orders_of(env, tmp_path), "customer", value=OrderRow, changes=changes)
    table = inputs.apply(SlowOrders, event_time=EventTime.hold_watermarks()).to_table(rowtime="at")
    tables: Any = env.table_env
    tables.create_temporary_view("amounts", table)
    windows = tables.sql_query(
        "SELECT window_start AS begun, CAST(SUM(amount) AS BIGINT) AS amount FROM "
        "TABLE(TUMBLE(TABLE amounts, DESCRIPTOR(`at`), INTERVAL '10' SECONDS)) "
        "GROUP BY window_start, window_end"
    )
    outputs = env.from_table(windows, lambda row: 0).apply(BegunAgent).to_list()
    env.execute()
    # Times without a zone are those of UTC in event time; tables show them in the zone of the session.
    start_time = datetime(2024, 2, 29, 17, 30)
    assert sorted(outputs) == [
        (start_time + timedelta(seconds=10 * n), amount) for n, amount in enumerate((3, 4, 8))
    ]


class BegunAgent(Agent):
    @action(InputEvent)
    def show(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=(event.input["begun"], event.input["amount"]))


def test_a_table_with_several_watermarks_is_refused(
    agents_environment: MakeEnvironment, tmp_path: Path
) -> None:
    env = agents_environment()
    tables: Any = env.table_env
    tables.create_temporary_view("others", orders_of(env, tmp_path))
    both = tables.sql_query(
        "SELECT a.`at` AS first_at, b.`at` AS second_at, a.customer FROM orders AS a, others AS b "
        "WHERE a.customer = b.customer AND a.`at` BETWEEN b.`at` - INTERVAL '1' SECOND AND b.`at`"
    )
    with pytest.raises(UnsupportedTableError, match="several columns with watermarks"):
        env.from_table(both, "customer")
