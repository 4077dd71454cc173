"""Configuration that no plan can hold, and resources that do not fit together."""

from __future__ import annotations

import math
from typing import Any

import pytest
from plan_cases import Base, Make, Other, build, failure, place

from flink_agents import (
    AgentsError,
    Prompt,
    ResourceDescriptor,
    ResourceRef,
    ResourceType,
    Tool,
    prompt,
)
from flink_agents.api.agents.decorators import chat_model, chat_model_connection
from flink_agents.api.errors import (
    ActionSignatureError,
    AgentConfigurationError,
    AgentDefinitionError,
    CyclicResourceError,
    MissingResourceError,
)
from tests.suite.tables import each_case

# -- configuration ---------------------------------------------------------------------------


class Configured(Base):
    def __init__(self, value: Any, *others: int, **named: float) -> None:
        super().__init__()


class Typed(Base):
    def __init__(self, value: Other | int) -> None:
        super().__init__()


CONFIGURATIONS = [
    (lambda: Configured(Other()), "Other: Unable to serialize unknown type"),
    (lambda: Configured(lambda: 1), "function: Unable to serialize unknown type"),
    (lambda: Configured(math.nan), "float: Out of range float values"),
    (lambda: Configured((1, 2)), "tuple: JSON would not preserve its type"),
    (lambda: Configured({1: "a"}), "dict: JSON would not preserve its type"),
    (lambda: Configured("\ud800"), "str: 'utf-8' codec can't encode"),
    (lambda: Configured(1, *["2"]), "tuple: JSON would change it to (2,)"),  # type: ignore[arg-type]
    (lambda: Typed(3), "3: Unable to generate pydantic-core schema"),
    (lambda: Configured, "missing 1 required positional argument: 'value'"),
]

# -- resources -------------------------------------------------------------------------------


def setup_without_connection() -> Any:
    class Shop(Base):
        @chat_model_connection
        def local(self) -> ResourceDescriptor:
            return ResourceDescriptor(clazz="m:C")

        @chat_model
        def clerk(self) -> ResourceDescriptor:
            return ResourceDescriptor(clazz="m:S", connection="locl")

    return Shop


def added_setup_without_tool() -> Any:
    setup = ResourceDescriptor(clazz="m:S", tools=["rate"])
    return build().add_resource("clerk", "chat_model", setup)


def store_without_embedding() -> Any:
    setup = ResourceDescriptor(clazz="m:S", embedding_model="words")
    return build().add_resource("docs", "vector_store", setup)


def reference_of_another_type() -> Any:
    reference = ResourceRef(type=ResourceType.PROMPT, name="clerk")
    setup = ResourceDescriptor(clazz="m:S", hint=[reference])
    return build().add_resource("clerk", "chat_model", setup)


def circle() -> Any:
    def descriptor(name: str) -> ResourceDescriptor:
        reference = ResourceRef(type=ResourceType.VECTOR_STORE, name=name)
        return ResourceDescriptor(clazz="m:S", other=reference)

    agent = build()
    agent.add_resource("a", "vector_store", descriptor("b"))
    agent.add_resource("b", "vector_store", descriptor("a"))
    return agent


def unknown_type_of_resource() -> Any:
    return build().add_resource("hi", "promt", Prompt.from_text("hi"))


def tool_that_is_no_function() -> Any:
    return build().add_resource("rate", "tool", 3)


def tool_that_is_an_object() -> Any:
    class Rate:
        def __call__(self, amount: int) -> int:
            return amount

    return build().add_resource("rate", "tool", Tool(Rate(), "rate"))


def prompt_that_is_a_text() -> Any:
    class Shop(Base):
        @prompt
        def greeting(self) -> Any:
            return "hello"

    return Shop


def descriptor_that_is_a_prompt() -> Any:
    return build().add_resource("local", "mcp_server", Prompt.from_text("hello"))


def arguments_that_are_no_json() -> Any:
    return build().add_resource("local", "vector_store", ResourceDescriptor(clazz="m:C", other=Other()))


def prompt_with_an_open_brace() -> Any:
    return build().add_resource("hi", "prompt", Prompt.from_text("hello {customer"))


def prompt_without_variable_name() -> Any:
    return build().add_resource("hi", "prompt", Prompt.from_text("hello {0}"))


def prompt_with_an_unclosed_index() -> Any:
    return build().add_resource("hi", "prompt", Prompt.from_text("hello {customer[name}"))


def prompt_without_variable_name_in_a_format() -> Any:
    class Shop(Base):
        @prompt
        def greeting(self) -> Prompt:
            return Prompt.from_text("hello {customer:>{}}")

    return Shop


RESOURCES = [
    (setup_without_connection, MissingResourceError, "@chat_model", "did you mean 'local'?"),
    (added_setup_without_tool, MissingResourceError, "return build().add_resource(", "declare it with @tool"),
    (store_without_embedding, MissingResourceError, "return build().", "@embedding_model"),
    (reference_of_another_type, MissingResourceError, "return build().", "declare it with @prompt"),
    (circle, CyclicResourceError, 'agent.add_resource("a", ', "remove one of these references"),
    (unknown_type_of_resource, AgentDefinitionError, 'build().add_resource("hi"', "did you mean 'prompt'?"),
    (tool_that_is_no_function, ActionSignatureError, "build().add_resource(", "add the function itself"),
    (prompt_that_is_a_text, AgentDefinitionError, "@prompt", "return a Prompt"),
    (descriptor_that_is_a_prompt, AgentDefinitionError, "return build().", "add a ResourceDescriptor"),
    (arguments_that_are_no_json, AgentConfigurationError, "return build().", "write plain JSON values"),
    (prompt_with_an_open_brace, AgentDefinitionError, "return build().", "double the braces"),
    (prompt_without_variable_name, AgentDefinitionError, "return build().", "name the variable"),
    (prompt_with_an_unclosed_index, AgentDefinitionError, "return build().", "double the braces"),
    (prompt_without_variable_name_in_a_format, AgentDefinitionError, "@prompt", "name the variable"),
]


@each_case(("make", "kind", "line", "fix"), RESOURCES)
def test_error_points_to_the_line(make: Make, kind: type[AgentsError], line: str, fix: str) -> None:
    error = failure(make)
    assert type(error) is kind
    assert line in place(error).line
    assert error.fix and fix in error.fix


@each_case(("make", "found"), CONFIGURATIONS)
def test_configuration_that_no_plan_can_hold(make: Make, found: str) -> None:
    error = failure(make)
    assert type(error) is AgentConfigurationError
    assert place(error).line == f"class {place(error).name}(Base):"
    assert error.found and found in error.found


@each_case("value", [(1, 2), Other(), math.inf, {"a": {1: 2}}, [set()]])
def test_action_config_that_is_no_json(value: Any) -> None:
    error = failure(lambda: build(limit=value))
    assert type(error) is AgentConfigurationError
    assert error.message.startswith("the entry 'limit' in the config of action 'answer'")
    assert place(error).name == "answer"


def test_a_circle_is_shown_whole() -> None:
    assert failure(circle).found == "vector_store 'a' -> vector_store 'b' -> vector_store 'a'"


def test_tool_errors_of_objects() -> None:
    with pytest.raises(ActionSignatureError) as caught:
        tool_that_is_an_object()
    assert caught.value.found == "an object of type Rate"
