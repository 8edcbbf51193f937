"""Find definitions that overlap: some record matches both, but neither covers the other.

Candidates of one endpoint (of a group, in a catalog without endpoints) are compared on the records they are meant for,
events or not. A base and its derived definitions are never reported, nor are definitions that cover each other, which
other rules report. The caller confirms each result with the matcher.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from catalog.comparing import RequiredValue, constraints_by_key, constraints_cover
from catalog.definitions.candidates import Candidate, candidate_of
from catalog.definitions.constraints import MEDIA_PROPERTIES
from catalog.model import CLOUDEVENTS, Catalog, Definition, Endpoint, Property
from catalog.templates import parse_template, split_tokens
from catalog.values import is_timestamp, is_valid, media_type_matches, media_type_of, value_key

# Which definitions may match the same record? Find pairs that no literal excludes, without comparing all.
#
# A literal (a type, a segment of a topic) excludes definitions with another literal in the same position: a *mark*.
# Definitions are split by one mark after another; only those with the same mark, or without it, are paired.

Marks = Mapping[Hashable, str]
"""The literals that a matching record must have, by position."""
_SEPARATORS: Final = {False: re.compile("/"), True: re.compile("[/.]")}
_GAP: Final = "\0"
_TEXTS: Final = frozenset({"string", "symbol", "uri", "urireference", "uritemplate", "any"})


def marks_of(asks: Mapping[str, Sequence[RequiredValue]], content: str | None = None) -> Marks:
    """Return a definition's marks, including the content type *content*. Values with several notations have none."""
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
                tokens = split_tokens(ask.text)
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
    """Return only the marks of string literals, by key, which is cheap."""
    return {
        (key, "text"): prop.value
        for key, prop in properties
        if isinstance(prop.value, str) and prop.type in _TEXTS and "{" not in prop.value and key not in MEDIA_PROPERTIES
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
_TYPED: Final = frozenset({"number", "integer", "boolean", "timestamp", "binary"})
RequiredValues = Mapping[str, Sequence[RequiredValue]]
_Segments = tuple[list[str], list[str]]
"""The segments of a template, and their separators."""


def find_witness(one: RequiredValues, other: RequiredValues) -> dict[str, str] | None:
    """Return the values, by key, of a record that satisfies both; None if none is found.

    The second round uses the placeholder values of the first, so that repeated placeholders can have the same value.
    """
    contexts: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for _ in range(2):
        values: dict[str, str] = {}
        for key in dict.fromkeys((*one, *other)):
            asks = [(each, contexts[side]) for side, asked in enumerate((one, other)) for each in asked.get(key, ())]
            if not any(ask.is_required or ask.form != "any" or key in _REQUIRED_ATTRIBUTES for ask, _ in asks):
                continue
            text = next((text for text in _iter_texts(asks) if all(_accepts(ask, text) for ask, _ in asks)), None)
            if text is None:
                return None
            values[key] = text
        filled = tuple(_common_values(side, values) for side in (one, other))
        if all(context is not None for context in filled):
            return values
        contexts = (_first_values(one, values), _first_values(other, values))
    return None


def add_content_type(asks: RequiredValues, other: RequiredValues, content: str | None) -> RequiredValues:
    """Add the content type *content* to the constraints on each content-type property of either side."""
    if not content:
        return asks
    keys = [key for key in dict.fromkeys((*asks, *other)) if key in MEDIA_PROPERTIES]
    return {**asks, **{key: [*asks.get(key, ()), RequiredValue(key, "media", "string", content)] for key in keys}}


def _iter_texts(asks: Sequence[tuple[RequiredValue, Mapping[str, str]]]) -> Iterator[str]:
    """Yield texts that may satisfy all constraints, most likely first."""
    literals = [ask.text for ask, _ in asks if ask.form in ("literal", "media")]
    if literals:
        yield literals[0]
        return
    templates = [(ask, context) for ask, context in asks if ask.form == "template"]
    for ask, context in sorted(templates, key=lambda each: each[0].template.is_bare):
        yield _expand_template(ask.text, context)
    whole = [ask for ask, _ in templates if not ask.template.is_bare]
    for ask in whole[1:]:
        joined = _join_templates(whole[0], ask)
        if joined is not None:
            yield joined
    yield from _SAMPLES


def _expand_template(text: str, context: Mapping[str, str]) -> str:
    tokens = split_tokens(text)
    return "".join(context.get(token, FILL_TEXT) if place % 2 else token for place, token in enumerate(tokens))


def _join_templates(one: RequiredValue, other: RequiredValue) -> str | None:
    """Return a text that matches two templates; None if none is found."""
    (mine, between), (its, besides) = _split_template(one), _split_template(other)
    if between != besides:
        return None
    segments: list[str] = []
    for first, second in zip(mine, its, strict=True):
        patterns = parse_template(first), parse_template(second)
        tried = _join_segments(split_tokens(first), split_tokens(second))
        fit = next((text for text in tried if all(pattern.match(text) is not None for pattern in patterns)), None)
        if fit is None:
            return None
        segments.append(fit)
    return "".join(part for pair in zip(segments, [*between, ""], strict=True) for part in pair)


def _split_template(ask: RequiredValue) -> _Segments:
    segments, between = [""], []
    for place, token in enumerate(split_tokens(ask.text)):
        if place % 2:
            segments[-1] += f"{{g{place}}}"  # distinct names: repetitions are checked by the matcher
            continue
        for character in token:
            if character == "/" or (ask.dots and character == "."):
                between.append(character)
                segments.append("")
            else:
                segments[-1] += character
    return segments, between


def _join_segments(one: Sequence[str], other: Sequence[str]) -> Iterator[str]:
    """Yield texts that may match two segments: the literals of each, then a combination of both."""
    for tokens in (one, other):
        yield "".join(token if place % 2 == 0 else FILL_TEXT for place, token in enumerate(tokens))
    head = max(one[0], other[0], key=len)
    tail = max(one[-1], other[-1], key=len)
    middles = [token for tokens in (one, other) for token in tokens[2:-1:2]]
    yield head + tail
    for fill in ("", FILL_TEXT):
        yield head + FILL_TEXT + fill.join(middles) + FILL_TEXT + tail


def _accepts(ask: RequiredValue, text: str) -> bool:
    """Whether a text satisfies one constraint."""
    if ask.form == "any":
        kind: str = ask.type
        return is_valid(kind, text, bits32=ask.key.startswith("e."))
    if ask.form == "media":
        return media_type_matches(ask.text, text)
    if ask.form == "template":
        fits = ask.template.match(text, ask.percent_decodes) is not None
        return fits and (ask.type != "timestamp" or is_timestamp(text))
    if ask.text == text:
        return True
    wanted = value_key(ask.type, ask.text) if ask.type in _TYPED else None
    return wanted is not None and wanted == value_key(ask.type, text)


def _first_values(asks: RequiredValues, values: Mapping[str, str]) -> dict[str, str]:
    """Return the first value found for each placeholder; bare templates come last, since they match anything."""
    context: dict[str, str] = {}
    templates = [ask for of_key in asks.values() for ask in of_key if ask.form == "template" and ask.key in values]
    for ask in sorted(templates, key=lambda each: each.template.is_bare):
        for name, text in (ask.template.match(values[ask.key], ask.percent_decodes) or {}).items():
            if text != FILL_TEXT:
                context.setdefault(name, text)
    return context


def _common_values(asks: RequiredValues, values: Mapping[str, str]) -> dict[str, str] | None:
    """Return the values of placeholders; None if a placeholder has two different values."""
    context: dict[str, str] = {}
    for ask in (each for of_key in asks.values() for each in of_key if each.form == "template"):
        for name, text in (ask.template.match(values.get(ask.key, ""), ask.percent_decodes) or {}).items():
            if context.setdefault(name, text) != text:
                return None
    return context


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
    for scope, endpoint, xids in _iter_scopes(catalog):
        candidates = [candidate_of(catalog.definitions[xid], endpoint) for xid in xids]
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


def _iter_scopes(catalog: Catalog) -> Iterator[tuple[str, Endpoint | None, tuple[str, ...]]]:
    seen: set[tuple[tuple[str, ...], str | None, str | None]] = set()
    for endpoint in catalog.endpoints.values():
        key = (endpoint.candidates, endpoint.protocol, endpoint.envelope)
        if key not in seen:
            seen.add(key)
            yield endpoint.xid, endpoint, endpoint.candidates
    if not catalog.endpoints:
        for xid, members in catalog.groups.items():
            yield xid, None, members


def _find_scope_overlaps(
    scope: str,
    endpoint: Endpoint | None,
    sides: Sequence[Candidate],
    looks: list[int],
    compared: list[int],
    *,
    event: bool,
) -> Iterator[Overlap]:
    asks = cache(lambda number: _required_values(sides[number], event=event))
    marks = cache(lambda number: marks_of(asks(number), sides[number].definition.datacontenttype))
    few = [literal_marks(each.filtering_properties(events=event)) for each in sides]
    for left, right in iter_compatible_pairs(few, marks, looks):
        one, other = sides[left], sides[right]
        if _are_unrelated(one, other):
            continue
        mine, its = asks(left), asks(right)
        compared[0] -= 1 + (len(mine) + len(its)) // MAX_PROPERTIES
        if compared[0] < 0:
            return
        if _is_covered(one, other, mine, its, event=event):
            continue
        contents = one.definition.datacontenttype, other.definition.datacontenttype
        first = add_content_type(mine, its, contents[0])
        values = find_witness(first, add_content_type(its, first, contents[1]))
        if values is not None:
            protocol = one.protocol or other.protocol
            yield Overlap(scope, endpoint, one.definition, other.definition, protocol, event, values)


def _are_unrelated(one: Candidate, other: Candidate) -> bool:
    """Whether two definitions have different protocols, or one derives from the other."""
    if one.protocol and other.protocol and one.protocol != other.protocol:
        return True
    first, second = one.definition, other.definition
    return first.xid == second.xid or first.xid in second.base or second.xid in first.base


def _required_values(candidate: Candidate, *, event: bool) -> dict[str, list[RequiredValue]]:
    return constraints_by_key(_as_seen_there(candidate, candidate.protocol, event=event))


def _as_seen_there(candidate: Candidate, protocol: str | None, *, event: bool) -> Definition:
    """Return a definition with its endpoint's defaults and only the constraints on this kind of record."""
    definition = candidate.definition
    return replace(
        definition,
        envelope=CLOUDEVENTS if event else None,
        protocol=protocol,
        protocol_declared=True,
        envelopemetadata=definition.envelopemetadata if event and candidate.envelope else (),
        protocoloptions=definition.protocoloptions if candidate.protocol else (),
    )


def _is_covered(one: Candidate, other: Candidate, mine: RequiredValues, its: RequiredValues, *, event: bool) -> bool:
    """Whether either definition, with constraints *mine* and *its*, covers the other."""
    # The constraints do not depend on the other's protocol: without a protocol, no option filters.
    protocol = one.protocol or other.protocol
    first, second = (_as_seen_there(each, protocol, event=event) for each in (one, other))
    return constraints_cover(first, second, mine, its) or constraints_cover(second, first, its, mine)
