"""Creating entities and updating versions: what all writes below the registry have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from registry.core.constraints import constraints_of, filled
from registry.core.documents import Given, given_document
from registry.core.merging import Options, as_object, compare_epoch, compare_id, merged, set_times
from registry.core.places import Place, check_id
from registry.core.settling import Pending
from registry.errors import Refusal, invalid
from registry.model.checking import settled
from registry.model.types import Model
from registry.store.entities import Entity, Group, Registry, Resource, Version
from registry.store.work import Work


class Creator:
    """Creates within one :class:`Work`; ``pending`` are the resources to be settled at the end of the request."""

    def __init__(self, work: Work, model: Model, options: Options) -> None:
        self.work = work
        self.model = model
        self.options = options
        self.pending: dict[str, Pending] = {}
        self._bumped: set[str] = set()

    def bump(self, entity: Entity) -> None:
        """Raise the epoch of an entity, once in a request."""
        if entity.xid not in self._bumped:
            entity.epoch += 1
            self._bumped.add(entity.xid)

    def touch(self, entity: Registry | Group | Resource) -> None:
        """Take note that what belongs to an entity has changed: it is modified now, and its epoch is raised once."""
        entity.modifiedat = self.options.now
        self.bump(entity)
        self.work.put(entity)

    def write_version(
        self,
        place: Place,
        resource: Resource,
        name: str | None,
        body: Mapping[str, Any],
        *,
        patch: bool,
        root: bool = False,
        document: Given | None = None,
    ) -> Version:
        """Write a version of a resource; without a *name* it is a new one. *place* is that of the resource."""
        pending = self.pend(place, resource)
        version = self.work.version(resource, name) if name is not None else None
        if version is None:
            version = self.new_version(place, resource, name)
            pending.fresh.append(version.id)
        else:
            compare_epoch(body, version, version.xid, self.options)
        if not (root and "id" in self.options.ignore):
            compare_id(body, place.resource.singular, resource.id, version.xid)
            compare_id(body, "version", version.id, version.xid)
        self._ancestor(pending, version, body)
        self._version_attributes(place, version, body, patch=patch, document=document)
        set_times(version, body, version.xid, self.options)
        self.bump(version)
        self.work.versions.put(version)
        pending.written[version.id] = None
        return version

    def _version_attributes(
        self, place: Place, version: Version, body: Mapping[str, Any], *, patch: bool, document: Given | None
    ) -> None:
        kind = place.resource
        own = {name: value for name, value in body.items() if name not in kind.resource}
        values = merged(version.attributes, own, kind.attributes, patch=patch)
        given = document or given_document(kind, body, values, version.xid, patch=patch, media=self.options.contenttype)
        values = filled(constraints_of(place.group, self.work.group(place.owner.xid)), kind.plural, values)
        version.attributes = settled(version.xid, values, kind.attributes)
        if given is not None:
            self.work.set_document(version, given.body)
        elif kind.hasdocument and not version.epoch and f"{kind.singular}url" not in version.attributes:
            self.work.set_document(version, b"")

    def _ancestor(self, pending: Pending, version: Version, body: Mapping[str, Any]) -> None:
        given = body.get("ancestorid")
        if given is None or given == version.ancestorid:
            return
        if not isinstance(given, str):
            raise invalid(version.xid, "ancestorid", "needs to be a string")
        version.ancestorid = version.id if given == "request" else given
        pending.asked[version.id] = None

    def new_group(self, place: Place) -> Group:
        """Return a new group; the registry has one entity more."""
        check_id(place.gid, place.xid)
        parent = place.xid.rpartition("/")[0]
        self._check_case(self.work.id_like(parent, place.gid), place.group.singular, place.gid, place.xid)
        self.touch(self.work.registry)
        return Group(parent, place.gid, 0, self.options.now, self.options.now)

    def new_resource(self, place: Place, group: Group) -> Resource:
        """Return a new resource of a group, with no version yet."""
        check_id(place.rid, place.xid)
        parent = place.xid.rpartition("/")[0]
        like = self.work.id_like(parent, place.rid)
        self._check_case(like, place.resource.singular, place.rid, place.xid)
        self.touch(group)
        resource = Resource(parent, place.rid, 0, self.options.now, self.options.now)
        resource.sticky = bool(place.resource.meta["defaultversionsticky"].default)
        self.bump(resource)
        self.work.add_resource(resource)
        return resource

    def new_version(self, place: Place, resource: Resource, name: str | None) -> Version:
        """Return a new version; without a *name* the next number is its id."""
        if name is None:
            while name is None or self.work.version(resource, name) is not None:
                resource.counter += 1
                name = str(resource.counter)
        else:
            check_id(name, f"{place.xid}/versions/{name}", version=True)
            if not place.resource.setversionid:
                raise Refusal("versionid_not_allowed", place.xid, plural=place.resource.plural)
            self._check_case(self.work.version_like(resource, name), "version", name, place.xid)
        self.touch(resource)
        version = Version(resource.versions, name, 0, self.options.now, self.options.now)
        self.work.add_version(version)
        return version

    def _check_case(self, like: str | None, singular: str, name: str, subject: str) -> None:
        if like is not None:
            why = f"there is one with the id {like}, which differs in case alone"
            raise Refusal("malformed_id", subject, id=name, error_detail=why)

    def pend(self, place: Place, resource: Resource) -> Pending:
        """Return what is to be settled for a resource at the end of the request."""
        pending = self.pending.get(place.xid)
        if pending is None:
            before = self.work.resources.before.get(place.xid)
            pending = Pending(place, before is not None, before.epoch if before is not None else 0)
            self.pending[place.xid] = pending
        return pending

    def writable(self, resource: Resource, *, root: bool) -> bool:
        """Tell whether a resource may be written, or is to be passed over since it is read-only."""
        if not resource.attributes.get("readonly") or self.options.administrator:
            return True
        if "readonly" not in self.options.ignore:
            raise Refusal("readonly", resource.xid)
        if root:
            raise Refusal("bad_flag", resource.xid, flag="ignore")
        return False

    def entries(self, place: Place, body: object) -> dict[str, Mapping[str, Any]]:
        """Return the entities of a map by their ids.

        Raises:
            Refusal: it is no map of entities, or has ids that differ by case alone.
        """
        entries = as_object(body, place.xid)
        _check_cases(place, entries)
        return {name: as_object(each, f"{place.xid}/{name}") for name, each in entries.items()}


def _check_cases(place: Place, names: Iterable[str]) -> None:
    folded: dict[str, str] = {}
    for name in names:
        other = folded.setdefault(name.lower(), name)
        if other != name:
            why = f"{other} in the same request differs in case alone"
            raise Refusal("malformed_id", f"{place.xid}/{name}", id=name, error_detail=why)
