"""The face of CNCF Message Catalog 0.1 (section 4), and the look-up of versions by their URIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from bindings.http.problems import Reply
from bindings.http.request import Head
from registry.core.service import RegistryService
from registry.errors import Refusal
from registry.faces.messagecatalog.paths import GROUPS, Target, split_uri, target_of
from registry.faces.messagecatalog.reading import FILTERS, CatalogReader, Page, Representation
from registry.faces.messagecatalog.writing import CatalogWriter, Done
from registry.http.face import Call
from registry.http.replies import JSON, MAX_FINDINGS, PROBLEM, finding_header
from registry.http.requests import limit_of, query_of, seen_before, tree_of
from registry.replication.applying import Applier, Author
from registry.replication.changes import decoded, encoded
from registry.replication.feed import PAGE, changes_after

METHODS: Final[Mapping[str, tuple[str, ...]]] = {
    "catalog": ("GET", "HEAD", "PUT", "POST", "OPTIONS"),
    "group": ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"),
    "definitions": ("GET", "HEAD", "POST", "DELETE", "OPTIONS"),
    "definition": ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"),
    "versions": ("GET", "HEAD", "OPTIONS"),
    "version": ("GET", "HEAD", "DELETE", "OPTIONS"),
}
"""What can be done where."""
_CONFLICTS: Final = frozenset(("compatibility_violation", "mismatched_version_attribute"))
_Headers = list[tuple[bytes, bytes]]


class MessageCatalogFace:
    """See :class:`registry.http.face.Face`. ``?definitions`` and ``?versions`` show documents that are whole."""

    def __init__(self, service: RegistryService) -> None:
        self._service = service

    def reply(self, call: Call) -> Reply:
        """Carry a request out."""
        target, method = target_of(call.path), call.head.method
        if method not in METHODS[target.kind]:
            raise Refusal("action_not_supported", target.path or "/", action=method, allow=_allow(target).decode())
        if method == "OPTIONS":
            return self._options(call, target)
        if method in ("GET", "HEAD"):
            changes = target.kind == "catalog" and "changes" in query_of(call.head.query)
            return self._give(call) if changes else self._read(call, target)
        return self._take(call) if target.kind == "catalog" and method == "POST" else self._write(call, target)

    def refused(self, head: Head, url: str, refusal: Refusal) -> Reply:
        """Report a refusal as a problem (RFC 9457); what a policy or an authority forbids is a conflict."""
        return refusal_reply(refusal)

    def _authority(self, call: Call) -> str:
        return self._service.authority or call.url

    def _give(self, call: Call) -> Reply:
        """Answer with the changes after a position, for other catalogs (:mod:`registry.replication`)."""
        query = query_of(call.head.query)
        position = query["changes"][0]
        if not (position.isascii() and position.isdecimal() and len(position) < 19):
            raise Refusal("bad_request", "/", error_detail="changes needs to be a position")
        limit = limit_of(query["limit"][0] if "limit" in query else None, "/") or PAGE
        with self._service.session(writing=False) as session:
            page = changes_after(session.reader, int(position), self._authority(call), limit, whole="whole" in query)
        return Reply(200, ((b"Content-Type", JSON),), encoded(page))

    def _take(self, call: Call) -> Reply:
        """Take in the changes of another catalog; a sender that may write nothing is refused before the write lock."""
        if not call.writer.writes:
            raise Refusal("forbidden", "/", error_detail="changes are for writers")
        page = decoded(call.body)
        if page is None:
            raise Refusal("parsing_data", "/", error_detail="the body needs to be changes of a catalog")
        if len(page.changes) > PAGE:
            raise Refusal("bad_request", "/", error_detail=f"a page has {PAGE} changes at most")
        with self._service.session(writing=True) as session:
            author = Author(call.writer.name, call.writer.administrator, call.writer.may_write)
            applier = Applier(session, author, self._authority(call))
            taken = applier.apply(page)
            catalog = applier.marks.catalog
        summary = {
            "catalog": catalog,
            "applied": taken.applied,
            "refused": taken.reported,
            "refusedcount": taken.refused,
            "whole": True,
        }
        return Reply(200, ((b"Content-Type", JSON),), msgspec.json.encode(summary))

    def _options(self, call: Call, target: Target) -> Reply:
        headers = ((b"Allow", _allow(target)), (b"Content-Type", JSON))
        if target.kind != "catalog":
            return Reply(200, headers[:1])
        with self._service.session(writing=False) as session:
            writer = call.writer
            update = writer.administrator or writer.may_write(f"/{GROUPS}/*")
            groups = session.reader.groups(f"/{GROUPS}")
            update = update or any(writer.may_write(each.xid) for _, each in zip(range(1000), groups, strict=False))
        features = {"filterattributes": list(FILTERS), "pagination": True, "update": update, "changes": True}
        return Reply(200, headers, msgspec.json.encode(features))

    def _read(self, call: Call, target: Target) -> Reply:
        query = query_of(call.head.query)
        page = _page(call, query, target)
        with self._service.session(writing=False) as session:
            reader = CatalogReader(session, self._authority(call))
            shown = _shown(reader, target, page, query)
        if shown.etag and seen_before(call.head, shown.etag):
            return Reply(304, ((b"ETag", shown.etag.encode("ascii")),))
        headers: _Headers = [(b"Content-Type", JSON)]
        if shown.etag:
            headers.append((b"ETag", shown.etag.encode("ascii")))
        if shown.after:
            kept = [(name, value) for name, values in query.items() for value in values]
            kept = [(name, value) for name, value in kept if name not in ("limit", "cursor")]
            more = urlencode([*kept, ("limit", str(page.limit)), ("cursor", shown.after)])
            headers.append((b"Link", f'<{call.url}{target.path}?{more}>;rel="next"'.encode("ascii", "replace")))
        return Reply(200, tuple(headers), msgspec.json.encode(shown.body))

    def _write(self, call: Call, target: Target) -> Reply:
        body = tree_of(call.body, target.path or "/")
        with self._service.session(writing=True) as session:
            writer = CatalogWriter(session, call, self._authority(call))
            done = _written(writer, call, target, body)
            headers: _Headers = [(b"xRegistry-xregcorrelationid", done.answer.interaction.encode("ascii"))]
            headers = [] if not done.answer.interaction else headers
            headers += [finding_header(each) for each in done.answer.findings[:MAX_FINDINGS]]
            if call.head.method == "DELETE" or done.target.kind == "catalog":
                return Reply(204, tuple(headers))
            reader = CatalogReader(session, self._authority(call))
            whole = done.target.kind == "definition"
            shown = _show(reader, done.target, call.max_answer, whole=whole)
        if shown.etag:
            headers.append((b"ETag", shown.etag.encode("ascii")))
        if done.created:
            headers.append((b"Location", f"{call.url}{done.target.path}".encode("ascii", "replace")))
        return Reply(201 if done.created else 200, ((b"Content-Type", JSON), *headers), msgspec.json.encode(shown.body))


class DefinitionLookup:
    """``GET /messagedefinition?uri=``: a version by its URI (section 4.4.3), of the catalog at the path *catalog*."""

    def __init__(self, service: RegistryService, catalog: str = "/messagecatalog") -> None:
        self._service = service
        self._catalog = catalog

    def reply(self, call: Call) -> Reply:
        """Carry a request out."""
        if call.path.strip(b"/"):
            raise Refusal("api_not_found", call.path.decode("latin-1"))
        allow = (b"Allow", b"GET, HEAD, OPTIONS")
        if call.head.method == "OPTIONS":
            return Reply(200, (allow,))
        if call.head.method not in ("GET", "HEAD"):
            raise Refusal("action_not_supported", "/", action=call.head.method, allow=allow[1].decode())
        values = query_of(call.head.query).get("uri", [])
        if len(values) != 1:
            raise Refusal("bad_request", "/", error_detail="uri is needed exactly once")
        with self._service.session(writing=False) as session:
            shown = _looked_up(
                CatalogReader(session, self._service.authority or f"{call.registry}{self._catalog}"), values[0]
            )
        etag = (b"ETag", shown.etag.encode("ascii"))
        if seen_before(call.head, shown.etag):
            return Reply(304, (etag,))
        return Reply(200, ((b"Content-Type", JSON), etag), msgspec.json.encode(shown.body))

    def refused(self, head: Head, url: str, refusal: Refusal) -> Reply:
        """Report a refusal."""
        return refusal_reply(refusal)


def refusal_reply(refusal: Refusal) -> Reply:
    """Return the problem that a refusal is to clients of this face."""
    status = 409 if refusal.name in _CONFLICTS else refusal.status
    headers: _Headers = [(b"Content-Type", PROBLEM)]
    allow = refusal.args_given.pop("allow", "")
    if allow:
        headers.append((b"Allow", allow.encode("ascii")))
    if refusal.name in ("server_busy", "rate_limited"):
        headers.append((b"Retry-After", refusal.args_given.get("seconds", "1").encode("ascii")))
    return Reply(status, tuple(headers), msgspec.json.encode({**refusal.body(), "status": status}))


def _looked_up(reader: CatalogReader, uri: str) -> Representation:
    split = split_uri(uri)
    if split is not None:
        authority, target = split
        version = reader.version(target) if target.version else reader.definition(target, 2**63, whole=False)
        if version.body["authority"].rstrip("/") == authority:
            return version
    raise Refusal("not_found", uri)


def _shown(reader: CatalogReader, target: Target, page: Page, query: Mapping[str, list[str]]) -> Representation:
    if target.kind == "catalog":
        return reader.groups(page, whole="definitions" in query)
    if target.kind == "definitions":
        return reader.definitions(target, page)
    if target.kind == "versions":
        return reader.versions(target, page)
    flag = {"group": "definitions", "definition": "versions"}.get(target.kind, "")
    return _show(reader, target, page.weight, whole=flag in query)


def _show(reader: CatalogReader, target: Target, weight: int, *, whole: bool) -> Representation:
    if target.kind == "group":
        return reader.group(target, weight, whole=whole)
    return reader.definition(target, weight, whole=whole) if target.kind == "definition" else reader.version(target)


def _written(writer: CatalogWriter, call: Call, target: Target, body: Any) -> Done:
    if call.head.method == "DELETE":
        return writer.delete(target)
    if not isinstance(body, Mapping):
        raise Refusal("parsing_data", target.path or "/", error_detail="the body needs to be a JSON object")
    if call.head.method == "POST":
        return writer.post_version(target, body)
    return {"catalog": lambda: writer.put_groups(body), "group": lambda: writer.put_group(target, body)}.get(
        target.kind, lambda: writer.put_definition(target, body)
    )()


def _page(call: Call, query: Mapping[str, list[str]], target: Target) -> Page:
    path = target.path or "/"
    for name in ("limit", "cursor", *FILTERS):
        if len(query.get(name, ())) > 1:
            raise Refusal("bad_request", path, error_detail=f"{name} is given more than once")
    limit = limit_of(query["limit"][0] if "limit" in query else None, path)
    cursor = query.get("cursor", [""])[0]
    if not (cursor.isascii() and (cursor.isprintable())):
        raise Refusal("bad_request", path, error_detail="the cursor is not from this registry")
    wanted = {name: query[name][0] for name in FILTERS if name in query}
    return Page(min(limit or call.pages.usual, call.pages.most), cursor, wanted, call.max_answer)


def _allow(target: Target) -> bytes:
    return ", ".join(METHODS[target.kind]).encode("ascii")
