"""Which actions an event runs, in which order, and what happens to events that none accepts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from core_agents import BigStep, Other, Step, action_fails

from flink_agents import Agent, Event, InputEvent, NamedEvent, OutputEvent, action
from flink_agents.api.errors import ActionFailedError, UnhandledEventError, UnknownTriggerError
from flink_agents.testing import OperatorHarness


class Renamed(Event):
    EVENT_TYPE = "orders.renamed"

    number: int = 0


class Shape(NamedEvent):
    pass


EVENTS: dict[str, Event] = {
    "step": Step(number=1),
    "big": BigStep(number=2),
    "other": Other(value=3),
    "renamed": Renamed(),
    "named": NamedEvent(type="circle", attributes={"r": 1}),
    "named as a class": NamedEvent(type="Step"),
    "shape": Shape(type="square"),
}


class Router(Agent):
    """Sends the event that its input names; each action tells that it ran."""

    @action(InputEvent, emits=[Step, BigStep, Other, Renamed, NamedEvent, Shape, "circle", "Step", "square"])
    def start(self, event: InputEvent, ctx: Any) -> Event:
        return EVENTS[event.input]

    @action(Step)
    def by_class(self, event: Step, ctx: Any) -> OutputEvent:
        return OutputEvent(output="class Step")

    @action(BigStep)
    def by_subclass(self, event: BigStep, ctx: Any) -> OutputEvent:
        return OutputEvent(output="class BigStep")

    @action("Step")
    def by_text(self, event: Event, ctx: Any) -> OutputEvent:
        return OutputEvent(output="'Step'")

    @action("BigStep", "orders.renamed")
    def by_texts(self, event: Event, ctx: Any) -> OutputEvent:
        return OutputEvent(output="'BigStep' or 'orders.renamed'")

    @action("circle", "square")
    def by_name(self, event: NamedEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output="'circle' or 'square'")

    @action(NamedEvent)
    def by_named_class(self, event: NamedEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output="class NamedEvent")

    @action(Event)
    def by_base(self, event: Event, ctx: Any) -> OutputEvent | None:
        return None if isinstance(event, InputEvent) else OutputEvent(output="class Event")


ROUTES: dict[str, list[str]] = {
    "step": ["class Step", "'Step'", "class Event"],
    "big": ["class Step", "class BigStep", "'BigStep' or 'orders.renamed'", "class Event"],
    "other": ["class Event"],
    "renamed": ["'BigStep' or 'orders.renamed'", "class Event"],
    "named": ["'circle' or 'square'", "class NamedEvent", "class Event"],
    "named as a class": ["'Step'", "class NamedEvent", "class Event"],
    "shape": ["'circle' or 'square'", "class NamedEvent", "class Event"],
}


@pytest.mark.parametrize(("name", "expected"), ROUTES.items(), ids=ROUTES.keys())
def test_event_runs_the_actions_that_it_triggers_in_their_order(name: str, expected: list[str]) -> None:
    harness = OperatorHarness(Router)
    assert harness.push(name) == expected
    assert harness.push(name) == expected


def test_routes_of_one_event_do_not_leak_into_another() -> None:
    harness = OperatorHarness(Router)
    for name, expected in [*ROUTES.items(), *reversed(ROUTES.items())]:
        assert harness.push(name) == expected


class Overlapping(Agent):
    @action(InputEvent, Event, "_input_event", InputEvent)
    def once(self, event: Event, ctx: Any) -> OutputEvent:
        return OutputEvent(output="once")


def test_overlapping_triggers_run_the_action_once() -> None:
    assert OperatorHarness(Overlapping).push(1) == ["once"]


class Everything(Agent):
    @action(InputEvent)
    def start(self, event: InputEvent, ctx: Any) -> Iterator[Event]:
        yield Step(number=1)
        yield OutputEvent(output="out")

    @action(Event)
    def watch(self, event: Event, ctx: Any) -> OutputEvent:
        return OutputEvent(output=event.event_type)


def test_outputs_are_not_routed_even_where_all_events_are_taken() -> None:
    assert OperatorHarness(Everything).push(1) == ["out", "_input_event", "Step"]


class SpecialOutput(OutputEvent):
    pass


class OutputClass(Agent):
    @action(InputEvent)
    def start(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return SpecialOutput(output=event.input)


def test_subclass_of_an_output_leaves_as_well() -> None:
    assert OperatorHarness(OutputClass).push(1) == [1]


@pytest.mark.parametrize("trigger", [OutputEvent, "_output_event", SpecialOutput])
def test_output_events_trigger_nothing(trigger: Any) -> None:
    agent = Agent().add_action("a", [InputEvent, trigger], lambda event, ctx: None)
    with pytest.raises(UnknownTriggerError, match="OutputEvent"):
        OperatorHarness(agent)


# -- conditions ----------------------------------------------------------------------


class Sorting(Agent):
    @action(InputEvent, when=lambda event: event.input > 0)
    def positive(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=f"{event.input} > 0")

    @action(InputEvent, when=lambda event: event.input % 2 == 0)
    def even(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=f"{event.input} even")


@pytest.mark.parametrize(
    ("record", "expected"),
    [(1, ["1 > 0"]), (2, ["2 > 0", "2 even"]), (-2, ["-2 even"]), (0, ["0 even"])],
)
def test_condition_decides_for_its_action_only(record: int, expected: list[str]) -> None:
    assert OperatorHarness(Sorting).push(record) == expected


def test_event_that_no_condition_accepts_fails_the_job_by_default() -> None:
    harness = OperatorHarness(Sorting)
    with pytest.raises(UnhandledEventError) as caught:
        harness.push(-1)
    assert "positive, even" in str(caught.value)
    assert "input=-1" in str(caught.value)
    assert "key 0, sequence 0" in str(caught.value)


def test_error_in_a_condition_is_an_error_of_its_action() -> None:
    with pytest.raises(ActionFailedError, match="action positive") as caught:
        OperatorHarness(Sorting).push("text")
    assert isinstance(caught.value.__cause__, TypeError)
    assert "test_execution_routing.py" in caught.value.message or "test_execution_routing.py" in (
        caught.value.where or ""
    )


class Conditional(Agent):
    """Only inner events may find no action."""

    @action(InputEvent)
    def start(self, event: InputEvent, ctx: Any) -> Iterator[Event]:
        yield Step(number=event.input)
        yield OutputEvent(output="started")

    @action(Step, when=lambda event: event.number == 1)
    def one(self, event: Step, ctx: Any) -> OutputEvent:
        return OutputEvent(output="one")


@pytest.mark.parametrize("source", ["agent", "options"])
@pytest.mark.parametrize(("policy", "letters"), [("ignore", 0), ("dead-letter", 1)])
def test_policy_for_unhandled_events(source: str, policy: str, letters: int) -> None:
    agent = Conditional()
    if source == "agent":
        agent.on_unhandled = policy
    harness = OperatorHarness(agent, config={"events.on-unhandled": policy} if source == "options" else None)
    assert harness.push_all([1, 2]) == ["started", "one", "started"]
    assert len(harness.dead_letters) == letters
    assert harness.run_metrics["events_dead_lettered" if letters else "events_ignored"] == 1
    assert harness.sequence_number() == 2


def test_policy_of_the_agent_wins_over_the_options() -> None:
    agent = Conditional()
    agent.on_unhandled = "ignore"
    harness = OperatorHarness(agent, config={"events.on-unhandled": "fail"})
    assert harness.push(2) == ["started"]


def test_dead_letter_of_an_unhandled_event() -> None:
    harness = OperatorHarness(
        Conditional, config={"events.on-unhandled": "dead-letter"}, key_selector=lambda r: "k"
    )
    harness.push(7, timestamp=99)
    (letter,) = harness.dead_letters
    assert letter.model_dump(exclude={"event", "error_message", "traceback"}) == {
        "agent": "Conditional",
        "action": None,
        "key": "k",
        "sequence_number": 0,
        "timestamp": 99,
        "event_type": "Step",
        "error_type": "UnhandledEventError",
        "where": "",
        "attempts": (),
        "run_input": 7,
    }
    assert letter.record == 7
    assert letter.event == Step(number=7)
    assert "condition of one of these actions to hold: one" in letter.error_message


# -- chains and inheritance ----------------------------------------------------------


class Chained(Agent):
    @action(InputEvent)
    def first(self, event: InputEvent, ctx: Any) -> Step:
        ctx.sensory_memory.set("trace", ["first"])
        return Step(number=event.input)

    @action(Step, when=lambda event: event.number < 3)
    def again(self, event: Step, ctx: Any) -> Step:
        ctx.sensory_memory.append("trace", event.number)
        return Step(number=event.number + 1)

    @action(Step, when=lambda event: event.number >= 3)
    def last(self, event: Step, ctx: Any) -> OutputEvent:
        return OutputEvent(output=ctx.sensory_memory.get("trace"))


def test_actions_chain_by_the_events_that_they_emit() -> None:
    assert OperatorHarness(Chained).push_all([0, 3]) == [["first", 0, 1, 2], ["first"]]


class Mixin:
    @action(Step)
    def mixed(self, event: Step, ctx: Any) -> OutputEvent:
        return OutputEvent(output=f"mixed {event.number}")


class Base(Agent):
    @action(InputEvent)
    def start(self, event: InputEvent, ctx: Any) -> Event:
        return Step(number=1)

    @action(Step)
    def handle(self, event: Step, ctx: Any) -> OutputEvent:
        return OutputEvent(output="base")


class Derived(Mixin, Base):
    def handle(self, event: Step, ctx: Any) -> OutputEvent:
        return OutputEvent(output="derived")


class Silent(Derived):
    mixed = None  # pyright: ignore[reportAssignmentType]


def test_actions_are_inherited_overridden_mixed_in_and_removed() -> None:
    assert OperatorHarness(Base).push(1) == ["base"]
    assert OperatorHarness(Derived).push(1) == ["derived", "mixed 1"]
    assert OperatorHarness(Silent).push(1) == ["derived"]


class Endless(Agent):
    @action(InputEvent, Step)
    def loop(self, event: Event, ctx: Any) -> Step:
        return Step()


def test_endless_chain_ends_with_a_named_error() -> None:
    from flink_agents.api.errors import EventLimitError

    with action_fails(EventLimitError, "more than 50 events"):
        OperatorHarness(Endless, config={"run.max-events": 50}).push(1)


class Flood(Agent):
    @action(InputEvent)
    def flood(self, event: Event, ctx: Any) -> Iterator[OutputEvent]:
        while True:
            yield OutputEvent(output=1)


def test_endless_action_ends_with_a_named_error() -> None:
    from flink_agents.api.errors import EventLimitError

    with action_fails(EventLimitError, "more than 50 events"):
        OperatorHarness(Flood, config={"run.max-events": 50}).push(1)


class First(NamedEvent):
    pass


class Second(NamedEvent):
    pass


class ByClass(Agent):
    @action(InputEvent)
    def start(self, event: InputEvent, ctx: Any) -> Any:
        return [First(type="x"), Second(type="x")]

    @action(First)
    def first(self, event: First, ctx: Any) -> OutputEvent:
        return OutputEvent(output="first")

    @action(Second)
    def second(self, event: Second, ctx: Any) -> OutputEvent:
        return OutputEvent(output="second")


def test_named_events_of_one_type_string_differ_by_class() -> None:
    assert OperatorHarness(ByClass).push(1) == ["first", "second"]


def test_ids_of_a_long_chain_need_no_deep_stack() -> None:
    class Long(Agent):
        @action(InputEvent, Step)
        def count(self, event: Event, ctx: Any) -> Event:
            number = event.number + 1 if isinstance(event, Step) else 0
            return OutputEvent(output=event.id) if number == 5000 else Step(number=number)

    [identity] = OperatorHarness(Long, forced_serialization=False).push(1)
    assert len(identity) == 24
