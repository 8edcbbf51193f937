"""The API of CloudEvents Registry: requests are carried out in one transaction."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from bindings.http.request import Reply, RequestHead
from registry.apis.cloudevents import views
from registry.apis.cloudevents.mapping import (
    JSON,
    RESOURCES,
    XREF,
    GroupForm,
    Links,
    MessageForm,
    ParsedRequest,
    SchemaForm,
    asked,
    body_of,
    collection_of,
    content_type,
    definition_body,
    following,
    list_of,
    object_of,
    older_path,
    present,
    rank,
    replaced,
    taken_document,
)
from registry.apis.cloudevents.views import CloudEventsView, Edition, Headers, ReadRequest, resource_at
from registry.core.ancestry import as_object
from registry.core.requests import ABSENT, Flags, Given, RegistryRequest, ResourcePath, Verb, check_id
from registry.core.service import RegistryService, RegistrySession
from registry.core.views import ShownResource, shown_resources
from registry.errors import Refusal
from registry.http.access import MAX_FINDINGS, READING, ApiCall, finding_header, refusal_of, tags

# Core requests made for a request to this API, in one session.


class Requester:
    """Makes core requests on behalf of the sender of a call, and collects lint's findings."""

    def __init__(self, session: RegistrySession, call: ApiCall) -> None:
        self._session = session
        self._call = call
        self._findings: list[tuple[bytes, bytes]] = []

    def perform(
        self,
        verb: Verb,
        place: ResourcePath,
        body: Any = ABSENT,
        *,
        document: Given | None = None,
        media: str = JSON,
        sticky: bool = False,
    ) -> None:
        """Carry out a core request; with *sticky* the written version becomes the sticky default version.

        Raises:
            Refusal: it is refused.
        """
        writer = self._call.writer
        request = RegistryRequest(
            verb,
            tuple(place.xid.split("/")[1:]),
            place.xid,
            self._call.registry,
            Flags(setdefaultversionid="request") if sticky else Flags(),
            document is None,
            body,
            document,
            media,
            who=writer.name,
            administrator=writer.administrator,
            may_write=writer.may_write,
            max_answer=self._call.max_answer,
        )
        self._findings += [finding_header(each) for each in self._session.perform(request).findings]

    @property
    def findings(self) -> Headers:
        """The headers with lint's first findings about the writes."""
        return tuple(self._findings[:MAX_FINDINGS])

    def hold(self, tag: str, epoch: int, place: ResourcePath, *given: object) -> None:
        """Raise if conditions or epochs of the request do not match the current state.

        Raises:
            Refusal: ``precondition_failed``, ``mismatched_epoch``.
        """
        head, there = self._call.head, {"*", tag}
        matches, known = (tags(head.header(name)) for name in (b"if-match", b"if-none-match"))
        if (matches is not None and not there & set(matches)) or there & set(known or ()):
            raise Refusal("precondition_failed", place.xid)
        check_epoch(epoch, place.xid, *given)

    def absent(self, place: ResourcePath, epoch: int | None) -> None:
        """Raise if conditions or an epoch of the request require an entity that does not exist.

        Raises:
            Refusal: ``precondition_failed``, ``mismatched_epoch``.
        """
        check_epoch(0, place.xid, epoch)
        if self._call.head.header(b"if-match") is not None:
            raise Refusal("precondition_failed", place.xid)


def check_epoch(epoch: int, xid: str, *given: object) -> None:
    """Raise if a given epoch is not the current one.

    Raises:
        Refusal: ``mismatched_epoch``.
    """
    for each in given:
        if each is not None and (isinstance(each, bool) or str(each) != str(epoch)):
            raise Refusal("mismatched_epoch", xid, bad_epoch=str(each), epoch=str(epoch))


def compare(body: Mapping[str, Any], name: str, xid: str, *expected: object) -> None:
    """Raise if an identifier in a body is not one of *expected*.

    Raises:
        Refusal: ``mismatched_id``.
    """
    given = body.get(name)
    if given is not None and (isinstance(given, bool) or str(given) not in {str(each) for each in expected}):
        raise Refusal("mismatched_id", xid, singular=name, invalid_id=str(given), expected_id=str(expected[0]))


# Definitions and schemas in the body of a new group, as core bodies.


def resources_in_group_body(
    place: ResourcePath, body: Mapping[str, Any], attributes: Mapping[str, Any], links: Links
) -> dict[str, Any]:
    """Return the resources in the body of a group as core bodies; *attributes* are the group's in 1.0.

    Raises:
        Refusal: one of them is not valid.
    """
    held: dict[str, Any] = {}
    defaults = {name: attributes[name] for name in ("envelope", "protocol") if name in attributes}
    for plural in (name for name in place.group.resources if name in RESOURCES):
        where = place.collection(plural)
        for name, each in collection_of(body, RESOURCES[plural]).items():
            own = where.child(name)
            tree = as_object(each, own.xid)
            compare(tree, "id", own.xid, name)
            taken = _schema(own, tree) if plural == "schemas" else _definition(own, tree, defaults, links)
            held.setdefault(plural, {})[name] = taken
    return held


def _definition(
    place: ResourcePath, tree: Mapping[str, Any], defaults: Mapping[str, Any], links: Links
) -> dict[str, Any]:
    """Return the core body of a new definition.

    Raises:
        Refusal: it is not valid.
    """
    body = definition_body(tree)
    form = MessageForm(place.group.plural, place.gid, place.rid, defaults, links)
    return core_body(form.read(body.said), body.times)


def core_body(attributes: Mapping[str, Any], times: Mapping[str, Any]) -> dict[str, Any]:
    """Return the core body of a message's attributes: ``xref`` goes into ``meta``."""
    return {"meta": {XREF: attributes[XREF]}} if XREF in attributes else {**attributes, **times}


def _schema(place: ResourcePath, tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the core body of a new schema: each version descends from the previous one.

    Attributes of the schema itself go to its latest version, except the format, which goes to all.

    Raises:
        Refusal: it is not valid.
    """
    top = body_of(tree)
    versions = {name: as_object(each, place.xid) for name, each in collection_of(tree, "versions").items()}
    if not versions:
        return {"versionid": "1", **taken_document(SchemaForm().read(top.said)), **top.times}
    chain: dict[str, Any] = {}
    names = sorted(versions, key=rank)
    for before, name in zip((names[0], *names), names, strict=False):
        body = body_of(versions[name])
        compare(body.given, "id", f"{place.xid}/versions/{name}", name, place.rid)
        shared = top.said if name == names[-1] else {"format": top.said.get("format")}
        own = {key for key in body.said if key.lower().startswith("schema")}
        beside = {key: value for key, value in shared.items() if not own or not key.lower().startswith("schema")}
        said = SchemaForm().read({**beside, **body.said})
        chain[name] = {**taken_document(said), **body.times, "ancestorid": before}
    return {"versions": chain}


# Common parts of POST and PUT.


class WriteRequest:
    """A POST or PUT request. All methods raise :class:`Refusal`, before anything has changed."""

    def __init__(self, session: RegistrySession, call: ApiCall, asked: ParsedRequest) -> None:
        self.session: Final = session
        self.call: Final = call
        self.asked: Final = asked
        self.links: Final = Links(call.url)
        self.requester: Final = Requester(session, call)
        self.viewer: Final = CloudEventsView(session, call.url, call.max_answer)

    @property
    def adding(self) -> bool:
        """Whether it is a POST."""
        return self.call.head.method == "POST"

    @property
    def owner(self) -> ResourcePath:
        """The requested resource, or the resource of the requested version."""
        place = self.asked.place
        return place if place.kind == "resource" else place.owner

    def headers(self) -> dict[str, str | None]:
        """Return the attributes in headers, None for those to delete."""
        return views.given(self.call.head, self.asked.path)

    def there(self, place: ResourcePath) -> ShownResource | None:
        """Return a resource, None if it does not exist."""
        return next(shown_resources(self.session.reader, place, "", place.rid), None)

    def fresh(self, place: ResourcePath, name: object) -> ResourcePath:
        """Return the path of a new entity of a collection, with the given or a generated id."""
        if place.kind == "resources":
            self.require_group(place)
        where = place.child(check_id(name if name is not None else str(uuid.uuid4()), place.xid))
        reader = self.session.reader
        if (reader.group if place.kind == "groups" else reader.resource)(where.xid) is not None:
            raise Refusal("conflict", where.xid, error_detail="it already exists")
        self.requester.absent(where, self.asked.epoch)
        return where

    def require_group(self, place: ResourcePath) -> None:
        """Raise if the group of a new resource does not exist."""
        if self.session.reader.group(place.owner.xid) is None:
            raise Refusal("not_found", place.owner.xid)

    def check(self, place: ResourcePath, edition: Edition, tree: Mapping[str, Any]) -> None:
        """Raise if identifiers or epoch of a request do not match the resource, or if it numbers a new version."""
        if self.adding and tree.get("version") is not None:
            why = "the registry assigns the number of a new version"
            raise Refusal("extra_xregistry_header", place.xid, name="Registry-version", error_detail=why)
        if edition.version is not None:
            compare(tree, "version", place.xid, edition.version.id)
        tag = views.tag_of(self.session, edition)
        self.requester.hold(tag, edition.epoch, place, self.asked.epoch, tree.get("epoch"))

    def resource(self, place: ResourcePath, status: int, name: str = "") -> Reply:
        """Return the reply with the resulting resource, or with one version of it."""
        edition = self.viewer.edition(resource_at(self.session, place), name)
        more = self.fields(place, status)
        if not self.asked.meta:
            return views.resource(self.session, self.viewer, place, edition, status, more, redirect=False)
        defaults = self.viewer.defaults(place)
        if name:
            return views.entity(self.viewer.version(place, edition, defaults, inline=False), status, more)
        return views.entity(self.viewer.resource(place, edition, "listed", defaults), status, more)

    def fields(self, place: ResourcePath, status: int) -> list[tuple[bytes, bytes]]:
        """Return the headers of a reply: lint's findings, and the location of a new entity."""
        location = f"{self.call.url}{older_path(place.xid)}".encode("ascii")
        return [*self.requester.findings, *([(b"Location", location)] if status == 201 else [])]


# POST and PUT of groups and endpoints.


class GroupWriting(WriteRequest):
    """Implements :class:`WriteRequest`."""

    def reply(self) -> Reply:
        """Carry out the request, and return the reply."""
        place = self.asked.place
        tree = object_of(self.call, place.xid)
        if self.adding:
            return self._make(self.fresh(place, tree.get("id")), tree, held=True)
        compare(tree, "id", place.xid, place.gid)
        group = self.session.reader.group(place.xid)
        if group is None:
            self.requester.absent(place, self.asked.epoch)
            return self._make(place, tree, held=False)
        tag = views.tag_of(self.session, group)
        self.requester.hold(tag, group.epoch, place, self.asked.epoch, tree.get("epoch"))
        body = body_of(tree, held=True)
        form = GroupForm(place.group.plural, place.gid, self.links)
        attributes = replaced(place.group.plural, form, group.attributes, body.said)
        self.requester.perform("replace", place, {**attributes, **body.times})
        return self._group(place, 200)

    def _make(self, place: ResourcePath, tree: Mapping[str, Any], *, held: bool) -> Reply:
        """Create a group; with *held* also its resources, which a PUT must ignore."""
        body = body_of(tree, held=True)
        attributes = GroupForm(place.group.plural, place.gid, self.links).read(present(body.said))
        members = resources_in_group_body(place, tree, attributes, self.links) if held else {}
        self.requester.perform("replace", place, {**attributes, **body.times, **members})
        return self._group(place, 201)

    def _group(self, place: ResourcePath, status: int) -> Reply:
        group = self.session.reader.group(place.xid)
        assert group is not None
        shown = self.viewer.group(place, group, "listed")
        return views.entity(shown, status, self.fields(place, status), views.tag_of(self.session, group))


# POST and PUT of definitions (which show only their latest version), and of their metadata alone.

_SHARED: Final = ("name", "description", "docs", "tags")
"""Attributes that stay if a request does not contain them."""


class DefinitionWriting(WriteRequest):
    """Implements :class:`WriteRequest`."""

    def reply(self) -> Reply:
        """Carry out the request, and return the reply."""
        place = self.asked.place
        needs_body = self.adding or self.asked.meta or self.call.body.strip()
        tree = _with_headers(object_of(self.call, place.xid) if needs_body else {}, self.headers(), place)
        if place.kind == "resources":
            return self._make(self.fresh(place, tree.get("id")), tree)
        owner = self.owner
        compare(tree, "id", owner.xid, owner.rid)
        if self.adding:
            return self._next(owner, tree)
        shown = self.there(owner)
        if shown is None:
            self.require_group(owner)
            self.requester.absent(owner, self.asked.epoch)
            return self._make(owner, tree, {"versionid": place.vid} if place.vid else {})
        edition = self.viewer.edition(shown, place.vid)
        self.check(owner, edition, tree)
        self.requester.perform("replace", owner, self._replacement(owner, edition, tree, meta=self.asked.meta))
        return self.resource(owner, 200)

    def _make(self, place: ResourcePath, tree: Mapping[str, Any], version: Mapping[str, str] | None = None) -> Reply:
        body = definition_body(tree)
        attributes = self.viewer.form(place, self.viewer.defaults(place)).read(present(body.said))
        self.requester.perform("replace", place, core_body(attributes, {**body.times, **(version or {})}))
        return self.resource(place, 201)

    def _next(self, place: ResourcePath, tree: Mapping[str, Any]) -> Reply:
        """Create a version that replaces the latest one, which the core keeps."""
        edition = self.viewer.edition(resource_at(self.session, place))
        self.check(place, edition, tree)
        body = self._replacement(place, edition, tree, meta=False)
        if "meta" in body:
            raise Refusal("extra_xref_attribute", place.xid, name="versions", singular="definition")
        self.requester.perform("add", place, body, sticky=edition.shown.resource.sticky)
        return self.resource(place, 201)

    def _replacement(
        self, place: ResourcePath, edition: Edition, tree: Mapping[str, Any], *, meta: bool
    ) -> dict[str, Any]:
        """Return the core body of a definition replaced by *tree*; with *meta* its content stays."""
        form = self.viewer.form(place, self.viewer.defaults(place))
        stored = self.viewer.stored(edition)
        body = definition_body(tree)
        kept = {name: each for name, each in form.shown(stored).items() if (name in _SHARED) != meta}
        attributes = replaced("messages", form, stored, {**kept, **body.said})
        again: dict[str, Any] = {"meta": {}} if XREF in stored and XREF not in attributes else {}
        return {**core_body(attributes, body.times), **again}


def _with_headers(tree: Mapping[str, Any], said: Mapping[str, str | None], place: ResourcePath) -> dict[str, Any]:
    """Merge headers into a body, with which they must agree; None deletes."""
    laid = dict(tree)
    for name, value in said.items():
        if laid.get(name) is not None and str(laid[name]) != (value or ""):
            why = f"it differs from the body: {str(laid[name])[:80]}"
            raise Refusal("extra_xregistry_header", place.xid, name=f"Registry-{name}", error_detail=why)
        laid.setdefault(name, value)
    return laid


# POST and PUT of schemas and versions: the body is the document, or with ``?meta`` the metadata.

_IDENTITY: Final = ("id", "version", "epoch", "createdOn", "modifiedOn")
_OF_DOCUMENT: Final = (views.ELSEWHERE, "contenttype")
_FIRST: Final = "1"


class SchemaWriting(WriteRequest):
    """Implements :class:`WriteRequest`."""

    def reply(self) -> Reply:
        """Carry out the request, and return the reply."""
        place, said = self.asked.place, self.headers()
        if place.kind == "resources":
            return self._make(self.fresh(place, said.get("id")), _FIRST, said)
        return self._next(place, said) if self.adding else self._put(said)

    def _put(self, said: Mapping[str, str | None]) -> Reply:
        owner, name = self.owner, self.asked.place.vid
        tree: Mapping[str, Any] = object_of(self.call, owner.xid) if self.asked.meta else said
        compare(tree, "id", owner.xid, owner.rid, name or owner.rid)
        shown = self.there(owner)
        if shown is None or (name and not self._has(owner, name)):
            if self.asked.meta:
                raise Refusal("not_found", self.asked.place.xid)
            if shown is None:
                self.require_group(owner)
            self.requester.absent(self.asked.place, self.asked.epoch)
            return self._make(owner, name or _FIRST, said, shown=name)
        edition = self.viewer.edition(shown, name)
        self.check(owner, edition, tree)
        if edition.version is None:
            raise Refusal("not_found", owner.xid)
        where, stored = owner.collection("versions").child(edition.version.id), edition.version.attributes
        if self.asked.meta:
            self.requester.perform("replace", where, _metadata(stored, tree))
        else:
            self._document(where, _said(stored, said))
        return self.resource(owner, 200, name)

    def _make(self, place: ResourcePath, name: str, said: Mapping[str, str | None], *, shown: str = "") -> Reply:
        self._document(place.collection("versions").child(name), _said({}, said))
        return self.resource(place, 201, shown)

    def _next(self, place: ResourcePath, said: Mapping[str, str | None]) -> Reply:
        """Create a version after the latest, from which it inherits attributes missing in the request."""
        edition = self.viewer.edition(resource_at(self.session, place))
        compare(said, "id", place.xid, place.rid)
        self.check(place, edition, said)
        if edition.version is None:
            raise Refusal("not_found", place.xid)
        name = following(edition.version.id, place.xid)
        given = {**_said(edition.version.attributes, said), "versionid": name, "ancestorid": edition.version.id}
        self._document(place, given, verb="add")
        return self.resource(place, 201)

    def _document(self, place: ResourcePath, attributes: dict[str, Any], *, verb: Any = "replace") -> None:
        """Write a version with the body as its document, unless the attributes contain its URL."""
        body, media = self.call.body, self.call.head.header(b"content-type")
        if attributes.get(views.ELSEWHERE) is not None:
            if body:
                why = "the document is external, so the body must be empty"
                raise Refusal("extra_xregistry_header", place.xid, name="Registry-schemaURI", error_detail=why)
            document, kind = Given(None, url=True), None
        else:
            kind = media.decode("latin-1").strip() if media and body else content_type(body)
            document, attributes = Given(body), {**attributes, views.ELSEWHERE: None}
        self.requester.perform(verb, place, {**attributes, "contenttype": kind}, document=document)

    def _has(self, place: ResourcePath, name: str) -> bool:
        source = resource_at(self.session, place).source
        return source is not None and self.session.reader.version(f"{source.versions}/{name}") is not None


def _said(stored: Mapping[str, Any], said: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the attributes of a version updated by headers, with None for deleted ones."""
    form = SchemaForm()
    shown = {name: value for name, value in form.shown(stored).items() if name not in _OF_DOCUMENT}
    named = {name: value for name, value in said.items() if name not in _IDENTITY}
    return {**dict.fromkeys(stored), **replaced("schemas", form, stored, {**shown, **named})}


def _metadata(stored: Mapping[str, Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a version with replaced metadata; the location of its document stays."""
    form, body = SchemaForm(), body_of(tree)
    shown, said = form.shown(stored), body.said
    if views.ELSEWHERE in shown and not any(name.lower() in ("schemauri", views.ELSEWHERE) for name in said):
        said = {**said, views.ELSEWHERE: shown[views.ELSEWHERE]}
    return {**taken_document(replaced("schemas", form, stored, said)), **body.times}


# DELETE of one entity, of those in a list, or of a whole collection.


class DeleteRequest:
    """A DELETE request. All methods raise :class:`Refusal`, before anything has changed."""

    def __init__(self, session: RegistrySession, call: ApiCall, asked: ParsedRequest) -> None:
        self._session = session
        self._call = call
        self._asked = asked
        self._requester = Requester(session, call)
        self._viewer = CloudEventsView(session, call.url, call.max_answer)

    def reply(self) -> Reply:
        """Carry it out, and return the last state of the entities."""
        place = self._asked.place
        if place.is_collection:
            return self._several(place)
        if place.kind == "group":
            return self._group(place)
        owner = place if place.kind == "resource" else place.owner
        edition = self._viewer.edition(resource_at(self._session, owner), place.vid)
        said: Mapping[str, Any] = views.given(self._call.head, place.xid)
        tag = views.tag_of(self._session, edition)
        self._requester.hold(tag, edition.epoch, place, self._asked.epoch, said.get("epoch"))
        if place.kind == "version":
            self._keep_one(owner, {place.vid})
        reply = views.resource(self._session, self._viewer, owner, edition, redirect=False)
        self._requester.perform("delete", place)
        return reply

    def _group(self, place: ResourcePath) -> Reply:
        group = self._session.reader.group(place.xid)
        if group is None:
            raise Refusal("not_found", place.xid)
        self._requester.hold(views.tag_of(self._session, group), group.epoch, place, self._asked.epoch)
        shown = self._viewer.group(place, group, "listed")
        self._requester.perform("delete", place)
        return views.entity(shown)

    def _several(self, place: ResourcePath) -> Reply:
        given = list_of(self._call, place.xid)
        if place.kind == "versions":
            return self._versions(place, given)
        if place.kind == "resources" and self._session.reader.group(place.owner.xid) is None:
            raise Refusal("not_found", place.owner.xid)
        if given is None:
            self._requester.perform("delete", place)
            return Reply(204)
        shown = dict(self._one(place, each) for each in given)
        self._requester.perform("delete", place, {name: {} for name in shown})
        return views.entity(shown)

    def _one(self, place: ResourcePath, given: Mapping[str, Any]) -> tuple[str, msgspec.Raw]:
        """Return the id and the state of an entity in a list, after checking its epoch."""
        name = given.get("id")
        if not isinstance(name, str):
            raise Refusal("bad_request", place.xid, error_detail="each object in the list needs an id")
        where = place.child(name)
        if place.kind == "groups":
            group = self._session.reader.group(where.xid)
            if group is None:
                raise Refusal("not_found", where.xid)
            check_epoch(group.epoch, where.xid, given.get("epoch"))
            return name, self._viewer.weighed(self._viewer.group(where, group, "listed"))
        edition = self._viewer.edition(resource_at(self._session, where))
        check_epoch(edition.epoch, where.xid, given.get("epoch"))
        defaults = self._viewer.defaults(where)
        return name, self._viewer.weighed(self._viewer.resource(where, edition, "listed", defaults))

    def _versions(self, place: ResourcePath, given: list[Mapping[str, Any]] | None) -> Reply:
        owner = place.owner
        latest = self._viewer.edition(resource_at(self._session, owner))
        if given is None:
            others = self._names(owner, latest) - {latest.version.id if latest.version is not None else ""}
            if others:
                self._requester.perform("delete", place, {name: {} for name in sorted(others)})
            return Reply(204)
        shown: dict[str, Any] = {}
        for each in given:
            name = str(each.get("version") if each.get("version") is not None else each.get("id"))
            compare(each, "id", owner.xid, owner.rid, name)
            edition = self._viewer.edition(latest.shown, name)
            check_epoch(edition.epoch, f"{owner.xid}/versions/{name}", each.get("epoch"))
            shown[name] = self._viewer.version(owner, edition, self._viewer.defaults(owner), inline=False)
        self._keep_one(owner, set(shown))
        if shown:
            self._requester.perform("delete", place, {name: {} for name in shown})
        return views.entity(shown)

    def _keep_one(self, place: ResourcePath, names: set[str]) -> None:
        """Raise if a resource would lose its last version; a definition has only the latest."""
        if names >= self._names(place, self._viewer.edition(resource_at(self._session, place))):
            why = "the last version cannot be deleted; delete the resource"
            raise Refusal("bad_request", place.xid, error_detail=why)

    def _names(self, place: ResourcePath, edition: Edition) -> set[str]:
        source = edition.shown.source
        if place.resource.plural == "messages" or source is None:
            return {edition.version.id} if edition.version is not None else set()
        return {each.id for each in self._session.reader.versions(source.versions)}


_RESOURCES: Final[Mapping[str, type[DefinitionWriting | SchemaWriting]]] = {
    "messages": DefinitionWriting,
    "schemas": SchemaWriting,
}
"""Writers by resource type."""


class CloudEventsApi:
    """CloudEvents Registry 0.4/0.5; implements :class:`registry.http.access.RegistryApi`."""

    def __init__(self, service: RegistryService) -> None:
        self._service = service

    def reply(self, call: ApiCall) -> Reply:
        """Carry out a request."""
        with self._service.session(writing=call.head.method not in READING) as session:
            return _reply(session, call)

    def refused(self, head: RequestHead, url: str, refusal: Refusal) -> Reply:
        """Return the error reply like the core API; the specification defines none."""
        if refusal.subject.startswith("/"):
            refusal.subject = older_path(refusal.subject)
        return refusal_of(head, url, refusal)


def _reply(session: RegistrySession, call: ApiCall) -> Reply:
    given, method = asked(call, session.model), call.head.method
    if method == "OPTIONS":
        return Reply(200, (views.allow(given.methods),))
    if method not in given.methods or (given.meta and method not in ("GET", "HEAD", "PUT")):
        refusal = Refusal("action_not_supported", older_path(given.place.xid), action=method)
        reply = refusal_of(call.head, call.url, refusal)
        return Reply(reply.status, (*reply.headers, views.allow(given.methods)), reply.body)
    if method in READING:
        return ReadRequest(session, call, given).reply()
    if method == "DELETE":
        return DeleteRequest(session, call, given).reply()
    if given.place.resource_type is None:
        return GroupWriting(session, call, given).reply()
    return _RESOURCES[given.place.resource_type.plural](session, call, given).reply()
