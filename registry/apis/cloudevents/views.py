"""Responses of CloudEvents Registry: entities as whole documents, as metadata, or with nested resources.

Each entity is encoded as JSON as soon as it is complete, and the size of a response is bounded, as in the core's views.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal
from urllib.parse import urlencode

import msgspec

from bindings.http.request import Reply, RequestHead
from registry.apis.cloudevents.mapping import (
    GROUPS,
    RESOURCES,
    SINGULAR,
    XREF,
    GroupForm,
    Links,
    MessageForm,
    ParsedRequest,
    SchemaForm,
    content_type,
    latest,
    model_of,
    number,
    older_path,
    shown_document,
)
from registry.core.requests import ResourcePath
from registry.core.service import RegistrySession
from registry.core.views import ShownResource, shown_resources
from registry.errors import Refusal
from registry.http.access import JSON, ApiCall, decode_header, encode_header, seen_before
from registry.store.entities import PAGE, Entity, GroupEntity, Version

SPECVERSION: Final = "0.5-wip"
Style = Literal["listed", "nested", "whole"]
"""Only metadata; with the resource nested in it; or as in a document of the whole registry."""
_DESCRIBING: Final = ("name", "description", "tags", "docs", "format")


@dataclass(frozen=True, slots=True)
class Edition:
    """A resource with one of its versions; ``version`` is None if the target of an ``xref`` does not exist."""

    shown: ShownResource
    version: Version | None

    @property
    def epoch(self) -> int:
        """The epoch that clients see, which is the version's."""
        return self.shown.resource.epoch if self.version is None else self.version.epoch


class CloudEventsView:
    """Renders entities for an API at *url*; *whole* is for one document of the whole registry."""

    def __init__(self, session: RegistrySession, url: str, max_answer: int, *, whole: bool = False) -> None:
        self._reader = session.reader
        self._session = session
        self._url = url
        self._links = Links(url, whole)
        self._max_answer = max_answer
        self._weight = 0

    def registry(self, *, inline: bool) -> dict[str, Any]:
        """Show the registry."""
        entity = self._session.registry
        model = self._session.model
        own = GroupForm("schemagroups", "", self._links).shown(entity.attributes)
        shown: dict[str, Any] = {"specVersion": SPECVERSION, "id": entity.id, **own, "self": f"{self._url}/"}
        if inline:
            shown["model"] = model_of(model)
        for plural, older in GROUPS.items():
            if plural not in model.groups:
                continue
            # Group collections have the names of documents; nested collections those of the API.
            shown[f"{older}Url"] = f"{self._url}/{older}"
            shown[f"{older}Count"] = self._reader.count(f"/{plural}")
            if inline:
                place = ResourcePath("groups", model.groups[plural])
                shown[older] = {name: _json(each) for name, each in self.groups(place, "", "whole")}
        return shown

    def groups(self, place: ResourcePath, after: str, style: Style) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the groups of a collection after a lower-case id."""
        groups = self._reader.groups(place.xid, after)
        while batch := list(islice(groups, PAGE)):
            held = [place.child(each.id).collection(name).xid for each in batch for name in _held(place)]
            counts = self._reader.counts(held)
            for each in batch:
                yield each.id, self.group(place.child(each.id), each, style, counts)

    def group(
        self, place: ResourcePath, group: GroupEntity, style: Style, counts: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """Show a group, with its resources unless *style* is ``listed``."""
        form = GroupForm(place.group.plural, group.id, self._links).shown(group.attributes)
        shown = {"id": group.id, **self._stamped(group, self._link(place.xid)), **form}
        for plural in _held(place):
            older, held = RESOURCES[plural], place.collection(plural)
            count = self._reader.count(held.xid) if counts is None else counts.get(held.xid, 0)
            shown[f"{older}URL"] = self._link(held.xid)
            shown[f"{older}Count"] = count
            if style != "listed":
                members = self.resources(held, "", "whole")
                shown[older] = {name: self.weighed(each) for name, each in members}
        return shown

    def resources(self, place: ResourcePath, after: str, style: Style) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the resources of a collection after a lower-case id."""
        defaults = self.defaults(place)
        for each in shown_resources(self._reader, place, after):
            edition = self.edition(each)
            yield each.resource.id, self.resource(place.child(each.resource.id), edition, style, defaults)

    def defaults(self, place: ResourcePath) -> Mapping[str, Any]:
        """Return the defaults that a group gives its messages."""
        group = self._reader.group(f"/{place.group.plural}/{place.gid}")
        attributes = group.attributes if group is not None else {}
        return {name: attributes[name] for name in ("envelope", "protocol") if isinstance(attributes.get(name), str)}

    def stored(self, edition: Edition) -> dict[str, Any]:
        """Return the 1.0 attributes of a resource."""
        own = {XREF: edition.shown.resource.xref} if edition.shown.resource.xref else {}
        return {**own, **(edition.version.attributes if edition.version is not None else {})}

    def form(self, place: ResourcePath, defaults: Mapping[str, Any]) -> MessageForm | SchemaForm:
        """Return the converter of a resource."""
        if place.resource.plural == "schemas":
            return SchemaForm()
        return MessageForm(place.group.plural, place.gid, place.rid, defaults, self._links)

    def resource(
        self, place: ResourcePath, edition: Edition, style: Style, defaults: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Show a resource by its latest version."""
        form = self.form(place, defaults).shown(self.stored(edition))
        shown = {"id": place.rid, **self._versioned(place, edition)}
        if place.resource.plural == "schemas":
            return {**shown, **form, **self._schema(place, edition, style)}
        if style == "whole":
            return {**shown, **form}
        listed: dict[str, Any] = {name: form[name] for name in _DESCRIBING if name in form}
        nested = {"id": place.rid, **form}
        return {**shown, **listed, **({SINGULAR["messages"]: nested} if style == "nested" else {})}

    def version(
        self, place: ResourcePath, edition: Edition, defaults: Mapping[str, Any], *, inline: bool
    ) -> dict[str, Any]:
        """Show a version; *place* is the resource's."""
        if place.resource.plural == "messages":
            return self.resource(place, edition, "nested" if inline else "listed", defaults)
        form = SchemaForm().shown(self.stored(edition))
        name = edition.version.id if edition.version is not None else ""
        return {"id": name, **self._versioned(place, edition), **form, **(self._document(edition) if inline else {})}

    def edition(self, shown: ShownResource, name: str = "") -> Edition:
        """Return a resource with the named version, or with the latest.

        Raises:
            Refusal: ``not_found``: it has no such version, or shows only the latest.
        """
        source = shown.source
        version = shown.default
        if source is not None and source.parent.endswith("/schemas") and shown.count > 1:
            version = latest(self._reader.versions(source.versions))
        if name and source is not None and (version is None or version.id != name):
            wanted = self._reader.version(f"{source.versions}/{name}")
            if wanted is None or not source.parent.endswith("/schemas"):
                raise Refusal("not_found", f"{shown.resource.xid}/versions/{name}")
            version = wanted
        elif name and version is None:
            raise Refusal("not_found", f"{shown.resource.xid}/versions/{name}")
        return Edition(shown, version)

    def weighed(self, entity: Mapping[str, Any]) -> msgspec.Raw:
        """Return an entity as JSON.

        Raises:
            Refusal: ``too_large``: the response would be too large.
        """
        text = _json(entity)
        self._weight += memoryview(text).nbytes
        if self._weight > self._max_answer:
            raise Refusal("too_large", "/")
        return text

    def _schema(self, place: ResourcePath, edition: Edition, style: Style) -> dict[str, Any]:
        """Return the members for versions of a schema: their URL, all of them, or the latest document."""
        source = edition.shown.source
        if style == "whole" and source is not None:
            each = (Edition(edition.shown, version) for version in self._reader.versions(source.versions))
            versions = ((one.version.id, self.version(place, one, {}, inline=True)) for one in each if one.version)
            return {"versions": {name: _json(one) for name, one in versions}}
        more = {"versionsURL": self._link(f"{place.xid}/versions"), "versionsCount": edition.shown.count}
        return {**more, **(self._document(edition) if style == "nested" else {})}

    def _document(self, edition: Edition) -> dict[str, Any]:
        if edition.version is None or "schemaurl" in edition.version.attributes:
            return {}
        return shown_document(self._reader.document(edition.version.xid) or b"")

    def _versioned(self, place: ResourcePath, edition: Edition) -> dict[str, Any]:
        entity: Entity = edition.version or edition.shown.resource
        xid = place.xid if edition.version is None else f"{place.xid}/versions/{edition.version.id}"
        shown: dict[str, Any] = {} if edition.version is None else {"version": number(edition.version.id)}
        return {**shown, **self._stamped(entity, self._link(xid))}

    def _stamped(self, entity: Entity, link: str) -> dict[str, Any]:
        times = {"createdOn": entity.createdat, "modifiedOn": entity.modifiedat}
        return {"epoch": entity.epoch, "self": link, **times}

    def _link(self, xid: str) -> str:
        return f"{self._url}{older_path(xid)}"


def _json(entity: Mapping[str, Any]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(entity))


def _held(place: ResourcePath) -> list[str]:
    """Return the resource types of a group that this API shows."""
    return [name for name in place.group.resources if name in RESOURCES]


# Attributes as ``Registry-`` headers.

PREFIX: Final = b"registry-"
ELSEWHERE: Final = "schemaurl"
"""The attribute with the URL of a document; its header is the singular name and ``URI``."""
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", re.ASCII)
_SHARED: Final = ("id", "name", "description", "docs", "format", "version", "epoch", "self", "createdOn", "modifiedOn")
_NOT_SHOWN: Final = ("contenttype", "versionsURL", "versionsCount")
"""Members without a header."""
_SPELLED: Final = {name.lower(): name for name in (*_SHARED, "createdBy", "modifiedBy", "schemaBase64")} | {
    "schemauri": ELSEWHERE
}


def header_fields(entity: Mapping[str, Any], *, alone: bool) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers of an entity's scalars; without *alone* the body has the entity as well."""
    for name, value in entity.items():
        scalar = isinstance(value, str | int | float) and _NAME.fullmatch(name)
        if scalar and (alone or name in _SHARED) and name not in _NOT_SHOWN:
            header = "schemaURI" if name == ELSEWHERE else name
            yield f"Registry-{header}".encode("ascii"), encode_header(value)


def given(head: RequestHead, path: str) -> dict[str, str | None]:
    """Return the attributes in headers, None for those to delete.

    Raises:
        Refusal: ``header_error``, ``extra_xregistry_header``.
    """
    said: dict[str, str | None] = {}
    for raw, value in head.headers:
        name = raw.decode("latin-1").lower().removeprefix(PREFIX.decode())
        if not raw.lower().startswith(PREFIX) or name == "self":
            continue
        if name in ("definitionuri", "schemabase64", "schema"):
            why = "it is not an attribute that can be set by a header here"
            raise Refusal("extra_xregistry_header", path, name=f"Registry-{name}", error_detail=why)
        said[_SPELLED.get(name, name)] = decode_header(value, name, path) or None
    return said


# Replies: entities with headers, documents, and pages.

Headers = Iterable[tuple[bytes, bytes]]
_PLAIN: Final = frozenset(chr(code) for code in range(0x20, 0x7F))


def entity(shown: Mapping[str, Any], status: int = 200, more: Headers = (), tag: str = "") -> Reply:
    """Return the reply with one entity, or a map of entities."""
    tags = ((b"ETag", tag.encode("ascii")),) if tag else ()
    return Reply(status, ((b"Content-Type", JSON), *tags, *more), msgspec.json.encode(shown))


def tag_of(session: RegistrySession, subject: Edition | GroupEntity) -> str:
    """Return the ETag of a resource or a group.

    A definition depends on the format of its group, and on the target of its ``xref``.
    """
    if isinstance(subject, GroupEntity):
        return f'"{subject.epoch}"'
    resource = subject.shown.resource
    group = session.reader.group(resource.group)
    return f'"{resource.epoch}-{subject.epoch}-{group.epoch if group is not None else 0}"'


def page(call: ApiCall, asked: ParsedRequest, members: Mapping[str, msgspec.Raw], after: str, count: int) -> Reply:
    """Return the reply with a page of a collection and a link to the next."""
    more: list[tuple[bytes, bytes]] = []
    if after:
        query = urlencode([*((("inline", "true"),) if asked.inline else ()), ("limit", asked.limit), ("cursor", after)])
        link = f"<{call.url}{older_path(asked.place.xid)}?{query}>;rel=next;count={count}"
        more.append((b"Link", link.encode("ascii", "replace")))
    return Reply(200, ((b"Content-Type", JSON), *more), msgspec.json.encode(dict(members)))


def resource(
    session: RegistrySession,
    viewer: CloudEventsView,
    place: ResourcePath,
    edition: Edition,
    status: int = 200,
    more: Headers = (),
    *,
    redirect: bool = True,
) -> Reply:
    """Return the reply with a definition, with the document of a schema, or with a redirect to it.

    *place* is the resource's; *redirect* is for readers.
    """
    defaults, tag = viewer.defaults(place), tag_of(session, edition)
    if place.resource.plural == "messages":
        shown = viewer.resource(place, edition, "whole", defaults)
        fields = (*header_fields(shown, alone=False), (b"Content-Location", encode_header(shown["self"])), *more)
        return entity(shown, status, fields, tag)
    shown = {**viewer.version(place, edition, defaults, inline=False), "id": place.rid}
    location = (b"Content-Location", encode_header(shown["self"]))
    fields = ((b"ETag", tag.encode("ascii")), *header_fields(shown, alone=True), location, *more)
    elsewhere = shown.get(ELSEWHERE)
    if elsewhere is not None:
        return Reply(307, (*fields, (b"Location", encode_header(elsewhere)))) if redirect else Reply(status, fields)
    document = (session.reader.document(edition.version.xid) if edition.version is not None else None) or b""
    media = str(shown.get("contenttype") or content_type(document))
    plain = "".join(each if each in _PLAIN else "?" for each in media)
    return Reply(status, ((b"Content-Type", plain.encode("ascii")), *fields), document)


def allow(methods: Iterable[str]) -> tuple[bytes, bytes]:
    """Return the ``Allow`` header."""
    return b"Allow", ", ".join((*methods, "OPTIONS")).encode("ascii")


# GET: the registry, its model, collections page by page, groups, resources with their documents, and versions.


class ReadRequest:
    """A GET request. All methods raise :class:`Refusal`."""

    def __init__(self, session: RegistrySession, call: ApiCall, asked: ParsedRequest) -> None:
        self._session = session
        self._call = call
        self._asked = asked
        whole = asked.inline and asked.place.kind == "registry"
        self._viewer = CloudEventsView(session, call.url, call.max_answer, whole=whole)

    def reply(self) -> Reply:
        """Return the reply; 304 if the client's copy is current."""
        asked, kind = self._asked, self._asked.place.kind
        if kind == "registry":
            given = model_of(self._session.model) if asked.model else self._viewer.registry(inline=asked.inline)
            return entity(given)
        if asked.place.is_collection:
            return self._page()
        reply = self._group() if kind == "group" else self._resource()
        tag = next((value for name, value in reply.headers if name == b"ETag"), b"").decode("ascii")
        return Reply(304, reply.headers) if reply.status == 200 and seen_before(self._call.head, tag) else reply

    def _group(self) -> Reply:
        group = self._session.reader.group(self._asked.place.xid)
        if group is None:
            raise Refusal("not_found", self._asked.place.xid)
        if self._asked.inline:  # its resources change without its epoch
            return entity(self._viewer.group(self._asked.place, group, "whole"))
        shown = self._viewer.group(self._asked.place, group, "listed")
        return entity(shown, tag=tag_of(self._session, group))

    def _resource(self) -> Reply:
        asked, viewer = self._asked, self._viewer
        owner = asked.place if asked.place.kind == "resource" else asked.place.owner
        edition = viewer.edition(resource_at(self._session, owner), asked.place.vid)
        if not asked.meta:
            return resource(self._session, viewer, owner, edition)
        defaults = viewer.defaults(owner)
        if asked.place.kind == "version":
            return entity(viewer.version(owner, edition, defaults, inline=asked.inline))
        return entity(viewer.resource(owner, edition, "nested" if asked.inline else "listed", defaults))

    def _page(self) -> Reply:
        place, asked = self._asked.place, self._asked
        members: dict[str, msgspec.Raw] = {}
        last = ""
        for name, each in self._members(place, asked.cursor):
            if len(members) == asked.limit:
                return page(self._call, asked, members, last.lower(), self._count(place))
            members[name], last = self._viewer.weighed(each), name
        return page(self._call, asked, members, "", 0)

    def _members(self, place: ResourcePath, after: str) -> Iterator[tuple[str, dict[str, Any]]]:
        viewer, inline = self._viewer, self._asked.inline
        if place.kind == "groups":
            return viewer.groups(place, after, "whole" if inline else "listed")
        if place.kind == "resources":
            if self._session.reader.group(place.owner.xid) is None:
                raise Refusal("not_found", place.owner.xid)
            return viewer.resources(place, after, "nested" if inline else "listed")
        return self._versions(resource_at(self._session, place.owner), place.owner, after)

    def _versions(self, shown: ShownResource, place: ResourcePath, after: str) -> Iterator[tuple[str, dict[str, Any]]]:
        viewer, inline = self._viewer, self._asked.inline
        defaults = viewer.defaults(place)
        if place.resource.plural == "messages" or shown.source is None:
            latest = [] if shown.default is None else [shown.default]
            versions = iter([each for each in latest if each.id.lower() > after])
        else:
            versions = self._session.reader.versions(shown.source.versions, after)
        for each in versions:
            yield each.id, viewer.version(place, Edition(shown, each), defaults, inline=inline)

    def _count(self, place: ResourcePath) -> int:
        if place.kind == "versions":
            return resource_at(self._session, place.owner).count
        return self._session.reader.count(place.xid)


def resource_at(session: RegistrySession, place: ResourcePath) -> ShownResource:
    """Return a resource.

    Raises:
        Refusal: ``not_found``.
    """
    shown = next(shown_resources(session.reader, place, "", place.rid), None)
    if shown is None:
        raise Refusal("not_found", place.xid)
    return shown
