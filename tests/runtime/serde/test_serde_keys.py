"""Keys: equal ones give one text, different ones different texts, and the key comes back."""

from __future__ import annotations

import itertools
import math
import random
import string
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from operator import itemgetter
from typing import Any
from uuid import UUID

import pytest
from core_agents import probe
from core_values import BERLIN, Access, Colour, Item, Level, Point, Unprintable, Word
from pydantic import BaseModel, RootModel

from flink_agents.api.errors import KeyEncodingError, UnknownTypeNameError
from flink_agents.runtime.serde.keys import KeyEncoder, decode_key, encode_key, escape, unescape
from tests.suite.tables import each_case

DISTINCT: list[Any] = [
    0,
    1,
    -1,
    "1",
    1.0,
    True,
    False,
    b"1",
    ("1",),
    (1,),
    ((1,),),
    (1, 2),
    (12,),
    ("1", "2"),
    ("12",),
    ("1:2",),
    ("", "12"),
    ("a", "b"),
    ("a:1", "b"),
    ("a", "1:b"),
    (None, ()),
    ((), None),
    (),
    None,
    "",
    "None",
    "n",
    " ",
    b"",
    0.0,
    0.1,
    1e300,
    math.inf,
    -math.inf,
    "a",
    "A",
    "a_1",
    "user_1",
    "\\",
    "\\\\",
    '"',
    '\\"',
    "\\n",
    "\n",
    "\x00",
    "\x7f",
    "é",
    "e\u0301",
    "\\xe9",
    "\u2028",
    "\U0001f600",
    "\ud83d",
    "\ud83d\ude00",
    "\\U0001f600",
    "x" * 10_240,
    "ü" * 10_240,
    bytes(10_240),
    2**64,
    -(2**64),
    10**5000,
    10**5000 + 1,
    -(10**5000),
    Decimal(1),
    Decimal("1.5"),
    Decimal("1." + "0" * 40 + "1"),
    Decimal("Infinity"),
    Decimal("-Infinity"),
    Decimal("1E+1000000"),
    Decimal("-1E-1000000"),
    UUID(int=1),
    date(2024, 1, 1),
    datetime(2024, 1, 1),
    datetime(2024, 1, 1, tzinfo=UTC),
    datetime(2024, 1, 1, 0, 0, 0, 1),
    Colour.RED,
    Colour.BLUE,
    Word.YES,
    Level.LOW,
    Access.READ,
    (Colour.RED, ("x", b"\xff", None, 1.5, date(2024, 1, 1))),
]
"""Keys that differ; many of them are equal or alike in other systems."""

EQUAL: list[tuple[Any, Any]] = [
    (0.0, -0.0),
    (Decimal("1.0"), Decimal(1)),
    (Decimal("100"), Decimal("1E+2")),
    (Decimal("-0"), Decimal("0E+5")),
    (Decimal("0"), Decimal("0.000")),
    (datetime(2024, 7, 1, 8, tzinfo=BERLIN), datetime(2024, 7, 1, 6, tzinfo=UTC)),
    (
        datetime(2024, 7, 1, 0, tzinfo=timezone(timedelta(hours=-5))),
        datetime(2024, 7, 1, 5, tzinfo=UTC),
    ),
    (datetime(2024, 7, 1, fold=1), datetime(2024, 7, 1)),
    ((0.0, Decimal("1.0")), (-0.0, Decimal(1))),
    (Colour["RED"], Colour.RED),
]


def test_different_keys_have_different_texts() -> None:
    texts = [encode_key(key) for key in DISTINCT]
    assert len(set(texts)) == len(DISTINCT)


@each_case("key", DISTINCT, ids=lambda key: ascii(encode_key(key))[:40])
def test_key_comes_back(key: Any) -> None:
    copy = decode_key(encode_key(key))
    assert copy == key
    assert type(copy) is type(key)


@each_case("key", DISTINCT, ids=lambda key: ascii(encode_key(key))[:40])
def test_text_is_printable_ascii(key: Any) -> None:
    text = encode_key(key)
    assert text.isascii()
    assert text.isprintable()


@each_case(("one", "other"), EQUAL)
def test_equal_keys_have_one_text(one: Any, other: Any) -> None:
    assert one == other
    assert encode_key(one) == encode_key(other)


GOLDEN: list[tuple[Any, str]] = [
    ("user_1", "suser_1"),
    ("a\nß", "sa\\n\\xdf"),
    (42, "i42"),
    (True, "b1"),
    (0.5, "f0.5"),
    (-math.inf, "f-inf"),
    (b"\x00\xff", "x00ff"),
    (None, "n"),
    (("a", 1, ()), "t2:sa2:i11:t"),
    (UUID(int=7), "u00000000-0000-0000-0000-000000000007"),
    (date(2024, 2, 29), "D2024-02-29"),
    (datetime(2024, 2, 29, 1, 2, 3), "L2024-02-29T01:02:03"),
    (datetime(2024, 2, 29, tzinfo=UTC), "Z2024-02-29T00:00:00+00:00"),
    (Decimal("-12.50"), "d-125E-1"),
    (Decimal(0), "d0"),
    (Colour.RED, "ecore_values:Colour:RED"),
]


@each_case(("key", "text"), GOLDEN)
def test_texts_stay_the_same(key: Any, text: str) -> None:
    """Flink finds state by these texts: another one would lose it."""
    assert encode_key(key) == text
    assert decode_key(text) == key


def test_random_tuples_differ_and_come_back() -> None:
    generator = random.Random(3)

    def make(levels: int) -> Any:
        if levels == 0 or generator.random() < 0.3:
            return generator.choice(["", "a", "1:s", ":", 1, 11, None, b"", 1.5, True])
        return tuple(make(levels - 1) for _ in range(generator.randrange(4)))

    seen: dict[str, Any] = {}
    for _ in range(3000):
        key = make(4)
        text = encode_key(key)
        # Python holds 1 == True: the representation tells them apart.
        assert repr(seen.setdefault(text, key)) == repr(key)
        assert repr(decode_key(text)) == repr(key)
    assert len(seen) > 500


def test_escape_is_reversible_and_keeps_texts_apart() -> None:
    texts = ["".join(characters) for characters in itertools.product('\\"n\nuU0é\ud83d\ude00', repeat=4)]
    assert [unescape(escape(text)) for text in texts] == texts
    assert len({escape(text) for text in texts}) == len(texts)


def test_escape_leaves_plain_text_alone() -> None:
    plain = "".join(c for c in string.printable if c.isprintable() and c != "\\")
    assert escape(plain) == plain


class Local:
    class Shade(Enum):
        DARK = 1


Shade = Local.Shade
del Local.Shade

REFUSED: dict[str, tuple[Any, str]] = {
    "nan": (math.nan, "is NaN"),
    "decimal nan": (Decimal("NaN"), "is NaN"),
    "signalling nan": (Decimal("sNaN"), "is NaN"),
    "nan in a tuple": ((1, math.nan), "is NaN"),
    "list": ([1], "builtins.list"),
    "dict": ({}, "builtins.dict"),
    "set": ({1}, "builtins.set"),
    "list in a tuple": ((1, [2]), "builtins.list"),
    "named tuple": (Point(1, 2), "core_values.Point"),
    "model": (Item(name="a"), "core_values.Item"),
    "bytearray": (bytearray(b"a"), "builtins.bytearray"),
    "object": (object(), "builtins.object"),
    "unprintable object": (Unprintable(), "core_values.Unprintable"),
    "flags together": (Access.READ | Access.WRITE, "combination of flags"),
    "enum that has no name": (Shade.DARK, "cannot be imported"),
    "time before year 1": (
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
        "UTC cannot express",
    ),
}


@each_case(("key", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_key_without_canonical_text_is_refused(key: Any, text: str) -> None:
    with pytest.raises(KeyEncodingError, match=text) as caught:
        encode_key(key)
    assert caught.value.fix


NO_TEXTS = [
    "",
    "q1",
    "i",
    "ix",
    "b2",
    "b",
    "xzz",
    "t1:",
    "t9:i1",
    "t-1:i1",
    "t:i1",
    "t2:i1i2",
    "u1",
    "D2024",
    "d",
    "e",
]


@each_case("text", [*NO_TEXTS, "ecore_values:Colour", "ecore_values:Colour:GREEN", "t4:sabc-4:"])
def test_what_is_no_text_of_a_key_is_refused(text: str) -> None:
    with pytest.raises(KeyEncodingError, match="not the canonical string"):
        decode_key(text)


# -- the key selector ----------------------------------------------------------------


def test_error_of_the_selector_names_record_and_error() -> None:
    with pytest.raises(KeyEncodingError) as caught:
        KeyEncoder(lambda record: record["user"])({"id": 7})
    assert "KeyError: 'user'" in caught.value.message
    assert caught.value.found == "record {'id': 7}"
    assert isinstance(caught.value.__cause__, KeyError)


def test_error_of_the_key_names_the_record() -> None:
    with pytest.raises(KeyEncodingError) as caught:
        KeyEncoder(lambda record: record["tags"])({"tags": ["a"]})
    assert "builtins.list" in caught.value.message
    assert caught.value.found == "['a'] of record {'tags': ['a']}"
    assert caught.value.fix


def test_long_records_are_shortened() -> None:
    with pytest.raises(KeyEncodingError) as caught:
        KeyEncoder(lambda record: [])("x" * 10_000)
    assert len(str(caught.value)) < 1000


@each_case("record", [["unhashable"], {"a": 1}, 1.0 + math.nan])
def test_bad_key_stops_the_operator_before_it_runs(record: Any) -> None:
    harness = probe(lambda record, ctx: record, key_selector=lambda record: record)
    with pytest.raises(KeyEncodingError):
        harness.push(record)
    assert harness.outputs == []


def first_of(record: Any) -> Any:
    return {}[record]


@each_case(
    ("selector", "line"),
    [
        (first_of, "in first_of"),
        (lambda record: first_of(record), "in first_of"),
        (lambda record: [record], "<lambda>"),
        (lambda record: float("nan"), "<lambda>"),
        (itemgetter("id"), "itemgetter"),
    ],
)
def test_the_line_of_the_selector_comes_first(selector: Any, line: str) -> None:
    with pytest.raises(KeyEncodingError) as caught:
        KeyEncoder(selector)("x")
    error = caught.value
    assert error.where is not None and line in error.where
    assert line == "itemgetter" or "test_serde_keys.py:" in str(error).splitlines()[0]
    assert error.expected and error.found and error.fix


def test_actions_see_the_key_as_the_selector_gave_it() -> None:
    keys = [key for key in DISTINCT if not isinstance(key, int) or abs(key) < 2**64]
    harness = probe(lambda record, ctx: (type(ctx.key).__name__, ctx.key), key_selector=lambda record: record)
    harness.push_all(keys)
    assert harness.outputs == [(type(key).__name__, key) for key in keys]


def test_each_key_has_its_own_sequence_and_memory() -> None:
    def body(record: Any, ctx: Any) -> tuple[int, int]:
        ctx.short_term_memory.set("n", ctx.short_term_memory.get("n", 0) + 1)
        return ctx.sequence_number, ctx.short_term_memory.get("n")

    harness = probe(body, key_selector=lambda record: record)
    harness.push_all(DISTINCT)
    harness.push_all(DISTINCT)
    assert harness.outputs == [(0, 1)] * len(DISTINCT) + [(1, 2)] * len(DISTINCT)


def test_equal_keys_are_one_key() -> None:
    harness = probe(lambda record, ctx: ctx.sequence_number, key_selector=lambda record: record)
    for left_key, right_key in EQUAL:
        first = harness.push(left_key)[0]
        second = harness.push(right_key)[0]
        assert second == first + 1


# -- frozen classes ------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    country: str
    city: Any = None


@dataclass(frozen=True)
class OtherPlace:
    country: str
    city: Any = None


class Account(BaseModel, frozen=True):
    bank: str
    number: Any = 0


class Iban(RootModel[str], frozen=True):
    pass


FROZEN: list[Any] = [
    Place("DE", "Köln"),
    Place("DE"),
    Place("DE:", "x"),
    Place("DE", ("x", 1)),
    Place("DE", OtherPlace("DE")),
    OtherPlace("DE", "Köln"),
    Account(bank="B", number=1),
    Account(bank="B", number="1"),
    Account(bank="B", number=Place("DE")),
    Iban("DE1"),
    (Place("DE"), 1),
    ("DE", "Köln"),
]


def test_frozen_classes_are_keys_that_differ_by_class_and_fields() -> None:
    texts = [encode_key(key) for key in FROZEN]
    assert len(set(texts)) == len(FROZEN)
    for key, text in zip(FROZEN, texts, strict=True):
        assert text.isascii() and text.isprintable()
        assert decode_key(text) == key
        assert type(decode_key(text)) is type(key)
        assert encode_key(decode_key(text, from_outside=True)) == text


def test_equal_keys_of_frozen_classes_are_one_key() -> None:
    assert encode_key(Place("DE", Decimal("1.0"))) == encode_key(Place("DE", Decimal("1.00")))
    assert encode_key(Account(bank="B")) == encode_key(Account(bank="B", number=0))


@dataclass
class Open:
    name: str


@dataclass(frozen=True)
class Partly:
    name: str
    note: str = field(default="", compare=False)


@dataclass(frozen=True, eq=False)
class ByIdentity:
    name: str


class OpenAccount(BaseModel):
    bank: str


class Extra(BaseModel, frozen=True, extra="allow"):
    bank: str


@each_case(
    ("key", "text"),
    [
        (Open("a"), r"write @dataclass\(frozen=True\) above Open"),
        (OpenAccount(bank="a"), r"write class OpenAccount\(BaseModel, frozen=True\)"),
        (Partly("a"), "compare=False"),
        (ByIdentity("a"), "eq=False"),
        (Extra.model_validate({"bank": "a", "more": 1}), "besides its fields"),
        (Place("DE", ["x"]), "the field 'city' of a key of type Place"),
        (Place("DE", math.nan), "the field 'city' of a key of type Place"),
        ((1, Open("a")), "frozen=True"),
    ],
)
def test_classes_that_are_no_keys_say_what_to_write(key: Any, text: str) -> None:
    with pytest.raises(KeyEncodingError, match=text):
        encode_key(key)


def test_a_key_whose_class_has_other_fields_by_now_is_refused_by_name() -> None:
    text = encode_key(Place("DE")).replace("country", "land")
    with pytest.raises(KeyEncodingError, match="Place no longer fits its class") as caught:
        decode_key(text)
    assert "land" in str(caught.value)
    renamed_key = encode_key(Place("DE")).replace(":Place", ":Gone")
    with pytest.raises(UnknownTypeNameError, match="the name is part of the key"):
        decode_key(renamed_key)
