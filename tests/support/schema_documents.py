"""A library of documents at hand, and the schemas of the real catalogs where those are beside the repository."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CORPORA = Path(__file__).parents[3] / "shared" / "corpora"


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
    for path in sorted(CORPORA.rglob("*.json")):
        for document in _schemas(json.loads(path.read_text("utf-8")), families):
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
