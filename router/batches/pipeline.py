"""One streaming query: what happens to each of its batches, from Spark's callback until Spark may commit it.

``foreachBatch`` is where everything happens that must not be done twice in different ways:

1. :meth:`Pipeline.batch`: a drain, or topics that begin anew, end the query before the first write; in the end the
   counts of the whole batch go to the metrics, and only then does Spark commit it.
2. :meth:`Pipeline._write_all`: what is left of the batch is written part by part, mostly as one; what is too large, or
   fails by itself, is cut (:mod:`router.batches.splitting`).
3. :meth:`Pipeline._write`: attempts at a part, for as long as a sink is in the way (:mod:`router.batches.journal`).
4. :func:`router.batches.attempt.attempt`: the steps of each attempt, those of a replay as well.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bindings.inbox.format import is_inbox_offset, positions_of
from bindings.inbox.source import InboxView
from bindings.inbox.space import InboxError
from bindings.kafka.client import KafkaUnreachable
from router.batches.attempt import attempt
from router.batches.journal import RETRY_FIRST, BatchJournal, BatchRetry, Draining, TooManyLetters, pauses
from router.batches.plans import PlanHolder
from router.batches.splitting import BatchPart, BatchParts, Bounding, Measure, TooLarge
from router.errors import DiskError, Fault, RouterError, SinkError, fault_of, is_unreadable, registry_away
from router.judging.judging import Kind
from router.judging.outputs import Tally
from router.judging.plan import Plan
from router.logs import get_logger
from router.machine import BatchSizing, divided
from router.reading.backlogs import extents, first_of
from router.reading.generations import Generation, Spans, bounds, cluster_of, offsets_of, reads, records_in, turned_back
from router.reading.streams import Losses, ReadTopics, places_of
from router.relating import Pairing
from router.state.state import Accounts, BatchNotes, StateFolder
from router.watching.batches import Watch
from router.watching.coverage import by_endpoint
from router.writing.outcomes import Ordering
from router.writing.staging import BatchId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from router.watching.metrics import Metrics
    from router.watching.status import RouterStatus

# Whether all that a query takes arrives: what the source says was taken, held against what sinks say they have.
#
# Both are worked out apart from each other: the one from offsets in Spark's checkpoint, from where the last batch ended
# to where this one does, so that a batch which nobody wrote is missed; the other from receipts of sinks.

_DOUBTFUL: Final = 1000
"""Batches, at most, that brokers are asked about once they answer again."""
_TOPICS: Final = "kafka-"
_log = get_logger()


class Accounting:
    """Keeps the account of one query; of one thread.

    Spark ends a query with ``on_data_loss: stop`` when records are gone that it was to read, so that offsets without a
    record then held none: markers of transactions, or what compaction removed. Where it goes on instead, *losses* asks
    the brokers which of them are lost at most, and says so; as long as they do not say, all are missed.
    """

    def __init__(
        self, query: str, generation: Generation, state: StateFolder, accounts: Accounts, losses: Losses | None = None
    ) -> None:
        self._query = query
        self._generation = generation
        self._losses = losses
        self._doubtful: list[tuple[Spans, int]] = []
        """Offsets of batches, and how many of them held no record, that the brokers have not yet explained."""
        self._accounts = accounts
        self._inbox = state.inbox
        self._view: InboxView | None = None
        self.account = accounts.of(query)
        if self.account.generation != generation.id and query.startswith(_TOPICS):
            self._hand_over()

    def _hand_over(self) -> None:
        """Share how far the queries of a cluster have come in topics that move between them.

        A topic that this query takes over goes on from where the other query was, and the other way round.
        """
        own, cluster = self.account, cluster_of(self._query)
        for query, other in self._accounts.known().items():
            if query == self._query or not query.startswith(_TOPICS) or cluster_of(query) != cluster:
                continue
            for topic in own.reached.keys() & other.reached.keys():
                taker, giver = (own, other) if topic in self._generation.topics else (other, own)
                taker.reached = {**taker.reached, topic: _furthest(taker.reached[topic], giver.reached[topic])}

    def add(self, batch: int, tally: Tally, metrics: Metrics) -> bool:
        """Add a batch that all sinks have, durably; False when it was added before."""
        if self.account.generation == self._generation.id and self.account.batch >= batch:
            return False
        starts, ends = self._bounds(batch)
        taken, spans = self._taken(batch, starts, ends) or (tally.rows, {})
        # Offsets that the batch was to read and that held no record. Those passed over before it are not counted here.
        empty = self._empty(spans, max(0, records_in(spans) - tally.rows)) if spans else 0
        with self._accounts.changing(self._query) as account:
            if ends is not None:
                account.reached = dict(ends)
            account.generation, account.batch = self._generation.id, batch
            account.taken += taken
            account.empty += empty
            account.judged += tally.rows
            account.missing += tally.missing
            account.count(tally)
        metrics.sinks.account(self._query, taken, empty, account.gap)
        return True

    def _empty(self, spans: Spans, holes: int) -> int:
        """Return how many offsets are known by now to have held no record: of this batch, and of those in doubt."""
        if self._losses is None:
            return holes
        if holes:
            self._doubtful.append((spans, holes))
        empty = 0
        try:
            while self._doubtful:
                asked, missed = self._doubtful[0]
                lost = self._losses(asked)
                empty += max(0, missed - records_in(lost))
                if lost:
                    _log.error("records were lost at the broker", query=self._query, places=places_of(lost))
                self._doubtful.pop(0)
        except KafkaUnreachable as error:
            # Memory is bounded, and some batches show an operator as much as all of them.
            del self._doubtful[:-_DOUBTFUL]
            _log.warning("whether records were lost is not known", query=self._query, problem=str(error))
        return empty

    def _bounds(self, batch: int) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
        try:
            return bounds(self._generation, batch)
        except (OSError, ValueError) as error:
            self._unknown(batch, error)
            return {}, None

    def _taken(self, batch: int, starts: Mapping[str, Any], ends: Mapping[str, Any] | None) -> tuple[int, Spans] | None:
        """Return how many records lie between the end of the account and that of a batch.

        With it come the offsets of those between where the batch begins and ends, none for the local inbox. None where
        the source does not say where it begins.
        """
        if not ends:
            return None
        reached = self.account.reached
        try:
            if is_inbox_offset(ends):
                return self._rows(starts, ends, reached), {}
            return _offsets(starts, ends, reached)
        except (InboxError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._unknown(batch, error)
            return None

    def _unknown(self, batch: int, error: Exception) -> None:
        _log.warning("what a batch took is not known", query=self._query, batch=batch, problem=str(error))

    def _rows(self, starts: Mapping[str, Any], ends: Mapping[str, Any], reached: Mapping[str, Any]) -> int:
        if self._view is None:
            self._view = InboxView(self._inbox)
        view = self._view
        own = view.layout.inbox
        begin = reached if reached.get("inbox") == own else starts
        if begin:
            firsts = positions_of(begin, own)
        else:
            firsts = {number: view.first(number) for number in view.partitions}
        return sum(view.count(number, firsts[number], end) for number, end in positions_of(ends, own).items())


def _furthest(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {number: max(one.get(number, at), at) for number, at in {**one, **other}.items()}


def _offsets(
    starts: Mapping[str, Any], ends: Mapping[str, Any], reached: Mapping[str, Any]
) -> tuple[int, Spans] | None:
    taken = 0
    spans: Spans = {}
    for topic, partitions in ends.items():
        for number, end in partitions.items():
            start = int(starts.get(topic, {}).get(number, -1))
            before = reached.get(topic, {}).get(number)
            # A topic that was created again is read from its first record, and those records count again.
            first = start if before is None or 0 <= start < before else before
            if first < 0 and not starts:
                return None
            # A partition that Spark meets on the way is read from the first record that it ever had.
            first = max(0, first)
            taken += max(0, end - first)
            if end > max(start, first):
                spans.setdefault(topic, {})[int(number)] = (max(start, first), end)
    return taken, spans


class TopicsRenewed(Exception):
    """Raised inside a batch to end its query before the batch's first write: topics were deleted and made again."""


class Pipeline:
    """The batches of one streaming query."""

    def __init__(
        self,
        name: str,
        kind: Kind,
        generation: Generation,
        state: StateFolder,
        plans: PlanHolder,
        metrics: Metrics,
        status: RouterStatus,
        restore: Callable[[bytes], Plan],
        *,
        final: int | None = None,
        bounding: Bounding | None = None,
        came_by: str = "",
        restored: Callable[[DataFrame], DataFrame] | None = None,
        pairing: Pairing | None = None,
        accounts: Accounts | None = None,
        topics: ReadTopics | None = None,
    ) -> None:
        """*final* is the last batch that this query is to write, when it is not to read on.

        *bounding* keeps batches within their bytes; unset, it knows nothing of this query yet. Where the query reads
        on what another began to, *came_by* names that, and *restored* gives the rows as they came to it. *pairing*
        takes the records that are related to others. *accounts* are those of the process, which outlive this query.
        *topics* are what the query reads, as their brokers know them.
        """
        self.name = name
        self.kind = kind
        self.generation = generation
        self._state = state
        self._plans = plans
        self._metrics = metrics
        self._status = status
        self._restore = restore
        self._final = final
        self._came_by = came_by
        self._restored = restored
        self._pairing = pairing
        self._draining = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._notes = BatchNotes(state.batches)
        self._bounding = bounding or Bounding(kind, generation, BatchSizing.of(plans.active.settings), None)
        self._holding = BatchRetry(name, self._notes, plans, metrics, status, self._draining)
        self._ordering = Ordering(state, name, self._notes, self._holding.breathe)
        self._watch = Watch(name, metrics, status, lambda: reads(plans.active.sources, name))
        self._accounting = Accounting(
            name, generation, state, accounts or Accounts(state), None if topics is None else topics.losses
        )
        self._topics = topics
        metrics.expect_query(name)
        metrics.resume(name, self._accounting.account)
        self._shadowed = False
        self._alone: int | None = None
        self._suspected = ""
        self.failure: RouterError | None = None
        self.last: int | None = None
        self.renewed: Spans = {}
        """The partitions whose topics were deleted and made again, when the query ended for that."""

    def drain(self) -> None:
        """Let the batch that is being written finish, and no other begin."""
        self._draining.set()

    @property
    def draining(self) -> bool:
        """Whether no other batch begins."""
        return self._draining.is_set()

    def wait_idle(self, seconds: float) -> bool:
        """Wait until no batch is being written; False when it took longer."""
        return self._idle.wait(seconds)

    def batch(self, rows: DataFrame, number: int) -> None:
        """Judge and write one batch; the callback of ``foreachBatch``.

        Raises:
            Draining: the query is to end, and nothing of this batch has been written.
            TopicsRenewed: likewise, and it is to begin again at the first records of some topics.
            StateError: topics were made again, and the settings do not go on without the records of the old ones.
            BatchPinError: the batch is pinned to a plan that cannot be restored.
        """
        self._idle.clear()
        try:
            if self._draining.is_set():
                raise Draining
            self._check_renewed(number)
            began = time.monotonic()
            self._status.query(self.name, "running", batch=number)
            self._status.steps.begin(self.name, number)
            tally = self._write_all(rows, number)
            self._metrics.released(self.name)
            self._status.query(self.name, "running", batch=number)
            now = time.time()
            fresh = self._accounting.add(number, tally, self._metrics)
            steps = self._status.steps.end(self.name, tally.total)
            seconds = time.monotonic() - began
            self._metrics.batch_done(self.name, tally, seconds, int(now * 1000), counted=not fresh)
            if logging.getLogger(__name__).isEnabledFor(logging.DEBUG):
                counts = {"records": tally.total, "outcomes": by_endpoint(tally.records)}
                times = {"seconds": round(seconds, 3), "steps": steps}
                _log.debug("batch is done", **self._holding.facts(number), **counts, **times)
            self.last = number
            if number == self._final:
                self.drain()
        except DiskError:
            raise  # The query ends, and is started again until there is room.
        except RouterError as error:
            self.failure = error
            raise
        finally:
            self._metrics.released(self.name)
            self._status.steps.leave(self.name)
            self._idle.set()

    def _check_renewed(self, number: int) -> None:
        """End the query when a topic is another than was read, or shorter: Spark would pass over its first records.

        With ``on_data_loss: stop`` Spark itself has ended the query by now, where a topic is shorter.
        """
        anew: Spans = {}
        if self._topics is not None:
            anew = self._topics.made_anew(offsets_of(self.generation, number))
        cut = {topic: spans for topic, spans in turned_back(self.generation, number).items() if topic not in anew}
        places = [
            f"{topic}-{partition} was read up to offset {first} and now ends at {end}"
            for topic, spans in sorted(cut.items())
            for partition, (first, end) in sorted(spans.items())
        ]
        if places:
            _log.error("topics are shorter than what was read of them", places=places)
        self.renewed = {**anew, **cut}
        if self.renewed:
            _log.warning("topics are read from their first record", topics=sorted(self.renewed))
            raise TopicsRenewed

    def _write_all(self, rows: DataFrame, number: int) -> Tally:
        """Write what is left of a batch, part by part; mostly it is one part.

        What is written, and how the rest is cut, is durable after each part of a batch that was cut: a crash repeats
        one part, which the sinks that keep commits know by its own.
        """
        parts = BatchParts.of(self._notes, self.name, number, self.generation.id)
        while (part := parts.next) is not None:
            share = self._bounding.rows(rows, number, part)
            measure = partial(extents, share, self.kind)
            try:
                if self._bounding.cut(parts, measure):
                    continue
                tally = self._write(share, number, part)
            except Draining:
                raise
            except TooLarge:
                self._bounding.divide(parts, measure)
            except Exception as error:
                if is_unreadable(error) and self._bounding.read_anew(number):
                    _log.warning("batch is read by our own client: Spark's takes no such timestamp", query=self.name)
                    continue
                fault = fault_of(error)
                if fault is not None and self._suspects_shadow(number, fault):
                    continue
                if fault is None or not self._failed(parts, measure, fault):
                    raise
            else:
                self._clear(number)
                parts.written(tally)
                self._status.steps.written(self.name, parts.tally.total)
                if parts.next is not None:
                    # What is left is noted, so that a drain need not wait for it.
                    self._holding.breathe(0)
        self._notes.release(self.name, number)
        return parts.tally

    def _write(self, rows: DataFrame, number: int, part: BatchPart) -> Tally:
        """Write a part, and again while the world is in the way: such an error holds a batch and never drops it.

        Every attempt is by the plan that the batch is pinned to; until it is, by the active one.
        """
        waits = pauses()
        rows = rows if self._restored is None else self._restored(rows)
        while True:
            pinned = self._state.pinned(self.name, number)
            loaded = self._plans.current() if pinned is None else self._plans.pinned(pinned, self._restore)
            if number == self._alone and loaded.without_shadow is not None:
                loaded = loaded.without_shadow
            self._shadowed = loaded.without_shadow is not None
            if pinned is None and self._draining.is_set():
                # Asked after the plan was taken: a drain begins before a plan that no longer knows the query's topics.
                raise Draining
            now = datetime.now(UTC).isoformat(timespec="microseconds")
            batch = BatchId(self.kind, self.name, self.generation.id, number, now, part.path, self._came_by)
            park = self._notes.parked(self.name, number, self.generation.id)
            noting = (self._state, self._notes, self._ordering, self._bounding)
            journal = BatchJournal(*noting, batch, loaded, part, park, self._pairing)
            limit = loaded.plan.settings.batch_limit.total_seconds()
            began = time.monotonic()
            if logging.getLogger(__name__).isEnabledFor(logging.DEBUG):
                epoch = loaded.plan.catalog.epoch
                _log.debug("batch is tried", **self._holding.facts(number), epoch=epoch, pinned=pinned is not None)
            try:
                with self._watch.attempt(rows.sparkSession, number, limit):
                    outcomes = loaded.outcomes(rows, batch, part, arrived=journal.may_reject, at_once=journal.at_once)
                    tally = attempt(outcomes, batch, loaded.writer, journal)
                self._bounding.learn(tally, time.monotonic() - began)
                self._holding.goes_on(number)
                return tally
            except SinkError as error:
                self._holding.by_sink(loaded, batch, error, next(waits), parked=park is not None)
            except TooManyLetters as error:
                self._holding.by_breaker(loaded, batch, str(error))
                waits = pauses()
            except Exception as error:
                if not (away := registry_away(error)):
                    raise
                self._holding.by_registry(loaded, batch, away, next(waits), parked=park is not None)

    def _suspects_shadow(self, number: int, fault: Fault) -> bool:
        """Whether a shadow catalog judged beside what failed: without it the batch has all its tries still."""
        if not self._shadowed:
            self._suspected = ""
            return False
        self._alone, self._suspected, self._shadowed = number, fault.text, False
        _log.warning("batch failed, and goes on without the shadow catalog", query=self.name, batch=number)
        return True

    def _clear(self, number: int) -> None:
        """Let no shadow judge any more, if what failed with it is written now."""
        if self._suspected:
            reason = f"batch {number} of {self.name} failed with it, and not without it: {self._suspected}"
            self._plans.set_aside_shadow(reason)
            self._suspected = ""

    def _failed(self, parts: BatchParts, measure: Measure, fault: Fault) -> bool:
        """Count a failure that is the batch's own, and cut the part if it is time; False when nothing is left to do."""
        part = parts.next
        assert part is not None
        self._metrics.fault(self.name, fault.kind)
        self._status.query(self.name, "failed", batch=parts.number, reason=fault.text)
        facts = {**self._holding.facts(parts.number), "error": fault.text}
        hint = self._hint(fault)
        if not parts.failed(fault):
            _log.warning("batch failed, and is tried again", **facts, times=parts.failures.all, **hint)
            self._holding.breathe(RETRY_FIRST)
            return True
        places = measure()
        facts |= {"records": places.num_rows, **hint}
        if not parts.divide(places, fault):
            _log.error("batch failed, and cannot be cut further", **facts)
            return False
        if parts.next is not None and parts.next.condemned:
            _log.error("record becomes a dead letter, since it fails", position=first_of(places), **facts)
        else:
            _log.warning("batch fails, and is written in parts to find the record", parts=len(parts.left), **facts)
        return True

    def _hint(self, fault: Fault) -> dict[str, str]:
        remedy = divided(self._plans.active.settings).remedy(fault.text, worker=fault.kind == "worker")
        return {"hint": remedy} if remedy else {}
