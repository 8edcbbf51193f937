"""Responses of CloudEvents Registry: entities as whole documents, as metadata, or with nested resources.

Each entity is encoded as JSON as soon as it is complete, and the size of a response is bounded, as in the core's views.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal

from bindings.http.request import Reply, RequestHead
from registry.apis.cloudevents.mapping import (
    OLDER_GROUPS,
    OLDER_RESOURCES,
    OLDER_SINGULARS,
    XREF,
    GroupMapping,
    Links,
    MessageMapping,
    SchemaMapping,
    document_member,
    guess_content_type,
    latest_version,
    number_or_text,
    shown_model,
    to_older_path,
)
from registry.core.requests import ResourcePath
from registry.core.service import RegistrySession
from registry.core.views import ResponseBudget, ShownResource, iter_shown
from registry.errors import Refusal
from registry.http.access import clean_content_type, decode_header, encode_header, json_reply
from registry.store.entities import PAGE_ROWS, Entity, GroupEntity, Version

SPECVERSION: Final = "0.5-wip"
Style = Literal["listed", "nested", "whole"]
"""Only metadata; with the resource nested in it; or as in a document of the whole registry."""
_DESCRIPTIVE: Final = ("name", "description", "tags", "docs", "format")


@dataclass(frozen=True, slots=True)
class ResourceEdition:
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
        self.links = Links(url, whole)
        self.to_json = ResponseBudget(max_answer, "/").to_json

    def render_registry(self, *, inline: bool) -> dict[str, Any]:
        """Show the registry."""
        entity = self._session.registry
        model = self._session.model
        own = GroupMapping("schemagroups", "", self.links).to_older(entity.attributes)
        shown: dict[str, Any] = {"specVersion": SPECVERSION, "id": entity.id, **own, "self": f"{self._url}/"}
        if inline:
            shown["model"] = shown_model(model)
        for plural, older in OLDER_GROUPS.items():
            if plural not in model.groups:
                continue
            # Group collections have the names of documents; nested collections those of the API.
            shown[f"{older}Url"] = f"{self._url}/{older}"
            shown[f"{older}Count"] = self._reader.count(f"/{plural}")
            if inline:
                place = ResourcePath("groups", model.groups[plural])
                shown[older] = {name: self.to_json(each) for name, each in self.iter_groups(place, "", "whole")}
        return shown

    def iter_groups(self, place: ResourcePath, after: str, style: Style) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the groups of a collection after a lower-case id."""
        groups = self._reader.iter_groups(place.xid, after)
        while batch := list(islice(groups, PAGE_ROWS)):
            held = [place.child(each.id).collection(name).xid for each in batch for name in _resource_types(place)]
            counts = self._reader.count_each(held)
            for each in batch:
                yield each.id, self.render_group(place.child(each.id), each, style, counts)

    def render_group(
        self, place: ResourcePath, group: GroupEntity, style: Style, counts: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """Show a group, with its resources unless *style* is ``listed``."""
        form = GroupMapping(place.group.plural, group.id, self.links).to_older(group.attributes)
        shown = {"id": group.id, **self._common_members(group, self._url_of(place.xid)), **form}
        for plural in _resource_types(place):
            older, held = OLDER_RESOURCES[plural], place.collection(plural)
            count = self._reader.count(held.xid) if counts is None else counts.get(held.xid, 0)
            shown[f"{older}URL"] = self._url_of(held.xid)
            shown[f"{older}Count"] = count
            if style != "listed":
                members = self.iter_resources(held, "", "whole")
                shown[older] = {name: self.to_json(each) for name, each in members}
        return shown

    def iter_resources(self, place: ResourcePath, after: str, style: Style) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the resources of a collection after a lower-case id."""
        defaults = self.group_defaults(place)
        for each in iter_shown(self._reader, place, after):
            edition = self.choose_edition(each)
            yield each.resource.id, self.render_resource(place.child(each.resource.id), edition, style, defaults)

    def group_defaults(self, place: ResourcePath) -> Mapping[str, Any]:
        """Return the defaults that a group gives its messages."""
        group = self._reader.group(f"/{place.group.plural}/{place.gid}")
        attributes = group.attributes if group is not None else {}
        return {name: attributes[name] for name in ("envelope", "protocol") if isinstance(attributes.get(name), str)}

    def stored_attributes(self, edition: ResourceEdition) -> dict[str, Any]:
        """Return the 1.0 attributes of a resource."""
        own = {XREF: edition.shown.resource.xref} if edition.shown.resource.xref else {}
        return {**own, **(edition.version.attributes if edition.version is not None else {})}

    def mapping_of(self, place: ResourcePath, defaults: Mapping[str, Any]) -> MessageMapping | SchemaMapping:
        """Return the converter of a resource."""
        if place.resource.plural == "schemas":
            return SchemaMapping()
        return MessageMapping(place.group.plural, place.gid, place.rid, defaults, self.links)

    def render_resource(
        self, place: ResourcePath, edition: ResourceEdition, style: Style, defaults: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Show a resource by its latest version."""
        form = self.mapping_of(place, defaults).to_older(self.stored_attributes(edition))
        shown = {"id": place.rid, **self._versions_of(place, edition)}
        if place.resource.plural == "schemas":
            return {**shown, **form, **self._schema_members(place, edition, style)}
        if style == "whole":
            return {**shown, **form}
        listed: dict[str, Any] = {name: form[name] for name in _DESCRIPTIVE if name in form}
        nested = {"id": place.rid, **form}
        return {**shown, **listed, **({OLDER_SINGULARS["messages"]: nested} if style == "nested" else {})}

    def render_edition(
        self, place: ResourcePath, edition: ResourceEdition, *, named: bool, inline: bool
    ) -> dict[str, Any]:
        """Show the metadata of a resource, or of the *named* version of it; *place* is the resource's."""
        if not named or place.resource.plural == "messages":
            return self.render_resource(place, edition, "nested" if inline else "listed", self.group_defaults(place))
        form = SchemaMapping().to_older(self.stored_attributes(edition))
        name = edition.version.id if edition.version is not None else ""
        return {"id": name, **self._versions_of(place, edition), **form, **(self._document(edition) if inline else {})}

    def choose_edition(self, shown: ShownResource, name: str = "") -> ResourceEdition:
        """Return a resource with the named version, or with the latest.

        Raises:
            Refusal: ``not_found``: it has no such version, or shows only the latest.
        """
        source = shown.source
        version = shown.default
        if source is not None and source.parent.endswith("/schemas") and shown.count > 1:
            version = latest_version(self._reader.iter_versions(source.versions))
        if name and source is not None and (version is None or version.id != name):
            wanted = self._reader.version(f"{source.versions}/{name}")
            if wanted is None or not source.parent.endswith("/schemas"):
                raise Refusal("not_found", f"{shown.resource.xid}/versions/{name}")
            version = wanted
        elif name and version is None:
            raise Refusal("not_found", f"{shown.resource.xid}/versions/{name}")
        return ResourceEdition(shown, version)

    def etag_of(self, subject: ResourceEdition | GroupEntity) -> str:
        """Return the ETag of a resource or a group.

        A definition depends on the format of its group, and on the target of its ``xref``.
        """
        if isinstance(subject, GroupEntity):
            return f'"{subject.epoch}"'
        resource = subject.shown.resource
        group = self._reader.group(resource.group)
        return f'"{resource.epoch}-{subject.epoch}-{group.epoch if group is not None else 0}"'

    def resource_reply(
        self,
        place: ResourcePath,
        edition: ResourceEdition,
        status: int = 200,
        more: Iterable[tuple[bytes, bytes]] = (),
        *,
        redirect: bool = True,
    ) -> Reply:
        """Return the reply with a definition, with the document of a schema, or with a redirect to it.

        *place* is the resource's; *redirect* is for readers.
        """
        tag = self.etag_of(edition)
        if place.resource.plural == "messages":
            shown = self.render_resource(place, edition, "whole", self.group_defaults(place))
            fields = (
                *iter_header_fields(shown, alone=False),
                (b"Content-Location", encode_header(shown["self"])),
                *more,
            )
            return json_reply(shown, status, fields, tag)
        shown = {**self.render_edition(place, edition, named=True, inline=False), "id": place.rid}
        location = (b"Content-Location", encode_header(shown["self"]))
        fields = ((b"ETag", tag.encode("ascii")), *iter_header_fields(shown, alone=True), location, *more)
        elsewhere = shown.get(DOCUMENT_URL)
        if elsewhere is not None:
            return Reply(307, (*fields, (b"Location", encode_header(elsewhere)))) if redirect else Reply(status, fields)
        document = (self._reader.document(edition.version.xid) if edition.version is not None else None) or b""
        media = str(shown.get("contenttype") or guess_content_type(document))
        return Reply(status, ((b"Content-Type", clean_content_type(media)), *fields), document)

    def _schema_members(self, place: ResourcePath, edition: ResourceEdition, style: Style) -> dict[str, Any]:
        """Return the members for versions of a schema: their URL, all of them, or the latest document."""
        source = edition.shown.source
        if style == "whole" and source is not None:
            each = (ResourceEdition(edition.shown, version) for version in self._reader.iter_versions(source.versions))
            versions = (
                (one.version.id, self.render_edition(place, one, named=True, inline=True))
                for one in each
                if one.version
            )
            return {"versions": {name: self.to_json(one) for name, one in versions}}
        more = {"versionsURL": self._url_of(f"{place.xid}/versions"), "versionsCount": edition.shown.count}
        return {**more, **(self._document(edition) if style == "nested" else {})}

    def _document(self, edition: ResourceEdition) -> dict[str, Any]:
        if edition.version is None or "schemaurl" in edition.version.attributes:
            return {}
        return document_member(self._reader.document(edition.version.xid) or b"")

    def _versions_of(self, place: ResourcePath, edition: ResourceEdition) -> dict[str, Any]:
        entity: Entity = edition.version or edition.shown.resource
        xid = place.xid if edition.version is None else f"{place.xid}/versions/{edition.version.id}"
        shown: dict[str, Any] = {} if edition.version is None else {"version": number_or_text(edition.version.id)}
        return {**shown, **self._common_members(entity, self._url_of(xid))}

    def _common_members(self, entity: Entity, link: str) -> dict[str, Any]:
        times = {"createdOn": entity.createdat, "modifiedOn": entity.modifiedat}
        return {"epoch": entity.epoch, "self": link, **times}

    def _url_of(self, xid: str) -> str:
        return f"{self._url}{to_older_path(xid)}"


def _resource_types(place: ResourcePath) -> list[str]:
    """Return the resource types of a group that this API shows."""
    return [name for name in place.group.resources if name in OLDER_RESOURCES]


# Attributes as ``Registry-`` headers.

PREFIX: Final = b"registry-"
DOCUMENT_URL: Final = "schemaurl"
"""The attribute with the URL of a document; its header is the singular name and ``URI``."""
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", re.ASCII)
_MEMBERS: Final = ("id", "name", "description", "docs", "format", "version", "epoch", "self", "createdOn", "modifiedOn")
_NO_HEADERS: Final = ("contenttype", "versionsURL", "versionsCount")
"""Members without a header."""
_SPELLINGS: Final = {name.lower(): name for name in (*_MEMBERS, "createdBy", "modifiedBy", "schemaBase64")} | {
    "schemauri": DOCUMENT_URL
}


def iter_header_fields(entity: Mapping[str, Any], *, alone: bool) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers of an entity's scalars; without *alone* the body has the entity as well."""
    for name, value in entity.items():
        scalar = isinstance(value, str | int | float) and _NAME.fullmatch(name)
        if scalar and (alone or name in _MEMBERS) and name not in _NO_HEADERS:
            header = "schemaURI" if name == DOCUMENT_URL else name
            yield f"Registry-{header}".encode("ascii"), encode_header(value)


def attributes_in_headers(head: RequestHead, path: str) -> dict[str, str | None]:
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
        said[_SPELLINGS.get(name, name)] = decode_header(value, name, path) or None
    return said
