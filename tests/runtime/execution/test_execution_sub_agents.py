"""Agents that actions ask: what the answer is, what stays of it, and what a crash repeats."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from core_agents import action_fails
from sub_agents import (
    DONE,
    Priced,
    Pricer,
    Refusing,
    answers,
    asker,
    nothing_done as nothing_done,
    price_of,
    slowness,
)

from flink_agents import (
    Agent,
    InputEvent,
    OutputEvent,
    RunnerContext,
    action,
    client,
)
from flink_agents.api.errors import (
    AgentOutputsError,
    UnknownSideOutputError,
)
from flink_agents.plan import LoadedAgent, compile_with_code
from flink_agents.plan.binding.needs import makes_durable_steps
from flink_agents.testing import OperatorHarness

# -- answers -------------------------------------------------------------------------------------


def test_an_asked_agent_answers_and_keeps_its_own_memory() -> None:
    async def body(ctx: RunnerContext, item: str) -> Any:
        ctx.short_term_memory.set("asked", "of the asker")
        first = await ctx.call_agent(Pricer, item)
        return [
            first,
            await ctx.call_agent(Pricer, InputEvent(input=item * 2)),
            ctx.short_term_memory.get("asked"),
        ]

    harness = answers(body, "tea", "rice")
    assert harness.outputs == [
        [("tea", 30, 1), ("teatea", 60, 2), "of the asker"],
        [("rice", 40, 3), ("ricerice", 80, 4), "of the asker"],
    ]
    assert harness.memory() == {"asked": "of the asker", "_asked.Pricer.asked": 4}
    # With a crash at each place, no call whose end was recorded is made again.
    assert sorted(DONE) == ["rice", "ricerice", "tea", "teatea"]


def test_agents_are_asked_side_by_side() -> None:
    async def body(ctx: RunnerContext, item: str) -> Any:
        both = await ctx.gather(*(ctx.call_agent(Pricer, item + mark) for mark in "abc"))
        return [[name, price] for name, price, _ in both]

    harness = answers(body)
    assert harness.outputs == [[["teaa", 40], ["teab", 40], ["teac", 40]]]
    # None saw what the others wrote.
    assert harness.memory() == {"_asked.Pricer.asked": 1}


def test_an_asked_agent_asks_another_one() -> None:
    class Middle(Agent):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            ctx.short_term_memory.set("of", event.input)
            return OutputEvent(output=await ctx.call_agent(Pricer, event.input))

    async def body(ctx: RunnerContext, item: str) -> Any:
        return await ctx.call_agent(Middle, item)

    harness = answers(body)
    assert harness.outputs == [("tea", 30, 1)]
    assert harness.memory() == {"_asked.Middle.of": "tea", "_asked.Middle._asked.Pricer.asked": 1}


def test_ids_and_chance_follow_from_the_ask() -> None:
    class Teller(Agent):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            # Whichever call ends first, the ids are those of the task that asks.
            await ctx.durable_execute_async(price_of, event.input)
            where = (ctx.agent_name, ctx.action_name, ctx.key, ctx.sequence_number, ctx.timestamp)
            generated_values = (str(ctx.uuid4()), ctx.random().random(), event.id, ctx.now())
            return OutputEvent(output=(where, generated_values, event.upstream_action_name))

    async def body(ctx: RunnerContext, item: str) -> Any:
        results = await ctx.gather(
            *(ctx.call_agent(Teller, item) for _ in range(3)), ctx.call_agent_all(Teller, item)
        )
        assert results[0][1][3] == ctx.now()
        return [[*result[:1], result[1][:3], result[2]] for result in (*results[:3], results[3][0])]

    (replies,) = answers(body).outputs
    assert {(where, by) for where, _, by in replies} == {(("Teller", "act", 0, 0, None), "act")}
    assert len({generated_values for _, generated_values, _ in replies}) == 4


def test_an_agent_may_give_no_answer_or_several() -> None:
    def several(event: InputEvent, ctx: RunnerContext) -> list[OutputEvent]:
        return [OutputEvent(output=number) for number in range(event.input)]

    agent = Agent(name="several").add_action("act", [InputEvent], several)

    async def body(ctx: RunnerContext, number: int) -> Any:
        return await ctx.call_agent_all(agent, number)

    assert answers(body, 0, 2).outputs == [[], [0, 1]]

    async def ask_agent(ctx: RunnerContext, number: int) -> Any:
        return await ctx.call_agent(agent, number)

    for number in (0, 2):
        with action_fails(AgentOutputsError, "'several' returned"):
            OperatorHarness(asker(ask_agent)).push(number)


def test_an_agent_is_asked_with_an_event_of_its_own() -> None:
    async def body(ctx: RunnerContext, price: int) -> Any:
        event = Priced(item="x", price=price)
        prices = [await ctx.call_agent(agent, event), await ctx.call_agent(agent, event)]
        return [prices, event.id]

    def act(event: Priced, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=event.price + 1)

    def begin(event: InputEvent, ctx: RunnerContext) -> Priced:
        return Priced(item=event.input, price=0)

    agent = Agent(name="adder").add_action("begin", [InputEvent], begin).add_action("act", [Priced], act)
    assert answers(body, 5).outputs == [[[6, 6], None]]


def test_side_outputs_leave_by_who_asks() -> None:
    class Auditor(Agent):
        side_outputs = {"audit": str}

        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            ctx.emit_to("audit", f"before {event.input}")
            await ctx.durable_execute_async(price_of, event.input, slowness(event.input))
            ctx.emit_to("audit", f"after {event.input}")
            return OutputEvent(output=event.input)

    async def body(ctx: RunnerContext, item: str) -> Any:
        ctx.emit_to("audit", "own")
        joined = await ctx.join(ctx.call_agent(Auditor, item), ctx.call_agent(Auditor, "slow"), timeout=1)
        return [str(result) for result in joined]

    harness = answers(body, crash=False)
    assert harness.outputs == [["tea", "not finished after 1 s"]]
    assert harness.side_output("audit") == ["own", "before tea", "after tea"]

    class Bare(Agent):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            return OutputEvent(output=await ctx.call_agent(Auditor, event.input))

    with action_fails(UnknownSideOutputError, "'Bare' has not"):
        OperatorHarness(Bare()).push("tea")


# -- joins ---------------------------------------------------------------------------------------


def test_a_join_gives_what_has_ended_in_time() -> None:
    async def body(ctx: RunnerContext, item: str) -> Any:
        joined = await ctx.join(
            ctx.call_agent(Pricer, item),
            ctx.call_agent(Pricer, "slow"),
            ctx.call_agent(Refusing, "cheap"),
            ctx.call_agent(Pricer, "b"),
            timeout=1.0,
        )
        return [result[:2] if isinstance(result, tuple) else type(result).__name__ for result in joined]

    harness = answers(body, crash=False)
    assert harness.outputs == [[("tea", 30), "TimeoutError", "OSError", ("b", 10)]]
    # What the cancelled one wrote is not there.
    assert harness.memory() == {"_asked.Pricer.asked": 1}


def test_a_join_of_nothing() -> None:
    async def body(ctx: RunnerContext, item: str) -> Any:
        return await ctx.join(timeout=1)

    assert answers(body).outputs == [[]]


def test_the_first_of_several_answers() -> None:
    async def body(ctx: RunnerContext, item: str) -> Any:
        calls = [ctx.call_agent(Pricer, "slow"), ctx.call_agent(Pricer, item)]
        async for answer in ctx.as_completed(calls):
            return answer

    assert answers(body).outputs == [("tea", 30, 1)]


# -- where it belongs ----------------------------------------------------------------------------


class Connected(Agent):
    """Has a client."""

    @client
    async def line(self) -> Any:
        DONE.append("open")
        yield "line"
        DONE.append("closed")

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await ctx.client("line"))


def test_clients_of_an_asked_agent_are_opened_once_and_closed() -> None:
    async def body(ctx: RunnerContext, item: str) -> Any:
        # An agent that is made anew is known again.
        return await ctx.gather(ctx.call_agent(Connected(), item), ctx.call_agent(Connected(), item))

    harness = OperatorHarness(asker(body), crash=None, forced_replay=False, forced_restart=False)
    assert harness.push_all(["a", "b"]) == [["line", "line"]] * 2
    harness.close()
    assert DONE == ["open", "closed"]


def test_without_a_store_an_asked_agent_makes_no_durable_calls() -> None:
    async def add(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        await asyncio.sleep(0)
        ctx.short_term_memory.set("sum", ctx.short_term_memory.get("sum", 0) + event.input)
        return OutputEvent(output=ctx.short_term_memory.get("sum"))

    agent = Agent(name="adder").add_action("add", [InputEvent], add)

    class Adder(Agent):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            return OutputEvent(output=await ctx.call_agent(agent, event.input))

    assert OperatorHarness(Adder()).push_all([1, 2]) == [1, 3]


def test_the_code_of_asked_agents_tells_of_their_durable_calls() -> None:
    class Asks(Agent):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            return OutputEvent(output=await ctx.call_agent(Pricer, event.input))

    class AsksNothing(Agent):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            return OutputEvent(output=await ctx.call_agent(agent, event.input))

    def act(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=event.input)

    agent = Agent(name="plain").add_action("act", [InputEvent], act)
    bound = [LoadedAgent(*compile_with_code(asking_agent)) for asking_agent in (Asks(), AsksNothing())]
    assert [makes_durable_steps(bound_agent) for bound_agent in bound] == [True, False]


# -- waits that outlast an execution -----------------------------------------------------------------


class Approver(Agent):
    """Asks a person, between two durable calls."""

    @action(InputEvent)
    async def approve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        ctx.short_term_memory.set("asked", ctx.short_term_memory.get("asked", 0) + 1)
        price = await ctx.durable_execute_async(price_of, event.input)
        approval = await ctx.wait_for_signal("approval", str)
        await ctx.sleep(5)
        return OutputEvent(output=(event.input, price, approval))


class Refunder(Agent):
    """Lets another agent ask a person."""

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(
            output=await ctx.gather(ctx.call_agent(Approver, event.input), ctx.call_agent(Pricer, "b"))
        )


@pytest.mark.parametrize("way", [{}, {"forced_restart": True}, {"crash": "everywhere"}])
def test_a_run_is_suspended_while_an_asked_agent_waits(way: dict[str, Any]) -> None:
    with OperatorHarness(Refunder, **way) as harness:
        assert harness.push("tea") == []
        (wait,) = harness.waits()
        assert wait.name == "approval"
        assert harness.signal(0, "approval", "yes") == []
        assert harness.advance_time(5000) == [[("tea", 30, "yes"), ("b", 10, 1)]]
        assert harness.memory() == {"_asked.Approver.asked": 1, "_asked.Pricer.asked": 1}


@pytest.mark.executes_once
def test_what_was_recorded_before_a_wait_is_not_repeated_behind_it() -> None:
    with OperatorHarness(Refunder, crash=None, forced_restart=True) as harness:
        harness.push("tea")
        harness.signal(0, "approval", "yes")
        harness.advance_time(5000)
        assert sorted(DONE) == ["b", "tea"]
