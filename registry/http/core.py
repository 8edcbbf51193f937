"""The core API of xRegistry 1.0, at the root path."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace
from typing import Final

from bindings.http.request import Reply
from registry.core.requests import ABSENT, RegistryRequest, ResourcePath, Response
from registry.core.service import ChangeId, RegistryService
from registry.errors import Refusal
from registry.http.access import (
    READ_METHODS,
    ApiCall,
    RegistryApi,
    build_error_reply,
    build_reply,
    common_headers,
    find_repeated_keys,
    json_reply,
    options_reply,
    parse_request,
    with_body,
)

_CacheKey = tuple[ChangeId, str, bytes, bytes]
_CacheEntry = tuple[RegistryRequest, ResourcePath | str, Response]
_MAX_CACHE_BYTES: Final = 32 * 2**20
_ENTRY_BYTES: Final = 2048
"""Bytes of a cached response in addition to its text."""
DISCOVERY_PATHS: Final = (b"/.well-known/xregistry", b"/.xregistry")
"""Paths of discovery (core ``spec.md``, xRegistry Discovery)."""


class CoreApi(RegistryApi):
    """The core API."""

    def __init__(self, service: RegistryService) -> None:
        self._service = service
        self._kept = _ResponseCache()

    def reply(self, call: ApiCall) -> Reply:
        """Carry out a request."""
        place: ResourcePath | str | None = None
        try:
            if call.head.path in DISCOVERY_PATHS and call.head.method in READ_METHODS:
                return json_reply({"registries": [call.url]}, 200, common_headers(call.url))
            if call.head.method in ("GET", "HEAD"):
                return self._read_cached(call)
            request = parse_request(call)
            place = self._service.parse_path(request.segments, request.path)
            if call.head.method == "OPTIONS":
                return options_reply(call.url, place)
            request = with_body(request, call, place)
            answer = self._service.perform(request)
            if request.document is None and request.body is not ABSENT:
                answer = replace(answer, findings=(*find_repeated_keys(call.body), *answer.findings))
            return build_reply(call.head, request, place, answer)
        except Refusal as refusal:
            return build_error_reply(call.head, call.url, refusal, place)

    def _read_cached(self, call: ApiCall) -> Reply:
        """Return the response to a read, in one transaction, or from the cache if nothing has changed since."""
        with self._service.session(writing=False) as session:
            key = session.last_change, call.url, call.head.path, call.head.query
            kept = self._kept.get(key)
            if kept is None:
                request = parse_request(call)
                place = session.parse_path(request.segments, request.path)
                new = request, place, session.perform(request)
        if kept is not None:
            return build_reply(call.head, *kept)
        reply = build_reply(call.head, *new)
        self._kept.put(key, new, len(reply.body))
        return reply


class _ResponseCache:
    """An LRU cache of responses to reads, valid until the registry changes, with bounded memory."""

    def __init__(self) -> None:
        self._answers: OrderedDict[_CacheKey, tuple[_CacheEntry, int]] = OrderedDict()
        self._weight = 0
        self._lock = threading.Lock()

    def get(self, key: _CacheKey) -> _CacheEntry | None:
        """Return the cached response, None if there is none."""
        with self._lock:
            found = self._answers.get(key)
            if found is None:
                return None
            self._answers.move_to_end(key)
            return found[0]

    def put(self, key: _CacheKey, entry: _CacheEntry, weight: int) -> None:
        """Cache a response, unless it is large or a 304."""
        weight += _ENTRY_BYTES
        if entry[2].body is None or weight > _MAX_CACHE_BYTES // 64:
            return
        with self._lock:
            if key not in self._answers:
                self._answers[key] = entry, weight
                self._weight += weight
            while self._weight > _MAX_CACHE_BYTES:
                self._weight -= self._answers.popitem(last=False)[1][1]
