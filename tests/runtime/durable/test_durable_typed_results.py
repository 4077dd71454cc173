"""Results with a ``result_type``: what the type makes of them, once, and the same on replay.

What no record can hold is rejected before the call. Results are compared part by part, with the types of all
parts, secrets and attributes that comparisons of pydantic ignore.
"""

from __future__ import annotations

import random
import re
import threading
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntFlag, StrEnum
from fractions import Fraction
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import pytest
from durable_tools import EFFECTS, SEEN, crash_and_replay, forget, one_action
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasGenerator,
    AliasPath,
    Base64Bytes,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    HttpUrl,
    Json,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    RootModel,
    Secret,
    SecretBytes,
    SecretStr,
    TypeAdapter,
    WithJsonSchema,
    computed_field,
    create_model,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass as validated_dataclass
from pydantic_core import core_schema
from typing_extensions import TypedDict

from flink_agents import DurableCallable, OutputEvent
from flink_agents.api.errors import ActionFailedError, ResultTypeError
from flink_agents.api.resources.provenance import ORIGIN
from flink_agents.runtime.execution.calls.results import ResultType
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.testing import OperatorHarness
from tests.suite.factors import factors
from tests.suite.tables import each_case

pytestmark = pytest.mark.executes_once

T = TypeVar("T")


class Colour(Enum):
    RED = 1
    GREEN = "green"


class Word(StrEnum):
    YES = "yes"


class Access(IntFlag):
    READ = 1
    WRITE = 2


class Cents(int):
    """A type of an author, which pydantic writes as JSON."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.no_info_after_validator_function(
            cls, core_schema.int_schema(), serialization=core_schema.plain_serializer_function_ser_schema(int)
        )


def times_hundred(value: Any) -> int:
    """Give another value each time."""
    return int(value) * 100


Hundred = Annotated[int, BeforeValidator(times_hundred)]


class Aliases(BaseModel):
    total: int = Field(alias="totalAmount")
    name: str = Field(validation_alias=AliasChoices("n", "label"), serialization_alias="out")
    deep: int = Field(validation_alias=AliasPath("a", "b"))


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", serialize_by_alias=True)
    first_name: str
    line_items: list[Aliases]


class Split(BaseModel):
    model_config = ConfigDict(
        alias_generator=AliasGenerator(
            validation_alias=lambda name: f"in_{name}", serialization_alias=lambda name: f"out_{name}"
        )
    )
    amount: Hundred


class Swapped(BaseModel):
    a: int = Field(alias="b")
    b: int = Field(alias="a")


class Validators(BaseModel):
    amount: int
    tags: list[str]
    doubled: Annotated[int, AfterValidator(lambda value: value * 2)]

    @field_validator("amount", mode="before")
    @classmethod
    def _amount(cls, value: Any) -> Any:
        return times_hundred(value)

    @field_validator("tags")
    @classmethod
    def _tags(cls, value: list[str]) -> list[str]:
        return [*value, "seen"]

    @model_validator(mode="before")
    @classmethod
    def _all(cls, data: Any) -> Any:
        return {**data, "doubled": data["doubled"] + 1} if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _after(self) -> Validators:
        self.tags.append("whole")
        return self


class Secrets(BaseModel):
    token: SecretStr
    raw: SecretBytes
    number: Secret[int]
    hidden: str = Field(exclude=True)
    silent: int = Field(repr=False)


class Base(BaseModel):
    a: int


class Derived(Base):
    b: int = 2


class Holder(BaseModel):
    one: Base
    many: list[Base]
    anything: Any


class Serialized(BaseModel):
    when: datetime
    price: Decimal
    items: list[int]

    @field_serializer("price")
    def _price(self, value: Decimal) -> str:
        return f"{value} EUR"

    @field_serializer("items")
    def _items(self, value: list[int]) -> int:
        return len(value)


class Lossy(BaseModel):
    a: int
    b: int

    @model_serializer
    def _model(self) -> dict[str, Any]:
        return {"sum": self.a + self.b}


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int

    @computed_field
    @property
    def twice(self) -> int:
        return self.a * 2


class Parsed(BaseModel):
    payload: Json[list[int]]
    anything: Json
    data: Base64Bytes


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int
    _private: int = PrivateAttr(default=1)
    _made: str = PrivateAttr(default_factory=lambda: uuid.uuid4().hex)


class Fresh(BaseModel):
    id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    at: datetime = Field(default_factory=datetime.now)


class Page(BaseModel, Generic[T]):
    items: list[T]
    following: T | None = None


class Ids(RootModel[list[Hundred]]):
    pass


class Tree(BaseModel):
    value: Hundred
    children: list[Tree] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    loud: bool


class Pet(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")


class Twin(BaseModel):
    a: int


@dataclass
class Plain:
    a: int
    b: list[int] = field(default_factory=list)
    c: int = field(init=False, default=3)


@dataclass(frozen=True)
class OwnField:
    cents: Cents


class OwnTuple(NamedTuple):
    cents: Cents
    hundred: Hundred


@validated_dataclass(config=ConfigDict(extra="allow"))
class Checked:
    amount: Annotated[int, BeforeValidator(times_hundred), Field(alias="theAmount")]
    low: int = Field(default=1, lt=100)

    def __post_init__(self) -> None:
        self.low = self.low + 1


class Line(TypedDict, total=False):
    amount: Hundred
    colour: Colour


class Point(NamedTuple):
    x: int
    y: Hundred


class Own(BaseModel):
    cents: Cents
    many: list[Cents]


class Values(BaseModel):
    when: datetime
    day: date
    at: time
    took: timedelta
    price: Decimal
    id: uuid.UUID
    path: Path
    address: IPv4Address
    url: HttpUrl
    size: ByteSize
    pattern: re.Pattern[str]
    part: Fraction
    number: complex
    queue: deque[int]
    counts: Counter[str]
    lists: defaultdict[str, list[int]]
    ordered: OrderedDict[str, int]
    unique: frozenset[Word]
    pair: tuple[int, str]
    keys: dict[Colour, tuple[int, ...]]
    parts: Sequence[int]
    mapping: Mapping[str, int]
    access: Access


LINE = {"totalAmount": 1, "n": "x", "a": {"b": 2}}
VALUES: dict[str, Any] = {
    "when": "2026-05-01T10:00:00+02:00",
    "day": "2026-05-01",
    "at": "10:00:00Z",
    "took": "PT3S",
    "price": "1.10",
    "id": str(uuid.UUID(int=5)),
    "path": "a/b",
    "address": "10.0.0.1",
    "url": "https://example.org/a",
    "size": "3 KB",
    "pattern": "a+",
    "part": "1/3",
    "number": "1+2j",
    "queue": [1, 2],
    "counts": {"a": 2},
    "lists": {"a": [1]},
    "ordered": {"b": 1, "a": 2},
    "unique": ["yes"],
    "pair": ["1", "b"],
    "keys": {Colour.RED: [1, 2]},
    "parts": (1, 2),
    "mapping": {"a": 1},
    "access": 3,
}
KINDS: dict[str, tuple[Any, Any]] = {
    "aliases": (Aliases, LINE),
    "an alias generator": (Camel, {"firstName": "A", "lineItems": [LINE]}),
    "aliases of two kinds": (Split, {"in_amount": 5}),
    "swapped aliases": (Swapped, {"a": 1, "b": 2}),
    "validators": (Validators, {"amount": 5, "tags": ["a"], "doubled": 1}),
    "a validator of a plain type": (Hundred, 5),
    "validators in containers": (dict[str, list[Hundred]], {"a": [5, 6]}),
    "secrets": (Secrets, {"token": "t", "raw": b"r", "number": 7, "hidden": "h", "silent": 1}),
    "subclasses": (Holder, {"one": Derived(a=1), "many": [Derived(a=2, b=3), Base(a=1)], "anything": 0}),
    "anything": (Holder, {"one": {"a": 1}, "many": [], "anything": [Colour.RED, (1, 2), {3}, Derived(a=1)]}),
    "any": (Any, (Colour.GREEN, {"a": (1,)}, frozenset({2}))),
    "serializers": (Serialized, {"when": "2026-01-01", "price": "1.1", "items": [1, 2]}),
    "a serializer of the model": (Lossy, {"a": 1, "b": 2}),
    "a lossy serializer of a type": (list[Annotated[int, PlainSerializer(lambda value: "?")]], [1]),
    "computed fields": (Computed, {"a": 1}),
    "json": (Parsed, {"payload": "[1, 2]", "anything": '{"a": 1}', "data": b"YWI="}),
    "extra fields and private attributes": (Open, {"a": 1, "b": (1, 2)}),
    "fresh defaults": (Fresh, {}),
    "generics": (Page[Hundred], {"items": [5], "following": 6}),
    "nested generics": (Page[Page[Camel]], {"items": [{"items": [{"firstName": "A", "lineItems": []}]}]}),
    "a root model": (Ids, [5, 6]),
    "recursion": (Tree, {"value": 1, "children": [{"value": 2}]}),
    "a tagged union": (Pet, {"pet": {"kind": "dog", "loud": "yes"}}),
    "a union": (list[Cat | Dog | int], [{"kind": "cat", "lives": 9}, "3"]),
    "a union that both fit": (Base | Twin, {"a": 1}),
    "the same union, the other way round": (Twin | Base, {"a": 1}),
    "a dataclass": (Plain, {"a": "1", "b": [2]}),
    "a dataclass of pydantic": (Checked, {"theAmount": 5, "low": 50, "more": (1,)}),
    "a typed dict": (Line, {"amount": 5, "colour": 1}),
    "a named tuple": (Point, (1, 5)),
    "types of an author": (Own, {"cents": 5, "many": [6]}),
    "a type of an author alone": (Cents, 5),
    "a type of an author in a container": (dict[str, Cents], {"a": 5}),
    "a type of an author in a dataclass": (OwnField, {"cents": 5}),
    "a type of an author in a named tuple": (OwnTuple, (5, 5)),
    "values": (Values, VALUES),
    "enums": (dict[str, Colour | Word | Access], {"a": 1, "b": "yes", "c": Access.READ}),
    "none": (None, None),
    "optional": (Base | None, None),
    "a schema for others": (Annotated[Base, WithJsonSchema({"type": "string"})], {"a": 1}),
}
HELD: list[Any] = []
"""What the function returns next."""


def parts(value: Any) -> Any:
    """Return a value with the types of all its parts, and what comparisons ignore."""
    kind = type(value)
    if isinstance(value, BaseModel):
        content: Any = {
            "fields": {name: parts(item) for name, item in value.__dict__.items() if name != ORIGIN},
            "extra": parts(value.__pydantic_extra__),
            "private": parts(value.__pydantic_private__),
            "set": sorted(value.model_fields_set),
        }
    elif is_dataclass(value):
        content = parts(dict(vars(value)))
    elif isinstance(value, SecretStr | SecretBytes | Secret):
        content = value.get_secret_value()
    elif isinstance(value, Mapping):
        content = (
            [(parts(key), parts(item)) for key, item in value.items()],
            getattr(value, "default_factory", 0),
        )
    elif isinstance(value, list | tuple | deque):
        content = [parts(item) for item in value]
    elif isinstance(value, set | frozenset):
        content = sorted(map(repr, map(parts, value)))
    else:
        content = repr(value)
    return kind, content


def produce(number: int) -> Any:
    EFFECTS.append(number)
    return HELD[number]


async def produce_async(number: int) -> Any:
    return produce(number)


def note(value: Any) -> None:
    """Note what an action sees. The functions below can be copies of those of this module."""
    SEEN.append(parts(value))


def held_value() -> Any:
    return HELD[0]


def act_in_thread(function: Any, kind: Any) -> Callable[..., Any]:
    def act(event: Any, ctx: Any) -> None:
        note(ctx.durable_execute(function, 0, result_type=kind))

    return act


def act_on_loop(function: Any, kind: Any) -> Callable[..., Any]:
    async def act(event: Any, ctx: Any) -> None:
        note(await ctx.durable_execute_async(function, 0, result_type=kind))

    return act


def act_with_callable(function: Any, kind: Any) -> Callable[..., Any]:
    async def act(event: Any, ctx: Any) -> None:
        call = DurableCallable(function, result_type=kind, shared=True)
        first, second = await ctx.gather(*[ctx.durable_execute_async(call, 0) for _ in range(2)])
        assert parts(first)[0] == parts(second)[0]
        note(first)

    return act


ACTS = {"in a thread": act_in_thread, "on the loop": act_on_loop, "shared, in branches": act_with_callable}


def check(act: Any, kind: Any, value: Any) -> None:
    """Compare what an action gets, at once and on replay, with what the type makes of a result."""
    forget()
    HELD[:] = [value]
    crash_and_replay(one_action(act(produce, kind)), 0)
    assert len(SEEN) == 2
    assert SEEN[0] == SEEN[1]
    assert len(EFFECTS) == (2 if act is act_with_callable else 1)
    expected = parts(TypeAdapter(kind).validate_python(value))
    if kind not in (Fresh, Open):
        assert SEEN[0] == expected
    else:
        assert SEEN[0][0] is expected[0]


@each_case("how", ACTS)
@each_case("name", KINDS)
def test_a_result_is_what_its_type_makes_of_it(name: str, how: str) -> None:
    check(ACTS[how], *KINDS[name])


# -- drawn models ---------------------------------------------------------------------------------


# Pydantic allows no such dataclass in a model with extra fields.
DRAWN = [case for name, case in KINDS.items() if name != "a dataclass"]


class Drawn:
    """Draws models, and data for them.

    Args:
        seed: The seed.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0

    def kind(self, levels: int) -> tuple[Any, Any]:
        """Return a type, and data that it accepts."""
        leaves: list[Callable[[], tuple[Any, Any]]] = [
            lambda: self.random.choice(DRAWN),
            lambda: (int, str(self.random.randrange(9))),
            lambda: (Hundred, self.random.randrange(9)),
            lambda: (SecretStr, "secret"),
            lambda: (Json[Hundred], str(self.random.randrange(9))),
            lambda: (Colour, "green"),
            lambda: (Any, (Colour.RED, {1})),
            lambda: (Cents, 5),
        ]
        if levels == 0 or self.random.random() < 0.3:
            return self.random.choice(leaves)()
        inner, data = self.kind(levels - 1)
        makers: list[Callable[[], tuple[Any, Any]]] = [
            lambda: (list[inner], [data]),
            lambda: (dict[str, inner], {"a": data}),
            lambda: (tuple[inner, ...], [data]),
            lambda: (inner | None, data),
            lambda: (Annotated[inner, AfterValidator(lambda value: value)], data),
            lambda: self.model(levels - 1),
            lambda: self.model(levels - 1),
        ]
        return self.random.choice(makers)()

    def model(self, levels: int) -> tuple[Any, Any]:
        """Return a model that no name leads to, and data for it."""
        self.count += 1
        fields: dict[str, Any] = {}
        data: dict[str, Any] = {}
        has_generator = self.random.random() < 0.3
        for number in range(self.random.randint(1, 4)):
            name = f"field_{number}"
            kind, value = self.kind(levels)
            settings: dict[str, Any] = {}
            alias = to_camel(name) if has_generator else name
            if self.random.random() < 0.3:
                settings["alias"] = alias = f"the-{number}"
            if self.random.random() < 0.2:
                settings["exclude"] = True
            if self.random.random() < 0.2:
                kind = Annotated[kind, PlainSerializer(lambda value: "gone")]
            fields[name] = (kind, Field(**settings))
            data[alias] = value
        config = ConfigDict(
            extra=self.random.choice(["ignore", "allow", "forbid"]),
            alias_generator=to_camel if has_generator else None,
            frozen=self.random.random() < 0.2,
        )
        if config.get("extra") == "allow":
            data["more"] = (1, Colour.RED)
        model_class: Any = create_model(f"Drawn{self.count}", __config__=config, **fields)
        return model_class, data


def has_fresh_parts(value: Any) -> bool:
    return "Fresh(" in repr(value) or "Open(" in repr(value)


@factors(seed=range(6), how=ACTS)
def test_an_action_gets_what_a_drawn_type_makes_of_a_result(seed: int, how: str) -> None:
    kind, data = Drawn(seed).model(3)
    forget()
    HELD[:] = [data]
    crash_and_replay(one_action(ACTS[how](produce, kind)), 0)
    assert SEEN[0] == SEEN[1]
    expected = TypeAdapter(kind).validate_python(data)
    assert has_fresh_parts(expected) or SEEN[0] == parts(expected)


@each_case("seed", range(30))
def test_a_result_is_what_a_drawn_type_makes_of_it(seed: int) -> None:
    kind, data = Drawn(seed).model(3)
    expected = TypeAdapter(kind).validate_python(data)
    result_type = ResultType(kind)
    codec = ValueCodec()
    assert result_type.unstorable is None
    recorded = result_type.encode(codec, data)
    # As another process reads it.
    restored = ResultType(kind).decode(codec, recorded, result_type.text)
    assert parts(restored) == parts(ResultType(kind).decode(codec, recorded, result_type.text))
    assert has_fresh_parts(expected) or parts(restored) == parts(expected)


# -- what cannot be stored ------------------------------------------------------------------------


class Arbitrary:
    pass


class Calling(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    name: str
    callback: Callable[[int], int] = Field(exclude=True)


class Live(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    event: threading.Event


class Nested(BaseModel):
    inner: list[Live]


class Private(BaseModel):
    _event: threading.Event = PrivateAttr(default_factory=threading.Event)


class Lazy(BaseModel):
    rows: Iterable[int]


class OfClass(BaseModel):
    kind: type[int]


class OrNone(BaseModel):
    callback: Callable[[], int] | None = None


class Bytes(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    raw: bytearray


class Raised(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    error: ValueError


class Later(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    rows: Iterator[int]
    task: Awaitable[int]


@validated_dataclass(config=ConfigDict(arbitrary_types_allowed=True))
class OfDataclass:
    thing: Arbitrary


UNSTORABLE: dict[str, tuple[Any, str]] = {
    "a function": (Calling, "Calling.callback: a function"),
    "a live object": (Live, "Live.event: values of the type threading.Event"),
    "in a container": (Nested, "Live.event"),
    "in a type": (dict[str, Nested | None], "Live.event"),
    "a private attribute": (Private, "Private._event"),
    "an iterator": (Lazy, "Lazy.rows: an iterator"),
    "an abstract iterator": (Later, "Later.rows: a live object"),
    "a class": (OfClass, "OfClass.kind: a class"),
    "one of several types": (OrNone, "OrNone.callback: a function"),
    "other bytes": (Bytes, "Bytes.raw: values of the type builtins.bytearray"),
    "an exception": (Raised, "Raised.error: a live object"),
    "a field of a dataclass": (OfDataclass, "OfDataclass.thing"),
    "alone": (Callable[[], int], "a function"),
    "a serializer that nothing reads": (
        Annotated[Callable[[], int], PlainSerializer(str)],
        "a function",
    ),
}


@each_case("how", ACTS)
@each_case("name", UNSTORABLE)
def test_what_cannot_be_stored_is_rejected_before_the_call(name: str, how: str) -> None:
    forget()
    kind, text = UNSTORABLE[name]
    HELD[:] = [None]
    with OperatorHarness(one_action(ACTS[how](produce, kind))) as harness:
        with pytest.raises(ActionFailedError) as caught:
            harness.push(0)
    assert EFFECTS == []
    assert type(caught.value.__cause__) is ResultTypeError
    assert text in str(caught.value)
    assert str(caught.value).startswith("tests/runtime/durable/test_durable_typed_results.py:")


def read_phone(value: Any) -> Any:
    return value if isinstance(value, Phone) else Phone(value)


class Phone:
    def __init__(self, digits: str) -> None:
        self.digits = digits

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Phone) and other.digits == self.digits

    def __repr__(self) -> str:
        return f"Phone({self.digits})"


Number = Annotated[Phone, PlainValidator(read_phone), PlainSerializer(lambda phone: phone.digits)]


class Contact(BaseModel):
    phone: Number


@each_case("kind,value", [(Contact, {"phone": "1"}), (list[Number], ["1", "2"]), (Number, "3")])
def test_a_type_that_pydantic_writes_and_reads_is_stored(kind: Any, value: Any) -> None:
    for act in ACTS.values():
        check(act, kind, value)


def test_pickles_hold_what_they_may() -> None:
    forget()
    HELD[:] = [{"thing": Arbitrary()}]
    options = {"state.allow-pickle": True}
    assert OperatorHarness(one_action(act_in_thread(produce, OfDataclass)), config=options).push(0) == []
    assert EFFECTS == [0]


# -- other values: the same conversion -----------------------------------------------------------


def memory_and_outputs(event: Any, ctx: Any) -> Any:
    held = ctx.short_term_memory.get("held")
    if held is None:
        ctx.short_term_memory.set("held", held_value())
        return None
    return OutputEvent(output=held)


SELF_CONTAINED = [name for name in KINDS if name not in ("a validator of a plain type", "none", "optional")]


@each_case("name", SELF_CONTAINED)
def test_memory_and_outputs_hold_the_same(name: str) -> None:
    kind, data = KINDS[name]
    value = TypeAdapter(kind).validate_python(data)
    if "author" in name and not isinstance(value, BaseModel | tuple | OwnField):
        return  # Nothing tells memory which type that is.
    HELD[:] = [value]
    harness = OperatorHarness(one_action(memory_and_outputs))
    harness.push(0)
    assert [parts(output) for output in harness.push(1)] == [parts(value)]
    codec = ValueCodec()
    assert parts(codec.decode(codec.encode(value))) == parts(value)


# -- edits ---------------------------------------------------------------------------------------


def edited(former: Any, changed: Any) -> list[Any]:
    """What the changed code sees of a call that the former code recorded."""
    from flink_agents.api.action_state import RecordKind
    from flink_agents.api.errors import StoreError
    from flink_agents.testing.faults import Fault, Faults, at_record

    forget()
    faults = Faults(at_record(RecordKind.ACTION, Fault.REFUSED))
    harness = OperatorHarness(one_action(former), store=faults.store)
    snapshot = harness.snapshot()
    with pytest.raises(StoreError):
        harness.push(0)
    harness.close()
    harness = OperatorHarness(one_action(changed), store=faults.store)
    harness.restore(snapshot)
    harness.push(0)
    assert len(EFFECTS) == 1
    return SEEN


def untyped(function: Any, kind: Any) -> Callable[..., Any]:
    def act(event: Any, ctx: Any) -> None:
        note(ctx.durable_execute(function, 0))

    return act


def local_order(name: str) -> Any:
    return create_model(name, amount=(Hundred, ...), tags=(tuple[str, ...], ()))


def test_a_type_is_added_to_a_recorded_call() -> None:
    HELD[:] = [{"amount": 5, "tags": ["a"]}]
    kind = local_order("Order")
    seen = edited(untyped(produce, None), act_in_thread(produce, kind))
    assert seen[1] == parts(kind(amount=5, tags=["a"]))


def test_a_type_is_removed_from_a_recorded_call() -> None:
    HELD[:] = [{"kind": "cat", "lives": 9}]
    seen = edited(act_in_thread(produce, Cat), untyped(produce, None))
    assert seen == [parts(Cat(kind="cat", lives=9))] * 2


def test_the_class_of_a_type_is_renamed() -> None:
    HELD[:] = [{"amount": 5, "tags": ["a"]}]
    former = create_model("Old", a=(int, ...))
    changed = create_model("New", a=(int, ...), b=(int, 2))
    HELD[:] = [{"a": 5}]
    seen = edited(act_in_thread(produce, former), act_in_thread(produce, changed))
    assert seen[1] == parts(changed(a=5))


def test_a_type_is_replaced_by_one_that_the_result_fits() -> None:
    HELD[:] = [{"a": "1"}]
    assert edited(act_in_thread(produce, Base), act_in_thread(produce, Twin))[1] == parts(Twin(a=1))


def test_a_field_with_a_default_is_added_to_the_class() -> None:
    HELD[:] = [{"a": "1"}]
    former = create_model("Same", a=(int, ...))
    changed = create_model("Same", a=(int, ...), b=(int, 2))
    seen = edited(act_in_thread(produce, former), act_in_thread(produce, changed))
    assert seen[1] == parts(changed(a=1))
