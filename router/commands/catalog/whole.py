"""A registry read whole, as one document that stands by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from catalog.dialects import detect
from catalog.documents.documents import Document, read_documents
from catalog.documents.fetching import Fetcher
from catalog.findings import Findings
from catalog.references.following import Following
from router.errors import CatalogUnavailable

NAMED: Final = 5
"""Definitions that a warning names."""


def whole(url: str, by: Fetcher) -> Document:
    """Read a registry with all that it names by address.

    Raises:
        CatalogUnavailable: something of it cannot be read, or nothing of it is a catalog.
        DocumentError: the registry itself cannot be read.
    """
    findings = Findings()
    (read,) = read_documents([url], findings, fetcher=by)
    following = Following(by, findings)
    document = following.completed(read)
    for finding in findings.sorted():
        if finding.severity == "error" or (finding.rule, finding.severity) == ("unreadable-document", "warning"):
            raise CatalogUnavailable(f"{url} is not read whole: {finding.message}", hint=finding.hint)
    if following.pending:
        away = ", ".join(following.pending)
        raise CatalogUnavailable(f"{url} is not read whole: {away} cannot be reached now", hint="try again")
    if not isinstance(document.tree, dict) or detect(document.tree) is None:
        hint = "give the address of a registry, of a part of one, or of a message catalog's API"
        raise CatalogUnavailable(f"{url} holds no catalog", hint=hint)
    return document


def named(xids: Sequence[str]) -> str:
    """Name the first definitions of many in a warning."""
    return ", ".join(xids[:NAMED]) + (f" and {len(xids) - NAMED} more" if len(xids) > NAMED else "")
