"""The API of CNCF Message Catalog 0.1 (section 4), and the lookup of versions by URI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from bindings.http.request import Reply, RequestHead
from catalog.dialects.messages import format_name_of
from catalog.values import parse_whole_number
from registry.apis.messagecatalog.documents import (
    FILTERS,
    GROUPS,
    MESSAGES,
    VERSION_ATTRIBUTES,
    CatalogReader,
    ListRequest,
    Representation,
    catalog_path,
    check_new_id,
    definitions_in,
    group_attributes,
    iter_versions_in,
    objects_in,
    parse_segments,
    split_uri,
    version_attributes,
)
from registry.core.ancestry import parse_number
from registry.core.requests import ABSENT, ResourcePath, Response, Verb
from registry.core.service import RegistryService, RegistrySession
from registry.core.views import require_group, require_owner, require_shown
from registry.errors import Refusal, invalid_value
from registry.http.access import (
    MAX_FINDINGS,
    PROBLEM_TYPE,
    ApiCall,
    RegistryApi,
    finding_header,
    iter_query,
    json_reply,
    matches_etag,
    next_link,
    parse_etags,
    parse_json,
    parse_limit,
    parse_query,
    retry_headers,
)
from registry.replication.applying import ChangeApplier
from registry.replication.entities import parse_page
from registry.replication.peers import PAGE_CHANGES, changes_after
from registry.store.entities import GroupEntity, Version
from registry.store.history import Marks

# Writes: one core request each, in one transaction with its lookups.

_MAX_NUMBER: Final = 10**18


@dataclass(frozen=True, slots=True)
class CatalogWriteResult:
    """The result of a write: the core's response, what to show, and whether it is new."""

    response: Response
    target: ResourcePath
    created: bool = False


class CatalogWriter(CatalogReader):
    """Writes within one transaction for one call. All methods raise Refusal, which rolls it back."""

    def __init__(self, session: RegistrySession, call: ApiCall, authority: str) -> None:
        super().__init__(session, authority, call.max_answer)
        self._call = call
        self._marks = Marks(session.reader.connection)
        self._highest: dict[str, int] = {}

    def write(self, target: ResourcePath, body: Any) -> CatalogWriteResult:
        """Carry out the request."""
        if self._call.head.method == "DELETE":
            return self._delete(target)
        if not isinstance(body, Mapping):
            raise Refusal("parsing_data", target.xid, error_detail="the body must be a JSON object")
        if self._call.head.method == "POST":
            return self._add_version(target, body)
        put = {"groups": self._put_groups, "group": self._put_group}.get(target.kind, self._put_definition)
        return put(target, body)

    def _put_groups(self, target: ResourcePath, body: Mapping[str, Any]) -> CatalogWriteResult:
        """Write the groups of a catalog's document."""
        given: dict[str, Any] = {}
        for each in objects_in(body, "groups", "/"):
            name = check_new_id(each.get("id"), "/")
            if name in given:
                raise invalid_value("/", "groups", f"contains {name} twice")
            given[name] = self._core_group_body(target.child(name), each)
        response = self._perform("patch", target, given)
        for name, group in given.items():
            self._check_relations(target.child(name), group.get(MESSAGES, {}))
        return CatalogWriteResult(response, target)

    def _put_group(self, target: ResourcePath, body: Mapping[str, Any]) -> CatalogWriteResult:
        """Create or update a group, with the definitions in its document."""
        check_new_id(target.gid, target.xid)
        created = self._reader.group(target.xid) is None
        given = self._core_group_body(target, body)
        response = self._perform("patch", target, given)
        self._check_relations(target, given.get(MESSAGES, {}))
        return CatalogWriteResult(response, target, created)

    def _put_definition(self, target: ResourcePath, body: Mapping[str, Any]) -> CatalogWriteResult:
        """Write a whole definition with its versions; existing ones must be equal."""
        group = require_group(self._reader, target)
        created = self.latest_version(target) is None
        versions = self._new_versions(target, group, body)
        response = self._perform("patch", target, {"versions": versions}) if versions else Response(None)
        self._check_relations(target.owner, {target.rid: {"versions": versions}})
        return CatalogWriteResult(response, target, created)

    def _add_version(self, target: ResourcePath, body: Mapping[str, Any]) -> CatalogWriteResult:
        """Add a version to a definition, which may be new; its number is the next one."""
        name = check_new_id(body.get("id"), target.xid)
        group, where = require_group(self._reader, target), target.child(name)
        latest = self.latest_version(where)
        given = self._inherit_attributes(version_attributes(body, name, group, where.xid), latest, where)
        number = str(self._next_number(where))
        place = where.collection("versions").child(number)
        self._call.check_conditions({"*", self.show(where).etag} if latest is not None else set(), where.xid)
        response = self._perform("replace", place, given, conditional=False)
        self._check_relations(target.owner, {name: {"versions": {number: given}}})
        return CatalogWriteResult(response, place, True)

    def _delete(self, target: ResourcePath) -> CatalogWriteResult:
        """Delete the entity at the path, or everything in the collection."""
        if target.is_collection:
            require_owner(self._reader, target)
        elif target.kind == "group":
            require_group(self._reader, target)
        else:
            require_shown(self._reader, target)
        return CatalogWriteResult(self._perform("delete", target, ABSENT), target)

    def _perform(self, verb: Verb, target: ResourcePath, body: Any, *, conditional: bool = True) -> Response:
        head = self._call.head
        more: dict[str, Any] = {}
        if conditional:
            more = {"matches": parse_etags(head.header(b"if-match"))}
            more["known"] = parse_etags(head.header(b"if-none-match")) or ()
        return self._session.perform(self._call.core_request(verb, tuple(target.xid.split("/")[1:]), body, **more))

    def _core_group_body(self, target: ResourcePath, body: Mapping[str, Any]) -> dict[str, Any]:
        known = self._reader.group(target.xid)
        given = group_attributes(body, target.gid, known)
        if known is not None:
            given = self._check_format(target, known, given)
        own = {name: value for name, value in given.items() if value is not None}
        group = known or GroupEntity(f"/{GROUPS}", target.gid, 0, "", "", own)
        messages: dict[str, Any] = {}
        for each in definitions_in(body, target.xid):
            name = check_new_id(each.get("id"), target.xid)
            versions = messages.setdefault(name, {"versions": {}})["versions"]
            versions |= self._new_versions(self.definitions_of(target.gid).child(name), group, each, versions)
        messages = {name: each for name, each in messages.items() if each["versions"]}
        return {**given, **({MESSAGES: messages} if messages else {})}

    def _check_format(self, target: ResourcePath, known: GroupEntity, given: dict[str, Any]) -> dict[str, Any]:
        """Check the format; it may change only while the group has no definitions."""
        if not {"envelope", "protocol"} & given.keys():
            return given
        now = format_name_of(known.attributes.get("envelope"), known.attributes.get("protocol"))
        wanted = format_name_of(given.get("envelope"), given.get("protocol"))
        if wanted == now:
            return {name: value for name, value in given.items() if name not in ("envelope", "protocol")}
        latest = (each for _, each in self.iter_latest(self.definitions_of(target.gid)))
        if not all(wanted == each.get("format", "") and not now for each in latest):
            raise Refusal("conflict", target.xid, error_detail="the group has definitions of another format")
        return {"envelope": None, "protocol": None, **given}

    def _new_versions(
        self, target: ResourcePath, group: GroupEntity, body: Mapping[str, Any], before: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the new versions of a document, by number.

        An existing version is skipped if equal, and a conflict if different.
        """
        check_new_id(target.rid, target.xid)
        versions: dict[str, Any] = dict(before or {})
        new: dict[str, Any] = {}
        latest = self.latest_version(target)
        for each in iter_versions_in(body, target.xid):
            given = version_attributes(each, target.rid, group, target.xid)
            given = {name: value for name, value in given.items() if value is not None}
            first = latest.attributes if latest is not None else next(iter(versions.values()), None)
            self._settle_authority(given, first, target)
            number = self._version_number(each, target, versions)
            known = self._reader.version(f"{target.xid}/versions/{number}")
            there = known.attributes if known is not None else versions.get(number)
            if there is not None and there != given:
                why = f"version {number} already exists and differs"
                raise Refusal("conflict", target.xid, error_detail=why)
            if there is None:
                versions[number] = new[number] = given
        return new

    def _version_number(self, body: Mapping[str, Any], target: ResourcePath, versions: Mapping[str, Any]) -> str:
        given = body.get("version")
        if given is None:
            taken = [parse_number(name) or 0 for name in versions]
            return str(max([self._next_number(target) - 1, *taken]) + 1)
        if isinstance(given, str) and parse_number(given) is None:
            return given  # ids created by the core API are accepted
        number = parse_number(given) if isinstance(given, str) else given
        if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < _MAX_NUMBER:
            raise invalid_value(target.xid, "version", "must be a positive integer")
        return str(number)

    def _next_number(self, target: ResourcePath) -> int:
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

    def _inherit_attributes(
        self, given: dict[str, Any], latest: Version | None, target: ResourcePath
    ) -> dict[str, Any]:
        """Overlay attributes of the latest version that belong to the definition, or that 0.1 cannot express."""
        self._settle_authority(given, latest.attributes if latest is not None else None, target)
        kept = latest.attributes if latest is not None else {}
        given = {**{name: value for name, value in kept.items() if name not in VERSION_ATTRIBUTES}, **given}
        return {name: value for name, value in given.items() if value is not None}

    def _settle_authority(self, given: dict[str, Any], first: Mapping[str, Any] | None, target: ResourcePath) -> None:
        """Set the authority of a version to its definition's, which is immutable (section 2.2.4).

        *first* are the attributes of another version, None if this is the first.
        """
        if first is None:
            if given.get("authority") in ("", self._authority):
                del given["authority"]
            return
        known = first.get("authority")
        asked = given.pop("authority", None) or known or self._authority
        if asked != (known or self._authority):
            why = f"the authority of this definition is {known or self._authority}"
            raise Refusal("conflict", target.xid, error_detail=why)
        if known:
            given["authority"] = known

    def _check_relations(self, group: ResourcePath, messages: Mapping[str, Any]) -> None:
        """Raise if ``relatedto`` names a definition outside the group (2.2.4); called after all are written."""
        places = self.definitions_of(group.gid) if messages else group
        for name, definition in messages.items():
            for version in definition["versions"].values():
                other = version.get("relatedto")
                if other is not None and self._reader.resource(places.child(other).xid) is None:
                    why = f"names {other}, which is not in this group"
                    raise invalid_value(places.child(name).xid, "relatedto", why)


METHODS: Final[Mapping[int, tuple[str, ...]]] = {
    1: ("GET", "HEAD", "PUT", "POST", "OPTIONS"),
    2: ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"),
    3: ("GET", "HEAD", "POST", "DELETE", "OPTIONS"),
    4: ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"),
    5: ("GET", "HEAD", "OPTIONS"),
    6: ("GET", "HEAD", "DELETE", "OPTIONS"),
}
"""Allowed methods by the length of a path in the core API: the catalog, a group, its definitions, and so on."""
_CONFLICTS: Final = frozenset(("compatibility_violation", "mismatched_version_attribute"))
_Headers = list[tuple[bytes, bytes]]


class _ProblemsApi(RegistryApi):
    """Reports refusals as problems (RFC 9457); violated policies and authorities are conflicts.

    Their subjects are paths of the core API, except of paths that do not exist.
    """

    def error_reply(self, head: RequestHead, url: str, refusal: Refusal) -> Reply:
        """Return the problem of a refusal."""
        if refusal.subject.startswith(f"/{GROUPS}") and refusal.name != "api_not_found":
            refusal.subject = catalog_path(refusal.subject) or "/"
        status = 409 if refusal.name in _CONFLICTS else refusal.status
        headers: _Headers = [(b"Content-Type", PROBLEM_TYPE), *retry_headers(refusal)]
        allow = refusal.title_args.pop("allow", "")
        if allow:
            headers.append((b"Allow", allow.encode("ascii")))
        return Reply(status, tuple(headers), msgspec.json.encode({**refusal.problem_json(), "status": status}))


class MessageCatalogApi(_ProblemsApi):
    """The catalog. ``?definitions`` and ``?versions`` return whole documents."""

    def __init__(self, service: RegistryService) -> None:
        self._service = service

    def reply(self, call: ApiCall) -> Reply:
        """Carry out a request."""
        segments, method = parse_segments(call.path), call.head.method
        allow = ", ".join(METHODS[len(segments)])
        if method not in METHODS[len(segments)]:
            raise Refusal("action_not_supported", f"/{'/'.join(segments)}", action=method, allow=allow)
        if method == "OPTIONS":
            return self._options_reply(call, allow.encode("ascii"), features=len(segments) == 1)
        if method in ("GET", "HEAD"):
            changes = len(segments) == 1 and "changes" in parse_query(call.head.query)
            return self._send_changes(call) if changes else self._reply_to_read(call, segments)
        if len(segments) == 1 and method == "POST":
            return self._apply_changes(call)
        return self._reply_to_write(call, segments)

    def _default_authority(self, call: ApiCall) -> str:
        return self._service.authority or call.url

    def _send_changes(self, call: ApiCall) -> Reply:
        """Return the changes after a position, for other catalogs (:mod:`registry.replication`)."""
        query = parse_query(call.head.query)
        position = parse_whole_number(query["changes"][0])
        if position is None:
            raise Refusal("bad_request", "/", error_detail="changes must be a position")
        limit = parse_limit(query["limit"][0] if "limit" in query else None, "/") or PAGE_CHANGES
        with self._service.session(writing=False) as session:
            page = changes_after(session.reader, position, self._default_authority(call), limit)
        return json_reply(page)

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
            applier = ChangeApplier(session, call.sender, self._default_authority(call))
            taken = applier.apply(page)
            catalog = applier.marks.catalog
        counts = {"applied": taken.applied, "refused": taken.reported, "refusedcount": taken.refused}
        return json_reply({"catalog": catalog, **counts})

    def _options_reply(self, call: ApiCall, allow: bytes, *, features: bool) -> Reply:
        if not features:
            return Reply(200, ((b"Allow", allow),))
        with self._service.session(writing=False) as session:
            writer = call.sender
            update = writer.administrator or writer.may_write(f"/{GROUPS}/*")
            groups = session.reader.iter_groups(f"/{GROUPS}")
            update = update or any(writer.may_write(each.xid) for _, each in zip(range(1000), groups, strict=False))
        shown = {"filterattributes": list(FILTERS), "pagination": True, "update": update, "changes": True}
        return json_reply(shown, 200, ((b"Allow", allow),))

    def _reply_to_read(self, call: ApiCall, segments: tuple[str, ...]) -> Reply:
        query = parse_query(call.head.query)
        with self._service.session(writing=False) as session:
            reader = CatalogReader(session, self._default_authority(call), call.max_answer)
            if len(segments) == 1 and GROUPS not in session.model.groups:
                return json_reply([])
            place = reader.find_path(segments)
            if not place.is_collection:
                flag = {"group": "definitions", "resource": "versions"}.get(place.kind, "")
                return _read_reply(call, reader.show(place, whole=flag in query))
            page = _parse_list_request(call, query, place)
            shown = reader.list_page(place, page, whole="definitions" in query)
        url = f"{call.url}{catalog_path(place.xid)}"
        more = (next_link(url, iter_query(call.head), page.limit, shown.after),) if shown.after else ()
        return json_reply(shown.body, 200, more)

    def _reply_to_write(self, call: ApiCall, segments: tuple[str, ...]) -> Reply:
        body = parse_json(call.body, f"/{'/'.join(segments)}")
        with self._service.session(writing=True) as session:
            writer = CatalogWriter(session, call, self._default_authority(call))
            done = writer.write(writer.parse_path(segments), body)
            headers: _Headers = [(b"xRegistry-xregcorrelationid", done.response.interaction.encode("ascii"))]
            headers = [] if not done.response.interaction else headers
            headers += [finding_header(each) for each in done.response.findings[:MAX_FINDINGS]]
            if call.head.method == "DELETE" or done.target.kind == "groups":
                return Reply(204, tuple(headers))
            shown = writer.show(done.target, whole=done.target.kind == "resource")
        if done.created:
            url = f"{call.url}{catalog_path(done.target.xid)}"
            headers.append((b"Location", url.encode("ascii", "replace")))
        return json_reply(shown.body, 201 if done.created else 200, headers, shown.etag)


class DefinitionLookup(_ProblemsApi):
    """``GET /messagedefinition?uri=``: a version by its URI (section 4.4.3), of the catalog at the path *catalog*."""

    def __init__(self, service: RegistryService, catalog: str = "/messagecatalog") -> None:
        self._service = service
        self._catalog = catalog

    def reply(self, call: ApiCall) -> Reply:
        """Carry out a request."""
        if call.path.strip(b"/"):
            raise Refusal("api_not_found", call.path.decode("latin-1"))
        allow = "GET, HEAD, OPTIONS"
        if call.head.method == "OPTIONS":
            return Reply(200, ((b"Allow", allow.encode("ascii")),))
        if call.head.method not in ("GET", "HEAD"):
            raise Refusal("action_not_supported", "/", action=call.head.method, allow=allow)
        values = parse_query(call.head.query).get("uri", [])
        if len(values) != 1:
            raise Refusal("bad_request", "/", error_detail="uri must occur exactly once")
        split = split_uri(values[0])
        if split is None:
            raise Refusal("not_found", values[0])
        with self._service.session(writing=False) as session:
            default = self._service.authority or f"{call.registry}{self._catalog}"
            reader = CatalogReader(session, default, call.max_answer)
            shown = reader.show(reader.find_path(split[1]))
        if shown.body["authority"].rstrip("/") != split[0]:
            raise Refusal("not_found", values[0])
        return _read_reply(call, shown)


def _read_reply(call: ApiCall, shown: Representation) -> Reply:
    if matches_etag(call.head, shown.etag):
        return Reply(304, ((b"ETag", shown.etag.encode("ascii")),))
    return json_reply(shown.body, tag=shown.etag)


def _parse_list_request(call: ApiCall, query: Mapping[str, list[str]], place: ResourcePath) -> ListRequest:
    for name in ("limit", "cursor", *FILTERS):
        if len(query.get(name, ())) > 1:
            raise Refusal("bad_request", place.xid, error_detail=f"{name} occurs more than once")
    single = {name: values[0] for name, values in query.items()}
    limit, cursor = call.parse_page(single.get("limit"), single.get("cursor"), place.xid)
    return ListRequest(limit, cursor, {name: single[name] for name in FILTERS if name in single})
