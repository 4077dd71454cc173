"""Agents that actions ask: what the answer is, what stays of it, and what a crash repeats."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from core_agents import action_fails

from flink_agents import (
    Agent,
    Event,
    InputEvent,
    OutputEvent,
    RateLimit,
    RetryableError,
    RetryPolicy,
    RunnerContext,
    action,
    client,
)
from flink_agents.api.errors import (
    ActionTimeoutError,
    AgentCycleError,
    AgentDefinitionError,
    AskedOutputsError,
    ContextMisuseError,
    UnhandledEventError,
    UnknownEventError,
    UnknownSideOutputError,
)
from flink_agents.plan import AgentCode, bind, compile_agent
from flink_agents.plan.binding.uses import makes_durable_calls
from flink_agents.testing import OperatorHarness

DONE: list[Any] = []
"""What durable calls, and clients, did outside."""

AT_ONCE = RetryPolicy(initial_interval=0, max_attempts=3, retry_on=(OSError, RetryableError))


@pytest.fixture(autouse=True)
def nothing_done() -> Iterator[None]:
    """Begin with nothing done."""
    DONE.clear()
    yield
    DONE.clear()


async def price_of(item: str, seconds: float = 0.0) -> int:
    await asyncio.sleep(seconds)
    DONE.append(item)
    return 10 * len(item)


async def refuse(item: str) -> int:
    DONE.append(item)
    raise OSError(f"no {item}")


class Priced(Event):
    item: str
    price: int


class Pricer(Agent):
    """Says what a thing costs, in two actions."""

    @action(InputEvent)
    async def look_up(self, event: InputEvent, ctx: RunnerContext) -> Priced:
        ctx.short_term_memory.set("asked", ctx.short_term_memory.get("asked", 0) + 1)
        ctx.sensory_memory.set("seen", event.input)
        return Priced(
            item=event.input, price=await ctx.durable_execute_async(price_of, event.input, _slow(event.input))
        )

    @action(Priced)
    def tell(self, event: Priced, ctx: RunnerContext) -> OutputEvent:
        assert ctx.sensory_memory.get("seen") == event.item
        return OutputEvent(output=(event.item, event.price, ctx.short_term_memory.get("asked")))


def _slow(item: str) -> float:
    return 60.0 if item.startswith("slow") else 0.0


class Asker(Agent):
    """Executes ``body`` for each input."""

    side_outputs = {"audit": str}

    def __init__(self) -> None:
        super().__init__(name="asker")


def asker(body: Any, **settings: Any) -> Agent:
    """An agent whose action puts out what ``body(ctx, input)`` returns."""

    async def act(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await body(ctx, event.input))

    return Asker().add_action("act", [InputEvent], act, **settings)


def answers(body: Any, *records: Any, crash: bool = True, **options: Any) -> OperatorHarness:
    """Push ``records`` to an agent that asks, three ways that come to the same."""
    records = records or ("tea",)
    plain = OperatorHarness(asker(body), crash=None, **options)
    plain.push_all(records)
    ways: list[dict[str, Any]] = [{"forced_replay": True, "crash": None}]
    if crash:
        ways += [{"crash": "everywhere"}]
    for way in ways:
        DONE.clear()
        other = OperatorHarness(asker(body), **way, **options)
        other.push_all(records)
        assert (other.outputs, other.memory()) == (plain.outputs, plain.memory())
        assert other.side_output("audit") == plain.side_output("audit")
        other.close()
    return plain


# -- answers -------------------------------------------------------------------------------------


def test_an_asked_agent_answers_and_keeps_its_own_memory() -> None:
    async def body(ctx: RunnerContext, item: str) -> Any:
        ctx.short_term_memory.set("asked", "of the asker")
        first = await ctx.ask(Pricer, item)
        return [first, await ctx.ask(Pricer, InputEvent(input=item * 2)), ctx.short_term_memory.get("asked")]

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
        both = await ctx.gather(*(ctx.ask(Pricer, item + mark) for mark in "abc"))
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
            return OutputEvent(output=await ctx.ask(Pricer, event.input))

    async def body(ctx: RunnerContext, item: str) -> Any:
        return await ctx.ask(Middle, item)

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
            made = (str(ctx.uuid4()), ctx.random().random(), event.id, ctx.now())
            return OutputEvent(output=(where, made, event.upstream_action_name))

    async def body(ctx: RunnerContext, item: str) -> Any:
        told = await ctx.gather(*(ctx.ask(Teller, item) for _ in range(3)), ctx.ask_all(Teller, item))
        assert told[0][1][3] == ctx.now()
        return [[*one[:1], one[1][:3], one[2]] for one in (*told[:3], told[3][0])]

    (told,) = answers(body).outputs
    assert {(where, by) for where, _, by in told} == {(("Teller", "act", 0, 0, None), "act")}
    assert len({made for _, made, _ in told}) == 4


def test_an_agent_may_give_no_answer_or_several() -> None:
    def several(event: InputEvent, ctx: RunnerContext) -> list[OutputEvent]:
        return [OutputEvent(output=number) for number in range(event.input)]

    agent = Agent(name="several").add_action("act", [InputEvent], several)

    async def body(ctx: RunnerContext, number: int) -> Any:
        return await ctx.ask_all(agent, number)

    assert answers(body, 0, 2).outputs == [[], [0, 1]]

    async def one(ctx: RunnerContext, number: int) -> Any:
        return await ctx.ask(agent, number)

    for number in (0, 2):
        with action_fails(AskedOutputsError, "'several' gave"):
            OperatorHarness(asker(one)).push(number)


def test_an_agent_is_asked_with_an_event_of_its_own() -> None:
    async def body(ctx: RunnerContext, price: int) -> Any:
        event = Priced(item="x", price=price)
        told = [await ctx.ask(agent, event), await ctx.ask(agent, event)]
        return [told, event.id]

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
            await ctx.durable_execute_async(price_of, event.input, _slow(event.input))
            ctx.emit_to("audit", f"after {event.input}")
            return OutputEvent(output=event.input)

    async def body(ctx: RunnerContext, item: str) -> Any:
        ctx.emit_to("audit", "own")
        joined = await ctx.join(ctx.ask(Auditor, item), ctx.ask(Auditor, "slow"), timeout=1)
        return [str(one) for one in joined]

    harness = answers(body, crash=False)
    assert harness.outputs == [["tea", "it had not ended after 1 s"]]
    assert harness.side_output("audit") == ["own", "before tea", "after tea"]

    class Bare(Agent):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            return OutputEvent(output=await ctx.ask(Auditor, event.input))

    with action_fails(UnknownSideOutputError, "'Bare' has not"):
        OperatorHarness(Bare()).push("tea")


# -- joins ---------------------------------------------------------------------------------------


def test_a_join_gives_what_has_ended_in_time() -> None:
    async def body(ctx: RunnerContext, item: str) -> Any:
        joined = await ctx.join(
            ctx.ask(Pricer, item),
            ctx.ask(Pricer, "slow"),
            ctx.ask(Refusing, "cheap"),
            ctx.ask(Pricer, "b"),
            timeout=1.0,
        )
        return [one[:2] if isinstance(one, tuple) else type(one).__name__ for one in joined]

    harness = answers(body, crash=False)
    assert harness.outputs == [[("tea", 30), "TimeoutError", "OSError", ("b", 10)]]
    # What the cancelled one wrote is not there.
    assert harness.memory() == {"_asked.Pricer.asked": 1}


class Refusing(Agent):
    """Writes, and fails then."""

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> None:
        ctx.short_term_memory.set("wrote", event.input)
        await ctx.durable_execute_async(refuse, event.input)


def test_a_join_of_nothing() -> None:
    async def body(ctx: RunnerContext, item: str) -> Any:
        return await ctx.join(timeout=1)

    assert answers(body).outputs == [[]]


def test_the_first_of_several_answers() -> None:
    async def body(ctx: RunnerContext, item: str) -> Any:
        asked = [ctx.ask(Pricer, "slow"), ctx.ask(Pricer, item)]
        async for answer in ctx.as_completed(asked):
            return answer

    assert answers(body).outputs == [("tea", 30, 1)]


# -- failures ------------------------------------------------------------------------------------


def test_what_an_asked_agent_raises_is_raised_where_it_is_asked() -> None:
    async def body(ctx: RunnerContext, item: str) -> Any:
        ctx.short_term_memory.set("own", 1)
        try:
            return await ctx.ask(Refusing, item)
        except OSError as error:
            return str(error)

    harness = answers(body)
    assert (harness.outputs, harness.memory()) == (["no tea"], {"own": 1})

    async def uncaught(ctx: RunnerContext, item: str) -> Any:
        return await ctx.ask(Refusing, item)

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
        return await ctx.ask(Flaky, item)

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
        return await ctx.ask(Lenient, item)

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
        return await ctx.ask(agent, number)

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
            return await ctx.ask(Hasty, item)
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
        return await ctx.gather(*(ctx.ask(Single, item + mark) for mark in "abc"))

    running: list[str] = []
    assert answers(body, crash=False).outputs == [["teaa", "teab", "teac"]]


def test_a_failed_attempt_of_the_asker_takes_all_back() -> None:
    attempts: list[int] = []

    async def body(ctx: RunnerContext, item: str) -> Any:
        answer = await ctx.ask(Pricer, item)
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
            return OutputEvent(output=await ctx.ask(Pong, event.input))

    class Pong(Agent):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            return OutputEvent(output=await ctx.ask(Ping, event.input))

    with action_fails(AgentCycleError, "Ping asks Pong asks Ping") as _:
        OperatorHarness(Ping()).push("tea")


def test_an_event_that_nobody_takes() -> None:
    async def body(ctx: RunnerContext, item: str) -> Any:
        return await ctx.ask(Refusing, Priced(item=item, price=1))

    with action_fails(UnknownEventError, "'Refusing' is asked with 'Priced'"):
        OperatorHarness(asker(body)).push("tea")


def test_what_is_no_agent() -> None:
    async def body(ctx: RunnerContext, item: str) -> Any:
        return await ctx.ask(item, item)  # type: ignore[arg-type]

    with action_fails(AgentDefinitionError):
        OperatorHarness(asker(body)).push("tea")


@pytest.mark.parametrize("settings", [{"blocking": True}, {"timeout": 1.0}])
def test_an_action_that_needs_a_thread(settings: dict[str, Any]) -> None:
    def act(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=event.input)

    agent = Agent(name="blocks").add_action("act", [InputEvent], act, **settings)

    async def body(ctx: RunnerContext, item: str) -> Any:
        return await ctx.ask(agent, item)

    with action_fails(ContextMisuseError, "needs a thread"):
        OperatorHarness(asker(body)).push("tea")


def test_a_def_action_that_makes_a_durable_call() -> None:
    def act(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=ctx.durable_execute(price_of, event.input))

    agent = Agent(name="blocks").add_action("act", [InputEvent], act)

    async def body(ctx: RunnerContext, item: str) -> Any:
        return await ctx.ask(agent, item)

    with action_fails(ContextMisuseError, "is no async def"):
        OperatorHarness(asker(body)).push("tea")


def test_a_def_action_cannot_ask() -> None:
    class Plain(Agent):
        @action(InputEvent)
        def act(self, event: InputEvent, ctx: RunnerContext) -> None:
            ctx.ask(Pricer, event.input)

    with action_fails(ContextMisuseError, "asks an agent, but is no async def"):
        OperatorHarness(Plain()).push("tea")


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
        return await ctx.gather(ctx.ask(Connected(), item), ctx.ask(Connected(), item))

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
            return OutputEvent(output=await ctx.ask(agent, event.input))

    assert OperatorHarness(Adder()).push_all([1, 2]) == [1, 3]


def test_the_code_of_asked_agents_tells_of_their_durable_calls() -> None:
    class Asks(Agent):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            return OutputEvent(output=await ctx.ask(Pricer, event.input))

    class AsksNothing(Agent):
        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            return OutputEvent(output=await ctx.ask(agent, event.input))

    def act(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=event.input)

    agent = Agent(name="plain").add_action("act", [InputEvent], act)
    bound = [bind(compile_agent(one), AgentCode.of(one)) for one in (Asks(), AsksNothing())]
    assert [makes_durable_calls(one) for one in bound] == [True, False]


# -- waits that outlast an execution -----------------------------------------------------------------


class Approver(Agent):
    """Asks a person, between two durable calls."""

    @action(InputEvent)
    async def approve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        ctx.short_term_memory.set("asked", ctx.short_term_memory.get("asked", 0) + 1)
        price = await ctx.durable_execute_async(price_of, event.input)
        said = await ctx.wait_for("approval", str)
        await ctx.sleep(5)
        return OutputEvent(output=(event.input, price, said))


class Refunder(Agent):
    """Lets another agent ask a person."""

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await ctx.gather(ctx.ask(Approver, event.input), ctx.ask(Pricer, "b")))


@pytest.mark.parametrize("way", [{}, {"forced_restart": True}, {"crash": "everywhere"}])
def test_a_run_is_suspended_while_an_asked_agent_waits(way: dict[str, Any]) -> None:
    with OperatorHarness(Refunder, **way) as harness:
        assert harness.push("tea") == []
        (wait,) = harness.waits()
        assert wait.name == "approval"
        assert harness.signal(0, "approval", "yes") == []
        assert harness.advance(5000) == [[("tea", 30, "yes"), ("b", 10, 1)]]
        assert harness.memory() == {"_asked.Approver.asked": 1, "_asked.Pricer.asked": 1}


@pytest.mark.executes_once
def test_what_was_recorded_before_a_wait_is_not_repeated_behind_it() -> None:
    with OperatorHarness(Refunder, crash=None, forced_restart=True) as harness:
        harness.push("tea")
        harness.signal(0, "approval", "yes")
        harness.advance(5000)
        assert sorted(DONE) == ["b", "tea"]
