"""Keeps the calls of background threads off the connections to the JVM that the user's code uses.

Py4J lends any idle connection to the next call, and the JVM serves each connection with a thread of its own.
Flink's planner works only in the thread that created it. So if a background thread has the user's connection
for a moment, SQL in the user's next call fails in the planner with a ``NullPointerException``.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import Any

from pyflink.java_gateway import get_gateway


def separate_background_calls() -> None:
    """Give each background thread connections of its own, from now on. Can be called again."""
    client: Any = get_gateway()._gateway_client
    if not isinstance(client.deque, _ConnectionPool):
        client.deque = _ConnectionPool(client.deque)


class _ConnectionPool(deque[Any]):
    """The idle connections of Py4J's client. Those of a background thread end with it.

    All daemon threads are background threads: those of this package, of Py4J's callbacks and of other
    libraries. Python's garbage collector reports Java objects to the JVM in any of them.
    """

    def __init__(self, connections: deque[Any]) -> None:
        super().__init__(connections)
        self._local = threading.local()

    def pop(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the connection of the present thread that was used last."""
        return self._of_thread().pop() if threading.current_thread().daemon else super().pop()

    def append(self, connection: Any) -> None:
        """Take back a connection of the present thread."""
        if threading.current_thread().daemon:
            self._of_thread().append(connection)
        else:
            super().append(connection)

    def _of_thread(self) -> _ThreadConnections:
        try:
            return self._local.connections
        except AttributeError:
            self._local.connections = connections = _ThreadConnections()
            return connections


class _ThreadConnections(deque[Any]):
    """The idle connections of a background thread."""

    def __del__(self) -> None:
        for connection in self:
            with contextlib.suppress(Exception):
                connection.close()
