"""What the router says of itself, its metrics, and the server that says it."""

from __future__ import annotations

import contextlib
import io
import json
import platform
import shutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import httpx
import pytest
import structlog
from prometheus_client import CollectorRegistry, generate_latest

from bindings.http.monitor import METRICS_LIMITS
from catalog.model import Finding
from router.errors import ConfigError
from router.evaluation.outputs import ROUTED, Tally, sum_tallies
from router.logs import configure_logs
from router.running.monitoring import MonitorServer
from router.settings import LogSettings
from router.watching import batches
from router.watching.backlogs import Backlog
from router.watching.batches import BatchWatch
from router.watching.coverage import EVERY_SECONDS, SHOWN, ThroughputLog
from router.watching.metrics import BulkHistogram, DiskCollector, Metrics, StatusCollector
from router.watching.shadow import EpochPair
from router.watching.status import RouterStatus
from tests.support.cases import read_cases
from tests.support.commands import fits
from tests.support.http import MALFORMED
from tests.support.shop import plan
from tests.support.waiting import wait_until

LOOPBACK = "127.0.0.1"


@pytest.fixture
def status() -> RouterStatus:
    """A router that is up: a catalog, a query and a gateway."""
    made = RouterStatus()
    made.set_catalog("e1", 3)
    made.query("kafka-1", "running", batch=4)
    made.gateway("http", True)
    return made


@pytest.fixture
def server(status: RouterStatus) -> Iterator[MonitorServer]:
    made = MonitorServer(LOOPBACK, 0, Metrics(["lake"]), status)
    made.start()
    yield made
    made.stop()


def test_since_is_when_the_state_was_entered(status: RouterStatus) -> None:
    before = status.check_readiness()[1]["queries"]["kafka-1"]["since"]
    status.query("kafka-1", "running", batch=9)
    assert status.check_readiness()[1]["queries"]["kafka-1"] == {
        "state": "running",
        "since": before,
        "batch": 9,
        "reason": "",
    }
    status.inbox("/state/inbox: 7 bytes free on the disk; free some space")
    since = status.check_readiness()[1]["inbox"]["since"]
    status.inbox("/state/inbox: 6 bytes free on the disk; free some space")
    assert status.check_readiness()[1]["inbox"]["since"] == since


def test_a_disk_has_its_figures_before_its_folder_is_there(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    registry.register(DiskCollector({"state": tmp_path / "not" / "yet"}))
    usage = shutil.disk_usage(tmp_path)
    assert registry.get_sample_value("xrouter_disk_size_bytes", {"disk": "state"}) == usage.total
    assert 0 < (registry.get_sample_value("xrouter_disk_free_bytes", {"disk": "state"}) or 0) <= usage.total


def test_a_refused_catalog_is_shown_and_the_router_stays_ready(status: RouterStatus) -> None:
    findings = [Finding("c.json", f"/messagegroups/{n}", "error", "bad", "is bad", "mend it") for n in range(50)]
    status.add_refused(findings)
    assert status.check_readiness()[0]
    catalog = status.check_readiness()[1]["catalog"]
    assert catalog["epoch"] == "e1" and catalog["refused_findings"] == 50 and len(catalog["refused"]) == 20
    assert catalog["refused"][0] == {
        "file": "c.json",
        "pointer": "/messagegroups/0",
        "severity": "error",
        "rule": "bad",
        "message": "is bad",
        "hint": "mend it",
    }
    status.set_catalog("e2", 4)
    assert status.check_readiness()[1]["catalog"]["refused"] == []


def test_metrics_are_served_in_the_form_that_is_asked_for(server: MonitorServer) -> None:
    plain = httpx.get(f"{server.base_url}/metrics")
    assert plain.status_code == 200 and plain.headers["content-type"].startswith("text/plain")
    assert 'xrouter_sink_writes_total{result="ok",sink="lake"} 0.0' in plain.text
    asked = {"Accept": "application/openmetrics-text; version=1.0.0"}
    open_metrics = httpx.get(f"{server.base_url}/metrics", headers=asked)
    assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
    assert open_metrics.text.endswith("# EOF\n")


def test_health_and_readiness_follow_the_status(
    server: MonitorServer, status: RouterStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert httpx.get(f"{server.base_url}/healthz").json() == {"healthy": True, "reasons": []}
    assert httpx.get(f"{server.base_url}/readyz").status_code == 200
    status.query("kafka-1", "held", reason="Kafka is away")
    answer = httpx.get(f"{server.base_url}/readyz")
    assert answer.status_code == 503 and answer.json()["reasons"] == ["query kafka-1 is held: Kafka is away"]
    assert httpx.get(f"{server.base_url}/healthz").status_code == 200
    status.note_heartbeat()
    monkeypatch.setattr(status, "_clock", lambda: time.monotonic() + 10_000)
    assert httpx.get(f"{server.base_url}/healthz").status_code == 503


def test_head_is_answered_without_a_body_and_the_rest_is_refused(server: MonitorServer) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        answer = httpx.head(f"{server.base_url}{path}")
        assert answer.status_code == 200 and answer.content == b""
    assert httpx.get(f"{server.base_url}/").status_code == 404
    assert httpx.get(f"{server.base_url}/healthz/x").status_code == 404
    assert httpx.post(f"{server.base_url}/metrics", content=b"x").status_code == 405


@pytest.mark.slow
def test_watchers_that_mean_no_good_cost_little_and_keep_nobody_out(server: MonitorServer) -> None:
    threads = threading.active_count()
    with contextlib.ExitStack() as stack:
        for _ in range(2 * METRICS_LIMITS.max_connections):
            stack.enter_context(socket.create_connection((LOOPBACK, server.port), 5))
        assert httpx.get(f"{server.base_url}/readyz").status_code == 200
        assert threading.active_count() <= threads
        for shape in MALFORMED:
            connection = stack.enter_context(socket.create_connection((LOOPBACK, server.port), 5))
            with contextlib.suppress(OSError):
                connection.sendall(shape.pieces[0][:20_000])
        assert httpx.get(f"{server.base_url}/metrics").status_code == 200


def test_a_taken_port_is_one_clear_error(server: MonitorServer, status: RouterStatus) -> None:
    with pytest.raises(ConfigError) as caught:
        MonitorServer(LOOPBACK, server.port, Metrics(), status).start()
    assert caught.value.key == "metrics.port" and caught.value.exit_code == 3
    assert str(server.port) in str(caught.value) and "set metrics.port" in caught.value.hint


def test_an_unknown_host_is_one_clear_error(status: RouterStatus) -> None:
    with pytest.raises(ConfigError) as caught:
        MonitorServer("no such host", 0, Metrics(), status).start()
    assert caught.value.key == "metrics.host"


def test_after_stop_nothing_listens_and_the_port_can_be_taken_again(status: RouterStatus) -> None:
    server = MonitorServer(LOOPBACK, 0, Metrics(), status)
    server.start()
    server.stop()
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, server.port), 5)
    again = MonitorServer(LOOPBACK, server.port, Metrics(), status)
    again.start()
    assert httpx.get(f"{again.base_url}/readyz").status_code == 200
    again.stop()


def test_the_process_and_its_readiness_are_metrics(server: MonitorServer, status: RouterStatus) -> None:
    def metrics() -> dict[str, float]:
        lines = httpx.get(f"{server.base_url}/metrics").text.splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    status.gateway("/endpoints/plant", False, "connecting")
    found = metrics()
    assert found["xrouter_ready"] == 0
    assert found['xrouter_gateway_connected{gateway="http"}'] == 1
    assert found['xrouter_gateway_connected{gateway="/endpoints/plant"}'] == 0
    assert [name for name in found if name.startswith(f'xrouter_build_info{{python="{platform.python_version()}"')]
    assert found["process_cpu_seconds_total"] > 0
    assert found["process_resident_memory_bytes"] > 2**20
    assert 0 < found["process_open_fds"] < found["process_max_fds"]
    status.remove_gateway("/endpoints/plant")
    assert metrics()["xrouter_ready"] == 1


# Metrics: the names of the contract, bounded labels, and batches counted in bulk.

CASES: Final = Path(__file__).resolve().parents[3] / "cases" / "watching" / "metrics.yaml"
CONTRACT: Final = {name: set(labels.split()) for labels, names in read_cases(CASES).items() for name in names.split()}
NOW = 1_700_000_000_000


def value(metrics: Metrics, sample: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(sample, labels)


def test_names_and_labels_are_those_of_the_contract() -> None:
    metrics = Metrics(["lake"])
    metrics.init_series(endpoints=["/endpoints/a"])
    decided = sum_tallies(['{"arrivals": [], "spilled": 0, "bytes": 0, "ties": [["/endpoints/a", 2]]}'], ())
    decided.add(
        Tally.from_json(
            Tally(
                Counter(), Counter({("/endpoints/a", "/m"): 1}), Counter(), ties=Counter({"/endpoints/a": 3})
            ).to_json()
        )
    )
    decided.delivered["lake", "/endpoints/a"] = 1
    decided.ids["/m", "7", "name"] = 1
    metrics.count_written_batch("q", decided, 0.1, NOW)
    metrics.account("q", 1, 0, 0)
    metrics.shadow.init_series(["next.json"], ["/endpoints/a"])
    metrics.shadow.judging(EpochPair("e1", "e2"), 1)
    assert value(metrics, "xrouter_ambiguous_records_total", endpoint="/endpoints/a") == 5
    metrics.backlogs.update("q", {"/endpoints/a": Backlog(1, NOW)})
    metrics.backlogs.update("inbox", {"/endpoints/b": Backlog(1, NOW, 1)})
    metrics.coverage.follow(plan("m"))
    metrics.registry.register(StatusCollector(RouterStatus()))
    metrics.set_findings([])
    metrics.held("q", "lake")
    metrics.fault("q", "overdue")
    metrics.count_unfit_values("lake", {"/m": 4})
    assert value(metrics, "xrouter_unfit_values_total", sink="lake", message="/m") == 4
    found = {
        family.name: {name for sample in family.samples for name in sample.labels} - {"le"}
        for family in metrics.registry.collect()
    }
    assert found == CONTRACT


def test_bulk_histogram_puts_a_bound_into_its_own_bucket() -> None:
    histogram = BulkHistogram("h", "A histogram.", (1.0, 2.0))
    histogram.add([(1.0, 1), (1.5, 1), (9.0, 2)])
    [family] = histogram.collect()
    buckets = [(sample.labels["le"], sample.value) for sample in family.samples if sample.name == "h_bucket"]
    assert buckets == [("1.0", 1), ("2.0", 2), ("+Inf", 4)]


def test_gateway_counts_from_many_threads_are_all_kept() -> None:
    metrics = Metrics()

    def count() -> None:
        for _ in range(2000):
            metrics.received("/endpoints/a")
            metrics.acknowledged("/endpoints/a")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(metrics, "xrouter_gateway_received_total", endpoint="/endpoints/a") == 8000
    assert value(metrics, "xrouter_gateway_acknowledged_total", endpoint="/endpoints/a") == 8000


# A batch that waits for executors is held, and no limit on its own time counts meanwhile.


LIMIT = 30.0
HOOK = ("xrouter_query_held", {"query": "q", "sink": "hook"})


@dataclass
class Context:
    """A context of Spark, as far as a watch asks it, whose executors come and go as a test says."""

    master: str
    executors: int = 1
    cancelled: list[str] = field(default_factory=list)

    def getLocalProperty(self, name: str) -> str:
        return name

    @property
    def _jsc(self) -> Context:
        return self

    def sc(self) -> Context:
        return self

    def getExecutorMemoryStatus(self) -> Context:
        return self

    def size(self) -> int:
        return self.executors + 1

    def cancelJobGroup(self, group: str, reason: str) -> None:
        self.cancelled.append(reason)


@dataclass
class Session:
    """A session with that context."""

    sparkContext: Context


def held(metrics: Metrics) -> bool:
    return metrics.registry.get_sample_value("xrouter_query_held", {"query": "q", "sink": "spark"}) == 1


def state(status: RouterStatus) -> str | None:
    query = status.check_readiness()[1]["queries"].get("q")
    return query and str(query["state"])


@pytest.mark.parametrize(("master", "stranded"), [("spark://h:7077", True), ("local[2]", False)])
def test_no_limit_counts_while_nobody_works(master: str, stranded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "LOOK_SECONDS", 0.01)
    context, metrics, status = Context(master, executors=0), Metrics(), RouterStatus()
    seen: list[tuple[str | None, bool]] = []
    query = RouterStatus.query

    def noted(changed: RouterStatus, *told: Any, **more: Any) -> None:
        query(changed, *told, **more)
        seen.append((state(changed), held(metrics)))

    monkeypatch.setattr(RouterStatus, "query", noted)
    watch = BatchWatch("q", metrics, status, lambda: {"endpoints": "/endpoints/e", "topics": "t"})
    with structlog.testing.capture_logs() as logged, watch.attempt(cast(Any, Session(context)), 7, 0.1):
        if stranded:
            wait_until(lambda: state(status) == "held", LIMIT, "the batch to be held")
            assert held(metrics)
            context.executors = 2
            wait_until(lambda: state(status) == "running", LIMIT, "the batch to go on")
            assert not held(metrics)
        wait_until(lambda: context.cancelled, LIMIT, "the limit")
    # Whoever reads the status and then the metrics finds the same in both.
    assert seen[: 2 * stranded] == [("held", True), ("running", False)] * stranded
    assert [line["event"] for line in logged] == [
        *(["batch blocked", "batch resumed"] * stranded),
        "batch takes too long",
    ]
    assert {(line["endpoints"], line["topics"], line["query"], line["batch"]) for line in logged} == {
        ("/endpoints/e", "t", "q", 7)
    }


def test_a_slow_sink_is_told_once_and_the_router_stays_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many batches it takes long for; only a write that makes no progress at all holds the batch."""
    for name, seconds in {"LOOK_SECONDS": 0.01, "_ASKS_SECONDS": 0.0, "SLOW_SECONDS": 0.1}.items():
        monkeypatch.setattr(batches, name, seconds)
    metrics, status = Metrics(), RouterStatus()
    session = cast(Any, Session(Context("local[2]", executors=0)))
    watch = BatchWatch("q", metrics, status)
    status.query("q", "running")

    def write(until: Callable[[], object]) -> None:
        with watch.attempt(session, 1, 0.0), batches.watch_write("hook"):
            wait_until(lambda: bool(until()), LIMIT, "what a write is to show")

    with structlog.testing.capture_logs() as logged:
        for _ in range(3):
            until = time.monotonic() + 0.3
            write(partial(lambda until: logged and time.monotonic() > until, until))
            assert state(status) == "running" and not metrics.registry.get_sample_value(*HOOK)
        write(lambda: True)
        write(lambda: True)
        assert [(line["log_level"], line["event"]) for line in logged] == [
            ("warning", "sink is slow"),
            ("info", "sink is no longer slow"),
        ]
        assert logged[0]["sink"] == logged[1]["sink"] == "hook" and logged[1]["seconds"] >= 0.9
        monkeypatch.setattr(batches, "WAITS_SECONDS", 0.2)
        with watch.attempt(session, 2, 0.0), batches.watch_write("hook"):
            wait_until(lambda: state(status) == "held", LIMIT, "the batch to be held")
            batches.report_progress()
            assert state(status) == "running" and metrics.registry.get_sample_value(*HOOK) == 0


# Coverage over time: what never occurred and what occurred when, through reloads, restarts and repeats.


A, B = "/endpoints/a", "/endpoints/b"
ONE, TWO, THREE = (f"/messagegroups/g/messages/{name}" for name in ("one", "two", "three"))


def batch(*pairs: tuple[str, str]) -> Tally:
    """Return the counts of a batch with a record of each definition at its endpoint."""
    records = Counter((endpoint, ROUTED, "") for endpoint, _ in pairs)
    return Tally(records, Counter(pairs))


def test_a_batch_that_comes_again_after_a_crash_is_seen_though_it_counts_once() -> None:
    metrics = Metrics()
    metrics.coverage.follow(plan("one"))
    metrics.count_written_batch("q", batch((A, ONE)), 0.1, 0, counted=True)
    assert metrics.registry.get_sample_value("xrouter_source_unseen_definitions", {"endpoint": A}) == 0
    assert metrics.registry.get_sample_value("xrouter_definition_records_total", {"message": ONE}) is None


def test_there_is_a_series_for_each_source_and_none_for_definitions() -> None:
    metrics = Metrics(max_series=1)
    metrics.init_series(endpoints=[A])
    metrics.coverage.follow(plan(*(f"m{number}" for number in range(50))))
    metrics.outcomes(batch((B, "/messagegroups/g/messages/m1")))
    families = [family for family in metrics.registry.collect() if family.name.startswith("xrouter_source_")]
    told = {
        (sample.name.removeprefix("xrouter_source_"), sample.labels["endpoint"]): sample.value
        for family in families
        for sample in family.samples
    }
    assert told[("definitions", A)] == 50 == told[("definitions", "other")]
    assert told[("unseen_definitions", A)] == 50 and told[("unseen_definitions", "other")] == 49
    assert told[("last_record_timestamp_seconds", A)] == 0
    assert told[("last_record_timestamp_seconds", "other")] > 1_700_000_000


# What the log says of what went through: once a minute, and nothing when nothing did.


def test_many_endpoints_make_no_endless_line() -> None:
    out = io.StringIO()
    configure_logs(LogSettings(format="json"), out)
    flow = ThroughputLog(iter([0.0, EVERY_SECONDS]).__next__)
    flow.add({(f"/endpoints/{n:03}", ROUTED, ""): 1 + (n < SHOWN) for n in range(SHOWN + 30)})
    flow.log_if_due()
    line = json.loads(out.getvalue())
    assert len(line["endpoints"]) == SHOWN + 1
    assert line["endpoints"]["other"] == {"records": 30}


def test_batches_are_told_and_what_a_start_resumes_is_not() -> None:
    metrics, tally = Metrics(), Tally()
    tally.records["/endpoints/a", ROUTED, ""] = 3
    out = io.StringIO()
    configure_logs(LogSettings(format="json"), out)
    metrics.flow = ThroughputLog(iter([0.0, EVERY_SECONDS]).__next__)
    metrics.count_written_batch("q", tally, 0.1, 0)
    metrics.count_written_batch("q", tally, 0.1, 0, counted=True)
    metrics.flow.log_if_due()
    assert [json.loads(line)["records"] for line in out.getvalue().splitlines()] == [3]


# Each case of ``tests/cases/watching/status.yaml``: what a router says of itself after what happened to it.


STATUS: Final = Path(__file__).resolve().parents[3] / "cases" / "watching" / "status.yaml"


def _decode(value: Any) -> Any:
    """Return what a case calls with: counts, backlogs, epochs and findings are maps with one member."""
    match value:
        case {"tally": counts}:
            return Tally.from_json({**Tally().to_json(), **counts})
        case {"backlog": figures}:
            return Backlog(*figures)
        case {"pair": epochs}:
            return EpochPair(*epochs)
        case {"finding": members}:
            return Finding(*members)
        case dict():
            return {key: _decode(each) for key, each in value.items()}
        case list():
            return [_decode(each) for each in value]
    return value


@pytest.mark.parametrize("case", read_cases(STATUS), ids=lambda case: case["case"])
def test_a_router_says_what_its_case_says(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    metrics, status = Metrics(**case.get("metrics", {})), RouterStatus(clock=lambda: now[0])
    monkeypatch.setattr(metrics.backlogs, "clock", lambda: now[0])
    monkeypatch.setattr(metrics.backlogs, "now", lambda: 1_000.0)
    metrics.registry.register(StatusCollector(status))
    if case.get("up"):
        status.set_catalog("e1", 3)
        status.query("kafka-1", "running", batch=4)
        status.gateway("http", True)
    for name, *arguments in case.get("does", ()):
        named = arguments.pop() if arguments and isinstance(arguments[-1], dict) and "status" in name else {}
        owner, _, method = name.rpartition(".")
        parent = attrgetter(owner)(SimpleNamespace(metrics=metrics, status=status))
        member, given = getattr(parent, method), _decode(arguments)
        member(*given, **named) if callable(member) else setattr(parent, method, *given)
    now[0] += case.get("later", 0.0)
    ready, answer = status.check_readiness()
    assert ready == answer["ready"] == (not answer["reasons"])
    assert answer["reasons"] == case.get("reasons", answer["reasons"])
    assert fits(case.get("answer", {}), answer), answer
    healthy, told = status.check_health()
    assert healthy == case.get("healthy", healthy) and case.get("why", "") in str(told["reasons"])
    lines = generate_latest(metrics.registry).decode().splitlines()
    samples = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if "#" not in name}
    for name, value in case.get("samples", {}).items():
        assert samples.get(name) == (value if value is None else pytest.approx(value)), name
    if "shadow" in case:
        assert fits(case["shadow"], metrics.shadow.to_json()), metrics.shadow.to_json()
