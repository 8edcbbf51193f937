"""The names of all dialects, every one of which is read in every document (JUDGING.md#catalogs).

A name that is not of the document's own dialect is remarked upon, since other tools may not know it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from catalog.declared import Declarations, Place
from catalog.dialects.detection import DIALECTS
from catalog.dialects.dialect import Dialect, Kind, Names
from catalog.findings import Findings

_OF_NO_DIALECT: Final[Names] = {"attributes": {"config": "protocoloptions"}}
"""Names that are understood, and are no dialect's own."""


def spellings(kind: Kind) -> Mapping[str, str]:
    """Return the names of 1.0 for all names of a kind, by spelling in lower case."""
    return _united(tuple(DIALECTS), kind)


def names_of(*kinds: Kind) -> frozenset[str]:
    """Return all names of some kinds, in lower case."""
    return _names(tuple(DIALECTS), kinds)


def message_names() -> frozenset[str]:
    """Return all names that say how a message looks, but for its versions."""
    return names_of("selectors", "attributes", "bases", "metadata", "definition")


@lru_cache(maxsize=64)
def _names(dialects: tuple[Dialect, ...], kinds: tuple[Kind, ...]) -> frozenset[str]:
    return frozenset(name for kind in kinds for name in _united(dialects, kind))


@lru_cache(maxsize=64)
def _united(dialects: tuple[Dialect, ...], kind: Kind) -> Mapping[str, str]:
    united: dict[str, str] = {}
    for names in (_OF_NO_DIALECT, *(dialect.names for dialect in dialects)):
        united.update(names.get(kind, {}))
    return united


@dataclass(frozen=True, slots=True)
class DocumentReader:
    """What reading one document takes along: its dialect, where declarations go, and where to report."""

    dialect: Dialect
    into: Declarations
    findings: Findings

    def spelled(
        self, holder: Mapping[str, Any], kind: Kind, at: Place, *, several: bool = False
    ) -> Iterator[tuple[str, str]]:
        """Give the names of a kind that *holder* has as they are spelled, each with its 1.0 name; those of 1.0 first.

        Of *several* spellings of one name all are given, else the first counts. One of another dialect than the
        document's is remarked upon.
        """
        known, own = spellings(kind), self.dialect.names.get(kind, {})
        spelled = [(written, known[written.lower()]) for written in holder if written.lower() in known]
        given: set[str] = set()
        for written, canonical in sorted(spelled, key=lambda each: each[0] != each[1]):
            if holder[written] is not None and (several or canonical not in given):
                given.add(canonical)
                if written.lower() not in own:
                    self.unusual(at / written, written, canonical)
                yield written, canonical

    def unusual(self, place: Place, written: str, canonical: str) -> None:
        """Report a name that is understood, and is not one of the document's own dialect."""
        text = f"{written} is read as {canonical}"
        if written == canonical:
            text = f"{written} is a name of xRegistry 1.0; it is read as such"
            self.findings.warning(place, "unusual-name", text, "write the whole document as xRegistry 1.0")
            return
        self.findings.warning(place, "unusual-name", text, f"write {canonical}")
