"""ETags of answers that are no single entity: configuration has a tag of its content, other answers one of their age.

The latter name the registry's last change by its number and its interaction, since a registry that is created anew at
the same URL repeats numbers. So a client that asks again with such a tag is answered without a look at any entity.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from typing import Any, Final

import msgspec

from registry.core.places import Place
from registry.core.requests import Flags, Request
from registry.store.reading import Reader

EXPORT: Final = "export"
_DISTRIBUTION: Final = "xregistry-router"
_DIGEST_BYTES: Final = 6


def shows_more(place: Place | str, flags: Flags) -> bool:
    """Tell whether an answer shows more than one plain entity, so that the ETag of the entity does not cover it."""
    if isinstance(place, str):
        return place == EXPORT
    if place.is_collection:
        return True
    return bool(flags.inline or flags.filter or flags.doc or flags.binary or flags.collections)


def tag_of(reader: Reader, request: Request) -> str:
    """Return the ETag of such an answer; equal tags are of equal answers to the same question by the same program."""
    asked = request.base, request.segments, request.details, request.flags, request.limit, request.cursor
    return tag_of_page(reader, (request.max_answer, asked))


def tag_of_page(reader: Reader, asked: object) -> str:
    """Return the ETag of an answer that is the same to the same question until something in the registry changes."""
    number, change = reader.last_change()
    said = repr((_program(), asked, change)).encode()
    return f'"{number}.{blake2b(said, digest_size=_DIGEST_BYTES).hexdigest()}"'


def tag_of_body(body: Mapping[str, Any]) -> str:
    """Return the ETag of an answer that may be guarded by ``If-Match``, whatever else has changed in the registry."""
    said = msgspec.json.encode(body, order="deterministic")
    return f'"{blake2b(said, digest_size=2 * _DIGEST_BYTES).hexdigest()}"'


@cache
def _program() -> str:
    return version(_DISTRIBUTION)
