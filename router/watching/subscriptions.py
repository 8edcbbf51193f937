"""Metrics of subscriptions, in the registry of a router that has some; other routers have no such series."""

from __future__ import annotations

from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge


class SubscriptionMetrics:
    """The metrics of subscriptions; endpoints are those that settings name, so that they are few."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._up = Gauge(
            "xrouter_subscription_up",
            "Whether there is a subscription, as far as its manager has said.",
            ("endpoint",),
            registry=registry,
        )
        self._requests = Counter(
            "xrouter_subscription_requests",
            "Requests to subscription managers.",
            ("endpoint", "action", "result"),
            registry=registry,
        )

    def up(self, endpoint: str, up: bool) -> None:
        """Set whether there is a subscription, as far as the last request shows."""
        self._up.labels(endpoint).set(up)

    def request(self, endpoint: str, action: str, result: Literal["ok", "error"]) -> None:
        """Count a request: ``create``, ``renew`` or ``delete``."""
        self._requests.labels(endpoint, action, result).inc()
