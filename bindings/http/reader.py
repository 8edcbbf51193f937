"""From the bytes of a connection to requests, strictly: what two readers could read in two ways is refused.

The parser (llhttp, by ``httptools``) refuses bare line feeds, folded headers, control characters, lengths that are
repeated or beside a transfer coding. What it leaves to its caller is here: versions, transfer codings other than
``chunked``, hosts, forms of the target, and all bounds.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from http import HTTPStatus
from typing import Final

import httptools

from bindings.http.limits import ServerLimits
from bindings.http.problems import HttpProblem
from bindings.http.request import Head

SLICE: Final = 4096
"""Bytes of heads that are parsed at a time, so that few requests of a pipeline are in memory as objects."""
BODY_SLICE: Final = 64 * 2**10
_FRAMING: Final = frozenset((b"content-length", b"transfer-encoding"))
_READ: Final = _FRAMING | {b"host", b"upgrade", b"expect"}
_CHUNK_ROOM: Final = 64 * 2**10
_CHUNK_FACTOR: Final = 16
"""What chunk headers and extensions may take: a fixed room, and this many times the body; one-byte chunks take six."""
_SCHEMES: Final = (b"http://", b"https://")


class End(Enum):
    """The end of a request's body."""

    END = "end"


Event = Head | bytes | End | HttpProblem
"""What comes of bytes: a head, then pieces of its body, then its end; a problem is the last event of a connection."""


class RequestReader:
    """Takes the bytes of one connection; what came of them is in ``events``, in order, for the caller to take out."""

    def __init__(self, limits: ServerLimits, address: str = "") -> None:
        self._limits = limits
        self._address = address
        self._most_bytes, self._most_headers = limits.max_header_bytes, limits.max_headers
        self.events: deque[Event] = deque()
        self.failed = False
        self.in_head = False
        self._in_body = False
        self._replayed = False
        self._head: Head | None = None
        self._begin()
        self._parser = httptools.HttpRequestParser(self)

    @property
    def slice(self) -> int:
        """How many bytes to feed at once."""
        return BODY_SLICE if self._in_body else SLICE

    @property
    def begun(self) -> Head:
        """A head of which only headers are known: those of the last request that have been read."""
        return Head("", b"", b"", tuple(self._headers))

    def feed(self, data: bytes | memoryview) -> None:
        """Read more bytes; after a problem, nothing."""
        if self.failed:
            return
        self._wire += len(data)
        try:
            self._parser.feed_data(data)
            self._bound()
        except httptools.HttpParserUpgrade as upgrade:
            self._without_upgrade(data, int(upgrade.args[0]))
        except httptools.HttpParserCallbackError as error:
            self._fail(error.__context__)
        except httptools.HttpParserError as error:
            # Its text is one of the parser's own, and has nothing of the request in it.
            self._fail(HttpProblem(HTTPStatus.BAD_REQUEST, f"this is no well-formed HTTP/1.1 request: {error}"))
        except HttpProblem as problem:
            self._fail(problem)

    def on_message_begin(self) -> None:
        """Begin a request; called by the parser, as the methods below are."""
        self._begin()
        self.in_head = True

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        self._target.append(url)
        self._size += len(url)
        if self._size > self._limits.max_target:
            raise HttpProblem(HTTPStatus.REQUEST_URI_TOO_LONG, f"a target may have {self._limits.max_target} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header; those after the body are dropped."""
        if self._in_body:
            return
        headers = self._headers
        headers.append((name.lower(), value.rstrip(b" \t")))
        self._size += len(name) + len(value) + 4
        if self._size > self._most_bytes or len(headers) > self._most_headers:
            raise self._headers_too_large()

    def on_headers_complete(self) -> None:
        """Hand out the head."""
        self.in_head = False
        self._in_body = True
        self._wire = 0
        if self._replayed:
            self._replayed = False
            return
        self._head = self._checked()
        self.events.append(self._head)

    def on_body(self, body: bytes) -> None:
        """Hand out a piece of the body."""
        self._body += len(body)
        self.events.append(body)

    def on_message_complete(self) -> None:
        """Hand out the end, unless the parser only left a body alone that follows an offer to upgrade."""
        self._in_body = False
        self._wire = 0
        if not (self._parser.should_upgrade() and self._head is not None and self._head.has_body):
            self.events.append(End.END)

    def _begin(self) -> None:
        self._target: list[bytes] = []
        self._headers: list[tuple[bytes, bytes]] = []
        self._head = None
        self._replayed = False
        self._size = self._body = self._wire = 0

    def _fail(self, error: BaseException | None) -> None:
        self.failed = True
        fault = (
            error
            if isinstance(error, HttpProblem)
            else HttpProblem(HTTPStatus.BAD_REQUEST, "this is no HTTP/1.1 request")
        )
        self.events.append(fault)

    def _bound(self) -> None:
        """Refuse what the parser keeps to itself until it is whole: an endless header, or endless chunk extensions."""
        if self.in_head:
            if self._wire > self._limits.max_header_bytes + SLICE:
                raise self._headers_too_large()
        elif self._in_body and self._head is not None and self._head.chunked:
            if self._wire > _CHUNK_ROOM + _CHUNK_FACTOR * self._body:
                raise HttpProblem(HTTPStatus.BAD_REQUEST, "the chunks of this body are nearly empty; send larger ones")

    def _headers_too_large(self) -> HttpProblem:
        limits = self._limits
        detail = f"a request may have {limits.max_headers} headers and {limits.max_header_bytes} bytes of them"
        return HttpProblem(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail)

    def _checked(self) -> Head:
        version = self._parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise _bad("only HTTP/1.1 and HTTP/1.0 are spoken here")
        method = self._parser.get_method().decode("ascii")
        named: dict[bytes, list[bytes]] = {}
        for name, value in self._headers:
            if name in _READ:
                named.setdefault(name, []).append(value)
        hosts = named.get(b"host", ())
        if len(hosts) > 1 or (not hosts and version == "1.1"):
            raise _bad("a request needs one Host header")
        path, query = _parsed_target(method, b"".join(self._target))
        if self._parser.should_upgrade():
            _check_upgrade(method, named.get(b"upgrade", []))
        length = named.get(b"content-length")
        return Head(
            method,
            path,
            query,
            tuple(self._headers),
            version,
            int(length[0]) if length else None,
            _is_chunked(named.get(b"transfer-encoding", []), version),
            self._parser.should_keep_alive(),
            version == "1.1" and [value.lower() for value in named.get(b"expect", ())] == [b"100-continue"],
            address=self._address,
        )

    def _without_upgrade(self, data: bytes | memoryview, rest: int) -> None:
        """Go on as if no upgrade were offered, which every server may do (RFC 9110 section 7.8).

        The parser leaves a body alone in that case, so another one reads it, from a head that has only its length.
        """
        head = self._head
        assert head is not None
        self._parser = httptools.HttpRequestParser(self)
        if head.has_body:
            framing = [b"%s: %s\r\n" % header for header in head.headers if header[0] in _FRAMING]
            connection = b"" if head.keep_alive else b"connection: close\r\n"
            self._parser.feed_data(b"POST / HTTP/1.1\r\nhost: -\r\n" + connection)
            self._replayed = True
            self._parser.feed_data(b"".join(framing) + b"\r\n")
            self._head = head
        self.feed(data[rest:])


def _parsed_target(method: str, target: bytes) -> tuple[bytes, bytes]:
    """Return the raw path and query of a target in origin, absolute or asterisk form (RFC 9112 section 3.2)."""
    if b"#" in target:
        raise _bad("a target has no fragment")
    if not target.startswith(b"/") and not (target == b"*" and method == "OPTIONS"):
        scheme = next((each for each in _SCHEMES if target[: len(each)].lower() == each), None)
        if scheme is None:
            raise _bad("a target is a path, or an http URL")
        rest = target[len(scheme) :]
        ends = [place for place in (rest.find(b"/"), rest.find(b"?")) if place >= 0]
        start = min(ends, default=len(rest))
        if not start or b"@" in rest[:start]:
            raise _bad("the URL of a target needs a host and has no user")
        target = rest[start:] if rest[start : start + 1] == b"/" else b"/" + rest[start:]
    path, _, query = target.partition(b"?")
    return path, query


def _is_chunked(codings: list[bytes], version: str) -> bool:
    if not codings:
        return False
    if version == "1.0":
        raise _bad("HTTP/1.0 has no Transfer-Encoding")
    if len(codings) > 1 or codings[0].lower() != b"chunked":
        raise _bad("only chunked is known as a transfer coding")
    return True


def _check_upgrade(method: str, tokens: list[bytes]) -> None:
    if method == "CONNECT":
        raise _bad("this is no proxy")
    if any(b"websocket" in token.lower() for token in tokens):
        raise _bad("WebSocket is not spoken here; send each message as a request")


def _bad(detail: str) -> HttpProblem:
    return HttpProblem(HTTPStatus.BAD_REQUEST, detail)
