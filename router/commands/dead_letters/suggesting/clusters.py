"""Addresses of one structure, grouped into kinds: which words are literal and which stand for one instance or other.

Words that look like ids are gaps from the start. The rest parts the addresses like a tree, by the column with the
fewest words first; branches that turn out to differ in nothing but that column are joined again, as a gap. So a
thousand devices give one kind, and three kinds of messages of a thousand devices each give three.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from router.commands.dead_letters.suggesting.bodies import commonest, purity
from router.commands.dead_letters.suggesting.words import is_unsafe, looks_like_id

MOST_WORDS: Final = 20
"""Words of one column that can be kinds; more are instances."""
FEW_WORDS: Final = 5
_MANY: Final = 20
_SPARSE: Final = 3
_PURE: Final = 0.9
Pattern = tuple[str | None, ...]
"""Words of an address; None stands for a gap."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Addresses of one kind: their pattern, and the numbers of the rows that are of it."""

    pattern: Pattern
    rows: tuple[int, ...]


def clusters_of(rows: Sequence[Sequence[str]], labels: Sequence[int]) -> list[Cluster]:
    """Group rows of words, all equally long; *labels* are the kinds of their bodies, one a row.

    Every row is in exactly one cluster; no two clusters have one pattern. In order of the patterns.
    """
    masked: list[Pattern] = [
        tuple(None if looks_like_id(word) or is_unsafe(word) else word for word in row) for row in rows
    ]
    clusters = _parted(list(range(len(rows))), masked, labels)
    return sorted(_united(clusters), key=lambda cluster: tuple(word or "" for word in cluster.pattern))


def _parted(rows: list[int], masked: list[Pattern], labels: Sequence[int]) -> list[Cluster]:
    words = [{masked[row][column] for row in rows} for column in range(len(masked[rows[0]]))] if rows else []
    varying = [column for column, distinct in enumerate(words) if len(distinct) > 1]
    if not varying:
        return [Cluster(masked[rows[0]], tuple(rows))] if rows else []
    for column in varying:
        if "" in words[column]:  # no gap is ever empty, so these are of another kind
            halves = [[row for row in rows if (masked[row][column] == "") is empty] for empty in (True, False)]
            return [cluster for half in halves for cluster in _parted(half, masked, labels)]
    column = min(varying, key=lambda each: (len(words[each]), each))
    if len(words[column]) > MOST_WORDS:
        pattern = tuple(None if place in varying else word for place, word in enumerate(masked[rows[0]]))
        return [Cluster(pattern, tuple(rows))]
    branches: dict[str | None, list[int]] = {}
    for row in rows:
        branches.setdefault(masked[row][column], []).append(row)
    leaves = [leaf for branch in branches.values() for leaf in _parted(branch, masked, labels)]
    families: dict[Pattern, list[Cluster]] = {}
    for leaf in leaves:
        families.setdefault((*leaf.pattern[:column], *leaf.pattern[column + 1 :]), []).append(leaf)
    last = column == max(place for place in range(len(words)) if words[place] != {""})
    return [each for family in families.values() for each in _joined(family, column, labels, last=last)]


def _joined(family: list[Cluster], column: int, labels: Sequence[int], *, last: bool) -> Iterator[Cluster]:
    """Give the clusters of a family whose members differ in *column* only, joined where that column is no kind."""
    if len(family) == 1:
        yield family[0]
        return
    records = sum(len(each.rows) for each in family)
    label_lists = [[labels[row] for row in each.rows] for each in family]
    kinds: dict[int, list[Cluster]] = {}
    for each, of_each in zip(family, label_lists, strict=True):
        kinds.setdefault(commonest(of_each), []).append(each)
    sparse = len(family) >= FEW_WORDS and records < _SPARSE * len(family)
    named = all(each.pattern[column] is not None for each in family)
    if sparse or len(kinds) == 1 or purity(label_lists) < _PURE:
        few_of_many = last and named and len(family) <= FEW_WORDS and records >= _MANY * len(family)
        yield from family if few_of_many else [_gap(family, column)]
        return
    plural = [members for members in kinds.values() if len(members) > 1]
    if len(family) <= FEW_WORDS or len(plural) != 1:
        # Two kinds of which each has several words cannot both be a gap: both would match the same addresses.
        instances = len(plural) > 1 and not last and len(family) > FEW_WORDS
        yield from [_gap(family, column)] if instances else family
        return
    for members in kinds.values():
        yield from [_gap(members, column)] if len(members) > FEW_WORDS else members


def _gap(members: list[Cluster], column: int) -> Cluster:
    first = members[0].pattern
    rows = sorted(row for each in members for row in each.rows)
    return Cluster((*first[:column], None, *first[column + 1 :]), tuple(rows))


def _united(clusters: list[Cluster]) -> Iterator[Cluster]:
    """Join clusters that came to have one pattern."""
    by_pattern: dict[Pattern, list[int]] = {}
    for each in clusters:
        by_pattern.setdefault(each.pattern, []).extend(each.rows)
    for pattern, rows in by_pattern.items():
        yield Cluster(pattern, tuple(sorted(rows)))
