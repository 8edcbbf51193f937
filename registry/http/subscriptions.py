"""The CloudEvents Subscriptions API over HTTP, at ``/subscriptions``, and what targets of webhooks call back.

The specification leaves the binding open but for its methods: POST to the collection makes a subscription, GET lists
them or reads one, PUT replaces and so renews one, DELETE ends one and answers what it was.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from bindings.http.request import HttpProblem, Reply, RequestHead
from registry.delivery.service import SubscriptionApi
from registry.delivery.subscriptions import MAX_BYTES
from registry.delivery.targets import RATE, rate_of
from registry.errors import Refusal
from registry.http.access import Call
from registry.http.openapi.document import MEDIA
from registry.http.replies import JSON, refusal_of

_TAKEN: Final = frozenset(("", MEDIA, "application/json"))
_COLLECTION: Final = (b"GET", b"HEAD", b"POST", b"OPTIONS")
_ONE: Final = (b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS")
_RATE: Final = RATE.lower().encode("ascii")


class SubscriptionsFace:
    """Keeps :class:`registry.http.access.Face`: for writers, each with subscriptions of their own, and
    administrators.
    """

    def __init__(self, subscriptions: SubscriptionApi) -> None:
        self._subscriptions = subscriptions

    def reply(self, call: Call) -> Reply:
        """Carry a request out."""
        name = _name_of(call)
        methods = _ONE if name else _COLLECTION
        allow = (b"Allow", b", ".join(methods))
        if call.head.method == "OPTIONS":
            return Reply(HTTPStatus.NO_CONTENT, (allow,))
        if call.head.method.encode("ascii") not in methods:
            return HttpProblem(HTTPStatus.METHOD_NOT_ALLOWED, f"{call.head.method} is not for this", allow).reply()
        if not call.writer.writes:
            raise Refusal("forbidden", "/subscriptions", error_detail="subscriptions are for writers")
        who = None if call.writer.administrator else call.writer.name
        return self._one(call, name, who) if name else self._collection(call, who)

    def refused(self, head: RequestHead, url: str, refusal: Refusal) -> Reply:
        """Report a refusal as the core API does."""
        return refusal_of(head, url, refusal)

    def _collection(self, call: Call, who: str | None) -> Reply:
        if call.head.method != "POST":
            return _json(HTTPStatus.OK, self._subscriptions.all(who))
        fault = _fault(call)
        if fault is not None:
            return fault
        identifier, created = self._subscriptions.create(_tree(call), call.writer.name)
        location = (b"Location", f"{call.url}/{identifier}".encode("latin-1", "replace"))
        return _json(HTTPStatus.CREATED, created, location)

    def _one(self, call: Call, name: str, who: str | None) -> Reply:
        if call.head.method == "PUT":
            fault = _fault(call)
            return fault or _json(HTTPStatus.OK, self._subscriptions.replace(name, _tree(call), who))
        act = self._subscriptions.delete if call.head.method == "DELETE" else self._subscriptions.read
        return _json(HTTPStatus.OK, act(name, who))


class PermissionFace:
    """Takes permissions that targets give by ``WebHook-Request-Callback``; who knows the key needs no credentials."""

    def __init__(self, subscriptions: SubscriptionApi) -> None:
        self._subscriptions = subscriptions

    def reply(self, call: Call) -> Reply:
        """Note a permission."""
        if call.head.method not in ("GET", "POST"):
            return HttpProblem(HTTPStatus.METHOD_NOT_ALLOWED, "GET or POST it", (b"Allow", b"GET, POST")).reply()
        key = parse_qs(call.head.query.decode("latin-1")).get("key", [""])[0]
        rate = rate_of((call.head.header(_RATE) or b"*").decode("latin-1"))
        if rate is None:
            return HttpProblem(HTTPStatus.BAD_REQUEST, f"{RATE} is no rate").reply()
        if not self._subscriptions.permit(_name_of(call), key, rate):
            return HttpProblem(HTTPStatus.NOT_FOUND, "nobody asked for this permission").reply()
        return Reply(HTTPStatus.NO_CONTENT, ((b"Cache-Control", b"no-store"),))

    def refused(self, head: RequestHead, url: str, refusal: Refusal) -> Reply:
        """Report a refusal as the core API does."""
        return refusal_of(head, url, refusal)


def _name_of(call: Call) -> str:
    name = call.path.strip(b"/").decode("latin-1")
    if "/" in name or len(name) > 128:
        raise Refusal("api_not_found", call.head.path.decode("latin-1"))
    return name


def _fault(call: Call) -> Reply | None:
    media = (call.head.header(b"content-type") or b"").decode("latin-1").partition(";")[0].strip().lower()
    if media not in _TAKEN:
        return HttpProblem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"a subscription comes as {MEDIA}").reply()
    if len(call.body) > MAX_BYTES:
        return HttpProblem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a subscription has up to {MAX_BYTES} bytes").reply()
    return None


def _tree(call: Call) -> Any:
    try:
        return msgspec.json.decode(call.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal("parsing_data", "/subscriptions", error_detail=str(error)) from None


def _json(status: HTTPStatus, answer: Any, *headers: tuple[bytes, bytes]) -> Reply:
    return Reply(status, ((b"Content-Type", JSON), *headers), msgspec.json.encode(answer))
