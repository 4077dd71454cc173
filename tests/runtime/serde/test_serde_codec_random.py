"""Random nested values round trip with exact types; each case is named by its seed."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from core_values import (
    BERLIN,
    Access,
    Box,
    Colour,
    Item,
    Level,
    Names,
    Opaque,
    Order,
    Point,
    Sealed,
    Word,
    same,
)

from flink_agents.api.errors import UnserializableValueError
from flink_agents.runtime.serde.codec import ValueCodec
from tests.suite.tables import each_case

CODEC = ValueCodec()
ALPHABET = string.printable + "äß☃\U0001f600\x00\u2028"


class Values:
    """Makes values from a seed.

    Args:
        seed: The seed.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def text(self) -> str:
        return "".join(self.random.choices(ALPHABET, k=self.random.randrange(12)))

    def atom(self) -> Any:
        """A value that can be in a set or be a key."""
        pick = self.random
        makers: list[Callable[[], Any]] = [
            lambda: None,
            lambda: pick.random() < 0.5,
            lambda: pick.randint(-(2 ** pick.randint(1, 130)), 2 ** pick.randint(1, 130)),
            lambda: pick.choice([pick.uniform(-1e300, 1e300), pick.random(), -0.0, float("inf")]),
            self.text,
            lambda: pick.randbytes(pick.randrange(20)),
            lambda: Decimal(pick.randint(-(10**40), 10**40)).scaleb(pick.randint(-20, 20)),
            lambda: UUID(int=pick.getrandbits(128)),
            lambda: date.fromordinal(pick.randint(1, 3_652_059)),
            lambda: timedelta(pick.randint(-(10**8), 10**8), pick.randrange(86400), pick.randrange(10**6)),
            self.moment,
            lambda: time(pick.randrange(24), pick.randrange(60), microsecond=pick.randrange(10**6)),
            lambda: pick.choice([*Colour, *Word, *Level, *Access, Access.READ | Access.WRITE]),
            lambda: Sealed(pick.randrange(100)),
        ]
        return pick.choice(makers)()

    def moment(self) -> datetime:
        pick = self.random
        zone = pick.choice([None, UTC, timezone(timedelta(minutes=pick.randint(-1000, 1000))), BERLIN])
        naive = datetime(1900, 1, 1) + timedelta(
            seconds=pick.randrange(10**10), microseconds=pick.randrange(10**6)
        )
        return naive.replace(tzinfo=zone, fold=pick.randrange(2))

    def hashable(self, levels: int) -> Any:
        if levels == 0 or self.random.random() < 0.6:
            return self.atom()
        items = [self.hashable(levels - 1) for _ in range(self.random.randrange(4))]
        return self.random.choice([tuple, frozenset])(items)

    def any_value(self, levels: int) -> Any:
        """A value with at most ``levels`` levels."""
        pick = self.random
        if levels == 0 or pick.random() < 0.25:
            return self.atom()
        items = [self.any_value(levels - 1) for _ in range(pick.randrange(5))]
        inner_value = self.any_value(levels - 1)
        makers: list[Callable[[], Any]] = [
            lambda: items,
            lambda: tuple(items),
            lambda: {self.text(): item for item in items},
            lambda: {self.hashable(2): item for item in items},
            lambda: {self.hashable(2) for _ in items},
            lambda: Point(pick.randrange(9), inner_value),
            lambda: Box(inner_value, [self.text()]),
            lambda: Item(name=self.text(), more=inner_value),
            lambda: Order.model_validate({"items": [Item(name="a", more=inner_value)], "extra": items}),
            lambda: Names([self.text() for _ in items]),
        ]
        return pick.choice(makers)()


def hide(value: Any, culprit: Any, random_: random.Random) -> tuple[Any, str]:
    """``value`` with ``culprit`` somewhere inside, and the path to it."""
    path = ""
    for _ in range(random_.randrange(1, 6)):
        step, culprit = random_.choice(
            [
                ("[1]", [value, culprit]),
                ("[0]", (culprit, value)),
                ("['k']", {"a": value, "k": culprit}),
                (".more", Item(name="a", more=culprit)),
                (".content", Box(culprit)),
                (".y", Point(1, culprit)),
            ]
        )
        path = step + path
    return culprit, path


@each_case("seed", range(250))
def test_random_value_round_trips(seed: int) -> None:
    value = Values(seed).any_value(5)
    data = CODEC.encode(value)
    copy = CODEC.decode(data)
    assert same(copy, value)
    assert CODEC.encode(copy) == data


@each_case("seed", range(50))
def test_the_path_to_what_cannot_be_stored_is_named(seed: int) -> None:
    values = Values(seed)
    value, path = hide(values.any_value(2), Opaque(), values.random)
    with pytest.raises(UnserializableValueError) as caught:
        CODEC.encode(value)
    assert caught.value.found == f"at {path}: Opaque()"


def test_random_values_differ() -> None:
    assert len({CODEC.encode(Values(seed).any_value(5)) for seed in range(250)}) > 200
