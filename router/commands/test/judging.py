"""What becomes of records: by a catalog alone, as ``match`` says, or by a router's settings, as ``run`` does.

Nothing is decided here. The first asks the very matcher of ``match``, the second the plan of ``run``, in the way that
dead letters are judged again, without Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

import msgspec

from bindings.events import members_of, with_types
from bindings.kafka.codec import PROTOCOL as KAFKA
from bindings.protocols import binding_of
from catalog.errors import RecordError
from catalog.model import Catalog
from catalog.record import Record
from router.judging.judging import INBOX_COLUMNS, judge_letters
from router.judging.outputs import Decided
from router.judging.plan import Plan
from router.letters.letter import Letter
from router.matching.matcher import Matcher, Outcomes
from router.matching.records import CHUNK, NumberedRecord, RecordMatcher, dead_letter, entry_of, envelope_of_row
from router.replay.rows import rows_of
from router.routing.routes import DEAD, letter_number
from router.settings import Settings
from router.state.instants import parse_instant

_PREFIX: Final = "ce_"
_CONTENT_TYPE: Final = "content-type"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Judged:
    """What became of records, in their order: outcomes in the JSON form of ``match``, and what they are of.

    With settings, an outcome also has ``endpoint``, ``route`` (None is ``dead_letters.sinks``), ``sinks``, and
    ``topics`` by sink. ``rows`` gives for a record the rows of the batch in which it was judged; one that is no record
    has none.
    """

    outcomes: list[dict[str, Any]] = field(default_factory=list)
    batches: list[Outcomes] = field(default_factory=list)
    rows: dict[int, list[tuple[Outcomes, int]]] = field(default_factory=dict)


class Judging(Protocol):
    """What judges records."""

    catalog: Catalog

    @property
    def matcher(self) -> Matcher:
        """The matcher that decides."""

    def judge(self, lines: Sequence[bytes]) -> Judged:
        """Return what becomes of records, each a line of JSON; a line that is no record is ``undecodable``."""


class CatalogJudging:
    """By a catalog alone: a record's own endpoint decides on its candidates, else every definition is one."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._records = RecordMatcher(catalog)
        self.matcher = self._records.matcher

    def judge(self, lines: Sequence[bytes]) -> Judged:
        """Return what becomes of records."""
        judged = Judged()
        for start in range(0, len(lines), CHUNK):
            outcomes, together = self._records.judge(list(lines[start : start + CHUNK]))
            for decided in together:
                outcomes.update(self._records.numbered_outcomes(decided))
                judged.batches.append(decided.outcomes)
                for row, source in enumerate(decided.outcomes.facts.sources.tolist()):
                    if source >= 0:
                        number = start + decided.entries[source].number
                        judged.rows.setdefault(number, []).append((decided.outcomes, row))
            judged.outcomes += (outcome for _, outcome in sorted(outcomes.items()))
        return judged


class RouterJudging:
    """By settings and a catalog: sources, context, schemas, routes and sizes are those of the router."""

    def __init__(self, catalog: Catalog, settings: Settings) -> None:
        self.catalog = catalog
        self._plan = Plan(catalog, settings)
        self.matcher = self._plan.judge.matcher

    def judge(self, lines: Sequence[bytes]) -> Judged:
        """Return what becomes of records."""
        judged = Judged()
        for start in range(0, len(lines), CHUNK):
            self._judge(lines[start : start + CHUNK], start, judged)
        return judged

    def _judge(self, lines: Sequence[bytes], start: int, judged: Judged) -> None:
        outcomes: dict[int, dict[str, Any]] = {}
        entries: list[NumberedRecord] = []
        for number, line in enumerate(lines):
            try:
                entries.append(entry_of(number, line)[0])
            except RecordError as error:
                outcomes[number] = dead_letter("undecodable", str(error)) | self._way(DEAD)
        if entries:
            rows = rows_of(letter_of_entry(entry) for entry in entries).select(list(INBOX_COLUMNS))
            decided = judge_letters(self._plan.judge, rows.combine_chunks().to_batches()[0])
            judged.batches.append(decided.outcomes)
            outcomes |= self._outcomes(decided, entries)
            for row in decided.order.tolist():
                number = start + entries[int(decided.sources[row])].number
                judged.rows.setdefault(number, []).append((decided.outcomes, row))
        judged.outcomes += (outcome for _, outcome in sorted(outcomes.items()))

    def _outcomes(self, decided: Decided, entries: Sequence[NumberedRecord]) -> dict[int, dict[str, Any]]:
        batches = decided.outcomes.facts.batches
        outcomes = {entries[at].number: dict[str, Any](outcome="batch", events=[]) for at in batches}
        for row in decided.order.tolist():
            at = int(decided.sources[row])
            outcome = self._outcome(decided, row, entries[at])
            if at in batches:
                outcomes[entries[at].number]["events"].append(outcome)
            else:
                outcomes[entries[at].number] = outcome
        return outcomes

    def _outcome(self, decided: Decided, row: int, entry: NumberedRecord) -> dict[str, Any]:
        outcomes, columns = decided.outcomes, decided.columns
        endpoint, route = columns["endpoint"][row].as_py(), int(columns["route"][row].as_py())
        prefix = "topic_" if route >= 0 else "letters_"
        names = {name: columns[name][row].as_py() for name in columns if name.startswith(prefix)}
        topics = {name.removeprefix(prefix): topic for name, topic in names.items() if topic is not None}
        way = {"endpoint": endpoint} | self._way(route) | ({"topics": topics} if topics else {})
        if int(outcomes.winners[row]) < 0:
            nearest = outcomes.nearest.get(row, [])
            return dead_letter(outcomes.reasons[row], outcomes.details[row], nearest) | way
        return {
            "outcome": "routed",
            "message": columns["message"][row].as_py(),
            "context": dict(outcomes.contexts[row].as_py()),
            "cloudevent": _attributes(decided, row, entry),
            **({"ambiguous": outcomes.ties[row]} if row in outcomes.ties else {}),
            **way,
        }

    def _way(self, route: int) -> dict[str, Any]:
        settings = self._plan.settings
        if route == DEAD:
            return {"route": None, "sinks": list(settings.dead_letters.sinks)}
        number = route if route >= 0 else letter_number(route)
        return {"route": number, "sinks": list(settings.routes[number].to)}


def _attributes(decided: Decided, row: int, entry: NumberedRecord) -> dict[str, Any]:
    """Return the attributes that an event leaves with: those that sinks are given, else those that its headers are."""
    given = decided.columns["attributes"][row].as_py()
    if given is None:
        return members_of(envelope_of_row(decided.outcomes.facts, row, entry).attributes)
    texts = {_name(each["key"]): each["value"].decode("utf-8") for each in given}
    return members_of(with_types(texts, decided.columns["typed"][row].as_py()))


def _name(key: str) -> str:
    return "datacontenttype" if key == _CONTENT_TYPE else key.removeprefix(_PREFIX)


def letter_of_entry(entry: NumberedRecord) -> Letter:
    """Return a record in the form in which it is judged again; what a source adds to each record is added."""
    record, native = entry.record, entry.record.native
    received = parse_instant(record.time)
    binding = binding_of(record.protocol)
    if binding is not None and binding.protocol == KAFKA:
        native = _with_place(native, entry.number, received)
    return Letter(
        id=str(entry.number),
        reason="",
        detail="",
        nearest=(),
        endpoint=record.endpoint,
        protocol=record.protocol,
        native=native,
        body=record.body,
        epoch="",
        position=str(entry.number),
        received=received,
        failed=None,
        attempts=0,
    )


def _with_place(native: Mapping[str, Any], number: int, received: datetime | None) -> dict[str, Any]:
    """Return a record of Kafka with place and time, which every one has that comes from a topic."""
    milliseconds = None if received is None else (received - _EPOCH) // timedelta(milliseconds=1)
    given = {name: value for name, value in native.items() if value is not None}
    return {"partition": 0, "offset": number} | ({} if milliseconds is None else {"timestamp": milliseconds}) | given


def lines_of_records(records: Iterable[Record]) -> list[bytes]:
    """Return records as the lines that are judged."""
    return [msgspec.json.encode(record.to_json()) for record in records]
