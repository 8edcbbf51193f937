"""Open exchanges: questions that may yet be answered, answers whose questions have not come, and the pairs of both.

All that a batch does here is one transaction, which also notes the batch: one that comes again changes nothing. A pair
goes to the outbox in the same transaction, and from there to the sink in *deliveries*: what belongs to one, and its
number, are durable before the sink gets it, and repeat after a crash. So a sink that keeps commits has each pair once.

A half waits for a time that passes only while a router runs, so that no stop of it makes answers late. How many wait is
bounded: for want of room the oldest are given up.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import msgspec

from router.judging.relating import Exchange
from router.relating.database import connect, transaction, translated
from router.sinks.contract import Commit
from router.sinks.pairs import PARTS_OF_A_SIDE, PairRow

Cause = Literal["", "time", "room", "unnamed"]
ANSWER: Final = 0
OPEN: Final = 1
ANSWERED: Final = 2
"""What a key is of: an answer, a question without an answer, a question that has one."""
NOTED_SECONDS: Final = 10.0
"""Time between two notes of the time while nothing happens."""
AT_ONCE: Final = 10_000
"""Halves that are given up, and rows that are delivered, at a time."""


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
class Taken:
    """A record as it comes to be paired."""

    half: Half
    exchange: Exchange


@dataclass(frozen=True, slots=True)
class Delivery:
    """Rows for the sink, under the commit that they have in every try."""

    commit: Commit
    rows: Sequence[PairRow]
    upto: int


_HALF: Final = msgspec.json.Decoder(Half)
_ROW: Final = msgspec.json.Decoder(PairRow)


class Exchanges:
    """The file of open exchanges; thread-safe.

    ``wait`` is for how many seconds a half waits for another, ``most`` how many wait at a time. ``clock`` gives the
    seconds since 1970.

    Raises:
        StateError, DiskError: on opening, and in each method that writes.
    """

    def __init__(self, path: Path, *, wait: float, most: int, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._wait = wait
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._database = connect(path)
        self._counts: Counter[str] = Counter()
        self._changed = clock()
        self.open = 0
        """How many halves wait."""
        self.undelivered = 0
        """How many rows are yet to be delivered."""
        with self._changing():
            self._id = str(self._fact("id"))
            stood = max(0.0, clock() - float(self._fact("changed") or clock()))
            self._database.execute("UPDATE halves SET due = due + ?", (stood,))
            self.open, self.undelivered = self._count("halves"), self._count("outbox")

    def close(self) -> None:
        """Close the file."""
        with self._lock, translated(self._path):
            self._database.close()

    def take(self, commit: Commit, query: str, records: Iterable[Taken]) -> Counter[str]:
        """Pair the records of a batch, or of a part of one, with what is open; return what became of exchanges.

        Of a batch that has been taken, or of a part of what has been, nothing changes.
        """
        with self._changing():
            if not self._has(commit):
                for each in records:
                    self._put(each)
                self._give_up(self._over(), "room")
                self._note(commit, query)
            return Counter(self._counts)

    def expire(self) -> Counter[str]:
        """Give up the halves that have waited long enough, a bounded number at a time; return what became of them."""
        if not self.open or not self._stale():
            return Counter()
        with self._changing():
            due = self._database.execute(
                "SELECT number, asked, paired, told FROM halves WHERE due <= ? ORDER BY due LIMIT ?",
                (self._clock(), AT_ONCE),
            ).fetchall()
            self._give_up(due, "time")
            return Counter(self._counts)

    def delivery(self) -> Delivery | None:
        """Return what the sink is to get next, the same until :meth:`delivered`; None when it has everything."""
        if not self.undelivered:
            return None
        with self._changing():
            upto = self._fact("upto")
            if upto is None:
                numbers = "SELECT number FROM outbox ORDER BY number LIMIT ?"
                upto = self._database.execute(f"SELECT max(number) FROM ({numbers})", (AT_ONCE,)).fetchone()[0]
                self._set("upto", upto)
                self._set("delivery", int(self._fact("delivery") or 0) + 1)
            number = int(self._fact("delivery") or 0)
            told = self._database.execute("SELECT number, told FROM outbox WHERE number <= ? ORDER BY number", (upto,))
            rows = [msgspec.structs.replace(_ROW.decode(text), id=f"{self._id}-{place}") for place, text in told]
        return Delivery(Commit(f"{self._id}-relations", number), rows, int(upto))

    def delivered(self, delivery: Delivery) -> None:
        """Forget what the sink has."""
        with self._changing():
            removed = self._database.execute("DELETE FROM outbox WHERE number <= ?", (delivery.upto,)).rowcount
            self._database.execute("DELETE FROM facts WHERE name = 'upto'")
            self.undelivered -= removed

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            self._counts = Counter()
            before = self.open, self.undelivered
            now = self._clock()
            try:
                with transaction(self._database, self._path):
                    yield
                    self._set("changed", now)
            except BaseException:
                self.open, self.undelivered = before
                raise
            self._changed = now

    def _stale(self) -> bool:
        """Tell whether a half is due; or whether to note that time passes, so that a start knows what it missed."""
        with self._lock, translated(self._path):
            due = self._database.execute("SELECT min(due) FROM halves").fetchone()[0]
        now = self._clock()
        return (due is not None and due <= now) or now - self._changed >= NOTED_SECONDS

    def _put(self, taken: Taken) -> None:
        exchange, told = taken.exchange, taken.half
        if exchange.answers == "":
            self._settle("unasked", "unnamed", None, told)
        elif exchange.answers is not None:
            self._answer(exchange.answers, told)
        if exchange.asks:
            self._ask(exchange.asks, told)
        elif exchange.answers is None:
            self._settle("unanswered", "unnamed", told, None)

    def _answer(self, key: str, told: Half) -> None:
        """Pair an answer with the last question of its key; all of them count as answered from then on."""
        last = "SELECT max(number) FROM keys WHERE key = ? AND asked = ?"
        found = (self._database.execute(last, (key, asked)).fetchone()[0] for asked in (OPEN, ANSWERED))
        number = max((each for each in found if each is not None), default=None)
        if number is None:
            self._keep((key,), told, asked=False)
            return
        # Each question is marked but once, however many answers have the key.
        marked = "SELECT number FROM keys WHERE key = ? AND asked = ?"
        self._database.execute(f"UPDATE halves SET paired = 1 WHERE number IN ({marked})", (key, OPEN))
        self._database.execute("UPDATE keys SET asked = ? WHERE key = ? AND asked = ?", (ANSWERED, key, OPEN))
        (text,) = self._database.execute("SELECT told FROM halves WHERE number = ?", (number,)).fetchone()
        self._settle("paired", "", _HALF.decode(text), told)

    def _ask(self, keys: Sequence[str], told: Half) -> None:
        """Keep a question, and pair the answers that came before it."""
        number = self._keep(keys, told, asked=True)
        waiting = (
            "SELECT number, told FROM keys JOIN halves USING (number) WHERE key = ? AND keys.asked = ? "
            "ORDER BY number LIMIT ?"
        )
        for key in keys:
            while answers := self._database.execute(waiting, (key, ANSWER, AT_ONCE)).fetchall():
                for each, text in answers:
                    self._settle("paired", "", told, _HALF.decode(text))
                    self._drop(each)
                self._database.execute("UPDATE halves SET paired = 1 WHERE number = ?", (number,))

    def _keep(self, keys: Sequence[str], told: Half, *, asked: bool) -> int:
        number = self._database.execute(
            "INSERT INTO halves (asked, paired, due, told) VALUES (?, 0, ?, ?)",
            (asked, self._clock() + self._wait, msgspec.json.encode(told).decode()),
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

    def _over(self) -> list[tuple[int, int, int, str]]:
        """Return the oldest halves, as many as there is no room for."""
        over = max(0, self.open - self._most)
        return self._database.execute(
            "SELECT number, asked, paired, told FROM halves ORDER BY number LIMIT ?", (over,)
        ).fetchall()

    def _give_up(self, halves: Iterable[tuple[int, int, int, str]], cause: Cause) -> None:
        for number, asked, paired, told in halves:
            half = _HALF.decode(told)
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
        found = (
            self._database.execute("SELECT 1 FROM commits WHERE app = ? AND version >= ?", (app, commit.version))
            for app in commit.apps
        )
        return any(cursor.fetchone() is not None for cursor in found)

    def _note(self, commit: Commit, query: str) -> None:
        """Note a batch, and forget those of its query before it, which never come again."""
        self._database.execute(
            "DELETE FROM commits WHERE query = ? AND (whole != ? OR version < ?)", (query, commit.whole, commit.version)
        )
        row = (commit.app, query, commit.whole, commit.version)
        self._database.execute("INSERT OR REPLACE INTO commits VALUES (?, ?, ?, ?)", row)

    def _fact(self, name: str) -> str | int | float | None:
        row = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def _set(self, name: str, value: float) -> None:
        self._database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def _count(self, table: Literal["halves", "outbox"]) -> int:
        return int(self._database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def _row(outcome: str, cause: str, settled: str, question: Half | None, answer: Half | None) -> PairRow:
    """Return the row of a pair, or of the one half that there is."""
    told: dict[str, str | None] = {"cause": cause or None}
    for side, half in (("question", question), ("answer", answer)):
        if half is not None:
            told.update({f"{side}_{name}": getattr(half, name) or None for name in PARTS_OF_A_SIDE})
    if answer is not None:
        told |= {"relation": answer.relation or None, "correlation": answer.correlation or None}
    return PairRow(outcome=outcome, settled=settled, **told)
