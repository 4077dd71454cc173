"""An MCP server whose tool answers as its argument says: ``odd.py FOLDER [--http PORT]``.

The tool ``pay`` waits for the file ``gate`` in FOLDER if it is called with ``how="wait"``. Each call and each
start appends a line to the file ``calls``.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1] if __name__ == "__main__" else ".")
LONG = 2_000_000
TEXT = [{"type": "text", "text": "paid"}]
OUTPUT = {"type": "object", "properties": {"paid": {"type": "boolean"}}, "required": ["paid"]}
IMPOSSIBLE = {"type": "object", "properties": {"paid": {"type": "dance"}}}
SCHEMA = {"type": "object", "properties": {"how": {"type": "string"}}}
RESULTS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}, "prompts": {}, "resources": {}},
        "serverInfo": {"name": "odd", "version": "1"},
    },
    "tools/list": {
        "tools": [
            {"name": "pay", "inputSchema": SCHEMA},
            {"name": "declared", "inputSchema": SCHEMA, "outputSchema": OUTPUT},
            {"name": "impossible", "inputSchema": SCHEMA, "outputSchema": IMPOSSIBLE},
        ]
    },
    "prompts/get": {"messages": [{"role": "user", "content": TEXT[0]}]},
    "resources/read": {"contents": [{"uri": "odd://all", "text": "tea"}]},
}
RESULT_OF: dict[str, Any] = {
    "no content": {},
    "null content": {"content": None},
    "text as content": {"content": "paid"},
    "a block without a type": {"content": [{"text": "paid"}]},
    "a block of an unknown type": {"content": [{"type": "dance", "text": "paid"}]},
    "structured alone": {"structuredContent": {"paid": True}},
    "structured alone, wrong": {"structuredContent": {"paid": "yes"}},
    "structured wrong": {"content": TEXT, "structuredContent": {"paid": "yes"}},
    "structured missing": {"content": TEXT},
    "structured list": {"content": TEXT, "structuredContent": [1]},
    "old result": {"toolResult": "paid"},
    "error without content": {"isError": True},
}
LINE_OF: dict[str, Callable[[Any, bytes], bytes]] = {
    "half of an emoji": lambda _, line: line.replace(b"paid", b"\\ud83d"),
    "no UTF-8": lambda _, line: line.replace(b"paid", b"\xff\xfe"),
    "cut off": lambda _, line: line[:-20],
    "broken within": lambda _, line: line.replace(b'"paid"', b"paid"),
    "broken within, id last": lambda number, _: (
        b'{"result":{"content":[paid]},"jsonrpc":"2.0","id":' + str(number).encode() + b"}"
    ),
    "deep": lambda _, line: line.replace(b'"paid"', b"[" * 5000 + b"]" * 5000),
    "no version": lambda _, line: line.replace(b'"jsonrpc": "2.0", ', b""),
    "result is a list": lambda number, _: json.dumps(
        {"jsonrpc": "2.0", "id": number, "result": [1]}
    ).encode(),
    "no result": lambda number, _: json.dumps({"jsonrpc": "2.0", "id": number}).encode(),
    "too long": lambda _, line: line.replace(b"paid", b"x" * LONG),
    "too many objects": lambda _, line: line.replace(b'"paid"', b"[" + b"{}," * 5000 + b"{}]"),
}


def notification(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def request(number: Any, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


BEFORE: dict[str, Callable[[Any], list[Any]]] = {
    "progress without bounds": lambda number: [
        notification("notifications/progress", progressToken=number, progress=10**400, total=10**400)
    ],
    "progress by zero": lambda number: [
        notification("notifications/progress", progressToken=number, progress=1, total=0)
    ],
    "odd progress": lambda number: [
        notification("notifications/progress", progressToken=[number], progress="much"),
        notification("notifications/progress"),
    ],
    "odd log": lambda _: [
        notification("notifications/message", level="shout", data={"a": [1]}),
        notification("notifications/message", level="info", data=None),
        notification("notifications/message", level="error", data="%s %d", logger="%s"),
        notification("notifications/message"),
        {"jsonrpc": "2.0", "method": "notifications/message", "params": None},
    ],
    "unknown notification": lambda _: [notification("notifications/never-heard-of", a=1), notification("")],
    "cancelled": lambda number: [
        notification("notifications/cancelled", requestId=number),
        notification("notifications/cancelled", requestId={}),
    ],
    "list changed": lambda _: [
        notification("notifications/tools/list_changed"),
        notification("notifications/tools/list_changed", odd=[1]),
        notification("notifications/resources/updated", uri=7),
    ],
    "requests of the server": lambda number: [
        request(number, "ping"),
        request("a", "roots/list"),
        request("b", "sampling/createMessage", messages=[]),
        request("c", "elicitation/create", message="hm"),
        request(number, "never/heard-of"),
        request(1.5, "ping"),
    ],
    "answers to nobody": lambda _: [
        {"jsonrpc": "2.0", "id": 10**6, "result": {}},
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "parse error"}},
        {"jsonrpc": "2.0", "id": True, "result": {}},
        {"jsonrpc": "2.0", "id": 10**6, "result": "odd"},
    ],
    "no messages": lambda _: [1, "text", [], [[]], {}, None],
}


def note(line: str) -> None:
    with (FOLDER / "calls").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def how_of(message: Any) -> str:
    how = ((message.get("params") or {}).get("arguments") or {}).get("how", "")
    return how if isinstance(how, str) and how.isprintable() else json.dumps(how)


def lines_for(message: Any) -> list[bytes]:
    """Return what is written for a request: messages before the answer, and the answer."""
    number = message.get("id")
    method = message.get("method")
    if number is None or method is None:
        return []
    how = how_of(message)
    result = RESULTS.get(method)
    if method == "tools/call":
        note(how)
        result = RESULT_OF.get(how, {"content": TEXT, "isError": False})
        if how == "wait":
            while not (FOLDER / "gate").exists():
                time.sleep(0.01)
        if how == "flood of errors":
            for _ in range(2000):
                sys.stderr.write("x" * 1000 + "\n")
            sys.stderr.flush()
    answer = {"error": {"code": -32601, "message": "no"}} if result is None else {"result": result}
    line = json.dumps({"jsonrpc": "2.0", "id": number, **answer}).encode()
    preceding_lines = [
        json.dumps(earlier_message).encode() for earlier_message in BEFORE.get(how, lambda _: [])(number)
    ]
    return [*preceding_lines, LINE_OF.get(how, lambda _, line: line)(number, line)]


class Handler(BaseHTTPRequestHandler):
    """Answers by JSON, or by a stream of events if there is more than the answer."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        how = how_of(message)
        lines = lines_for(message)
        if how == "closed":
            self.close_connection = True
            return
        if not lines:
            self.reply(202, b"", "application/json")
        elif len(lines) == 1:
            self.reply(200, lines[0], "application/json", 50 if how == "closed within" else 0)
        else:
            events = b"".join(b"event: message\ndata: " + line + b"\n\n" for line in lines)
            self.reply(200, events, "text/event-stream")

    def do_GET(self) -> None:
        self.reply(405, b"", "application/json")

    do_DELETE = do_GET

    def reply(self, status: int, content: bytes, kind: str, more: int = 0) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content) + more))
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = more > 0

    def log_message(self, format: str, *args: Any) -> None:
        pass


LOCK = threading.Lock()


def serve(message: Any) -> None:
    lines = lines_for(message)
    with LOCK:
        for line in lines:
            sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    note("start")
    if "--http" in sys.argv:
        ThreadingHTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()
    for text in sys.stdin:
        if '"deaf"' in text:
            note("deaf")
            time.sleep(600)
        threading.Thread(target=serve, args=[json.loads(text)], daemon=True).start()
