"""The matcher: record columns in, outcomes out. ``match`` and ``run`` use this same class.

The steps, each on whole columns: find each row's matching candidates, drop those whose repeated placeholders differ or
whose data schema rejects the body, choose the most specific, extract the context attributes, map native records. Only
rows that become dead letters are examined one by one, for their explanation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bindings.columns.entries import number_distinct
from bindings.protocols import BINDINGS
from catalog.definitions.constraints import MatchCandidate
from catalog.schemas.validation import PayloadValidation
from router.matching.channels import Channel
from router.matching.context import CORRELATION, Correlations
from router.matching.index.classes import IntArray
from router.matching.index.index import MatchIndex
from router.matching.mapping import Mapper
from router.matching.nearest import NearestFinder, NearestRow
from router.matching.record_columns import NO_SOURCE, RecordColumns
from router.matching.schema_ids import SchemaIdFilter, id_mismatches, id_rejection_detail
from router.matching.schema_validation import (
    SchemaFilter,
    ValidatedSets,
    Validation,
    rejection_detail,
    schema_mismatches,
)
from router.matching.tie_breaker import TieBreaker
from router.matching.winners import AMBIGUOUS, WinnerChooser, Winners

EXPLANATIONS: Final = 1_000
"""Most records of one batch that are explained; similar ones share an explanation, the others have none."""
LOOKED_AT: Final = 20_000
"""Most records of one batch that are compared with those explained already."""


@dataclass(slots=True)
class MatchOutcomes:
    """The outcome of each row.

    ``winners`` number targets, negative for dead letters, whose ``reasons``, ``details`` and ``nearest`` are given
    by row. ``attributes`` are those of mapped native records, in order; ``mapped`` numbers their rows. ``ties`` say how
    ties were decided, for routed rows that several definitions match equally well.
    """

    facts: RecordColumns
    winners: IntArray
    reasons: dict[int, str]
    details: dict[int, str]
    nearest: dict[int, list[dict[str, Any]]]
    mapped: IntArray
    attributes: pa.ListArray
    extract: Callable[[MatchOutcomes], pa.MapArray]
    """Extracts the context attributes of rows. It has no reference to its outcomes: a cycle would keep each batch's
    columns until the next garbage collection."""
    ties: dict[int, str] = field(default_factory=dict)
    _contexts: pa.MapArray | None = None

    @property
    def contexts(self) -> pa.MapArray:
        """The context attributes of every row, extracted on first use."""
        if self._contexts is None:
            self._contexts = self.extract(self)
        return self._contexts


class Matcher:
    """Matches record columns against the candidates of channels. Its caches grow with use, within bounds; results do
    not depend on them.
    """

    def __init__(
        self,
        targets: Sequence[MatchCandidate],
        channels: Sequence[Channel],
        payloads: PayloadValidation | None = None,
        validation: Validation = "ambiguous",
        ties: TieBreaker | None = None,
    ) -> None:
        """``payloads`` has the schemas of the targets' definitions; without it no body is validated.

        ``ties`` decides between targets that match equally well; without it such records become dead letters.
        """
        self.targets = tuple(targets)
        self.channels = tuple(channels)
        self.index = MatchIndex(self.targets, [channel.candidates for channel in channels], list(BINDINGS))
        self.chooser = WinnerChooser(self.index, ties)
        self.ids = SchemaIdFilter(self.index, self.channels, payloads)
        self.checks = SchemaFilter(self.index, payloads, validation, self.ids)
        self.mapper = Mapper(self.chooser, self.targets, [channel.origin for channel in channels])
        self.nearest = NearestFinder(self.index, list(BINDINGS), [channel.candidates for channel in channels])
        self.correlations = Correlations(self.targets)
        self.keys = tuple(dict.fromkeys((*self.index.keys, *self.correlations.keys)))
        """The properties that columns must have: those that candidates constrain, and those that relate records."""
        self._sniffs: dict[tuple[int, str], bool] = {}

    def sniffs(self, channel: int, protocol: str) -> bool:
        """Whether a JSON body without the media type of events may be an event there (MATCHING.md#cloudevents)."""
        known = self._sniffs.get((channel, protocol))
        if known is None:
            candidates = [self.targets[number] for number in self.channels[channel].candidates] if channel >= 0 else []
            known = self._sniffs[(channel, protocol)] = (
                protocol == "MQTT/3.1.1"
                or (channel >= 0 and self.channels[channel].structured)
                or all(target.envelope for target in candidates if target.protocol in (None, protocol))
            )
        return known

    def winners(self, facts: RecordColumns) -> IntArray:
        """Return the target that each row matches, negative for none, before mapping."""
        return self._evaluate(facts, self.index.classify(facts.columns))[2]

    def _evaluate(self, facts: RecordColumns, classes: Sequence[IntArray]) -> tuple[ValidatedSets, Winners, IntArray]:
        sets = self.index.match(classes, facts.channels, facts.protocols, facts.events)
        facts.identified = self.ids.drop(facts, self.chooser.drop_unequal(facts.columns, sets))
        checked = self.checks.check(facts, facts.identified.sets)
        verdicts = self.chooser.choose_winners(checked.sets)
        winners = verdicts.winners.copy()
        winners[np.fromiter(facts.faults, np.int64, len(facts.faults))] = -1
        return checked, verdicts, winners

    def match(self, facts: RecordColumns) -> MatchOutcomes:
        """Evaluate every row of a batch."""
        self.ids.find(facts)
        classes = self.index.classify(facts.columns)
        checked, verdicts, winners = self._evaluate(facts, classes)
        outcomes = MatchOutcomes(facts, winners, {}, {}, {}, np.zeros(0, np.int64), pa.nulls(0), lambda _: pa.nulls(0))
        self._map_native_rows(outcomes)
        # After mapping, since rows that mapping turned into dead letters need no context attributes.
        outcomes.extract = partial(self._extract_contexts, winners=winners.copy())
        self._explain_rejected(outcomes, checked)
        self._explain_dead_letters(outcomes, verdicts, classes)
        self._explain_ties(outcomes, verdicts)
        return outcomes

    def _extract_contexts(self, outcomes: MatchOutcomes, winners: IntArray) -> pa.MapArray:
        contexts = self.chooser.contexts(outcomes.facts.columns, winners, outcomes.facts.events)
        if not self.correlations.keys:
            return contexts
        return self.correlations.add_to(contexts, outcomes, winners, self._has_correlation)

    @cached_property
    def _has_correlation(self) -> list[bool]:
        """Return for each target, as native record and as event in turn, whether it has a placeholder of that name."""
        return [
            any(slot.name == CORRELATION for slot in self.chooser.slots(target, event=event))
            for target in range(len(self.targets))
            for event in (False, True)
        ]

    def _explain_ties(self, outcomes: MatchOutcomes, verdicts: Winners) -> None:
        """Record how a tie was decided for each routed row that several definitions match equally well."""
        texts: dict[int, str] = {}
        for row in verdicts.ties.tolist():
            if outcomes.winners[row] < 0:
                continue
            number = int(verdicts.sets[row])
            if number not in texts:
                best = self.chooser.most_specific(self.index.sets[number])
                texts[number] = self.chooser.ties.explain(self.targets, best)
            outcomes.ties[row] = texts[number]

    def _map_native_rows(self, outcomes: MatchOutcomes) -> None:
        facts, winners = outcomes.facts, outcomes.winners
        rows = np.flatnonzero((winners >= 0) & (facts.events == 0))
        width = len(self.channels)
        pairs, inverse = number_distinct(winners[rows] * width + facts.channels[rows])
        numbers = np.array([self.mapper.program_number(*divmod(pair, width)) for pair in pairs.tolist()], np.int64)
        programs = numbers[inverse] if len(rows) else rows
        unmappable = [program.unmappable for program in self.mapper.programs]
        never = np.flatnonzero(np.array([bool(fault) for fault in unmappable], bool)[programs])
        self._mark_unmappable(outcomes, rows, {at: unmappable[int(programs[at])] for at in never.tolist()})
        mappable = winners[rows] >= 0
        rows = rows[mappable]
        attributes, faults = self.mapper.map(facts.columns, rows, programs[mappable], facts.defaults)
        self._mark_unmappable(outcomes, rows, faults)
        if faults:
            valid = np.flatnonzero(winners[rows] >= 0)
            rows, attributes = rows[valid], attributes.take(pa.array(valid))
        outcomes.mapped, outcomes.attributes = rows, attributes

    def _mark_unmappable(self, outcomes: MatchOutcomes, rows: IntArray, faults: Mapping[int, str]) -> None:
        """Make dead letters of rows that map to no valid event; *faults* are by index in *rows*."""
        for at, fault in faults.items():
            row = int(rows[at])
            outcomes.reasons[row] = "unmappable"
            outcomes.details[row] = f"{self.targets[int(outcomes.winners[row])].xid}: {fault}"
            outcomes.winners[row] = -1

    def _explain_rejected(self, outcomes: MatchOutcomes, checked: ValidatedSets) -> None:
        """Explain the rows whose candidates were all dropped by schema ids or schemas."""
        identified = outcomes.facts.identified
        for row, group in identified.rows_without_candidates().items() if identified is not None else ():
            unread = any(each.unread for each in group.dropped.values())
            outcomes.reasons[row] = "undecodable" if unread else "no-match"
            outcomes.details[row] = id_rejection_detail(group, self.targets)
            outcomes.nearest[row] = id_mismatches(group, self.targets)
        for row, rejected in checked.rejected.items():
            outcomes.reasons[row] = "schema-violation" if row in checked.violations else "no-match"
            outcomes.details[row] = rejection_detail(rejected)
            outcomes.nearest[row] = schema_mismatches(rejected, self.targets)

    def explanation_row(self, facts: RecordColumns, row: int, classes: Sequence[IntArray]) -> NearestRow:
        """Return what explanations need of one row; ``classes`` are those of the whole batch."""
        values = {key: facts.values(row, key) for key in self.index.keys}
        return NearestRow(
            int(facts.channels[row]),
            int(facts.protocols[row]),
            bool(facts.events[row]),
            tuple(int(line[row]) for line in classes),
            lambda key: values.get(key, ()),
        )

    def _explain_dead_letters(self, outcomes: MatchOutcomes, verdicts: Winners, classes: Sequence[IntArray]) -> None:
        unmatched: list[int] = []
        for row in np.flatnonzero(outcomes.winners < 0).tolist():
            if row in outcomes.reasons or outcomes.facts.sources[row] == NO_SOURCE:
                continue
            fault = outcomes.facts.faults.get(row)
            if fault is not None:
                outcomes.reasons[row], outcomes.details[row] = fault
            elif not self.index.channel_size(int(outcomes.facts.channels[row])):
                outcomes.reasons[row] = "no-candidates"
                outcomes.details[row] = "the endpoint is unknown or has no message definitions"
            elif verdicts.winners[row] == AMBIGUOUS:
                best = self.chooser.most_specific(self.index.sets[int(verdicts.sets[row])])
                outcomes.reasons[row] = "ambiguous"
                outcomes.details[row] = "equally specific: " + ", ".join(self.targets[n].xid for n in best)
            else:
                unmatched.append(row)
        self._explain_no_match(outcomes, unmatched, classes)

    def _explain_no_match(self, outcomes: MatchOutcomes, rows: Sequence[int], classes: Sequence[IntArray]) -> None:
        facts = outcomes.facts
        explained: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for number, row in enumerate(rows):
            outcomes.reasons[row] = "no-match"
            outcomes.details[row] = "no candidate matches"
            if number >= LOOKED_AT:
                continue
            row_facts = self.explanation_row(facts, row, classes)
            values = tuple(tuple(row_facts.values(key)) for key in self.index.keys)
            alike = (row_facts.channel, row_facts.protocol, row_facts.event, values)
            if alike not in explained:
                if len(explained) >= EXPLANATIONS:
                    continue
                explained[alike] = self.nearest.explain(row_facts)
            outcomes.nearest[row] = explained[alike]
            outcomes.details[row] = nearest_summary(explained[alike]) or outcomes.details[row]


def nearest_summary(nearest: Sequence[dict[str, Any]]) -> str:
    """Return one line that says why the nearest definition did not match."""
    if not nearest:
        return ""
    first = nearest[0]
    causes = [
        f"{entry['property']}: expected {entry['expected']!r}, found {entry['found']!r}"
        for entry in first["mismatches"]
    ]
    return f"nearest {first['message']}: " + "; ".join(causes[:4])
