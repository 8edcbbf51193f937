"""From what came of a request to the HTTP answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

import msgspec

from bindings.http.problems import Reply
from bindings.http.request import Head
from registry.core.places import Place
from registry.core.requests import Answer, Request
from registry.core.service import METHODS, kind_of
from registry.errors import Refusal
from registry.http import headers
from registry.http.requests import VERBS, seen_before

JSON: Final = b"application/json; charset=utf-8"
PROBLEM: Final = b"application/problem+json"
MAX_FINDINGS: Final = 20
FINDING: Final = b"xRouter-Finding"
"""One for each of the first findings of a write: severity, rule, place and message, encoded as attributes are."""
_Headers = list[tuple[bytes, bytes]]


def reply_of(head: Head, request: Request, place: Place | str, answer: Answer) -> Reply:
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
    if answer.document is not None and isinstance(place, Place):
        return _document(request, place, answer, status, fields)
    if answer.paging is not None and answer.paging.after:
        fields.append((b"Link", _next(head, request, answer)))
    return Reply(status, ((b"Content-Type", JSON), *fields), msgspec.json.encode(answer.body))


def refusal_of(head: Head, base: str, refusal: Refusal, place: Place | str | None = None) -> Reply:
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


def options_of(base: str, place: Place | str) -> Reply:
    """Return the reply to OPTIONS."""
    methods = allowed(place)
    return Reply(200, ((b"Allow", methods), (b"Access-Control-Allow-Methods", methods), *_shared(base)))


def allowed(place: Place | str) -> bytes:
    """Return the methods that a place takes."""
    verbs = METHODS[kind_of(place)]
    return ", ".join([*(word for word, verb in VERBS.items() if verb in verbs), "OPTIONS"]).encode("ascii")


def _document(request: Request, place: Place, answer: Answer, status: int, fields: _Headers) -> Reply:
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


def _next(head: Head, request: Request, answer: Answer) -> bytes:
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
