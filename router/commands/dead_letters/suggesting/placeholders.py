"""Names for the gaps of a draft: after what stands before them, the same for values that are always equal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from router.commands.dead_letters.suggesting.columns import Column, Gap
from router.commands.dead_letters.suggesting.words import looks_like_id, singular

_EQUAL: Final = 3
"""From so many records on, gaps that are always equal are taken to be the same thing."""
_NOT_NAME: Final = re.compile(r"[^A-Za-z0-9_]+")
_VERSION: Final = re.compile(r"v?\d+(?:\.\d+)*|api|rest|rpc|urn|https?", re.IGNORECASE | re.ASCII)
_LONGEST: Final = 40
_DATE: Final = re.compile(r"\d{4}-\d{2}", re.ASCII)
GapPlace = tuple[int, int]
"""The number of a column, and of a gap in it."""


def shared_gaps(columns: Sequence[Column]) -> dict[GapPlace, GapPlace]:
    """Return, for each gap, the first one that has the same value in every record; itself when there is none."""
    first: dict[tuple[str, ...], GapPlace] = {}
    shared: dict[GapPlace, GapPlace] = {}
    for place, gap in _gaps(columns):
        certain = gap.varies and len(gap.values) >= _EQUAL and not any("%" in value for value in gap.values)
        shared[place] = first.setdefault(gap.values, place) if certain else place
    return shared


def names_of(columns: Sequence[Column], shared: dict[GapPlace, GapPlace]) -> dict[GapPlace, str]:
    """Name the gaps of *columns*, whose order is the order of their say; no two that differ have one name."""
    proposals: dict[GapPlace, tuple[int, str]] = {}
    for place, gap in _gaps(columns):
        rank, name = _proposal(columns[place[0]], gap)
        known = proposals.get(shared[place])
        if known is None or rank < known[0]:
            proposals[shared[place]] = (rank, name)
    taken: set[str] = set()
    names: dict[GapPlace, str] = {}
    for place, (_, name) in proposals.items():
        chosen, number = name, 2
        while chosen in taken:
            chosen, number = f"{name}{number}", number + 1
        taken.add(chosen)
        names[place] = chosen
    return {place: names[owner] for place, owner in shared.items() if owner in names}


def _gaps(columns: Sequence[Column]) -> Iterator[tuple[GapPlace, Gap]]:
    for number, column in enumerate(columns):
        for place, gap in enumerate(column.gaps):
            yield (number, place), gap


def _proposal(column: Column, gap: Gap) -> tuple[int, str]:
    """Return a name and how good it is; the smaller the better."""
    before = singular(gap.before)
    if before and not looks_like_id(before) and not _VERSION.fullmatch(before):
        name = _clean(before)
        if name:
            return 0, name
    if column.pieces is not None and len(column.pieces) == 1:
        name = _clean(column.key.rpartition(".")[2].removeprefix("x-").removeprefix("X-"))
        if name and column.key not in ("p.topic", "p.topic_name", "p.path", "p.subject"):
            return 1, name
    if gap.values and _DATE.match(gap.values[0]):
        return 2, "date"
    return 3, "id" if all(map(looks_like_id, gap.values)) else "name"


def _clean(text: str) -> str:
    return _NOT_NAME.sub("_", text).strip("_")[:_LONGEST]
