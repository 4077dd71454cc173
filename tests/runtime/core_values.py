"""Classes and values that the core's tests store, and an exact comparison of two values."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel, field_validator


class Colour(Enum):
    RED = "red"
    BLUE = 2


class Word(str, Enum):  # noqa: UP042 - a kind of its own
    YES = "yes"


class Level(IntEnum):
    LOW = 1


class Access(Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: Any = None


@dataclass
class Box:
    content: Any = None
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Sealed:
    number: int
    derived: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "derived", self.number * 10)


@dataclass
class Doubling:
    """Its constructor changes its field: made again from the field, it would change twice."""

    number: int

    def __post_init__(self) -> None:
        self.number *= 2


@dataclass
class NeedsMore:
    number: int
    factor: dataclasses.InitVar[int]


class Item(BaseModel):
    name: str
    price: Decimal = Decimal(0)
    more: Any = None


class SpecialItem(Item):
    discount: float = 0.5


class Order(BaseModel):
    model_config = ConfigDict(extra="allow")

    items: list[Item] = []
    customer: str = Field(default="nobody", alias="customerName")


class Sticky(BaseModel):
    """Strict, frozen, with a validator that is not idempotent, a cache and a private field."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    text: str
    _visits: int = PrivateAttr(default=0)

    @field_validator("text")
    @classmethod
    def _shout(cls, text: str) -> str:
        return text + "!"

    @functools.cached_property
    def size(self) -> int:
        return len(self.text)

    def visit(self) -> Sticky:
        self._visits += 1
        return self

    @property
    def visits(self) -> int:
        return self._visits


class Names(RootModel[list[str]]):
    pass


T = TypeVar("T")


class Crate(BaseModel, Generic[T]):
    content: T


class IntCrate(Crate[int]):
    pass


class Opaque:
    """Nothing that state can hold."""

    def __repr__(self) -> str:
        return "Opaque()"


class Unprintable(Opaque):
    def __repr__(self) -> str:
        raise RuntimeError("no text")


BERLIN = ZoneInfo("Europe/Berlin")

SUPPORTED: dict[str, Any] = {
    "none": None,
    "true": True,
    "false": False,
    "zero": 0,
    "negative": -1,
    "int64": 2**63 - 1,
    "uint64": 2**64 - 1,
    "big int": 2**64,
    "big negative int": -(2**63) - 1,
    "5,000 digits": 10**5000,
    "float": 0.1,
    "negative zero": -0.0,
    "infinity": -math.inf,
    "nan": math.nan,
    "smallest float": 5e-324,
    "empty text": "",
    "text": "snö ☃ \U0001f600",
    "NUL in text": "a\x00b",
    "lone surrogate": "\ud83d",
    "empty bytes": b"",
    "bytes": bytes(range(256)),
    "empty list": [],
    "empty dict": {},
    "list": [1, "a", None, [True, [2.5]]],
    "dict": {"b": 1, "a": {"c": [2]}},
    "dict with other keys": {1: "a", None: "b", (1, "x"): "c", b"k": "d", 2.5: "e"},
    "one-entry dicts": {"a": {"b": {"c": 1}}},
    "tuple": (1, ("a", []), ()),
    "set": {1, "a", (2, 3)},
    "frozenset": frozenset({1, frozenset({2})}),
    "empty set": set(),
    "datetime": datetime(2024, 2, 29, 12, 30, 15, 123456),
    "datetime, first second": datetime.min,
    "datetime in UTC": datetime(2024, 7, 1, tzinfo=UTC),
    "datetime with odd offset": datetime(2024, 7, 1, tzinfo=timezone(timedelta(hours=-3, seconds=7))),
    "datetime in a zone": datetime(2024, 7, 1, 8, tzinfo=BERLIN),
    "datetime in the repeated hour": datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1),
    "naive datetime with fold": datetime(2024, 10, 27, 2, 30, fold=1),
    "date": date(1, 1, 1),
    "time": time(23, 59, 59, 999999),
    "time with offset": time(1, tzinfo=UTC),
    "time in a zone": time(1, tzinfo=BERLIN),
    "timedelta": timedelta(days=-1, seconds=3, microseconds=7),
    "decimal": Decimal("10.50"),
    "decimal with many digits": Decimal("1." + "0" * 40 + "1"),
    "decimal infinity": Decimal("-Infinity"),
    "uuid": UUID(int=2**128 - 1),
    "enum": Colour.BLUE,
    "str enum": Word.YES,
    "int enum": Level.LOW,
    "flag": Access.READ,
    "flags together": Access.READ | Access.WRITE,
    "no flag": Access(0),
    "named tuple": Point(1, Point(2)),
    "dataclass": Box([1, (2,)], ["a"]),
    "frozen dataclass with slots": Sealed(4),
    "dataclass whose constructor changes fields": Doubling(3),
    "model": Item(name="pen", price=Decimal("1.10")),
    "model with only what was set": Item(name="pen"),
    "subclass in a field of its base": Order(items=[SpecialItem(name="pen")], customerName="Ada"),
    "model with extra fields": Order.model_validate({"customerName": "Ada", "vip": (1, 2)}),
    "model that validates but once": Sticky(text="hey").visit(),
    "root model": Names(["a", "b"]),
    "generic model": IntCrate(content=3),
    "model in model in a tuple": (Item(name="a", more=Box(Item(name="b", more={"c": Colour.RED}))),),
}
"""Values that state holds, by name."""


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal in value and type, all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return repr(left) == repr(right)
    if isinstance(left, dict):
        return len(left) == len(right) and all(
            same(a, b) and same(left[a], right[b]) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, set | frozenset):
        return left == right and sorted(map(_typed, left)) == sorted(map(_typed, right))
    if isinstance(left, datetime | time):
        zones = (type(left.tzinfo), str(left.tzinfo)) == (type(right.tzinfo), str(right.tzinfo))
        return left == right and left.fold == right.fold and zones
    if isinstance(left, BaseModel):
        return (
            same(dict(left), dict(right))
            and left.model_fields_set == right.model_fields_set
            and same(left.__pydantic_private__, right.__pydantic_private__)
        )
    if dataclasses.is_dataclass(left):
        return all(same(getattr(left, f.name), getattr(right, f.name)) for f in dataclasses.fields(left))
    return left == right if isinstance(left, int) else repr(left) == repr(right)


def _typed(value: Any) -> str:
    """A text that tells values of one type apart, whatever the order of their sets."""
    kind = type(value).__qualname__
    if isinstance(value, frozenset):
        return f"{kind} {sorted(map(_typed, value))}"
    if isinstance(value, tuple):
        return f"{kind} {list(map(_typed, value))}"
    return f"{kind} {value if isinstance(value, Enum) else ascii(value)}"
