"""The order of records of one key, when ``dead_letters.order`` is ``park`` (semantics.md section 7).

A record whose key has an earlier dead letter is *held back*: no sink gets it, and it becomes a dead letter as well, one
that waits for the first. Which records those are is settled before the first write of a batch, in this order: the keys
that were blocked are noted beside the batch's pin, so that every try of it holds back the same records whatever a
replay frees meanwhile; the letters to come take their places in the ledger, where they block the key for later
batches; then sinks and dead letters are written; then the letters take their places once more, with those of records
that a sink turned down. What a sink turns down while a batch is written therefore holds back later records from the
next batch on, not those that the same write sent.

A replay that caught up with all letters of a key but those that still come says so, and batches with records of that
key wait for its end: else a key that always has records would never be free again.

Of a batch the driver sees only rows of keys that are blocked or have a dead letter in it, and of those no body. A key
is the event's ``partitionkey``, else the key that the record came with; a record without one is never held back.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from router.judging.plan import Plan
from router.judging.stages import Kind, partition_key
from router.logs import get_logger
from router.sinks.contract import Rejected
from router.state.key_order import waits_for
from router.state.ledger import LetterLedger
from router.state.notes import BatchNotes
from router.state.state import State

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from router.writing.commits import Batch
    from router.writing.refusals import Refused

KEY: Final = "order_key"
PATIENCE_SECONDS: Final = 60.0
"""Longest time in which a batch waits for a replay that is about to free one of its keys."""
LOOK_SECONDS: Final = 0.1
_AMONG: Final = "among"
_NUMBERS: Final = re.compile(r"((?:-\d+)*)(?:#(\d+))?\Z")
_log = get_logger()


@dataclass(frozen=True, slots=True)
class HeldRecord:
    """A routed record that waits for the dead letter ``behind``."""

    position: str
    behind: str
    route: int
    endpoint: str
    message: str


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The records of a batch that no sink gets, since an earlier one of their key is a dead letter."""

    records: tuple[HeldRecord, ...] = ()

    def left(self, rows: DataFrame) -> DataFrame:
        """Return the rows of the batch without those that are held back, in their order."""
        return without(rows, "position", [record.position for record in self.records])

    def share(self, routes: Collection[int]) -> Iterator[Rejected]:
        """Yield what a sink that these routes lead to would have got of them, as refused."""
        for record in self.records:
            if record.route in routes:
                yield Rejected(record.position, waits_for(record.behind), record.endpoint, record.message)


NOTHING: Final = HeldBack()


class Ordering:
    """Holds back records of one query, by the settings of each batch's plan; under ``continue`` it does nothing."""

    def __init__(self, state: State, query: str, notes: BatchNotes, pause: Callable[[float], None]) -> None:
        """*pause* waits so many seconds, or raises what is to end the batch before its first write."""
        self._pause = pause
        self._root = state.root
        self._query = query
        self._notes = notes

    def hold_back(self, rows: DataFrame, batch: Batch, plan: Plan, *, dead: int) -> HeldBack:
        """Return which records of a batch wait; before its first write, when it was judged and is pinned.

        *dead* is how many dead letters the batch has. Repeating gives the same.

        Raises:
            StateError: the note or the ledger cannot be read or written; nothing has been decided then.
        """
        if not _parks(plan):
            return NOTHING
        noted = self._blocked(batch)
        blocked = self._heads(()) if noted is None else noted
        found = _suspects(rows, batch.kind, blocked, dead=dead)
        if noted is None:
            blocked = self._heads({row[KEY] for row in found})
            met = {key: blocked[key] for key in {row[KEY] for row in found} & blocked.keys()}
            self._notes.block(self._query, batch.number, batch.generation, met, batch.label)
        held = _held(found, blocked)
        waiting = {record.position for record in held}
        self._arrived(row for row in found if row["route"] < 0 or row["position"] in waiting)
        if held:
            _log.info("records wait for dead letters of their keys", query=self._query, records=len(held))
        return HeldBack(held)

    def noted(self, rows: DataFrame, batch: Batch, plan: Plan) -> HeldBack:
        """Return which records of a batch waited when it was first written; none of one that never was."""
        blocked = self._blocked(batch) if _parks(plan) else None
        if blocked is None:
            return NOTHING
        return HeldBack(_held(_suspects(rows, batch.kind, blocked, dead=1), blocked))

    def settle(self, rows: DataFrame, batch: Batch, plan: Plan, refused: Refused, *, dead: int) -> None:
        """Let all dead letters of a batch with a key block it; after they are written, before Spark commits the batch.

        Repeating it changes nothing but for letters that were replayed in between, which block nothing any more.

        Raises:
            StateError: the ledger cannot be written.
        """
        if not _parks(plan) or not dead:
            return
        letters = rows.where("m.route < 0")
        if refused.letters is not None:
            letters = letters.unionByName(refused.letters)
        self._arrived(_keyed(letters, batch.kind).select("position", "letter", KEY).toArrow().to_pylist())

    def _blocked(self, batch: Batch) -> dict[str, str] | None:
        return self._notes.blocked(self._query, batch.number, batch.generation, batch.label)

    def _heads(self, keys: Collection[str]) -> dict[str, str]:
        """Return the blocked keys, when no replay is about to free one of *keys*; such a one is waited for."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with LetterLedger.open(self._root, create=False) as ledger:
                heads = ledger.order.heads()
                freeing = ledger.order.catching() & heads.keys() & set(keys)
                # What a replay that was killed has said is no matter.
                if not freeing or not ledger.is_locked or time.monotonic() >= deadline:
                    return heads
            self._pause(LOOK_SECONDS)

    def _arrived(self, letters: Iterable[Mapping[str, Any]]) -> None:
        rows = sorted(letters, key=lambda row: in_order(row["position"]))
        if rows:
            with LetterLedger.open(self._root) as ledger:
                ledger.order.arrived((row[KEY], row["letter"]) for row in rows)


def without(rows: DataFrame, column: str, values: Sequence[str]) -> DataFrame:
    """Return the rows that have none of these values in a column of text, in their order."""
    from pyspark.sql import functions as F

    if not values:
        return rows
    return rows.join(F.broadcast(_among(rows, values)), rows[column] == F.col(_AMONG), "left_anti")


def key_column(kind: Kind) -> Column:
    """Return what a row's order is kept by, a hash of its channel and key; null for a row without a key.

    The channel is the topic, else the endpoint that the record came by: what the matcher calls its endpoint may
    depend on the outcome, where several share a channel.
    """
    from pyspark.sql import functions as F

    channel = F.concat(F.lit("kafka:"), F.col("raw.topic")) if kind == "kafka" else F.col("raw.endpoint")
    told = F.concat(F.encode(channel, "UTF-8"), F.lit(bytearray(1)), partition_key())
    return F.substring(F.sha2(told, 256), 1, 32)


def in_order(position: str) -> tuple[str, tuple[int, ...], int]:
    """Return what sorts positions as records arrived: its numbers (partition, then offset or segment and row)."""
    found = _NUMBERS.search(position)
    assert found is not None  # It also matches nothing.
    numbers = tuple(int(text) for text in found[1].split("-")[1:])
    return position[: found.start()], numbers, int(found[2] or -1)


def _parks(plan: Plan) -> bool:
    return plan.settings.dead_letters.order == "park"


def _keyed(rows: DataFrame, kind: Kind) -> DataFrame:
    """Return the rows that have a key, with what is looked at of them."""
    from pyspark.sql import functions as F

    columns = ("position", "letter", "m.route", "m.endpoint", "m.message")
    return rows.select(*columns, key_column(kind).alias(KEY)).where(F.col(KEY).isNotNull())


def _suspects(rows: DataFrame, kind: Kind, blocked: Mapping[str, str], *, dead: int) -> list[dict[str, Any]]:
    """Return the rows of keys that are blocked, or have a dead letter in the batch, as they arrived."""
    from pyspark.sql import functions as F

    keyed = _keyed(rows, kind)
    keys = set(blocked)
    if dead:
        keys.update(keyed.where("route < 0").select(KEY).distinct().toArrow()[KEY].to_pylist())
    if not keys:
        return []
    among = F.broadcast(_among(rows, sorted(keys)))
    found: list[dict[str, Any]] = keyed.join(among, keyed[KEY] == F.col(_AMONG), "left_semi").toArrow().to_pylist()
    return sorted(found, key=lambda row: in_order(row["position"]))


def _held(rows: Iterable[Mapping[str, Any]], blocked: Mapping[str, str]) -> tuple[HeldRecord, ...]:
    """Return the routed rows that come after a dead letter of their key; *rows* are in order."""
    heads = dict(blocked)
    held: list[HeldRecord] = []
    for row in rows:
        head = heads.get(row[KEY])
        if row["route"] < 0:
            heads.setdefault(row[KEY], row["letter"])
        elif head is not None:
            held.append(HeldRecord(row["position"], head, row["route"], row["endpoint"] or "", row["message"] or ""))
    return tuple(held)


def _among(rows: DataFrame, values: Sequence[str]) -> DataFrame:
    return rows.sparkSession.createDataFrame(pa.table({_AMONG: pa.array(values, pa.string())}))
