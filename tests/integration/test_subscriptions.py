"""A router that subscribes: what its manager delivers is routed, under one subscription, through a kill."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support import plain
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
        endpoint = plain.endpoint("HTTP", {}, "g", uri=f"{server.url}{PATH}", usage="subscriber")
        source = plain.write(router.folder, plain.catalog({"news": endpoint}, g={"m": plain.event("told")}))
        subscription = {"sink": f"http://127.0.0.1:{port}/news", "types": ["told"]}
        sources = [{"endpoint": "/endpoints/news", "subscription": subscription}]
        sinks = plain.lines(router.folder, "out", "dead")
        router.configure(plain.routed(source, sinks, sources=sources, http={"port": port}))
        router.start()
        wait_until(lambda: manager.held, LIMIT, lambda: router.log[-3000:])
        wait_until(lambda: router.readiness().get("ready"), LIMIT, lambda: router.log[-3000:])
        assert manager.deliver("told", "1") == [202]
        if killed:
            router.kill()
            router.start()
        wait_until(lambda: router.total("xrouter_subscription_up") == 1, LIMIT, lambda: router.log[-3000:])
        assert (list(manager.held), manager.deliver("told", "2")) == (["s1"], [202])
        wait_until(lambda: len(plain.lines_of(router.folder / "out")) == 2, LIMIT, lambda: router.log[-3000:])
        assert {line["cloudevent"]["id"] for line in plain.lines_of(router.folder / "out")} == {"1", "2"}
        assert router.stop() == 0, router.log[-3000:]
        assert manager.held == {}
