"""Which definitions of many may match one record? Pairs that nothing written excludes, found without comparing all.

What a definition says literally (a type, a segment of a topic) excludes all that say otherwise there. So definitions
are parted by one such *mark* after another, and only those that are left together, or have no such mark, are paired.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from catalog.comparing.coverage import Asked
from catalog.definitions.constraints import MEDIA_PROPERTIES
from catalog.model import Property
from catalog.templates import tokens_of
from catalog.values import media_type_of

Marks = Mapping[Hashable, str]
"""What a record has that a definition matches, by place; another value at one place excludes it."""
_SEPARATORS: Final = {False: re.compile("/"), True: re.compile("[/.]")}
_GAP: Final = "\0"
_TEXTS: Final = frozenset({"string", "symbol", "uri", "urireference", "uritemplate", "any"})


def marks_of(asks: Mapping[str, Sequence[Asked]], content: str | None = None) -> Marks:
    """Return the marks of a definition for data of the type *content*; what is written in several ways gives none."""
    marks: dict[Hashable, str] = {"content": media_type_of(content)} if content else {}
    for key, of_key in asks.items():
        for ask in of_key:
            if ask.form == "media":
                marks[key, "media"] = media_type_of(ask.text)
            elif ask.form == "literal" and ask.type in _TEXTS:
                marks[key, "text"] = ask.text
                for dots in (False, True):
                    _add_segments(marks, key, ask.text, dots)
            elif ask.form == "template" and not ask.template.is_bare:
                tokens = tokens_of(ask.text)
                text = "".join(_GAP if place % 2 else token for place, token in enumerate(tokens))
                _add_segments(marks, key, text, ask.dots)
    return marks


def _add_segments(marks: dict[Hashable, str], key: str, text: str, dots: bool) -> None:
    segments = _SEPARATORS[dots].split(text)
    marks[key, dots, "segments"] = str(len(segments))
    for number, segment in enumerate(segments):
        if _GAP not in segment:
            marks[key, dots, number] = segment


def literal_marks(properties: Iterable[tuple[str, Property]]) -> Marks:
    """Return the marks that literals of texts give, by key; few of all, and made at little cost."""
    return {
        (key, "text"): prop.value
        for key, prop in properties
        if isinstance(prop.value, str) and prop.type in _TEXTS and "{" not in prop.value and key not in MEDIA_PROPERTIES
    }


def pairs(few: Sequence[Marks], every: Callable[[int], Marks], looked: list[int]) -> Iterator[tuple[int, int]]:
    """Give the pairs, by number, whose marks exclude each other nowhere, until ``looked[0]`` looks are used up.

    *few* are the marks that all are parted by first; what is left together is parted by *every* mark of its own.
    """
    waiting: list[tuple[list[int], frozenset[Hashable], bool]] = [(list(range(len(few))), frozenset(), False)]
    while waiting:
        members, used, whole = waiting.pop()
        marks = {member: every(member) if whole else few[member] for member in members}
        place = _parting(marks, used)
        if place is None and not whole:
            waiting.append((members, used, True))
            continue
        if place is None:
            crossed = ((one, other) for at, one in enumerate(members) for other in members[at + 1 :])
        else:
            parts: dict[str, list[int]] = {}
            for member in members:
                if place in marks[member]:
                    parts.setdefault(marks[member][place], []).append(member)
            without = [member for member in members if place not in marks[member]]
            left = (part for part in (*parts.values(), without) if len(part) > 1)
            waiting.extend((part, used | {place}, whole) for part in left)
            crossed = ((one, other) for part in parts.values() for one in part for other in without)
        for one, other in crossed:
            looked[0] -= 1
            if looked[0] < 0:
                return
            if _agree(marks[one], marks[other]) and (whole or _agree(every(one), every(other))):
                yield (one, other) if one < other else (other, one)


def _parting(marks: Mapping[int, Marks], used: frozenset[Hashable]) -> Hashable | None:
    """Return the place at which most have a mark, and not all the same; None when there is none."""
    counts: dict[Hashable, int] = {}
    values: dict[Hashable, str] = {}
    several: set[Hashable] = set()
    for each in marks.values():
        for place, value in each.items():
            counts[place] = counts.get(place, 0) + 1
            if values.setdefault(place, value) != value:
                several.add(place)
    parting = [place for place in counts if place in several and place not in used]
    return max(parting, key=lambda place: counts[place], default=None)


def _agree(one: Marks, other: Marks) -> bool:
    small, large = (one, other) if len(one) < len(other) else (other, one)
    return all(large.get(place, value) == value for place, value in small.items())
