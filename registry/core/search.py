"""Full-text search, documents, and text diffs, for the registry's web pages.

All are bounded: a search scans a limited number of rows and returns where to continue, and a diff is limited in
lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
from rapidfuzz.distance import Indel
from sqlalchemy import Connection, and_, func, or_, select

from registry.store.engine import GROUPS, RESOURCES, VERSIONS
from registry.store.entities import bounds_below

MAX_SCANNED: Final = 100_000
"""Rows of each kind of entity that one search scans."""
MAX_TEXT: Final = 200
MAX_LINES: Final = 5000
"""Lines of each text in a diff, which then takes about 15 ms."""
_KINDS: Final = {"groups": GROUPS, "resources": RESOURCES, "versions": VERSIONS}
_LIKE_ESCAPES: Final = str.maketrans({"!": "!!", "%": "!%", "_": "!_"})

Line = tuple[Literal[" ", "-", "+"], str]
"""A line of a diff: in both texts, only in the old one, or only in the new one."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """An entity that a search found."""

    xid: str
    attributes: Mapping[str, Any]


def search(connection: Connection, text: str, after: str, limit: int) -> tuple[list[SearchHit], str]:
    """Find entities whose id or attributes contain a text, ignoring case: groups, then resources, then versions.

    A text that begins with ``/`` is also searched in xids. *after* is where the previous search stopped, '' at first.

    Returns:
        At most *limit* hits, and where to continue, '' when everything was searched.
    """
    kind, _, xid = after.partition(" ")
    first = list(_KINDS).index(kind) if kind in _KINDS else 0
    hits: list[SearchHit] = []
    for name in list(_KINDS)[first:]:
        found, last = _search_kind(connection, name, text, xid, limit - len(hits))
        hits += found
        if last:
            return hits, f"{name} {last}"
        xid = ""
    return hits, ""


def _search_kind(connection: Connection, kind: str, text: str, after: str, limit: int) -> tuple[list[SearchHit], str]:
    if not limit:
        return [], after or "/"
    table = _KINDS[kind]
    there = table.c.xid > after
    window = select(table.c.xid).where(there).order_by(table.c.xid).limit(MAX_SCANNED).subquery()
    count, last = connection.execute(select(func.count(), func.max(window.c.xid))).one()
    if not count:
        return [], ""
    in_json = msgspec.json.encode(text).decode("utf-8")[1:-1]
    looked_for = [_contains(table.c.attributes, in_json)]
    if kind != "versions":  # version ids are short numbers, which match everywhere
        looked_for.append(_contains(table.c.id, text))
    if text.startswith("/"):
        looked_for.append(_contains(table.c.xid, text))
    query = select(table.c.xid, table.c.attributes).where(there, table.c.xid <= last, or_(*looked_for))
    rows = connection.execute(query.order_by(table.c.xid).limit(limit)).all()
    hits = [SearchHit(row[0], msgspec.json.decode(row[1])) for row in rows]
    if len(rows) == limit:
        return hits, rows[-1][0]
    return hits, last if count == MAX_SCANNED else ""


def _contains(column: Any, text: str) -> Any:
    pattern = f"%{text.translate(_LIKE_ESCAPES)}%"
    return func.lower(column).like(func.lower(pattern), escape="!")


def xids_after(connection: Connection, within: str, after: str, limit: int) -> list[str]:
    """Return xids of groups and resources after *after*, in order; only those *within* one group unless it is ''."""
    chosen = []
    for table in (GROUPS, RESOURCES):
        query = select(table.c.xid).where(table.c.xid > after)
        if within:
            first, last = bounds_below(within)
            query = query.where(or_(table.c.xid == within, and_(table.c.xid >= first, table.c.xid < last)))
        chosen.append(query.order_by(table.c.xid).limit(limit))
    found = [xid for query in chosen for xid in connection.execute(query).scalars()]
    return sorted(found)[:limit]


def diff_lines(old: Sequence[str], new: Sequence[str]) -> list[Line] | None:
    """Return the shortest diff of two texts, None when they are too long; deleted lines precede added ones."""
    if max(len(old), len(new)) > MAX_LINES:
        return None
    lines: list[Line] = []
    added: list[Line] = []
    for each in Indel.opcodes(old, new):
        if each.tag == "insert":
            added += [("+", line) for line in new[each.dest_start : each.dest_end]]
            continue
        if each.tag == "equal":
            lines += added
            added = []
        lines += [(" " if each.tag == "equal" else "-", line) for line in old[each.src_start : each.src_end]]
    return lines + added
