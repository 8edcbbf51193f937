"""Send spans and metrics to a collector in separate threads, since it may be slow or unreachable.

Spans are queued, and dropped when the queue is full; metrics are sent with their current values. Only the end of the
process waits for both, at most :data:`_STOP_SECONDS` and half a second.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import requests
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Status, StatusCode, set_span_in_context
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family

from bindings.background import Background
from bindings.certificates import find_system_authorities
from router.evaluation.plan import VERSION
from router.logs import get_logger
from router.settings.catalogs import OtlpSettings
from router.settings.values import plain_options
from router.watching.batches import BatchSteps, FinishedBatch

# Conversion of Prometheus metrics to OpenTelemetry, with the same names, labels and values.

_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE


def to_otel_metrics(families: Iterable[Family], since: int, now: int) -> Iterator[Any]:
    """Convert Prometheus families with samples to OpenTelemetry; times are in nanoseconds since 1970.

    Counters lose the suffix ``_total``, which exporters to Prometheus add again.
    """
    for family in families:
        if not family.samples:
            continue
        if family.type == "histogram":
            data = Histogram(list(_iter_histogram_points(family, since, now)), _CUMULATIVE)
        else:
            # Collectors of ours give whole numbers and truth values too, of which the encoder refuses the latter.
            values = [
                NumberDataPoint(dict(sample.labels), since, now, float(sample.value))
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
            data = Sum(values, _CUMULATIVE, True) if family.type == "counter" else Gauge(values)
        yield Metric(family.name, family.documentation, family.unit, data)


def _iter_histogram_points(family: Family, since: int, now: int) -> Iterator[Any]:
    histograms: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for sample in family.samples:
        labels = dict(sample.labels)
        bound = labels.pop("le", "")
        series = histograms.setdefault(tuple(sorted(labels.items())), {"below": []})
        if bound:
            series["below"].append((float(bound), int(sample.value)))
        else:
            series[sample.name.removeprefix(family.name)] = sample.value
    for labels_, series in histograms.items():
        yield _make_histogram_point(dict(labels_), series, since, now)


def _make_histogram_point(labels: Mapping[str, str], series: Mapping[str, Any], since: int, now: int) -> Any:
    below = sorted(series["below"])
    counts = [count - before for (_, count), before in zip(below, (0, *(count for _, count in below)), strict=False)]
    bounds = [bound for bound, _ in below[:-1]]  # The last bound is infinite, and is left out by convention.
    count = int(series.get("_count", below[-1][1]))
    return HistogramDataPoint(labels, since, now, count, series.get("_sum", 0.0), counts, bounds, None, None)


SCOPE: Final = "xregistry-router"
_REQUEST_SECONDS: Final = 10.0
_STOP_SECONDS: Final = 3.0
_GIVING_UP_SECONDS: Final = 0.5
_REASON: Final = 300
"""Maximum characters of a logged reason."""
_log = get_logger()


@contextmanager
def export_telemetry(settings: OtlpSettings, registry: CollectorRegistry, steps: BatchSteps) -> Iterator[None]:
    """Send the spans of all batches and the metrics of a registry during the block."""
    reporter = _Reporter(settings.endpoint)
    resource = Resource.create({"service.name": settings.service, "service.version": VERSION})
    spans = _SpanSender(settings, resource, reporter) if settings.traces else None
    metrics = _MetricsSender(settings, resource, registry, reporter) if settings.metrics else None
    if spans is not None:
        steps.set_listener(spans.add_batch)
    try:
        yield
    finally:
        steps.set_listener(None)
        exporters = [each for each in (spans, metrics) if each is not None]
        threads = [threading.Thread(target=each.end, name="telemetry-end", daemon=True) for each in exporters]
        for thread in threads:
            thread.start()
        _join_threads(threads, _STOP_SECONDS)
        for each in exporters:
            each.exporter.shutdown()
        # Requests that were just being repeated are given up with it, which is said. Those under way end much later,
        # when nobody may read the log any more.
        _join_threads(threads, _GIVING_UP_SECONDS)
        reporter.over = True


def _join_threads(threads: list[threading.Thread], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


class _Reporter(logging.Handler):
    """Logs once, with the reason, that the collector rejects data, and once that it accepts data again.

    The library logs the reason only once, in the thread that sends, and first of all; of later tries and their end it
    only says that they were given up.
    """

    def __init__(self, endpoint: str) -> None:
        super().__init__(logging.WARNING)
        self.over = False
        self._endpoint = endpoint
        self._here = threading.local()
        self._failing: set[str] = set()
        logger = logging.getLogger("opentelemetry")
        logger.handlers[:], logger.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        """Store the reason of a failure."""
        if not self._last_reason():
            self._here.reason = record.getMessage()[:_REASON]

    def report_result(self, kind: str, *, well: bool) -> None:
        """Report whether sending spans or metrics (*kind*) succeeded (*well*)."""
        if well == (kind in self._failing) and not self.over:
            (self._failing.discard if well else self._failing.add)(kind)
            if well:
                _log.info("telemetry accepted again", endpoint=self._endpoint, kind=kind)
            else:
                _log.warning("telemetry not accepted", endpoint=self._endpoint, kind=kind, problem=self._last_reason())
        self._here.reason = ""

    def _last_reason(self) -> str:
        return str(getattr(self._here, "reason", ""))


class _ReportingExporter(OTLPSpanExporter):  # type: ignore[misc]
    """A span exporter that reports successes and failures."""

    def __init__(self, reporter: _Reporter, options: Mapping[str, Any]) -> None:
        super().__init__(**options)
        self._reporter = reporter

    def export(self, spans: Any) -> SpanExportResult:
        """Send spans."""
        result = super().export(spans)
        self._reporter.report_result("traces", well=result is SpanExportResult.SUCCESS)
        return result


class _SpanSender:
    """Sends a span for each batch, with a child span for each step."""

    def __init__(self, settings: OtlpSettings, resource: Any, reporter: _Reporter) -> None:
        self.exporter = _ReportingExporter(reporter, _exporter_options(settings, "traces"))
        # Not at the end of the process, since we limit how long that waits.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self.exporter))
        self._tracer = self._provider.get_tracer(SCOPE, VERSION)

    def add_batch(self, batch: FinishedBatch) -> None:
        """Queue the spans of a batch without waiting."""
        attributes = {"xrouter.query": batch.query, "xrouter.batch": batch.number}
        span = self._tracer.start_span("batch", attributes=attributes, start_time=_to_ns(batch.began))
        inside = set_span_in_context(span)
        for turn in batch.turns:
            step = self._tracer.start_span(turn.step, inside, attributes=attributes, start_time=_to_ns(turn.began))
            step.end(_to_ns(turn.ended))
        if batch.records is None:
            span.set_status(Status(StatusCode.ERROR, "it did not come to its end, and is tried again"))
        else:
            span.set_attribute("xrouter.records", batch.records)
        span.end(_to_ns(batch.ended))

    def end(self) -> None:
        """Send the queued spans, if the collector accepts them."""
        self._provider.shutdown()


class _MetricsSender:
    """Sends metrics at regular intervals, and once at the end."""

    def __init__(self, settings: OtlpSettings, resource: Any, registry: CollectorRegistry, reporter: _Reporter) -> None:
        self._resource = resource
        self._reporter = reporter
        self._registry = registry
        self._interval = settings.interval.total_seconds()
        self._since = time.time_ns()
        self.exporter = OTLPMetricExporter(**_exporter_options(settings, "metrics"))
        self._ending = threading.Event()
        self._thread = Background("telemetry", self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.wait(self._interval):
            self._send()

    def _send(self) -> None:
        metrics = list(to_otel_metrics(self._registry.collect(), self._since, time.time_ns()))
        scope = ScopeMetrics(InstrumentationScope(SCOPE, VERSION), metrics, "")
        result = self.exporter.export(MetricsData([ResourceMetrics(self._resource, [scope], "")]))
        self._reporter.report_result("metrics", well=result is MetricExportResult.SUCCESS)

    def end(self) -> None:
        """Send the final values, if the collector accepts them."""
        self._ending.set()
        self._thread.ask_to_end()
        if self._thread.join(_STOP_SECONDS):
            self._send()
        else:
            self._thread.join(_REQUEST_SECONDS)


def _exporter_options(settings: OtlpSettings, kind: str) -> dict[str, Any]:
    session = requests.Session()
    # Our headers must reach no other host; and the settings say whom we trust, not REQUESTS_CA_BUNDLE.
    session.max_redirects = 0
    session.trust_env = False
    tls = settings.tls
    return {
        "endpoint": f"{settings.endpoint}/v1/{kind}",
        "headers": plain_options(settings.headers),
        "timeout": _REQUEST_SECONDS,
        "compression": Compression.Gzip,
        "session": session,
        "certificate_file": find_system_authorities() if tls is None or tls.ca is None else tls.ca,
        "client_certificate_file": None if tls is None else tls.cert,
        "client_key_file": None if tls is None else tls.key,
    }


def _to_ns(seconds: float) -> int:
    return int(seconds * 1e9)
