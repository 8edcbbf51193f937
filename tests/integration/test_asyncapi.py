"""A document of AsyncAPI drives a running router, as a catalog of xRegistry does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support.ports import LOOPBACK, free_ports
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

DOCUMENT: Final = """
asyncapi: 3.0.0
info: {title: Toll, version: "1"}
servers: {api: {host: api.example.com, pathname: /v1, protocol: https}}
channels:
  passes:
    address: /gates/{gate}/passes
    messages: {Pass: {contentType: application/json, payload: {type: object, required: [plate]}}}
operations:
  take: {action: receive, channel: {$ref: "#/channels/passes"}, bindings: {http: {method: POST}}}
"""
KIND: Final = {"content-type": "application/json"}


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in folder.rglob("*.jsonl") for line in path.read_text("utf-8").splitlines()]


def test_records_of_a_channel_become_events_and_others_dead_letters(tmp_path: Path) -> None:
    (tmp_path / "toll.yaml").write_text(DOCUMENT)
    [port] = free_ports(1)
    out, dead = tmp_path / "out", tmp_path / "dead"
    router = RouterProcess(
        tmp_path,
        {
            "catalog": {"source": "toll.yaml"},
            "sources": [{"endpoint": "/endpoints/Toll.passes"}],
            "http": {"port": port},
            "match": {"validate": "always"},
            "sinks": {"out": {"type": "jsonl", "path": str(out)}, "dead": {"type": "jsonl", "path": str(dead)}},
            "routes": [{"to": ["out"]}],
            "dead_letters": {"sinks": ["dead"]},
        },
    )
    try:
        router.start()
        with httpx.Client(base_url=f"http://{LOOPBACK}:{port}/v1/gates", headers=KIND) as sender:
            assert sender.post("/7/passes", content=b'{"plate": "B 1"}').status_code == 202
            assert sender.post("/8/passes", content=b"{}").status_code == 202
        wait_until(lambda: len(lines_of(out)) == len(lines_of(dead)) == 1, 60, lambda: router.log[-2000:])
        [event], [letter] = lines_of(out), lines_of(dead)
        assert event["message"] == "/messagegroups/Toll.passes/messages/Pass"
        assert (event["context"], event["cloudevent"]["data"]) == ({"gate": "7"}, {"plate": "B 1"})
        assert letter["reason"] == "schema-violation" and "plate" in letter["detail"], letter
    finally:
        router.stop()
