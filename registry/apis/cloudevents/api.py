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
    OLDER_RESOURCES,
    XREF,
    GroupMapping,
    Links,
    MessageMapping,
    ParsedRequest,
    SchemaMapping,
    collection_in_group,
    document_attributes,
    drop_nulls,
    guess_content_type,
    next_version_id,
    parse_body,
    parse_definition_body,
    parse_deletion_list,
    parse_object,
    parse_request,
    replace_attributes,
    to_older_path,
    version_sort_key,
)
from registry.apis.cloudevents.views import CloudEventsView, Headers, ReadRequest, ResourceEdition, require_resource
from registry.core.ancestry import as_object
from registry.core.requests import ABSENT, Flags, GivenDocument, RegistryRequest, ResourcePath, Verb, check_id
from registry.core.service import RegistryService, RegistrySession
from registry.core.views import ShownResource, iter_shown
from registry.errors import Refusal
from registry.http.access import MAX_FINDINGS, READ_METHODS, ApiCall, build_error_reply, finding_header, parse_etags

# Core requests made for a request to this API, in one session.


class CoreRequester:
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
        document: GivenDocument | None = None,
        media: str = JSON,
        sticky: bool = False,
    ) -> None:
        """Carry out a core request; with *sticky* the written version becomes the sticky default version.

        Raises:
            Refusal: it is refused.
        """
        writer = self._call.sender
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
    def finding_headers(self) -> Headers:
        """The headers with lint's first findings about the writes."""
        return tuple(self._findings[:MAX_FINDINGS])

    def check_conditions(self, tag: str, epoch: int, place: ResourcePath, *given: object) -> None:
        """Raise if conditions or epochs of the request do not match the current state.

        Raises:
            Refusal: ``precondition_failed``, ``mismatched_epoch``.
        """
        head, there = self._call.head, {"*", tag}
        matches, known = (parse_etags(head.header(name)) for name in (b"if-match", b"if-none-match"))
        if (matches is not None and not there & set(matches)) or there & set(known or ()):
            raise Refusal("precondition_failed", place.xid)
        check_epoch(epoch, place.xid, *given)

    def check_absent(self, place: ResourcePath, epoch: int | None) -> None:
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


def check_identifier(body: Mapping[str, Any], name: str, xid: str, *expected: object) -> None:
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
    for plural in (name for name in place.group.resources if name in OLDER_RESOURCES):
        where = place.collection(plural)
        for name, each in collection_in_group(body, OLDER_RESOURCES[plural]).items():
            own = where.child(name)
            tree = as_object(each, own.xid)
            check_identifier(tree, "id", own.xid, name)
            taken = _core_schema(own, tree) if plural == "schemas" else _core_definition(own, tree, defaults, links)
            held.setdefault(plural, {})[name] = taken
    return held


def _core_definition(
    place: ResourcePath, tree: Mapping[str, Any], defaults: Mapping[str, Any], links: Links
) -> dict[str, Any]:
    """Return the core body of a new definition.

    Raises:
        Refusal: it is not valid.
    """
    body = parse_definition_body(tree)
    form = MessageMapping(place.group.plural, place.gid, place.rid, defaults, links)
    return core_message_body(form.to_core(body.content), body.times)


def core_message_body(attributes: Mapping[str, Any], times: Mapping[str, Any]) -> dict[str, Any]:
    """Return the core body of a message's attributes: ``xref`` goes into ``meta``."""
    return {"meta": {XREF: attributes[XREF]}} if XREF in attributes else {**attributes, **times}


def _core_schema(place: ResourcePath, tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the core body of a new schema: each version descends from the previous one.

    Attributes of the schema itself go to its latest version, except the format, which goes to all.

    Raises:
        Refusal: it is not valid.
    """
    top = parse_body(tree)
    versions = {name: as_object(each, place.xid) for name, each in collection_in_group(tree, "versions").items()}
    if not versions:
        return {"versionid": "1", **document_attributes(SchemaMapping().to_core(top.content)), **top.times}
    chain: dict[str, Any] = {}
    names = sorted(versions, key=version_sort_key)
    for before, name in zip((names[0], *names), names, strict=False):
        body = parse_body(versions[name])
        check_identifier(body.given, "id", f"{place.xid}/versions/{name}", name, place.rid)
        shared = top.content if name == names[-1] else {"format": top.content.get("format")}
        own = {key for key in body.content if key.lower().startswith("schema")}
        beside = {key: value for key, value in shared.items() if not own or not key.lower().startswith("schema")}
        said = SchemaMapping().to_core({**beside, **body.content})
        chain[name] = {**document_attributes(said), **body.times, "ancestorid": before}
    return {"versions": chain}


# Common parts of POST and PUT.


class WriteRequest:
    """A POST or PUT request. All methods raise :class:`Refusal`, before anything has changed."""

    def __init__(self, session: RegistrySession, call: ApiCall, request: ParsedRequest) -> None:
        self.session: Final = session
        self.call: Final = call
        self.asked: Final = request
        self.links: Final = Links(call.url)
        self.requester: Final = CoreRequester(session, call)
        self.viewer: Final = CloudEventsView(session, call.url, call.max_answer)

    @property
    def is_post(self) -> bool:
        """Whether it is a POST."""
        return self.call.head.method == "POST"

    @property
    def resource_path(self) -> ResourcePath:
        """The requested resource, or the resource of the requested version."""
        place = self.asked.place
        return place if place.kind == "resource" else place.owner

    def attributes_in_headers(self) -> dict[str, str | None]:
        """Return the attributes in headers, None for those to delete."""
        return views.attributes_in_headers(self.call.head, self.asked.path)

    def find_resource(self, place: ResourcePath) -> ShownResource | None:
        """Return a resource, None if it does not exist."""
        return next(iter_shown(self.session.reader, place, "", place.rid), None)

    def new_entity_path(self, place: ResourcePath, name: object) -> ResourcePath:
        """Return the path of a new entity of a collection, with the given or a generated id."""
        if place.kind == "resources":
            self.require_group(place)
        where = place.child(check_id(name if name is not None else str(uuid.uuid4()), place.xid))
        reader = self.session.reader
        if (reader.group if place.kind == "groups" else reader.resource)(where.xid) is not None:
            raise Refusal("conflict", where.xid, error_detail="it already exists")
        self.requester.check_absent(where, self.asked.epoch)
        return where

    def require_group(self, place: ResourcePath) -> None:
        """Raise if the group of a new resource does not exist."""
        if self.session.reader.group(place.owner.xid) is None:
            raise Refusal("not_found", place.owner.xid)

    def check_request(self, place: ResourcePath, edition: ResourceEdition, tree: Mapping[str, Any]) -> None:
        """Raise if identifiers or epoch of a request do not match the resource, or if it numbers a new version."""
        if self.is_post and tree.get("version") is not None:
            why = "the registry assigns the number of a new version"
            raise Refusal("extra_xregistry_header", place.xid, name="Registry-version", error_detail=why)
        if edition.version is not None:
            check_identifier(tree, "version", place.xid, edition.version.id)
        tag = views.etag_of(self.session, edition)
        self.requester.check_conditions(tag, edition.epoch, place, self.asked.epoch, tree.get("epoch"))

    def resource_reply(self, place: ResourcePath, status: int, name: str = "") -> Reply:
        """Return the reply with the resulting resource, or with one version of it."""
        edition = self.viewer.choose_edition(require_resource(self.session, place), name)
        more = self.reply_headers(place, status)
        if not self.asked.meta:
            return views.resource_reply(self.session, self.viewer, place, edition, status, more, redirect=False)
        defaults = self.viewer.group_defaults(place)
        if name:
            return views.entity_reply(self.viewer.render_version(place, edition, defaults, inline=False), status, more)
        return views.entity_reply(self.viewer.render_resource(place, edition, "listed", defaults), status, more)

    def reply_headers(self, place: ResourcePath, status: int) -> list[tuple[bytes, bytes]]:
        """Return the headers of a reply: lint's findings, and the location of a new entity."""
        location = f"{self.call.url}{to_older_path(place.xid)}".encode("ascii")
        return [*self.requester.finding_headers, *([(b"Location", location)] if status == 201 else [])]


# POST and PUT of groups and endpoints.


class GroupWriteRequest(WriteRequest):
    """A POST or PUT of a group or an endpoint."""

    def reply(self) -> Reply:
        """Carry out the request, and return the reply."""
        place = self.asked.place
        tree = parse_object(self.call, place.xid)
        if self.is_post:
            return self._create_group(self.new_entity_path(place, tree.get("id")), tree, with_resources=True)
        check_identifier(tree, "id", place.xid, place.gid)
        group = self.session.reader.group(place.xid)
        if group is None:
            self.requester.check_absent(place, self.asked.epoch)
            return self._create_group(place, tree, with_resources=False)
        tag = views.etag_of(self.session, group)
        self.requester.check_conditions(tag, group.epoch, place, self.asked.epoch, tree.get("epoch"))
        body = parse_body(tree, with_resources=True)
        form = GroupMapping(place.group.plural, place.gid, self.links)
        attributes = replace_attributes(place.group.plural, form, group.attributes, body.content)
        self.requester.perform("replace", place, {**attributes, **body.times})
        return self._group_reply(place, 200)

    def _create_group(self, place: ResourcePath, tree: Mapping[str, Any], *, with_resources: bool) -> Reply:
        """Create a group, if *with_resources* also its resources, which a PUT must ignore."""
        body = parse_body(tree, with_resources=True)
        attributes = GroupMapping(place.group.plural, place.gid, self.links).to_core(drop_nulls(body.content))
        members = resources_in_group_body(place, tree, attributes, self.links) if with_resources else {}
        self.requester.perform("replace", place, {**attributes, **body.times, **members})
        return self._group_reply(place, 201)

    def _group_reply(self, place: ResourcePath, status: int) -> Reply:
        group = self.session.reader.group(place.xid)
        assert group is not None
        shown = self.viewer.render_group(place, group, "listed")
        return views.entity_reply(shown, status, self.reply_headers(place, status), views.etag_of(self.session, group))


# POST and PUT of definitions (which show only their latest version), and of their metadata alone.

_KEPT_ATTRIBUTES: Final = ("name", "description", "docs", "tags")
"""Attributes that stay if a request does not contain them."""


class DefinitionWriteRequest(WriteRequest):
    """A POST or PUT of definitions."""

    def reply(self) -> Reply:
        """Carry out the request, and return the reply."""
        place = self.asked.place
        needs_body = self.is_post or self.asked.meta or self.call.body.strip()
        tree = _merge_headers(
            parse_object(self.call, place.xid) if needs_body else {}, self.attributes_in_headers(), place
        )
        if place.kind == "resources":
            return self._create_definition(self.new_entity_path(place, tree.get("id")), tree)
        owner = self.resource_path
        check_identifier(tree, "id", owner.xid, owner.rid)
        if self.is_post:
            return self._create_next_version(owner, tree)
        shown = self.find_resource(owner)
        if shown is None:
            self.require_group(owner)
            self.requester.check_absent(owner, self.asked.epoch)
            return self._create_definition(owner, tree, {"versionid": place.vid} if place.vid else {})
        edition = self.viewer.choose_edition(shown, place.vid)
        self.check_request(owner, edition, tree)
        self.requester.perform("replace", owner, self._replacement_body(owner, edition, tree, meta=self.asked.meta))
        return self.resource_reply(owner, 200)

    def _create_definition(
        self, place: ResourcePath, tree: Mapping[str, Any], version: Mapping[str, str] | None = None
    ) -> Reply:
        body = parse_definition_body(tree)
        attributes = self.viewer.mapping_of(place, self.viewer.group_defaults(place)).to_core(drop_nulls(body.content))
        self.requester.perform("replace", place, core_message_body(attributes, {**body.times, **(version or {})}))
        return self.resource_reply(place, 201)

    def _create_next_version(self, place: ResourcePath, tree: Mapping[str, Any]) -> Reply:
        """Create a version that replaces the latest one, which the core keeps."""
        edition = self.viewer.choose_edition(require_resource(self.session, place))
        self.check_request(place, edition, tree)
        body = self._replacement_body(place, edition, tree, meta=False)
        if "meta" in body:
            raise Refusal("extra_xref_attribute", place.xid, name="versions", singular="definition")
        self.requester.perform("add", place, body, sticky=edition.shown.resource.sticky)
        return self.resource_reply(place, 201)

    def _replacement_body(
        self, place: ResourcePath, edition: ResourceEdition, tree: Mapping[str, Any], *, meta: bool
    ) -> dict[str, Any]:
        """Return the core body of a definition replaced by *tree*; with *meta* its content stays."""
        form = self.viewer.mapping_of(place, self.viewer.group_defaults(place))
        stored = self.viewer.stored_attributes(edition)
        body = parse_definition_body(tree)
        kept = {name: each for name, each in form.to_older(stored).items() if (name in _KEPT_ATTRIBUTES) != meta}
        attributes = replace_attributes("messages", form, stored, {**kept, **body.content})
        again: dict[str, Any] = {"meta": {}} if XREF in stored and XREF not in attributes else {}
        return {**core_message_body(attributes, body.times), **again}


def _merge_headers(tree: Mapping[str, Any], headers: Mapping[str, str | None], place: ResourcePath) -> dict[str, Any]:
    """Merge headers into a body, with which they must agree; None deletes."""
    laid = dict(tree)
    for name, value in headers.items():
        if laid.get(name) is not None and str(laid[name]) != (value or ""):
            why = f"it differs from the body: {str(laid[name])[:80]}"
            raise Refusal("extra_xregistry_header", place.xid, name=f"Registry-{name}", error_detail=why)
        laid.setdefault(name, value)
    return laid


# POST and PUT of schemas and versions: the body is the document, or with ``?meta`` the metadata.

_IDENTITY_MEMBERS: Final = ("id", "version", "epoch", "createdOn", "modifiedOn")
_DOCUMENT_ATTRIBUTES: Final = (views.DOCUMENT_URL, "contenttype")
_FIRST_VERSION: Final = "1"


class SchemaWriteRequest(WriteRequest):
    """A POST or PUT of schemas or their versions."""

    def reply(self) -> Reply:
        """Carry out the request, and return the reply."""
        place, said = self.asked.place, self.attributes_in_headers()
        if place.kind == "resources":
            return self._create_version(self.new_entity_path(place, said.get("id")), _FIRST_VERSION, said)
        return self._create_next_version(place, said) if self.is_post else self._put(said)

    def _put(self, header_values: Mapping[str, str | None]) -> Reply:
        owner, name = self.resource_path, self.asked.place.vid
        tree: Mapping[str, Any] = parse_object(self.call, owner.xid) if self.asked.meta else header_values
        check_identifier(tree, "id", owner.xid, owner.rid, name or owner.rid)
        shown = self.find_resource(owner)
        if shown is None or (name and not self._has_version(owner, name)):
            if self.asked.meta:
                raise Refusal("not_found", self.asked.place.xid)
            if shown is None:
                self.require_group(owner)
            self.requester.check_absent(self.asked.place, self.asked.epoch)
            return self._create_version(owner, name or _FIRST_VERSION, header_values, shown=name)
        edition = self.viewer.choose_edition(shown, name)
        self.check_request(owner, edition, tree)
        if edition.version is None:
            raise Refusal("not_found", owner.xid)
        where, stored = owner.collection("versions").child(edition.version.id), edition.version.attributes
        if self.asked.meta:
            self.requester.perform("replace", where, _replace_metadata(stored, tree))
        else:
            self._write_document(where, _merge_attributes(stored, header_values))
        return self.resource_reply(owner, 200, name)

    def _create_version(
        self, place: ResourcePath, name: str, header_values: Mapping[str, str | None], *, shown: str = ""
    ) -> Reply:
        self._write_document(place.collection("versions").child(name), _merge_attributes({}, header_values))
        return self.resource_reply(place, 201, shown)

    def _create_next_version(self, place: ResourcePath, header_values: Mapping[str, str | None]) -> Reply:
        """Create a version after the latest, from which it inherits attributes missing in the request."""
        edition = self.viewer.choose_edition(require_resource(self.session, place))
        check_identifier(header_values, "id", place.xid, place.rid)
        self.check_request(place, edition, header_values)
        if edition.version is None:
            raise Refusal("not_found", place.xid)
        name = next_version_id(edition.version.id, place.xid)
        given = {
            **_merge_attributes(edition.version.attributes, header_values),
            "versionid": name,
            "ancestorid": edition.version.id,
        }
        self._write_document(place, given, verb="add")
        return self.resource_reply(place, 201)

    def _write_document(self, place: ResourcePath, attributes: dict[str, Any], *, verb: Any = "replace") -> None:
        """Write a version with the body as its document, unless the attributes contain its URL."""
        body, media = self.call.body, self.call.head.header(b"content-type")
        if attributes.get(views.DOCUMENT_URL) is not None:
            if body:
                why = "the document is external, so the body must be empty"
                raise Refusal("extra_xregistry_header", place.xid, name="Registry-schemaURI", error_detail=why)
            document, kind = GivenDocument(None, is_external=True), None
        else:
            kind = media.decode("latin-1").strip() if media and body else guess_content_type(body)
            document, attributes = GivenDocument(body), {**attributes, views.DOCUMENT_URL: None}
        self.requester.perform(verb, place, {**attributes, "contenttype": kind}, document=document)

    def _has_version(self, place: ResourcePath, name: str) -> bool:
        source = require_resource(self.session, place).source
        return source is not None and self.session.reader.version(f"{source.versions}/{name}") is not None


def _merge_attributes(stored: Mapping[str, Any], changes: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the attributes of a version updated by headers, with None for deleted ones."""
    form = SchemaMapping()
    shown = {name: value for name, value in form.to_older(stored).items() if name not in _DOCUMENT_ATTRIBUTES}
    named = {name: value for name, value in changes.items() if name not in _IDENTITY_MEMBERS}
    return {**dict.fromkeys(stored), **replace_attributes("schemas", form, stored, {**shown, **named})}


def _replace_metadata(stored: Mapping[str, Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a version with replaced metadata; the location of its document stays."""
    form, body = SchemaMapping(), parse_body(tree)
    shown, said = form.to_older(stored), body.content
    if views.DOCUMENT_URL in shown and not any(name.lower() in ("schemauri", views.DOCUMENT_URL) for name in said):
        said = {**said, views.DOCUMENT_URL: shown[views.DOCUMENT_URL]}
    return {**document_attributes(replace_attributes("schemas", form, stored, said)), **body.times}


# DELETE of one entity, of those in a list, or of a whole collection.


class DeleteRequest:
    """A DELETE request. All methods raise :class:`Refusal`, before anything has changed."""

    def __init__(self, session: RegistrySession, call: ApiCall, request: ParsedRequest) -> None:
        self._session = session
        self._call = call
        self._asked = request
        self._requester = CoreRequester(session, call)
        self._viewer = CloudEventsView(session, call.url, call.max_answer)

    def reply(self) -> Reply:
        """Carry it out, and return the last state of the entities."""
        place = self._asked.place
        if place.is_collection:
            return self._delete_listed(place)
        if place.kind == "group":
            return self._delete_group(place)
        owner = place if place.kind == "resource" else place.owner
        edition = self._viewer.choose_edition(require_resource(self._session, owner), place.vid)
        said: Mapping[str, Any] = views.attributes_in_headers(self._call.head, place.xid)
        tag = views.etag_of(self._session, edition)
        self._requester.check_conditions(tag, edition.epoch, place, self._asked.epoch, said.get("epoch"))
        if place.kind == "version":
            self._require_version_left(owner, {place.vid})
        reply = views.resource_reply(self._session, self._viewer, owner, edition, redirect=False)
        self._requester.perform("delete", place)
        return reply

    def _delete_group(self, place: ResourcePath) -> Reply:
        group = self._session.reader.group(place.xid)
        if group is None:
            raise Refusal("not_found", place.xid)
        self._requester.check_conditions(views.etag_of(self._session, group), group.epoch, place, self._asked.epoch)
        shown = self._viewer.render_group(place, group, "listed")
        self._requester.perform("delete", place)
        return views.entity_reply(shown)

    def _delete_listed(self, place: ResourcePath) -> Reply:
        given = parse_deletion_list(self._call, place.xid)
        if place.kind == "versions":
            return self._delete_versions(place, given)
        if place.kind == "resources" and self._session.reader.group(place.owner.xid) is None:
            raise Refusal("not_found", place.owner.xid)
        if given is None:
            self._requester.perform("delete", place)
            return Reply(204)
        shown = dict(self._checked_state(place, each) for each in given)
        self._requester.perform("delete", place, {name: {} for name in shown})
        return views.entity_reply(shown)

    def _checked_state(self, place: ResourcePath, given: Mapping[str, Any]) -> tuple[str, msgspec.Raw]:
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
            return name, self._viewer.to_json(self._viewer.render_group(where, group, "listed"))
        edition = self._viewer.choose_edition(require_resource(self._session, where))
        check_epoch(edition.epoch, where.xid, given.get("epoch"))
        defaults = self._viewer.group_defaults(where)
        return name, self._viewer.to_json(self._viewer.render_resource(where, edition, "listed", defaults))

    def _delete_versions(self, place: ResourcePath, given: list[Mapping[str, Any]] | None) -> Reply:
        owner = place.owner
        latest = self._viewer.choose_edition(require_resource(self._session, owner))
        if given is None:
            others = self._version_ids(owner, latest) - {latest.version.id if latest.version is not None else ""}
            if others:
                self._requester.perform("delete", place, {name: {} for name in sorted(others)})
            return Reply(204)
        shown: dict[str, Any] = {}
        for each in given:
            name = str(each.get("version") if each.get("version") is not None else each.get("id"))
            check_identifier(each, "id", owner.xid, owner.rid, name)
            edition = self._viewer.choose_edition(latest.shown, name)
            check_epoch(edition.epoch, f"{owner.xid}/versions/{name}", each.get("epoch"))
            shown[name] = self._viewer.render_version(owner, edition, self._viewer.group_defaults(owner), inline=False)
        self._require_version_left(owner, set(shown))
        if shown:
            self._requester.perform("delete", place, {name: {} for name in shown})
        return views.entity_reply(shown)

    def _require_version_left(self, place: ResourcePath, names: set[str]) -> None:
        """Raise if a resource would lose its last version; a definition has only the latest."""
        if names >= self._version_ids(place, self._viewer.choose_edition(require_resource(self._session, place))):
            why = "the last version cannot be deleted; delete the resource"
            raise Refusal("bad_request", place.xid, error_detail=why)

    def _version_ids(self, place: ResourcePath, edition: ResourceEdition) -> set[str]:
        source = edition.shown.source
        if place.resource.plural == "messages" or source is None:
            return {edition.version.id} if edition.version is not None else set()
        return {each.id for each in self._session.reader.iter_versions(source.versions)}


_WRITERS_BY_TYPE: Final[Mapping[str, type[DefinitionWriteRequest | SchemaWriteRequest]]] = {
    "messages": DefinitionWriteRequest,
    "schemas": SchemaWriteRequest,
}
"""The write request class by resource type."""


class CloudEventsApi:
    """CloudEvents Registry 0.4/0.5; implements :class:`registry.http.access.RegistryApi`."""

    def __init__(self, service: RegistryService) -> None:
        self._service = service

    def reply(self, call: ApiCall) -> Reply:
        """Carry out a request."""
        with self._service.session(writing=call.head.method not in READ_METHODS) as session:
            return _dispatch(session, call)

    def error_reply(self, head: RequestHead, url: str, refusal: Refusal) -> Reply:
        """Return the error reply like the core API; the specification defines none."""
        if refusal.subject.startswith("/"):
            refusal.subject = to_older_path(refusal.subject)
        return build_error_reply(head, url, refusal)


def _dispatch(session: RegistrySession, call: ApiCall) -> Reply:
    given, method = parse_request(call, session.model), call.head.method
    if method == "OPTIONS":
        return Reply(200, (views.allow_header(given.methods),))
    if method not in given.methods or (given.meta and method not in ("GET", "HEAD", "PUT")):
        refusal = Refusal("action_not_supported", to_older_path(given.place.xid), action=method)
        reply = build_error_reply(call.head, call.url, refusal)
        return Reply(reply.status, (*reply.headers, views.allow_header(given.methods)), reply.body)
    if method in READ_METHODS:
        return ReadRequest(session, call, given).reply()
    if method == "DELETE":
        return DeleteRequest(session, call, given).reply()
    if given.place.resource_type is None:
        return GroupWriteRequest(session, call, given).reply()
    return _WRITERS_BY_TYPE[given.place.resource_type.plural](session, call, given).reply()
