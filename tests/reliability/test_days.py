"""Bad days of an operator, replayed: what status page, /readyz, metrics, alerts and log say, and that each ends.

Alerts are those of the shipped rules in a real Prometheus, with their times divided.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from router.cli import run_command_line
from tests.conftest import Kafka, TopicFactory
from tests.support import plain, shop
from tests.support.brokers import KafkaBroker
from tests.support.kafka import create_topics, produce, read_all
from tests.support.ports import free_ports
from tests.support.prometheus import Prometheus
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until
from tests.support.web import Reply, serving

LIMIT: Final = 60.0
FASTER: Final = 60
"""A minute is a second."""
TOPIC: Final = "plant"
NOISE: Final = ("Traceback", "Py4J", "Caused by", "\tat ", "    at ", "WARN ", "ERROR ")
"""What the log of a bad day is to have none of: traces, and Spark's own words."""


class Day:
    """A router with an HTTP source and a table, what it says of itself, and the alerts of who watches it."""

    def __init__(self, router: RouterProcess) -> None:
        self.router = router
        (self.port,) = free_ports(1)
        self.folder = router.folder

    def catalog(self) -> dict[str, Any]:
        document = shop.catalog(fixed=True)
        document["messagegroups"]["G"]["messages"] = plain.events("good")
        return document

    def configure(self, **more: Any) -> None:
        told = shop.settings(self.folder, "http://127.0.0.1:9/", http={"port": self.port})
        told["sinks"].pop("hook")
        self.router.configure({**told, "sources": [{"endpoint": shop.SHOP}], "routes": [{"to": ["lake"]}], **more})
        plain.write(self.folder, self.catalog())

    def post(self, id: str) -> httpx.Response:
        event, headers = {**plain.attributes("good", id), "data": {}}, {"content-type": plain.STRUCTURED}
        return httpx.post(f"http://127.0.0.1:{self.port}/shop", json=event, headers=headers, timeout=LIMIT)

    def posts(self, id: str) -> bool:
        """Whether the router accepts an event over HTTP."""
        try:
            return self.post(id).status_code == 202
        except httpx.TransportError:
            return False

    def ids(self) -> Counter[str]:
        return Counter(row["id"] for row in shop.rows_of(self.folder / "lake"))

    def wait(self, condition: Any) -> None:
        wait_until(condition, LIMIT, lambda: f"{self.router.readiness()}; log:\n{self.router.log[-5000:]}")

    def waits_for(self, reason: str) -> None:
        """Wait until /readyz gives the reason, and hold the page and the metric against that."""
        self.wait(lambda: any(reason in each for each in self.router.readiness().get("reasons", ())))
        page = httpx.get(f"http://127.0.0.1:{self.router.port}/status.json", timeout=LIMIT).json()
        assert not page["ready"] and any(reason in each for each in page["reasons"]), page["reasons"]
        assert self.router.metrics()["xrouter_ready"] == 0
        assert httpx.get(f"http://127.0.0.1:{self.router.port}/readyz", timeout=LIMIT).status_code == 503

    def is_well(self) -> None:
        """Wait until the router is ready, and has nothing else to say."""
        self.wait(lambda: self.router.readiness().get("ready"))
        self.wait(lambda: self.router.metrics().get("xrouter_ready") == 1)

    @contextmanager
    def watched(self) -> Iterator[Prometheus]:
        targets = {"xrouter": [f"127.0.0.1:{self.router.port}"]}
        with Prometheus(self.folder / "prometheus", targets, faster=FASTER) as prometheus:
            yield prometheus

    def fires(self, prometheus: Prometheus, name: str, **labels: str) -> None:
        def firing() -> bool:
            return any(labels.items() <= each.labels.items() for each in prometheus.firing(name))

        wait_until(firing, LIMIT, lambda: f"{name}; there are {[str(each) for each in prometheus.alerts()]}")

    def clears(self, prometheus: Prometheus, name: str) -> None:
        wait_until(lambda: not prometheus.firing(name), LIMIT, f"the end of {name}")

    def log_is_clean(self, errors: int = 0) -> None:
        log = self.router.log
        assert not [sign for sign in NOISE if sign in log], log
        assert sum("[error" in line for line in log.splitlines()) == errors, log


@pytest.fixture
def day(router: RouterProcess) -> Day:
    return Day(router)


def test_a_day_with_a_full_disk(day: Day, small_disk: Path) -> None:
    day.configure(inbox={"min_free_bytes": 8 * 2**20})
    day.router.start()
    assert day.post("a").status_code == 202
    with day.watched() as prometheus:
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free - 6 * 2**20))
        # Nobody has to be refused first.
        day.waits_for("the inbox accepts no messages: ")
        (reason,) = day.router.readiness()["reasons"]
        assert f"{small_disk / 'inbox'}: " in reason and " bytes free on the disk, 8388608 must stay free" in reason
        assert reason.endswith("free some space or lower min_free_bytes")
        refused = day.post("refused")
        assert refused.status_code == 503 and "retry-after" in refused.headers
        figures = day.router.metrics()
        assert figures["xrouter_inbox_accepting"] == 0
        assert figures['xrouter_disk_free_bytes{disk="state"}'] < 8 * 2**20
        assert figures['xrouter_disk_size_bytes{disk="state"}'] == 32 * 2**20
        assert figures['xrouter_disk_free_bytes{disk="sinks.lake"}'] > 0
        for name, labels in {
            "XrouterInboxRefuses": {},
            "XrouterInboxFills": {},
            "XrouterDiskFills": {"disk": "state"},
        }.items():
            day.fires(prometheus, name, **labels)
        ballast.unlink()
        day.wait(lambda: day.posts("b"))
        day.is_well()
        assert day.router.metrics()["xrouter_inbox_accepting"] == 1
        day.clears(prometheus, "XrouterInboxRefuses")
    day.wait(lambda: day.ids() == {"a": 1, "b": 1})
    log = day.router.log
    assert log.count("inbox accepts no messages") == log.count("inbox accepts messages again") == 1
    day.log_is_clean(errors=1)


@pytest.mark.full
def test_a_day_that_begins_without_kafka(day: Day, tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path / "kafka")

    def catalog() -> dict[str, Any]:
        document = Day.catalog(day)
        document["endpoints"]["plant"] = plain.endpoint("KAFKA", {"topic": TOPIC}, "G")
        return document

    day.catalog = catalog  # type: ignore[method-assign]
    sources = [{"endpoint": shop.SHOP}, {"endpoint": "/endpoints/plant", "bootstrap_servers": broker.bootstrap}]
    day.configure(sources=sources)
    day.router.launch()
    try:
        day.wait(lambda: day.posts("pushed"))
        day.waits_for(f"is starting: Kafka at {broker.bootstrap} does not answer")
        with day.watched() as prometheus:
            # What is pushed is not held up by the brokers of others.
            day.wait(lambda: day.ids() == {"pushed": 1})
            assert len(day.router.readiness()["reasons"]) == 1
            assert day.router.total("xrouter_source_up", endpoint="/endpoints/plant") == 0
            day.fires(prometheus, "XrouterSourceDown", endpoint="/endpoints/plant")
            broker.start()
            create_topics(broker.bootstrap, [TOPIC])
            headers = [("ce_specversion", b"1.0"), ("ce_id", b"read"), ("ce_source", b"/s"), ("ce_type", b"good")]
            produce(broker.bootstrap, TOPIC, [(None, b"{}", headers)])
            day.wait(lambda: day.ids() == {"pushed": 1, "read": 1})
            day.is_well()
            day.clears(prometheus, "XrouterSourceDown")
        log = day.router.log
        assert (
            log.count("brokers unreachable; query waits") == log.count("brokers reachable again; starting query") == 1
        )
        assert day.router.stop() == 0
        day.log_is_clean()
    finally:
        broker.stop()


@pytest.mark.full
def test_a_day_that_begins_without_the_registry(day: Day) -> None:
    with serving() as web:
        url = f"{web.url}/catalog.json"
        day.configure(catalog={"source": url, "poll": "200ms"})
        web.routes["/catalog.json"] = Reply(day.catalog())
        day.router.start()
        epoch = day.router.readiness()["catalog"]["epoch"]
        assert day.router.stop() == 0
        web.routes["/catalog.json"] = Reply("", 503)
        begun = len(day.router.log)
        day.router.launch()
        day.wait(lambda: day.posts("pushed"))
        day.waits_for(f"the catalog is unreachable at {url}; using the last valid one, saved 20")
        with day.watched() as prometheus:
            day.wait(lambda: day.ids() == {"pushed": 1})
            told = day.router.readiness()
            assert len(told["reasons"]) == 1 and told["catalog"]["awaited"] == [url]
            assert told["catalog"]["epoch"] == epoch
            assert day.router.metrics()["xrouter_catalog_awaited"] == 1
            day.fires(prometheus, "XrouterCatalogWaits")
            assert not prometheus.firing("XrouterReloadRefused")
            web.routes["/catalog.json"] = Reply(day.catalog())
            day.is_well()
            day.clears(prometheus, "XrouterCatalogWaits")
        log = day.router.log[begun:]
        assert log.count("started with the last valid catalog") == 1
        assert log.count("catalog is valid again and unchanged") == 1
        assert not [sign for sign in NOISE if sign in log] and "[error" not in log, log


def test_a_day_without_the_topic_of_a_sink(
    day: Day, kafka: Kafka, topic_factory: TopicFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = f"{topic_factory('made')}.lacking"
    bus = {"type": "kafka", "bootstrap_servers": kafka.bootstrap, "topic": topic, "options": {"max.block.ms": "3000"}}
    sinks = {"bus": bus, "dead": {"type": "table", "path": str(day.folder / "dead")}}
    day.configure(sinks=sinks, routes=[{"to": ["bus"]}], spark={"conf": {}})
    lacking = f"Kafka at {kafka.bootstrap} has no topic {topic}"
    run_command_line(["doctor", str(day.router.config)])
    doctor = " ".join(capsys.readouterr().out.split())
    assert lacking in doctor and "create it, or set create_topics of the sink" in doctor
    day.router.start()
    assert lacking in day.router.log, "the start names it as well"
    with day.watched() as prometheus:
        assert day.post("a").status_code == 202
        day.waits_for(f"sink bus: {lacking}")
        (reason,) = day.router.readiness()["reasons"]
        assert f"create topic {topic}, or grant the login Describe and Write on it; the batch is then written" in reason
        assert day.router.total("xrouter_query_held", sink="bus") == 1
        day.fires(prometheus, "XrouterBatchHeld", sink="bus")
        create_topics(kafka.bootstrap, [topic])
        day.wait(lambda: [each.header("ce_id") for each in read_all(kafka.bootstrap, topic)] == ["a"])
        day.is_well()
        day.clears(prometheus, "XrouterBatchHeld")
    log = day.router.log
    assert log.count("batch blocked") <= 2 and log.count("batch resumed") == 1
    assert "batches park" not in log and "[spark " not in log
    day.log_is_clean(errors=log.count("held_seconds=") - 1)
