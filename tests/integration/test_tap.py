"""``xrouter tap`` beside a running router: topics and inbox at once, as the router judges them, and nothing changed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml
from confluent_kafka.admin import AdminClient

from router.cli import run_command_line
from tests.conftest import Kafka, TopicFactory
from tests.support import shop
from tests.support.kafka import produce
from tests.support.ports import free_ports
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker
LIMIT: Final = 240.0
TOPIC: Final = "/endpoints/topic"


@contextmanager
def traffic(kafka: Kafka, topic: str, port: int | None) -> Iterator[Counter[str]]:
    """Send good and late events while the block runs, to both if there is a port; yields how many of each were sent."""
    over, sent = threading.Event(), Counter[str]()

    def send() -> None:
        number = 0
        with httpx.Client(timeout=LIMIT) as client:
            while not over.wait(0.1):
                kind = ("good", "late")[number % 2]
                event = {"specversion": "1.0", "id": f"id-{number}", "source": "/s", "type": kind}
                headers = [(f"ce_{name}", value.encode()) for name, value in event.items()]
                produce(kafka.bootstrap, topic, [(b"k", json.dumps({"n": number}).encode(), headers)])
                if port is not None:
                    client.post(
                        f"http://127.0.0.1:{port}/shop",
                        content=json.dumps({"n": number}).encode(),
                        headers={f"ce-{name}": value for name, value in event.items()}
                        | {"content-type": "application/json"},
                    )
                sent[kind] += 1 if port is None else 2
                number += 1

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        over.set()
        thread.join(LIMIT)


def write_catalog(folder: Path, kafka: Kafka, topic: str) -> None:
    catalog = shop.catalog(mended=False)
    catalog["endpoints"]["topic"] = {
        "usage": "consumer",
        "protocol": "KAFKA",
        "protocoloptions": {"endpoints": [{"uri": f"kafka://{kafka.bootstrap}"}], "options": {"topic": topic}},
        "messagegroups": ["/messagegroups/G"],
    }
    (folder / "catalog.json").write_text(json.dumps(catalog))


def check(found: list[dict[str, Any]], *endpoints: str) -> None:
    """Both kinds of record are there, from each endpoint, each with its verdict."""
    assert {each["endpoint"] for each in found} == set(endpoints)
    verdicts = {(each["outcome"], each["message"]) for each in found if each["after"]}
    assert verdicts == {("routed", "/messagegroups/G/messages/good")}
    assert {each["reason"] for each in found if not each["after"]} == {"no-match"}


def test_a_topic_is_tapped_whether_a_router_runs_or_not(
    kafka: Kafka, topic_factory: TopicFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = topic_factory("tapped")
    write_catalog(tmp_path, kafka, topic)
    told = shop.settings(tmp_path, "http://127.0.0.1:9/", state=str(tmp_path / "state"))
    config = tmp_path / "router.yaml"
    config.write_text(yaml.safe_dump({**told, "sources": [{"endpoint": TOPIC}]}))
    with traffic(kafka, topic, None):
        assert run_command_line(["tap", str(config), "--format", "json", "-n", "4"]) == 0
    check([json.loads(line) for line in capsys.readouterr().out.splitlines()], TOPIC)


@pytest.mark.full
def test_a_tap_shows_what_the_router_does_and_leaves_no_trace(
    router: RouterProcess, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    (port,) = free_ports(1)
    topic = topic_factory("tapped")
    write_catalog(router.folder, kafka, topic)
    told = shop.settings(router.folder, "http://127.0.0.1:9/", http={"port": port})
    router.configure({**told, "sources": [{"endpoint": shop.SHOP}, {"endpoint": TOPIC}]})
    router.start()
    groups = groups_of(kafka)
    with traffic(kafka, topic, port) as sent:
        done = subprocess.run(
            [sys.executable, "-m", "xrouter", "tap", str(router.config), "--format", "json", "-n", "40"],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        wait_until(lambda: sent["late"] > 4, LIMIT, "some more traffic")
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    check(found, shop.SHOP, TOPIC)
    verdicts = {each["after"]["attributes"]["id"] for each in found if each["after"]}

    # The router did the same, with all of it: the tap took nothing away.
    done_with = sum(sent.values())
    wait_until(lambda: router.total("xrouter_records_total") == done_with, LIMIT, "all records at their sinks")
    assert router.total("xrouter_records_total", outcome="routed") == sent["good"]
    assert router.total("xrouter_records_total", reason="no-match") == sent["late"]
    written = {each["id"] for each in shop.rows_of(router.folder / "lake")}
    assert verdicts <= written
    dead = {each["position"] for each in shop.rows_of(router.folder / "dead")}
    shown = {each["position"] for each in found if each["outcome"] == "dead-letter"}
    assert {each for each in shown if each.startswith(topic)} <= dead and shown
    assert groups_of(kafka) == groups
    assert router.stop() == 0


def groups_of(kafka: Kafka) -> set[str]:
    """Return the consumer groups that the broker knows."""
    # A client that nobody holds ends, and what it was asked has no answer then.
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    return {each.group_id for each in admin.list_consumer_groups().result(LIMIT).valid}
