"""Attributes as ``xRegistry-`` headers (``http.md``, HTTP Header Values)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

from registry.errors import Refusal
from registry.model.attributes import Attribute
from registry.model.types import ResourceType

PREFIX: Final = "xregistry-"
_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


def encoded(value: Any) -> bytes:
    """Write a scalar as the value of a header."""
    text = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return quote(text, safe=_SAFE).encode("ascii")


def decoded(value: bytes, name: str, path: str) -> str:
    """Read the value of a header.

    Raises:
        Refusal: ``header_error``.
    """
    text = value.strip()
    if len(text) > 1 and text[:1] == text[-1:] == b'"':
        text = _unquoted(text[1:-1])
    try:
        return unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise Refusal("header_error", path, name=name, error_detail="it is no UTF-8") from None


def shown(attributes: Mapping[str, Any], kind: ResourceType) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers that show attributes: scalars, and maps of scalars; a document is not among them."""
    tree, encoded_name, _ = kind.document_names
    for name, value in attributes.items():
        if name in (tree, encoded_name, "contenttype"):
            continue
        if isinstance(value, Mapping):
            declared = kind.attributes.get(name)
            if declared is None or declared.type != "map":
                continue
            for key, each in value.items():
                if not isinstance(each, dict | list):
                    yield f"xRegistry-{name}.{key}".encode("ascii"), encoded(each)
        elif not isinstance(value, list):
            yield f"xRegistry-{name}".encode("ascii"), encoded(value)


def given(headers: tuple[tuple[bytes, bytes], ...], kind: ResourceType, path: str) -> dict[str, Any]:
    """Return the attributes that headers give, with values of their types; ``null`` is None.

    Raises:
        Refusal: ``header_error``, ``extra_xregistry_header``.
    """
    attributes: dict[str, Any] = {}
    for raw, value in headers:
        name = raw.decode("latin-1").lower()
        if not name.startswith(PREFIX):
            continue
        name = name.removeprefix(PREFIX)
        if name in kind.document_names[:2]:
            why = "a document is the body, and never a header"
            raise Refusal("extra_xregistry_header", path, name=name, error_detail=why)
        text = decoded(value, name, path)
        plural, dot, key = name.partition(".")
        if dot:
            members = attributes.setdefault(plural, {})
            if not isinstance(members, dict):
                raise Refusal("header_error", path, name=name, error_detail="it is a map and a scalar at once")
            declared = kind.attributes.get(plural)
            if text != "null":
                members[key] = _typed(text, declared.item if declared is not None else None)
        elif text == "null":
            attributes[name] = None
        else:
            attributes[name] = _typed(text, kind.attributes.get(name))
    return {name: value or None if value == {} else value for name, value in attributes.items()}


def _typed(text: str, attribute: Attribute | None) -> Any:
    """Return a value of the attribute's type; a text of no such value stays text, and is refused as such."""
    kind = attribute.type if attribute is not None else "string"
    if kind == "boolean":
        return {"true": True, "false": False}.get(text, text)
    if kind in ("integer", "uinteger", "decimal"):
        try:
            return float(text) if kind == "decimal" and not text.lstrip("-").isdecimal() else int(text)
        except ValueError:
            return text
    return text


def _unquoted(text: bytes) -> bytes:
    unquoted, escaped = bytearray(), False
    for byte in text:
        if byte == 0x5C and not escaped:
            escaped = True
        else:
            unquoted.append(byte)
            escaped = False
    return bytes(unquoted)
