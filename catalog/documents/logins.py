"""Who we are to registries: what is shown to which origin, and to no other.

A login belongs to one origin, that is scheme, host and port. Neither redirects nor references carry it elsewhere: each
request asks anew what its own origin is shown. No secret is part of any text or error.
"""

from __future__ import annotations

import base64
import re
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from catalog.documents.certificates import Certificates
from catalog.documents.tokens import Token, TokenSource, token_of
from catalog.errors import DocumentError
from catalog.parsing.regular import open_regular

MAX_TOKEN_BYTES: Final = 64 * 1024
RENEW_SECONDS: Final = 10.0
"""Time between two tokens of one origin that are asked for since the last one was refused."""
_TOKEN: Final = re.compile(r"[!-~]+")
_NONE: Final = Certificates()


@dataclass(frozen=True, slots=True)
class Login:
    """What one origin is shown: at most one of user and password, a token, the file of one, and a source of tokens."""

    origin: str
    basic: tuple[str, str] | None = field(default=None, repr=False)
    bearer: str = field(default="", repr=False)
    bearer_file: Path | None = None
    tokens: TokenSource | None = None
    certificates: Certificates = _NONE

    @property
    def speaks(self) -> bool:
        """Whether requests get an Authorization header; a client certificate needs none."""
        return bool(self.basic or self.bearer or self.bearer_file or self.tokens)


class Logins:
    """The logins of all origins, with the tokens they were given; later loads reuse both."""

    def __init__(self, logins: Iterable[Login] = (), *, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the logins; of two for one origin the first counts. *clock* gives seconds."""
        self._logins: dict[str, Login] = {}
        for login in logins:
            self._logins.setdefault(login.origin, login)
        self._clock = clock
        self._tokens: dict[str, Token] = {}
        self._renewed: dict[str, float] = {}

    def speaks(self, origin: str) -> bool:
        """Tell whether *origin* is shown an Authorization header."""
        login = self._logins.get(origin)
        return login is not None and login.speaks

    def context(self, origin: str) -> ssl.SSLContext:
        """Return how TLS is spoken with *origin*.

        Raises:
            DocumentError: its certificates cannot be used.
        """
        login = self._logins.get(origin)
        return (login.certificates if login is not None else _NONE).context(origin)

    async def authorization(self, origin: str, seconds: float, refused: str = "") -> str:
        """Return the Authorization header for *origin*; empty when it has none.

        A token that was *refused* is not shown again while another can be had. Getting one takes at most *seconds*.

        Raises:
            DocumentError: there is no token; ``transient`` when there may be one later.
        """
        login = self._logins.get(origin)
        if login is None or not login.speaks:
            return ""
        if login.tokens is not None:
            return await self._granted(origin, login.tokens, seconds, refused)
        if login.bearer_file is not None:
            return _bearer(_read(login.bearer_file), f"{login.bearer_file} for {origin}")
        return basic(*login.basic) if login.basic is not None else _bearer(login.bearer, f"the bearer of {origin}")

    async def _granted(self, origin: str, source: TokenSource, seconds: float, refused: str) -> str:
        known, now = self._tokens.get(origin), self._clock()
        worn = known is not None and f"Bearer {known.value}" == refused
        # A server that refuses them all gets no more of them for a while.
        if worn and now >= self._renewed.get(origin, now):
            self._renewed[origin] = now + RENEW_SECONDS
            known = None
        if known is None or known.until <= now:
            self._tokens.pop(origin, None)
            known = await token_of(source, self._clock, seconds)
            self._tokens[origin] = known
        return _bearer(known.value, f"what {source.url} gives")


@dataclass(slots=True)
class Credentials:
    """What the requests of one load show: the logins, and the users and passwords of URLs, by origin."""

    logins: Logins
    userinfo: dict[str, str] = field(default_factory=dict, repr=False)

    async def authorization(self, origin: str, seconds: float, refused: str = "") -> str:
        """Return the Authorization header for *origin*, as :meth:`Logins.authorization`; a login goes before a URL."""
        userinfo = self.userinfo.get(origin)
        if userinfo is not None and not self.logins.speaks(origin):
            user, _, password = userinfo.partition(":")
            return basic(unquote(user), unquote(password))
        return await self.logins.authorization(origin, seconds, refused)


def basic(user: str, password: str) -> str:
    """Return the header of RFC 7617, in UTF-8."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode("utf-8", "surrogatepass")).decode("ascii")


def _bearer(token: str, what: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise DocumentError(f"{what} is no token", file=what, hint="give a token of visible ASCII characters")
    return f"Bearer {token}"


def _read(file: Path) -> str:
    """Read a token; whoever issues tokens writes the file anew before the old one ends, so it is read each time."""
    try:
        with open(file, "rb", opener=open_regular) as stream:
            data = stream.read(MAX_TOKEN_BYTES)
    except OSError as error:
        hint = "check the path and its rights"
        raise DocumentError(f"{file} cannot be read: {error.strerror}", file=str(file), hint=hint) from error
    return data.decode("ascii", "replace").strip()
