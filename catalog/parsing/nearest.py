"""Find the known name that an unknown one probably misspells."""

# Small: every reader of names uses it, and it needs nothing else.

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from rapidfuzz.distance import OSA

SHORT_NAME: Final = 5
"""Names up to this length may differ by one edit, longer ones by two."""
MAX_STEPS: Final = 5_000_000
"""Maximum character comparisons for the suggestions of one load: about a second."""


def find_nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name within one or two edits of *name*; None if there is none or *name* is known.

    An edit is a letter inserted, missing, wrong, or swapped with its neighbour. Letter case is ignored.
    """
    wanted = name.lower()
    best: tuple[int, str] | None = None
    for each in known:
        limit = 1 if min(len(each), len(wanted)) <= SHORT_NAME else 2
        if each.lower() == wanted:
            return None
        if abs(len(each) - len(wanted)) <= limit:
            slips = OSA.distance(wanted, each.lower())
            if slips <= limit and (best is None or (slips, each) < best):
                best = (slips, each)
    return None if best is None else best[1]


class Suggestions:
    """Suggests xids for dangling references, with at most *steps* character comparisons."""

    def __init__(self, known: Collection[str], steps: int = MAX_STEPS) -> None:
        self._known = known
        self._left = steps

    def hint(self, reference: str, otherwise: str) -> str:
        """Return "did you mean XID?" for the most similar known xid, or *otherwise* if there is none."""
        meant = self.meant(reference)
        return f"did you mean {meant}?" if meant else otherwise

    def meant(self, reference: str) -> str | None:
        """Return the known xid with the same or a similar last segment as *reference*; None if there is none."""
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
                if find_nearest(wanted, [name]) is not None:
                    close.setdefault(name, []).append(xid)
        best = find_nearest(wanted, close)
        if best is None:
            return None
        # If several groups have such a name, prefer the group in the reference.
        return next(
            (xid for xid in close[best] if head.lstrip("#") and xid.startswith(head.lstrip("#"))), close[best][0]
        )
