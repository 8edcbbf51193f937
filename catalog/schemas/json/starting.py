"""Which part of a JSON document a schema is: all of it, or what pointer or deep link name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from catalog.parsing.pointers import as_pointer, at_pointer

HOLDERS: Final = ("definitions", "$defs")
"""Members of a document that hold its types."""


def pointer_of(document: Any, name: str) -> str | None:
    """Return the pointer of the type called *name*: a definition, a path below the root, else a title or ``$id``.

    None when there is none.
    """
    members = document if isinstance(document, Mapping) else {}
    definitions = [(holder, types) for holder in HOLDERS if isinstance(types := members.get(holder), Mapping)]
    own = [as_pointer([holder, name]) for holder, types in definitions if name in types]
    for pointer in (*own, f"/{name}", *(f"/{holder}/{name}" for holder in HOLDERS)):
        try:
            at_pointer(document, pointer)
        except KeyError:
            continue
        return pointer
    if _is_called(members, name):
        return ""
    for holder, types in definitions:
        for key, part in types.items():
            if isinstance(part, Mapping) and _is_called(part, name):
                return as_pointer([holder, key])
    return None


def _is_called(schema: Mapping[str, Any], name: str) -> bool:
    own = schema.get("$id")
    last = re.split(r"[/#]", own.rstrip("#"))[-1] if isinstance(own, str) else None
    return name in (schema.get("title"), schema.get("$anchor"), own, last, (last or "").rpartition(".")[0] or None)
