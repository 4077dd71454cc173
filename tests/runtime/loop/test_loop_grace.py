"""An attempt that ends in a living process: calls in flight end, are recorded, and are not made again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest

from flink_agents import (
    NOT_DONE,
    Agent,
    DurableCallable,
    InputEvent,
    OutputEvent,
    RetryableError,
    RetryPolicy,
    action,
)
from flink_agents.api.action_state import ActionStateStore, Owner
from flink_agents.api.errors import ActionFailedError
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.runtime.execution.calls.attempts import AttemptedCall, AttemptEnded
from flink_agents.testing import OperatorHarness
from flink_agents.testing.harness import Snapshot
from tests.suite.factors import factors

pytestmark = pytest.mark.own_conditions

MADE: list[Any] = []
"""What calls did outside, in order."""

ASKED: list[Any] = []

IN_FLIGHT: Counter[str] = Counter()
"""How many calls have begun that end when they may, by their text."""

GO = threading.Event()
"""Whether calls may end."""

HELPERS: list[threading.Thread] = []
"""Threads that let calls end; none outlives its test."""

LONG = "10 s"


@pytest.fixture(autouse=True)
def begin() -> Iterator[None]:
    MADE.clear()
    ASKED.clear()
    IN_FLIGHT.clear()
    GO.clear()
    yield
    GO.set()
    while HELPERS:
        HELPERS.pop().join()


def go_when_closing(harness: OperatorHarness) -> None:
    """Let calls end when the attempt is ending."""
    loops: list[Any] = [subtask.processor.loop_access.running_loop for subtask in harness._subtasks]

    def wait() -> None:
        until(lambda: all(loop._bridge.closed for loop in loops))
        GO.set()

    HELPERS.append(threading.Thread(target=wait, daemon=True))
    HELPERS[-1].start()


def go_when_over(harness: OperatorHarness) -> None:
    """Let calls end when the grace is over."""
    loop: Any = harness._subtasks[0].processor.loop_access.running_loop

    def wait() -> None:
        until(lambda: loop._durable.in_flight.closed)
        GO.set()

    HELPERS.append(threading.Thread(target=wait, daemon=True))
    HELPERS[-1].start()


def book(text: str) -> str:
    """Take effect at once, and return when it may."""
    MADE.append(text)
    IN_FLIGHT[text] += 1
    assert GO.wait(30)
    return f"{text} done"


async def book_async(text: str) -> str:
    MADE.append(text)
    IN_FLIGHT[text] += 1
    while not GO.is_set():
        await asyncio.sleep(0.005)
    return f"{text} done"


def book_awaitable(text: str) -> Any:
    """A function that is no async def, and returns something to be awaited."""
    return book_async(text)


def look_up(text: str) -> Any:
    ASKED.append(text)
    return NOT_DONE


async def side_by_side(ctx: Any, what: Any, text: str) -> str:
    return " ".join(await ctx.gather(*(ctx.durable_execute_async(what, f"{text} {n}") for n in range(3))))


CALLS: dict[str, Any] = {
    "def": book,
    "async": book_async,
    "awaitable": book_awaitable,
    "def-timeout": DurableCallable(book, name="book", timeout=30),
    "async-timeout": DurableCallable(book_async, name="book", timeout=30),
    "def-retry": DurableCallable(book, name="book", retry=RetryPolicy(max_attempts=3)),
    "async-retry": DurableCallable(book_async, name="book", retry=RetryPolicy(max_attempts=3)),
    "def-reconciler": DurableCallable(book, name="book", reconciler=look_up),
    "async-reconciler": DurableCallable(book_async, name="book", reconciler=look_up),
}


class Books(Agent):
    """Makes calls in the way that its name says; inputs ``bad`` fail, and what is behind a call is noted."""

    def __init__(self, call: str, way: str) -> None:
        self.call = call
        self.way = way

    @action(InputEvent)
    def in_thread(self, event: Any, ctx: Any) -> Any:
        if self.way == "def" and not event.input.startswith(("bad", "idle")):
            return OutputEvent(output=ctx.durable_execute(CALLS[self.call], event.input))
        return None

    @action(InputEvent)
    async def on_loop(self, event: Any, ctx: Any) -> Any:
        if event.input.startswith("bad"):
            raise ValueError(event.input)
        if event.input.startswith("idle"):
            return None
        if self.way == "async":
            return OutputEvent(output=await ctx.durable_execute_async(CALLS[self.call], event.input))
        if self.way == "gather":
            return OutputEvent(output=await side_by_side(ctx, CALLS[self.call], event.input))
        return None


class OneCall(Agent):
    """Calls a function of this module: in a thread where the way is ``def``, otherwise on the loop."""

    def __init__(self, function: str, way: str) -> None:
        self.function = function
        self.way = way

    @action(InputEvent)
    def in_thread(self, event: Any, ctx: Any) -> Any:
        if self.way == "def":
            return OutputEvent(output=ctx.durable_execute(globals()[self.function], event.input))
        return None

    @action(InputEvent)
    async def on_loop(self, event: Any, ctx: Any) -> Any:
        if self.way != "def":
            call = ctx.durable_execute_async(globals()[self.function], event.input)
            return OutputEvent(output=await call)
        return None


WAYS = ["def", "async", "gather"]


def harness_of(
    agent: Agent, store: Callable[[], ActionStateStore] | None = None, **config: Any
) -> OperatorHarness:
    options = {f"action-state.{name.replace('_', '-')}": value for name, value in config.items()}
    return OperatorHarness(
        agent,
        lambda record: record.split()[-1],
        config=options,
        store=store,
        auto_run=False,
        forced_replay=False,
        forced_restart=False,
    )


def until(condition: Callable[[], bool]) -> None:
    until_ = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until_
        time.sleep(0.002)


def in_flight(count: int) -> None:
    until(lambda: IN_FLIGHT.total() == count)


# -- how attempts end --------------------------------------------------------------------


def closed(harness: OperatorHarness, before: Snapshot) -> None:
    """A cancel, or the restart of a neighbour."""
    harness.restore(before)


def failed(harness: OperatorHarness, before: Snapshot) -> None:
    """An action of another key raises."""
    with pytest.raises(ActionFailedError):
        harness.push("bad other")
        harness.run_until_idle()
    harness.restore(before)


def failed_in_commit(harness: OperatorHarness, before: Snapshot) -> None:
    """Flink's thread fails where it writes state."""

    def fail(*arguments: Any) -> None:
        raise OSError("no space left for state")

    for subtask in harness._subtasks:
        subtask.processor.commit = fail  # type: ignore[method-assign]
    harness.push("idle other")
    with pytest.raises(OSError, match="no space"):
        harness.run_until_idle()
    harness.restore(before)


def sentinel(harness: OperatorHarness, before: Snapshot) -> None:
    """First nobody waits; the next attempt does."""
    for subtask in harness._subtasks:
        subtask.processor.close(wait=False)
    harness.restore(before)


ENDS = [closed, failed, failed_in_commit, sentinel]


@factors(call=CALLS, way=WAYS, end=ENDS)
def test_calls_in_flight_are_recorded_and_not_made_again(
    call: str, way: str, end: Callable[[OperatorHarness, Snapshot], None]
) -> None:
    texts = ["a 1", "b 2"]
    with harness_of(Books(call, way), shutdown_grace=LONG) as harness:
        snapshot = harness.snapshot()
        for text in texts:
            harness.push(text)
        in_flight(6 if way == "gather" else 2)
        go_when_closing(harness)
        end(harness, snapshot)
        previous_calls = list(MADE)
        for text in texts:
            harness.push(text)
        harness.run_until_idle()
        assert len(harness.outputs) == 2
        assert previous_calls == MADE
    assert set(Counter(MADE).values()) == {1}
    assert ASKED == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_is_longer_than_the_grace_is_made_again(call: str, way: str) -> None:
    """It is in the window then: a reconciler is asked, and keys are equal."""
    with harness_of(Books(call, way), shutdown_grace="50 ms") as harness:
        snapshot = harness.snapshot()
        harness.push("a 1")
        count = 3 if way == "gather" else 1
        in_flight(count)
        previous_calls = Counter(MADE)
        go_when_over(harness)
        harness.restore(snapshot)
        assert GO.wait(30)
        harness.push("a 1")
        harness.run_until_idle()
    assert Counter(MADE) == previous_calls + previous_calls
    assert len(ASKED) == (count if call.endswith("reconciler") else 0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("waits_for", ["its attempt", "its pause"])
def test_no_attempt_of_a_call_begins_within_the_grace(way: str, waits_for: str) -> None:
    attempts: list[str] = []

    CALLED["busy"] = attempts
    with harness_of(OneCall("busy", way), shutdown_grace=LONG) as harness:
        snapshot = harness.snapshot()
        if waits_for == "its pause":
            GO.set()
        harness.push("a 1")
        until(lambda: bool(attempts))
        if waits_for == "its pause":
            until(lambda: harness.run_metrics.get("action_call_retries", 0) == 1)
        go_when_closing(harness)
        harness.restore(snapshot)
        assert len(attempts) == 1
        CALLED["busy"] = []


CALLED: dict[str, list[str]] = {}


def busy(text: str) -> str:
    CALLED["busy"].append(text)
    assert GO.wait(30)
    raise RetryableError("busy", retry_after=3600)


def test_calls_that_wait_for_a_thread_are_not_begun() -> None:
    class Many(Agent):
        @action(InputEvent)
        async def act(self, event: Any, ctx: Any) -> Any:
            calls = (ctx.durable_execute_async(book, f"{event.input} {n}") for n in range(5))
            return OutputEvent(output=await ctx.gather(*calls))

    options: dict[str, Any] = {"auto_run": False, "forced_replay": False, "forced_restart": False}
    config = {"run.pool-size": 2, "action-state.shutdown-grace": LONG}
    with OperatorHarness(Many(), config=config, **options) as harness:
        snapshot = harness.snapshot()
        harness.push("a")
        in_flight(2)
        go_when_closing(harness)
        harness.restore(snapshot)
        assert len(MADE) == 2
        harness.push("a")
        harness.run_until_idle()
        assert harness.outputs == [[f"a {n} done" for n in range(5)]]
    assert set(Counter(MADE).values()) == {1} and len(MADE) == 5


@pytest.mark.parametrize("way", ["def", "async"])
def test_no_call_begins_within_the_grace(way: str) -> None:
    """An action goes on with the result of its first call: it does not get it any more."""

    class Two(Agent):
        @action(InputEvent)
        def in_thread(self, event: Any, ctx: Any) -> Any:
            if way == "def":
                first_booking = ctx.durable_execute(book, f"{event.input} one")
                return OutputEvent(output=(first_booking, ctx.durable_execute(book, f"{event.input} two")))
            return None

        @action(InputEvent)
        async def on_loop(self, event: Any, ctx: Any) -> Any:
            if way != "def":
                first_booking = await ctx.durable_execute_async(book, f"{event.input} one")
                two = await ctx.durable_execute_async(book, f"{event.input} two")
                return OutputEvent(output=(first_booking, two))
            return None

    with harness_of(Two(), shutdown_grace=LONG) as harness:
        snapshot = harness.snapshot()
        harness.push("a 1")
        in_flight(1)
        go_when_closing(harness)
        harness.restore(snapshot)
        assert MADE == ["a 1 one"]
        harness.push("a 1")
        harness.run_until_idle()
        assert harness.outputs == [("a 1 one done", "a 1 two done")]
    assert MADE == ["a 1 one", "a 1 two"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", ["def", "async"])
def test_what_ends_is_not_recorded_where_the_store_is_anothers(call: str, way: str) -> None:
    """A successor in another process has taken over: it makes the calls itself."""
    place = MemoryPlace()

    def make() -> MemoryStore:
        return MemoryStore(place)

    with harness_of(Books(call, way), make, shutdown_grace=LONG) as harness:
        harness.push("a 1")
        in_flight(3 if way == "gather" else 1)

        async def take_over() -> MemoryStore:
            store = make()
            await store.open(Owner.create("harness", "harness/Books"))
            return store

        successor = asyncio.run(take_over())
        go_when_closing(harness)
        harness.close()
        assert all(
            not journal.runs for key, journal in place.journals.items() if key.journal_id == "harness/Books"
        )
        assert successor.store_id


def test_a_call_that_fails_within_the_grace_is_no_history() -> None:
    """As at any other time: it is made again, since the action saw nothing of it."""

    class Fails(Agent):
        @action(InputEvent)
        async def act(self, event: Any, ctx: Any) -> Any:
            return OutputEvent(output=await ctx.durable_execute_async(fail_first, event.input))

    with harness_of(Fails(), shutdown_grace=LONG) as harness:
        snapshot = harness.snapshot()
        harness.push("a 1")
        in_flight(1)
        go_when_closing(harness)
        harness.restore(snapshot)
        harness.push("a 1")
        assert harness.run_until_idle() == ["a 1"]
    assert MADE == ["a 1", "a 1"]


def fail_first(text: str) -> str:
    MADE.append(text)
    if len(MADE) == 1:
        IN_FLIGHT[text] += 1
        assert GO.wait(30)
        raise ValueError(text)
    return text


@pytest.mark.parametrize("moment", ["before it begins", "while it looks", "inside"])
def test_whoever_ends_an_attempt_sees_each_call_that_begins(moment: str) -> None:
    """A call begins and is seen, or is refused; whatever comes first."""
    ended = [moment == "before it begins"]
    seen: list[bool] = []

    class Ending:
        @property
        def closed(self) -> bool:
            if moment == "while it looks":
                # Another thread ends the attempt right before, and looks at once.
                ended[0] = True
                seen.append(call.inside)
            return ended[0]

    unused: Any = None
    call = AttemptedCall(unused, DurableCallable(book), unused, cast("Any", Ending()))
    if moment == "inside":
        call.enter_function()
        assert call.inside
        call.leave_function()
    else:
        with pytest.raises(AttemptEnded):
            call.enter_function()
    assert not call.inside
    assert all(seen)


@dataclass
class Slow:
    """Appends of a store wait until the attempt is ending."""

    place: MemoryPlace

    def make(self) -> MemoryStore:
        return _SlowStore(self.place)


class _SlowStore(MemoryStore):
    async def append(self, journal: Any, records: Any) -> None:
        while not GO.is_set() and not journal.journal_id.startswith("\x00"):
            IN_FLIGHT["append"] = 1
            await asyncio.sleep(0.005)
        await super().append(journal, records)


@pytest.mark.parametrize("way", ["async", "def"])
def test_a_record_that_is_on_its_way_arrives(way: str) -> None:
    with harness_of(OneCall("quick", way), Slow(MemoryPlace()).make, shutdown_grace=LONG) as harness:
        snapshot = harness.snapshot()
        harness.push("a 1")
        in_flight(1)
        go_when_closing(harness)
        harness.restore(snapshot)
        harness.push("a 1")
        assert harness.run_until_idle() == ["a 1"]
    assert MADE == ["a 1"]


def quick(text: str) -> str:
    MADE.append(text)
    return text
