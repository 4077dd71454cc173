"""Clients of HTTP with a lifecycle, against a server on this machine: shared by keys, closed at the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import aiohttp
import httpx
import pytest

from flink_agents import Agent, Event, InputEvent, OutputEvent, RetryPolicy, action, client
from flink_agents.testing import OperatorHarness

KEYS = 20


class Server(ThreadingHTTPServer):
    """Answers ``/<number>`` with its square; the first request for a multiple of 7 fails."""

    daemon_threads = True
    # All connect at once. One that finds no place here is tried again after seconds.
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.failed: set[int] = set()
        self.connections = 0
        self.open = 0
        self.changed = threading.Condition()

    def count(self, opened: int) -> None:
        with self.changed:
            self.connections += max(0, opened)
            self.open += opened
            self.changed.notify_all()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body leave together: each apart would wait for the answer of the other side.
    wbufsize = -1

    @property
    def owner(self) -> Server:
        assert isinstance(self.server, Server)
        return self.server

    def setup(self) -> None:
        super().setup()
        self.owner.count(1)

    def finish(self) -> None:
        super().finish()
        self.owner.count(-1)

    def do_GET(self) -> None:
        number = int(self.path[1:])
        fails = number % 7 == 0 and number not in self.owner.failed
        self.owner.failed.update({number} if fails else ())
        body = str(number * number).encode()
        self.send_response(503 if fails else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


class Streams:
    """A client on asyncio's own streams: one connection, which requests take turns on."""

    def __init__(self, address: str) -> None:
        self._port = int(address.rsplit(":", 1)[1])
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Streams:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def get(self, path: str) -> tuple[int, str]:
        async with self._turn:
            self._writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            length = next(int(line.split(":")[1]) for line in head if line.startswith("Content-Length"))
            return int(head[0].split()[1]), (await self._reader.readexactly(length)).decode()


async def with_streams(address: str) -> AsyncIterator[Any]:
    async with Streams(address) as streams:
        yield streams.get


async def with_httpx(address: str) -> AsyncIterator[Any]:
    async def get(path: str) -> tuple[int, str]:
        answer = await session.get(path)
        return answer.status_code, answer.text

    async with httpx.AsyncClient(base_url=address) as session:
        yield get


async def with_aiohttp(address: str) -> AsyncIterator[Any]:
    async def get(path: str) -> tuple[int, str]:
        async with session.get(address + path) as answer:
            return answer.status, await answer.text()

    async with aiohttp.ClientSession() as session:
        yield get


CLIENTS = {"streams": with_streams, "httpx": with_httpx, "aiohttp": with_aiohttp}


class Asking(Agent):
    """Asks for three squares at a time, and again where the server is not ready."""

    def __init__(self, address: str, name: str) -> None:
        self.address = address
        self.name = name

    @client
    async def http(self) -> AsyncIterator[Any]:
        async with asynccontextmanager(CLIENTS[self.name])(self.address) as get:
            yield get

    @action(InputEvent, retry=RetryPolicy(initial_interval=0.001, max_attempts=10), timeout=60)
    async def ask(self, event: InputEvent, ctx: Any) -> Event:
        get = await ctx.client("http")
        numbers = range(event.input, event.input + 3)
        answers = await asyncio.gather(*(get(f"/{number}") for number in numbers))
        for status, _ in answers:
            if status != 200:
                raise OSError(f"status {status}")
        return OutputEvent(output=(event.input, [int(text) for _, text in answers]))


@pytest.mark.parametrize("name", [*CLIENTS])
def test_calls_of_all_keys_share_a_client(server: Server, name: str) -> None:
    records = range(2 * KEYS)
    with OperatorHarness(
        Asking(server.address, name), lambda number: number % KEYS, auto_run=False
    ) as harness:
        harness.push_all(records)
        harness.run_until_idle()
        assert sorted(harness.outputs) == [(n, [n**2, (n + 1) ** 2, (n + 2) ** 2]) for n in records]
        assert server.open >= 1
    assert server.failed == set(range(0, 2 * KEYS + 2, 7))
    # The client is closed with the operator: the server sees the end of each connection.
    with server.changed:
        assert server.changed.wait_for(lambda: server.open == 0, 30), server.open


@pytest.mark.executes_once
def test_requests_of_all_keys_go_through_one_connection(server: Server) -> None:
    with OperatorHarness(Asking(server.address, "streams"), lambda number: number, auto_run=False) as harness:
        harness.push_all(range(KEYS))
        harness.run_until_idle()
        assert (len(harness.outputs), server.connections) == (KEYS, 1)
