"""ETags of answers that show more than one entity: what they were made of has not changed while the registry has not.

They stand for the registry's last change, by its number and its interaction: where a registry is begun anew at the same
URL, numbers come again. So whoever asks again with one is answered without looking at
a single entity.
"""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from importlib.metadata import version

from registry.core.places import Place
from registry.core.requests import Flags, Request
from registry.store.reading import Reader

_DISTRIBUTION = "xregistry-router"
_DIGEST_BYTES = 6


def shows_more(place: Place | str, flags: Flags) -> bool:
    """Tell whether an answer shows more than one entity as it is, whose own ETag then says nothing of the rest."""
    if isinstance(place, str) or place.is_collection:
        return True
    return bool(flags.inline or flags.filter or flags.doc or flags.binary or flags.collections)


def tag_of(reader: Reader, request: Request) -> str:
    """Return the ETag of such an answer; equal tags are of equal answers to the same question by the same program."""
    asked = request.base, request.segments, request.details, request.flags, request.limit, request.cursor
    number, change = reader.last_change()
    said = repr((_program(), request.max_answer, asked, change)).encode()
    return f'"{number}.{blake2b(said, digest_size=_DIGEST_BYTES).hexdigest()}"'


@cache
def _program() -> str:
    return version(_DISTRIBUTION)
