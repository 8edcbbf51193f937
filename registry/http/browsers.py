"""What browsers ask before a web page of another origin may use a registry (CORS, the Fetch standard)."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import Final

from bindings.http.problems import HttpProblem, Reply
from bindings.http.request import Head
from registry.http.access import READING
from registry.http.replies import FINDING

ANY: Final = "*"
_METHODS: Final = b"GET, HEAD, PUT, PATCH, POST, DELETE, OPTIONS"
_SECONDS: Final = b"600"
_EXPOSED: Final = (
    *(b"ETag", b"Link", b"Location", b"Content-Location", b"Content-Disposition", b"Allow", b"Retry-After"),
    *(FINDING, b"xRegistry-xregcorrelationid"),
)
"""Headers that pages may read; those of an answer that begin with ``xRegistry-`` are named beside them."""
_PREFIX: Final = b"xregistry-"
_ALLOWED: Final = b"Authorization, Content-Type, If-Match, If-None-Match, Accept"
_SAME: Final = (b"same-origin", b"none")
_UNASKED: Final = (b"", b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data")
"""Content types that a browser sends without a preflight."""
_MOST: Final = 8192
"""Bytes of names of headers that a browser may ask for."""


class Browsers:
    """Lets web pages of some *origins* use a registry; of all of them where ``*`` is one, but then without cookies,
    certificates and passwords that the browser itself keeps. Without origins it changes nothing.
    """

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._any = ANY in origins
        self._origins = {each.encode("ascii") for each in origins}

    def preflight(self, head: Head) -> Reply | None:
        """Answer a browser that asks what a page may do, which it does without credentials; None for other requests."""
        if not self._origins or head.method != "OPTIONS" or head.header(b"access-control-request-method") is None:
            return None
        if head.header(b"origin") is None:
            return None
        asked = head.header(b"access-control-request-headers") or b""
        # A name of a header has none of what would begin another; `*` is no list where there are credentials.
        plain = len(asked) <= _MOST and all(byte > 0x1F and byte < 0x7F for byte in asked)
        allowed = asked if asked and plain else _ALLOWED
        fields = (
            (b"Access-Control-Allow-Methods", _METHODS),
            (b"Access-Control-Allow-Headers", allowed),
            (b"Access-Control-Max-Age", _SECONDS),
        )
        shared = self._shared(head)
        return Reply(204, (*shared, *fields) if self._admits(head) else shared)

    def check(self, head: Head) -> None:
        """Make sure that a write is none that a page of a stranger has a browser send with the credentials it keeps.

        A form of any page can send such a request, and CORS lets it be sent; only its answer stays hidden. Where ``*``
        is let in, what a browser does not ask about before (a POST of plain text) is refused all the same.

        Raises:
            HttpProblem: 403.
        """
        origin, site = head.header(b"origin"), head.header(b"sec-fetch-site")
        if head.method in READING or (origin is None and site is None) or origin in self._origins:
            return
        # A browser knows better than the addresses that we see; over plain HTTP it sends the origin alone.
        own = site in _SAME if site is not None else (origin or b"").partition(b"://")[2] == head.header(b"host")
        media = (head.header(b"content-type") or b"").partition(b";")[0].strip().lower()
        if not own and not (self._any and (head.method != "POST" or media not in _UNASKED)):
            detail = "a web page of another origin may not write here; http.cors names those that may"
            raise HttpProblem(HTTPStatus.FORBIDDEN, detail)

    def shown(self, head: Head, reply: Reply) -> Reply:
        """Return a reply as a browser needs it to give it to the page."""
        if not self._origins:
            return reply
        if not self._admits(head):
            return replace(reply, headers=(*reply.headers, *self._shared(head)))
        own = {name for name, _ in reply.headers if name.lower().startswith(_PREFIX)}
        names = b", ".join([*_EXPOSED, *sorted(own - set(_EXPOSED))])
        return replace(reply, headers=(*reply.headers, *self._shared(head), (b"Access-Control-Expose-Headers", names)))

    def _admits(self, head: Head) -> bool:
        origin = head.header(b"origin")
        return origin is not None and (self._any or origin in self._origins)

    def _shared(self, head: Head) -> tuple[tuple[bytes, bytes], ...]:
        """Return what says whose pages may have an answer; caches keep one for each origin where that differs."""
        if self._any:
            return ((b"Access-Control-Allow-Origin", b"*"),) if head.header(b"origin") is not None else ()
        vary = (b"Vary", b"Origin")
        if not self._admits(head):
            return (vary,)
        origin = head.header(b"origin") or b""
        return (b"Access-Control-Allow-Origin", origin), (b"Access-Control-Allow-Credentials", b"true"), vary
