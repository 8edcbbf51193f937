"""Subscriptions of a running router, each renewed by a thread while its source is configured."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from bindings.background import Background, Backoff
from bindings.http.client import ManagedSubscription, SubscriptionFailed, SubscriptionManager
from catalog.documents.connecting import Logins, origin_of
from catalog.findings import DocumentError
from router.errors import StateError
from router.logs import get_logger
from router.settings.model import SubscriptionSettings
from router.sources import Source
from router.state.durable import damaged, read_object, write_durably
from router.state.ledger import parse_instant
from router.watching.metrics import SubscriptionMetrics
from router.watching.status import RouterStatus

# One subscription of a running router: created, renewed before it expires, and deleted when it is no longer needed.
#
# A file in ``state/subscriptions`` has its URL, so that a start renews the existing one. The file is written before the
# subscription is requested: after a crash in between, the router looks for subscriptions that deliver to its sink, uses
# one, and deletes the others.

REQUEST_SECONDS: Final = 15.0
ENDLESS_RENEWAL: Final = timedelta(minutes=5)
"""Time between two renewals of a subscription without expiry: its manager may have lost it."""
_MIN_PAUSE: Final = 1.0
_NO_ANSWER: Final = "its manager does not answer"
_NEVER: Final = datetime.min.replace(tzinfo=UTC)
_FOREVER: Final = datetime.max.replace(tzinfo=UTC)
_log = get_logger()
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredSubscription:
    """The location of a subscription, as stored in its file; ``url`` is empty while it is being created."""

    manager: str
    sink: str
    url: str


class RunningSubscription:
    """One subscription, and the thread that maintains it and alone uses its file."""

    def __init__(
        self, source: Source, folder: Path, logins: Logins, status: RouterStatus, metrics: SubscriptionMetrics
    ) -> None:
        assert source.settings.subscription is not None
        self.source = source
        self.chosen: SubscriptionSettings = source.settings.subscription
        self._path = folder / f"{hashlib.sha256(source.endpoint.encode()).hexdigest()[:16]}.json"
        self._status = status
        self._metrics = metrics
        self._logins = logins
        self._manager = self._manager_at(source.manager)
        self._backoff = Backoff(1.0, 300.0)
        self._expires = _NEVER
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._delete = False
        self._finished = False
        self._logged = False
        self._delete_deadline = math.inf
        self._thread = Background("subscriptions", self._run)

    def start(self) -> None:
        """Start the thread."""
        self._report_status("not yet subscribed")
        self._thread.start()

    @property
    def is_ending(self) -> bool:
        """Whether it was asked to end."""
        return self._stop.is_set()

    @property
    def has_ended(self) -> bool:
        """Whether it was asked to end, and its thread has ended."""
        return self.is_ending and not self._thread.alive

    def ask_to_end(self, *, delete: bool, by: float = math.inf) -> None:
        """Ask the thread to end, after deleting the subscription if *delete*; no deletion begins after *by*.

        A later call may still request the deletion.
        """
        with self._lock:
            again = delete and not self._delete and self._finished
            self._delete |= delete
            self._delete_deadline = min(self._delete_deadline, by)
        self._stop.set()
        self._thread.ask_to_end()
        if again:
            self._thread = Background("subscriptions", self._run)
            self._thread.start()

    def join(self, seconds: float) -> None:
        """Wait for the end, at most *seconds*."""
        if not self._thread.join(seconds) and self._delete:
            self._log_not_deleted(SubscriptionFailed(_NO_ANSWER))

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                pause, problem = self._ensure_subscribed(), "it has expired"
                self._backoff.reset()
                self._report_status("")
            except (SubscriptionFailed, DocumentError) as error:
                if self._stop.is_set():
                    break
                pause, problem = max(self._backoff.next_pause(), getattr(error, "after", 0.0)), str(error)
                self._report_status(problem)
                facts = {"problem": problem, "hint": _remedy(error), "seconds": round(pause, 1)}
                _log.error("subscription failed; retrying", endpoint=self.source.endpoint, **facts)
            except (StateError, OSError):
                if not self._stop.is_set():
                    raise
                break
            self._wait_until_due(pause, problem)
        with self._lock:
            self._finished, delete = True, self._delete
        if delete:
            self._delete_subscription()

    def _wait_until_due(self, seconds: float, problem: str) -> None:
        """Wait until the time has passed or the stop; report the *problem* if the subscription expires earlier."""
        until = time.monotonic() + seconds
        while not self._stop.is_set() and (left := until - time.monotonic()) > 0:
            lasts = (self._expires - datetime.now(UTC)).total_seconds()
            if lasts <= 0:
                self._report_status(problem)
            self._stop.wait(min(left, lasts) if lasts > 0 else left)

    def _delete_subscription(self) -> None:
        """Delete the subscription at its manager, and then its file."""
        try:
            seconds = min(REQUEST_SECONDS, self._delete_deadline - time.monotonic())
            if seconds <= 0:
                raise SubscriptionFailed(_NO_ANSWER)
            note = self._stored_note()
            if note is not None and note.url:
                self._run_request("delete", lambda: self._manager_at(note.manager, seconds).delete(note.url))
                self._path.unlink(missing_ok=True)
                _log.info("subscription deleted", endpoint=self.source.endpoint, subscription=note.url)
        except (SubscriptionFailed, DocumentError, StateError, OSError) as error:
            self._log_not_deleted(error)

    def _log_not_deleted(self, error: Exception) -> None:
        """Log once that the subscription could not be deleted."""
        with self._lock:
            known, self._logged = self._logged, True
        if not known:
            hint = "delete it at its manager, or restart the router; a subscription with an expiry ends on its own"
            _log.warning("subscription not deleted", endpoint=self.source.endpoint, problem=str(error), hint=hint)

    def _report_status(self, problem: str) -> None:
        """Report the status: a subscription that cannot be renewed counts as up until it expires."""
        if self._stop.is_set():
            return
        up = datetime.now(UTC) < self._expires
        self._status.gateway(status_name(self.source.endpoint), up, "" if up else problem)
        self._metrics.up(self.source.endpoint, up)

    def _ensure_subscribed(self) -> float:
        """Create or renew the subscription; return the seconds until the next renewal.

        Raises:
            SubscriptionFailed, DocumentError: neither was possible.
            StateError: the note cannot be read.
            OSError: the note cannot be written.
        """
        note, document = self._stored_note(), self._build_document()
        if note is not None and (note.manager, note.sink) != (self._manager.url, self.chosen.sink):
            self._delete_moved(note)
            note, self._expires = None, _NEVER
        if note is not None and note.url:
            try:
                url = note.url
                return self._schedule_renewal(self._run_request("renew", lambda: self._manager.renew(url, document)))
            except SubscriptionFailed as error:
                if not error.gone:
                    raise
                self._expires = _NEVER
                _log.warning("lost subscription created again", endpoint=self.source.endpoint, subscription=url)
        return self._schedule_renewal(self._create(document, sought=note is not None and not note.url))

    def _create(self, document: Mapping[str, Any], *, sought: bool) -> ManagedSubscription:
        """Create the subscription; with *sought*, reuse one that a crash may have left."""
        existing = self._manager.list_delivering_to(self.chosen.sink) if sought else []
        if self._stop.is_set():
            raise SubscriptionFailed("it is no longer needed")
        self._store_note("")
        for other in existing[1:]:
            self._manager.delete(other.url)
        if existing:
            subscription = self._run_request("renew", lambda: self._manager.renew(existing[0].url, document))
        else:
            subscription = self._run_request("create", lambda: self._manager.create(document))
        self._store_note(subscription.url)
        _log.info("subscribed", endpoint=self.source.endpoint, subscription=subscription.url)
        return subscription

    def _delete_moved(self, note: StoredSubscription) -> None:
        """Delete a subscription at another manager, or to another sink, and its file; a failure is only logged."""
        if note.url:
            try:
                self._manager_at(note.manager).delete(note.url)
            except (SubscriptionFailed, DocumentError) as error:
                hint = "delete it at its manager"
                _log.warning("earlier subscription not deleted", subscription=note.url, problem=str(error), hint=hint)
        self._path.unlink(missing_ok=True)

    def _build_document(self) -> dict[str, Any]:
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

    def _schedule_renewal(self, subscription: ManagedSubscription) -> float:
        """Record when a subscription expires, and return the seconds until half of that time has passed.

        The manager's expiry overrides the requested one, unless it has passed already.
        """
        asked = (self.chosen.lasts or ENDLESS_RENEWAL).total_seconds() / (2 if self.chosen.lasts else 1)
        told = subscription.document.get("expiration")
        end = parse_instant(told) if isinstance(told, str) else None
        now = datetime.now(UTC)
        if end is not None and end <= now:
            facts = {
                "expiration": end.isoformat(),
                "hint": "compare the clocks; until then the requested expiry is used",
            }
            _log.warning("subscription has expired by its manager's clock", endpoint=self.source.endpoint, **facts)
            end = now + timedelta(seconds=2 * asked)
        self._expires = _FOREVER if end is None else end
        left = asked if end is None else (end - now).total_seconds() / 2
        return max(_MIN_PAUSE, min(asked, left))

    def _manager_at(self, url: str, seconds: float = REQUEST_SECONDS) -> SubscriptionManager:
        origin = origin_of(url)

        def authorize() -> str:
            return asyncio.run(self._logins.authorization(origin, seconds))

        return SubscriptionManager(url, authorize, partial(self._logins.context, origin), seconds=seconds)

    def _run_request(self, action: str, work: Callable[[], T]) -> T:
        """Run a request to the manager, and count its result."""
        try:
            done = work()
        except (SubscriptionFailed, DocumentError):
            self._metrics.request(self.source.endpoint, action, "error")
            raise
        self._metrics.request(self.source.endpoint, action, "ok")
        return done

    def _stored_note(self) -> StoredSubscription | None:
        hint = "remove it, and delete the subscription at its manager"
        form = read_object(self._path, hint=hint)
        try:
            return None if form is None else msgspec.convert(form, StoredSubscription)
        except msgspec.ValidationError as error:
            raise damaged(self._path, f"it has no subscription ({error})", hint=hint) from error

    def _store_note(self, url: str) -> None:
        """Store the location of the subscription durably."""
        form = {"endpoint": self.source.endpoint, "manager": self._manager.url, "sink": self.chosen.sink, "url": url}
        write_durably(self._path, json.dumps(form).encode())


def status_name(endpoint: str) -> str:
    """Return the status name of a subscription, among the gateways."""
    return f"subscription {endpoint}"


def _remedy(error: SubscriptionFailed | DocumentError) -> str:
    if isinstance(error, DocumentError):
        return error.hint
    if error.login:
        return "add a login for the manager to catalog.logins that may subscribe"
    return "check subscription.manager and sink of the source, and that the manager can reach the sink"


FOLDER_NAME: Final = "subscriptions"


class RouterSubscriptions:
    """All subscriptions of a router. Not for concurrent use."""

    def __init__(
        self, state: Path, logins: Logins, status: RouterStatus, metrics: Callable[[], SubscriptionMetrics]
    ) -> None:
        """*metrics* is called once, for the first subscription."""
        self._folder = state / FOLDER_NAME
        self._logins = logins
        self._status = status
        self._create_metrics = metrics
        self._metrics: SubscriptionMetrics | None = None
        self._last_sources: tuple[Source, ...] | None = None
        self._running: dict[str, RunningSubscription] = {}

    def follow_sources(self, sources: tuple[Source, ...]) -> None:
        """Start, keep or replace the subscriptions of these sources; delete those that are no longer configured.

        It never waits, and must be called repeatedly: replaced subscriptions end in their own threads, and their
        successors start with the first call after that.
        """
        if sources is self._last_sources and not any(running.is_ending for running in self._running.values()):
            return
        self._last_sources = sources
        wanted = {each.endpoint: each for each in sources if each.settings.subscription is not None}
        for endpoint, running in tuple(self._running.items()):
            if wanted.get(endpoint) != running.source:
                running.ask_to_end(delete=endpoint not in wanted)
            if running.has_ended:
                del self._running[endpoint]
            if endpoint not in wanted:
                self._status.remove_gateway(status_name(endpoint))
        for endpoint in wanted.keys() - self._running.keys():
            if self._metrics is None:
                self._metrics = self._create_metrics()
            running = RunningSubscription(wanted[endpoint], self._folder, self._logins, self._status, self._metrics)
            self._running[endpoint] = running
            running.start()

    def stop(self, seconds: float, *, in_order: bool) -> None:
        """Stop within *seconds*; with *in_order*, delete subscriptions that the settings do not keep.

        Subscriptions that are not deleted in time stay.
        """
        by = time.monotonic() + seconds
        for running in self._running.values():
            running.ask_to_end(delete=in_order and not running.chosen.keep, by=by)
        for running in self._running.values():
            running.join(max(0.0, by - time.monotonic()))
        self._running = {}
