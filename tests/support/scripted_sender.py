"""A target without a network: a test says what becomes of each event."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from bindings.protocols import BINDINGS
from bindings.sending import Outbound
from registry.delivery.subscriptions import DELIVERED, DeliveryResult, EventFilter, EventMessages, SubscriberDelivery


class ScriptedSender:
    """Keeps :class:`registry.delivery.subscriptions.Sender`; *judge* gets the subject of an event. ``waves`` are
    subjects."""

    def __init__(self, judge: Callable[[str], DeliveryResult] = lambda _: DELIVERED, most: int = 16) -> None:
        self.judge = judge
        self.waves: list[list[str]] = []
        self.taken: list[str] = []
        self._most = most

    def room(self) -> tuple[int, float]:
        """Return how many at a time."""
        return self._most, 0.0

    def send(self, messages: Sequence[Outbound]) -> list[DeliveryResult]:
        """Ask the test."""
        subjects = [str(json.loads(each.body or b"{}")["subject"]) for each in messages]
        self.waves.append(subjects)
        verdicts = [self.judge(each) for each in subjects]
        self.taken += [each for each, verdict in zip(subjects, verdicts, strict=True) if verdict.kind == "delivered"]
        return verdicts

    def close(self) -> None:
        """Nothing is open."""

    def delivery(self, wants: EventFilter) -> SubscriberDelivery:
        """Return the delivery of a subscriber that is told here."""
        composer = EventMessages(BINDINGS["HTTP"], lambda _: "http://target.example/hook", "structured")
        return SubscriberDelivery(wants, composer, lambda: self)
