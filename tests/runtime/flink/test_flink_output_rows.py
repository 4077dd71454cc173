"""Outputs as rows of tables: each column holds the same value, or the output is rejected by name."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from types import SimpleNamespace
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    NotRequired,
    Required,
    TypedDict,
    TypeVar,
)

import cloudpickle
import numpy as np
import pytest
from pydantic import AwareDatetime, BaseModel, Field, NaiveDatetime, condecimal
from pydantic.dataclasses import dataclass as described_dataclass
from pyflink.common import Row, Types
from typing_extensions import TypeAliasType

from flink_agents.api.errors import OutputTypeError, UnsupportedTableError
from flink_agents.runtime.flink.values.rows import ToRow
from flink_agents.runtime.flink.values.types import CarriedValues, columns_of
from tests.suite.tables import each_case

T = TypeVar("T")
COLUMNS = {"name": str, "amount": int}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PythonValues:
    """Makes values of Python where a worker makes those of Java."""

    def row(self, cells: tuple[Any, ...]) -> Any:
        return Row(*cells)

    def instant(self, seconds: int, nanoseconds: int) -> Any:
        return EPOCH + timedelta(seconds=seconds, microseconds=nanoseconds / 1000)

    def timestamp(self, at: datetime) -> Any:
        return at

    def date(self, days: int) -> Any:
        return date.fromordinal(EPOCH.toordinal() + days)

    def time(self, nanoseconds: int) -> Any:
        return (EPOCH + timedelta(microseconds=nanoseconds / 1000)).time()


def to_row(schema: Any) -> ToRow:
    function: ToRow = pickle.loads(cloudpickle.dumps(ToRow(columns_of(schema), "orders.py:7 in main")))
    function.open(PythonValues())
    return function


@pytest.mark.parametrize(
    "output", [{"name": "tea"}, {}, None, "tea", 5, SimpleNamespace(name="tea")], ids=repr
)
def test_output_without_a_column(output: Any) -> None:
    with pytest.raises(UnsupportedTableError, match="an output has no column '(name|amount)'"):
        to_row(COLUMNS)(output)


def test_dict_is_no_cell_of_the_only_column() -> None:
    with pytest.raises(UnsupportedTableError, match="an output has no column 'name'"):
        to_row({"name": str})({"other": 1})


@pytest.mark.parametrize(
    "output", [{"name": "tea", "amount": None, "more": 1}, SimpleNamespace(name="tea", amount=None)]
)
def test_output_with_all_columns(output: Any) -> None:
    assert to_row(COLUMNS)(output) == Row("tea", None)


class Level(IntEnum):
    LOW = 1


class Color(StrEnum):
    RED = "red"


class Item(BaseModel):
    sku: str
    price: Annotated[Decimal, Field(max_digits=30, decimal_places=6)]
    at: AwareDatetime | None = None


@dataclass
class Point:
    x: int
    y: float = 0


class Pair(NamedTuple):
    left: int
    right: str


class Named(TypedDict):
    name: str


class Tree(BaseModel):
    children: list[Tree] = []


class Contact(TypedDict):
    name: Required[str]
    age: NotRequired[int]


@dataclass
class Constant:
    x: Final[int] = 3


@dataclass
class Box(Generic[T]):
    content: T
    more: list[T] = field(default_factory=list)


class Single(NamedTuple, Generic[T]):
    left: T


@described_dataclass
class Price:
    amount: Decimal = Field(max_digits=30, decimal_places=2)


class Empty(BaseModel):
    pass


Items = TypeAliasType("Items", list[T], type_params=(T,))
BERLIN = timezone(timedelta(hours=2))
NOON = datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=BERLIN)
TEA = Item(sku="tea", price=Decimal("123456789012345678901234.5"), at=NOON)
TEA_ROW = Row("tea", TEA.price, NOON)
ITEM_SQL = "ROW<`sku` STRING, `price` DECIMAL(30, 6), `at` TIMESTAMP_LTZ(6)>"

HELD = [
    (str, "STRING", Color.RED, "red"),
    (int, "BIGINT", Level.LOW, 1),
    (int, "BIGINT", np.int64(3), 3),
    (float, "DOUBLE", 1, 1.0),
    (float, "DOUBLE", np.float32(0.5), 0.5),
    (bool, "BOOLEAN", True, True),
    (bytes, "BYTES", bytearray(b"\x00\xff"), b"\x00\xff"),
    (Decimal, "DECIMAL(38, 18)", Decimal("12345678901234567890.123"), Decimal("12345678901234567890.123")),
    (Decimal, "DECIMAL(38, 18)", Decimal("1.5E+3"), Decimal(1500)),
    (Decimal, "DECIMAL(38, 18)", Decimal("1." + "0" * 30), Decimal(1)),
    (Decimal, "DECIMAL(38, 18)", 7, Decimal(7)),
    (Annotated[Decimal, Field(max_digits=38, decimal_places=0)], "DECIMAL(38, 0)", *2 * [Decimal("9" * 38)]),
    (condecimal(max_digits=5, decimal_places=5), "DECIMAL(5, 5)", *2 * [Decimal("0.12345")]),
    (datetime, "TIMESTAMP(6)", *2 * [datetime(2024, 3, 31, 2, 30, 0, 1)]),
    (NaiveDatetime, "TIMESTAMP(6)", *2 * [datetime(1, 1, 1)]),
    (AwareDatetime, "TIMESTAMP_LTZ(6)", NOON, datetime(2024, 2, 29, 10, 0, 0, 123456, tzinfo=UTC)),
    (AwareDatetime, "TIMESTAMP_LTZ(6)", *2 * [datetime(1500, 1, 1, tzinfo=UTC)]),
    (date, "DATE", *2 * [date(1500, 3, 1)]),
    (time, "TIME(3)", *2 * [time(6, 30, 1, 500000)]),
    (str | None, "STRING", "a", "a"),
    (list[int | None], "ARRAY<BIGINT>", [1, None], (1, None)),
    (tuple[int, ...], "ARRAY<BIGINT>", (1, 2), (1, 2)),
    (Sequence[float], "ARRAY<DOUBLE>", [1], (1.0,)),
    (list[list[int]], "ARRAY<ARRAY<BIGINT>>", [[1], []], ((1,), ())),
    (tuple[int, str], "ROW<`f0` BIGINT, `f1` STRING>", (1, "a"), Row(1, "a")),
    (dict[str, float], "MAP<STRING, DOUBLE>", {"a": 1}, {"a": 1.0}),
    (Mapping[int, list[str]], "MAP<BIGINT, ARRAY<STRING>>", {1: ["a"]}, {1: ("a",)}),
    (Item, ITEM_SQL, TEA, TEA_ROW),
    (Item, ITEM_SQL, dict(TEA), TEA_ROW),
    (list[Item], f"ARRAY<{ITEM_SQL}>", [TEA, None, TEA], (TEA_ROW, None, TEA_ROW)),
    (dict[str, Item], f"MAP<STRING, {ITEM_SQL}>", {"tea": TEA}, {"tea": TEA_ROW}),
    (list[list[Item]] | None, f"ARRAY<ARRAY<{ITEM_SQL}>>", [[TEA]], ((TEA_ROW,),)),
    (Point, "ROW<`x` BIGINT, `y` DOUBLE>", Point(1), Row(1, 0.0)),
    (Pair, "ROW<`left` BIGINT, `right` STRING>", Pair(1, "a"), Row(1, "a")),
    (Named, "ROW<`name` STRING>", {"name": "a"}, Row("a")),
    (Literal["open", "closed"], "STRING", "open", "open"),
    (Literal[1, None] | None, "BIGINT", 1, 1),
    (list[Literal["a"]], "ARRAY<STRING>", ["a"], ("a",)),
    (Contact, "ROW<`name` STRING, `age` BIGINT>", {"name": "a", "age": 1}, Row("a", 1)),
    (Constant, "ROW<`x` BIGINT>", Constant(), Row(3)),
    (Box[int], "ROW<`content` BIGINT, `more` ARRAY<BIGINT>>", Box(1, [2]), Row(1, (2,))),
    (Box[Box[str]], None, Box(Box("a")), Row(Row("a", ()), ())),
    (Single[str], "ROW<`left` STRING>", Single("a"), Row("a")),
    (Items[int], "ARRAY<BIGINT>", [1], (1,)),
    (Price, "ROW<`amount` DECIMAL(30, 2)>", Price(Decimal("1.5")), Row(Decimal("1.5"))),
    (condecimal(max_digits=10), "DECIMAL(20, 10)", *2 * [Decimal("1234567890")]),
    (condecimal(max_digits=10), "DECIMAL(20, 10)", *2 * [Decimal("0.0123456789")]),
    (condecimal(max_digits=30), "DECIMAL(38, 18)", *2 * [Decimal("12.5")]),
    (Pair, "ROW<`left` BIGINT, `right` STRING>", (1, "a"), Row(1, "a")),
    (Types.ROW([Types.INT(), Types.STRING()]), "ROW<`f0` INT, `f1` STRING>", *2 * [Row(1, "a")]),
    (Types.ROW_NAMED(["count"], [Types.INT()]), "ROW<`count` INT>", (1,), Row(1)),
    (Types.ROW_NAMED(["x", "y"], [Types.INT(), Types.INT()]), None, Row(y=1, x=2), Row(2, 1)),
    (Types.TUPLE([Types.LONG(), Types.STRING()]), None, *2 * [Row(1, "a")]),
    (Types.INT(), "INT", 2**31 - 1, 2**31 - 1),
    (Types.FLOAT(), "FLOAT", 0.5, 0.5),
    (Types.INSTANT(), "TIMESTAMP_LTZ(6)", NOON, NOON),
    (Types.BIG_INT(), "DECIMAL(38, 0)", 10**30, Decimal(10**30)),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), "BYTES", b"a", b"a"),
    (Types.BASIC_ARRAY(Types.LONG()), "ARRAY<BIGINT>", [1], (1,)),
    (
        Types.LIST(Types.ROW_NAMED(["a b"], [Types.SHORT()])),
        "ARRAY<ROW<`a b` SMALLINT>>",
        [{"a b": 1}],
        (Row(1),),
    ),
    (Types.MAP(Types.STRING(), Types.DOUBLE()), "MAP<STRING, DOUBLE>", {"a": 1}, {"a": 1.0}),
    (Types.TUPLE([Types.LONG(), Types.STRING()]), "ROW<`f0` BIGINT, `f1` STRING>", (1, "a"), Row(1, "a")),
]


@each_case(("kind", "sql", "value", "cell"), HELD, ids=repr)
def test_column_holds_the_same_value(kind: Any, sql: str, value: Any, cell: Any) -> None:
    assert sql in (columns_of({"value": kind})["value"].sql, None)
    (held,) = to_row({"value": kind})({"value": value})
    assert held == cell and type(held) is type(cell)


REJECTED = [
    (datetime, NOON, "value", "pydantic.AwareDatetime"),
    (AwareDatetime, datetime(2024, 1, 1), "value", "with a zone"),
    (list[datetime], [NOON], "value[0]", "without a zone"),
    (dict[str, datetime], {"a": NOON}, "value['a']", "without a zone"),
    (Decimal, Decimal("9" * 30), "value", "30 digits before the point"),
    (Decimal, Decimal("1E-19"), "value", "19 after it"),
    (Decimal, Decimal("NaN"), "value", "a decimal"),
    (Decimal, Decimal("Infinity"), "value", "a decimal"),
    (Decimal, 1.5, "value", "a decimal"),
    (condecimal(max_digits=4, decimal_places=2), Decimal("100"), "value", "max_digits"),
    (time, time(6, 30, 1, 1), "value", "milliseconds"),
    (time, time(6, 30, tzinfo=UTC), "value", "without a zone"),
    (date, datetime(2024, 1, 1), "value", "a date"),
    (float, float("nan"), "value", "not NaN"),
    (float, 2**53 + 1, "value", "exactly"),
    (int, 2**63, "value", "64 bits"),
    (int, True, "value", "valid integer"),
    (int, 1.0, "value", "valid integer"),
    (str, 1, "value", "a string"),
    (bytes, "a", "value", "bytes"),
    (list[int], "abc", "value", "a list"),
    (list[int], [1, 2**63], "value[1]", "64 bits"),
    (dict[str, int], [1], "value", "a dict"),
    (dict[str, int], {None: 1}, "value", "keys that are not None"),
    (list[Item], [TEA, {"sku": "jam", "price": Decimal("1E-9")}], "value[1].price", "9 after it"),
    (dict[str, Item], {"x": {"sku": "jam"}}, "value['x'].price", "a value with sku, price, at"),
    (tuple[int, str], (1,), "value", "a tuple of 2 items"),
    (tuple[int, str], (1, "a", 2), "value", "2 items: f0, f1"),
    (Point, (1,), "value", "2 items: x, y"),
    (Contact, {"name": "a"}, "value.age", "a value with name, age"),
    (Types.FLOAT(), 1e300, "value", "32 bits"),
    (str, "a\ud800", "value", "half of a character"),
    (dict[str, str], {"\udcff": "a"}, "value['\\udcff']", "half of a character"),
    (Types.INT(), 2**31, "value", "32 bits"),
    (Types.BYTE(), -129, "value", "8 bits"),
]


@each_case(("kind", "value", "path", "text"), REJECTED, ids=repr)
def test_value_that_a_column_cannot_hold(kind: Any, value: Any, path: str, text: str) -> None:
    with pytest.raises(UnsupportedTableError) as raised:
        to_row({"value": kind})({"value": value})
    assert f"the column {path!r} cannot hold" in raised.value.message
    assert text in str(raised.value) and str(raised.value).startswith("orders.py:7 in main: ")


@each_case(
    ("kind", "text"),
    [
        (complex, "column 'value' has a type"),
        (Tree, "inside itself"),
        (list[complex], "column 'value' has a type"),
        (set[int], "column 'value' has a type"),
        (int | str, "column 'value' has a type"),
        (Literal[1, "a"], "column 'value' has a type"),
        (Callable[[int], int], "column 'value' has a type"),
        (Empty, "column 'value' has a type"),
        (list, "column 'value' has a type"),
        (Types.PICKLED_BYTE_ARRAY(), "column 'value' has a type"),
        (condecimal(max_digits=39), "larger than Flink's"),
        (condecimal(max_digits=2, decimal_places=3), "larger than Flink's"),
    ],
    ids=repr,
)
def test_type_that_no_column_has(kind: Any, text: str) -> None:
    with pytest.raises(UnsupportedTableError) as raised:
        columns_of({"value": kind})
    assert text in str(raised.value)


def test_a_class_without_fields_makes_no_table() -> None:
    with pytest.raises(UnsupportedTableError, match="the columns of the table are unknown"):
        columns_of(Empty)


@each_case("name", ["title", "count", "index"])
def test_methods_of_a_value_are_no_cells(name: str) -> None:
    assert to_row({name: str})("tea") == Row("tea")


def test_sizes_of_a_models_fields() -> None:
    class Price(BaseModel):
        plain: Decimal
        sized: Decimal = Field(max_digits=20, decimal_places=2)
        optional: Decimal | None = Field(None, max_digits=25, decimal_places=5)

    sizes = [column.sql for column in columns_of(Price).values()]
    assert sizes == ["DECIMAL(38, 18)", "DECIMAL(20, 2)", "DECIMAL(25, 5)"]


@pytest.mark.parametrize("output", [None, 5, np.int64(5)])
def test_only_cell(output: Any) -> None:
    assert to_row(int)(output) == Row(output)


def test_stream_of_a_declared_type() -> None:
    typed = CarriedValues(abs, float, "orders.py:7 in main")
    assert [type(typed(value)) for value in (-1, 1.5)] == [float, float]
    with pytest.raises(OutputTypeError, match=r"orders.py:7 in main: an output is not of the stream's type"):
        typed(2**53 + 1)
