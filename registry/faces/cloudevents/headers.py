"""Attributes as ``Registry-`` headers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from bindings.http.request import Head
from registry.errors import Refusal
from registry.http.headers import decoded, encoded

PREFIX: Final = b"registry-"
ELSEWHERE: Final = "schemaurl"
"""The attribute that says where a document is, which headers call by the singular name and ``URI``."""
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", re.ASCII)
_SHARED: Final = ("id", "name", "description", "docs", "format", "version", "epoch", "self", "createdOn", "modifiedOn")
_NOT_SHOWN: Final = ("contenttype", "versionsURL", "versionsCount")
"""What an entity has that is no header of this kind."""
_SPELLED: Final = {name.lower(): name for name in (*_SHARED, "createdBy", "modifiedBy", "schemaBase64")} | {
    "schemauri": ELSEWHERE
}


def shown(entity: Mapping[str, Any], *, alone: bool) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers that show an entity: its scalars. Without *alone* the body has it too, and those it shares."""
    for name, value in entity.items():
        scalar = isinstance(value, str | int | float) and _NAME.fullmatch(name)
        if scalar and (alone or name in _SHARED) and name not in _NOT_SHOWN:
            header = "schemaURI" if name == ELSEWHERE else name
            yield f"Registry-{header}".encode("ascii"), encoded(value)


def given(head: Head, path: str) -> dict[str, str | None]:
    """Return the attributes that headers give, None for those to be taken away.

    Raises:
        Refusal: ``header_error``, ``extra_xregistry_header``.
    """
    said: dict[str, str | None] = {}
    for raw, value in head.headers:
        name = raw.decode("latin-1").lower().removeprefix(PREFIX.decode())
        if not raw.lower().startswith(PREFIX) or name == "self":
            continue
        if name in ("definitionuri", "schemabase64", "schema"):
            why = "this is no attribute that a header can give here"
            raise Refusal("extra_xregistry_header", path, name=f"Registry-{name}", error_detail=why)
        said[_SPELLED.get(name, name)] = decoded(value, name, path) or None
    return said
