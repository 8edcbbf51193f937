"""Full-text search, documents, and text diffs, for the registry's web pages.

All are bounded: a search scans a limited number of rows and returns where to continue, and a diff is limited in lines
and differences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import Connection, and_, func, or_, select

from registry.core.requests import RegistryRequest, ResourcePath
from registry.core.service import RegistrySession
from registry.store.engine import GROUPS, RESOURCES, VERSIONS
from registry.store.entities import bounds_below

MAX_SCANNED: Final = 100_000
"""Rows of each kind of entity that one search scans."""
MAX_TEXT: Final = 200
MAX_LINES: Final = 5000
"""Lines of each text in a diff."""
MAX_DIFFERENCES: Final = 500
"""Differing lines in a diff."""
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


def read_document(session: RegistrySession, place: ResourcePath) -> tuple[Mapping[str, Any], bytes | None]:
    """Return a resource or a version as the API shows it, with its document if it is stored here.

    Raises:
        Refusal: it does not exist.
    """
    segments = tuple(place.xid.split("/")[1:])
    answer = session.perform(RegistryRequest("read", segments, place.xid, ""))
    assert answer.body is not None
    return answer.body, answer.document if not answer.document_url else None


def diff_lines(old: Sequence[str], new: Sequence[str]) -> list[Line] | None:
    """Return the diff of two texts, None when they are too long or differ too much.

    Myers' algorithm: the cost is bounded by the number of differences times the number of lines.
    """
    if max(len(old), len(new)) > MAX_LINES:
        return None
    begin = 0
    while begin < min(len(old), len(new)) and old[begin] == new[begin]:
        begin += 1
    end = 0
    while end < min(len(old), len(new)) - begin and old[-1 - end] == new[-1 - end]:
        end += 1
    middle = _shortest_diff(old[begin : len(old) - end], new[begin : len(new) - end])
    if middle is None:
        return None
    shared: list[Line] = [(" ", line) for line in old[:begin]]
    return [*shared, *middle, *((" ", line) for line in old[len(old) - end :])]


def _shortest_diff(old: Sequence[str], new: Sequence[str]) -> list[Line] | None:
    reached = {1: 0}
    steps: list[dict[int, int]] = []
    for depth in range(min(MAX_DIFFERENCES, len(old) + len(new)) + 1):
        steps.append(dict(reached))
        for diagonal in range(-depth, depth + 1, 2):
            at, _ = _enter_diagonal(reached, diagonal, depth)
            while at < len(old) and at - diagonal < len(new) and old[at] == new[at - diagonal]:
                at += 1
            reached[diagonal] = at
            if at >= len(old) and at - diagonal >= len(new):
                return _trace_diff(steps, old, new)
    return None


def _enter_diagonal(reached: Mapping[int, int], diagonal: int, depth: int) -> tuple[int, bool]:
    """Return the position in the old text on entering a diagonal, and whether by an added line."""
    added = diagonal == -depth or (diagonal != depth and reached[diagonal - 1] < reached[diagonal + 1])
    return (reached[diagonal + 1] if added else reached[diagonal - 1] + 1), added


def _trace_diff(steps: Sequence[Mapping[int, int]], old: Sequence[str], new: Sequence[str]) -> list[Line]:
    lines: list[Line] = []
    at, beside = len(old), len(new)
    for depth in range(len(steps) - 1, -1, -1):
        entered, added = _enter_diagonal(steps[depth], at - beside, depth)
        while at > entered:
            at, beside = at - 1, beside - 1
            lines.append((" ", old[at]))
        if depth and added:
            beside -= 1
            lines.append(("+", new[beside]))
        elif depth:
            at -= 1
            lines.append(("-", old[at]))
    return lines[::-1]
