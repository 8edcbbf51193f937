"""Find definitions that overlap: some record matches both, but neither covers the other.

Candidates of one endpoint (of a group, in a catalog without endpoints) are compared on the records they are meant for,
events or not. A base and its derived definitions are never reported, nor are definitions that cover each other, which
other rules report. The caller confirms each result with the matcher.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from catalog.definitions.candidates import competing_candidate, iter_scopes
from catalog.definitions.constraints import (
    CONTENT_TYPE_KEY,
    MEDIA_PROPERTIES,
    Constraint,
    Demands,
    KeyedConstraint,
    MatchCandidate,
    covers,
    demands_of,
    parse_cached_template,
)
from catalog.model import Catalog, Definition, Endpoint
from catalog.templates import Placeholder, Template
from catalog.values import media_type_of

# Which definitions may match the same record? Find pairs that no literal excludes, without comparing all.
#
# A literal (a type, a segment of a topic) excludes definitions with another literal in the same position: a *mark*.
# Definitions are split by one mark after another; only those with the same mark, or without it, are paired.

Marks = Mapping[Hashable, str]
"""The literals that a matching record must have, by position."""
_TEXTS: Final = frozenset({"string", "symbol", "uri", "urireference", "uritemplate", "any"})


def marks_of(demands: Demands) -> Marks:
    """Return a definition's marks. Values with several notations have none."""
    marks: dict[Hashable, str] = {}
    for key, constraints in demands.items():
        for each in constraints:
            if each.kind == "media":
                marks[key, "media"] = media_type_of(each.value)
            elif each.kind == "literal" and each.type in _TEXTS:
                marks[key, "text"] = each.value or ""
                for dots in (False, True):
                    _add_segments(marks, key, parse_cached_template(each.value or "", dots, True))
            elif each.kind == "template" and not each.template.is_bare:
                _add_segments(marks, key, each.template)
    return marks


def _add_segments(marks: dict[Hashable, str], key: str, template: Template) -> None:
    marks[key, template.dots, "separators"] = "".join(template.separators)
    for number, segment in enumerate(template.segments):
        if not segment.names:
            marks[key, template.dots, number] = segment.literals[0]


def _literal_marks(constraints: Sequence[KeyedConstraint]) -> Marks:
    """Return only the marks of string literals, by key, which is cheap."""
    return {
        (key, "text"): each.value or "" for key, each in constraints if each.kind == "literal" and each.type in _TEXTS
    }


def iter_compatible_pairs(
    few: Sequence[Marks], every: Callable[[int], Marks], looked: list[int]
) -> Iterator[tuple[int, int]]:
    """Yield the pairs of indexes that no mark excludes, for at most ``looked[0]`` comparisons.

    Definitions are first split by the marks in *few*; what remains together, by those of *every*.
    """
    waiting: list[tuple[list[int], frozenset[Hashable], bool]] = [(list(range(len(few))), frozenset(), False)]
    while waiting:
        members, used, whole = waiting.pop()
        marks = {member: every(member) if whole else few[member] for member in members}
        place = _find_best_split(marks, used)
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
            if _marks_agree(marks[one], marks[other]) and (whole or _marks_agree(every(one), every(other))):
                yield (one, other) if one < other else (other, one)


def _find_best_split(marks: Mapping[int, Marks], used: frozenset[Hashable]) -> Hashable | None:
    """Return the position with the most marks that are not all equal; None if there is none."""
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


def _marks_agree(one: Marks, other: Marks) -> bool:
    small, large = (one, other) if len(one) < len(other) else (other, one)
    return all(large.get(place, value) == value for place, value in small.items())


# Constructing a record that two definitions match, from their literals and templates.
#
# The caller must confirm it with the matcher. None does not prove that there is no such record: for two templates, only
# the shortest common values are tried.

FILL_TEXT: Final = "x"
_SAMPLES: Final = (FILL_TEXT, "1", "true", "2026-01-02T03:04:05Z", "P1D", "AAAA")
"""One valid text for each type."""
_REQUIRED_ATTRIBUTES: Final = frozenset({"e.id", "e.source", "e.type"})
"""Attributes that every event has, so a value is needed."""


def find_witness(one: Demands, other: Demands) -> dict[str, str] | None:
    """Return the values, by key, of a record that satisfies both; None if none is found.

    The second round uses the placeholder values of the first, so that repeated placeholders can have the same value.
    """
    contexts: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for _ in range(2):
        values: dict[str, str] = {}
        for key in dict.fromkeys((*one, *other)):
            asks = [(each, contexts[side]) for side, of in enumerate((one, other)) for each in of.get(key, ())]
            if key == CONTENT_TYPE_KEY or (all(each.optional for each, _ in asks) and key not in _REQUIRED_ATTRIBUTES):
                continue
            texts = (text for text in _iter_texts(asks) if all(each.satisfied(text, present=True) for each, _ in asks))
            text = next(texts, None)
            if text is None:
                return None
            values[key] = text
        if all(_placeholder_values(side, values) is not None for side in (one, other)):
            return values
        contexts = (_first_values(one, values), _first_values(other, values))
    return None


def add_content_type(demands: Demands, other: Demands) -> Demands:
    """Add the data's content type to the constraints on each content-type property of either side."""
    content = tuple(each._replace(optional=False) for each in demands.get(CONTENT_TYPE_KEY, ()))
    keys = [key for key in dict.fromkeys((*demands, *other)) if key in MEDIA_PROPERTIES] if content else ()
    return {**demands, **{key: (*demands.get(key, ()), *content) for key in keys}}


def _iter_texts(asks: Sequence[tuple[Constraint, Mapping[str, str]]]) -> Iterator[str]:
    """Yield texts that may satisfy all constraints, most likely first."""
    literals = [each.value or "" for each, _ in asks if each.kind in ("literal", "media")]
    if literals:
        yield literals[0]
        return
    templates = [(each.template, context) for each, context in asks if each.kind == "template"]
    for template, context in sorted(templates, key=lambda each: each[0].is_bare):
        parts = (
            context.get(part.name, FILL_TEXT) if isinstance(part, Placeholder) else part for part in template.parts
        )
        yield "".join(parts)
    whole = [template for template, _ in templates if not template.is_bare]
    for template in whole[1:]:
        joined = _join_templates(whole[0], template)
        if joined is not None:
            yield joined
    yield from _SAMPLES


def _join_templates(one: Template, other: Template) -> str | None:
    """Return a text that matches two templates; None if none is found."""
    if one.separators != other.separators:
        return None
    fits: list[str] = []
    for mine, its in zip(one.segments, other.segments, strict=True):
        tried = _join_segments(mine.literals, its.literals)
        fit = next((text for text in tried if mine.match_into(text, []) and its.match_into(text, [])), None)
        if fit is None:
            return None
        fits.append(fit)
    return "".join(text + mark for text, mark in zip(fits, (*one.separators, ""), strict=True))


def _join_segments(one: Sequence[str], other: Sequence[str]) -> Iterator[str]:
    """Yield texts that may match two segments, by their literals: of each, then of both combined."""
    yield from (FILL_TEXT.join(one), FILL_TEXT.join(other))
    head = max(one[0], other[0], key=len)
    tail = max(one[-1], other[-1], key=len)
    middles = (*one[1:-1], *other[1:-1])
    yield head + tail
    for fill in ("", FILL_TEXT):
        yield head + FILL_TEXT + fill.join(middles) + FILL_TEXT + tail


def _matches(demands: Demands, values: Mapping[str, str]) -> list[tuple[bool, dict[str, str]]]:
    """Return whether each template is bare, and its values; bare ones come last, since they match anything."""
    templates = [(key, each) for key, of in demands.items() for each in of if each.kind == "template" and key in values]
    found = [(each.template.is_bare, each.template.match(values[key], each.decodes) or {}) for key, each in templates]
    return sorted(found, key=lambda each: each[0])


def _first_values(demands: Demands, values: Mapping[str, str]) -> dict[str, str]:
    """Return the first value found for each placeholder."""
    context: dict[str, str] = {}
    for _, found in _matches(demands, values):
        for name, text in found.items():
            if text != FILL_TEXT:
                context.setdefault(name, text)
    return context


def _placeholder_values(demands: Demands, values: Mapping[str, str]) -> dict[str, str] | None:
    """Return the values of placeholders; None if a placeholder has two different values."""
    context: dict[str, str] = {}
    same = (
        context.setdefault(name, text) == text for _, found in _matches(demands, values) for name, text in found.items()
    )
    return context if all(same) else None


MAX_COMPARISONS: Final = 200_000
"""Maximum pairs of a catalog that are examined."""
MAX_OVERLAPS: Final = 200
"""Maximum overlaps of a catalog."""
MAX_COMPARED: Final = 3_000
"""Maximum pairs of a catalog that are compared property by property; large pairs count several times."""
MAX_PROPERTIES: Final = 100
"""A pair counts once more for each multiple of this number of properties."""
MAX_PER_DEFINITION: Final = 3
"""Maximum overlaps reported for one definition."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two overlapping definitions of an endpoint or group, and the values of a record that matches both.

    ``protocol`` is None if neither has one; ``event`` says whether the record is a CloudEvent.
    """

    scope: str
    endpoint: Endpoint | None
    one: Definition
    other: Definition
    protocol: str | None
    event: bool
    values: Mapping[str, str]


def find_overlaps(catalog: Catalog) -> Iterator[Overlap]:
    """Yield the overlaps of a catalog, up to the limits above."""
    looks, compared, count = [MAX_COMPARISONS], [MAX_COMPARED], 0
    reported: Counter[str] = Counter()
    for scope, endpoint, xids in iter_scopes(catalog):
        if endpoint is None and catalog.endpoints:
            continue  # a group may be meant for bases
        candidates = [competing_candidate(catalog.definitions[xid], endpoint) for xid in xids]
        for event in (True, False):
            sides = [each for each in candidates if each is not None and each.is_for_events == event]
            for overlap in _find_scope_overlaps(scope, endpoint, sides, looks, compared, event=event):
                if all(reported[each.xid] >= MAX_PER_DEFINITION for each in (overlap.one, overlap.other)):
                    continue
                reported.update((overlap.one.xid, overlap.other.xid))
                yield overlap
                count += 1
                if count >= MAX_OVERLAPS:
                    return


def _find_scope_overlaps(
    scope: str,
    endpoint: Endpoint | None,
    sides: Sequence[MatchCandidate],
    looks: list[int],
    compared: list[int],
    *,
    event: bool,
) -> Iterator[Overlap]:
    demands = cache(lambda number: demands_of(sides[number].constraints(event=event) or ()))
    marks = cache(lambda number: marks_of(demands(number)))
    few = [_literal_marks(each.constraints(event=event) or ()) for each in sides]
    for left, right in iter_compatible_pairs(few, marks, looks):
        one, other = sides[left], sides[right]
        if _are_unrelated(one, other):
            continue
        mine, its = demands(left), demands(right)
        compared[0] -= 1 + (len(mine) + len(its)) // MAX_PROPERTIES
        if compared[0] < 0:
            return
        if covers(mine, its) or covers(its, mine):
            continue
        first = add_content_type(mine, its)
        values = find_witness(first, add_content_type(its, first))
        if values is not None:
            protocol = one.protocol or other.protocol
            yield Overlap(scope, endpoint, one.definition, other.definition, protocol, event, values)


def _are_unrelated(one: MatchCandidate, other: MatchCandidate) -> bool:
    """Whether two definitions have different protocols, or one derives from the other."""
    if one.protocol and other.protocol and one.protocol != other.protocol:
        return True
    first, second = one.definition, other.definition
    return first.xid == second.xid or first.xid in second.base or second.xid in first.base
