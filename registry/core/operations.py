"""What a method does to the place that it is directed at: one write, in terms of the writer and the deleter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from registry.core.deleting import Deleter
from registry.core.merging import given_time
from registry.core.places import Place
from registry.core.requests import ABSENT, Request
from registry.core.writing import Writer
from registry.errors import Refusal
from registry.model.types import Model
from registry.store.entities import Entity
from registry.store.work import Work


class WrittenEntity:
    """The one entity that a write was directed at: whether it is new, and whether a version of it is."""

    def __init__(self, place: Place, *, created: bool, version: bool = False) -> None:
        self.place = place
        self.created = created
        self.version = version


class Operation:
    """Carries out one write, but for what :meth:`Writer.finish` settles."""

    def __init__(self, writer: Writer, place: Place, request: Request) -> None:
        self._writer = writer
        self._place = place
        self._request = request

    def run(self) -> Any:
        """Do it, and return what the answer shows.

        That is a :class:`WrittenEntity`, or the names of entities in one collection or in several.

        Raises:
            Refusal: it cannot be; nothing of it may be flushed.
        """
        request = self._request
        if request.verb == "delete":
            return self._delete()
        if request.document is None and request.body is ABSENT:
            raise Refusal("missing_body", request.path)
        if not isinstance(request.body, Mapping):
            raise Refusal("parsing_data", request.path, error_detail="the body needs to be a JSON object")
        return self._add() if request.verb == "add" else self._update()

    def _delete(self) -> None:
        request, deleter = self._request, Deleter(self._writer)
        if self._place.is_collection:
            deleter.delete_all(self._place, None if request.body is ABSENT else request.body)
        else:
            deleter.delete(self._place, _epoch(request))

    def _update(self) -> Any:
        writer, place, body = self._writer, self._place, self._request.body
        # The attributes beside a document are patched: what no header names stays.
        patch = self._request.verb == "patch" or self._request.document is not None
        if place.kind == "registry":
            writer.write_registry(body, patch=patch)
            return WrittenEntity(place, created=False)
        if place.is_collection:
            return self._write_all(place, body, patch=patch)
        if place.kind == "group":
            created = writer.work.group(place.xid) is None
            writer.write_group(place, body, patch=patch, root=True)
            return WrittenEntity(place, created=created)
        return self._update_resource(body, patch=patch)

    def _update_resource(self, body: Mapping[str, Any], *, patch: bool) -> WrittenEntity:
        writer, place, document = self._writer, self._place, self._request.document
        owner = place if place.kind == "resource" else place.owner
        created = writer.work.resource(owner.xid) is None
        if place.kind == "resource":
            writer.write_resource(place, body, patch=patch, root=True, document=document)
        elif place.kind == "meta":
            writer.write_meta(owner, body, patch=patch)
        else:
            created = writer.put_version(place, body, patch=patch, document=document)
        pending = writer.pending.get(owner.xid)
        return WrittenEntity(place, created=created, version=pending is not None and bool(pending.fresh))

    def _add(self) -> Any:
        writer, place, body = self._writer, self._place, self._request.body
        if place.kind == "registry":
            return self._many(body, {name: Place("groups", kind) for name, kind in writer.model.groups.items()})
        if place.kind == "group":
            return self._many(body, {name: place.collection(name) for name in place.group.resources})
        if place.is_collection:
            return self._write_all(place, body, patch=False)
        version = writer.add_version(place, body, self._request.document)
        created = version.id in writer.pending[place.xid].fresh
        return WrittenEntity(replace(place, kind="version", vid=version.id), created=created, version=True)

    def _many(self, body: Mapping[str, Any], places: Mapping[str, Place]) -> dict[str, Any]:
        place = self._place
        for name in body:
            if name not in places:
                kind = "groups_only" if place.kind == "registry" else "resources_only"
                raise Refusal(kind, place.xid, name=name)
        if place.kind == "group" and self._writer.work.group(place.xid) is None:
            self._writer.write_group(place, {}, patch=False)
        return {name: (places[name], self._write_all(places[name], each, patch=False)) for name, each in body.items()}

    def _write_all(self, place: Place, body: object, *, patch: bool) -> list[str]:
        """Write entities of a collection, and return the ids of those that were processed."""
        writer = self._writer
        write = {
            "groups": writer.write_groups,
            "resources": writer.write_resources,
            "versions": writer.write_versions,
        }[place.kind]
        return write(place, body, patch=patch)


def _epoch(request: Request) -> int | None:
    text = request.flags.epoch
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise Refusal("bad_flag", request.path, detail="epoch needs to be an unsigned integer", flag="epoch")
    return int(text)


def keep_exact(work: Work, model: Model, tree: Mapping[str, Any]) -> None:
    """Give what a write has touched the epochs and times that a document of the whole registry has."""
    work.registry_touched = True
    _set_exact(work.registry, tree)
    for plural, kind in model.groups.items():
        for gid, group in _members(tree, plural):
            place = Place("group", kind, gid)
            _set_exact(work.groups.now.get(place.xid), group)
            for name in kind.resources:
                for rid, resource in _members(group, name):
                    owner = place.collection(name).child(rid).xid
                    _set_exact(work.resources.now.get(owner), resource.get("meta"))
                    for vid, version in _members(resource, "versions"):
                        _set_exact(work.versions.now.get(f"{owner}/versions/{vid}"), version)


def _members(tree: Mapping[str, Any], name: str) -> list[tuple[str, Mapping[str, Any]]]:
    found = tree.get(name)
    return [each for each in found.items() if isinstance(each[1], Mapping)] if isinstance(found, Mapping) else []


def _set_exact(entity: Entity | None, body: object) -> None:
    if entity is None or not isinstance(body, Mapping):
        return
    epoch = body.get("epoch")
    if isinstance(epoch, int) and not isinstance(epoch, bool) and epoch > 0:
        entity.epoch = epoch
    entity.createdat = given_time(body.get("createdat"), "createdat", entity.xid) or entity.createdat
    entity.modifiedat = given_time(body.get("modifiedat"), "modifiedat", entity.xid) or entity.modifiedat
