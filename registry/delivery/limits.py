"""What delivery may cost, and how long it is tried."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    """Limits of delivery; times are in seconds.

    ``keep`` is how long an event is tried, and ``max_waiting`` how many events may wait for one subscriber: what is
    older or more than that is dropped, logged and counted. At most ``max_held`` events of one subscriber are in memory,
    held ones included; when all of them are held, it gets no further. ``max_pause`` is the longest pause between two
    tries. ``poll`` is how soon a write of another process is seen; ``record`` how often it is written down how far
    subscribers have got, so what was delivered since may come again after a crash.
    """

    keep: float = 7 * 86_400.0
    max_waiting: int = 1_000_000
    max_held: int = 1_000
    max_pause: float = 60.0
    poll: float = 0.25
    record: float = 0.5
    max_subscriptions: int = 100
