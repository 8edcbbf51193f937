"""Whether the document of a version is what its format says, judged by the catalog's own schema families."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from catalog.schemas.compiling import compile_schema, references_of
from catalog.schemas.contract import SchemaError, SchemaSource
from catalog.schemas.families import FAMILIES, family_of
from catalog.schemas.formats import SchemaFormat, parse_format
from registry.errors import Refusal
from registry.model.types import ResourceType
from registry.store.entities import Version

FORMATS: Final = tuple(f"{family.name}*" for family in FAMILIES)
"""The formats whose documents are validated, as capabilities list them."""
VALIDATED: Final = ("formatvalidated", "formatvalidatedreason")


class NoLibrary:
    """Knows no other document."""

    def document(self, reference: str, base: str) -> tuple[str, Any] | None:
        """Return nothing."""
        return None


def check_format(kind: ResourceType, version: Version, document: bytes | None) -> None:
    """Validate a version, and note in its attributes whether that could be done.

    Raises:
        Refusal: it does not comply, or its type requires a validation that cannot be done here.
    """
    for name in VALIDATED:
        version.attributes.pop(name, None)
    written = version.attributes.get("format")
    if not kind.validateformat or not written:
        return
    known = parse_format(written)
    reason = ""
    if known is None:
        if kind.strictvalidation:
            raise Refusal("format_unknown", version.xid, format=written)
        reason = f"The format {written} is not known here."
    elif kind.hasdocument and f"{kind.singular}url" in version.attributes:
        if kind.strictvalidation:
            raise Refusal("format_external", version.xid)
        reason = "The document is stored elsewhere."
    elif document:
        reason = _validate(version, written, source_of(version, known, document))
    version.attributes["formatvalidated"] = not reason
    if reason:
        version.attributes["formatvalidatedreason"] = reason


def source_of(version: Version, form: SchemaFormat, document: bytes) -> SchemaSource:
    """Return the document of a version as schemas are compiled from.

    Raises:
        Refusal: it is no UTF-8.
    """
    try:
        return SchemaSource(form.family, form.version, _tree(form.family, document))
    except UnicodeDecodeError as error:
        written = str(version.attributes.get("format"))
        raise Refusal("format_violation", version.xid, detail="the document is no UTF-8", format=written) from error


def _tree(family: str, document: bytes) -> Any:
    """Return a document as its family has it: a JSON tree, or a text."""
    if family_of(family).is_tree:
        try:
            return msgspec.json.decode(document)
        except (msgspec.DecodeError, RecursionError):
            return document.decode("utf-8")
    text = document.decode("utf-8")
    if text[:1] == '"':
        try:
            return msgspec.json.decode(document, type=str)
        except msgspec.DecodeError:
            return text
    return text


def _validate(version: Version, written: str, source: SchemaSource) -> str:
    try:
        if any(True for _ in references_of(source)):
            return "The document refers to others, which are not looked at."
        compile_schema(source, NoLibrary())
    except SchemaError as error:
        raise Refusal("format_violation", version.xid, detail=str(error), format=written) from error
    return ""
