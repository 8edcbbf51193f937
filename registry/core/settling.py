"""What holds for a resource as a whole once a request is taken in: ancestors, the default version, and all checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from registry.compatibility.formats import check_format
from registry.compatibility.rules import check_compatibility
from registry.core import lineage
from registry.core.constraints import check_constraints, constraints_of, value_at
from registry.core.merging import Options
from registry.core.places import Place
from registry.errors import Refusal, invalid, listed
from registry.model.attributes import Attribute
from registry.model.types import Model
from registry.store.entities import Entity, Resource, Version
from registry.store.work import Work


@dataclass(slots=True)
class Pending:
    """A resource that a request has touched.

    ``existed`` and ``epoch`` are as it was before. ``written`` are the ids of versions that were created or updated,
    ``fresh`` of those that are new, ``asked`` of those whose ancestor the request names. ``default`` is the version
    that shall be the default one, and ``sticky`` whether it stays that; None where the request says neither.
    """

    place: Place
    existed: bool
    epoch: int
    written: dict[str, None] = field(default_factory=dict)
    fresh: list[str] = field(default_factory=list)
    asked: dict[str, None] = field(default_factory=dict)
    sticky: bool | None = None
    default: str | None = None
    newest: bool = False

    def asks(self, meta: Mapping[str, Any], *, patch: bool, ignore: frozenset[str]) -> None:
        """Take in what a ``meta`` says of the default version.

        Raises:
            Refusal: one of the two attributes is of the wrong type.
        """
        subject = f"{self.place.xid}/meta"
        stays = "defaultversionsticky" in meta and "defaultversionsticky" not in ignore
        named = "defaultversionid" in meta and "defaultversionid" not in ignore
        sticky = meta.get("defaultversionsticky") if stays else None
        name = meta.get("defaultversionid") if named else None
        if sticky is not None and not isinstance(sticky, bool):
            raise invalid(subject, "defaultversionsticky", "needs to be true or false")
        if name is not None and not isinstance(name, str):
            raise invalid(subject, "defaultversionid", "needs to be a string")
        first = bool(self.place.resource.meta["defaultversionsticky"].default)
        if patch and not stays:
            self.sticky = (name is not None or first) if named else None
        else:
            self.sticky = first if sticky is None else sticky
        self.default = name
        self.newest = bool(self.sticky) and name is None


class Settler:
    """Settles the resources that one request has touched; *bump* raises an epoch, once in the request."""

    def __init__(self, work: Work, model: Model, options: Options, bump: Callable[[Entity], None]) -> None:
        self._work = work
        self._model = model
        self._options = options
        self._bump = bump

    def settle(self, pending: Pending) -> None:
        """Bring a resource into order, and check it.

        Raises:
            Refusal: it cannot be as the request wants it.
        """
        resource = self._work.resource(pending.place.xid)
        if resource is None:
            return
        if resource.xref is not None:
            self._check_reference(pending.place, resource.xref)
            return
        versions = self._work.versions_of(resource)
        if not versions:
            self._drop(pending.place, resource)
            return
        self._ancestors(pending, versions)
        self._choose(pending, resource, versions)
        self._check(pending, resource, versions)
        self._prune(pending, resource)

    def _drop(self, place: Place, resource: Resource) -> None:
        """Take away a resource that has lost its last version."""
        self._work.drop_resource(resource)
        group = self._work.group(place.owner.xid)
        if group is not None:
            self._bump(group)
            group.modifiedat = self._options.now
            self._work.groups.put(group)

    def _ancestors(self, pending: Pending, versions: Mapping[str, Version]) -> None:
        changed = lineage.settle(pending.place.resource, pending.place.xid, versions, pending.asked)
        for each in changed:
            if each.id not in pending.written:
                each.modifiedat = self._options.now
            self._bump(each)
            self._work.versions.put(each)

    def _choose(self, pending: Pending, resource: Resource, versions: Mapping[str, Version]) -> None:
        kind, xid = pending.place.resource, pending.place.xid
        self._take_flag(pending)
        sticky = resource.sticky if pending.sticky is None else pending.sticky
        name = pending.default or (None if pending.newest else resource.defaultversionid)
        if sticky and kind.maxversions == 1:
            raise Refusal("setdefaultversionsticky_false", xid)
        if sticky and pending.default is not None and name not in versions:
            raise Refusal("unknown_id", xid, singular="version", id=str(name))
        attribute = kind.meta["defaultversionsticky"]
        if sticky and name not in versions and not pending.newest:
            sticky = bool(attribute.default)
        if not sticky or name not in versions:
            name = lineage.newest(kind.versionmode, versions.values()).id
        if attribute.enum and attribute.strict and sticky not in attribute.enum:
            only = listed([str(each).lower() for each in attribute.enum])
            raise invalid(f"{xid}/meta", attribute.name, f"needs to be {only}")
        if (sticky, name) != (resource.sticky, resource.defaultversionid):
            resource.sticky, resource.defaultversionid = sticky, name
            resource.modifiedat = (
                resource.modifiedat if resource.xid in self._work.resources.touched else self._options.now
            )
            self._bump(resource)
            self._work.resources.put(resource)

    def _take_flag(self, pending: Pending) -> None:
        """Let the flag ``setdefaultversionid`` overrule what the body says."""
        value, xid = self._options.default, pending.place.xid
        if value is None:
            return
        if value == "null":
            pending.sticky, pending.default, pending.newest = False, None, False
            return
        if value == "request":
            if not pending.written:
                raise Refusal("defaultversionid_request", xid)
            if len(pending.written) > 1:
                raise Refusal("too_many_versions", xid)
            value = next(iter(pending.written))
        elif not value:
            raise Refusal("bad_defaultversionid", xid, value=value, error_detail="it is empty")
        pending.sticky, pending.default, pending.newest = True, value, False

    def _check(self, pending: Pending, resource: Resource, versions: Mapping[str, Version]) -> None:
        place = pending.place
        for name in pending.written:
            if name in versions:
                check_format(place.resource, versions[name], self._work.document(versions[name]))
        referring = (self._place(each.xid) for each in self._work.referring(place.xid))
        for where in (place, *referring):
            self._constrain(where, versions)
        _check_equal(place.xid, place.resource.attributes, versions)
        self._check_compatibility(pending, resource, versions)

    def _check_reference(self, place: Place, xref: str) -> None:
        """Hold what a resource refers to against the constraints of the group that it is in."""
        target = self._work.resource(xref)
        if target is not None and target.xref is None:
            self._constrain(place, self._work.versions_of(target))

    def _constrain(self, place: Place, versions: Mapping[str, Version]) -> None:
        group = self._work.group(place.owner.xid)
        if group is not None:
            constraints = constraints_of(place.group, group)
            check_constraints(place.xid, place.resource.plural, constraints, group, versions)

    def _place(self, xid: str) -> Place:
        _, groups, group, resources, resource = xid.split("/")
        kind = self._model.groups[groups]
        return Place("resource", kind, group, kind.resources[resources], resource)

    def _check_compatibility(self, pending: Pending, resource: Resource, versions: Mapping[str, Version]) -> None:
        shown = {name: dict(version.attributes) for name, version in versions.items()}
        before = self._work.versions_before(resource)
        rule = "compatibility"
        was = self._work.resources.before.get(resource.xid)
        same = was is not None and was.attributes.get(rule) == resource.attributes.get(rule)
        changed = {name for name in versions if name in pending.written or name not in before} if same else versions
        check_compatibility(pending.place.resource, resource, versions, before, changed, self._work.document)
        for name, version in versions.items():
            if version.attributes != shown[name]:
                self._work.versions.put(version)

    def _prune(self, pending: Pending, resource: Resource) -> None:
        kind = pending.place.resource
        versions, gone = self._work.versions_of(resource), False
        while kind.maxversions and len(versions) > kind.maxversions:
            spared = resource.defaultversionid if kind.maxversions > 1 else None
            candidates = [each for each in versions.values() if each.id != spared]
            roots = [each for each in candidates if each.ancestorid == each.id] or candidates
            self._work.drop_version(lineage.oldest(kind.versionmode, roots))
            versions = self._work.versions_of(resource)
            self._ancestors(Pending(pending.place, True, 0, written=pending.written), versions)
            gone = True
            if resource.defaultversionid not in versions or not resource.sticky:
                resource.defaultversionid = lineage.newest(kind.versionmode, versions.values()).id
            self._bump(resource)
            self._work.resources.put(resource)
        if gone:  # by which others may have another ancestor
            self._check_compatibility(pending, resource, versions)


def _check_equal(
    xid: str, attributes: Mapping[str, Attribute], versions: Mapping[str, Version], path: tuple[str, ...] = ()
) -> None:
    """Compare the attributes that all versions need to have in common."""
    for name, each in attributes.items():
        if each.matchversions:
            dotted = ".".join((*path, name))
            values = [value_at(version.attributes, dotted) for version in versions.values()]
            folded = {value.lower() if name == "format" and isinstance(value, str) else value for value in values}
            if len(folded) > 1:
                raise Refusal("mismatched_version_attribute", xid, name=dotted)
        if each.attributes:
            _check_equal(xid, each.attributes, versions, (*path, name))
