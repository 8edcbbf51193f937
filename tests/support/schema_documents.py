"""A library of documents at hand, and the schemas of the real catalogs, or of our samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from catalog.parsing.texts import parse_text
from tests.support.corpora import documents


@dataclass(frozen=True, slots=True)
class Documents:
    """Gives documents by the reference as it is written."""

    documents: Mapping[str, Any]

    def document(self, reference: str, base: str) -> tuple[str, Any] | None:
        found = self.documents.get(reference)
        return None if found is None else (reference, found)


NOTHING = Documents({})


def real_schemas(*families: str) -> Iterator[tuple[str, Any]]:
    """Give place and document of every schema of the families in the real catalogs."""
    for path in documents():
        for document in _schemas(parse_text(path.name, path.read_bytes()).tree, families):
            yield path.name, document


def _schemas(tree: Any, families: tuple[str, ...]) -> Iterator[Any]:
    if isinstance(tree, list):
        for each in tree:
            yield from _schemas(each, families)
    elif isinstance(tree, dict):
        named = tree.get("format") or tree.get("schemaformat") or tree.get("dataschemaformat")
        document = tree.get("schema") or tree.get("dataschema")
        if document and isinstance(named, str) and named.lower().startswith(families):
            yield document
        for each in tree.values():
            yield from _schemas(each, families)
