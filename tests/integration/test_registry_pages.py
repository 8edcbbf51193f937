"""The pages of a registry in a real browser: found by keyboard, followed by links, read in the dark and on a phone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest
from playwright.sync_api import Page

from tests.support.registry import PLACED, SCHEMA, fill, served
from tests.support.status_page import DESK, PHONE, browser_page, hard_to_use

PAGES: Final = (
    *("/", "/messagegroups/shop", PLACED, SCHEMA, f"{SCHEMA}?view=diff", "/?view=history", "/?view=findings"),
    *("/?q=order", "/robots/r2/programs/wash", "/messagegroups/away", "/endpoints/web"),
)
PICTURES: Final = "REGISTRY_PICTURES"
"""A folder that pictures of the pages are written to, if it is set."""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with served(tmp_path_factory.mktemp("shop")) as client:
        fill(client)
        yield client


@pytest.mark.parametrize(("size", "dark"), [(DESK, False), (PHONE, True)])
def test_every_page_is_easy_to_use(shop: httpx.Client, size: tuple[int, int], dark: bool) -> None:
    with browser_page(size, dark=dark) as (page, said):
        for path in PAGES:
            page.goto(f"{shop.base_url}".rstrip("/") + path)
            assert not hard_to_use(page), path
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
            background = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
            assert (background == "rgb(20, 24, 28)") == dark  # so the policy lets the style in
            picture(page, path, f"{size[0]}-{'dark' if dark else 'light'}")
        assert [each for each in said if "404" not in each] == []


def test_a_definition_is_found_and_read_by_keyboard_alone(shop: httpx.Client) -> None:
    with browser_page() as (page, said):
        page.goto(str(shop.base_url))
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        while page.evaluate("document.activeElement.id") != "q":
            page.keyboard.press("Tab")
        page.keyboard.type("ORDER.PLACED")
        page.keyboard.press("Enter")
        page.wait_for_url("**/?q=ORDER.PLACED")
        page.get_by_role("link", name=PLACED, exact=True).press("Enter")
        page.wait_for_url(f"**{PLACED}")
        row = page.get_by_role("row", name="envelopemetadata.source")
        assert "/shops/{shop}" in row.inner_text()
        row.get_by_role("link").first.press("Enter")
        page.wait_for_url("**/messages/order")
        page.goto(f"{shop.base_url}".rstrip("/") + SCHEMA)
        page.get_by_role("link", name="Differences", exact=True).press("Enter")
        page.get_by_label("From").fill("2")
        page.get_by_label("to", exact=True).fill("1")
        page.get_by_role("button", name="Compare").press("Enter")
        page.wait_for_url("**view=diff&from=2&to=1")
        assert page.locator("code.del", has_text="currency").count() == 1
        page.get_by_role("link", name="History").press("Enter")
        page.locator("summary").first.press("Enter")
        assert page.locator("details[open] li").first.is_visible()
        assert said == []


def picture(page: Page, path: str, kind: str) -> None:
    """Write a picture of a page, where somebody wants one."""
    folder = os.environ.get(PICTURES)
    if folder is not None:
        name = "".join(each if each.isalnum() else "-" for each in path).strip("-") or "root"
        page.screenshot(path=Path(folder) / f"{name}-{kind}.png", full_page=True)
