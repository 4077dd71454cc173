"""Background threads have connections of their own to the JVM."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from py4j.java_gateway import GatewayClient

from flink_agents.runtime.flink.launch import gateway
from tests.suite.tables import each_case


class Connection:
    """A connection that makes another call within its call, if it has one."""

    def __init__(self) -> None:
        self.is_closed = False
        self.within: list[Callable[[], object]] = []

    def send_command(self, command: str) -> str:
        while self.within:
            self.within.pop()()
        return "!yv"

    def close(self, reset: bool = False) -> None:
        self.is_closed = True


class Client(GatewayClient):
    """Py4J's client, without a JVM."""

    def __init__(self) -> None:
        super().__init__()
        self.used: list[Connection] = []

    def _create_connection(self) -> Any:
        return Connection()

    def call(self) -> Connection:
        """Make a call, and return the connection that it used."""
        borrowed: Any = self._get_connection()
        borrowed.send_command("c")
        self._give_back_connection(borrowed)
        return borrowed


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    class Gateway:
        _gateway_client = Client()

    monkeypatch.setattr("pyflink.java_gateway.get_gateway", Gateway)
    gateway.separate_background_calls()
    gateway.separate_background_calls()
    return Gateway._gateway_client


def run(function: Callable[[], object], daemon: bool) -> None:
    thread = threading.Thread(target=function, daemon=daemon)
    thread.start()
    thread.join()


@each_case("daemon", [True, False])
def test_a_background_thread_does_not_use_the_connection_of_others(daemon: bool, client: Client) -> None:
    users = client.call()
    used: list[Connection] = []
    run(lambda: used.extend((client.call(), client.call())), daemon)
    # A thread of the user has it: the planner may have been created in it.
    assert {connection is users for connection in used} == {not daemon}
    assert client.call() is users


def test_a_background_call_in_flight_does_not_delay_the_user(client: Client) -> None:
    users = client.call()
    began, may_end = threading.Event(), threading.Event()

    def call() -> None:
        borrowed = client._get_connection()
        began.set()
        may_end.wait()
        client._give_back_connection(borrowed)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    began.wait()
    assert client.call() is users
    may_end.set()
    thread.join()
    assert client.call() is users


@each_case("daemon", [True, False])
def test_a_call_within_a_call_does_not_swap_connections(daemon: bool, client: Client) -> None:
    """Python's garbage collector makes calls in the middle of others."""
    outcomes: list[bool] = []

    def call() -> None:
        first = client.call()
        first.within.append(client.call)
        outcomes.append(client.call() is first and client.call() is first)

    run(call, daemon)
    assert outcomes == [True]


def test_connections_end_with_their_thread(client: Client) -> None:
    users = client.call()
    used: list[Connection] = []
    run(lambda: used.append(client.call()), daemon=True)
    assert [connection.is_closed for connection in used] == [True] and not users.is_closed


def test_idle_connections_of_the_user_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gateway:
        _gateway_client = Client()

    users = Gateway._gateway_client.call()
    monkeypatch.setattr("pyflink.java_gateway.get_gateway", Gateway)
    gateway.separate_background_calls()
    assert isinstance(Gateway._gateway_client.deque, deque) and Gateway._gateway_client.call() is users
