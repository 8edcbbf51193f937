"""A collector of OpenTelemetry over OTLP/HTTP: a small real server that decodes what it is sent."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.support.webhook import Answer, Taken, Webhook

PROTOBUF = {"Content-Type": "application/x-protobuf"}


def answer(request: Taken) -> Answer:
    """Take what is sent to one of the two paths."""
    bodies = {"/v1/traces": ExportTraceServiceResponse(), "/v1/metrics": ExportMetricsServiceResponse()}
    if request.target not in bodies or request.header("content-type") != PROTOBUF["Content-Type"]:
        return Answer(400)
    return Answer(200, PROTOBUF, bodies[request.target].SerializeToString())


def spans(collector: Webhook) -> list[dict[str, Any]]:
    """Return all spans that it has taken, with their attributes and the service that they are of."""
    return [
        {
            "name": span.name,
            "id": span.span_id,
            "parent": span.parent_span_id,
            "attributes": _attributes(span),
            "seconds": (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
            "failed": span.status.code == 2,
            "service": _attributes(told.resource)["service.name"],
        }
        for body in _bodies(collector, "/v1/traces")
        for told in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in told.scope_spans
        for span in scope.spans
    ]


def metrics(collector: Webhook) -> list[dict[str, Any]]:
    """Return the metrics that it has taken last, by their names."""
    bodies = list(_bodies(collector, "/v1/metrics"))
    if not bodies:
        return []
    return [
        {"name": metric.name, "kind": metric.WhichOneof("data"), "points": _points(metric)}
        for told in ExportMetricsServiceRequest.FromString(bodies[-1]).resource_metrics
        for scope in told.scope_metrics
        for metric in scope.metrics
    ]


def _bodies(collector: Webhook, path: str) -> Iterator[bytes]:
    with collector.lock:
        taken = [each for each in collector.taken if each.target == path]
    for each in taken:
        yield gzip.decompress(each.body) if each.header("content-encoding") == "gzip" else each.body


def _points(metric: Any) -> list[tuple[dict[str, Any], Any]]:
    data = getattr(metric, metric.WhichOneof("data"))
    return [(_attributes(point), _value(point)) for point in data.data_points]


def _value(point: Any) -> Any:
    if hasattr(point, "bucket_counts"):
        return {"counts": list(point.bucket_counts), "bounds": list(point.explicit_bounds), "sum": point.sum}
    return getattr(point, point.WhichOneof("value"))


def _attributes(told: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in told.attributes}
