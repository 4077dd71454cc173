"""Fields of types that only Pydantic knows: state holds the JSON of those that come back as they were."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from ipaddress import IPv4Address
from pathlib import Path, PurePath
from typing import Annotated, Any, DefaultDict, Generic, NewType, TypeVar  # noqa: UP035

import msgpack
import pytest
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    EmailStr,
    Field,
    HttpUrl,
    IPvAnyAddress,
    PlainSerializer,
    SecretStr,
    create_model,
)
from pydantic_core import core_schema
from typing_extensions import TypedDict

from flink_agents import Agent, DurableCallable, Event, InputEvent, OutputEvent, RunnerContext, action
from flink_agents.api.errors import StateFormatError, UnserializableValueError
from flink_agents.runtime.serde.codec import VERSION, ValueCodec
from flink_agents.runtime.serde.library import LIBRARY
from flink_agents.runtime.serde.values import own_fields
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

CODEC = ValueCodec()
NUMBERS = itertools.count()
T = TypeVar("T")


class Phone:
    """A type of another package: it has a schema of Pydantic."""

    def __init__(self, number: str) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Phone) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def __repr__(self) -> str:
        return f"Phone({self.number!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, Phone) else Phone(str(value)),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda phone: phone.number),
        )


class Isbn(str):
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.no_info_after_validator_function(cls, core_schema.str_schema())


class Plain:
    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and other.number == self.number

    __hash__ = None  # type: ignore[assignment]


def _plain(value: Any) -> Plain:
    return value if isinstance(value, Plain) else Plain(value)


Described = Annotated[Plain, BeforeValidator(_plain), PlainSerializer(lambda plain: plain.number)]
Masked = Annotated[Plain, BeforeValidator(_plain), PlainSerializer(lambda plain: 0)]
Named = NewType("Named", Phone)


class Contact(TypedDict):
    phone: Phone


def seven() -> int:
    return 7


class Of(BaseModel, Generic[T]):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    field: T


class Fork(BaseModel):
    """Each kind of field once, as an answer of a model may have them."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    phone: Phone
    phones: list[Phone] = []
    by_name: dict[str, Phone | None] = {}
    described: Described = Field(default_factory=lambda: Plain(1))
    isbn: Isbn = Isbn("1")
    path: Path = Path("a")
    pure: Path = Path("a")
    address: IPvAnyAddress = Field(default_factory=lambda: IPv4Address("1.2.3.4"))
    mail: EmailStr = "a@b.de"
    counts: DefaultDict[str, Annotated[int, Field(default_factory=seven)]] = Field(  # noqa: UP006
        default_factory=lambda: defaultdict(int)
    )
    url: HttpUrl = HttpUrl("http://a")
    secret: SecretStr = SecretStr("a")
    queue: deque[int] = deque()


OWN: list[tuple[Any, Any]] = [
    (Phone, Phone("1")),
    (list[Phone], [Phone("1")]),
    (dict[str, Phone | None], {"a": None, "b": Phone("1")}),
    (tuple[Phone, int], (Phone("1"), 1)),
    (Phone | None, Phone("1")),
    (Described, Plain(3)),
    (list[Described], [Plain(3)]),
    (Isbn, Isbn("a")),
    (Named, Phone("1")),
    (Contact, {"phone": Phone("1")}),
    (Path, Path("a")),
]


@each_case(("kind", "value"), OWN)
def test_a_field_comes_back_as_it_was(kind: Any, value: Any) -> None:
    name = f"Holder{next(NUMBERS)}"
    holder_class = create_model(
        name, __config__=ConfigDict(arbitrary_types_allowed=True), __module__=__name__, field=(kind, ...)
    )
    globals()[name] = holder_class
    holder: Any = holder_class(field=value)
    again = CODEC.copy([holder])[0]
    assert again == holder and type(again.field) is type(value)
    assert CODEC.encode(again) == CODEC.encode(holder)


@each_case("value", [Of[Phone](field=Phone("1")), Of[list[Isbn]](field=[Isbn("1")])])
def test_a_field_of_a_parametrized_model_comes_back(value: Any) -> None:
    assert CODEC.copy(value) == value


class Bad(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    field: Any = None
    masked: Masked | None = None
    arbitrary: Plain | None = None


@each_case("value", [Bad(field=Phone("1")), Bad(masked=Plain(3)), Bad(arbitrary=Plain(3))])
def test_a_field_that_json_would_change_is_refused_by_name(value: Bad) -> None:
    with pytest.raises(UnserializableValueError) as caught:
        CODEC.encode({"a": value})
    assert "at ['a']." in str(caught.value.found)
    assert "reads back as an equal value" in str(caught.value.fix)


def test_a_value_of_another_type_in_such_a_field_keeps_its_type() -> None:
    value = Fork.model_construct(phone=Phone("1"), pure=PurePath("a"), path=Path("a"))
    again = CODEC.copy(value)
    assert type(again.pure) is type(value.pure) and type(again.path) is type(value.path)


def test_models_of_plain_fields_have_no_own_forms() -> None:
    class Everyday(BaseModel):
        a: int
        b: list[dict[str, Everyday | None]]
        c: HttpUrl | None
        d: SecretStr
        e: deque[IPv4Address]

    assert not own_fields(Everyday)
    assert set(own_fields(Fork)) == {
        *("phone", "phones", "by_name", "described", "isbn", "path", "pure", "address", "mail", "counts")
    }


def test_a_class_that_has_changed_reads_the_json() -> None:
    data = CODEC.encode(Of[Phone](field=Phone("1")))
    changed = data.replace(b"Of[" + f"{__name__}:Phone]".encode(), b"Of[" + f"{__name__}:Isbn ]".encode())
    again = CODEC.decode(changed)
    assert type(again) is Of[Isbn] and again.field == Isbn("1")


@each_case("name", ["os:system", "pathlib:Path", "collections:UserDict", "url", 3, None])
def test_bytes_name_no_other_kind(name: Any) -> None:
    content: Any = msgpack.packb({msgpack.ExtType(LIBRARY, b""): [name, ["os:system", "ls"]]})
    with pytest.raises(StateFormatError):
        CODEC.decode(VERSION + content)


# -- in a running agent --------------------------------------------------------------------------


class Sent(Event):
    answer: Fork
    phone: Phone


def answer() -> Fork:
    return Fork.model_validate({"phone": "1", "phones": ["2"], "counts": {"a": 1}, "queue": [1, 2]})


class Keeps(Agent):
    @action(InputEvent)
    async def start(self, event: InputEvent[Any], ctx: RunnerContext) -> None:
        value = await ctx.durable_execute_async(
            DurableCallable(answer, result_type=Fork if event.input else None)
        )
        ctx.short_term_memory.set("answer", value)
        ctx.send_event(Sent(answer=value, phone=Phone("3")))

    @action(Sent)
    async def take(self, event: Sent, ctx: RunnerContext) -> OutputEvent:
        await ctx.durable_execute_async(answer)
        assert event.phone == Phone("3")
        assert ctx.short_term_memory.get("answer") == event.answer
        return OutputEvent(output=event.answer)


def test_memory_events_and_records_hold_it() -> None:
    with OperatorHarness(Keeps, crash="everywhere") as harness:
        outputs = harness.push_all([False, True])
    assert outputs == [answer(), answer()]
    assert outputs[1].secret.get_secret_value() == "a"
    assert outputs[0].secret.get_secret_value() == "a"
    assert outputs[0].counts["new"] == 7
