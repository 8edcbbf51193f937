"""The schema families. One more is a folder beside those imported here, and its entry in ``FAMILIES``."""

from __future__ import annotations

from typing import Final

from catalog.schemas.avro.family import AVRO
from catalog.schemas.family import SchemaFamily
from catalog.schemas.jsonschema.family import JSON_SCHEMA
from catalog.schemas.jsonstructure.family import JSON_STRUCTURE
from catalog.schemas.protobuf.family import PROTOBUF
from catalog.schemas.xsd.family import XSD

FAMILIES: Final[list[SchemaFamily]] = [JSON_SCHEMA, JSON_STRUCTURE, AVRO, PROTOBUF, XSD]


def family_of(name: str) -> SchemaFamily:
    """Return the family called *name*, as :class:`~catalog.schemas.contract.SchemaSource` and formats have it.

    Raises:
        KeyError: there is none.
    """
    for family in FAMILIES:
        if family.name == name:
            return family
    raise KeyError(name)


def family_names() -> str:
    """Return the names of all families for a hint: ``A, B or C``."""
    *first, last = (family.name for family in FAMILIES)
    return f"{', '.join(first)} or {last}"
