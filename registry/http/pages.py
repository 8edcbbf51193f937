"""Web pages: the core API's content as HTML.

Clients that prefer HTML to JSON get pages at the paths of the API, with the pages' own flags (:data:`FLAGS`); with any
other flag, the API responds. Pages are read-only, need no scripts, and are paginated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from bindings.http.request import Reply, RequestHead
from registry.core import changes
from registry.core import search as looking
from registry.core.requests import RegistryRequest, ResourcePath, Response, page_etag
from registry.core.service import RegistryService, RegistrySession
from registry.errors import Refusal
from registry.http.access import ApiCall, matches_etag, parse_query, parse_target, single_value
from registry.http.core import CoreApi
from registry.http.markup import (
    MAX_DOCUMENT,
    Child,
    Element,
    PageLinks,
    ValueMarkup,
    block,
    h,
    page_headers,
    render_page,
    section,
    shorten,
    table,
    to_json_text,
)

FLAGS: Final = ("q", "view", "cursor", "from", "to", "access_token")
"""Query parameters of pages. ``access_token`` is handled earlier."""
_VIEWS: Final = ("", "findings", "history", "diff")
_VARY: Final = (b"Vary", b"Accept")
_PAGE_ROWS: Final = 50
_ENTITIES_PER_PAGE: Final = 100
"""Entities covered by one page of findings."""
_FINDINGS_PER_ENTITY: Final = 10
"""Findings of one entity on such a page."""
_HISTORY_BYTES: Final = 4 * 2**20
_CHANGES_PER_ENTRY: Final = 50
"""Changes of one entry on a page."""
_CONTEXT: Final = 3
_MAX_DIFF_LINES: Final = 2000
_VERSION_ONLY: Final = ("self", "xid", "versionid", "epoch", "isdefault", "createdat", "modifiedat", "ancestorid")
"""Attributes that differ between any two versions."""
_SOURCES: Final = {
    "message": "the message itself",
    "cloudevents": "CloudEvents",
    "protocol": "the protocol",
    "default": "the default",
}
_JAVA_ACCEPT: Final = frozenset(("text/html", "image/gif", "image/jpeg"))
"""The default ``Accept`` of Java's HTTP client, which no browser sends."""
_DOCUMENT_HEADERS: Final = (
    (b"Content-Security-Policy", b"default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"),
    (b"X-Content-Type-Options", b"nosniff"),
)
"""Headers of documents, which a browser would open as pages of this origin."""


class PagesApi:
    """The core API, with pages for those who ask for HTML; see :class:`registry.http.access.RegistryApi`."""

    def __init__(self, service: RegistryService) -> None:
        self._service = service
        self._core = CoreApi(service)

    def reply(self, call: ApiCall) -> Reply:
        """Carry out a request."""
        head = call.head
        if head.method not in ("GET", "HEAD"):
            return self._core.reply(call)
        wanted = prefers_html(head)
        if wanted and self._wants_page(call):
            return self._page_reply(call)
        reply = self._core.reply(call)
        return replace(reply, headers=(*reply.headers, _VARY, *(_DOCUMENT_HEADERS if wanted else ())))

    def error_reply(self, head: RequestHead, url: str, refusal: Refusal) -> Reply:
        """Return the error page or reply to a refusal without a path."""
        return self._core.error_reply(head, url, refusal)

    def _wants_page(self, call: ApiCall) -> bool:
        """Whether a page is requested: an entity, a collection, or an unknown path, without flags of the API."""
        if not parse_query(call.head.query).keys() <= set(FLAGS) or call.head.path.endswith(b"$details"):
            return False
        try:
            given = parse_target(call.head)
            return not isinstance(self._service.parse_path(given.segments, given.path), str)
        except Refusal:
            return not call.head.path.startswith(b"/.")

    def _page_reply(self, call: ApiCall) -> Reply:
        tag = ""
        try:
            given = parse_target(call.head)
            values = {name: single_value(parse_query(call.head.query), name, given.path) or "" for name in FLAGS}
            if any("\0" in each for each in values.values()):  # not allowed in PostgreSQL texts
                raise Refusal("bad_request", given.path, error_detail="a flag contains a NUL character")
            place = self._service.parse_path(given.segments, given.path)
            assert isinstance(place, ResourcePath)
            with self._service.session(writing=False) as session:
                if values["view"] != "history":  # pruning entries does not change the registry
                    tag = page_etag(session.reader, (call.url, call.head.path, call.head.query))
                if matches_etag(call.head, tag):
                    return Reply(304, ((b"ETag", tag.encode("ascii")), _VARY))
                body = _Page(session, call, place, values).render()
        except Refusal as refusal:
            return _error_page(call, refusal)
        cached = ((b"ETag", tag.encode("ascii")), (b"Cache-Control", b"private, no-cache"))
        return Reply(200, (*page_headers(), _VARY, *(cached if tag else ((b"Cache-Control", b"no-store"),))), body)


def prefers_html(head: RequestHead) -> bool:
    """Whether a client prefers HTML to JSON (RFC 9110, ``Accept``)."""
    accepted = b",".join(value for name, value in head.headers if name == b"accept").decode("latin-1").lower()
    if "text/html" not in accepted:
        return False
    wanted, medias = {"text/html": 0.0, "application/json": 0.0}, set()
    for part in accepted.split(","):
        media, *parameters = (each.strip() for each in part.split(";"))
        medias.add(media)
        weight = next((each[2:] for each in parameters if each.startswith("q=")), "1")
        if media in wanted and len(weight) <= 5 and weight.replace(".", "", 1).isdecimal() and weight.isascii():
            wanted[media] = max(wanted[media], float(weight))
    return wanted["text/html"] > wanted["application/json"] and not _JAVA_ACCEPT <= medias


@dataclass(frozen=True, slots=True)
class _PageView:
    """A view of a page: its value of ``view``, and its label."""

    name: str
    label: str


class _Page:
    """One page, within one transaction."""

    def __init__(self, session: RegistrySession, call: ApiCall, place: ResourcePath, given: Mapping[str, str]) -> None:
        self._session = session
        self._call = call
        self._place = place
        self._given = given
        self._links = _page_links(call)
        self._values = ValueMarkup(self._links, session.model.groups)

    def render(self) -> bytes:
        """Return the page.

        Raises:
            Refusal: the path does not exist, or a flag is not valid.
        """
        view, place = self._given["view"], self._place
        if view not in _VIEWS:
            raise Refusal("bad_request", place.xid, error_detail=f"unknown view {shorten(view, 50)}")
        if self._given["q"]:
            title, parts = (
                f"Search for {self._given['q']}",
                list(self._render_search(self._given["q"][: looking.MAX_TEXT])),
            )
        else:
            title, parts = self._page_title(), list(self._render_view(view))
        return render_page(title, self._breadcrumbs(), self._links, self._given["q"], *parts)

    def _render_view(self, view: str) -> Iterator[Child]:
        place = self._place
        if view == "history":
            yield from self._render_history()
            return
        body, document = self._read_entity()
        yield self._view_links(view)
        if view == "findings":
            yield from self._render_findings()
        elif view == "diff":
            yield from self._render_difference()
        elif place.is_collection:
            yield section(place.xid.rpartition("/")[2], *self._render_collection(place, self._given["cursor"]))
        else:
            yield from self._render_overview(body, document)

    def _read_entity(self) -> tuple[Mapping[str, Any], bytes | None]:
        place = self._place
        if place.is_collection:
            if place.kind != "groups":
                self._perform(place.owner)  # raises if it does not exist
            return {}, None
        if place.kind in ("resource", "version"):
            return looking.read_document(self._session, place)
        return self._perform(place).body or {}, None

    def _render_overview(self, body: Mapping[str, Any], document: bytes | None) -> Iterator[Child]:
        place = self._place
        below = self._collections_below(body)
        hidden = {"self", "metaurl", "versionsurl", "versionscount"} | {f"{name}url" for name in below}
        hidden |= {f"{name}count" for name in below}
        deprecated = h("p", h("span", "deprecated", class_="badge warning")) if body.get("deprecated") else None
        shown = {name: value for name, value in body.items() if name not in hidden}
        yield section("Attributes", deprecated, self._values.render_attributes(shown))
        if place.kind == "registry":
            yield section("Types", self._render_types(body))
        for name in below if place.kind == "group" else ():
            yield section(name, *self._render_collection(place.collection(name), ""))
        if place.kind in ("resource", "version") and place.resource.hasdocument:
            yield section("Document", *self._render_document(body, document))
        if place.kind == "resource":
            yield from self._render_resource(body)

    def _collections_below(self, body: Mapping[str, Any]) -> list[str]:
        if self._place.kind == "registry":
            return list(self._session.model.groups)
        return list(self._place.group.resources) if self._place.kind == "group" else []

    def _render_resource(self, body: Mapping[str, Any]) -> Iterator[Child]:
        place = self._place
        around = looking.resolve_entities(self._session, (place.xid,))
        counts = looking.effective_definition(around, place.xid)
        if counts is not None:
            yield section("Effective definition", *self._render_effective(counts))
        yield section("Findings", *self._list_findings(around.findings))
        meta = self._perform(replace(place, kind="meta")).body or {}
        hidden = ("self", "xid", "defaultversionurl", f"{place.resource.singular}id")
        yield section(
            "For all versions", self._values.render_attributes({k: v for k, v in meta.items() if k not in hidden})
        )
        if body.get("versionscount"):
            yield section("Versions", *self._render_collection(place.collection("versions"), ""))

    def _render_types(self, body: Mapping[str, Any]) -> Element:
        rows = [
            (self._links.page_link(f"/{name}", name), str(body.get(f"{name}count", 0)), ", ".join(kind.resources))
            for name, kind in self._session.model.groups.items()
        ]
        return table("Group types", ("Groups", "Count", "Resources"), rows)

    def _render_collection(self, place: ResourcePath, cursor: str) -> Iterator[Child]:
        """Show a page of a collection."""
        answer = self._perform(place, limit=_PAGE_ROWS, cursor=cursor)
        entries: Mapping[str, Any] = msgspec.json.decode(msgspec.json.encode(answer.body))
        paging = answer.paging
        heads = ["Id", "Name", "Changed"]
        heads += list(place.group.resources) if place.kind == "groups" else []
        heads += {"resources": ["Versions"], "versions": ["Ancestor", "Differences"]}.get(place.kind, [])
        rows = [self._render_row(place.child(name), body) for name, body in entries.items()]
        yield table(place.xid, heads, rows, "None.")
        if paging is not None and paging.count is not None and paging.count > len(rows):
            yield h("p", f"{len(rows)} of {paging.count} are on this page.", class_="quiet")
        if paging is not None and paging.after:
            yield self._next_link(place.xid, cursor=paging.after)

    def _render_row(self, place: ResourcePath, body: Mapping[str, Any]) -> list[Child]:
        name, said = str(body.get("name") or ""), str(body.get("description") or "")
        described = h("span", shorten(name or said, 200))
        if name and said:
            described = h("span", shorten(name, 200), h("span", f" {shorten(said, 200)}", class_="quiet"))
        if body.get("deprecated"):
            described.append(h("span", "deprecated", class_="badge warning"))
        row: list[Child] = [self._links.page_link(place.xid, place.xid.rpartition("/")[2]), described]
        row.append(_time_element(body.get("modifiedat")))
        if place.kind == "group":
            row += [str(body.get(f"{each}count", 0)) for each in place.group.resources]
        elif place.kind == "resource":
            row.append(str(body.get("versionscount", "")))
        else:
            ancestor = str(body.get("ancestorid") or "")
            if body.get("isdefault"):
                row[0] = h("span", row[0], " ", h("span", "default", class_="badge good"))
            if ancestor in ("", place.vid):
                row += ["nothing", None]
            else:
                versions = {"from": ancestor, "to": place.vid}
                row += [ancestor, self._links.page_link(place.owner.xid, "differences", view="diff", **versions)]
        return row

    def _render_document(self, body: Mapping[str, Any], document: bytes | None) -> Iterator[Child]:
        place = self._place
        url = body.get(place.resource.document_names[2])
        if url is not None:
            yield h("p", "External document: ", self._values.render_text(str(url)))
        elif not document:
            yield h("p", "No document.", class_="quiet")
        else:
            text = _readable_text(document)
            yield h("p", self._links.json_link(place.xid, f"Download ({len(document)} bytes)"))
            yield (block(text, MAX_DOCUMENT, "Document") if text is not None else h("p", "The document is not text."))

    def _render_effective(self, shown: Mapping[str, Any]) -> Iterator[Child]:
        """Show the effective definition that records are matched against, with the origin of each value."""
        if shown["base"]:
            yield h("p", "Based on ", *_join_links(self._links.page_link(each) for each in shown["base"]), ".")
        single = {name: shown[name] for name in ("envelope", "protocol") if shown[name]}
        single |= {f"envelopeoptions.{name}": each for name, each in shown["envelopeoptions"].items()}
        single |= {name: each for name, each in shown["attributes"].items() if name != "dataschema"}
        rows: list[Sequence[Child]] = [
            (name, self._values.render_value(each["value"]), "", "", self._show_origin(each))
            for name, each in single.items()
        ]
        for each in shown["properties"]:
            required = "" if each["required"] is None else "yes" if each["required"] else "no"
            value = None if each["value"] is None else self._values.render_value(each["value"])
            name = f"{each['section']}.{each['name']}"
            rows.append((name, value, str(each["type"] or ""), required, self._render_origins(each["from"])))
        yield table("Effective definition", ("Attribute", "Value", "Type", "Required", "Origin"), rows, "None.")

    def _render_origins(self, origins: Mapping[str, Any]) -> Element:
        """Show the origins of value, type and ``required`` of a property, grouped if equal."""
        given: dict[tuple[str, str], list[str]] = {}
        for member, each in origins.items():
            if member != "value" or each["value"] is not None or each["overrides"]:
                given.setdefault((each["source"], each["xid"]), []).append(member)
        if len(given) == 1:
            return self._show_origin(next(iter(origins.values())))
        members = {tuple(each): origins[each[0]] for each in given.values()}
        return h("ul", *(h("li", f"{', '.join(names)}: ", self._show_origin(each)) for names, each in members.items()))

    def _show_origin(self, each: Mapping[str, Any]) -> Element:
        if each["source"] in ("base", "group", "endpoint"):
            source: Child = self._links.page_link(each["xid"])
        else:
            source = _SOURCES[each["source"]]
        others: list[Child] = []
        for one in each["overrides"]:
            if one["value"] != each["value"]:
                others.append(f", instead of {shorten(msgspec.json.encode(one['value']).decode(), 100)} of ")
                others.append(self._links.page_link(one["xid"]) if one["xid"] else _SOURCES[one["source"]])
        return h("span", source, *others)

    def _render_findings(self) -> Iterator[Child]:
        place = self._place
        if place.kind not in ("registry", "group", "resource"):
            raise Refusal("api_not_found", place.xid)
        connection = self._session.reader.connection
        within, cursor = place.xid if place.kind == "group" else "", self._given["cursor"]
        xids = [place.xid]
        if place.kind != "resource":
            xids = looking.xids_after(connection, within, cursor, _ENTITIES_PER_PAGE + 1)
        more, xids = len(xids) > _ENTITIES_PER_PAGE, xids[:_ENTITIES_PER_PAGE]
        found = looking.resolve_entities(self._session, xids).findings if xids else ()
        scope = "This page is about one entity" if len(xids) == 1 else f"This page is about {len(xids)} entities"
        about = f"{scope}, {xids[0]} to {xids[-1]}." if len(xids) > 1 else f"{scope}." if xids else "No entities."
        yield section(
            "Findings",
            h("p", about, class_="quiet"),
            *self._list_findings(found, _FINDINGS_PER_ENTITY if len(xids) > 1 else 10 * _PAGE_ROWS),
        )
        if more:
            yield self._next_link(place.xid, view="findings", cursor=xids[-1])

    def _list_findings(self, findings: Sequence[Mapping[str, str]], limit: int = 10 * _PAGE_ROWS) -> Iterator[Child]:
        """Show findings, at most *limit* of each entity."""
        rows: list[Sequence[Child]] = []
        of: dict[str, int] = {}
        for each in findings:
            parts = each["place"].split("/")
            xid = "/".join(parts[: 5 if len(parts) >= 5 else 3])
            of[xid] = of.get(xid, 0) + 1
            if of[xid] > limit:
                continue
            badge = h("span", each["severity"], class_=f"badge {each['severity']}")
            where = h("span", self._links.page_link(xid), each["place"].removeprefix(xid))
            hint = h("span", f". Fix: {shorten(each['hint'])}.", class_="quiet") if each["hint"] else None
            rows.append((each["rule"], badge, where, h("span", shorten(each["message"]), hint)))
        yield table("Findings", ("Rule", "Severity", "Location", "Message"), rows, "No findings.")
        if len(findings) > len(rows):
            yield h("p", f"{len(findings) - len(rows)} more are not shown: at most {limit} per entity.", class_="quiet")

    def _render_history(self) -> Iterator[Child]:
        place, cursor, writer = self._place, self._given["cursor"], self._call.sender
        gone = False
        try:
            self._read_entity()
        except Refusal as refusal:
            if refusal.name != "not_found":
                raise
            gone = True
        if not (cursor.isascii() and (not cursor or cursor.isdecimal()) and len(cursor) < 19):
            raise Refusal("bad_request", place.xid, error_detail="cursor must be the number of an entry")
        xid = "" if place.kind == "registry" else place.xid
        who = writer.administrator or bool(writer.name)
        question = changes.HistoryQuery(xid, bool(xid), False, int(cursor) if cursor else None, _PAGE_ROWS, who)
        entries, more = changes.history_page(self._session.reader.connection, question, _HISTORY_BYTES)
        if gone and not entries:
            raise Refusal("not_found", place.xid)
        rows = [
            (
                _time_element(each["at"]),
                *((each["who"] or "unknown",) if who else ()),
                each["action"],
                self._links.page_link(each["xid"], each["xid"], view="history"),
                self._render_changes(each),
            )
            for each in entries
        ]
        heads = ("When", *(("Who",) if who else ()), "What", "Where", "Changes")
        hidden = None if who else h("p", "Names of writers are shown only to readers with credentials.", class_="quiet")
        yield h("p", "It was deleted.") if gone else self._view_links("history")
        yield section("History", hidden, table("History", heads, rows, "No entries."))
        if more:
            yield self._next_link(place.xid, view="history", cursor=str(entries[-1]["number"]))

    def _render_changes(self, entry: Mapping[str, Any]) -> Child:
        changed: Mapping[str, Mapping[str, Any]] | None = entry.get("changed")
        if changed is None:
            return h("span", "unknown: the previous entry was pruned", class_="quiet")
        listed = h("ul")
        for at, (pointer, values) in enumerate(changed.items()):
            if at == _CHANGES_PER_ENTRY:
                listed.append(h("li", f"… {len(changed)} in all", class_="quiet"))
                break
            listed.append(h("li", pointer, ": ", *_value_change(values)))
        count = "1 attribute" if len(changed) == 1 else f"{len(changed)} attributes"
        return h("details", h("summary", count), listed) if changed else h("span", "only its epoch")

    def _render_difference(self) -> Iterator[Child]:
        place = self._place
        if place.kind != "resource":
            raise Refusal("api_not_found", place.xid)
        body, _ = looking.read_document(self._session, place)
        newer = self._given["to"] or str(body.get("versionid") or "")
        new, new_document = looking.read_document(self._session, replace(place, kind="version", vid=newer))
        older = self._given["from"] or str(new.get("ancestorid") or "")
        old, old_document = looking.read_document(self._session, replace(place, kind="version", vid=older))
        fields = [
            h("span", h("label", label, for_=name), " ", h("input", id=name, name=name, value=value, required=True))
            for label, name, value in (("From", "from", older), ("to", "to", newer))
        ]
        view = h("input", type="hidden", name="view", value="diff")
        form = h("form", view, *fields, h("button", "Compare", type="submit"), action=self._links.page_url(place.xid))
        differences = changes.iter_json_differences("", _shared_attributes(old), _shared_attributes(new))
        rows = [(pointer, *_old_and_new(values)) for pointer, values in differences]
        attributes = table(
            "Different attributes", ("Attribute", older, newer), rows[: 4 * _PAGE_ROWS], "No differences."
        )
        left = (
            h("p", f"{4 * _PAGE_ROWS} of {len(rows)} are shown.", class_="quiet")
            if len(rows) > 4 * _PAGE_ROWS
            else None
        )
        yield section("Compared versions", form)
        yield section("Different attributes", attributes, left)
        if place.resource.hasdocument:
            yield section("Documents", _document_difference(old_document, new_document))

    def _render_search(self, text: str) -> Iterator[Child]:
        hits, more = looking.search(self._session.reader.connection, text, self._given["cursor"], _PAGE_ROWS)
        rows = [
            (
                self._links.page_link(each.xid),
                shorten(str(each.attributes.get("name") or each.attributes.get("description") or ""), 200),
            )
            for each in hits
        ]
        nothing = "No matches so far." if more else "No matches."
        note = h("p", "Searches ids and attributes, ignoring case; not documents.", class_="quiet")
        yield section("Found", note, table("Found", ("Where", "Name"), rows, nothing))
        if more:
            yield self._next_link("/", q=text, cursor=more)

    def _next_link(self, xid: str, **query: str) -> Element:
        return h("p", h("a", "Next page", rel="next", href=self._links.page_url(xid, **query)))

    def _perform(self, place: ResourcePath, **more: Any) -> Response:
        segments = tuple(each for each in place.xid.split("/") if each)
        most = self._call.max_answer
        return self._session.perform(
            RegistryRequest("read", segments, place.xid, "", details=True, max_answer=most, **more)
        )

    def _page_title(self) -> str:
        place = self._place
        if place.kind == "registry":
            return f"Registry {self._session.registry.id}"
        if place.is_collection:
            return place.xid.lstrip("/")
        if place.kind == "group":
            return f"{place.group.singular} {place.gid}"
        title = f"{place.resource.singular} {place.rid}"
        return f"{title}, version {place.vid}" if place.kind == "version" else title

    def _view_links(self, chosen: str) -> Element | None:
        """Return links to the other views of an entity."""
        place = self._place
        views = [_PageView("", "Overview")]
        if place.kind in ("registry", "group", "resource"):
            views.append(_PageView("findings", "Findings"))
        if place.kind == "resource":
            views.append(_PageView("diff", "Differences"))
        if not place.is_collection and place.kind != "meta":
            views.append(_PageView("history", "History"))
        items = []
        for each in views:
            link = self._links.page_link(place.xid, each.label, **({"view": each.name} if each.name else {}))
            if each.name == chosen:
                link.set("aria-current", "page")
            items.append(link)
        details = place.kind in ("resource", "version") and place.resource.hasdocument
        items.append(self._links.json_link(place.xid, "JSON", details=details))
        if place.kind == "registry":
            items += [self._links.json_link(f"/{name}", name) for name in ("model", "capabilities", "export")]
        return h("nav", h("ul", *(h("li", each) for each in items)), aria_label="Views")

    def _breadcrumbs(self) -> list[Element]:
        crumbs, xid = [self._links.page_link("/", "Registry")], ""
        for part in self._place.xid.split("/")[1:]:
            if part:
                xid += f"/{part}"
                crumbs.append(self._links.page_link(xid, part))
        return crumbs


def _page_links(call: ApiCall) -> PageLinks:
    """Return the links of the pages of a registry, whose URL may have a path."""
    return PageLinks("/".join(["", *call.url.split("/")[3:]]).rstrip("/"))


def _error_page(call: ApiCall, refusal: Refusal) -> Reply:
    """Return the error page of a refusal."""
    links = _page_links(call)
    said = h("p", refusal.title)
    detail = h("p", refusal.detail) if refusal.detail else None
    body = render_page(
        f"Error {refusal.status}", [links.page_link("/", "Registry")], links, "", section("Cause", said, detail)
    )
    return Reply(refusal.status, (*page_headers(), _VARY, (b"Cache-Control", b"no-store")), body)


def _time_element(moment: object) -> Element:
    text = str(moment or "")
    return h("time", text[:19].replace("T", " "), datetime=text) if text else h("span")


def _join_links(links: Iterator[Element]) -> Iterator[Child]:
    for at, link in enumerate(links):
        if at:
            yield ", "
        yield link


def _shared_attributes(version: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a version that other versions may have as well."""
    return {name: value for name, value in version.items() if name not in _VERSION_ONLY}


def _old_and_new(values: Mapping[str, Any]) -> tuple[Element, Element]:
    """Return the old and the new value of an attribute, or "absent"."""
    shown = [
        h("code", shorten(msgspec.json.encode(values[name]).decode(), 300)) if name in values else h("span", "absent")
        for name in ("old", "new")
    ]
    return shown[0], shown[1]


def _value_change(values: Mapping[str, Any]) -> tuple[Child, ...]:
    old, new = _old_and_new(values)
    return old, " becomes ", new


def _readable_text(document: bytes | None) -> str | None:
    """Return a document as formatted text, None if it is not text."""
    if not document:
        return ""
    try:
        text = document.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if "\0" in text:
        return None
    if len(document) <= MAX_DOCUMENT and text.lstrip()[:1] in ("{", "["):
        try:
            return to_json_text(msgspec.json.decode(document))
        except (msgspec.DecodeError, RecursionError):
            return text
    return text


def _document_difference(old: bytes | None, new: bytes | None) -> Element:
    before, after = _readable_text(old), _readable_text(new)
    if old == new:
        return h("p", "The documents are equal.", class_="quiet")
    if before is None or after is None:
        return h("p", "The documents differ and are not text.")
    if before == after:
        return h("p", "The documents differ only in white space.")
    lines = looking.diff_lines(before.split("\n"), after.split("\n"))
    if lines is None:
        return h("p", f"The documents differ in more than {looking.MAX_DIFFERENCES} lines, or are too long to compare.")
    near = {at + away for at, (sign, _) in enumerate(lines) if sign != " " for away in range(-_CONTEXT, _CONTEXT + 1)}
    shown = h("pre", class_="diff", tabindex="0", role="group", aria_label="Different lines")
    last = -1
    for at in sorted(each for each in near if 0 <= each < len(lines))[:_MAX_DIFF_LINES]:
        if at != last + 1:
            shown.append(h("code", "…"))
        sign, text = lines[at]
        last = at
        shown.append(h("code", f"{sign} {shorten(text, 500)}", class_={"+": "add", "-": "del"}.get(sign, "same")))
    return shown
