"""Values of Java in rows of tables become values of Python, or are rejected by name."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from java_values import JavaRow, JavaTime
from pydantic import AwareDatetime, BaseModel
from pyflink.common import Row, RowKind

from flink_agents.api.errors import UnsupportedTableError
from flink_agents.runtime.flink.values.rows import ColumnReader, ReadRows, read_value
from tests.suite.tables import each_case

BIGINT = ColumnReader("BIGINT")
TIMESTAMP = ColumnReader("TIMESTAMP_WITHOUT_TIME_ZONE")
INSTANT = ColumnReader("TIMESTAMP_WITH_LOCAL_TIME_ZONE")
DATE = ColumnReader("DATE")
TIME = ColumnReader("TIME_WITHOUT_TIME_ZONE")
ITEM = ColumnReader("ROW", ("sku", "at"), (ColumnReader("VARCHAR"), INSTANT))
NOON = JavaTime("2024-02-29T12:00:00.123456Z")
AT_NOON = datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC)


@each_case(
    ("java", "reader", "value"),
    [
        (1, BIGINT, 1),
        (None, ITEM, None),
        (JavaTime("2024-02-29T12:30"), TIMESTAMP, datetime(2024, 2, 29, 12, 30)),
        (
            JavaTime("2024-02-29T12:30:15.123456000"),
            TIMESTAMP,
            datetime(2024, 2, 29, 12, 30, 15, 123456),
        ),
        (NOON, INSTANT, AT_NOON),
        (JavaTime("1500-03-01"), DATE, date(1500, 3, 1)),
        (JavaTime("06:30:01.500"), TIME, time(6, 30, 1, 500000)),
        ((1, None), ColumnReader("ARRAY", (), (BIGINT,)), [1, None]),
        (((1,), ()), ColumnReader("ARRAY", (), (ColumnReader("ARRAY", (), (BIGINT,)),)), [[1], []]),
        ((NOON,), ColumnReader("ARRAY", (), (INSTANT,)), [AT_NOON]),
        ({"a": NOON}, ColumnReader("MAP", (), (ColumnReader("VARCHAR"), INSTANT)), {"a": AT_NOON}),
        (JavaRow("tea", NOON), ITEM, Row(sku="tea", at=AT_NOON)),
        (
            (JavaRow("tea", None), JavaRow("jam", NOON)),
            ColumnReader("ARRAY", (), (ITEM,)),
            [Row(sku="tea", at=None), Row(sku="jam", at=AT_NOON)],
        ),
    ],
)
def test_values_of_java_become_those_of_python(java: Any, reader: ColumnReader, value: Any) -> None:
    read = read_value(java, reader)
    assert read == value and type(read) is type(value)


@each_case(
    ("reader", "text"),
    [
        (TIMESTAMP, "+12024-02-29T12:30"),
        (DATE, "-0044-03-15"),
        (TIMESTAMP, "2024-02-29T12:30:15.123456789"),
        (INSTANT, "2024-02-29T12:30:15.000000001Z"),
    ],
)
def test_what_python_does_not_have_is_rejected(reader: ColumnReader, text: str) -> None:
    with pytest.raises(UnsupportedTableError, match="a value that Python does not support") as raised:
        read_value(JavaTime(text), reader)
    assert text in str(raised.value)


class Item(BaseModel):
    sku: str
    at: AwareDatetime | None


class Order(BaseModel):
    lines: list[Item]
    grid: list[list[int]]
    by_sku: dict[str, Item]
    price: Decimal
    pair: tuple[int, str]


READERS = {
    "lines": ColumnReader("ARRAY", (), (ITEM,)),
    "grid": ColumnReader("ARRAY", (), (ColumnReader("ARRAY", (), (BIGINT,)),)),
    "by_sku": ColumnReader("MAP", (), (ColumnReader("VARCHAR"), ITEM)),
    "price": ColumnReader("DECIMAL"),
    "pair": ColumnReader("ROW", ("f0", "f1"), (BIGINT, ColumnReader("VARCHAR"))),
}


def order_row(kind: RowKind = RowKind.INSERT) -> Row:
    item = JavaRow("tea", NOON)
    row = Row((item, JavaRow("jam", None)), ((1, 2), (3,)), {"tea": item}, Decimal("1.50"), JavaRow(7, "x"))
    row.set_row_kind(kind)
    return row


def test_row_becomes_a_model_with_nested_rows() -> None:
    tea = Item(sku="tea", at=AT_NOON)
    jam = Item(sku="jam", at=None)
    order = Order(
        lines=[tea, jam], grid=[[1, 2], [3]], by_sku={"tea": tea}, price=Decimal("1.50"), pair=(7, "x")
    )
    assert ReadRows(READERS, Order, "fail")(order_row()) == [order]


@each_case(
    ("changes", "kind", "inputs"),
    [
        ("fail", RowKind.INSERT, 1),
        ("latest", RowKind.UPDATE_AFTER, 1),
        ("latest", RowKind.UPDATE_BEFORE, 0),
        ("latest", RowKind.DELETE, 0),
        ("all", RowKind.DELETE, 1),
    ],
)
def test_policy_for_changes(changes: str, kind: RowKind, inputs: int) -> None:
    assert len(ReadRows(READERS, None, changes)(order_row(kind))) == inputs
