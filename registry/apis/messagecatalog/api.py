"""The API of CNCF Message Catalog 0.1 (section 4), and the lookup of versions by URI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from bindings.http.request import Reply, RequestHead
from catalog.dialects.messages import format_name_of
from registry.apis.messagecatalog.documents import (
    FILTERS,
    GROUPS,
    MESSAGES,
    VERSION_ATTRIBUTES,
    CatalogPath,
    CatalogReader,
    ListRequest,
    Representation,
    check_new_id,
    definitions_in,
    group_attributes,
    iter_versions_in,
    parse_catalog_path,
    split_uri,
    version_attributes,
)
from registry.core.ancestry import parse_number
from registry.core.requests import ABSENT, RegistryRequest, Response, Verb
from registry.core.service import RegistryService, RegistrySession
from registry.errors import Refusal, invalid_value
from registry.http.access import (
    JSON,
    MAX_FINDINGS,
    PROBLEM_TYPE,
    ApiCall,
    finding_header,
    matches_etag,
    parse_etags,
    parse_json,
    parse_limit,
    parse_query,
)
from registry.replication.applying import ChangeApplier, ChangeAuthor
from registry.replication.entities import encode_page, parse_page
from registry.replication.peers import PAGE_CHANGES, changes_after
from registry.store.entities import GroupEntity, Version
from registry.store.history import Marks

# Writes: one core request each, in one transaction with its lookups.

_MAX_NUMBER: Final = 10**18


@dataclass(frozen=True, slots=True)
class CatalogWriteResult:
    """The result of a write: the core's response, the path to show, and whether it is new."""

    response: Response
    target: CatalogPath
    created: bool = False


class CatalogWriter:
    """Writes within one transaction for one call. All methods raise Refusal, which rolls it back."""

    def __init__(self, session: RegistrySession, call: ApiCall, authority: str) -> None:
        self._session = session
        self._reader = session.reader
        self._call = call
        self._catalog = CatalogReader(session, authority)
        self._authority = authority
        self._marks = Marks(session.reader.connection)
        self._highest: dict[str, int] = {}

    def put_groups(self, body: Mapping[str, Any]) -> CatalogWriteResult:
        """Write the groups of a catalog's document."""
        listed = body.get("groups")
        if not isinstance(listed, list) or not all(isinstance(each, Mapping) for each in listed):
            raise invalid_value("/", "groups", "must be a list of objects")
        given: dict[str, Any] = {}
        for each in listed:
            name = check_new_id(each.get("id"), "/")
            if name in given:
                raise invalid_value("/", "groups", f"contains {name} twice")
            given[name] = self._core_group_body(CatalogPath("group", name), each)
        answer = self._perform("patch", CatalogPath("catalog"), given)
        self._check_relations(given)
        return CatalogWriteResult(answer, CatalogPath("catalog"))

    def put_group(self, target: CatalogPath, body: Mapping[str, Any]) -> CatalogWriteResult:
        """Create or update a group, with the definitions in its document."""
        check_new_id(target.group, target.path)
        created = self._reader.group(f"/{GROUPS}/{target.group}") is None
        given = self._core_group_body(target, body)
        answer = self._perform("patch", target, given)
        self._check_relations({target.group: given})
        return CatalogWriteResult(answer, target, created)

    def put_definition(self, target: CatalogPath, body: Mapping[str, Any]) -> CatalogWriteResult:
        """Write a whole definition with its versions; existing ones must be equal."""
        group = self._catalog.find_group(target)
        created = self._catalog.latest_version(target) is None
        versions = self._new_versions(target, group, body)
        if versions:
            answer = self._perform("patch", target, {"versions": versions})
        else:
            answer = Response(None)
        self._check_relations({target.group: {MESSAGES: {target.definition: {"versions": versions}}}})
        return CatalogWriteResult(answer, target, created)

    def post_version(self, target: CatalogPath, body: Mapping[str, Any]) -> CatalogWriteResult:
        """Add a version to a definition, which may be new; its number is the next one."""
        name = check_new_id(body.get("id"), target.path)
        group = self._catalog.find_group(target)
        where = target.child_path("definition", definition=name)
        latest = self._catalog.latest_version(where)
        given = self._inherit_attributes(version_attributes(body, name, group, where.path), latest, where)
        number = str(self._next_number(where))
        place = where.child_path("version", version=number)
        self._check_conditions(where, latest)
        answer = self._perform("replace", place, given, conditional=False)
        self._check_relations({target.group: {MESSAGES: {name: {"versions": {number: given}}}}})
        return CatalogWriteResult(answer, place, True)

    def delete(self, target: CatalogPath) -> CatalogWriteResult:
        """Delete the entity at the path, with everything in it."""
        if target.version or target.definition:
            self._catalog.find_definition(target)
        elif target.group:
            self._catalog.find_group(target)
        return CatalogWriteResult(self._perform("delete", target, ABSENT), target)

    def _perform(self, verb: Verb, target: CatalogPath, body: Any, *, conditional: bool = True) -> Response:
        call = self._call
        return self._session.perform(
            RegistryRequest(
                verb,
                target.segments,
                target.path or "/",
                call.registry,
                body=body,
                who=call.sender.name,
                administrator=call.sender.administrator,
                may_write=call.sender.may_write,
                matches=parse_etags(call.head.header(b"if-match")) if conditional else None,
                max_answer=call.max_answer,
                known=parse_etags(call.head.header(b"if-none-match")) or () if conditional else (),
            )
        )

    def _check_conditions(self, target: CatalogPath, latest: Version | None) -> None:
        """Check the conditions for a new version against the current definition."""
        head = self._call.head
        matches, known = (parse_etags(head.header(name)) for name in (b"if-match", b"if-none-match"))
        if matches is None and known is None:
            return
        there: set[str] = set()
        if latest is not None:
            there = {"*", self._catalog.show_definition(target, self._call.max_answer, whole=False).etag}
        if (matches is not None and not there & set(matches)) or there & set(known or ()):
            raise Refusal("precondition_failed", target.path)

    def _core_group_body(self, target: CatalogPath, body: Mapping[str, Any]) -> dict[str, Any]:
        known = self._reader.group(f"/{GROUPS}/{target.group}")
        given = group_attributes(body, target.group, known)
        if known is not None:
            given = self._check_format(target, known, given)
        group = known or GroupEntity(
            f"/{GROUPS}", target.group, 0, "", "", {k: v for k, v in given.items() if v is not None}
        )
        messages: dict[str, Any] = {}
        for each in definitions_in(body, target.path):
            name = check_new_id(each.get("id"), target.path)
            where = target.child_path("definition", definition=name)
            versions = messages.setdefault(name, {"versions": {}})["versions"]
            versions |= self._new_versions(where, group, each, versions)
        messages = {name: each for name, each in messages.items() if each["versions"]}
        return {**given, **({MESSAGES: messages} if messages else {})}

    def _check_format(self, target: CatalogPath, known: GroupEntity, given: dict[str, Any]) -> dict[str, Any]:
        """Check the format; it may change only while the group has no definitions."""
        if not {"envelope", "protocol"} & given.keys():
            return given
        now = format_name_of(known.attributes.get("envelope"), known.attributes.get("protocol"))
        if format_name_of(given.get("envelope"), given.get("protocol")) == now:
            return {name: value for name, value in given.items() if name not in ("envelope", "protocol")}
        wanted = format_name_of(given.get("envelope"), given.get("protocol"))
        if not all(wanted == each and not now for each in self._catalog.iter_formats(target)):
            raise Refusal("conflict", target.path, error_detail="the group has definitions of another format")
        return {"envelope": None, "protocol": None, **given}

    def _new_versions(
        self, target: CatalogPath, group: GroupEntity, body: Mapping[str, Any], before: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the new versions of a document, by number.

        An existing version is skipped if equal, and a conflict if different.
        """
        check_new_id(target.definition, target.path)
        versions: dict[str, Any] = dict(before or {})
        new: dict[str, Any] = {}
        latest = self._catalog.latest_version(target)
        for each in iter_versions_in(body, target.path):
            given = version_attributes(each, target.definition, group, target.path)
            given = {name: value for name, value in given.items() if value is not None}
            if latest is not None or versions:
                first = latest.attributes if latest is not None else next(iter(versions.values()))
                self._check_authority(given, first.get("authority"), target)
            elif given.get("authority") in ("", self._authority):
                del given["authority"]
            number = self._version_number(each, target, versions)
            known = self._reader.version(f"{target.xid}/versions/{number}")
            there = known.attributes if known is not None else versions.get(number)
            if there is not None and there != given:
                why = f"version {number} already exists and differs"
                raise Refusal("conflict", target.path, error_detail=why)
            if there is None:
                versions[number] = new[number] = given
        return new

    def _version_number(self, body: Mapping[str, Any], target: CatalogPath, versions: Mapping[str, Any]) -> str:
        given = body.get("version")
        if given is None:
            taken = [parse_number(name) or 0 for name in versions]
            return str(max([self._next_number(target) - 1, *taken]) + 1)
        if isinstance(given, str) and parse_number(given) is None:
            return given  # ids created by the core API are accepted
        number = parse_number(given) if isinstance(given, str) else given
        if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < _MAX_NUMBER:
            raise invalid_value(target.path, "version", "must be a positive integer")
        return str(number)

    def _next_number(self, target: CatalogPath) -> int:
        """Return the next version number of a definition: above all existing and all former ones.

        Former ones are known from marks, which remain after deletions.
        """
        if target.xid not in self._highest:
            resource = self._reader.resource(target.xid)
            named = [each.id for each in self._reader.iter_versions(resource.versions)] if resource is not None else []
            named += self._marks.version_ids(target.xid)
            given = resource.counter if resource is not None else 0
            self._highest[target.xid] = max([given, *(parse_number(each) or 0 for each in named)])
        return self._highest[target.xid] + 1

    def _inherit_attributes(self, given: dict[str, Any], latest: Version | None, target: CatalogPath) -> dict[str, Any]:
        """Overlay attributes of the latest version that belong to the definition, or that 0.1 cannot express."""
        if latest is not None:
            self._check_authority(given, latest.attributes.get("authority"), target)
            kept = {name: value for name, value in latest.attributes.items() if name not in VERSION_ATTRIBUTES}
            given = {**kept, **given}
        elif given.get("authority") in ("", self._authority):
            del given["authority"]
        return {name: value for name, value in given.items() if value is not None}

    def _check_authority(self, given: dict[str, Any], known: object, target: CatalogPath) -> None:
        """Raise if a version has another authority than its definition; it is immutable (section 2.2.4)."""
        asked = given.get("authority") or known or self._authority
        if asked != (known or self._authority):
            why = f"the authority of this definition is {known or self._authority}"
            raise Refusal("conflict", target.path, error_detail=why)
        given.pop("authority", None)
        if known:
            given["authority"] = known

    def _check_relations(self, groups: Mapping[str, Any]) -> None:
        """Raise if ``relatedto`` names a definition outside the group (2.2.4); called after all are written."""
        for group, body in groups.items():
            for name, definition in body.get(MESSAGES, {}).items():
                for version in definition["versions"].values():
                    other = version.get("relatedto")
                    where = CatalogPath("definition", group, name)
                    if (
                        other is not None
                        and self._reader.resource(where.child_path("definition", definition=other).xid) is None
                    ):
                        raise invalid_value(where.path, "relatedto", f"names {other}, which is not in this group")


METHODS: Final[Mapping[str, tuple[str, ...]]] = {
    "catalog": ("GET", "HEAD", "PUT", "POST", "OPTIONS"),
    "group": ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"),
    "definitions": ("GET", "HEAD", "POST", "DELETE", "OPTIONS"),
    "definition": ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"),
    "versions": ("GET", "HEAD", "OPTIONS"),
    "version": ("GET", "HEAD", "DELETE", "OPTIONS"),
}
"""Allowed methods by kind of path."""
_CONFLICTS: Final = frozenset(("compatibility_violation", "mismatched_version_attribute"))
_Headers = list[tuple[bytes, bytes]]


class MessageCatalogApi:
    """Implements :class:`registry.http.access.RegistryApi`. ``?definitions`` and ``?versions`` return whole
    documents.
    """

    def __init__(self, service: RegistryService) -> None:
        self._service = service

    def reply(self, call: ApiCall) -> Reply:
        """Carry out a request."""
        target, method = parse_catalog_path(call.path), call.head.method
        if method not in METHODS[target.kind]:
            raise Refusal("action_not_supported", target.path or "/", action=method, allow=_methods_at(target).decode())
        if method == "OPTIONS":
            return self._options_reply(call, target)
        if method in ("GET", "HEAD"):
            changes = target.kind == "catalog" and "changes" in parse_query(call.head.query)
            return self._send_changes(call) if changes else self._reply_to_read(call, target)
        return (
            self._apply_changes(call)
            if target.kind == "catalog" and method == "POST"
            else self._reply_to_write(call, target)
        )

    def error_reply(self, head: RequestHead, url: str, refusal: Refusal) -> Reply:
        """Return the problem (RFC 9457) of a refusal; violated policies and authorities are conflicts."""
        return problem_reply(refusal)

    def _default_authority(self, call: ApiCall) -> str:
        return self._service.authority or call.url

    def _send_changes(self, call: ApiCall) -> Reply:
        """Return the changes after a position, for other catalogs (:mod:`registry.replication`)."""
        query = parse_query(call.head.query)
        position = query["changes"][0]
        if not (position.isascii() and position.isdecimal() and len(position) < 19):
            raise Refusal("bad_request", "/", error_detail="changes must be a position")
        limit = parse_limit(query["limit"][0] if "limit" in query else None, "/") or PAGE_CHANGES
        with self._service.session(writing=False) as session:
            page = changes_after(
                session.reader, int(position), self._default_authority(call), limit, whole="whole" in query
            )
        return Reply(200, ((b"Content-Type", JSON),), encode_page(page))

    def _apply_changes(self, call: ApiCall) -> Reply:
        """Apply the changes of another catalog; senders without any write permission are refused before locking."""
        if not call.sender.writes:
            raise Refusal("forbidden", "/", error_detail="only writers may send changes")
        page = parse_page(call.body)
        if page is None:
            raise Refusal("parsing_data", "/", error_detail="the body is not a valid page of changes")
        if len(page.changes) > PAGE_CHANGES:
            raise Refusal("bad_request", "/", error_detail=f"a page must not exceed {PAGE_CHANGES} changes")
        with self._service.session(writing=True) as session:
            author = ChangeAuthor(call.sender.name, call.sender.administrator, call.sender.may_write)
            applier = ChangeApplier(session, author, self._default_authority(call))
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

    def _options_reply(self, call: ApiCall, target: CatalogPath) -> Reply:
        headers = ((b"Allow", _methods_at(target)), (b"Content-Type", JSON))
        if target.kind != "catalog":
            return Reply(200, headers[:1])
        with self._service.session(writing=False) as session:
            writer = call.sender
            update = writer.administrator or writer.may_write(f"/{GROUPS}/*")
            groups = session.reader.iter_groups(f"/{GROUPS}")
            update = update or any(writer.may_write(each.xid) for _, each in zip(range(1000), groups, strict=False))
        features = {"filterattributes": list(FILTERS), "pagination": True, "update": update, "changes": True}
        return Reply(200, headers, msgspec.json.encode(features))

    def _reply_to_read(self, call: ApiCall, target: CatalogPath) -> Reply:
        query = parse_query(call.head.query)
        page = _parse_list_request(call, query, target)
        with self._service.session(writing=False) as session:
            reader = CatalogReader(session, self._default_authority(call))
            shown = _read_target(reader, target, page, query)
        if shown.etag and matches_etag(call.head, shown.etag):
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

    def _reply_to_write(self, call: ApiCall, target: CatalogPath) -> Reply:
        body = parse_json(call.body, target.path or "/")
        with self._service.session(writing=True) as session:
            writer = CatalogWriter(session, call, self._default_authority(call))
            done = _write_target(writer, call, target, body)
            headers: _Headers = [(b"xRegistry-xregcorrelationid", done.response.interaction.encode("ascii"))]
            headers = [] if not done.response.interaction else headers
            headers += [finding_header(each) for each in done.response.findings[:MAX_FINDINGS]]
            if call.head.method == "DELETE" or done.target.kind == "catalog":
                return Reply(204, tuple(headers))
            reader = CatalogReader(session, self._default_authority(call))
            whole = done.target.kind == "definition"
            shown = _read_entity(reader, done.target, call.max_answer, whole=whole)
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

    def reply(self, call: ApiCall) -> Reply:
        """Carry out a request."""
        if call.path.strip(b"/"):
            raise Refusal("api_not_found", call.path.decode("latin-1"))
        allow = (b"Allow", b"GET, HEAD, OPTIONS")
        if call.head.method == "OPTIONS":
            return Reply(200, (allow,))
        if call.head.method not in ("GET", "HEAD"):
            raise Refusal("action_not_supported", "/", action=call.head.method, allow=allow[1].decode())
        values = parse_query(call.head.query).get("uri", [])
        if len(values) != 1:
            raise Refusal("bad_request", "/", error_detail="uri must occur exactly once")
        with self._service.session(writing=False) as session:
            shown = _find_by_uri(
                CatalogReader(session, self._service.authority or f"{call.registry}{self._catalog}"), values[0]
            )
        etag = (b"ETag", shown.etag.encode("ascii"))
        if matches_etag(call.head, shown.etag):
            return Reply(304, (etag,))
        return Reply(200, ((b"Content-Type", JSON), etag), msgspec.json.encode(shown.body))

    def error_reply(self, head: RequestHead, url: str, refusal: Refusal) -> Reply:
        """Return the problem of a refusal."""
        return problem_reply(refusal)


def problem_reply(refusal: Refusal) -> Reply:
    """Return the problem reply of a refusal."""
    status = 409 if refusal.name in _CONFLICTS else refusal.status
    headers: _Headers = [(b"Content-Type", PROBLEM_TYPE)]
    allow = refusal.title_args.pop("allow", "")
    if allow:
        headers.append((b"Allow", allow.encode("ascii")))
    if refusal.name in ("server_busy", "rate_limited"):
        headers.append((b"Retry-After", refusal.title_args.get("seconds", "1").encode("ascii")))
    return Reply(status, tuple(headers), msgspec.json.encode({**refusal.problem_json(), "status": status}))


def _find_by_uri(reader: CatalogReader, uri: str) -> Representation:
    split = split_uri(uri)
    if split is not None:
        authority, target = split
        version = reader.show_version(target) if target.version else reader.show_definition(target, 2**63, whole=False)
        if version.body["authority"].rstrip("/") == authority:
            return version
    raise Refusal("not_found", uri)


def _read_target(
    reader: CatalogReader, target: CatalogPath, page: ListRequest, query: Mapping[str, list[str]]
) -> Representation:
    if target.kind == "catalog":
        return reader.list_groups(page, whole="definitions" in query)
    if target.kind == "definitions":
        return reader.list_definitions(target, page)
    if target.kind == "versions":
        return reader.list_versions(target, page)
    flag = {"group": "definitions", "definition": "versions"}.get(target.kind, "")
    return _read_entity(reader, target, page.max_bytes, whole=flag in query)


def _read_entity(reader: CatalogReader, target: CatalogPath, weight: int, *, whole: bool) -> Representation:
    if target.kind == "group":
        return reader.show_group(target, weight, whole=whole)
    return (
        reader.show_definition(target, weight, whole=whole)
        if target.kind == "definition"
        else reader.show_version(target)
    )


def _write_target(writer: CatalogWriter, call: ApiCall, target: CatalogPath, body: Any) -> CatalogWriteResult:
    if call.head.method == "DELETE":
        return writer.delete(target)
    if not isinstance(body, Mapping):
        raise Refusal("parsing_data", target.path or "/", error_detail="the body must be a JSON object")
    if call.head.method == "POST":
        return writer.post_version(target, body)
    return {"catalog": lambda: writer.put_groups(body), "group": lambda: writer.put_group(target, body)}.get(
        target.kind, lambda: writer.put_definition(target, body)
    )()


def _parse_list_request(call: ApiCall, query: Mapping[str, list[str]], target: CatalogPath) -> ListRequest:
    path = target.path or "/"
    for name in ("limit", "cursor", *FILTERS):
        if len(query.get(name, ())) > 1:
            raise Refusal("bad_request", path, error_detail=f"{name} occurs more than once")
    limit = parse_limit(query["limit"][0] if "limit" in query else None, path)
    cursor = query.get("cursor", [""])[0]
    if not (cursor.isascii() and (cursor.isprintable())):
        raise Refusal("bad_request", path, error_detail="the cursor is not valid for this registry")
    wanted = {name: query[name][0] for name in FILTERS if name in query}
    return ListRequest(min(limit or call.pages.usual, call.pages.most), cursor, wanted, call.max_answer)


def _methods_at(target: CatalogPath) -> bytes:
    return ", ".join(METHODS[target.kind]).encode("ascii")
