"""The stores of several harnesses in one process: which of them share records."""

from __future__ import annotations

from typing import Any

import pytest

from flink_agents import Agent, InputEvent, OutputEvent, action
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

CHARGED: list[Any] = []
MEMORY = {"action-state.store": "memory"}


@pytest.fixture(autouse=True)
def _empty() -> None:
    CHARGED.clear()


async def charge(order: str) -> str:
    CHARGED.append(order)
    return f"receipt of {order}"


class Shop(Agent):
    @action(InputEvent)
    async def pay(self, event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=await ctx.durable_execute_async(charge, event.input))


@each_case("config", [{}, MEMORY], ids=["no store", "memory"])
@pytest.mark.executes_once
def test_harnesses_do_not_find_records_of_each_other(config: dict[str, str]) -> None:
    CHARGED.clear()
    for order in ("first", "second"):
        with OperatorHarness(Shop, config=config, hang_after=5, forced_serialization=False) as harness:
            assert harness.push(order) == [f"receipt of {order}"]
            assert [call.request for call in harness.recorded_calls()] == [f"order={order!r}"]
    assert CHARGED == ["first", "second"]


@pytest.mark.executes_once
def test_harnesses_that_are_open_at_the_same_time_do_not_find_records_of_each_other() -> None:
    with OperatorHarness(Shop, config=MEMORY) as first, OperatorHarness(Shop, config=MEMORY) as second:
        assert first.push("first") == ["receipt of first"]
        assert second.push("second") == ["receipt of second"]


@pytest.mark.own_conditions
def test_records_in_memory_outlive_a_restore() -> None:
    with OperatorHarness(
        Shop, config=MEMORY, forced_replay=False, forced_restart=False, forced_serialization=False
    ) as harness:
        snapshot = harness.snapshot()
        harness.push("first")
        assert harness.recover(snapshot) == ["receipt of first"]
    assert CHARGED == ["first"]


@pytest.mark.own_conditions
def test_harnesses_with_the_same_place_share_records() -> None:
    config = {**MEMORY, "action-state.memory.place": "test_operator_kit_stores"}
    forced: dict[str, Any] = {"forced_replay": False, "forced_restart": False}
    with OperatorHarness(Shop, config=config, **forced) as first:
        first.push("first")
    with OperatorHarness(Shop, config=config, **forced) as second:
        assert [call.value for call in second.recorded_calls()] == ["receipt of first"]
