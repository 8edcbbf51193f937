"""A day on call: the catalog file is replaced by one with a slip, and everything that tells of a router says so."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
from playwright.sync_api import Page

from tests.support import shop
from tests.support.ports import free_ports
from tests.support.prometheus import Prometheus
from tests.support.router import RouterProcess
from tests.support.status_page import browser_page
from tests.support.waiting import wait_until
from tests.support.watched import alert_that_clears, quiet

LIMIT = 240.0
SLIP = "/messagegroups/Gg"
ALERT = "XrouterReloadRefused"


def replace_catalog(router: RouterProcess, group: str) -> None:
    """Let the shop expect that group, as an editor writes it: at once."""
    document = shop.catalog(mended=True)
    document["endpoints"]["shop"]["messagegroups"] = [group]
    fresh = router.folder / ".catalog.json"
    fresh.write_text(json.dumps(document))
    fresh.replace(router.folder / "catalog.json")


def send(port: int, number: int) -> None:
    headers = {"ce-specversion": "1.0", "ce-id": f"id-{number}", "ce-source": "/s", "ce-type": "good"}
    answer = httpx.post(f"http://127.0.0.1:{port}/shop", json={"n": number, "price": 1}, headers=headers, timeout=LIMIT)
    assert answer.status_code == 202


def routed(router: RouterProcess) -> float:
    return router.total("xrouter_records_total", endpoint=shop.SHOP, outcome="routed")


def catalog_of(router: RouterProcess) -> dict[str, Any]:
    told: dict[str, Any] = router.readiness().get("catalog", {})
    return told


def flows(router: RouterProcess, port: int, number: int) -> None:
    """Send a record, and wait until it is routed and none is a dead letter."""
    send(port, number)
    wait_until(lambda: routed(router) == number, LIMIT, lambda: f"record {number}; log:\n{router.log[-2000:]}")
    assert router.total("xrouter_records_total", outcome="dead-letter") == 0


def green(page: Page) -> None:
    page.reload()
    page.wait_for_selector("#queries .bar span", state="attached")
    page.wait_for_function("!document.body.innerText.includes('the newest catalog was rejected')")


def test_a_group_reference_with_a_slip_is_told_everywhere_until_it_is_put_right(router: RouterProcess) -> None:
    (port,) = free_ports(1)
    replace_catalog(router, "/messagegroups/G")
    router.configure(shop.settings(router.folder, "http://127.0.0.1:9/", http={"port": port}))
    router.start()
    flows(router, port, 1)
    before = catalog_of(router)
    assert before["refused"] == []
    targets = {"xrouter": [f"127.0.0.1:{router.port}"]}
    with Prometheus(router.folder / "prometheus", targets, faster=15) as prometheus, browser_page() as (page, _):
        page.goto(f"http://127.0.0.1:{router.port}/")
        green(page)
        quiet(prometheus)
        with alert_that_clears(prometheus, ALERT, limit=LIMIT) as fires:
            replace_catalog(router, SLIP)
            wait_until(lambda: catalog_of(router).get("refused"), LIMIT, "the refusal")
            # /readyz: what is lost, what is missing, the near name, the remedy. The last good catalog is at work.
            told = catalog_of(router)
            (finding,) = told["refused"]
            assert finding["rule"] == "incompatible-change"
            assert f"the source {shop.SHOP} would have no candidates left; it had 6" in finding["message"]
            assert f"the message group {SLIP} was not found" in finding["message"]
            assert finding["hint"].startswith("did you mean /messagegroups/G?")
            assert "catalog.on_incompatible" in finding["hint"]
            assert finding["file"].endswith("catalog.json") and finding["pointer"] == "/endpoints/shop/messagegroups/0"
            assert told["epoch"] == before["epoch"] and router.readiness()["ready"]
            # Metrics.
            assert router.total("xrouter_catalog_refused") == 1
            assert router.total("xrouter_catalog_reloads_total", result="refused") == 1
            assert router.total("xrouter_catalog_changes_total", compatible="false") == 0
            # The log: one error, which names the same.
            (line,) = [each for each in router.log.split("\n") if "catalog rejected" in each]
            assert "error" in line and SLIP in line and "did you mean /messagegroups/G?" in line
            # The page.
            page.get_by_text(re.compile("the newest catalog was rejected: 1 finding")).first.wait_for()
            page.locator("#epochs > li", has_text="refused").first.wait_for()
            # Records go on as before.
            flows(router, port, 2)
            fires(instance=targets["xrouter"][0])
            replace_catalog(router, "/messagegroups/G")
            wait_until(lambda: not catalog_of(router)["refused"], LIMIT, "the end of the refusal")
        assert catalog_of(router)["epoch"] == before["epoch"]
        assert router.total("xrouter_catalog_refused") == 0
        assert "catalog is valid again" in router.log
        green(page)
        quiet(prometheus)
        flows(router, port, 3)
    assert router.stop() == 0, router.log[-2000:]
