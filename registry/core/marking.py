"""Marks of what a write has changed, in its own transaction; see :mod:`registry.store.marks`.

Messages in message groups have a history of versions that catalogs merge. Of all else the state of each entity counts:
of a group, of a version with its document, of a resource with what it says of all its versions, and of the model.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from registry.core.views import CHECKS
from registry.store.entities import Entity, Resource, Version
from registry.store.marks import MODEL, Mark, Marks, digest_of, is_by_xid, marked
from registry.store.work import Changes, Work


def mark(work: Work) -> None:
    """Mark what a write of ours has changed; entities that it touched and left as they were keep their marks."""
    _mark_by_xid(work)
    groups = [xid for xid in work.groups.touched if not is_by_xid(xid)]
    versions = [xid for xid in work.versions.touched if not is_by_xid(xid)]
    if not groups and not versions:
        return
    marks = Marks(work.reader.connection)
    owners = list(dict.fromkeys(xid.rpartition("/versions/")[0] for xid in versions))
    names = {xid.rpartition("/")[2] for xid in versions}
    known = {owner: marked(each.values()) for owner, each in marks.versions(owners, names).items()}
    # A reader of the marks in order removes the content of a group before it, and adds content after it.
    for gone in (True, False):
        for xid in versions:
            if (work.versions.now[xid] is None) == gone:
                _mark_version(marks, xid, work, known)
        if gone:
            for xid in groups:
                _mark_group(marks, xid, work.groups.now[xid])
    marks.flush()


def _mark_by_xid(work: Work) -> None:
    moved = set(_owners(work.versions))
    gone = [
        xid for each in (work.versions, work.resources, work.groups) for xid in _touched(each) if each.now[xid] is None
    ]
    # The model goes before what is of its types.
    live = {} if work.registry.modelsource == work.registry_before.modelsource else {MODEL: work.registry.modelsource}
    digests = {xid: digest_of_state(state) for xid, state in live.items()}
    touched = [*_touched(work.groups), *_touched(work.versions), *dict.fromkeys((*_touched(work.resources), *moved))]
    for xid in touched:
        now = work.groups.now.get(xid) or work.versions.now.get(xid) or work.resources.now.get(xid)
        if now is not None:
            digests[xid] = digest_of_state(_state(work, now))
    if not gone and not digests:
        return
    marks = Marks(work.reader.connection)
    known = marks.named([*gone, *digests])
    for xid in gone:
        if xid in known and not known[xid].deleted:
            known[xid].deleted, known[xid].digest = True, ""
            put_own(marks, known[xid])
    for xid, digest in digests.items():
        mine = known.get(xid)
        if mine is None or mine.deleted or mine.digest != digest or xid in moved:
            mine = mine if mine is not None else Mark("", "", "", 0, "", group=xid)
            mine.deleted, mine.digest = False, digest
            put_own(marks, mine)
    marks.flush()


def _touched(changes: Changes[Any]) -> Iterator[str]:
    return (xid for xid in changes.touched if is_by_xid(xid))


def _owners(versions: Changes[Version]) -> Iterator[str]:
    """Yield resources whose versions are others, or descend from others, than before."""
    for xid in _touched(versions):
        before, now = versions.before.get(xid), versions.now[xid]
        if before is None or now is None or before.ancestorid != now.ancestorid:
            yield xid.rpartition("/versions/")[0]


def _state(work: Work, entity: Entity) -> Mapping[str, Any]:
    if isinstance(entity, Version):
        return state_of_version(entity, work.document(entity))
    return state_of_resource(entity) if isinstance(entity, Resource) else entity.attributes


def state_of_version(version: Version, document: bytes | None) -> dict[str, Any]:
    """Return what a version is in all registries."""
    kept = {name: value for name, value in version.attributes.items() if name not in CHECKS}
    given = {} if document is None else {"document": base64.b64encode(document).decode("ascii")}
    return {"attributes": kept, "createdat": version.createdat, **given}


def state_of_resource(resource: Resource) -> dict[str, Any]:
    """Return what a resource says of all its versions in all registries; which descend from which is beside it."""
    state = {"attributes": resource.attributes, "sticky": resource.sticky}
    default = {"default": resource.defaultversionid} if resource.sticky else {}
    return {**state, **default, **({"xref": resource.xref} if resource.xref is not None else {})}


def digest_of_state(state: Mapping[str, Any]) -> str:
    """Return a digest of a state; versions of a resource do not descend from others for its sake alone."""
    plain = {name: value for name, value in state.items() if name not in ("ancestors", "ancestorid")}
    return hashlib.sha256(msgspec.json.encode(plain, order="deterministic")).hexdigest()


def _mark_group(marks: Marks, xid: str, now: Any) -> None:
    group_mark = marks.group(xid)
    if group_mark is None:
        if now is None:
            return
        group_mark = Mark("", "", "", 0, "", group=xid)
    digest = "" if now is None else digest_of(now.attributes)
    if group_mark.stamp and (now is None) == group_mark.deleted and digest == group_mark.digest:
        return
    group_mark.deleted, group_mark.digest = now is None, digest
    put_own(marks, group_mark)


def _mark_version(marks: Marks, xid: str, work: Work, known: dict[str, dict[str, Mark]]) -> None:
    owner, _, name = xid.rpartition("/versions/")
    now, mark = work.versions.now[xid], known[owner].get(name)
    if now is None:
        if mark is not None:
            mark.deleted, mark.digest = True, ""
            put_own(marks, mark)
        return
    digest = digest_of(now.attributes)
    if mark is not None and mark.digest == digest:
        return
    if mark is None:
        mark = Mark(owner, new_uid(marks), name, 0, "")
    mark.digest, mark.authority = digest, str(now.attributes.get("authority") or "")
    put_own(marks, mark)


def put_own(marks: Marks, mark: Mark) -> None:
    """Put a mark as that of a write of this catalog, which is later than all that its state has seen."""
    mark.stamp, mark.origin = marks.tick(max(mark.seen.values(), default=0)), marks.catalog
    mark.seen = {**mark.seen, marks.catalog: mark.stamp}
    marks.put(mark)


def new_uid(marks: Marks) -> str:
    """Return the uid of a version that is new here; they order by what their writers had seen."""
    return f"{marks.tick():016d}.{marks.catalog}"
