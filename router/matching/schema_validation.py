"""Validate bodies against data schemas, and drop candidates whose schema rejects them (MATCHING.md#data-schemas).

Three cases. A definition with neither envelope nor protocol is always decided by its schema. Where several definitions
match one record, schemas decide between them. With ``always``, a single match must be valid too. Bodies are validated
only in these cases, in whole batches per definition.

Routes may override ``match.validate``. Which definition wins is decided before the route is known, so schemas then
decide between candidates as with ``ambiguous`` (or ``never``, if that is the mode), and the body of the winner is
validated once the route is known (:meth:`SchemaFilter.violations`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from catalog.definitions.constraints import MatchCandidate
from catalog.schemas.contract import MAX_FAULTS, SchemaFault
from catalog.schemas.ids.deciding import PLAIN, Begin
from catalog.schemas.validation import PayloadValidation
from router.matching.index.classes import BoolArray, IntArray, KeyTable
from router.matching.index.index import COMBINATIONS_LIMIT, MatchIndex
from router.matching.record_columns import Payload, RecordColumns
from router.matching.schema_ids import MAX_SHOWN, SchemaIdFilter

Validation = Literal["never", "ambiguous", "always"]
DATA: Final = "data"
"""What a mismatch calls the body, where others name a property."""
NAMED: Final = 5
"""Most violations that the detail of a dead letter names."""
MAX_NAMED: Final = 20_000
"""Most violations of one batch that are found beyond the first of each record and schema."""
Rejections = Mapping[str, Sequence[SchemaFault]]
"""Why the schemas of definitions reject a body, by xid."""


@dataclass(slots=True)
class ValidatedSets:
    """The remaining sets, and why rows lost candidates.

    ``rejected`` has the faults by xid for rows that lost all candidates; ``violations`` are those of them that become
    ``schema-violation``; the others never matched.
    """

    sets: IntArray
    rejected: dict[int, Rejections] = field(default_factory=dict)
    violations: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Checks:
    """Definitions of a match set to validate: those whose schema decides whether they match, and the others."""

    deciding: tuple[int, ...]
    others: tuple[int, ...]


class SchemaFilter:
    """Drops candidates by their schemas, for the match sets of one index."""

    def __init__(
        self,
        index: MatchIndex,
        payloads: PayloadValidation | None,
        mode: Validation,
        ids: SchemaIdFilter,
    ) -> None:
        self._index = index
        self._ids = ids
        self._payloads = payloads
        self._mode = mode
        self._looks: dict[int, _Checks | None] = {}
        self._flags = KeyTable(COMBINATIONS_LIMIT)

    def checks(self, number: int) -> bool:
        """Whether bodies of records with the match set of that number are validated."""
        return self._schemas_to_check(number) is not None

    def check(self, facts: RecordColumns, sets: IntArray) -> ValidatedSets:
        """Return the sets without the candidates whose schemas reject the body."""
        validated = sets[self._flags.look_up(sets, lambda number, _: self.checks(number)) > 0]
        if not len(validated):
            return ValidatedSets(sets)
        checked = ValidatedSets(sets.copy())
        for number in np.unique(validated).tolist():
            look = self._schemas_to_check(number)
            rows = [row for row in np.flatnonzero(sets == number).tolist() if row not in facts.faults]
            if look is not None and rows:
                self._drop(facts, checked, number, look, rows)
        checked.rejected = self._add_all_faults(facts, checked.rejected)
        return checked

    def verdicts(self, facts: RecordColumns, number: int, row: int) -> dict[int, Sequence[SchemaFault]]:
        """Return what schemas find wrong with one row that matches the set of that number.

        By target, empty for a schema that accepts it.
        """
        look = self._schemas_to_check(number)
        first = self._find_faults(facts, (*look.deciding, *look.others), [row]) if look is not None else {}
        xids = {target: self._index.targets[target].xid for target in first}
        rejections = {xids[target]: (each[0],) for target, each in first.items() if each}
        faults = self._add_all_faults(facts, {row: rejections})[row]
        return {target: faults.get(xids[target], ()) for target in first}

    def violations(self, facts: RecordColumns, rows: IntArray, winners: IntArray) -> dict[int, Rejections]:
        """Return those of these rows whose body the winner's schema rejects, with what is wrong by xid.

        For routes that require valid bodies, where :meth:`check` has not validated all of them.
        """
        rejected: dict[int, Rejections] = {}
        ordered = rows[np.argsort(winners[rows], kind="stable")]
        starts = np.flatnonzero(np.diff(winners[ordered], prepend=-1))
        for mine in np.split(ordered, starts[1:]) if len(ordered) else ():
            number = int(winners[mine[0]])
            target = self._index.targets[number]
            if self.has_schema(target):
                faults = self._find_faults(facts, (number,), mine.tolist())[number]
                rejected.update((int(mine[at]), {target.xid: (fault,)}) for at, fault in faults.items())
        return self._add_all_faults(facts, rejected)

    def has_schema(self, target: MatchCandidate) -> bool:
        """Whether there is a schema of a known format for the target's definition."""
        return self._payloads is not None and self._payloads.has_schema(target.definition)

    def _schemas_to_check(self, number: int) -> _Checks | None:
        if number not in self._looks:
            targets = [(each, self._index.targets[each]) for each in self._index.sets[number].targets]
            deciding = tuple(
                each for each, target in targets if is_decided_by_schema(target) and self.has_schema(target)
            )
            several = len({target.xid for _, target in targets}) > 1
            looks = self._mode == "always" or (self._mode == "ambiguous" and several)
            others = tuple(e for e, t in targets if looks and e not in deciding and self.has_schema(t))
            self._looks[number] = _Checks(deciding, others) if deciding or others else None
        return self._looks[number]

    def _drop(self, facts: RecordColumns, checked: ValidatedSets, number: int, look: _Checks, rows: list[int]) -> None:
        matched = self._index.sets[number]
        by_target = self._find_faults(facts, (*look.deciding, *look.others), rows)
        for at in sorted({at for each in by_target.values() for at in each}):
            row = rows[at]
            faults = {target: each[at] for target, each in by_target.items() if at in each}
            left = matched.bits & ~sum(1 << target for target in faults if target in look.deciding)
            others = sum(1 << target for target in faults if target in look.others)
            if left & others and (self._mode == "always" or self._has_several(left)):
                left &= ~others
                if not left:
                    checked.violations.add(row)
            checked.sets[row] = self._index.set_number(left, event=matched.event)
            if not left:
                targets = self._index.targets
                checked.rejected[row] = {targets[target].xid: (fault,) for target, fault in faults.items()}

    def _add_all_faults(self, facts: RecordColumns, rejected: Mapping[int, Rejections]) -> dict[int, Rejections]:
        """Return rejections with everything that schemas find wrong, within a batch's limits of time and memory.

        The first fault decides whether a schema rejects a body, which is enough for most.
        """
        left, payloads = MAX_NAMED, self._payloads
        elaborated = dict(rejected)
        if payloads is None:
            return elaborated
        for row in rejected:
            (payload,) = facts.decoded_payloads([row]) if left > 0 else (None,)
            if not isinstance(payload, Payload):
                continue
            elaborated[row] = {
                xid: payloads.all_faults(
                    xid, payload.body, payload.content_type, self._framings(facts, [row], [payload], xid)[0], known[0]
                )
                for xid, known in rejected[row].items()
            }
            left -= sum(len(each) - 1 for each in elaborated[row].values())
        return elaborated

    def _framings(
        self, facts: RecordColumns, rows: Sequence[int], payloads: Sequence[Payload], xid: str
    ) -> list[Begin]:
        """Return the beginnings of bodies: only whole bodies of Kafka have frames."""
        begins = self._ids.begins(facts, rows, xid)
        return [begin if each.whole else PLAIN for begin, each in zip(begins, payloads, strict=True)]

    def _has_several(self, bits: int) -> bool:
        targets = self._index.sets[self._index.set_number(bits, event=True)].targets
        return len({self._index.targets[number].xid for number in targets}) > 1

    def _find_faults(
        self, facts: RecordColumns, targets: Sequence[int], rows: list[int]
    ) -> dict[int, Mapping[int, SchemaFault]]:
        """Return per target the faults of rows by index; targets of one definition share them."""
        payloads = self._payloads
        if payloads is None:
            return {}
        by_xid: dict[str, dict[int, SchemaFault]] = {}
        for target in targets:
            xid = self._index.targets[target].xid
            if xid not in by_xid:
                by_xid[xid] = self._find_schema_faults(facts, xid, payloads, rows)
        return {target: by_xid[self._index.targets[target].xid] for target in targets}

    def _find_schema_faults(
        self, facts: RecordColumns, xid: str, payloads: PayloadValidation, rows: list[int]
    ) -> dict[int, SchemaFault]:
        places = np.flatnonzero(~self._find_valid(facts, xid, payloads, rows)).tolist()
        known = facts.decoded_payloads([rows[at] for at in places])
        # Every schema rejects a body that does not have its declared coding; none one that cannot be validated.
        faults = {at: each for at, each in zip(places, known, strict=True) if isinstance(each, SchemaFault)}
        looked = [(at, each) for at, each in zip(places, known, strict=True) if isinstance(each, Payload)]
        given = [each for _, each in looked]
        begins = self._framings(facts, [rows[at] for at, _ in looked], given, xid)
        verdicts = payloads.faults(xid, [each.body for each in given], [each.content_type for each in given], begins)
        faults |= {at: fault for (at, _), fault in zip(looked, verdicts, strict=True) if fault is not None}
        return faults

    def _find_valid(self, facts: RecordColumns, xid: str, payloads: PayloadValidation, rows: list[int]) -> BoolArray:
        """Return which rows are certainly valid by their columns."""
        accepted = np.zeros(len(rows), bool)
        if facts.bodies is None or facts.codings is None or facts.inner is not None:
            return accepted
        places = np.array(rows, np.int64)
        plain = np.flatnonzero(places < len(facts.bodies))
        if facts.codings.null_count < len(facts.codings):
            uncoded = facts.codings.is_null().to_numpy(zero_copy_only=False)
            plain = plain[uncoded[places[plain]]]
        begins = self._ids.begins(facts, places[plain].tolist(), xid)
        groups: dict[int, list[int]] = {}
        for at, begin in zip(plain.tolist(), begins, strict=True):
            groups.setdefault(id(begin), []).append(at)
        kinds = {id(begin): begin for begin in begins}
        for key, members in groups.items():
            at = pa.array(places[members])
            bodies, types = facts.bodies.take(at), facts.defaults.datacontenttype.take(at)
            accepted[members] = payloads.find_valid(xid, bodies, types, kinds[key])
        return accepted


def is_decided_by_schema(target: MatchCandidate) -> bool:
    """Whether only content type and schema decide for this candidate: it has no envelope and no protocol."""
    return not target.envelope and target.protocol is None


def rejection_detail(rejected: Rejections) -> str:
    """Return the detail of a dead letter that schemas rejected: their first violations."""
    shown = sorted(rejected)[:MAX_SHOWN]
    listed = [f"{xid}: {list_faults(rejected[xid], max(1, NAMED // len(shown)))}" for xid in shown]
    more = f"; and {len(rejected) - MAX_SHOWN} more" if len(rejected) > MAX_SHOWN else ""
    return "; ".join(listed) + more


def list_faults(faults: Sequence[SchemaFault], max_named: int = NAMED) -> str:
    """Return the first faults of one body as text, and how many more there are."""
    more = f"; and {len(faults) - max_named} more" if len(faults) > max_named else ""
    return "; ".join(map(str, faults[:max_named])) + more


def schema_mismatches(rejected: Rejections, targets: Sequence[MatchCandidate]) -> list[dict[str, Any]]:
    """Return the rejecting definitions in the form of ``nearest``, with MAX_FAULTS violations in all."""
    definitions = {target.xid: target.definition for target in targets if target.xid in rejected}
    shown = sorted(rejected)[:MAX_SHOWN]
    return [
        {
            "message": xid,
            "mismatches": [
                {"property": DATA, "expected": definitions[xid].schemakey, "found": str(fault)}
                for fault in rejected[xid][: MAX_FAULTS // len(shown)]
            ],
        }
        for xid in shown
    ]
