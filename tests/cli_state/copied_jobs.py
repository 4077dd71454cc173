"""A job that pays, continues with a copy of its journals, and must not pay again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.api.action_state import ActionStateStore
from flink_agents.api.errors import StoreMismatchError
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore
from flink_agents.testing import OperatorHarness

CHARGED: list[str] = []

Store = Callable[[], ActionStateStore]


def charge(order: str, amount: int) -> str:
    CHARGED.append(f"{order}/{amount}")
    return f"{order} paid {amount}"


class Payments(Agent):
    @action(InputEvent)
    async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await ctx.sleep(1)
        order, amount = event.input
        return OutputEvent(output=await ctx.durable_execute_async(charge, order, amount))


def harness(store: Store) -> OperatorHarness:
    config = {"job-identifier": "orders"}
    conditions: dict[str, Any] = {"crash": None, "forced_replay": False, "forced_restart": False}
    return OperatorHarness(Payments(), lambda order: order[0], store=store, config=config, **conditions)


def paid(harness: OperatorHarness, *order: Any) -> list[Any]:
    return [*harness.push(order), *harness.advance_time(1000)]


def continues_with_a_copy(make: Store, copy: Callable[[], object], file: Path) -> None:
    """Pay in a file, copy its journals, and restore a checkpoint with the copy."""
    CHARGED.clear()
    with harness(lambda: SQLiteStore(file)) as first_harness:
        paid(first_harness, "o-1", 1)
        first_harness.push(("o-2", 1))  # sleeps
        checkpoint = first_harness.snapshot()
        first_harness.advance_time(1000)
        assert paid(first_harness, "o-1", 2) == ["o-1 paid 2"]
    assert CHARGED == ["o-1/1", "o-2/1", "o-1/2"]
    with harness(make) as mistaken, pytest.raises(StoreMismatchError, match="journal copy"):
        mistaken.restore(checkpoint)
        paid(mistaken, "o-1", 2)
    copy()
    with harness(make) as after:
        after.restore(checkpoint)
        assert after.advance_time(5000) == ["o-2 paid 1"]  # its clock begins at 0
        assert paid(after, "o-1", 2) == ["o-1 paid 2"]
        assert CHARGED == ["o-1/1", "o-2/1", "o-1/2"], "recorded calls were made again"
        later = after.snapshot()
        assert paid(after, "o-1", 3) == ["o-1 paid 3"]
        after.restore(later)
        assert paid(after, "o-1", 3) == ["o-1 paid 3"]
    assert CHARGED == ["o-1/1", "o-2/1", "o-1/2", "o-1/3"]
