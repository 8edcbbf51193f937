"""The batches of one streaming query, from Spark's callback until Spark may commit them.

1. :meth:`Pipeline.batch` is the callback of ``foreachBatch``. A drain, or recreated topics, end the query before the
   first write. After all writes the counts go to the metrics, and only then does Spark commit the batch.
2. :meth:`Pipeline._write_all` writes the rest of the batch part by part, mostly as one part. A part that is too large,
   or fails because of its records, is split (:mod:`router.batches.splitting`).
3. :meth:`Pipeline._write` retries a part while a sink is unavailable (:mod:`router.batches.waiting`).
4. :meth:`router.batches.batch.Batch.write` has the steps of one attempt, for batches and replays.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from bindings.inbox.format import is_inbox_offset, parse_offset
from bindings.inbox.source import InboxView
from bindings.inbox.space import InboxError
from bindings.kafka.client import KafkaUnreachable
from router.batches.batch import KeyOrdering, StoredBatch
from router.batches.plans import SharedParts
from router.batches.splitting import BatchPart, Splitting, TooLarge
from router.batches.waiting import BatchWaiting, Draining, pauses
from router.errors import DiskError, Fault, RouterError, find_batch_fault, is_timestamp_overflow
from router.evaluation.evaluator import Kind
from router.evaluation.outputs import Tally
from router.logs import get_logger
from router.machine import BatchSizing, divide_memory
from router.reading.backlogs import first_of
from router.reading.generations import Generation, Spans, bounds, cluster_of, offsets_of, reads, records_in, turned_back
from router.reading.streams import Losses, ReadTopics, places_of
from router.state.state import Park, StateFolder
from router.watching.batches import BatchWatch
from router.watching.coverage import count_by_endpoint
from router.writing.staging import BatchId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from router.watching.metrics import Metrics

# Conservation: whether sinks have every record that the source delivered.
#
# The two counts are independent. Records read come from offsets in Spark's checkpoint, from the end of the last batch
# to the end of this one, so that a batch that was never written is noticed. Records written come from sinks' receipts.

_DOUBTFUL: Final = 1000
"""Maximum number of unexplained batches to remember while brokers are unreachable."""
_TOPICS: Final = "kafka-"
_log = get_logger()


class ConservationCheck:
    """Count what one query read and what its sinks received; not thread-safe.

    With ``on_data_loss: stop`` Spark fails the query when records are lost, so an offset without a record is a
    transaction marker or was compacted away. With ``continue``, *losses* asks the brokers for an upper bound of the
    lost records and logs it; until they answer, all such offsets count as missing.
    """

    def __init__(self, query: str, generation: Generation, state: StateFolder, losses: Losses | None = None) -> None:
        self._query = query
        self._generation = generation
        self._losses = losses
        self._doubtful: list[tuple[Spans, int]] = []
        """Offset ranges that the brokers have not yet explained, with their number of offsets without a record."""
        self._accounts = state.accounts
        self._inbox = state.inbox
        self._view: InboxView | None = None
        self.account = self._accounts.of(query)
        if self.account.generation != generation.id and query.startswith(_TOPICS):
            self._hand_over()

    def _hand_over(self) -> None:
        """Copy positions of topics that moved between the queries of a cluster, in both directions."""
        own, cluster = self.account, cluster_of(self._query)
        for query, other in self._accounts.known.items():
            if query == self._query or not query.startswith(_TOPICS) or cluster_of(query) != cluster:
                continue
            for topic in own.reached.keys() & other.reached.keys():
                new, old = (own, other) if topic in self._generation.topics else (other, own)
                new.reached = {**new.reached, topic: _furthest(new.reached[topic], old.reached[topic])}

    def add(self, batch: int, tally: Tally, metrics: Metrics) -> bool:
        """Add a completely written batch, durably; return False if it was added before."""
        if self.account.generation == self._generation.id and self.account.batch >= batch:
            return False
        ends, taken, spans = self._taken(batch, tally.rows)
        # Offsets of this batch without a record. Offsets that were skipped before it are not included.
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
        metrics.account(self._query, taken, empty, account.gap)
        return True

    def _empty(self, spans: Spans, holes: int) -> int:
        """Return the number of offsets now known to have no record, in this batch and in unexplained earlier ones."""
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
            # Bounds the memory. The last batches tell an operator enough.
            del self._doubtful[:-_DOUBTFUL]
            _log.warning("cannot determine whether records were lost", query=self._query, problem=str(error))
        return empty

    def _taken(self, batch: int, rows: int) -> tuple[Mapping[str, Any] | None, int, Spans]:
        """Return where a batch ends, the number of offsets since the last counted batch, and the ranges of this one.

        The ranges are empty for the local inbox. Where offsets are unknown, a batch has taken the *rows* evaluated.
        """
        ends, reached = None, self.account.reached
        try:
            starts, ends = bounds(self._generation, batch)
            if ends and is_inbox_offset(ends):
                return ends, self._count_inbox(starts, ends, reached), {}
            if ends and (known := _offsets(starts, ends, reached)) is not None:
                return ends, *known
        except (InboxError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning(
                "cannot count the records that a batch read", query=self._query, batch=batch, problem=str(error)
            )
        return ends, rows, {}

    def _count_inbox(self, starts: Mapping[str, Any], ends: Mapping[str, Any], reached: Mapping[str, Any]) -> int:
        if self._view is None:
            self._view = InboxView(self._inbox)
        view = self._view
        own = view.layout.inbox
        begin = reached if reached.get("inbox") == own else starts
        if begin:
            firsts = parse_offset(begin, own)
        else:
            firsts = {number: view.first_position(number) for number in view.partitions}
        return sum(view.count_rows(number, firsts[number], end) for number, end in parse_offset(ends, own).items())


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
            # A recreated topic is read from its first record, and its records count again.
            first = start if before is None or 0 <= start < before else before
            if first < 0 and not starts:
                return None
            # A partition that was added later is read from offset 0.
            first = max(0, first)
            taken += max(0, end - first)
            if end > max(start, first):
                spans.setdefault(topic, {})[int(number)] = (max(start, first), end)
    return taken, spans


class TopicsRecreated(Exception):
    """Ends a query before the first write of a batch because topics were deleted and recreated."""


class Pipeline:
    """The batches of one streaming query."""

    def __init__(
        self,
        name: str,
        kind: Kind,
        generation: Generation,
        shared: SharedParts,
        *,
        final: int | None = None,
        splitting: Splitting | None = None,
        came_by: str = "",
        restored: Callable[[DataFrame], DataFrame] | None = None,
        topics: ReadTopics | None = None,
    ) -> None:
        """Prepare for the batches of the query *name*.

        *final* is the last batch to write, if the query must then end. *splitting* limits the bytes of a batch. If the
        query reads what another query forwarded, *came_by* names that query and *restored* restores its rows. *topics*
        asks the brokers.
        """
        self.name = name
        self.kind = kind
        self.generation = generation
        self._shared = shared
        self._plans, self._metrics, self._status = shared.plans, shared.metrics, shared.status
        self._final = final
        self._came_by = came_by
        self._restored = restored
        self._draining = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._notes = shared.state.batches
        self._splitting = splitting or Splitting(
            self._notes, name, kind, generation, BatchSizing.of(self._plans.active.settings)
        )
        self._waiting = BatchWaiting(name, self._notes, self._plans, self._metrics, self._status, self._draining)
        self._ordering = KeyOrdering(shared.state, self._waiting.pause)
        self._watch = BatchWatch(name, self._metrics, self._status, lambda: reads(self._plans.active.sources, name))
        self._accounting = ConservationCheck(name, generation, shared.state, None if topics is None else topics.losses)
        self._topics = topics
        self._metrics.init_query_series(name)
        self._metrics.resume(name, self._accounting.account)
        self._shadowed = False
        self._unshadowed: int | None = None
        self._suspected = ""
        self.failure: RouterError | None = None
        self.last: int | None = None
        self.renewed: Spans = {}
        """The partitions of recreated topics, if the query ended because of them."""

    def drain(self) -> None:
        """Finish the current batch, and start no other."""
        self._draining.set()

    @property
    def draining(self) -> bool:
        """Whether no further batch may start."""
        return self._draining.is_set()

    def wait_idle(self, seconds: float) -> bool:
        """Wait until no batch is being written; return False after *seconds*."""
        return self._idle.wait(seconds)

    def batch(self, rows: DataFrame, number: int) -> None:
        """Evaluate and write one batch; the callback of ``foreachBatch``.

        Raises:
            Draining: the query must end; nothing of this batch has been written.
            TopicsRecreated: as above, and the query must restart at the first records of some topics.
            StateError: topics were recreated, and ``on_data_loss`` is ``stop``.
            BatchPinError: the plan that the batch is pinned to cannot be restored.
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
            self._metrics.count_written_batch(self.name, tally, seconds, int(now * 1000), counted=not fresh)
            if logging.getLogger(__name__).isEnabledFor(logging.DEBUG):
                counts = {"records": tally.total, "outcomes": count_by_endpoint(tally.records)}
                times = {"seconds": round(seconds, 3), "steps": steps}
                _log.debug("batch done", **self._waiting.facts(number), **counts, **times)
            self.last = number
            if number == self._final:
                self.drain()
        except DiskError:
            raise  # The query fails, and is restarted until the disk has space.
        except RouterError as error:
            self.failure = error
            raise
        finally:
            self._metrics.released(self.name)
            self._status.steps.end(self.name)
            self._idle.set()

    def _check_renewed(self, number: int) -> None:
        """End the query if a topic was recreated or is shorter than what was read: Spark would skip its first records.

        With ``on_data_loss: stop`` Spark has already failed the query if a topic is shorter.
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
            _log.error("topics end before the offsets already read", places=places)
        self.renewed = {**anew, **cut}
        if self.renewed:
            _log.warning("reading topics from their first record", topics=sorted(self.renewed))
            raise TopicsRecreated

    def _write_all(self, rows: DataFrame, number: int) -> Tally:
        """Write the rest of a batch part by part; mostly it is one part.

        The progress of a split batch is durable after each part. A crash repeats one part; sinks with transaction ids
        recognize it.
        """
        splitting = self._splitting
        splitting.begin(number)
        while (part := splitting.part) is not None:
            share = splitting.rows(rows)
            try:
                if splitting.cut_if_large():
                    continue
                tally = self._write(share, number, part)
            except Draining:
                raise
            except TooLarge:
                splitting.cut_large()
            except Exception as error:
                if is_timestamp_overflow(error) and splitting.read_anew():
                    _log.warning("reading the batch with our own client: timestamp out of range", query=self.name)
                    continue
                fault = find_batch_fault(error)
                if fault is not None and self._suspects_shadow(number, fault):
                    continue
                if fault is None or not self._failed(fault):
                    raise
            else:
                self._clear(number)
                splitting.written(tally)
                self._status.steps.written(self.name, splitting.tally.total)
                if splitting.part is not None:
                    # The other parts are recorded, so a drain does not wait for them.
                    self._waiting.pause(0)
        self._notes.release(self.name, number)
        return splitting.tally

    def _write(self, rows: DataFrame, number: int, part: BatchPart) -> Tally:
        """Write a part, and retry while a sink or registry is unavailable: that blocks a batch and never drops it.

        Each attempt uses the plan that the batch is pinned to, or the active plan if it has no pin yet.
        """
        rows = rows if self._restored is None else self._restored(rows)
        self._waiting.pauses = pauses()
        while True:
            pinned = self._notes.pinned(self.name, number)
            loaded = self._plans.current() if pinned is None else self._plans.pinned(pinned)
            if number == self._unshadowed and loaded.without_shadow is not None:
                loaded = loaded.without_shadow
            self._shadowed = loaded.without_shadow is not None
            if pinned is None and self._draining.is_set():
                # Checked after reading the plan: a drain starts before a plan without the query's topics is active.
                raise Draining
            now = datetime.now(UTC).isoformat(timespec="microseconds")
            id = BatchId(self.kind, self.name, self.generation.id, number, now, part.path, self._came_by)
            park = self._notes.noted(Park, self.name, number, self.generation.id)
            began = time.monotonic()
            if logging.getLogger(__name__).isEnabledFor(logging.DEBUG):
                epoch = loaded.plan.catalog.epoch
                _log.debug("batch attempt", **self._waiting.facts(number), epoch=epoch, pinned=pinned is not None)
            try:
                with self._watch.attempt(rows.sparkSession, number, loaded.plan.settings.batch_limit.total_seconds()):
                    outcomes = loaded.outcomes(
                        rows,
                        id,
                        part,
                        arrived=loaded.writer.may_reject or park is not None,
                        at_once=loaded.one_pass and park is None and not part.condemned,
                    )
                    known = (loaded, part, park, self._splitting, self._ordering)
                    tally = StoredBatch(id, outcomes, loaded.writer, self._shared, *known).write()
                self._splitting.learn(tally, time.monotonic() - began)
                self._waiting.end(number)
                return tally
            except Exception as error:
                if not self._waiting.block(loaded, id, error, parked=park is not None):
                    raise

    def _suspects_shadow(self, number: int, fault: Fault) -> bool:
        """Whether the failed attempt had a shadow catalog; the retry without it does not count as a failure."""
        if not self._shadowed:
            self._suspected = ""
            return False
        self._unshadowed, self._suspected, self._shadowed = number, fault.text, False
        _log.warning("batch failed; retrying without the shadow catalog", query=self.name, batch=number)
        return True

    def _clear(self, number: int) -> None:
        """Disable the shadow catalog if the batch failed only with it."""
        if self._suspected:
            reason = f"batch {number} of {self.name} failed only with it: {self._suspected}"
            self._plans.set_aside_shadow(reason)
            self._suspected = ""

    def _failed(self, fault: Fault) -> bool:
        """Count a failure caused by the records, and split the part if due; return False if it cannot be split."""
        parts = self._splitting
        self._metrics.fault(self.name, fault.kind)
        self._status.query(self.name, "failed", batch=parts.number, reason=fault.text)
        facts = {**self._waiting.facts(parts.number), "error": fault.text}
        hint = self._hint(fault)
        if not parts.failed(fault):
            _log.warning("batch failed; retrying", **facts, times=parts.failures.all, **hint)
            self._waiting.pause()
            return True
        places = parts.measure()
        facts |= {"records": places.num_rows, **hint}
        if not parts.divide(places, fault):
            _log.error("batch failed and cannot be split further", **facts)
            return False
        if parts.part is not None and parts.part.condemned:
            _log.error("poison record becomes a dead letter", position=first_of(places), **facts)
        else:
            _log.warning("batch failed; splitting it to find the poison record", parts=len(parts.left), **facts)
        return True

    def _hint(self, fault: Fault) -> dict[str, str]:
        remedy = divide_memory(self._plans.active.settings).remedy(fault.text, worker=fault.kind == "worker")
        return {"hint": remedy} if remedy else {}
