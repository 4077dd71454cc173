"""Actions, conditions, tools and resource methods that cannot be called, and what can."""

from __future__ import annotations

from functools import partial
from typing import Any

from plan_cases import Base, Make, Other, build, failure, place

from flink_agents import (
    Agent,
    AgentsError,
    InputEvent,
    Prompt,
    action,
    prompt,
    tool,
)
from flink_agents.api.errors import (
    ActionSignatureError,
)
from flink_agents.plan import compile_agent
from tests.suite.tables import each_case


def without_context() -> Any:
    class Shop(Agent):
        @action(InputEvent)
        def read(self, event: Any) -> None: ...

    return Shop


def with_a_third_argument() -> Any:
    class Shop(Agent):
        @action(InputEvent)
        def read(self, event: Any, ctx: Any, limit: int) -> None: ...

    return Shop


def with_keyword_arguments() -> Any:
    class Shop(Agent):
        @action(InputEvent)
        def read(self, event: Any, *, ctx: Any) -> None: ...

    return Shop


def without_self() -> Any:
    class Shop(Agent):
        @action(InputEvent)
        def read() -> None:  # pyright: ignore[reportSelfClsParameterName]
            ...

    return Shop


def static_with_self() -> Any:
    class Shop(Agent):
        @staticmethod
        @action(InputEvent)
        def read(self: Any, event: Any, ctx: Any) -> None: ...  # pyright: ignore[reportSelfClsParameterName]

    return Shop


def class_method() -> Any:
    class Shop(Agent):
        @classmethod
        @action(InputEvent)
        def read(cls, event: Any, ctx: Any) -> None: ...

    return Shop


def method_of_a_class_added() -> Any:
    return Agent().add_action("read", InputEvent, Base.read)


def resource_of_a_class_method() -> Any:
    class Shop(Base):
        @tool
        @classmethod
        def rate(cls) -> int:
            return 1

    return Shop


def condition_without_parameter() -> Any:
    class Shop(Agent):
        @action(InputEvent, when=lambda: True)  # pyright: ignore[reportArgumentType]
        def read(self, event: Any, ctx: Any) -> None: ...

    return Shop


def condition_that_is_no_function() -> Any:
    return build(when=True)


def condition_that_is_async() -> Any:
    async def later(event: Any) -> bool:
        return True

    return build(when=later)


def tool_without_annotation() -> Any:
    class Shop(Base):
        @tool
        def rate(self, amount):  # type: ignore[no-untyped-def]
            return amount

    return Shop


def tool_with_any_arguments() -> Any:
    class Shop(Base):
        @tool
        def rate(self, *amounts: int) -> int:
            return sum(amounts)

    return Shop


def tool_of_a_foreign_type() -> Any:
    class Shop(Base):
        @tool
        def rate(self, other: Other) -> int:
            return 1

    return Shop


def tool_of_an_unknown_type() -> Any:
    class Shop(Base):
        @tool
        def rate(self, other: Nowhere) -> int:  # type: ignore[name-defined] # noqa: F821 # pyright: ignore[reportUndefinedVariable]
            return 1

    return Shop


def tool_without_self() -> Any:
    class Shop(Base):
        @tool
        def rate() -> int:  # pyright: ignore[reportSelfClsParameterName]
            return 1

    return Shop


def tool_whose_parameter_would_be_self() -> Any:
    class Shop(Base):
        @tool
        def rate(amount: int) -> int:  # pyright: ignore[reportGeneralTypeIssues, reportSelfClsParameterName]
            return amount

    return Shop


def price_of(item, amount: int) -> int:  # type: ignore[no-untyped-def]
    return amount


def tool_of_a_function() -> Any:
    class Shop(Base):
        rate = tool(price_of)

    return Shop


def prompt_with_arguments() -> Any:
    class Shop(Base):
        @prompt
        def greeting(self, customer: str) -> Prompt:
            return Prompt.from_text(customer)

    return Shop


SIGNATURES = [
    (without_context, ActionSignatureError, "Shop.read", "def read(self, event: 'Any') -> 'None'"),
    (with_a_third_argument, ActionSignatureError, "Shop.read", "ctx: 'Any', limit: 'int') -> 'None'"),
    (with_keyword_arguments, ActionSignatureError, "Shop.read", "event: 'Any', *, ctx: 'Any') -> 'None'"),
    (without_self, ActionSignatureError, "Shop.read", "no parameters"),
    (static_with_self, ActionSignatureError, "Shop.read", "self: 'Any', event: 'Any', ctx: 'Any')"),
    (class_method, ActionSignatureError, "Shop.read", "@classmethod"),
    (method_of_a_class_added, ActionSignatureError, "Base.read", "self, event: 'InputEvent'"),
    (resource_of_a_class_method, ActionSignatureError, "Shop.rate", "@classmethod"),
    (condition_without_parameter, ActionSignatureError, "Shop.<lambda>", "def <lambda>()"),
    (condition_that_is_no_function, ActionSignatureError, "answer", "True"),
    (condition_that_is_async, ActionSignatureError, "later", "a coroutine function"),
    (tool_without_annotation, ActionSignatureError, "Shop.rate", None),
    (tool_with_any_arguments, ActionSignatureError, "Shop.rate", None),
    (tool_of_a_foreign_type, ActionSignatureError, "Shop.rate", "schema for <class"),
    (tool_of_an_unknown_type, ActionSignatureError, "Shop.rate", "name 'Nowhere' is not defined"),
    (tool_without_self, ActionSignatureError, "Shop.rate", "no parameters"),
    (tool_whose_parameter_would_be_self, ActionSignatureError, "Shop.rate", "rate(amount: 'int') -> 'int'"),
    (tool_of_a_function, ActionSignatureError, "price_of", "price_of(item, amount: 'int') -> 'int'"),
    (prompt_with_arguments, ActionSignatureError, "Shop.greeting", "def greeting(self, customer: 'str')"),
]


@each_case(("make", "kind", "name", "found"), SIGNATURES)
def test_bad_signature(make: Make, kind: type[AgentsError], name: str, found: str | None) -> None:
    error = failure(make)
    assert type(error) is kind
    assert place(error).name == name
    assert error.found is found or (found and error.found and found in error.found)


def test_condition_errors_name_the_condition_too() -> None:
    where = failure(condition_that_is_async).where
    assert where and where.endswith(" in condition_that_is_async.<locals>.later")
    assert ", condition " in where


def reserve(event: Any, ctx: Any, n: int = 1) -> None: ...


class Callable_:
    def __call__(self, event: Any, ctx: Any) -> None: ...

    def handle(self, event: Any, ctx: Any) -> None: ...


@each_case(
    "function",
    [
        lambda event, ctx: None,
        lambda event, ctx, n=1: None,
        lambda event, ctx=None: None,
        lambda *args: None,
        lambda event, ctx, *, n=1: None,
        partial(reserve, n=2),
        Callable_(),
        Callable_().handle,
    ],
)
def test_functions_that_take_event_and_context(function: Any) -> None:
    [compiled] = compile_agent(Agent(name="a").add_action("x", InputEvent, function)).actions
    assert compiled.kind == "function"
