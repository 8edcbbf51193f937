"""HTML of the registry's web pages, built as lxml trees, so that text cannot become markup.

Pages have no scripts and no external resources; their content security policy allows only their own style, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
from lxml import etree

from catalog.findings import to_xml_text

Element = etree._Element
Child = Element | str | None
MAX_TEXT: Final = 2000
"""Maximum characters of a text on a page."""
MAX_DOCUMENT: Final = 256 * 1024
"""Maximum characters of a document on a page."""
_MAX_VALUES: Final = 2000
"""Maximum values on a page; the others are in the JSON."""
_DEPTH: Final = 5
_XID: Final = re.compile(r"#?(/[\w.~:@-]+/[\w.~:@-]+(?:/[\w.~:@-]+/[\w.~:@-]+(?:/versions/[\w.~:@-]+)?)?)", re.ASCII)


def h(tag: str, *children: Child, **attributes: str | bool) -> Element:
    """Return an element; ``class_`` and ``for_`` avoid Python keywords, ``_`` becomes ``-``, None is left out."""
    element = etree.Element(tag)
    for name, value in attributes.items():
        if value is not False:
            element.set(name.rstrip("_").replace("_", "-"), name if value is True else to_xml_text(value))
    for child in children:
        if child is None:
            continue
        if not isinstance(child, str):
            element.append(child)
        elif len(element):
            element[-1].tail = (element[-1].tail or "") + to_xml_text(child)
        else:
            element.text = (element.text or "") + to_xml_text(child)
    return element


def shorten(text: str, max_length: int = MAX_TEXT) -> str:
    """Return a text, shortened to *max_length* characters."""
    return text if len(text) <= max_length else f"{text[:max_length]}… ({len(text)} characters)"


def to_json_text(value: Any) -> str:
    """Return a value as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode("utf-8")


@dataclass(frozen=True, slots=True)
class PageLinks:
    """URLs of pages; *root* is the path of the registry, '' if it is at the root of its host."""

    root: str

    def page_url(self, xid: str, **query: str) -> str:
        """Return the URL of an entity's page."""
        asked = f"?{urlencode(query)}" if query else ""
        return f"{self.root}{quote(xid, safe='/:@~$')}{asked}"

    def page_link(self, xid: str, text: str = "", **query: str) -> Element:
        """Return a link to an entity's page."""
        return h("a", text or xid, href=self.page_url(xid, **query))

    def json_link(self, xid: str, text: str, *, details: bool = False) -> Element:
        """Return a link to the API's JSON, which a flag of the API selects in browsers."""
        return self.page_link(f"{xid}$details" if details else xid, text, specversion="1.0-rc4")


class ValueMarkup:
    """Renders values as in the API; one instance for each page, since the number of values per page is limited."""

    def __init__(self, links: PageLinks, groups: Iterable[str]) -> None:
        """*groups* are the plural names of group types, used to recognise references."""
        self._links = links
        self._groups = frozenset(groups)
        self._left = _MAX_VALUES

    def render_attributes(self, values: Mapping[str, Any]) -> Element:
        """Return a list of attributes."""
        listed = h("dl")
        for name, value in values.items():
            if self._left <= 0:
                listed.append(h("dt", "…"))
                listed.append(h("dd", "see the JSON for more", class_="quiet"))
                break
            self._left -= 1
            listed.append(h("dt", shorten(name, 200)))
            listed.append(h("dd", self.render_value(value)))
        return listed

    def render_value(self, value: Any, depth: int = 1) -> Element:
        """Return one value."""
        if isinstance(value, str):
            return self.render_text(value)
        if isinstance(value, Mapping) and value:
            return (
                self.render_attributes(value)
                if depth and _nesting_depth(value) <= _DEPTH
                else block(to_json_text(value), MAX_TEXT)
            )
        if isinstance(value, list) and value:
            if _nesting_depth(value) > _DEPTH:
                return block(to_json_text(value), MAX_TEXT)
            self._left -= len(value)
            shown = value[: max(self._left, 1)]
            more = h("li", f"… {len(value)} in all, see the JSON", class_="quiet") if len(shown) < len(value) else None
            return h("ul", *(h("li", self.render_value(each)) for each in shown), more)
        return h("code", msgspec.json.encode(value).decode("utf-8"))

    def render_text(self, text: str) -> Element:
        """Return a text; xids and web URLs become links."""
        found = _XID.fullmatch(text)
        if found is not None and text.lstrip("#").split("/")[1] in self._groups:
            return self._links.page_link(found[1], text)
        if (
            text.startswith(("https://", "http://"))
            and len(text) <= MAX_TEXT
            and text.isprintable()
            and " " not in text
        ):
            return h("a", text, href=text, rel="noreferrer nofollow")
        if "\n" in text:
            return block(text, MAX_TEXT)
        return h("span", shorten(text)) if text else h("span", "empty", class_="quiet")


def _nesting_depth(value: Any, max_depth: int = _DEPTH + 1) -> int:
    """Return the nesting depth of a value, at most *max_depth*."""
    nested: Iterable[Any] = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return 1 + max((_nesting_depth(each, max_depth - 1) for each in nested), default=0) if max_depth else 0


def block(text: str, max_length: int = MAX_DOCUMENT, name: str = "Text") -> Element:
    """Return a preformatted text, scrollable by keyboard."""
    return h("pre", h("code", shorten(text, max_length)), tabindex="0", role="group", aria_label=name)


def table(name: str, headings: Sequence[str], rows: Iterable[Sequence[Child]], empty: str = "none") -> Element:
    """Return a table with row headers; on narrow screens each row becomes a list."""
    body = h("tbody", role="rowgroup")
    for row in rows:
        first, *rest = row
        cells = [h("th", first, scope="row", role="rowheader")]
        cells += [h("td", cell, role="cell", data_label=head) for head, cell in zip(headings[1:], rest, strict=True)]
        body.append(h("tr", *cells, role="row"))
    if not len(body):
        return h("p", empty, class_="quiet")
    head = h("tr", *(h("th", each, scope="col", role="columnheader") for each in headings), role="row")
    whole = h("table", h("thead", head, role="rowgroup"), body, role="table", aria_label=name)
    return h("div", whole, class_="scroll", role="group", tabindex="0", aria_label=name)


def section(title: str, *children: Child) -> Element:
    """Return a part of a page with a heading."""
    name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    return h("section", h("h2", title, id=name), *children, aria_labelledby=name)


def render_page(title: str, breadcrumbs: Sequence[Element], links: PageLinks, text: str, *children: Child) -> bytes:
    """Return a whole page; *text* is the search text."""
    search = h(
        "form",
        h("label", "Search", for_="q"),
        h("input", id="q", name="q", type="search", value=text, maxlength="200", required=True),
        h("button", "Search", type="submit"),
        action=links.page_url("/"),
        method="get",
        role="search",
    )
    way = h("nav", h("ol", *(h("li", each) for each in breadcrumbs)), aria_label="Breadcrumbs")
    head = h(
        "head",
        h("meta", charset="utf-8"),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h("meta", name="color-scheme", content="light dark"),
        h("title", shorten(title, 200)),
        h("link", rel="icon", href="data:,"),
        h("style", read_stylesheet()),
    )
    body = h(
        "body",
        h("a", "Skip to the content", href="#main", class_="skip"),
        h("header", way, search),
        h("main", h("h1", shorten(title, 300)), *children, id="main", tabindex="-1"),
    )
    whole: bytes = etree.tostring(
        h("html", head, body, lang="en"), method="html", encoding="utf-8", doctype="<!doctype html>"
    )
    return whole


@cache
def read_stylesheet() -> str:
    """Return the style of all pages."""
    return files("registry.http").joinpath("pages.css").read_text(encoding="utf-8")


@cache
def page_headers() -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers that all pages have."""
    digest = base64.b64encode(hashlib.sha256(read_stylesheet().encode("utf-8")).digest()).decode("ascii")
    policy = (
        "default-src 'none'",
        f"style-src 'sha256-{digest}'",
        "img-src data:",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
    return (
        (b"Content-Type", b"text/html; charset=utf-8"),
        (b"Content-Security-Policy", "; ".join(policy).encode("ascii")),
        (b"X-Content-Type-Options", b"nosniff"),
        (b"Referrer-Policy", b"no-referrer"),
        (b"Cross-Origin-Opener-Policy", b"same-origin"),
        (b"Cross-Origin-Resource-Policy", b"same-origin"),
    )
