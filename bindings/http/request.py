"""The head of a request, and from it the properties of a native record (JUDGING.md#records)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from bindings.parts import Part
from catalog.protocols.properties import REQUEST_CREDENTIALS, TOKEN_PARAMETER

TOKEN: Final = TOKEN_PARAMETER.encode()
"""The query parameter that is never part of a record."""
_MOST_NAMES: Final = 1_000
_MOST_BYTES: Final = 64


class Head(NamedTuple):
    """Request line and headers: ``path`` and ``query`` raw, header names in lower case, in the order they came.

    ``length`` is what Content-Length says, None without one. ``keep_alive`` tells whether the client would send more
    requests on this connection, ``expects_continue`` whether it waits for 100 before it sends the body. ``peer`` is the
    common name of the client's certificate, '' without one; ``address`` is the address or network under which it is
    counted.
    """

    method: str
    path: bytes
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    version: str = "1.1"
    length: int | None = None
    chunked: bool = False
    keep_alive: bool = True
    expects_continue: bool = False
    peer: str = ""
    address: str = ""

    @property
    def has_body(self) -> bool:
        """Whether bytes of a body follow."""
        return self.chunked or bool(self.length)

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header; *name* in lower case."""
        return next((value for each, value in self.headers if each == name), None)


class RequestParts:
    """Makes records of requests. *secret* are more headers that hold credentials, in lower case."""

    def __init__(self, secret: frozenset[str] = frozenset()) -> None:
        self._left_out = REQUEST_CREDENTIALS | secret
        self._keys: dict[bytes, str | None] = {}

    def of(self, head: Head) -> list[Part]:
        """Return ``method``, ``path`` (raw), ``query.*`` and ``headers.*``, each in order, without credentials.

        Values are byte for byte those of the request.
        """
        make = tuple.__new__  # A Part made by its own name costs three times as much, and here are most of all parts.
        parts = [Part("method", head.method.encode("ascii")), Part("path", head.path)]
        if head.query:
            parts.extend(query_parts(head.query))
        keys = self._keys
        for name, value in head.headers:
            key = keys[name] if name in keys else self._key(name)
            if key is not None:
                parts.append(make(Part, (key, value, None)))
        return parts

    def _key(self, name: bytes) -> str | None:
        """Return the key of a header, None when it is left out. Keys are kept, though not all that strangers send."""
        text = name.decode("latin-1")
        key = None if text in self._left_out else f"headers.{text}"
        if len(self._keys) < _MOST_NAMES and len(name) <= _MOST_BYTES:
            self._keys[name] = key
        return key


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


def _form_decoded(text: bytes) -> bytes:
    return unquote_to_bytes(text.replace(b"+", b" "))
