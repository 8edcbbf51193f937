"""Reports of results: as text, as JSON, as JUnit's XML, and as annotations of GitHub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree

from catalog.definitions.constraints import Constraint
from catalog.errors import one_line, xml_text
from router.commands.test.running import CaseResult
from router.matching.matcher import Matcher, MatchOutcomes
from router.matching.nearest import property_name
from router.terminal import Terminal, counted, shown_value, styled

# Coverage: which definitions, templates and constraints of a catalog cases exercise.
#
# A definition is exercised by a record that it takes; a template or another constraint by one that its definition takes
# and that has a value there, or whose event gets its value by that template. Rejections are counted apart: places where
# a record fails by that one property alone.

KINDS: Final = ("definitions", "templates", "constraints", "rejections")
ASKED: Final = KINDS[:3]
"""What a plain minimum is for: few catalogs have a record for each way to fail."""
_WHOLE: Final = 100.0


class CoveredItem(NamedTuple):
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
class CoverageShare:
    """All items of one kind, and those that were exercised."""

    all: set[CoveredItem] = field(default_factory=set)
    exercised: set[CoveredItem] = field(default_factory=set)

    @property
    def missing(self) -> list[CoveredItem]:
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


class CaseCoverage:
    """Collects over any number of catalogs and batches."""

    def __init__(self) -> None:
        self.shares: Mapping[str, CoverageShare] = {kind: CoverageShare() for kind in KINDS}

    def expect(self, matcher: Matcher) -> None:
        """Count all that the candidates of a matcher ask."""
        for number in {target for channel in matcher.channels for target in channel.candidates}:
            target = matcher.targets[number]
            self.shares["definitions"].all.add(CoveredItem(target.xid))
            for key, constraint in (*(target.event or ()), *(target.native or ())):
                item = _item(target.xid, key, constraint)
                self.shares[_kind(constraint)].all.add(item)
                self.shares["rejections"].all.add(item)

    def take(self, matcher: Matcher, batches: Iterable[MatchOutcomes]) -> None:
        """Count what the rows of batches exercised."""
        for outcomes in batches:
            facts = outcomes.facts
            for row, winner in enumerate(outcomes.winners.tolist()):
                if winner < 0:
                    self._failed(outcomes, row)
                    continue
                target = matcher.targets[winner]
                self.shares["definitions"].exercised.add(CoveredItem(target.xid))
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

    def _failed(self, outcomes: MatchOutcomes, row: int) -> None:
        """Count a dead letter that one property alone keeps from a definition."""
        for near in outcomes.nearest.get(row, ()):
            mismatches = near["mismatches"]
            if len(mismatches) == 1:
                item = CoveredItem(near["message"], mismatches[0]["property"], str(mismatches[0]["expected"]))
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


def _item(xid: str, key: str, constraint: Constraint) -> CoveredItem:
    return CoveredItem(xid, property_name(key), constraint.expected)


SHOWN: Final = 300
"""Characters of a value in a text; JSON has all."""


@dataclass(frozen=True, slots=True)
class LocatedResult:
    """A result with the lines of what differs, in the order of its differences, and that of its case."""

    result: CaseResult
    line: int | None
    lines: tuple[int | None, ...]

    @property
    def file(self) -> str:
        """The path of its file."""
        return str(self.result.file.path)

    @property
    def place(self) -> str:
        """The file, and the line of the case."""
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def texts(self) -> Iterator[str]:
        """Yield a line for each difference, with its place, and why.

        Where a record became a dead letter instead of an event, or an event instead of one, all else follows from that.
        """
        pairs = [*zip(self.result.differences, self.lines, strict=True)]
        other = [pair for pair in pairs if pair[0].pointer.endswith("/expect/outcome")]
        for each, line in other or pairs:
            at = "" if line is None or line == self.line else f"line {line}: "
            yield f"{at}{each.pointer}: expected {_value(each.expected)}, found {_value(each.actual)}"
        if other and len(pairs) > 1:
            yield f"and {counted(len(pairs) - 1, 'difference')} because of it"
        if self.result.why:
            yield f"why: {self.result.why}"

    def to_json(self) -> dict[str, Any]:
        """Return the form of reports."""
        wrong = [
            {"pointer": each.pointer, "line": line, "expected": each.expected, "found": each.actual}
            for each, line in zip(self.result.differences, self.lines, strict=True)
        ]
        case, head = self.result.case, {"file": self.file, "line": self.line}
        rest = {"differences": wrong, "why": self.result.why, "outcome": self.result.outcome}
        return {**head, "pointer": case.pointer, "name": case.name, **rest}


def placed(results: Iterable[CaseResult]) -> list[LocatedResult]:
    """Return the results with their lines, in their order; each file is looked through once."""
    located: list[LocatedResult] = []
    for _, members in groupby(results, key=lambda result: result.file.path):
        group = list(members)
        places = [(each.case, pointer) for each in group for pointer in _pointers(each)]
        lines = group[0].file.lines(places)
        for each in group:
            own = tuple(lines.get((each.case, wrong.pointer)) for wrong in each.differences)
            located.append(LocatedResult(each, lines.get((each.case, each.case.pointer)), own))
    return located


def write_text(console: Terminal, failed: Sequence[LocatedResult], total: int, seconds: float) -> None:
    """Write the failed cases, each with what differs, and the counts."""
    for each in failed:
        console.print(styled(("FAILED ", "bold red"), one_line(f"{each.place} {each.result.case.name}")))
        for text in each.texts():
            console.print(styled(one_line(f"  {text}")))
    passed = f"{total - len(failed)} of {counted(total, 'case')} passed, matched in {seconds:.2f} s"
    console.print(styled((passed, "bold red" if failed else "bold green")))


def json_report(failed: Sequence[LocatedResult], total: int, seconds: float, coverage: CaseCoverage) -> dict[str, Any]:
    """Return the report as one object."""
    counts = {"cases": total, "passed": total - len(failed), "failed": len(failed), "seconds": round(seconds, 6)}
    return {**counts, "failures": [each.to_json() for each in failed], "coverage": coverage.to_json()}


def junit(results: Sequence[LocatedResult]) -> str:
    """Return all results as a document of JUnit: a suite for each file."""
    top = ElementTree.Element("testsuites", _counts(results))
    for file, members in groupby(results, key=lambda each: each.file):
        group = list(members)
        suite = ElementTree.SubElement(top, "testsuite", {"name": xml_text(file), **_counts(group)})
        for each in group:
            line = {} if each.line is None else {"line": str(each.line)}
            about = {
                "classname": xml_text(Path(file).name),
                "name": xml_text(each.result.case.name),
                "file": xml_text(file),
                **line,
            }
            case = ElementTree.SubElement(suite, "testcase", about)
            if not each.result.passed:
                texts = [*each.texts()]
                failure = ElementTree.SubElement(case, "failure", {"message": xml_text(texts[0])})
                failure.text = xml_text("\n".join(texts))
    ElementTree.indent(top)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(top, encoding="unicode")}\n'


def github_annotations(failed: Iterable[LocatedResult], shortages: Iterable[str]) -> Iterator[str]:
    """Yield the commands by which a workflow of GitHub shows failures at their lines."""
    for each in failed:
        line = next((line for line in each.lines if line is not None), each.line)
        about = {"file": each.file, **({} if line is None else {"line": str(line)}), "title": each.result.case.name}
        properties = ",".join(f"{name}={_property(value)}" for name, value in about.items())
        yield f"::error {properties}::{_data('; '.join(each.texts()))}"
    for text in shortages:
        yield f"::error title=coverage::{_data(text)}"


def _pointers(result: CaseResult) -> tuple[str, ...]:
    return (result.case.pointer, *(each.pointer for each in result.differences))


def _counts(results: Sequence[LocatedResult]) -> dict[str, str]:
    failed = sum(not each.result.passed for each in results)
    return {"tests": str(len(results)), "failures": str(failed), "errors": "0", "skipped": "0"}


def _value(value: Any) -> str:
    if value is None:
        return "nothing"
    text = repr(value) if isinstance(value, str) else shown_value(_plain(value))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _plain(value: Any) -> Any:
    """Return the value of an outcome without what would fill a screen."""
    if isinstance(value, Mapping):
        return {name: inner for name, inner in value.items() if name != "nearest"}
    return value


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
