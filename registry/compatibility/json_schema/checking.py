"""Whether readers of one JSON schema can read all that was written with another."""

from __future__ import annotations

from catalog.schemas.contract import SchemaSource
from registry.compatibility.json_schema.reading import Root
from registry.compatibility.json_schema.subsets import Proof
from registry.compatibility.json_schema.witnesses import witness
from registry.compatibility.undecided import Budget, Undecided


def unreadable(reader: SchemaSource, writer: SchemaSource, budget: Budget) -> str:
    """Return why data written with *writer* may not be what *reader* describes, '' when it is proven that all is.

    Raises:
        Undecided: neither a proof nor a value that shows the contrary was found.
    """
    smaller, larger = Root(writer.document, writer.version), Root(reader.document, reader.version)
    try:
        gap = Proof(smaller, larger, budget).gap([writer.document], reader.document, "")
    except Undecided as error:
        gap = str(error)
    if not gap:
        return ""
    value = witness(writer, reader)
    if not value:
        raise Undecided(gap)
    return f"{gap}, such as {value}"
