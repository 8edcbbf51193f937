"""How records are decided that several definitions match equally well: ``match.ambiguous``, MATCHING.md#specificity."""

# Small: settings need it, and it does not load Arrow.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from catalog.definitions.constraints import MatchCandidate

Ambiguous = Literal["dead-letter", "first", "base"]


@dataclass(frozen=True, slots=True)
class TieBreaker:
    """Decides between equally specific targets, by their numbers.

    ``ranks`` are their positions in the documents of the catalog, ``bases`` the targets that each derives from, nearest
    first, as the same endpoint sees them.
    """

    mode: Ambiguous = "dead-letter"
    ranks: Sequence[int] = ()
    bases: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def decide(self, targets: Sequence[MatchCandidate], best: Sequence[int], bits: int, *, event: bool) -> int | None:
        """Return the target that wins records for which *best* tie, None if they stay ambiguous.

        *bits* is the set of all targets that match. A common base outside that set wins only if the first of *best* has
        all of its constraints, so that it matches too.
        """
        if self.mode == "first":
            return min(best, key=lambda number: self.ranks[number])
        if self.mode == "base":
            asked = set(targets[best[0]].constraints(event=event) or ())
            for base in self.bases.get(best[0], ()):
                own = targets[base].constraints(event=event)
                common = all(targets[base].xid in targets[number].definition.base for number in best[1:])
                if common and (bits >> base & 1 or (own is not None and asked.issuperset(own))):
                    return base
        return None

    def explain(self, targets: Sequence[MatchCandidate], best: Sequence[int]) -> str:
        """Return how a tie was decided, for lineage."""
        return f"{self.mode} of " + ", ".join(targets[number].xid for number in best)
