"""The known name that an unknown one is most likely a slip of."""

# Small: every reader of names has it, and it needs nothing else.

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

SHORT: Final = 5
"""Names up to this length may differ by one slip, longer ones by two."""
STEPS: Final = 5_000_000
"""Pairs of characters that one load compares for its suggestions: about a second, whatever documents write."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name within one or two slips of *name*; None when there is none, or it is one itself.

    A slip is a letter too many, missing, wrong, or exchanged with its neighbour. Letter case does not count.
    """
    wanted = name.lower()
    best: tuple[int, str] | None = None
    for each in known:
        limit = 1 if min(len(each), len(wanted)) <= SHORT else 2
        if each.lower() == wanted:
            return None
        if abs(len(each) - len(wanted)) <= limit:
            slips = distance(wanted, each.lower())
            if slips <= limit and (best is None or (slips, each) < best):
                best = (slips, each)
    return None if best is None else best[1]


def distance(one: str, other: str) -> int:
    """Count the slips between two short texts (optimal string alignment)."""
    before: list[int] = []
    previous = list(range(len(other) + 1))
    for row, character in enumerate(one, 1):
        current = [row]
        for column, wanted in enumerate(other, 1):
            cost = min(previous[column] + 1, current[column - 1] + 1, previous[column - 1] + (character != wanted))
            if row > 1 and column > 1 and character == other[column - 2] and one[row - 2] == wanted:
                cost = min(cost, before[column - 2] + 1)
            current.append(cost)
        before, previous = previous, current
    return previous[-1]


class Suggestions:
    """Says which xid a reference to nothing may have meant, for as long as *steps* last."""

    def __init__(self, known: Collection[str], steps: int = STEPS) -> None:
        self._known = known
        self._left = steps

    def hint(self, reference: str, otherwise: str) -> str:
        """Return the nearest known xid as a question, else *otherwise*; the last segments are compared."""
        meant = self.meant(reference)
        return f"did you mean {meant}?" if meant else otherwise

    def meant(self, reference: str) -> str | None:
        """Return the known xid that has the same last segment as *reference*, or nearly so; None without one."""
        head, _, wanted = reference.rstrip("/").rpartition("/")
        folded = wanted.lower()
        close: dict[str, list[str]] = {}
        for xid in self._known:
            name = xid.rpartition("/")[2]
            if xid == reference:
                continue
            if name.lower() == folded:
                return xid
            if abs(len(name) - len(wanted)) <= 2 and self._left > 0:
                self._left -= len(name) * len(wanted)
                if nearest(wanted, [name]) is not None:
                    close.setdefault(name, []).append(xid)
        best = nearest(wanted, close)
        if best is None:
            return None
        # Of several holders that have such a name, that of the reference is the likeliest.
        return next(
            (xid for xid in close[best] if head.lstrip("#") and xid.startswith(head.lstrip("#"))), close[best][0]
        )
