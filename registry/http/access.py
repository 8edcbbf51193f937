"""Who may do what: readers, writers of groups, administrators, known by the credentials of :mod:`bindings.http`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from http import HTTPStatus
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, quote, unquote_plus, unquote_to_bytes, urlencode

import msgspec

from bindings.http.request import Access, Guard, HttpProblem, Reply, RequestHead
from catalog.findings import DocumentError
from catalog.parsing.texts import parse_text
from registry.core.requests import ABSENT, Flags, Given, RegistryRequest, ResourcePath, Response, Verb
from registry.core.service import METHODS, RegistryService, kind_of
from registry.errors import Refusal
from registry.model.attributes import ModelAttribute, ResourceType

# From an HTTP request to what the registry is asked for.

# Attributes as ``xRegistry-`` headers (``http.md``, HTTP Header Values).

PREFIX: Final = "xregistry-"
_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


def encoded(value: Any) -> bytes:
    """Write a scalar as the value of a header."""
    text = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return quote(text, safe=_SAFE).encode("ascii")


def decoded(value: bytes, name: str, path: str) -> str:
    """Read the value of a header.

    Raises:
        Refusal: ``header_error``.
    """
    text = value.strip()
    if len(text) > 1 and text[:1] == text[-1:] == b'"':
        text = _unquoted(text[1:-1])
    try:
        return unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise Refusal("header_error", path, name=name, error_detail="it is no UTF-8") from None


def shown(attributes: Mapping[str, Any], kind: ResourceType) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers that show attributes: scalars, and maps of scalars; a document is not among them."""
    tree, encoded_name, _ = kind.document_names
    for name, value in attributes.items():
        if name in (tree, encoded_name, "contenttype"):
            continue
        if isinstance(value, Mapping):
            declared = kind.attributes.get(name)
            if declared is None or declared.type != "map":
                continue
            for key, each in value.items():
                if not isinstance(each, dict | list):
                    yield f"xRegistry-{name}.{key}".encode("ascii"), encoded(each)
        elif not isinstance(value, list):
            yield f"xRegistry-{name}".encode("ascii"), encoded(value)


def given(headers: tuple[tuple[bytes, bytes], ...], kind: ResourceType, path: str) -> dict[str, Any]:
    """Return the attributes that headers give, with values of their types; ``null`` is None.

    Raises:
        Refusal: ``header_error``, ``extra_xregistry_header``.
    """
    attributes: dict[str, Any] = {}
    for raw, value in headers:
        name = raw.decode("latin-1").lower()
        if not name.startswith(PREFIX):
            continue
        name = name.removeprefix(PREFIX)
        if name in kind.document_names[:2]:
            why = "a document is the body, and never a header"
            raise Refusal("extra_xregistry_header", path, name=name, error_detail=why)
        text = decoded(value, name, path)
        plural, dot, key = name.partition(".")
        if dot:
            members = attributes.setdefault(plural, {})
            if not isinstance(members, dict):
                raise Refusal("header_error", path, name=name, error_detail="it is a map and a scalar at once")
            declared = kind.attributes.get(plural)
            if text != "null":
                members[key] = _typed(text, declared.item if declared is not None else None)
        elif text == "null":
            attributes[name] = None
        else:
            attributes[name] = _typed(text, kind.attributes.get(name))
    return {name: value or None if value == {} else value for name, value in attributes.items()}


def _typed(text: str, attribute: ModelAttribute | None) -> Any:
    """Return a value of the attribute's type; a text of no such value stays text, and is refused as such."""
    kind = attribute.type if attribute is not None else "string"
    if kind == "boolean":
        return {"true": True, "false": False}.get(text, text)
    if kind in ("integer", "uinteger", "decimal"):
        try:
            return float(text) if kind == "decimal" and not text.lstrip("-").isdecimal() else int(text)
        except ValueError:
            return text
    return text


def _unquoted(text: bytes) -> bytes:
    unquoted, escaped = bytearray(), False
    for byte in text:
        if byte == 0x5C and not escaped:
            escaped = True
        else:
            unquoted.append(byte)
            escaped = False
    return bytes(unquoted)


VERBS: Final[dict[str, Verb]] = {
    "GET": "read",
    "HEAD": "read",
    "PUT": "replace",
    "PATCH": "patch",
    "POST": "add",
    "DELETE": "delete",
}
DETAILS: Final = "$details"
FORM: Final = "application/x-www-form-urlencoded"
MAX_SEGMENTS: Final = 8
MAX_REPEATED: Final = 20
"""Repeated keys of one body that are reported."""
_ONE: Final = ("sort", "epoch", "setdefaultversionid", "specversion", "limit", "cursor")


@dataclass(frozen=True, slots=True)
class RequestSender:
    """Who sends a request: a name for history, and what it may do; ``writes`` is whether to any group at all."""

    name: str
    administrator: bool
    may_write: Callable[[str], bool]
    writes: bool = False


@dataclass(frozen=True, slots=True)
class PageSizes:
    """How many entities a page has: without ``limit`` in the request, and at most."""

    usual: int = 500
    most: int = 1000


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """A request's path and query, taken apart."""

    path: str
    segments: tuple[str, ...]
    details: bool
    flags: Flags
    limit: int | None
    cursor: str


def asked(head: RequestHead) -> RequestTarget:
    """Take path and query apart.

    Raises:
        Refusal: one of them cannot be read.
    """
    path = decoded_request(head.path, "/")
    segments = tuple(decoded_request(part, path) for part in head.path.split(b"/") if part)
    if len(segments) > MAX_SEGMENTS:
        raise Refusal("api_not_found", path)
    details = bool(segments) and segments[-1].endswith(DETAILS)
    if details:
        segments = (*segments[:-1], segments[-1].removesuffix(DETAILS))
    if any(DETAILS in part for part in segments) or (details and len(segments) not in (4, 6)):
        raise Refusal("bad_details", path)
    given = query_of(head.query)
    single = {name: once(given, name, path) for name in _ONE}
    flags = Flags(
        inline=tuple(given.get("inline", ())),
        filter=tuple(given.get("filter", ())),
        ignore=tuple(given.get("ignore", ())),
        sort=single["sort"],
        epoch=single["epoch"],
        setdefaultversionid=single["setdefaultversionid"],
        specversion=single["specversion"],
        doc="doc" in given,
        collections="collections" in given,
        binary="binary" in given,
    )
    return RequestTarget(
        path.rstrip("/") or "/", segments, details, flags, limit_of(single["limit"], path), single["cursor"] or ""
    )


def request_of(
    head: RequestHead,
    body: bytes,
    given: RequestTarget,
    place: ResourcePath | str,
    base: str,
    writer: RequestSender,
    pages: PageSizes,
    max_answer: int,
) -> RegistryRequest:
    """Return what is asked for at a place, which is that of the path.

    Raises:
        Refusal: it cannot be read.
    """
    verb = VERBS[head.method]
    document, tree = None, ABSENT
    kind = place.resource_type if isinstance(place, ResourcePath) and place.kind in ("resource", "version") else None
    if kind is not None and kind.hasdocument and not given.details and verb in ("replace", "patch", "add"):
        if verb == "patch":
            raise Refusal("details_required", given.path)
        tree, document = _document(head, body, place, given.path)
    elif verb != "read":
        tree = _tree(head, body, given.path)
    return RegistryRequest(
        verb,
        given.segments,
        given.path,
        base,
        given.flags,
        given.details,
        tree,
        document,
        _media(head, body) or "application/json",
        min(given.limit or pages.usual, pages.most),
        given.cursor,
        writer.name,
        writer.administrator,
        writer.may_write,
        tags(head.header(b"if-match")) if verb != "read" else None,
        max_answer,
        tags(head.header(b"if-none-match")) or (),
        from_client=True,
    )


def _document(head: RequestHead, body: bytes, place: Any, path: str) -> tuple[dict[str, Any], Given]:
    kind = place.resource
    attributes = given(head.headers, kind, path)
    attributes["contenttype"] = _media(head, body)
    url = kind.document_names[2]
    if attributes.get(url) is None:
        attributes[url] = None
        return attributes, Given(body)
    if body:
        why = "the document is elsewhere, so the body must be empty"
        raise Refusal("extra_xregistry_header", path, name=f"xRegistry-{url}", error_detail=why)
    return attributes, Given(None, url=True)


def _tree(head: RequestHead, body: bytes, path: str) -> Any:
    extra = next((name for name, _ in head.headers if name.lower().startswith(PREFIX.encode())), None)
    if extra is not None:
        why = "the metadata is the body"
        raise Refusal("extra_xregistry_header", path, name=extra.decode("latin-1"), error_detail=why)
    return tree_of(body, path)


def tree_of(body: bytes, path: str) -> Any:
    """Return the JSON of a body, ABSENT for an empty one.

    Raises:
        Refusal: ``parsing_data``.
    """
    if not body.strip():
        return ABSENT
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal("parsing_data", path, error_detail=str(error)) from None


def repeated_keys(body: bytes) -> tuple[dict[str, str], ...]:
    """Return findings about keys that occur twice in one object of a JSON body: the last value counts."""
    try:
        places = parse_text("", body).duplicates[:MAX_REPEATED]
    except DocumentError:
        return ()  # its own error says more
    message, hint = "the key occurs twice; the last value counts", "remove one of them"
    found = {"severity": "warning", "rule": "duplicate-key", "message": message, "hint": hint}
    return tuple({**found, "place": each.pointer} for each in places)


def query_of(text: bytes) -> dict[str, list[str]]:
    """Return the values of a raw query by their names; a name without ``=`` has ''."""
    values: dict[str, list[str]] = {}
    for part in text.decode("latin-1").split("&"):
        if part:
            name, _, value = part.partition("=")
            values.setdefault(unquote_plus(name), []).append(unquote_plus(value))
    return values


def once(given: dict[str, list[str]], name: str, path: str) -> str | None:
    """Return the value of a flag, None without it.

    Raises:
        Refusal: ``bad_flag``: it is given more than once.
    """
    values = given.get(name, [])
    if len(values) > 1:
        raise Refusal("bad_flag", path, detail="it is given more than once", flag=name)
    return values[0] if values else None


def limit_of(text: str | None, path: str) -> int | None:
    """Return the flag ``limit`` as a number, None without it.

    Raises:
        Refusal: it is no number above 0.
    """
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 10 and int(text)):
        raise Refusal("bad_request", path, error_detail="limit must be a number above 0")
    return int(text)


def decoded_request(text: bytes, path: str) -> str:
    """Return a part of a raw path as text; *path* is for errors.

    Raises:
        Refusal: it is no UTF-8, or has a NUL.
    """
    try:
        part = unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise Refusal("bad_request", path, error_detail="the path is no UTF-8") from None
    if "\0" in part:  # which no text of PostgreSQL can hold
        raise Refusal("bad_request", path, error_detail="the path has a NUL character")
    return part


def _media(head: RequestHead, body: bytes) -> str | None:
    """Return the content type of a body; of what a form claims to be, as ``curl -d`` does, JSON or none."""
    value = head.header(b"content-type")
    media = None if value is None else value.decode("latin-1").strip()
    if media is None or media.partition(";")[0].strip().lower() != FORM:
        return media
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    return "application/json"


def tags(value: bytes | None) -> tuple[str, ...] | None:
    """Return the ETags of a header, None without it."""
    if value is None:
        return None
    return tuple(part.strip().removeprefix("W/") for part in value.decode("latin-1").split(","))


def seen_before(head: RequestHead, etag: str) -> bool:
    """Tell whether the sender has what an ETag names (``If-None-Match``)."""
    known = tags(head.header(b"if-none-match"))
    return bool(etag) and known is not None and (etag in known or "*" in known)


READING: Final = ("GET", "HEAD", "OPTIONS")
MAX_SENDERS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Roles:
    """What those with credentials may do, by name; all of them may read. Of a certificate the name is the common name.

    ``writers`` gives the groups that each may write to, as xids where ``*`` stands for any text. ``anonymous`` lets
    everybody read without credentials.
    """

    administrators: frozenset[str] = frozenset()
    writers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    anonymous: bool = False


class Gatekeeper:
    """Decides what the sender of a request may do.

    Without an :class:`Access` the clients' *certificates* name the sender, and without those everybody may do
    everything.
    """

    def __init__(self, access: Access | None, roles: Roles, *, certificates: bool = False) -> None:
        self._named = access is None and certificates
        self._open = access is None and not certificates
        self._guard = Guard(access)
        self._roles = roles

    def admit(self, head: RequestHead) -> RequestSender:
        """Return who sends a request, from its head alone.

        Raises:
            HttpProblem: 401.
        """
        if self._open:
            return RequestSender("", True, lambda group: True, writes=True)
        if self._named:
            if not head.peer:
                raise HttpProblem(HTTPStatus.FORBIDDEN, "the certificate of this client has no common name")
            return self._writer(head.peer)
        try:
            name = self._guard.admit(head)
        except HttpProblem:
            shown = head.header(b"authorization") is not None
            if shown or not self._roles.anonymous or head.method not in READING:
                raise
            return self.nobody
        return self._writer(name or "")

    @property
    def nobody(self) -> RequestSender:
        """Somebody without credentials."""
        return RequestSender("", False, lambda group: False)

    def _writer(self, name: str) -> RequestSender:
        if name in self._roles.administrators:
            return RequestSender(name, True, lambda group: True, writes=True)
        patterns = self._roles.writers.get(name, ())
        allowed = bool(patterns)
        return RequestSender(
            name, False, lambda group: any(fnmatchcase(group, each) for each in patterns), writes=allowed
        )


class Pace:
    """Bounds how many writes each sender makes in a second, with as many more at once as make up ``burst``.

    Beyond MAX_SENDERS it forgets those whose last request is the oldest.
    """

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._left: dict[tuple[bool, str], tuple[float, float]] = {}

    def take(self, name: str, *, stranger: bool = False) -> None:
        """Count a write of a sender by name, or of a *stranger* by address.

        Raises:
            Refusal: ``rate_limited``.
        """
        now = time.monotonic()
        key = stranger, name
        left, since = self._left.pop(key, (float(self._burst), now))
        left = min(float(self._burst), left + (now - since) * self._per_second)
        self._left[key] = (left - 1 if left >= 1 else left), now
        if len(self._left) > MAX_SENDERS:
            del self._left[next(iter(self._left))]
        if left < 1:
            raise Refusal("rate_limited", "", seconds=str(max(1, round((1 - left) / self._per_second))))


# What a face is to the server: an API over the store, on a path of its own. The core API is the one at the root.
#
# Who sends, how large a body and an answer are, how many writes there may be, and TLS are the same for all faces: the
# server sees to them before a face is asked (:mod:`registry.http.application`).


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a face.

    ``path`` is the raw path below the face, ``url`` the face's own URL without a slash at its end, ``registry`` that of
    the core API. ``writer`` is who sends it: what a write touches is held against ``writer.may_write`` by the core.
    """

    head: RequestHead
    body: bytes
    path: bytes
    url: str
    registry: str
    writer: RequestSender
    pages: PageSizes
    max_answer: int


class Face(Protocol):
    """Any thread may call it; at most one at a time writes."""

    def reply(self, call: Call) -> Reply:
        """Carry out a request, OPTIONS among them.

        Raises:
            Refusal: it cannot be, and nothing has changed; :meth:`refused` reports it to the client.
        """

    def refused(self, head: RequestHead, url: str, refusal: Refusal) -> Reply:
        """Report a refusal in the words of this face; *url* is the face's own. It does not raise."""


FaceType = Callable[[RegistryService], Face]
"""Makes a face over a registry."""


# From what came of a request to the HTTP answer.

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
        return _replies_document(request, place, answer, status, fields)
    if answer.paging is not None and answer.paging.after:
        fields.append((b"Link", _next(head, request, answer)))
    return Reply(status, ((b"Content-Type", JSON), *fields), msgspec.json.encode(answer.body))


def refusal_of(head: RequestHead, base: str, refusal: Refusal, place: ResourcePath | str | None = None) -> Reply:
    """Return the reply to a request that was refused."""
    fields = _shared(base)
    if refusal.name == "action_not_supported":
        refusal.title_args["action"] = head.method
    if refusal.status == 405 and place is not None:
        fields.append((b"Allow", allowed(place)))
    if refusal.name in ("server_busy", "rate_limited"):
        fields.append((b"Retry-After", refusal.title_args.get("seconds", "1").encode("ascii")))
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


def _replies_document(
    request: RegistryRequest, place: ResourcePath, answer: Response, status: int, fields: _Headers
) -> Reply:
    assert answer.document is not None and answer.body is not None
    body: Mapping[str, Any] = answer.body
    content = body.get("contenttype")
    kind = place.resource
    if answer.elsewhere and request.verb == "read":
        status = 303
        fields.append((b"Location", encoded(answer.elsewhere)))
    if content is not None:
        fields.insert(0, (b"Content-Type", _plain(content)))
    fields += shown(body, kind)
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
    return FINDING, encoded(text).replace(b"%20", b" ")


def _location(url: str) -> bytes:
    return encoded(url)


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
