"""One subscriber's events on their way: read from the outbox, sent in waves, tried again until they are taken.

A wave has at most one event of each entity, so an event leaves after the one before it was taken. What fails by itself
holds the later events of its entity alone; when the target as a whole takes nothing, everything waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from bindings.background import Backoff
from bindings.gateways import GatewayError
from bindings.sending import Outbound
from registry.delivery.events import (
    DeliveryLimits,
    DeliveryResult,
    OutboxEvent,
    Sender,
    Sources,
    State,
    SubscriberTally,
)
from registry.delivery.subscriptions import SubscriberDelivery
from registry.model.attributes import moment_of
from registry.store.engine import Database
from registry.store.outbox import DeliveryProgress, OutboxRow, SubscriberRow, held, newest, rows_after, rows_at

# The events of one subscriber that are in memory: those of one entity wait for one another, and for nobody else.

_FIRST_PAUSE = 0.25


@dataclass(slots=True)
class _Lane:
    """The events of one entity in order; the first is not tried before ``due``. ``held`` says that it failed."""

    backoff: Backoff
    events: deque[OutboxEvent] = field(default_factory=deque)
    due: float = 0.0
    held: bool = False


class Lanes:
    """See the module. Times are those of a monotonic clock."""

    def __init__(self, max_pause: float) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._max_pause = max_pause
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, event: OutboxEvent) -> None:
        """Take an event, newer than all of its entity's."""
        lane = self._lanes.get(event.entity)
        if lane is None:
            backoff = Backoff(_FIRST_PAUSE, self._max_pause, least=0.0)
            lane = self._lanes[event.entity] = _Lane(backoff)
        lane.events.append(event)
        self._count += 1

    def wave(self, now: float, most: int) -> list[OutboxEvent]:
        """Return the first event of each entity that is due, the oldest first, and those that failed before last.

        Where there are more events than places, those that failed get a quarter, so that neither kind blocks the other.
        """
        due = sorted((lane for lane in self._lanes.values() if lane.due <= now), key=lambda lane: lane.events[0].number)
        fresh = [lane.events[0] for lane in due if not lane.held]
        again = [lane.events[0] for lane in due if lane.held]
        first = fresh[: most - min(len(again), most // 4)]
        return first + again[: most - len(first)]

    def due(self) -> float | None:
        """Return when the next event is due, None when there is none."""
        return min((lane.due for lane in self._lanes.values()), default=None)

    def done(self, event: OutboxEvent) -> None:
        """Take the first event of an entity out: it is settled."""
        lane = self._lanes[event.entity]
        lane.events.popleft()
        self._count -= 1
        lane.held, lane.due = False, 0.0
        lane.backoff.reset()
        if not lane.events:
            del self._lanes[event.entity]

    def give_up(self, unwanted: Callable[[OutboxEvent], bool]) -> int:
        """Take out the first events of all entities for as long as nobody wants them; return how many."""
        before = self._count
        for lane in list(self._lanes.values()):
            while lane.events and unwanted(lane.events[0]):
                self.done(lane.events[0])
        return before - self._count

    def give_up_oldest(self, count: int) -> int:
        """Take out so many of the oldest events, if any, and those of the same row; return how many."""
        if count <= 0:
            return 0
        numbers = sorted(each.number for lane in self._lanes.values() for each in lane.events)[:count]
        return self.give_up(lambda event: event.number <= numbers[-1]) if numbers else 0

    def hold(self, event: OutboxEvent, now: float, least: float) -> bool:
        """Make an entity wait since its first event failed by itself; return whether that event failed before."""
        lane = self._lanes[event.entity]
        again = lane.held
        lane.held, lane.due = True, now + max(least, lane.backoff.pause())
        return again

    @property
    def held(self) -> int:
        """How many entities wait since an event of theirs failed."""
        return sum(lane.held for lane in self._lanes.values())

    @property
    def oldest(self) -> OutboxEvent | None:
        """The oldest event."""
        return min((lane.events[0] for lane in self._lanes.values()), key=lambda each: each.number, default=None)

    def progress(self, read: int, least: int) -> DeliveryProgress:
        """Return how far the subscriber has got, when all events up to *read* were added here.

        Those that wait for their first try put the position back, though never behind *least*, so that
        they are read again after a crash. Those that are held do not, or one entity would have all others come again.
        """
        fresh = [lane.events[0].number for lane in self._lanes.values() if not lane.held]
        position = max(min(fresh, default=read + 1) - 1, least)
        left = (each.number for lane in self._lanes.values() for each in lane.events)
        return DeliveryProgress(position, frozenset(number for number in left if number <= position))


_logger = logging.getLogger(__name__)
PAGE: Final = 200
"""Rows of the outbox that are read at a time."""
IN_A_ROW: Final = 5
"""Events that fail one after the other, each for the first time, before the target is left alone for a while."""
_BEYOND: Final = 2 * PAGE
"""Events in memory beyond the limit, since whole pages are read; a row may be two events."""
_IDLE_SECONDS: Final = 60.0
_FIRST_RETRY_PAUSE: Final = 0.25
_LEAST_PAUSE: Final = 0.001


class Courier(threading.Thread):
    """Delivers to one subscriber until it is stopped.

    ``gone`` is called with its id and revision when the target wants no more.
    """

    def __init__(
        self,
        database: Database,
        subscriber: SubscriberRow,
        delivery: SubscriberDelivery,
        sources: Sources,
        limits: DeliveryLimits,
        tally: SubscriberTally,
        gone: Callable[[str, int], None],
    ) -> None:
        super().__init__(name=f"courier-{subscriber.id[:40]}", daemon=True)
        self.id: Final = subscriber.id
        self.revision: Final = subscriber.revision
        self._database = database
        self._delivery = delivery
        self._sources = sources
        self._limits = limits
        self._tally = tally
        self._gone = gone
        self._read = subscriber.position
        self._newest = subscriber.position
        self._lanes = Lanes(limits.max_pause)
        self._progress = DeliveryProgress(subscriber.position)
        self._away = Backoff(_FIRST_RETRY_PAUSE, limits.max_pause, least=0.0)
        self._away_until = 0.0
        self._retry = Backoff(_FIRST_RETRY_PAUSE, limits.max_pause)
        self._failed_in_a_row = 0
        self._signal = threading.Event()
        self._ending = threading.Event()
        self._finishing = False
        self._sender: Sender | None = None

    @property
    def progress(self) -> DeliveryProgress:
        """How far the subscriber has got; any thread may ask."""
        return self._progress

    def wake(self, upto: int) -> None:
        """Note that there are events up to a number."""
        if upto > self._newest:
            self._newest = upto
            self._signal.set()

    def finish(self) -> None:
        """Have it end as soon as nothing can be delivered at once."""
        self._finishing = True
        self._signal.set()

    def end(self) -> None:
        """Have it end after what is being sent."""
        self._ending.set()
        self._signal.set()

    def run(self) -> None:
        """Deliver; a store that does not answer is waited out, and so is a client that cannot be made."""
        loaded = False
        while not self._ending.is_set():
            try:
                if not loaded:
                    self._load()
                    loaded = True
                self._work()
                break
            except SQLAlchemyError as error:
                self._say("away", f"the store does not answer: {type(error).__name__}")
            except (GatewayError, OSError) as error:
                self._say("away", str(error))
            except Exception:
                _logger.exception("delivery to %s failed and goes on", self.id)
            self._ending.wait(self._retry.pause())
        self._close()

    def _work(self) -> None:
        while not self._ending.is_set():
            now, finishing = time.monotonic(), self._finishing
            pause = self._away_until - now
            if pause <= 0:
                pause = self._round(now)
            if pause > 0:
                if finishing:  # since before the round, which then saw all that there was
                    return
                self._signal.wait(min(pause, _IDLE_SECONDS))
                self._signal.clear()

    def _round(self, now: float) -> float:
        """Send one wave, and return in how many seconds there may be another."""
        self._fill()
        self._drop_old()
        self._note()  # also without a sender: nothing else keeps waiting events within their limits
        sender = self._opened()
        most, pause = sender.room()
        wave = self._due(now, most) if most else []
        if wave:
            self._settle(wave, sender.send([message for _, message in wave]))
        self._note()
        self._retry.reset()
        if wave:
            return 0.0
        due = self._lanes.due() if most else now + pause
        return _IDLE_SECONDS if due is None else max(due - now, _LEAST_PAUSE)

    def _load(self) -> None:
        """Load the events that were held when delivery last ended."""
        with self._database.reading() as connection:
            rows = rows_at(connection, held(connection, self.id))
            self._newest = max(self._newest, newest(connection))
        self._take(rows)
        self._note()

    def _fill(self) -> None:
        """Read on while there is room for wanted events; drop the oldest waiting events that are too many.

        Only reading shows whether an event is wanted. So where too many unread events wait, it reads on without room,
        and drops only wanted events.
        """
        most, dropped = self._limits.max_waiting, 0
        while not self._ending.is_set():
            unread = self._newest - self._read
            pressed = len(self._lanes) + unread > most
            if unread <= 0 or (len(self._lanes) >= self._limits.max_held and not pressed):
                break
            upto = self._newest
            with self._database.reading() as connection:
                rows = rows_after(connection, self._read, PAGE)
            self._take(rows)
            self._read = rows[-1].number if len(rows) == PAGE else max(upto, rows[-1].number if rows else 0)
            dropped += self._lanes.give_up_oldest(len(self._lanes) - min(most, self._limits.max_held + _BEYOND))
            if len(self._lanes) and self._newest - self._read <= most // 2:
                break
        if dropped:
            self._tally.dropped += dropped
            _logger.error("%d events for %s are dropped: more than %d wait", dropped, self.id, most)

    def _take(self, rows: list[OutboxRow]) -> None:
        for row in rows:
            for event in self._delivery.wants.events(row, self._sources):
                self._lanes.add(event)

    def _due(self, now: float, most: int) -> list[tuple[OutboxEvent, Outbound]]:
        """Return what is due, without events that no message can be made of."""
        due: list[tuple[OutboxEvent, Outbound]] = []
        for event in self._lanes.wave(now, most):
            try:
                due.append((event, self._delivery.composer.message(event)))
            except ValueError as error:
                self._tally.failed += 1
                self._lanes.hold(event, now, 0.0)
                self._say("holding", str(error))
        return due

    def _drop_old(self) -> None:
        """Drop events that were tried for too long."""
        oldest, first = time.time() - self._limits.keep, self._lanes.oldest
        if first is None or _written(first) >= oldest:
            return
        count = self._lanes.give_up(lambda event: _written(event) < oldest)
        self._tally.dropped += count
        _logger.error("%d events for %s are dropped: they are too old", count, self.id)

    def _settle(self, wave: list[tuple[OutboxEvent, Outbound]], verdicts: list[DeliveryResult]) -> None:
        now, first_failures = time.monotonic(), 0
        for (event, _), verdict in zip(wave, verdicts, strict=True):
            self._tally.failed += bool(verdict.reason)
            if verdict.kind == "delivered":
                self._lanes.done(event)
                self._tally.delivered += 1
            elif verdict.kind == "gone":
                self._leave(verdict.reason)
                return
            elif verdict.kind == "held":
                first_failures += not self._lanes.hold(event, now, verdict.pause)
                self._say("holding", verdict.reason)
        away = self._trouble_of(verdicts, first_failures)
        if away is not None:
            self._away_until = now + max(away.pause, self._away.pause() if away.reason else 0.0)
            if away.reason:
                self._say("away", away.reason)
        elif not self._lanes.held:
            self._say("delivering", "")
        elif self._tally.state == "away":
            self._tally.state = "holding"

    def _trouble_of(self, verdicts: list[DeliveryResult], first_failures: int) -> DeliveryResult | None:
        """Return the verdict on the whole target, None when there is none.

        An event that fails again says nothing new about the target. A target that takes one event works: a few events
        that it always refuses hold up no others.
        """
        self._failed_in_a_row += first_failures
        if any(verdict.kind == "delivered" for verdict in verdicts):
            self._failed_in_a_row = 0
            self._away.reset()
        whole = first_failures > 0 and self._failed_in_a_row >= IN_A_ROW
        troubles = (verdict for verdict in verdicts if verdict.kind == "away" or (whole and verdict.kind == "held"))
        return max(troubles, key=lambda verdict: verdict.pause, default=None)

    def _leave(self, reason: str) -> None:
        self._tally.state = "ended"
        _logger.warning("delivery to %s ends: %s", self.id, reason)
        self._ending.set()
        self._gone(self.id, self.revision)

    def _note(self) -> None:
        """Publish how far it has got, but never so far back that the outbox is kept for the few events that wait."""
        least = min(self._read, self._newest - self._limits.max_waiting // 2)
        self._progress = self._lanes.progress(self._read, max(least, self._progress.position))
        oldest = self._lanes.oldest
        self._tally.pending = len(self._lanes) + max(self._newest - self._read, 0)
        self._tally.oldest = 0.0 if oldest is None else _written(oldest)

    def _say(self, state: State, reason: str) -> None:
        """Log a change of state, once."""
        if state == self._tally.state or (state == "holding" and self._tally.state == "away"):
            return
        self._tally.state = state
        if state == "delivering":
            _logger.info("delivery to %s goes on", self.id)
        else:
            what = "is held for an entity" if state == "holding" else "waits"
            _logger.warning("delivery to %s %s: %s", self.id, what, reason)

    def _opened(self) -> Sender:
        if self._sender is None:
            self._sender = self._delivery.sender()
        return self._sender

    def _close(self) -> None:
        if self._sender is not None:
            try:
                self._sender.close()
            except Exception:
                _logger.exception("the connection to %s did not close", self.id)


def _written(event: OutboxEvent) -> float:
    moment = moment_of(event.at)
    return 0.0 if moment is None else moment.timestamp()
