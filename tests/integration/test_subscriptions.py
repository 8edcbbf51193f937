"""A router that subscribes: what its manager delivers is routed, under one subscription, through a kill."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.ports import free_ports
from tests.support.router import RouterProcess
from tests.support.subscriptions import PATH, Manager, managing
from tests.support.waiting import wait_until

LIMIT = 300.0


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.full)], ids=["once", "killed"])
def test_one_subscription_from_start_to_stop(router: RouterProcess, killed: bool) -> None:
    (port,) = free_ports(1)
    manager = Manager(lasts=timedelta(seconds=20), asks_sinks=True)
    with managing(manager) as server:
        endpoint = {
            "usage": ["subscriber"],
            "protocol": "HTTP",
            "protocoloptions": {"endpoints": [{"uri": f"{server.url}{PATH}"}]},
            "messages": {"m": {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": "told"}}}},
        }
        (router.folder / "catalog.json").write_text(json.dumps({"endpoints": {"news": endpoint}}))
        lines = {name: {"type": "jsonl", "path": str(router.folder / name)} for name in ("out", "dead")}
        subscription = {"sink": f"http://127.0.0.1:{port}/news", "types": ["told"]}
        router.configure(
            {
                "catalog": {"source": str(router.folder / "catalog.json")},
                "sources": [{"endpoint": "/endpoints/news", "subscription": subscription}],
                "sinks": lines,
                "routes": [{"to": ["out"]}],
                "dead_letters": {"sinks": ["dead"]},
                "http": {"port": port},
            }
        )
        router.start()
        wait_until(lambda: manager.held, LIMIT, lambda: router.log[-3000:])
        wait_until(lambda: router.readiness().get("ready"), LIMIT, lambda: router.log[-3000:])
        assert manager.deliver("told", "1") == [202]
        if killed:
            router.kill()
            router.start()
        wait_until(lambda: router.total("xrouter_subscription_up") == 1, LIMIT, lambda: router.log[-3000:])
        assert (list(manager.held), manager.deliver("told", "2")) == (["s1"], [202])
        wait_until(lambda: ids_in(router.folder / "out") == {"1", "2"}, LIMIT, lambda: router.log[-3000:])
        assert router.stop() == 0, router.log[-3000:]
        assert manager.held == {}


def ids_in(folder: Path) -> set[str]:
    lines = (line for file in folder.rglob("*.jsonl") for line in file.read_text().splitlines())
    return {json.loads(line)["cloudevent"]["id"] for line in lines}
