"""Bounds how much of an answer is read over HTTP: what is decompressed counts, and nothing is read behind it.

Objects of JSON count, too: libraries take microseconds for each, during which no other key gets a turn.

The clients of providers and of MCP keep a whole answer in memory before they look at it. A hook of the client
counts while the answer is read.
"""

from __future__ import annotations

import types
from collections.abc import AsyncIterator, Iterator
from typing import Any

_DEPTH = 5
"""How far below the client of a provider its client for HTTP may be."""

_MOST_LOOKED_AT = 2000


class ResponseTooLargeError(Exception):
    """An answer has more bytes than may be read."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the answer has more than {limit} bytes, which is the limit (response_limit)")
        self.limit = limit


_BYTES_FOR_AN_OBJECT = 500
"""Bytes of the limit for which an answer may have one object of JSON."""

_FEWEST_OBJECTS = 1000
"""Objects that an answer may have, however small the limit is."""


class TooManyObjectsError(ResponseTooLargeError):
    """An answer has more objects of JSON than may be read: making each of them takes the libraries long."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.args = (
            f"the answer has more than {most_objects(limit)} objects of JSON, the most for a limit of {limit}"
            " bytes (response_limit)",
        )


def most_objects(limit: int) -> int:
    """Return how many objects of JSON an answer may have.

    Args:
        limit: Bytes that it may have.
    """
    return max(_FEWEST_OBJECTS, limit // _BYTES_FOR_AN_OBJECT)


def objects_in(part: bytes | bytearray) -> int:
    """Return how many objects of JSON begin in a part of an answer, without those of JSON inside strings."""
    return part.count(b"{") - part.count(b'{\\"')


class NestedEncodingError(Exception):
    """An answer is compressed in a way in which a few bytes can become any number of them at once."""

    def __init__(self, codings: str) -> None:
        super().__init__(f"the answer is compressed by {codings!r}, and not once by gzip or deflate")


_BOUNDED = frozenset({"gzip", "x-gzip", "deflate", "identity", ""})
"""Codings of which one piece of an answer becomes about a thousand times as many bytes, at most."""


def _check_codings(response: Any) -> None:
    """Check how an answer is compressed. Only the newer library decompresses in pieces of bounded size.

    Raises:
        NestedEncodingError: A piece of it could become any number of bytes before they are counted.
    """
    said = response.headers.get("content-encoding", "")
    codings = [one.strip().lower() for one in said.split(",")]
    nested = sum(one not in ("identity", "") for one in codings) > 1
    of_newer = type(response).__module__.partition(".")[0] == "httpx2"
    if nested or not (of_newer or _BOUNDED.issuperset(codings)):
        raise NestedEncodingError(said[:100])


class _Counter:
    """Counts bytes and objects of an answer; those of a stream of events anew for each event."""

    def __init__(self, limit: int, of_events: bool) -> None:
        self._limit = limit
        self._of_events = of_events
        self._bytes = 0
        self._objects = 0

    def add(self, chunk: bytes) -> None:
        if self._of_events and (ends := _ends_of_events(chunk)):
            # What lies between the two is smaller than the piece.
            self._check(chunk[: ends[0]])
            self._bytes = self._objects = 0
            chunk = chunk[ends[-1] :]
        self._check(chunk)

    def _check(self, part: bytes) -> None:
        self._bytes += len(part)
        self._objects += objects_in(part)
        if self._bytes > self._limit:
            raise ResponseTooLargeError(self._limit)
        if self._objects > most_objects(self._limit):
            raise TooManyObjectsError(self._limit)


def _ends_of_events(chunk: bytes) -> list[int]:
    """Return where the first and the last event end that end in a piece."""
    marks = (b"\n\n", b"\r\n\r\n")
    found = [at for mark in marks for at in (chunk.find(mark), chunk.rfind(mark)) if at >= 0]
    return [min(found), max(found)] if found else []


class BodyLimit:
    """A hook for answers of an asynchronous client for HTTP.

    Args:
        limit: Bytes of an answer.
        events: True if each event of a stream may have so many; else all of them together.
    """

    def __init__(self, limit: int, events: bool = False) -> None:
        self.limit = limit
        self._events = events

    async def __call__(self, response: Any) -> None:
        """Bound what is read of an answer."""
        counter = self._counter(response)
        read = response.aiter_bytes

        async def aiter_bytes(chunk_size: int | None = None) -> AsyncIterator[bytes]:
            async for chunk in read(chunk_size):
                counter.add(chunk)
                yield chunk

        response.aiter_bytes = aiter_bytes

    def _counter(self, response: Any) -> _Counter:
        _check_codings(response)
        length = response.headers.get("content-length", "")
        if length.isdecimal() and int(length) > self.limit:
            raise ResponseTooLargeError(self.limit)
        kind = response.headers.get("content-type", "")
        return _Counter(self.limit, self._events and kind.startswith("text/event-stream"))


class BlockingBodyLimit(BodyLimit):
    """The same for a client that blocks."""

    def __call__(self, response: Any) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        """Bound what is read of an answer."""
        counter = self._counter(response)
        read = response.iter_bytes

        def iter_bytes(chunk_size: int | None = None) -> Iterator[bytes]:
            for chunk in read(chunk_size):
                counter.add(chunk)
                yield chunk

        response.iter_bytes = iter_bytes


def bound_bodies(client: object, limit: int) -> None:
    """Bound the answers of all clients for HTTP below the client of a provider.

    Args:
        client: The client of the provider's library, or None.
        limit: Bytes of an answer.
    """
    for http in _http_clients(client):
        hooks: dict[str, list[Any]] = http.event_hooks
        # Clients may be shared: the first limit holds, and it is found here again.
        if not any(isinstance(one, BodyLimit) for one in hooks["response"]):
            blocks = not hasattr(http, "aclose")
            hook = BlockingBodyLimit(limit) if blocks else BodyLimit(limit)
            http.event_hooks = {**hooks, "response": [hook, *hooks["response"]]}
            # What the hook rejects is not asked for, whatever else is installed.
            http.headers["accept-encoding"] = "gzip, deflate"


def _http_clients(client: object) -> list[Any]:
    """The clients for HTTP among what an object consists of. Libraries keep them in places of their own."""
    found: list[Any] = []
    seen: set[int] = set()
    level = [client]
    for _ in range(_DEPTH):
        below: list[object] = []
        for one in level:
            if id(one) in seen or len(seen) > _MOST_LOOKED_AT:
                continue
            seen.add(id(one))
            if hasattr(type(one), "event_hooks") and hasattr(type(one), "send"):
                found.append(one)
            else:
                below += _parts(one)
        level = below
    return found


def _parts(one: object) -> list[object]:
    if isinstance(one, type | types.FunctionType | types.ModuleType):
        return []
    attributes = getattr(one, "__dict__", None)
    return list(attributes.values()) if isinstance(attributes, dict) else []
