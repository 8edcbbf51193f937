"""From an ASGI request to the properties of a native record (semantics.md section 3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from bindings.parts import Part

CREDENTIALS: Final = frozenset(("authorization", "proxy-authorization", "cookie"))
"""Headers that are never part of a record."""
TOKEN: Final = b"access_token"
"""The query parameter that is never part of a record."""


def parts_of_request(scope: Mapping[str, Any], secret: frozenset[str] = frozenset()) -> list[Part]:
    """Return ``method``, ``path`` (raw), ``query.*`` and ``headers.*`` (lower case), without credentials.

    *secret* are more headers that hold credentials, in lower case.
    """
    return [
        Part("method", scope["method"].encode("ascii")),
        Part("path", scope["raw_path"]),
        *query_parts(scope["query_string"]),
        *header_parts(scope["headers"], secret),
    ]


def header_parts(headers: Iterable[tuple[bytes, bytes]], secret: frozenset[str] = frozenset()) -> Iterator[Part]:
    """Yield headers in order, names in lower case, values byte for byte; credentials are left out."""
    left_out = CREDENTIALS | secret
    for name, value in headers:
        lowered = name.decode("latin-1").lower()
        if lowered not in left_out:
            yield Part(f"headers.{lowered}", bytes(value))


def query_parts(query: bytes) -> Iterator[Part]:
    """Yield query parameters in order, form-decoded (``+`` is a space); the access token is left out.

    A malformed percent sequence stays as written, and so does a name whose bytes are no UTF-8: a key is text.
    """
    for pair in query.split(b"&"):
        if not pair:
            continue
        raw_name, _, raw_value = pair.partition(b"=")
        name = _form_decoded(raw_name)
        if name == TOKEN:
            continue
        try:
            key = name.decode("utf-8")
        except UnicodeDecodeError:
            key = raw_name.decode("utf-8", "backslashreplace")
        yield Part(f"query.{key}", _form_decoded(raw_value))


def token_of(query: bytes) -> bytes | None:
    """Return the access token of a query (RFC 6750 section 2.3)."""
    pairs = (pair.partition(b"=") for pair in query.split(b"&"))
    return next((_form_decoded(value) for name, _, value in pairs if _form_decoded(name) == TOKEN), None)


def header(scope: Mapping[str, Any], name: bytes) -> bytes | None:
    """Return the first value of a header; *name* in lower case."""
    return next((bytes(value) for each, value in scope["headers"] if each.lower() == name), None)


def _form_decoded(text: bytes) -> bytes:
    return unquote_to_bytes(text.replace(b"+", b" "))
