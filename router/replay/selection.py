"""Which dead letters a replay takes, in what batches, and which sinks each of them still lacks."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from router.letters.filters import Filter
from router.letters.letter import Letter
from router.state.key_order import Turns, only_waits
from router.state.ledger import Entry, LetterLedger
from router.writing.rejections import REASON, sinks_of

CHUNK: Final = 500
MAX_BATCH_BYTES: Final = 64 * 2**20
"""Bytes of bodies in one batch, at which it is closed whatever the number of its letters."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A letter to be replayed. ``sinks`` are the only ones that lack its record; () when none has it."""

    letter: Letter
    sinks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplayBatch:
    """Letters that are replayed as one: all go to the same ``sinks`` (() for those of their routes)."""

    sinks: tuple[str, ...]
    letters: tuple[Letter, ...]


@dataclass(slots=True)
class Selection:
    """Picks letters by a filter and by their standing; what it left out is counted in ``skipped`` by standing.

    Letters that failed ``most`` replays are parked when they are met: a crash may have come before that.
    """

    ledger: LetterLedger
    wanted: Filter
    parked: bool = False
    limit: int | None = None
    most: int | None = None
    only: frozenset[str] | None = None
    """Ids of letters beside which none is looked at; None for all."""
    skipped: Counter[str] = field(default_factory=Counter)
    seen: set[str] = field(default_factory=set)
    """Those of the filter's ids that were met."""

    def choose(self, letters: Iterable[Letter]) -> Iterator[Chosen]:
        """Yield the letters to replay, in order, at most ``limit``."""
        return itertools.islice(self._choose(iter(letters)), self.limit)

    def _choose(self, letters: Iterator[Letter]) -> Iterator[Chosen]:
        while some := list(itertools.islice(letters, CHUNK)):
            entries = self.ledger.entries(letter.id for letter in some)
            for letter in some:
                entry = entries.get(letter.id)
                if self.only is not None and letter.id not in self.only:
                    continue
                if not self.wanted.takes(letter, entry.standing if entry else "open"):
                    continue
                if self.wanted.ids:
                    self.seen.add(letter.id)
                if self._standing(entry) in ("open", "parked" if self.parked else "open"):
                    yield Chosen(letter, lacking(self.ledger, letter, entry))
                else:
                    self.skipped[self._standing(entry)] += 1

    def _standing(self, entry: Entry | None) -> str:
        if entry is None:
            return "open"
        if entry.standing == "open" and self.most is not None and entry.attempts >= self.most:
            self.ledger.park([entry.letter], datetime.now(UTC))
            return "parked"
        return entry.standing


def lacking(ledger: LetterLedger, letter: Letter, entry: Entry | None) -> tuple[str, ...]:
    """Return the sinks that lack the record of a letter, when others have it: what was said of it last.

    A letter that only waited for its turn is nowhere, and goes where its route leads by now.
    """
    if entry is not None:
        for happening in reversed(ledger.history(letter.id)):
            named = sinks_of(happening.detail) if happening.reason == REASON else ()
            if named:
                return named
    return sinks_of(letter.detail) if letter.reason == REASON and not only_waits(letter.detail) else ()


def batches(chosen: Iterable[Chosen], size: int, turns: Turns | None = None) -> Iterator[ReplayBatch]:
    """Gather letters into batches of at most *size*, each for the same sinks and with no position twice.

    A batch of few large letters is closed earlier (:data:`MAX_BATCH_BYTES`).

    What a sink has of a batch is known by position, and records of two clusters may share one. By *turns*, letters of a
    key come in order of arrival: in a batch, and from one batch to the next, if each is settled before the next is
    asked for. One that comes before its turn is left out, and listed in ``turns.left``.
    """
    open_ones = _OpenBatches()
    for each in chosen:
        earlier = turns.earlier(each.letter.id) if turns is not None else None
        for full in open_ones.in_the_way(each, earlier):
            yield full
            earlier = turns.earlier(each.letter.id) if turns is not None else None
        if turns is not None and earlier is not None and not open_ones.has(earlier):
            turns.left.add(each.letter.id)
            continue
        if open_ones.add(each, size):
            yield open_ones.take(each.sinks)
    yield from open_ones.rest()


class _OpenBatches:
    """Batches that are being gathered, one for each set of sinks."""

    def __init__(self) -> None:
        self._letters: dict[tuple[str, ...], dict[str, Letter]] = {}
        self._bytes: Counter[tuple[str, ...]] = Counter()
        self._batch_of: dict[str, tuple[str, ...]] = {}

    def has(self, letter: str) -> bool:
        """Tell whether a letter is in one of them."""
        return letter in self._batch_of

    def in_the_way(self, each: Chosen, earlier: str | None) -> Iterator[ReplayBatch]:
        """Take those that must be settled first: with the letter before it for other sinks, or with its position."""
        place = self._batch_of.get(earlier, each.sinks) if earlier is not None else each.sinks
        if place != each.sinks:
            yield self.take(place)
        if each.letter.position in self._letters.get(each.sinks, ()):
            yield self.take(each.sinks)

    def add(self, each: Chosen, size: int) -> bool:
        """Add a letter; return whether its batch is full: it has *size* letters, or many bytes."""
        gathered = self._letters.setdefault(each.sinks, {})
        gathered[each.letter.position] = each.letter
        self._batch_of[each.letter.id] = each.sinks
        self._bytes[each.sinks] += len(each.letter.body or b"")
        return len(gathered) >= size or self._bytes[each.sinks] >= MAX_BATCH_BYTES

    def take(self, sinks: tuple[str, ...]) -> ReplayBatch:
        """Close the batch for these sinks."""
        letters = tuple(self._letters.pop(sinks).values())
        del self._bytes[sinks]
        for letter in letters:
            del self._batch_of[letter.id]
        return ReplayBatch(sinks, letters)

    def rest(self) -> Iterator[ReplayBatch]:
        """Close all that are left."""
        for sinks in list(self._letters):
            yield self.take(sinks)
