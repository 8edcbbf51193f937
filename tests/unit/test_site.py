"""The documentation's site: it builds without a warning, is complete and true, and loads only its own files."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urldefrag, urlsplit

import pytest
import typer
import yaml

from catalog.linting.attributes import load_rules
from router.cli import COMMANDS, app
from router.errors import EXIT_CODES, ConfigError
from router.settings import load_settings
from router.settings.routes import REASONS
from tests.support.cases import read_cases
from tests.support.settings_pages import make_settings_reference
from tests.support.site import PRODUCTION, anchor_of, example_of
from tests.support.status_page import PHONE, RULES, browser_page, families, hard_to_use

CASES: Final[Mapping[str, Any]] = read_cases(Path(__file__).parents[1] / "cases" / "site.yaml")

pytestmark = pytest.mark.slow

ROOT: Final = Path(__file__).resolve().parents[2]
LOADED: Final = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}
"""What a browser loads without a click, by element."""
NOT_LOADED: Final = {"canonical", "index", "search", "next", "prev", "author"}


SEEN: Final = ("deploy/docs/index", "deploy/docs/sinks/delta")
LONG: Final = (
    *("deploy/SETTINGS", "deploy/COMMANDS", "deploy/docs/runbooks/throughput"),
    *("deploy/docs/reference/errors", "deploy/docs/reference/metrics", "deploy/docs/howto/security"),
)
"""Pages that take the search for what is hard to use many seconds each."""
BASE: Final = """
catalog: {source: ./catalog.xreg.json}
sources: [{endpoint: /endpoints/plant}]
sinks:
  events: {type: jsonl}
  dead: {type: jsonl}
  lake: {type: table, path: ./lake}
  bus: {type: kafka, bootstrap_servers: "kafka:9092", topic: events}
  plant: {type: mqtt, uri: "mqtts://broker", topic: events}
  work: {type: amqp, uri: "amqps://broker", node: events}
  fleet: {type: nats, uri: "tls://nats", subject: events}
  hook: {type: http, url: "https://api.example.com/"}
routes: [{to: [events]}]
dead_letters: {sinks: [dead]}
"""
BESIDE: Final = CASES["beside"]
"""What else must be set for examples of keys that begin so, which they do not show."""
QUOTED: Final = CASES["quoted"]
"""Messages of the log, and of errors, that pages quote."""
SECRET: Final = "a-secret-of-24-characters"


class Page(HTMLParser):
    """A page: its ids, its links, and what it loads."""

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
    start = (site / where[1]).read_text() if where else ""
    assert "Tutorial" in start and 'class="flow"' in start


def test_the_reference_has_all_that_the_code_has(site: Path) -> None:
    told = text_of(site, "deploy/COMMANDS")
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
    told = text_of(site, "catalog/RULES")
    assert all(rule in told for rule in load_rules())


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


def test_each_setting_has_an_anchor_and_an_example(pages: dict[Path, Page], site: Path) -> None:
    page = pages[site / "deploy" / "SETTINGS.html"]
    told = text_of(site, "deploy/SETTINGS")
    for key, *_, doc in make_settings_reference():
        assert anchor_of(key) in page.ids, f"{key} has no anchor"
        assert key in told and re.sub("`", "", doc)[:30] in told
    assert told.count("default") > 100


def merged(base: Any, more: Any) -> Any:
    """Return *base* with *more* laid over it, in maps and in the first item of lists of maps."""
    if isinstance(base, dict) and isinstance(more, dict):
        return base | {key: merged(base.get(key), value) for key, value in more.items()}
    if isinstance(base, list) and isinstance(more, list) and more and isinstance(more[0], dict):
        return [merged(base[0] if base else {}, more[0]), *base[1:], *more[max(len(base), 1) :]]
    return more


def fault_of_example(key: str, folder: Path) -> str:
    """Return why the example of a key, laid over settings that work, does not load; nothing if it does."""
    beside = next((BESIDE[name] for name in BESIDE if key.startswith(name)), "{}")
    base = yaml.safe_load(BASE)
    if key.endswith("].endpoint") and key.startswith("sinks"):  # It stands in place of the addresses of the others.
        base["sinks"] = {name: base["sinks"][name] for name in ("events", "dead")}
    text = yaml.safe_dump(merged(merged(base, yaml.safe_load(beside)), example_of(key)))
    file = folder / "router.yaml"
    file.write_text(text.replace("file:/run/secrets", f"file:{folder}"), encoding="utf-8")
    try:
        load_settings(file, dict.fromkeys(re.findall(r"\$\{(\w+)\}", text), SECRET))
    except ConfigError as error:
        return f"{key}: {error}"
    return ""


def test_examples_of_settings_load(tmp_path: Path) -> None:
    (tmp_path / "meter-key").write_text(SECRET, encoding="utf-8")
    faults = [fault_of_example(key, tmp_path) for key, *_ in make_settings_reference()]
    assert not any(faults), "\n".join(filter(None, faults))


def test_settings_of_the_pages_are_yaml() -> None:
    blocks = [
        block
        for path in (ROOT / "deploy" / "docs").rglob("*.md")
        for block in re.findall(r"^```yaml\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    ]
    assert len(blocks) > 25 and all(isinstance(yaml.safe_load(block), dict) for block in blocks)


@pytest.mark.parametrize("text", QUOTED)
def test_log_messages_that_pages_quote_are_those_of_the_code(text: str) -> None:
    pages = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "deploy" / "docs").rglob("*.md"))
    code = (path for folder in PRODUCTION for path in (ROOT / folder).rglob("*.py"))
    assert text in re.sub(r"\s+", " ", pages), f"no page quotes {text!r}: remove it from QUOTED"
    assert any(text in path.read_text(encoding="utf-8") for path in code), f"nothing logs {text!r}: correct the pages"


def test_errors_are_on_their_page(site: Path) -> None:
    told = text_of(site, "deploy/docs/reference/errors")
    assert all(f"Exit code {code}" in told for code in EXIT_CODES.values())
    assert "records were lost at the broker before they were read: …" in told and "on_data_loss: continue" in told


@pytest.mark.parametrize(
    "error",
    [
        "query kafka-1: records were lost at the broker before they were read: plant 0: 17",
        "sink bus: cannot write /data/4711: x",
    ],
)
def test_a_pasted_error_finds_its_page(site: Path, error: str) -> None:
    with browser_page() as (page, _):
        page.goto(f"{(site / 'search.html').as_uri()}?q={quote(error)}")
        page.wait_for_function("document.querySelector('#search-results')?.innerText.includes('Search finished')")
        found = page.locator("#search-results li a").all_inner_texts()
    assert "Errors and log messages" in found[:5]


@pytest.mark.parametrize("names", [SEEN, pytest.param(LONG, marks=pytest.mark.full)], ids=["short", "long"])
@pytest.mark.parametrize("size", [(1280, 900), PHONE], ids=["1280", "phone"])
def test_pages_fit_the_screen_and_are_usable_by_all(site: Path, size: tuple[int, int], names: tuple[str, ...]) -> None:
    with browser_page(size) as (page, _):
        for name in names:
            page.goto((site / f"{name}.html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is too wide"
            assert not hard_to_use(page), name


def test_code_can_be_copied_without_prompts(site: Path) -> None:
    with browser_page() as (page, _):
        page.goto((site / "deploy" / "docs" / "tutorial.html").as_uri())
        blocks = page.locator("div.highlight")
        assert blocks.count() == page.locator("div.highlight button.copy").count() > 3
        first = page.evaluate("lines(document.querySelector('div.highlight'))")
    assert first.startswith("uv tool install") and "$ " not in first


@pytest.mark.parametrize(
    ("environ", "link"),
    [
        ({}, ""),
        ({"XROUTER_DOCS_EDIT": "https://code.example.com/edit/{filename}"}, "https://code.example.com/edit/{filename}"),
    ],
)
def test_pages_can_be_edited_where_their_place_is_known(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], link: str
) -> None:
    monkeypatch.delenv("XROUTER_DOCS_EDIT", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    options = runpy.run_path(str(ROOT / "deploy" / "docs" / "conf.py"))["html_theme_options"]
    assert options.get("source_edit_link", "") == link
