"""What holds for a resource as a whole once a request is taken in: ancestors, the default version, and all checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from registry.compatibility.formats import check_format
from registry.compatibility.rules import check_compatibility, is_checked
from registry.core import lineage
from registry.core.constraints import check_constraints, constraints_of, value_at
from registry.core.merging import Options
from registry.core.places import Place
from registry.errors import Refusal, invalid, listed
from registry.model.attributes import Attribute
from registry.model.types import Model
from registry.store.entities import Entity, Resource, Version
from registry.store.work import Work

FEW: Final = 16
"""Versions of a resource that are looked up one by one, with those around them; for more of them all are."""


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
        few = self._few(pending, resource)
        versions = ends = self._work.versions_of(resource) if few is None else few[0]
        if few is not None:
            ends = few[1]
        elif versions:
            self._ancestors(pending, versions)
        else:
            self._drop(pending.place, resource)
            return
        self._choose(pending, resource, versions, ends)
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

    def _few(self, pending: Pending, resource: Resource) -> tuple[dict[str, Version], dict[str, Version]] | None:
        """Return the versions that a write concerns, and those that the newest of all is among; ancestors are settled.

        None means that all need to be looked at, as one comes elsewhere among the others, or by a rule.
        """
        kind, work, names = pending.place.resource, self._work, pending.written
        was = work.resources.before.get(resource.xid)
        if was is None or work.has_all(resource) or kind.maxversions or len(names) > FEW:
            return None
        rule = str(resource.attributes.get("compatibility") or "") if kind.validatecompatibility else ""
        if was.attributes.get("compatibility") != resource.attributes.get("compatibility"):
            return None
        if rule.lower().endswith("_transitive"):
            return None
        written = {name: each for name in names if (each := work.version(resource, name)) is not None}
        ends = self._joined(pending, resource, written)
        if ends is None:
            return None
        near = {resource.defaultversionid, pending.default, self._options.default}
        found = {**written, **{each.id: each for each in ends}}
        if rule:
            near |= {each.ancestorid for each in written.values()}
            found |= {each.id: each for each in work.children(resource, written.keys() - set(pending.fresh))}
        for name in near - found.keys() - {None, ""}:
            each = work.version(resource, str(name))
            found |= {} if each is None else {each.id: each}
        if not found.keys() - written and any(_matched(kind.attributes)):
            other = work.other_version(resource, written)
            found |= {} if other is None else {other.id: other}
        if rule and any(not is_checked(each) for name, each in found.items() if name not in written):
            return None
        # Errors name versions in the order of a whole collection: by id, and the new ones behind.
        order = {name: number for number, name in enumerate(pending.fresh)}
        ordered = sorted(found.values(), key=lambda each: (order.get(each.id, -1), each.id.lower()))
        return {each.id: each for each in ordered}, {each.id: each for each in ends}

    def _joined(self, pending: Pending, resource: Resource, written: Mapping[str, Version]) -> list[Version] | None:
        """Give new versions their ancestors, and return versions among which the newest of all is.

        None means that nothing has changed yet, since others need a look too: with ``modifiedat`` always, where those
        that get another ancestor by one write are modified, and so come elsewhere by the next.
        """
        work, kind, mode = self._work, pending.place.resource, pending.place.resource.versionmode
        fresh = {name: written[name] for name in pending.fresh}
        kept = {name: each for name, each in written.items() if name not in fresh}
        asked = {name: written[name].ancestorid for name in pending.asked}
        if mode == "modifiedat" or (asked and mode != "manual"):
            return None
        if asked and (kind.singleversionroot or asked.keys() - fresh.keys()):
            return None
        if any(other != name and other in fresh for name, other in asked.items()):
            return None
        if any(work.version(resource, other) is None for other in asked.values()):
            return None
        order, before = lineage.key_of(mode), {name: work.versions.before[each.xid] for name, each in kept.items()}
        was = {name: order(each) for name, each in before.items() if each is not None}
        moved = {name: each for name, each in kept.items() if order(each) != was.get(name)}
        default = resource.defaultversionid
        if default and not (fresh or moved or resource.sticky or pending.sticky):
            newest = work.version(resource, default)  # as the write before has found it
            return None if newest is None else [newest]
        if mode == "manual":
            parents = {each.ancestorid for each in work.children(resource, kept)} | set(asked.values())
            ends = work.leaves(resource, {*written, *parents})
            ends += [each for name, each in written.items() if name in asked or (name in kept and name not in parents)]
        else:
            ends = work.leaves(resource, ())
            if len(ends) > 1 or any(each not in ends or order(each) < was[name] for name, each in moved.items()):
                return None
        if not ends:
            return None
        last = lineage.newest(mode, ends)
        new = [each for name, each in fresh.items() if name not in asked]
        return [*ends, *new] if lineage.append(mode, new, last) else None

    def _ancestors(self, pending: Pending, versions: Mapping[str, Version]) -> None:
        changed = lineage.settle(pending.place.resource, pending.place.xid, versions, pending.asked)
        for each in changed:
            if each.id not in pending.written:
                each.modifiedat = self._options.now
            self._bump(each)
            self._work.versions.put(each)

    def _choose(
        self, pending: Pending, resource: Resource, versions: Mapping[str, Version], ends: Mapping[str, Version]
    ) -> None:
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
            name = lineage.newest(kind.versionmode, ends.values()).id
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
        whole = self._work.has_all(resource)
        held = versions if whole else {name: each for name, each in versions.items() if name in pending.written}
        for where in (place, *referring):
            self._constrain(where, held)
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
        if not kind.maxversions:
            return
        versions, gone = self._work.versions_of(resource), False
        while len(versions) > kind.maxversions:
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


def _check_equal(xid: str, attributes: Mapping[str, Attribute], versions: Mapping[str, Version]) -> None:
    """Compare the attributes that all versions need to have in common."""
    for dotted in _matched(attributes):
        values = [value_at(version.attributes, dotted) for version in versions.values()]
        folds = dotted.rpartition(".")[2] == "format"
        if len({value.lower() if folds and isinstance(value, str) else value for value in values}) > 1:
            raise Refusal("mismatched_version_attribute", xid, name=dotted)


def _matched(attributes: Mapping[str, Attribute], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the dotted names of attributes that all versions of a resource have in common."""
    for name, each in attributes.items():
        if each.matchversions:
            yield ".".join((*path, name))
        if each.attributes:
            yield from _matched(each.attributes, (*path, name))
