"""A collector for OTLP over HTTP, which decodes requests with opentelemetry-proto."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


@dataclass
class Collector:
    """What a collector got.

    Attributes:
        address: Its address for traces.
        bodies: Path and body of each request.
    """

    address: str = ""
    bodies: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])

    def spans(self) -> list[Any]:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        requests = [ExportTraceServiceRequest.FromString(body) for body in self._bodies_of("/v1/traces")]
        return [
            span
            for request in requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def histograms(self) -> list[Histogram]:
        """The last value of each series: values are cumulative."""
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        last: dict[tuple[Any, ...], Histogram] = {}
        for body in self._bodies_of("/v1/metrics"):
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                names_of_resource = attributes_of(resource.resource.attributes)
                service, instance = (names_of_resource[f"service.{part}"] for part in ("name", "instance.id"))
                for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                    for point in metric.histogram.data_points:
                        names = attributes_of(point.attributes)
                        histogram = Histogram(
                            metric.name, metric.unit, service, instance, names, point.count, point.sum, point
                        )
                        last[metric.name, instance, *sorted(names.items())] = histogram
        return list(last.values())

    def _bodies_of(self, path: str) -> list[bytes]:
        return [body for where, body in self.bodies if where == path]


@dataclass(frozen=True)
class Histogram:
    """One series of a histogram."""

    name: str
    unit: str
    service: str
    instance: str
    attributes: dict[str, Any]
    count: int
    sum: float
    point: Any


def attributes_of(found: Any) -> dict[str, Any]:
    return {
        attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value")) for attribute in found
    }


@contextmanager
def collector(status: int = 200) -> Iterator[Collector]:
    """A collector that answers with ``status``."""
    new_collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            new_collector.bodies.append(
                (self.path, gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
            )
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    new_collector.address = f"http://127.0.0.1:{server.server_port}/v1/traces"
    try:
        yield new_collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)
