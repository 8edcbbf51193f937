"""What is known of the active catalog and its changes, as metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from catalog.model import Finding

_SEVERITIES: Final = ("error", "warning")


class CatalogState:
    """The findings of the active catalog, and what reloads changed for consumers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._findings = Gauge(
            "xrouter_catalog_findings", "Findings of the active catalog.", ("severity",), registry=registry
        )
        self._changes = Counter(
            "xrouter_catalog_changes",
            "Changes for consumers that reloads brought, by whether these can go on with them.",
            ("compatible",),
            registry=registry,
        )
        self._refused = Gauge(
            "xrouter_catalog_refused",
            "Findings for which the catalog that was found last is refused; 0 while none is.",
            registry=registry,
        )
        for compatible in ("true", "false"):
            self._changes.labels(compatible)
        self._incompatible = Gauge(
            "xrouter_catalog_incompatible_changes",
            "Incompatible changes of the active catalog against the last one before them; 0 once they are mended.",
            registry=registry,
        )

    def set_findings(self, findings: Iterable[Finding]) -> None:
        """Set how many findings of each severity the active catalog has."""
        severities = [finding.severity for finding in findings]
        for severity in _SEVERITIES:
            self._findings.labels(severity).set(severities.count(severity))

    def refused(self, findings: int) -> None:
        """Set for how many findings a changed catalog is refused now."""
        self._refused.set(findings)

    def changed(self, changes: int, incompatible: int, left: int) -> None:
        """Count the changes of a reload, some of which are incompatible.

        *left* are those of the active catalog against the last one that had none.
        """
        self._incompatible.set(left)
        self._changes.labels("true").inc(changes - incompatible)
        self._changes.labels("false").inc(incompatible)
