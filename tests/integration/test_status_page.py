"""The status page in a real browser, on a real router under traffic: what flows, what went wrong, and mending it."""

from __future__ import annotations

import json
import os
import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import httpx
import pytest
from playwright.sync_api import Page

from tests.support import plain, shop
from tests.support.ports import free_ports
from tests.support.router import RouterProcess
from tests.support.status_page import PHONE, browser_page, hard_to_use
from tests.support.waiting import repeating, wait_until

TOKEN: Final = "only those who know it replay"
LIMIT: Final = 240.0
SCREENSHOT: Final = "STATUS_SCREENSHOT"
"""Where a picture of the page is written, if it is set; `make screenshot` sets it."""


def traffic(port: int) -> AbstractContextManager[None]:
    """Send events while the block runs, twenty a second; one of them is what no definition takes."""

    def send(number: int) -> None:
        kind = "late" if number == 3 else ("good", "good", "checked")[number % 3]
        headers = plain.http_headers(kind, f"id-{number}")
        body = json.dumps({"n": number, "price": 1}).encode()
        httpx.post(f"http://127.0.0.1:{port}/shop", content=body, headers=headers, timeout=LIMIT)

    return repeating(send, 0.05)


def text(page: Page, selector: str) -> str:
    return page.locator(selector).inner_text()


def test_what_flows_is_shown_a_letter_is_explained_and_replayed_and_a_reload_told(router: RouterProcess) -> None:
    (port,) = free_ports(1)
    shop.write_catalog(router.folder, fixed=False)
    settings = shop.settings(router.folder, "http://127.0.0.1:9/", http={"port": port})
    router.configure({**settings, "metrics": {"port": router.port, "token": "${STATUS_TOKEN}"}})
    router.start(environ={"STATUS_TOKEN": TOKEN})
    with traffic(port), browser_page() as (page, said):
        page.goto(f"http://127.0.0.1:{router.port}/")
        # Record flow: a rate at the endpoint, in the picture and in the tables.
        page.locator("#flow-text", has_text=re.compile("Busiest: .*/s")).wait_for()
        page.wait_for_selector("#flow path.moving", state="attached")
        page.locator("#unseen-title", has_text="4 of 6 expected definitions never seen").wait_for()
        page.click("#unseen-title")
        assert "/messagegroups/G/messages/picky at /endpoints/shop, expected since" in text(page, "#unseen")
        page.wait_for_selector("#flow rect.dead", state="attached")
        assert "/endpoints/shop (HTTP)" in text(page, "#sources")
        page.wait_for_selector("#queries .bar span", state="attached")
        assert "read and match" in text(page, "#queries") and "running" in text(page, "#queries")
        # What arrives and is finished, and the hour so far, as pictures that the router draws.
        source = page.locator("#sources tr", has_text="/endpoints/shop (HTTP)").locator("td")
        assert all(float(figure.replace(",", "")) > 0 for figure in source.all_inner_texts()[:2])
        page.locator("#latency", has_text="95 % within").wait_for()
        page.locator("#flow-text", has_text="Dead letters: 1 open of 1.").wait_for()
        page.locator("td.hour img").first.scroll_into_view_if_needed()
        page.wait_for_function("[...document.images].every((image) => image.complete && image.naturalWidth)")

        # Records are for those with the token; then the letter is there, and says why it is one.
        assert "with the token" in text(page, "#letters-note") and not page.locator("#letters tr").count()
        page.fill("#token", TOKEN)
        page.press("#token", "Enter")
        page.wait_for_selector("#letters tr")
        row = page.locator("#letters tr", has_text="no-match")
        assert "found late" in row.inner_text()
        assert not hard_to_use(page)
        row.locator("button").focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("#letter-body .candidate")
        assert "Dead letter, no-match" in text(page, "#letter-body")
        assert "✗ envelopemetadata.type: expected" in text(page, "#letter-body")
        assert '"n": 3' in text(page, "#letter-body pre")
        assert not hard_to_use(page)
        picture(page)
        page.keyboard.press("Escape")
        page.wait_for_selector("#letter", state="hidden")

        # The catalog is fixed: the reload is told with what it changed, and the letter would be an event now.
        shop.write_catalog(router.folder, fixed=True)
        added = "definition-added /messagegroups/G/messages/late"
        change = page.locator("#epochs li li", has_text=added)
        change.wait_for(state="attached")
        page.locator("#epochs > li", has_text=added).locator("summary").click()
        assert change.is_visible()
        row.locator("button").click()
        page.wait_for_selector("#replay")
        assert "Routed to /messagegroups/G/messages/late, written to lake" in text(page, "#letter-body")
        page.click("#replay")
        page.locator("#replay-note", has_text="Replayed: routed to /messagegroups/G/messages/late").wait_for()
        page.click("#letter-close")
        page.locator("#letters tr", has_text="replayed").wait_for()
        page.locator("#flow-text", has_text="Dead letters: 0 open of 1.").wait_for()
        assert [each["id"] for each in shop.rows_of(router.folder / "lake") if each["type"] == "late"] == ["id-3"]

        # A record is pasted.
        sent = [{"name": name, "value": value} for name, value in plain.http_headers("twin", "id-0").items()]
        native = {"method": "POST", "path": "/shop", "headers": sent}
        page.fill("#record", json.dumps({"endpoint": shop.SHOP, "protocol": "HTTP", "native": native}))
        page.click("#try button")
        page.locator("#verdict", has_text="Routed to /messagegroups/G/messages/twin, written to lake").wait_for()
        assert not hard_to_use(page)
        assert said == []
    on_a_phone(router)
    before = router.total("xrouter_records_total", outcome="routed")
    assert router.stop() == 0 and before > 0


def on_a_phone(router: RouterProcess) -> None:
    """In the dark, and without more width than there is."""
    with browser_page(PHONE, dark=True) as (page, said):
        page.goto(f"http://127.0.0.1:{router.port}/")
        page.wait_for_selector("#flow rect", state="attached")
        page.wait_for_selector("#sources tr")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert not hard_to_use(page)
        assert said == []


def picture(page: Page) -> None:
    """Write a picture of the page behind the letter that is open, where somebody wants one."""
    wanted = os.environ.get(SCREENSHOT)
    if wanted is not None:
        page.evaluate("document.getElementById('letter').close()")
        page.locator("h1").scroll_into_view_if_needed()
        page.screenshot(path=Path(wanted))


@pytest.mark.full
def test_a_sink_that_is_away_leaves_the_replay_to_the_next_one(router: RouterProcess) -> None:
    (port, hook) = free_ports(2)
    shop.write_catalog(router.folder, fixed=False)
    settings = shop.settings(router.folder, f"http://127.0.0.1:{hook}/", http={"port": port})
    settings["routes"] = [{"when": {"message": "*/late"}, "to": ["hook"]}, {"to": ["lake"]}]
    router.configure({**settings, "metrics": {"port": router.port, "token": "${STATUS_TOKEN}"}})
    router.start(environ={"STATUS_TOKEN": TOKEN})
    with httpx.Client(base_url=f"http://127.0.0.1:{router.port}", timeout=LIMIT) as client:
        client.headers = httpx.Headers({"authorization": f"Bearer {TOKEN}", "content-type": "application/json"})
        plain.post(port, "/shop", b"{}", **plain.http_headers("late", "id-1"))
        (letter,) = wait_until(lambda: client.get("/letters.json").json().get("letters"), LIMIT, "the letter")
        shop.write_catalog(router.folder, fixed=True)
        path = f"/letters/{letter['letter']}"
        wait_until(lambda: would_be(client, path) == "routed", LIMIT, "the fixed catalog")
        assert client.post(f"{path}/replay", content=b"{}").json()["state"] == "running"
        (told,) = wait_until(lambda: settled(client), LIMIT, "the replay to give up")
        assert told["state"] == "held" and "sink hook" in told["detail"]
        assert router.readiness()["ready"]
    assert router.stop() == 0


def would_be(client: httpx.Client, path: str) -> str:
    found: str = client.get(f"{path}.json").json()["now"]["verdict"]["outcome"]
    return found


def settled(client: httpx.Client) -> list[dict[str, str]] | None:
    replays: list[dict[str, str]] = client.get("/status.json").json()["replays"]
    return None if any(each["state"] == "running" for each in replays) else replays
