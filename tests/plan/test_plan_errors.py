"""Mistakes in agents, their triggers and names: each error has its class and points to its line."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from plan_cases import Base, Make, Other, answer, build, failure, place
from plan_shop import OrderPaid, OrderPlaced

from flink_agents import (
    Agent,
    AgentsError,
    Event,
    InputEvent,
    OutputEvent,
    Prompt,
    ResourceType,
    RunnerContext,
    action,
    tool,
)
from flink_agents.api.errors import (
    AgentDefinitionError,
    DuplicateNameError,
    EventNeverEmittedError,
    PlanFormatError,
    UnknownTriggerError,
)
from flink_agents.api.errors.base import code_line
from flink_agents.plan import AgentPlanWarning, compile_agent
from tests.suite.tables import each_case

# -- triggers --------------------------------------------------------------------------------


def misspelt_trigger() -> Any:
    class Shop(Base):
        @action("OrderPlacd")
        def book(self, event: Any, ctx: Any) -> None: ...

    return Shop


def unknown_trigger() -> Any:
    class Shop(Base):
        @action(OrderPlaced, "zzz")
        def book(self, event: Any, ctx: Any) -> None: ...

    return Shop


def trigger_without_source() -> Any:
    class Shop(Base):
        @action(OrderPaid)
        def thank(self, event: Any, ctx: Any) -> None: ...

    return Shop


def name_without_source() -> Any:
    class Shop(Base):
        @action(OrderPlaced, OrderPaid)
        def book(self, event: Any, ctx: Any) -> None: ...

        @action("OrderPaid")
        def thank(self, event: Any, ctx: Any) -> None: ...

    return Shop


def trigger_that_leaves() -> Any:
    class Shop(Base):
        @action(OutputEvent)
        def after(self, event: Any, ctx: Any) -> None: ...

    return Shop


def trigger_that_leaves_by_name() -> Any:
    return build().add_action("after", "_output_event", answer)


def trigger_that_is_no_event() -> Any:
    class Shop(Agent):
        @action(Other)  # pyright: ignore[reportArgumentType]
        def book(self, event: Any, ctx: Any) -> None: ...

    return Shop


def trigger_that_is_empty() -> Any:
    return Agent().add_action("answer", [""], answer)


def no_trigger() -> Any:
    class Shop(Agent):
        @action()
        def book(self, event: Any, ctx: Any) -> None: ...

    return Shop


def no_parentheses() -> Any:
    class Shop(Agent):
        @action  # pyright: ignore[reportArgumentType]
        def book(self, event: Any, ctx: Any) -> None: ...

    return Shop


def emits_no_event() -> Any:
    return Agent().add_action("answer", InputEvent, answer, emits=[Other])  # pyright: ignore[reportCallIssue, reportArgumentType]


TRIGGERS = [
    (misspelt_trigger, UnknownTriggerError, '@action("OrderPlacd")', "did you mean 'OrderPlaced'?"),
    (unknown_trigger, UnknownTriggerError, '@action(OrderPlaced, "zzz")', "declare it with emits=['zzz']"),
    (trigger_without_source, EventNeverEmittedError, "@action(OrderPaid)", "emits=[OrderPaid]"),
    (name_without_source, EventNeverEmittedError, "@action(OrderPlaced, OrderPaid)", "remove the action"),
    (trigger_that_leaves, UnknownTriggerError, "@action(OutputEvent)", "another event in addition"),
    (trigger_that_leaves_by_name, UnknownTriggerError, "def answer(", "another event in addition"),
    (trigger_that_is_no_event, UnknownTriggerError, "@action(Other)", "write @action(InputEvent)"),
    (trigger_that_is_empty, UnknownTriggerError, "def answer(", "write @action(InputEvent)"),
    (no_trigger, UnknownTriggerError, "@action()", "with parentheses"),
    (no_parentheses, UnknownTriggerError, "@action  #", "with parentheses"),
    (emits_no_event, UnknownTriggerError, "def answer(", "write @action(InputEvent)"),
]

# -- names -----------------------------------------------------------------------------------


def two_actions_of_one_name() -> Any:
    class Shop(Base):
        @action(InputEvent, name="read")
        def read_too(self, event: Any, ctx: Any) -> None: ...

    return Shop


def added_action_of_the_name_of_a_method() -> Any:
    return Base().add_action("read", InputEvent, answer)


def two_added_actions_of_one_name() -> Any:
    return build().add_action("answer", InputEvent, answer)


def two_resources_of_one_name() -> Any:
    class Shop(Base):
        @tool
        def rate(self) -> int:
            return 1

        @tool(name="rate")
        def rate_too(self) -> int:
            return 1

    return Shop


def two_added_resources_of_one_name() -> Any:
    agent = build().add_resource("hi", "prompt", Prompt.from_text("hi"))
    return agent.add_resource("hi", ResourceType.PROMPT, Prompt.from_text("ho"))


def two_classes_of_one_type() -> Any:
    class Placed(Event):
        EVENT_TYPE = "OrderPlaced"

    class Shop(Base):
        @action(OrderPlaced)
        def book(self, event: Any, ctx: Any) -> None:
            ctx.send_event(Placed())

    return Shop


def class_of_a_built_in_type() -> Any:
    class Mine(Event):
        EVENT_TYPE = "_input_event"

    class Shop(Base):
        @action(Mine)
        def book(self, event: Any, ctx: Any) -> None: ...

    return Shop


def class_without_type() -> Any:
    class Numbered(Event):
        EVENT_TYPE = 7  # pyright: ignore[reportAssignmentType]

    class Shop(Base):
        @action(Numbered)
        def book(self, event: Any, ctx: Any) -> None: ...

    return Shop


def agent_without_name() -> Any:
    class Shop(Base):
        agent_name = " "

    return Shop


NAMES = [
    (two_actions_of_one_name, DuplicateNameError, '@action(InputEvent, name="read")', "rename one"),
    (added_action_of_the_name_of_a_method, DuplicateNameError, "def answer(", "rename one"),
    (two_added_actions_of_one_name, DuplicateNameError, "def answer(", "its own name"),
    (two_resources_of_one_name, DuplicateNameError, '@tool(name="rate")', "rename one"),
    (two_added_resources_of_one_name, DuplicateNameError, "return agent.add_resource(", "its own name"),
    (two_classes_of_one_type, DuplicateNameError, "class Placed(Event):", "set EVENT_TYPE"),
    (class_of_a_built_in_type, DuplicateNameError, "class Mine(Event):", "set EVENT_TYPE"),
    (class_without_type, PlanFormatError, "class Numbered(Event):", "set EVENT_TYPE"),
    (agent_without_name, AgentDefinitionError, "class Shop(Base):", "set agent_name"),
]

# -- the agent itself ------------------------------------------------------------------------


def no_action() -> Any:
    class Shop(Agent):
        pass

    return Shop


def no_action_built() -> Any:
    return Agent(name="Empty")


def nothing_takes_inputs() -> Any:
    class Shop(Agent):
        @action(OrderPlaced)
        def book(self, event: Any, ctx: Any) -> OrderPlaced: ...

    return Shop


def nothing_built_takes_inputs() -> Any:
    return Agent(name="Deaf").add_action("book", OrderPlaced, answer)


def reserved_side_output() -> Any:
    class Shop(Base):
        side_outputs = {"dead-letter": str}

    return Shop


def side_output_of_delayed_events() -> Any:
    class Shop(Base):
        side_outputs = {"delayed-events": str}

    return Shop


def side_output_of_late_values() -> Any:
    class Shop(Base):
        side_outputs = {"late-outputs": str}

    return Shop


def nameless_side_output() -> Any:
    class Shop(Base):
        side_outputs = {"": str}

    return Shop


def side_outputs_without_types() -> Any:
    class Shop(Base):
        side_outputs = ("late",)  # pyright: ignore[reportAssignmentType]

    return Shop


def context_that_is_none() -> Any:
    class Shop(Base):
        context_class = Other  # pyright: ignore[reportAssignmentType]

    return Shop


def context_that_is_an_object() -> Any:
    class Shop(Base):
        context_class = 3  # pyright: ignore[reportAssignmentType]

    return Shop


def context_with_constructor() -> Any:
    class Context(RunnerContext):
        def __init__(self) -> None: ...

    class Shop(Base):
        context_class = Context

    return Shop


def unknown_policy() -> Any:
    class Shop(Base):
        on_error = "again"

    return Shop


def unknown_policy_for_the_unhandled() -> Any:
    class Shop(Base):
        on_unhandled = "retry"

    return Shop


def unknown_policy_of_an_action() -> Any:
    class Shop(Agent):
        @action(InputEvent, on_error="again")
        def read(self, event: Any, ctx: Any) -> None: ...

    return Shop


def action_replaced_by_a_value() -> Any:
    class Shop(Base):
        read = 3  # pyright: ignore[reportAssignmentType]

    return Shop


AGENTS = [
    (no_action, "class Shop(Agent):", "the agent 'Shop' has no action", "@action(InputEvent)"),
    (no_action_built, 'return Agent(name="Empty")', "the agent 'Empty' has no action", "use add_action"),
    (nothing_takes_inputs, "class Shop(Agent):", "'Shop' handles inputs", "@action(InputEvent)"),
    (nothing_built_takes_inputs, 'return Agent(name="Deaf")', "'Deaf' handles inputs", "@action(InputEvent)"),
    (reserved_side_output, "class Shop(Base):", "'dead-letter' has a reserved name", "dead_letters()"),
    (side_output_of_delayed_events, "class Shop(Base):", "has a reserved name", "delayed events"),
    (side_output_of_late_values, "class Shop(Base):", "'late-outputs' has a reserved name", "late_outputs()"),
    (nameless_side_output, "class Shop(Base):", "has no name", "name it"),
    (side_outputs_without_types, "class Shop(Base):", "is not a mapping", "side_outputs = {"),
    (context_that_is_none, "class Shop(Base):", "a subclass of RunnerContext", "derive the class"),
    (context_that_is_an_object, "class Shop(Base):", "a subclass of RunnerContext", "derive the class"),
    (
        context_with_constructor,
        "class Context(RunnerContext):",
        "its own constructor",
        "remove the constructor",
    ),
    (unknown_policy, "class Shop(Base):", "invalid on_error", "on_error='dead-letter'"),
    (unknown_policy_for_the_unhandled, "class Shop(Base):", "invalid on_unhandled", "on_unhandled='dead-"),
    (
        unknown_policy_of_an_action,
        '@action(InputEvent, on_error="again")',
        "invalid on_error",
        "omit it",
    ),
    (action_replaced_by_a_value, "class Shop(Base):", "'read' replaces a decorated method", "rename"),
]


@each_case(("make", "kind", "line", "fix"), TRIGGERS + NAMES)
def test_error_points_to_the_line(make: Make, kind: type[AgentsError], line: str, fix: str) -> None:
    error = failure(make)
    assert type(error) is kind
    assert line in place(error).line
    assert error.fix and fix in error.fix


@each_case(("make", "line", "message", "fix"), AGENTS)
def test_agent_that_cannot_work(make: Make, line: str, message: str, fix: str) -> None:
    error = failure(make)
    assert type(error) is AgentDefinitionError
    assert (line in place(error).line, message in error.message) == (True, True)
    assert error.fix and fix in error.fix


def test_the_text_names_file_line_class_and_method() -> None:
    error = failure(trigger_without_source)
    first, expected, found_line, fix, code = str(error).split("\n")
    assert first.startswith("tests/plan/test_plan_errors.py:") or "/test_plan_errors.py:" in first
    assert first.endswith(
        " in trigger_without_source.<locals>.Shop.thank: action 'thank' waits for 'OrderPaid', "
        "which no action emits"
    )
    assert expected == "  expected: an action of the agent that emits it"
    assert found_line == "  found: actions and inputs emit OrderPlaced, _input_event"
    assert fix == ("  fix: emit it, remove the action, or declare emits=[OrderPaid] if a library emits it")
    assert code == code_line("FA1004")


def test_duplicates_name_the_other_place() -> None:
    error = failure(two_actions_of_one_name)
    assert error.found and error.found.startswith("the other one at ")
    assert error.found.endswith(" in Base.read")
    builtin = failure(class_of_a_built_in_type)
    assert builtin.found == "the other one at flink_agents.api.events.InputEvent"


@each_case("value", [3, Other, Other(), "Shop", None])
def test_only_agents_are_compiled(value: Any) -> None:
    with pytest.raises(AgentDefinitionError) as caught:
        compile_agent(value)
    assert caught.value.expected == "an Agent class or instance"
    assert "0x" not in str(caught.value)


def test_unreachable_actions_are_a_warning_at_the_callers_line() -> None:
    class Shop(Agent):
        @action(InputEvent)
        def read(self, event: Any, ctx: Any) -> None: ...

        @action(OrderPlaced, OrderPaid)
        def book(self, event: Any, ctx: Any) -> OrderPlaced | OrderPaid: ...

    with pytest.warns(AgentPlanWarning) as caught:
        plan = compile_agent(Shop)
    assert [plan_action.name for plan_action in plan.actions] == ["read", "book"]
    [warning] = caught
    text = str(warning.message)
    assert "<locals>.Shop.book: action 'book' is never reached from InputEvent" in text
    assert "OrderPlaced, OrderPaid is emitted only by actions that are not reached, too" in text
    assert warning.filename == __file__


def test_actions_that_reach_each_other_in_a_circle_from_an_input_are_no_warning() -> None:
    class Shop(Base):
        @action(OrderPlaced)
        def book(self, event: Any, ctx: Any) -> OrderPaid: ...

        @action(OrderPaid)
        def again(self, event: Any, ctx: Any) -> OrderPlaced: ...

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile_agent(Shop)
