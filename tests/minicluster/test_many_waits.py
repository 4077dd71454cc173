"""All kinds of waits in a job that fails: of asked agents, in tasks, approvals, delayed events; two agents.

Each key goes one of the ways of :data:`WAYS`. Requests for approvals leave the job by files, from which the
stream of signals makes the answers, as a web backend would.
"""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents import (
    Agent,
    AgentsExecutionEnvironment,
    ApprovalDeniedEvent,
    ApprovalRequest,
    Event,
    InputEvent,
    OutputEvent,
    Signal,
    action,
    tool,
)
from flink_agents.api.errors import ApprovalDeniedError, NoMoreSignalsError, SignalTimeoutError
from tests.minicluster.sources import numbers, restarting
from tests.minicluster.test_suspended_runs import FailsOnce

pytestmark = pytest.mark.minicluster

PATIENCE = 60.0


class Waiter(Agent):
    """Gives back the signal of which its input is the name."""

    @action(InputEvent)
    async def wait(self, event: InputEvent, ctx: Any) -> OutputEvent:
        ask_count = ctx.short_term_memory.get("asked", 0) + 1
        ctx.short_term_memory.set("asked", ask_count)
        answer = await ctx.wait_for_signal(event.input, int)
        await ctx.sleep(0.01)
        return OutputEvent(output=(answer, ask_count))


class Passes(Agent):
    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.call_agent(Waiter, event.input))


class Pays(Agent):
    @action(InputEvent, needs_approval=True)
    async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output="paid")

    @action(ApprovalDeniedEvent)
    async def tell(self, event: ApprovalDeniedEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=event.outcome.reason)


class Later(Event):
    number: int


async def sleeps(ctx: Any, number: int) -> Any:
    await ctx.sleep(0.05)
    return await ctx.wait_for_signal("first", int)


async def waits_twice(ctx: Any, number: int) -> Any:
    return list(await ctx.gather(ctx.wait_for_signal("first", int), ctx.wait_for_signal("second", int)))


async def asks(ctx: Any, number: int) -> Any:
    return await ctx.call_agent(Passes, "first")


async def asks_two(ctx: Any, number: int) -> Any:
    return [
        answer
        for answer, _ in await ctx.gather(ctx.call_agent(Waiter, "first"), ctx.call_agent(Waiter, "second"))
    ]


async def asks_for_approval(ctx: Any, number: int) -> Any:
    outcome = await ctx.request_approval("work", {"number": number})
    return outcome.reason or "paid"


async def asks_one_with_a_mark(ctx: Any, number: int) -> Any:
    return await ctx.call_agent(Pays, number)


async def calls_a_tool(ctx: Any, number: int) -> Any:
    try:
        return await ctx.get_resource("pay", "tool")(number=number)
    except ApprovalDeniedError:
        return "no"


async def gives_up(ctx: Any, number: int) -> Any:
    # The inputs end before its time where Flink was away for long.
    try:
        return await ctx.wait_for_signal("never", timeout=0.3)
    except (NoMoreSignalsError, SignalTimeoutError):
        return "gave up"


async def sends_later(ctx: Any, number: int) -> Any:
    ctx.send_event(Later(number=number), delay=0.2)
    return "sent"


Way = Callable[[Any, int], Awaitable[Any]]

WAYS: list[Way] = [sleeps, waits_twice, asks, asks_two, asks_for_approval, asks_one_with_a_mark]
WAYS += [calls_a_tool, gives_up, sends_later]
KEYS = 3 * len(WAYS)
APPROVED = {asks_for_approval, asks_one_with_a_mark, calls_a_tool}


def way_of(number: int) -> Way:
    return WAYS[number % len(WAYS)]


class Works(Agent):
    @tool(needs_approval=True)
    @staticmethod
    def pay(number: int) -> str:
        """Pay."""
        return "paid"

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        runs = ctx.short_term_memory.get("runs", 0) + 1
        ctx.short_term_memory.set("runs", runs)
        return OutputEvent(output=(event.input, await way_of(event.input)(ctx, event.input), runs))

    @action(Later)
    async def later(self, event: Later, ctx: Any) -> OutputEvent:
        answer = await ctx.wait_for_signal("first", int)
        runs = ctx.short_term_memory.get("runs", 0) + 1
        ctx.short_term_memory.set("runs", runs)
        return OutputEvent(output=(event.number, answer, runs))


class Follows(Agent):
    """Behind the other agent, with signals of its own."""

    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await ctx.sleep(0.02)
        answer = await ctx.wait_for_signal("go", int)
        return OutputEvent(output=(*event.input, answer))


class Desk:
    """Notes requests in files.

    Args:
        directory: Where they are.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __call__(self, asked: Any) -> Any:
        if isinstance(asked, ApprovalRequest):
            file = self._directory / f"request-{asked.key}"
            file.with_suffix(".new").write_bytes(pickle.dumps(asked))
            file.with_suffix(".new").rename(file)
        return asked


class Answers:
    """Makes signals in an order of chance; one that answers a request waits for that.

    Args:
        directory: Where requests are.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        named = [(number, name) for number in range(KEYS) for name in names_of(number)]
        approvals = [(number, None) for number in range(KEYS) if way_of(number) in APPROVED]
        self.order: list[tuple[int, str | None]] = [*named, *approvals]
        random.Random(7).shuffle(self.order)

    def __call__(self, index: int) -> Signal:
        time.sleep(0.02)
        number, name = self.order[index]
        if name is not None:
            return Signal(name, signal_value(number, name), key=number, id=name)
        file = self._directory / f"request-{number}"
        deadline = time.monotonic() + PATIENCE
        while not file.exists():
            if time.monotonic() > deadline:
                raise AssertionError(f"nobody asked for {number}")
            time.sleep(0.02)
        request: ApprovalRequest = pickle.loads(file.read_bytes())
        return request.approve() if number % 2 else request.deny("no")


def names_of(number: int) -> list[str]:
    """Names of the signals that a key waits for."""
    way = way_of(number)
    if way in APPROVED or way is gives_up:
        return []
    return ["first", "second"] if way in (waits_twice, asks_two) else ["first"]


def signal_value(number: int, name: str) -> int:
    return 10 * number + ("first", "second").index(name)


def expected(number: int) -> list[tuple[Any, ...]]:
    """What leaves both agents for a key: the output of each of its runs."""
    way = way_of(number)
    first = signal_value(number, "first")
    second = signal_value(number, "second")
    results: dict[Way, Any] = {waits_twice: [first, second], asks_two: [first, second], asks: (first, 1)}
    results |= {gives_up: "gave up", sends_later: "sent", sleeps: first}
    result = ("paid" if number % 2 else "no") if way in APPROVED else results[way]
    runs = [(number, result, 1)] + ([(number, first, 2)] if way is sends_later else [])
    return [(*run, -number) for run in runs]


def itself(number: int) -> int:
    return number


def first_of(output: tuple[Any, ...]) -> Any:
    return output[0]


def go(index: int) -> Signal:
    nth, number = divmod(index, KEYS)
    return Signal("go", -number, key=number, id=str(nth))


@pytest.mark.nightly
def test_each_wait_ends_once_and_with_its_own_answer(
    agents_environment: Callable[..., AgentsExecutionEnvironment], tmp_path: Path
) -> None:
    env = agents_environment(
        parallelism=2,
        flink=restarting(tmp_path),
    )
    answers = Answers(tmp_path)
    signals = numbers(env, len(answers.order)).map(answers).set_parallelism(1)
    works = env.from_datastream(numbers(env, KEYS), itself).with_signals(signals).apply(Works)
    approval_events = env.collect(works.approvals().map(Desk(tmp_path)))
    goes = numbers(env, 2 * KEYS).map(go).set_parallelism(1)
    follows = env.from_datastream(works.to_datastream(), first_of).with_signals(goes).apply(Follows)
    outputs = env.collect(follows.to_datastream().map(FailsOnce(tmp_path)))
    unmatched = env.collect(works.unmatched_signals())
    remaining_signals = env.collect(follows.unmatched_signals())
    env.execute()

    assert (tmp_path / "failed").exists()
    assert sorted(outputs, key=repr) == sorted(
        (output for number in range(KEYS) for output in expected(number)), key=repr
    )
    requests = {event.key for event in approval_events if isinstance(event, ApprovalRequest)}
    assert requests == {number for number in range(KEYS) if way_of(number) in APPROVED}
    assert unmatched == []
    # The second signal of each key that has one run leaves with its key at the end of the input.
    assert sorted(unmatched_signal.signal.key for unmatched_signal in remaining_signals) == [
        n for n in range(KEYS) if way_of(n) is not sends_later
    ]
