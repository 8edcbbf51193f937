"""The API of CloudEvents Registry: requests are carried out in one transaction."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from bindings.http.request import Reply, RequestHead
from registry.apis.cloudevents import views
from registry.apis.cloudevents.mapping import (
    OLDER_RESOURCES,
    XREF,
    GroupMapping,
    Links,
    MessageMapping,
    ParsedBody,
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
    shown_model,
    to_older_path,
    version_sort_key,
)
from registry.apis.cloudevents.views import CloudEventsView, ResourceEdition
from registry.core.ancestry import as_object
from registry.core.requests import ABSENT, Flags, GivenDocument, ResourcePath, Verb, check_id
from registry.core.service import RegistryService, RegistrySession
from registry.core.views import find_shown, require_group, require_owner, require_shown
from registry.errors import Refusal
from registry.http.access import (
    MAX_FINDINGS,
    READ_METHODS,
    ApiCall,
    RegistryApi,
    build_error_reply,
    finding_header,
    json_reply,
    matches_etag,
    next_link,
)


class CloudEventsRequest:
    """A request to this API, within one transaction.

    All methods raise :class:`Refusal`; a write is refused before anything has changed.
    """

    def __init__(self, session: RegistrySession, call: ApiCall, request: ParsedRequest) -> None:
        self.session: Final = session
        self.reader: Final = session.reader
        self.call: Final = call
        self.asked: Final = request
        self.place: Final = request.place
        whole = request.inline and request.place.kind == "registry"
        self.viewer: Final = CloudEventsView(session, call.url, call.max_answer, whole=whole)
        self.links: Final = self.viewer.links
        self._findings: list[Mapping[str, str]] = []

    @property
    def is_post(self) -> bool:
        """Whether it is a POST."""
        return self.call.head.method == "POST"

    @property
    def owner(self) -> ResourcePath:
        """The requested resource, or the resource of the requested version."""
        return self.place if self.place.kind == "resource" else self.place.owner

    def perform(
        self,
        verb: Verb,
        place: ResourcePath,
        body: Any = ABSENT,
        *,
        document: GivenDocument | None = None,
        sticky: bool = False,
    ) -> None:
        """Carry out a core request; with *sticky* the written version becomes the sticky default version."""
        flags = Flags(setdefaultversionid="request") if sticky else Flags()
        segments, details = tuple(place.xid.split("/")[1:]), document is None
        request = self.call.core_request(verb, segments, body, flags=flags, details=details, document=document)
        self._findings += self.session.perform(request).findings

    def check_conditions(self, tag: str, epoch: int, place: ResourcePath, *given: object) -> None:
        """Check conditions and epochs of the request against the current state."""
        self.call.check_conditions({"*", tag}, place.xid)
        check_epoch(epoch, place.xid, self.asked.epoch, *given)

    def check_absent(self, place: ResourcePath) -> None:
        """Check conditions and epoch of the request against an entity that does not exist."""
        check_epoch(0, place.xid, self.asked.epoch)
        self.call.check_conditions(set(), place.xid)

    def attributes_in_headers(self) -> dict[str, str | None]:
        """Return the attributes in headers, None for those to delete."""
        return views.attributes_in_headers(self.call.head, self.asked.path)

    def new_entity_path(self, place: ResourcePath, name: object) -> ResourcePath:
        """Return the path of a new entity of a collection, with the given or a generated id."""
        if place.kind == "resources":
            require_group(self.reader, place)
        where = place.child(check_id(name if name is not None else str(uuid.uuid4()), place.xid))
        if (self.reader.group if place.kind == "groups" else self.reader.resource)(where.xid) is not None:
            raise Refusal("conflict", where.xid, error_detail="it already exists")
        self.check_absent(where)
        return where

    def check_edition(self, edition: ResourceEdition, tree: Mapping[str, Any]) -> None:
        """Check identifiers and epoch of a request against a resource; no request numbers a new version."""
        if self.is_post and tree.get("version") is not None:
            why = "the registry assigns the number of a new version"
            raise Refusal("extra_xregistry_header", self.owner.xid, name="Registry-version", error_detail=why)
        if edition.version is not None:
            check_identifier(tree, "version", self.owner.xid, edition.version.id)
        self.check_conditions(self.viewer.etag_of(edition), edition.epoch, self.owner, tree.get("epoch"))

    def resource_reply(self, place: ResourcePath, status: int, name: str = "") -> Reply:
        """Return the reply with the resulting resource, or with one version of it."""
        edition = self.viewer.choose_edition(require_shown(self.reader, place), name)
        more = self.reply_headers(place, status)
        if not self.asked.meta:
            return self.viewer.resource_reply(place, edition, status, more, redirect=False)
        return json_reply(self.viewer.render_edition(place, edition, named=bool(name), inline=False), status, more)

    def reply_headers(self, place: ResourcePath, status: int) -> list[tuple[bytes, bytes]]:
        """Return the headers of a reply: lint's findings, and the location of a new entity."""
        location = f"{self.call.url}{to_older_path(place.xid)}".encode("ascii")
        found = [finding_header(each) for each in self._findings[:MAX_FINDINGS]]
        return [*found, *([(b"Location", location)] if status == 201 else [])]


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


# POST and PUT of groups and endpoints.


class GroupWriteRequest(CloudEventsRequest):
    """A POST or PUT of a group or an endpoint."""

    def reply(self) -> Reply:
        """Carry out the request, and return the reply."""
        place = self.place
        tree = parse_object(self.call, place.xid)
        body = parse_body(tree, with_resources=True)
        if self.is_post:
            return self._create_group(self.new_entity_path(place, tree.get("id")), body, with_resources=True)
        check_identifier(tree, "id", place.xid, place.gid)
        group = self.reader.group(place.xid)
        if group is None:
            self.check_absent(place)
            return self._create_group(place, body, with_resources=False)
        self.check_conditions(self.viewer.etag_of(group), group.epoch, place, tree.get("epoch"))
        form = GroupMapping(place.group.plural, place.gid, self.links)
        attributes = replace_attributes(place.group.plural, form, group.attributes, body.content)
        return self._write_group(place, {**attributes, **body.times}, 200)

    def _create_group(self, place: ResourcePath, body: ParsedBody, *, with_resources: bool) -> Reply:
        """Create a group, if *with_resources* also its resources, which a PUT must ignore."""
        attributes = GroupMapping(place.group.plural, place.gid, self.links).to_core(drop_nulls(body.content))
        members = resources_in_group_body(place, body.given, attributes, self.links) if with_resources else {}
        return self._write_group(place, {**attributes, **body.times, **members}, 201)

    def _write_group(self, place: ResourcePath, attributes: Mapping[str, Any], status: int) -> Reply:
        self.perform("replace", place, attributes)
        group = require_group(self.reader, place)
        shown, tag = self.viewer.render_group(place, group, "listed"), self.viewer.etag_of(group)
        return json_reply(shown, status, self.reply_headers(place, status), tag)


# POST and PUT of definitions (which show only their latest version), and of their metadata alone.

_KEPT_ATTRIBUTES: Final = ("name", "description", "docs", "tags")
"""Attributes that stay if a request does not contain them."""


class DefinitionWriteRequest(CloudEventsRequest):
    """A POST or PUT of definitions."""

    def reply(self) -> Reply:
        """Carry out the request, and return the reply."""
        place = self.place
        needs_body = self.is_post or self.asked.meta or self.call.body.strip()
        tree = _merge_headers(
            parse_object(self.call, place.xid) if needs_body else {}, self.attributes_in_headers(), place
        )
        if place.kind == "resources":
            return self._create_definition(self.new_entity_path(place, tree.get("id")), tree)
        owner = self.owner
        check_identifier(tree, "id", owner.xid, owner.rid)
        if self.is_post:
            return self._create_next_version(owner, tree)
        shown = find_shown(self.reader, owner)
        if shown is None:
            require_group(self.reader, owner)
            self.check_absent(owner)
            return self._create_definition(owner, tree, {"versionid": place.vid} if place.vid else {})
        edition = self.viewer.choose_edition(shown, place.vid)
        self.check_edition(edition, tree)
        self.perform("replace", owner, self._replacement_body(owner, edition, tree, meta=self.asked.meta))
        return self.resource_reply(owner, 200)

    def _create_definition(
        self, place: ResourcePath, tree: Mapping[str, Any], version: Mapping[str, str] | None = None
    ) -> Reply:
        body = parse_definition_body(tree)
        attributes = self.viewer.mapping_of(place, self.viewer.group_defaults(place)).to_core(drop_nulls(body.content))
        self.perform("replace", place, core_message_body(attributes, {**body.times, **(version or {})}))
        return self.resource_reply(place, 201)

    def _create_next_version(self, place: ResourcePath, tree: Mapping[str, Any]) -> Reply:
        """Create a version that replaces the latest one, which the core keeps."""
        edition = self.viewer.choose_edition(require_shown(self.reader, place))
        self.check_edition(edition, tree)
        body = self._replacement_body(place, edition, tree, meta=False)
        if "meta" in body:
            raise Refusal("extra_xref_attribute", place.xid, name="versions", singular="definition")
        self.perform("add", place, body, sticky=edition.shown.resource.sticky)
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


class SchemaWriteRequest(CloudEventsRequest):
    """A POST or PUT of schemas or their versions."""

    def reply(self) -> Reply:
        """Carry out the request, and return the reply."""
        place, said = self.place, self.attributes_in_headers()
        if place.kind == "resources":
            return self._create_version(self.new_entity_path(place, said.get("id")), _FIRST_VERSION, said)
        return self._create_next_version(place, said) if self.is_post else self._put(said)

    def _put(self, header_values: Mapping[str, str | None]) -> Reply:
        owner, name = self.owner, self.place.vid
        tree: Mapping[str, Any] = parse_object(self.call, owner.xid) if self.asked.meta else header_values
        check_identifier(tree, "id", owner.xid, owner.rid, name or owner.rid)
        shown = find_shown(self.reader, owner)
        if shown is None or (name and not self._has_version(owner, name)):
            if self.asked.meta:
                raise Refusal("not_found", self.place.xid)
            if shown is None:
                require_group(self.reader, owner)
            self.check_absent(self.place)
            return self._create_version(owner, name or _FIRST_VERSION, header_values, shown=name)
        edition = self.viewer.choose_edition(shown, name)
        self.check_edition(edition, tree)
        if edition.version is None:
            raise Refusal("not_found", owner.xid)
        where, stored = owner.collection("versions").child(edition.version.id), edition.version.attributes
        if self.asked.meta:
            self.perform("replace", where, _replace_metadata(stored, tree))
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
        edition = self.viewer.choose_edition(require_shown(self.reader, place))
        check_identifier(header_values, "id", place.xid, place.rid)
        self.check_edition(edition, header_values)
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
            document, kind = GivenDocument(None), None
        else:
            kind = media.decode("latin-1").strip() if media and body else guess_content_type(body)
            document, attributes = GivenDocument(body), {**attributes, views.DOCUMENT_URL: None}
        self.perform(verb, place, {**attributes, "contenttype": kind}, document=document)

    def _has_version(self, place: ResourcePath, name: str) -> bool:
        source = require_shown(self.reader, place).source
        return source is not None and self.reader.version(f"{source.versions}/{name}") is not None


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


class DeleteRequest(CloudEventsRequest):
    """A DELETE request."""

    def reply(self) -> Reply:
        """Carry it out, and return the last state of the entities."""
        place = self.place
        if place.is_collection:
            require_owner(self.reader, place)
            given = parse_deletion_list(self.call, place.xid)
            return self._delete_versions(given) if place.kind == "versions" else self._delete_listed(given)
        if place.kind == "group":
            group = require_group(self.reader, place)
            self.check_conditions(self.viewer.etag_of(group), group.epoch, place)
            reply = json_reply(self.viewer.render_group(place, group, "listed"))
        else:
            edition = self.viewer.choose_edition(require_shown(self.reader, self.owner), place.vid)
            said: Mapping[str, Any] = self.attributes_in_headers()
            self.check_conditions(self.viewer.etag_of(edition), edition.epoch, place, said.get("epoch"))
            if place.kind == "version":
                self._require_version_left({place.vid})
            reply = self.viewer.resource_reply(self.owner, edition, redirect=False)
        self.perform("delete", place)
        return reply

    def _delete_listed(self, given: list[Mapping[str, Any]] | None) -> Reply:
        if given is None:
            self.perform("delete", self.place)
            return Reply(204)
        shown = dict(self._checked_state(each) for each in given)
        self.perform("delete", self.place, {name: {} for name in shown})
        return json_reply(shown)

    def _checked_state(self, given: Mapping[str, Any]) -> tuple[str, msgspec.Raw]:
        """Return the id and the state of an entity in a list, after checking its epoch."""
        name = given.get("id")
        if not isinstance(name, str):
            raise Refusal("bad_request", self.place.xid, error_detail="each object in the list needs an id")
        where = self.place.child(name)
        if where.kind == "group":
            group = require_group(self.reader, where)
            epoch, shown = group.epoch, self.viewer.render_group(where, group, "listed")
        else:
            edition = self.viewer.choose_edition(require_shown(self.reader, where))
            epoch, shown = edition.epoch, self.viewer.render_edition(where, edition, named=False, inline=False)
        check_epoch(epoch, where.xid, given.get("epoch"))
        return name, self.viewer.to_json(shown)

    def _delete_versions(self, given: list[Mapping[str, Any]] | None) -> Reply:
        owner, shown = self.owner, dict[str, Any]()
        latest = self.viewer.choose_edition(require_shown(self.reader, owner))
        if given is None:
            names = self._version_ids(latest) - {latest.version.id if latest.version is not None else ""}
        else:
            for each in given:
                name = str(each.get("version") if each.get("version") is not None else each.get("id"))
                check_identifier(each, "id", owner.xid, owner.rid, name)
                edition = self.viewer.choose_edition(latest.shown, name)
                check_epoch(edition.epoch, f"{owner.xid}/versions/{name}", each.get("epoch"))
                shown[name] = self.viewer.render_edition(owner, edition, named=True, inline=False)
            names = set(shown)
            self._require_version_left(names)
        if names:
            self.perform("delete", self.place, {name: {} for name in sorted(names)})
        return Reply(204) if given is None else json_reply(shown)

    def _require_version_left(self, names: set[str]) -> None:
        """Raise if a resource would lose its last version; a definition has only the latest."""
        if names >= self._version_ids(self.viewer.choose_edition(require_shown(self.reader, self.owner))):
            why = "the last version cannot be deleted; delete the resource"
            raise Refusal("bad_request", self.owner.xid, error_detail=why)

    def _version_ids(self, edition: ResourceEdition) -> set[str]:
        source = edition.shown.source
        if self.place.resource.plural == "messages" or source is None:
            return {edition.version.id} if edition.version is not None else set()
        return {each.id for each in self.reader.iter_versions(source.versions)}


# GET: the registry, its model, collections page by page, groups, resources with their documents, and versions.


class ReadRequest(CloudEventsRequest):
    """A GET request."""

    def reply(self) -> Reply:
        """Return the reply; 304 if the client's copy is current."""
        asked, place = self.asked, self.place
        if place.kind == "registry":
            model = self.session.model
            return json_reply(shown_model(model) if asked.model else self.viewer.render_registry(inline=asked.inline))
        if place.is_collection:
            return self._page_reply()
        if place.kind == "group":
            group = require_group(self.reader, place)
            # With its resources, which change without its epoch, it has no ETag.
            tag = "" if asked.inline else self.viewer.etag_of(group)
            reply = json_reply(self.viewer.render_group(place, group, "whole" if asked.inline else "listed"), tag=tag)
        else:
            edition = self.viewer.choose_edition(require_shown(self.reader, self.owner), place.vid)
            if asked.meta:
                named = place.kind == "version"
                return json_reply(self.viewer.render_edition(self.owner, edition, named=named, inline=asked.inline))
            reply = self.viewer.resource_reply(self.owner, edition)
        tag = next((value for name, value in reply.headers if name == b"ETag"), b"").decode("ascii")
        return Reply(304, reply.headers) if reply.status == 200 and matches_etag(self.call.head, tag) else reply

    def _page_reply(self) -> Reply:
        place, asked = self.place, self.asked
        require_owner(self.reader, place)
        members: dict[str, msgspec.Raw] = {}
        for name, each in self._iter_members(asked.cursor):
            if len(members) == asked.limit:
                versions = place.kind == "versions"
                count = require_shown(self.reader, place).count if versions else self.reader.count(place.xid)
                query = [("inline", "true")] if asked.inline else []
                url, after = f"{self.call.url}{to_older_path(place.xid)}", next(reversed(members)).lower()
                return json_reply(members, 200, (next_link(url, query, asked.limit, after, count),))
            members[name] = self.viewer.to_json(each)
        return json_reply(members)

    def _iter_members(self, after: str) -> Iterator[tuple[str, dict[str, Any]]]:
        place, viewer, inline = self.place, self.viewer, self.asked.inline
        if place.kind == "groups":
            return viewer.iter_groups(place, after, "whole" if inline else "listed")
        if place.kind == "resources":
            return viewer.iter_resources(place, after, "nested" if inline else "listed")
        shown = require_shown(self.reader, place)
        if place.resource.plural == "messages" or shown.source is None:
            latest = [] if shown.default is None else [shown.default]
            versions = iter([each for each in latest if each.id.lower() > after])
        else:
            versions = self.reader.iter_versions(shown.source.versions, after)
        editions = (ResourceEdition(shown, each) for each in versions)
        return (
            (one.version.id, viewer.render_edition(self.owner, one, named=True, inline=inline))
            for one in editions
            if one.version is not None
        )


_WRITERS_BY_TYPE: Final[Mapping[str, type[GroupWriteRequest | DefinitionWriteRequest | SchemaWriteRequest]]] = {
    "": GroupWriteRequest,
    "messages": DefinitionWriteRequest,
    "schemas": SchemaWriteRequest,
}
"""The write request class by resource type."""


class CloudEventsApi(RegistryApi):
    """CloudEvents Registry 0.4/0.5."""

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
    allow = (b"Allow", ", ".join((*given.methods, "OPTIONS")).encode("ascii"))
    if method == "OPTIONS":
        return Reply(200, (allow,))
    if method not in given.methods or (given.meta and method not in ("GET", "HEAD", "PUT")):
        refusal = Refusal("action_not_supported", to_older_path(given.place.xid), action=method)
        reply = build_error_reply(call.head, call.url, refusal)
        return Reply(reply.status, (*reply.headers, allow), reply.body)
    if method in READ_METHODS:
        return ReadRequest(session, call, given).reply()
    if method == "DELETE":
        return DeleteRequest(session, call, given).reply()
    kind = given.place.resource_type
    return _WRITERS_BY_TYPE[kind.plural if kind is not None else ""](session, call, given).reply()
