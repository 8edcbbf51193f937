"""Gateways as processes of their own, with a Kafka topic as their inbox, and one router behind them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import plain
from tests.support.brokers import KafkaBroker
from tests.support.ports import free_ports
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker
SECONDS = 300.0


WATERED = plain.event(
    "bed.watered",
    protocol="HTTP",
    protocoloptions={
        "path": {"value": "/beds/{bed}", "type": "uritemplate"},
        "headers": [{"name": "x-litres", "value": "{litres}"}],
    },
)
WATERED["envelopemetadata"]["subject"] = {"value": "{bed}/{litres}"}
CATALOG = plain.catalog({"in": plain.endpoint("HTTP", {"path": "/beds/{bed}"}, "Beds")}, Beds={"Watered": WATERED})


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Callable[..., RouterProcess]]:
    """Make processes that surely end."""
    made: list[RouterProcess] = []

    def make(name: str, settings: dict[str, Any], command: str = "run") -> RouterProcess:
        made.append(RouterProcess(tmp_path / name, settings, command=command))
        return made[-1]

    yield make
    for process in made:
        process.end()


def test_two_gateways_and_a_router_share_a_topic(
    kafka: KafkaBroker, topic_factory: Callable[..., str], processes: Callable[..., RouterProcess], tmp_path: Path
) -> None:
    inbox = {"kafka": {"bootstrap_servers": kafka.bootstrap, "topic": topic_factory("inbox", 2)}}
    common = plain.routed(plain.write(tmp_path, CATALOG), plain.lines(tmp_path, "out", "dead"), inbox=inbox)
    ports = free_ports(2)
    gateways = [
        processes(f"gateway{number}", {**common, "http": {"port": port}}, "gateway")
        for number, port in enumerate(ports)
    ]
    router = processes("router", common)
    for process in gateways:
        process.start()
    router.start()
    with httpx.Client(timeout=SECONDS) as client:
        for number in range(40):
            headers = [(b"x-litres", str(number).encode()), (b"x-odd", b"\xff")]
            answer = client.post(
                f"http://127.0.0.1:{ports[number % 2]}/beds/{number}", content=b"\xff\x00", headers=headers
            )
            assert answer.status_code == 202
        assert client.post(f"http://127.0.0.1:{ports[0]}/beds/lost", content=b"\xff").status_code == 202
    out, dead = tmp_path / "out", tmp_path / "dead"
    wait_until(lambda: len(plain.lines_of(out, dead)) >= 41, SECONDS, lambda: f"41 lines\n{router.log[-3000:]}")
    routed = plain.lines_of(out)
    assert sorted(line["cloudevent"]["subject"] for line in routed) == sorted(f"{n}/{n}" for n in range(40))
    assert {base64.b64decode(line["cloudevent"]["data_base64"]) for line in routed} == {b"\xff\x00"}
    assert len({line["cloudevent"]["id"] for line in routed}) == 40
    (letter,) = plain.lines_of(dead)
    assert letter["reason"] == "no-match" and base64.b64decode(letter["body"]) == b"\xff"
    for process in (router, *gateways):
        assert process.total("xrouter_catalog_definitions") == process.total("xrouter_catalog_info") == 1
    assert router.stop() == 0
    assert [process.stop() for process in gateways] == [0, 0]


def test_without_a_topic_there_is_no_gateway_of_its_own(
    processes: Callable[..., RouterProcess], tmp_path: Path
) -> None:
    told = plain.routed(plain.write(tmp_path, CATALOG), plain.lines(tmp_path, "out", "dead"))
    process = processes("gateway", told, "gateway")
    process.launch()
    assert process.wait() == 3
    assert "inbox.kafka" in process.log and "xrouter run" in process.log
