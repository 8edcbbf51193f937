"""What has occurred, as the status page shows it: for each source and definition shown, and what never came at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from router.state.instants import instant_of
from router.state.sightings import Place, Sighting

NAMED: Final = 100
"""Definitions that never occurred, and sources without a record, that are named; `xrouter routes` has all."""


class Occurred:
    """What is known of places at one moment."""

    def __init__(self, known: Mapping[Place, Sighting]) -> None:
        self._known = known
        self._last: dict[str, int] = {}
        self._expected: dict[str, list[int]] = {}
        for place, each in known.items():
            if place.message:
                expected = self._expected.setdefault(place.endpoint, [0, 0])
                expected[0] += 1
                expected[1] += each.first is None
                if each.last is not None:
                    self._last[place.message] = max(each.last, self._last.get(place.message, 0))

    def source(self, endpoint: str) -> dict[str, Any]:
        """Return when the last record of a source came, how many definitions it expects, and how many never came."""
        sighting = self._known.get(Place(endpoint))
        expected, unseen = self._expected.get(endpoint, (0, 0))
        last = None if sighting is None else instant_of(sighting.last)
        return {"last_record": last, "definitions": expected, "unseen": unseen}

    def definition(self, message: str) -> dict[str, Any]:
        """Return when the last record of a definition came, at any source."""
        return {"last_record": instant_of(self._last.get(message))}

    def never(self) -> dict[str, Any]:
        """Return what never occurred since it is expected, the longest expected first."""
        unseen = sorted((each.since, place, each.epoch) for place, each in self._known.items() if each.first is None)
        definitions = [
            {"endpoint": place.endpoint, "definition": place.message, "since": instant_of(since), "epoch": epoch}
            for since, place, epoch in unseen
            if place.message
        ]
        sources = [
            {"endpoint": place.endpoint, "since": instant_of(since), "epoch": epoch}
            for since, place, epoch in unseen
            if not place.message
        ]
        return {
            "expected": sum(expected for expected, _ in self._expected.values()),
            "unseen": len(definitions),
            "silent": len(sources),
            "unseen_definitions": definitions[:NAMED],
            "silent_endpoints": sources[:NAMED],
        }
