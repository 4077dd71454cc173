"""An MCP server that answers one method with a line of a given size: ``lines.py COUNTS METHOD BYTES``.

``BYTES`` is ``endless`` for a line that never ends. The server appends to the file COUNTS what it is asked
for, and whether too much of the long line was read.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COUNTS = Path(sys.argv[1])
METHOD = sys.argv[2]
BYTES = sys.argv[3]
CHUNK = b"x" * 65536
RESULTS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
        "serverInfo": {"name": "lines", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "pay", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": "paid"}], "isError": False},
    "resources/read": {"contents": [{"uri": "shop://all", "text": "tea"}]},
}


def note(line: str) -> None:
    """Write down what happens."""
    with COUNTS.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def write_long(begin: bytes, end: bytes) -> None:
    """Write a line of the given size, and note how much of it was read."""
    size = sys.maxsize if BYTES == "endless" else int(BYTES)
    out, written = sys.stdout.buffer.raw, 0  # type: ignore[attr-defined]
    out.write(begin)
    written += len(begin)
    while written < size - len(end):
        written += out.write(CHUNK[: size - len(end) - written])
        if written > 40_000_000:
            note("too much was read")
            sys.exit()
    out.write(end + b"\n")


for line in sys.stdin:
    request = json.loads(line)
    method = request["method"]
    if "id" not in request:
        continue
    note(method)
    answer = {"jsonrpc": "2.0", "id": request["id"]}
    if method not in RESULTS:
        answer["error"] = {"code": -32601, "message": "no such method"}
    else:
        answer["result"] = (
            {**RESULTS[method], "_meta": {"padding": ""}} if method == METHOD else RESULTS[method]
        )
    text = json.dumps(answer).encode()
    if method == METHOD:
        begin, end = text.split(b'"padding": "')
        write_long(begin + b'"padding": "', end)
    else:
        sys.stdout.buffer.write(text + b"\n")
    sys.stdout.buffer.flush()
