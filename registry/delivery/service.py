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

from catalog.documents.connecting import ConnectionPolicy
from registry.delivery.subscriptions import (
    PATH,
    DeliverySettings,
    Sources,
    SubscriberDelivery,
    Subscription,
    parse_subscription,
    without_secrets,
)
from registry.delivery.targets import Webhook, build_delivery
from registry.errors import Refusal
from registry.store import history
from registry.store.engine import Database
from registry.store.history import SubscriberRow, newest_outbox_row

PERMISSIONS: Final = "/permissions"
"""The path where targets grant permission to send."""


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
        self._reach = ConnectionPolicy(settings.allowed)
        self._origin = settings.origin or urlsplit(sources.registry).hostname or "localhost"
        self._most = settings.limits.max_subscriptions
        self._changed = changed

    def create(self, document: Any, owner: str) -> tuple[str, dict[str, Any]]:
        """Create a subscription, and return its id and its document.

        Raises:
            Refusal: it is invalid, or there are too many.
        """
        identifier, permission = uuid.uuid4().hex, Permission(secrets.token_hex(16))
        asked = parse_subscription(document, self._sources)
        self._build_delivery(identifier, asked, permission)
        body, allowed = _to_json_text(asked.document), _to_json_text(permission)
        with self._database.writing_aside() as connection:
            count = sum(each.origin == "api" for each in history.list_subscribers(connection))
            if count >= self._most:
                raise Refusal("forbidden", PATH, error_detail=f"there are {count} subscriptions, which is the limit")
            first = newest_outbox_row(connection)
            history.add_subscriber(
                connection, SubscriberRow(identifier, "api", owner, body, allowed, 1, first, asked.expires)
            )
        self._changed()
        return identifier, without_secrets(identifier, asked.document)

    def read(self, identifier: str, client: str | None) -> dict[str, Any]:
        """Return a subscription.

        Raises:
            Refusal: it does not exist, or *client* may not read it.
        """
        with self._database.reading() as connection:
            return _to_document(_find_owned(history.find_subscriber(connection, identifier), identifier, client))

    def list_all(self, client: str | None) -> list[dict[str, Any]]:
        """Return all subscriptions that *client* may read."""
        with self._database.reading() as connection:
            return [_to_document(each) for each in history.list_subscribers(connection) if _may_access(each, client)]

    def replace(self, identifier: str, document: Any, client: str | None) -> dict[str, Any]:
        """Replace a subscription; it keeps its position.

        A target at another address, or one that has not granted permission yet, is asked again.

        Raises:
            Refusal: it does not exist, *client* may not change it, or the new one is invalid.
        """
        asked = parse_subscription(document, self._sources)
        if isinstance(document, dict) and document.get("id", identifier) != identifier:
            raise Refusal("bad_request", f"{PATH}/{identifier}", error_detail="the id differs from the path")
        with self._database.writing_aside() as connection:
            subscriber = _find_owned(history.find_subscriber(connection, identifier, changing=True), identifier, client)
            permission = _parse_permission(subscriber)
            if msgspec.json.decode(subscriber.body).get("sink") != asked.sink:
                permission = Permission(secrets.token_hex(16))
            self._build_delivery(identifier, asked, permission)
            body, allowed = _to_json_text(asked.document), _to_json_text(permission)
            history.replace_subscriber(
                connection, replace(subscriber, body=body, permission=allowed, expires=asked.expires)
            )
        self._changed()
        return without_secrets(identifier, asked.document)

    def delete(self, identifier: str, client: str | None) -> dict[str, Any]:
        """Delete a subscription, and return its last state.

        Raises:
            Refusal: it does not exist, or *client* may not delete it.
        """
        with self._database.writing_aside() as connection:
            subscriber = _find_owned(history.find_subscriber(connection, identifier, changing=True), identifier, client)
            history.remove_subscriber(connection, identifier)
        self._changed()
        return _to_document(subscriber)

    def grant_permission(self, identifier: str, key: str, rate: int) -> bool:
        """Store a target's permission, with a rate in requests a minute (0: unlimited); False for a wrong key."""
        with self._database.reading() as connection:  # so that strangers who guess keys do not block writers
            subscriber = history.find_subscriber(connection, identifier)
        permission = (
            _parse_permission(subscriber) if subscriber is not None and subscriber.origin == "api" else Permission("")
        )
        known = hmac.compare_digest(permission.key.encode(), key.encode("utf-8", "replace"))
        if subscriber is None or not permission.key or not known:
            return False
        granted = Permission(permission.key, granted=True, rate=rate)
        if granted != permission:
            with self._database.writing_aside() as connection:
                history.store_permission(connection, subscriber, _to_json_text(granted))
            self._changed()
        return True

    def build_delivery(self, subscriber: SubscriberRow) -> SubscriberDelivery:
        """Return how and where events are sent to a subscriber.

        Raises:
            Refusal: the current settings do not allow it.
        """
        asked = parse_subscription({**msgspec.json.decode(subscriber.body), "expiration": None}, self._sources)
        return self._build_delivery(subscriber.id, asked, _parse_permission(subscriber))

    def _build_delivery(
        self, identifier: str, subscription: Subscription, permission: Permission
    ) -> SubscriberDelivery:
        webhook = Webhook(
            origin=self._origin,
            callback=f"{self._sources.registry}{PERMISSIONS}/{identifier}?key={permission.key}",
            permitted=permission.granted,
            rate=permission.rate or None,
        )
        return build_delivery(identifier, subscription, self._reach, webhook)


def _find_owned(subscriber: SubscriberRow | None, identifier: str, client: str | None) -> SubscriberRow:
    if subscriber is None or not _may_access(subscriber, client):
        raise Refusal("not_found", f"{PATH}/{identifier}")
    return subscriber


def _may_access(subscriber: SubscriberRow, client: str | None) -> bool:
    return subscriber.origin == "api" and client in (None, subscriber.owner)


def _to_document(subscriber: SubscriberRow) -> dict[str, Any]:
    return without_secrets(subscriber.id, msgspec.json.decode(subscriber.body))


def _parse_permission(subscriber: SubscriberRow) -> Permission:
    return msgspec.json.decode(subscriber.permission, type=Permission)


def _to_json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode("utf-8")
