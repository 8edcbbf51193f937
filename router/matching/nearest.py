"""Why did nothing match? The nearest definitions, each with what failed (semantics.md section 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from catalog.values import percent_decode
from router.matching.columns import Int
from router.matching.context import raw_value, slots_of
from router.matching.index import MatchIndex, members
from router.matching.targets import Keyed, Target

MOST: Final = 3
FOUND_LIMIT: Final = 200
Values = Callable[[str], Sequence[str | None]]
"""Gives all values of a property of the record by key, in order; None stands for one that is no text."""


class Nearest:
    """Explains records that matched nothing; built once per plan, asked for dead letters only."""

    def __init__(self, index: MatchIndex, protocols: Sequence[str]) -> None:
        self._index = index
        self._protocols = tuple(protocols)
        order = sorted(range(len(index.targets)), key=lambda number: index.targets[number].xid)
        self._order = np.argsort(np.array(order, np.int64)) if order else np.zeros(0, np.int64)
        self._tables = {event: self._table(event=event) for event in (False, True)}

    def _table(self, *, event: bool) -> dict[str, tuple[Int, Int, Int]]:
        """Per property: the targets that constrain it, the constraint's number, and 1 where it is a literal."""
        numbers = {
            key: {constraint: number for number, constraint in enumerate(classes.constraints)}
            for key, classes in self._index.classes.items()
        }
        rows: dict[str, list[tuple[int, int, int]]] = {}
        for target, candidate in enumerate(self._index.targets):
            for key, constraint in tested(candidate, event=event):
                literal = int(constraint.kind in ("literal", "media") and constraint.counts)
                if constraint in numbers[key]:
                    rows.setdefault(key, []).append((target, numbers[key][constraint], literal))
        tables: dict[str, tuple[Int, Int, Int]] = {}
        for key, found in rows.items():
            array = np.array(found, np.int64)
            tables[key] = (array[:, 0], array[:, 1], array[:, 2])
        return tables

    def explain(self, candidates: int, protocol: int, *, event: bool, values: Values) -> list[dict[str, Any]]:
        """Return up to three nearest among a set of targets, as the JSON form of architecture.md section 4."""
        chosen = np.array(members(candidates), np.int64)
        if not len(chosen):
            return []
        failed = np.zeros(len(self._index.targets), np.int64)
        literals = np.zeros(len(self._index.targets), np.int64)
        for key, (targets, numbers, literal) in self._tables[event].items():
            classes = self._index.classes[key]
            found = values(key)
            bits = classes.bits[classes.class_of(found)] if found else classes.bits[0]
            satisfied = _bools(bits, len(classes.constraints))[numbers]
            np.add.at(failed, targets[~satisfied], 1)
            np.add.at(literals, targets[satisfied], literal[satisfied])
        for number in chosen.tolist():
            failed[number] += len(self._kind_mismatch(self._index.targets[number], protocol, event=event))
        ranks = np.lexsort((self._order[chosen], -literals[chosen], failed[chosen]))
        # Unequal placeholders cost a look at each value, so only the front runners are asked.
        front = chosen[ranks[: 4 * MOST]].tolist()
        listed = [(number, self.mismatches(number, protocol, event=event, values=values)) for number in front]
        listed.sort(key=lambda entry: (len(entry[1]), -literals[entry[0]], self._index.targets[entry[0]].xid))
        unique: dict[str, list[dict[str, Any]]] = {}
        for number, mismatches in listed:
            unique.setdefault(self._index.targets[number].xid, mismatches)
        return [{"message": xid, "mismatches": found} for xid, found in list(unique.items())[:MOST]]

    def mismatches(self, number: int, protocol: int, *, event: bool, values: Values) -> list[dict[str, Any]]:
        """Return what keeps one target from matching, each with property, expected and found."""
        target = self._index.targets[number]
        found = self._kind_mismatch(target, protocol, event=event)
        for key, constraint in tested(target, event=event):
            texts = values(key)
            holds = constraint.satisfied(None, present=False) if not texts else False
            if not holds and not any(constraint.satisfied(text, present=True) for text in texts):
                found.append(_mismatch(property_name(key), constraint.expected, _shown(texts)))
        return found or _unequal(tested(target, event=event), values)

    def _kind_mismatch(self, target: Target, protocol: int, *, event: bool) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        name = self._protocols[protocol] if protocol >= 0 else None
        if target.protocol not in (None, name):
            found.append(_mismatch("protocol", target.protocol, name))
        if target.constraints(event=event) is None:
            found.append(_mismatch("envelope", "CloudEvents/1.0", None))
        return found


def tested(target: Target, *, event: bool) -> Sequence[Keyed]:
    """Return the constraints to report on: for a native record and a target that needs an event, all of them."""
    constraints = target.constraints(event=event)
    return constraints if constraints is not None else target.event or ()


def property_name(key: str) -> str:
    """Return the place in the definition that a property key stands for."""
    if key == "d":
        return "datacontenttype"
    member = "envelopemetadata" if key.startswith("e.") else "protocoloptions"
    return f"{member}.{key[2:]}"


def _unequal(constraints: Sequence[Keyed], values: Values) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for one, other in slots_of(constraints)[1]:
        texts = []
        for slot in (one, other):
            text = raw_value(slot, values(slot.key))
            texts.append(percent_decode(text) if text is not None and slot.constraint.decodes else text)
        if texts[0] != texts[1]:
            place = f"{property_name(other.key)} {{{other.name}}}"
            found.append(_mismatch(place, f"{texts[0]} as in {property_name(one.key)}", texts[1]))
    return found


def _mismatch(name: str, expected: str | None, found: str | None) -> dict[str, Any]:
    return {"property": name, "expected": expected, "found": found}


def _shown(texts: Sequence[str | None]) -> str | None:
    if not texts:
        return None
    shown = ", ".join("(bytes that are no UTF-8 text)" if text is None else text for text in texts)
    return shown if len(shown) <= FOUND_LIMIT else shown[:FOUND_LIMIT] + "…"


def _bools(bits: int, width: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    packed = np.frombuffer(bits.to_bytes((width + 7) // 8, "little"), np.uint8)
    return np.unpackbits(packed, bitorder="little")[:width].astype(bool)
