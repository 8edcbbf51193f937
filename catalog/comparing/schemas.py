"""How one payload schema differs from another: for readers of old data and for writers of new, as far as it is plain.

Compatible means both ways: a body that was valid stays valid, and what readers could rely upon stays so. Only changes
that are plainly so are called that, those that plainly are not are called incompatible, and all others unknown. A
member that a JSON schema did not name is taken to be absent from older bodies; Avro is compared by its schema
resolution, for which a reader needs the writer's schema too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from catalog.model import Catalog, Definition
from catalog.schemas.comparison import Comparison
from catalog.schemas.families import FAMILIES


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The schema of a definition.

    ``version`` follows the family in its format; ``document`` is None when it was not loaded. ``reference`` is where it
    is, ``part`` the deep link into it.
    """

    family: str
    version: str
    document: Any
    reference: str
    part: str


def schema_of(definition: Definition, catalog: Catalog) -> SchemaState | None:
    """Return the data schema of a definition, None when it has none."""
    reference = definition.dataschemauri or definition.dataschemaxid
    if definition.dataschema is None and not reference and definition.schemakey is None:
        return None
    held: Any = catalog.schemas.get(definition.schemakey or "")
    loaded = held if isinstance(held, Mapping) and "document" in held else {}
    form = definition.dataschemaformat or loaded.get("format") or ""
    document = loaded.get("document", definition.dataschema)
    family, _, version = str(form).lower().partition("/")
    part = definition.schemaname or definition.schemapointer
    return SchemaState(family, version, document, reference or "", part)


def compare_schemas(before: SchemaState, after: SchemaState) -> Comparison:
    """Return the verdict and the place that decides it, in words."""
    if before.family != after.family:
        return "incompatible", f"the format is {after.family or 'unsaid'}, and was {before.family or 'unsaid'}"
    if before.document is None or after.document is None:
        same = before.document is after.document and before.reference == after.reference
        return ("same", "") if same else ("unknown", "the document is not loaded")
    if before.part != after.part:
        return "unknown", f"it is the part {after.part or '/'} of the document, and was {before.part or '/'}"
    if before.version and after.version and before.version != after.version:
        return "unknown", f"the version of the format is {after.version}, and was {before.version}"
    old, new = _tree(before.document), _tree(after.document)
    if old == new:
        return "same", ""
    family = next((each for each in FAMILIES if each.name.lower() == before.family and each.compares), None)
    if family is None:
        return "unknown", f"documents of {before.family or 'an unsaid format'} are only compared for being equal"
    return family.compare(old, new)


def _tree(document: Any) -> Any:
    """Return a document as a tree when its text is JSON."""
    if isinstance(document, str) and document.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(document)
        except (ValueError, RecursionError):
            return document
    return document
