"""Gateways as processes of their own, with a Kafka topic as their inbox, and one router behind them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.brokers import KafkaBroker
from tests.support.ports import free_ports
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker
SECONDS = 300.0
CATALOG = {
    "endpoints": {
        "in": {
            "usage": ["consumer"],
            "protocol": "HTTP",
            "protocoloptions": {"options": {"path": "/beds/{bed}"}},
            "messagegroups": ["/messagegroups/Beds"],
        }
    },
    "messagegroups": {
        "Beds": {
            "envelope": "CloudEvents/1.0",
            "messages": {
                "Watered": {
                    "protocol": "HTTP",
                    "protocoloptions": {
                        "path": {"value": "/beds/{bed}", "type": "uritemplate"},
                        "headers": [{"name": "x-litres", "value": "{litres}"}],
                    },
                    "envelopemetadata": {"type": {"value": "bed.watered"}, "subject": {"value": "{bed}/{litres}"}},
                }
            },
        }
    },
}


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


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.rglob("*.jsonl")) for line in path.read_text().splitlines()]


def test_two_gateways_and_a_router_share_a_topic(
    kafka: KafkaBroker, topic_factory: Callable[..., str], processes: Callable[..., RouterProcess], tmp_path: Path
) -> None:
    source = tmp_path / "catalog.json"
    source.write_text(json.dumps(CATALOG))
    common = {
        "catalog": {"source": str(source)},
        "inbox": {"kafka": {"bootstrap_servers": kafka.bootstrap, "topic": topic_factory("inbox", 2)}},
        "sinks": {"out": {"type": "jsonl", "path": str(tmp_path / "out")}},
        "routes": [{"to": ["out"]}],
        "dead_letters": {"sinks": ["out"]},
    }
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
    wait_until(lambda: len(lines_of(tmp_path / "out")) >= 41, SECONDS, lambda: f"41 lines\n{router.log[-3000:]}")
    found = lines_of(tmp_path / "out")
    routed = [line for line in found if "cloudevent" in line]
    assert sorted(line["cloudevent"]["subject"] for line in routed) == sorted(f"{n}/{n}" for n in range(40))
    assert {base64.b64decode(line["cloudevent"]["data_base64"]) for line in routed} == {b"\xff\x00"}
    assert len({line["cloudevent"]["id"] for line in routed}) == 40
    (letter,) = (line for line in found if "cloudevent" not in line)
    assert letter["reason"] == "no-match" and base64.b64decode(letter["body"]) == b"\xff"
    for process in (router, *gateways):
        assert process.total("xrouter_catalog_definitions") == process.total("xrouter_catalog_info") == 1
    assert router.stop() == 0
    assert [process.stop() for process in gateways] == [0, 0]


def test_without_a_topic_there_is_no_gateway_of_its_own(
    processes: Callable[..., RouterProcess], tmp_path: Path
) -> None:
    source = tmp_path / "catalog.json"
    source.write_text(json.dumps(CATALOG))
    sinks = {"sinks": {"out": {"type": "jsonl"}}, "routes": [{"to": ["out"]}], "dead_letters": {"sinks": ["out"]}}
    process = processes("gateway", {"catalog": {"source": str(source)}, **sinks}, "gateway")
    process.launch()
    assert process.wait() == 3
    assert "inbox.kafka" in process.log and "xrouter run" in process.log
