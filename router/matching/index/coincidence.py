"""Which channels may see one record match several definitions, of which some have a data schema?

Only there does a body have to travel to the matcher. The answer errs on the side of yes: that costs speed and changes
no outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from catalog.definitions.targets import Target
from router.matching.index.columns import SplitColumn
from router.matching.index.index import MatchIndex, members

PAIRS: Final = 200_000
"""Pairs of targets looked at per channel; a channel of more undecided ones is taken to need bodies."""
HasSchema = Callable[[Target], bool]


class Coincidence:
    """For every target, the targets that its own literals do not exclude; built once per plan."""

    def __init__(self, index: MatchIndex, has_schema: HasSchema) -> None:
        self._index = index
        self._has = [has_schema(target) for target in index.targets]
        self._schemas = sum(1 << number for number, has in enumerate(self._has) if has)
        self._beside = {event: self._targets_beside(event=event) for event in (False, True)}

    def needs_bodies(self, channel: Sequence[int]) -> bool:
        """Tell whether a record of a channel with these candidates may match several, one of them with a schema."""
        everyone = sum(1 << number for number in set(channel))
        if not everyone & self._schemas:
            return False
        looked = 0
        for event, beside in self._beside.items():
            for number in members(everyone):
                for other in members(beside[number] & everyone & ~(1 << number)):
                    looked += 1
                    if looked > PAIRS or self._coincide(number, other, event=event):
                        return True
        return False

    def _coincide(self, one: int, other: int, *, event: bool) -> bool:
        targets = self._index.targets
        return (
            (self._has[one] or self._has[other])
            and targets[one].xid != targets[other].xid
            and bool(self._beside[event][other] & 1 << one)
        )

    def _targets_beside(self, *, event: bool) -> list[int]:
        """Return per target the set that a record with all of its literals may match as well."""
        literals: dict[str, list[tuple[int, str]]] = {}
        beside: list[int] = []
        for number, target in enumerate(self._index.targets):
            beside.append(self._same_kind(target, event=event))
            for key, constraint in target.constraints(event=event) or ():
                if constraint.kind in ("literal", "media"):
                    literals.setdefault(key, []).append((number, constraint.value or ""))
        for key, asks in literals.items():
            values = SplitColumn(pa.array([value for _, value in asks], pa.string()))
            for (number, _), accepted in zip(asks, self._index.accepting(key, values, event=event), strict=True):
                beside[number] &= accepted
        return beside

    def _same_kind(self, target: Target, *, event: bool) -> int:
        applies = target.constraints(event=event) is not None
        return self._index.of_protocol(target.protocol, event=event) if applies else 0
