"""Requests over HTTP(S) to addresses that were judged: TLS, tokens, and what is shown to which origin."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import os
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_plus, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec

from catalog.findings import DocumentError
from catalog.parsing.regular import open_regular, read_regular

if TYPE_CHECKING:
    import httpx

# One request over HTTP(S) to an address of its host that was judged, so that no second look-up can give others.

# Which addresses of the network a load may connect to: what documents name is not what the operator named.
#
# Sources are the operator's choice and may be anywhere. What a document refers to may only be a public address, unless
# its host or network is allowed: else a catalog of strangers could ask services of this machine, of its neighbours, or
# of the cloud it runs in. Files are the operator's own: their references may lead to private and loopback addresses
# too, but not to link-local ones. Names are resolved once, all their addresses are judged, and the connection goes to
# one of those. Where the environment has a proxy, it resolves names, and only addresses written as such are judged
# here.

EVERYWHERE: Final = "*"
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_TRANSLATED: Final = ipaddress.ip_network("64:ff9b::/96")
_SHARED: Final = ipaddress.ip_network("100.64.0.0/10")


class Trust(IntEnum):
    """Who named an origin: a document of the network, a file of the operator, or the operator as a source."""

    NETWORK = 0
    FILE = 1
    OPERATOR = 2


class Reach:
    """What may be connected to. ``allowed`` are hosts (``registry.internal``), networks (``10.0.0.0/8``) or ``*``.

    Raises:
        ValueError: an entry that looks like a network is none.
    """

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._hosts: set[str] = set()
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        self._named: dict[str, Trust] = {}
        for entry in allowed:
            try:
                self._networks.append(ipaddress.ip_network(entry.strip("[]")))
            except ValueError:
                if "/" in entry:
                    raise
                self._hosts.add(entry.lower().rstrip("."))

    def name(self, origin: str, trust: Trust) -> None:
        """Note who named an origin (scheme, host and port); more trust is never taken back."""
        self._named[origin] = max(trust, self._named.get(origin, Trust.NETWORK))

    def check(self, url: str, origin: str, host: str, address: str) -> None:
        """Make sure that *url* may be fetched from *address*, one that its host has.

        Raises:
            DocumentError: it may not; lasting.
        """
        trust = self._named.get(origin, Trust.NETWORK)
        if origin.startswith("https:"):  # where servers lead from their http address
            trust = max(trust, self._named.get(origin.replace("https:", "http:", 1), Trust.NETWORK))
        if trust is Trust.OPERATOR or self.admits(host, address):
            return
        parsed = _address(address)
        near = parsed.is_loopback or parsed.is_private or (parsed.version == 4 and parsed in _SHARED)
        if trust is Trust.FILE and near and not (parsed.is_link_local or parsed.is_unspecified):
            return
        hint = f"to allow it, add {host} to catalog.allow_addresses (--allow-address)"
        text = f"{url} is not fetched: a document refers to it, but {host} has the non-public address {address}"
        raise DocumentError(text, file=url, hint=hint)

    def admits(self, host: str, address: str) -> bool:
        """Whether anybody may name a host to connect to, at an address that it has: a public or an allowed one."""
        parsed = _address(address)
        return self.allows(host, address) or (parsed.is_global and not parsed.is_multicast)

    def allows(self, host: str, address: str) -> bool:
        """Whether a host, or an address that it has, is among those that are allowed."""
        parsed = _address(address)
        known = EVERYWHERE in self._hosts or host.lower().rstrip(".") in self._hosts
        return known or any(parsed in network for network in self._networks if network.version == parsed.version)


def _address(text: str) -> IpAddress:
    """Read an address; of an IPv6 one that leads to an IPv4 one, the latter."""
    parsed = ipaddress.ip_address(text.partition("%")[0])
    return (_embedded(parsed) or parsed) if isinstance(parsed, ipaddress.IPv6Address) else parsed


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that packets for an IPv6 address end at, if there is one."""
    if address in _TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


CONNECT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Asking:
    """What is asked of a server, and how: a GET, or the POST of a form or a body. ``seconds`` bound each step of it."""

    url: str
    headers: Mapping[str, str]
    context: ssl.SSLContext
    seconds: float
    form: Mapping[str, str] | None = None
    body: bytes | None = None


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL, without user and password; the default port is left out.

    Raises:
        ValueError: the URL has a port that is no number.
    """
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    default = {"http": 80, "https": 443}.get(parts.scheme)
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port not in (None, default) else "")


@asynccontextmanager
async def asked(asking: Asking, reach: Reach) -> AsyncIterator[httpx.Response]:
    """Give the answer to one request, its body unread; redirects are answers too.

    Raises:
        DocumentError: an address of the host is beyond *reach*.
        httpx.HTTPError: no answer came.
    """
    import httpx

    url = httpx.URL(asking.url).copy_with(userinfo=b"")
    host = url.raw_host.decode("ascii")
    proxied = _by_proxy(url.scheme, host)
    addresses = await _judged(asking.url, host, url.port, reach, proxied=proxied)
    timeout = httpx.Timeout(asking.seconds, connect=min(CONNECT_SECONDS, asking.seconds))
    named = {**asking.headers, "Host": url.netloc.decode("ascii")}
    method = "GET" if asking.form is None and asking.body is None else "POST"
    async with httpx.AsyncClient(timeout=timeout, verify=asking.context, trust_env=proxied) as client:
        for number, address in enumerate(addresses, 1):
            request = client.build_request(
                method,
                url.copy_with(host=address),
                headers=named,
                data=asking.form,
                content=asking.body,
                extensions={"sni_hostname": host},
            )
            try:
                response = await client.send(request, auth=None, stream=True)
            except httpx.ConnectError:
                if number == len(addresses):
                    raise
                continue
            except ssl.SSLError as error:
                raise _refused(error) from error
            try:
                yield response
            except ssl.SSLError as error:
                raise _refused(error) from error
            finally:
                await response.aclose()
            return


def _refused(error: ssl.SSLError) -> httpx.ReadError:
    """Return an error that httpx lets through as one of httpx: with TLS 1.3 it comes after the handshake."""
    import httpx

    return httpx.ReadError(str(error))


def _by_proxy(scheme: str, host: str) -> bool:
    """Whether the environment has a proxy for a host; it looks names up then, and we judge what is no name."""
    proxies = getproxies()
    return (scheme in proxies or "all" in proxies) and not proxy_bypass(host)


async def _judged(url: str, host: str, port: int | None, reach: Reach, *, proxied: bool) -> list[str]:
    """Return the addresses of a host that may be connected to; the host itself if a proxy is to connect.

    Raises:
        DocumentError: one of them may not.
        httpx.ConnectError: the host has none.
    """
    import httpx

    origin = origin_of(url)
    if proxied and not _is_address(host) and host != "localhost" and not host.endswith(".localhost"):
        return [host]
    try:
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)
    except OSError as error:
        raise httpx.ConnectError(f"{host} has no address: {error.strerror or error}") from error
    addresses = list(dict.fromkeys(str(info[4][0]) for info in infos))
    for address in addresses:
        reach.check(url, origin, host, address)
    return addresses


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


# TLS of one connection: whom to trust, and what we show; files are read anew when they change.


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: authorities to trust instead of the system's, our own certificate, and its private key.

    ``texts`` are their contents where they travel to machines that have no such files; see :meth:`as_texts`.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    texts: tuple[str, str, str] | None = field(default=None, repr=False)

    def as_texts(self) -> Certificates:
        """Return these certificates with the contents that the files have now, for another machine.

        Raises:
            DocumentError: a file cannot be read.
        """
        try:
            ca, certificate, key = ("" if path is None else read_regular(path).decode() for path in self._files)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            named = ", ".join(str(path) for path in self._files if path)
            raise DocumentError(f"certificates cannot be read: {reason} ({named})", hint="check the paths") from error
        return replace(self, texts=(ca, certificate, key))

    @property
    def _files(self) -> tuple[Path | None, Path | None, Path | None]:
        return self.ca, self.certificate, self.key

    def context(self, origin: str) -> ssl.SSLContext:
        """Return the context of connections to *origin*; servers are always verified.

        Raises:
            DocumentError: a file cannot be used.
        """
        try:
            held = self._files if self.texts is None else ()
            stamps = tuple(os.stat(path).st_mtime_ns for path in held if path)
            return _context(self, stamps)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            named = ", ".join(str(path) for path in self._files if path)
            hint = "use PEM files, and a key without a password"
            text = f"the certificates for {origin} cannot be used: {reason} ({named})"
            raise DocumentError(text, file=origin, hint=hint) from error


@lru_cache(maxsize=16)
def _context(files: Certificates, stamps: tuple[int, ...]) -> ssl.SSLContext:
    """Make a context; reading certificates costs more than a fetch, so once for each state of the files is enough."""
    import httpx  # only who reads from the network pays for it

    if files.texts is not None:
        return _context_of_texts(*files.texts)
    context = ssl.create_default_context(cafile=str(files.ca)) if files.ca else httpx.create_ssl_context()
    if files.certificate is not None:
        # An empty password: a key that is encrypted fails here, instead of asking on the terminal.
        context.load_cert_chain(files.certificate, files.key, password="")
    return context


def _context_of_texts(ca: str, certificate: str, key: str) -> ssl.SSLContext:
    import httpx

    context = ssl.create_default_context(cadata=ca) if ca else httpx.create_ssl_context()
    if certificate:
        # OpenSSL reads a private key from files alone; this folder is its owner's, and gone after the call.
        with TemporaryDirectory() as folder:
            chain = Path(folder) / "own.pem"
            chain.write_text(f"{certificate}\n{key}")
            context.load_cert_chain(chain, password="")
    return context


# Who we are to registries: what is shown to which origin, and to no other.
#
# A login belongs to one origin, that is scheme, host and port. Neither redirects nor references carry it elsewhere:
# each request asks anew what its own origin is shown. No secret is part of any text or error.

# Tokens by OAuth 2 client credentials (RFC 6749 section 4.4): a client id and its secret get one, for a time.

MAX_ANSWER_BYTES: Final = 64 * 1024
EARLY_SECONDS: Final = 30.0
"""How long before its end a token is not used any more; of a short one the last tenth."""
UNSAID_SECONDS: Final = 300.0
"""How long a token is used of which its server does not say when it ends."""
MAX_SECONDS: Final = 86_400.0
_REASONS: Final = frozenset(
    {
        *("invalid_request", "invalid_client", "invalid_grant", "invalid_scope", "unauthorized_client"),
        "unsupported_grant_type",
    }
)
_BUSY: Final = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Where tokens come from, and who asks. ``certificates`` are those of the connection to *url*."""

    url: str
    client: str
    secret: str = field(repr=False)
    scope: str = ""
    certificates: Certificates = field(default_factory=Certificates)


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token, and until when it is to be used, by the clock that was given."""

    value: str = field(repr=False)
    until: float


async def token_of(source: TokenSource, clock: Callable[[], float], seconds: float) -> AccessToken:
    """Ask for a token; redirects are not followed, since they would carry the secret elsewhere.

    Raises:
        DocumentError: there is none; ``transient`` when the server cannot be reached or answers 408, 425, 429 or 5xx.
    """
    import httpx

    pair = f"{quote_plus(source.client)}:{quote_plus(source.secret)}".encode()
    headers = {"Accept": "application/json", "Authorization": f"Basic {base64.b64encode(pair).decode('ascii')}"}
    form = {"grant_type": "client_credentials", **({"scope": source.scope} if source.scope else {})}
    context = source.certificates.context(origin_of(source.url))
    asked_at = clock()
    try:
        # The operator named this address, so it may be anywhere.
        async with asked(Asking(source.url, headers, context, seconds, form), Reach([EVERYWHERE])) as response:
            content = await _content(response)
            status, transient = response.status_code, response.is_server_error or response.status_code in _BUSY
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        text = f"{source.url} returned no token: {' '.join(str(error).split())[:300] or type(error).__name__}"
        hint = "check the address and the network, and try again"
        raise DocumentError(text, file=source.url, hint=hint, transient=True) from error
    if status != httpx.codes.OK:
        reason = content.get("error")
        said = f" ({reason})" if isinstance(reason, str) and reason in _REASONS else ""
        hint = "try again later" if transient else "check token_endpoint, username, password and token_scope"
        text = f"{source.url} returned no token: the server answers {status}{said}"
        raise DocumentError(text, file=source.url, hint=hint, transient=transient)
    return _token(source.url, content, asked_at)


async def _content(response: httpx.Response) -> Mapping[str, object]:
    """Return the object that an answer holds; an empty one for anything else."""
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > MAX_ANSWER_BYTES:
            return {}
    try:
        content = msgspec.json.decode(bytes(data))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _token(url: str, content: Mapping[str, object], asked_at: float) -> AccessToken:
    value, kind = content.get("access_token"), content.get("token_type", "Bearer")
    if not isinstance(value, str) or not isinstance(kind, str) or kind.lower() != "bearer":
        hint = "check that token_endpoint is an OAuth 2 token endpoint"
        raise DocumentError(f"{url} did not return a bearer token", file=url, hint=hint)
    said = content.get("expires_in")
    lasts = float(said) if isinstance(said, int | float) and said > 0 else UNSAID_SECONDS
    lasts = min(lasts, MAX_SECONDS)
    return AccessToken(value, asked_at + lasts - min(EARLY_SECONDS, lasts / 10))


MAX_TOKEN_BYTES: Final = 64 * 1024
RENEW_SECONDS: Final = 10.0
"""Time between two tokens of one origin that are asked for since the last one was refused."""
_TOKEN: Final = re.compile(r"[!-~]+")
_NONE: Final = Certificates()


@dataclass(frozen=True, slots=True)
class OriginLogin:
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

    def __init__(self, logins: Iterable[OriginLogin] = (), *, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the logins; of two for one origin the first counts. *clock* gives seconds."""
        self._logins: dict[str, OriginLogin] = {}
        for login in logins:
            self._logins.setdefault(login.origin, login)
        self._clock = clock
        self._tokens: dict[str, AccessToken] = {}
        self._renewed: dict[str, float] = {}

    def speaks(self, origin: str) -> bool:
        """Whether *origin* is shown an Authorization header."""
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
        return _bearer(known.value, f"the response of {source.url}")


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
        raise DocumentError(f"{what} is not a valid token", file=what, hint="use a token of visible ASCII characters")
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
