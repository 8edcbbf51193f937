"""Subscriptions of the API: create, read, replace and delete, by their owners; permissions, by their targets."""

from __future__ import annotations

import hmac
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from catalog.documents.connecting import Reach
from registry.delivery.subscriptions import (
    PATH,
    DeliverySettings,
    Sources,
    SubscriberDelivery,
    subscription_of,
    without_secrets,
)
from registry.delivery.targets import DeliveryConfig, delivery_of
from registry.errors import Refusal
from registry.store import history
from registry.store.engine import Database
from registry.store.history import SubscriberRow, newest_outbox_row

PERMISSIONS: Final = "/permissions"
"""Where targets grant permission to send, below the URL of the registry."""


@dataclass(frozen=True, slots=True)
class Permission:
    """What a target has granted by callback, authorized by ``key``. A ``rate`` of 0 is unlimited."""

    key: str
    granted: bool = False
    rate: int = 0


class SubscriptionApi:
    """Manages subscriptions. Thread-safe. *changed* is called after changes that affect delivery.

    A subscription continues when its owner loses the right to subscribe, until it is deleted or expires. *who* is the
    name of a client, None for an administrator, who may read and change all.
    """

    def __init__(
        self, database: Database, sources: Sources, settings: DeliverySettings, changed: Callable[[], None]
    ) -> None:
        self._database = database
        self._sources = sources
        self._reach = Reach(settings.allowed)
        self._origin = settings.origin or urlsplit(sources.registry).hostname or "localhost"
        self._most = settings.limits.max_subscriptions
        self._changed = changed

    def create(self, given: Any, owner: str) -> tuple[str, dict[str, Any]]:
        """Create a subscription, and return its id and its document.

        Raises:
            Refusal: it is invalid, or there are too many.
        """
        identifier, permission = uuid.uuid4().hex, Permission(secrets.token_hex(16))
        asked = subscription_of(given, self._sources)
        delivery_of(identifier, asked, self._terms(identifier, permission))
        body, allowed = _text(asked.document), _text(permission)
        with self._database.noting() as connection:
            count = sum(each.origin == "api" for each in history.subscribers(connection))
            if count >= self._most:
                raise Refusal("forbidden", PATH, error_detail=f"there are {count} subscriptions, which is the limit")
            first = newest_outbox_row(connection)
            history.add(connection, SubscriberRow(identifier, "api", owner, body, allowed, 1, first, asked.expires))
        self._changed()
        return identifier, without_secrets(identifier, asked.document)

    def read(self, identifier: str, who: str | None) -> dict[str, Any]:
        """Return a subscription.

        Raises:
            Refusal: it does not exist, or *who* may not read it.
        """
        with self._database.reading() as connection:
            return _shown(_owned(history.subscriber(connection, identifier), identifier, who))

    def all(self, who: str | None) -> list[dict[str, Any]]:
        """Return all subscriptions that *who* may read."""
        with self._database.reading() as connection:
            return [_shown(each) for each in history.subscribers(connection) if _may(each, who)]

    def replace(self, identifier: str, given: Any, who: str | None) -> dict[str, Any]:
        """Replace a subscription; it keeps its position.

        A target at another address, or one that has not granted permission yet, is asked again.

        Raises:
            Refusal: it does not exist, *who* may not change it, or the new one is invalid.
        """
        asked = subscription_of(given, self._sources)
        if isinstance(given, dict) and given.get("id", identifier) != identifier:
            raise Refusal("bad_request", f"{PATH}/{identifier}", error_detail="the id differs from the path")
        with self._database.noting() as connection:
            subscriber = _owned(history.subscriber(connection, identifier, changing=True), identifier, who)
            permission = _permission(subscriber)
            if msgspec.json.decode(subscriber.body).get("sink") != asked.sink:
                permission = Permission(secrets.token_hex(16))
            delivery_of(identifier, asked, self._terms(identifier, permission))
            body, allowed = _text(asked.document), _text(permission)
            history.change(connection, replace(subscriber, body=body, permission=allowed, expires=asked.expires))
        self._changed()
        return without_secrets(identifier, asked.document)

    def delete(self, identifier: str, who: str | None) -> dict[str, Any]:
        """Delete a subscription, and return its last state.

        Raises:
            Refusal: it does not exist, or *who* may not delete it.
        """
        with self._database.noting() as connection:
            subscriber = _owned(history.subscriber(connection, identifier, changing=True), identifier, who)
            history.remove_subscriber(connection, identifier)
        self._changed()
        return _shown(subscriber)

    def permit(self, identifier: str, key: str, rate: int) -> bool:
        """Store a target's permission, with a rate in requests a minute (0: unlimited); False for a wrong key."""
        with self._database.reading() as connection:  # so that strangers who guess keys do not block writers
            subscriber = history.subscriber(connection, identifier)
        permission = (
            _permission(subscriber) if subscriber is not None and subscriber.origin == "api" else Permission("")
        )
        known = hmac.compare_digest(permission.key.encode(), key.encode("utf-8", "replace"))
        if subscriber is None or not permission.key or not known:
            return False
        granted = Permission(permission.key, granted=True, rate=rate)
        if granted != permission:
            with self._database.noting() as connection:
                history.permit(connection, subscriber, _text(granted))
            self._changed()
        return True

    def delivery(self, subscriber: SubscriberRow) -> SubscriberDelivery:
        """Return how to deliver to a subscriber.

        Raises:
            Refusal: the current settings do not allow it.
        """
        asked = subscription_of({**msgspec.json.decode(subscriber.body), "expiration": None}, self._sources)
        return delivery_of(subscriber.id, asked, self._terms(subscriber.id, _permission(subscriber)))

    def _terms(self, identifier: str, permission: Permission) -> DeliveryConfig:
        callback = f"{self._sources.registry}{PERMISSIONS}/{identifier}?key={permission.key}"
        return DeliveryConfig(self._reach, self._origin, callback, permission.granted, permission.rate or None)


def _owned(subscriber: SubscriberRow | None, identifier: str, who: str | None) -> SubscriberRow:
    if subscriber is None or not _may(subscriber, who):
        raise Refusal("not_found", f"{PATH}/{identifier}")
    return subscriber


def _may(subscriber: SubscriberRow, who: str | None) -> bool:
    return subscriber.origin == "api" and who in (None, subscriber.owner)


def _shown(subscriber: SubscriberRow) -> dict[str, Any]:
    return without_secrets(subscriber.id, msgspec.json.decode(subscriber.body))


def _permission(subscriber: SubscriberRow) -> Permission:
    return msgspec.json.decode(subscriber.permission, type=Permission)


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode("utf-8")
