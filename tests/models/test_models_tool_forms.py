"""Forms of functions that are tools: wrappers of async functions, partials, parameters with aliases."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_ai.exceptions import ModelRetry

from flink_agents import (
    Agent,
    ChatModel,
    InputEvent,
    MemoryObject,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    Tool,
    ToolRequestEvent,
    ToolResponseEvent,
    action,
    chat_model,
    tool,
)
from flink_agents.api.errors import ActionFailedError, ActionSignatureError
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ScriptedModel, ToolCall
from tests.suite.conditions import UNFORCED
from tests.suite.tables import each_case

pytestmark = pytest.mark.own_conditions

MODEL: list[ScriptedModel] = []
CALLED: list[str] = []


def model() -> Any:
    return MODEL[0]


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function as a library for traces does: it returns what the function returns."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        CALLED.append(threading.current_thread().name)
        return function(*args, **kwargs)

    return call


def blocking(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make an async function a blocking one."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(function(*args, **kwargs))

    return call


def future_of(item: str) -> asyncio.Future[str]:
    """Say what an item costs."""
    return asyncio.ensure_future(price_of(item))


async def price_of(item: str) -> str:
    """Say what an item costs.

    Args:
        item: The item.
    """
    await asyncio.sleep(0)
    if item == "nothing":
        raise ModelRetry("name an item")
    if item == "broken":
        raise ValueError("no price")
    return f"{item} costs 5"


async def price_for(item: str, currency: str) -> str:
    """Say what an item costs in a currency."""
    return await price_of(item)


async def price_by_key(item: str, idempotency_key: str) -> str:
    """Say what an item costs."""
    assert idempotency_key
    return await price_of(item)


async def price_in_action(item: str, ctx: RunnerContext, memory: MemoryObject) -> str:
    """Say what an item costs."""
    return await price_of(item)


class Shop:
    """Has methods that are tools."""

    @counted
    async def price_of(self, item: str) -> str:
        """Say what an item costs."""
        return await price_of(item)


ASYNC: dict[str, Callable[..., Any]] = {
    "async": price_of,
    "wrapped": counted(price_of),
    "wrapped twice": counted(counted(price_of)),
    "partial": functools.partial(price_for, currency="EUR"),
    "partial of a wrapper": functools.partial(counted(price_for), currency="EUR"),
    "wrapped with a key": counted(price_by_key),
    "wrapped with a context": counted(price_in_action),
    "method": Shop().price_of,
    "blocking wrapper": blocking(price_of),
}


class Clerk(Agent):
    """Uses a tool of the test in a chat."""

    @chat_model
    def clerk(self) -> ResourceDescriptor:
        return ChatModel(clazz=model)

    @tool
    @counted
    async def declared(self, item: str) -> str:
        """Say what an item costs."""
        return await price_of(item)

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> Any:
        result = await ctx.chat("clerk", "go", tools=TOOLS)
        contents = [
            getattr(part, "content", None) for message in result.messages[2:] for part in message.parts
        ]
        return OutputEvent(output=contents)


TOOLS: list[Any] = []


def told_by(function: Any, *calls: dict[str, Any], **options: Any) -> list[Any]:
    """What a model is told that calls a tool with these arguments."""
    offered_tool = function if isinstance(function, str) else Tool(function, "it", **options)
    TOOLS[:] = [offered_tool]
    name = offered_tool if isinstance(offered_tool, str) else "it"
    MODEL[:] = [ScriptedModel([*(ToolCall(name, call) for call in calls), "done"])]
    with OperatorHarness(Clerk(), **UNFORCED) as harness:
        [contents] = harness.push("go")
    return contents


@each_case("limits", [{}, {"max_concurrency": 1}, {"idempotent": False}])
@each_case("form", [*ASYNC])
def test_a_tool_that_returns_an_awaitable(form: str, limits: dict[str, Any]) -> None:
    assert told_by(ASYNC[form], {"item": "tea"}, **limits) == ["tea costs 5", "done"]
    [content, *_] = told_by(ASYNC[form], {"item": "nothing"}, {"item": "tea"}, **limits)
    assert content == "name an item"
    with pytest.raises(ActionFailedError, match="ValueError: no price"):
        told_by(ASYNC[form], {"item": "broken"}, **limits)


def test_a_declared_tool_that_returns_an_awaitable() -> None:
    assert told_by("declared", {"item": "tea"}) == ["tea costs 5", "done"]


class ByEvent(Clerk):
    @tool(max_concurrency=1)
    @counted
    async def limited(self, item: str) -> str:
        """Say what an item costs."""
        return await price_of(item)

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> Any:
        from flink_agents.api.models.chat_events import RequestedCall

        calls = [RequestedCall(name="limited", arguments={"item": str(n)}, id=str(n)) for n in range(3)]
        return ToolRequestEvent(calls=tuple(calls))

    @action(ToolResponseEvent)
    async def answered(self, event: ToolResponseEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=[result.content for result in event.results])


def test_an_awaitable_holds_the_limit_until_it_is_done() -> None:
    with OperatorHarness(ByEvent(), **UNFORCED) as harness:
        assert harness.push("go") == [["0 costs 5", "1 costs 5", "2 costs 5"]]
        assert harness.push("go") == [["0 costs 5", "1 costs 5", "2 costs 5"]]


# -- descriptions -------------------------------------------------------------------------


def described() -> Any:
    partial_price = functools.partial(price_for, currency="EUR")
    partial_price.__doc__ = "Say what an item costs in euros."
    return partial_price


@each_case(
    ("form", "name", "description"),
    [
        (functools.partial(price_of), "price_of", "Say what an item costs."),
        (functools.partial(functools.partial(price_of)), "price_of", "Say what an item costs."),
        (functools.partial(Shop().price_of), "price_of", "Say what an item costs."),
        (functools.partial(counted(price_of)), "price_of", "Say what an item costs."),
        (described(), "partial", "Say what an item costs in euros."),
    ],
    ids=["partial", "twice", "method", "wrapper", "described"],
)
def test_the_description_of_a_partial_is_that_of_its_function(form: Any, name: str, description: str) -> None:
    described_tool = Tool(form)
    assert (described_tool.name, described_tool.description) == (name, description)


# -- aliases ------------------------------------------------------------------------------


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)

    item_id: int


class Both(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    item_id: int


def by_alias(item_id: Annotated[int, Field(alias="itemId", description="The item.")]) -> int:
    return item_id


def by_default(item_id: int = Field(alias="itemId")) -> int:
    return item_id


def by_default_value(item_id: int = Field(5, alias="itemId")) -> int:
    return item_id


def by_validation(item_id: Annotated[int, Field(validation_alias="itemId")]) -> int:
    return item_id


def by_choices(item_id: Annotated[int, Field(validation_alias=AliasChoices("itemId", "id"))]) -> int:
    return item_id


def by_path(item_id: Annotated[int, Field(validation_alias=AliasPath("item", "id"))]) -> int:
    return item_id


def by_serialization(item_id: Annotated[int, Field(serialization_alias="itemId")]) -> int:
    return item_id


def keyword(*, item_id: Annotated[int, Field(alias="itemId")]) -> int:
    return item_id


async def in_async(item_id: Annotated[int, Field(alias="itemId")]) -> int:
    return item_id


def in_action(item_id: Annotated[int, Field(alias="itemId")], ctx: RunnerContext) -> int:
    return item_id


def with_key(item_id: Annotated[int, Field(alias="itemId")], idempotency_key: str) -> int:
    return item_id


def of_model(item: Camel) -> int:
    return item.item_id


def of_models(item: list[Both]) -> int:
    return item[0].item_id


ALIASES: list[tuple[Callable[..., Any], str, list[dict[str, Any]]]] = [
    (by_alias, "itemId", [{"itemId": 5}, {"item_id": 5}]),
    (by_default, "itemId", [{"itemId": 5}, {"item_id": 5}]),
    (by_default_value, "itemId", [{"itemId": 5}, {"item_id": 5}, {}]),
    (by_validation, "itemId", [{"itemId": 5}]),
    (by_choices, "itemId", [{"itemId": 5}, {"id": 5}, {"item_id": 5}]),
    (by_path, "item_id", [{"item_id": 5}]),
    (by_serialization, "item_id", [{"item_id": 5}]),
    (keyword, "itemId", [{"itemId": 5}]),
    (in_async, "itemId", [{"itemId": 5}]),
    (in_action, "itemId", [{"itemId": 5}]),
    (with_key, "itemId", [{"itemId": 5}]),
    (functools.partial(by_alias), "itemId", [{"itemId": 5}]),
    (counted(by_alias), "itemId", [{"itemId": 5}]),
    (of_model, "item", [{"item": {"itemId": 5}}]),
    (of_models, "item", [{"item": [{"itemId": 5}]}, {"item": [{"item_id": 5}]}]),
]


@each_case(("function", "shown", "calls"), ALIASES)
def test_a_model_calls_by_the_names_of_the_schema(
    function: Callable[..., Any], shown: str, calls: list[dict[str, Any]]
) -> None:
    assert list(Tool(function).parameters["properties"]) == [shown]
    for call in calls:
        assert told_by(function, call) == [5, "done"]
    for wrong in ({"itemid": 5}, {**calls[0], "more": 1}):
        contents = told_by(function, wrong, calls[0])
        assert "itemid" in str(contents[0]) or "more" in str(contents[0]) or function is by_default_value
        assert contents[-1] == "done"


def test_the_text_and_the_need_of_a_field_are_in_the_schema() -> None:
    assert Tool(by_alias).parameters["properties"]["itemId"]["description"] == "The item."
    assert Tool(by_default).parameters["required"] == ["itemId"]
    assert Tool(by_default_value).parameters["properties"]["itemId"]["default"] == 5


class Careful(Clerk):
    @tool(needs_approval=lambda arguments: arguments["item_id"] > 3)
    def buy(self, item_id: Annotated[int, Field(alias="itemId")]) -> int:
        """Buy an item."""
        return item_id

    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        if event.input == "itself":
            buy: Any = ctx.get_resource("buy", "tool")
            return OutputEvent(output=[await buy(item_id=5), await buy(itemId=5)])
        return await super().serve(event, ctx)


def test_conditions_and_people_see_the_names_of_the_function() -> None:
    TOOLS[:] = ["buy"]
    MODEL[:] = [ScriptedModel([ToolCall("buy", {"itemId": 5}), "done"])]
    with OperatorHarness(Careful(), **UNFORCED) as harness:
        harness.push("go")
        [request] = harness.approvals
        assert request.arguments == {"item_id": 5}
        assert harness.approve(request, {"item_id": 6}) == [[6, "done"]]
        harness.push("itself")
        harness.approve(harness.approvals[0])
        assert harness.approve(harness.approvals[0]) == [[5, 5]]


def test_names_that_mean_two_parameters_are_rejected() -> None:
    def swapped(a: Annotated[int, Field(alias="b")], b: int) -> int:
        return a

    with pytest.raises(ActionSignatureError, match="two parameters with the name 'b'"):
        Tool(swapped)
