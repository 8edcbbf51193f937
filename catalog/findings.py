"""The collector of findings: everything that reads a catalog reports here and goes on (semantics.md section 2)."""

from __future__ import annotations

from catalog.declared import Place
from catalog.model import Finding, Severity


class Findings:
    """Collects findings, each once."""

    def __init__(self) -> None:
        self._found: dict[Finding, None] = {}

    def add(self, place: Place, severity: Severity, rule: str, message: str, hint: str = "") -> None:
        """Add one finding; ``rule`` is its stable id, ``hint`` the remedy."""
        self._found[Finding(place.file, place.pointer, severity, rule, message, hint)] = None

    def error(self, place: Place, rule: str, message: str, hint: str = "") -> None:
        """Report something that cannot be used."""
        self.add(place, "error", rule, message, hint)

    def warning(self, place: Place, rule: str, message: str, hint: str = "") -> None:
        """Report something that is used, but is unusual or will not do what it seems to."""
        self.add(place, "warning", rule, message, hint)

    def info(self, place: Place, rule: str, message: str, hint: str = "") -> None:
        """Report something that is right and worth knowing."""
        self.add(place, "info", rule, message, hint)

    def extend(self, findings: tuple[Finding, ...]) -> None:
        """Take findings over."""
        self._found.update(dict.fromkeys(findings))

    def sorted(self) -> tuple[Finding, ...]:
        """Return all findings, by file and place."""
        return tuple(sorted(self._found))
