"""Coverage: which definitions, templates and constraints of a catalog cases exercise.

A definition is exercised by a record that it takes; a template or another constraint by one that its definition takes
and that has a value there, or whose event gets its value by that template. Rejections are counted apart: places where
a record fails by that one property alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from catalog.definitions.constraints import Constraint
from router.matching.checks import property_name
from router.matching.matcher import Matcher, Outcomes

KINDS: Final = ("definitions", "templates", "constraints", "rejections")
ASKED: Final = KINDS[:3]
"""What a plain minimum is for: few catalogs have a record for each way to fail."""
_WHOLE: Final = 100.0


class Item(NamedTuple):
    """Something that cases may exercise: a definition, or what it asks of one of its properties."""

    message: str
    property: str = ""
    expected: str = ""

    def __str__(self) -> str:
        return f"{self.message} {self.property}: {self.expected}" if self.property else self.message

    def to_json(self) -> Any:
        """Return the form of reports."""
        return self._asdict() if self.property else self.message


@dataclass(slots=True)
class Share:
    """All items of one kind, and those that were exercised."""

    all: set[Item] = field(default_factory=set)
    exercised: set[Item] = field(default_factory=set)

    @property
    def missing(self) -> list[Item]:
        """What no case exercises, sorted."""
        return sorted(self.all - self.exercised)

    @property
    def percent(self) -> float:
        """The exercised share in percent; of nothing, all."""
        return _WHOLE * len(self.all & self.exercised) / len(self.all) if self.all else _WHOLE

    def to_json(self) -> dict[str, Any]:
        """Return the form of reports."""
        missing = self.missing
        counts = {"all": len(self.all), "exercised": len(self.all) - len(missing), "percent": round(self.percent, 2)}
        return {**counts, "missing": [item.to_json() for item in missing]}


class Coverage:
    """Collects over any number of catalogs and batches."""

    def __init__(self) -> None:
        self.shares: Mapping[str, Share] = {kind: Share() for kind in KINDS}

    def expect(self, matcher: Matcher) -> None:
        """Count all that the candidates of a matcher ask."""
        for number in {target for channel in matcher.channels for target in channel.candidates}:
            target = matcher.targets[number]
            self.shares["definitions"].all.add(Item(target.xid))
            for key, constraint in (*(target.event or ()), *(target.native or ())):
                item = _item(target.xid, key, constraint)
                self.shares[_kind(constraint)].all.add(item)
                self.shares["rejections"].all.add(item)

    def take(self, matcher: Matcher, batches: Iterable[Outcomes]) -> None:
        """Count what the rows of batches exercised."""
        for outcomes in batches:
            facts = outcomes.facts
            for row, winner in enumerate(outcomes.winners.tolist()):
                if winner < 0:
                    self._failed(outcomes, row)
                    continue
                target = matcher.targets[winner]
                self.shares["definitions"].exercised.add(Item(target.xid))
                event = bool(facts.events[row])
                for key, constraint in target.constraints(event=event) or ():
                    if facts.values(row, key):
                        self.shares[_kind(constraint)].exercised.add(_item(target.xid, key, constraint))
                if not event:
                    self._filled(matcher, winner, int(facts.channels[row]))

    def _filled(self, matcher: Matcher, target: int, channel: int) -> None:
        """Count the templates of event attributes by which a native record was mapped."""
        program = matcher.mapper.programs[matcher.mapper.program(target, channel)]
        filled = {f"e.{each.name}" for each in program.attributes if any(piece.name for piece in each.pieces)}
        for key, constraint in matcher.targets[target].event or ():
            if key in filled and constraint.kind == "template":
                item = _item(matcher.targets[target].xid, key, constraint)
                self.shares["templates"].exercised.add(item)

    def _failed(self, outcomes: Outcomes, row: int) -> None:
        """Count a dead letter that one property alone keeps from a definition."""
        for near in outcomes.nearest.get(row, ()):
            mismatches = near["mismatches"]
            if len(mismatches) == 1:
                item = Item(near["message"], mismatches[0]["property"], str(mismatches[0]["expected"]))
                self.shares["rejections"].exercised.add(item)

    def below(self, least: Mapping[str, float]) -> list[str]:
        """Return in words the kinds that are exercised less than they should be, in percent."""
        return [
            f"{kind}: {self.shares[kind].percent:.1f} % are exercised, and {wanted:g} % should be"
            for kind, wanted in least.items()
            if self.shares[kind].percent < wanted
        ]

    def lines(self, *, whole: bool) -> list[str]:
        """Return the report as lines; if *whole*, with each item that no case exercises.

        Of a definition without a case only itself is named, and not all that it asks.
        """
        texts = []
        exercised = {item.message for item in self.shares["definitions"].exercised}
        for kind, share in self.shares.items():
            missing = share.missing
            total = len(share.all)
            texts.append(f"{kind} exercised: {total - len(missing)} of {total} ({share.percent:.1f} %)")
            if whole:
                texts += (f"  no case: {item}" for item in missing if not item.property or item.message in exercised)
        return texts

    def to_json(self) -> dict[str, Any]:
        """Return the form of reports, by kind."""
        return {kind: share.to_json() for kind, share in self.shares.items()}


def _kind(constraint: Constraint) -> str:
    return "templates" if constraint.kind == "template" else "constraints"


def _item(xid: str, key: str, constraint: Constraint) -> Item:
    return Item(xid, property_name(key), constraint.expected)
