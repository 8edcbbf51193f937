"""Who may send: bearer tokens, users with passwords, and API keys. They are checked before anything else in a request.

Credentials are compared as keyed digests, with all that are known and each in constant time, so that neither the time
nor the answer tells how much of one was right, or whether a name exists. The validation handshake of webhooks needs
none: it does not aim to establish who somebody is (CloudEvents webhook specification, section 4).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from bindings.http.problems import HttpProblem
from bindings.http.request import Head, token_of

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

    def admit(self, head: Head) -> str | None:
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

    def _shown(self, head: Head) -> Iterator[tuple[_Known, bytes]]:
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
