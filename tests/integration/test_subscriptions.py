"""A router that subscribes: what its manager delivers is routed, under one subscription, through a kill.

Its batches go as spans, and its metrics, to a real collector of OpenTelemetry.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Final

import pytest

from tests.support import plain
from tests.support.ports import free_ports
from tests.support.router import RouterProcess
from tests.support.subscriptions import PATH, Manager, managing
from tests.support.waiting import wait_until
from tests.support.web import Webhook

if "CI" not in os.environ:
    pytest.importorskip("opentelemetry.sdk", reason="the extra `telemetry` is not installed")

from tests.support import watched as collector

LIMIT: Final = 300.0
TOKEN: Final = "Bearer of-the-collector"
RECORDS: Final = "xrouter_records"


def exported(server: Webhook, name: str) -> list[tuple[dict[str, Any], Any]]:
    """Return the points of a metric as they were sent last."""
    return next((each["points"] for each in collector.metrics(server) if each["name"] == name), [])


def settings(router: RouterProcess, manager: str, telemetry: str) -> dict[str, Any]:
    (port,) = free_ports(1)
    endpoint = plain.endpoint("HTTP", {}, "g", uri=f"{manager}{PATH}", usage="subscriber")
    source = plain.write(router.folder, plain.catalog({"news": endpoint}, g={"m": plain.event("told")}))
    subscription = {"sink": f"http://127.0.0.1:{port}/news", "types": ["told"]}
    otlp: dict[str, Any] = {"endpoint": telemetry, "interval": "200ms", "allow_plaintext_password": True}
    otlp["headers"] = {"authorization": "${COLLECTOR}"}
    more = {"http": {"port": port}, "telemetry": {"otlp": otlp}}
    sources = [{"endpoint": "/endpoints/news", "subscription": subscription}]
    return plain.routed(source, plain.lines(router.folder, "out", "dead"), sources=sources, **more)


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.full)], ids=["once", "killed"])
def test_one_subscription_from_start_to_stop(router: RouterProcess, killed: bool) -> None:
    manager = Manager(lasts=timedelta(seconds=20), asks_sinks=True)
    environ = {"COLLECTOR": TOKEN}
    with managing(manager) as managed, Webhook(collector.answer) as server:
        router.configure(settings(router, managed.url, server.url))
        router.start(environ=environ)
        wait_until(lambda: manager.held, LIMIT, lambda: router.log[-3000:])
        wait_until(lambda: router.readiness().get("ready"), LIMIT, lambda: router.log[-3000:])
        assert manager.deliver("told", "1") == [202]
        wait_until(lambda: any(value == 1 for _, value in exported(server, RECORDS)), LIMIT, "the counter")
        if killed:
            router.kill()
            router.start(environ=environ)
        wait_until(lambda: router.total("xrouter_subscription_up") == 1, LIMIT, lambda: router.log[-3000:])
        assert (list(manager.held), manager.deliver("told", "2")) == (["s1"], [202])
        wait_until(lambda: len(plain.lines_of(router.folder / "out")) == 2, LIMIT, lambda: router.log[-3000:])
        assert {line["cloudevent"]["id"] for line in plain.lines_of(router.folder / "out")} == {"1", "2"}
        assert router.stop() == 0, router.log[-3000:]
        assert manager.held == {}
        spans = collector.spans(server)
        assert {request.header("authorization") for request in server.seen} == {TOKEN}
    batch, *_ = [each for each in spans if each["name"] == "batch" and each["attributes"].get("xrouter.records") == 1]
    steps = [span for span in spans if span["parent"] == batch["id"]]
    assert batch["service"] == "xrouter" and any(span["name"] == "sink out" for span in steps)
    assert TOKEN not in router.log
