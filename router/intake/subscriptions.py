"""Subscriptions of a running router: each is held by a thread of its own, for as long as its source asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from catalog.documents.logins import Logins
from router.intake.subscribing import Held, status_name
from router.sources.sources import Source
from router.watching.status import Status
from router.watching.subscriptions import SubscriptionMetrics

FOLDER: Final = "subscriptions"


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
        self._held: dict[str, Held] = {}

    def follow(self, sources: tuple[Source, ...]) -> None:
        """Hold the subscriptions of these sources from now on; one that is not asked for any more is deleted.

        It waits for nobody, so it is to be called again and again: what was held before ends in its own thread, and
        what takes its place begins with the first call after that.
        """
        if sources is self._seen and not any(held.ending for held in self._held.values()):
            return
        self._seen = sources
        wanted = {each.endpoint: each for each in sources if each.settings.subscription is not None}
        for endpoint, held in tuple(self._held.items()):
            if wanted.get(endpoint) != held.source:
                held.ask_to_end(delete=endpoint not in wanted)
            if held.ended:
                del self._held[endpoint]
            if endpoint not in wanted:
                self._status.no_gateway(status_name(endpoint))
        for endpoint in wanted.keys() - self._held.keys():
            if self._metrics is None:
                self._metrics = self._make()
            held = Held(wanted[endpoint], self._folder, self._logins, self._status, self._metrics)
            self._held[endpoint] = held
            held.begin()

    def stop(self, seconds: float, *, in_order: bool) -> None:
        """End the work; what the settings do not keep is deleted if the router was stopped *in order*.

        It takes at most *seconds* in all. What is not deleted by then stays.
        """
        by = time.monotonic() + seconds
        for held in self._held.values():
            held.ask_to_end(delete=in_order and not held.chosen.keep, by=by)
        for held in self._held.values():
            held.join(max(0.0, by - time.monotonic()))
        self._held = {}
