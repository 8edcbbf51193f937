"""Where in a registry something is: paths, xids, and ids (core ``spec.md``, ``<SINGULAR>id`` and ``xid``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from registry.errors import Refusal
from registry.model.types import GroupType, Model, ResourceType

Kind = Literal["registry", "groups", "group", "resources", "resource", "meta", "versions", "version"]
_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9\-._~:@]{0,127}", re.ASCII)
_RESERVED: Final = frozenset(("null", "request"))


@dataclass(frozen=True, slots=True)
class Place:
    """An entity or a collection, which need not exist; its types do. Ids are '' where the place is not so deep."""

    kind: Kind
    group_type: GroupType | None = None
    gid: str = ""
    resource_type: ResourceType | None = None
    rid: str = ""
    vid: str = ""

    @property
    def group(self) -> GroupType:
        """The type of group; only below the registry."""
        assert self.group_type is not None
        return self.group_type

    @property
    def resource(self) -> ResourceType:
        """The type of resource; only below groups."""
        assert self.resource_type is not None
        return self.resource_type

    @property
    def xid(self) -> str:
        """The path from the root: of an entity its xid."""
        if self.group_type is None:
            return "/"
        path = f"/{self.group_type.plural}"
        if self.gid:
            path += f"/{self.gid}"
        if self.resource_type is not None:
            path += f"/{self.resource_type.plural}"
        if self.rid:
            path += f"/{self.rid}"
        if self.kind == "version":
            return f"{path}/versions/{self.vid}"
        return f"{path}/{self.kind}" if self.kind in ("meta", "versions") else path

    @property
    def is_collection(self) -> bool:
        """Whether entities are below it by their ids alone."""
        return self.kind in ("groups", "resources", "versions")

    def child(self, name: str) -> Place:
        """Return the place of an entity of this collection."""
        if self.kind == "groups":
            return Place("group", self.group_type, name)
        if self.kind == "resources":
            return Place("resource", self.group_type, self.gid, self.resource_type, name)
        return Place("version", self.group_type, self.gid, self.resource_type, self.rid, name)

    def collection(self, plural: str) -> Place:
        """Return the place of a collection of this entity, which its type has."""
        if self.kind == "group":
            return Place("resources", self.group_type, self.gid, self.group.resources[plural])
        return Place("versions", self.group_type, self.gid, self.resource_type, self.rid)

    @property
    def owner(self) -> Place:
        """The resource of a version or a meta, the group of a resource."""
        if self.kind in ("meta", "versions", "version"):
            return Place("resource", self.group_type, self.gid, self.resource_type, self.rid)
        return Place("group", self.group_type, self.gid)


def place_of(model: Model, segments: Sequence[str], path: str) -> Place:
    """Return the place at a path, given as its decoded *segments*; *path* is for errors.

    Raises:
        Refusal: a type is unknown, or there is nothing so deep.
    """
    if not segments:
        return Place("registry")
    group = model.groups.get(segments[0])
    if group is None:
        raise Refusal("unknown_group_type", path, name=segments[0])
    place = Place("groups", group)
    if len(segments) > 1:
        place = replace(place, kind="group", gid=segments[1])
    if len(segments) > 2:
        resource = group.resources.get(segments[2])
        if resource is None:
            raise Refusal("unknown_resource_type", path, group=group.plural, name=segments[2])
        place = replace(place, kind="resources", resource_type=resource)
    if len(segments) > 3:
        place = replace(place, kind="resource", rid=segments[3])
    if len(segments) > 4:
        if segments[4] not in ("meta", "versions") or (segments[4] == "meta" and len(segments) > 5) or segments[6:]:
            raise Refusal("api_not_found", path)
        place = replace(place, kind="meta" if segments[4] == "meta" else "versions")
    if len(segments) > 5:
        place = replace(place, kind="version", vid=segments[5])
    return place


def check_id(identifier: object, subject: str, *, version: bool = False) -> str:
    """Return an id for a new entity.

    Raises:
        Refusal: ``malformed_id``.
    """
    if not isinstance(identifier, str) or not _ID.fullmatch(identifier):
        why = "it has letters, digits and -._~:@, begins with a letter, a digit or _, and is of 1 to 128 characters"
        raise Refusal("malformed_id", subject, id=str(identifier), error_detail=why)
    if version and identifier in _RESERVED:
        raise Refusal("malformed_id", subject, id=identifier, error_detail="it is reserved")
    return identifier


def target_of(model: Model, xref: object, source: Place, subject: str) -> str:
    """Return the xid that an ``xref`` of a resource names.

    Raises:
        Refusal: ``malformed_xref``: it is no xid of a resource of the same type.
    """
    text = str(xref)
    parts = text.split("/")
    group = model.groups.get(parts[1]) if len(parts) == 5 and not parts[0] else None
    target = group.resources.get(parts[3]) if group is not None else None
    if not isinstance(xref, str) or target is None or not all(_ID.fullmatch(parts[index]) for index in (2, 4)):
        why = "it is no xid of a resource"
    elif target.home != source.resource.home or target.plural != source.resource.plural:
        why = "it is of another type of resource"
    elif text == source.xid:
        why = "it is the resource itself"
    else:
        return text
    raise Refusal("malformed_xref", subject, xref=text, error_detail=why)
