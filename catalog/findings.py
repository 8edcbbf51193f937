"""The collector of findings: everything that reads a catalog reports here and goes on (JUDGING.md#catalogs)."""

from __future__ import annotations

from collections import Counter
from typing import Final

from catalog.declared import Place
from catalog.model import Finding, Severity

MAX_FINDINGS: Final = 50_000
"""Findings of one severity; past them one more says that there are more."""
UNUSUAL_NAME: Final = "unusual-name"
MAX_TEXT: Final = 1_000
"""Characters of a message or hint, which may quote what the document says."""


class Findings:
    """Collects findings, each once, within bounds of number and length that no document can exceed."""

    def __init__(self) -> None:
        self._findings: dict[Finding, None] = {}
        self._counts: Counter[Severity] = Counter()
        self._older: set[str] = set()

    def add(self, place: Place, severity: Severity, rule: str, message: str, hint: str = "") -> None:
        """Add one finding; ``rule`` is its stable id, ``hint`` the remedy."""
        finding = Finding(_printable(place.file), place.pointer, severity, rule, _capped(message), _capped(hint))
        if finding in self._findings or self._counts[severity] > MAX_FINDINGS:
            return
        if self._counts[severity] == MAX_FINDINGS:
            text = f"there are more than {MAX_FINDINGS} findings of severity {severity}; the rest is not listed"
            finding = Finding(_printable(place.file), "", severity, "too-many-findings", text, "mend these first")
        self._counts[severity] += 1
        self._findings[finding] = None

    def of_older_dialect(self, file: str) -> None:
        """Take older spellings of options as usual in that file: they are its dialect's own."""
        self._older.add(file)

    def respelled(self, place: Place, written: str, canonical: str) -> None:
        """Report an option that 1.0 spells otherwise, unless the document is of a dialect that spells it so."""
        if place.file not in self._older:
            self.warning(place, UNUSUAL_NAME, f"{written} is read as {canonical}", f"write {canonical}")

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
        self._findings.update(dict.fromkeys(findings))

    def sorted(self) -> tuple[Finding, ...]:
        """Return all findings, by file and place."""
        return tuple(sorted(self._findings))


def _capped(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."


def _printable(file: str) -> str:
    """Return a file's name as UTF-8 can hold it, which names on disk need not be."""
    return file if file.isascii() else file.encode("utf-8", "backslashreplace").decode("utf-8")
