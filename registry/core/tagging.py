"""ETags of answers that are no single entity: of what is configured by what it says, of what shows more by its age.

The latter stand for the registry's last change, by its number and its interaction: where a registry is begun anew at
the same URL, numbers come again. So whoever asks again with one is answered without looking at a single entity.
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
    """Tell whether an answer shows more than one entity as it is, whose own ETag then says nothing of the rest."""
    if isinstance(place, str):
        return place == EXPORT
    if place.is_collection:
        return True
    return bool(flags.inline or flags.filter or flags.doc or flags.binary or flags.collections)


def tag_of(reader: Reader, request: Request) -> str:
    """Return the ETag of such an answer; equal tags are of equal answers to the same question by the same program."""
    asked = request.base, request.segments, request.details, request.flags, request.limit, request.cursor
    number, change = reader.last_change()
    said = repr((_program(), request.max_answer, asked, change)).encode()
    return f'"{number}.{blake2b(said, digest_size=_DIGEST_BYTES).hexdigest()}"'


def tag_of_body(body: Mapping[str, Any]) -> str:
    """Return the ETag of an answer that may be guarded by ``If-Match``, whatever else has changed in the registry."""
    said = msgspec.json.encode(body, order="deterministic")
    return f'"{blake2b(said, digest_size=2 * _DIGEST_BYTES).hexdigest()}"'


@cache
def _program() -> str:
    return version(_DISTRIBUTION)
