"""What can be called durably, with which settings, from which actions, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from core_agents import action_fails
from durable_tools import (
    EFFECTS,
    SEEN,
    calls_of,
    counted,
    crash,
    crash_and_replay,
    effect,
    effect_async,
    forget,
    journal,
    one_action,
)

from flink_agents import (
    NOT_DONE,
    DurableCallable,
    OutputEvent,
    RetryableError,
    RetryPolicy,
    TerminalError,
)
from flink_agents.api.action_state import RecordKind
from flink_agents.api.errors import (
    ActionFailedError,
    ActionTimeoutError,
    AgentConfigurationError,
    AgentsError,
    ContextMisuseError,
)
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_append, at_record

pytestmark = pytest.mark.executes_once

AT_ONCE = RetryPolicy(initial_interval=0)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    forget()
    BLOCK.clear()
    yield
    Flaky.failures = 0


def told_thread(value: Any) -> str:
    EFFECTS.append(value)
    return threading.current_thread().name


class Caller:
    def __call__(self, value: Any) -> Any:
        return effect(value)


class AsyncCaller:
    async def __call__(self, value: Any) -> Any:
        return effect(value)


CALLS: dict[str, Any] = {
    "def": effect,
    "async def": effect_async,
    "partial": functools.partial(effect),
    "partial with arguments": functools.partial(effect, 1),
    "partial async": functools.partial(effect_async, 1),
    "object": Caller(),
    "async object": AsyncCaller(),
    "lambda": lambda value: effect_async(value),
    "callable": DurableCallable(effect, name="pay"),
    "builtin": EFFECTS.append,
}


async def call_it(event: Any, ctx: Any) -> None:
    function = CALLS[event.input]
    args = () if "1" in repr(getattr(function, "args", "")) else (1,)
    SEEN.append(await ctx.durable_execute_async(function, *args))


def block_for_it(event: Any, ctx: Any) -> None:
    function = CALLS[event.input]
    args = () if "1" in repr(getattr(function, "args", "")) else (1,)
    SEEN.append(ctx.durable_execute(function, *args))


@pytest.mark.parametrize("act", [call_it, block_for_it])
@pytest.mark.parametrize("name", [*CALLS])
def test_whatever_can_be_called_is_called_once(name: str, act: Callable[..., Any]) -> None:
    crash_and_replay(one_action(act), name)
    assert EFFECTS == [1]
    assert SEEN == [None if name == "builtin" else 1] * 2


NAMES = {
    "def": "durable_tools:effect",
    "partial with arguments": "durable_tools:effect",
    "object": "test_durable_calls:Caller",
    "callable": "pay",
}


@pytest.mark.parametrize("name", [*NAMES])
def test_records_name_the_function(name: str) -> None:
    faults = Faults()
    with OperatorHarness(one_action(call_it), store=faults.store) as harness:
        harness.push(name)
        (call,) = calls_of(journal(faults))
        assert call.call.function == NAMES[name]
        assert (call.attempts, call.error) == (1, None)


async def call_thread(event: Any, ctx: Any) -> None:
    SEEN.append(await ctx.durable_execute_async(told_thread, 1))


def block_thread(event: Any, ctx: Any) -> None:
    SEEN.append((ctx.durable_execute(told_thread, 1), threading.current_thread().name))


def test_a_function_of_an_async_action_runs_in_the_pool() -> None:
    crash_and_replay(one_action(call_thread))
    assert all(name.startswith("agent-pool") for name in SEEN)


def test_a_function_of_a_def_action_runs_in_its_own_thread() -> None:
    crash_and_replay(one_action(block_thread))
    (called, act), _ = SEEN
    assert called == act and act.startswith("agent-pool")


# -- settings ---------------------------------------------------------------------------


class Flaky:
    failures = 0


def flaky(value: Any) -> Any:
    EFFECTS.append(value)
    if Flaky.failures > 0:
        Flaky.failures -= 1
        raise ConnectionError("flaky")
    return value


async def flaky_async(value: Any) -> Any:
    return flaky(value)


def flaky_retryable(value: Any) -> Any:
    try:
        return flaky(value)
    except ConnectionError:
        raise RetryableError("later", retry_after=0) from None


def terminal(value: Any) -> Any:
    EFFECTS.append(value)
    raise TerminalError("never")


RETRIED: dict[str, tuple[Any, dict[str, Any]]] = {
    "def": (flaky, {"retry": AT_ONCE}),
    "async": (flaky_async, {"retry": AT_ONCE}),
    "of the callable": (DurableCallable(flaky, retry=AT_ONCE), {}),
}


async def retry_it(event: Any, ctx: Any) -> OutputEvent:
    function, settings = RETRIED[event.input]
    return OutputEvent(output=await ctx.durable_execute_async(function, 1, **settings))


def retry_blocking(event: Any, ctx: Any) -> OutputEvent:
    function, settings = RETRIED[event.input]
    return OutputEvent(output=ctx.durable_execute(function, 1, **settings))


@pytest.mark.parametrize("act", [retry_it, retry_blocking])
@pytest.mark.parametrize("name", [*RETRIED])
def test_a_call_is_tried_again_by_its_policy(name: str, act: Callable[..., Any]) -> None:
    Flaky.failures = 3
    faults = Faults()
    with OperatorHarness(one_action(act), store=faults.store) as harness:
        assert harness.push(name) == [1]
        assert counted() == {1: 4}
        (call,) = calls_of(journal(faults))
        assert call.attempts == 4 and call.value is not None
        assert harness.run_metrics["action_call_retries"] == 3


def test_attempts_that_run_out_raise_the_last_error() -> None:
    Flaky.failures = 100
    with OperatorHarness(one_action(retry_it)) as harness, action_fails(ConnectionError, "flaky"):
        harness.push("def")
    assert counted() == {1: 5}


async def retry_without_policy(event: Any, ctx: Any) -> OutputEvent:
    return OutputEvent(output=await ctx.durable_execute_async(UNTRIED[event.input], 1))


UNTRIED = {"flaky": flaky, "retryable": flaky_retryable, "terminal": terminal}


@pytest.mark.parametrize(("name", "attempts"), [("flaky", 1), ("retryable", 2), ("terminal", 1)])
def test_without_a_policy_only_a_retryable_error_is_tried_again(name: str, attempts: int) -> None:
    Flaky.failures = 1
    with OperatorHarness(one_action(retry_without_policy)) as harness:
        if attempts == 1:
            with pytest.raises(ActionFailedError):
                harness.push(name)
        else:
            assert harness.push(name) == [1]
    assert counted() == {1: attempts}


async def terminal_with_policy(event: Any, ctx: Any) -> None:
    try:
        await ctx.durable_execute_async(terminal, 1, retry=AT_ONCE)
    except TerminalError as error:
        SEEN.append(str(error))
    await ctx.durable_execute_async(effect, 2)


def test_a_terminal_error_is_not_tried_again_and_recorded() -> None:
    crash_and_replay(one_action(terminal_with_policy))
    assert SEEN == ["never", "never"]
    assert EFFECTS == [1, 2]


BLOCK = threading.Event()


def never_ends() -> None:
    EFFECTS.append("began")
    # Well behind the timeout of the call, in a thread that nobody waits for.
    BLOCK.wait(1)


async def never_ends_async() -> None:
    EFFECTS.append("began")
    await asyncio.Event().wait()


ENDLESS: dict[str, Callable[[], Any]] = {"def": never_ends, "async": never_ends_async}


async def time_out(event: Any, ctx: Any) -> None:
    try:
        await ctx.durable_execute_async(ENDLESS[event.input], timeout=0.01)
    except ActionTimeoutError as error:
        SEEN.append((error.message, error.seconds))
    await ctx.durable_execute_async(effect, "next")


def time_out_blocking(event: Any, ctx: Any) -> None:
    try:
        ctx.durable_execute(ENDLESS[event.input], timeout=timedelta(milliseconds=10))
    except ActionTimeoutError as error:
        SEEN.append((error.message, error.seconds))
    ctx.durable_execute(effect, "next")


@pytest.mark.parametrize("act", [time_out, time_out_blocking])
@pytest.mark.parametrize("name", [*ENDLESS])
def test_a_call_that_takes_too_long_fails_and_does_so_again(name: str, act: Callable[..., Any]) -> None:
    with crash_and_replay(one_action(act), name):
        BLOCK.set()
    assert SEEN[0] == SEEN[1]
    assert ENDLESS[name].__name__ in SEEN[0][0] and SEEN[0][1] == 0.01
    assert EFFECTS == ["began", "next"]


def keyed(value: Any, *, idempotency_key: str) -> str:
    EFFECTS.append((value, idempotency_key))
    if Flaky.failures > 0:
        Flaky.failures -= 1
        raise ConnectionError("flaky")
    return idempotency_key


async def call_keyed(event: Any, ctx: Any) -> None:
    await ctx.durable_execute_async(keyed, 1, retry=AT_ONCE)
    await ctx.durable_execute_async(keyed, 1)
    await ctx.durable_execute_async(keyed, 1, idempotency_key="mine")


def test_an_idempotency_key_belongs_to_the_call() -> None:
    Flaky.failures = 2
    # Behind the append that binds the run's number to its input.
    faults = Faults(at_append(1, Fault.REFUSED))
    with OperatorHarness(one_action(call_keyed), lambda record: record, store=faults.store) as harness:
        snapshot = harness.snapshot()
        with crash():
            harness.push("a")
        harness.restore(snapshot)
        harness.push_all(["a", "b", "a"])
    keys = [key for _, key in EFFECTS]
    # Three attempts before the crash, one after it: all of one call.
    assert len(set(keys[:4])) == 1
    remaining_keys = [key for key in keys[4:] if key != "mine"]
    assert len({*keys[:1], *remaining_keys}) == 6
    assert all(len(key) == 32 and int(key, 16) >= 0 for key in remaining_keys)
    assert keys.count("mine") == 3


# -- reconcilers ------------------------------------------------------------------------


def reconcile(value: Any) -> Any:
    SEEN.append(("asked", value))
    return value * 10 if value in EFFECTS else NOT_DONE


async def reconcile_async(value: Any) -> Any:
    return reconcile(value)


RECONCILERS = {"def": reconcile, "async": reconcile_async}


async def call_reconciled(event: Any, ctx: Any) -> OutputEvent:
    reconciler = RECONCILERS[event.input]
    first = await ctx.durable_execute_async(effect, 1, reconciler=reconciler)
    return OutputEvent(output=(first, await ctx.durable_execute_async(effect, 2, reconciler=reconciler)))


@pytest.mark.parametrize("name", [*RECONCILERS])
@pytest.mark.parametrize(
    ("point", "output", "asked"),
    [
        (None, (1, 2), []),
        ((RecordKind.INTENT, Fault.REFUSED), (1, 2), []),
        ((RecordKind.INTENT, Fault.LOST), (1, 2), []),
        ((RecordKind.INTENT, Fault.UNACKNOWLEDGED), (1, 2), [1]),
        ((RecordKind.CALL, Fault.REFUSED), (10, 2), [1]),
        ((RecordKind.CALL, Fault.UNACKNOWLEDGED), (1, 2), []),
        ((RecordKind.CALL, Fault.LOST, 1), (1, 20), [2]),
        ((RecordKind.ACTION, Fault.LOST), (1, 2), []),
    ],
    ids=["no crash", "intent", "intent lost", "intent stored", "call", "call stored", "second", "action"],
)
def test_a_reconciler_is_asked_where_only_the_intent_is_recorded(
    name: str, point: Any, output: Any, asked: list[int]
) -> None:
    faults = Faults(at_record(*point) if point is not None else None)
    with OperatorHarness(one_action(call_reconciled), store=faults.store) as harness:
        snapshot = harness.snapshot()
        if point is not None:
            with crash():
                harness.push(name)
            harness.restore(snapshot)
        assert harness.push(name) == [output]
    assert [value for _, value in SEEN] == asked
    assert counted() == {1: 1, 2: 1}


async def refused(value: Any) -> None:
    await effect_async(value)
    raise TerminalError("no")


async def call_after_a_failure(event: Any, ctx: Any) -> OutputEvent:
    with contextlib.suppress(TerminalError):
        await ctx.durable_execute_async(refused, 1)
    return OutputEvent(output=await ctx.durable_execute_async(effect, 2, reconciler=reconcile))


def test_the_intent_of_a_call_is_recorded_with_the_failures_that_the_action_has_seen() -> None:
    faults = Faults(at_record(RecordKind.INTENT, Fault.UNACKNOWLEDGED))
    with OperatorHarness(one_action(call_after_a_failure), store=faults.store) as harness:
        snapshot = harness.snapshot()
        with crash():
            harness.push("a")
        harness.restore(snapshot)
        assert harness.push("a") == [2]
    assert counted() == {1: 1, 2: 1}


# -- def actions ------------------------------------------------------------------------


def two_calls(event: Any, ctx: Any) -> OutputEvent:
    first = ctx.durable_execute(effect, ("first", event.input))
    second = ctx.durable_execute(effect_async, ("second", event.input))
    ctx.short_term_memory.append("done", event.input)
    return OutputEvent(output=(first[0], second[0], event.input))


@pytest.mark.parametrize("size", [1, 4])
def test_def_actions_share_a_pool_of_any_size(size: int) -> None:
    config = {"run.pool-size": size}
    keys = list(range(20))
    with OperatorHarness(
        one_action(two_calls), lambda record: record, config=config, auto_run=False
    ) as harness:
        harness.push_all(keys)
        harness.run_until_idle()
        assert sorted(harness.outputs) == [("first", "second", key) for key in keys]
        assert [harness.memory(key) for key in keys] == [{"done": [key]} for key in keys]
    assert set(counted().values()) == {1} and len(EFFECTS) == 40


def test_def_actions_within_a_timeout_and_a_limit() -> None:
    agent = one_action(two_calls, timeout=60.0, max_concurrency=1)
    with OperatorHarness(
        agent, lambda record: record, config={"run.pool-size": 1}, auto_run=False
    ) as harness:
        harness.push_all(range(5))
        harness.run_until_idle()
        assert len(harness.outputs) == 5


# -- misuse -----------------------------------------------------------------------------

KEPT: list[Any] = []


def call_from_def(event: Any, ctx: Any) -> None:
    ctx.durable_execute_async(effect, 1)


async def block_in_async(event: Any, ctx: Any) -> None:
    ctx.durable_execute(effect, 1)


async def keep_context(event: Any, ctx: Any) -> None:
    KEPT.append(ctx)
    await ctx.durable_execute_async(effect, "kept")


async def use_kept(event: Any, ctx: Any) -> None:
    if not KEPT:
        KEPT.append(ctx)
        await ctx.durable_execute_async(effect, "kept")
        return
    await KEPT.pop().durable_execute_async(effect, 1)


async def from_thread(event: Any, ctx: Any) -> None:
    await asyncio.to_thread(ctx.durable_execute, effect, 1)


async def call_nothing(event: Any, ctx: Any) -> None:
    await ctx.durable_execute_async(effect(None), 1)


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (call_from_def, ContextMisuseError, "no async def"),
        (block_in_async, ContextMisuseError, "await ctx.durable_execute_async"),
        (from_thread, ContextMisuseError, "another thread"),
        (call_nothing, AgentConfigurationError, "needs a function"),
    ],
)
def test_misuse_is_named(act: Callable[..., Any], error: type[AgentsError], text: str) -> None:
    with OperatorHarness(one_action(act)) as harness, action_fails(error, text):
        harness.push(1)
    assert 1 not in EFFECTS


def test_a_context_that_outlived_its_action_makes_no_calls() -> None:
    with OperatorHarness(one_action(use_kept)) as harness:
        harness.push(1)
        with action_fails(ContextMisuseError, "after the action ended"):
            harness.push(2)
    assert EFFECTS == ["kept"]
