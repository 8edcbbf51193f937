"""Changes that look like half of a write: a catalog that lost most of its definitions, a file that ends in mid-line.

A document cut off at the end of a line is often still good YAML. A doubted change is taken when a second look finds the
same: an intended one takes one look longer, and a half-written one is not taken.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from catalog.declared import Declarations
from catalog.documents.fetching import Fetcher, is_url
from catalog.errors import DocumentError
from catalog.model import Catalog

MAX_SHRINK: Final = 0.5
"""Share of its definitions that a document, or an endpoint, may lose before a second look."""
SHOWN: Final = 20
"""Reasons that are reported."""


@dataclass(frozen=True, slots=True)
class Doubtful:
    """A changed catalog that is taken if the next look finds the same; the last good one goes on until then."""

    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many usable definitions there are, in all, by document, and as candidates by endpoint."""

    total: int = 0
    documents: Mapping[str, int] = field(default_factory=dict)
    endpoints: Mapping[str, int] = field(default_factory=dict)

    def shrunk(self, before: Sizes, most: float) -> Iterator[str]:
        """Yield which lost more than *most* of what they had *before*, 0 to 1."""
        if before.total - self.total > most * before.total:
            yield f"the catalog has {self.total} definitions and had {before.total}"
        for document, had in before.documents.items():
            has = self.documents.get(document, 0)
            if had - has > most * had:
                yield f"{document} has {has} definitions and had {had}"

    def emptied(self, before: Sizes, most: float) -> Iterator[str]:
        """Yield which endpoints lost more than *most* of the candidates they had *before*, 0 to 1."""
        for endpoint, had in before.endpoints.items():
            has = self.endpoints.get(endpoint, 0)
            if had - has > most * had:
                yield f"{endpoint} has {has} candidates and had {had}"


def sizes_of(catalog: Catalog, declarations: Declarations) -> Sizes:
    """Count the definitions of a catalog by the documents that declare them."""
    messages = declarations.messages
    counts = Counter(messages[xid].place.file for xid in catalog.definitions if xid in messages)
    return Sizes(len(catalog.definitions), dict(counts), candidates_of(catalog))


def candidates_of(catalog: Catalog) -> dict[str, int]:
    """Count the candidates of each endpoint that has some."""
    return {xid: len(endpoint.candidates) for xid, endpoint in catalog.endpoints.items() if endpoint.candidates}


def unfinished(fetcher: Fetcher, seen: Mapping[str, str]) -> Iterator[str]:
    """Yield which files that are not as they were *seen* end in mid-line; JSON tells by itself where it ends."""
    for address, mark in tuple(fetcher.seen.items()):
        if is_url(address) or address.endswith(os.sep) or seen.get(address) == mark:
            continue
        try:
            data = fetcher.fetch(address)
        except DocumentError:
            continue
        if data.strip() and not data.endswith(b"\n") and data.lstrip()[:1] not in (b"{", b"["):
            yield f"{address} does not end with a whole line"


def first_of(reasons: Iterable[str]) -> tuple[str, ...]:
    """Return the first reasons, as many as are reported."""
    return tuple(dict.fromkeys(reasons))[:SHOWN]
