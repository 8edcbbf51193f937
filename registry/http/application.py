"""The registry's request handling: authentication on the server's thread, everything else on worker threads.

Reads have several threads, writes have one, since the store has one writer. Both have a bounded queue; when it is full,
requests are answered 503. The path selects the API (:mod:`registry.http.access`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs

from sqlalchemy.exc import SQLAlchemyError

from bindings.http.request import HttpProblem, Reply, RequestHead, body_too_large, unavailable_problem
from bindings.http.server import AcceptedRequest, AnswerCallback
from registry.core import changes
from registry.core.requests import RequestSender
from registry.core.service import RegistryService
from registry.delivery.service import SubscriptionApi
from registry.delivery.subscriptions import MAX_BYTES, PATH
from registry.delivery.targets import RATE, parse_rate
from registry.errors import Refusal
from registry.http.access import (
    READ_METHODS,
    VERBS,
    ApiCall,
    Authorizer,
    CorsPolicy,
    PageSizes,
    RegistryApi,
    RegistryApiFactory,
    WriteRateLimiter,
    build_error_reply,
    common_headers,
    json_reply,
    next_link,
    parse_entry_number,
    parse_json,
    parse_limit,
    parse_query,
    single_value,
)
from registry.http.openapi import HISTORY_ORDERS, MEDIA
from registry.http.pages import PagesApi
from registry.store.engine import is_full

_logger = logging.getLogger(__name__)
_METHODS: Final = frozenset((*VERBS, "OPTIONS"))
_MAX_OPEN_BODY: Final = 4096
"""Maximum body size without credentials, in bytes."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Maximum bytes of a request body and of a response; number of reader threads; queued requests of each kind."""

    max_body: int = 16 * 2**20
    max_answer: int = 64 * 2**20
    readers: int = 4
    waiting: int = 200
    pages: PageSizes = field(default_factory=PageSizes)
    origins: tuple[str, ...] = ()
    """Origins of web pages that may use this registry, ``*`` for all."""


class RegistryApplication:
    """Serves a registry at the URL *base*; '' is the host of each request.

    *apis* are the APIs besides the core API, by path, such as ``/cloudevents``. Those at *open_paths* need no
    credentials, so every request to them is rate-limited like a write, by client address.
    """

    def __init__(
        self,
        service: RegistryService,
        authorizer: Authorizer,
        rate_limiter: WriteRateLimiter,
        limits: RequestLimits,
        base: str,
        apis: Mapping[str, RegistryApiFactory],
        *,
        secure: bool,
        open_paths: Collection[str] = (),
    ) -> None:
        self._apis = [(path.encode("ascii"), api(service)) for path, api in apis.items()]
        self._open = {path.encode("ascii") for path in open_paths}
        self._core = PagesApi(service)
        self._authorizer = authorizer
        self._rate_limiter = rate_limiter
        self._limits = limits
        self._cors = CorsPolicy(limits.origins)
        self._base = base.rstrip("/")
        self._scheme = "https" if secure else "http"
        self._readers = ThreadPoolExecutor(limits.readers, "registry-reader")
        self._writers = ThreadPoolExecutor(1, "registry-writer")
        self._queued = {True: 0, False: 0}
        self._queued_lock = threading.Lock()
        self._unfinished: set[Future[None]] = set()

    def admit(self, head: RequestHead) -> AcceptedRequest | Reply:
        """Accept a request by its head, or return the error reply."""
        preflight = self._cors.preflight_reply(head)
        if preflight is not None:
            return preflight
        accepted = self._admit(head)
        return self.with_cors(head, accepted) if isinstance(accepted, Reply) else accepted

    def _admit(self, head: RequestHead) -> AcceptedRequest | Reply:
        try:
            if head.method not in _METHODS:
                raise HttpProblem(HTTPStatus.NOT_IMPLEMENTED, f"the method {head.method} is not supported")
            open_to_all = self._find_api(head)[0] in self._open
            if not open_to_all:
                self._cors.refuse_cross_site(head)
            writer = self._authorizer.anonymous_sender if open_to_all else self._authorizer.authenticate(head)
            most = _MAX_OPEN_BODY if open_to_all else self._limits.max_body
            if head.length is not None and head.length > most:
                raise body_too_large(most)
            if open_to_all or head.method not in READ_METHODS:
                self._rate_limiter.count_write(head.address if open_to_all else writer.name, stranger=open_to_all)
        except HttpProblem as problem:
            return problem.to_reply()
        except Refusal as refusal:
            return self._error_reply(head, refusal)
        return AcceptedRequest(most, partial(self._perform, head, writer), partial(self._timeout_reply, head))

    def _timeout_reply(self, head: RequestHead) -> Reply:
        detail = "the request timed out; a write may have taken effect"
        return self.with_cors(head, unavailable_problem(detail, 5).to_reply())

    def _perform(self, head: RequestHead, writer: RequestSender, body: bytes, answer: AnswerCallback) -> None:
        """Carry out a request on a worker thread, and pass the reply to the server's thread."""
        writing = head.method not in READ_METHODS
        with self._queued_lock:
            full = self._queued[writing] >= self._limits.waiting
            self._queued[writing] += not full
        if full:
            busy = self._error_reply(head, Refusal("server_busy", head.path.decode("latin-1")))
            answer(self.with_cors(head, busy))
            return
        loop = asyncio.get_running_loop()
        pool = self._writers if writing else self._readers

        def work() -> None:
            reply = self.with_cors(head, self._reply(head, body, writer))
            with self._queued_lock:
                self._queued[writing] -= 1
            _post_reply(loop, answer, reply)

        future = pool.submit(work)
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)

    def with_cors(self, head: RequestHead, reply: Reply) -> Reply:
        """Return a reply with CORS headers."""
        return self._cors.add_headers(head, reply)

    def close(self, seconds: float) -> None:
        """Stop the threads; wait up to *seconds* for requests in progress."""
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._writers.shutdown(wait=False, cancel_futures=True)
        wait(self._unfinished.copy(), seconds)

    def _reply(self, head: RequestHead, body: bytes, writer: RequestSender) -> Reply:
        path, api = self._find_api(head)
        base, limits = self._base_url(head), self._limits
        url = base + path.decode("ascii")
        try:
            below = head.path[len(path) :]
            return api.reply(ApiCall(head, body, below, url, base, writer, limits.pages, limits.max_answer))
        except Refusal as refusal:
            return api.error_reply(head, url, refusal)
        except SQLAlchemyError as error:
            if is_full(error):
                _logger.error("the store's disk is full: a write to %s was refused", head.path.decode("latin-1"))
                return api.error_reply(head, url, Refusal("storage_full", head.path.decode("latin-1")))
            _logger.exception("the store failed at %s %s", head.method, head.path.decode("latin-1"))
        except Exception:
            _logger.exception("%s %s failed", head.method, head.path.decode("latin-1"))
        return api.error_reply(head, url, Refusal("server_error", head.path.decode("latin-1")))

    def _find_api(self, head: RequestHead) -> tuple[bytes, RegistryApi]:
        """Return the path and the API of a request."""
        for path, api in self._apis:
            if head.path == path or head.path.startswith(path + b"/"):
                return path, api
        return b"", self._core

    def _error_reply(self, head: RequestHead, refusal: Refusal) -> Reply:
        path, api = self._find_api(head)
        return api.error_reply(head, self._base_url(head) + path.decode("ascii"), refusal)

    def _base_url(self, head: RequestHead) -> str:
        if self._base:
            return self._base
        host = head.header(b"host") or b"localhost"
        plain = all(0x21 <= byte < 0x7F and byte not in b'<>"\\^`{|}/?#@' for byte in host)
        return f"{self._scheme}://{host.decode('ascii') if plain else 'localhost'}"


def _post_reply(loop: asyncio.AbstractEventLoop, answer: Callable[[Reply], None], reply: Reply) -> None:
    try:
        loop.call_soon_threadsafe(answer, reply)
    except RuntimeError:
        _logger.debug("the server stopped before a reply")


# History over HTTP, at ``/history.json``, which cannot be the name of a group type.

FLAGS: Final = ("xid", "limit", "cursor", "sort")
_ALLOW_HEADER: Final = (b"Allow", ", ".join(READ_METHODS).encode("ascii"))
_PAGE_BYTES: Final = 8 * 2**20


class HistoryApi(RegistryApi):
    """The history; anonymous readers do not see the names of writers."""

    def __init__(self, service: RegistryService) -> None:
        self._service = service

    def reply(self, call: ApiCall) -> Reply:
        """Return a page of entries."""
        path = call.head.path.decode("latin-1")
        if call.path.strip(b"/"):
            raise Refusal("api_not_found", path)
        if call.head.method == "OPTIONS":
            return Reply(204, (_ALLOW_HEADER,))
        if call.head.method not in READ_METHODS:
            refusal = build_error_reply(call.head, call.registry, Refusal("action_not_supported", path))
            return Reply(refusal.status, (*refusal.headers, _ALLOW_HEADER), refusal.body)
        given = parse_query(call.head.query)
        values = {name: single_value(given, name, path) for name in FLAGS}
        if values["sort"] not in (None, *HISTORY_ORDERS):
            why = "history can be sorted only by number or number=desc"
            raise Refusal("bad_sort", path, value=str(values["sort"]), error_detail=why)
        if "\0" in (values["xid"] or ""):  # which no text of PostgreSQL can hold
            raise Refusal("bad_request", path, error_detail="xid contains a NUL character")
        query = changes.HistoryQuery(
            xid=values["xid"] or "",
            below="below" in given,
            oldest=values["sort"] in HISTORY_ORDERS[:2],
            after=parse_entry_number(values["cursor"], path),
            limit=min(parse_limit(values["limit"], path) or call.pages.usual, call.pages.most),
            who=call.sender.administrator or bool(call.sender.name),
        )
        with self._service.session(writing=False) as session:
            found, more = changes.history_page(session.reader.connection, query, min(call.max_answer, _PAGE_BYTES))
        links = common_headers(call.registry)
        if more:
            kept = {name: text for name, text in values.items() if text is not None and name in ("xid", "sort")}
            if query.below:
                kept["below"] = ""
            links.append(next_link(call.url, kept.items(), query.limit, str(found[-1]["number"])))
        return json_reply(found, 200, links)


# The CloudEvents Subscriptions API over HTTP, at ``/subscriptions``, and the callback of webhook targets.
#
# The specification defines only the methods: POST to the collection creates a subscription, GET lists all or reads one,
# PUT replaces (and renews) one, DELETE deletes one and returns its last state.

_ACCEPTED_TYPES: Final = frozenset(("", MEDIA, "application/json"))
_COLLECTION_METHODS: Final = (b"GET", b"HEAD", b"POST", b"OPTIONS")
_ITEM_METHODS: Final = (b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS")
_RATE_HEADER: Final = RATE.lower().encode("ascii")


class SubscriptionsHttpApi(RegistryApi):
    """Subscriptions, for writers (their own) and administrators (all)."""

    def __init__(self, subscriptions: SubscriptionApi) -> None:
        self._subscriptions = subscriptions

    def reply(self, call: ApiCall) -> Reply:
        """Carry out a request."""
        name = _subscription_id(call)
        methods = _ITEM_METHODS if name else _COLLECTION_METHODS
        allow = (b"Allow", b", ".join(methods))
        if call.head.method == "OPTIONS":
            return Reply(HTTPStatus.NO_CONTENT, (allow,))
        if call.head.method.encode("ascii") not in methods:
            return HttpProblem(
                HTTPStatus.METHOD_NOT_ALLOWED, f"{call.head.method} is not allowed here", allow
            ).to_reply()
        if not call.sender.writes:
            raise Refusal("forbidden", PATH, error_detail="only writers may use subscriptions")
        who = None if call.sender.administrator else call.sender.name
        return self._reply_of_one(call, name, who) if name else self._reply_of_all(call, who)

    def _reply_of_all(self, call: ApiCall, who: str | None) -> Reply:
        if call.head.method != "POST":
            return json_reply(self._subscriptions.list_all(who))
        fault = _fault_reply(call)
        if fault is not None:
            return fault
        identifier, created = self._subscriptions.create(parse_json(call.body, PATH), call.sender.name)
        location = (b"Location", f"{call.url}/{identifier}".encode("latin-1", "replace"))
        return json_reply(created, 201, (location,))

    def _reply_of_one(self, call: ApiCall, name: str, who: str | None) -> Reply:
        if call.head.method == "PUT":
            fault = _fault_reply(call)
            return fault or json_reply(self._subscriptions.replace(name, parse_json(call.body, PATH), who))
        act = self._subscriptions.delete if call.head.method == "DELETE" else self._subscriptions.read
        return json_reply(act(name, who))


class PermissionApi(RegistryApi):
    """Receives permissions by ``WebHook-Request-Callback``, authorized by a key instead of credentials."""

    def __init__(self, subscriptions: SubscriptionApi) -> None:
        self._subscriptions = subscriptions

    def reply(self, call: ApiCall) -> Reply:
        """Store a permission."""
        if call.head.method not in ("GET", "POST"):
            return HttpProblem(HTTPStatus.METHOD_NOT_ALLOWED, "use GET or POST", (b"Allow", b"GET, POST")).to_reply()
        key = parse_qs(call.head.query.decode("latin-1")).get("key", [""])[0]
        rate = parse_rate((call.head.header(_RATE_HEADER) or b"*").decode("latin-1"))
        if rate is None:
            return HttpProblem(HTTPStatus.BAD_REQUEST, f"{RATE} is not a valid rate").to_reply()
        if not self._subscriptions.grant_permission(_subscription_id(call), key, rate):
            return HttpProblem(HTTPStatus.NOT_FOUND, "no such permission was requested").to_reply()
        return Reply(HTTPStatus.NO_CONTENT, ((b"Cache-Control", b"no-store"),))


def _subscription_id(call: ApiCall) -> str:
    name = call.path.strip(b"/").decode("latin-1")
    if "/" in name:
        raise Refusal("api_not_found", call.head.path.decode("latin-1"))
    return name


def _fault_reply(call: ApiCall) -> Reply | None:
    media = (call.head.header(b"content-type") or b"").decode("latin-1").partition(";")[0].strip().lower()
    if media not in _ACCEPTED_TYPES:
        return HttpProblem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the content type must be {MEDIA}").to_reply()
    if len(call.body) > MAX_BYTES:
        return HttpProblem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a subscription has at most {MAX_BYTES} bytes"
        ).to_reply()
    return None
