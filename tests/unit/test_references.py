"""Whatever names a page of this project, and a section of it, names one that is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from catalog.linting.attributes import load_rules
from router.settings.routes import REASONS

ROOT = Path(__file__).resolve().parents[2]
MATCHING = ROOT / "router" / "MATCHING.md"
FOLDERS = ("catalog", "bindings", "registry", "router", "deploy", "tests")
WRITTEN = frozenset(
    {".css", ".html", ".js", ".json", ".md", ".properties", ".proto", ".py", ".service", ".toml", ".yaml", ".yml"}
)
SPECIFICATION = frozenset({"spec.md", "http.md", "model.md", "events.md"})
"""Files of https://github.com/xregistry/spec, which the registry's code names by these names."""
PAGE = re.compile(r"(?<![\w/.-])((?:\.\./|[\w.-]+/)*[\w-]+\.md)(?:#([\w-]+))?")
OWN_SECTION = re.compile(r"\]\(#([\w-]+)\)")
LINK = re.compile(r"\]\(((?!https?:|#)[^)#\s]+)(?:#[\w-]+)?\)")
ADDRESS = re.compile(r"https?://[^\s)>\"'`]+")
UNNAMED = re.compile(r"\b(?:semantics|architecture)(?:\.md)?,? *(?:sections? *)?\d", re.IGNORECASE)
"""Sections by number, of documents that only their writers had."""


@cache
def texts() -> dict[Path, str]:
    """Return what people wrote, file by file; locks, recorded data and this file are left out."""
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in WRITTEN]
    found += [path for path in sorted(ROOT.iterdir()) if path.is_file() and path.suffix in WRITTEN]
    return {path: path.read_text("utf-8") for path in found if path != Path(__file__).resolve()}


@cache
def sections(page: Path) -> frozenset[str]:
    """Return the anchors of a page as GitHub makes them of its headings."""
    headings = re.findall(r"(?m)^#{1,6} +(.+?) *$", re.sub(r"(?ms)^```.*?^```", "", page.read_text("utf-8")))
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


def page_of(name: str, source: Path) -> Path | None:
    """Return the page that a text names: by its path from the text or from the root, or by its name alone."""
    for path in (source.parent / name, ROOT / name):
        if path.is_file():
            return path.resolve()
    alike = [path for path in texts() if path.name == name]
    return alike[0] if len(alike) == 1 else None


def faults(path: Path, text: str) -> Iterator[str]:
    """Yield what a text names that is not there."""
    for found in UNNAMED.finditer(text):
        yield f"{found.group(0)!r} names no document of this repository"
    for name, section in PAGE.findall(ADDRESS.sub("", text)) if ".md" in text else ():
        if name.rpartition("/")[2] in SPECIFICATION:
            continue
        page = page_of(name, path)
        if page is None:
            yield f"{name} is not there"
        elif section and section not in sections(page):
            yield f"{name} has no section {section}"
    if path.suffix == ".md":
        yield from (f"no section {each} in itself" for each in OWN_SECTION.findall(text) if each not in sections(path))
        yield from (f"{each} is not there" for each in LINK.findall(text) if not (path.parent / each).exists())


def test_what_is_named_is_there() -> None:
    found = [f"{path.relative_to(ROOT)}: {fault}" for path, text in texts().items() for fault in faults(path, text)]
    assert len(texts()) > 900
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("as semantics section 5 says", "'semantics section 5' names no document of this repository"),
        ("basis: architecture 3", "'architecture 3' names no document of this repository"),
        ("see deploy/MANUAL.md", "deploy/MANUAL.md is not there"),
        ("see MATCHING.md#tempaltes", "MATCHING.md has no section tempaltes"),
        ("[one](#nowhere)", "no section nowhere in itself"),
        ("[a sample](catalog/samples/none.yaml)", "catalog/samples/none.yaml is not there"),
    ],
)
def test_what_is_not_there_is_found(text: str, fault: str) -> None:
    assert list(faults(ROOT / "README.md", text)) == [fault]


def test_each_rule_says_where_it_comes_from() -> None:
    ours = [rule for rule in load_rules().values() if PAGE.search(rule.basis)]
    assert len(ours) > 40
    judged = [rule.id for rule in ours if "MATCHING.md" in rule.basis and "router/MATCHING.md#" not in rule.basis]
    assert not judged, "say which section"


def test_each_reason_has_a_section() -> None:
    below = MATCHING.read_text("utf-8").partition("\n## Dead letters\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"(?m)^### (.+)$", below)) == sorted(REASONS)
    told = dict(re.findall(r"(?ms)^### (.+?)\n(.+?)(?=\n\n|\Z)", below))
    assert all("*Remedy*: " in told[reason] for reason in REASONS)


@pytest.mark.parametrize("page", ["README.md", "deploy/docs/howto/dead-letters.md"])
def test_a_reader_finds_every_reason(page: str) -> None:
    linked = re.findall(r"\[`([a-z-]+)`\]\([./]*router/MATCHING\.md#([a-z-]+)\)", (ROOT / page).read_text("utf-8"))
    assert sorted(name for name, place in linked if name == place) == sorted(REASONS)


def test_a_newcomer_is_told_where_the_command_is_and_how_long_a_start_takes() -> None:
    head = (ROOT / "README.md").read_text("utf-8").partition("\n## What it accepts")[0]
    assert ".venv/bin/xrouter" in head and "minute" in head
