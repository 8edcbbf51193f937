"""Delivery as a whole: one process at a time has it, a thread for each subscriber, and a watch over the outbox.

Processes that share a database claim delivery. The one that has the claim delivers to all; when it dies, another takes
over. From time to time it records how far all subscribers have got, and removes events that nobody waits for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from registry.delivery.courier import Courier
from registry.delivery.events import DeliveryLimits, Sources, SubscriberTallies
from registry.delivery.subscriptions import SubscriberDelivery
from registry.errors import Refusal
from registry.model.attributes import moment_of, written_time
from registry.store import outbox as rows
from registry.store.engine import Claim, Database
from registry.store.outbox import DeliveryProgress, SubscriberRow, newest, newest_before, prune

_logger = logging.getLogger(__name__)
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
            for identifier in set(self._configured) - set(rows.revisions(connection)):
                rows.add(connection, SubscriberRow(identifier, "settings", "", "", "{}", 1, newest(connection)))

    def _begin(self) -> None:
        """Take delivery up."""
        self._enter()
        with self._database.noting() as connection:
            for each in rows.subscribers(connection):
                if each.origin == "settings" and each.id not in self._configured:
                    rows.remove(connection, each.id)
                    _logger.warning(
                        "%s is no longer in the settings: events that it has not got are not delivered to it", each.id
                    )
        _logger.info("this process delivers the events of the registry")

    def _look(self) -> None:
        """Wake couriers, and start or end some, so that each present subscriber has one."""
        with self._database.reading() as connection:
            known, upto = rows.revisions(connection), newest(connection)
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
            subscriber = rows.subscriber(connection, identifier)
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
            removed = rows.remove(connection, identifier, revision)
        if removed:
            _logger.info("the subscription of %s has ended", identifier)
        return removed

    def _record(self) -> None:
        reached = {identifier: courier.progress for identifier, courier in self._couriers.items()}
        new = {name: each for name, each in reached.items() if self._recorded.get(name) != each}
        if new:
            with self._database.noting() as connection:
                rows.record(connection, new)
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
            lost = {identifier: rows.advance(connection, identifier, upto) for identifier in idle}
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
