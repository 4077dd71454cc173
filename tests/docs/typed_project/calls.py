"""Durable steps, decorators and policies keep their types."""

from collections.abc import Awaitable
from functools import partial
from typing import Any, assert_type

from shop import Order, Session, pay

from flink_agents import (
    Agent,
    ChatModel,
    DurableCallable,
    Prompt,
    RateLimit,
    RetryPolicy,
    Router,
    RouteRule,
    RunnerContext,
    Secret,
    UsageLimits,
    chat_model,
    prompt,
    tool,
)


class Receipt:
    """What is validated as the result of a step."""


def charge(order: str, amount: float, *, idempotency_key: str) -> int:
    return len(order + idempotency_key)


def bill(order: str, amount: float, idempotency_key: str = "") -> int:
    return len(order + idempotency_key)


def look(order: str, deep: bool = False) -> float:
    return float(deep)


async def fetch(url: str, *, verify: bool = True) -> bytes:
    return url.encode()


def look_up(order: str, deep: bool = False) -> Any:
    return None


def nothing() -> None: ...


async def await_steps(ctx: RunnerContext, function: Any) -> str:
    session = Session()
    assert_type(await ctx.durable_execute_async(look, "a", deep=True), float)
    assert_type(await ctx.durable_execute_async(look, "a"), float)
    assert_type(await ctx.durable_execute_async(fetch, "a", verify=False), bytes)
    assert_type(await ctx.durable_execute_async(nothing), None)
    assert_type(await ctx.durable_execute_async(session.post, "a"), str)
    assert_type(await ctx.durable_execute_async(partial(look, "a")), float)
    assert_type(await ctx.durable_execute_async(lambda: 1), int)
    assert_type(await ctx.durable_execute_async(Receipt), Receipt)
    # The runtime passes the idempotency key.
    assert_type(await ctx.durable_execute_async(pay, "a", 1.0), str)
    assert_type(await ctx.durable_execute_async(pay, "a", amount=1.0), str)
    assert_type(await ctx.durable_execute_async(pay, order="a", amount=1.0), str)
    assert_type(await ctx.durable_execute_async(charge, "a", 1.0), int)
    assert_type(await ctx.durable_execute_async(bill, "a", amount=1.0), int)
    # With settings.
    assert_type(await ctx.durable_execute_async(look, "a", timeout=1, reconciler=look_up), float)
    assert_type(await ctx.durable_execute_async(fetch, "a", retry=RetryPolicy()), bytes)
    assert_type(await ctx.durable_execute_async(nothing, name="n"), None)
    assert_type(await ctx.durable_execute_async(pay, "a", 1.0, timeout=3), str)
    assert_type(await ctx.durable_execute_async(pay, "a", amount=1.0, timeout=3), str)
    assert_type(await ctx.durable_execute_async(charge, "a", 1.0, name="x"), int)
    assert_type(await ctx.durable_execute_async(look, "a", result_type=int), int)
    assert_type(await ctx.durable_execute_async(pay, "a", 1.0, result_type=Receipt), Receipt)
    # A callable has the settings.
    with_settings = DurableCallable(pay, timeout=5)
    assert_type(await ctx.durable_execute_async(with_settings, "a", 1.0), str)
    assert_type(await ctx.durable_execute_async(DurableCallable(look, timeout=5), "a", deep=True), float)
    assert_type(await ctx.durable_execute_async(DurableCallable(look, result_type=Receipt), "a"), Receipt)
    assert_type(await ctx.durable_execute_async(DurableCallable(fetch, result_type=Receipt), "a"), Receipt)
    assert_type(await with_settings("a", 1.0, "key"), str)
    without_client: str = await ctx.durable_execute_async(DurableCallable(pay, client="order"), 1.0)
    unknown: DurableCallable = DurableCallable(look)
    # In groups, and of functions without types.
    steps: list[Awaitable[float]] = [ctx.durable_execute_async(look, name) for name in ("a", "b")]
    async for value in ctx.as_completed(steps):
        assert_type(value, float)
    number: int = await ctx.durable_execute_async(function, 1, depth=2)
    return f"{number} {without_client} {await ctx.durable_execute_async(unknown, 'a')}"


def block_for_steps(ctx: RunnerContext) -> int:
    assert_type(ctx.durable_execute(look, "a"), float)
    assert_type(ctx.durable_execute(pay, "a", 1.0), str)
    assert_type(ctx.durable_execute(pay, order="a", amount=1.0), str)
    assert_type(ctx.durable_execute(bill, "a", 1.0, timeout=2), int)
    assert_type(ctx.durable_execute(look, "a", name="s", result_type=int), int)
    return ctx.durable_execute(charge, "a", 1.0)


class Declared(Agent):
    """Methods keep their types below decorators, with and without parentheses."""

    @chat_model
    def analyst(self) -> ChatModel:
        return ChatModel("openai:gpt-5-mini", api_key=Secret(env="KEY"), limits=UsageLimits(requests=2))

    @prompt()
    @staticmethod
    def greeting() -> Prompt:
        return Prompt.from_text("hello")

    @tool(name="find")
    def search(self, order: Order) -> float:
        return order.amount


def keep_types(agent: Declared, order: Order) -> list[object]:
    assert_type(agent.analyst(), ChatModel)
    assert_type(agent.greeting(), Prompt)
    assert_type(agent.search(order), float)
    assert_type(RateLimit(calls=1), RateLimit)
    assert_type(RetryPolicy(), RetryPolicy)
    rules = [RouteRule(model="analyst", max_characters=10)]
    return [
        RetryPolicy(retry_on=ValueError, non_retryable=[KeyError]),
        RetryPolicy(retry_on=(ValueError, OSError)),
        Router(models={"analyst": "all"}, rules=rules),
    ]
