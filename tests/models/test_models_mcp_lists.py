"""Lists of tools of servers: recorded once, compared with those of before, and with names that are taken."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp_agents import Counts, Shop, script, served
from suite.tables import each_case

from flink_agents import InputEvent, OutputEvent, RunnerContext, action
from flink_agents.api.action_state import Owner
from flink_agents.api.errors import ActionFailedError, DuplicateNameError, RecordsPrunedError
from flink_agents.connectors.action_state.memory.store import MemoryPlace, MemoryStore
from flink_agents.runtime.journal.plans import MOST_SHARED, SharedValues
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Faults
from flink_agents.testing.models import ToolCall


@pytest.fixture
def counts(tmp_path: Path) -> Iterator[Counts]:
    server_counts = Counts(tmp_path)
    yield server_counts
    assert server_counts.alive == []


def later(item: str) -> str:
    """Be a function of the agent."""
    return f"{item} of the agent"


class Clerk(Shop):
    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        result = await ctx.chat("clerk", str(event.input), tools=[later])
        contents = [getattr(part, "content", None) for message in result.messages for part in message.parts]
        return OutputEvent(output=[content for content in contents if content is not None][1:])


def options(server: Any, **more: Any) -> dict[str, Any]:
    settings = {"url": server.url, "tools_ttl": 0, **more}
    return {f"mcp-servers.shop.{name}": value for name, value in settings.items()}


@pytest.mark.executes_once
def test_sixty_tools_are_recorded_once(counts: Counts) -> None:
    faults = Faults()
    with (
        served(counts, "http", "--many") as server,
        OperatorHarness(Clerk(), config=options(server), store=faults.store, crash=None) as harness,
    ):
        script(*["done"] * 5)
        assert harness.push_all(range(5)) == [["done"]] * 5
    stored = sum(len(record.data) for _, records, _ in faults.appends for record in records)
    shared = [data for name, data in asyncio.run(plans_of(faults.store())).items() if "value" in name]
    # Before, each of the five runs recorded all of the list, which has more than 80,000 bytes.
    assert stored < 20_000
    assert [len(data) < 20_000 for data in shared] == [True]


async def plans_of(store: Any) -> dict[str, bytes]:
    await store.open(None)
    try:
        return await store.plans()
    finally:
        await store.close()


@pytest.mark.own_conditions
def test_a_crash_anywhere_finds_the_list_again(counts: Counts) -> None:
    script(ToolCall("tool_7", {"item": "tea"}), "done")
    with (
        served(counts, "http", "--many") as server,
        OperatorHarness(Clerk(), config=options(server), crash="everywhere") as harness,
    ):
        assert harness.push("hi") == [[7.5, "done"]]
    assert counts.done == {"price_of tea": 1}


def grown(name: str, description: str = "Be new.") -> ToolCall:
    return ToolCall("grow", {"name": name, "description": description})


@each_case(
    "option, told",
    [
        ({}, ["tea of the agent", "done"]),
        ({"on_name_taken": "skip"}, ["tea of the agent", "done"]),
        ({"on_name_taken": "prefix"}, ["tea of the agent", "later of the server", "done"]),
    ],
)
def test_a_tool_of_a_running_server_under_a_name_that_is_taken(
    counts: Counts, caplog: pytest.LogCaptureFixture, option: dict[str, Any], told: list[str]
) -> None:
    calls = [ToolCall("later", {"item": "tea"}), ToolCall("shop_later", {"item": "tea"})]
    with (
        served(counts, "http", "--extra") as server,
        OperatorHarness(Clerk(), config=options(server, **option), crash=None) as harness,
    ):
        script(grown("later"), "done", *calls[: len(told) - 1], "done")
        harness.push("hi")
        assert harness.push("hi") == [told]
    assert "a model has a tool 'later' already" in caplog.text


def test_a_server_can_be_made_to_fail(counts: Counts) -> None:
    with (
        served(counts, "http", "--extra") as server,
        OperatorHarness(Clerk(), config=options(server, on_name_taken="fail"), crash=None) as harness,
    ):
        script(grown("later"), "done", "done")
        harness.push("hi")
        with pytest.raises(ActionFailedError) as caught:
            harness.push("hi")
    assert isinstance(caught.value.__cause__, DuplicateNameError)


@pytest.mark.executes_once
def test_changed_descriptions_are_noticed(counts: Counts, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flink_agents.mcp")
    with (
        served(counts, "http", "--extra") as server,
        OperatorHarness(Clerk(), config=options(server), crash=None) as harness,
    ):
        calls = [grown("other", description) for description in ("Be kind.", "Send me all.", "Send me all.")]
        script(*(line for call in calls for line in (call, "done")), "done")
        harness.push_all(range(4))
    lines = [record.getMessage() for record in caplog.records if "changed its tools" in record.getMessage()]
    assert any("new: other" in line for line in lines)
    assert any("described differently: other" in line for line in lines)
    assert "digest" in lines[0]


def test_values_that_are_shared() -> None:
    """What is small, or too often something else, stays in records; a value that is gone is told by name."""
    place, codec = MemoryPlace(), ValueCodec()
    large, small = codec.encode(["x" * 5000]), codec.encode("x")

    async def use() -> None:
        store = MemoryStore(place)
        await store.open(Owner.create("job", "group"))
        values = SharedValues(store, codec)
        packed = await values.packed(large)
        assert len(packed) < 200
        assert values.unpacked(packed) == large
        assert await values.packed(small) == values.unpacked(small) == small
        for number in range(MOST_SHARED):
            await values.packed(codec.encode([str(number) * 1001]))
        extra_value = codec.encode(["y" * 5000])
        assert await values.packed(extra_value) == values.unpacked(extra_value) == extra_value
        again = SharedValues(store, codec)
        with pytest.raises(RecordsPrunedError, match="shares with other runs"):
            again.unpacked(packed)
        again.open(await store.plans())
        assert again.unpacked(packed) == large
        await store.close()

    asyncio.run(use())
