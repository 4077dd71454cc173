"""Types and values of these types, drawn by a seed: what customers send through every boundary of a job."""

from __future__ import annotations

import random
import re
import string
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from ipaddress import IPv4Address, IPv6Network
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import AnyUrl, BaseModel, ByteSize, Field, HttpUrl, PostgresDsn, SecretBytes, SecretStr

T = TypeVar("T")
U = TypeVar("U")

ALPHABET = string.printable + "äß☃\U0001f600\x00\u2028"


class Colour(Enum):
    RED = "red"
    BLUE = 2


class Level(IntEnum):
    LOW = 1


class Words(str, Enum):  # noqa: UP042 - a kind of its own
    YES = "yes"


class Page(BaseModel, Generic[T]):
    items: list[T] = []
    first: T | None = None


class Pair(BaseModel, Generic[T, U], frozen=True):
    left: T
    right: U = Field(alias="rightHand")

    model_config = {"populate_by_name": True, "serialize_by_alias": True}


class Strict(BaseModel, Generic[T], strict=True):
    content: T


@dataclass
class Box(Generic[T]):
    content: T
    tags: list[str] = field(default_factory=list)


class Row(NamedTuple, Generic[T]):
    x: int
    y: T


class Isbn(str):
    """A type of an author, which only Pydantic knows."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(cls, core_schema.str_schema())


class Book(BaseModel):
    isbn: Isbn
    others: list[Isbn] = []


Typed = tuple[Any, Any]
"""A type, and a value of it."""


class Draw:
    """Draws types with values.

    Args:
        seed: The seed.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def text(self) -> str:
        return "".join(self.random.choices(ALPHABET, k=self.random.randrange(8)))

    def atom(self) -> tuple[Any, Callable[[], Any]]:
        """Return a type whose values can be in sets, and a function that draws them."""
        pick = self.random
        number = pick.choice([float("nan"), float("inf"), -float("inf"), -0.0, 1e300, 0.1, 5e-324])
        atoms: list[tuple[Any, Callable[[], Any]]] = [
            (bool, lambda: pick.random() < 0.5),
            (int, lambda: pick.randint(-(2 ** pick.randint(1, 130)), 2 ** pick.randint(1, 130))),
            (float, lambda: pick.choice([number, pick.uniform(-1e9, 1e9)])),
            (str, self.text),
            (bytes, lambda: pick.randbytes(pick.randrange(9))),
            (Decimal, lambda: Decimal(pick.randint(-(10**30), 10**30)).scaleb(pick.randint(-20, 20))),
            (UUID, lambda: UUID(int=pick.getrandbits(128))),
            (date, lambda: date.fromordinal(pick.randint(366, 3_652_059))),
            (datetime, self.moment),
            (time, lambda: time(pick.randrange(24), pick.randrange(60), microsecond=pick.randrange(10**6))),
            (
                timedelta,
                lambda: timedelta(pick.randint(-9999, 9999), pick.randrange(86400), pick.randrange(10**6)),
            ),
            (Colour, lambda: pick.choice(list(Colour))),
            (Level, lambda: Level.LOW),
            (Words, lambda: Words.YES),
            (Literal["a", 3], lambda: pick.choice(["a", 3])),
            (HttpUrl, lambda: HttpUrl(f"http://a.b/{pick.randrange(99)}?q=é")),
            (AnyUrl, lambda: AnyUrl(f"a{pick.randrange(9)}://b")),
            (PostgresDsn, lambda: PostgresDsn("postgres://a:b@c:1,d:2/e")),
            (Path, lambda: Path(pick.choice(["a", "/a//b", "", "ä b"]))),
            (IPv4Address, lambda: IPv4Address(pick.getrandbits(32))),
            (IPv6Network, lambda: IPv6Network((pick.getrandbits(64) << 64, 64))),
            (SecretStr, lambda: SecretStr(self.text())),
            (SecretBytes, lambda: SecretBytes(pick.randbytes(3))),
            (Fraction, lambda: Fraction(pick.randint(-99, 99), pick.randint(1, 99))),
            (complex, lambda: complex(pick.random(), -pick.random())),
            (re.Pattern[str], lambda: re.compile(pick.choice(["a+", "[b]"]))),
            (ZoneInfo, lambda: ZoneInfo(pick.choice(["Europe/Berlin", "UTC"]))),
            (ByteSize, lambda: ByteSize(pick.randrange(9**9))),
        ]
        return pick.choice(atoms)

    def moment(self) -> datetime:
        pick = self.random
        offset = timezone(timedelta(minutes=pick.randint(-900, 900)))
        zone = pick.choice([None, UTC, offset, ZoneInfo("Europe/Berlin")])
        naive = datetime(1902, 1, 1) + timedelta(
            seconds=pick.randrange(6 * 10**9), microseconds=pick.randrange(10**6)
        )
        return naive.replace(tzinfo=zone)

    def typed(self, levels: int) -> Typed:
        """Return a type of at most ``levels`` levels, and a value of it."""
        kind, make = self._drawn(levels)
        return kind, make()

    def _drawn(self, levels: int) -> tuple[Any, Callable[[], Any]]:
        """Return a type, and a function that draws a value of it."""
        pick = self.random
        if levels == 0 or pick.random() < 0.2:
            return self.atom()
        kind, make = self._drawn(levels - 1)
        other_kind, make_other = self._drawn(levels - 1)
        leaf, make_leaf = self.atom()
        key, make_key = pick.choice(
            [(str, self.text), (int, lambda: pick.randrange(-9, 9)), (UUID, lambda: UUID(int=3))]
        )
        number = lambda: range(pick.randrange(3))  # noqa: E731 - a choice of each value
        makers: list[tuple[Any, Callable[[], Any]]] = [
            (list[kind], lambda: [make() for _ in number()]),
            (tuple[kind, ...], lambda: tuple(make() for _ in number())),
            (tuple[kind, other_kind], lambda: (make(), make_other())),
            (dict[key, kind], lambda: {make_key(): make() for _ in number()}),
            (kind | None, lambda: None if pick.random() < 0.3 else make()),
            (set[leaf], lambda: {make_leaf() for _ in number()}),
            (frozenset[leaf], lambda: frozenset(make_leaf() for _ in number())),
            (deque[kind], lambda: deque(make() for _ in number())),
            (defaultdict[str, list[kind]], lambda: defaultdict(list, {self.text(): [make()]})),
            (OrderedDict[str, kind], lambda: OrderedDict((self.text(), make()) for _ in number())),
            (Counter[str], lambda: Counter(self.text())),
            (Page[kind], lambda: Page[kind](items=[make() for _ in number()], first=make())),
            (Pair[kind, other_kind], lambda: Pair[kind, other_kind](left=make(), rightHand=make_other())),
            (Strict[leaf], lambda: Strict[leaf](content=make_leaf())),
            (Box[kind], lambda: Box(make(), [self.text()])),
            (Row[kind], lambda: Row(pick.randrange(9), make())),
            (Book, lambda: Book(isbn=Isbn(self.text()), others=[Isbn("b")])),
        ]
        return pick.choice(makers)


def form_of(value: Any, exact: bool = True) -> Any:
    """Return what a value is, to compare it with another one: NaN is NaN, and nothing else is equal to it.

    Args:
        value: The value.
        exact: False if a zone may become its offset, and the fields that were set all of them: as in JSON.
    """

    def forms(parts: Iterable[Any]) -> list[Any]:
        return [form_of(part, exact) for part in parts]

    kind = type(value).__name__
    if isinstance(value, SecretStr | SecretBytes):
        return kind, value.get_secret_value()
    if isinstance(value, Mapping):
        entries: Any = cast("Mapping[Any, Any]", value)
        pairs = [[form_of(key, exact), form_of(item, exact)] for key, item in entries.items()]
        factory = value.default_factory if exact and isinstance(value, defaultdict) else None
        return kind, pairs if isinstance(value, OrderedDict) else sorted(pairs, key=str), factory
    if isinstance(value, set | frozenset):
        return kind, sorted(map(str, forms(cast("Iterable[Any]", value))))
    if isinstance(value, list | tuple | deque):
        return kind, forms(cast("Iterable[Any]", value))
    if isinstance(value, BaseModel):
        fields = {name: form_of(getattr(value, name), exact) for name in type(value).model_fields}
        return kind, fields, sorted(value.model_fields_set) if exact else None
    if is_dataclass(value):
        return kind, forms(vars(value).values())
    if isinstance(value, datetime) and value.tzinfo is not None and not exact:
        return kind, value.astimezone(UTC).isoformat()
    if isinstance(value, re.Pattern):
        return kind, cast("re.Pattern[Any]", value).pattern, value.flags
    return kind, repr(value)
