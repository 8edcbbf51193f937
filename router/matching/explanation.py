"""Explain why a record was routed or not: the details of one line of ``match``, for people (MATCHING.md#matching).

Nothing is decided here. The index's constraints say what holds and fails, schema validation says which candidates were
dropped, and the winner is chosen by the same rule as in matching.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from bindings.parts import Part, first_part
from catalog.schemas.ids.deciding import PROPERTY
from router.matching.index.classes import IntArray
from router.matching.index.index import MatchSet, bit_numbers
from router.matching.nearest import ConstraintResult, NearestRow
from router.matching.record_columns import RecordColumns
from router.matching.records import MatchedRecords, RecordMatcher, envelope_of_row
from router.matching.schema_ids import FrameGroup
from router.matching.schema_validation import is_decided_by_schema

BEST: Final = 5
"""Candidates that an explanation shows unless all are requested."""
FITS: Final = ("fits",)
"""The result of a schema that accepts the data."""
MAIN: Final = (
    *("method", "path", "topic", "partition", "offset", "key", "topic_name", "subject", "stream", "sequence"),
    *("properties.to", "properties.subject", "properties.message-id"),
    *("headers.content-type", "content_type", "properties.content-type"),
)
"""The parts, of any protocol, that identify a record at a glance."""


@dataclass(frozen=True, slots=True)
class ExplainedCandidate:
    """One definition: its constraints, and whether the record satisfies them.

    ``schema`` is empty if no schema was evaluated, ``fits``, or everything that it finds wrong.
    """

    message: str
    checks: tuple[ConstraintResult, ...]
    schema: tuple[str, ...]
    literals: int
    characters: int
    verdict: str
    wins: bool = False

    @property
    def matches(self) -> bool:
        """Whether all properties match; a schema may still have rejected the data."""
        return all(check.holds for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "message": self.message,
            "verdict": self.verdict,
            "wins": self.wins,
            "matches": self.matches,
            "literals": self.literals,
            "characters": self.characters,
            "checks": [check.to_json() | {"holds": check.holds} for check in self.checks],
            "schema": list(self.schema),
        }


@dataclass(frozen=True, slots=True)
class EventExplanation:
    """One outcome. ``place`` is the event's index in a batch, -1 outside one; ``more`` counts omitted candidates."""

    place: int
    mode: str
    faults: tuple[str, ...]
    candidates: tuple[ExplainedCandidate, ...]
    more: int
    winner: str | None
    why: str
    outcome: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "place": self.place,
            "mode": self.mode,
            "faults": list(self.faults),
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "more": self.more,
            "winner": self.winner,
            "why": self.why,
            "outcome": dict(self.outcome),
        }


@dataclass(frozen=True, slots=True)
class RecordExplanation:
    """One line: its record, and the outcome of each event in it; ``error`` says why it is not a record."""

    number: int
    protocol: str = ""
    endpoint: str | None = None
    main: tuple[tuple[str, str], ...] = ()
    size: int | None = None
    events: tuple[EventExplanation, ...] = ()
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "protocol": self.protocol,
            "endpoint": self.endpoint,
            "main": [{"property": name, "value": text} for name, text in self.main],
            "size": self.size,
            "events": [event.to_json() for event in self.events],
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class _EvaluatedRecord:
    """One evaluated record with everything that explanations of its rows need."""

    decided: MatchedRecords
    classes: Sequence[IntArray]
    matched: IntArray
    left: IntArray


class Explainer:
    """Explains records one at a time, with the matcher that ``match`` uses."""

    def __init__(self, records: RecordMatcher, *, everything: bool = False) -> None:
        self._records = records
        self._matcher = records.matcher
        self._max_shown = None if everything else BEST

    def explain(self, number: int, line: bytes | str) -> RecordExplanation:
        """Explain one line; *number* identifies it."""
        failed, together = self._records.judge([line])
        if not together:
            return RecordExplanation(number, error=str(failed[0]["detail"]))
        (decided,) = together
        entry = decided.entries[0]
        ((_, outcome),) = self._records.numbered_outcomes(decided)
        outcomes = outcome["events"] if outcome["outcome"] == "batch" else [outcome]
        evaluated = self._evaluate(decided)
        rows = [row for row, source in enumerate(decided.outcomes.facts.sources.tolist()) if source >= 0]
        events = tuple(self._explain_event(evaluated, row, each) for row, each in zip(rows, outcomes, strict=True))
        body = entry.record.body
        return RecordExplanation(
            number,
            entry.record.protocol,
            entry.record.endpoint,
            tuple(_main_parts(entry.parts)),
            None if body is None else len(body),
            events,
        )

    def _evaluate(self, decided: MatchedRecords) -> _EvaluatedRecord:
        facts, matcher = decided.outcomes.facts, self._matcher
        classes = matcher.index.classify(facts.columns)
        sets = matcher.index.match(classes, facts.channels, facts.protocols, facts.events)
        matched = matcher.chooser.drop_unequal(facts.columns, sets)
        facts.identified = matcher.ids.drop(facts, matched)
        left = matcher.checks.check(facts, facts.identified.sets).sets
        return _EvaluatedRecord(decided, classes, matched, left)

    def _explain_event(self, evaluated: _EvaluatedRecord, row: int, outcome: Mapping[str, Any]) -> EventExplanation:
        facts = evaluated.decided.outcomes.facts
        reading = facts.readings.get(row)
        place = reading.place if reading is not None else -1
        envelope = envelope_of_row(facts, row, evaluated.decided.entries[0])
        faults = envelope.faults or ((envelope.detail,) if envelope.detail else ())
        if row in facts.faults or facts.channels[row] < 0:
            return EventExplanation(place, envelope.mode, faults, (), 0, None, "", outcome)
        row_facts = self._matcher.explanation_row(facts, row, evaluated.classes)
        candidates, best, chosen = self._explain_candidates(evaluated, row, row_facts)
        winner = None if chosen is None else self._matcher.targets[chosen].xid
        total = self._matcher.index.channel_size(row_facts.channel)
        shown = candidates[: self._max_shown]
        why = self._explain_winner(candidates, best, winner)
        return EventExplanation(place, envelope.mode, faults, shown, total - len(shown), winner, why, outcome)

    def _explain_candidates(
        self, evaluated: _EvaluatedRecord, row: int, row_facts: NearestRow
    ) -> tuple[tuple[ExplainedCandidate, ...], list[int], int | None]:
        """Return the candidates in order (all that match, then the nearest), the most specific ones, and the winner,
        which may be a base that is not a candidate.
        """
        ranked = self._matcher.nearest.iter_ranked(row_facts)
        checked = dict(islice(ranked, self._max_shown))
        # Those that match come first. There may be more than are shown, and any may be the winner.
        if checked and all(check.holds for check in list(checked.values())[-1]):
            checked.update(_take_matching(ranked))
        matching = [number for number, checks in checked.items() if all(check.holds for check in checks)]
        verdicts = self._schema_verdicts(evaluated.decided.outcomes.facts, evaluated, row)
        dropped = set(bit_numbers(self._set_bits(evaluated.matched, row) & ~self._set_bits(evaluated.left, row)))
        left = [number for number in matching if number not in dropped]
        matched = MatchSet(sum(1 << n for n in left), row_facts.event, tuple(left))
        best = self._matcher.chooser.most_specific(matched)
        chosen = self._matcher.chooser.break_tie(matched, best) if len(best) > 1 else next(iter(best), None)
        group = evaluated.decided.outcomes.facts.identified
        by_id = group.group(row) if group is not None else None
        if by_id is not None:
            checked = {number: [*checks, *_id_constraint(by_id, number)] for number, checks in checked.items()}
        candidates = {
            number: self._describe(number, checks, row_facts.event, verdicts.get(number, ()), dropped, best, chosen)
            for number, checks in checked.items()
        }
        order = sorted(candidates, key=lambda n: self._sort_key(n, candidates[n], n in dropped, best))
        return tuple(candidates[number] for number in order), best, chosen

    def _set_bits(self, sets: IntArray, row: int) -> int:
        return self._matcher.index.sets[int(sets[row])].bits

    def _schema_verdicts(
        self, facts: RecordColumns, evaluated: _EvaluatedRecord, row: int
    ) -> dict[int, tuple[str, ...]]:
        identified = facts.identified
        number = int((evaluated.matched if identified is None else identified.sets)[row])
        by_target = self._matcher.checks.verdicts(facts, number, row)
        return {number: tuple(map(str, faults)) or FITS for number, faults in by_target.items()}

    @staticmethod
    def _sort_key(number: int, candidate: ExplainedCandidate, dropped: bool, best: Sequence[int]) -> tuple[Any, ...]:
        """Return a sort key: the winner or those that tie, then other matches by specificity, then as ranked."""
        if not candidate.matches:
            return (3,)
        rank = 0 if number in best else 2 if dropped else 1
        return (rank, -candidate.literals, -candidate.characters, candidate.message)

    def _describe(
        self,
        number: int,
        checks: Sequence[ConstraintResult],
        event: bool,
        schema: tuple[str, ...],
        dropped: set[int],
        best: Sequence[int],
        chosen: int | None,
    ) -> ExplainedCandidate:
        target = self._matcher.targets[number]
        literals, characters = target.event_rank if event else target.native_rank
        failed = sum(not check.holds for check in checks)
        wins = number == chosen
        verdict = "matches, but is less specific"
        if failed:
            verdict = f"{failed} of {len(checks)} failed"
        elif number in dropped:
            verdict = "matches, but its schema rejects the data"
        elif number in best or wins:
            verdict = "wins" if wins else "matches, but ties with others"
        elif target.xid in {base for each in best for base in self._matcher.targets[each].definition.base}:
            verdict = "matches, but is a base of the winner"
        return ExplainedCandidate(target.xid, tuple(checks), schema, literals, characters, verdict, wins)

    def _explain_winner(self, candidates: Sequence[ExplainedCandidate], best: Sequence[int], winner: str | None) -> str:
        matching = [each for each in candidates if each.matches]
        left = [each for each in matching if not each.verdict.endswith("rejects the data")]
        if not candidates:
            return "there are no candidates"
        if not matching:
            return "no candidate matches; the nearest is listed first"
        if not best:
            return "the schemas of all matching candidates reject the data"
        if len(best) > 1:
            tied = f"{len(best)} candidates are equally specific"
            return tied if winner is None else f"{tied}; match.ambiguous chooses {winner}"
        if len(left) > 1:
            return f"the most specific of {len(left)} that match"
        only = "the only one whose schema accepts the data" if len(matching) > 1 else "the only one that matches"
        return only + (
            ", by content type and schema alone" if is_decided_by_schema(self._matcher.targets[best[0]]) else ""
        )


def _id_constraint(group: FrameGroup, number: int) -> list[ConstraintResult]:
    """Return the constraint of a candidate on the record's schema id."""
    decision = group.decisions.get(number)
    if decision is None:
        return []
    return [ConstraintResult(f"protocoloptions.{PROPERTY}", decision.expected, decision.found, decision.accepts)]


def _take_matching(ranked: Iterator[tuple[int, list[ConstraintResult]]]) -> dict[int, list[ConstraintResult]]:
    """Return the remaining candidates that match."""
    matching: dict[int, list[ConstraintResult]] = {}
    for number, checks in ranked:
        if not all(check.holds for check in checks):
            break
        matching[number] = checks
    return matching


def _main_parts(parts: Sequence[Part]) -> list[tuple[str, str]]:
    shown: list[tuple[str, str]] = []
    for key in MAIN:
        part = first_part(parts, key)
        if part is not None and part.value is not None:
            text = part.text
            shown.append((key, text if text is not None else f"({len(part.value)} bytes)"))
    return shown
