"""Payloads of a schema that a test writes down, without a catalog around it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, Final

from catalog.schemas.contract import SchemaSource
from catalog.schemas.families import family_of
from catalog.schemas.filling import Filling

NOW: Final = "2026-03-04T05:06:07.008Z"
FULLNESS: Final = (1.0, 0.6, 0.0)
SEEDS: Final = 20


class Documents:
    """A library of the documents that a test gives."""

    def __init__(self, documents: Mapping[str, Any]) -> None:
        self._documents = documents

    def document(self, reference: str, base: str) -> tuple[str, Any] | None:
        found = self._documents.get(reference)
        return None if found is None else (reference, found)


NOTHING = Documents({})


def fillings() -> Iterator[Filling]:
    """Give choices of many seeds, each from full to lean."""
    for seed in range(SEEDS):
        for fullness in FULLNESS:
            yield Filling(random.Random(seed), NOW, fullness)


def payloads_of(
    family: str, document: Any, content_type: str = "", *, name: str = "", library: Documents = NOTHING
) -> Iterator[bytes]:
    """Give payloads for one schema, one for each of :func:`fillings`."""
    filler = family_of(family).open_filler(SchemaSource(family, "", document, name=name), library)
    for filling in fillings():
        yield filler.payload(filling, content_type)
