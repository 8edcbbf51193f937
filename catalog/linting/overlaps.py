"""Definitions that overlap: some record matches both, and neither takes all that the other takes.

Compared are candidates of one endpoint (of a group, in a catalog without endpoints) on the records they are meant for,
events or not. A base and what derives from it are no finding, and neither are definitions that cover each other, which
other rules report. What this gives is likely; the caller asks the matcher before it reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from catalog.comparing.coverage import Asked, asked_of, covers_asked
from catalog.definitions.demands import Candidate, candidate_of
from catalog.linting.pairing import literal_marks, marks_of, pairs
from catalog.linting.witness import Asks, with_content, witness
from catalog.model import CLOUDEVENTS, Catalog, Definition, Endpoint

MAX_LOOKS: Final = 200_000
"""Pairs of a whole catalog that are looked at, which takes a fraction of a second."""
MAX_OVERLAPS: Final = 200
"""Overlaps of a whole catalog that a witness is made for."""
MAX_COMPARED: Final = 3_000
"""Pairs of a whole catalog that are compared property by property; large ones count for several."""
PROPERTIES: Final = 100
"""Each so many properties that the two of a pair have together make it count for one more."""
MAX_PER_DEFINITION: Final = 3
"""Overlaps that are reported for one definition."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two definitions as one endpoint or group sees them, and the values with which a record matches both.

    ``protocol`` is None where neither has one; ``event`` tells that the record is a CloudEvent.
    """

    scope: str
    endpoint: Endpoint | None
    one: Definition
    other: Definition
    protocol: str | None
    event: bool
    values: Mapping[str, str]


def overlaps(catalog: Catalog) -> Iterator[Overlap]:
    """Give the overlaps of a catalog, within limits for catalogs of any size."""
    looks, compared, count = [MAX_LOOKS], [MAX_COMPARED], 0
    reported: Counter[str] = Counter()
    for scope, endpoint, xids in _scopes(catalog):
        candidates = [candidate_of(catalog.definitions[xid], endpoint) for xid in xids]
        for event in (True, False):
            sides = [each for each in candidates if each is not None and each.meant_for_events == event]
            for overlap in _among(scope, endpoint, sides, looks, compared, event=event):
                if all(reported[each.xid] >= MAX_PER_DEFINITION for each in (overlap.one, overlap.other)):
                    continue
                reported.update((overlap.one.xid, overlap.other.xid))
                yield overlap
                count += 1
                if count >= MAX_OVERLAPS:
                    return


def _scopes(catalog: Catalog) -> Iterator[tuple[str, Endpoint | None, tuple[str, ...]]]:
    seen: set[tuple[tuple[str, ...], str | None, str | None]] = set()
    for endpoint in catalog.endpoints.values():
        key = (endpoint.candidates, endpoint.protocol, endpoint.envelope)
        if key not in seen:
            seen.add(key)
            yield endpoint.xid, endpoint, endpoint.candidates
    if not catalog.endpoints:
        for xid, members in catalog.groups.items():
            yield xid, None, members


def _among(
    scope: str,
    endpoint: Endpoint | None,
    sides: Sequence[Candidate],
    looks: list[int],
    compared: list[int],
    *,
    event: bool,
) -> Iterator[Overlap]:
    asks = cache(lambda number: _asks(sides[number], event=event))
    marks = cache(lambda number: marks_of(asks(number), sides[number].definition.datacontenttype))
    few = [literal_marks(each.properties(events=event)) for each in sides]
    for left, right in pairs(few, marks, looks):
        one, other = sides[left], sides[right]
        if _apart(one, other):
            continue
        mine, its = asks(left), asks(right)
        compared[0] -= 1 + (len(mine) + len(its)) // PROPERTIES
        if compared[0] < 0:
            return
        if _covered(one, other, mine, its, event=event):
            continue
        contents = one.definition.datacontenttype, other.definition.datacontenttype
        first = with_content(mine, its, contents[0])
        values = witness(first, with_content(its, first, contents[1]))
        if values is not None:
            protocol = one.protocol or other.protocol
            yield Overlap(scope, endpoint, one.definition, other.definition, protocol, event, values)


def _apart(one: Candidate, other: Candidate) -> bool:
    """Tell definitions of two protocols, and those of which one derives from the other."""
    if one.protocol and other.protocol and one.protocol != other.protocol:
        return True
    first, second = one.definition, other.definition
    return first.xid == second.xid or first.xid in second.base or second.xid in first.base


def _asks(candidate: Candidate, *, event: bool) -> dict[str, list[Asked]]:
    return asked_of(_seen(candidate, candidate.protocol, event=event))


def _seen(candidate: Candidate, protocol: str | None, *, event: bool) -> Definition:
    """Return a definition as its endpoint sees it, with what filters this kind of record only."""
    definition = candidate.definition
    return replace(
        definition,
        envelope=CLOUDEVENTS if event else None,
        protocol=protocol,
        protocol_declared=True,
        envelopemetadata=definition.envelopemetadata if event and candidate.envelope else (),
        protocoloptions=definition.protocoloptions if candidate.protocol else (),
    )


def _covered(one: Candidate, other: Candidate, mine: Asks, its: Asks, *, event: bool) -> bool:
    """Tell whether one of the two, which ask *mine* and *its*, covers the other."""
    # What either asks does not depend on the protocol of the other: one without a protocol has no options that filter.
    protocol = one.protocol or other.protocol
    first, second = (_seen(each, protocol, event=event) for each in (one, other))
    return covers_asked(first, second, mine, its) or covers_asked(second, first, its, mine)
