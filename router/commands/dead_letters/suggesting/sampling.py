"""Samples of each shape, drawn while records pass: any number of letters in bounded memory.

A shape is all that is known of a record without looking at others. Each has a reservoir, so that every record of
it is as likely to be kept, and the same records in the same order give the same sample.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from catalog.protocols.properties import is_dotted
from router.commands.dead_letters.suggesting.traits import Traits
from router.commands.dead_letters.suggesting.words import looks_like_id, words_of

MOST: Final = 10_000
"""Records of one shape that are kept."""
MOST_TOGETHER: Final = 100_000
"""Records of all shapes that are kept; past it, every shape keeps half as many."""
MOST_BYTES: Final = 256 << 20
MOST_SHAPES: Final = 1_000
TOO_MANY: Final = "of yet another shape"


class RecordShape(NamedTuple):
    """What all records of a sample have in common; ``structure`` are the delimiters of the address.

    Events have none: their type says what they are, wherever they come from.
    """

    endpoint: str
    protocol: str
    event: bool
    media: str
    type: str
    method: str
    structure: tuple[str, ...]


@dataclass(slots=True)
class Reservoir:
    """The sample of one shape; ``seen`` counts all its records."""

    kept: list[Traits] = field(default_factory=list)
    seen: int = 0


class Sampler:
    """Takes records one by one; ``left_out`` counts those that no sample stands for, by why."""

    def __init__(self, most: int = MOST, together: int = MOST_TOGETHER, size: int = MOST_BYTES) -> None:
        self.reservoirs: dict[RecordShape, Reservoir] = {}
        self.left_out: Counter[str] = Counter()
        self._most = most
        self._together = together
        self._bytes = size
        self._kept = 0
        self._size = 0
        # Not for secrets: a fixed seed makes equal letters give equal drafts.
        self._random = random.Random(0)

    def add(self, traits: Traits) -> None:
        """Count a record, and keep it when its turn comes."""
        shape = shape_of(traits)
        reservoir = self.reservoirs.get(shape)
        if reservoir is None:
            if len(self.reservoirs) >= MOST_SHAPES:
                self.left_out[TOO_MANY] += 1
                return
            reservoir = self.reservoirs[shape] = Reservoir()
        reservoir.seen += 1
        if len(reservoir.kept) < self._most:
            reservoir.kept.append(traits)
            self._kept += 1
            self._size += traits.size
        else:
            place = self._random.randrange(reservoir.seen)
            if place < len(reservoir.kept):
                self._size += traits.size - reservoir.kept[place].size
                reservoir.kept[place] = traits
        while self._most > 1 and (self._kept > self._together or self._size > self._bytes):
            self._halve()

    def _halve(self) -> None:
        self._most = max(1, min(self._most, max(len(each.kept) for each in self.reservoirs.values())) // 2)
        for reservoir in self.reservoirs.values():
            if len(reservoir.kept) > self._most:
                reservoir.kept = self._random.sample(reservoir.kept, self._most)
        self._kept = sum(len(each.kept) for each in self.reservoirs.values())
        self._size = sum(each.size for reservoir in self.reservoirs.values() for each in reservoir.kept)


def shape_of(traits: Traits) -> RecordShape:
    """Return the shape of a record. Two types of events that differ only in what looks like ids are one."""
    kind = words_of(traits.properties.get("e.type") or "") if traits.event else None
    address = None if traits.event else traits.properties.get(traits.address)
    structure = (
        words_of(address, subject=is_dotted(traits.protocol, traits.address[2:])).delimiters
        if address is not None
        else ("none",)
    )
    return RecordShape(
        traits.endpoint or "",
        traits.protocol,
        traits.event,
        traits.media,
        "".join(_masked(word) for word in kind.words) + "".join(kind.delimiters) if kind else "",
        traits.properties.get("p.method") or "",
        structure,
    )


def _masked(word: str) -> str:
    return "\0" if looks_like_id(word) else f"\1{word}"
