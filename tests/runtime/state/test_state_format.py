"""The bytes in state: what was written once is read for ever, and damage has a name."""

from __future__ import annotations

import dataclasses
import json
import random
import types
from decimal import Decimal
from typing import Any, cast

import core_values
import golden_state
import msgpack
import pytest
from core_values import SUPPORTED, Box, Item, Order, Point, Sticky, same
from pydantic import BaseModel, PrivateAttr, field_validator

from flink_agents.api.errors import StateFormatError, UnknownTypeNameError
from flink_agents.runtime.serde import typenames
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.runtime.state.pending import unpack_input
from flink_agents.testing.fakes.state import KeyState
from tests.suite.tables import each_case

CODEC = ValueCodec()
GOLDEN: dict[str, Any] = json.loads(golden_state.FILE.read_text())


@each_case(("name", "data"), GOLDEN["values"].items(), ids=GOLDEN["values"].keys())
def test_stored_value_is_still_read(name: str, data: str) -> None:
    assert same(CODEC.decode(bytes.fromhex(data)), SUPPORTED[name])


def test_every_kind_of_value_is_stored() -> None:
    assert GOLDEN["values"].keys() == SUPPORTED.keys()


def fields_of(head: Head) -> list[Any]:
    return [head.journal_id, head.next_seq, head.first_pending, head.next_pending, head.extra]


@each_case(("name", "data"), GOLDEN["heads"].items(), ids=GOLDEN["heads"].keys())
def test_stored_head_is_still_read_and_written_back(name: str, data: str) -> None:
    head = Head.unpack(bytes.fromhex(data))
    assert fields_of(head) == fields_of(golden_state.HEADS[name])
    assert head.pack() == bytes.fromhex(data)


def test_stored_operator_goes_on() -> None:
    harness = golden_state.harness(inline=True)
    harness.restore(golden_state.restored(GOLDEN["operator"]))
    assert harness.pending(golden_state.KEY) == 5
    assert harness.memory(golden_state.KEY) == {"count.all": 1, "ünïcode \\ .seen": ["first"]}
    assert harness.push("last", timestamp=9) == []
    waiting = ["first", {"second": (1,)}, None, 2, 3, 4]
    assert harness.end_input() == [
        (2, 1, 2, waiting[:2]),
        *((number, number - 1, None, waiting[:number]) for number in range(3, 7)),
        (7, 6, 9, [*waiting, "last"]),
    ]


def test_inputs_that_wait_are_in_the_head_and_the_others_have_a_kind() -> None:
    """A replay knows its input by the digest of its bytes, which do not depend on where it waits."""
    operator = GOLDEN["operator"]
    assert operator == golden_state.written()["operator"]
    head = Head.unpack(bytes.fromhex(operator["busy"]))
    assert [CODEC.decode(data)[0] for data in head.inputs.values()] == [{"second": (1,)}, None, 2, 3]
    pending: list[str] = list(operator["pending"].values())
    assert [data[:4] for data in pending] == ["0200"]
    assert [CODEC.decode(unpack_input(bytes.fromhex(data)))[0] for data in pending] == [4]


# -- state that cannot be read -------------------------------------------------------


def packed(version: int, fields: Any) -> bytes:
    return bytes([version]) + cast("bytes", msgpack.packb(fields))


BROKEN_HEADS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "no bytes"),
    "newer version": (packed(3, ["job", 0, 0, 0, {}]), "version 3"),
    "version only": (b"\x02", "cannot be read"),
    "cut off": (Head("job").pack()[:-1], "incomplete"),
    "something behind": (Head("job").pack() + b"\x00", "extra"),
    "too many fields": (packed(2, ["job", 0, 0, 0, {}, 5]), "cannot be read"),
    "unknown rare field": (
        packed(2, ["job", 0, 0, 0, {}, {}, None, None, False, {"owner": None}]),
        "cannot be read",
    ),
    "no fields": (packed(2, []), "cannot be read"),
    "no list": (packed(2, 5), "cannot be read"),
}


@each_case(("data", "text"), BROKEN_HEADS.values(), ids=BROKEN_HEADS.keys())
def test_broken_head_is_a_named_error(data: bytes, text: str) -> None:
    with pytest.raises(StateFormatError, match="head of a key") as caught:
        Head.unpack(data)
    assert text in str(caught.value)


@each_case(
    ("field", "value", "text"),
    [
        ("busy", b"\x09", "version 9"),
        ("pending", {}, "lacks an input"),
        ("pending", {0: b"\x09"}, "version 9"),
        ("pending", {0: b"\x01\xc1"}, "version 1"),
        ("pending", {0: b"\x02\x01\x01\xc0"}, "kind 1"),
        ("pending", {0: b"\x02"}, "no kind"),
        ("pending", {0: b"\x02\x00\x01\xc1"}, "cannot be read"),
        ("memory", {"count": (b"\x00", None), "count.all": (b"\x09", None)}, "version 9"),
        ("memory", {"count": (b"\x00", None), "count.all": (b"\x01\x93\x01", None)}, "cannot be read"),
    ],
)
def test_broken_state_stops_the_operator_with_a_named_error(field: str, value: Any, text: str) -> None:
    harness = golden_state.harness(inline=False)
    harness.push("first")
    ((key, state),) = harness.snapshot().keys.items()
    head = Head.unpack(state.head or b"")
    if field == "pending":
        head.inputs.clear()
    elif field == "memory":
        head.nodes = None
    state.busy = head.pack()
    broken = dataclasses.replace(harness.snapshot(), keys={key: dataclasses.replace(state, **{field: value})})
    with pytest.raises(Exception, match=text) as caught:
        harness.restore(broken)
        # This input makes the operator look at the key, even if nothing in state says that it waits.
        harness.push("second")
        harness.run_until_idle()
    assert StateFormatError in (type(caught.value), type(caught.value.__cause__))
    assert harness.outputs == []


@each_case("field", ["idle_since", "signals_expire", "delayed_due"])
def test_a_time_of_0_is_no_time_that_is_missing(field: str) -> None:
    head = Head("job")
    assert getattr(Head.unpack(head.pack()), field) is None
    setattr(head, field, 0)
    assert getattr(Head.unpack(head.pack()), field) == 0
    assert not head.is_unused


def test_damaged_heads_never_give_another_kind_of_error() -> None:
    generator = random.Random(5)
    whole = golden_state.HEADS["with rare fields"].pack()
    refused = 0
    for _ in range(2000):
        damaged = bytearray(whole)
        damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        try:
            Head.unpack(bytes(damaged))
        except StateFormatError:
            refused += 1
    assert refused > 100


def test_state_holds_nothing_but_bytes() -> None:
    state = KeyState()
    harness = golden_state.harness(inline=True)
    harness.push("first")
    state = harness.state(golden_state.KEY)
    assert type(state.head) is bytes
    assert {type(data) for data in (Head.unpack(state.head).nodes or {}).values()} == {bytes}


# -- classes that change after they were stored --------------------------------------


def replace_class(monkeypatch: pytest.MonkeyPatch, name: str, new: Any) -> None:
    """Let the next version of the program have another class under that name, or none."""
    for cache in (typenames.resolve_type, typenames.type_name):
        cache.cache_clear()
    if new is None:
        monkeypatch.delattr(core_values, name)
        return
    new.__module__ = core_values.__name__
    new.__qualname__ = name
    monkeypatch.setattr(core_values, name, new)


@pytest.fixture(autouse=True)
def clean_caches() -> Any:
    yield
    for cache in (typenames.resolve_type, typenames.type_name):
        cache.cache_clear()


class ItemWithMore(BaseModel):
    name: str
    price: Decimal = Decimal(0)
    more: Any = None
    stock: int = 7


class ItemWithLess(BaseModel):
    name: str


class ItemWithOtherType(BaseModel):
    name: str
    price: str


class ItemThatNeedsMore(BaseModel):
    name: str
    stock: int


def test_model_with_a_new_field_gets_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    data = CODEC.encode([Item(name="a", price=Decimal(3))])
    replace_class(monkeypatch, "Item", ItemWithMore)
    assert CODEC.decode(data) == [ItemWithMore(name="a", price=Decimal(3))]


def test_model_that_lost_a_field_is_read_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    data = CODEC.encode(Item(name="a", price=Decimal(3)))
    replace_class(monkeypatch, "Item", ItemWithLess)
    assert CODEC.decode(data) == ItemWithLess(name="a")


@pytest.mark.parametrize("new", [ItemWithOtherType, ItemThatNeedsMore])
def test_model_that_does_not_fit_any_more_is_a_named_error(monkeypatch: pytest.MonkeyPatch, new: Any) -> None:
    data = CODEC.encode(Item(name="a", price=Decimal(3)))
    replace_class(monkeypatch, "Item", new)
    with pytest.raises(StateFormatError, match="stored core_values:Item no longer fits") as caught:
        CODEC.decode(data)
    assert caught.value.fix


class ChangedSticky(BaseModel):
    """Validated once more, since its fields changed; keeps the private field that it still has."""

    text: str
    more: int = 0
    _visits: int = PrivateAttr(default=0)

    @field_validator("text")
    @classmethod
    def _mark(cls, text: str) -> str:
        return f"<{text}>"


def test_changed_model_keeps_private_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    data = CODEC.encode(Sticky(text="a").visit())
    replace_class(monkeypatch, "Sticky", ChangedSticky)
    copy = CODEC.decode(data)
    assert copy.text == "<a!>"
    assert copy._visits == 1


def test_names_and_not_aliases_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    class Aliased(BaseModel):
        items: list[Item] = []
        customer: str
        region: str = "EU"

    data = CODEC.encode(Order(customerName="Ada"))
    replace_class(monkeypatch, "Order", Aliased)
    assert CODEC.decode(data) == Aliased(customer="Ada")


@dataclasses.dataclass
class BoxWithMore:
    content: Any = None
    tags: list[str] = dataclasses.field(default_factory=list)
    size: int = 5


@dataclasses.dataclass
class BoxWithLess:
    content: Any = None


def test_dataclass_with_a_new_field_gets_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    data = CODEC.encode(Box(1, ["a"]))
    replace_class(monkeypatch, "Box", BoxWithMore)
    assert CODEC.decode(data) == BoxWithMore(1, ["a"], 5)


def test_dataclass_that_lost_a_field_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    data = CODEC.encode(Box(1, ["a"]))
    replace_class(monkeypatch, "Box", BoxWithLess)
    with pytest.raises(StateFormatError, match="tags"):
        CODEC.decode(data)


@pytest.mark.parametrize(
    ("value", "name"),
    [(Box(), "Box"), (Item(name="a"), "Item"), (core_values.Colour.RED, "Colour"), (Point(1), "Point")],
    ids=str,
)
def test_class_that_is_gone_is_a_named_error(monkeypatch: pytest.MonkeyPatch, value: Any, name: str) -> None:
    data = CODEC.encode({"a": [value]})
    replace_class(monkeypatch, name, None)
    with pytest.raises(UnknownTypeNameError, match=f"core_values:{name}") as caught:
        CODEC.decode(data)
    assert caught.value.fix


def test_class_under_its_old_name_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An alias is enough where a class has moved."""
    data = CODEC.encode(Box(1))
    moved = types.ModuleType("core_moved")
    monkeypatch.setattr(core_values, "Box", type("Moved", (Box,), {"__module__": moved.__name__}))
    typenames.resolve_type.cache_clear()
    assert CODEC.decode(data).content == 1
    assert type(CODEC.decode(data)).__name__ == "Moved"
