"""Fetching what documents consist of and refer to: files and URLs, each once per load, within limits.

User and password of a URL are taken off where it comes in (``https://***@host/...`` stands for it in every address,
message and finding) and sent to that very origin only, as logins are (:mod:`catalog.documents.connecting`).
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from catalog.dialects import suffixes
from catalog.documents.connecting import EVERYWHERE, Asking, Credentials, Logins, Reach, Trust, asked, origin_of
from catalog.findings import DocumentError
from catalog.parsing.regular import open_regular

if TYPE_CHECKING:
    import httpx

# One GET over HTTP(S) with hard limits: the clock, the size and the redirects of a stranger's server are bounded.
#
# The clock holds for the whole exchange, headers and redirects included, so that a server which sends a byte now and
# then keeps nobody. That needs a loop of its own: :func:`get` must not be called where an event loop is running.

MAX_REDIRECTS: Final = 5
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_NOT_NOW: Final = frozenset({408, 425, 429})
_NOT_MODIFIED: Final = 304
_UNAUTHORIZED: Final = 401


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What a server gave. ``url`` is where it was found, redirects followed; ``fresh`` is False for a 304 without data.

    ``link`` is the Link header, ``etag`` and ``modified`` what a later request may ask with.
    """

    url: str
    data: bytes = b""
    fresh: bool = True
    link: str = ""
    etag: str = ""
    modified: str = ""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Bytes that one document may have, and seconds that it may take."""

    document_bytes: int
    seconds: float


def get(
    url: str, credentials: Credentials, limits: FetchLimits, reach: Reach, known: HttpResponse | None = None
) -> HttpResponse:
    """Fetch *url*; when *known* is what it gave before, only if it changed since.

    Each origin on the way is shown its own *credentials* and no others; a token that it refuses is replaced once.
    *reach* judges the addresses of each host on the way, and only those that it was shown are connected to.

    Raises:
        DocumentError: beyond *reach*; or transient when the server cannot be reached, is too slow or answers 408, 425,
            429 or 5xx.
    """
    import httpx  # only who reads from the network pays for it

    try:
        return asyncio.run(_within(url, credentials, limits, reach, known))
    except TimeoutError as error:
        message = f"{url} took longer than {limits.seconds:g} s"
        raise DocumentError(message, file=url, hint="try again", transient=True) from error
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, ValueError) as error:
        lasting = not isinstance(error, httpx.TransportError) or isinstance(error, httpx.UnsupportedProtocol)
        message = f"{url} cannot be fetched: {_reason(error)}"
        hint = "check the address" if lasting else "check the address and the network, and try again"
        raise DocumentError(message, file=url, hint=hint, transient=not lasting) from error


def redirected(url: str, current: str, target: str) -> str:
    """Return where the server at *current* sends who asked for *url*.

    Raises:
        DocumentError: it leads from https to http, or elsewhere than to HTTP(S).
    """
    following = urljoin(current, target)
    parts = urlsplit(following)
    if parts.scheme not in ("http", "https") or (parts.scheme == "http" and urlsplit(current).scheme == "https"):
        hint = "use the address of the document itself"
        shown = f"{parts.scheme}://{parts.hostname}"
        raise DocumentError(f"{url} redirects to {shown}, which is not followed", file=url, hint=hint)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


async def _within(
    url: str, credentials: Credentials, limits: FetchLimits, reach: Reach, known: HttpResponse | None
) -> HttpResponse:
    async with asyncio.timeout(limits.seconds):
        return await _followed(url, credentials, limits, reach, known)


async def _followed(
    url: str, credentials: Credentials, limits: FetchLimits, reach: Reach, known: HttpResponse | None
) -> HttpResponse:
    """Follow redirects, each to HTTP(S) and never from https to http."""
    headers = {"Accept": "application/json, application/yaml, */*;q=0.5", "Accept-Encoding": "gzip"}
    if known is not None and known.etag:
        headers["If-None-Match"] = known.etag
    if known is not None and known.modified:
        headers["If-Modified-Since"] = known.modified
    current, refused, redirects = url, "", 0
    while redirects <= MAX_REDIRECTS:
        origin = origin_of(current)
        shown = await credentials.authorization(origin, limits.seconds, refused)
        sent = {**headers, "Authorization": shown} if shown else headers
        context = credentials.logins.context(origin)
        async with asked(Asking(current, sent, context, limits.seconds), reach) as response:
            target = response.headers.get("location")
            if response.status_code in _REDIRECTS and target:
                current, redirects = redirected(url, current, target), redirects + 1
                continue
            if response.status_code == _UNAUTHORIZED and shown and not refused:
                refused = shown
                if await credentials.authorization(origin, limits.seconds, refused) != refused:
                    continue
            return await _answer(response, url, current, limits, known)
    hint = "use the address that it leads to"
    raise DocumentError(f"{url} redirects more than {MAX_REDIRECTS} times", file=url, hint=hint)


async def _answer(
    response: httpx.Response, url: str, current: str, limits: FetchLimits, known: HttpResponse | None
) -> HttpResponse:
    if response.status_code == _NOT_MODIFIED and known is not None:
        return HttpResponse(known.url, known.data, False, known.link, known.etag, known.modified)
    if not response.is_success:
        status = response.status_code
        transient = status in _NOT_NOW or response.is_server_error
        hint = "try again later" if transient else "check the address, and whether it needs a login (catalog.logins)"
        message = f"{url} cannot be fetched: the server answers {status} {response.reason_phrase}".rstrip()
        raise DocumentError(message, file=url, hint=hint, transient=transient)
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > limits.document_bytes:
            message = f"{url} is larger than {limits.document_bytes} bytes"
            raise DocumentError(message, file=url, hint="split the document")
    link, etag, modified = (response.headers.get(name, "") for name in ("link", "etag", "last-modified"))
    sendable = etag.isascii() and modified.isascii()
    return HttpResponse(current, bytes(data), True, link, etag if sendable else "", modified if sendable else "")


# References to files, as documents write them: relative to the file that they stand in, or as ``file:`` URIs.


def path_of(uri: str) -> str:
    """Return the path of a file: URI.

    Raises:
        DocumentError: it names another host.
    """
    rest = uri.partition(":")[2].partition("#")[0].partition("?")[0]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host.lower() not in ("", "localhost"):
            raise DocumentError(f"{uri} is a file on another host", file=uri, hint="use an http(s) address")
        rest = slash + path
    return os.path.normpath(unquote(rest))


def beside(reference: str, base: str) -> str:
    """Resolve a relative reference against a file; it is a URI reference, so it may be percent-encoded."""
    if reference.lower().startswith("file:") or reference.startswith("//"):
        return path_of(reference if not reference.startswith("//") else f"file:{reference}")
    path = unquote(reference.partition("?")[0])
    return os.path.normpath(os.path.join(os.path.dirname(base), path)) if path else base


MAX_BYTES: Final = 64 * 1024 * 1024
"""Bytes of one document."""
FETCH_SECONDS: Final = 30.0
MAX_FETCHES: Final = 1_000
"""Documents that one load takes from the network."""
MAX_LOAD_BYTES: Final = 256 * 1024 * 1024
MAX_LOAD_SECONDS: Final = 120.0
HOLD_FACTOR: Final = 10.0
"""A failure that took long is not repeated before this many times as long has passed."""
FULL_SECONDS: Final = 3_600.0
"""How long an answer is only asked whether it changed; then it is asked for whole, lest its entity tag lies."""
MAX_DISTRUSTED: Final = 10_000
"""Addresses that are remembered for entity tags that lied."""
CASES: Final = ".cases"
"""Ends the names of files of test cases, before their suffix: they lie beside a catalog and are no part of it."""
_MASK: Final = "***"


@dataclass(slots=True)
class Cache:
    """What URLs gave in earlier loads, so that asking again costs a 304; a watcher keeps it between loads.

    It holds at most ``max_bytes``; what was not asked for longest goes first. Failures that took long are held too, so
    that a dead host costs a tenth of the time at most. An address that gave two contents under one entity tag is asked
    for whole ever after.
    """

    max_bytes: int = MAX_LOAD_BYTES
    clock: Callable[[], float] = time.monotonic
    _answers: OrderedDict[str, HttpResponse] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _held: dict[str, tuple[float, DocumentError]] = field(default_factory=dict)
    _whole: dict[str, float] = field(default_factory=dict)
    _distrusted: set[str] = field(default_factory=set)

    def known(self, uri: str) -> HttpResponse | None:
        """Return the last answer of *uri*, when it can be asked whether it changed."""
        answer = self._answers.get(uri)
        if answer is None or self.clock() >= self._whole[uri] + FULL_SECONDS:
            return None
        self._answers.move_to_end(uri)
        return answer

    def held(self, uri: str) -> DocumentError | None:
        """Return the failure of *uri* that is too young to try again."""
        until, error = self._held.get(uri, (0.0, None))
        return error if error is not None and self.clock() < until else None

    def keep(self, uri: str, answer: HttpResponse) -> None:
        """Remember an answer that has something to ask with."""
        self._held.pop(uri, None)
        since = self._whole.get(uri, 0.0)
        old = self._answers.get(uri)
        if old is not None and old.data != answer.data and (old.etag, old.modified) == (answer.etag, answer.modified):
            if len(self._distrusted) < MAX_DISTRUSTED:
                self._distrusted.add(uri)
        self._drop(uri)
        revalidates = (answer.etag or answer.modified) and uri not in self._distrusted
        if revalidates and len(answer.data) <= self.max_bytes:
            self._answers[uri] = answer
            self._whole[uri] = self.clock() if answer.fresh or old is None else since
            self._bytes += len(answer.data)
        while self._bytes > self.max_bytes:
            self._drop(next(iter(self._answers)))

    def _drop(self, uri: str) -> None:
        answer = self._answers.pop(uri, None)
        self._whole.pop(uri, None)
        self._bytes -= len(answer.data) if answer is not None else 0

    def fail(self, uri: str, error: DocumentError, took: float) -> None:
        """Remember a failure for a time."""
        self._held[uri] = (self.clock() + took * HOLD_FACTOR, error)


class Fetcher:
    """Gives the bytes of files and URLs for one load; what was asked for once is not fetched again, nor is a failure.

    ``seen`` is a mark of all that was asked for, by address: equal marks mean equal bytes, failures and folders.
    ``whole`` is False where a load is shown a part of a catalog only.
    """

    whole = True

    def __init__(
        self,
        *,
        network: bool,
        cache: Cache | None = None,
        reach: Reach | None = None,
        logins: Logins | None = None,
        document_bytes: int = MAX_BYTES,
        fetch_seconds: float = FETCH_SECONDS,
        max_fetches: int = MAX_FETCHES,
        load_bytes: int = MAX_LOAD_BYTES,
        load_seconds: float = MAX_LOAD_SECONDS,
    ) -> None:
        """Fetch within limits, per document and for all of the network together; without *reach* from anywhere."""
        self.network = network
        self.reach = reach if reach is not None else Reach([EVERYWHERE])
        self.seen: dict[str, str] = {}
        self._cache = cache if cache is not None else Cache(max_bytes=0)
        self._document_bytes = document_bytes
        self._fetch_seconds = fetch_seconds
        self._fetches_left = max_fetches
        self._bytes_left = load_bytes
        self._seconds_left = load_seconds
        self._memory: dict[str, HttpResponse | DocumentError] = {}
        self.credentials = Credentials(logins if logins is not None else Logins())
        self._down: dict[str, DocumentError] = {}

    def fetch(self, uri: str | Path) -> bytes:
        """Return the bytes of an http(s) URL, a file: URI or a path; a fragment is left out of account.

        Raises:
            DocumentError: ``transient`` for what is unreachable for now (no connection, timeouts, 429, 5xx); not so for
                what is missing or refused, too large, no regular file, no address, or a URL while the network is off.
        """
        return self.answer(uri).data

    def answer(self, uri: str | Path) -> HttpResponse:
        """Return what :meth:`fetch` does, with the Link header and the address that redirects led to."""
        address = self.address(uri)
        if address not in self._memory:
            try:
                self._memory[address] = self._fetched(address)
            except DocumentError as error:
                self._memory[address] = error
            self.seen[address] = _mark(self._memory[address])
        outcome = self._memory[address]
        if isinstance(outcome, DocumentError):
            raise outcome.with_traceback(None)
        return outcome

    def files(self, folder: str | Path) -> list[Path]:
        """Return the visible files below *folder* that may be documents, sorted; which are there is seen too.

        Files of test cases, which lie beside a catalog, are none.
        """
        top = Path(folder)
        paths = [
            path
            for path in sorted(top.rglob("*"))
            if path.suffix.lower() in suffixes()
            and not path.stem.lower().endswith(CASES)
            and not any(part.startswith(".") for part in path.relative_to(top).parts)
            and path.is_file()
        ]
        listing = "\0".join(map(str, paths)).encode("utf-8", "surrogateescape")
        self.seen[f"{top}{os.sep}"] = hashlib.sha256(listing).hexdigest()
        return paths

    def changed(self, seen: Mapping[str, str], *, local: bool = False) -> bool:
        """Whether anything that a former load has *seen* would be otherwise now; if *local*, of the files only."""
        for address, mark in seen.items():
            if local and is_url(address):
                continue
            if address.endswith(os.sep) and not is_url(address):
                self.files(address)
            else:
                with suppress(DocumentError):  # its mark tells
                    self.answer(address)
            if self.seen.get(address) != mark:
                return True
        return False

    def unwatch(self, uri: str) -> None:
        """Leave *uri* out of what was seen: another answer has taken its place, or none was needed."""
        self.seen.pop(self.address(uri), None)

    def address(self, uri: str | Path) -> str:
        """Return the one name of an address: a URL without fragment, user and password, or a normalised path.

        Raises:
            DocumentError: it is neither http(s), nor file, nor a path.
        """
        if isinstance(uri, str) and is_url(uri):
            return self._masked(uri)
        if isinstance(uri, str) and uri.lower().startswith("file:"):
            return path_of(uri)
        return os.path.normpath(uri)

    def resolve(self, reference: str, base: str) -> str:
        """Return the address that *reference*, written in the document at *base*, means; without its fragment.

        Against a URL this is RFC 3986 (where redirects led to counts), against a file a normalised path.

        Raises:
            DocumentError: no http(s), file or relative reference, or a local file named by a document of the network.
        """
        start = self.address(base)
        text = reference.partition("#")[0].strip()
        scheme = _scheme(text)
        if scheme not in ("", "http", "https", "file"):
            hint = "use an http(s) or file address, or a relative one"
            raise DocumentError(f"{reference} cannot be fetched: {scheme} is not supported", file=start, hint=hint)
        if scheme in ("http", "https"):
            address = self._masked(text)
            if not is_url(start):
                self.reach.name(origin_of(address), Trust.FILE)
            return address
        if not is_url(start):
            return beside(text, start)
        if scheme == "file":
            hint = "documents from the network can only refer to the network"
            raise DocumentError(f"{reference} is a local file, which {start} may not refer to", file=start, hint=hint)
        known = self._memory.get(start)
        landed = known.url if isinstance(known, HttpResponse) else start
        try:
            return self._masked(urljoin(landed, text)) if text else start
        except ValueError as error:
            raise DocumentError(f"address {reference} is invalid: {error}", file=start, hint="correct it") from error

    def _masked(self, url: str) -> str:
        """Keep user and password of a URL for its origin, and return it without them and the fragment."""
        try:
            parts = urlsplit(url.strip())
            origin = origin_of(url.strip())
        except ValueError as error:
            raise DocumentError(
                f"address {_bare(url)} is invalid: {error}", file=_bare(url), hint="correct it"
            ) from error
        userinfo, at, host = parts.netloc.rpartition("@")
        if at and userinfo != _MASK:
            self.credentials.userinfo.setdefault(origin, userinfo)
        if not parts.hostname:
            raise DocumentError(f"{_bare(url)} has no host", file=_bare(url), hint="correct the address")
        netloc = f"{_MASK}@{host.lower()}" if origin in self.credentials.userinfo else host.lower()
        return urlunsplit((parts.scheme.lower(), netloc, parts.path, parts.query, ""))

    def _fetched(self, address: str) -> HttpResponse:
        if not is_url(address):
            return HttpResponse(address, _file_bytes(Path(address), self._document_bytes))
        if not self.network:
            hint = "allow network access, or fetch the document and give its path"
            message = f"{address} requires the network, which is off"
            raise DocumentError(message, file=address, hint=hint, offline=True)
        held = self._cache.held(address)
        if held is not None:
            raise held.with_traceback(None)
        down = self._down.get(origin_of(address))
        if down is not None:
            message = f"{address} is not fetched: its server could not be reached before ({down.file})"
            raise DocumentError(message, file=address, hint=down.hint, transient=True)
        seconds = self._admit(address)
        started = time.monotonic()
        limits = FetchLimits(min(self._document_bytes, self._bytes_left), seconds)
        try:
            answer = get(address, self.credentials, limits, self.reach, self._cache.known(address))
        except DocumentError as error:
            if seconds < self._fetch_seconds and isinstance(error.__cause__, TimeoutError):
                raise _waited(address) from error  # It is not the server that took too long, but all of them.
            if error.transient:
                self._cache.fail(address, error, time.monotonic() - started)
            if error.transient and error.__cause__ is not None:  # no answer at all, rather than a bad one
                self._down[origin_of(address)] = error
            raise
        finally:
            self._seconds_left -= time.monotonic() - started
        self._bytes_left -= len(answer.data)
        self._cache.keep(address, answer)
        return answer

    def _admit(self, address: str) -> float:
        """Count one more fetch, and return the seconds that it may take."""
        if self._fetches_left <= 0 or self._bytes_left <= 0:
            message = f"{address} is not fetched: this load has reached its limit of documents or bytes"
            raise DocumentError(message, file=address, hint="use fewer sources, or files instead of URLs")
        if self._seconds_left <= 0:
            raise _waited(address)
        self._fetches_left -= 1
        return min(self._fetch_seconds, self._seconds_left)


def _waited(address: str) -> DocumentError:
    message = f"{address} is not fetched: this load has reached its time limit for the network"
    return DocumentError(message, file=address, hint="try again", transient=True)


def is_url(source: str | Path) -> bool:
    """Tell an http(s) URL from a path."""
    return isinstance(source, str) and source.lower().startswith(("http://", "https://"))


def _scheme(text: str) -> str:
    head, colon, _ = text.partition(":")
    plain = head.replace("+", "").replace("-", "").replace(".", "")
    return head.lower() if colon and plain.isalnum() and plain.isascii() and plain[0].isalpha() else ""


def _bare(url: str) -> str:
    """Return a URL that cannot be split, without anything before an @."""
    return url.rpartition("@")[2]


def _file_bytes(path: Path, limit: int) -> bytes:
    """Read a regular file; a device or a pipe to which nobody writes would never end."""
    try:
        with open(path, "rb", opener=open_regular) as stream:
            data: bytes = stream.read(limit + 1)
    except FileNotFoundError as error:
        raise DocumentError(f"{path} does not exist", file=str(path), hint="check the path") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        hint = "use a file" if isinstance(error, OSError) and error.errno == errno.EINVAL else "check its permissions"
        raise DocumentError(f"{path} cannot be read: {reason}", file=str(path), hint=hint) from error
    if len(data) > limit:
        raise DocumentError(f"{path} is larger than {limit} bytes", file=str(path), hint="split the document")
    return data


def _mark(outcome: HttpResponse | DocumentError) -> str:
    if isinstance(outcome, DocumentError):
        return f"failed: {outcome}"
    return hashlib.sha256(outcome.data + b"\0" + outcome.link.encode()).hexdigest()
