"""Replaying one batch of dead letters: judged, written to its sinks, settled in the ledger.

The batch is durable in the ledger before its first write, with the plan that judges it, and settled after its last, so
that one which was cut off is repeated by the next replay as it was. Tables know the repeat by the ledger's id and the
batch's number; message targets get it at least once. A letter that stays one is not written again: the ledger counts
the attempt. Of letters that wait for each other (:mod:`router.state.key_order`), those behind one that stays dead are
not sent and count no attempt; what a sink refuses while the batch is written holds them up from the next batch on.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from router.batches.pipeline import RETRY_FIRST, RETRY_MOST
from router.errors import SinkError
from router.judging.judging import Tallies
from router.judging.plan import Plan
from router.judging.stages import judged, unified
from router.letters.letter import Letter
from router.replay.rows import rows_of
from router.state.key_order import held_up
from router.state.ledger import LetterLedger, Outcome, PendingReplay
from router.writing.commits import Batch
from router.writing.ordering import without
from router.writing.refusals import REASON, Refused, detail_of
from router.writing.writer import BatchWriter

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import DataFrame, SparkSession

    from router.judging.plan import Judge

QUERY: Final = "replay"


class Interrupted(Exception):
    """A replay was asked to end while a sink was away; its batch stays pending in the ledger."""


@dataclass(slots=True)
class Summary:
    """What a replay did: letters routed, by definition; still dead, by reason; parked, and gone before their turn.

    ``held`` are those that were not tried, since an earlier one of their key in the same batch stays dead.
    """

    routed: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    parked: int = 0
    gone: int = 0
    held: int = 0

    @property
    def settled(self) -> int:
        """Letters that were tried."""
        return self.routed.total() + self.dead.total()


Held = Callable[[str, float], None]
"""Told why a batch is held, and in how many seconds it is tried again."""


class Replayer:
    """Replays batches in one Spark session; of one thread. *held* is told while a sink keeps a batch waiting."""

    def __init__(self, spark: SparkSession, ledger: LetterLedger, stop: threading.Event, held: Held) -> None:
        self._spark = spark
        self._ledger = ledger
        self._stop = stop
        self._held = held
        self._writers: dict[str, tuple[BatchWriter, Broadcast[Judge]]] = {}

    def replay(self, plan: Plan, pending: PendingReplay, letters: Sequence[Letter], summary: Summary) -> None:
        """Write and settle a batch that has been begun; *letters* are those of it that are still there.

        Raises:
            Interrupted: *stop* was set while a sink was away; nothing is settled.
        """
        summary.gone += len(pending.letters) - len(letters)
        outcomes = self._outcomes(plan, pending, letters, summary) if letters else []
        self._ledger.finish(pending.number, outcomes, datetime.now(UTC))
        summary.dead.update(outcome.reason for outcome in outcomes if outcome.reason is not None)
        summary.parked += self._park(plan, [outcome.letter for outcome in outcomes if outcome.reason is not None])

    def _park(self, plan: Plan, failed: Sequence[str]) -> int:
        entries = self._ledger.entries(failed)
        most = plan.settings.dead_letters.max_replays
        return self._ledger.park(letter for letter in failed if entries[letter].attempts >= most)

    def _outcomes(
        self, plan: Plan, pending: PendingReplay, letters: Sequence[Letter], summary: Summary
    ) -> list[Outcome]:
        writer, judge = self._loaded(plan)
        context = self._spark.sparkContext
        keys = self._ledger.order.keys(letter.id for letter in letters)
        rows = self._spark.createDataFrame(rows_of(letters))
        # Letters of a key go in order of arrival, which several tasks would not keep.
        rows = rows.coalesce(1) if keys else rows
        outcomes = judged(rows, "letters", judge, context.accumulator([], Tallies()))
        kept = unified(outcomes, "letters", QUERY).persist()
        try:
            columns = ("letter", "position", "m.message", "m.reason", "m.detail", "m.route")
            told = kept.select(*columns).toArrow().to_pylist()
            lasting = (each.letter for each in _outcomes_of(letters, told, {}, plan, pending.sinks) if each.reason)
            held = held_up((letter.id for letter in letters), lasting, keys)
            failed = datetime.now(UTC).isoformat(timespec="microseconds")
            batch = Batch("letters", QUERY, f"replay-{self._ledger.id}", pending.number, failed)
            refused = self._write(writer, without(kept, "letter", sorted(held)), batch, pending.sinks)
        finally:
            kept.unpersist()
        tried = [letter for letter in letters if letter.id not in held]
        made = list(_outcomes_of(tried, told, refused.details, plan, pending.sinks))
        routed = {outcome.letter for outcome in made if outcome.reason is None}
        summary.routed.update(row["message"] for row in told if row["letter"] in routed)
        summary.held += len(held)
        return made

    def _loaded(self, plan: Plan) -> tuple[BatchWriter, Broadcast[Judge]]:
        if plan.id not in self._writers:
            judge = self._spark.sparkContext.broadcast(plan.judge)
            self._writers[plan.id] = BatchWriter(plan, lambda sink, result: None), judge
        return self._writers[plan.id]

    def _write(self, writer: BatchWriter, rows: DataFrame, batch: Batch, sinks: Sequence[str]) -> Refused:
        wait = RETRY_FIRST
        while True:
            try:
                return writer.write_routed(rows, batch, frozenset(sinks) or None)
            except SinkError as error:
                self._held(str(error), wait)
            if self._stop.wait(wait):
                raise Interrupted
            wait = min(wait * 2, RETRY_MOST)


def _outcomes_of(
    letters: Sequence[Letter],
    told: Iterable[dict[str, Any]],
    details: Mapping[str, str],
    plan: Plan,
    only: Sequence[str],
) -> Iterable[Outcome]:
    """Return what became of each letter; *details* are of records that a sink refused, by position."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in told:
        found.setdefault(row["letter"], []).append(row)
    for letter in letters:
        rows = found.get(letter.id, [])
        dead = next((row for row in rows if row["route"] < 0), None)
        turned_down = next((details[row["position"]] for row in rows if row["position"] in details), None)
        if not rows:
            yield Outcome(letter.id, letter.reason, "nothing came of it")
        elif dead is not None:
            yield Outcome(letter.id, dead["reason"], dead["detail"] or "")
        elif turned_down is not None:
            yield Outcome(letter.id, REASON, turned_down)
        elif only and not set(only) & set(plan.settings.routes[rows[0]["route"]].to):
            # It may have been given another name; to call the letter settled would lose the record there.
            why = "is not in the route of the record any more, so nothing was sent"
            yield Outcome(letter.id, REASON, detail_of(dict.fromkeys(only, why)))
        else:
            yield Outcome(letter.id)
