"""A fake of Flink's REST API that serves the data of a test: logs of a TaskManager, and answers by path."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answers = dict[str, Any]
EMPTY = {"name": "tm.out", "size": 0}


@contextmanager
def cluster(log: Callable[[], bytes], answers: Answers | None = None, port: int = 0) -> Iterator[str]:
    """Serve a cluster with one TaskManager, and give its address.

    Args:
        log: Gives the log of the TaskManager.
        answers: Answers by path, beside those about the log; bytes are sent as they are.
        port: Its port; 0 takes a free one.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served_answers: Answers = {
                "/taskmanagers": {"taskmanagers": [{"id": "tm-1"}]},
                "/taskmanagers/tm-1/logs": {
                    "logs": [{"name": "tm.log", "size": 1}, {"name": "no", "size": 0}]
                },
                "/jobs/overview": {"jobs": []},
                **(answers or {}),
            }
            path = self.path.partition("?")[0]
            body = log() if path == "/taskmanagers/tm-1/logs/tm.log" else None
            if body is None and path in served_answers:
                body = (
                    served_answers[path]
                    if isinstance(served_answers[path], bytes)
                    else json.dumps(served_answers[path]).encode()
                )
            self.send_response(200 if body is not None else 404)
            self.end_headers()
            self.wfile.write(body if body is not None else b'{"errors": ["no such thing"]}')

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
