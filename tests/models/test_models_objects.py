"""Objects of JSON in an answer are bounded: the libraries of models and of MCP take microseconds for each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from raw_mcp import raw_server

from flink_agents import Agent, InputEvent, MCPServer, OutputEvent, ResourceDescriptor, RunnerContext, action
from flink_agents.api.errors import MCPOutcomeUnknownError
from flink_agents.models.mcp.stdio import _read_lines  # pyright: ignore[reportPrivateUsage]
from flink_agents.models.setup.bodies import (
    BlockingBodyLimit,
    BodyLimit,
    TooManyObjectsError,
    most_objects,
    objects_in,
)
from flink_agents.models.setup.failures import text_of
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

LIMIT = 1_000_000
MOST = most_objects(LIMIT)
MANY = MOST + 10


def rows(number: int) -> list[dict[str, int]]:
    return [{"a": 1} for _ in range(number)]


def events(each_has: int, number: int) -> bytes:
    event = b"data: " + json.dumps(rows(each_has)).encode() + b"\n\n"
    return event * number


BODIES: list[tuple[str, bytes, str, bool]] = [
    ("few", json.dumps(rows(MOST - 10)).encode(), "application/json", True),
    ("many", json.dumps(rows(MANY)).encode(), "application/json", False),
    ("many of nothing", b"[" + b"{}," * MANY + b"{}]", "application/json", False),
    ("many within each other", b'{"a":' * MANY, "application/json", False),
    ("numbers", json.dumps([0.5] * 100_000).encode(), "application/json", True),
    ("in a string", json.dumps({"text": json.dumps(rows(MANY))}).encode(), "application/json", True),
    (
        "code in a string",
        json.dumps({"text": "def f(): {}\n" * (MOST // 2)}).encode(),
        "application/json",
        True,
    ),
    ("many events", events(10, MANY), "text/event-stream", True),
    ("one large event", events(MANY, 1), "text/event-stream", False),
]


class Slow(httpx.AsyncByteStream, httpx.SyncByteStream):
    """A body that comes in pieces."""

    def __init__(self, content: bytes) -> None:
        self._pieces = [content[at : at + 8192] for at in range(0, len(content), 8192)]

    def __iter__(self) -> Any:
        return iter(self._pieces)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def served(content: bytes, kind: str) -> httpx.MockTransport:
    headers = {"content-type": kind}
    return httpx.MockTransport(lambda request: httpx.Response(200, headers=headers, stream=Slow(content)))


async def read(content: bytes, kind: str) -> int:
    hooks = {"response": [BodyLimit(10 * LIMIT if kind == "text/event-stream" else LIMIT, events=True)]}
    hooks["response"][0].limit = LIMIT
    async with httpx.AsyncClient(transport=served(content, kind), event_hooks=hooks) as client:
        return len((await client.get("http://any/")).content)


def read_blocking(content: bytes, kind: str) -> int:
    hooks = {"response": [BlockingBodyLimit(LIMIT, events=True)]}
    with httpx.Client(transport=served(content, kind), event_hooks=hooks) as client:
        return len(client.get("http://any/").content)


@each_case(("name", "content", "kind", "passes"), BODIES)
def test_objects_are_counted_while_an_answer_is_read(
    name: str, content: bytes, kind: str, passes: bool
) -> None:
    ways: list[Callable[[], int]] = [
        lambda: asyncio.run(read(content, kind)),
        lambda: read_blocking(content, kind),
    ]
    for way in ways:
        if passes:
            assert way() == len(content)
        else:
            with pytest.raises(TooManyObjectsError, match="objects of JSON"):
                way()


@each_case("size", [0, 10, LIMIT])
def test_a_small_limit_leaves_room_for_an_ordinary_answer(size: int) -> None:
    assert most_objects(size) >= 1000
    assert objects_in(b'{"a": {"b": "{\\"c\\": 1}"}}') == 2


def test_a_line_with_many_objects_is_reported_and_others_are_not() -> None:
    async def errors(line: bytes) -> list[Exception | None]:
        stream = asyncio.StreamReader()
        stream.feed_data(b"first\n" + line + b"\n")
        stream.feed_eof()
        return [error async for _, error in _read_lines(stream, LIMIT)]

    assert asyncio.run(errors(json.dumps(rows(MOST - 10)).encode())) == [None, None, None]
    previous_error, error, after = asyncio.run(errors(json.dumps(rows(MANY)).encode()))
    assert isinstance(error, TooManyObjectsError)
    assert (previous_error, after) == (None, None)


class Shop(Agent):
    @action(InputEvent)
    async def serve(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        try:
            return OutputEvent(output=await ctx.mcp_server("shop").call_tool("pay", how="well"))
        except MCPOutcomeUnknownError as error:
            return OutputEvent(output=str(error.found))


def shop(url: str) -> Agent:
    server: ResourceDescriptor = MCPServer(url=url, response_limit=LIMIT)
    return Shop().add_resource("shop", "mcp_server", server)


@pytest.mark.executes_once
@each_case("number", [MANY, 500])
def test_a_call_whose_answer_is_a_flood_of_objects_is_not_repeated(number: int) -> None:
    content = [{} for _ in range(number)]
    with raw_server() as (raw, url), OperatorHarness(shop(url)) as harness:
        raw.answers["tools/call"] = {"content": content}
        [output] = harness.push("go")
        assert len(raw.calls) == 1
        if number == MANY:
            assert "objects of JSON" in output
        else:
            # An invalid result is an answer.
            assert output == {"content": content}


def test_mistakes_of_an_answer_are_told_in_a_few_words() -> None:
    from pydantic import TypeAdapter, ValidationError

    for number, short in ((3, False), (50_000, True)):
        with pytest.raises(ValidationError) as caught:
            TypeAdapter(list[int]).validate_python(["x"] * number)
        assert (len(text_of(caught.value)) < 100) is short
