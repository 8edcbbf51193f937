"""Queries that end and are started again; what a router shows before Spark has begun, and while a change waits."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bindings.kafka.client import KafkaUnreachable
from router.batches.plans import SharedParts
from router.errors import BrokerUnreachable
from router.logs import configure_logs
from router.overview.overview import Overview
from router.running.monitoring import Monitoring, SavedCatalog
from router.running.queries import FIRST_PAUSE, Queries, QueryRun
from router.running.service import CatalogActivation, Service
from router.settings import SourceSettings
from router.settings.model import LogSettings
from router.sources import Source
from router.spark.session import Stopping
from router.state.state import Accounts, StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.support.ports import free_ports
from tests.unit.router.realtime.test_checks import ORDERS, plan


@pytest.mark.parametrize(("last", "pause"), [(None, 8 * FIRST_PAUSE), (17, FIRST_PAUSE)])
def test_pauses_begin_anew_after_a_query_that_wrote_a_batch(last: int | None, pause: float, tmp_path: Path) -> None:
    nothing: Any = None
    queries = Queries(SharedParts(StateFolder(tmp_path), nothing, Metrics(), RouterStatus()), once=False)
    ended: Any = SimpleNamespace(exception=lambda: OSError("gone"), isActive=False)
    pipeline: Any = SimpleNamespace(failure=None, last=last, renewed={})
    running = QueryRun("inbox", (), nothing, pipeline, ended, pause=8 * FIRST_PAUSE)
    queries._running["inbox"] = running
    queries.supervise()
    assert running.query is None
    assert running.pause == 2 * pause


def test_a_query_waits_for_brokers_that_are_away_and_nobody_waits_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_logs(LogSettings())
    status, nothing = RouterStatus(), cast(Any, None)
    queries = Queries(SharedParts(StateFolder(tmp_path), nothing, Metrics(), status), once=False)
    running = queries._running["kafka-1"] = QueryRun("kafka-1", (), nothing)
    answers: list[Future[None]] = []
    tries: list[str] = []

    def start(one: QueryRun) -> None:
        tries.append(one.name)
        if len(tries) == 1:
            raise BrokerUnreachable("Kafka at k:9092 does not answer")
        one.query = cast(Any, SimpleNamespace(isActive=True))

    def ask(_: QueryRun) -> Future[None]:
        answers.append(Future())
        return answers[-1]

    monkeypatch.setattr(queries, "_launch", start)
    monkeypatch.setattr(queries, "_ask_brokers", ask)

    def check() -> None:
        running.restart_at = 0.0
        queries.supervise()

    check()
    state = status.check_readiness()[1]["queries"]["kafka-1"]
    assert (state["state"], state["reason"]) == ("starting", "Kafka at k:9092 does not answer")
    check()  # asks
    check()  # has no answer yet
    assert (len(tries), len(answers)) == (1, 1)
    answers[0].set_exception(KafkaUnreachable("Kafka at k:9092 does not answer: no such host"))
    check()
    assert (len(tries), status.check_readiness()[1]["queries"]["kafka-1"]["reason"][-12:]) == (1, "no such host")
    check()
    answers[1].set_result(None)
    check()
    assert (len(tries), running.away_since) == (2, None)
    log = capsys.readouterr().err
    assert log.count("brokers unreachable; query waits") == log.count("brokers reachable again; starting query") == 1
    assert "error" not in log


def test_a_query_that_has_ended_is_not_at_work(tmp_path: Path) -> None:
    nothing: Any = None
    queries = Queries(SharedParts(StateFolder(tmp_path), nothing, Metrics(), RouterStatus()), once=False)
    for name, ended in (("inbox", False), ("kafka-1", True)):
        queries._running[name] = QueryRun(name, (), nothing, ended=ended)
    assert queries.active_names == {"inbox"}


def test_the_time_to_find_a_batch_is_that_of_the_last_batch_though_spark_looks_on(tmp_path: Path) -> None:
    nothing: Any = None
    status = RouterStatus()
    queries = Queries(SharedParts(StateFolder(tmp_path), nothing, Metrics(), status), once=False)
    spark: Any = SimpleNamespace(lastProgress={"durationMs": {"triggerExecution": 700, "addBatch": 400}})
    queries._running["inbox"] = QueryRun("inbox", (), nothing, nothing, spark)
    queries.collect_progress()
    spark.lastProgress = {"durationMs": {"triggerExecution": 9, "latestOffset": 8}}  # It found nothing.
    queries.collect_progress()
    assert status.steps.to_json()["inbox"]["source_seconds"] == 0.3


# What a router shows before Spark has begun.

KEY = ("/endpoints/a", "routed", "")


def test_counts_go_on_where_they_were_from_the_first_look_at_them(tmp_path: Path) -> None:
    state, compiled = StateFolder(tmp_path), plan({"a": ORDERS})
    query = compiled.sources[0].query
    with state.accounts.changing(query) as account:
        account.taken = account.judged = account.records[KEY] = account.delivered["bus", KEY[0]] = 7
        account.records["/endpoints/gone", "routed", ""] = account.delivered["bus", "/endpoints/gone"] = 7
    metrics, status = Metrics(compiled.settings.sinks), RouterStatus()
    overview = Overview(compiled.settings, metrics, status, None)
    Service(
        compiled, state, tmp_path, Stopping(), Monitoring(metrics, status, 0, overview, SavedCatalog(compiled.settings))
    )
    labels = dict(zip(("endpoint", "outcome", "reason"), KEY, strict=True))
    counts = {
        "xrouter_records_total": labels,
        "xrouter_sink_records_total": {"sink": "bus", "endpoint": KEY[0]},
        "xrouter_taken_records_total": {"query": query},
    }
    for _ in range(2):
        assert {metrics.registry.get_sample_value(name, labels) for name, labels in counts.items()} == {7}
        # As each query of it does, which may begin after others, or take the place of a real-time one.
        metrics.resume(query, state.accounts.of(query))
    gone = {**labels, "endpoint": "/endpoints/gone"}
    assert metrics.registry.get_sample_value("xrouter_records_total", gone) is None
    with state.accounts.changing(query):
        pass
    kept = Accounts(state.database).of(query)
    assert (kept.taken, kept.judged, list(kept.records), list(kept.delivered)) == (7, 7, [KEY], [("bus", KEY[0])])


# A changed catalog that waits for brokers says so, and the router stays ready on the last good one.


@pytest.mark.slow
def test_a_change_that_waits_for_brokers_is_told(state: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bindings.kafka.offsets.TIMEOUT_SECONDS", 0.0)
    servers = f"127.0.0.1:{free_ports(1)[0]}"
    wanted = SourceSettings(endpoint="/endpoints/new", start="latest")
    source = Source("/endpoints/new", "kafka", "kafka:new", "kafka-1", wanted, topic="new", servers=servers)
    active: list[Any] = []
    plans: Any = SimpleNamespace(active=SimpleNamespace(settings=wanted), activate=lambda plan, _: active.append(plan))
    intake: Any = SimpleNamespace(open_inbox=lambda _: None, receive_for_plan=lambda _: None)
    status = RouterStatus()
    status.set_catalog("e1", 3)
    status.query("kafka-0", "running")
    queries = Queries(SharedParts(state, plans, Metrics(), status), once=False)
    changes = CatalogActivation(plans, queries, intake, lambda _: None, partial(setattr, status, "pending_reason"))
    unreachable: Any = SimpleNamespace(sources=(source,))
    changes.schedule(unreachable)
    changes.activate_if_ready()
    ready, answer = status.check_readiness()
    assert ready and not active
    assert answer["catalog"]["held"].startswith(f"Kafka at {servers} does not answer")
    reachable: Any = SimpleNamespace(sources=())
    changes.schedule(reachable)
    changes.activate_if_ready()
    assert active == [reachable]
    assert status.check_readiness()[1]["catalog"]["held"] == ""
