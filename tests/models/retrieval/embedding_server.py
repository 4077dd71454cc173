"""A local server that speaks OpenAI's embeddings: the real HTTP path of a provider, and exact counts."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class EmbeddingServer:
    """See the module.

    Attributes:
        requests: The bodies of all requests, in the order of arrival.
        keys: The keys that they came with.
        failures: Answers that are given before others: status and headers.
        dimension: Length of vectors where a request names none.
        odd: Embeddings that answers have instead, one list for each of the first answers.
        busy: How many requests are being answered, at most, at one time.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.failures: list[tuple[int, dict[str, str]]] = []
        self.odd: list[list[Any]] = []
        self.dimension = 4
        self.missing = 0
        self.hold: threading.Event | None = None
        self.busy = 0
        self._now = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("localhost", 0), self._handler())
        self.base_url = f"http://localhost:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status, headers, answer = owner.answer(body, self.headers.get("authorization"))
                content = json.dumps(answer).encode()
                self.send_response(status)
                for name, value in {**headers, "content-type": "application/json"}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler

    def answer(self, body: dict[str, Any], key: str | None) -> tuple[int, dict[str, str], Any]:
        with self._lock:
            self._now += 1
            self.busy = max(self.busy, self._now)
            self.requests.append(body)
            self.keys.append(key)
            failure = self.failures.pop(0) if self.failures else None
            odd = self.odd.pop(0) if self.odd and failure is None else None
        try:
            if self.hold is not None:
                self.hold.wait(30)
            if failure is not None:
                return *failure, {"error": {"message": "not now", "type": "test"}}
            texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
            dimension = body.get("dimensions", self.dimension)
            rows = [
                {"object": "embedding", "index": n, "embedding": embedding}
                for n, embedding in enumerate(odd or [vector(text, dimension) for text in texts])
            ]
            usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
            data = rows[: len(rows) - self.missing]
            return 200, {}, {"object": "list", "model": body["model"], "data": data, "usage": usage}
        finally:
            with self._lock:
                self._now -= 1


def vector(text: str, dimension: int) -> list[float]:
    """What the server makes of a text."""
    return [float(len(text) + n) for n in range(dimension)]
