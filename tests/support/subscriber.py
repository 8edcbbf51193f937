"""What of a router holds subscriptions, with its settings and what watchers see of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from catalog.documents.connecting import Logins
from catalog.load import load
from router.intake.subscriptions import RouterSubscriptions
from router.settings import Settings, settings_from_dict
from router.sources import Source, sources_of
from router.watching.metrics import SubscriptionMetrics
from router.watching.status import RouterStatus
from tests.support.subscription_manager import PATH
from tests.support.waiting import wait_until

LIMIT = 60.0
ENDPOINT = "/endpoints/news"
SINK = "http://127.0.0.1:9/news"
GATEWAY = f"subscription {ENDPOINT}"


def settings_of(folder: Path, url: str, **subscription: Any) -> Settings:
    """Return settings with one source, subscribed at a manager; its catalog is written."""
    endpoint = {
        "usage": ["subscriber"],
        "protocol": "HTTP",
        "envelope": "CloudEvents/1.0",
        "protocoloptions": {"endpoints": [{"uri": f"{url}{PATH}"}]},
        "messages": {"m": {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": "told"}}}},
    }
    (folder / "catalog.json").write_text(json.dumps({"endpoints": {"news": endpoint}}))
    out = {"type": "jsonl", "path": str(folder / "out")}
    dead = {"type": "jsonl", "path": str(folder / "dead")}
    return settings_from_dict(
        {
            "catalog": {"source": str(folder / "catalog.json")},
            "sources": [{"endpoint": ENDPOINT, "subscription": {"sink": SINK, **subscription}}],
            "sinks": {"out": out, "dead": dead},
            "routes": [{"to": ["out"]}],
            "dead_letters": {"sinks": ["dead"]},
            "state": str(folder / "state"),
        },
        {},
        folder,
    )


class Router:
    """A router that does nothing but hold subscriptions; nothing is asked before ``start``."""

    def __init__(self, folder: Path, url: str, logins: Logins | None = None, **subscription: Any) -> None:
        settings = settings_of(folder, url, **subscription)
        self.sources: tuple[Source, ...] = sources_of(load([folder / "catalog.json"]), settings)
        self.status = RouterStatus(routes=False)
        self.status.catalog("e", 1)
        self.registry = CollectorRegistry()
        metrics = SubscriptionMetrics(self.registry)
        self.subscriptions = RouterSubscriptions(folder / "state", logins or Logins(), self.status, lambda: metrics)

    def start(self) -> Router:
        """Ask for the subscriptions."""
        self.subscriptions.follow(self.sources)
        return self

    def until_ready(self) -> Router:
        """Wait until there are subscriptions."""
        wait_until(lambda: self.status.ready()[0], LIMIT, lambda: str(self.status.ready()))
        return self

    def requests(self, action: str, result: str = "ok") -> float:
        """Return how often something was asked of the manager."""
        labels = {"endpoint": ENDPOINT, "action": action, "result": result}
        return self.registry.get_sample_value("xrouter_subscription_requests_total", labels) or 0.0

    def stop(self, *, in_order: bool = True) -> None:
        """End, by a signal or by an error."""
        self.subscriptions.stop(10.0, in_order=in_order)
