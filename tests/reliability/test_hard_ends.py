"""A full disk, a JVM that dies, a drain that takes too long: each is said in a line, and nothing is lost by it."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from router.state.database import StateDatabase
from tests.conftest import Kafka, TopicFactory
from tests.support import plain, shop
from tests.support.ports import free_ports
from tests.support.processes import children, program_of
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until
from tests.support.web import Answer, Taken, Webhook

LIMIT: Final = 300.0
NOISE: Final = ("Traceback", "StackOverflowError", "Py4J", "Caused by", "\tat ", "    at ")
"""What a stack trace of Python, py4j or the JVM would bring."""


class Shop:
    """A router that takes events by HTTP and has a table and a webhook to write them to."""

    def __init__(self, process: RouterProcess, hook: str, sources: Sequence[dict[str, str]] = (), **more: Any) -> None:
        self.process = process
        (self.port,) = free_ports(1)
        self.topics: list[str] = []
        self.write_catalog("good")
        told = shop.settings(process.folder, hook, **more)
        told |= {"sources": [{"endpoint": shop.SHOP}, *sources], "http": {"port": self.port}}
        process.configure({**told, "routes": [{"when": {"message": "*/slow"}, "to": ["hook"]}, {"to": ["lake"]}]})

    def write_catalog(self, *types: str) -> None:
        endpoints = shop.catalog(fixed=True)["endpoints"]
        for number, topic in enumerate(self.topics):
            endpoints[f"lane{number}"] = plain.endpoint("KAFKA", {"topic": topic}, "G")
        plain.write(self.process.folder, plain.catalog(endpoints, G=plain.events(*types)))

    def post(self, *ids: str, type: str = "good") -> None:
        for id in ids:
            plain.post(self.port, "/shop", {**plain.attributes(type, id), "data": {}}, plain.STRUCTURED)

    def wait(self, condition: Any) -> None:
        wait_until(condition, LIMIT, lambda: f"{self.process.readiness()}; log:\n{self.process.log[-3000:]}")

    def ids(self) -> Counter[str]:
        return Counter(row["id"] for row in shop.rows_of(self.process.folder / "lake"))

    def jvm(self) -> int:
        """Return the process id of the router's JVM, its only child that runs Java."""
        return next(pid for pid in children(self.process.pid) if program_of(pid).endswith("java"))


def fill(place: Path) -> None:
    """Leave no room at all."""
    try:
        with (place / "filling").open("ab", buffering=0) as file:
            while True:
                file.write(bytes(2**12))
    except OSError as error:
        assert error.errno == errno.ENOSPC, error


def test_a_catalog_waits_for_a_full_disk_and_a_dead_jvm_is_named(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, small_disk: Path
) -> None:
    lanes = [{"endpoint": f"/endpoints/lane{n}", "bootstrap_servers": kafka.bootstrap} for n in range(2)]
    shop_router = Shop(router, "http://127.0.0.1:9/", lanes, inbox={"min_free_bytes": 0})
    shop_router.topics = [topic_factory("lane")]
    shop_router.write_catalog("good")
    router.start()
    shop_router.post("a", "b")
    shop_router.wait(lambda: shop_router.ids().total() == 2)
    epoch = router.readiness()["catalog"]["epoch"]

    # Where a new topic begins has to be on the disk before anything says that it is read.
    fill(small_disk)
    shop_router.topics.append(topic_factory("lane"))
    shop_router.write_catalog("good", "late")
    shop_router.wait(lambda: "disk is full" in (router.readiness().get("catalog") or {}).get("held", ""))
    assert router.readiness()["catalog"]["epoch"] == epoch
    assert router.metrics()["xrouter_catalog_held"] == 1
    assert "catalog pending; keeping the last valid one" in router.log
    (small_disk / "filling").unlink()
    shop_router.wait(lambda: router.readiness()["catalog"]["epoch"] != epoch)
    assert router.readiness()["catalog"]["held"] == ""
    assert router.metrics()["xrouter_catalog_held"] == 0
    shop_router.post("c", type="late")
    shop_router.wait(lambda: shop_router.ids().total() == 3)

    seen = len(router.log)
    os.kill(shop_router.jvm(), signal.SIGKILL)
    assert router.wait(LIMIT) == 10, router.log[seen:]
    said = router.log[seen:]
    assert "xrouter: error: Spark's JVM was killed\nhint: " in said
    assert not [sign for sign in NOISE if sign in said], said
    assert shop_router.ids() == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize("again", [False, pytest.param(True, marks=pytest.mark.full)], ids=["limit", "second signal"])
def test_what_is_cut_off_says_so_in_a_line(router: RouterProcess, again: bool) -> None:
    release, asked = threading.Event(), threading.Semaphore(0)

    def answer(_: Taken) -> Answer:
        asked.release()
        release.wait(2 * LIMIT)
        return Answer(202)

    with Webhook(answer) as hook:
        try:
            shop_router = Shop(router, hook.url, drain_grace="2s")
            shop_router.write_catalog("good", "slow")
            router.start()
            shop_router.post("slow", type="slow")
            assert asked.acquire(timeout=LIMIT), router.log[-3000:]
            # Nothing was committed by this router yet.
            shop_router.wait(lambda: router.total("xrouter_inbox_records") == 1)
            cut_off_by_the_limit(router)
            if again:
                cut_off_by_a_second_signal(shop_router, asked)
        finally:
            release.set()
    # It is begun and not done, as after a kill, and the next start writes it once more.
    state = router.folder / "state"
    [begun] = {max(int(each.name) for each in (state / "checkpoints").rglob("offsets/[0-9]*"))}
    assert StateDatabase(state, create=False).read("SELECT max(batch) FROM pins WHERE query = 'inbox'") == [(begun,)]
    assert not list((state / "checkpoints").rglob(f"commits/{begun}"))


def cut_off_by_the_limit(router: RouterProcess) -> None:
    seen = len(router.log)
    assert router.stop() == 0
    said = router.log[seen:]
    assert said.count("batch interrupted after drain_grace; it will be repeated") == 1
    assert not [sign for sign in NOISE if sign in said], said
    assert len(said.splitlines()) == 3, said


def cut_off_by_a_second_signal(shop_router: Shop, asked: threading.Semaphore) -> None:
    router = shop_router.process
    settings = router.config.read_text()
    router.config.write_text(settings.replace("drain_grace: 2s", "drain_grace: 300s"))
    router.start()
    assert asked.acquire(timeout=LIMIT), router.log[-3000:]
    shop_router.wait(lambda: router.total("xrouter_inbox_records") == 1)
    seen = len(router.log)
    os.killpg(router.pid, signal.SIGINT)
    shop_router.wait(lambda: "draining" in router.log[seen:])
    os.killpg(router.pid, signal.SIGINT)
    assert router.wait(LIMIT) == 130
    said = router.log[seen:]
    assert said.count("ended at once by a second signal") == 1
    assert not [sign for sign in NOISE if sign in said], said
    assert len(said.splitlines()) == 2, said
