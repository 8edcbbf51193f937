"""Resource-wide rules at the end of a request: ancestry, default version and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from registry.compatibility.rules import check_compatibility, is_checked
from registry.compatibility.schemas import check_format
from registry.core import ancestry as lineage
from registry.core.ancestry import WriteOptions, check_constraints, constraints_of, fold_case, value_at
from registry.core.requests import ResourcePath
from registry.errors import Refusal, invalid_value, join_values
from registry.model.attributes import Model, ModelAttribute
from registry.store.entities import Entity, Resource, Version, WriteTransaction

MAX_LOOKUPS: Final = 16
"""Up to this many versions are looked up one by one with their neighbours; beyond it, all are loaded."""


@dataclass(slots=True)
class PendingResource:
    """A resource that a request has touched.

    ``existed`` and ``epoch`` are its state before the request. ``written`` are the ids of versions created or updated,
    ``fresh`` of new ones, ``asked`` of those whose ancestor the request names. ``default`` is the requested default
    version, and ``sticky`` whether it is sticky; None if the request does not say.
    """

    place: ResourcePath
    existed: bool
    epoch: int
    written: dict[str, None] = field(default_factory=dict)
    fresh: list[str] = field(default_factory=list)
    asked: dict[str, None] = field(default_factory=dict)
    sticky: bool | None = None
    default: str | None = None
    newest: bool = False

    def read_requested_default(self, meta: Mapping[str, Any], *, patch: bool, ignore: frozenset[str]) -> None:
        """Read the default version that a ``meta`` requests.

        Raises:
            Refusal: one of the two attributes has the wrong type.
        """
        subject = f"{self.place.xid}/meta"
        stays = "defaultversionsticky" in meta and "defaultversionsticky" not in ignore
        named = "defaultversionid" in meta and "defaultversionid" not in ignore
        sticky = meta.get("defaultversionsticky") if stays else None
        name = meta.get("defaultversionid") if named else None
        if sticky is not None and not isinstance(sticky, bool):
            raise invalid_value(subject, "defaultversionsticky", "must be true or false")
        if name is not None and not isinstance(name, str):
            raise invalid_value(subject, "defaultversionid", "must be a string")
        first = bool(self.place.resource.meta["defaultversionsticky"].default)
        if patch and not stays:
            self.sticky = (name is not None or first) if named else None
        else:
            self.sticky = first if sticky is None else sticky
        self.default = name
        self.newest = bool(self.sticky) and name is None


class ResourceRules:
    """Applies the resource-wide rules to touched resources; *raise_epoch* raises an epoch, once in a request."""

    def __init__(
        self, work: WriteTransaction, model: Model, options: WriteOptions, raise_epoch: Callable[[Entity], None]
    ) -> None:
        self._work = work
        self._model = model
        self._options = options
        self._bump = raise_epoch

    def apply_rules(self, pending: PendingResource) -> None:
        """Update ancestry and default version of a resource, prune it, and check it.

        Raises:
            Refusal: the requested state is not valid.
        """
        resource = self._work.resource(pending.place.xid)
        if resource is None:
            return
        if resource.xref is not None:
            self._check_reference(pending.place, resource.xref)
            return
        few = self._load_affected(pending, resource)
        versions = ends = self._work.versions_of(resource) if few is None else few[0]
        if few is not None:
            ends = few[1]
        elif versions:
            self._set_ancestors(pending, versions)
        else:
            self._delete_resource(pending.place, resource)
            return
        self._choose_default(pending, resource, versions, ends)
        self._check_resource(pending, resource, versions)
        self._prune_versions(pending, resource)

    def _delete_resource(self, place: ResourcePath, resource: Resource) -> None:
        """Delete a resource that has no versions left."""
        self._work.delete_resource(resource)
        group = self._work.group(place.owner.xid)
        if group is not None:
            self._bump(group)
            group.modifiedat = self._options.now
            self._work.record_changed(group)

    def _load_affected(
        self, pending: PendingResource, resource: Resource
    ) -> tuple[dict[str, Version], dict[str, Version]] | None:
        """Set ancestors, and return the versions affected by a write, and a set that includes the newest version.

        None means that all versions must be loaded, because of their order or of another rule.
        """
        kind, work, names = pending.place.resource, self._work, pending.written
        was = work.before.get(resource.xid)
        if was is None or work.has_all_versions(resource) or kind.maxversions or len(names) > MAX_LOOKUPS:
            return None
        rule = str(resource.attributes.get("compatibility") or "") if kind.validatecompatibility else ""
        if was.attributes.get("compatibility") != resource.attributes.get("compatibility"):
            return None
        if rule.lower().endswith("_transitive"):
            return None
        written = {name: each for name in names if (each := work.version(resource, name)) is not None}
        ends = self._join_new_versions(pending, resource, written)
        if ends is None:
            return None
        near = {resource.defaultversionid, pending.default, self._options.default}
        found = {**written, **{each.id: each for each in ends}}
        if rule:
            near |= {each.ancestorid for each in written.values()}
            found |= {each.id: each for each in work.child_versions(resource, written.keys() - set(pending.fresh))}
        for name in near - found.keys() - {None, ""}:
            each = work.version(resource, str(name))
            found |= {} if each is None else {each.id: each}
        if not found.keys() - written and any(_iter_matched_names(kind.attributes)):
            other = work.other_version(resource, written)
            found |= {} if other is None else {other.id: other}
        if rule and any(not is_checked(each) for name, each in found.items() if name not in written):
            return None
        # Errors list versions in the order of the collection: by id, new ones last.
        order = {name: number for number, name in enumerate(pending.fresh)}
        ordered = sorted(found.values(), key=lambda each: (order.get(each.id, -1), each.id.lower()))
        return {each.id: each for each in ordered}, {each.id: each for each in ends}

    def _join_new_versions(
        self, pending: PendingResource, resource: Resource, written: Mapping[str, Version]
    ) -> list[Version] | None:
        """Set the ancestors of new versions, and return a set that includes the newest version.

        None means that nothing has changed yet, since all versions must be loaded: always with ``modifiedat``, where a
        changed ancestor counts as a modification and so changes the order.
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
        order, before = (
            lineage.sort_key_of_mode(mode),
            {name: work.before[each.xid] for name, each in kept.items()},
        )
        was = {name: order(each) for name, each in before.items() if each is not None}
        moved = {name: each for name, each in kept.items() if order(each) != was.get(name)}
        default = resource.defaultversionid
        if default and not (fresh or moved or resource.sticky or pending.sticky):
            newest = work.version(resource, default)  # as the previous write determined it
            return None if newest is None else [newest]
        if mode == "manual":
            parents = {each.ancestorid for each in work.child_versions(resource, kept)} | set(asked.values())
            ends = work.newest_leaves(resource, {*written, *parents})
            ends += [each for name, each in written.items() if name in asked or (name in kept and name not in parents)]
        else:
            ends = work.newest_leaves(resource, ())
            if len(ends) > 1 or any(each not in ends or order(each) < was[name] for name, each in moved.items()):
                return None
        if not ends:
            return None
        last = lineage.newest_version(mode, ends)
        new = [each for name, each in fresh.items() if name not in asked]
        return [*ends, *new] if lineage.append_versions(mode, new, last) else None

    def _set_ancestors(self, pending: PendingResource, versions: Mapping[str, Version]) -> None:
        changed = lineage.set_ancestors(pending.place.resource, pending.place.xid, versions, pending.asked)
        for each in changed:
            if each.id not in pending.written:
                each.modifiedat = self._options.now
            self._bump(each)
            self._work.record_changed(each)

    def _choose_default(
        self, pending: PendingResource, resource: Resource, versions: Mapping[str, Version], ends: Mapping[str, Version]
    ) -> None:
        kind, xid = pending.place.resource, pending.place.xid
        self._apply_default_flag(pending)
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
            name = lineage.newest_version(kind.versionmode, ends.values()).id
        if attribute.enum and attribute.strict and sticky not in attribute.enum:
            only = join_values([str(each).lower() for each in attribute.enum])
            raise invalid_value(f"{xid}/meta", attribute.name, f"must be {only}")
        if (sticky, name) != (resource.sticky, resource.defaultversionid):
            resource.sticky, resource.defaultversionid = sticky, name
            resource.modifiedat = resource.modifiedat if resource.xid in self._work.touched else self._options.now
            self._bump(resource)
            self._work.record_changed(resource)

    def _apply_default_flag(self, pending: PendingResource) -> None:
        """Apply the flag ``setdefaultversionid``, which overrides the body."""
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
        pending.sticky, pending.default, pending.newest = True, value, False

    def _check_resource(self, pending: PendingResource, resource: Resource, versions: Mapping[str, Version]) -> None:
        place = pending.place
        for name in pending.written:
            if name in versions:
                check_format(place.resource, versions[name], self._work.document(versions[name]))
        referring = (self._parse_xid(each.xid) for each in self._work.find_referring(place.xid))
        whole = self._work.has_all_versions(resource)
        held = versions if whole else {name: each for name, each in versions.items() if name in pending.written}
        for where in (place, *referring):
            self._check_constraints(where, held)
        _check_equal(place.xid, place.resource.attributes, versions)
        self._check_compatibility(pending, resource, versions)

    def _check_reference(self, place: ResourcePath, xref: str) -> None:
        """Check the target of a resource's ``xref`` against the constraints of the resource's group."""
        target = self._work.resource(xref)
        if target is not None and target.xref is None:
            self._check_constraints(place, self._work.versions_of(target))

    def _check_constraints(self, place: ResourcePath, versions: Mapping[str, Version]) -> None:
        group = self._work.group(place.owner.xid)
        if group is not None:
            constraints = constraints_of(place.group, group)
            check_constraints(place.xid, place.resource.plural, constraints, group, versions)

    def _parse_xid(self, xid: str) -> ResourcePath:
        _, groups, group, resources, resource = xid.split("/")
        kind = self._model.groups[groups]
        return ResourcePath("resource", kind, group, kind.resources[resources], resource)

    def _check_compatibility(
        self, pending: PendingResource, resource: Resource, versions: Mapping[str, Version]
    ) -> None:
        shown = {name: dict(version.attributes) for name, version in versions.items()}
        before = self._work.versions_before(resource)
        rule = "compatibility"
        was = self._work.before.get(resource.xid)
        same = was is not None and was.attributes.get(rule) == resource.attributes.get(rule)
        changed = {name for name in versions if name in pending.written or name not in before} if same else versions
        check_compatibility(pending.place.resource, resource, versions, before, changed, self._work.document)
        for name, version in versions.items():
            if version.attributes != shown[name]:
                self._work.record_changed(version)

    def _prune_versions(self, pending: PendingResource, resource: Resource) -> None:
        kind = pending.place.resource
        if not kind.maxversions:
            return
        versions, gone = self._work.versions_of(resource), False
        while len(versions) > kind.maxversions:
            spared = resource.defaultversionid if kind.maxversions > 1 else None
            candidates = [each for each in versions.values() if each.id != spared]
            roots = [each for each in candidates if each.ancestorid == each.id] or candidates
            self._work.delete_version(lineage.oldest_version(kind.versionmode, roots))
            versions = self._work.versions_of(resource)
            self._set_ancestors(PendingResource(pending.place, True, 0, written=pending.written), versions)
            gone = True
            if resource.defaultversionid not in versions or not resource.sticky:
                resource.defaultversionid = lineage.newest_version(kind.versionmode, versions.values()).id
            self._bump(resource)
            self._work.record_changed(resource)
        if gone:  # which may change the ancestor of others
            self._check_compatibility(pending, resource, versions)


def _check_equal(xid: str, attributes: Mapping[str, ModelAttribute], versions: Mapping[str, Version]) -> None:
    """Raise if an attribute that must be equal in all versions differs."""
    for dotted in _iter_matched_names(attributes):
        folds = dotted.rpartition(".")[2] == "format"
        if len({fold_case(value_at(version.attributes, dotted), folds) for version in versions.values()}) > 1:
            raise Refusal("mismatched_version_attribute", xid, name=dotted)


def _iter_matched_names(attributes: Mapping[str, ModelAttribute], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the dotted names of attributes that must be equal in all versions of a resource."""
    for name, each in attributes.items():
        if each.matchversions:
            yield ".".join((*path, name))
        if each.attributes:
            yield from _iter_matched_names(each.attributes, (*path, name))
