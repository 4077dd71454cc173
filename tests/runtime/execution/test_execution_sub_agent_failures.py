"""Agents that actions ask: what their failures come to, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from core_agents import action_fails
from sub_agents import (
    AT_ONCE,
    DONE,
    Priced,
    Pricer,
    Refusing,
    answers,
    asker,
    nothing_done as nothing_done,
    price_of,
)

from flink_agents import (
    Agent,
    InputEvent,
    OutputEvent,
    RateLimit,
    RetryableError,
    RunnerContext,
    action,
)
from flink_agents.api.errors import (
    ActionTimeoutError,
    AgentCycleError,
    AgentDefinitionError,
    ContextMisuseError,
    UnhandledEventError,
    UnknownEventError,
)
from flink_agents.testing import OperatorHarness

# -- failures ------------------------------------------------------------------------------------


def test_what_an_asked_agent_raises_is_raised_where_it_is_asked() -> None:
    async def body(ctx: RunnerContext, item: str) -> Any:
        ctx.short_term_memory.set("own", 1)
        try:
            return await ctx.call_agent(Refusing, item)
        except OSError as error:
            return str(error)

    harness = answers(body)
    assert (harness.outputs, harness.memory()) == (["no tea"], {"own": 1})

    async def uncaught(ctx: RunnerContext, item: str) -> Any:
        return await ctx.call_agent(Refusing, item)

    with action_fails(OSError, "no tea"):
        OperatorHarness(asker(uncaught)).push("tea")


async def flaky(item: str) -> str:
    DONE.append(item)
    if len(DONE) < 3:
        raise OSError("busy")
    return item


class Flaky(Agent):
    """Tries several times, each time from the begin."""

    @action(InputEvent, retry=AT_ONCE)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        ctx.short_term_memory.append("tries", event.input)
        return OutputEvent(output=await ctx.durable_execute_async(flaky, event.input))


@pytest.mark.executes_once
def test_actions_of_an_asked_agent_are_tried_again() -> None:
    async def body(ctx: RunnerContext, item: str) -> Any:
        return await ctx.call_agent(Flaky, item)

    harness = OperatorHarness(asker(body), crash=None)
    assert harness.push("tea") == ["tea"]
    assert harness.memory() == {"_asked.Flaky.tries": ["tea"]}
    assert harness.run_metrics["action_retries"] == 2
    DONE.clear()
    assert OperatorHarness(asker(body), forced_replay=True).push("tea") == ["tea"]
    # The failures that the action took into account are recorded.
    assert DONE == ["tea"] * 3


@pytest.mark.parametrize("policy", ["ignore", "dead-letter"])
def test_policies_of_an_asked_agent(policy: str) -> None:
    class Lenient(Refusing):
        on_error = policy
        on_unhandled = policy

        @action(InputEvent)
        def answer(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            return OutputEvent(output="answered")

    async def body(ctx: RunnerContext, item: str) -> Any:
        return await ctx.call_agent(Lenient, item)

    if policy == "ignore":
        assert answers(body).outputs == ["answered"]
        return
    # The dead letter is that of the agent that asks.
    harness = OperatorHarness(asker(body, on_error="dead-letter"))
    assert harness.push("tea") == []
    (letter,) = harness.dead_letters
    assert (letter.agent, letter.action, letter.error_message) == ("asker", "act", "no tea")


def test_an_event_that_no_action_accepts() -> None:
    def act(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=event.input)

    agent = Agent(name="picky").add_action("act", [InputEvent], act, when=lambda event: event.input > 1)

    async def body(ctx: RunnerContext, number: int) -> Any:
        return await ctx.call_agent(agent, number)

    assert answers(body, 2).outputs == [2]
    with action_fails(UnhandledEventError):
        OperatorHarness(asker(body)).push(1)


def test_a_timeout_of_an_asked_agents_action() -> None:
    class Hasty(Agent):
        @action(InputEvent, timeout=0.01)
        async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            return OutputEvent(output=await ctx.durable_execute_async(price_of, event.input, 60))

    async def body(ctx: RunnerContext, item: str) -> Any:
        try:
            return await ctx.call_agent(Hasty, item)
        except ActionTimeoutError as error:
            return error.seconds

    assert answers(body).outputs == [0.01]


def test_limits_of_an_asked_agents_action() -> None:
    class Single(Agent):
        @action(InputEvent, max_concurrency=1, rate_limit=RateLimit(100, per=1))
        async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            running.append(event.input)
            assert len(running) == 1
            await ctx.durable_execute_async(price_of, event.input)
            running.remove(event.input)
            return OutputEvent(output=event.input)

    async def body(ctx: RunnerContext, item: str) -> Any:
        return await ctx.gather(*(ctx.call_agent(Single, item + mark) for mark in "abc"))

    running: list[str] = []
    assert answers(body, crash=False).outputs == [["teaa", "teab", "teac"]]


def test_a_failed_attempt_of_the_asker_takes_all_back() -> None:
    attempts: list[int] = []

    async def body(ctx: RunnerContext, item: str) -> Any:
        answer = await ctx.call_agent(Pricer, item)
        attempts.append(1)
        if len(attempts) == 1:
            raise RetryableError("again")
        return answer

    harness = OperatorHarness(asker(body, retry=AT_ONCE), crash=None, forced_replay=False)
    assert harness.push("tea") == [("tea", 30, 1)]
    assert DONE == ["tea"]


# -- what is refused -----------------------------------------------------------------------------


def test_an_agent_that_asks_itself_is_named() -> None:
    class Ping(Agent):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            return OutputEvent(output=await ctx.call_agent(Pong, event.input))

    class Pong(Agent):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            return OutputEvent(output=await ctx.call_agent(Ping, event.input))

    with action_fails(AgentCycleError, "Ping calls Pong calls Ping") as _:
        OperatorHarness(Ping()).push("tea")


def test_an_event_that_nobody_takes() -> None:
    async def body(ctx: RunnerContext, item: str) -> Any:
        return await ctx.call_agent(Refusing, Priced(item=item, price=1))

    with action_fails(UnknownEventError, "'Refusing' is called with 'Priced'"):
        OperatorHarness(asker(body)).push("tea")


def test_what_is_no_agent() -> None:
    async def body(ctx: RunnerContext, item: str) -> Any:
        return await ctx.call_agent(item, item)  # type: ignore[arg-type]

    with action_fails(AgentDefinitionError):
        OperatorHarness(asker(body)).push("tea")


@pytest.mark.parametrize("settings", [{"blocking": True}, {"timeout": 1.0}])
def test_an_action_that_needs_a_thread(settings: dict[str, Any]) -> None:
    def act(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=event.input)

    agent = Agent(name="blocks").add_action("act", [InputEvent], act, **settings)

    async def body(ctx: RunnerContext, item: str) -> Any:
        return await ctx.call_agent(agent, item)

    with action_fails(ContextMisuseError, "needs a thread"):
        OperatorHarness(asker(body)).push("tea")


def test_a_def_action_that_makes_a_durable_call() -> None:
    def act(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=ctx.durable_execute(price_of, event.input))

    agent = Agent(name="blocks").add_action("act", [InputEvent], act)

    async def body(ctx: RunnerContext, item: str) -> Any:
        return await ctx.call_agent(agent, item)

    with action_fails(ContextMisuseError, "is no async def"):
        OperatorHarness(asker(body)).push("tea")


def test_a_def_action_cannot_ask() -> None:
    class Plain(Agent):
        @action(InputEvent)
        def act(self, event: InputEvent, ctx: RunnerContext) -> None:
            _ = ctx.call_agent(Pricer, event.input)

    with action_fails(ContextMisuseError, "calls an agent, but is no async def"):
        OperatorHarness(Plain()).push("tea")
