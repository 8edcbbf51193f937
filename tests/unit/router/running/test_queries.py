"""Queries that end and are started again; what a router shows before Spark has begun, and while a change waits."""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bindings.kafka.client import KafkaUnreachable
from catalog.model import Catalog
from router.batches.plans import SharedParts
from router.errors import BrokerUnreachable, CatalogUnavailable
from router.evaluation.plan import Plan
from router.logs import configure_logs
from router.overview.overview import Overview
from router.running.monitoring import Monitoring, SavedCatalog, load_startup_catalog
from router.running.queries import FIRST_PAUSE, Queries, QueryRun
from router.running.reload import Reloader
from router.running.service import CatalogActivation, Service
from router.settings import Settings, SourceSettings, settings_from_dict
from router.settings.model import LogSettings
from router.sources import Source
from router.spark.session import Stopping
from router.state.state import Accounts, StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.support.ports import free_ports
from tests.support.waiting import wait_until
from tests.support.web import Reply, serving
from tests.unit.router.realtime.test_query import ORDERS, plan


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


# A start while the registry is away goes by the catalog that was in force last, and says so until it was read.


LIMIT = 60.0


def document(*names: str, base: str | None = None) -> dict[str, Any]:
    message = {"envelope": "CloudEvents/1.0", **({} if base is None else {"basemessage": base})}
    return {"messagegroups": {"g": {"messages": {name: message for name in names}}}}


def settings_of(folder: Path, *sources: str, poll: str = "10ms") -> Settings:
    told = {
        "catalog": {"source": list(sources), "poll": poll, "allow_addresses": ["*"]},
        "sinks": {"lake": {"type": "table", "path": "lake"}, "dead": {"type": "table", "path": "dead"}},
        "routes": [{"to": ["lake"]}],
        "dead_letters": {"sinks": ["dead"]},
        "state": str(folder / "state"),
    }
    return settings_from_dict(told, {}, folder)


class Watched:
    """What watchers see of one process."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.metrics, self.status = settings, Metrics(), RouterStatus(routes=False)
        overview = Overview(settings, self.metrics, self.status, None)
        self.monitored = Monitoring(self.metrics, self.status, 0, overview, SavedCatalog(settings))

    def started(self) -> tuple[Catalog, str]:
        loaded = load_startup_catalog(self.settings, threading.Event(), self.monitored)
        assert loaded is not None
        self.monitored.show_plan(Plan(loaded[0], self.settings), [], stale=loaded[1])
        return loaded

    @property
    def reasons(self) -> list[str]:
        found: list[str] = self.status.check_readiness()[1]["reasons"]
        return found


@pytest.mark.parametrize("poll", ["10ms", "0"])
def test_the_last_good_catalog_is_taken_while_the_registry_is_away(tmp_path: Path, poll: str) -> None:
    with serving() as web:
        url = f"{web.url}/c.json"
        settings = settings_of(tmp_path, url, poll=poll)
        web.routes["/c.json"] = Reply("", 503)
        with pytest.raises(CatalogUnavailable):
            Watched(settings).started()  # nothing was in force before

        web.routes["/c.json"] = Reply(document("a"))
        first = Watched(settings)
        before, stale = first.started()
        assert (stale, first.reasons) == ("", [])

        web.routes["/c.json"] = Reply("", 503)
        again = Watched(settings)
        catalog, stale = again.started()
        assert catalog == before
        assert again.reasons == [stale] and url in stale and "the last valid one, saved 20" in stale
        assert again.status.check_readiness()[1]["catalog"]["awaited"] == [url]

        reloader = Reloader(settings, Plan(catalog, settings), again.metrics, again.status, unread=True)
        reloader.poll()
        assert again.reasons == [stale] and again.status.check_readiness()[1]["catalog"]["awaited"] == [url]
        web.routes["/c.json"] = Reply(document("a"))
        if poll != "0":
            wait_until(lambda: reloader.poll() is None and not again.reasons, LIMIT, "the catalog to be read")
            assert again.status.count_pending()["awaited"] == 0
        else:
            assert not reloader.is_due and reloader._interval > 0


def test_a_catalog_that_refers_to_what_is_away_gives_way_to_the_last_good_one(tmp_path: Path) -> None:
    source = tmp_path / "c.json"
    with serving() as web:
        settings = settings_of(tmp_path, str(source))
        source.write_text(json.dumps(document("a")))
        before, _ = Watched(settings).started()
        web.routes["/b.json"] = Reply("", 503)
        source.write_text(json.dumps(document("a", "b", base=f"{web.url}/b.json#/messagegroups/g/messages/x")))
        again = Watched(settings)
        catalog, stale = again.started()
        assert catalog == before and f"{web.url}/b.json" in stale


@pytest.mark.parametrize("what", ["gone", "others", "damaged", "version"])
def test_what_waiting_does_not_mend_ends_a_start(tmp_path: Path, what: str) -> None:
    with serving() as web:
        web.routes["/c.json"] = Reply(document("a"))
        settings = settings_of(tmp_path, f"{web.url}/c.json")
        Watched(settings).started()
        kept = tmp_path / "state" / "catalog.json"
        web.routes["/c.json"] = Reply("", 503)
        if what == "gone":
            del web.routes["/c.json"]
        elif what == "others":
            web.routes["/d.json"] = Reply("", 503)
            settings = settings_of(tmp_path, f"{web.url}/d.json")
        elif what == "damaged":
            kept.write_bytes(kept.read_bytes()[:100])
        else:
            kept.write_text(json.dumps({**json.loads(kept.read_text()), "version": "0"}))
        with pytest.raises(CatalogUnavailable):
            Watched(settings).started()


def test_a_users_password_is_not_written_down(tmp_path: Path) -> None:
    with serving() as web:
        web.routes["/c.json"] = Reply(document("a"))
        url = web.url.replace("//", "//user:secret-of-mine@")
        Watched(settings_of(tmp_path, f"{url}/c.json")).started()
        assert "secret-of-mine" not in (tmp_path / "state" / "catalog.json").read_text()
