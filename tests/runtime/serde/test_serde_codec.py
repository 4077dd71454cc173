"""Values as bytes: what round trips, what is refused, and what corrupt bytes give."""

from __future__ import annotations

import random
import sys
import threading
from datetime import datetime, time, timedelta, tzinfo
from typing import Any, cast

import msgpack
import pytest
from core_values import (
    SUPPORTED,
    Box,
    Item,
    NeedsMore,
    Opaque,
    Order,
    Point,
    Sticky,
    Unprintable,
    same,
)
from pydantic import BaseModel
from pyflink.common import Row, RowKind

from flink_agents.api.errors import (
    StateError,
    StateFormatError,
    UnknownTypeNameError,
    UnserializableValueError,
    ValueChangedError,
)
from flink_agents.runtime.serde.codec import ValueCodec
from tests.suite.tables import each_case

CODEC = ValueCodec()


def round_trip(value: Any, codec: ValueCodec = CODEC) -> Any:
    return codec.decode(codec.encode(value))


@each_case("value", SUPPORTED.values(), ids=SUPPORTED.keys())
def test_value_comes_back_with_its_type(value: Any) -> None:
    assert same(round_trip(value), value)


@each_case("value", SUPPORTED.values(), ids=SUPPORTED.keys())
def test_equal_values_give_equal_bytes(value: Any) -> None:
    assert CODEC.encode(round_trip(value)) == CODEC.encode(value)


@each_case("value", SUPPORTED.values(), ids=SUPPORTED.keys())
def test_value_keeps_its_type_inside_of_others(value: Any) -> None:
    nested = {"a": [value, (value,), Box(value), Item(name="i", more=value)]}
    assert same(round_trip(nested), nested)


def test_all_values_at_once() -> None:
    assert same(round_trip(SUPPORTED), SUPPORTED)


def test_values_are_copies() -> None:
    inner = [1]
    copy = round_trip(Box(inner))
    inner.append(2)
    assert copy.content == [1]


def test_row_keeps_kind_and_names() -> None:
    named = Row(name="Ada", age=36)
    named.set_row_kind(RowKind.DELETE)
    copy = round_trip([named, Row(1, (2,))])
    assert copy == [named, Row(1, (2,))]
    assert copy[0].get_row_kind() is RowKind.DELETE
    assert copy[0]["age"] == 36
    assert type(copy[1][1]) is tuple


def test_private_fields_of_models_are_kept() -> None:
    assert round_trip(Sticky(text="a").visit().visit()).visits == 2


def test_cached_properties_are_no_fields() -> None:
    value = Sticky(text="abc")
    assert value.size == 4
    copy = round_trip(value)
    assert copy == value
    assert "size" not in copy.__dict__


def test_which_fields_of_a_model_were_set_is_kept() -> None:
    assert round_trip(Item(name="a")).model_dump(exclude_unset=True) == {"name": "a"}


class Oddzone(tzinfo):
    """A time zone that has an offset on some days only."""

    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        return None if dt is None else timedelta(hours=1)


class LocalModels:
    """Stands for a class whose name in the module is another one."""

    class Hidden(BaseModel):
        pass


Hidden = LocalModels.Hidden
del LocalModels.Hidden

Elsewhere = type("Elsewhere", (BaseModel,), {"__module__": "no.such.module", "__annotations__": {}})


class Words(str):
    pass


class Dict(dict[str, int]):
    pass


def local_model() -> Any:
    class Local(BaseModel):
        pass

    return Local()


REFUSED: dict[str, tuple[Any, str, str]] = {
    "object": (Opaque(), "core_values.Opaque", "Opaque()"),
    "in a list": ([1, [Opaque()]], "core_values.Opaque", "at [1][0]: Opaque()"),
    "in a dict": ({"a": {"b c": Opaque()}}, "core_values.Opaque", "at ['a']['b c']: Opaque()"),
    "a key of a dict": ({"a": {Opaque(): 1}}, "core_values.Opaque", "at ['a'][key Opaque()]: Opaque()"),
    "in a tuple": ((1, Opaque()), "core_values.Opaque", "at [1]: Opaque()"),
    "in a named tuple": (Point(1, Opaque()), "core_values.Opaque", "at .y: Opaque()"),
    "in a set": ({Opaque()}, "core_values.Opaque", "at {Opaque()}: Opaque()"),
    "in a dataclass": (Box(Opaque()), "core_values.Opaque", "at .content: Opaque()"),
    "in a model": (Item(name="a", more=[Opaque()]), "core_values.Opaque", "at .more[0]: Opaque()"),
    "in an extra field": (Order.model_validate({"vip": Opaque()}), "core_values.Opaque", "at .vip: Opaque()"),
    "class": (int, "builtins.type", "<class 'int'>"),
    "function": (len, "builtins.builtin_function_or_method", "<built-in function len>"),
    "generator": ((n for n in [1]), "builtins.generator", "generator"),
    "str subclass": (Words("a"), "Words", "'a'"),
    "dict subclass": (Dict(a=1), "Dict", "{'a': 1}"),
    "exception": (ValueError("x"), "builtins.ValueError", "ValueError('x')"),
    "local class": ([local_model()], "class local_model.<locals>.Local", "at [0]: Local()"),
    "class under another name": (Hidden(), "class LocalModels.Hidden", "Hidden()"),
    "class of no module": (Elsewhere(), "class Elsewhere", "Elsewhere()"),
    "constructor with more than fields": (
        [NeedsMore(1, 2)],
        "the constructor of the dataclass NeedsMore",
        "at [0]: NeedsMore(number=1)",
    ),
    "time whose zone has no offset": (time(1, tzinfo=Oddzone()), "time zone has no offset", "time"),
    "value without text": (
        [Unprintable()],
        "Unprintable",
        "at [0]: Unprintable (its repr raised RuntimeError)",
    ),
}


@each_case(("value", "message", "found"), REFUSED.values(), ids=REFUSED.keys())
def test_what_state_cannot_hold_is_refused_by_name(value: Any, message: str, found: str) -> None:
    with pytest.raises(UnserializableValueError) as caught:
        CODEC.encode(value)
    assert message in caught.value.message
    assert found in (caught.value.found or "")
    assert caught.value.fix


def test_long_values_are_shortened_in_errors() -> None:
    with pytest.raises(UnserializableValueError) as caught:
        CODEC.encode({"k" * 1000: Opaque()})
    assert len(str(caught.value)) < 1000


def test_codec_works_after_a_refusal() -> None:
    for _ in range(3):
        with pytest.raises(UnserializableValueError):
            CODEC.encode([1, 2, Opaque()])
        assert round_trip([1, 2]) == [1, 2]


def nested(levels: int, wrap: Any) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    return value


WRAPPERS: dict[str, Any] = {
    "list": lambda value: [value],
    "tuple": lambda value: (value,),
    "dict": lambda value: {"a": value},
    "model": lambda value: Item.model_construct(name="i", more=value),
    "dataclass": Box,
}


@each_case("wrap", WRAPPERS.values(), ids=WRAPPERS.keys())
def test_nested_values_need_no_stack(wrap: Any) -> None:
    """Flink's threads have a stack of 1 MB, and beyond it the process dies."""
    results: list[Any] = []
    value = nested(250, wrap)
    previous_size = threading.stack_size(512 * 1024)
    try:
        thread = threading.Thread(target=lambda: results.append(CODEC.encode(round_trip(value))))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(previous_size)
    assert results == [CODEC.encode(value)]


@each_case("wrap", WRAPPERS.values(), ids=WRAPPERS.keys())
def test_too_many_levels_are_refused(wrap: Any) -> None:
    with pytest.raises(UnserializableValueError, match="nested too deep"):
        CODEC.encode(nested(1500, wrap))


def test_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append((value,))
    with pytest.raises(UnserializableValueError, match="contains itself"):
        CODEC.encode(value)


# -- pickle, where it is allowed -----------------------------------------------------


def test_pickle_is_written_and_read_by_opt_in_only() -> None:
    allowing = ValueCodec(allow_pickle=True)
    data = allowing.encode({"a": [range(3)]})
    assert allowing.decode(data) == {"a": [range(3)]}
    with pytest.raises(StateFormatError, match="pickled value"):
        CODEC.decode(data)


def test_pickle_is_not_used_where_it_is_not_needed() -> None:
    assert ValueCodec(allow_pickle=True).encode(SUPPORTED) == CODEC.encode(SUPPORTED)


# -- bytes that this version did not write -------------------------------------------


def tagged(code: int, content: Any) -> bytes:
    return b"\x01" + cast("bytes", msgpack.packb({msgpack.ExtType(code, b""): content}))


def leaf(code: int, data: bytes) -> bytes:
    return b"\x01" + cast("bytes", msgpack.packb(msgpack.ExtType(code, data)))


UNREADABLE: dict[str, tuple[bytes, type[StateError], str]] = {
    "nothing": (b"", StateFormatError, "no bytes"),
    "newer version": (b"\x02\x01", StateFormatError, "version 2"),
    "version only": (b"\x01", StateFormatError, "cannot be read"),
    "cut off": (CODEC.encode("a" * 50)[:-1], StateFormatError, "incomplete"),
    "something behind": (CODEC.encode(1) + b"\x00", StateFormatError, "extra"),
    "unknown extension": (
        leaf(99, b"x"),
        StateFormatError,
        "extension 99",
    ),
    "unknown tag": (tagged(99, 1), StateFormatError, "tag 99"),
    "broken date": (leaf(6, b"2024"), StateFormatError, "cannot be read"),
    "broken decimal": (leaf(9, b"x"), StateFormatError, "cannot be read"),
    "broken zone": (
        leaf(5, b"2024-01-01T00:00:00|0|Mars/Base"),
        StateFormatError,
        "Mars/Base",
    ),
    "class of no module": (tagged(12, ["no.such:Class", 0, {}, []]), UnknownTypeNameError, "no.such:Class"),
    "class that is gone": (
        tagged(13, ["core_values:Gone", {}, b""]),
        UnknownTypeNameError,
        "core_values:Gone",
    ),
    "class that holds no data": (
        tagged(13, ["subprocess:Popen", {}, b""]),
        UnknownTypeNameError,
        "not a data class",
    ),
    "name of no class": (tagged(13, ["os:system", {}, b""]), UnknownTypeNameError, "not a data class"),
    "empty name": (tagged(11, ["", "RED"]), UnknownTypeNameError, "''"),
    "name that is no text": (tagged(11, [5, "RED"]), StateFormatError, "cannot be read"),
    "enum member that is gone": (tagged(11, ["core_values:Colour", "GREEN"]), ValueChangedError, "GREEN"),
    "model in the place of an enum": (
        tagged(11, ["core_values:Item", "name"]),
        ValueChangedError,
        "Item is a pydantic model",
    ),
}


@each_case(("data", "error", "text"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_unreadable_bytes_give_a_named_error(data: bytes, error: type[StateError], text: str) -> None:
    with pytest.raises(error) as caught:
        CODEC.decode(data)
    assert type(caught.value) is error
    assert text in str(caught.value)


def test_damaged_bytes_never_give_another_kind_of_error() -> None:
    whole = CODEC.encode({name: value for name, value in SUPPORTED.items() if name != "5,000 digits"})
    generator = random.Random(7)
    refused = 0
    for _ in range(2000):
        damaged = bytearray(whole)
        for _ in range(generator.randint(1, 3)):
            damaged[generator.randrange(1, len(damaged))] = generator.randrange(256)
        try:
            CODEC.decode(bytes(damaged))
        except StateError:
            refused += 1
    assert refused > 500


def test_threads_may_encode_at_a_time() -> None:
    """A packer has one buffer; between two parts of a value another thread may use it."""
    codec, wrong = ValueCodec(), list[Any]()
    interval = sys.getswitchinterval()

    def encode_many(name: str) -> None:
        for number in range(3000):
            value = (name, (number, ("x" * 50, (name,))))
            try:
                decoded = codec.decode(codec.encode(value))
            except Exception as error:
                decoded = error
            if decoded != value:
                wrong.append(decoded)
                return

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=encode_many, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
