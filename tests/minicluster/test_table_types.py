"""Columns of every type hold what an agent emits, for SQL and for the agents after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import Annotated, Any

import pytest
from pydantic import AwareDatetime, BaseModel, Field
from pyflink.common import Types

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, action
from flink_agents.api.errors import JobFailedError, UnsupportedTableError
from tests.suite.tables import each_case

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]

Price = Annotated[Decimal, Field(max_digits=32, decimal_places=4)]
BERLIN = timezone(timedelta(hours=2))
NOON = datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=BERLIN)
SAME = datetime(2024, 2, 29, 10, 0, 0, 123456, tzinfo=UTC)


class Line(BaseModel):
    sku: str
    price: Price
    at: AwareDatetime
    tags: list[str] = []


@dataclass
class Point:
    x: int
    y: float


class Order(BaseModel):
    id: str
    at: AwareDatetime
    same: AwareDatetime
    local: datetime
    day: date
    clock: time
    total: Price
    photo: bytes
    score: float
    first: Line
    none: Line | None
    no_lines: list[Line] | None
    lines: list[Line]
    by_sku: dict[str, Line]
    grid: list[list[int]]
    nested: list[list[Line]]
    gaps: list[int | None]
    pair: tuple[int, str]
    many: tuple[Decimal, ...]
    instants: list[AwareDatetime]
    by_day: dict[str, date]
    point: Point


TEA = Line(sku="tea", price=Decimal("1234567890123456789012345678.1234"), at=NOON, tags=["a", "b"])
JAM = Line(sku="jam", price=Decimal("2.5"), at=SAME)
ORDER = Order(
    id="o1",
    at=NOON,
    same=SAME,
    local=datetime(2024, 3, 31, 2, 30, 0, 1),
    day=date(1500, 3, 1),
    clock=time(6, 30, 1, 500000),
    total=Decimal("-0.0001"),
    photo=b"\x00\xff",
    score=1,
    first=TEA,
    none=None,
    no_lines=None,
    lines=[TEA, JAM],
    by_sku={"tea": TEA, "jam": JAM},
    grid=[[1, 2], [], [3]],
    nested=[[JAM], [TEA, JAM]],
    gaps=[1, None],
    pair=(7, "seven"),
    many=(Decimal("1.5"), Decimal(2)),
    instants=[NOON, SAME],
    by_day={"x": date(2024, 2, 29)},
    point=Point(1, 0.5),
)


class Orders(Agent):
    output_type = Order

    @action(InputEvent)
    def pass_on(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=event.input)


class Show(Agent):
    @action(InputEvent)
    def show(self, event: InputEvent, ctx: Any) -> OutputEvent:
        value = event.input
        return OutputEvent(output=value if isinstance(value, BaseModel) else value.as_dict())


QUERY = """
SELECT id, `at` = same AS is_same, CAST(`at` AS STRING) AS at_text, CAST(clock AS STRING) AS clock_text,
    lines[1].sku AS first_sku, lines[2].sku AS second_sku, lines[1].price AS first_price,
    by_sku['jam'].price AS jam_price, by_sku['tea'].tags[2] AS tag, nested[2][1].sku AS nested_sku,
    `first`.`at` = lines[2].`at` AS is_same_inside, `none`.sku AS none_sku, grid[3][1] AS three,
    `pair`.f1 AS seven, `many`[1] + `many`[2] AS amount, instants[1] = instants[2] AS is_same_item,
    CAST(`local` AS STRING) AS local_text, CAST(by_day['x'] AS STRING) AS day_text, total, `point`.y AS y,
    line_sku AS sku, line_price AS price, line_at
FROM orders CROSS JOIN UNNEST(lines) AS line (line_sku, line_price, line_at, line_tags)
"""

ANSWER = {
    "id": "o1",
    "is_same": True,
    "at_text": "2024-02-29 15:30:00.123456",
    "clock_text": "06:30:01.5",
    "first_sku": "tea",
    "second_sku": "jam",
    "first_price": TEA.price,
    "jam_price": Decimal("2.5"),
    "tag": "b",
    "nested_sku": "tea",
    "is_same_inside": True,
    "none_sku": None,
    "three": 3,
    "seven": "seven",
    "amount": Decimal("3.5"),
    "is_same_item": True,
    "local_text": "2024-03-31 02:30:00.000001",
    "day_text": "2024-02-29",
    "total": Decimal("-0.0001"),
    "y": 0.5,
}


def orders_of(env: AgentsExecutionEnvironment) -> Any:
    """Return the table of an agent that emits an order, in another zone than the order's."""
    tables: Any = env.table_env
    tables.get_config().set("table.local-time-zone", "Asia/Kolkata")
    return env.from_list([ORDER], lambda order: order.id).apply(Orders).to_table()


@pytest.mark.nightly
def test_agent_after_a_table_gets_equal_values(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    outputs = env.from_table(orders_of(env), "id", value=Order).apply(Show).to_list()
    env.execute()
    assert outputs == [ORDER]


def test_sql_reads_columns_of_every_type(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    tables: Any = env.table_env
    tables.create_temporary_view("orders", orders_of(env))
    outputs = env.from_table(tables.sql_query(QUERY), "id").apply(Show).to_list()
    env.execute()
    assert outputs == [
        ANSWER | {"sku": line.sku, "price": line.price, "line_at": line.at} for line in (TEA, JAM)
    ]


class Narrow(Agent):
    @action(InputEvent)
    def pass_on(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output={"n": 1, "small": [{"a": 2}], "f": 0.5, "big": 10**30, "t": (3, "x")})


@pytest.mark.nightly
def test_columns_of_types_of_pyflink(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    schema = {
        "n": Types.INT(),
        "small": Types.LIST(Types.ROW_NAMED(["a"], [Types.SHORT()])),
        "f": Types.FLOAT(),
        "big": Types.BIG_INT(),
        "t": Types.TUPLE([Types.BYTE(), Types.STRING()]),
    }
    table = env.from_list(["x"], str).apply(Narrow).to_table(schema)
    tables: Any = env.table_env
    tables.create_temporary_view("narrow", table)
    query = tables.sql_query(
        "SELECT n, small[1].a AS a, f, big, t.f0 AS t, small, ARRAY[n] AS ns FROM narrow"
    )
    outputs = env.from_table(query, "n").apply(Show).to_list()
    env.execute()
    [row] = outputs
    [small] = row.pop("small")
    assert small.as_dict() == {"a": 2}
    assert row == {"n": 1, "a": 2, "f": 0.5, "big": Decimal(10**30), "t": 3, "ns": [1]}


def test_value_that_a_column_cannot_hold_names_it(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    order = ORDER.model_copy(update={"lines": [TEA, JAM.model_copy(update={"price": Decimal("0.00001")})]})
    table = env.from_list([order], lambda order: order.id).apply(Orders).to_table()
    env.from_table(table, "id").apply(Show).to_list()
    with pytest.raises(JobFailedError, match=r"the column 'lines\[1\].price' cannot hold") as raised:
        env.execute()
    assert "test_table_types.py" in str(raised.value).splitlines()[0]


class Level(IntEnum):
    LOW = 1


class Numbers(Agent):
    output_type = float
    side_outputs: Any = {"ints": int, "floats": float, "bools": bool}

    @action(InputEvent)
    def emit(self, event: InputEvent, ctx: Any) -> OutputEvent:
        ctx.emit_to("ints", Level.LOW)
        ctx.emit_to("floats", 2)
        ctx.emit_to("bools", True)
        return OutputEvent(output=event.input)


@pytest.mark.nightly
def test_numbers_that_are_converted_pass_the_job(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    stream = env.from_list([1], str).apply(Numbers)
    outputs = stream.to_list()
    sides = [env.collect(stream.side_output(tag)) for tag in ("ints", "floats", "bools")]
    columns = env.from_table(stream.to_table(), lambda row: 0).apply(Show).to_list()
    env.execute()
    assert (outputs, sides, columns) == ([1.0], [[1], [2.0], [True]], [{"output": 1.0}])


@pytest.mark.nightly
@each_case(
    ("column", "cast"),
    [
        ("CAST(x'0102' AS BINARY(2))", "BYTES"),
        ("CAST(x'0102' AS VARBINARY(10))", "BYTES"),
        ("INTERVAL '1' DAY", "STRING"),
        ("INTERVAL '3' MONTH", "STRING"),
        ("CAST(TO_TIMESTAMP_LTZ(1709209815123, 3) AS TIMESTAMP_LTZ(9))", "TIMESTAMP_LTZ(6)"),
        ("ARRAY[CAST(x'0102' AS BINARY(2))]", "ARRAY<BYTES>"),
        ("MAP['a', CAST(x'0102' AS BINARY(2))]", "BYTES"),
        ("ROW(1, CAST(x'0102' AS BINARY(2)))", "BYTES"),
        ("ones", "STRING"),
    ],
)
def test_column_that_python_does_not_have_names_a_cast(
    agents_environment: MakeEnvironment, column: str, cast: str
) -> None:
    env = agents_environment()
    tables: Any = env.table_env
    view = "(SELECT COLLECT(1) AS ones)"
    with pytest.raises(UnsupportedTableError) as raised:
        env.from_table(tables.sql_query(f"SELECT {column} AS v FROM {view}"), "v", changes="latest")
    fix = str(raised.value.fix).removeprefix("cast it in the query: ")
    assert cast in fix and "'v'" in raised.value.message
    env.from_table(
        tables.sql_query(f"SELECT {fix} FROM (SELECT {column} AS v FROM {view})"), "v", changes="latest"
    )


COLUMNS_OF_SQL = """
SELECT 1 AS k, CAST(NULL AS ARRAY<INT>) AS no_array, ARRAY[ARRAY[1, 2], ARRAY[3]] AS grid,
    ARRAY[ROW(1, 'x'), ROW(2, 'y')] AS items, MAP['a', ROW(1, 'x'), 'b', ROW(2, 'y')] AS named,
    CAST(1 AS TINYINT) AS tiny, ARRAY[CAST(1 AS SMALLINT)] AS smalls, CAST(0.5 AS FLOAT) AS f,
    ARRAY[CAST(0.5 AS FLOAT)] AS fs, CAST('ab' AS CHAR(3)) AS chars, CAST(x'00ff' AS BYTES) AS bs,
    ARRAY[CAST(x'00ff' AS BYTES)] AS bss, ARRAY[TRUE, CAST(NULL AS BOOLEAN)] AS bools,
    ARRAY[CAST(1 AS BIGINT)] AS longs, CAST(ARRAY[1] AS ARRAY<INT NOT NULL>) AS ints,
    ROW(1, ROW(2, ARRAY[ROW(3)])) AS deep, MAP[1, CAST(NULL AS STRING)] AS no_value,
    ARRAY[CAST('2024-01-01 00:00:00.123456' AS TIMESTAMP(6))] AS times, CAST(NULL AS ROW<a INT>) AS no_row,
    ARRAY[TO_TIMESTAMP_LTZ(1709209815123, 3)] AS instants, ARRAY[TIME '06:30:01'] AS clocks
"""


class Everything(BaseModel):
    k: int
    no_array: list[int] | None
    grid: list[list[int]]
    items: list[dict[str, int | str]]
    named: dict[str, dict[str, int | str]]
    tiny: int
    smalls: list[int]
    f: float
    fs: list[float]
    chars: str
    bs: bytes
    bss: list[bytes]
    bools: list[bool | None]
    longs: list[int]
    ints: list[int]
    deep: dict[str, Any]
    no_value: dict[int, str | None]
    times: list[datetime]
    no_row: dict[str, int] | None
    instants: list[datetime]
    clocks: list[time]


@pytest.mark.nightly
def test_columns_of_sql_become_fields(agents_environment: MakeEnvironment) -> None:
    env = agents_environment()
    tables: Any = env.table_env
    tables.get_config().set("table.local-time-zone", "Asia/Kolkata")
    query = tables.sql_query(COLUMNS_OF_SQL)
    outputs = env.from_table(query, "k", value=Everything).apply(Show).to_list()
    env.execute()
    x = {"EXPR$0": 1, "EXPR$1": "x"}
    y = {"EXPR$0": 2, "EXPR$1": "y"}
    assert outputs == [
        Everything(
            k=1,
            no_array=None,
            grid=[[1, 2], [3]],
            items=[x, y],
            named={"a": x, "b": y},
            tiny=1,
            smalls=[1],
            f=0.5,
            fs=[0.5],
            chars="ab ",
            bs=b"\x00\xff",
            bss=[b"\x00\xff"],
            bools=[True, None],
            longs=[1],
            ints=[1],
            deep={"EXPR$0": 1, "EXPR$1": {"EXPR$0": 2, "EXPR$1": [{"EXPR$0": 3}]}},
            no_value={1: None},
            times=[datetime(2024, 1, 1, 0, 0, 0, 123456)],
            no_row=None,
            instants=[datetime(2024, 2, 29, 12, 30, 15, 123000, tzinfo=UTC)],
            clocks=[time(6, 30, 1)],
        )
    ]
