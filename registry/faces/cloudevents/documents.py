"""Documents of schemas as this face shows and takes them: JSON or text in ``schema``, all else in ``schemaBase64``."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

import msgspec

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
BYTES: Final = "application/octet-stream"


def shown_document(document: bytes) -> dict[str, Any]:
    """Return the member that shows a document; nothing for an empty one."""
    if not document:
        return {}
    tree = _tree(document)
    if tree is not None:
        return {"schema": tree}
    try:
        return {"schema": document.decode("utf-8")}
    except UnicodeDecodeError:
        return {"schemaBase64": base64.b64encode(document).decode("ascii")}


def content_type(document: bytes) -> str:
    """Return the content type of a document that came without one."""
    shown = shown_document(document)
    return BYTES if "schemaBase64" in shown else TEXT if isinstance(shown.get("schema", ""), str) else JSON


def taken_document(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes of a version as the core takes them: a document that is text by its bytes, and its type."""
    schema = attributes.get("schema")
    if not isinstance(schema, str):
        return dict(attributes)
    document = schema.encode("utf-8", "surrogatepass")
    rest = {name: value for name, value in attributes.items() if name != "schema"}
    return {"contenttype": content_type(document), **rest, "schemabase64": base64.b64encode(document).decode("ascii")}


def _tree(document: bytes) -> Any:
    """Return the object or array that a document is; None for any other."""
    try:
        tree = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return tree if isinstance(tree, dict | list) else None
