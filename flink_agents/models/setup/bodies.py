"""Bounds the size of answers over HTTP, after decompression. The rest of a larger answer is not read.

Objects of JSON count, too: libraries take microseconds for each, during which no other key gets a turn.

The clients of providers and of MCP keep a whole answer in memory before they look at it. A hook of the client
counts while the answer is read.
"""

from __future__ import annotations

import types
from collections.abc import AsyncIterator, Iterator
from typing import Any

_DEPTH = 5
"""Number of levels below a provider's client that are searched for its HTTP client."""

_MOST_LOOKED_AT = 2000
"""Maximum number of objects that are searched."""


class ResponseTooLargeError(Exception):
    """An answer has more bytes than the limit.

    Args:
        limit: Maximum number of bytes of an answer.
    """

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
    """Return the maximum number of JSON objects in an answer of at most ``limit`` bytes."""
    return max(_FEWEST_OBJECTS, limit // _BYTES_FOR_AN_OBJECT)


def objects_in(part: bytes | bytearray) -> int:
    """Return the number of JSON objects that begin in a part of an answer, except in JSON inside strings."""
    return part.count(b"{") - part.count(b'{\\"')


class NestedEncodingError(Exception):
    """An answer is compressed in a way that can turn a few bytes into any number of them at once.

    Args:
        codings: The header ``Content-Encoding`` of the answer.
    """

    def __init__(self, codings: str) -> None:
        super().__init__(f"the answer is compressed by {codings!r}, instead of once by gzip or deflate")


_BOUNDED = frozenset({"gzip", "x-gzip", "deflate", "identity", ""})
"""Codings in which a chunk of an answer expands by a factor of at most about 1,000."""


def _check_codings(response: Any) -> None:
    """Check the compression of an answer. Only the newer library decompresses in chunks of bounded size.

    Raises:
        NestedEncodingError: A chunk could expand to any number of bytes before they are counted.
    """
    header = response.headers.get("content-encoding", "")
    codings = [coding.strip().lower() for coding in header.split(",")]
    is_nested = sum(coding not in ("identity", "") for coding in codings) > 1
    has_bounded_chunks = type(response).__module__.partition(".")[0] == "httpx2"
    if is_nested or not (has_bounded_chunks or _BOUNDED.issuperset(codings)):
        raise NestedEncodingError(header[:100])


class _Counter:
    """Counts bytes and objects of an answer; in a stream of events, of each event.

    Args:
        limit: Maximum number of bytes.
        of_events: True if the answer is a stream of events, each of which has the limit.
    """

    def __init__(self, limit: int, of_events: bool) -> None:
        self._limit = limit
        self._counts_events = of_events
        self._bytes = 0
        self._objects = 0

    def count_chunk(self, chunk: bytes) -> None:
        """Count the next chunk of the answer.

        Raises:
            ResponseTooLargeError: There are more bytes, or more objects, than the limit allows.
        """
        if self._counts_events and (ends := _ends_of_events(chunk)):
            # What lies between the two is smaller than the piece.
            self._check_part(chunk[: ends[0]])
            self._bytes = self._objects = 0
            chunk = chunk[ends[-1] :]
        self._check_part(chunk)

    def _check_part(self, part: bytes) -> None:
        self._bytes += len(part)
        self._objects += objects_in(part)
        if self._bytes > self._limit:
            raise ResponseTooLargeError(self._limit)
        if self._objects > most_objects(self._limit):
            raise TooManyObjectsError(self._limit)


def _ends_of_events(chunk: bytes) -> list[int]:
    """Return the ends of the first and the last event that end in a chunk."""
    marks = (b"\n\n", b"\r\n\r\n")
    positions = [at for mark in marks for at in (chunk.find(mark), chunk.rfind(mark)) if at >= 0]
    return [min(positions), max(positions)] if positions else []


class BodyLimit:
    """A hook of an asynchronous HTTP client that bounds each answer while it is read.

    Args:
        limit: Maximum number of bytes.
        events: True if the limit applies to each event of a stream; False if it applies to the whole stream.
    """

    def __init__(self, limit: int, events: bool = False) -> None:
        self.limit = limit
        self._events = events

    async def __call__(self, response: Any) -> None:
        """Let the reader of an answer get an error once the answer is too large.

        Raises:
            ResponseTooLargeError: Its header announces too many bytes.
            NestedEncodingError: Its compression has no bound.
        """
        counter = self._counter(response)
        read_chunks = response.aiter_bytes

        async def aiter_bytes(chunk_size: int | None = None) -> AsyncIterator[bytes]:
            async for chunk in read_chunks(chunk_size):
                counter.count_chunk(chunk)
                yield chunk

        response.aiter_bytes = aiter_bytes

    def _counter(self, response: Any) -> _Counter:
        """Check the headers of an answer, and return a counter for its body."""
        _check_codings(response)
        length = response.headers.get("content-length", "")
        if length.isdecimal() and int(length) > self.limit:
            raise ResponseTooLargeError(self.limit)
        kind = response.headers.get("content-type", "")
        return _Counter(self.limit, self._events and kind.startswith("text/event-stream"))


class BlockingBodyLimit(BodyLimit):
    """The same hook for a blocking client."""

    def __call__(self, response: Any) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        """Let the reader of an answer get an error once the answer is too large; errors as in the base."""
        counter = self._counter(response)
        read_chunks = response.iter_bytes

        def iter_bytes(chunk_size: int | None = None) -> Iterator[bytes]:
            for chunk in read_chunks(chunk_size):
                counter.count_chunk(chunk)
                yield chunk

        response.iter_bytes = iter_bytes


def bound_bodies(client: object, limit: int) -> None:
    """Limit the answers of all HTTP clients inside of a provider's client.

    Args:
        client: The client of the provider's library; None changes nothing.
        limit: Maximum number of bytes of an answer.
    """
    for http in _http_clients(client):
        hooks: dict[str, list[Any]] = http.event_hooks
        # Clients may be shared: the first limit applies, and this function finds it again.
        if not any(isinstance(response_hook, BodyLimit) for response_hook in hooks["response"]):
            blocks = not hasattr(http, "aclose")
            hook = BlockingBodyLimit(limit) if blocks else BodyLimit(limit)
            http.event_hooks = {**hooks, "response": [hook, *hooks["response"]]}
            # Request only codings that the hook accepts, whatever else is installed.
            http.headers["accept-encoding"] = "gzip, deflate"


def _http_clients(client: object) -> list[Any]:
    """Return the HTTP clients among an object's attributes, and theirs. Libraries keep them anywhere."""
    clients: list[Any] = []
    seen_ids: set[int] = set()
    level = [client]
    for _ in range(_DEPTH):
        next_level: list[object] = []
        for candidate in level:
            if id(candidate) in seen_ids or len(seen_ids) > _MOST_LOOKED_AT:
                continue
            seen_ids.add(id(candidate))
            if hasattr(type(candidate), "event_hooks") and hasattr(type(candidate), "send"):
                clients.append(candidate)
            else:
                next_level += _attribute_values(candidate)
        level = next_level
    return clients


def _attribute_values(candidate: object) -> list[object]:
    """Return the values of an object's own attributes; none for classes, functions and modules."""
    if isinstance(candidate, type | types.FunctionType | types.ModuleType):
        return []
    attributes = getattr(candidate, "__dict__", None)
    return list(attributes.values()) if isinstance(attributes, dict) else []
