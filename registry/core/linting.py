"""What the catalog's own readers and lint say of a write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from registry.model.types import Model
from registry.store.work import Work

Strictness = Literal["refuse", "report", "off"]


class Linter:
    """Lints what writes make."""

    def __init__(self, strictness: Strictness = "report") -> None:
        self._strictness = strictness

    def look(self, work: Work, model: Model, path: str) -> tuple[Mapping[str, str], ...]:
        """Return findings."""
        return ()
