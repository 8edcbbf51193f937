"""A whole router sends its batches as spans, and its metrics, to a real collector of OpenTelemetry."""

from __future__ import annotations

import os
from typing import Any, Final

import pytest

from tests.support import plain, shop
from tests.support.ports import free_ports
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until
from tests.support.web import Webhook

if "CI" not in os.environ:
    pytest.importorskip("opentelemetry.sdk", reason="the extra `telemetry` is not installed")

from tests.support import watched as collector

LIMIT: Final = 240.0
TOKEN: Final = "Bearer of-the-collector"
RECORDS: Final = "xrouter_records"


def exported(server: Webhook, name: str) -> list[tuple[dict[str, Any], Any]]:
    """Return the points of a metric as they were sent last."""
    return next((each["points"] for each in collector.metrics(server) if each["name"] == name), [])


def test_a_batch_and_the_counters_reach_a_collector(router: RouterProcess) -> None:
    (port,) = free_ports(1)
    shop.write_catalog(router.folder, fixed=False)
    with Webhook(collector.answer) as server:
        otlp: dict[str, object] = {"endpoint": server.url, "interval": "200ms", "allow_plaintext_password": True}
        otlp["headers"] = {"authorization": "${COLLECTOR}"}
        settings = shop.settings(router.folder, "http://127.0.0.1:9/", http={"port": port})
        router.configure({**settings, "telemetry": {"otlp": otlp}})
        router.start(environ={"COLLECTOR": TOKEN})
        plain.post(port, "/shop", {"n": 0}, **plain.http_headers("good", "id-0"))
        wait_until(lambda: any(value == 1 for _, value in exported(server, RECORDS)), LIMIT, "the counter")
        assert router.stop() == 0
        spans = collector.spans(server)
        assert {request.header("authorization") for request in server.seen} == {TOKEN}
    (batch,) = [span for span in spans if span["name"] == "batch" and span["attributes"].get("xrouter.records") == 1]
    steps = [span for span in spans if span["parent"] == batch["id"]]
    assert batch["service"] == "xrouter" and any(span["name"] == "sink lake" for span in steps)
    assert TOKEN not in router.log
