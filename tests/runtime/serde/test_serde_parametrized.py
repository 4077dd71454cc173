"""Values of parametrized models, such as ``Page[Order]``, wherever the parametrization is written first."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Generic, Hashable, List, Literal, NamedTuple, NewType, Optional, TypeVar  # noqa: UP035

import cloudpickle
import msgpack
import pytest
from pydantic import BaseModel, Field, RootModel

from flink_agents.api.durable.upgrades import upgrades
from flink_agents.api.errors import StateFormatError, UnknownTypeNameError, UnserializableValueError
from flink_agents.runtime.flink.shipping import class_copies
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.keys import decode_key, encode_key
from flink_agents.runtime.serde.typenames import type_name
from tests.suite.tables import each_case

assert class_copies

T = TypeVar("T")
U = TypeVar("U")
Quantity = NewType("Quantity", int)


class Order(BaseModel, frozen=True):
    n: int


class Page(BaseModel, Generic[T], frozen=True):
    items: tuple[T, ...] = ()
    next_page: Page[T] | None = None


class Pair(BaseModel, Generic[T, U], frozen=True):
    first: T
    second: U


class Extended(Page[T], Generic[T], frozen=True):
    extra: T


class Named(Pair[int, date], frozen=True):
    name: str = ""


class Outer:
    class Inner(BaseModel, Generic[T]):
        value: T


class Color(Enum):
    RED = "red"


@dataclass(frozen=True)
class Point(Generic[T]):
    x: T


class Line(NamedTuple):
    length: int


if sys.version_info >= (3, 12):
    from typing import TypeAliasType

    Orders = TypeAliasType("Orders", list[Order])
else:
    Orders = list[Order]

WRITERS: dict[str, Callable[[], Any]] = {
    "a class": lambda: Page[Order](items=(Order(n=1),)),
    "two levels": lambda: Page[Page[Order]](items=(Page[Order](items=(Order(n=1),)),)),
    "itself": lambda: Page[str](items=("a",), next_page=Page[str](items=("b",))),
    "two": lambda: Pair[int, Decimal](first=1, second=Decimal("1.50")),
    "half": lambda: Pair[int, U][str](first=1, second="a"),  # type: ignore[valid-type]
    "alias": lambda: Page[Orders](items=([Order(n=2)],)),
    "bar": lambda: Page[Order | None](items=(None, Order(n=1))),
    "optional": lambda: Page[Optional[Order]](items=(None, Order(n=1))),  # noqa: UP045
    "dict": lambda: Page[dict[str, list[Order]]](items=({"a": [Order(n=1)]},)),
    "tuple": lambda: Page[tuple[int, ...]](items=((1, 2),)),
    "empty": lambda: Page[tuple[()]](items=((),)),
    "literal": lambda: Page[Literal["a, ]'", 1, None]](items=("a, ]'", 1, None)),
    "alias without arguments": lambda: Page[List](items=([1],)),  # noqa: UP006
    "abstract": lambda: Page[Hashable](items=("a",)),
    "any": lambda: Page[Any](items=(1, "a", Order(n=3))),
    "enum": lambda: Page[Color](items=(Color.RED,)),
    "dataclass": lambda: Page[Point[int]](items=(Point(1),)),
    "named tuple": lambda: Page[Line](items=(Line(1),)),
    "date": lambda: Page[date](items=(date(2024, 2, 29),)),
    "new type": lambda: Page[Quantity](items=(Quantity(1),)),
    "none": lambda: Page[None](items=(None,)),
    "subclass": lambda: Extended[int](items=(1,), extra=2),
    "named": lambda: Named(first=1, second=date(2024, 1, 1), name="a"),
    "nested": lambda: Outer.Inner[int](value=1),
    "root": lambda: RootModel[list[Order]]([Order(n=1)]),
}  # fmt: skip


def test_a_process_that_never_wrote_the_parametrization_reads_its_values() -> None:
    script = (
        f"import sys, pickle, cloudpickle; sys.path[:] = {sys.path}; "
        f"from {__name__} import WRITERS, ValueCodec; "
        "sys.stdout.buffer.write(pickle.dumps({name: (ValueCodec().encode(make()), pickle.dumps(make()), "
        "cloudpickle.dumps(make())) for name, make in WRITERS.items()}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    for name, (data, *pickles) in pickle.loads(done.stdout).items():
        results = [ValueCodec().decode(data), *map(pickle.loads, pickles)]
        expected = WRITERS[name]()
        assert all(value == expected for value in results), name
        assert name == "half" or all(type(value) is type(expected) for value in results), name


@each_case("name", WRITERS)
def test_values_are_equal_and_of_the_same_class(name: str) -> None:
    value = WRITERS[name]()
    for read in (ValueCodec().copy(value), pickle.loads(pickle.dumps(value))):
        assert read == value
        assert type(read).__name__ == type(value).__name__
        assert type(read) is type(value) or name == "half", "pydantic makes another class of two steps"
    assert name == "half" or cloudpickle.loads(cloudpickle.dumps(type(value))) is type(value)


@each_case("name", ["a class", "two levels", "two", "literal", "enum", "none"])
def test_a_key_is_read_again(name: str) -> None:
    key = WRITERS[name]()
    assert decode_key(encode_key(key)) == key
    assert type(decode_key(encode_key((key, "a")))[0]) is type(key)


Positive = Annotated[int, Field(gt=0)]


def test_arguments_without_names_need_a_parametrization_in_the_module() -> None:
    class Local(BaseModel):
        n: int

    for value in (Page[Annotated[int, Field(gt=1)]](items=(2,)), Page[Local](items=(Local(n=1),))):
        with pytest.raises(UnserializableValueError) as caught:
            ValueCodec().encode([value])
        assert "Page[" in caught.value.message
        assert "at the top level" in str(caught.value.fix) and "(Page[" in str(caught.value.fix)


OfPositive = Page[Positive]


def test_a_parametrization_at_the_top_level_may_have_any_argument() -> None:
    value = OfPositive(items=(1,))
    assert ValueCodec().copy(value) == value
    assert type(ValueCodec().copy(value)) is OfPositive


def _packed(name: str) -> bytes:
    packed: Any = msgpack.packb(name)
    return packed


@each_case(
    "name",
    [
        "Page[int",
        "Page[no_module:Order]",
        "Page[:Order]",
        "Page[Missing]",
        "Page",
        "Order[int]",
        "Page[int]]",
        "Page[int, str]",
        "Page[" * 300,
        "Outer[int]",
    ],
)
def test_bytes_with_another_name_are_rejected(name: str) -> None:
    data = ValueCodec().encode(Pair[int, str](first=1, second="a"))
    full = f"{__name__}:Pair[int, str]"
    invalid_name = f"{__name__}:{name}"
    assert data.count(full.encode()) == 1
    packed = (_packed(full), _packed(invalid_name))
    with pytest.raises((UnknownTypeNameError, StateFormatError)):
        ValueCodec().decode(data.replace(*packed))


# -- classes that were moved -------------------------------------------------------------------


@upgrades("old_pages:Page")
class NewPage(BaseModel, Generic[T]):
    items: tuple[T, ...] = ()
    next_page: Any = None


@upgrades("old_pages:Order")
class NewOrder(BaseModel):
    n: int


@upgrades("old_pages:Pair")
def read_pair(fields: dict[str, Any]) -> str:
    return f"{fields['first']}-{fields['second']}"


def _renamed(value: Any, *names: str) -> bytes:
    data = ValueCodec().encode(value)
    for kind in (type(value), *(type(item) for item in getattr(value, "items", ()))):
        name = type_name(kind)
        moved = name.replace(__name__, "old_pages")
        data = data.replace(_packed(name), _packed(moved))
    return data


def test_a_moved_generic_class_and_a_moved_argument_have_successors() -> None:
    read = ValueCodec().decode(_renamed(Page[Order](items=(Order(n=1),))))
    assert type(read) is NewPage[NewOrder]
    assert read == NewPage[NewOrder](items=(NewOrder(n=1),))


def test_a_function_takes_the_values_of_all_parametrizations() -> None:
    assert ValueCodec().decode(_renamed(Pair[int, str](first=1, second="a"))) == "1-a"
