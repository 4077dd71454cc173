"""Events: frozen pydantic classes with a type string, an id and a lineage."""

from __future__ import annotations

import copy
import pickle
from decimal import Decimal
from typing import Any, ClassVar, Generic, TypeVar

import pytest
from pydantic import BaseModel, ValidationError, create_model

from flink_agents import Agent, Event, InputEvent, NamedEvent, OutputEvent, action
from flink_agents.api.errors import AgentDefinitionError
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case


class Address(BaseModel):
    city: str


class OrderPlaced(Event):
    order_id: str
    total: Decimal = Decimal(0)
    address: Address | None = None
    tags: tuple[str, ...] = ()


class Special(OrderPlaced):
    EVENT_TYPE = "orders.special"


class MoreSpecial(Special):
    pass


class Handle:
    """No pydantic type: an event may hold it all the same."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and self.number == other.number


class Holding(Event):
    handle: Handle


SAMPLES: dict[str, Event] = {
    "input": InputEvent(input={"a": (1, b"x")}),
    "output": OutputEvent(output=None),
    "named": NamedEvent(type="circle", attributes={"r": [1]}),
    "own": OrderPlaced(order_id="1", total=Decimal("1.10"), address=Address(city="Ulm"), tags=("a",)),
    "subclass": MoreSpecial(order_id="2"),
    "any class in a field": Holding(handle=Handle(1)),
    "base": Event(),
}


@each_case(
    ("cls", "name"),
    [
        (Event, "Event"),
        (InputEvent, "_input_event"),
        (OutputEvent, "_output_event"),
        (NamedEvent, "_named_event"),
        (OrderPlaced, "OrderPlaced"),
        (Special, "orders.special"),
        (MoreSpecial, "MoreSpecial"),
    ],
)
def test_type_string_of_a_class(cls: type[Event], name: str) -> None:
    assert cls.EVENT_TYPE == name


def test_type_string_of_an_event() -> None:
    assert Special(order_id="1").event_type == "orders.special"
    assert NamedEvent(type="circle").event_type == "circle"


@each_case("event", SAMPLES.values(), ids=SAMPLES.keys())
def test_events_are_frozen(event: Event) -> None:
    for name in [*type(event).model_fields, "other"]:
        with pytest.raises(ValidationError):
            setattr(event, name, 1)


RESERVED = ["id", "lineage", "event_type", "upstream_event_id", "upstream_action_name", "_lineage"]


def test_what_events_define_is_reserved() -> None:
    properties = {name for name, value in vars(Event).items() if isinstance(value, property)}
    assert properties <= set(RESERVED)


class WithId(BaseModel):
    id: str


class PlainWithId:
    id: str = "mixin"


def declares(name: str) -> None:
    class Mine(Event):
        __annotations__ = {"other": int, name: str}


def declares_with_default() -> None:
    class Mine(Event):
        id: str = "x"  # pyright: ignore[reportIncompatibleMethodOverride]


def declares_class_variable() -> None:
    class Mine(Event):
        id: ClassVar[str] = "x"  # pyright: ignore[reportIncompatibleMethodOverride]


def declares_in_model_mixin() -> None:
    class Mine(WithId, Event): ...  # pyright: ignore[reportIncompatibleVariableOverride]


def declares_in_plain_mixin() -> None:
    class Mine(Event, PlainWithId): ...  # pyright: ignore[reportIncompatibleVariableOverride]


def declares_by_call() -> None:
    create_model("Mine", __base__=Event, id=(str, "x"))


@each_case("name", RESERVED)
def test_field_that_would_hide_an_attribute_of_events_is_a_named_error(name: str) -> None:
    with pytest.raises(AgentDefinitionError) as caught:
        declares(name)
    assert caught.value.message == f"the event class Mine declares {name!r}, which each event already has"
    assert caught.value.fix == f"rename it, for example to 'own_{name.lstrip('_')}'"
    assert "test_api_events.py" in (caught.value.where or "")


@each_case(
    "declare",
    [
        declares_with_default,
        declares_class_variable,
        declares_in_model_mixin,
        declares_in_plain_mixin,
        declares_by_call,
    ],
)
def test_reserved_name_is_found_however_it_is_declared(declare: Any) -> None:
    with pytest.raises(AgentDefinitionError, match="the event class Mine declares 'id'"):
        declare()


def test_type_string_that_would_be_a_field_is_a_named_error() -> None:
    with pytest.raises(AgentDefinitionError, match="Mine declares 'EVENT_TYPE'") as caught:

        class Mine(Event):
            EVENT_TYPE: str = "mine"  # pyright: ignore[reportIncompatibleVariableOverride]

    assert caught.value.fix == "write EVENT_TYPE = '...' without annotation"

    class Other(Event):
        EVENT_TYPE: ClassVar[str] = "other"

    assert Other.EVENT_TYPE == "other"


T = TypeVar("T")


def test_events_may_be_generic() -> None:
    class Boxed(Event, Generic[T]):
        value: T

    assert Boxed[int](value=1).model_dump() == {"value": 1}


def test_fields_are_checked_and_converted() -> None:
    event = OrderPlaced.model_validate({"order_id": "1", "total": "1.5", "address": {"city": "Ulm"}})
    assert (event.total, event.address) == (Decimal("1.5"), Address(city="Ulm"))
    for wrong in ({}, {"order_id": 1}, {"order_id": "1", "totl": 2}):
        with pytest.raises(ValidationError):
            OrderPlaced.model_validate(wrong)


@each_case("event", SAMPLES.values(), ids=SAMPLES.keys())
@each_case(
    "duplicate",
    [
        copy.copy,
        copy.deepcopy,
        lambda event: pickle.loads(pickle.dumps(event)),
        lambda event: event.model_copy(),
    ],
    ids=["copy", "deepcopy", "pickle", "model_copy"],
)
def test_copies_are_equal(event: Event, duplicate: Any) -> None:
    again = duplicate(event)
    assert type(again) is type(event)
    assert again == event
    assert again.event_type == event.event_type
    assert again.id is None


@each_case("name", ["output", "named", "own", "subclass", "base"])
def test_json_round_trip(name: str) -> None:
    event = SAMPLES[name]
    assert type(event).model_validate_json(event.model_dump_json()) == event


def test_payload_is_all_that_is_serialised() -> None:
    assert SAMPLES["subclass"].model_dump() == {
        "order_id": "2",
        "total": Decimal(0),
        "address": None,
        "tags": (),
    }


def test_unsent_event_has_no_id_and_no_lineage() -> None:
    event = OrderPlaced(order_id="1")
    assert (event.id, event.upstream_event_id, event.upstream_action_name, event.lineage) == (None,) * 4


def test_attributes_of_named_events_are_not_shared() -> None:
    first_event = NamedEvent(type="a")
    second_event = NamedEvent(type="a")
    first_event.attributes["x"] = 1
    assert second_event.attributes == {}


# -- events in a run -----------------------------------------------------------------

seen: list[Event] = []


class Chain(Agent):
    @action(InputEvent)
    def first(self, event: InputEvent, ctx: Any) -> list[Event]:
        seen.append(event)
        return [OrderPlaced(order_id="a"), OrderPlaced(order_id="a")]

    @action(OrderPlaced)
    def second(self, event: OrderPlaced, ctx: Any) -> Event:
        seen.append(event)
        return NamedEvent(type="last")

    @action("last")
    def third(self, event: Event, ctx: Any) -> None:
        seen.append(event)


@pytest.fixture
def sent() -> list[Event]:
    """The input, two equal events, and what each of them caused."""
    seen.clear()
    OperatorHarness(Chain, config={"job-identifier": "job"}).push(1)
    return list(seen)


@pytest.mark.executes_once
def test_lineage_tells_where_an_event_came_from(sent: list[Event]) -> None:
    start, first_event, second_event, after_one, after_other = sent
    assert (start.upstream_event_id, start.upstream_action_name) == (None, None)
    assert [(event.upstream_event_id, event.upstream_action_name) for event in sent[1:]] == [
        (start.id, "first"),
        (start.id, "first"),
        (first_event.id, "second"),
        (second_event.id, "second"),
    ]
    assert after_one.id != after_other.id
    assert len({event.id for event in sent}) == 5


@pytest.mark.executes_once
def test_ids_are_short_texts_that_replay_gives_again(sent: list[Event]) -> None:
    ids = [event.id for event in sent]
    assert all(
        event_id and len(event_id) == 24 and set(event_id) <= set("0123456789abcdef") for event_id in ids
    )
    seen.clear()
    OperatorHarness(Chain, config={"job-identifier": "job"}, forced_replay=True).push("another input")
    assert [event.id for event in seen] == ids * 2


def test_ids_are_computed_only_when_asked(sent: list[Event], monkeypatch: pytest.MonkeyPatch) -> None:
    from flink_agents.api import events

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("an id was computed")

    harness = OperatorHarness(Chain)
    monkeypatch.setattr(events.hashlib, "blake2b", refuse)
    harness.push_all(range(10))
    with pytest.raises(AssertionError):
        _ = seen[-1].id


def test_lineage_is_no_part_of_equality_or_serialisation(sent: list[Event]) -> None:
    _, first_event, second_event, *_ = sent
    assert first_event == second_event == OrderPlaced(order_id="a")
    assert hash(first_event) == hash(second_event)
    assert first_event.model_dump() == OrderPlaced(order_id="a").model_dump()
    assert pickle.loads(pickle.dumps(first_event)).id is None


class Twice(Agent):
    @action(InputEvent)
    def first(self, event: InputEvent, ctx: Any) -> list[Event]:
        order = OrderPlaced(order_id="a")
        return [order, order]

    @action(OrderPlaced)
    def second(self, event: OrderPlaced, ctx: Any) -> Event:
        return OutputEvent(output=event.id)


def test_an_event_sent_twice_is_two_events() -> None:
    first_id, second_id = OperatorHarness(Twice).push(1)
    assert first_id != second_id
