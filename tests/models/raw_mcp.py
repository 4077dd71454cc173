"""An MCP server in the process of a test, which chooses its answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any, cast

INITIALIZED = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "raw", "version": "1"},
}
LISTED = {
    "tools": [
        {
            "name": "pay",
            "description": "Pay.",
            "inputSchema": {"type": "object", "properties": {"how": {"type": "string"}}},
            "annotations": {"idempotentHint": False},
        }
    ]
}
CALLED = {"content": [{"type": "text", "text": "paid"}], "isError": False}


class Raw:
    """A server whose answers are what a test says.

    Attributes:
        answers: The result by method; bytes are a whole body, with headers, and a function makes one
            from the id of the request.
        calls: The arguments and metadata of the calls of tools.
        hangs: How many of the next calls of tools get no answer before ``freed`` is set.
        status: The status of HTTP of answers to calls of tools.
        refuses: How many of the next calls of tools are answered with an error of the tool.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {"initialize": INITIALIZED, "tools/list": LISTED, "tools/call": CALLED}
        self.headers: dict[str, str] = {}
        self.calls: list[dict[str, Any]] = []
        self.hangs = 0
        self.refuses = 0
        self.status = 200
        self.freed = Event()

    def called(self, params: dict[str, Any]) -> Any:
        """Return the answer to a call of a tool, after it was noted."""
        self.calls.append(params)
        if self.hangs > 0:
            self.hangs -= 1
            self.freed.wait()
        if self.refuses > 0:
            self.refuses -= 1
            return {"content": [{"type": "text", "text": "pay otherwise"}], "isError": True}
        return self.answers["tools/call"]

    def handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["content-length"])))
                method = request.get("method", "")
                answer = (
                    owner.called(request["params"]) if method == "tools/call" else owner.answers.get(method)
                )
                if method == "tools/call" and owner.status != 200:
                    return self.reply(owner.status, b"", owner.headers)
                if "id" not in request:
                    return self.reply(202, b"")
                if (whole := whole_of(answer, request["id"])) is not None:
                    return self.reply(200, whole, owner.headers)
                if answer is None:
                    body: Any = {"error": {"code": -32601, "message": "no such method"}}
                else:
                    body = answer if "jsonrpc" in answer else {"result": answer}
                return self.reply(200, json.dumps({"jsonrpc": "2.0", "id": request["id"], **body}).encode())

            def do_GET(self) -> None:
                self.reply(405, b"")

            do_DELETE = do_GET

            def reply(self, status: int, content: bytes, headers: Any = ()) -> None:
                self.send_response(status)
                for name, value in {"content-type": "application/json", **dict(headers)}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(content)))
                with suppress(BrokenPipeError, ConnectionResetError):
                    # Who asked may have gone.
                    self.end_headers()
                    self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


def whole_of(answer: Any, number: Any) -> bytes | None:
    """Return the body of an answer that a test gives as a whole."""
    if isinstance(answer, bytes):
        return answer
    return cast("Callable[[Any], bytes]", answer)(number) if callable(answer) else None


@contextmanager
def raw_server() -> Iterator[tuple[Raw, str]]:
    """A server, and its address."""
    raw = Raw()
    server = ThreadingHTTPServer(("127.0.0.1", 0), raw.handler())
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield raw, f"http://127.0.0.1:{server.server_address[1]}/mcp"
    finally:
        raw.freed.set()
        server.shutdown()
        server.server_close()
