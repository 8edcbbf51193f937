"""Which endpoint a request is for, and who may send it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from bindings.http.request import HttpProblem, RequestHead, token_of
from catalog.templates import Template, parse, tokens_of

# Which endpoint takes a request: routes by path template and method, in the order of the settings.


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """What one endpoint hosts.

    ``path`` is compared with the raw, undecoded path: plain text, or a template (JUDGING.md#templates), which
    is matched in time linear in the path. ``users`` are the names of those who may send to it; None is everybody whom
    the gateway lets in.
    """

    endpoint: str
    path: str
    methods: tuple[str, ...] = ("POST",)
    users: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """The outcome of a look-up: ``endpoint`` None means that no route takes the request; else ``users`` may use it.

    ``allowed`` are the methods of all routes that take the path; empty when none does.
    """

    endpoint: str | None
    allowed: tuple[str, ...]
    users: frozenset[str] | None = None


class PathRoutes:
    """All routes of one gateway. Of several that take a request the first wins; the router unites their candidates."""

    def __init__(self, routes: Sequence[HttpRoute]) -> None:
        self.replace(routes)

    def replace(self, routes: Sequence[HttpRoute]) -> None:
        """Take other routes from now on; a look-up under way on another thread sees the old ones or the new."""
        self._table = _Table(routes)

    def find(self, method: str, path: str) -> RouteMatch:
        """Look up a request by its method (upper case) and raw path."""
        return self._table.find(method, path)


class _Table:
    """One state of the routes. The outcome for each plain path is computed once, unless templates may take it."""

    def __init__(self, routes: Sequence[HttpRoute]) -> None:
        plain: dict[str, list[tuple[int, HttpRoute]]] = {}
        templates: list[tuple[int, HttpRoute, Template]] = []
        for index, route in enumerate(routes):
            template = parse(route.path)
            if template.is_literal:
                plain.setdefault(route.path, []).append((index, route))
            else:
                templates.append((index, route, template))
        self._plain, self._templates = plain, templates
        methods = {method for route in routes for method in route.methods}
        self._settled = {(method, path): self._decided(method, path) for path in plain for method in methods}

    def find(self, method: str, path: str) -> RouteMatch:
        return self._settled.get((method, path)) or self._decided(method, path)

    def _decided(self, method: str, path: str) -> RouteMatch:
        taking = list(self._plain.get(path, ()))
        taking.extend((index, route) for index, route, template in self._templates if template.match(path) is not None)
        ordered = [route for _, route in sorted(taking, key=lambda each: each[0])]
        allowed = tuple(dict.fromkeys(each for route in ordered for each in route.methods))
        taker = next((route for route in ordered if method in route.methods), None)
        return RouteMatch(None, allowed) if taker is None else RouteMatch(taker.endpoint, allowed, taker.users)


# Routes that let in more senders than a later route for the same path: the first route that takes a path decides.

_GAP = None
"""Stands for one character of a placeholder, followed by any number of more."""
Pattern = tuple[str | None, ...]


def shadows(routes: Sequence[HttpRoute]) -> Iterator[tuple[HttpRoute, HttpRoute]]:
    """Yield each pair of an earlier and a later route where the earlier takes requests of senders that the later bars.

    That is so when some path and method suit both, and the earlier is open to all or to somebody whom ``users`` of the
    later does not name.
    """
    patterns = [_segments(route.path) for route in routes]
    for place, later in enumerate(routes):
        if later.users is None:
            continue
        for at, earlier in enumerate(routes[:place]):
            open_to_more = earlier.users is None or not earlier.users <= later.users
            if open_to_more and set(earlier.methods) & set(later.methods) and _meet(patterns[at], patterns[place]):
                yield earlier, later


def _segments(path: str) -> list[Pattern]:
    """Cut a template at its slashes, which no placeholder takes."""
    segments: list[list[str | None]] = [[]]
    for place, token in enumerate(tokens_of(path)):
        if place % 2:
            segments[-1].append(_GAP)
            continue
        first, *rest = token.split("/")
        segments[-1].extend(first)
        segments.extend(list(each) for each in rest)
    return [tuple(each) for each in segments]


def _meet(one: Sequence[Pattern], other: Sequence[Pattern]) -> bool:
    """Tell whether some path fits both."""
    return len(one) == len(other) and all(map(_segments_meet, one, other))


def _segments_meet(one: Pattern, other: Pattern) -> bool:
    """Tell whether some text fits both, by walking every pair of places that a common text may have come to.

    A place is an index and whether the gap before it may go on; there are few, so that this takes at most four times
    the product of both lengths.
    """
    start = (0, False, 0, False)
    reached, waiting = {start}, [start]
    while waiting:
        at, more, there, also = waiting.pop()
        if at == len(one) and there == len(other):
            return True
        for here, going in _steps(one, at, more):
            for beyond, moving in _steps(other, there, also):
                if _fit(_read(one, at, here), _read(other, there, beyond)):
                    step = (here, going, beyond, moving)
                    if step not in reached:
                        reached.add(step)
                        waiting.append(step)
    return False


def _steps(pattern: Pattern, at: int, more: bool) -> Iterator[tuple[int, bool]]:
    """Yield where one more character may lead to: on inside the gap before, or past the next element."""
    if more:
        yield at, True
    if at < len(pattern):
        yield at + 1, pattern[at] is _GAP


def _read(pattern: Pattern, before: int, after: int) -> str | None:
    """Return the character that a step takes; None is any."""
    return None if before == after else pattern[before]


def _fit(one: str | None, other: str | None) -> bool:
    return one is None or other is None or one == other


# Who may send: bearer tokens, users with passwords, and API keys. They are checked before anything else in a request.
#
# Credentials are compared as keyed digests, with all that are known and each in constant time, so that neither the time
# nor the answer tells how much of one was right, or whether a name exists. The validation handshake of webhooks needs
# none: it does not aim to establish who somebody is (CloudEvents webhook specification, section 4).

REALM: Final = "xrouter"
_Known = list[tuple[str, bytes]]
"""Names with the digests of their secrets."""


@dataclass(frozen=True, slots=True)
class Access:
    """Those who may send, each secret under the name of its owner; secrets are not in the representation.

    ``bearer`` tokens come in ``Authorization``, or in the query as ``access_token`` (CloudEvents webhook specification,
    section 3); ``basic`` are users and passwords (RFC 7617); ``api_keys`` come in the header ``api_key_header``.
    """

    bearer: Mapping[str, str] = field(default_factory=dict, repr=False)
    basic: Mapping[str, str] = field(default_factory=dict, repr=False)
    api_keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    api_key_header: str = "X-API-Key"


class Guard:
    """Tells who sent a request; without an :class:`Access` everybody may send, and has no name."""

    def __init__(self, access: Access | None) -> None:
        self._salt = os.urandom(32)
        given = access or Access()
        self._open = access is None
        self._header = given.api_key_header
        self._bearer = [(name, self._digest(token.encode())) for name, token in given.bearer.items()]
        self._basic = [(name, self._digest(f"{name}:{secret}".encode())) for name, secret in given.basic.items()]
        self._keys = [(name, self._digest(key.encode())) for name, key in given.api_keys.items()]

    @property
    def secret_headers(self) -> frozenset[str]:
        """Headers, in lower case, that hold credentials here and so are no part of a record."""
        return frozenset((self._header.lower(),)) if self._keys else frozenset()

    def admit(self, head: RequestHead) -> str | None:
        """Return the name of the sender, from the request's head alone; None where everybody may send.

        Raises:
            HttpProblem: 401: it shows no credentials, or no valid ones.
        """
        if self._open:
            return None
        shown = list(self._shown(head))
        names = [self._whose(known, secret) for known, secret in shown]
        sender = next((name for name in names if name is not None), None)
        if sender is None:
            raise self._unauthorized(shown=bool(shown))
        return sender

    def allow(self, name: str | None, users: Collection[str] | None) -> None:
        """Make sure that the sender may use a route that is for *users*; None is for everybody.

        Raises:
            HttpProblem: 403.
        """
        if users is not None and name not in users:
            raise HttpProblem(HTTPStatus.FORBIDDEN, "these credentials are valid, but may not send to this path")

    def _shown(self, head: RequestHead) -> Iterator[tuple[_Known, bytes]]:
        """Yield each secret that a request shows, with the known digests of its kind, of which there may be none."""
        if self._keys and (key := head.header(self._header.lower().encode("ascii"))) is not None:
            yield self._keys, key
        if self._bearer and (token := token_of(head.query)) is not None:
            yield self._bearer, token
        if (value := head.header(b"authorization")) is not None:
            scheme, _, rest = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                yield self._bearer, rest.strip()
            elif scheme.lower() == b"basic":
                yield self._basic, _decoded(rest.strip())
            else:
                yield [], b""

    def _whose(self, known: _Known, secret: bytes) -> str | None:
        digest = self._digest(secret)
        owner = None
        for name, expected in known:
            if hmac.compare_digest(expected, digest):
                owner = name
        return owner

    def _digest(self, secret: bytes) -> bytes:
        return hashlib.blake2b(secret, key=self._salt).digest()

    def _unauthorized(self, *, shown: bool) -> HttpProblem:
        challenges: list[str] = []
        ways: list[str] = []
        if self._bearer:
            ways.append("a bearer token")
            challenges.append(f'Bearer realm="{REALM}"' + (', error="invalid_token"' if shown else ""))
        if self._basic:
            ways.append("user and password")
            challenges.append(f'Basic realm="{REALM}", charset="UTF-8"')
        if self._keys:
            ways.append(f"an API key in {self._header}")
            # No registered scheme has API keys, and RFC 9110 wants a challenge with every 401.
            challenges.append(f'ApiKey realm="{REALM}", header="{self._header}"')
        detail = "these credentials are not valid here" if shown else f"send {' or '.join(ways)}"
        headers = [(b"www-authenticate", challenge.encode("ascii")) for challenge in challenges]
        return HttpProblem(HTTPStatus.UNAUTHORIZED, detail, *headers)


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""  # No pair of user and password: those have a colon between them.
