"""What a Prometheus is to see: data for each query, and alerts that fire in a failure and clear after it."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.support.processes import below
from tests.support.prometheus import Prometheus, rules
from tests.support.status_page import Query, filled_in
from tests.support.waiting import wait_until
from tests.support.web import Answer, Taken, Webhook

Fires = Callable[..., None]
"""Waits until alerts fire that have the labels which it is given."""
LIMIT: Final = 600.0
"""A machine that does much beside this needs minutes for what it does in seconds else."""


def have_data(prometheus: Prometheus, asked: Iterable[Query], limit: float = LIMIT) -> None:
    """Wait until each of the queries has had data once; name those that never have.

    A query that cannot be filled in for now, since nothing has the label that a variable goes by, has none.
    """
    left = list(asked)
    assert left

    def all_had() -> bool:
        left[:] = [query for query in left if not _has_data(prometheus, query)]
        return not left

    wait_until(all_had, limit, lambda: "data of these queries:\n" + "\n".join(map(str, left)))


def are_recorded(prometheus: Prometheus, limit: float = LIMIT) -> None:
    """Wait until each recording rule has given a number."""
    left = [rule["record"] for rule in rules("record")]
    assert left

    def all_given() -> bool:
        left[:] = [name for name in left if not prometheus.query(f"{name} == {name}")]
        return not left

    wait_until(all_given, limit, lambda: f"what these rules record: {', '.join(left)}")


def quiet(prometheus: Prometheus, but: Iterable[str] = (), limit: float = LIMIT) -> None:
    """Wait until no alert fires, but those."""
    known = set(but)

    def firing() -> list[str]:
        return [str(each) for each in prometheus.alerts() if each.state == "firing" and each.name not in known]

    wait_until(lambda: not firing(), limit, lambda: f"the end of these alerts: {firing()}")


@contextmanager
def alert_that_clears(prometheus: Prometheus, *names: str, limit: float = LIMIT) -> Iterator[Fires]:
    """Hold alerts against a failure that the block makes and mends: they are to fire within it, and to clear after it.

    The block gets a function that waits until all of them fire with the labels that it is given, those that an alert
    has.
    """
    left = set(names)
    for name in names:
        assert not prometheus.firing(name), f"{name} fires before anything has failed"

    def fires(**labels: str) -> None:
        # All at a time: what tells of an event is over before what tells of a state begins.
        def all_have() -> bool:
            left.difference_update([name for name in left if _fires(prometheus, name, labels)])
            return not left

        wait_until(all_have, limit, lambda: _state(prometheus, *left))

    yield fires
    assert not left, "the block has not looked"
    for name in names:
        wait_until(partial(_is_over, prometheus, name), limit, partial(_state, prometheus, name))


def _fires(prometheus: Prometheus, name: str, labels: dict[str, str]) -> bool:
    for alert in prometheus.firing(name):
        wanted = {label: value for label, value in labels.items() if label in alert.labels}
        if wanted.items() <= alert.labels.items():
            assert alert.annotations["summary"] and "{{" not in str(alert.annotations)
            return True
    return False


def _is_over(prometheus: Prometheus, name: str) -> bool:
    return not prometheus.firing(name)


def _state(prometheus: Prometheus, *names: str) -> str:
    return f"alert {', '.join(names)} to fire, or to end; there are {[str(each) for each in prometheus.alerts()]}"


def _has_data(prometheus: Prometheus, query: Query) -> bool:
    try:
        expression = filled_in(query, prometheus)
    except LookupError:
        return False
    return any(_is_number(series["value"][1]) for series in prometheus.query(expression))


def _is_number(text: str) -> bool:
    return text not in ("NaN", "+Inf", "-Inf")


# A collector of OpenTelemetry over OTLP/HTTP: a small real server that decodes what it is sent.

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


# What the processes of a router take of memory at most: its own, its JVM and its Python workers.

_PROC: Final = Path("/proc")
_LOOK_SECONDS: Final = 0.1
_MIB: Final = 2**20


@dataclass(slots=True)
class Peaks:
    """Most resident memory in bytes; of the workers, that of the largest."""

    driver: int = 0
    jvm: int = 0
    worker: int = 0

    def __str__(self) -> str:
        return f"driver {self.driver // _MIB} MiB, JVM {self.jvm // _MIB} MiB, worker {self.worker // _MIB} MiB"


class Footprint:
    """Watches a process and all below it for the time of a ``with`` block.

    The kernel keeps the peak of each process, so that a look now and then misses only processes that lived for less
    than the time between two looks.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peaks = Peaks()

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self.peaks

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            for pid in below(self._pid):
                self._look(pid)

    def _look(self, pid: int) -> None:
        try:
            command = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
            peak = _peak(pid)
        except OSError:
            return  # It ended meanwhile.
        if pid == self._pid:
            self.peaks.driver = max(self.peaks.driver, peak)
        elif command[0].endswith(b"java"):
            self.peaks.jvm = max(self.peaks.jvm, peak)
        else:
            self.peaks.worker = max(self.peaks.worker, peak)


def _peak(pid: int) -> int:
    for line in (_PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


# How work grows with its input, measured so that the load of the machine hardly matters.

FACTOR: Final = 8
LINEAR: Final = 24.0
"""A growth that linear work on eight times the input stays well below, and quadratic work (64) well above."""
_TRIES: Final = 5


def growth(work: Callable[[int], Callable[[], object]], size: int) -> float:
    """Return how many times longer *work* takes for eight times the *size*, in processor time of this process.

    ``work(size)`` prepares, outside of the measurement, what is then measured. The best of several tries counts.
    """
    small, large = work(size), work(size * FACTOR)
    return _best(large) / max(_best(small), 1e-6)


def _best(run: Callable[[], object]) -> float:
    times = []
    for _ in range(_TRIES):
        started = time.process_time()
        run()
        times.append(time.process_time() - started)
    return min(times)
