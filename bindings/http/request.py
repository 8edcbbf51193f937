"""HTTP requests for servers: head, limits, routes, access, and problems as responses."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import socket
import ssl
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from http import HTTPStatus
from itertools import combinations
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from bindings.gateways import GatewayError, Tls
from bindings.parts import Part
from catalog.protocols.properties import REQUEST_CREDENTIALS, TOKEN_PARAMETER
from catalog.templates import Template, parse_template, split_tokens

# The head of a request, and the properties of a native record made from it (MATCHING.md#records).

TOKEN: Final = TOKEN_PARAMETER.encode()
"""The query parameter that is never part of a record."""
_CACHED_NAMES: Final = 200
_to_part: Final = partial(
    tuple.__new__, Part
)  # A call of Part takes three times as long, and most parts are made here.


class RequestHead(NamedTuple):
    """Request line and headers: ``path`` and ``query`` raw, header names in lower case, in the order of arrival.

    ``length`` is the Content-Length, None without one. ``keep_alive``: whether the client would send more requests on
    this connection. ``expects_continue``: whether it waits for 100 before it sends the body. ``peer`` is the common
    name of the client's certificate, '' without one; ``address`` is the address or network under which the client is
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
    """Converts requests to parts of records. *secret* are additional headers with credentials, in lower case."""

    def __init__(self, secret: frozenset[str] = frozenset()) -> None:
        self._excluded = REQUEST_CREDENTIALS | secret
        self._part_key = lru_cache(_CACHED_NAMES)(self._make_part_key)

    def parts_of_head(self, head: RequestHead) -> list[Part]:
        """Convert a head to the parts ``method``, ``path`` (raw), ``query.*`` and ``headers.*``, without credentials.

        Values are byte for byte those of the request.
        """
        parts = [Part("method", head.method.encode("ascii")), Part("path", head.path)]
        if head.query:
            parts.extend(iter_query_parts(head.query))
        key_of = self._part_key
        named = [(key, value, None) for name, value in head.headers if (key := key_of(name)) is not None]
        parts.extend(map(_to_part, named))
        return parts

    def _make_part_key(self, name: bytes) -> str | None:
        """Return the part key of a header; None if it is left out."""
        text = name.decode("latin-1")
        return None if text in self._excluded else f"headers.{text}"


def iter_query_parts(query: bytes) -> Iterator[Part]:
    """Yield query parameters in order, form-decoded (``+`` is a space), without the access token.

    A malformed percent sequence stays unchanged, as does a name that is not UTF-8: a key is text.
    """
    for pair in query.split(b"&"):
        if not pair:
            continue
        raw_name, _, raw_value = pair.partition(b"=")
        name = _decode_form(raw_name)
        if name == TOKEN:
            continue
        try:
            key = name.decode("utf-8")
        except UnicodeDecodeError:
            key = raw_name.decode("utf-8", "backslashreplace")
        yield Part(f"query.{key}", _decode_form(raw_value))


def find_access_token(query: bytes) -> bytes | None:
    """Return the access token of a query (RFC 6750 section 2.3)."""
    pairs = (pair.partition(b"=") for pair in query.split(b"&"))
    return next((_decode_form(value) for name, _, value in pairs if _decode_form(name) == TOKEN), None)


def _decode_form(text: bytes) -> bytes:
    return unquote_to_bytes(text.replace(b"+", b" "))


# Short responses, and problems as ``application/problem+json`` (RFC 9457) with a fixed title for each status.

_LINES: Final = {int(status): f"HTTP/1.1 {int(status)} {status.phrase}\r\n".encode("ascii") for status in HTTPStatus}
_BARE: Final = {status: line + b"date: %b\r\ncontent-length: 0\r\n\r\n" for status, line in _LINES.items()}


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete response; its length is added when it is sent."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""

    def encode(self, date: bytes, connection: bytes, *, body: bool) -> bytes:
        """Encode it as HTTP/1.1, with *body* False for HEAD; *connection* is the value of that header, if any."""
        if not (self.headers or self.body or connection):
            return _BARE[self.status] % date
        lines = [_LINES[self.status], b"date: ", date, b"\r\ncontent-length: %d\r\n" % len(self.body)]
        lines += [b"%s: %s\r\n" % header for header in self.headers]
        if connection:
            lines.append(b"connection: %s\r\n" % connection)
        lines.append(b"\r\n")
        if body:
            lines.append(self.body)
        return b"".join(lines)


class HttpProblem(Exception):
    """A request that gets a problem response: nothing of it was stored, unless ``detail`` says otherwise."""

    def __init__(self, status: HTTPStatus, detail: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers

    def to_reply(self) -> Reply:
        """Return the response to send."""
        problem = {"type": "about:blank", "title": self.status.phrase, "status": self.status, "detail": self.detail}
        content = (b"content-type", b"application/problem+json")
        return Reply(self.status, (content, *self.headers), json.dumps(problem).encode("ascii"))


def unavailable_problem(detail: str, retry_after: int) -> HttpProblem:
    """Return the problem response (503) of a gateway that accepts nothing now; ``retry_after`` is in seconds."""
    return HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, detail, (b"retry-after", b"%d" % retry_after))


def body_too_large(limit: int) -> HttpProblem:
    """Return the problem for a body of more than *limit* bytes."""
    return HttpProblem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a message may have at most {limit} bytes; send less, or a reference"
    )


# The limits of an HTTP server: per request, and for all connections together.


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Sizes in bytes, times in seconds.

    ``max_target`` limits path and query (414), ``max_header_bytes`` the request line with all headers and
    ``max_headers`` their number (431). ``max_connections`` of all clients and ``max_per_address`` of one address are
    open at a time. ``max_held_bytes`` limits the bodies in memory at a time.

    ``header_timeout`` limits a client's time from its first byte to the end of the headers, for the TLS handshake, and
    to read a response; ``request_timeout`` that of a body to arrive, and again that of its answer; ``idle_timeout``
    that between two requests; ``linger`` that for which the rest of a refused body is read and dropped.
    """

    max_target: int = 8 * 2**10
    max_header_bytes: int = 64 * 2**10
    max_headers: int = 200
    max_connections: int = 1000
    max_per_address: int = 256
    max_held_bytes: int = 256 * 2**20
    header_timeout: float = 10.0
    request_timeout: float = 30.0
    idle_timeout: float = 30.0
    linger: float = 2.0


# Listening sockets and certificates of HTTP servers.


def open_listener(host: str, port: int, who: str) -> socket.socket:
    """Return a listening socket; *who* is named in errors.

    Raises:
        GatewayError: the address is not available.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        remedy = "choose another port, or stop the process that uses it"
        raise GatewayError(f"the {who} cannot listen on {host}:{port}: {error.strerror or error}; {remedy}") from error


def create_server_tls(tls: Tls | None) -> ssl.SSLContext | None:
    """Return the TLS context of a server; None if it serves without TLS.

    If ``ca`` is set, clients need a certificate from one of these authorities.

    Raises:
        GatewayError: a file cannot be used.
    """
    if tls is None:
        return None
    certificate, key, clients = tls.certificate or "", tls.key, tls.ca
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key)
        if clients is not None:
            context.load_verify_locations(clients)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        names = f"certificate {certificate} with key {key}" + (f" and authorities {clients}" if clients else "")
        raise GatewayError(f"{names} cannot be used: {error}") from error
    return context


# Which endpoint gets a request (routes by path template and method, in the order of the settings), and who may send it.


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """A path that an endpoint hosts.

    ``path`` is compared with the raw, undecoded path: plain text, or a template (MATCHING.md#templates), which is
    matched in time linear in the path. ``users`` may send to it; None is everybody whom the gateway accepts.
    """

    endpoint: str
    path: str
    methods: tuple[str, ...] = ("POST",)
    users: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """The result of a look-up: ``endpoint`` is None if no route matches; else only ``users`` may send.

    ``allowed`` are the methods of all routes with a matching path; empty if there is none.
    """

    endpoint: str | None
    allowed: tuple[str, ...]
    users: frozenset[str] | None = None


class PathRoutes:
    """An immutable table of the routes of one gateway; the first matching one is used."""

    def __init__(self, routes: Sequence[HttpRoute]) -> None:
        self._plain: dict[str, list[tuple[int, HttpRoute]]] = {}
        self._templates: list[tuple[int, HttpRoute, Template]] = []
        for index, route in enumerate(routes):
            template = parse_template(route.path)
            if template.is_literal:
                self._plain.setdefault(route.path, []).append((index, route))
            else:
                self._templates.append((index, route, template))
        methods = {method for route in routes for method in route.methods}
        self._settled = {(method, path): self._decide_route(method, path) for path in self._plain for method in methods}

    def find_route(self, method: str, path: str) -> RouteMatch:
        """Find the route for a method (upper case) and a raw path; those for plain paths are precomputed."""
        return self._settled.get((method, path)) or self._decide_route(method, path)

    def _decide_route(self, method: str, path: str) -> RouteMatch:
        found = list(self._plain.get(path, ()))
        found.extend((index, route) for index, route, template in self._templates if template.match(path) is not None)
        ordered = [route for _, route in sorted(found, key=lambda each: each[0])]
        allowed = tuple(dict.fromkeys(each for route in ordered for each in route.methods))
        route = next((route for route in ordered if method in route.methods), None)
        return RouteMatch(None, allowed) if route is None else RouteMatch(route.endpoint, allowed, route.users)


# Routes that accept more senders than a later route for the same path: the first route with a matching path decides.


def iter_shadowing_routes(routes: Sequence[HttpRoute]) -> Iterator[tuple[HttpRoute, HttpRoute]]:
    """Yield pairs of routes where the earlier accepts senders that the later excludes.

    That is so if some path and method match both, and the earlier is open to all or to somebody who is not in ``users``
    of the later.
    """
    for earlier, later in combinations(routes, 2):
        if later.users is None or (earlier.users is not None and earlier.users <= later.users):
            continue
        if set(earlier.methods) & set(later.methods) and _overlap(earlier.path, later.path):
            yield earlier, later


def _overlap(one: str, other: str) -> bool:
    """Whether a path can match both templates; a placeholder matches characters of one level only.

    Between two templates with placeholders, those of one name are not compared across levels.
    """
    if len(split_tokens(one)) == 1 or len(split_tokens(other)) == 1:
        return parse_template(one).match(other) is not None or parse_template(other).match(one) is not None
    mine, its = one.split("/"), other.split("/")
    return len(mine) == len(its) and all(map(_levels_overlap, mine, its))


def _levels_overlap(one: str, other: str) -> bool:
    mine, its = split_tokens(one), split_tokens(other)
    if len(mine) == 1 or len(its) == 1:
        return parse_template(one).match(other) is not None or parse_template(other).match(one) is not None
    # What is between the first and the last placeholder of one fits into a placeholder of the other.
    begin = mine[0].startswith(its[0]) or its[0].startswith(mine[0])
    return begin and (mine[-1].endswith(its[-1]) or its[-1].endswith(mine[-1]))


# Who may send: bearer tokens, users with passwords, and API keys. They are checked before anything else in a request.
#
# Credentials are looked up by digests with a key of this process, so that neither the time nor the response shows how
# much of one was right, or whether a name exists. The webhook validation handshake needs none: it is not meant to
# authenticate anybody (CloudEvents webhook specification, section 4).

REALM: Final = "xrouter"
_API_KEY: Final = "api key"
"""The kind of a secret that is no scheme of ``Authorization``, which has no space."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may send: each secret under the name of its owner. Secrets are not in the representation.

    ``bearer`` tokens are in ``Authorization``, or in the query as ``access_token`` (CloudEvents webhook specification,
    section 3); ``basic`` are users and passwords (RFC 7617); ``api_keys`` are in the header ``api_key_header``.
    """

    bearer: Mapping[str, str] = field(default_factory=dict, repr=False)
    basic: Mapping[str, str] = field(default_factory=dict, repr=False)
    api_keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    api_key_header: str = "X-API-Key"


class Guard:
    """Authenticates senders; without an :class:`Access` everybody may send, and has no name."""

    def __init__(self, access: Access | None) -> None:
        self._salt = os.urandom(32)
        self._access = access
        self._owners: dict[bytes, str] = {}
        if access is not None:
            self._owners |= {self._digest("bearer", token.encode()): name for name, token in access.bearer.items()}
            basic = access.basic.items()
            self._owners |= {self._digest("basic", f"{name}:{secret}".encode()): name for name, secret in basic}
            self._owners |= {self._digest(_API_KEY, key.encode()): name for name, key in access.api_keys.items()}

    @property
    def secret_headers(self) -> frozenset[str]:
        """Headers, in lower case, that contain credentials here and so are not part of a record."""
        access = self._access
        return frozenset((access.api_key_header.lower(),)) if access and access.api_keys else frozenset()

    def authenticate(self, head: RequestHead) -> str | None:
        """Authenticate a request by its head; return the sender's name, or None if everybody may send.

        Raises:
            HttpProblem: 401: it has no credentials, or no valid ones.
        """
        if self._access is None:
            return None
        shown = [self._digest(kind, secret) for kind, secret in _iter_secrets(self._access, head)]
        sender = next((self._owners[each] for each in shown if each in self._owners), None)
        if sender is None:
            raise _unauthorized_problem(self._access, shown=bool(shown))
        return sender

    def check_allowed(self, name: str | None, users: Collection[str] | None) -> None:
        """Raise unless the sender is one of *users*; None allows everybody.

        Raises:
            HttpProblem: 403.
        """
        if users is not None and name not in users:
            raise HttpProblem(HTTPStatus.FORBIDDEN, "these credentials are valid, but may not send to this path")

    def _digest(self, kind: str, secret: bytes) -> bytes:
        return hashlib.blake2b(kind.encode() + b" " + secret, key=self._salt).digest()


def _iter_secrets(access: Access, head: RequestHead) -> Iterator[tuple[str, bytes]]:
    """Yield each secret in a request, with its kind."""
    if access.api_keys and (key := head.header(access.api_key_header.lower().encode("ascii"))) is not None:
        yield _API_KEY, key
    if access.bearer and (token := find_access_token(head.query)) is not None:
        yield "bearer", token
    if (value := head.header(b"authorization")) is not None:
        scheme, _, rest = value.strip().partition(b" ")
        kind = scheme.lower().decode("latin-1")
        yield kind, _decode_base64(rest.strip()) if kind == "basic" else rest.strip()


def _unauthorized_problem(access: Access, *, shown: bool) -> HttpProblem:
    challenges: list[str] = []
    ways: list[str] = []
    if access.bearer:
        ways.append("a bearer token")
        challenges.append(f'Bearer realm="{REALM}"' + (', error="invalid_token"' if shown else ""))
    if access.basic:
        ways.append("user and password")
        challenges.append(f'Basic realm="{REALM}", charset="UTF-8"')
    if access.api_keys:
        ways.append(f"an API key in {access.api_key_header}")
        # No registered scheme has API keys, and RFC 9110 requires a challenge with every 401.
        challenges.append(f'ApiKey realm="{REALM}", header="{access.api_key_header}"')
    detail = "these credentials are not valid here" if shown else f"send {' or '.join(ways)}"
    headers = [(b"www-authenticate", challenge.encode("ascii")) for challenge in challenges]
    return HttpProblem(HTTPStatus.UNAUTHORIZED, detail, *headers)


def _decode_base64(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""  # Not a user and password, which have a colon between them.
