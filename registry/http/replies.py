"""From what came of a request to the HTTP answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

import msgspec

from bindings.http.request import HttpProblem, Reply, RequestHead
from registry.core.requests import RegistryRequest, ResourcePath, Response
from registry.core.service import METHODS, kind_of
from registry.errors import Refusal
from registry.http import requests as headers
from registry.http.access import READING
from registry.http.requests import VERBS, seen_before

JSON: Final = b"application/json; charset=utf-8"
PROBLEM: Final = b"application/problem+json"
MAX_FINDINGS: Final = 20
FINDING: Final = b"xRouter-Finding"
"""One for each of the first findings of a write: severity, rule, place and message, encoded as attributes are."""
_Headers = list[tuple[bytes, bytes]]


def reply_of(head: RequestHead, request: RegistryRequest, place: ResourcePath | str, answer: Response) -> Reply:
    """Return the reply to a request that was carried out."""
    fields = _shared(request.base)
    if answer.interaction:
        fields.append((b"xRegistry-xregcorrelationid", answer.interaction.encode("ascii")))
    fields += [finding_header(each) for each in answer.findings[:MAX_FINDINGS]]
    if answer.etag:
        fields.append((b"ETag", answer.etag.encode("ascii")))
    if request.verb == "read" and seen_before(head, answer.etag):
        return Reply(304, tuple(fields))
    if answer.body is None:
        return Reply(204, tuple(fields))
    if answer.version:
        fields.append((b"Content-Location", _location(answer.version)))
    if answer.location:
        fields.append((b"Location", _location(answer.location)))
    status = 201 if answer.location else 200
    if answer.document is not None and isinstance(place, ResourcePath):
        return _document(request, place, answer, status, fields)
    if answer.paging is not None and answer.paging.after:
        fields.append((b"Link", _next(head, request, answer)))
    return Reply(status, ((b"Content-Type", JSON), *fields), msgspec.json.encode(answer.body))


def refusal_of(head: RequestHead, base: str, refusal: Refusal, place: ResourcePath | str | None = None) -> Reply:
    """Return the reply to a request that was refused."""
    fields = _shared(base)
    if refusal.name == "action_not_supported":
        refusal.args_given["action"] = head.method
    if refusal.status == 405 and place is not None:
        fields.append((b"Allow", allowed(place)))
    if refusal.name in ("server_busy", "rate_limited"):
        fields.append((b"Retry-After", refusal.args_given.get("seconds", "1").encode("ascii")))
    wants = head.header(b"accept") or b""
    content = PROBLEM if PROBLEM in wants else JSON
    return Reply(refusal.status, ((b"Content-Type", content), *fields), msgspec.json.encode(refusal.body()))


def json_reply(base: str, body: Mapping[str, Any]) -> Reply:
    """Return the reply of a plain document."""
    return Reply(200, ((b"Content-Type", JSON), *_shared(base)), msgspec.json.encode(body))


def options_of(base: str, place: ResourcePath | str) -> Reply:
    """Return the reply to OPTIONS."""
    methods = allowed(place)
    return Reply(200, ((b"Allow", methods), (b"Access-Control-Allow-Methods", methods), *_shared(base)))


def allowed(place: ResourcePath | str) -> bytes:
    """Return the methods that a place takes."""
    verbs = METHODS[kind_of(place)]
    return ", ".join([*(word for word, verb in VERBS.items() if verb in verbs), "OPTIONS"]).encode("ascii")


def _document(request: RegistryRequest, place: ResourcePath, answer: Response, status: int, fields: _Headers) -> Reply:
    assert answer.document is not None and answer.body is not None
    body: Mapping[str, Any] = answer.body
    content = body.get("contenttype")
    kind = place.resource
    if answer.elsewhere and request.verb == "read":
        status = 303
        fields.append((b"Location", headers.encoded(answer.elsewhere)))
    if content is not None:
        fields.insert(0, (b"Content-Type", _plain(content)))
    fields += headers.shown(body, kind)
    fields.append((b"Content-Disposition", answer.name.encode("ascii")))
    return Reply(status, tuple(fields), answer.document)


def _shared(base: str) -> _Headers:
    return [(b"Link", f"<{base}/>;rel=xregistry-root".encode("latin-1", "replace"))]


def _next(head: RequestHead, request: RegistryRequest, answer: Response) -> bytes:
    assert answer.paging is not None
    given = parse_qsl(head.query.decode("latin-1"), keep_blank_values=True)
    query = [(name, value) for name, value in given if name not in ("cursor", "limit")]
    query += [("limit", str(request.limit)), ("cursor", answer.paging.after)]
    path = "/".join(("", *request.segments))
    count = f";count={answer.paging.count}" if answer.paging.count is not None else ""
    return f"<{request.base}{path}?{urlencode(query)}>;rel=next{count}".encode("ascii", "replace")


def finding_header(finding: Mapping[str, str]) -> tuple[bytes, bytes]:
    """Return the header that reports a finding."""
    text = f"{finding['severity']} {finding['rule']} {finding['place']}: {finding['message']}"
    return FINDING, headers.encoded(text).replace(b"%20", b" ")


def _location(url: str) -> bytes:
    return headers.encoded(url)


def _plain(text: str) -> bytes:
    """Return a content type as a header can hold it."""
    return "".join(each if 0x20 <= ord(each) < 0x7F else "?" for each in text).encode("ascii")


# What browsers ask before a web page of another origin may use a registry (CORS, the Fetch standard).

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

    def preflight(self, head: RequestHead) -> Reply | None:
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

    def check(self, head: RequestHead) -> None:
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

    def shown(self, head: RequestHead, reply: Reply) -> Reply:
        """Return a reply as a browser needs it to give it to the page."""
        if not self._origins:
            return reply
        if not self._admits(head):
            return replace(reply, headers=(*reply.headers, *self._shared(head)))
        own = {name for name, _ in reply.headers if name.lower().startswith(_PREFIX)}
        names = b", ".join([*_EXPOSED, *sorted(own - set(_EXPOSED))])
        return replace(reply, headers=(*reply.headers, *self._shared(head), (b"Access-Control-Expose-Headers", names)))

    def _admits(self, head: RequestHead) -> bool:
        origin = head.header(b"origin")
        return origin is not None and (self._any or origin in self._origins)

    def _shared(self, head: RequestHead) -> tuple[tuple[bytes, bytes], ...]:
        """Return what says whose pages may have an answer; caches keep one for each origin where that differs."""
        if self._any:
            return ((b"Access-Control-Allow-Origin", b"*"),) if head.header(b"origin") is not None else ()
        vary = (b"Vary", b"Origin")
        if not self._admits(head):
            return (vary,)
        origin = head.header(b"origin") or b""
        return (b"Access-Control-Allow-Origin", origin), (b"Access-Control-Allow-Credentials", b"true"), vary
