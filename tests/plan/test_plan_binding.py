"""A plan becomes an agent again: by name, or with its code where names lead nowhere."""

from __future__ import annotations

import functools
from typing import Any, cast

import cloudpickle
import pytest
from plan_cases import answer
from plan_shop import BigOrderPlaced, Limits, OrderPlaced, Receipt, ShopAgent, ShopContext, builder, shop
from pydantic import BaseModel

from flink_agents import (
    Agent,
    Event,
    InputEvent,
    NamedEvent,
    OutputEvent,
    Prompt,
    RunnerContext,
    Tool,
    action,
    tool,
)
from flink_agents.api.errors import (
    AgentConfigurationError,
    FunctionReferenceError,
    ResourceNotFoundError,
    ResourceUnavailableError,
)
from flink_agents.plan import AgentPlan, LoadedAgent, compile_agent, compile_with_code
from tests.suite.tables import each_case

NO_CONTEXT = cast("RunnerContext", None)


def through_json(agent: Agent, with_code: bool) -> LoadedAgent:
    """``agent`` as a worker makes it."""
    plan = AgentPlan.from_json(compile_agent(agent).to_json())
    code = cloudpickle.loads(cloudpickle.dumps(compile_with_code(agent)[1])) if with_code else None
    return LoadedAgent(plan, code)


@pytest.mark.parametrize("with_code", [False, True])
class TestShop:
    def test_instance_and_settings(self, with_code: bool) -> None:
        bound = through_json(ShopAgent(Limits(credit=5), region="us"), with_code)
        instance = cast("ShopAgent", bound.instance)
        assert (instance.limits, instance.region) == (Limits(credit=5), "us")
        assert instance.agent_name == "ShopAgent"
        assert bound.context_class is ShopContext
        assert bound.side_outputs == {"late": Receipt, "notes": str}
        assert bound.output_type is Receipt
        assert (bound.settings.on_error, bound.settings.on_unhandled) == ("dead-letter", "ignore")
        assert bound.event_types["OrderPlaced"] is OrderPlaced
        assert bound.event_types["_input_event"] is InputEvent

    def test_actions(self, with_code: bool) -> None:
        read, book, approve, thank = through_json(shop(), with_code).actions
        assert read.call(InputEvent(input=3), NO_CONTEXT) == OrderPlaced(order_id="1", total=3)
        assert read.trigger_classes == (InputEvent,)
        assert (book.is_async, book.is_async_generator, dict(book.config)) == (True, True, {"retries": 2})
        assert [
            output.output.total for output in approve.call(OrderPlaced(order_id="1", total=3), NO_CONTEXT)
        ] == [0]
        assert (approve.trigger_classes, approve.trigger_types) == (
            (OrderPlaced, BigOrderPlaced),
            {"OrderPlaced"},
        )
        assert (approve.settings.on_error, thank.settings.on_error) == ("fail", None)
        assert (thank.trigger_classes, thank.trigger_types) == ((), {"OrderPaid"})
        assert read.where.endswith(" in ShopAgent.read_order")

    def test_conditions(self, with_code: bool) -> None:
        _, book, approve, thank = through_json(shop(), with_code).actions
        assert book.settings.when and approve.settings.when and thank.settings.when is None
        assert [book.settings.when(OrderPlaced(order_id="1", total=total)) for total in (0, 1)] == [
            False,
            True,
        ]
        assert [approve.settings.when(OrderPlaced(order_id="1", total=total)) for total in (100, 101)] == [
            False,
            True,
        ]

    def test_tools(self, with_code: bool) -> None:
        bound = through_json(ShopAgent(Limits(credit=1, currency="USD")), with_code)
        rate = bound.resource("rate", "tool")
        assert isinstance(rate, Tool)
        assert (rate(2), rate(2, currency="USD"), rate.call(amount=2)) == (4, 2, 4)
        assert rate.parameters["properties"].keys() == {"amount", "currency"}
        assert bound.resource("double", "tool")(1.5) == 3
        assert bound.resource("rate", "tool") is rate

    def test_prompts(self, with_code: bool) -> None:
        greeting = through_json(shop(), with_code).resource("greeting", "prompt")
        assert isinstance(greeting, Prompt)
        assert greeting.format_string(customer="Ada", total=2) == (
            "You sell in eu.\nGreet Ada, who spent 2.00."
        )

    @pytest.mark.parametrize(
        ("name", "kind", "error", "fix"),
        [
            ("rat", "tool", ResourceNotFoundError, "did you mean 'rate'?"),
            ("greeting", "tool", ResourceNotFoundError, "'greeting' is a prompt: ask for that type"),
            ("zzz", "vector_store", ResourceNotFoundError, "with @vector_store or add_resource"),
            ("rate", "tol", ResourceNotFoundError, "did you mean 'tool'?"),
            ("local", "chat_model_connection", ResourceUnavailableError, "correct the class"),
        ],
    )
    def test_resources_that_cannot_be_had(
        self, with_code: bool, name: str, kind: str, error: type[Exception], fix: str
    ) -> None:
        with pytest.raises(error) as caught:
            through_json(shop(), with_code).resource(name, kind)
        assert fix in str(caught.value)

    def test_builder(self, with_code: bool) -> None:
        bound = through_json(builder(), with_code)
        assert [bound_action.name for bound_action in bound.actions] == ["read_order", "book_order"]
        assert type(bound.instance) is Agent
        assert bound.instance.agent_name == "Orders"
        assert bound.actions[1].settings.when is not None
        assert bound.resource("half", "tool")(3) == 1.5


def local_agent() -> Agent:
    """An agent that no name leads to."""

    class Item(BaseModel):
        price: float

    class Seen(Event):
        item: Item

    class Local(Agent):
        def __init__(self, item: Item) -> None:
            self.item = item

        @action(InputEvent, when=lambda event: event.input > 1)
        def read(self, event: Any, ctx: Any) -> Any:
            return Seen(item=self.item)

        @action(Seen)
        def end(self, event: Seen, ctx: Any) -> Any:
            return OutputEvent(output=event.item.price)

        @tool
        def price(self, item: Item) -> float:
            return item.price

    # Text annotations of a local class can be read by nobody: these are the types themselves.
    Local.price.__annotations__["item"] = Item
    Local.__init__.__annotations__["item"] = Item
    return Local(Item(price=2))


def test_code_makes_local_agents_run() -> None:
    bound = through_json(local_agent(), with_code=True)
    seen = bound.actions[0].call(InputEvent(input=2), NO_CONTEXT)
    assert bound.actions[1].call(seen, NO_CONTEXT) == OutputEvent(output=2)
    assert isinstance(seen, bound.actions[1].trigger_classes)
    assert bound.resource("price", "tool")({"price": 3}) == 3


@each_case(
    ("make", "problem"),
    [
        (local_agent, "test_plan_binding:local_agent.<locals>.Local cannot be imported by name"),
        (
            lambda: Agent(name="a").add_action("x", InputEvent, lambda event, ctx: None),
            "test_plan_binding:<lambda>.<locals>.<lambda> cannot be imported by name",
        ),
        (
            lambda: Agent(name="a").add_action("x", InputEvent, functools.partial(answer)),
            "plan_cases:<partial>.answer cannot be imported by name",
        ),
        (
            lambda: Agent(name="a").add_action("x", InputEvent, answer, when=lambda event: True),
            "test_plan_binding:<lambda>.<locals>.<lambda> cannot be imported by name",
        ),
    ],
)
def test_without_code_what_has_no_name_is_an_error(make: Any, problem: str) -> None:
    with pytest.raises(FunctionReferenceError) as caught:
        through_json(make(), with_code=False)
    assert caught.value.message == problem
    through_json(make(), with_code=True)


def test_code_of_another_agent_is_refused() -> None:
    with pytest.raises(FunctionReferenceError) as caught:
        LoadedAgent(compile_agent(shop()), compile_with_code(builder())[1])
    assert caught.value.message == "the code of the agent has no action 'book'"
    assert caught.value.found == "read_order, book_order"


@each_case(
    ("configuration", "message", "found"),
    [
        ({}, "ShopAgent cannot be constructed from its configuration", "{}: TypeError: "),
        ({"limit": 1}, "ShopAgent() has no argument 'limit'", "limit"),
        ({"limits": 1}, "the argument 'limits' of ShopAgent cannot be read from the plan", "1: 1 validation"),
    ],
)
def test_configuration_that_the_constructor_does_not_take(
    configuration: dict[str, Any], message: str, found: str
) -> None:
    plan = compile_agent(shop()).model_copy(update={"configuration": configuration})
    with pytest.raises(AgentConfigurationError) as caught:
        LoadedAgent(plan)
    assert caught.value.message == message
    assert caught.value.found and caught.value.found.startswith(found)
    assert caught.value.where and caught.value.where.endswith(" in ShopAgent")


class Picky(Agent):
    def __init__(self, limit: int) -> None:
        if limit < 0:
            raise ValueError("limit is negative")

    @action(InputEvent)
    def read(self, event: Any, ctx: Any) -> NamedEvent | None: ...


def test_what_a_constructor_objects_to_is_told() -> None:
    plan = compile_agent(Picky(1)).model_copy(update={"configuration": {"limit": -1}})
    with pytest.raises(AgentConfigurationError) as caught:
        LoadedAgent(plan)
    assert caught.value.found == '{"limit": -1}: ValueError: limit is negative'


def test_code_needs_an_instance_where_the_class_has_arguments() -> None:
    with pytest.raises(AgentConfigurationError, match="cannot be created without arguments"):
        compile_with_code(ShopAgent)[1]
