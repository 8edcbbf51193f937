"""Has the catalog changed? The caller asks when it likes; there is no thread in here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from catalog.declared import Place
from catalog.documents import content_digest
from catalog.errors import DocumentError
from catalog.findings import Findings
from catalog.load import load
from catalog.model import Catalog, Finding


@dataclass(frozen=True, slots=True)
class Refusal:
    """A changed catalog that must not take effect, with all that is wrong with it; the last good one goes on."""

    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that caused the refusal."""
        return tuple(finding for finding in self.findings if finding.severity == "error")


def new_errors(catalog: Catalog, known: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the error findings that are not among those known: what a change made worse, not what was bad before."""
    old = {(finding.file, finding.rule, finding.message) for finding in known}
    return tuple(
        finding
        for finding in catalog.findings
        if finding.severity == "error" and (finding.file, finding.rule, finding.message) not in old
    )


class CatalogWatcher:
    """Compares the sources' bytes with those seen last, at most once per *interval* seconds.

    A catalog is refused for errors that the one in use does not have.

    A change is answered once, as a catalog or as a refusal; sources that cannot be read are refused once and looked at
    again every time. Bytes that change without changing the meaning (the epoch) are answered with None, but for the
    first good ones after a refusal: those end it.
    """

    def __init__(
        self,
        sources: Sequence[str | Path],
        interval: float,
        *,
        network: bool = False,
        current: Catalog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch *sources*; *current* is the catalog in use, so that an unchanged first look says nothing."""
        self._sources = tuple(sources)
        self._interval = interval
        self._network = network
        self._clock = clock
        self._epoch = current.epoch if current is not None else None
        self._tolerated: Sequence[Finding] = current.findings if current is not None else ()
        self._digest: str | None = None
        self._refused = False
        self._due = clock()

    def poll(self) -> Catalog | Refusal | None:
        """Return a new catalog, the refusal of one with errors, or None when nothing changed or it is too early."""
        if self._clock() < self._due:
            return None
        self._due = self._clock() + self._interval
        try:
            digest = content_digest(self._sources, network=self._network)
            if digest == self._digest:
                return None
            catalog = load(self._sources, network=self._network)
            settled = content_digest(self._sources, network=self._network) == digest
        except DocumentError as error:
            return self._unreadable(error)
        if not settled:
            return None  # it is being written just now; the next look tells
        self._digest = digest
        if new_errors(catalog, self._tolerated):
            self._refused = True
            return Refusal(new_errors(catalog, self._tolerated))
        if catalog.epoch == self._epoch and not self._refused:
            return None
        self._refused = False
        self._epoch = catalog.epoch
        self._tolerated = catalog.findings
        return catalog

    def _unreadable(self, error: DocumentError) -> Refusal | None:
        mark = f"unreadable: {error}"
        if self._digest == mark:
            return None
        self._digest = mark
        self._refused = True
        findings = Findings()
        findings.error(Place(error.file, error.pointer), "unreadable-document", str(error), error.hint)
        return Refusal(findings.sorted())
