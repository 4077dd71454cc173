"""Jaeger as a collector: it receives OTLP over HTTP, and its API returns the traces."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 120.0

CONFIG = """
service:
  extensions: [jaeger_storage, jaeger_query]
  pipelines:
    traces: {receivers: [otlp], exporters: [jaeger_storage_exporter]}
  telemetry:
    metrics: {level: none}
extensions:
  jaeger_storage:
    backends: {traces: {memory: {max_traces: 10000}}}
  jaeger_query:
    storage: {traces: traces}
    http: {endpoint: "127.0.0.1:%(query)d"}
    grpc: {endpoint: "127.0.0.1:%(grpc)d"}
receivers:
  otlp: {protocols: {http: {endpoint: "127.0.0.1:%(otlp)d"}}}
exporters:
  jaeger_storage_exporter: {trace_storage: traces}
"""


@dataclass(frozen=True)
class Span:
    """A span, as the API returns it."""

    id: str
    parent: str
    name: str
    status: str
    links: tuple[str, ...]
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass(frozen=True)
class Jaeger:
    """A running Jaeger.

    Attributes:
        address: Address for traces.
        api: Address of its API.
    """

    address: str
    api: str

    def spans(self, trace: str, number: int) -> dict[str, Span]:
        """Wait until a trace has ``number`` spans, and return them by id."""
        until = time.monotonic() + SECONDS
        spans_by_id: dict[str, Span] = {}
        while len(spans_by_id) < number and time.monotonic() < until:
            spans_by_id = {span.id: span for span in self._read(trace)}
            time.sleep(0.2)
        return spans_by_id

    def _read(self, trace: str) -> Iterator[Span]:
        try:
            with urllib.request.urlopen(f"{self.api}/api/v3/traces/{trace}") as answer:
                parts = json.load(answer)["result"]["resourceSpans"]
        except urllib.error.HTTPError as error:
            # The trace is not there yet.
            assert error.code == 404, error
            error.close()
            return
        for part in parts:
            resource = _values(part["resource"]["attributes"])
            for span in (span for scope in part["scopeSpans"] for span in scope["spans"]):
                links = tuple(link["spanId"] for link in span.get("links", ()))
                status = str(span.get("status", {}).get("code", 0))
                named = _values(span.get("attributes", ()))
                yield Span(
                    span["spanId"], span.get("parentSpanId", ""), span["name"], status, links, named, resource
                )


def _values(attributes: Any) -> dict[str, Any]:
    return {attribute["key"]: next(iter(attribute["value"].values())) for attribute in attributes}


@contextmanager
def jaeger(directory: Path) -> Iterator[Jaeger]:
    """Start Jaeger, and stop it at the end. The test fails if it cannot be installed."""
    installed = subprocess.run(
        [ROOT / "scripts" / "collector"], stdout=subprocess.PIPE, check=False, text=True
    )
    if installed.returncode != 0:
        pytest.fail("THERE IS NO COLLECTOR: scripts/collector could not install Jaeger; it says why")
    with socket.socket() as first_socket, socket.socket() as two, socket.socket() as three:
        for free in (first_socket, two, three):
            free.bind(("127.0.0.1", 0))
        otlp, query, grpc = (free.getsockname()[1] for free in (first_socket, two, three))
    config = directory / "jaeger.yaml"
    config.write_text(CONFIG % {"otlp": otlp, "query": query, "grpc": grpc})
    log = directory / "jaeger.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [installed.stdout.strip(), "--config", config], stdout=file, stderr=subprocess.STDOUT
        )
    started = Jaeger(f"http://127.0.0.1:{otlp}/v1/traces", f"http://127.0.0.1:{query}")
    try:
        until = time.monotonic() + SECONDS
        while not (_listens(otlp) and _listens(query)):
            assert process.poll() is None and time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(0.1)
        yield started
    finally:
        process.terminate()
        process.wait(SECONDS)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True
