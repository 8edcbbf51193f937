"""The documentation's site: built without a warning, whole, true of the code, and of nothing but its own files."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
import typer

from catalog.linting.attributes import rules
from router.cli import COMMANDS, app
from router.errors import EXIT_CODES
from router.settings import settings_reference
from router.settings.names import REASONS
from tests.support.metric_families import RULES, families

pytestmark = pytest.mark.slow

ROOT: Final = Path(__file__).resolve().parents[2]
LOADED: Final = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}
"""What a browser fetches by itself, by its element."""
NOT_LOADED: Final = {"canonical", "index", "search", "next", "prev", "author"}


class Page(HTMLParser):
    """What a page has: ids, links, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in LOADED and LOADED[tag] in given and given.get("rel") not in NOT_LOADED:
            self.loads.append(given[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    options = ("--quiet", "--fail-on-warning", "--keep-going", "--conf-dir", "deploy/docs", "--builder", "html")
    doctrees = ("--doctree-dir", str(tmp_path_factory.mktemp("doctrees")))
    command = [sys.executable, "-m", "sphinx", *options, *doctrees, ".", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def text_of(site: Path, name: str) -> str:
    """Return a page as its readers see it."""
    found = (site / f"{name}.html").read_text(encoding="utf-8")
    return unescape(re.sub(r"<[^>]+>", "", found))


def local_links(page: Page) -> Iterator[tuple[str, Path, str]]:
    """Yield each link to this site: as written, the file, and the anchor."""
    for link in page.links:
        if not urlsplit(link).scheme and link != "#":
            path, anchor = urldefrag(link)
            yield link, (page.path.parent / unquote(path)).resolve() if path else page.path, unquote(anchor)


def test_every_link_leads_somewhere(pages: dict[Path, Page]) -> None:
    assert len(pages) > 25
    for page in pages.values():
        for link, target, anchor in local_links(page):
            assert target.is_file(), f"{page.path.name}: {link} leads nowhere"
            if anchor and target in pages:
                assert anchor in pages[target].ids, f"{page.path.name}: {link} names no place of that page"


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    for page in pages.values():
        for each in page.loads:
            assert not urlsplit(each).netloc, f"{page.path.name} loads {each}"
            if not each.startswith("data:"):
                assert (page.path.parent / unquote(urlsplit(each).path)).is_file(), f"{page.path.name}: no {each}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_the_top_leads_to_where_to_begin(site: Path) -> None:
    where = re.search(r'url=([^"]+)"', (site / "index.html").read_text())
    assert where and "The tutorial" in (site / where[1]).read_text()


def test_the_reference_has_all_that_the_code_has(site: Path) -> None:
    told = text_of(site, "deploy/docs/reference/commands")
    assert all(f"xrouter {name}" in told for name in COMMANDS)
    assert all(re.search(rf"^{code}$", told, re.MULTILINE) for code in EXIT_CODES.values())
    told = text_of(site, "deploy/docs/reference/metrics")
    assert all(family.name in told and family.documentation[:40] in told for family in families())
    told = text_of(site, "deploy/docs/reference/alerts")
    alerts = re.findall(r"^ *- alert: (\w+)", RULES.read_text(), re.MULTILINE)
    assert alerts and all(name in told for name in alerts)
    told = text_of(site, "deploy/docs/reference/reasons")
    assert all(reason in told for reason in REASONS) and told.count("Remedy") == len(REASONS)
    told = text_of(site, "deploy/docs/reference/api")
    assert "/messagegroups/{messagegroupid}/messages/{messageid}" in told and "/subscriptions" in told
    assert "GET PUT PATCH POST" in told and "inline" in told
    told = text_of(site, "deploy/SETTINGS")
    assert all(key in told for key, *_ in settings_reference())
    told = text_of(site, "catalog/RULES")
    assert all(rule in told for rule in rules())


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Yield each call of the router in the pages that are of the site alone, with the page's name."""
    for path in (*(ROOT / "deploy" / "docs").rglob("*.md"), ROOT / "deploy" / "examples" / "README.md"):
        for block in re.findall(r"^```console\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            for line in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
                for call in re.split(r" && | \| ", line):
                    words = shlex.split(call.removesuffix(" &"), comments=True)
                    if words[0] == "xrouter":
                        yield path.name, words[1:]


def test_commands_of_the_pages_exist() -> None:
    calls = list(command_lines())
    assert len(calls) > 5
    for page, words in calls:
        command: Any = typer.main.get_command(app)
        rest = list(words)
        while rest and hasattr(command, "get_command") and not rest[0].startswith("-"):
            command = command.get_command(typer.Context(command), rest.pop(0))
            assert command is not None, f"{page}: no command xrouter {' '.join(words)}"
        options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        for word in rest:
            name = word.partition("=")[0]
            assert not name.startswith("-") or name in options | {"-"}, f"{page}: {' '.join(words)} has no {name}"


def test_there_is_a_how_to_for_each_protocol(site: Path) -> None:
    for name in ("kafka", "mqtt", "amqp", "nats", "http"):
        told = text_of(site, f"deploy/docs/howto/{name}")
        assert f"xrouter init --{name}" in told and '"messagegroups"' in told
