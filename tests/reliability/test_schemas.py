"""Payload schemas in a running router: held for at the first start, waited for at a reload, and told by (section 7)."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from tests.support.ports import free_ports
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until
from tests.support.web import Reply, serving

SECONDS = 60.0
METRES = {"type": "object", "required": ["metres"]}
FEET = {"type": "object", "required": ["feet"]}


def catalog(unit: str, *schemas: str) -> str:
    """Two definitions that only their schemas tell apart, at these URIs."""
    message = {"protocol": "HTTP", "protocoloptions": {"method": {"value": "POST"}}, "dataschemaformat": "JsonSchema"}
    messages = {f"{unit}{number}": {**message, "dataschemauri": uri} for number, uri in enumerate(schemas)}
    endpoint = {
        "usage": ["consumer"],
        "protocol": "HTTP",
        "protocoloptions": {"options": {"path": "/lengths"}},
        "messagegroups": ["/messagegroups/Lengths"],
    }
    return json.dumps({"messagegroups": {"Lengths": {"messages": messages}}, "endpoints": {"in": endpoint}})


def routed(folder: Path) -> list[str]:
    """Short names of the definitions that took records so far."""
    lines = [line for path in sorted(folder.rglob("*.jsonl")) for line in path.read_text().splitlines()]
    return [json.loads(line)["message"].rsplit("/", 1)[-1] for line in lines]


def test_a_router_waits_for_schemas_before_it_starts_and_before_it_changes(
    router: RouterProcess, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    with serving() as web:
        web.routes["/metres"] = Reply("busy", 503)
        web.routes["/feet"] = Reply(FEET)
        source = tmp_path / "catalog.json"
        source.write_text(catalog("First", f"{web.url}/metres", f"{web.url}/feet"))
        router.configure(
            {
                "catalog": {"source": str(source), "poll": "200ms"},
                "http": {"port": port},
                "sinks": {"out": {"type": "jsonl", "path": str(tmp_path / "out")}},
                "routes": [{"to": ["out"]}],
                "dead_letters": {"sinks": ["out"]},
                "trigger": "200ms",
            }
        )
        router.launch()
        wait_until(lambda: "not started yet" in router.log and "/metres" in router.log, SECONDS, "the router to wait")
        assert not router.readiness()
        web.routes["/metres"] = Reply(METRES)
        wait_until(lambda: router.readiness().get("ready"), SECONDS, lambda: f"a start; log:\n{router.log[-2000:]}")
        url = f"http://127.0.0.1:{port}/lengths"
        assert httpx.post(url, json={"metres": 1}).status_code == 202
        wait_until(lambda: routed(tmp_path / "out") == ["First0"], SECONDS, lambda: f"First0; {routed(tmp_path)}")
        web.routes["/later"] = Reply("busy", 503)
        source.write_text(catalog("Second", f"{web.url}/later", f"{web.url}/feet"))
        wait_until(lambda: "catalog waits for" in router.log, SECONDS, "the reload to wait")
        assert httpx.post(url, json={"feet": 1}).status_code == 202
        wait_until(lambda: routed(tmp_path / "out")[1:] == ["First1"], SECONDS, "the old catalog to go on")
        web.routes["/later"] = Reply(METRES)
        wait_until(lambda: "catalog reloaded" in router.log, SECONDS, "the reload")
        assert httpx.post(url, json={"metres": 2}).status_code == 202
        wait_until(lambda: routed(tmp_path / "out")[2:] == ["Second0"], SECONDS, "the new catalog to take over")
    assert router.stop() == 0
