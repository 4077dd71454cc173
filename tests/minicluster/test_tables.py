"""Agents between tables: every column type arrives, and leaves, as itself."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action
from flink_agents.api.errors import UnsupportedTableError

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
