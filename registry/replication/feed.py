"""What a catalog gives to others: its groups and versions as they are, in the order in which it learnt of them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from registry.replication.changes import Change, Changes
from registry.replication.entities import ancestors, state_at
from registry.replication.places import home_of, is_aside
from registry.store.marks import MODEL, SCOPE, Mark, Marks, is_by_xid
from registry.store.reading import Reader

PAGE: Final = 200
"""Changes of one page."""
PAGE_BYTES: Final = 4 * 2**20
"""Bytes at which a page ends; one change may be larger."""


def changes_after(reader: Reader, position: int, authority: str, limit: int = PAGE, *, whole: bool = False) -> Changes:
    """Return the changes after a position, a page of them; *authority* is that of what names none.

    Only with *whole* changes of other entities than messages and their groups are among them. What a resource says of
    its versions then follows them in each page that has one, so that it is known when the last of them is. The model
    comes before all that may be of its types, and once more where it is due: what it forbids is gone by then.
    """
    marks = Marks(reader.connection)
    entries = marks.after(position, min(limit, PAGE) + 1)
    page, more = entries[: min(limit, PAGE)], len(entries) > min(limit, PAGE)
    live = [f"{each.owner}/versions/{each.name}" for each in page if each.owner and not each.deleted]
    versions = reader.versions_of(live)
    changes: list[Change] = []
    weight = 0
    model = marks.group(MODEL) if whole else None
    if model is not None and model.position > position:
        changes += filter(None, (_change_by_xid(model, reader),))
    first = len(changes)
    owners: dict[str, None] = {}
    for each in page:
        by_xid = not each.owner and is_by_xid(each.group)
        if by_xid and not whole:
            position = each.position
            continue
        owner = _resource_of(each) if by_xid and not each.deleted else ""
        change = _change_by_xid(each, reader) if by_xid else _change(each, reader, versions, authority)
        if change is not None:
            weight += len(msgspec.json.encode(change))
            full = len(changes) + len(owners) + bool(owner) >= PAGE
            if len(changes) + len(owners) > first and (full or weight > PAGE_BYTES):
                more = True
                break
            if not owner or owner != each.group:
                changes.append(change)
            if owner:
                owners[owner] = None
        position = each.position
    if owners:
        known = marks.named(list(owners))
        given = (_change_by_xid(known[xid], reader) for xid in owners if xid in known and not known[xid].deleted)
        changes += filter(None, given)
    return Changes(catalog=marks.catalog, authority=authority, position=position, changes=changes, more=more)


def _resource_of(mark: Mark) -> str:
    """Return the xid of the resource that a mark is of, or of whose version; '' for groups and the model."""
    return "/".join(mark.group.split("/")[:5]) if mark.group.count("/") >= 4 else ""


def _change_by_xid(mark: Mark, reader: Reader) -> Change | None:
    state = None if mark.deleted else state_at(reader, mark.group)
    if state is None and not mark.deleted:
        return None
    if state is not None and mark.group.count("/") == 4:
        state["ancestors"] = ancestors(reader, mark.group)
    return Change(group="", xid=mark.group, stamp=mark.stamp, origin=mark.origin, seen=mark.seen, attributes=state)


def _change(mark: Mark, reader: Reader, versions: Any, authority: str) -> Change | None:
    if not mark.owner:
        name = mark.group.removeprefix(SCOPE)
        group = None if mark.deleted else reader.group(mark.group)
        if is_aside(name) or (group is None and not mark.deleted):
            return None  # each catalog makes those groups by itself
        attributes = None if group is None else group.attributes
        return Change(group=name, stamp=mark.stamp, origin=mark.origin, seen=mark.seen, attributes=attributes)
    version = versions.get(f"{mark.owner}/versions/{mark.name}")
    if version is None and not mark.deleted:
        return None
    controls = mark.authority or authority
    group_name, name = home_of(mark.owner, controls)
    return Change(
        group=group_name,
        definition=name,
        uid=mark.uid,
        name=mark.name,
        stamp=mark.stamp,
        origin=mark.origin,
        seen=mark.seen,
        authority=controls,
        createdat="" if mark.deleted else version.createdat,
        attributes=None if mark.deleted else version.attributes,
    )
