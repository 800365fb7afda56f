"""A collector of OpenTelemetry traces: it parses what exporters send by OTLP over HTTP, as protobuf."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Received:
    """A span. parent: its parent's name, empty for a root."""

    name: str
    trace: bytes
    number: bytes
    parent: bytes
    began_ns: int
    ended_ns: int
    attributes: dict[str, Any]


@dataclass
class Collector:
    uri: str = ""
    spans: list[Received] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    headers: set[str] = field(default_factory=set)

    def named(self, name: str) -> list[Received]:
        """Return the spans of a name in the order of their beginning."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.began_ns)

    def parent(self, span: Received) -> str:
        """Return the name of the span around one."""
        return next((each.name for each in self.spans if each.number == span.parent), "")


@contextmanager
def collector(header: str = "x-key") -> Iterator[Collector]:
    """Serve on a port of this machine. header: whose values are kept."""
    received = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
            received.headers.add(self.headers.get(header, ""))
            for of_resource in ExportTraceServiceRequest.FromString(content).resource_spans:
                received.resources.append(_attributes(of_resource.resource.attributes))
                received.spans += [_span(each) for scope in of_resource.scope_spans for each in scope.spans]
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        received.uri = f"http://127.0.0.1:{server.server_port}"
        serving = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        serving.start()
        try:
            yield received
        finally:
            server.shutdown()
            serving.join()


def _span(span: Any) -> Received:
    return Received(
        span.name,
        span.trace_id,
        span.span_id,
        span.parent_span_id,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _attributes(span.attributes),
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
