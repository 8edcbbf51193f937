"""Entities as this face shows them: whole as a document has them, listed as metadata, or with what they hold nested.

Each entity is made JSON as soon as it is complete, and the weight of an answer is bounded, as in the core's views.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal

import msgspec

from registry.core.places import Place
from registry.core.resolving import Shown, shown_resources
from registry.core.service import Session
from registry.errors import Refusal
from registry.faces.cloudevents.documents import shown_document
from registry.faces.cloudevents.forms import XREF, GroupForm, MessageForm, SchemaForm
from registry.faces.cloudevents.model import model_of
from registry.faces.cloudevents.names import GROUPS, RESOURCES, SINGULAR, Links, older_path
from registry.faces.cloudevents.versions import latest, number
from registry.store.entities import Entity, Group, Version
from registry.store.reading import PAGE

SPECVERSION: Final = "0.5-wip"
Style = Literal["listed", "nested", "whole"]
"""Metadata alone; with the resource itself nested in it; or as a document of a whole registry has it."""
_DESCRIBING: Final = ("name", "description", "tags", "docs", "format")


@dataclass(frozen=True, slots=True)
class Edition:
    """A resource with one of its versions: ``version`` is None where a message stands for one that is not there."""

    shown: Shown
    version: Version | None

    @property
    def epoch(self) -> int:
        """The epoch that clients see: that of the version."""
        return self.shown.resource.epoch if self.version is None else self.version.epoch


class Viewer:
    """Shows what a session finds, for a face at *url*; *whole* is for one document of the whole registry."""

    def __init__(self, session: Session, url: str, max_answer: int, *, whole: bool = False) -> None:
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
            # As the specification names them in documents; those within groups are named in its API alone.
            shown[f"{older}Url"] = f"{self._url}/{older}"
            shown[f"{older}Count"] = self._reader.count(f"/{plural}")
            if inline:
                place = Place("groups", model.groups[plural])
                shown[older] = {name: _json(each) for name, each in self.groups(place, "", "whole")}
        return shown

    def groups(self, place: Place, after: str, style: Style) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the groups of a collection, behind an id in lower case."""
        groups = self._reader.groups(place.xid, after)
        while batch := list(islice(groups, PAGE)):
            held = [place.child(each.id).collection(name).xid for each in batch for name in _held(place)]
            counts = self._reader.counts(held)
            for each in batch:
                yield each.id, self.group(place.child(each.id), each, style, counts)

    def group(
        self, place: Place, group: Group, style: Style, counts: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """Show a group; in any other style than ``listed`` with its resources."""
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

    def resources(self, place: Place, after: str, style: Style) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the resources of a collection, behind an id in lower case."""
        defaults = self.defaults(place)
        for each in shown_resources(self._reader, place, after):
            edition = self.edition(each)
            yield each.resource.id, self.resource(place.child(each.resource.id), edition, style, defaults)

    def defaults(self, place: Place) -> Mapping[str, Any]:
        """Return what the group of a place gives its messages."""
        group = self._reader.group(f"/{place.group.plural}/{place.gid}")
        attributes = group.attributes if group is not None else {}
        return {name: attributes[name] for name in ("envelope", "protocol") if isinstance(attributes.get(name), str)}

    def stored(self, edition: Edition) -> dict[str, Any]:
        """Return the attributes of 1.0 of a resource."""
        own = {XREF: edition.shown.resource.xref} if edition.shown.resource.xref else {}
        return {**own, **(edition.version.attributes if edition.version is not None else {})}

    def form(self, place: Place, defaults: Mapping[str, Any]) -> MessageForm | SchemaForm:
        """Return the two forms of a resource."""
        if place.resource.plural == "schemas":
            return SchemaForm()
        return MessageForm(place.group.plural, place.gid, place.rid, defaults, self._links)

    def resource(self, place: Place, edition: Edition, style: Style, defaults: Mapping[str, Any]) -> dict[str, Any]:
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

    def version(self, place: Place, edition: Edition, defaults: Mapping[str, Any], *, inline: bool) -> dict[str, Any]:
        """Show a version; *place* is that of the resource."""
        if place.resource.plural == "messages":
            return self.resource(place, edition, "nested" if inline else "listed", defaults)
        form = SchemaForm().shown(self.stored(edition))
        name = edition.version.id if edition.version is not None else ""
        return {"id": name, **self._versioned(place, edition), **form, **(self._document(edition) if inline else {})}

    def edition(self, shown: Shown, name: str = "") -> Edition:
        """Return a resource with its version of that name, or with the latest.

        Raises:
            Refusal: ``not_found``: it has no such version, or shows none but the latest.
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
            Refusal: ``too_large``: the answer weighs too much.
        """
        text = _json(entity)
        self._weight += memoryview(text).nbytes
        if self._weight > self._max_answer:
            raise Refusal("too_large", "/")
        return text

    def _schema(self, place: Place, edition: Edition, style: Style) -> dict[str, Any]:
        """Return the versions of a schema: where they are, or all of them, or the document of the latest."""
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

    def _versioned(self, place: Place, edition: Edition) -> dict[str, Any]:
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


def _held(place: Place) -> list[str]:
    """Return the types of resources of a group that this face shows."""
    return [name for name in place.group.resources if name in RESOURCES]
