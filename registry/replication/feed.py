"""What a catalog gives to others: its groups and versions as they are, in the order in which it learnt of them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from registry.replication.changes import Change, Changes
from registry.replication.places import home_of, is_aside
from registry.store.marks import SCOPE, Mark, Marks
from registry.store.reading import Reader

PAGE: Final = 200
"""Changes of one page."""
PAGE_BYTES: Final = 4 * 2**20
"""Bytes at which a page ends; one change may be larger."""


def changes_after(reader: Reader, position: int, authority: str, limit: int = PAGE) -> Changes:
    """Return the changes after a position, a page of them; *authority* is that of what names none."""
    marks = Marks(reader.connection)
    entries = marks.after(position, min(limit, PAGE) + 1)
    page, more = entries[: min(limit, PAGE)], len(entries) > min(limit, PAGE)
    live = [f"{each.owner}/versions/{each.name}" for each in page if each.owner and not each.deleted]
    versions = reader.versions_of(live)
    changes: list[Change] = []
    weight = 0
    for each in page:
        change = _change(each, reader, versions, authority)
        if change is not None:
            weight += len(msgspec.json.encode(change))
            if changes and weight > PAGE_BYTES:
                more = True
                break
            changes.append(change)
        position = each.position
    return Changes(catalog=marks.catalog, authority=authority, position=position, changes=changes, more=more)


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
