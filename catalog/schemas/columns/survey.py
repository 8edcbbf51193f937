"""One walk over one schema: what could not be typed and where, and the bounds that no schema may pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from catalog.parsing.pointers import as_pointer
from catalog.schemas.bodies import short
from catalog.schemas.columns.naming import column_names
from catalog.schemas.columns.shapes import JSON, Leaf

MAX_FIELDS: Final = 2_000
"""Fields of structs, at all levels together: more no reader opens in good time, and no one reads."""
MAX_LEVELS: Final = 32
"""Structs, lists and maps within each other."""
MAX_STEPS: Final = 50_000
"""Subschemas that are looked into; references and alternatives may multiply them."""
MAX_FINDINGS: Final = 50
Path = tuple[str, ...]
"""Where in the payload: names of members, ``*`` for all items of a list or all values of a map."""


class Survey:
    """Collects findings, and counts. One object serves one schema."""

    def __init__(self) -> None:
        self._findings: dict[str, None] = {}
        self.fields = 0
        """Fields of structs so far; who takes back a part of the shape takes back its fields."""
        self._steps = 0

    @property
    def findings(self) -> tuple[str, ...]:
        """What was noted, each once, at most :data:`MAX_FINDINGS`, and whether there are more."""
        more = ["and more places, which are not listed"] if len(self._findings) > MAX_FINDINGS else []
        return (*list(self._findings)[:MAX_FINDINGS], *more)

    def note(self, path: Path, what: str) -> None:
        """Note a finding: *what* is the end of a sentence whose subject is the place."""
        if len(self._findings) > 2 * MAX_FINDINGS:
            return  # some may yet be taken back, so there are more than are reported
        self._findings[short(f"{as_pointer(list(path)) or 'the payload'} {what}")] = None

    def text(self, path: Path, why: str) -> Leaf:
        """Note that a place stays JSON text, instead of what was noted there and below; return the leaf of it."""
        place = as_pointer(list(path))
        self._findings = {
            finding: None for finding in self._findings if not finding.startswith((f"{place}/", f"{place} "))
        }
        self.note(path, f"stays JSON text: {why}")
        return JSON

    def limit(self, path: Path) -> str:
        """Count one step at that place; return which bound it passes, nothing when it is within all."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            return "the schema has too many parts to look into"
        return f"it lies more than {MAX_LEVELS} levels deep" if len(path) > MAX_LEVELS else ""

    def columns(self, path: Path, names: Sequence[str]) -> list[tuple[str, str]]:
        """Return name and column of each member of a struct that there is room for.

        Of the payload itself those that are too many are left out; a struct within it goes in whole or not at all.
        """
        room = MAX_FIELDS - self.fields
        if len(names) > room and path:
            return []
        if len(names) > room:
            self.note(path, f"has {len(names)} members; those after the first {room} are no columns")
            names = names[:room]
        self.fields += len(names)
        columns = column_names(names)
        for name, column in zip(names, columns, strict=True):
            if name != column:
                self.note((*path, name), f"is the column {column}")
        return list(zip(names, columns, strict=True))
