"""Delivery of events to subscribers: read from the outbox, sent in batches, and retried until delivered.

A batch has at most one event of each entity, so an event is sent after the previous one was delivered. A failed event
blocks only later events of its entity; when the target is unavailable, all events wait.
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
    SubscriberTally,
)
from registry.errors import Refusal
from registry.model.attributes import format_time, parse_time
from registry.store import history
from registry.store.engine import Database, ProcessLock
from registry.store.history import (
    DeliveryProgress,
    OutboxRow,
    SubscriberRow,
    blocked_events,
    newest_before,
    newest_outbox_row,
    prune_outbox,
    rows_after,
    rows_at,
)

# The events of one subscriber in memory, in one queue per entity.

_FIRST_PAUSE = 0.25


@dataclass(slots=True)
class _EntityQueue:
    """The events of one entity in order; the first is not sent before ``due``. ``has_failed`` is about the first."""

    backoff: Backoff
    events: deque[OutboxEvent] = field(default_factory=deque)
    due: float = 0.0
    has_failed: bool = False


class EntityQueues:
    """Events queued per entity. Times are of a monotonic clock."""

    def __init__(self, max_pause: float) -> None:
        self._queues: dict[str, _EntityQueue] = {}
        self._max_pause = max_pause
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, event: OutboxEvent) -> None:
        """Add an event, newer than all others of its entity."""
        queue = self._queues.get(event.entity)
        if queue is None:
            backoff = Backoff(_FIRST_PAUSE, self._max_pause, least=0.0)
            queue = self._queues[event.entity] = _EntityQueue(backoff)
        queue.events.append(event)
        self._count += 1

    def due_events(self, now: float, limit: int) -> list[OutboxEvent]:
        """Return the first due event of each entity: oldest first, failed ones last.

        If there are too many, failed events get a quarter of the batch, so that neither kind starves the other.
        """
        due = sorted(
            (queue for queue in self._queues.values() if queue.due <= now), key=lambda queue: queue.events[0].number
        )
        fresh = [queue.events[0] for queue in due if not queue.has_failed]
        again = [queue.events[0] for queue in due if queue.has_failed]
        first = fresh[: limit - min(len(again), limit // 4)]
        return first + again[: limit - len(first)]

    def next_due(self) -> float | None:
        """Return when the next event is due, None if there is none."""
        return min((queue.due for queue in self._queues.values()), default=None)

    def remove_first(self, event: OutboxEvent) -> None:
        """Remove the first event of an entity, which is finished."""
        queue = self._queues[event.entity]
        queue.events.popleft()
        self._count -= 1
        queue.has_failed, queue.due = False, 0.0
        queue.backoff.reset()
        if not queue.events:
            del self._queues[event.entity]

    def drop_leading(self, is_unwanted: Callable[[OutboxEvent], bool]) -> int:
        """Remove leading events of all entities while *is_unwanted* is true for them; return how many."""
        before = self._count
        for queue in list(self._queues.values()):
            while queue.events and is_unwanted(queue.events[0]):
                self.remove_first(queue.events[0])
        return before - self._count

    def drop_oldest(self, count: int) -> int:
        """Remove the *count* oldest events and others of the same row; return how many."""
        if count <= 0:
            return 0
        numbers = sorted(each.number for queue in self._queues.values() for each in queue.events)[:count]
        return self.drop_leading(lambda event: event.number <= numbers[-1]) if numbers else 0

    def delay(self, event: OutboxEvent, now: float, min_pause: float) -> bool:
        """Delay an entity whose first event failed; return whether that event had failed before."""
        queue = self._queues[event.entity]
        again = queue.has_failed
        queue.has_failed, queue.due = True, now + max(min_pause, queue.backoff.next_pause())
        return again

    @property
    def blocked_count(self) -> int:
        """Number of entities blocked by a failed event."""
        return sum(queue.has_failed for queue in self._queues.values())

    @property
    def oldest_event(self) -> OutboxEvent | None:
        """The oldest event."""
        return min((queue.events[0] for queue in self._queues.values()), key=lambda each: each.number, default=None)

    def progress(self, read: int, min_position: int) -> DeliveryProgress:
        """Return the progress of the subscriber after all events up to *read* were added.

        Events not sent yet hold the position back (to at least *min_position*): after a crash they are read again.
        Blocked ones are listed instead, so that one blocked entity does not cause all others to be sent again.
        """
        fresh = [queue.events[0].number for queue in self._queues.values() if not queue.has_failed]
        position = max(min(fresh, default=read + 1) - 1, min_position)
        left = (each.number for queue in self._queues.values() for each in queue.events)
        return DeliveryProgress(position, frozenset(number for number in left if number <= position))


_logger = logging.getLogger(__name__)
PAGE_ROWS: Final = 200
"""Rows of the outbox read at a time."""
MAX_FIRST_FAILURES: Final = 5
"""Consecutive first failures after which delivery to the target pauses."""
_MAX_EXCESS: Final = 2 * PAGE_ROWS
"""Events in memory beyond the limit: whole pages are read, and a row may be two events."""
_IDLE_SECONDS: Final = 60.0
_MIN_PAUSE: Final = 0.001


class SubscriberWorker(threading.Thread):
    """Delivers to one subscriber until stopped.

    ``on_ended`` is called with its id and revision when the target ends the subscription.
    """

    def __init__(
        self,
        database: Database,
        subscriber: SubscriberRow,
        delivery: SubscriberDelivery,
        sources: Sources,
        limits: DeliveryLimits,
        tally: SubscriberTally,
        on_ended: Callable[[str, int], None],
    ) -> None:
        super().__init__(name=f"delivery-{subscriber.id[:40]}", daemon=True)
        self.id: Final = subscriber.id
        self.revision: Final = subscriber.revision
        self._database = database
        self._delivery = delivery
        self._sources = sources
        self._limits = limits
        self._tally = tally
        self._on_ended = on_ended
        self._read = subscriber.position
        self._newest = subscriber.position
        self._queues = EntityQueues(limits.max_pause)
        self._progress = DeliveryProgress(subscriber.position)
        self._away = Backoff(_FIRST_PAUSE, limits.max_pause, least=0.0)
        self._away_until = 0.0
        self._retry = Backoff(_FIRST_PAUSE, limits.max_pause)
        self._failed_in_a_row = 0
        self._signal = threading.Event()
        self._ending = threading.Event()
        self._finishing = False
        self._sender: Sender | None = None

    @property
    def progress(self) -> DeliveryProgress:
        """The progress of the subscriber; thread-safe."""
        return self._progress

    def wake(self, upto: int) -> None:
        """Notify the thread that there are events up to a number."""
        if upto > self._newest:
            self._newest = upto
            self._signal.set()

    def stop_when_idle(self) -> None:
        """Stop as soon as nothing can be delivered immediately."""
        self._finishing = True
        self._signal.set()

    def request_stop(self) -> None:
        """Stop after the current batch."""
        self._ending.set()
        self._signal.set()

    def run(self) -> None:
        """Deliver; retry while the store or the client is unavailable."""
        loaded = False
        while not self._ending.is_set():
            try:
                if not loaded:
                    self._load_blocked()
                    loaded = True
                self._deliver_events()
                break
            except SQLAlchemyError as error:
                self._log_state("away", f"the store does not answer: {type(error).__name__}")
            except (GatewayError, OSError) as error:
                self._log_state("away", str(error))
            except Exception:
                _logger.exception("delivery to %s failed; retrying", self.id)
            if self._finishing:
                break
            self._ending.wait(self._retry.next_pause())
        self._close_sender()

    def _deliver_events(self) -> None:
        while not self._ending.is_set():
            now, finishing = time.monotonic(), self._finishing
            pause = self._away_until - now
            if pause <= 0:
                pause = self._send_batch(now)
            if pause > 0:
                if finishing:  # set before the round, which then saw all events
                    return
                self._signal.wait(min(pause, _IDLE_SECONDS))
                self._signal.clear()

    def _send_batch(self, now: float) -> float:
        """Send one batch, and return the seconds until the next one may be due."""
        self._read_events()
        self._drop_expired()
        self._publish_progress()  # also without a sender: this enforces the limits of waiting events
        sender = self._open_sender()
        most, pause = sender.send_allowance()
        batch = self._due_messages(now, most) if most else []
        if batch:
            self._record_results(batch, sender.send([message for _, message in batch]))
        self._publish_progress()
        self._retry.reset()
        if batch:
            return 0.0
        due = self._queues.next_due() if most else now + pause
        return _IDLE_SECONDS if due is None else max(due - now, _MIN_PAUSE)

    def _load_blocked(self) -> None:
        """Load the events that were blocked when delivery last ended."""
        with self._database.reading() as connection:
            rows = rows_at(connection, blocked_events(connection, self.id))
            self._newest = max(self._newest, newest_outbox_row(connection))
        self._queue_rows(rows)
        self._publish_progress()

    def _read_events(self) -> None:
        """Read more events while there is room; drop the oldest waiting events above the limit.

        Only reading shows whether an event matches. So if too many unread events wait, it reads them regardless of
        room, and drops only matching events.
        """
        most, dropped = self._limits.max_waiting, 0
        while not self._ending.is_set():
            unread = self._newest - self._read
            pressed = len(self._queues) + unread > most
            if unread <= 0 or (len(self._queues) >= self._limits.max_held and not pressed):
                break
            upto = self._newest
            with self._database.reading() as connection:
                rows = rows_after(connection, self._read, PAGE_ROWS)
            self._queue_rows(rows)
            self._read = rows[-1].number if len(rows) == PAGE_ROWS else max(upto, rows[-1].number if rows else 0)
            dropped += self._queues.drop_oldest(len(self._queues) - min(most, self._limits.max_held + _MAX_EXCESS))
            if len(self._queues) and self._newest - self._read <= most // 2:
                break
        if dropped:
            self._tally.dropped += dropped
            _logger.error("dropped %d events for %s: more than %d are waiting", dropped, self.id, most)

    def _queue_rows(self, rows: list[OutboxRow]) -> None:
        for row in rows:
            for event in self._delivery.event_filter.matching_events(row, self._sources):
                self._queues.add(event)

    def _due_messages(self, now: float, limit: int) -> list[tuple[OutboxEvent, Outbound]]:
        """Return due events with their messages, without events that cannot be rendered."""
        due: list[tuple[OutboxEvent, Outbound]] = []
        for event in self._queues.due_events(now, limit):
            try:
                due.append((event, self._delivery.composer.build_message(event)))
            except ValueError as error:
                self._tally.failed += 1
                self._queues.delay(event, now, 0.0)
                self._log_state("holding", str(error))
        return due

    def _drop_expired(self) -> None:
        """Drop events that exceeded the retention time."""
        oldest, first = time.time() - self._limits.keep, self._queues.oldest_event
        if first is None or _written_at(first) >= oldest:
            return
        count = self._queues.drop_leading(lambda event: _written_at(event) < oldest)
        self._tally.dropped += count
        _logger.error("dropped %d events for %s: they are too old", count, self.id)

    def _record_results(self, batch: list[tuple[OutboxEvent, Outbound]], results: list[DeliveryResult]) -> None:
        now, first_failures = time.monotonic(), 0
        for (event, _), result in zip(batch, results, strict=True):
            self._tally.failed += bool(result.reason)
            if result.kind == "delivered":
                self._queues.remove_first(event)
                self._tally.delivered += 1
            elif result.kind == "gone":
                self._end_subscription(result.reason)
                return
            elif result.kind == "held":
                first_failures += not self._queues.delay(event, now, result.pause)
                self._log_state("holding", result.reason)
        away = self._target_failure(results, first_failures)
        if away is not None:
            self._away_until = now + max(away.pause, self._away.next_pause() if away.reason else 0.0)
            if away.reason:
                self._log_state("away", away.reason)
        elif not self._queues.blocked_count:
            self._log_state("delivering", "")
        elif self._tally.state == "away":
            self._tally.state = "holding"

    def _target_failure(self, results: list[DeliveryResult], first_failures: int) -> DeliveryResult | None:
        """Return the failure of the whole target, None if it works.

        Repeated failures of an event do not count. A target that accepts one event works, so that a few events that it
        always refuses do not block others.
        """
        self._failed_in_a_row += first_failures
        if any(result.kind == "delivered" for result in results):
            self._failed_in_a_row = 0
            self._away.reset()
        whole = first_failures > 0 and self._failed_in_a_row >= MAX_FIRST_FAILURES
        troubles = (result for result in results if result.kind == "away" or (whole and result.kind == "held"))
        return max(troubles, key=lambda result: result.pause, default=None)

    def _end_subscription(self, reason: str) -> None:
        self._tally.state = "ended"
        _logger.warning("delivery to %s ended: %s", self.id, reason)
        self._ending.set()
        self._on_ended(self.id, self.revision)

    def _publish_progress(self) -> None:
        """Publish the progress; a few waiting events do not prevent pruning of the whole outbox."""
        least = min(self._read, self._newest - self._limits.max_waiting // 2)
        self._progress = self._queues.progress(self._read, max(least, self._progress.position))
        oldest = self._queues.oldest_event
        self._tally.pending = len(self._queues) + max(self._newest - self._read, 0)
        self._tally.oldest = 0.0 if oldest is None else _written_at(oldest)

    def _log_state(self, state: State, reason: str) -> None:
        """Log a change of state, once."""
        if state == self._tally.state or (state == "holding" and self._tally.state == "away"):
            return
        self._tally.state = state
        if state == "delivering":
            _logger.info("delivery to %s resumed", self.id)
        else:
            what = "is blocked for an entity" if state == "holding" else "is paused"
            _logger.warning("delivery to %s %s: %s", self.id, what, reason)

    def _open_sender(self) -> Sender:
        if self._sender is None:
            self._sender = self._delivery.sender()
        return self._sender

    def _close_sender(self) -> None:
        if self._sender is not None:
            try:
                self._sender.close()
            except Exception:
                _logger.exception("closing the connection to %s failed", self.id)


def _written_at(event: OutboxEvent) -> float:
    moment = parse_time(event.at)
    return 0.0 if moment is None else moment.timestamp()


# Dispatch: one process at a time delivers, with a thread for each subscriber.
#
# Processes that share a database compete for a lock. Its holder delivers to all subscribers; when it dies, another one
# takes over. It regularly records the progress of subscribers and prunes the outbox.

_PRUNE_SECONDS: Final = 5.0
_LOCK_SECONDS: Final = 0.5
_STOP_SECONDS: Final = 2.0
_BATCHING_SECONDS: Final = 0.01
"""How long to wait for further writes before reading the outbox once for all of them."""

Subscribed = Callable[[SubscriberRow], SubscriberDelivery]
"""Creates the delivery for a subscriber of the API. Raises :class:`~registry.errors.Refusal` if it is not allowed."""


class Dispatch:
    """Delivers the events of a registry; started once, stopped once.

    ``configured`` are the subscribers of the settings, by id. A new one gets events written from then on; a removed one
    loses its position. They must be the same in all processes over one database.
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
        self.tallies: Final[dict[str, SubscriberTally]] = {}
        self._workers: dict[str, SubscriberWorker] = {}
        self._recorded: dict[str, DeliveryProgress] = {}
        self._refused: dict[str, int] = {}
        self._ended: deque[tuple[str, int]] = deque()
        self._known: set[str] = set()
        self._newest = 0
        self._skipped = 0
        self._pruned: object = None
        self._lock: ProcessLock | None = None
        self._signal = threading.Event()
        self._stopping = threading.Event()
        self._grace = 0.0
        self._due = {"record": 0.0, "prune": 0.0}
        self._thread = threading.Thread(target=self._run, name="dispatch", daemon=True)

    @property
    def is_delivering(self) -> bool:
        """Whether this process delivers."""
        return self._lock is not None

    def start(self) -> None:
        """Start; subscribers of the settings get all events written from now on, whichever process delivers.

        Raises:
            SQLAlchemyError: the store does not answer.
        """
        self._register_configured()
        self._database.on_write(self._signal.set)
        self._thread.start()

    def wake(self) -> None:
        """Read the outbox now."""
        self._signal.set()

    def stop(self, grace: float) -> None:
        """Deliver what is possible within *grace* seconds, record the progress, and stop."""
        self._grace = grace
        self._stopping.set()
        self._signal.set()
        if self._thread.is_alive():
            self._thread.join(grace + 2 * _STOP_SECONDS)

    def _run(self) -> None:
        troubled = False
        while not self._stopping.is_set():
            try:
                pause = self._do_due_work()
                if troubled:
                    _logger.info("delivery continues: the store answers again")
                troubled = False
            except (SQLAlchemyError, OSError) as error:
                if not troubled:
                    _log_store_error(error)
                troubled, pause = True, 1.0
            except Exception:
                _logger.exception("delivery failed; retrying")
                pause = 1.0
            self._signal.wait(pause)
            self._stopping.wait(_BATCHING_SECONDS)
            self._signal.clear()
        self._deliver_rest()

    def _do_due_work(self) -> float:
        """Do all due work, and return the seconds until more is due."""
        if self._lock is None:
            lock = self._database.try_lock()
            if lock is None:
                self._stopping.wait(_LOCK_SECONDS)  # not woken by writes of this process
                return 0.0
            try:
                self._start_delivering()
            except BaseException:
                lock.release()
                raise
            self._lock = lock
        self._update_workers()
        now = time.monotonic()
        if now >= self._due["record"]:
            self._due["record"] = now + self._limits.record
            if not self._lock.is_held:
                self._abandon_workers()
                return 0.0
            self._record_progress()
        if now >= self._due["prune"]:
            self._due["prune"] = now + _PRUNE_SECONDS
            self._prune_outbox()
        return self._limits.poll

    def _register_configured(self) -> None:
        """Store the subscribers of the settings; new ones begin at the end of the outbox."""
        with self._database.writing_aside() as connection:
            for identifier in set(self._configured) - set(history.list_revisions(connection)):
                history.add_subscriber(
                    connection, SubscriberRow(identifier, "settings", "", "", "{}", 1, newest_outbox_row(connection))
                )

    def _start_delivering(self) -> None:
        """Start delivering in this process."""
        self._register_configured()
        with self._database.writing_aside() as connection:
            for each in history.list_subscribers(connection):
                if each.origin == "settings" and each.id not in self._configured:
                    history.remove_subscriber(connection, each.id)
                    _logger.warning("subscriber %s is not in the settings any more: its events are dropped", each.id)
        _logger.info("this process delivers the events of the registry")

    def _update_workers(self) -> None:
        """Wake the threads, and start or stop some, so that each current subscriber has one."""
        with self._database.reading() as connection:
            known, upto = history.list_revisions(connection), newest_outbox_row(connection)
        now = datetime.now(UTC)
        ended = [(each, revision) for each, (revision, expires) in known.items() if _is_expired(expires, now)]
        while self._ended:
            ended.append(self._ended.popleft())
        for identifier, revision in ended:
            if self._remove_subscriber(identifier, revision):
                known.pop(identifier, None)
        for identifier, worker in list(self._workers.items()):
            if worker.revision != known.get(identifier, (None,))[0]:
                worker.request_stop()
            if not worker.is_alive():
                self._record_progress()
                del self._workers[identifier]
        for identifier, (revision, _) in known.items():
            if identifier not in self._workers and self._refused.get(identifier) != revision:
                self._add_worker(identifier)
        for worker in list(self._workers.values()):
            worker.wake(upto)
        for identifier in self.tallies.keys() - known.keys():
            del self.tallies[identifier]
        self._known, self._newest = set(known), upto

    def _add_worker(self, identifier: str) -> None:
        with self._database.reading() as connection:
            subscriber = history.find_subscriber(connection, identifier)
        if subscriber is None:
            return
        try:
            delivery = self._configured[identifier] if subscriber.origin == "settings" else self._subscribed(subscriber)
        except (Refusal, KeyError, msgspec.DecodeError) as error:
            self._refused[identifier] = subscriber.revision
            _logger.error("cannot deliver to %s: %s", identifier, error)
            return
        tally, on_ended = self._tally_of(identifier), self._record_ended
        worker = SubscriberWorker(self._database, subscriber, delivery, self._sources, self._limits, tally, on_ended)
        self._workers[identifier] = worker
        worker.start()

    def _tally_of(self, identifier: str) -> SubscriberTally:
        return self.tallies.setdefault(identifier, SubscriberTally())

    def _record_ended(self, identifier: str, revision: int) -> None:
        """Record that a target ended its subscription; called by workers."""
        self._ended.append((identifier, revision))
        self._signal.set()

    def _remove_subscriber(self, identifier: str, revision: int) -> bool:
        """Remove a subscriber that expired, or whose target ended the subscription; return whether it was removed.

        One that was renewed or replaced meanwhile stays.
        """
        with self._database.writing_aside() as connection:
            removed = history.remove_subscriber(connection, identifier, revision)
        if removed:
            _logger.info("the subscription of %s has ended", identifier)
        return removed

    def _record_progress(self) -> None:
        current = {identifier: worker.progress for identifier, worker in self._workers.items()}
        new = {name: each for name, each in current.items() if self._recorded.get(name) != each}
        if new:
            with self._database.writing_aside() as connection:
                history.store_progress(connection, new)
        self._recorded = current

    def _prune_outbox(self) -> None:
        self._drop_undeliverable()
        state = self._newest, dict(self._recorded), self._skipped
        more, self._pruned = state != self._pruned, state
        while more and not self._stopping.is_set():
            with self._database.writing_aside() as connection:
                more = prune_outbox(connection)

    def _drop_undeliverable(self) -> None:
        """Drop events above the limits for subscribers without a worker."""
        idle = self._known - set(self._workers)
        if not idle:
            return
        oldest = format_time(datetime.fromtimestamp(max(time.time() - self._limits.keep, 0.0), UTC))
        with self._database.writing_aside() as connection:
            upto = max(self._newest - self._limits.max_waiting, newest_before(connection, oldest))
            lost = {identifier: history.skip_events(connection, identifier, upto) for identifier in idle}
        for identifier, count in lost.items():
            if count:
                self._skipped += count
                self._tally_of(identifier).dropped += count
                _logger.error("dropped up to %d events for %s: cannot deliver to it", count, identifier)

    def _abandon_workers(self) -> None:
        """Stop all workers: another process may have taken over."""
        _logger.warning("delivery lost its database connection; delivery restarts here or in another process")
        self._stop_workers(_STOP_SECONDS)
        self._workers, self._recorded = {}, {}
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    def _deliver_rest(self) -> None:
        """Deliver what is possible immediately, and record the progress.

        A process stopped before it began to deliver does so now, unless another one delivers.
        """
        try:
            if self._lock is None:
                self._lock = self._database.try_lock()
                if self._lock is None:
                    return
                self._start_delivering()
            deadline = time.monotonic() + max(self._grace - _STOP_SECONDS, self._grace / 2)
            try:
                self._update_workers()
            finally:
                self._wind_down(deadline)
            self._record_progress()
        except SQLAlchemyError as error:
            _log_store_error(error)
        except Exception:
            _logger.exception("stopping delivery failed")
        finally:
            if self._lock is not None:
                self._lock.release()
            self._lock = None

    def _wind_down(self, deadline: float) -> None:
        """Let all workers deliver until a deadline, then stop them, before another process takes over."""
        for worker in self._workers.values():
            worker.stop_when_idle()
        for worker in self._workers.values():
            worker.join(max(deadline - time.monotonic(), 0.0))
        self._stop_workers(min(_STOP_SECONDS, self._grace / 2))

    def _stop_workers(self, seconds: float) -> None:
        for worker in self._workers.values():
            worker.request_stop()
        deadline = time.monotonic() + seconds
        for worker in self._workers.values():
            worker.join(max(deadline - time.monotonic(), 0.0))


def _log_store_error(error: Exception) -> None:
    _logger.error("delivery waits: the store does not answer: %s", type(error).__name__)


def _is_expired(expires: str | None, now: datetime) -> bool:
    moment = parse_time(expires) if expires is not None else None
    return moment is not None and moment <= now
