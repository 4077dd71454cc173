"""The HTTP server of the console. It closes the connections of slow clients, so others need not wait."""

from __future__ import annotations

import itertools
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10.0
"""Time in which a request must arrive, with its headers and its form."""

ANSWER_SECONDS = 30.0
"""Time in which a client must read a response that was sent."""

LOOK_SECONDS = 1.0
"""Time between two looks at each connection."""

MOST_CONNECTIONS = 256
"""Connections beyond which the one that has sent its request for the longest time is closed."""

MOST_AT_ONCE = 2 * MOST_CONNECTIONS
"""Connections beyond which requests are answered with status 503."""

MOST_HEADERS = 64 * 1024
"""Maximum size of a request's first line and headers."""

STOP_SECONDS = 3.0
"""Time that connections have when the console stops."""

_numbers = itertools.count()


def make_server(app: ASGIApp) -> uvicorn.Server:
    """Return the server of the console, which does not run yet."""
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        log_level="warning",
        # No access log: addresses hold keys.
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=MOST_HEADERS,
        limit_concurrency=MOST_AT_ONCE,
        timeout_graceful_shutdown=int(STOP_SECONDS) + 1,
    )
    return uvicorn.Server(config)


class PatientProtocol(H11Protocol):
    """A connection that is closed if its client is too slow to send a request or to read a response.

    uvicorn itself limits only the time between two requests.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # The clock of a loop stands still while it accepts several connections.
        self._number = next(_numbers)
        self._asking_since: float | None = None
        self._reading_since: float | None = None

    @override
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._asking_since = self.loop.time()
        if len(self.connections) > MOST_CONNECTIONS:
            self._make_room()
        self.loop.call_later(LOOK_SECONDS, self._close_if_slow)

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._asking_since = None
        elif self._asking_since is None:
            self._asking_since = self.loop.time()

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE:
            self._asking_since = None

    @override
    def shutdown(self) -> None:
        super().shutdown()
        self.loop.call_later(STOP_SECONDS, self.transport.abort)

    def _make_room(self) -> None:
        """Close the connection whose request has been arriving for the longest time."""
        asking = {
            connection: (connection._asking_since, connection._number)
            for connection in self.connections
            if isinstance(connection, PatientProtocol) and connection._asking_since is not None
        }
        if asking:
            longest = min(asking, key=asking.__getitem__)
            longest.transport.abort()
            # Not only when it is lost: the next one that is accepted must close another one.
            self.connections.discard(longest)

    def _close_if_slow(self) -> None:
        """Close the connection if its client is too slow; otherwise check again a second later."""
        if self not in self.connections:
            return
        now = self.loop.time()
        unread = self.transport.get_write_buffer_size()
        if not unread:
            self._reading_since = None
        elif self._reading_since is None:
            self._reading_since = now
        if _has_expired(self._asking_since, REQUEST_SECONDS, now) or _has_expired(
            self._reading_since, ANSWER_SECONDS, now
        ):
            # Not closed: that would wait until the client has read everything.
            self.transport.abort()
        else:
            self.loop.call_later(LOOK_SECONDS, self._close_if_slow)


def _has_expired(since: float | None, seconds: float, now: float) -> bool:
    return since is not None and now - since >= seconds
