"""Catalogs of one definition with the data schema that a test writes down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from catalog.model import Catalog, Definition

XID: Final = "/messagegroups/g/messages/m"
KEY: Final = "/schemagroups/g/schemas/s/versions/1"


def catalog_of(
    family: str, document: Any, *, name: str = "", pointer: str = "", others: Mapping[str, Any] | None = None
) -> Catalog:
    """Return a catalog whose one definition is :data:`XID`; *others* are the documents that its schema refers to."""
    definition = Definition(
        XID, "/messagegroups/g", dataschemaformat=family, schemakey=KEY, schemaname=name, schemapointer=pointer
    )
    documents = {KEY: document, **(others or {})}
    schemas = {key: {"format": family, "document": each} for key, each in documents.items()}
    return Catalog(definitions={XID: definition}, schemas=schemas)
