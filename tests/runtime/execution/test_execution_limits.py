"""Limits of actions and tools: how many run at a time, how many begin in a time, who waits for whom."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flink_agents import Agent, Event, InputEvent, OutputEvent, RateLimit, RetryPolicy, Tool, action, tool
from flink_agents.api.agents.observers import Phase, RunObserver
from flink_agents.api.errors import ActionFailedError, ContextMisuseError
from flink_agents.runtime.execution.limits import Limiter, Slot, Slots
from flink_agents.runtime.execution.phases import RunState
from flink_agents.runtime.metrics.observers import Observers
from flink_agents.testing import OperatorHarness


def state() -> RunState:
    """That of a run which nobody observes."""
    return RunState("i1", 0, Observers(RunObserver()), Phase.RUNNING)


class Gauge:
    """Counts who is inside, and keeps the highest count."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self.total = 0
        self.threads: set[str] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.total += 1
            self.most = max(self.most, self.now)
            self.threads.add(threading.current_thread().name)

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self.now -= 1


def by_record(record: Any) -> Any:
    return record


def run(agent: Agent, records: Any, **config: Any) -> list[Any]:
    """The outputs of ``agent`` for ``records``, each of its own key, all in flight together."""
    options = {name.replace("__", ".").replace("_", "-"): value for name, value in config.items()}
    with OperatorHarness(
        agent, by_record, config=options, forced_serialization=False, auto_run=False
    ) as harness:
        harness.push_all(records)
        harness.run_until_idle()
        return sorted(harness.outputs)


def asynchronous(inside: Gauge) -> Callable[..., Any]:
    async def act(event: InputEvent, ctx: Any) -> Event:
        with inside:
            for _ in range(5):
                await asyncio.sleep(0)
        return OutputEvent(output=event.input)

    return act


def synchronous(inside: Gauge) -> Callable[..., Any]:
    pause = threading.Event()

    def act(event: InputEvent, ctx: Any) -> Event:
        with inside:
            pause.wait(0.001)
        return OutputEvent(output=event.input)

    return act


# -- actions -------------------------------------------------------------------------


@pytest.mark.executes_once
@pytest.mark.parametrize("form", [asynchronous, synchronous])
def test_actions_of_all_keys_share_a_limit(form: Any) -> None:
    inside = Gauge()
    agent = Agent(name="a").add_action("act", [InputEvent], form(inside), max_concurrency=3)
    assert run(agent, range(40)) == list(range(40))
    assert inside.total == 40
    assert 1 <= inside.most <= 3


def test_without_a_limit_they_are_executed_together() -> None:
    inside = Gauge()
    agent = Agent(name="a").add_action("act", [InputEvent], asynchronous(inside))
    run(agent, range(40))
    assert inside.most > 3


@pytest.mark.parametrize(
    "options",
    [{"blocking": True}, {"max_concurrency": 2}, {"rate_limit": RateLimit(100)}, {"timeout": 60}],
    ids=str,
)
def test_def_action_with_one_of_these_never_runs_on_flinks_thread(options: Any) -> None:
    inside = Gauge()
    agent = Agent(name="a").add_action("act", [InputEvent], synchronous(inside), **options)
    assert run(agent, range(3)) == [0, 1, 2]
    assert all(name.startswith("agent-pool") for name in inside.threads)


def test_def_action_without_any_runs_on_flinks_thread() -> None:
    inside = Gauge()
    run(Agent(name="a").add_action("act", [InputEvent], synchronous(inside)), range(3))
    assert inside.threads == {threading.current_thread().name}


class Unset(Agent):
    """Has an attribute without a value, which its action names."""

    def __init__(self) -> None:
        self.client = None

    @action(InputEvent)
    def act(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=(self.client, threading.current_thread().name))


def test_def_action_that_names_none_runs_on_flinks_thread_beside_a_store() -> None:
    with OperatorHarness(Unset(), config={"action-state.store": "memory"}) as harness:
        harness.push("k")
        harness.run_until_idle()
        assert harness.outputs == [(None, threading.current_thread().name)]


@pytest.mark.executes_once
def test_steps_before_a_handed_over_one_run_once() -> None:
    calls: list[str] = []

    class Chain(Agent):
        @action(InputEvent)
        def first(self, event: InputEvent, ctx: Any) -> None:
            calls.append("first")
            ctx.short_term_memory.append("log", "first")

        @action(InputEvent, blocking=True)
        def second(self, event: InputEvent, ctx: Any) -> Event:
            calls.append("second")
            return OutputEvent(output=ctx.short_term_memory.append("log", "second") and calls)

    with OperatorHarness(Chain, forced_serialization=False) as harness:
        harness.push("x")
        assert harness.memory() == {"log": ["first", "second"]}
    assert calls == ["first", "second"]


def test_rate_is_kept() -> None:
    """More than the first ``calls`` cannot begin before the bucket has leaked: time is faked."""

    async def begin() -> list[int]:
        loop = asyncio.get_running_loop()
        limiter = Limiter("the action", None, RateLimit(2, per=3600))
        started: list[int] = []

        async def acquire_and_release(number: int) -> None:
            await limiter.acquire(None)
            started.append(number)
            limiter.release()

        tasks = [loop.create_task(acquire_and_release(number)) for number in range(5)]
        for _ in range(20):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return started

    assert asyncio.run(begin()) == [0, 1]


def test_actions_with_a_rate_all_run_in_the_end() -> None:
    inside = Gauge()
    agent = Agent(name="a").add_action(
        "act", [InputEvent], asynchronous(inside), rate_limit=RateLimit(5, per=0.01)
    )
    assert run(agent, range(20)) == list(range(20))


def test_who_waits_for_a_limit_holds_no_place() -> None:
    """Two actions with a limit wait for a third without one, and there is a single place."""
    entered = threading.Event()

    class Two(Agent):
        @action(InputEvent, when=lambda event: event.input != "free", max_concurrency=1)
        async def limited(self, event: InputEvent, ctx: Any) -> Event:
            return OutputEvent(output=event.input)

        @action(InputEvent, when=lambda event: event.input == "free")
        async def free(self, event: InputEvent, ctx: Any) -> Event:
            entered.set()
            return OutputEvent(output="free")

    assert run(Two(), ["a", "b", "c", "free"], run__max_in_flight=1) == ["a", "b", "c", "free"]
    assert entered.is_set()


@pytest.mark.executes_once
def test_failed_and_cancelled_executions_free_their_limit() -> None:
    attempts: list[Any] = []

    class Fails(Agent):
        @action(
            InputEvent,
            max_concurrency=1,
            timeout=0.25,
            retry=RetryPolicy(initial_interval=0, max_attempts=2),
            on_error="ignore",
        )
        async def act(self, event: InputEvent, ctx: Any) -> Event:
            attempts.append(event.input)
            if event.input == "endless":
                await asyncio.Event().wait()
            if event.input == "raises":
                raise OSError
            return OutputEvent(output=event.input)

    assert run(Fails(), ["endless", "raises", "fine"], run__max_in_flight=1) == ["fine"]
    assert sorted(attempts) == ["endless", "endless", "fine", "raises", "raises"]


# -- tools ---------------------------------------------------------------------------


class Shop(Agent):
    """Tools with limits, used by the test's action."""

    inside = Gauge()

    @tool(max_concurrency=2)
    @staticmethod
    async def look_up(number: int) -> int:
        with Shop.inside:
            for _ in range(3):
                await asyncio.sleep(0)
        return number

    @tool(max_concurrency=2)
    @staticmethod
    def read(number: int) -> int:
        with Shop.inside:
            threading.Event().wait(0.001)
        return number


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Shop.inside = Gauge()


def shop(act: Any, **options: Any) -> Agent:
    return Shop().add_action("act", [InputEvent], act, **options)


async def looks_up(event: InputEvent, ctx: Any) -> Event:
    return OutputEvent(output=await ctx.get_resource("look_up", "tool")(number=event.input))


async def gathers(event: InputEvent, ctx: Any) -> Event:
    look_up = ctx.get_resource("look_up", "tool")
    first, *_ = await asyncio.gather(*(look_up(event.input) for _ in range(5)))
    return OutputEvent(output=first)


def reads(event: InputEvent, ctx: Any) -> Event:
    return OutputEvent(output=ctx.get_resource("read", "tool")(number=event.input))


async def reads_in_a_thread(event: InputEvent, ctx: Any) -> Event:
    return OutputEvent(output=await asyncio.to_thread(ctx.get_resource("read", "tool"), event.input))


@pytest.mark.parametrize("places", [1, 2, 1000])
@pytest.mark.parametrize("act", [looks_up, gathers, reads, reads_in_a_thread])
def test_calls_of_a_tool_share_a_limit(act: Any, places: int) -> None:
    assert run(shop(act), range(15), run__max_in_flight=places) == list(range(15))
    assert 1 <= Shop.inside.most <= 2


@pytest.mark.executes_once
def test_limited_tool_met_on_flinks_thread_lets_its_action_begin_anew() -> None:
    calls: list[str] = []

    def act(event: InputEvent, ctx: Any) -> Event:
        calls.append(threading.current_thread().name)
        ctx.short_term_memory.append("log", event.input)
        return reads(event, ctx)

    with OperatorHarness(shop(act), forced_serialization=False) as harness:
        assert harness.push_all([1, 2]) == [1, 2]
        assert harness.memory() == {"log": [1, 2]}
    here = threading.current_thread().name
    # Once by surprise; from then on it is known.
    assert [name == here for name in calls] == [True, False, False]


def test_action_that_catches_everything_begins_anew_as_well() -> None:
    def act(event: InputEvent, ctx: Any) -> Event:
        try:
            return reads(event, ctx)
        except BaseException:  # as careless code does
            return OutputEvent(output="caught")

    assert run(shop(act), [1]) == [1]


def test_limited_def_tool_on_the_loop_is_refused() -> None:
    async def act(event: InputEvent, ctx: Any) -> Event:
        return reads(event, ctx)

    with OperatorHarness(shop(act), forced_serialization=False) as harness:
        with pytest.raises(ActionFailedError) as caught:
            harness.push(1)
    assert isinstance(caught.value.__cause__, ContextMisuseError)
    assert "asyncio.to_thread(read, ...)" in (caught.value.fix or "")


def test_tool_that_calls_itself_does_not_wait_for_itself() -> None:
    async def count_down(number: int) -> int:
        return 0 if number == 0 else 1 + await held[0](number - 1)

    held: list[Any] = []

    async def act(event: InputEvent, ctx: Any) -> Event:
        held[:] = [ctx.get_resource("count_down", "tool")]
        return OutputEvent(output=await held[0](3))

    agent = Agent(name="a").add_action("act", [InputEvent], act)
    agent.add_resource("count_down", "tool", Tool(count_down, max_concurrency=1))
    assert run(agent, [1]) == [3]


def test_lock_of_the_author_does_not_meet_the_places() -> None:
    """Who holds the lock waits for the tool; who has the place waits for the lock."""

    class Locked(Shop):
        lock: asyncio.Lock | None = None

        @action(InputEvent)
        async def act(self, event: InputEvent, ctx: Any) -> Event:
            self.lock = self.lock or asyncio.Lock()
            if event.input % 2:
                return await looks_up(event, ctx)
            async with self.lock:
                return await looks_up(event, ctx)

    assert run(Locked(), range(12), run__max_in_flight=1) == list(range(12))


def test_tools_without_limits_are_as_they_were() -> None:
    class Plain(Agent):
        @tool
        @staticmethod
        def twice(number: int) -> int:
            return 2 * number

        @action(InputEvent)
        def act(self, event: InputEvent, ctx: Any) -> Event:
            first, second = ctx.get_resource("twice", "tool"), ctx.get_resource("twice", "tool")
            return OutputEvent(output=(first is second, first(event.input)))

    assert run(Plain(), [4]) == [(True, 8)]


def test_end_of_an_attempt_of_the_job_ends_waiting_for_a_limit() -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold(number: int) -> int:
        entered.set()
        leave.wait(30)
        return number

    def act(event: InputEvent, ctx: Any) -> Event:
        return OutputEvent(output=ctx.get_resource("hold", "tool")(event.input))

    agent = Agent(name="a").add_action("act", [InputEvent], act, blocking=True)
    agent.add_resource("hold", "tool", Tool(hold, max_concurrency=1))
    harness = OperatorHarness(agent, by_record, forced_serialization=False, auto_run=False)
    previous_threads = set(threading.enumerate())
    harness.push_all([1, 2, 3])
    assert entered.wait(30)
    harness.close()
    # Those that wait end by themselves; the one that has begun cannot be stopped.
    leave.set()
    for thread in set(threading.enumerate()) - previous_threads:
        thread.join(30)
        assert not thread.is_alive()


# -- places --------------------------------------------------------------------------


@asynccontextmanager
async def placed(slots: Slots) -> AsyncIterator[Slot]:
    """Have a slot, as an execution of an action has it."""
    slot = Slot(slots, state())
    if not slot.take_now():
        await slot.take_slot()
    try:
        yield slot
    finally:
        slot.end()


def test_places_are_given_in_the_order_of_arrival() -> None:
    async def scenario() -> list[int]:
        slots, order = Slots(1), list[int]()

        async def take_slot(number: int) -> None:
            async with placed(slots):
                order.append(number)
                await asyncio.sleep(0)

        await asyncio.gather(*(take_slot(number) for number in range(5)))
        assert not slots.full
        return order

    assert asyncio.run(scenario()) == [0, 1, 2, 3, 4]


def test_cancelled_waiter_leaves_its_place_to_the_next() -> None:
    async def scenario() -> None:
        slots = Slots(1)
        await slots.take_slot()
        first, second = (asyncio.ensure_future(slots.take_slot()) for _ in range(2))
        await asyncio.sleep(0)
        slots.release_slot()
        # The place is the first one's already, which has not heard of it.
        first.cancel()
        await second
        assert first.cancelled()
        assert slots.full
        slots.release_slot()
        assert not slots.full

    asyncio.run(scenario())


def test_lent_place_comes_back_without_waiting() -> None:
    async def scenario() -> None:
        slots = Slots(1)
        async with placed(slots) as place:
            with place.lent():
                assert not slots.full
                with place.lent():
                    await slots.take_slot()
            assert slots.full
        # One too many had a place; now the other one alone has it.
        assert slots.full
        slots.release_slot()
        assert not slots.full

    asyncio.run(scenario())


def test_place_that_ended_while_it_was_lent_is_not_taken_back() -> None:
    async def scenario() -> None:
        slots = Slots(1)
        async with placed(slots) as place:
            lent = place.lent()
            lent.__enter__()
        lent.__exit__(None, None, None)
        assert not slots.full

    asyncio.run(scenario())


def test_an_action_that_leaves_for_a_tool_with_limits_gets_the_event_as_it_was() -> None:
    def count(items: list[int]) -> int:
        """Count them."""
        return len(items)

    def changes(event: InputEvent, ctx: Any) -> Event:
        event.input.append(2)
        return OutputEvent(output=ctx.get_resource("count", "tool")(event.input))

    agent = Agent(name="a").add_action("change", InputEvent, changes)
    agent.add_resource("count", "tool", Tool(count, max_concurrency=1))
    with OperatorHarness(agent, forced_serialization=False) as harness:
        assert harness.push_all([[1], [1]]) == [2, 2]
