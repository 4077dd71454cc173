"""A model of Flink's checkpoints, and of its REST API about them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HISTORY = 10


@dataclass
class Entry:
    """A checkpoint or savepoint that was triggered."""

    id: int
    savepoint: bool = False
    status: str = "IN_PROGRESS"
    discarded: bool = False
    acknowledged: int = 0
    state: Any = None

    def json(self) -> dict[str, Any]:
        fields = {"id": self.id, "status": self.status, "is_savepoint": self.savepoint}
        fields["num_acknowledged_subtasks"] = self.acknowledged
        return fields | ({"discarded": self.discarded} if self.status == "COMPLETED" else {})


@dataclass
class Flink:
    """A JobManager: its checkpoints, its snapshots of them, and its cache.

    Entries of a snapshot are changed in place, but for their status, as in Flink.
    """

    retained_number: int = 1
    next_id: int = 1
    triggered: list[Entry] = field(default_factory=list[Entry])
    retained: list[Entry] = field(default_factory=list[Entry])
    restored: int = 0
    cached: tuple[Any, ...] | None = None
    snapshot: tuple[Any, ...] | None = None

    def trigger(self, savepoint: bool = False) -> Entry:
        entry = Entry(self.next_id, savepoint)
        self.next_id += 1
        self.triggered.append(entry)
        return entry

    def complete(self, entry: Entry) -> Entry:
        done = self._replace(entry, "COMPLETED")
        if not entry.savepoint:
            self.retained.append(done)
            while len(self.retained) > self.retained_number:
                self.retained.pop(0).discarded = True
        return done

    def fail(self, entry: Entry) -> None:
        self._replace(entry, "FAILED")

    def _replace(self, entry: Entry, status: str) -> Entry:
        done = Entry(entry.id, entry.savepoint, status, state=entry.state)
        self.triggered[self.triggered.index(entry)] = done
        return done

    @property
    def in_progress(self) -> list[Entry]:
        return [entry for entry in self.triggered if entry.status == "IN_PROGRESS"]

    def take_snapshot(self) -> None:
        """As anybody's question makes Flink do."""
        states = [entry.status for entry in self.triggered]
        counts = {"restored": self.restored, "total": len(states)}
        counts |= {"in_progress": states.count("IN_PROGRESS"), "completed": states.count("COMPLETED")}
        counts |= {"failed": states.count("FAILED")}
        self.snapshot = counts, list(reversed(self.triggered[-HISTORY:]))

    def answer(self, cache: bool = False, stale: bool = False) -> dict[str, Any]:
        """What is answered.

        Args:
            cache: Whether the cache has not expired.
            stale: Whether somebody is changing what the snapshot would be made of: the last one is given.
        """
        if not (cache and self.cached):
            if not (stale and self.snapshot):
                self.take_snapshot()
            self.cached = self.snapshot
        assert self.cached is not None
        counts, entries = self.cached
        history = [entry.json() for entry in entries]
        latest = {
            "completed": next((checkpoint for checkpoint in history if _is(checkpoint, False)), None),
            "savepoint": next((checkpoint for checkpoint in history if _is(checkpoint, True)), None),
            "failed": None,
            "restored": {"id": self.restored} if self.restored else None,
        }
        return {"counts": counts, "latest": latest, "history": history, "summary": {}}


def _is(entry: dict[str, Any], savepoint: bool) -> bool:
    return entry["status"] == "COMPLETED" and entry["is_savepoint"] == savepoint


class FlinkServer:
    """Answers HTTP requests. Also a context manager.

    Args:
        reply: Gives the status and the body of each answer.
        keeps: Whether connections are kept.
    """

    def __init__(self, reply: Callable[[str], tuple[int, Any]], keeps: bool = True) -> None:
        self.paths: list[str] = []
        self.connections = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1" if keeps else "HTTP/1.0"

            def setup(self) -> None:
                server.connections += 1
                super().setup()

            def do_GET(self) -> None:
                server.paths.append(self.path)
                status, answer = reply(self.path)
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Not on standard error."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def __enter__(self) -> FlinkServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
