"""Attempts of actions of sub-agents: a retry and a timeout repeat what they repeat in the job's agent."""

from __future__ import annotations

import asyncio
import gc
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from flink_agents import Agent, ChatModel, InputEvent, OutputEvent, RetryPolicy, RunnerContext
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import Reply, ScriptedModel, ToolCall
from tests.suite.factors import factors

PLAIN: dict[str, Any] = {"crash": None, "forced_replay": False, "forced_restart": False}

CALLS: dict[str, list[str]] = defaultdict(list)
"""The idempotency keys of the calls of each step."""

TRIES: dict[str, int] = defaultdict(int)
"""How often each place that fails has been reached."""

AT_ONCE = RetryPolicy(initial_interval=0, max_attempts=10)
LATER = RetryPolicy(initial_interval=5, jitter=0, max_attempts=4)

pytestmark = [pytest.mark.usefixtures("nothing_called"), pytest.mark.own_conditions]


@pytest.fixture
def nothing_called() -> Iterator[None]:
    """Begin without calls."""
    CALLS.clear()
    TRIES.clear()
    yield


async def pay(step: str, idempotency_key: str) -> str:
    CALLS[step].append(idempotency_key)
    return f"{step} paid"


async def pay_slowly(step: str, idempotency_key: str) -> str:
    await asyncio.sleep(0.01)
    return await pay(step, idempotency_key)


async def refuse_first(step: str, idempotency_key: str) -> str:
    """Refuse the first request with each key."""
    CALLS[step].append(idempotency_key)
    if CALLS[step].count(idempotency_key) == 1:
        raise ConnectionError(step)
    return f"{step} paid"


async def fail(place: str, hangs: bool = False) -> None:
    """Fail, or hang, each second time."""
    TRIES[place] += 1
    if TRIES[place] % 2:
        if hangs:
            await asyncio.Event().wait()
        raise ConnectionError(place)


# -- what the action does ------------------------------------------------------------------------


async def steps(ctx: RunnerContext, name: str, fault: Callable[..., Any]) -> Any:
    paid = [await ctx.durable_execute_async(pay, f"{name} first")]
    await fault(name)
    return [*paid, await ctx.durable_execute_async(pay, f"{name} last")]


async def concurrent(ctx: RunnerContext, name: str, fault: Callable[..., Any]) -> Any:
    paid = await ctx.gather(*(ctx.durable_execute_async(pay, f"{name} {nr}") for nr in range(3)))
    await fault(name)
    return [*paid, await ctx.durable_execute_async(pay, f"{name} last")]


async def beside_failure(ctx: RunnerContext, name: str, fault: Callable[..., Any]) -> Any:
    """Fail while another step is being made."""

    async def fails() -> str:
        await fault(name)
        return "went well"

    paid = await asyncio.gather(ctx.durable_execute_async(pay_slowly, f"{name} slow"), fails())
    return [*paid, await ctx.durable_execute_async(pay, f"{name} last")]


async def failing_step(ctx: RunnerContext, name: str, fault: Callable[..., Any]) -> Any:
    paid = [await ctx.durable_execute_async(pay, f"{name} first")]
    paid.append(await ctx.durable_execute_async(refuse_first, f"{name} refused"))
    await fault(name)
    return [*paid, await ctx.durable_execute_async(pay, f"{name} last")]


async def sleeps(ctx: RunnerContext, name: str, fault: Callable[..., Any]) -> Any:
    paid = [await ctx.durable_execute_async(pay, f"{name} first")]
    await ctx.sleep(3600)
    await fault(name)
    await ctx.sleep(3600)
    return [*paid, await ctx.durable_execute_async(pay, f"{name} last")]


async def concurrent_sleeps(ctx: RunnerContext, name: str, fault: Callable[..., Any]) -> Any:
    async def sleep_and_pay(seconds: int) -> str:
        await ctx.sleep(seconds)
        return await ctx.durable_execute_async(pay, f"{name} {seconds}")

    paid = await ctx.gather(*map(sleep_and_pay, (30, 20, 10)))
    await fault(name)
    return [*paid, await ctx.durable_execute_async(pay, f"{name} last")]


async def signals(ctx: RunnerContext, name: str, fault: Callable[..., Any]) -> Any:
    word = await ctx.wait_for_signal("word", str)
    await fault(name)
    return [
        word,
        await ctx.durable_execute_async(pay, f"{name} last"),
        await ctx.wait_for_signal("word", str),
    ]


async def approvals(ctx: RunnerContext, name: str, fault: Callable[..., Any]) -> Any:
    outcome = await ctx.request_approval(f"pay {name}", {"amount": 3})
    await fault(name)
    return [outcome.approved, await ctx.durable_execute_async(pay, f"{name} last")]


async def pauses(ctx: RunnerContext, name: str, fault: Callable[..., Any]) -> Any:
    await asyncio.sleep(0.001)
    paid = [await ctx.durable_execute_async(pay, f"{name} first")]
    await asyncio.sleep(0.001)
    await fault(name)
    return [*paid, await ctx.durable_execute_async(pay, f"{name} last")]


async def chance(ctx: RunnerContext, name: str, fault: Callable[..., Any]) -> Any:
    drawn = [str(ctx.uuid4()), ctx.random().random()]
    paid = [await ctx.durable_execute_async(pay, f"{name} {drawn}")]
    await fault(name)
    return [*paid, await ctx.durable_execute_async(pay, f"{name} {ctx.uuid4()}")]


async def asks_beside_timer(ctx: RunnerContext, name: str, fault: Callable[..., Any]) -> Any:
    """Ask another agent, which ends before a timer, and pay what says in which order they ended."""
    order: list[str] = []

    async def note(awaitable: Awaitable[Any], what: str) -> None:
        await awaitable
        order.append(what)

    await asyncio.gather(
        note(ctx.call_agent(HELPER, f"{name} inner"), "helper"), note(asyncio.sleep(0.05), "timer")
    )
    paid = await ctx.durable_execute_async(pay, f"{name} {order}")
    await fault(name)
    return [paid, await ctx.durable_execute_async(pay, f"{name} last")]


async def help_out(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
    return OutputEvent(output=await ctx.durable_execute_async(pay, event.input))


HELPER = Agent(name="helper").add_action("help", [InputEvent], help_out)

BODIES = [
    steps,
    concurrent,
    beside_failure,
    failing_step,
    sleeps,
    concurrent_sleeps,
    signals,
    approvals,
    pauses,
    chance,
    asks_beside_timer,
]

# -- where it does that --------------------------------------------------------------------------


def worker(body: Callable[..., Any], fault: Callable[..., Any], **settings: Any) -> Agent:
    """Return an agent that executes a body, in attempts."""

    async def work(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await body(ctx, event.input, fault))

    return Agent(name="worker").add_action("work", [InputEvent], work, **settings)


def caller(agent: Agent, name: str = "caller", **settings: Any) -> Agent:
    """Return an agent that calls one, and continues after its answer."""

    async def ask(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        answer = await ctx.call_agent(agent, event.input)
        paid = await ctx.durable_execute_async(pay, f"{event.input} of {name}")
        await ctx.sleep(10)
        return OutputEvent(output=[*answer, paid])

    return Agent(name=name).add_action("ask", [InputEvent], ask, **settings)


def twice(agent: Agent, **settings: Any) -> Agent:
    """Return an agent that calls one twice, concurrently, beside a step."""

    async def ask(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        answers = await asyncio.gather(
            ctx.durable_execute_async(pay, f"{event.input} between"),
            ctx.call_agent(agent, f"{event.input} one"),
            ctx.call_agent(agent, f"{event.input} two"),
        )
        paid = await ctx.durable_execute_async(pay, f"{event.input} of twice")
        await ctx.sleep(10)
        return OutputEvent(output=[*answers[1], *answers[2], paid])

    return Agent(name="twice").add_action("ask", [InputEvent], ask, **settings)


def chats(agent: Agent) -> Agent:
    """Return an agent whose model calls one."""

    async def ask(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        reply = (await ctx.chat("model", event.input)).output
        paid = await ctx.durable_execute_async(pay, f"{event.input} of chats")
        await ctx.sleep(10)
        return OutputEvent(output=[reply, paid])

    chatting = Agent(name="chats").add_action("ask", [InputEvent], ask)
    chatting.add_resource("worker", "tool", agent.as_tool("Works.", input_type=str))
    return chatting.add_resource("model", "chat_model", ChatModel(clazz=scripted_model, tools=["worker"]))


def scripted_model() -> ScriptedModel:
    return ScriptedModel([Reply(tool_calls=[ToolCall("worker", {"request": "tea"})]), Reply("well done")])


PLACES: dict[str, Callable[[Agent], Agent]] = {
    "top": lambda agent: agent,
    "call_agent": caller,
    "twice": twice,
    "as_tool": chats,
    "two levels": lambda agent: caller(caller(agent, "middle")),
    "two levels, both retry": lambda agent: caller(caller(agent, "middle", retry=AT_ONCE), retry=AT_ONCE),
}

# -- what happens --------------------------------------------------------------------------------


async def nothing(place: str) -> None:
    """Let the attempt succeed."""


async def hang(place: str) -> None:
    await fail(place, hangs=True)


FAULTS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "nothing": (nothing, {"retry": AT_ONCE}),
    "retry": (fail, {"retry": AT_ONCE}),
    "retry later": (fail, {"retry": LATER}),
    "timeout": (hang, {"retry": AT_ONCE, "timeout": 0.1}),
}


def driven(agent: Agent, **options: Any) -> OperatorHarness:
    """Return a harness after all that an agent waits for has come."""
    harness = OperatorHarness(agent, **options)
    harness.push("tea")
    for _ in range(40):
        if not (harness.waits() or harness.approvals):
            break
        for request in harness.approvals:
            harness.approve(request)
        named = [wait for wait in harness.waits() if wait.name == "word"]
        if named:
            harness.signal(0, "word", "yes", wait=named[0].id)
        harness.advance_time(timedelta(hours=1))
    return harness


@factors(
    strength=1,
    body=BODIES,
    place=list(PLACES),
    fault=list(FAULTS),
    also=[
        # After a crash, there may be one attempt more or less than before.
        (failing_step, "twice", "timeout"),
        (concurrent, "two levels, both retry", "retry"),
        # An attempt that is repeated finds the attempts inside of it.
        (asks_beside_timer, "call_agent", "retry"),
        (asks_beside_timer, "call_agent", "retry later"),
    ],
)
def test_a_retry_repeats_no_step_and_no_request(body: Any, place: str, fault: str) -> None:
    function, settings = FAULTS[fault]
    harness = driven(PLACES[place](worker(body, function, **settings)), crash="everywhere")
    assert len(harness.outputs) == 1, harness.outputs
    assert harness.waits() == [] and harness.approvals == [] and harness.unmatched_signals == []
    for step, keys in CALLS.items():
        assert len(set(keys)) == 1, f"{step} was paid under several keys"
        # A failed step is repeated after each crash.
        assert len(keys) == 1 or step.endswith("refused"), f"{step} was paid {len(keys)} times"
    if body is approvals:
        request_count = 2 if place == "twice" else 1
        assert len(harness.approval_outcomes) == request_count
        assert len({outcome.request.id for outcome in harness.approval_outcomes}) == request_count


def test_tasks_keep_their_order_behind_an_attempt_that_failed() -> None:
    """Sets of tasks have the same order on replay, though that does not execute the failed attempt."""
    orders: list[list[str]] = []

    async def fail_beside_tasks(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        await asyncio.gather(*(asyncio.create_task(asyncio.sleep(0)) for _ in range(3)))
        TRIES["work"] += 1
        if TRIES["work"] == 1:
            raise ConnectionError
        return OutputEvent(output="well")

    async def ask(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        answer = await ctx.call_agent(flaky, event.input)
        tasks = {asyncio.create_task(asyncio.sleep(0), name=str(number)) for number in range(8)}
        done, _ = await asyncio.wait(tasks)
        orders.append([task.get_name() for task in done])
        await ctx.sleep(10)
        return OutputEvent(output=answer)

    flaky = Agent(name="flaky").add_action("work", [InputEvent], fail_beside_tasks, retry=AT_ONCE)
    agent = Agent(name="asks").add_action("ask", [InputEvent], ask)
    harness = driven(agent, forced_serialization=False, **PLAIN)
    assert harness.outputs == ["well"]
    assert len(orders) == 2 and orders[0] == orders[1]


# -- pauses before the next attempt --------------------------------------------------------------


def fail_first(place: str, failures: int) -> None:
    """Fail so many times."""
    TRIES[place] += 1
    if TRIES[place] <= failures:
        raise ConnectionError(place)


def flaky(failures: int, retry: RetryPolicy, then: Callable[..., Any] | None = None) -> Agent:
    """Return an agent whose action fails some times, and then does something."""

    async def work(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        await ctx.durable_execute_async(pay, "flaky")
        fail_first("flaky", failures)
        if then is not None:
            await then(ctx)
        return OutputEvent(output="well")

    return Agent(name="flaky").add_action("work", [InputEvent], work, retry=retry)


def test_a_pause_before_the_next_attempt_holds_up_nothing_else() -> None:
    order: list[str] = []

    async def note_each_second() -> None:
        for number in range(3):
            await asyncio.sleep(1)
            order.append(str(number))

    async def ask_flaky(ctx: RunnerContext) -> Any:
        answer = await ctx.call_agent(agent, "x")
        order.append(answer)

    async def ask(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        order.clear()
        await asyncio.gather(ask_flaky(ctx), note_each_second())
        await ctx.durable_execute_async(pay, "last")
        return OutputEvent(output=list(order))

    agent = flaky(1, LATER)
    harness = driven(Agent(name="asks").add_action("ask", [InputEvent], ask), **PLAIN)
    assert harness.outputs == [["0", "1", "2", "well"]]
    assert [len(CALLS[step]) for step in ("flaky", "last")] == [1, 1]


@pytest.mark.parametrize("place", ["top", "call_agent"])
def test_a_pause_is_not_waited_again_when_the_run_resumes(place: str) -> None:
    async def wait_for_words(ctx: RunnerContext) -> None:
        for _ in range(3):
            await ctx.wait_for_signal("word", str)

    agent = flaky(2, RetryPolicy(initial_interval=1000, factor=1, jitter=0, max_attempts=4), wait_for_words)

    async def ask(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(agent, event.input))

    if place == "call_agent":
        agent_of_job = Agent(name="caller").add_action("ask", [InputEvent], ask)
    else:
        agent_of_job = agent
    with OperatorHarness(agent_of_job, **PLAIN) as harness:
        harness.push("tea")
        after_pauses_ms = harness.current_time
        for _ in range(3):
            [wait] = harness.waits()
            harness.signal(0, "word", "yes", wait=wait.id)
        assert harness.outputs == ["well"]
        assert harness.current_time == after_pauses_ms


@pytest.mark.parametrize("sleeps", [False, True], ids=["at once", "after a wait"])
def test_pauses_count_for_the_longest_duration_of_retries(sleeps: bool) -> None:
    """The attempts are as many as those of an action of the job's agent."""
    policy = RetryPolicy(initial_interval=10, factor=1, jitter=0, max_attempts=60, max_duration=60)

    async def work(event: InputEvent, ctx: RunnerContext) -> None:
        await ctx.durable_execute_async(pay, "flaky")
        if sleeps:
            await ctx.sleep(3600)
        fail_first(event.input, 1_000)

    def agent(name: str) -> Agent:
        return Agent(name=name).add_action("work", [InputEvent], work, retry=policy)

    async def ask(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        with pytest.raises(ConnectionError):
            await ctx.call_agent(worker_agent, event.input)
        return OutputEvent(output="failed")

    worker_agent = agent("worker")
    calling_agent = Agent(name="asks").add_action("ask", [InputEvent], ask)
    for name, tried in (("top", agent("top")), ("sub", calling_agent)):
        tried.on_error = "ignore"
        with OperatorHarness(tried, **PLAIN) as harness:
            harness.push(name)
            for _ in range(10):
                harness.advance_time(timedelta(hours=1))
    assert TRIES["top"] == TRIES["sub"] > 1


def test_a_replay_that_fails_uses_up_no_attempt() -> None:
    """The code fails for reasons that are not recorded, also when the last attempt is replayed."""

    async def work(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        await fail("work")
        await ctx.durable_execute_async(pay, "first")
        for _ in range(3):
            await ctx.sleep(10)
        return OutputEvent(output=[await ctx.durable_execute_async(pay, "last")])

    agent = Agent(name="worker").add_action(
        "work", [InputEvent], work, retry=RetryPolicy(initial_interval=0, max_attempts=2)
    )
    harness = driven(caller(agent), **PLAIN)
    assert harness.outputs == [["last paid", "tea of caller paid"]]
    assert TRIES["work"] > 4


@pytest.mark.parametrize(
    ("worker_attempts", "caller_attempts", "step_attempts"), [(3, 1, 1), (1, 3, 1), (1, 1, 3), (2, 1, 2)]
)
def test_a_crash_repeats_the_answers_that_each_attempt_has_got(
    worker_attempts: int, caller_attempts: int, step_attempts: int
) -> None:
    """As many attempts as there are failures and one more, so that each lost attempt shows."""

    async def refuse_twice(step: str) -> str:
        TRIES[step] += 1
        if TRIES[step] <= 2:
            raise ConnectionError(step)
        return step

    def retry(attempts: int) -> RetryPolicy:
        return RetryPolicy(initial_interval=0, max_attempts=attempts)

    async def work(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        await ctx.durable_execute_async(pay, "work")
        result = await ctx.durable_execute_async(refuse_twice, "step", retry=retry(step_attempts))
        return OutputEvent(output=result)

    async def ask(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        answer = await ctx.call_agent(worker_agent, event.input)
        return OutputEvent(output=answer)

    worker_agent = Agent(name="worker").add_action("work", [InputEvent], work, retry=retry(worker_attempts))
    calling_agent = Agent(name="asks").add_action("ask", [InputEvent], ask, retry=retry(caller_attempts))
    with OperatorHarness(calling_agent, crash="everywhere", forced_serialization=False) as harness:
        assert harness.push("tea") == ["step"]
    assert TRIES["step"] == 3


@pytest.mark.parametrize("steps_before", [0, 1, 2])
def test_a_call_that_is_cancelled_as_it_starts_leaves_nothing(
    steps_before: int, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    async def work(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=await ctx.durable_execute_async(pay, "work"))

    async def ask(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        calls = [asyncio.create_task(ctx.call_agent(agent, number)) for number in range(2)]
        for _ in range(steps_before):
            await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        return OutputEvent(output=[type(end).__name__ for end in ends])

    agent = Agent(name="worker").add_action("work", [InputEvent], work, timeout=6, retry=LATER)
    with OperatorHarness(Agent(name="asks").add_action("ask", [InputEvent], ask), **PLAIN) as harness:
        assert harness.push("tea") == [["CancelledError", "CancelledError"]]
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
    assert [str(warning.message) for warning in recwarn if "never awaited" in str(warning.message)] == []
