"""What a content type says of a body, and how a fault is put in words, for every family of schemas that is not JSON."""

from __future__ import annotations

import re
from typing import Final

from catalog.schemas.contract import SchemaFault
from catalog.values import media_type_of

MAX_MESSAGE: Final = 300
"""Characters of a fault's message and of its path: both go into headers and listings."""
_UNPRINTABLE: Final = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029\ud800-\udfff]+")


def is_json(content_type: str | None) -> bool:
    """Tell whether a content type names JSON: ``application/json``, ``text/json``, ``application/vnd.x+json``."""
    return media_type_of(content_type).endswith(("/json", "+json"))


def looks_like_json(body: bytes) -> bool:
    """Tell whether a body without content type may be JSON: it begins as an object, an array or a string does."""
    return body.lstrip(b" \t\r\n")[:1] in (b"{", b"[", b'"')


def short(text: str) -> str:
    """Return a text of one line without control characters, cut to :data:`MAX_MESSAGE` characters."""
    line = _UNPRINTABLE.sub(" ", text[: 4 * MAX_MESSAGE]).strip()
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"


def fault(message: str, path: str = "") -> SchemaFault:
    """Return a fault whose texts are safe to hand on, whatever the body put into them."""
    return SchemaFault(short(path), short(message))
