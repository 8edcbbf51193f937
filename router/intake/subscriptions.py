"""Subscriptions of a running router: made, renewed before they end, and deleted when it is stopped in order.

A note in ``state/subscriptions`` says where a subscription is, so that a start renews the one that is there. The note
is written before one is asked for: after a crash in between, those that deliver to our sink are looked for, one is
taken, and others are deleted.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from bindings.background import Background
from bindings.backoff import Backoff
from bindings.http.subscribing import Subscribed, SubscriptionFailed, SubscriptionManager
from catalog.documents.connecting import origin_of
from catalog.documents.logins import Logins
from catalog.errors import DocumentError
from router.errors import StateError
from router.logs import get_logger
from router.settings.subscriptions import SubscriptionSettings
from router.sources.sources import Source
from router.state.durable import damaged, read_object, write_durably
from router.watching.status import Status
from router.watching.subscriptions import SubscriptionMetrics

FOLDER: Final = "subscriptions"
REQUEST_SECONDS: Final = 15.0
ENDLESS_LOOK: Final = timedelta(minutes=5)
"""Time between two renewals of a subscription that has no end: its manager may have lost it."""
_LEAST: Final = 1.0
_NEVER: Final = datetime.min.replace(tzinfo=UTC)
_FOREVER: Final = datetime.max.replace(tzinfo=UTC)
_log = get_logger()
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Note:
    """Where a subscription is; ``url`` is empty while it is being made."""

    manager: str
    sink: str
    url: str


class Subscriptions:
    """All subscriptions of a router. Not for concurrent use."""

    def __init__(self, state: Path, logins: Logins, status: Status, metrics: Callable[[], SubscriptionMetrics]) -> None:
        """*metrics* is asked once, when there is a first subscription."""
        self._folder = state / FOLDER
        self._logins = logins
        self._status = status
        self._make = metrics
        self._metrics: SubscriptionMetrics | None = None
        self._seen: tuple[Source, ...] | None = None
        self._held: dict[str, _Held] = {}

    def follow(self, sources: tuple[Source, ...]) -> None:
        """Hold the subscriptions of these sources from now on; one that is not asked for any more is deleted."""
        if sources is self._seen:
            return
        self._seen = sources
        wanted = {each.endpoint: each for each in sources if each.settings.subscription is not None}
        for endpoint in [name for name, held in self._held.items() if wanted.get(name) != held.source]:
            self._held.pop(endpoint).end(REQUEST_SECONDS, delete=endpoint not in wanted)
            self._status.no_gateway(_name(endpoint))
        for endpoint in wanted.keys() - self._held.keys():
            if self._metrics is None:
                self._metrics = self._make()
            held = _Held(wanted[endpoint], self._folder, self._logins, self._status, self._metrics)
            self._held[endpoint] = held
            held.begin()

    def stop(self, seconds: float, *, in_order: bool) -> None:
        """End the work; what the settings do not keep is deleted if the router was stopped *in order*."""
        for held in self._held.values():
            held.ask_to_end()
        for held in self._held.values():
            held.end(seconds, delete=in_order and not held.chosen.keep)
        self._held = {}


class _Held:
    """One subscription, and the thread that holds it."""

    def __init__(
        self, source: Source, folder: Path, logins: Logins, status: Status, metrics: SubscriptionMetrics
    ) -> None:
        assert source.settings.subscription is not None
        self.source = source
        self.chosen: SubscriptionSettings = source.settings.subscription
        self._path = folder / f"{hashlib.sha256(source.endpoint.encode()).hexdigest()[:16]}.json"
        self._status = status
        self._metrics = metrics
        self._logins = logins
        self._manager = self._at(source.manager)
        self._backoff = Backoff(1.0, 300.0)
        self._until = _NEVER
        self._stop = threading.Event()
        self._thread = Background("subscriptions", self._run)

    def begin(self) -> None:
        """Begin to hold it."""
        self._say("not yet subscribed")
        self._thread.start()

    def ask_to_end(self) -> None:
        """Let the thread end soon."""
        self._stop.set()
        self._thread.ask_to_end()

    def end(self, seconds: float, *, delete: bool) -> None:
        """End the thread, and the subscription if it is to be deleted."""
        self.ask_to_end()
        ended = self._thread.join(seconds)
        if not delete:
            return
        try:
            if not ended:
                raise SubscriptionFailed("its manager is silent")
            note = self._noted()
            if note is not None and note.url:
                self._told("delete", lambda: self._at(note.manager, seconds).delete(note.url))
                self._path.unlink(missing_ok=True)
                _log.info("subscription deleted", endpoint=self.source.endpoint, subscription=note.url)
        except (SubscriptionFailed, DocumentError, StateError, OSError) as error:
            hint = "delete it at its manager, or start the router again; what has an end ends by itself"
            _log.warning("subscription stays", endpoint=self.source.endpoint, problem=str(error), hint=hint)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                pause = self._ensure()
                self._backoff.reset()
                self._say("")
            except (SubscriptionFailed, DocumentError) as error:
                pause = max(self._backoff.pause(), getattr(error, "after", 0.0))
                self._say(str(error))
                _log.error(
                    "subscription is not granted, will try again",
                    endpoint=self.source.endpoint,
                    problem=str(error),
                    hint=_remedy(error),
                    seconds=round(pause, 1),
                )
            self._stop.wait(pause)

    def _say(self, problem: str) -> None:
        """Tell watchers whether there is a subscription; one that cannot be renewed now lasts until its end."""
        up = datetime.now(UTC) < self._until
        self._status.gateway(_name(self.source.endpoint), up, "" if up else problem)
        self._metrics.up(self.source.endpoint, up)

    def _ensure(self) -> float:
        """Make the subscription, or renew it; return the seconds until it is to be renewed.

        Raises:
            SubscriptionFailed, DocumentError: it could not be.
            StateError: the note cannot be read.
            OSError: the note cannot be written.
        """
        note, document = self._noted(), self._document()
        if note is not None and (note.manager, note.sink) != (self._manager.url, self.chosen.sink):
            self._moved(note)
            note, self._until = None, _NEVER
        if note is not None and note.url:
            try:
                url = note.url
                return self._pause(self._told("renew", lambda: self._manager.renew(url, document)))
            except SubscriptionFailed as error:
                if not error.gone:
                    raise
                self._until = _NEVER
                _log.warning("subscription is gone, and made anew", endpoint=self.source.endpoint, subscription=url)
        return self._pause(self._made(document, sought=note is not None and not note.url))

    def _made(self, document: Mapping[str, Any], *, sought: bool) -> Subscribed:
        """Make the subscription; with *sought* a crash may have left one that is taken in its place."""
        found = self._manager.delivering(self.chosen.sink) if sought else []
        self._note("")
        for other in found[1:]:
            self._manager.delete(other.url)
        if found:
            made = self._told("renew", lambda: self._manager.renew(found[0].url, document))
        else:
            made = self._told("create", lambda: self._manager.create(document))
        self._note(made.url)
        _log.info("subscribed", endpoint=self.source.endpoint, subscription=made.url)
        return made

    def _moved(self, note: Note) -> None:
        """End a subscription at another manager, or to another sink, as far as that manager lets us."""
        if note.url:
            try:
                self._at(note.manager).delete(note.url)
            except (SubscriptionFailed, DocumentError) as error:
                hint = "delete it at its manager"
                _log.warning("earlier subscription stays", subscription=note.url, problem=str(error), hint=hint)
        self._path.unlink(missing_ok=True)

    def _document(self) -> dict[str, Any]:
        chosen = self.chosen
        document: dict[str, Any] = {"protocol": origin_of(chosen.sink).partition(":")[0].upper(), "sink": chosen.sink}
        if chosen.source is not None:
            document["source"] = chosen.source
        if chosen.types:
            document["types"] = list(chosen.types)
        dialects = {"exact": chosen.exact, "prefix": chosen.prefix, "suffix": chosen.suffix}
        if wanted := {name: dict(values) for name, values in dialects.items() if values}:
            document["filter"] = wanted
        if chosen.token is not None:
            token = chosen.token.get_secret_value()
            document["sinkCredential"] = {"credentialType": "ACCESSTOKEN", "accessToken": token}
        if chosen.lasts:
            end = datetime.now(UTC) + chosen.lasts
            document["expiration"] = end.isoformat(timespec="seconds").replace("+00:00", "Z")
        return document

    def _pause(self, made: Subscribed) -> float:
        """Note until when a subscription lasts, and return the seconds until half of that is over.

        What its manager says of its end counts before what was asked for.
        """
        asked = (self.chosen.lasts or ENDLESS_LOOK).total_seconds() / (2 if self.chosen.lasts else 1)
        end = _moment(made.document.get("expiration"))
        self._until = _FOREVER if end is None else end
        left = asked if end is None else (end - datetime.now(UTC)).total_seconds() / 2
        return max(_LEAST, min(asked, left))

    def _at(self, url: str, seconds: float = REQUEST_SECONDS) -> SubscriptionManager:
        origin = origin_of(url)
        return SubscriptionManager(
            url,
            lambda: asyncio.run(self._logins.authorization(origin, seconds)),
            lambda: self._logins.context(origin),
            seconds=seconds,
        )

    def _told(self, action: str, work: Callable[[], T]) -> T:
        """Do something at the manager, and count how it went."""
        try:
            done = work()
        except (SubscriptionFailed, DocumentError):
            self._metrics.request(self.source.endpoint, action, "error")
            raise
        self._metrics.request(self.source.endpoint, action, "ok")
        return done

    def _noted(self) -> Note | None:
        form = read_object(self._path, hint="remove it, and delete the subscription at its manager")
        if form is None:
            return None
        members = (form.get("manager"), form.get("sink"), form.get("url"))
        if not all(isinstance(each, str) for each in members):
            raise damaged(self._path, "it names no subscription", hint="remove it, and delete the subscription")
        return Note(*map(str, members))

    def _note(self, url: str) -> None:
        """Note, durably, where the subscription is."""
        form = {"endpoint": self.source.endpoint, "manager": self._manager.url, "sink": self.chosen.sink, "url": url}
        write_durably(self._path, json.dumps(form).encode())


def _name(endpoint: str) -> str:
    """Return what the status calls a subscription, among the gateways."""
    return f"subscription {endpoint}"


def _remedy(error: SubscriptionFailed | DocumentError) -> str:
    if isinstance(error, DocumentError):
        return error.hint
    if error.login:
        return "give catalog.logins a login for the manager that may subscribe"
    return "check subscription.manager and sink of the source, and that the manager can reach the sink"


def _moment(text: object) -> datetime | None:
    """Return an instant of RFC 3339; None for what is none."""
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None
