"""Relations of messages while a router runs: open exchanges, their pairs, and how these reach a sink."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import msgspec

from bindings.background import Background, Backoff
from router.errors import SinkError
from router.evaluation.forwarding import EXCHANGE, RelatedRecord, decode_exchange
from router.logs import get_logger
from router.settings import Settings
from router.sinks.contract import Commit
from router.sinks.pairs import PARTS_OF_A_SIDE, PairRow, PairSink, open_pairs
from router.state.database import StateDatabase
from router.watching.metrics import RelationMetrics

# Open exchanges: questions that may yet be answered, answers whose questions have not come, and the pairs of both.
#
# All that a batch does here is one transaction, which also notes the batch: one that comes again changes nothing. Spark
# has evaluated its records before, so that no other writer waits for that. A pair goes to the outbox in the same
# transaction, and from there to the sink in *deliveries*: what belongs to one, and its number, are durable before the
# sink gets it, and repeat after a crash. So a sink that keeps commits has each pair once. Each process delivers under
# an id of its own, but for what an earlier one began: after an older copy of the database was put back, the sink has
# the next numbers of the old id, and would leave these deliveries out.
#
# A half waits for a time that passes only while a router runs, and is given up only when all that arrived before its
# end has been read, so that neither a stop nor a backlog makes answers late. The number of waiting halves is bounded:
# when there is no room, the oldest are given up.

# In the state database, ``halves`` are requests (``asked``) that may yet be answered, and answers whose request has not
# come; ``keys`` the keys by which a half is found (``asked``: 0 of an answer, 1 of a request, 2 of one that has an
# answer); ``outbox`` pairs, and halves that are given up, on their way to the sink; ``commits`` the last batch, or part
# of one, of each query. Facts: the id and number of deliveries, the last row of the one under way, the last change.

Cause = Literal["", "time", "room", "unnamed"]
ANSWER: Final = 0
OPEN: Final = 1
ANSWERED: Final = 2
"""What a key is of: an answer, a question without an answer, a question that has one."""
NOTED_SECONDS: Final = 10.0
"""Time between two notes of the time while nothing happens."""
AT_ONCE: Final = 10_000
"""Halves that are given up, and rows that are delivered, at a time."""
TEXT_AT_ONCE: Final = 8 * 2**20
"""Characters of these at a time, as they are kept; a longer one is handled alone."""


class Half(msgspec.Struct, frozen=True, array_like=True):
    """One record of an exchange: its definition, event id, position, time of arrival and epoch; of an answer also the
    relation and the value that relates it.
    """

    message: str
    id: str
    position: str
    received: str
    epoch: str
    relation: str = ""
    correlation: str = ""


@dataclass(frozen=True, slots=True)
class RecordToPair:
    """A record as it comes to be paired."""

    half: Half
    exchange: RelatedRecord


@dataclass(frozen=True, slots=True)
class PairDelivery:
    """Rows for the sink, under the commit that they have in every try."""

    commit: Commit
    rows: Sequence[PairRow]
    upto: int


_HALF: Final = msgspec.json.Decoder(Half)
_ROW: Final = msgspec.json.Decoder(PairRow)


class Exchanges:
    """The open exchanges in the database of the state folder *root*; thread-safe.

    ``wait`` is how many seconds a half waits for another, ``most`` how many wait at a time. ``clock`` gives the
    seconds since 1970, ``read_until`` up to which of these all that arrived has been read.

    Raises:
        StateError, DiskError: on opening, and in each method that writes.
    """

    def __init__(
        self,
        root: Path,
        *,
        wait: float,
        most: int,
        read_until: Callable[[], float],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._wait = wait
        self._most = most
        self._read_until = read_until
        self._clock = clock
        self._lock = threading.Lock()
        # A connection of its own: a batch's transaction is a long one.
        self._state = StateDatabase(root)
        self._counts: Counter[str] = Counter()
        self._own_id = uuid.uuid4().hex
        self._changed = clock()
        self.open = 0
        """How many halves wait."""
        self.undelivered = 0
        """How many rows are yet to be delivered."""
        with self._changing():
            self._id = str(self._fact("id") or self._own_id)
            stood = max(0.0, clock() - float(self._fact("changed") or clock()))
            self._database.execute("UPDATE halves SET due = due + ?", (stood,))
            self.open, self.undelivered = self._count("halves"), self._count("outbox")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._state.close()

    def take(self, commit: Commit, query: str, records: Iterable[RecordToPair]) -> Counter[str]:
        """Pair the records of a batch, or of a part of one, with what is open; return what became of exchanges.

        Of a batch that has been taken, or of a part of what has been, nothing changes.
        """
        with self._changing():
            if not self._has(commit):
                for record in records:
                    self._put(record)
                self._make_room()
                self._note(commit, query)
            return Counter(self._counts)

    def overdue(self) -> bool:
        """Whether a half has waited long enough."""
        due: float | None = self._state.read("SELECT min(due) FROM halves")[0][0]
        return due is not None and due <= self._passed()

    def expire(self) -> Counter[str]:
        """Give up the halves that have waited long enough, a bounded number at a time; return what became of them."""
        if not self.open or not self._stale():
            return Counter()
        with self._changing():
            due = "SELECT number, asked, paired, told FROM halves WHERE due <= ? ORDER BY due LIMIT ?"
            self._give_up(self._some(due, self._passed(), AT_ONCE), "time")
            return Counter(self._counts)

    def delivery(self) -> PairDelivery | None:
        """Return what the sink is to get next, the same until :meth:`delivered`; None when it has everything."""
        if not self.undelivered:
            return None
        with self._changing():
            upto = self._fact("upto")
            if upto is None:
                self._id = self._own_id
                self._set("id", self._id)
                upto = self._some("SELECT number, told FROM outbox ORDER BY number LIMIT ?", AT_ONCE)[-1][0]
                self._set("upto", upto)
                self._set("delivery", int(self._fact("delivery") or 0) + 1)
            number = int(self._fact("delivery") or 0)
            outbox = self._database.execute(
                "SELECT number, told FROM outbox WHERE number <= ? ORDER BY number", (upto,)
            )
            rows = [msgspec.structs.replace(_ROW.decode(text), id=f"{self._id}-{place}") for place, text in outbox]
        return PairDelivery(Commit(f"{self._id}-relations", number), rows, int(upto))

    def delivered(self, delivery: PairDelivery) -> None:
        """Forget what the sink has."""
        with self._changing():
            removed = self._database.execute("DELETE FROM outbox WHERE number <= ?", (delivery.upto,)).rowcount
            self._database.execute("DELETE FROM facts WHERE name = 'relations.upto'")
            self.undelivered -= removed

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            self._counts = Counter()
            before = self.open, self.undelivered
            now = self._clock()
            try:
                with self._state.transaction() as self._database:
                    yield
                    self._set("changed", now)
            except BaseException:
                self.open, self.undelivered = before
                raise
            self._changed = now

    def _passed(self) -> float:
        """Return the time up to which none can come any more for those who wait."""
        return min(self._clock(), self._read_until())

    def _stale(self) -> bool:
        """Whether a half is due; or whether to note that time passes, so that a start knows what it missed."""
        return self.overdue() or self._clock() - self._changed >= NOTED_SECONDS

    def _put(self, taken: RecordToPair) -> None:
        exchange, half = taken.exchange, taken.half
        if exchange.answers == "":
            self._settle("unasked", "unnamed", None, half)
        elif exchange.answers is not None:
            self._answer(exchange.answers, half)
        if exchange.asks:
            self._ask(exchange.asks, half)
        elif exchange.answers is None:
            self._settle("unanswered", "unnamed", half, None)

    def _answer(self, key: str, half: Half) -> None:
        """Pair an answer with the last question of its key; all of them count as answered from then on."""
        # One look, however many have the key.
        last = "SELECT max(number) FROM keys WHERE key = ? AND asked = ?"
        query = f"SELECT number, told FROM halves WHERE number IN (({last}), ({last})) ORDER BY number DESC"
        question = self._database.execute(query, (key, OPEN, key, ANSWERED)).fetchone()
        if question is None:
            self._keep((key,), half, asked=False)
            return
        # Each question is marked but once, however many answers have the key.
        marked = "SELECT number FROM keys WHERE key = ? AND asked = ?"
        self._database.execute(f"UPDATE halves SET paired = 1 WHERE number IN ({marked})", (key, OPEN))
        self._database.execute("UPDATE keys SET asked = ? WHERE key = ? AND asked = ?", (ANSWERED, key, OPEN))
        self._settle("paired", "", _HALF.decode(question[1]), half)

    def _ask(self, keys: Sequence[str], half: Half) -> None:
        """Keep a question, and pair the answers that came before it."""
        number = self._keep(keys, half, asked=True)
        waiting = "SELECT number, told FROM keys JOIN halves USING (number) WHERE key = ? AND keys.asked = ?"
        for key in keys:
            while answers := self._some(f"{waiting} ORDER BY number LIMIT ?", key, ANSWER, AT_ONCE):
                for each, text in answers:
                    self._settle("paired", "", half, _HALF.decode(text))
                    self._drop(each)
                self._database.execute("UPDATE halves SET paired = 1 WHERE number = ?", (number,))

    def _keep(self, keys: Sequence[str], half: Half, *, asked: bool) -> int:
        number = self._database.execute(
            "INSERT INTO halves (asked, paired, due, told) VALUES (?, 0, ?, ?)",
            (asked, self._clock() + self._wait, msgspec.json.encode(half).decode()),
        ).lastrowid
        assert number is not None
        side = OPEN if asked else ANSWER
        self._database.executemany("INSERT INTO keys VALUES (?, ?, ?)", [(key, side, number) for key in keys])
        self.open += 1
        return number

    def _drop(self, number: int) -> None:
        self._database.execute("DELETE FROM keys WHERE number = ?", (number,))
        self._database.execute("DELETE FROM halves WHERE number = ?", (number,))
        self.open -= 1

    def _make_room(self) -> None:
        """Give up the oldest halves, as many as there is no room for."""
        oldest = "SELECT number, asked, paired, told FROM halves ORDER BY number LIMIT ?"
        while (over := self.open - self._most) > 0:
            self._give_up(self._some(oldest, min(over, AT_ONCE)), "room")

    def _some(self, query: str, *values: float | str) -> list[Any]:
        """Return the first rows of a query, no more of them than make a bounded text; that is their last column."""
        rows: list[Any] = []
        size = 0
        with closing(self._database.execute(query, values)) as cursor:
            for row in cursor:
                rows.append(row)
                size += len(row[-1])
                if size >= TEXT_AT_ONCE:
                    break
        return rows

    def _give_up(self, halves: Iterable[tuple[int, int, int, str]], cause: Cause) -> None:
        for number, asked, paired, text in halves:
            half = _HALF.decode(text)
            if asked and not paired:
                self._settle("unanswered", cause, half, None)
            elif not asked:
                self._settle("unasked", cause, None, half)
            self._drop(number)

    def _settle(self, outcome: str, cause: Cause, question: Half | None, answer: Half | None) -> None:
        """Put a pair, or half of one, on its way to the sink."""
        settled = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="microseconds")
        row = _row(outcome, cause, settled, question, answer)
        self._database.execute("INSERT INTO outbox (told) VALUES (?)", (msgspec.json.encode(row).decode(),))
        self._counts[outcome] += 1
        self.undelivered += 1

    def _has(self, commit: Commit) -> bool:
        cursors = (
            self._database.execute("SELECT 1 FROM commits WHERE app = ? AND version >= ?", (app, commit.version))
            for app in commit.apps
        )
        return any(cursor.fetchone() is not None for cursor in cursors)

    def _note(self, commit: Commit, query: str) -> None:
        """Note a batch, and forget those of its query before it, which never come again."""
        self._database.execute(
            "DELETE FROM commits WHERE query = ? AND (whole != ? OR version < ?)", (query, commit.whole, commit.version)
        )
        row = (commit.app, query, commit.whole, commit.version)
        self._database.execute("INSERT OR REPLACE INTO commits VALUES (?, ?, ?, ?)", row)

    def _fact(self, name: str) -> str | int | float | None:
        row = self._database.execute("SELECT value FROM facts WHERE name = ?", (f"relations.{name}",)).fetchone()
        return None if row is None else row[0]

    def _set(self, name: str, value: float | str) -> None:
        self._database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (f"relations.{name}", value))

    def _count(self, table: Literal["halves", "outbox"]) -> int:
        return int(self._database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def _row(outcome: str, cause: str, settled: str, question: Half | None, answer: Half | None) -> PairRow:
    """Return the row of a pair, or of the one half that there is."""
    columns: dict[str, str | None] = {"cause": cause or None}
    for side, half in (("question", question), ("answer", answer)):
        if half is not None:
            columns.update({f"{side}_{name}": getattr(half, name) or None for name in PARTS_OF_A_SIDE})
    if answer is not None:
        columns |= {"relation": answer.relation or None, "correlation": answer.correlation or None}
    return PairRow(outcome=outcome, settled=settled, **columns)


# Pairing in a running router: batches hand records over, a thread delivers pairs and gives up what is due.

NAME: Final = "relations"
LOOK_SECONDS: Final = 1.0
"""Time between two looks at what is due while no batch comes."""
TURN_SECONDS: Final = 0.01
"""Time between two of them while there is more to do: the turn of a batch that waits for the file."""
RETRY: Final = (0.5, 30.0)
"""Seconds until the sink is tried again, at first and at most."""
_STOP_SECONDS: Final = 10.0
_log = get_logger()


class Pairing:
    """Pairs the messages of a router's batches, and delivers the pairs from when it is entered until it is left.

    What is undelivered then, or after a crash, is delivered after the next start.
    """

    def __init__(self, settings: Settings, metrics: RelationMetrics, read_until: Callable[[], float]) -> None:
        """Open the database. *read_until* gives the time up to which all that arrived has been read.

        Raises:
            StateError, DiskError: it cannot be used.
        """
        assert settings.relations is not None
        self._to = settings.relations.to
        self._most = settings.relations.most
        self._metrics = metrics
        self._sink: PairSink = open_pairs(self._to, settings.sinks[self._to])
        root, wait = Path(settings.state), settings.relations.wait.total_seconds()
        self._exchanges = Exchanges(root, wait=wait, most=settings.relations.most, read_until=read_until)
        self._backoff = Backoff(*RETRY)
        self._news, self._stop = threading.Event(), threading.Event()
        self._thread = Background("relations", self._run)

    def __enter__(self) -> Self:
        self._measure()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._news.set()
        self._thread.ask_to_end()
        if self._thread.join(_STOP_SECONDS):
            self._exchanges.close()

    def require_room(self) -> None:
        """Let a batch wait while the sink is too far behind.

        Raises:
            SinkError: it is.
        """
        waiting = self._exchanges.undelivered
        if waiting >= self._most:
            hint = "fix the sink (the log says why its writes fail), or raise relations.most and restart"
            problem = f"{waiting} request-reply pairs wait for it, the limit of relations.most"
            raise SinkError(self._to, problem, hint=hint)

    def take(self, rows: Iterable[Mapping[str, Any]], commit: Commit, query: str, epoch: str) -> None:
        """Pair the records of a batch: durable when this returns, and done once however often the *commit* comes.

        *rows* have position, time of arrival (``received``), message, relation and exchange.

        Raises:
            StateError, DiskError: the file cannot be written.
        """
        left = iter(rows)
        row = next(left, None)
        if row is not None:  # A batch without any record to pair need not be noted.
            self._count(self._exchanges.take(commit, query, _records(chain((row,), left), epoch)))
            self._news.set()

    def _run(self) -> None:
        """Deliver and give up, until the router ends: then once more, as far as the sink takes it now.

        Neither waits for the other to have nothing left to do, nor for the pauses between tries of the sink.
        """
        again = 0.0
        while not self._stop.is_set():
            self._news.clear()
            self._count(self._exchanges.expire())
            due = time.monotonic() >= again
            if due and not self._deliver():
                due, again = False, time.monotonic() + self._backoff.next_pause()
            more = self._exchanges.overdue() or (due and self._exchanges.undelivered)
            self._news.wait(TURN_SECONDS if more else LOOK_SECONDS)
        while self._exchanges.undelivered and self._deliver():
            pass

    def _deliver(self) -> bool:
        """Hand the next delivery to the sink, if there is one; False when it does not take it now."""
        delivery = self._exchanges.delivery()
        if delivery is None:
            return True
        try:
            self._sink.write(delivery.rows, delivery.commit)
        except SinkError as error:
            _log.error(
                "request-reply pairs wait for their sink", sink=self._to, waiting=len(delivery.rows), problem=str(error)
            )
            self._metrics.write("error")
            return False
        self._exchanges.delivered(delivery)
        self._metrics.write("ok")
        self._backoff.reset()
        self._measure()
        return True

    def _count(self, settled: Counter[str]) -> None:
        self._metrics.settled(settled)
        self._measure()

    def _measure(self) -> None:
        self._metrics.waiting(self._exchanges.open, self._exchanges.undelivered)


def _records(rows: Iterable[Mapping[str, Any]], epoch: str) -> Iterator[RecordToPair]:
    for row in rows:
        exchange = decode_exchange(row[EXCHANGE])
        yield RecordToPair(_half(row, exchange.id, exchange.correlation, epoch), exchange)


def _half(row: Mapping[str, Any], id: str, correlation: str, epoch: str) -> Half:
    received = row["received"]
    arrived = "" if received is None else received.isoformat(timespec="microseconds")
    return Half(row["message"], id, row["position"], arrived, epoch, row["relation"] or "", correlation)
