"""The core API of xRegistry 1.0, at the root path, and its content as web pages.

Clients that prefer HTML to JSON get pages at the paths of the API, with the pages' own flags (:data:`FLAGS`); with any
other flag, the API responds. Pages are read-only, need no scripts, and are paginated. They are made by the template
``pages.html``, which escapes every value; its content security policy allows only its own style, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from jinja2 import Environment, Template
from markupsafe import Markup
from rapidfuzz.distance import Indel
from sqlalchemy import Connection, and_, func, or_, select

from bindings.http.request import Reply, RequestHead
from catalog.findings import to_xml_text
from registry.core import changes
from registry.core.ancestry import ResolvedEntities
from registry.core.requests import ABSENT, RegistryRequest, ResourcePath, Response, page_etag
from registry.core.service import ChangeId, RegistryService, RegistrySession
from registry.errors import Refusal
from registry.http.access import (
    READ_METHODS,
    ApiCall,
    RegistryApi,
    build_error_reply,
    build_reply,
    common_headers,
    find_repeated_keys,
    json_reply,
    matches_etag,
    options_reply,
    parse_entry_number,
    parse_query,
    parse_request,
    single_value,
    with_body,
)
from registry.store.engine import GROUPS, RESOURCES, VERSIONS
from registry.store.entities import bounds_below

# Full-text search, documents, and text diffs, for the registry's web pages.
#
# All are bounded: a search scans a limited number of rows and returns where to continue, and a diff is limited in
# lines.

MAX_SCANNED: Final = 100_000
"""Rows of each kind of entity that one search scans."""
MAX_TEXT: Final = 200
MAX_LINES: Final = 5000
"""Lines of each text in a diff, which then takes about 15 ms."""
_KINDS: Final = {"groups": GROUPS, "resources": RESOURCES, "versions": VERSIONS}
_LIKE_ESCAPES: Final = str.maketrans({"!": "!!", "%": "!%", "_": "!_"})

Line = tuple[Literal[" ", "-", "+"], str]
"""A line of a diff: in both texts, only in the old one, or only in the new one."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """An entity that a search found."""

    xid: str
    attributes: Mapping[str, Any]


def search(connection: Connection, text: str, after: str, limit: int) -> tuple[list[SearchHit], str]:
    """Find entities whose id or attributes contain a text, ignoring case: groups, then resources, then versions.

    A text that begins with ``/`` is also searched in xids. *after* is where the previous search stopped, '' at first.

    Returns:
        At most *limit* hits, and where to continue, '' when everything was searched.
    """
    kind, _, xid = after.partition(" ")
    first = list(_KINDS).index(kind) if kind in _KINDS else 0
    hits: list[SearchHit] = []
    for name in list(_KINDS)[first:]:
        found, last = _search_kind(connection, name, text, xid, limit - len(hits))
        hits += found
        if last:
            return hits, f"{name} {last}"
        xid = ""
    return hits, ""


def _search_kind(connection: Connection, kind: str, text: str, after: str, limit: int) -> tuple[list[SearchHit], str]:
    if not limit:
        return [], after or "/"
    table = _KINDS[kind]
    there = table.c.xid > after
    window = select(table.c.xid).where(there).order_by(table.c.xid).limit(MAX_SCANNED).subquery()
    count, last = connection.execute(select(func.count(), func.max(window.c.xid))).one()
    if not count:
        return [], ""
    in_json = msgspec.json.encode(text).decode("utf-8")[1:-1]
    looked_for = [_contains(table.c.attributes, in_json)]
    if kind != "versions":  # version ids are short numbers, which match everywhere
        looked_for.append(_contains(table.c.id, text))
    if text.startswith("/"):
        looked_for.append(_contains(table.c.xid, text))
    query = select(table.c.xid, table.c.attributes).where(there, table.c.xid <= last, or_(*looked_for))
    rows = connection.execute(query.order_by(table.c.xid).limit(limit)).all()
    hits = [SearchHit(row[0], msgspec.json.decode(row[1])) for row in rows]
    if len(rows) == limit:
        return hits, rows[-1][0]
    return hits, last if count == MAX_SCANNED else ""


def _contains(column: Any, text: str) -> Any:
    pattern = f"%{text.translate(_LIKE_ESCAPES)}%"
    return func.lower(column).like(func.lower(pattern), escape="!")


def xids_after(connection: Connection, within: str, after: str, limit: int) -> list[str]:
    """Return xids of groups and resources after *after*, in order; only those *within* one group unless it is ''."""
    chosen = []
    for table in (GROUPS, RESOURCES):
        query = select(table.c.xid).where(table.c.xid > after)
        if within:
            first, last = bounds_below(within)
            query = query.where(or_(table.c.xid == within, and_(table.c.xid >= first, table.c.xid < last)))
        chosen.append(query.order_by(table.c.xid).limit(limit))
    found = [xid for query in chosen for xid in connection.execute(query).scalars()]
    return sorted(found)[:limit]


def diff_lines(old: Sequence[str], new: Sequence[str]) -> list[Line] | None:
    """Return the shortest diff of two texts, None when they are too long; deleted lines precede added ones."""
    if max(len(old), len(new)) > MAX_LINES:
        return None
    lines: list[Line] = []
    added: list[Line] = []
    for each in Indel.opcodes(old, new):
        if each.tag == "insert":
            added += [("+", line) for line in new[each.dest_start : each.dest_end]]
            continue
        if each.tag == "equal":
            lines += added
            added = []
        lines += [(" " if each.tag == "equal" else "-", line) for line in old[each.src_start : each.src_end]]
    return lines + added


T = TypeVar("T")
FLAGS: Final = ("q", "view", "cursor", "from", "to", "access_token")
"""Query parameters of pages. ``access_token`` is handled earlier."""
_VIEWS: Final = {"": "Overview", "findings": "Findings", "diff": "Differences", "history": "History"}
"""Views by their value of the flag, with their labels."""
_API: Final = {"specversion": "1.0-rc4"}
"""A flag of the API, which selects its JSON in browsers."""
_VARY: Final = (b"Vary", b"Accept")
_PAGE_ROWS: Final = 50
_ENTITIES_PER_PAGE: Final = 100
"""Entities covered by one page of findings."""
_FINDINGS_PER_ENTITY: Final = 10
"""Findings of one entity on such a page."""
_HISTORY_BYTES: Final = 4 * 2**20
_CONTEXT: Final = 3
_MAX_DIFF_LINES: Final = 2000
_MAX_TEXT: Final = 2000
"""Maximum characters of a text on a page."""
_MAX_DOCUMENT: Final = 256 * 1024
"""Maximum characters of a document on a page."""
_MAX_VALUES: Final = 2000
"""Maximum values on a page; the others are in the JSON."""
_MAX_DEPTH: Final = 5
_VERSION_ONLY: Final = ("self", "xid", "versionid", "epoch", "isdefault", "createdat", "modifiedat", "ancestorid")
"""Attributes that differ between any two versions."""
_SOURCES: Final = {
    "message": "the message itself",
    "cloudevents": "CloudEvents",
    "protocol": "the protocol",
    "default": "the default",
}
_XID: Final = re.compile(r"#?(/[\w.~:@-]+/[\w.~:@-]+(?:/[\w.~:@-]+/[\w.~:@-]+(?:/versions/[\w.~:@-]+)?)?)", re.ASCII)
_JAVA_ACCEPT: Final = frozenset(("text/html", "image/gif", "image/jpeg"))
"""The default ``Accept`` of Java's HTTP client, which no browser sends."""
_DOCUMENT_HEADERS: Final = (
    (b"Content-Security-Policy", b"default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"),
    (b"X-Content-Type-Options", b"nosniff"),
)
"""Headers of documents, which a browser would open as pages of this origin."""


# The core API itself, at the root path.

_CacheKey = tuple[ChangeId, str, bytes, bytes]
_CacheEntry = tuple[RegistryRequest, ResourcePath | str, Response]
_MAX_CACHE_BYTES: Final = 32 * 2**20
_ENTRY_BYTES: Final = 2048
"""Bytes of a cached response in addition to its text."""
DISCOVERY_PATHS: Final = (b"/.well-known/xregistry", b"/.xregistry")
"""Paths of discovery (core ``spec.md``, xRegistry Discovery)."""


class CoreApi(RegistryApi):
    """The core API."""

    def __init__(self, service: RegistryService) -> None:
        self._service = service
        self._kept = _ResponseCache()

    def reply(self, call: ApiCall) -> Reply:
        """Carry out a request."""
        place: ResourcePath | str | None = None
        try:
            if call.head.path in DISCOVERY_PATHS and call.head.method in READ_METHODS:
                return json_reply({"registries": [call.url]}, 200, common_headers(call.url))
            if call.head.method in ("GET", "HEAD"):
                return self._read_cached(call)
            request = parse_request(call)
            place = self._service.parse_path(request.segments, request.path)
            if call.head.method == "OPTIONS":
                return options_reply(call.url, place)
            request = with_body(request, call, place)
            answer = self._service.perform(request)
            if request.document is None and request.body is not ABSENT:
                answer = replace(answer, findings=(*find_repeated_keys(call.body), *answer.findings))
            return build_reply(call.head, request, place, answer)
        except Refusal as refusal:
            return build_error_reply(call.head, call.url, refusal, place)

    def _read_cached(self, call: ApiCall) -> Reply:
        """Return the response to a read, in one transaction, or from the cache if nothing has changed since."""
        with self._service.session(writing=False) as session:
            key = session.last_change, call.url, call.head.path, call.head.query
            kept = self._kept.get(key)
            if kept is None:
                request = parse_request(call)
                place = session.parse_path(request.segments, request.path)
                new = request, place, session.perform(request)
        if kept is not None:
            return build_reply(call.head, *kept)
        reply = build_reply(call.head, *new)
        self._kept.put(key, new, len(reply.body))
        return reply


class _ResponseCache:
    """An LRU cache of responses to reads, valid until the registry changes, with bounded memory."""

    def __init__(self) -> None:
        self._answers: OrderedDict[_CacheKey, tuple[_CacheEntry, int]] = OrderedDict()
        self._weight = 0
        self._lock = threading.Lock()

    def get(self, key: _CacheKey) -> _CacheEntry | None:
        """Return the cached response, None if there is none."""
        with self._lock:
            found = self._answers.get(key)
            if found is None:
                return None
            self._answers.move_to_end(key)
            return found[0]

    def put(self, key: _CacheKey, entry: _CacheEntry, weight: int) -> None:
        """Cache a response, unless it is large or a 304."""
        weight += _ENTRY_BYTES
        if entry[2].body is None or weight > _MAX_CACHE_BYTES // 64:
            return
        with self._lock:
            if key not in self._answers:
                self._answers[key] = entry, weight
                self._weight += weight
            while self._weight > _MAX_CACHE_BYTES:
                self._weight -= self._answers.popitem(last=False)[1][1]


# The pages.


class PagesApi(RegistryApi):
    """The core API, with pages for those who ask for HTML."""

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

    def _wants_page(self, call: ApiCall) -> bool:
        """Whether a page is requested: an entity, a collection, or an unknown path, without flags of the API."""
        if not parse_query(call.head.query).keys() <= set(FLAGS) or call.head.path.endswith(b"$details"):
            return False
        try:
            given = parse_request(call)
            return not isinstance(self._service.parse_path(given.segments, given.path), str)
        except Refusal:
            return not call.head.path.startswith(b"/.")

    def _page_reply(self, call: ApiCall) -> Reply:
        tag = ""
        try:
            given = parse_request(call)
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
            body = _render(call, (), "error", f"Error {refusal.status}", [("/", "Registry")], page=refusal)
            return Reply(refusal.status, (*_page_headers(), _VARY, (b"Cache-Control", b"no-store")), body)
        cached = ((b"ETag", tag.encode("ascii")), (b"Cache-Control", b"private, no-cache"))
        return Reply(200, (*_page_headers(), _VARY, *(cached if tag else ((b"Cache-Control", b"no-store"),))), body)


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


class _Page:
    """What one page shows, read within one transaction."""

    def __init__(self, session: RegistrySession, call: ApiCall, place: ResourcePath, given: Mapping[str, str]) -> None:
        self._session = session
        self._call = call
        self._place = place
        self._given = given

    def render(self) -> bytes:
        """Return the page.

        Raises:
            Refusal: the path does not exist, or a flag is not valid.
        """
        view, place, text = self._given["view"], self._place, self._given["q"]
        if view not in _VIEWS:
            raise Refusal("bad_request", place.xid, error_detail=f"unknown view {shorten(view, 50)}")
        groups = self._session.model.groups
        if text:
            page = self._search(text[:MAX_TEXT])
            return _render(
                self._call, groups, "search", f"Search for {text}", self._breadcrumbs(), query=text, page=page
            )
        entity: Mapping[str, Any] = {}
        document, gone = None, False
        try:
            entity, document = self._read_entity()
        except Refusal as refusal:
            if view != "history" or refusal.name != "not_found":
                raise
            gone = True
        if not view and place.is_collection:
            view = "collection"
        pages: Mapping[str, Callable[[], dict[str, Any]]] = {
            "": lambda: self._overview(entity, document),
            "collection": lambda: self._collection(place, self._given["cursor"]),
            "diff": self._difference,
            "findings": self._findings,
            "history": lambda: self._history(gone),
        }
        page, tabs = pages[view](), [] if gone else self._tabs(self._given["view"])
        return _render(self._call, groups, view, self._title(), self._breadcrumbs(), tabs=tabs, page=page)

    def _read_entity(self) -> tuple[Mapping[str, Any], bytes | None]:
        place = self._place
        if place.is_collection:
            if place.kind != "groups":
                self._perform(place.owner)  # raises if it does not exist
            return {}, None
        return self._read_with_document(place)

    def _read_with_document(self, place: ResourcePath) -> tuple[Mapping[str, Any], bytes | None]:
        """Return an entity as the API shows it, with its document if it is stored here."""
        answer = self._perform(place, details=False)
        return answer.body or {}, None if answer.document_url else answer.document

    def _overview(self, body: Mapping[str, Any], document: bytes | None) -> dict[str, Any]:
        place, model = self._place, self._session.model
        below = {"registry": model.groups, "group": place.group_type and place.group.resources}.get(place.kind) or {}
        hidden = {
            "self",
            "metaurl",
            "versionsurl",
            "versionscount",
            *(f"{each}{end}" for each in below for end in ("url", "count")),
        }
        page: dict[str, Any] = {
            "xid": place.xid,
            "attributes": {name: value for name, value in body.items() if name not in hidden},
            "collections": [self._collection(place.collection(name)) for name in below if place.kind == "group"],
        }
        if place.kind == "registry":
            page["types"] = [(name, body.get(f"{name}count", 0), kind.resources) for name, kind in model.groups.items()]
        if place.kind in ("resource", "version") and place.resource.hasdocument:
            url = body.get(place.resource.document_names[2])
            page["document"] = {"url": url, "size": len(document or b""), "text": _readable_text(document)}
        if place.kind == "resource":
            around = self._resolve((place.xid,))
            counts = around.effective_definition(place.xid)
            meta = self._perform(replace(place, kind="meta")).body or {}
            hidden = {"self", "xid", "defaultversionurl", f"{place.resource.singular}id"}
            page |= {
                "effective": None if counts is None else _effective(counts),
                "findings": _limit_findings(around.findings, 10 * _PAGE_ROWS),
                "meta": {name: value for name, value in meta.items() if name not in hidden},
                "versions": self._collection(place.collection("versions")) if body.get("versionscount") else None,
            }
        return page

    def _collection(self, place: ResourcePath, cursor: str = "") -> dict[str, Any]:
        """Return a page of a collection."""
        answer = self._perform(place, limit=_PAGE_ROWS, cursor=cursor)
        entries = msgspec.json.decode(msgspec.json.encode(answer.body))
        after, count = answer.after, answer.count
        title = place.xid.rpartition("/")[2]
        return {"title": title, "place": place, "entries": entries, "after": after, "count": count}

    def _findings(self) -> dict[str, Any]:
        place = self._place
        if place.kind not in ("registry", "group", "resource"):
            raise Refusal("api_not_found", place.xid)
        xids = [place.xid]
        if place.kind != "resource":
            within = place.xid if place.kind == "group" else ""
            connection, cursor = self._session.reader.connection, self._given["cursor"]
            xids = xids_after(connection, within, cursor, _ENTITIES_PER_PAGE + 1)
        more, xids = len(xids) > _ENTITIES_PER_PAGE, xids[:_ENTITIES_PER_PAGE]
        found = self._resolve(xids).findings if xids else ()
        about = f"This page is about {len(xids)} entities, {xids[0]} to {xids[-1]}." if len(xids) > 1 else ""
        about = about or ("This page is about one entity." if xids else "No entities.")
        limited = _limit_findings(found, _FINDINGS_PER_ENTITY if len(xids) > 1 else 10 * _PAGE_ROWS)
        return {**limited, "xid": place.xid, "about": about, "after": xids[-1] if more else ""}

    def _history(self, gone: bool) -> dict[str, Any]:
        place, cursor, writer = self._place, self._given["cursor"], self._call.sender
        xid = "" if place.kind == "registry" else place.xid
        who = writer.administrator or bool(writer.name)
        question = changes.HistoryQuery(xid, bool(xid), False, parse_entry_number(cursor, place.xid), _PAGE_ROWS, who)
        entries, more = changes.history_page(self._session.reader.connection, question, _HISTORY_BYTES)
        if gone and not entries:
            raise Refusal("not_found", place.xid)
        after = str(entries[-1]["number"]) if more else ""
        return {"xid": place.xid, "gone": gone, "who": who, "entries": entries, "after": after}

    def _difference(self) -> dict[str, Any]:
        place = self._place
        if place.kind != "resource":
            raise Refusal("api_not_found", place.xid)
        newer = self._given["to"] or str(self._read_with_document(place)[0].get("versionid") or "")
        new, new_document = self._read_with_document(replace(place, kind="version", vid=newer))
        older = self._given["from"] or str(new.get("ancestorid") or "")
        old, old_document = self._read_with_document(replace(place, kind="version", vid=older))
        one, other = ({name: each for name, each in body.items() if name not in _VERSION_ONLY} for body in (old, new))
        page: dict[str, Any] = {"xid": place.xid, "older": older, "newer": newer}
        page["attributes"] = list(changes.iter_json_differences("", one, other))
        page["documents"] = _document_difference(old_document, new_document) if place.resource.hasdocument else None
        return page

    def _search(self, text: str) -> dict[str, Any]:
        hits, more = search(self._session.reader.connection, text, self._given["cursor"], _PAGE_ROWS)
        return {"hits": hits, "after": more}

    def _resolve(self, xids: Sequence[str]) -> ResolvedEntities:
        return ResolvedEntities(self._session.reader.connection, self._session.model, xids)

    def _perform(self, place: ResourcePath, *, details: bool = True, **more: Any) -> Response:
        segments = tuple(each for each in place.xid.split("/") if each)
        most = self._call.max_answer
        return self._session.perform(
            RegistryRequest("read", segments, place.xid, "", details=details, max_answer=most, **more)
        )

    def _title(self) -> str:
        place = self._place
        if place.kind == "registry":
            return f"Registry {self._session.registry.id}"
        if place.is_collection:
            return place.xid.lstrip("/")
        if place.kind == "group":
            return f"{place.group.singular} {place.gid}"
        title = f"{place.resource.singular} {place.rid}"
        return f"{title}, version {place.vid}" if place.kind == "version" else title

    def _tabs(self, chosen: str) -> list[tuple[str, str, Mapping[str, str], bool]]:
        """Return the other views of an entity: label, xid, query, and whether it is this one."""
        place = self._place
        kinds = {"findings": ("registry", "group", "resource"), "diff": ("resource",)}
        kinds["history"] = ("registry", "group", "resource", "version")
        views = [name for name in _VIEWS if place.kind in kinds.get(name, (place.kind,))]
        tabs = [(_VIEWS[each], place.xid, {"view": each} if each else {}, each == chosen) for each in views]
        details = "$details" if place.kind in ("resource", "version") and place.resource.hasdocument else ""
        tabs.append(("JSON", f"{place.xid}{details}", _API, False))
        names = ("model", "capabilities", "export") if place.kind == "registry" else ()
        return [*tabs, *((name, f"/{name}", _API, False) for name in names)]

    def _breadcrumbs(self) -> list[tuple[str, str]]:
        parts = [each for each in self._place.xid.split("/") if each]
        return [("/", "Registry"), *(("/" + "/".join(parts[: at + 1]), each) for at, each in enumerate(parts))]


def _effective(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return the effective definition as rows, with the origins of value, type and ``required``, grouped if equal."""
    single = {name: shown[name] for name in ("envelope", "protocol") if shown[name]}
    single |= {f"envelopeoptions.{name}": each for name, each in shown["envelopeoptions"].items()}
    single |= {name: each for name, each in shown["attributes"].items() if name != "dataschema"}
    rows = [
        {"name": name, "value": each["value"], "type": "", "required": "", "origins": [((), each)]}
        for name, each in single.items()
    ]
    for each in shown["properties"]:
        origins: dict[tuple[str, str], list[str]] = {}
        for member, one in each["from"].items():
            if member != "value" or one["value"] is not None or one["overrides"]:
                origins.setdefault((one["source"], one["xid"]), []).append(member)
        row: dict[str, Any] = {
            "name": f"{each['section']}.{each['name']}",
            "value": each["value"],
            "type": each["type"],
        }
        row["required"] = {None: "", True: "yes", False: "no"}[each["required"]]
        first = next(iter(each["from"].values()))
        grouped = [(names, each["from"][names[0]]) for names in origins.values()]
        rows.append({**row, "origins": grouped if len(grouped) != 1 else [((), first)]})
    return {"base": shown["base"], "rows": rows}


def _limit_findings(findings: Sequence[Mapping[str, str]], most: int) -> dict[str, Any]:
    """Return findings with the xids that they are about, at most *most* of each."""
    rows: list[Mapping[str, str]] = []
    counts: dict[str, int] = {}
    for each in findings:
        parts = each["place"].split("/")
        xid = "/".join(parts[: 5 if len(parts) >= 5 else 3])
        counts[xid] = counts.get(xid, 0) + 1
        if counts[xid] <= most:
            rows.append({**each, "xid": xid})
    return {"rows": rows, "most": most, "hidden": len(findings) - len(rows)}


def _readable_text(document: bytes | None) -> str | None:
    """Return a document as formatted text, None if it is not text."""
    try:
        text = (document or b"").decode("utf-8")
    except UnicodeDecodeError:
        return None
    if "\0" in text:
        return None
    if len(text) <= _MAX_DOCUMENT and text.lstrip()[:1] in ("{", "["):
        try:
            return _indented(msgspec.json.decode(text))
        except (msgspec.DecodeError, RecursionError):
            return text
    return text


def _document_difference(old: bytes | None, new: bytes | None) -> str | list[tuple[str, str]]:
    """Return the lines near differences with their classes, or in words why there are none."""
    before, after = _readable_text(old), _readable_text(new)
    if old == new:
        return "The documents are equal."
    if before is None or after is None:
        return "The documents differ and are not text."
    if before == after:
        return "The documents differ only in white space."
    lines = diff_lines(before.split("\n"), after.split("\n"))
    if lines is None:
        return f"A document has more than {MAX_LINES} lines, too many to compare."
    near = {at + away for at, (sign, _) in enumerate(lines) if sign != " " for away in range(-_CONTEXT, _CONTEXT + 1)}
    shown: list[tuple[str, str]] = []
    last = -1
    for at in sorted(each for each in near if 0 <= each < len(lines))[:_MAX_DIFF_LINES]:
        if at != last + 1:
            shown.append(("", "…"))
        sign, text = lines[at]
        shown.append(({"+": "add", "-": "del"}.get(sign, "same"), f"{sign} {text}"))
        last = at
    return shown


# Rendering.


class _ValueBudget:
    """Limits the number of values on one page."""

    def __init__(self) -> None:
        self._left = _MAX_VALUES

    def first(self, values: Iterable[T]) -> list[T]:
        """Return the first values, as many as are left."""
        shown = list(islice(values, self._left))
        self._left -= len(shown)
        return shown


def _render(
    call: ApiCall, groups: Iterable[str], view: str, title: str, crumbs: list[tuple[str, str]], **more: Any
) -> bytes:
    """Return a whole page; *groups* are the plural names of group types, by which references are recognised."""
    root, known = "/".join(["", *call.url.split("/")[3:]]).rstrip("/"), frozenset(groups)

    def url(xid: str, query: Mapping[str, str]) -> str:
        """Return the URL of a page; the URL of the registry may have a path."""
        return f"{root}{quote(xid, safe='/:@~$')}{'?' if query else ''}{urlencode(query)}"

    def reference(text: str) -> str:
        found = _XID.fullmatch(text)
        return found[1] if found is not None and found[1].split("/")[1] in known else ""

    given = {"query": "", "tabs": (), "budget": _ValueBudget(), "style": Markup(_read("pages.css")), **more}
    text = _template().render(view=view, title=title, crumbs=crumbs, url=url, reference=reference, **given)
    return text.encode("utf-8", "replace")


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_printable)
    environment.filters |= {"shorten": shorten, "indented": _indented, "compact": _compact, "anchor": _anchor}
    environment.tests |= {"web_url": _is_web_url, "too_deep": _is_too_deep}
    environment.globals |= {"sources": _SOURCES, "api": _API, "max_text": _MAX_TEXT, "max_document": _MAX_DOCUMENT}
    environment.globals |= {"max_changes": _PAGE_ROWS, "max_different": 4 * _PAGE_ROWS}
    return environment.from_string(_read("pages.html"))


@cache
def _read(name: str) -> str:
    return files("registry.http").joinpath(name).read_text(encoding="utf-8")


def _printable(value: Any) -> Any:
    return to_xml_text(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def shorten(text: str, max_length: int = _MAX_TEXT) -> str:
    """Return a text, shortened to *max_length* characters."""
    return text if len(text) <= max_length else f"{text[:max_length]}… ({len(text)} characters)"


def _indented(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode("utf-8")


def _compact(value: Any) -> str:
    return msgspec.json.encode(value).decode("utf-8")


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _is_web_url(text: str) -> bool:
    plain = len(text) <= _MAX_TEXT and text.isprintable() and " " not in text
    return plain and text.startswith(("https://", "http://"))


def _is_too_deep(value: Any, depth: int = _MAX_DEPTH) -> bool:
    nested: Iterable[Any] = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return not depth or any(_is_too_deep(each, depth - 1) for each in nested)


@cache
def _page_headers() -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers that all pages have."""
    digest = base64.b64encode(hashlib.sha256(_read("pages.css").encode("utf-8")).digest()).decode("ascii")
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; form-action 'self'; base-uri 'none'"
    return (
        (b"Content-Type", b"text/html; charset=utf-8"),
        (b"Content-Security-Policy", f"{policy}; frame-ancestors 'none'".encode("ascii")),
        (b"X-Content-Type-Options", b"nosniff"),
        (b"Referrer-Policy", b"no-referrer"),
        (b"Cross-Origin-Opener-Policy", b"same-origin"),
        (b"Cross-Origin-Resource-Policy", b"same-origin"),
    )
