"""Arguments of durable calls are copies: of the action's objects, and for each attempt of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from core_values import Box, Item
from durable_tools import EFFECTS, SEEN, crash_and_replay, effect, forget, one_action

from flink_agents import NOT_DONE, DurableCallable, RetryPolicy
from flink_agents.api.action_state import RecordKind
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Fault, Faults, at_record

pytestmark = pytest.mark.executes_once

TWICE = RetryPolicy(initial_interval=0, max_attempts=2)


@pytest.fixture(autouse=True)
def clean() -> None:
    forget()
    Flaky.failures = 0


class Flaky:
    failures = 0


def _rename(item: Item) -> None:
    item.name += "!"
    item.more.append("more")


def _fill(box: Box) -> None:
    box.tags.append("tag")
    box.content["a"].pop()


# A value, and a function that changes it in place.
VALUES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "list": (lambda: [1, 2, 3], list.pop),
    "dictionary": (lambda: {"a": 1}, lambda value: value.pop("a")),
    "set": (lambda: {1, 2}, lambda value: value.add(3)),
    "nested": (lambda: {"a": [{"b": [1]}]}, lambda value: value["a"][0]["b"].append(2)),
    "in a tuple": (lambda: ([1], {"a": 1}), lambda value: value[0].append(2)),
    "dataclass": (lambda: Box({"a": [1, 2]}), _fill),
    "model": (lambda: Item(name="a", more=[1]), _rename),
    "list of models": (lambda: [Item(name="a", more=[])], lambda value: _rename(value.pop())),
}


def change(name: str, value: Any, other: Any = None) -> Any:
    """Take effect, change the arguments, and fail as often as it is told."""
    EFFECTS.append((copy.deepcopy(value), copy.deepcopy(other)))
    VALUES[name][1](value)
    VALUES[name][1](other)
    if Flaky.failures > 0:
        Flaky.failures -= 1
        raise ConnectionError("flaky")
    return value


async def change_async(name: str, value: Any, other: Any = None) -> Any:
    return change(name, value, other)


FUNCTIONS: dict[str, Any] = {
    "def": change,
    "async def": change_async,
    "callable": DurableCallable(change, timeout=60),
}


async def act_async(event: Any, ctx: Any) -> None:
    kind, name = event.input
    value = VALUES[name][0]()
    other_value = VALUES[name][0]()
    result = await ctx.durable_execute_async(FUNCTIONS[kind], name, value, other=other_value, retry=TWICE)
    SEEN.append((value, other_value, result))
    await ctx.durable_execute_async(effect, "next")


def act_def(event: Any, ctx: Any) -> None:
    kind, name = event.input
    value = VALUES[name][0]()
    other_value = VALUES[name][0]()
    result = ctx.durable_execute(FUNCTIONS[kind], name, value, other=other_value, retry=TWICE)
    SEEN.append((value, other_value, result))
    ctx.durable_execute(effect, "next")


@pytest.mark.parametrize("act", [act_async, act_def])
@pytest.mark.parametrize("kind", [*FUNCTIONS])
@pytest.mark.parametrize("failures", [0, 1])
def test_what_a_function_changes_reaches_neither_the_action_nor_another_attempt(
    act: Any, kind: str, failures: int
) -> None:
    for name, (make, do) in VALUES.items():
        forget()
        Flaky.failures = failures
        crash_and_replay(one_action(act), (kind, name))
        changed = make()
        do(changed)
        assert EFFECTS == [(make(), make())] * (failures + 1) + ["next"]
        assert SEEN == [(make(), make(), changed)] * 2


def reconcile(name: str, value: Any, other: Any = None) -> Any:
    """A reconciler that changes what it is asked about."""
    SEEN.append(copy.deepcopy((value, other)))
    VALUES[name][1](value)
    VALUES[name][1](other)
    if Flaky.failures > 0:
        Flaky.failures -= 1
        raise ConnectionError("flaky")
    return NOT_DONE


async def reconcile_async(name: str, value: Any, other: Any = None) -> Any:
    return reconcile(name, value, other)


async def reconciled_async(event: Any, ctx: Any) -> None:
    (function, reconciler), name = event.input
    value = VALUES[name][0]()
    other_value = VALUES[name][0]()
    call = DurableCallable(FUNCTIONS[function], reconciler=RECONCILERS[reconciler], retry=TWICE)
    await ctx.durable_execute_async(call, name, value, other=other_value)
    assert (value, other_value) == (VALUES[name][0](), VALUES[name][0]())


def reconciled_def(event: Any, ctx: Any) -> None:
    (function, reconciler), name = event.input
    value = VALUES[name][0]()
    other_value = VALUES[name][0]()
    call = DurableCallable(FUNCTIONS[function], reconciler=RECONCILERS[reconciler], retry=TWICE)
    ctx.durable_execute(call, name, value, other=other_value)
    assert (value, other_value) == (VALUES[name][0](), VALUES[name][0]())


RECONCILERS: dict[str, Any] = {"def": reconcile, "async def": reconcile_async}


@pytest.mark.parametrize("act", [reconciled_async, reconciled_def])
@pytest.mark.parametrize("reconciler", [*RECONCILERS])
@pytest.mark.parametrize("function", ["def", "async def"])
def test_what_a_reconciler_changes_reaches_nobody(act: Any, reconciler: str, function: str) -> None:
    for name, (make, _) in VALUES.items():
        forget()
        faults = Faults(at_record(RecordKind.CALL, Fault.REFUSED))
        with OperatorHarness(one_action(act), store=faults.store) as harness:
            snapshot = harness.snapshot()
            with pytest.raises(Exception, match="rejects this append"):
                harness.push(((function, reconciler), name))
            harness.restore(snapshot)
            # A reconciler that raises is asked again, as a function is called again.
            Flaky.failures = 1
            harness.push(((function, reconciler), name))
        assert EFFECTS == [(make(), make())] * 2
        assert SEEN == [(make(), make())] * 2


# -- idempotency keys of reconcilers ----------------------------------------------------------


def pay(order: str, idempotency_key: str) -> str:
    EFFECTS.append(idempotency_key)
    return order


def plainly(order: str) -> str:
    EFFECTS.append(None)
    return order


def look_up_by_key(order: str, idempotency_key: str) -> Any:
    SEEN.append(idempotency_key)
    return NOT_DONE


def look_up(order: str) -> Any:
    SEEN.append(None)
    return NOT_DONE


@pytest.mark.parametrize("function", [pay, plainly])
@pytest.mark.parametrize("reconciler", [look_up_by_key, look_up])
def test_a_reconciler_gets_the_key_where_it_takes_one(function: Any, reconciler: Any) -> None:
    def act(event: Any, ctx: Any) -> None:
        ctx.durable_execute(function, event.input, reconciler=reconciler)

    crash_and_replay(one_action(act), "o1", choose=at_record(RecordKind.CALL, Fault.REFUSED))
    (passed_key,) = SEEN
    assert (passed_key is None) == (reconciler is look_up)
    keys = {key for key in [*EFFECTS, *SEEN] if key is not None}
    assert len(keys) <= 1 and all(len(key) == 32 for key in keys)
