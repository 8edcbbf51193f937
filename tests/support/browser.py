"""A real browser, Debian's Chromium without a window, and what it finds hard to use on a page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, Final

from playwright.sync_api import Page, sync_playwright

SECONDS: Final = 120.0
SERIOUS: Final = ("serious", "critical")
PHONE: Final = (390, 844)
DESK: Final = (1200, 900)


@contextmanager
def browser_page(size: tuple[int, int] = DESK, *, dark: bool = False) -> Iterator[tuple[Page, list[str]]]:
    """Open an empty page; the list has all that its console says, and errors of its script."""
    chromium = shutil.which("chromium")
    assert chromium is not None, "Chromium is missing: apt-get install chromium"
    said: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        try:
            page = browser.new_page(
                viewport={"width": size[0], "height": size[1]},
                color_scheme="dark" if dark else "light",
                reduced_motion="reduce",
            )
            page.set_default_timeout(SECONDS * 1000)
            page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
            page.on("pageerror", lambda error: said.append(f"error: {error}"))
            yield page, said
        finally:
            browser.close()


def hard_to_use(page: Page) -> list[str]:
    """Return what axe-core finds on a page as it is that keeps people from using it."""
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8") + "\n;0")
    found: list[dict[str, Any]] = page.evaluate("async () => (await axe.run()).violations")
    return [
        f"{each['id']} ({each['impact']}): {[node['html'] for node in each['nodes']]}"
        for each in found
        if each["impact"] in SERIOUS
    ]
