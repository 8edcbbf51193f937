"""Kinds of bodies: records whose bodies look alike have one label, whatever optional members each of them has."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from router.commands.dead_letters.suggesting.traits import Traits
from router.commands.dead_letters.suggesting.words import looks_like_id

_ALIKE: Final = 0.5
"""Share of common members from which two objects are of one kind."""
_MAX_KINDS: Final = 64
_ROOT: Final = re.compile(rb"\s*(?:<\?[^>]*\?>\s*|<!--.*?-->\s*|<![^>]*>\s*)*<([A-Za-z_][^\s/>]*)", re.DOTALL)
_HEAD: Final = 2_000


def labels_of(traits: Sequence[Traits]) -> list[int]:
    """Return a small number for each record, the same for bodies of one kind; 0 is the commonest kind."""
    looks = [_look(each) for each in traits]
    counted = sorted(Counter(looks).items(), key=lambda item: (-item[1], repr(_ordered(item[0]))))
    numbers = numbered([look for look, _ in counted])
    return [numbers[look] for look in looks]


def numbered(looks: Iterable[Hashable]) -> dict[Hashable, int]:
    """Number the looks, in order; sets that have much in common share a number."""
    known: list[Hashable] = []
    numbers: dict[Hashable, int] = {}
    for look in looks:
        kind = next((number for number, other in enumerate(known) if _alike(look, other)), None)
        if kind is None:
            kind = min(len(known), _MAX_KINDS)
            if kind < _MAX_KINDS:
                known.append(look)
        numbers[look] = kind
    return numbers


def purity(groups: Iterable[Sequence[int]]) -> float:
    """Return how well groups differ by label: the share of records with the commonest label of their group."""
    sizes = total = 0
    for labels in groups:
        sizes += max(Counter(labels).values())
        total += len(labels)
    return sizes / total if total else 1.0


def commonest(labels: Iterable[int]) -> int:
    """Return the label that most have; the smallest of several."""
    return min(Counter(labels).items(), key=lambda item: (-item[1], item[0]))[0]


def _look(traits: Traits) -> Hashable:
    """Return the names of members of an object, or a text that says what else it is."""
    if traits.document is not None:
        return _look_of(traits.document[0])
    if not traits.body:
        return "nothing"
    head = traits.body[:_HEAD]
    root = _ROOT.match(head)
    if root is not None:
        return f"<{root.group(1).decode('utf-8', 'replace')}>"
    return "binary" if b"\0" in head else "text"


def _look_of(value: object) -> Hashable:
    if isinstance(value, dict):
        return frozenset("*" if looks_like_id(name) else name for name in value)
    if isinstance(value, list):
        return ("list", _look_of(value[0]) if value else "")
    return type(value).__name__


def _alike(one: Hashable, other: Hashable) -> bool:
    if isinstance(one, frozenset) and isinstance(other, frozenset):
        united = one | other
        return not united or len(one & other) / len(united) >= _ALIKE
    return one == other


def _ordered(look: Hashable) -> object:
    return sorted(map(str, look)) if isinstance(look, frozenset) else look
