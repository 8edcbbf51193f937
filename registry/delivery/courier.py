"""One subscriber's events on their way: read from the outbox, sent in waves, tried again until they are taken.

A wave has at most one event of each entity, so an event leaves after the one before it was taken. What fails by itself
holds the later events of its entity alone; when the target as a whole takes nothing, everything waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from bindings.background import Backoff
from bindings.gateways import GatewayError
from bindings.sending import Outbound
from registry.delivery.subscriptions import (
    DeliveryLimits,
    DeliveryResult,
    OutboxEvent,
    Sender,
    Sources,
    State,
    SubscriberDelivery,
    SubscriberTallies,
    SubscriberTally,
)
from registry.errors import Refusal
from registry.model.attributes import moment_of, written_time
from registry.store import history
from registry.store.engine import Claim, Database
from registry.store.history import (
    DeliveryProgress,
    OutboxRow,
    SubscriberRow,
    held,
    newest_before,
    newest_outbox_row,
    prune,
    rows_after,
    rows_at,
)

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
            history = rows_at(connection, held(connection, self.id))
            self._newest = max(self._newest, newest_outbox_row(connection))
        self._take(history)
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
                history = rows_after(connection, self._read, PAGE)
            self._take(history)
            self._read = history[-1].number if len(history) == PAGE else max(upto, history[-1].number if history else 0)
            dropped += self._lanes.give_up_oldest(len(self._lanes) - min(most, self._limits.max_held + _BEYOND))
            if len(self._lanes) and self._newest - self._read <= most // 2:
                break
        if dropped:
            self._tally.dropped += dropped
            _logger.error("%d events for %s are dropped: more than %d wait", dropped, self.id, most)

    def _take(self, history: list[OutboxRow]) -> None:
        for row in history:
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


# Delivery as a whole: one process at a time has it, a thread for each subscriber, and a watch over the outbox.
#
# Processes that share a database claim delivery. The one that has the claim delivers to all; when it dies, another
# takes over. From time to time it records how far all subscribers have got, and removes events that nobody waits for.

_PRUNE_SECONDS: Final = 5.0
_CLAIM_SECONDS: Final = 0.5
_END_SECONDS: Final = 2.0
_GATHER_SECONDS: Final = 0.01
"""How long writes are gathered before the outbox is looked at: many at a time ask for one look."""

Subscribed = Callable[[SubscriberRow], SubscriberDelivery]
"""Makes the delivery for a subscriber of the API. It raises :class:`~registry.errors.Refusal` when it may not be."""


class Dispatch:
    """Delivers the events of a registry; started once, stopped once.

    ``configured`` are the subscribers of the settings, by id. One that is new begins with what is written from then on;
    one that is no longer there loses its position. They have to be the same in all processes over one database.
    """

    def __init__(
        self,
        database: Database,
        configured: Mapping[str, SubscriberDelivery],
        subscribed: Subscribed,
        sources: Sources,
        limits: DeliveryLimits,
    ) -> None:
        self._database = database
        self._configured = dict(configured)
        self._subscribed = subscribed
        self._sources = sources
        self._limits = limits
        self.tallies: Final = SubscriberTallies()
        self._couriers: dict[str, Courier] = {}
        self._recorded: dict[str, DeliveryProgress] = {}
        self._refused: dict[str, int] = {}
        self._left: deque[tuple[str, int]] = deque()
        self._known: set[str] = set()
        self._newest = 0
        self._passed = 0
        self._pruned: object = None
        self._claim: Claim | None = None
        self._signal = threading.Event()
        self._stopping = threading.Event()
        self._grace = 0.0
        self._due = {"record": 0.0, "prune": 0.0}
        self._troubled = False
        self._thread = threading.Thread(target=self._run, name="dispatch", daemon=True)

    @property
    def delivers(self) -> bool:
        """Whether this process is the one that delivers."""
        return self._claim is not None

    def start(self) -> None:
        """Begin; what is written from now on goes to the subscribers of the settings, whichever process delivers.

        Raises:
            SQLAlchemyError: the store does not answer.
        """
        self._enter()
        self._database.watch(self._signal.set)
        self._thread.start()

    def wake(self) -> None:
        """Make it look now for what was written."""
        self._signal.set()

    def stop(self, grace: float) -> None:
        """Deliver what can be delivered within *grace* seconds, write down how far that was, and end."""
        self._grace = grace
        self._stopping.set()
        self._signal.set()
        if self._thread.is_alive():
            self._thread.join(grace + 2 * _END_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                pause = self._turn()
                self._calm()
            except (SQLAlchemyError, OSError) as error:
                self._complain(error)
                pause = 1.0
            except Exception:
                _logger.exception("delivery failed and goes on")
                pause = 1.0
            self._signal.wait(pause)
            self._stopping.wait(_GATHER_SECONDS)
            self._signal.clear()
        self._finish()

    def _turn(self) -> float:
        """Do what is due, and return for how long nothing will be due."""
        if self._claim is None:
            claim = self._database.claim()
            if claim is None:
                self._stopping.wait(_CLAIM_SECONDS)  # a write of this process is no reason to ask again
                return 0.0
            try:
                self._begin()
            except BaseException:
                claim.release()
                raise
            self._claim = claim
        self._look()
        now = time.monotonic()
        if now >= self._due["record"]:
            self._due["record"] = now + self._limits.record
            if not self._claim.holds:
                self._lose()
                return 0.0
            self._record()
        if now >= self._due["prune"]:
            self._due["prune"] = now + _PRUNE_SECONDS
            self._prune()
        return self._limits.poll

    def _enter(self) -> None:
        """Record the subscribers of the settings; new ones begin at the end of the outbox."""
        with self._database.noting() as connection:
            for identifier in set(self._configured) - set(history.revisions(connection)):
                history.add(
                    connection, SubscriberRow(identifier, "settings", "", "", "{}", 1, newest_outbox_row(connection))
                )

    def _begin(self) -> None:
        """Take delivery up."""
        self._enter()
        with self._database.noting() as connection:
            for each in history.subscribers(connection):
                if each.origin == "settings" and each.id not in self._configured:
                    history.remove_subscriber(connection, each.id)
                    _logger.warning(
                        "%s is no longer in the settings: events that it has not got are not delivered to it", each.id
                    )
        _logger.info("this process delivers the events of the registry")

    def _look(self) -> None:
        """Wake couriers, and start or end some, so that each present subscriber has one."""
        with self._database.reading() as connection:
            known, upto = history.revisions(connection), newest_outbox_row(connection)
        now = datetime.now(UTC)
        ended = [(each, revision) for each, (revision, expires) in known.items() if _expired(expires, now)]
        while self._left:
            ended.append(self._left.popleft())
        for identifier, revision in ended:
            if self._remove(identifier, revision):
                known.pop(identifier, None)
        for identifier, courier in list(self._couriers.items()):
            if courier.revision != known.get(identifier, (None,))[0]:
                courier.end()
            if not courier.is_alive():
                self._record()
                del self._couriers[identifier]
        for identifier, (revision, _) in known.items():
            if identifier not in self._couriers and self._refused.get(identifier) != revision:
                self._add(identifier)
        for courier in list(self._couriers.values()):
            courier.wake(upto)
        self.tallies.keep(set(known))
        self._known, self._newest = set(known), upto

    def _add(self, identifier: str) -> None:
        with self._database.reading() as connection:
            subscriber = history.subscriber(connection, identifier)
        if subscriber is None:
            return
        try:
            delivery = self._configured[identifier] if subscriber.origin == "settings" else self._subscribed(subscriber)
        except (Refusal, KeyError, msgspec.DecodeError) as error:
            self._refused[identifier] = subscriber.revision
            _logger.error("nothing is delivered to %s: %s", identifier, error)
            return
        tally, gone = self.tallies.of(identifier), self._leave
        courier = Courier(self._database, subscriber, delivery, self._sources, self._limits, tally, gone)
        self._couriers[identifier] = courier
        courier.start()

    def _leave(self, identifier: str, revision: int) -> None:
        """Take note that a target wants no more; couriers call it."""
        self._left.append((identifier, revision))
        self._signal.set()

    def _remove(self, identifier: str, revision: int) -> bool:
        """Remove a subscriber that has ended by itself, or whose target wants no more.

        One that was renewed or replaced meanwhile stays, and is asked as it is now.
        """
        with self._database.noting() as connection:
            removed = history.remove_subscriber(connection, identifier, revision)
        if removed:
            _logger.info("the subscription of %s has ended", identifier)
        return removed

    def _record(self) -> None:
        reached = {identifier: courier.progress for identifier, courier in self._couriers.items()}
        new = {name: each for name, each in reached.items() if self._recorded.get(name) != each}
        if new:
            with self._database.noting() as connection:
                history.record(connection, new)
        self._recorded = reached

    def _prune(self) -> None:
        self._pass_over()
        state = self._newest, dict(self._recorded), self._passed
        more, self._pruned = state != self._pruned, state
        while more and not self._stopping.is_set():
            with self._database.noting() as connection:
                more = prune(connection)

    def _pass_over(self) -> None:
        """Drop what is too old or too much for subscribers without a courier, as a courier does."""
        idle = self._known - set(self._couriers)
        if not idle:
            return
        oldest = written_time(datetime.fromtimestamp(max(time.time() - self._limits.keep, 0.0), UTC))
        with self._database.noting() as connection:
            upto = max(self._newest - self._limits.max_waiting, newest_before(connection, oldest))
            lost = {identifier: history.advance(connection, identifier, upto) for identifier in idle}
        for identifier, count in lost.items():
            if count:
                self._passed += count
                self.tallies.of(identifier).dropped += count
                _logger.error("up to %d events for %s are dropped: nothing can be delivered to it", count, identifier)

    def _lose(self) -> None:
        """End all couriers: another process may deliver by now."""
        _logger.warning(
            "the database connection of delivery is lost; delivery begins again, here or in another process"
        )
        self._end_couriers(_END_SECONDS)
        self._couriers, self._recorded = {}, {}
        if self._claim is not None:
            self._claim.release()
        self._claim = None

    def _finish(self) -> None:
        """Deliver what can be delivered at once, and write down how far that was.

        A process that is stopped before it took delivery up does so for that, unless another one delivers.
        """
        try:
            if self._claim is None:
                self._claim = self._database.claim()
                if self._claim is None:
                    return
                self._begin()
            deadline = time.monotonic() + max(self._grace - _END_SECONDS, self._grace / 2)
            try:
                self._look()
            finally:
                self._wind_down(deadline)
            self._record()
        except SQLAlchemyError as error:
            self._complain(error)
        except Exception:
            _logger.exception("the end of delivery failed")
        finally:
            if self._claim is not None:
                self._claim.release()
            self._claim = None

    def _wind_down(self, deadline: float) -> None:
        """Have all couriers deliver what they can until a deadline, and end, so that whoever delivers next is alone."""
        for courier in self._couriers.values():
            courier.finish()
        for courier in self._couriers.values():
            courier.join(max(deadline - time.monotonic(), 0.0))
        self._end_couriers(min(_END_SECONDS, self._grace / 2))

    def _end_couriers(self, seconds: float) -> None:
        for courier in self._couriers.values():
            courier.end()
        deadline = time.monotonic() + seconds
        for courier in self._couriers.values():
            courier.join(max(deadline - time.monotonic(), 0.0))

    def _complain(self, error: Exception) -> None:
        if not self._troubled:
            _logger.error("the store does not answer delivery: %s", type(error).__name__)
        self._troubled = True

    def _calm(self) -> None:
        if self._troubled:
            _logger.info("the store answers delivery again")
        self._troubled = False


def _expired(expires: str | None, now: datetime) -> bool:
    moment = moment_of(expires) if expires is not None else None
    return moment is not None and moment <= now
