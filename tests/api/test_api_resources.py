"""Tools, prompts, and descriptions of what is connected later."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ValidationError

from flink_agents import ChatMessage, Prompt, ResourceDescriptor, ResourceRef, ResourceType, Tool
from flink_agents.api.errors import ActionSignatureError, AgentDefinitionError
from flink_agents.api.resources import references_of
from tests.suite.tables import each_case


class Customer(BaseModel):
    name: str
    age: int = 0


@dataclass
class Place:
    city: str


def search(
    query: str, limit: int = 10, *, kind: Literal["a", "b"] = "a", who: Customer | None = None, at: Any = None
) -> list[Any]:
    """Search the shop.

    Only this agent sees the second paragraph.
    """
    return [query, limit, kind, who, at]


async def later(number: int) -> int:
    await asyncio.sleep(0)
    return number + 1


later.__doc__ = "Come back\nlater.\n\nMore."


def visit(place: Place) -> str:
    return place.city


# -- tools ---------------------------------------------------------------------------


def test_name_and_description_come_from_the_function() -> None:
    assert (Tool(search).name, Tool(search).description) == ("search", "Search the shop.")
    assert Tool(later).description == "Come back later."
    assert Tool(visit).description == ""
    named = Tool(search, name="find", description="Find it")
    assert (named.name, named.description) == ("find", "Find it")


def test_schema_describes_the_parameters() -> None:
    schema = Tool(search).parameters
    assert schema["type"] == "object"
    assert schema["required"] == ["query"]
    assert list(schema["properties"]) == ["query", "limit", "kind", "who", "at"]
    assert schema["properties"]["query"]["type"] == "string"
    assert (schema["properties"]["limit"]["type"], schema["properties"]["limit"]["default"]) == (
        "integer",
        10,
    )
    assert schema["properties"]["kind"]["enum"] == ["a", "b"]
    assert schema["$defs"]["Customer"]["properties"]["age"]["default"] == 0


def test_schema_is_json_and_stable() -> None:
    assert Tool(search).parameters == Tool(search).parameters
    assert "Place" in str(Tool(visit).parameters)


def test_call_converts_and_checks_arguments() -> None:
    tool = Tool(search)
    assert tool("x", limit="3", kind="b", who={"name": "Ada", "age": "36"}) == [
        "x",
        3,
        "b",
        Customer(name="Ada", age=36),
        None,
    ]
    assert tool.call("x") == tool("x")
    assert Tool(visit)(place={"city": "Ulm"}) == "Ulm"
    for wrong in (
        {},
        {"query": "x", "limit": "many"},
        {"query": "x", "kind": "c"},
        {"query": "x", "other": 1},
    ):
        with pytest.raises(ValidationError):
            tool(**wrong)


def test_async_tool_gives_something_to_await() -> None:
    result = Tool(later)("4")
    assert inspect.isawaitable(result)

    async def wait() -> int:
        return await result

    assert asyncio.run(wait()) == 5


def test_bound_method_is_a_tool_without_self() -> None:
    class Shop:
        factor = 3

        def price(self, number: int) -> int:
            return number * self.factor

    tool = Tool(Shop().price)
    assert list(tool.parameters["properties"]) == ["number"]
    assert tool(number="2") == 6


def no_annotation(query, limit: int = 1) -> None: ...  # type: ignore[no-untyped-def]


def many(*queries: str) -> None: ...


def anything(**queries: str) -> None: ...


def by_place(query: str, /) -> None: ...


@each_case(
    ("func", "parameter"),
    [(no_annotation, "query"), (many, "queries"), (anything, "queries"), (by_place, "query")],
)
def test_parameter_that_no_schema_can_describe_is_a_named_error(func: Any, parameter: str) -> None:
    with pytest.raises(ActionSignatureError) as caught:
        Tool(func)
    assert parameter in caught.value.message
    assert func.__name__ in caught.value.message
    assert caught.value.fix


# -- prompts -------------------------------------------------------------------------

CHAT = Prompt.from_messages(
    [
        ChatMessage(role="system", content="You help {shop}."),
        ChatMessage(role="user", content="{question} ({order.number:>3}, {tags[0]})"),
    ]
)


class Order:
    number = 7


def test_prompt_of_one_text() -> None:
    assert Prompt.from_text("Hi {name}").messages == (ChatMessage(role="user", content="Hi {name}"),)
    assert Prompt.from_text("Hi", role="system").messages[0].role == "system"
    assert Prompt.from_text("plain").format_string() == "plain"


def test_variables_are_filled_in() -> None:
    assert CHAT.variables == {"shop", "question", "order", "tags"}
    values = {"shop": "Us", "question": "Why {so}?", "order": Order(), "tags": ["a"], "unused": 1}
    assert CHAT.format_messages(**values) == [
        ChatMessage(role="system", content="You help Us."),
        ChatMessage(role="user", content="Why {so}? (  7, a)"),
    ]
    assert CHAT.format_string(**values) == "You help Us.\nWhy {so}? (  7, a)"


def test_doubled_braces_are_braces() -> None:
    prompt = Prompt.from_text('{{"answer": {n}}}')
    assert prompt.variables == {"n"}
    assert prompt.format_string(n=1) == '{"answer": 1}'


@each_case(
    ("given", "missing"),
    [
        ({}, "order=..., question=..., shop=..., tags=..."),
        ({"shop": 1, "tags": []}, "order=..., question=..."),
    ],
)
def test_missing_variables_are_a_named_error(given: dict[str, Any], missing: str) -> None:
    with pytest.raises(AgentDefinitionError) as caught:
        CHAT.format_messages(**given)
    assert caught.value.fix == f"pass {missing}"
    assert caught.value.expected == "order, question, shop, tags"
    assert caught.value.found == (", ".join(sorted(given)) or "none")


def test_variables_inside_a_format() -> None:
    prompt = Prompt.from_text("{n:>{width}}")
    assert prompt.variables == {"n", "width"}
    assert prompt.format_string(n=7, width=3) == "  7"
    with pytest.raises(AgentDefinitionError, match="has variables without a value"):
        prompt.format_string(n=7)


def test_a_variable_may_be_called_self() -> None:
    assert Prompt.from_text("{self}").format_string(self=1) == "1"


MALFORMED = [
    "{}",
    "{0}",
    "{0.a}",
    "a { b",
    "a } b",
    "{",
    "{x.}",
    "{x[}",
    "{x[]}",
    "{.x}",
    "{x!z}",
    "{x:{}}",
    "{x:{0}}",
    "{x:{y:{z}}}",
    '{"a": 1}',
]


@each_case("text", MALFORMED)
def test_template_that_nothing_can_fill_in_is_a_named_error(text: str) -> None:
    prompt = Prompt.from_text(text)
    for use in (lambda: prompt.variables, prompt.format_messages, lambda: prompt.format_string(x=1, y=1)):
        with pytest.raises(AgentDefinitionError, match="has a template that cannot be filled in") as caught:
            use()
        assert "{{ and }} for braces" in (caught.value.expected or "")
        assert f"in {text!r}" in (caught.value.found or "")
        assert "double the braces" in (caught.value.fix or "")


class Unwilling:
    def __format__(self, spec: str) -> str:
        raise LookupError("not now")


@each_case(
    ("text", "value", "found"),
    [
        ("{x.y}", "text", "AttributeError: 'str' object has no attribute 'y'"),
        ("{x[y]}", {}, "KeyError: 'y'"),
        ("{x[7]}", [], "IndexError: list index out of range"),
        ("{x[y]}", 5, "TypeError: "),
        ("{x:d}", "text", "ValueError: "),
        ("{x:>5}", None, "TypeError: "),
        ("{x}", Unwilling(), "LookupError: not now"),
    ],
)
def test_value_without_what_the_template_takes_is_a_named_error(text: str, value: Any, found: str) -> None:
    with pytest.raises(AgentDefinitionError, match="cannot be filled in with these values") as caught:
        Prompt.from_text(text).format_string(x=value)
    assert caught.value.found and caught.value.found.startswith(found)
    assert f"in {text!r}" in caught.value.found
    assert "attributes, entries and formats" in (caught.value.expected or "")
    assert caught.value.fix


def test_prompts_are_frozen_and_travel_as_json() -> None:
    assert Prompt.model_validate_json(CHAT.model_dump_json()) == CHAT
    with pytest.raises(ValidationError):
        CHAT.messages = ()  # pyright: ignore[reportAttributeAccessIssue]


# -- descriptors ---------------------------------------------------------------------


def test_descriptor_names_its_class() -> None:
    assert ResourceDescriptor(clazz=Customer).clazz == f"{__name__}:Customer"
    described = ResourceDescriptor(clazz="a.b:C", name="x", tags=[1])
    assert described.clazz == "a.b:C"
    assert described.arguments == {"name": "x", "tags": [1]}
    assert repr(described) == "ResourceDescriptor(clazz='a.b:C', **{'name': 'x', 'tags': [1]})"


def ref(kind: ResourceType, name: str) -> ResourceRef:
    return ResourceRef(type=kind, name=name)


T = ResourceType
REFERENCES: list[tuple[ResourceType, dict[str, Any], list[ResourceRef]]] = [
    (T.CHAT_MODEL, {"connection": "c", "model": "m"}, [ref(T.CHAT_MODEL_CONNECTION, "c")]),
    (T.CHAT_MODEL, {"prompt": "p"}, [ref(T.PROMPT, "p")]),
    (T.CHAT_MODEL, {"tools": ["a", "b"]}, [ref(T.TOOL, "a"), ref(T.TOOL, "b")]),
    (T.EMBEDDING_MODEL, {"connection": "c"}, [ref(T.CHAT_MODEL_CONNECTION, "c")]),
    (T.VECTOR_STORE, {"embedding_model": "e", "connection": "no"}, [ref(T.EMBEDDING_MODEL, "e")]),
    (
        T.MCP_SERVER,
        {"any": ref(T.TOOL, "t"), "more": [ref(T.PROMPT, "p"), 1]},
        [ref(T.TOOL, "t"), ref(T.PROMPT, "p")],
    ),
    (T.CHAT_MODEL, {"connection": None, "tools": []}, []),
]


@each_case(("kind", "arguments", "expected"), REFERENCES)
def test_references(kind: ResourceType, arguments: dict[str, Any], expected: list[ResourceRef]) -> None:
    assert references_of(kind, arguments) == expected
