"""The status page in a real browser, without Spark: readable by everybody, and unmoved by what names hold."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from router.watching.shadow import EpochPair
from tests.support.letters import letter_id, row, write_letters
from tests.support.plain import event
from tests.support.status_page import (
    HOSTILE,
    PHONE,
    SALE,
    TILL,
    TOKEN,
    Served,
    browser_page,
    changed,
    hard_to_use,
    record,
    tally,
)

pytestmark = pytest.mark.slow


def test_a_letter_is_opened_by_the_keyboard_and_a_record_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGE_TOKEN", TOKEN)
    with Served(tmp_path, token="${PAGE_TOKEN}") as served, browser_page() as (page, said):
        served.activate()
        write_letters(served.settings, [row(1), row(2, endpoint=HOSTILE, detail=HOSTILE)])
        (tmp_path / "catalog.json").write_text(
            json.dumps(changed(Refund=event("refund"), **{HOSTILE[:20]: event("x")}))
        )
        served.activate()
        served.metrics.count_written_batch("inbox", tally(7, 2), 0.1, 0)
        page.goto(served.server.base_url)
        page.locator("#letters-note", has_text="with the token").wait_for()
        assert not page.locator("#letters tr").count()
        page.fill("#token", TOKEN)
        page.press("#token", "Enter")
        page.locator("#letters tr", has_text=TILL).locator("button").focus()
        page.keyboard.press("Enter")
        page.locator("#letter-body", has_text="envelopemetadata.type: expected").wait_for()
        assert page.locator("#letter-body pre").inner_text() == '{"amount": 1.50}'
        assert not hard_to_use(page)
        page.keyboard.press("Escape")
        page.locator("#letter").wait_for(state="hidden")
        added = "definition-added /messagegroups/G/messages/Refund"
        page.locator("#epochs > li", has_text=added).locator("summary").click()
        page.locator("#epochs li li", has_text=added).wait_for()
        page.fill("#record", record("sale").decode())
        page.click("#try button")
        page.locator("#verdict", has_text=re.compile("Routed to .*/Sale, written to events")).wait_for()
        assert page.locator("#letters tr", has_text="<img").count() == 1
        assert not page.locator('img:not([src^="/history/"])').count()
        assert not hard_to_use(page)
        assert said == []


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_in_the_light_and_in_the_dark(tmp_path: Path, dark: bool) -> None:
    with Served(tmp_path) as served, browser_page(PHONE, dark=dark) as (page, said):
        many = {f"A.Definition.With.Quite.A.Long.Name.{number}": event(f"m{number}") for number in range(60)}
        (tmp_path / "catalog.json").write_text(json.dumps(changed(**many)))
        served.activate()
        write_letters(served.settings, [row(1, detail="x" * 3000)])
        served.status.query("inbox", "held", batch=4, reason="sink events: " + "y" * 300)
        served.metrics.shadow.init_series(["next.json"], [TILL])
        served.metrics.shadow.judging(EpochPair("a" * 64, "b" * 64), 3, [HOSTILE])
        counts = tally(7, 2)
        counts.shadow["a" * 64, "b" * 64, TILL, "changed", "", ""] = 4
        counts.shadow["a" * 64, "b" * 64, TILL, "dead-letter", SALE, "no-match"] = 4
        served.metrics.count_written_batch("inbox", counts, 0.1, 0)
        page.goto(served.server.base_url)
        page.locator("#reasons", has_text="is held").wait_for()
        page.locator("#shadow-note", has_text="4 records compared, 0 unchanged, 5 not compared").wait_for()
        assert page.locator("#shadow-groups").inner_text() == f"4 newly dead-lettered: {SALE} → no-match"
        page.locator("#letters tr").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.locator("#letters button").click()
        page.locator("#letter-body", has_text="With the current catalog").wait_for()
        assert letter_id(1)[:12] in page.locator("#letter-title").inner_text()
        assert not hard_to_use(page)
        assert said == []
