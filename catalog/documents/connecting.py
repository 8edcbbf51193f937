"""One HTTP(S) exchange: to checked addresses, within limits, with TLS certificates and credentials for each origin."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import os
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_plus, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec

from catalog.findings import DocumentError
from catalog.parsing.regular import open_regular, read_regular

if TYPE_CHECKING:
    import httpx

# Each request goes to an address that was checked, so that no second DNS look-up can change it.

# The connection policy: which addresses a load may connect to.
#
# Sources are chosen by the operator and may be anywhere. References in documents may lead to public addresses only,
# unless their host or network is allowed; otherwise a foreign catalog could reach internal services (SSRF). References
# in local files may also lead to private and loopback addresses, but not to link-local ones. A name is resolved once,
# all its addresses are checked, and the connection uses one of them. With a proxy in the environment, the proxy
# resolves
# names, so only literal addresses are checked.

ANY_HOST: Final = "*"
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_EMBEDDING: Final = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96")))
"""Networks of IPv6 whose addresses end with one of IPv4: NAT64, that of an own network, and the compatible ones."""
_LOWEST_EMBEDDED: Final = 2**16
"""``::`` and ``::1`` are addresses of their own."""
_CARRIER_NAT: Final = ipaddress.ip_network("100.64.0.0/10")


class Trust(IntEnum):
    """Who referred to an origin: a remote document, a local file, or the operator as a source."""

    NETWORK = 0
    FILE = 1
    OPERATOR = 2


class ConnectionPolicy:
    """Allowed addresses. ``allowed`` has hosts (``registry.internal``), networks (``10.0.0.0/8``) or ``*``.

    Raises:
        ValueError: an entry looks like a network but is not valid.
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
        """Record who referred to an origin (scheme, host and port); the highest trust is kept."""
        self._named[origin] = max(trust, self._named.get(origin, Trust.NETWORK))

    def check_address(self, url: str, origin: str, host: str, address: str) -> None:
        """Check that *url* may be fetched from *address*, one of its host's addresses.

        Raises:
            DocumentError: it may not.
        """
        trust = self._named.get(origin, Trust.NETWORK)
        if origin.startswith("https:"):  # servers redirect from http to https
            trust = max(trust, self._named.get(origin.replace("https:", "http:", 1), Trust.NETWORK))
        if trust is Trust.OPERATOR or self.can_connect(host, address):
            return
        parsed = _parse_address(address)
        near = parsed.is_loopback or parsed.is_private or (parsed.version == 4 and parsed in _CARRIER_NAT)
        if trust is Trust.FILE and near and not (parsed.is_link_local or parsed.is_unspecified):
            return
        hint = f"to allow it, add {host} to catalog.allow_addresses (--allow-address)"
        text = f"{url} is not fetched: a document refers to it, but {host} has the non-public address {address}"
        raise DocumentError(text, file=url, hint=hint)

    def can_connect(self, host: str, address: str) -> bool:
        """Whether any document may connect to this host and address: a public or an allowed one."""
        parsed = _parse_address(address)
        return self.allows(host, address) or (parsed.is_global and not parsed.is_multicast)

    def allows(self, host: str, address: str) -> bool:
        """Whether the host or its address is in the list of allowed ones."""
        parsed = _parse_address(address)
        known = ANY_HOST in self._hosts or host.lower().rstrip(".") in self._hosts
        return known or any(parsed in network for network in self._networks if network.version == parsed.version)


def _parse_address(text: str) -> IpAddress:
    """Parse an address; return the IPv4 address if an IPv6 one contains it."""
    parsed = ipaddress.ip_address(text.partition("%")[0])
    return (_embedded_ipv4(parsed) or parsed) if isinstance(parsed, ipaddress.IPv6Address) else parsed


def _embedded_ipv4(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 address is translated or tunnelled to, None without one."""
    if int(address) >= _LOWEST_EMBEDDED and any(address in network for network in _EMBEDDING):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


CONNECT_SECONDS: Final = 10.0
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_BUSY: Final = frozenset({408, 425, 429})
_UNAUTHORIZED: Final = 401


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request: a GET, or a POST of a form or a body."""

    url: str
    headers: Mapping[str, str]
    form: Mapping[str, str] | None = None
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A response; ``url`` is the address that redirects led to."""

    url: str
    status: int
    reason: str
    headers: httpx.Headers
    data: bytes

    @property
    def is_transient(self) -> bool:
        """Whether a later request may succeed."""
        return self.status in _BUSY or self.status >= 500


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Maximum bytes and seconds for one document."""

    document_bytes: int
    seconds: float


class AnswerTooLarge(DocumentError):
    """A response that is too large; a retry would not help."""


def exchange(
    request: HttpRequest,
    credentials: Credentials,
    reach: ConnectionPolicy,
    limits: FetchLimits,
    *,
    redirects: int = 0,
    failed: str = "cannot be fetched",
    hint: str = "try again",
) -> HttpAnswer:
    """Send a request and return the response, whatever its status; follow at most that many *redirects*.

    Each origin gets only its own *credentials*, also after redirects; a refused token is replaced once, so a request is
    sent at most twice, and only if the first one had no effect. *reach* checks the addresses of every host. It needs an
    event loop of its own, so it must not be called where one is running.

    Raises:
        AnswerTooLarge: the response exceeds *limits*.
        DocumentError: not allowed by *reach*; or transient: no response in time.
    """
    with _no_response(request.url, limits.seconds, failed, hint):
        return asyncio.run(_exchange(request, credentials, reach, limits, redirects))


@contextmanager
def _no_response(url: str, seconds: float, failed: str, hint: str) -> Iterator[None]:
    """Convert the errors of a request to :class:`DocumentError`."""
    import httpx  # a slow import, needed only with network access

    try:
        yield
    except TimeoutError as error:
        raise DocumentError(f"{url} took longer than {seconds:g} s", file=url, hint=hint, transient=True) from error
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, ValueError) as error:
        lasting = not isinstance(error, httpx.TransportError) or isinstance(error, httpx.UnsupportedProtocol)
        text = f"{url} {failed}: {' '.join(str(error).split())[:300] or type(error).__name__}"
        remedy = "check the address" if lasting else "check the address and the network, and try again"
        raise DocumentError(text, file=url, hint=remedy, transient=not lasting) from error


async def _exchange(
    request: HttpRequest, credentials: Credentials, reach: ConnectionPolicy, limits: FetchLimits, redirects: int = 0
) -> HttpAnswer:
    """Like :func:`exchange`; the time limit includes headers and redirects, so that a slow server cannot block."""
    current, refused, followed = request.url, "", 0
    async with asyncio.timeout(limits.seconds):
        while followed <= redirects:
            origin = origin_of(current)
            shown = await credentials.authorization_header(origin, limits.seconds, refused)
            headers = {**request.headers, "Authorization": shown} if shown else request.headers
            sent = replace(request, url=current, headers=headers)
            async with send(sent, credentials.logins.context(origin), limits.seconds, reach) as response:
                target = response.headers.get("location")
                if redirects and response.status_code in _REDIRECTS and target:
                    current, followed = redirect_target(request.url, current, target), followed + 1
                    continue
                if response.status_code == _UNAUTHORIZED and shown and not refused:
                    refused = shown
                    if await credentials.authorization_header(origin, limits.seconds, refused) != refused:
                        continue
                data = b""
                if response.is_success or not redirects:  # what a document's error says is not used
                    data = await _read_body(response, request.url, limits.document_bytes)
                return HttpAnswer(current, response.status_code, response.reason_phrase, response.headers, data)
    hint = "use the address that it leads to"
    raise DocumentError(f"{request.url} redirects more than {redirects} times", file=request.url, hint=hint)


async def _read_body(response: httpx.Response, url: str, limit: int) -> bytes:
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > limit:
            if not response.is_success:
                return b""  # the status says enough, such as whether to try again
            raise AnswerTooLarge(f"{url} is larger than {limit} bytes", file=url, hint="split the document")
    return bytes(data)


def redirect_target(url: str, current: str, target: str) -> str:
    """Return the target of a redirect from *current*, followed while fetching *url*.

    Raises:
        DocumentError: it leads from https to http, or is not HTTP(S).
    """
    following = urljoin(current, target)
    parts = urlsplit(following)
    if parts.scheme not in ("http", "https") or (parts.scheme == "http" and urlsplit(current).scheme == "https"):
        hint = "use the address of the document itself"
        shown = f"{parts.scheme}://{parts.hostname}"
        raise DocumentError(f"{url} redirects to {shown}, which is not followed", file=url, hint=hint)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL, without user and password; the default port is left out.

    Raises:
        ValueError: the port of the URL is not a number.
    """
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    default = {"http": 80, "https": 443}.get(parts.scheme)
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port not in (None, default) else "")


@asynccontextmanager
async def send(
    asking: HttpRequest, context: ssl.SSLContext, seconds: float, reach: ConnectionPolicy
) -> AsyncIterator[httpx.Response]:
    """Send one request and yield the response with unread body; *seconds* is the timeout of each step.

    Raises:
        DocumentError: an address of the host is not allowed by *reach*.
        httpx.HTTPError: no response.
    """
    import httpx

    url = httpx.URL(asking.url).copy_with(userinfo=b"")
    host = url.raw_host.decode("ascii")
    proxied = _uses_proxy(url.scheme, host)
    addresses = await _find_addresses(asking.url, host, url.port, reach, proxied=proxied)
    timeout = httpx.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds))
    named = {**asking.headers, "Host": url.netloc.decode("ascii")}
    method = "GET" if asking.form is None and asking.body is None else "POST"
    async with httpx.AsyncClient(timeout=timeout, verify=context, trust_env=proxied) as client:
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
                raise _as_read_error(error) from error
            try:
                yield response
            except ssl.SSLError as error:
                raise _as_read_error(error) from error
            finally:
                await response.aclose()
            return


def _as_read_error(error: ssl.SSLError) -> httpx.ReadError:
    """Wrap a TLS error that httpx does not wrap: with TLS 1.3 it occurs after the handshake."""
    import httpx

    return httpx.ReadError(str(error))


def _uses_proxy(scheme: str, host: str) -> bool:
    """Whether the environment has a proxy for a host. The proxy then resolves host names."""
    proxies = getproxies()
    return (scheme in proxies or "all" in proxies) and not proxy_bypass(host)


async def _find_addresses(
    url: str, host: str, port: int | None, reach: ConnectionPolicy, *, proxied: bool
) -> list[str]:
    """Resolve a host and check its addresses; return the host itself if a proxy will connect.

    Raises:
        DocumentError: an address is not allowed.
        httpx.ConnectError: the host has no address.
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
        reach.check_address(url, origin, host, address)
    return addresses


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


# TLS certificates; changed files are read again.


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: trusted authorities (default: the system's), the client certificate, and its private key.

    ``texts`` are their contents, for machines without these files; see :meth:`as_texts`.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    texts: tuple[str, str, str] | None = field(default=None, repr=False)

    def as_texts(self) -> Certificates:
        """Return these certificates with the current contents of the files, for use on another machine.

        Raises:
            DocumentError: a file cannot be read.
        """
        try:
            ca, certificate, key = ("" if path is None else read_regular(path).decode() for path in self._files)
        except (OSError, ValueError) as error:
            raise self._unusable("cannot be read", "check the paths", error) from error
        return replace(self, texts=(ca, certificate, key))

    @property
    def _files(self) -> tuple[Path | None, Path | None, Path | None]:
        return self.ca, self.certificate, self.key

    def ssl_context(self, origin: str) -> ssl.SSLContext:
        """Return the SSL context for *origin*; servers are always verified.

        Raises:
            DocumentError: a file cannot be used.
        """
        try:
            held = self._files if self.texts is None else ()
            stamps = tuple(os.stat(path).st_mtime_ns for path in held if path)
            return _load_ssl_context(self, stamps)
        except (OSError, ValueError) as error:
            hint = "use PEM files, and a key without a password"
            raise self._unusable(f"for {origin} cannot be used", hint, error, origin) from error

    def _unusable(self, what: str, hint: str, error: OSError | ValueError, origin: str = "") -> DocumentError:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        named = ", ".join(str(path) for path in self._files if path)
        return DocumentError(f"the certificates {what}: {reason} ({named})", file=origin, hint=hint)


@lru_cache(maxsize=16)
def _load_ssl_context(files: Certificates, stamps: tuple[int, ...]) -> ssl.SSLContext:
    """Make an SSL context, cached until a file changes, since reading certificates costs more than a fetch."""
    import httpx  # a slow import, needed only with network access

    if files.texts is not None:
        return _ssl_context_from_texts(*files.texts)
    context = ssl.create_default_context(cafile=str(files.ca)) if files.ca else httpx.create_ssl_context()
    if files.certificate is not None:
        # With an empty password an encrypted key fails here instead of prompting on the terminal.
        context.load_cert_chain(files.certificate, files.key, password="")
    return context


def _ssl_context_from_texts(ca: str, certificate: str, key: str) -> ssl.SSLContext:
    import httpx

    context = ssl.create_default_context(cadata=ca) if ca else httpx.create_ssl_context()
    if certificate:
        # OpenSSL reads private keys only from files; this folder is private and removed after the call.
        with TemporaryDirectory() as folder:
            chain = Path(folder) / "own.pem"
            chain.write_text(f"{certificate}\n{key}")
            context.load_cert_chain(chain, password="")
    return context


# Logins at registries, each for one origin.
#
# A login belongs to one origin (scheme, host and port). Redirects and references never carry it to another origin:
# each request uses the login of its own origin. Texts and errors never contain secrets.

# Tokens by OAuth 2 client credentials (RFC 6749 section 4.4), requested with a client id and its secret.

MAX_ANSWER_BYTES: Final = 64 * 1024
RENEW_EARLY_SECONDS: Final = 30.0
"""How long before its expiry a token is renewed; for short-lived tokens, a tenth of their lifetime."""
DEFAULT_TOKEN_SECONDS: Final = 300.0
"""How long a token without a stated expiry is used."""
MAX_SECONDS: Final = 86_400.0
_REASONS: Final = frozenset(
    {
        *("invalid_request", "invalid_client", "invalid_grant", "invalid_scope", "unauthorized_client"),
        "unsupported_grant_type",
    }
)


@dataclass(frozen=True, slots=True)
class TokenSource:
    """How to request tokens: URL and credentials. ``certificates`` are for the connection to ``url``."""

    url: str
    client: str
    secret: str = field(repr=False)
    scope: str = ""
    certificates: Certificates = field(default_factory=Certificates)


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token, and the time until which it is used."""

    value: str = field(repr=False)
    until: float


async def request_token(source: TokenSource, clock: Callable[[], float], seconds: float) -> AccessToken:
    """Request a token. Redirects are not followed, since they would carry the secret elsewhere.

    Raises:
        DocumentError: no token; ``transient`` if the server is unreachable or answers 408, 425, 429 or 5xx.
    """
    headers = {"Accept": "application/json"}
    form = {"grant_type": "client_credentials", **({"scope": source.scope} if source.scope else {})}
    pair = quote_plus(source.client), quote_plus(source.secret)
    login = OriginLogin(origin_of(source.url), basic=pair, certificates=source.certificates)
    anywhere = ConnectionPolicy([ANY_HOST])  # the operator configured this address
    limits = FetchLimits(MAX_ANSWER_BYTES, seconds)
    asked_at = clock()
    with _no_response(source.url, seconds, "returned no token", "try again"):
        request = HttpRequest(source.url, headers, form)
        answer = await _exchange(request, Credentials(Logins([login])), anywhere, limits)
    try:
        content = msgspec.json.decode(answer.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        content = {}
    content = content if isinstance(content, dict) else {}
    if answer.status != 200:
        reason = content.get("error")
        said = f" ({reason})" if isinstance(reason, str) and reason in _REASONS else ""
        hint = "try again later" if answer.is_transient else "check token_endpoint, username, password and token_scope"
        text = f"{source.url} returned no token: the server answers {answer.status}{said}"
        raise DocumentError(text, file=source.url, hint=hint, transient=answer.is_transient)
    return _read_access_token(source.url, content, asked_at)


def _read_access_token(url: str, content: Mapping[str, object], asked_at: float) -> AccessToken:
    value, kind = content.get("access_token"), content.get("token_type", "Bearer")
    if not isinstance(value, str) or not isinstance(kind, str) or kind.lower() != "bearer":
        hint = "check that token_endpoint is an OAuth 2 token endpoint"
        raise DocumentError(f"{url} did not return a bearer token", file=url, hint=hint)
    said = content.get("expires_in")
    lasts = float(said) if isinstance(said, int | float) and said > 0 else DEFAULT_TOKEN_SECONDS
    lasts = min(lasts, MAX_SECONDS)
    return AccessToken(value, asked_at + lasts - min(RENEW_EARLY_SECONDS, lasts / 10))


MAX_TOKEN_BYTES: Final = 64 * 1024
RENEW_SECONDS: Final = 10.0
"""Minimum interval between token requests for one origin after a token was refused."""
_TOKEN: Final = re.compile(r"[!-~]+")
_NONE: Final = Certificates()


@dataclass(frozen=True, slots=True)
class OriginLogin:
    """The credentials for one origin: at most one of user and password, token, token file, and token source."""

    origin: str
    basic: tuple[str, str] | None = field(default=None, repr=False)
    bearer: str = field(default="", repr=False)
    bearer_file: Path | None = None
    tokens: TokenSource | None = None
    certificates: Certificates = _NONE

    @property
    def sends_authorization(self) -> bool:
        """Whether requests need an Authorization header; a client certificate does not."""
        return bool(self.basic or self.bearer or self.bearer_file or self.tokens)


class Logins:
    """The logins of all origins and their current tokens, reused by later loads."""

    def __init__(self, logins: Iterable[OriginLogin] = (), *, clock: Callable[[], float] = time.monotonic) -> None:
        """Register the logins; of two for one origin, the first is used. *clock* returns seconds."""
        self._logins: dict[str, OriginLogin] = {}
        for login in logins:
            self._logins.setdefault(login.origin, login)
        self._clock = clock
        self._tokens: dict[str, AccessToken] = {}
        self._renewed: dict[str, float] = {}

    def sends_authorization(self, origin: str) -> bool:
        """Whether requests to *origin* need an Authorization header."""
        login = self._logins.get(origin)
        return login is not None and login.sends_authorization

    def context(self, origin: str) -> ssl.SSLContext:
        """Return the SSL context for *origin*.

        Raises:
            DocumentError: a certificate cannot be used.
        """
        login = self._logins.get(origin)
        return (login.certificates if login is not None else _NONE).ssl_context(origin)

    async def authorization(self, origin: str, seconds: float, refused: str = "") -> str:
        """Return the Authorization header for *origin*; empty if it has no login.

        A *refused* token is replaced if possible. Requesting one takes at most *seconds*.

        Raises:
            DocumentError: no token; ``transient`` if a retry may succeed.
        """
        login = self._logins.get(origin)
        if login is None or not login.sends_authorization:
            return ""
        if login.tokens is not None:
            return await self._current_token(origin, login.tokens, seconds, refused)
        if login.bearer_file is not None:
            return _bearer(_read_token(login.bearer_file), f"{login.bearer_file} for {origin}")
        return to_basic(*login.basic) if login.basic is not None else _bearer(login.bearer, f"the bearer of {origin}")

    async def _current_token(self, origin: str, source: TokenSource, seconds: float, refused: str) -> str:
        known, now = self._tokens.get(origin), self._clock()
        worn = known is not None and f"Bearer {known.value}" == refused
        # If a server refuses new tokens too, stop requesting them for a while.
        if worn and now >= self._renewed.get(origin, now):
            self._renewed[origin] = now + RENEW_SECONDS
            known = None
        if known is None or known.until <= now:
            self._tokens.pop(origin, None)
            known = await request_token(source, self._clock, seconds)
            self._tokens[origin] = known
        return _bearer(known.value, f"the response of {source.url}")


@dataclass(slots=True)
class Credentials:
    """The credentials of one load: the logins, and users and passwords from URLs, by origin."""

    logins: Logins
    userinfo: dict[str, str] = field(default_factory=dict, repr=False)

    async def authorization_header(self, origin: str, seconds: float, refused: str = "") -> str:
        """Return the Authorization header for *origin*, from a login, else from a URL."""
        userinfo = self.userinfo.get(origin)
        if userinfo is not None and not self.logins.sends_authorization(origin):
            user, _, password = userinfo.partition(":")
            return to_basic(unquote(user), unquote(password))
        return await self.logins.authorization(origin, seconds, refused)


def to_basic(user: str, password: str) -> str:
    """Return a Basic Authorization header (RFC 7617, UTF-8)."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode("utf-8", "surrogatepass")).decode("ascii")


def _bearer(token: str, what: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise DocumentError(f"{what} is not a valid token", file=what, hint="use a token of visible ASCII characters")
    return f"Bearer {token}"


def _read_token(file: Path) -> str:
    """Read a token file; read it each time, since the issuer rewrites it before the token expires."""
    try:
        with open(file, "rb", opener=open_regular) as stream:
            data = stream.read(MAX_TOKEN_BYTES)
    except OSError as error:
        hint = "check the path and its rights"
        raise DocumentError(f"{file} cannot be read: {error.strerror}", file=str(file), hint=hint) from error
    return data.decode("ascii", "replace").strip()
