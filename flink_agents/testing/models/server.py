"""``ModelServer``: a local server with OpenAI's interface, so that tests include HTTP.

::

    with ModelServer([Reply("hello")]) as server:
        ChatModel("openai:any", base_url=server.base_url, api_key={"env": "KEY"})
        ...
    assert server.count == 1

It needs only the standard library, and runs in its own thread.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from flink_agents.testing.models import replies
from flink_agents.testing.models.replies import Reply


@dataclass(frozen=True)
class ServedRequest:
    """A request that the server received.

    Attributes:
        number: Its number among all requests, from 0.
        path: Path of its URL, such as ``/v1/responses``.
        headers: Its headers; names are in lower case.
        body: Its JSON object.
    """

    number: int
    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The last text in the messages, of any role, as a string."""
        messages = self.body.get("messages") or self.body.get("input") or [{}]
        last = messages if isinstance(messages, str) else messages[-1]
        content = last if isinstance(last, str) else last.get("content", last.get("output", ""))
        if isinstance(content, str):
            return content
        return " ".join(part.get("text", "") for part in content)


Answering = Callable[[ServedRequest], Reply]

_GLANCE_SECONDS = 0.1
"""After this time without a start, the thread of the server is looked at: it may have ended."""


class ModelServer:
    """A local server with OpenAI's interface.

    Args:
        answers: Replies, each used once, in order; or a function that returns the reply to a request. After
            the last reply, requests get the status 500.
        port: The port to listen at. Default: a free one.

    Attributes:
        requests: The requests received so far, in order.
        most_at_once: Largest number of requests in flight at a time.
    """

    def __init__(self, answers: Iterable[Reply] | Answering, port: int = 0) -> None:
        self._answer = answers if callable(answers) else _Script(answers)
        self.requests: list[ServedRequest] = []
        self.most_at_once = 0
        self._in_flight = 0
        self._loop = asyncio.new_event_loop()
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._serve_forever, name="model-server", daemon=True)
        self._started = threading.Event()
        self._port = port

    @property
    def base_url(self) -> str:
        """Address for clients, ending in ``/v1``. Only valid inside ``with``."""
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def count(self) -> int:
        """Number of requests received so far."""
        return len(self.requests)

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    def assert_complete(self) -> None:
        """Check that each reply was used.

        Raises:
            AssertionError: Some were not.
        """
        unused_replies = self._answer.remaining if isinstance(self._answer, _Script) else 0
        if unused_replies:
            raise AssertionError(f"{unused_replies} replies of the model server were not used")

    def __enter__(self) -> ModelServer:
        self._thread.start()
        while not self._started.wait(_GLANCE_SECONDS):
            if not self._thread.is_alive():
                raise RuntimeError("the model server did not start; the error of its thread says why")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve_forever(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._accept_connection, "127.0.0.1", self._port)
        )
        self._port = server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()
        server.close()
        for task in self._connections:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._connections, return_exceptions=True))
        self._loop.close()

    def _accept_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve_connection(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await self._read_request(reader)) is not None:
                reply = await self._next_reply(request)
                if reply.hang_up:
                    break
                writer.write(_bytes_of(reply, request))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # The client is gone.
        finally:
            writer.close()

    async def _next_reply(self, request: ServedRequest) -> Reply:
        self._in_flight += 1
        self.most_at_once = max(self.most_at_once, self._in_flight)
        try:
            reply = self._answer(request)
            if reply.delay:
                await asyncio.sleep(reply.delay)
            return reply
        finally:
            self._in_flight -= 1

    async def _read_request(self, reader: asyncio.StreamReader) -> ServedRequest | None:
        request_line = (await reader.readline()).decode("latin-1").split()
        if len(request_line) < 2:
            return None
        headers: dict[str, str] = {}
        while header := (await reader.readline()).decode("latin-1").strip():
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        request = ServedRequest(len(self.requests), request_line[1], headers, json.loads(content or b"{}"))
        self.requests.append(request)
        return request


class _Script:
    """Returns replies in order, each once; after the last, a reply with status 500."""

    def __init__(self, answers: Iterable[Reply]) -> None:
        self._remaining_replies = list(answers)

    @property
    def remaining(self) -> int:
        return len(self._remaining_replies)

    def __call__(self, request: ServedRequest) -> Reply:
        if not self._remaining_replies:
            return Reply("the script of the model server has no more replies", status=400)
        return self._remaining_replies.pop(0)


def _bytes_of(reply: Reply, request: ServedRequest) -> bytes:
    """Encode a reply to a request as an HTTP/1.1 response, in the form of the interface that was called."""
    model = str(request.body.get("model", ""))
    number = request.number
    is_responses_interface = request.path.endswith("/responses")
    kind = "application/json"
    if reply.body is not None:
        content = reply.body if isinstance(reply.body, bytes) else reply.body.encode()
    elif reply.status != 200:
        content = json.dumps(replies.error_body(reply)).encode()
    elif request.body.get("stream"):
        kind = "text/event-stream"
        make_chunks = replies.response_events if is_responses_interface else replies.completion_chunks
        content = (
            b"".join(map(_sse_event, enumerate(make_chunks(reply, model, number)))) + b"data: [DONE]\n\n"
        )
    else:
        make_body = replies.response_body if is_responses_interface else replies.completion_body
        content = json.dumps(make_body(reply, model, number)).encode()
    headers = {"content-type": kind, "content-length": str(len(content)), **reply.headers}
    if reply.retry_after is not None:
        headers["retry-after-ms"] = str(int(reply.retry_after * 1000))
        headers["retry-after"] = f"{reply.retry_after:g}"
    lines = [f"HTTP/1.1 {reply.status} Reply", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + content


def _sse_event(numbered: tuple[int, dict[str, Any]]) -> bytes:
    number, event = numbered
    named = f"event: {event['type']}\n" if "type" in event else ""
    if named:
        event = {**event, "sequence_number": number}
    return f"{named}data: {json.dumps(event)}\n\n".encode()
