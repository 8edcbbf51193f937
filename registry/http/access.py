"""HTTP requests and replies of the registry's APIs: parsing, authorization, rate limits, headers, and CORS."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote_plus, unquote_to_bytes, urlencode

import msgspec

from bindings.envelope import UNESCAPED
from bindings.http.request import Access, Guard, HttpProblem, Reply, RequestHead
from catalog.findings import DocumentError
from catalog.parsing.texts import parse_text
from catalog.values import parse_whole_number
from registry.core.requests import (
    ABSENT,
    Flags,
    GivenDocument,
    RegistryRequest,
    RequestSender,
    ResourcePath,
    Response,
    Verb,
    check_conditions,
)
from registry.core.service import METHODS, RegistryService, methods_key
from registry.errors import Refusal
from registry.model.attributes import ModelAttribute, ResourceType

# HTTP requests to registry requests.

# Attributes as ``xRegistry-`` headers (``http.md``, HTTP Header Values).

PREFIX: Final = "xregistry-"
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)


def encode_header(value: Any) -> bytes:
    """Encode a scalar as a header value."""
    text = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return quote(text, safe=UNESCAPED).encode("ascii")


def decode_header(value: bytes, name: str, path: str) -> str:
    """Decode a header value.

    Raises:
        Refusal: ``header_error``.
    """
    text = value.strip()
    if len(text) > 1 and text[:1] == text[-1:] == b'"':
        text = _ESCAPED.sub(rb"\1", text[1:-1])
    try:
        return unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise Refusal("header_error", path, name=name, error_detail="it is not valid UTF-8") from None


def headers_of_attributes(attributes: Mapping[str, Any], kind: ResourceType) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers of attributes: scalars, and maps of scalars, without the document."""
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
                    yield f"xRegistry-{name}.{key}".encode("ascii"), encode_header(each)
        elif not isinstance(value, list):
            yield f"xRegistry-{name}".encode("ascii"), encode_header(value)


def attributes_in_headers(headers: tuple[tuple[bytes, bytes], ...], kind: ResourceType, path: str) -> dict[str, Any]:
    """Return the attributes in headers, as values of their types; ``null`` is None.

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
            why = "a document must be in the body, not in a header"
            raise Refusal("extra_xregistry_header", path, name=name, error_detail=why)
        text = decode_header(value, name, path)
        plural, dot, key = name.partition(".")
        if dot:
            members = attributes.setdefault(plural, {})
            if not isinstance(members, dict):
                raise Refusal("header_error", path, name=name, error_detail="it is used as a map and as a scalar")
            declared = kind.attributes.get(plural)
            if text != "null":
                members[key] = _parse_typed(text, declared.item if declared is not None else None)
        elif text == "null":
            attributes[name] = None
        else:
            attributes[name] = _parse_typed(text, kind.attributes.get(name))
    return {name: value or None if value == {} else value for name, value in attributes.items()}


def _parse_typed(text: str, attribute: ModelAttribute | None) -> Any:
    """Convert text to the attribute's type; text that cannot be converted is returned, and validation rejects it."""
    kind = attribute.type if attribute is not None else "string"
    if kind == "boolean":
        return {"true": True, "false": False}.get(text, text)
    if kind in ("integer", "uinteger", "decimal"):
        try:
            return float(text) if kind == "decimal" and not text.lstrip("-").isdecimal() else int(text)
        except ValueError:
            return text
    return text


VERBS: Final[dict[str, Verb]] = {
    "GET": "read",
    "HEAD": "read",
    "PUT": "replace",
    "PATCH": "patch",
    "POST": "add",
    "DELETE": "delete",
}
DETAILS: Final = "$details"
FORM_TYPE: Final = "application/x-www-form-urlencoded"
_SINGLE_FLAGS: Final = ("sort", "epoch", "setdefaultversionid", "specversion", "limit", "cursor")


@dataclass(frozen=True, slots=True)
class PageSizes:
    """Entities per page: the default, and the maximum."""

    usual: int = 500
    most: int = 1000


def parse_request(call: ApiCall) -> RegistryRequest:
    """Return the request to the core API of a call, without its body.

    Raises:
        Refusal: path or query is not valid.
    """
    head = call.head
    path = decode_text(head.path, "/")
    segments = tuple(decode_text(part, path) for part in head.path.split(b"/") if part)
    details = bool(segments) and segments[-1].endswith(DETAILS)
    if details:
        segments = (*segments[:-1], segments[-1].removesuffix(DETAILS))
    if any(DETAILS in part for part in segments) or (details and len(segments) not in (4, 6)):
        raise Refusal("bad_details", path)
    given = parse_query(head.query)
    single = {name: single_value(given, name, path) for name in _SINGLE_FLAGS}
    limit, cursor = parse_limit(single.pop("limit"), path), single.pop("cursor")
    several = {name: tuple(given.get(name, ())) for name in ("inline", "filter", "ignore")}
    present = {name: name in given for name in ("doc", "collections", "binary")}
    verb = VERBS.get(head.method, "read")
    return call.core_request(
        verb,
        segments,
        path=path.rstrip("/") or "/",
        flags=Flags(**several, **single, **present),  # type: ignore[arg-type]
        details=details,
        limit=min(limit or call.pages.usual, call.pages.most),
        cursor=cursor or "",
        matches=parse_etags(head.header(b"if-match")) if verb != "read" else None,
        known=parse_etags(head.header(b"if-none-match")) or (),
        from_client=True,
    )


def with_body(request: RegistryRequest, call: ApiCall, place: ResourcePath | str) -> RegistryRequest:
    """Return a request to *place* with the body of its call.

    Raises:
        Refusal: the body, or a header that belongs to it, is not valid.
    """
    verb, document, tree = request.verb, None, ABSENT
    kind = place.resource_type if isinstance(place, ResourcePath) and place.kind in ("resource", "version") else None
    if kind is not None and kind.hasdocument and not request.details and verb in ("replace", "patch", "add"):
        if verb == "patch":
            raise Refusal("details_required", request.path)
        tree, document = _parse_document(call.head, call.body, kind, request.path)
    elif verb != "read":
        tree = _parse_body(call.head, call.body, request.path)
    media = _content_type(call.head, call.body) or "application/json"
    return replace(request, body=tree, document=document, contenttype=media)


def _parse_document(
    head: RequestHead, body: bytes, kind: ResourceType, path: str
) -> tuple[dict[str, Any], GivenDocument]:
    attributes = attributes_in_headers(head.headers, kind, path)
    attributes["contenttype"] = _content_type(head, body)
    url = kind.document_names[2]
    if attributes.get(url) is None:
        attributes[url] = None
        return attributes, GivenDocument(body)
    if body:
        why = "the document is external, so the body must be empty"
        raise Refusal("extra_xregistry_header", path, name=f"xRegistry-{url}", error_detail=why)
    return attributes, GivenDocument(None)


def _parse_body(head: RequestHead, body: bytes, path: str) -> Any:
    extra = next((name for name, _ in head.headers if name.lower().startswith(PREFIX.encode())), None)
    if extra is not None:
        why = "the metadata must be in the body"
        raise Refusal("extra_xregistry_header", path, name=extra.decode("latin-1"), error_detail=why)
    return parse_json(body, path)


def parse_json(body: bytes, path: str) -> Any:
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


def find_repeated_keys(body: bytes) -> tuple[dict[str, str], ...]:
    """Return findings about duplicate keys in objects of a JSON body; the last value is used."""
    try:
        places = parse_text("", body).duplicates
    except DocumentError:
        return ()  # parsing reports the error
    message, hint = "duplicate key; the last value is used", "remove one of them"
    found = {"severity": "warning", "rule": "duplicate-key", "message": message, "hint": hint}
    return tuple({**found, "place": each.pointer} for each in places)


def parse_query(text: bytes) -> dict[str, list[str]]:
    """Return the values of a raw query by their names; a name without ``=`` has ''."""
    values: dict[str, list[str]] = {}
    for part in text.decode("latin-1").split("&"):
        if part:
            name, _, value = part.partition("=")
            values.setdefault(unquote_plus(name), []).append(unquote_plus(value))
    return values


def single_value(given: dict[str, list[str]], name: str, path: str) -> str | None:
    """Return the value of a flag, None without it.

    Raises:
        Refusal: ``bad_flag``: it occurs more than once.
    """
    values = given.get(name, [])
    if len(values) > 1:
        raise Refusal("bad_flag", path, detail="the flag occurs more than once", flag=name)
    return values[0] if values else None


def parse_limit(text: str | None, path: str) -> int | None:
    """Return the flag ``limit`` as a number, None without it.

    Raises:
        Refusal: it is not a positive integer.
    """
    if text is None:
        return None
    if not (limit := parse_whole_number(text, 999_999_999)):
        raise Refusal("bad_request", path, error_detail="limit must be a positive integer")
    return limit


def parse_entry_number(text: str | None, path: str) -> int | None:
    """Return the cursor of the history as a number, None without it.

    Raises:
        Refusal: it is not the number of an entry.
    """
    number = parse_whole_number(text) if text else None
    if text and number is None:
        raise Refusal("bad_request", path, error_detail="cursor must be the number of an entry")
    return number


def decode_text(text: bytes, path: str) -> str:
    """Decode a part of a raw path; *path* is for errors.

    Raises:
        Refusal: it is not valid UTF-8, or contains NUL.
    """
    try:
        part = unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise Refusal("bad_request", path, error_detail="the path is not valid UTF-8") from None
    if "\0" in part:  # not allowed in PostgreSQL texts
        raise Refusal("bad_request", path, error_detail="the path contains a NUL character")
    return part


def _content_type(head: RequestHead, body: bytes) -> str | None:
    """Return the content type of a body; the form type that ``curl -d`` sends is replaced by JSON or none."""
    value = head.header(b"content-type")
    media = None if value is None else value.decode("latin-1").strip()
    if media is None or media.partition(";")[0].strip().lower() != FORM_TYPE:
        return media
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    return "application/json"


def parse_etags(value: bytes | None) -> tuple[str, ...] | None:
    """Return the ETags of a header, None without it."""
    if value is None:
        return None
    return tuple(part.strip().removeprefix("W/") for part in value.decode("latin-1").split(","))


def matches_etag(head: RequestHead, etag: str) -> bool:
    """Whether ``If-None-Match`` contains an ETag."""
    known = parse_etags(head.header(b"if-none-match"))
    return bool(etag) and known is not None and (etag in known or "*" in known)


READ_METHODS: Final = ("GET", "HEAD", "OPTIONS")
MAX_SENDERS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Roles:
    """Permissions of authenticated users, by name (of a certificate: the common name); all of them may read.

    ``writers`` are the groups that each may write to, as xids with ``*`` as wildcard. ``anonymous`` allows reads
    without credentials.
    """

    administrators: frozenset[str] = frozenset()
    writers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    anonymous: bool = False


class Authorizer:
    """Authenticates senders and determines their permissions.

    Without an :class:`Access` the clients' *certificates* identify the sender; without those anybody may do everything.
    """

    def __init__(self, access: Access | None, roles: Roles, *, certificates: bool = False) -> None:
        self._named = access is None and certificates
        self._open = access is None and not certificates
        self._guard = Guard(access)
        self._roles = roles

    def authenticate(self, head: RequestHead) -> RequestSender:
        """Return the sender of a request, from its head.

        Raises:
            HttpProblem: 401.
        """
        if self._open:
            return RequestSender("", True, lambda group: True, writes=True)
        if self._named:
            if not head.peer:
                raise HttpProblem(HTTPStatus.FORBIDDEN, "the client certificate has no common name")
            return self._create_sender(head.peer)
        try:
            name = self._guard.authenticate(head)
        except HttpProblem:
            shown = head.header(b"authorization") is not None
            if shown or not self._roles.anonymous or head.method not in READ_METHODS:
                raise
            return self.anonymous_sender
        return self._create_sender(name or "")

    @property
    def anonymous_sender(self) -> RequestSender:
        """Return a sender without credentials."""
        return RequestSender("", False, lambda group: False)

    def _create_sender(self, name: str) -> RequestSender:
        if name in self._roles.administrators:
            return RequestSender(name, True, lambda group: True, writes=True)
        patterns = self._roles.writers.get(name, ())
        allowed = bool(patterns)
        return RequestSender(
            name, False, lambda group: any(fnmatchcase(group, each) for each in patterns), writes=allowed
        )


class WriteRateLimiter:
    """Limits the rate of writes of each sender, with a burst.

    Only the MAX_SENDERS most recent senders are remembered.
    """

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._left: dict[tuple[bool, str], tuple[float, float]] = {}

    def count_write(self, name: str, *, stranger: bool = False) -> None:
        """Count a write of a sender: a user name, or the address of a *stranger*.

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


# The interface of the APIs over the store, each on its own path. The core API is at the root.
#
# Authentication, size limits, rate limits and TLS are the same for all APIs: the server applies them first
# (:mod:`registry.http.application`).


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One request to an API.

    ``path`` is the raw path below the API, ``url`` the API's URL without a final slash, ``registry`` the core API's.
    ``writer`` is the sender; the core checks each touched group with ``writer.may_write``.
    """

    head: RequestHead
    body: bytes
    path: bytes
    url: str
    registry: str
    sender: RequestSender
    pages: PageSizes
    max_answer: int

    def core_request(
        self, verb: Verb, segments: tuple[str, ...], body: Any = ABSENT, *, path: str = "", **more: Any
    ) -> RegistryRequest:
        """Return a request to the core on behalf of the sender; *path* is for errors."""
        sender = self.sender
        return RegistryRequest(
            verb,
            segments,
            path or f"/{'/'.join(segments)}",
            self.registry,
            body=body,
            who=sender.name,
            administrator=sender.administrator,
            may_write=sender.may_write,
            max_answer=self.max_answer,
            **more,
        )

    def check_conditions(self, tags: set[str], subject: str) -> None:
        """Check ``If-Match`` and ``If-None-Match`` against the current *tags*.

        Raises:
            Refusal: ``precondition_failed``.
        """
        matches, known = (parse_etags(self.head.header(name)) for name in (b"if-match", b"if-none-match"))
        check_conditions(tags, matches, known, subject)

    def parse_page(self, limit: str | None, cursor: str | None, path: str) -> tuple[int, str]:
        """Return how many entries a page has, and where it begins.

        Raises:
            Refusal: one of them is not valid.
        """
        if cursor and not (cursor.isascii() and cursor.isprintable()):
            raise Refusal("bad_request", path, error_detail="the cursor is not valid for this registry")
        return min(parse_limit(limit, path) or self.pages.usual, self.pages.most), cursor or ""


class RegistryApi(ABC):
    """An API over the store. Thread-safe; at most one thread at a time writes."""

    @abstractmethod
    def reply(self, call: ApiCall) -> Reply:
        """Carry out a request, including OPTIONS.

        Raises:
            Refusal: it is refused, and nothing has changed; :meth:`error_reply` reports it to the client.
        """

    def error_reply(self, head: RequestHead, url: str, refusal: Refusal) -> Reply:
        """Return the error reply, by default like the core API's; *url* is the API's own. Does not raise."""
        return build_error_reply(head, url, refusal)


RegistryApiFactory = Callable[[RegistryService], RegistryApi]
"""Creates an API over a registry."""


# Registry responses to HTTP replies.

JSON: Final = b"application/json; charset=utf-8"
PROBLEM_TYPE: Final = b"application/problem+json"
MAX_FINDINGS: Final = 20
FINDING: Final = b"xRouter-Finding"
"""A header for each of the first findings of a write: severity, rule, place and message, encoded like attributes."""
_Headers = list[tuple[bytes, bytes]]


def build_reply(head: RequestHead, request: RegistryRequest, place: ResourcePath | str, response: Response) -> Reply:
    """Return the reply to a request that was carried out."""
    fields = common_headers(request.base)
    if response.interaction:
        fields.append((b"xRegistry-xregcorrelationid", response.interaction.encode("ascii")))
    fields += [finding_header(each) for each in response.findings[:MAX_FINDINGS]]
    if response.etag:
        fields.append((b"ETag", response.etag.encode("ascii")))
    if request.verb == "read" and matches_etag(head, response.etag):
        return Reply(304, tuple(fields))
    if response.body is None:
        return Reply(204, tuple(fields))
    if response.version:
        fields.append((b"Content-Location", encode_header(response.version)))
    if response.location:
        fields.append((b"Location", encode_header(response.location)))
    status = 201 if response.location else 200
    if response.document is not None and isinstance(place, ResourcePath):
        return _document_reply(request, place, response, status, fields)
    if response.after:
        url = "/".join((request.base, *request.segments))
        fields.append(next_link(url, iter_query(head), request.limit, response.after, response.count))
    return json_reply(response.body, status, fields)


def build_error_reply(head: RequestHead, base: str, refusal: Refusal, place: ResourcePath | str | None = None) -> Reply:
    """Return the reply to a request that was refused."""
    fields = [*common_headers(base), *retry_headers(refusal)]
    if refusal.name == "action_not_supported":
        refusal.title_args["action"] = head.method
    if refusal.status == 405 and place is not None:
        fields.append((b"Allow", allowed_methods(place)))
    wants = head.header(b"accept") or b""
    content = PROBLEM_TYPE if PROBLEM_TYPE in wants else JSON
    return Reply(refusal.status, ((b"Content-Type", content), *fields), msgspec.json.encode(refusal.problem_json()))


def retry_headers(refusal: Refusal) -> _Headers:
    """Return the header that says when to retry, if that may help."""
    if refusal.name not in ("server_busy", "rate_limited"):
        return []
    return [(b"Retry-After", refusal.title_args.get("seconds", "1").encode("ascii"))]


def json_reply(body: Any, status: int = 200, headers: Iterable[tuple[bytes, bytes]] = (), tag: str = "") -> Reply:
    """Return the reply with a JSON document, and its ETag if it has one."""
    tags = ((b"ETag", tag.encode("ascii")),) if tag else ()
    return Reply(status, ((b"Content-Type", JSON), *tags, *headers), msgspec.json.encode(body))


def options_reply(base: str, place: ResourcePath | str) -> Reply:
    """Return the reply to OPTIONS."""
    methods = allowed_methods(place)
    return Reply(200, ((b"Allow", methods), (b"Access-Control-Allow-Methods", methods), *common_headers(base)))


def allowed_methods(place: ResourcePath | str) -> bytes:
    """Return the methods allowed at a path."""
    verbs = METHODS[methods_key(place)]
    return ", ".join([*(word for word, verb in VERBS.items() if verb in verbs), "OPTIONS"]).encode("ascii")


def _document_reply(
    request: RegistryRequest, place: ResourcePath, response: Response, status: int, fields: _Headers
) -> Reply:
    assert response.document is not None and response.body is not None
    body: Mapping[str, Any] = response.body
    content = body.get("contenttype")
    kind = place.resource
    if response.document_url and request.verb == "read":
        status = 303
        fields.append((b"Location", encode_header(response.document_url)))
    if content is not None:
        fields.insert(0, (b"Content-Type", clean_content_type(content)))
    fields += headers_of_attributes(body, kind)
    fields.append((b"Content-Disposition", response.name.encode("ascii")))
    return Reply(status, tuple(fields), response.document)


def common_headers(base: str) -> _Headers:
    """Return the headers of all replies of the core API."""
    return [(b"Link", f"<{base}/>;rel=xregistry-root".encode("latin-1", "replace"))]


def next_link(
    url: str, query: Iterable[tuple[str, str]], limit: int | None, cursor: str, count: int | None = None
) -> tuple[bytes, bytes]:
    """Return the header with the link to the next page; *query* is the request's."""
    kept = [(name, value) for name, value in query if name not in ("cursor", "limit")]
    more = urlencode([*kept, ("limit", str(limit)), ("cursor", cursor)])
    total = f";count={count}" if count is not None else ""
    return b"Link", f"<{url}?{more}>;rel=next{total}".encode("ascii", "replace")


def iter_query(head: RequestHead) -> list[tuple[str, str]]:
    """Return the names and values of a query in order."""
    return parse_qsl(head.query.decode("latin-1"), keep_blank_values=True)


def finding_header(finding: Mapping[str, str]) -> tuple[bytes, bytes]:
    """Return the header that reports a finding."""
    text = f"{finding['severity']} {finding['rule']} {finding['place']}: {finding['message']}"
    return FINDING, encode_header(text).replace(b"%20", b" ")


def clean_content_type(text: str) -> bytes:
    """Return a content type without characters that are not allowed in a header."""
    return "".join(each if 0x20 <= ord(each) < 0x7F else "?" for each in text).encode("ascii")


# CORS (Fetch standard): web pages of other origins.

ANY: Final = "*"
_METHODS: Final = b"GET, HEAD, PUT, PATCH, POST, DELETE, OPTIONS"
_PREFLIGHT_SECONDS: Final = b"600"
_EXPOSED_HEADERS: Final = (
    *(b"ETag", b"Link", b"Location", b"Content-Location", b"Content-Disposition", b"Allow", b"Retry-After"),
    *(FINDING, b"xRegistry-xregcorrelationid"),
)
"""Headers that pages may read, besides the response's ``xRegistry-`` headers."""
_PREFIX: Final = b"xregistry-"
_ALLOWED_HEADERS: Final = b"Authorization, Content-Type, If-Match, If-None-Match, Accept"
_SAME_SITE: Final = (b"same-origin", b"none")
_WITHOUT_PREFLIGHT: Final = (b"", b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data")
"""Content types that a browser sends without a preflight."""


class CorsPolicy:
    """Allows web pages of some *origins* to use a registry; ``*`` allows all, but without the browser's credentials.

    Without origins it changes nothing.
    """

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._any = ANY in origins
        self._origins = {each.encode("ascii") for each in origins}

    def preflight_reply(self, head: RequestHead) -> Reply | None:
        """Return the reply to a preflight request, which has no credentials; None for other requests."""
        if not self._origins or head.method != "OPTIONS" or head.header(b"access-control-request-method") is None:
            return None
        if head.header(b"origin") is None:
            return None
        asked = head.header(b"access-control-request-headers") or b""
        # Header names cannot contain separators; `*` is not a wildcard for requests with credentials.
        plain = all(byte > 0x1F and byte < 0x7F for byte in asked)
        allowed = asked if asked and plain else _ALLOWED_HEADERS
        fields = (
            (b"Access-Control-Allow-Methods", _METHODS),
            (b"Access-Control-Allow-Headers", allowed),
            (b"Access-Control-Max-Age", _PREFLIGHT_SECONDS),
        )
        shared = self._origin_headers(head)
        return Reply(204, (*shared, *fields) if self._allows(head) else shared)

    def refuse_cross_site(self, head: RequestHead) -> None:
        """Refuse cross-site writes (CSRF) that a foreign page sends with the browser's credentials.

        A form of any page can send such a request; CORS only hides its response. Requests without a preflight (such as
        a POST of plain text) are refused even if ``*`` is allowed.

        Raises:
            HttpProblem: 403.
        """
        origin, site = head.header(b"origin"), head.header(b"sec-fetch-site")
        if head.method in READ_METHODS or (origin is None and site is None) or origin in self._origins:
            return
        # Sec-Fetch-Site is more reliable than the addresses that we see; over plain HTTP there is only Origin.
        own = site in _SAME_SITE if site is not None else (origin or b"").partition(b"://")[2] == head.header(b"host")
        media = (head.header(b"content-type") or b"").partition(b";")[0].strip().lower()
        if not own and not (self._any and (head.method != "POST" or media not in _WITHOUT_PREFLIGHT)):
            detail = "web pages of other origins may not write here, except those in http.cors"
            raise HttpProblem(HTTPStatus.FORBIDDEN, detail)

    def add_headers(self, head: RequestHead, reply: Reply) -> Reply:
        """Return a reply with the CORS headers that let a page read it."""
        if not self._origins:
            return reply
        if not self._allows(head):
            return replace(reply, headers=(*reply.headers, *self._origin_headers(head)))
        own = {name for name, _ in reply.headers if name.lower().startswith(_PREFIX)}
        names = b", ".join([*_EXPOSED_HEADERS, *sorted(own - set(_EXPOSED_HEADERS))])
        return replace(
            reply, headers=(*reply.headers, *self._origin_headers(head), (b"Access-Control-Expose-Headers", names))
        )

    def _allows(self, head: RequestHead) -> bool:
        origin = head.header(b"origin")
        return origin is not None and (self._any or origin in self._origins)

    def _origin_headers(self, head: RequestHead) -> tuple[tuple[bytes, bytes], ...]:
        """Return the headers that allow an origin, with ``Vary`` if they depend on it."""
        if self._any:
            return ((b"Access-Control-Allow-Origin", b"*"),) if head.header(b"origin") is not None else ()
        vary = (b"Vary", b"Origin")
        if not self._allows(head):
            return (vary,)
        origin = head.header(b"origin") or b""
        return (b"Access-Control-Allow-Origin", origin), (b"Access-Control-Allow-Credentials", b"true"), vary
