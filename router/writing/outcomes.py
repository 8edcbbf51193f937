"""What the steps of a batch ask of its judged records, what sinks refused of them, and the order of keys."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from router.judging.outputs import Tally
from router.judging.plan import Plan
from router.logs import get_logger
from router.routing.destinations import LetterLimits
from router.routing.routes import Routes
from router.settings.names import dead_letter_values
from router.sinks.contract import Rejected, WriteResult
from router.state.ledger import LetterLedger
from router.state.ledger_database import waits_for
from router.state.state import BatchNotes, StateFolder
from router.writing.staging import BatchId

if TYPE_CHECKING:
    from router.sinks.contract import Staged
    from router.writing.staging import RowsForSink

# What the steps of a batch ask of its judged records, wherever those are: the contract of :class:`Outcomes`.
#
# Spark's are in :mod:`router.writing.spark_outcomes`; tests of the steps have some in a list. Rows stay where they were
# judged: each method says what it brings to the driver.


@dataclass(frozen=True, slots=True)
class RecordOutcome:
    """What became of one record, without the record: ``letter`` is the id of the dead letter it is or would be.

    ``route`` is below zero for a dead letter. ``key`` is what the record's order is kept by, where that was asked for.
    """

    position: str
    letter: str
    route: int
    endpoint: str = ""
    message: str = ""
    reason: str = ""
    detail: str = ""
    key: str = ""


class Outcomes(Protocol):
    """The outcomes of one attempt, or those of them that one sink gets. Asking again gives the same.

    With ``may_reject`` a sink may still reject each: they know how records arrived, for a letter, or nobody makes one.
    """

    may_reject: bool

    def evaluate(self) -> Tally:
        """Judge every record and keep the outcomes until :meth:`release`; return their counts."""

    def tally(self) -> Tally:
        """Return the counts, once a write has evaluated what was not kept."""

    def release(self) -> None:
        """Keep nothing any more."""

    def on_routes(self, routes: Sequence[int]) -> Outcomes:
        """Return those that one of these routes takes."""

    def without(self, letters: Collection[str]) -> Outcomes:
        """Return all but those with these letters' ids, in their order."""

    def letters(self, rejections: Rejections | None = None) -> Outcomes:
        """Return the dead letters, and one more for each rejected record, which holds the whole record as it arrived.

        These outcomes must still know how records arrived (:attr:`router.writing.writer.BatchWriter.may_reject`).
        """

    def decisions(self) -> list[RecordOutcome]:
        """Return all decisions."""

    def keyed(self, keys: Collection[str] | None = None) -> list[RecordOutcome]:
        """Return the decisions on records that have a key, with it; *keys* are the only ones wanted, None for all."""

    def exchanges(self) -> Iterator[dict[str, Any]]:
        """Yield what pairs records with others: position, time of arrival, message, relation and exchange.

        Only of plans that pair; the columns are those of :mod:`router.judging.carried`, whose length is bounded.
        """

    def topics(self, sink: str) -> list[str]:
        """Return the topics of a Kafka sink that these events go to, each once."""

    def to_topics(self, sink: str, topics: Collection[str]) -> list[tuple[str, RecordOutcome]]:
        """Return the decisions on events for these topics of a Kafka sink, each with its topic."""

    def events(self, schema: pa.Schema) -> pa.Table:
        """Return the events, with bodies, as a sink of that schema takes them."""

    def dead_letters(self) -> pa.Table:
        """Return the dead letters, with bodies, as sinks take them."""

    def staged(self, share: RowsForSink) -> Staged:
        """Return what workers wrote of these outcomes for a sink that takes files: names of files, and no rows.

        What was not written when the outcomes were evaluated is written now. Files that no sink took over are removed
        by :meth:`release`.
        """

    def publish_events(self, sink: str) -> None:
        """Have Spark write the events to a Kafka sink, each acknowledged; at least once.

        Raises:
            SinkError: the brokers did not take them all now.
        """

    def publish_letters(self, sink: str) -> None:
        """Have Spark write the dead letters to a Kafka sink, as :meth:`publish_events`."""

    def publish_all(self, sinks: Sequence[str]) -> None:
        """Have Spark write events and dead letters to Kafka sinks of one cluster in one pass, as the others."""

    def spilled(self) -> Iterator[tuple[str, bytes]]:
        """Yield id and native record, as JSON, of each dead letter that no topic takes."""

    def left_out(self) -> Iterator[tuple[str, bytes]]:
        """Yield a name and what the source gave, as JSON, of each record whose dead letter has only its place."""


# Records that a sink turned down at write time, after they had been judged as routed (JUDGING.md#sink-rejected).
#
# A rejected record ends as one dead letter, ``sink-rejected``, whatever the number of its sinks: those that took it
# keep it, and the letter says which did not and why. Letters are written after all sinks of events and before the batch
# commits, so a crash in between repeats the batch and loses none. In the tally the record moves from routed to
# dead-letter, as if the matcher had said so; the circuit breaker looks before the first write and does not see it.
#
# The same letters are made of a whole batch that an operator sets aside. Their detail is ``sink NAME: why; sink OTHER:
# why`` and names exactly the sinks that do not have the record, so that a replay sends it to those alone.

REASON: Final = "sink-rejected"
DETAIL_CAP: Final = 3_900
"""Characters of a detail: fewer than a Kafka header keeps, so that no sink's name is cut off."""
_NAMED: Final = re.compile(r"(?:^|; )sink ([^:;]+): ")
_MARKS: Final = {"%": "%25", ":": "%3A", ";": "%3B"}
"""Characters that a sink's name may have and that our form needs for itself, the escape first."""


def detail_of(reasons: Mapping[str, str]) -> str:
    """Return the detail of a letter that these sinks do not have, each with why; all names are in it, in full."""
    # The text of a sink must not look as if it named another sink.
    escaped = {_escaped(name): why.replace("; sink ", ", sink ") for name, why in reasons.items()}
    share = max(0, DETAIL_CAP // max(1, len(escaped)) - max(map(len, escaped), default=0) - len("; sink : "))
    return "; ".join(f"sink {name}: {why[:share]}" for name, why in escaped.items())


def sinks_of(detail: str) -> tuple[str, ...]:
    """Return the sinks that a letter's detail names, the inverse of :func:`detail_of`; () when it names none."""
    if not detail.startswith("sink "):
        return ()
    return tuple(dict.fromkeys(_plain(name) for name in _NAMED.findall(detail)))


def _escaped(name: str) -> str:
    for mark, code in _MARKS.items():
        name = name.replace(mark, code)
    return name


def _plain(name: str) -> str:
    for mark, code in reversed(_MARKS.items()):
        name = name.replace(code, mark)
    return name


class Rejections:
    """What sinks rejected of one batch; *routes* say where its dead letters go, *limits* which are spilled."""

    def __init__(self, routes: Routes, limits: LetterLimits) -> None:
        self._routes = routes
        self._limits = limits
        self._records: dict[str, Rejected] = {}
        self._details: dict[str, dict[str, str]] = {}

    def __bool__(self) -> bool:
        """Whether anything was rejected."""
        return bool(self._records)

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """Rejected records by endpoint and definition, each once."""
        return Counter((record.endpoint, record.message) for record in self._records.values())

    def of_sink(self, sink: str) -> Counter[str]:
        """Return the records that one sink rejected, by endpoint."""
        rejected = (self._records[position] for position, sinks in self._details.items() if sink in sinks)
        return Counter(record.endpoint for record in rejected)

    @property
    def routes(self) -> frozenset[int]:
        """The routes that take the letters of rejected records."""
        return frozenset(self._routes.letters(record.endpoint, REASON) for record in self._records.values())

    def letters_on(self, routes: Collection[int]) -> Counter[str]:
        """Return the rejected records whose letter one of these routes takes, by endpoint."""
        endpoints = Counter(record.endpoint for record in self._records.values())
        return Counter(
            {name: count for name, count in endpoints.items() if self._routes.letters(name, REASON) in routes}
        )

    @property
    def details(self) -> dict[str, str]:
        """The detail of each rejected record's letter, by position."""
        return {position: detail_of(reasons) for position, reasons in self._details.items()}

    def add(self, sink: str, rejected: Iterable[Rejected]) -> None:
        """Take what one sink rejected."""
        for record in rejected:
            self._records[record.position] = record
            self._details.setdefault(record.position, {})[sink] = record.reason

    def table(self) -> pa.Table:
        """Return what the letter of each record has of its own, by position (``at``).

        That is its detail, its route with the topics there, and the bytes above which it is spilled (``limit``).
        """
        records = list(self._records.values())
        taking = [self._routes.letters(record.endpoint, REASON) for record in records]
        columns: dict[str, list[str]] = {
            "at": [record.position for record in records],
            "detail": [detail_of(self._details[record.position]) for record in records],
        }
        for name, template in self._routes.letter_topics.items():
            columns[f"letters_{name}"] = [
                template.expand(dead_letter_values(record.endpoint, REASON), escape="_") for record in records
            ]
        numbers = {
            "route": pa.array(taking, pa.int32()),
            "limit": pa.array([self._limits.of(route) for route in taking], pa.int64()),
        }
        return pa.table({**{name: pa.array(values, pa.string()) for name, values in columns.items()}, **numbers})


# What sinks say they have of an attempt, held against what its outcomes say they are to have.


class Receipts:
    """The receipts of one attempt.

    A sink without a receipt counts as complete: Spark's write to Kafka fails unless each record was acknowledged, and
    the receipt of what a sink took before this attempt was checked then. A repeated commit cannot fall short either:
    the sink knows that it has the commit but not how many rows, and reports those that it was given now.
    """

    def __init__(self) -> None:
        self._said: dict[tuple[str, bool], int] = {}

    def add(self, sink: str, result: WriteResult, *, letters: bool = False) -> None:
        """Note what a sink said of its share of the events, or of the dead letters."""
        self._said[sink, letters] = result.rows + result.before

    def waive(self, sink: str) -> None:
        """Ask for no receipt of a sink's events: it already had more of them than it is given now."""
        self._said.pop((sink, False), None)

    def settle(self, tally: Tally, routes: Routes, rejections: Rejections | None = None) -> None:
        """Add to a tally what each sink has of it, and how much is missing that no sink rejected.

        The tally is that of the judging; what became a dead letter since is in *rejections*.
        """
        for name, numbers in routes.event_sinks.items():
            due, size = _due(tally, numbers)
            if rejections is not None:
                due -= rejections.of_sink(name)
            self._settle(tally, name, due, size, letters=False)
        for name, numbers in routes.letter_sinks.items():
            due, size = _due(tally, numbers)
            if rejections is not None:
                due += rejections.letters_on(numbers)
            self._settle(tally, name, due, size, letters=True)

    def _settle(self, tally: Tally, sink: str, due: Counter[str], size: Counter[str], *, letters: bool) -> None:
        said = self._said.get((sink, letters))
        if said is not None:
            tally.missing += max(0, due.total() - said)
        for endpoint, count in due.items():
            tally.delivered[sink, endpoint] += count
            tally.delivered_bytes[sink, endpoint] += size[endpoint]


def _due(tally: Tally, numbers: tuple[int, ...]) -> tuple[Counter[str], Counter[str]]:
    """Return how many outcomes of each endpoint these routes take, and their bytes."""
    due, size = Counter[str](), Counter[str]()
    for (endpoint, route), (count, taken) in tally.routes.items():
        if route in numbers:
            due[endpoint] += count
            size[endpoint] += taken
    return due, size


# The order of records of one key, when ``dead_letters.order`` is ``park`` (deploy/OPERATIONS.md#dead-letters).
#
# A record whose key has an earlier dead letter is *held back*: no sink gets it, and it becomes a dead letter as well,
# one that waits for the first. Which records those are is settled before the first write of a batch, in this order: the
# keys that were blocked are noted beside the batch's pin, so that every try of it holds back the same records whatever
# a replay frees meanwhile; the letters to come take their places in the ledger, where they block the key for later
# batches; then sinks and dead letters are written; then the letters take their places once more, with those of records
# that a sink turned down. What a sink turns down while a batch is written therefore holds back later records from the
# next batch on, not those that the same write sent.
#
# A replay that caught up with all letters of a key but those that still come says so, and batches with records of that
# key wait for its end. Otherwise a key that always has records would never be free again.
#
# The driver sees only those rows of a batch whose key is blocked or has a dead letter in it, without their bodies. A
# key is the event's ``partitionkey``, else the key that the record came with; a record without one is never held back.

PATIENCE_SECONDS: Final = 60.0
"""Longest time in which a batch waits for a replay that is about to free one of its keys."""
LOOK_SECONDS: Final = 0.1
_NUMBERS: Final = re.compile(r"((?:-\d+)*)(?:#(\d+))?\Z")
_log = get_logger()


@dataclass(frozen=True, slots=True)
class HeldRecord:
    """A routed record that waits for the dead letter ``behind``."""

    decision: RecordOutcome
    behind: str


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The records of a batch that no sink gets, since an earlier one of their key is a dead letter."""

    records: tuple[HeldRecord, ...] = ()

    def left(self, outcomes: Outcomes) -> Outcomes:
        """Return the outcomes of the batch without those that are held back, in their order."""
        return outcomes.without([each.decision.letter for each in self.records])

    def share(self, routes: Collection[int]) -> Iterator[Rejected]:
        """Yield what a sink that these routes lead to would have got of them, as rejected."""
        for each in self.records:
            held = each.decision
            if held.route in routes:
                yield Rejected(held.position, waits_for(each.behind), held.endpoint, held.message)


NOTHING: Final = HeldBack()


class Ordering:
    """Holds back records of one query, by the settings of each batch's plan; under ``continue`` it does nothing."""

    def __init__(self, state: StateFolder, query: str, notes: BatchNotes, pause: Callable[[float], None]) -> None:
        """*pause* waits so many seconds, or raises what is to end the batch before its first write."""
        self._pause = pause
        self._root = state.root
        self._query = query
        self._notes = notes

    def hold_back(self, outcomes: Outcomes, batch: BatchId, plan: Plan, *, dead: int) -> HeldBack:
        """Return which records of a batch wait; before its first write, when it was judged and is pinned.

        *dead* is how many dead letters the batch has. Repeating gives the same.

        Raises:
            StateError: the note or the ledger cannot be read or written; nothing has been decided then.
        """
        if not _parks(plan):
            return NOTHING
        noted = self._blocked(batch)
        blocked = self._heads(()) if noted is None else noted
        suspects = _suspects(outcomes, blocked, dead=dead)
        if noted is None:
            keys = {each.key for each in suspects}
            blocked = self._heads(keys)
            met = {key: blocked[key] for key in keys & blocked.keys()}
            self._notes.block(self._query, batch.number, batch.generation, met, batch.label)
        held = _held(suspects, blocked)
        waiting = {each.decision.letter for each in held.records}
        self._arrived(each for each in suspects if each.route < 0 or each.letter in waiting)
        if held.records:
            _log.info("records wait for dead letters of their keys", query=self._query, records=len(held.records))
        return held

    def noted(self, outcomes: Outcomes, batch: BatchId, plan: Plan) -> HeldBack:
        """Return which records of a batch waited when it was first written; none if it was never written."""
        blocked = self._blocked(batch) if _parks(plan) else None
        return NOTHING if blocked is None else _held(_suspects(outcomes, blocked, dead=1), blocked)

    def settle(self, outcomes: Outcomes, rejections: Rejections, plan: Plan, *, dead: int) -> None:
        """Let all dead letters of a batch with a key block it; after they are written, before Spark commits the batch.

        Repeating it changes nothing, except that letters that were replayed in between do not block any more.

        Raises:
            StateError: the ledger cannot be written.
        """
        if _parks(plan) and dead:
            self._arrived(outcomes.letters(rejections).keyed())

    def _blocked(self, batch: BatchId) -> dict[str, str] | None:
        return self._notes.blocked(self._query, batch.number, batch.generation, batch.label)

    def _heads(self, keys: Collection[str]) -> dict[str, str]:
        """Return the blocked keys, but first wait for a replay that is about to free one of *keys*."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with LetterLedger.open(self._root, create=False) as ledger:
                heads = ledger.order.heads()
                freeing = ledger.order.catching() & heads.keys() & set(keys)
                # The word of a replay that was killed does not count.
                if not freeing or not ledger.is_locked or time.monotonic() >= deadline:
                    return heads
            self._pause(LOOK_SECONDS)

    def _arrived(self, letters: Iterable[RecordOutcome]) -> None:
        ordered = sorted(letters, key=lambda each: in_order(each.position))
        if ordered:
            with LetterLedger.open(self._root) as ledger:
                ledger.order.arrived((each.key, each.letter) for each in ordered)


def in_order(position: str) -> tuple[str, tuple[int, ...], int]:
    """Return what sorts positions as records arrived: its numbers (partition, then offset or segment and row)."""
    match = _NUMBERS.search(position)
    assert match is not None  # It also matches nothing.
    numbers = tuple(int(text) for text in match[1].split("-")[1:])
    return position[: match.start()], numbers, int(match[2] or -1)


def _parks(plan: Plan) -> bool:
    return plan.settings.dead_letters.order == "park"


def _suspects(outcomes: Outcomes, blocked: Mapping[str, str], *, dead: int) -> list[RecordOutcome]:
    """Return the records of keys that are blocked, or have a dead letter in the batch, as they arrived."""
    keys = set(blocked)
    if dead:
        keys.update(each.key for each in outcomes.letters().keyed())
    return sorted(outcomes.keyed(keys), key=lambda each: in_order(each.position)) if keys else []


def _held(suspects: Iterable[RecordOutcome], blocked: Mapping[str, str]) -> HeldBack:
    """Return the routed records that come after a dead letter of their key; *suspects* are in order."""
    heads = dict(blocked)
    held: list[HeldRecord] = []
    for each in suspects:
        if each.route < 0:
            heads.setdefault(each.key, each.letter)
        elif each.key in heads:
            held.append(HeldRecord(each, heads[each.key]))
    return HeldBack(tuple(held))
