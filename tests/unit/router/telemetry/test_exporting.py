"""What batches do and all metrics reach a real collector over OTLP/HTTP; one that is away slows nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from structlog.testing import capture_logs

from router.settings import Settings, settings_from_dict
from router.settings.catalogs import OtlpSettings
from router.watching.batches import JUDGE, REST, BatchSteps, FinishedBatch, name_sink_step
from tests.support.ports import Authority
from tests.support.waiting import wait_until
from tests.support.web import Answer, Webhook

if "CI" not in os.environ:
    pytest.importorskip("opentelemetry.sdk", reason="the extra `telemetry` is not installed")

from router.telemetry.exporting import export_telemetry
from tests.support import watched as collector

LIMIT = 120.0


def otlp_of(told: Settings) -> OtlpSettings:
    """Return where these settings send telemetry."""
    assert told.telemetry.otlp is not None
    return told.telemetry.otlp


SECRET = "Bearer of-the-collector"


def settings(endpoint: str, **more: object) -> Settings:
    otlp = {"endpoint": endpoint, "interval": "200ms", **more}
    tables = {name: {"type": "table", "path": name} for name in ("lake", "dead")}
    told = {"sinks": tables, "routes": [{"to": ["lake"]}], "dead_letters": {"sinks": ["dead"]}}
    return settings_from_dict({**told, "telemetry": {"otlp": otlp}}, {"TOKEN": SECRET}, Path("/"))


def registry() -> CollectorRegistry:
    found = CollectorRegistry()
    Counter("taken", "Taken.", ("query",), registry=found).labels("inbox").inc(7)
    Gauge("gap", "Gap.", registry=found).set(-1.5)
    times = Histogram("batch_seconds", "Times.", buckets=(0.1, 1.0), registry=found)
    for seconds in (0.05, 0.5, 0.6, 9.0):
        times.observe(seconds)
    found.register(Ready())
    return found


class Ready(Collector):
    """A truth value and a whole number, as the router's own collectors give them."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily("ready", "Ready.", value=True)
        yield GaugeMetricFamily("whole", "Whole.", value=3)


class Clock:
    """Seconds that go on when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def one_batch(steps: BatchSteps, clock: Clock, number: int, records: int | None = 5) -> None:
    steps.begin("inbox", number)
    for step, seconds in ((JUDGE, 2.0), (name_sink_step("lake"), 3.0), (REST, 0.5)):
        steps.turn("inbox", step)
        clock.now += seconds
    if records is not None:
        steps.end("inbox", records)
    steps.end("inbox")


def test_batches_and_metrics_arrive_with_our_headers_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    steps = BatchSteps(clock := Clock())
    with Webhook(collector.answer, authority.sign("c", alternatives="IP:127.0.0.1")) as server:
        told = settings(server.url, headers={"authorization": "${TOKEN}"}, tls={"ca": str(authority.certificate)})
        with export_telemetry(otlp_of(told), registry(), steps):
            one_batch(steps, clock, 3)
            one_batch(steps, clock, 4, None)
            wait_until(lambda: collector.metrics(server), LIMIT, "metrics")
        spans = collector.spans(server)
        assert {request.header("authorization") for request in server.seen} == {SECRET}
        metrics = {each["name"]: (each["kind"], each["points"]) for each in collector.metrics(server)}
    batches = [span for span in spans if span["name"] == "batch"]
    whole = {"xrouter.query": "inbox", "xrouter.batch": 3, "xrouter.records": 5}
    assert [(span["attributes"], span["failed"], span["service"]) for span in batches] == [
        (whole, False, "xrouter"),
        ({"xrouter.query": "inbox", "xrouter.batch": 4}, True, "xrouter"),
    ]
    assert batches[0]["seconds"] == pytest.approx(5.5)
    below = [(span["name"], span["seconds"]) for span in spans if span["parent"] == batches[0]["id"]]
    assert below == [("judge", pytest.approx(2.0)), ("sink lake", pytest.approx(3.0)), ("rest", pytest.approx(0.5))]
    assert metrics["taken"] == ("sum", [({"query": "inbox"}, 7.0)])
    assert metrics["ready"] == ("gauge", [({}, 1.0)]) and metrics["whole"] == ("gauge", [({}, 3.0)])
    assert metrics["gap"] == ("gauge", [({}, -1.5)])
    ((_, times),) = metrics["batch_seconds"][1]
    assert times == {"counts": [1, 2, 1], "bounds": [0.1, 1.0], "sum": pytest.approx(10.15)}


@pytest.mark.slow
def test_a_collector_without_a_trusted_certificate_gets_nothing(tmp_path: Path) -> None:
    steps = BatchSteps(clock := Clock())
    with Webhook(collector.answer, Authority(tmp_path).sign("c", alternatives="IP:127.0.0.1")) as server:
        told = settings(server.url, headers={"authorization": "${TOKEN}"})
        with export_telemetry(otlp_of(told), registry(), steps):
            one_batch(steps, clock, 1)
        assert not server.seen


def test_a_redirect_is_not_followed() -> None:
    steps = BatchSteps(clock := Clock())
    with Webhook(collector.answer) as other:
        elsewhere = Answer(307, {"Location": f"{other.url}/v1/traces"})
        with Webhook(lambda request: elsewhere) as server:
            told = settings(server.url, headers={"authorization": "${TOKEN}"}, allow_plaintext_password=True)
            with export_telemetry(otlp_of(told), registry(), steps):
                one_batch(steps, clock, 1)
                wait_until(lambda: server.seen, LIMIT, "a request")
        assert not other.seen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "reason"),
    [
        pytest.param(400, "Bad Request", id="given-up-at-once"),
        pytest.param(503, "Service Unavailable", id="tried-again"),
    ],
)
def test_the_log_says_once_why_nothing_is_taken(status: int, reason: str) -> None:
    with capture_logs() as log, Webhook(lambda request: Answer(status)) as server:
        with export_telemetry(otlp_of(settings(server.url, traces=False)), registry(), BatchSteps(Clock())):
            wait_until(lambda: len(server.seen) > 1, LIMIT, "requests")
    (line,) = [each for each in log if each["event"] == "telemetry not accepted"]
    assert reason in line["problem"]


@pytest.mark.slow
def test_a_mute_collector_holds_up_neither_batches_nor_the_end() -> None:
    over, asked = threading.Event(), threading.Event()

    def mute(request: object) -> Answer:
        asked.set()
        over.wait(LIMIT)
        return Answer(503)

    steps = BatchSteps(clock := Clock())
    with capture_logs() as log, Webhook(mute) as server:
        try:
            with export_telemetry(otlp_of(settings(server.url)), registry(), steps):
                # More than any queue of ours takes.
                for number in range(1_000):
                    one_batch(steps, clock, number)
                assert asked.wait(LIMIT)
            assert not over.is_set() and not server.seen  # It has answered nobody, and we are through.
            said = len(log)
        finally:
            over.set()
            wait_until(lambda: not sending(), LIMIT, lambda: f"the end of {sending()}")
    assert log[said:] == []  # and what comes of it later, nobody is told


def sending() -> list[str]:
    """Return the threads of OpenTelemetry and ours for it."""
    return [each.name for each in threading.enumerate() if each.name.lower().startswith(("otel", "telemetry"))]


@pytest.mark.slow
def test_nothing_is_imported_unless_it_is_configured() -> None:
    code = "import sys, router.running.service; print([n for n in sys.modules if n.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "[]"


def test_a_batch_that_turns_for_ever_is_told_in_part() -> None:
    told: list[FinishedBatch] = []
    steps = BatchSteps(clock := Clock())
    steps.set_listener(told.append)
    steps.begin("q", 1)
    for _ in range(1_000):
        clock.now += 1
        steps.turn("q", JUDGE)
    steps.end("q", 1)
    (batch,) = told
    assert len(batch.turns) == 100 and batch.ended - batch.began == pytest.approx(1_000)
