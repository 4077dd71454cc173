"""Context variables: code sees those of its action, and what it binds leaves neither it nor its key."""

from __future__ import annotations

import asyncio
import decimal
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from flink_agents import (
    Agent,
    DurableCallable,
    Event,
    InputEvent,
    OutputEvent,
    Prompt,
    RetryPolicy,
    RunnerContext,
    RunObserver,
    action,
    client,
    prompt,
    tool,
)
from flink_agents.api.action_state import RecordKind
from flink_agents.api.durable.upgrades import replace_upgrade
from flink_agents.api.errors import StoreError
from flink_agents.api.resources.providers import DeclaredResource
from flink_agents.plan.binding.loaded import PromptProvider
from flink_agents.runtime.serde.changed import Stored, read_changed
from flink_agents.runtime.serde.typenames import Kind
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record
from tests.suite.factors import factors
from tests.suite.tables import each_case

NOBODY = "nobody"
tenant: ContextVar[str] = ContextVar("tenant", default=NOBODY)

PRECISE = decimal.DefaultContext.prec
COARSE = 3


def visible_values() -> list[Any]:
    """Return what the running code sees: its tenant, and its precision."""
    return [tenant.get(), decimal.getcontext().prec]


def bind(name: str = "leaked") -> list[Any]:
    """Return what the running code sees, then bind both."""
    previous_values = visible_values()
    tenant.set(name)
    decimal.getcontext().prec = COARSE
    return previous_values


async def bind_async() -> list[Any]:
    await asyncio.sleep(0)
    previous_values = bind()
    await asyncio.sleep(0)
    return previous_values


def bind_and_await() -> Any:
    """Bind, and return a coroutine, as a decorated function may."""
    previous_values = bind()

    async def append_tenant() -> list[Any]:
        return [*previous_values, tenant.get()]

    return append_tenant()


attempts = 0


def bind_and_fail_once() -> list[Any]:
    global attempts
    attempts += 1
    previous_values = bind()
    if attempts % 2:
        raise OSError("once")
    return previous_values


async def bind_and_fail_once_async() -> list[Any]:
    await asyncio.sleep(0)
    return bind_and_fail_once()


ASKED: list[Any] = []


def reconcile() -> Any:
    ASKED.append(bind())
    return ASKED[-1]


RETRIED = RetryPolicy(max_attempts=2, initial_interval=0.001)

STEPS: dict[str, DurableCallable] = {
    "def": DurableCallable(bind),
    "async def": DurableCallable(bind_async),
    "def with a timeout": DurableCallable(bind, timeout=30),
    "async def with a timeout": DurableCallable(bind_async, timeout=30),
    "def that returns a coroutine": DurableCallable(bind_and_await),
    "def that returns a coroutine, with a timeout": DurableCallable(bind_and_await, timeout=30),
    "def with a retry": DurableCallable(bind_and_fail_once, retry=RETRIED),
    "def with a retry and a timeout": DurableCallable(bind_and_fail_once, retry=RETRIED, timeout=30),
    "async def with a retry": DurableCallable(bind_and_fail_once_async, retry=RETRIED),
}

WAYS = ("def", "def with a timeout", "async", "async with a timeout", "gathered")
"""The actions that make the steps."""


def agent_of(step: DurableCallable, way: str) -> Agent:
    """Return an agent that binds its key, makes a step, and emits what it and the step have seen."""
    timeout = 30 if way.endswith("timeout") else None

    class Sync(Agent):
        @action(InputEvent, timeout=timeout)
        def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            previous_values = bind(ctx.key)
            decimal.getcontext().prec = PRECISE + ctx.key
            result = ctx.durable_execute(step)
            return OutputEvent(output=(previous_values, result, visible_values(), ctx.durable_execute(step)))

    class Async(Agent):
        @action(InputEvent, timeout=timeout)
        async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            previous_values = bind(ctx.key)
            decimal.getcontext().prec = PRECISE + ctx.key
            if way == "gathered":
                result, again = await ctx.gather(
                    ctx.durable_execute_async(step), ctx.durable_execute_async(step)
                )
                return OutputEvent(output=(previous_values, result, visible_values(), again))
            result = await ctx.durable_execute_async(step)
            return OutputEvent(
                output=(previous_values, result, visible_values(), await ctx.durable_execute_async(step))
            )

    return Sync() if way.startswith("def") else Async()


def fails_twice(step: str, way: str) -> bool:
    """Two calls that fail once at the same time would fail twice."""
    return way == "gathered" and "retry" in step


@factors(strength=1, step=STEPS, way=WAYS, without=fails_twice)
def test_a_step_sees_its_action_and_binds_nothing_for_others(step: str, way: str) -> None:
    awaits = "coroutine" in step
    # The first time and on replay.
    crash = "everywhere" if way in ("def", "async") else None
    agent = agent_of(STEPS[step], way)
    with OperatorHarness(
        agent,
        lambda number: number % 2,
        crash=crash,
        forced_serialization=False,
        config={"run.pool-size": 1},
    ) as harness:
        for number in (1, 2, 3):
            action_values = [number % 2, PRECISE + number % 2]
            step_values = [*action_values, "leaked"] if awaits else action_values
            assert harness.push(number) == [([NOBODY, PRECISE], step_values, action_values, step_values)]


@each_case("way", WAYS[:4])
def test_a_reconciler_sees_its_action_and_binds_nothing_for_others(way: str) -> None:
    ASKED.clear()
    step = DurableCallable(bind, reconciler=reconcile)
    faults = Faults(at_record(RecordKind.CALL, Fault.REFUSED))
    options: Any = {"store": faults.store, "forced_serialization": False}
    with OperatorHarness(agent_of(step, way), lambda number: number % 2, **options) as harness:
        snapshot = harness.snapshot()
        with pytest.raises(StoreError):
            harness.push(1)
        harness.restore(snapshot)
        for number in (1, 2, 3):
            action_values = [number % 2, PRECISE + number % 2]
            assert harness.push(number) == [([NOBODY, PRECISE], action_values, action_values, action_values)]
    assert ASKED == [[1, PRECISE + 1]]


class Passed(Event):
    before: list[Any]


class Chain(Agent):
    """Two actions of one run, each with a condition. All of them bind."""

    @action(InputEvent, when=lambda event: bind() == [NOBODY, PRECISE])
    def first(self, event: InputEvent, ctx: RunnerContext) -> Iterator[Event]:
        yield Passed(before=bind())
        yield Passed(before=visible_values())

    @action(Passed, when=lambda event: bind() == [NOBODY, PRECISE])
    async def second(self, event: Passed, ctx: RunnerContext) -> AsyncIterator[Event]:
        previous_values = bind()
        await asyncio.sleep(0)
        yield OutputEvent(output=(event.before, previous_values))
        yield OutputEvent(output=visible_values())


BOUND = ["leaked", COARSE]


def test_actions_and_conditions_bind_nothing_for_each_other() -> None:
    with OperatorHarness(Chain(), lambda number: number % 2, crash="everywhere") as harness:
        for number in range(3):
            assert harness.push(number) == [
                ([NOBODY, PRECISE], [NOBODY, PRECISE]),
                BOUND,
                (BOUND, [NOBODY, PRECISE]),
                BOUND,
            ]
    assert visible_values() == [NOBODY, PRECISE]


class Again(Agent):
    """Each attempt of an action starts with what the first one saw."""

    @action(InputEvent, retry=RETRIED)
    def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=bind_and_fail_once())

    @action(InputEvent, retry=RETRIED)
    async def act_async(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await bind_and_fail_once_async())

    @action(InputEvent, retry=RETRIED, timeout=30)
    def act_in_time(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=bind_and_fail_once())

    @action(InputEvent, retry=RETRIED, timeout=30, max_concurrency=1)
    async def act_in_turn(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await bind_and_fail_once_async())


def test_an_attempt_binds_nothing_for_the_next() -> None:
    with OperatorHarness(Again(), lambda number: number % 2, forced_serialization=False) as harness:
        for number in range(4):
            assert harness.push(number) == [[NOBODY, PRECISE]] * 4


CREATED: list[Any] = []


class Prompting(Agent):
    """Has a resource that is created at its first use."""

    @prompt
    def greet(self) -> Prompt:
        return Prompt.from_text("Hello")

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        bind("acme")
        ctx.get_resource("greet", "prompt")
        return OutputEvent(output=visible_values())


def test_a_resource_is_created_in_the_context_of_no_action(monkeypatch: pytest.MonkeyPatch) -> None:
    provide = PromptProvider.provide

    def create(provider: PromptProvider, declared: DeclaredResource) -> Prompt | None:
        CREATED.append(bind())
        return provide(provider, declared)

    monkeypatch.setattr(PromptProvider, "provide", create)
    CREATED.clear()
    with OperatorHarness(Prompting(), lambda number: number % 2) as harness:
        assert harness.push_all([1, 2]) == [["acme", COARSE]] * 2
    assert CREATED
    assert all(created == [NOBODY, PRECISE] for created in CREATED)


class Tools(Agent):
    """Tools that an action calls itself."""

    @tool
    def plain(self) -> list[Any]:
        """Bind."""
        return bind()

    @tool(max_concurrency=1)
    def limited(self) -> list[Any]:
        """Bind."""
        return bind()

    @tool
    async def plain_async(self) -> list[Any]:
        """Bind."""
        return await bind_async()

    @tool(max_concurrency=1)
    async def limited_async(self) -> list[Any]:
        """Bind."""
        return await bind_async()

    @tool
    async def with_context(self, ctx: RunnerContext) -> list[Any]:
        """Bind, make a step, and look."""
        previous_values = bind()
        return [*previous_values, *await ctx.durable_execute_async(bind), *visible_values()]

    @action(InputEvent)
    def call(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        bind("acme")
        tools = [ctx.get_resource(name, "tool") for name in ("plain", "limited")]
        return OutputEvent(output=[each_tool() + visible_values() for each_tool in tools])

    @action(InputEvent)
    async def call_async(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        bind("acme")
        names = ("plain_async", "limited_async")
        results = [ctx.get_resource("plain", "tool")() + visible_values()]
        results += [await ctx.get_resource(name, "tool")() + visible_values() for name in names]
        results += [await ctx.get_resource("with_context", "tool")(ctx=ctx) + visible_values()]
        results += [await ctx.durable_execute_async(ctx.get_resource("plain", "tool")) + visible_values()]
        return OutputEvent(output=results)


def test_a_tool_sees_its_action_and_binds_nothing_for_others() -> None:
    action_values = ["acme", COARSE]
    inside = [*action_values, "leaked", COARSE, "leaked", COARSE]
    with OperatorHarness(Tools(), lambda number: number % 2, crash="everywhere") as harness:
        for number in range(3):
            assert harness.push(number) == [
                [action_values + action_values] * 2,
                [
                    action_values + action_values,
                    action_values + action_values,
                    action_values + action_values,
                    inside + action_values,
                    action_values + action_values,
                ],
            ]


class Inner(Agent):
    def __init__(self) -> None:
        bind()

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        previous_values = bind()
        result = await ctx.durable_execute_async(bind)
        return OutputEvent(output=[previous_values, result, visible_values()])

    @action(InputEvent)
    def act_too(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=bind())


class Outer(Agent):
    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        bind("acme")
        answers = [await ctx.call_agent_all(Inner, 1), *await ctx.gather(ctx.call_agent_all(Inner, 2))]
        return OutputEvent(output=[answers, visible_values()])


def test_a_sub_agent_sees_its_caller_and_binds_nothing_for_it() -> None:
    caller_values = ["acme", COARSE]
    answer = [[caller_values, BOUND, BOUND], caller_values]
    with OperatorHarness(Outer(), lambda number: number % 2, crash="everywhere") as harness:
        for number in range(3):
            assert harness.push(number) == [[[answer, answer], caller_values]]


class Binding(RunObserver):
    """Binds whenever it hears of anything."""

    heard: list[Any]

    def __init__(self) -> None:
        self.heard = [bind()]

    def action_ended(self, run: Any, action: str, seconds: float, inline: bool) -> None:
        self.heard.append(bind())

    def call_begun(self, run: Any, action: str, function: str, number: Any, again: bool) -> None:
        bind()

    def call_recorded(self, run: Any, action: str, function: str, number: Any) -> None:
        bind()

    def phase_changed(self, run: Any, before: Any) -> None:
        bind()


class Asking(Agent):
    """Asks a person, and lets a function of it check the answer; has a client."""

    @client
    def session(self) -> Iterator[list[Any]]:
        yield bind()

    @client
    async def session_async(self) -> AsyncIterator[list[Any]]:
        yield bind()

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        bind("acme")
        sessions = [await ctx.client("session"), await ctx.client("session_async")]
        step = DurableCallable(using, client=("session", "session_async"))
        result = await ctx.durable_execute_async(step)
        outcome = await ctx.request_approval("pay", {"amount": 1}, check=lambda changed: bind())
        return OutputEvent(output=[sessions, result, outcome.approved, visible_values()])


def using(session: Any, session_async: Any) -> list[Any]:
    return [session, session_async, *bind()]


def test_clients_observers_and_checks_bind_nothing_for_actions() -> None:
    new = [NOBODY, PRECISE]
    action_values = ["acme", COARSE]
    with OperatorHarness(Asking(), lambda number: number % 2, observers=[Binding]) as harness:
        for number in range(3):
            harness.push(number)
            assert harness.approve(harness.approvals[-1], arguments={"amount": 2}) == [
                [[new, new], [new, new, *action_values], True, action_values]
            ]
        (observer,) = harness.observers
        assert isinstance(observer, Binding)
        assert all(heard == new for heard in observer.heard)
    assert visible_values() == new


def test_a_key_selector_binds_nothing_for_actions() -> None:
    def key_of(number: int) -> int:
        assert bind() == [NOBODY, PRECISE]
        return number % 2

    with OperatorHarness(Chain(), key_of) as harness:
        for number in range(3):
            assert harness.push(number)[0] == ([NOBODY, PRECISE], [NOBODY, PRECISE])


def test_an_upgrade_binds_nothing_for_others() -> None:
    replace_upgrade("tests.gone:Order", lambda fields: bind())
    stored = Stored("tests.gone:Order", Kind.DATACLASS, {"amount": 1})
    assert read_changed(stored) == read_changed(stored) == [NOBODY, PRECISE]


class Summing(Agent):
    """One third, in the precision of whoever calculates."""

    @action(InputEvent)
    async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await ctx.durable_execute_async(third, event.input))


def third(number: int) -> str:
    if number == 1:
        decimal.getcontext().prec = 2
    return str(decimal.Decimal(1) / 3)


def test_the_precision_of_one_key_does_not_round_for_another() -> None:
    with OperatorHarness(Summing(), lambda number: number, config={"run.pool-size": 1}) as harness:
        assert harness.push_all([1, 2, 1, 3]) == ["0.33", "0." + "3" * 28, "0.33", "0." + "3" * 28]


def test_the_variables_of_a_job_reach_its_actions() -> None:
    """A variable that a script binds before its job starts is that of each run."""
    token = tenant.set("job")
    try:
        with OperatorHarness(agent_of(STEPS["def"], "async"), lambda _: 0) as harness:
            assert harness.push(1)[0][0] == ["job", PRECISE]
    finally:
        tenant.reset(token)
