"""Fetch files and URLs, each once per load, within limits.

User and password are removed from URLs at once (addresses, messages and findings show ``https://***@host/...``) and
sent only to that origin, like logins (:mod:`catalog.documents.connecting`).
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from catalog.dialects import suffixes
from catalog.documents.connecting import (
    ANY_HOST,
    ConnectionPolicy,
    Credentials,
    FetchLimits,
    HttpRequest,
    Logins,
    Trust,
    exchange,
    origin_of,
)
from catalog.findings import DocumentError
from catalog.parsing.regular import open_regular

# One GET, conditional if possible.

MAX_REDIRECTS: Final = 5
_NOT_MODIFIED: Final = 304


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response. ``url`` is the final URL after redirects; ``fresh`` is False for a 304 without data.

    ``link`` is the Link header; ``etag`` and ``modified`` are for later conditional requests.
    """

    url: str
    data: bytes = b""
    fresh: bool = True
    link: str = ""
    etag: str = ""
    modified: str = ""


def fetch_url(
    url: str, credentials: Credentials, limits: FetchLimits, reach: ConnectionPolicy, known: HttpResponse | None = None
) -> HttpResponse:
    """Fetch *url*, conditionally if an earlier response is *known*.

    Raises:
        DocumentError: like :func:`exchange`, or the status is no success; ``transient`` for 408, 425, 429 and 5xx.
    """
    headers = {"Accept": "application/json, application/yaml, */*;q=0.5", "Accept-Encoding": "gzip"}
    if known is not None:
        conditions = {"If-None-Match": known.etag, "If-Modified-Since": known.modified}
        headers |= {name: value for name, value in conditions.items() if value}
    answer = exchange(HttpRequest(url, headers), credentials, reach, limits, redirects=MAX_REDIRECTS)
    if answer.status == _NOT_MODIFIED and known is not None:
        return replace(known, fresh=False)
    if not 200 <= answer.status < 300:
        hint = "check the address, and whether it needs a login (catalog.logins)"
        hint = "try again later" if answer.is_transient else hint
        message = f"{url} cannot be fetched: the server answers {answer.status} {answer.reason}".rstrip()
        raise DocumentError(message, file=url, hint=hint, transient=answer.is_transient)
    link, etag, modified = (answer.headers.get(name, "") for name in ("link", "etag", "last-modified"))
    sendable = etag.isascii() and modified.isascii()
    return HttpResponse(answer.url, answer.data, True, link, etag if sendable else "", modified if sendable else "")


# References to files in documents: relative to the referring file, or ``file:`` URIs.


def path_of_uri(uri: str) -> str:
    """Return the path of a file: URI.

    Raises:
        DocumentError: the URI has another host.
    """
    rest = uri.partition(":")[2].partition("#")[0].partition("?")[0]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host.lower() not in ("", "localhost"):
            raise DocumentError(f"{uri} is a file on another host", file=uri, hint="use an http(s) address")
        rest = slash + path
    return os.path.normpath(unquote(rest))


def resolve_beside_file(reference: str, base: str) -> str:
    """Resolve a relative URI reference, which may be percent-encoded, against a file."""
    if reference.lower().startswith("file:") or reference.startswith("//"):
        return path_of_uri(reference if not reference.startswith("//") else f"file:{reference}")
    path = unquote(reference.partition("?")[0])
    return os.path.normpath(os.path.join(os.path.dirname(base), path)) if path else base


MAX_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of one document."""
FETCH_SECONDS: Final = 30.0
MAX_FETCHES: Final = 1_000
"""Maximum documents that one load fetches."""
MAX_LOAD_BYTES: Final = 256 * 1024 * 1024
MAX_LOAD_SECONDS: Final = 120.0
RETRY_FACTOR: Final = 10.0
"""After a failure that took N seconds, the next try is at least this factor times N seconds later."""
REFETCH_SECONDS: Final = 3_600.0
"""How long only conditional requests are sent; then the document is fetched again, in case its entity tag is wrong."""
MAX_DISTRUSTED: Final = 10_000
"""Maximum addresses remembered for having wrong entity tags."""
CASES: Final = ".cases"
"""Files of test cases have this before their suffix; they are not part of a catalog."""
_MASK: Final = "***"


@dataclass(slots=True)
class HttpCache:
    """Responses of earlier loads for conditional requests, and recent failures.

    It has at most ``max_bytes``; the least recently used responses are dropped first. Slow failures are not retried at
    once, so that a dead host costs at most a tenth of the time. An address that returned two contents with one entity
    tag is always fetched completely.
    """

    max_bytes: int = MAX_LOAD_BYTES
    clock: Callable[[], float] = time.monotonic
    _answers: OrderedDict[str, HttpResponse] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _failures: dict[str, tuple[float, DocumentError]] = field(default_factory=dict)
    _fetched_at: dict[str, float] = field(default_factory=dict)
    _distrusted: set[str] = field(default_factory=set)

    def last_answer(self, uri: str) -> HttpResponse | None:
        """Return the last response of *uri*, if a conditional request is possible."""
        answer = self._answers.get(uri)
        if answer is None or self.clock() >= self._fetched_at[uri] + REFETCH_SECONDS:
            return None
        self._answers.move_to_end(uri)
        return answer

    def recent_failure(self, uri: str) -> DocumentError | None:
        """Return the last failure of *uri*, if it is too recent to retry."""
        until, error = self._failures.get(uri, (0.0, None))
        return error if error is not None and self.clock() < until else None

    def store(self, uri: str, answer: HttpResponse) -> None:
        """Store a response, if it allows conditional requests."""
        self._failures.pop(uri, None)
        since = self._fetched_at.get(uri, 0.0)
        old = self._answers.get(uri)
        if old is not None and old.data != answer.data and (old.etag, old.modified) == (answer.etag, answer.modified):
            if len(self._distrusted) < MAX_DISTRUSTED:
                self._distrusted.add(uri)
        self._remove(uri)
        revalidates = (answer.etag or answer.modified) and uri not in self._distrusted
        if revalidates and len(answer.data) <= self.max_bytes:
            self._answers[uri] = answer
            self._fetched_at[uri] = self.clock() if answer.fresh or old is None else since
            self._bytes += len(answer.data)
        while self._bytes > self.max_bytes:
            self._remove(next(iter(self._answers)))

    def _remove(self, uri: str) -> None:
        answer = self._answers.pop(uri, None)
        self._fetched_at.pop(uri, None)
        self._bytes -= len(answer.data) if answer is not None else 0

    def store_failure(self, uri: str, error: DocumentError, took: float) -> None:
        """Store a failure, for a time that depends on how long it took."""
        self._failures[uri] = (self.clock() + took * RETRY_FACTOR, error)


class Fetcher:
    """Fetches files and URLs for one load, each only once, also if it fails.

    ``seen`` has a mark for each address: equal marks mean equal bytes, failures or folder contents. ``whole`` is False
    if the load sees only a part of a catalog.
    """

    whole = True

    def __init__(
        self,
        *,
        network: bool,
        cache: HttpCache | None = None,
        reach: ConnectionPolicy | None = None,
        logins: Logins | None = None,
        document_bytes: int = MAX_BYTES,
        fetch_seconds: float = FETCH_SECONDS,
        max_fetches: int = MAX_FETCHES,
        load_bytes: int = MAX_LOAD_BYTES,
        load_seconds: float = MAX_LOAD_SECONDS,
    ) -> None:
        """Set the limits per document and for all fetches together; without *reach*, every address is allowed."""
        self.network = network
        self.reach = reach if reach is not None else ConnectionPolicy([ANY_HOST])
        self.seen: dict[str, str] = {}
        self._cache = cache if cache is not None else HttpCache(max_bytes=0)
        self._document_bytes = document_bytes
        self._fetch_seconds = fetch_seconds
        self._fetches_left = max_fetches
        self._bytes_left = load_bytes
        self._seconds_left = load_seconds
        self._memory: dict[str, HttpResponse | DocumentError] = {}
        self.credentials = Credentials(logins if logins is not None else Logins())
        self._down: dict[str, DocumentError] = {}

    def fetch(self, uri: str | Path) -> bytes:
        """Return the bytes of an http(s) URL, a file: URI or a path; a fragment is ignored.

        Raises:
            DocumentError: ``transient`` if it is temporarily unavailable (no connection, timeout, 429,
            5xx), else permanent:
                missing, refused, too large, not a regular file, an invalid address, or a URL while the network is off.
        """
        return self.fetch_response(uri).data

    def fetch_response(self, uri: str | Path) -> HttpResponse:
        """Return what :meth:`fetch` does, with the Link header and the address that redirects led to."""
        address = self.address(uri)
        if address not in self._memory:
            try:
                self._memory[address] = self._fetch_uncached(address)
            except DocumentError as error:
                self._memory[address] = error
            self.seen[address] = _change_mark(self._memory[address])
        outcome = self._memory[address]
        if isinstance(outcome, DocumentError):
            raise outcome.with_traceback(None)
        return outcome

    def list_files(self, folder: str | Path) -> list[Path]:
        """Return the visible document files below *folder*, sorted, and add the list to ``seen``.

        Files of test cases are left out.
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

    def has_changed(self, seen: Mapping[str, str], *, local: bool = False) -> bool:
        """Whether anything *seen* by an earlier load has changed; with *local*, only files are checked."""
        for address, mark in seen.items():
            if local and is_url(address):
                continue
            if address.endswith(os.sep) and not is_url(address):
                self.list_files(address)
            else:
                with suppress(DocumentError):  # its mark shows the difference
                    self.fetch_response(address)
            if self.seen.get(address) != mark:
                return True
        return False

    def forget(self, uri: str) -> None:
        """Remove *uri* from ``seen``, since another response replaced it or it was not needed."""
        self.seen.pop(self.address(uri), None)

    def address(self, uri: str | Path) -> str:
        """Return the canonical form of an address: a URL without fragment, user and password, or a normalised path.

        Raises:
            DocumentError: it is not an http(s) URL, file URI or path.
        """
        if isinstance(uri, str) and is_url(uri):
            return self._strip_userinfo(uri)
        if isinstance(uri, str) and uri.lower().startswith("file:"):
            return path_of_uri(uri)
        return os.path.normpath(uri)

    def resolve(self, reference: str, base: str) -> str:
        """Resolve *reference*, written in the document at *base*, to an address without fragment.

        URLs are resolved by RFC 3986 against the final URL after redirects, paths against the folder of the file.

        Raises:
            DocumentError: not an http(s), file or relative reference, or a local file in a remote document.
        """
        start = self.address(base)
        text = reference.partition("#")[0].strip()
        scheme = _scheme_of(text)
        if scheme not in ("", "http", "https", "file"):
            hint = "use an http(s) or file address, or a relative one"
            raise DocumentError(f"{reference} cannot be fetched: {scheme} is not supported", file=start, hint=hint)
        if scheme in ("http", "https"):
            address = self._strip_userinfo(text)
            if not is_url(start):
                self.reach.name(origin_of(address), Trust.FILE)
            return address
        if not is_url(start):
            return resolve_beside_file(text, start)
        if scheme == "file":
            hint = "documents from the network can only refer to the network"
            raise DocumentError(f"{reference} is a local file, which {start} may not refer to", file=start, hint=hint)
        known = self._memory.get(start)
        landed = known.url if isinstance(known, HttpResponse) else start
        try:
            return self._strip_userinfo(urljoin(landed, text)) if text else start
        except ValueError as error:
            raise DocumentError(f"address {reference} is invalid: {error}", file=start, hint="correct it") from error

    def _strip_userinfo(self, url: str) -> str:
        """Store user and password of a URL for its origin; return the URL without them and without fragment."""
        try:
            parts = urlsplit(url.strip())
            origin = origin_of(url.strip())
        except ValueError as error:
            raise DocumentError(
                f"address {_bare_url(url)} is invalid: {error}", file=_bare_url(url), hint="correct it"
            ) from error
        userinfo, at, host = parts.netloc.rpartition("@")
        if at and userinfo != _MASK:
            self.credentials.userinfo.setdefault(origin, userinfo)
        if not parts.hostname:
            raise DocumentError(f"{_bare_url(url)} has no host", file=_bare_url(url), hint="correct the address")
        netloc = f"{_MASK}@{host.lower()}" if origin in self.credentials.userinfo else host.lower()
        return urlunsplit((parts.scheme.lower(), netloc, parts.path, parts.query, ""))

    def _fetch_uncached(self, address: str) -> HttpResponse:
        if not is_url(address):
            return HttpResponse(address, _read_file(Path(address), self._document_bytes))
        if not self.network:
            hint = "allow network access, or fetch the document and give its path"
            message = f"{address} requires the network, which is off"
            raise DocumentError(message, file=address, hint=hint, offline=True)
        held = self._cache.recent_failure(address)
        if held is not None:
            raise held.with_traceback(None)
        down = self._down.get(origin_of(address))
        if down is not None:
            message = f"{address} is not fetched: its server could not be reached before ({down.file})"
            raise DocumentError(message, file=address, hint=down.hint, transient=True)
        seconds = self._count_fetch(address)
        started = time.monotonic()
        limits = FetchLimits(min(self._document_bytes, self._bytes_left), seconds)
        try:
            answer = fetch_url(address, self.credentials, limits, self.reach, self._cache.last_answer(address))
        except DocumentError as error:
            if seconds < self._fetch_seconds and isinstance(error.__cause__, TimeoutError):
                raise _time_limit_error(address) from error  # Not this server took too long, but all fetches together.
            if error.transient:
                self._cache.store_failure(address, error, time.monotonic() - started)
            if error.transient and error.__cause__ is not None:  # no response at all
                self._down[origin_of(address)] = error
            raise
        finally:
            self._seconds_left -= time.monotonic() - started
        self._bytes_left -= len(answer.data)
        self._cache.store(address, answer)
        return answer

    def _count_fetch(self, address: str) -> float:
        """Count one more fetch against the limits; return the seconds that it may take."""
        if self._fetches_left <= 0 or self._bytes_left <= 0:
            message = f"{address} is not fetched: this load has reached its limit of documents or bytes"
            raise DocumentError(message, file=address, hint="use fewer sources, or files instead of URLs")
        if self._seconds_left <= 0:
            raise _time_limit_error(address)
        self._fetches_left -= 1
        return min(self._fetch_seconds, self._seconds_left)


def _time_limit_error(address: str) -> DocumentError:
    message = f"{address} is not fetched: this load has reached its time limit for the network"
    return DocumentError(message, file=address, hint="try again", transient=True)


def is_url(source: str | Path) -> bool:
    """Whether a source is an http(s) URL, not a path."""
    return isinstance(source, str) and source.lower().startswith(("http://", "https://"))


def _scheme_of(text: str) -> str:
    head, colon, _ = text.partition(":")
    plain = head.replace("+", "").replace("-", "").replace(".", "")
    return head.lower() if colon and plain.isalnum() and plain.isascii() and plain[0].isalpha() else ""


def _bare_url(url: str) -> str:
    """Remove everything up to the last @ from an invalid URL."""
    return url.rpartition("@")[2]


def _read_file(path: Path, limit: int) -> bytes:
    """Read a regular file; others are refused, since reading a device or pipe might never end."""
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


def _change_mark(outcome: HttpResponse | DocumentError) -> str:
    if isinstance(outcome, DocumentError):
        return f"failed: {outcome}"
    return hashlib.sha256(outcome.data + b"\0" + outcome.link.encode()).hexdigest()
