"""Which part of a JSON document a definition's schema is: all of it, or what pointer or deep link name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from catalog.schemas.contract import SchemaSource
from catalog.schemas.library import as_pointer, at_pointer

_HOLDERS: Final = ("definitions", "$defs")


def start_of(source: SchemaSource) -> Any:
    """Return the schema that is meant, in a document that compiles; a JSON Structure's ``$root`` is followed.

    Raises:
        KeyError: the document lacks it.
    """
    document = source.document
    if source.pointer:
        return at_pointer(document, source.pointer)
    start = _named(document, source.name) if source.name else document
    is_outer = source.family == "JsonStructure" and isinstance(start, Mapping) and "type" not in start
    root = start.get("$root") if is_outer else None
    return {"$ref": root} if isinstance(root, str) else start


def _named(document: Any, name: str) -> Any:
    for pointer in _pointers(name):
        try:
            return at_pointer(document, pointer)
        except KeyError:
            continue
    for part in _parts(document):
        if _is_called(part, name):
            return part
    raise KeyError(name)


def _pointers(name: str) -> Iterator[str]:
    yield from (as_pointer([holder, name]) for holder in _HOLDERS)
    yield from (f"{start}/{name}" for start in ("", *(f"/{holder}" for holder in _HOLDERS)))


def _parts(document: Any) -> Iterator[Mapping[str, Any]]:
    """Give the document and the types that it defines."""
    members = document if isinstance(document, Mapping) else {}
    yield members
    for holder in _HOLDERS:
        types = members.get(holder)
        if isinstance(types, Mapping):
            yield from (part for part in types.values() if isinstance(part, Mapping))


def _is_called(part: Mapping[str, Any], name: str) -> bool:
    own = part.get("$id")
    last = re.split(r"[/#]", own.rstrip("#"))[-1] if isinstance(own, str) else ""
    return name in (
        part.get("name"),
        part.get("title"),
        part.get("$anchor"),
        own,
        last,
        last.rpartition(".")[0] or None,
    )
