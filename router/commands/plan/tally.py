"""What a new catalog changes in all: counts, by kind and by definition, and samples, of each a bounded number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from router.commands.plan.chunks import Place
from router.commands.plan.samples import Sample
from router.judging.chunk import Chunk
from router.judging.comparing import KINDS, Changed, Comparison, DifferenceKind, count_groups

GROUPS: Final = 1_000
"""Pairs of what became of records before and after that are counted by themselves; others count as one."""
OTHERS: Final = ("others", "others")


@dataclass(slots=True)
class Tally:
    """Counts of outcomes: a record is one, a batch of events as many as it has; one may differ in several ways.

    ``groups`` are by kind and what became of records before and after, a definition or a reason.
    """

    samples_each: int
    outcomes: int = 0
    changed: int = 0
    kinds: Counter[DifferenceKind] = field(default_factory=Counter)
    groups: Counter[tuple[DifferenceKind, str, str]] = field(default_factory=Counter)
    samples: dict[DifferenceKind, list[Sample]] = field(default_factory=dict)
    _sampled: Counter[tuple[DifferenceKind, str, str]] = field(default_factory=Counter)

    def add(self, chunk: Chunk, compared: Comparison, sample: Callable[[Chunk, Changed], Sample]) -> None:
        """Count what became of a chunk, and take samples where there are too few."""
        self.outcomes += compared.outcomes
        self.changed += len(compared.changed)
        for group, number in count_groups(compared.changed).items():
            self.kinds[group[0]] += number
            known = group in self.groups or len(self.groups) < GROUPS
            self.groups[group if known else (group[0], *OTHERS)] += number
        for each in compared.changed:
            # Under its worst kind: the sample names the others.
            kept = self.samples.setdefault(each.kinds[0], [])
            group = (each.kinds[0], each.before, each.after)
            if len(kept) < self.samples_each and self._sampled[group] * 2 < self.samples_each:
                self._sampled[group] += 1
                kept.append(sample(chunk, each))

    def fails(self, kinds: Iterable[DifferenceKind]) -> bool:
        """Tell whether there is a difference of one of these kinds."""
        return any(self.kinds[kind] for kind in kinds)

    def to_json(self, places: Iterable[Place], notes: Iterable[str], epochs: Mapping[str, str]) -> dict[str, Any]:
        """Return the report in its JSON form."""
        return {
            **epochs,
            "outcomes": self.outcomes,
            "unchanged": self.outcomes - self.changed,
            "changed": {kind: self.kinds[kind] for kind in KINDS},
            "groups": [
                {"kind": kind, "before": before, "after": after, "outcomes": number}
                for (kind, before, after), number in self.groups.most_common()
            ],
            "samples": [sample.to_json() for kind in KINDS for sample in self.samples.get(kind, ())],
            "places": [{"place": each.name, "records": each.records, "notes": each.notes} for each in places],
            "notes": list(notes),
        }
