"""What one candidate asks of one record, property by property, and what it has there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from catalog.definitions.constraints import Constraint
from catalog.definitions.targets import Keyed, Target
from catalog.model import CLOUDEVENTS
from catalog.values import percent_decode
from router.matching.context import raw_value, slots_of
from router.matching.likeness import distance

FOUND_LIMIT: Final = 200
NOT_TEXT: Final = "(bytes that are no UTF-8 text)"
Values = Callable[[str], Sequence[str | None]]
"""Gives all values of a property of the record by key, in order; None stands for one that is no text."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a candidate asks of a record: ``actual`` is None for what is absent, ``holds`` the verdict.

    ``distance`` is how far the value is from what was expected, for a property that fails by itself.
    """

    property: str
    expected: str | None
    actual: str | None
    holds: bool
    constraint: Constraint | None = None
    distance: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the form that dead letters and ``match`` have."""
        return {"property": self.property, "expected": self.expected, "found": self.actual}


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of one record: its channel, protocol and kind, the class of each property, and the values."""

    channel: int
    protocol: int
    event: bool
    classes: tuple[int, ...]
    values: Values


def checks_of(target: Target, row: Row, protocols: Sequence[str]) -> list[Check]:
    """Return all that one candidate asks of a record, in its own order; it matches when everything holds.

    *protocols* are those that a row names by number.
    """
    checks = kind_checks(target, row.protocol, protocols, event=row.event)
    holding: list[Keyed] = []
    for key, constraint in tested(target, event=row.event):
        texts = row.values(key)
        holds = any(constraint.satisfied(text, present=True) for text in texts)
        if not texts:
            holds = constraint.satisfied(None, present=False)
        if holds:
            holding.append((key, constraint))
        unlike = 0 if holds else distance(constraint, texts)
        checks.append(Check(property_name(key), constraint.expected, _shown(texts), holds, constraint, unlike))
    return checks + _unequal(holding, row.values)


def kind_checks(target: Target, protocol: int, protocols: Sequence[str], *, event: bool) -> list[Check]:
    """Return what a candidate asks of the kind of a record: its protocol, and whether it is an event."""
    checks: list[Check] = []
    name = protocols[protocol] if protocol >= 0 else None
    if target.protocol is not None:
        checks.append(Check("protocol", target.protocol, name, target.protocol == name))
    if target.constraints(event=event) is None:
        checks.append(Check("envelope", CLOUDEVENTS, None, False))
    elif target.envelope and event:
        checks.append(Check("envelope", CLOUDEVENTS, CLOUDEVENTS, True))
    return checks


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


def _unequal(holding: Sequence[Keyed], values: Values) -> list[Check]:
    """Return one failed check for each property that holds alone and takes other values than those before it."""
    failed: dict[tuple[str, Constraint], Check] = {}
    for one, other in slots_of(holding)[1]:
        texts = []
        for slot in (one, other):
            text = raw_value(slot, values(slot.key))
            texts.append(percent_decode(text) if text is not None and slot.constraint.decodes else text)
        if texts[0] != texts[1]:
            place = f"{property_name(other.key)} {{{other.name}}}"
            check = Check(place, f"{texts[0]} as in {property_name(one.key)}", texts[1], False)
            failed.setdefault((other.key, other.constraint), check)
    return list(failed.values())


def _shown(texts: Sequence[str | None]) -> str | None:
    if not texts:
        return None
    shown = ", ".join(NOT_TEXT if text is None else text for text in texts)
    return shown if len(shown) <= FOUND_LIMIT else shown[:FOUND_LIMIT] + "…"
