"""Clients that send slowly or read nothing, over real sockets: others see their pages, and it stops."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest

from flink_agents.ui import app as application, serving
from flink_agents.ui.outside import Outside
from flink_agents.ui.settings import ConsoleSettings
from tests.suite.tables import each_case
from tests.ui.samples import many, write
from tests.ui.serving import served

pytestmark = pytest.mark.own_conditions


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "REQUEST_SECONDS", 0.2)
    monkeypatch.setattr(serving, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(serving, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(serving, "STOP_SECONDS", 0.2)


def host(address: str) -> tuple[str, int]:
    return "127.0.0.1", int(address.rpartition(":")[2])


def connected(address: str) -> socket.socket:
    connection = socket.create_connection(host(address), timeout=120)
    # A small buffer: what is not read stays in the server.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return connection


def is_closed(client: socket.socket) -> bool:
    """Wait until the server closes a connection. Its time-out is that of a broken test."""
    try:
        while client.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def page(address: str, path: str = "/runs") -> str:
    with urllib.request.urlopen(address + path, timeout=120) as answer:
        return answer.read().decode()


def drip(client: socket.socket, data: bytes) -> bool:
    """Send data byte by byte for ever, until the server closes the connection. True if it does."""
    client.settimeout(0.02)
    for number in range(6000):
        try:
            client.sendall(data[number % len(data) : number % len(data) + 1])
            if client.recv(1) == b"":
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


HEAD = "GET /runs HTTP/1.1\r\nHost: {}\r\n"
FORM = "POST /signals/send HTTP/1.1\r\nHost: {}\r\nContent-Type: application/x-www-form-urlencoded\r\n"


@each_case(
    ("begin", "more"),
    [
        ("", b"GET /" + b"a" * 50),
        (HEAD, b"X-a: b\r\n"),
        (FORM + "Content-Length: 100000\r\n\r\n", b"a=b&"),
        (FORM + "Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
        # After a request that was answered, on the same connection.
        (HEAD + "\r\n", b"GET /runs"),
    ],
)
def test_a_request_that_comes_byte_by_byte_is_given_up(begin: str, more: bytes) -> None:
    with served(ConsoleSettings(signals="s")) as address, connected(address) as client:
        client.sendall(begin.format(address.removeprefix("http://")).encode())
        assert drip(client, more)
        assert "No run is like that" in page(address)


def test_a_connection_without_a_request_is_closed() -> None:
    with served(ConsoleSettings()) as address, connected(address) as client:
        assert is_closed(client)


def test_a_client_that_reads_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    protocols = list[serving.PatientProtocol]()
    connection_made = serving.PatientProtocol.connection_made

    def noted(self: serving.PatientProtocol, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        protocols.append(self)
        connection_made(self, transport)

    monkeypatch.setattr(serving.PatientProtocol, "connection_made", noted)
    write(tmp_path, many(200, 1_790_000_000.0))
    with served(ConsoleSettings(trace=tmp_path)) as address, connected(address) as client:
        request = HEAD.format(address.removeprefix("http://")) + "\r\n"
        client.sendall(20 * request.encode())
        while not protocols or protocols[0] in protocols[0].connections:
            assert "No run is like that" not in page(address)
        assert is_closed(client)


def test_the_console_stops_with_clients_that_do_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them is given up before: only the end of the console closes their connections."""
    for name in ("REQUEST_SECONDS", "ANSWER_SECONDS"):
        monkeypatch.setattr(serving, name, 1e6)
    write(tmp_path, many(200, 1_790_000_000.0))
    with ExitStack() as clients:
        with served(ConsoleSettings(trace=tmp_path, signals="s")) as address:
            name = address.removeprefix("http://")
            for begin in ("", HEAD, FORM + "Content-Length: 9\r\n\r\n", 300 * (HEAD + "\r\n")):
                client = clients.enter_context(connected(address))
                client.sendall(begin.replace("{}", name).encode())
            assert page(address)
        # The server's thread has ended.


def test_many_slow_clients_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "REQUEST_SECONDS", 1e6)
    monkeypatch.setattr(serving, "MOST_CONNECTIONS", 10)
    monkeypatch.setattr(serving, "MOST_AT_ONCE", 20)
    with served(ConsoleSettings()) as address, ExitStack() as clients:
        opened = [clients.enter_context(connected(address)) for _ in range(60)]
        for _ in range(5):
            assert "No run is like that" in page(address)
        # The oldest ones had to go.
        assert all(map(is_closed, opened[:50]))


def test_headers_without_end_are_rejected() -> None:
    with served(ConsoleSettings()) as address, connected(address) as client:
        name = address.removeprefix("http://")
        try:
            client.sendall(HEAD.format(name).encode() + b"X-a: " + b"b" * (2 * serving.MOST_HEADERS))
            assert client.recv(100).startswith(b"HTTP/1.1 4")
        except ConnectionError:
            pass
        assert "No run is like that" in page(address)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """A job that answers nothing: requests about keys wait until the test ends."""
    waiting, go_on = list[int](), threading.Event()

    def inspect(self: Outside, key: Any) -> None:
        waiting.append(1)
        go_on.wait()

    monkeypatch.setattr(Outside, "inspect_key", inspect)
    yield lambda: len(waiting)
    go_on.set()


def test_forms_that_wait_for_a_job_do_not_block_pages(held: Callable[[], int]) -> None:
    with served(ConsoleSettings(signals="s", answers="a")) as address, ExitStack() as clients:
        jar = CookieJar()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
        with opener.open(address + "/signals", timeout=120) as answer:
            token = answer.read().decode().split('name="csrf" value="')[1].split('"')[0]
        cookie = "; ".join(f"{jar_cookie.name}={jar_cookie.value}" for jar_cookie in jar)
        body = f"csrf={token}&key=sk"
        form = (
            f"POST /keys/inspect HTTP/1.1\r\nHost: {address.removeprefix('http://')}\r\nOrigin: {address}\r\n"
            f"Cookie: {cookie}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        )
        for _ in range(100):
            clients.enter_context(connected(address)).sendall(form.encode())
        while held() < application.MOST_SLOW:
            pass
        for path in application.PAGES:
            if path not in application.SLOW and path != "/run":
                assert page(address, path)
        assert held() == application.MOST_SLOW
