"""How far a value is from what a constraint asks for, in characters that would have to change.

It separates definitions that are otherwise equally near to a record: a typo is a letter or two away from what was
meant. Placeholders of a template take what stands at their place. Texts come from outside, so the work is bounded:
texts longer than ``LONGEST`` are *far*, and so are those that are ``FAR`` or more changes away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from catalog.definitions.constraints import Constraint
from router.matching.index.columns import Int

FAR: Final = 8
"""The distance of a value that is farther, absent or no text, and of a constraint that asks for no text."""
LONGEST: Final = 200
_BUCKETS: Final = 16
_TEXTUAL: Final = ("literal", "media", "template")


def distance(constraint: Constraint, texts: Sequence[str | None]) -> int:
    """Return how many characters of the first value must change before it can be what is asked for, 1 to ``FAR``.

    The values are known not to satisfy the constraint.
    """
    text = texts[0] if texts else None
    if text is None or not has_text(constraint) or len(text) > LONGEST:
        return FAR
    wanted: str | None = constraint.value or ""
    if constraint.kind == "template":
        wanted = constraint.template.alongside(text)
    return FAR if wanted is None else max(1, min(FAR, _changes(wanted, text)))


def has_text(constraint: Constraint) -> bool:
    """Tell whether a constraint asks for a text that values can be alike to."""
    return constraint.kind in _TEXTUAL and constraint.type != "binary" and len(constraint.value or "") <= LONGEST


class Spellings:
    """What the constraints on one property ask for, to find those that a value may be alike to.

    A change of one character changes by one how often two characters occur, so what a value lacks of the characters
    that a constraint asks for, or has beyond them, bounds their distance from below, for all constraints at once.
    """

    def __init__(self, constraints: Sequence[Constraint]) -> None:
        self._textual = np.array([has_text(each) for each in constraints], np.bool_)
        self._counts = np.zeros((_BUCKETS, len(constraints)), np.uint8)
        self._lengths, self._slashes, self._dots = (np.zeros(len(constraints), np.int64) for _ in range(3))
        self._templates = np.array([each.kind == "template" for each in constraints], np.bool_)
        for place in np.flatnonzero(self._textual).tolist():
            constraint, value = constraints[place], constraints[place].value or ""
            if constraint.kind == "template":
                value = constraint.template.alongside_nothing
                self._slashes[place] = value.count("/")
                self._dots[place] = value.count(".") if constraint.dots else -1
            self._counts[:, place] = _counted(value)
            self._lengths[place] = len(value)

    def at_least(self, text: str, numbers: Int | slice) -> Int:
        """Return for each of these constraints a number that is no larger than the distance of a value that fails it.

        It is ``FAR`` for those without a text.
        """
        occurrences = _counted(text)[:, None]
        missing = (np.maximum(self._counts[:, numbers], occurrences) - occurrences).sum(axis=0, dtype=np.int64)
        beyond = missing + len(text) - self._lengths[numbers]
        templates, slashes, dots = self._templates[numbers], self._slashes[numbers], self._dots[numbers]
        bound = np.where(templates, missing, np.maximum(missing, beyond))
        parted = (slashes != text.count("/")) | ((dots >= 0) & (dots != text.count(".")))
        bound[~self._textual[numbers] | (templates & parted)] = FAR
        bounded: Int = np.clip(bound, 1, FAR)
        return bounded


def _counted(text: str) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return how often the characters of each bucket occur."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return np.bincount(points % _BUCKETS, minlength=_BUCKETS).astype(np.uint8)


def _changes(wanted: str, value: str) -> int:
    """Return the edit distance of two texts (Levenshtein's), by a column of bits for each character.

    The columns are those of Myers (1999) and Hyyrö (2003): two words of bits hold where a column of the usual table
    goes up and down, so that one step does what is a step for each character of the other text.
    """
    start, end = 0, min(len(wanted), len(value))
    while start < end and wanted[start] == value[start]:
        start += 1
    end -= start
    tail = 0
    while tail < end and wanted[-1 - tail] == value[-1 - tail]:
        tail += 1
    wanted, value = wanted[start : len(wanted) - tail], value[start : len(value) - tail]
    if abs(len(wanted) - len(value)) >= FAR or not wanted:
        return max(len(wanted), len(value))
    places: dict[str, int] = {}
    for place, character in enumerate(wanted):
        places[character] = places.get(character, 0) | 1 << place
    every, last = (1 << len(wanted)) - 1, 1 << (len(wanted) - 1)
    up, down, changes = every, 0, len(wanted)
    for left, character in zip(range(len(value), 0, -1), value, strict=True):
        if changes - left >= FAR:
            return FAR
        same = places.get(character, 0)
        level = (((same & up) + up) ^ up) | same | down
        right_up, right_down = (down | ~(level | up)) & every, up & level
        changes += bool(right_up & last) - bool(right_down & last)
        right_up, right_down = (right_up << 1 | 1) & every, right_down << 1 & every
        up, down = (right_down | ~(same | down | right_up)) & every, right_up & (same | down)
    return changes
