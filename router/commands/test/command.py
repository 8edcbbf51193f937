"""``xrouter test``: run test cases of a catalog, or create them from records."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple
from xml.etree import ElementTree

import typer

from catalog.definitions.constraints import Constraint
from catalog.findings import Declarations, one_line, xml_text
from catalog.parsing.regular import open_input
from catalog.record import Record
from router.commands.arguments import (
    AllowAddresses,
    BaseUri,
    LoginsOption,
    OutputFormat,
    fetcher,
    require_absent,
    schema_option,
    usable_catalog,
)
from router.commands.arguments import write_text as write_file
from router.commands.test.cases import LINES, ROUTED, SUFFIXES, CaseFile, CasesUnreadable, read_cases
from router.commands.test.runner import (
    COUNT,
    SCHEMA_COPY,
    CaseEvaluator,
    CaseResult,
    CatalogJudging,
    RouterJudging,
    case_schema,
    cases_as_text,
    head_of,
    record,
    records_of,
    run_cases,
)
from router.dead_letters.reading import read_letters
from router.dead_letters.redaction import marks_of, marks_of_settings, redactor_of
from router.errors import RouterError
from router.matching.matcher import Matcher, MatchOutcomes
from router.matching.nearest import property_name
from router.settings import Settings, load_settings
from router.settings.catalogs import fetcher_of
from router.terminal import Terminal, counted, print_json, print_text, shown_value, styled, terminal

# Reports of results: as text, as JSON, as JUnit's XML, and as annotations of GitHub.

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
            f"{kind}: {self.shares[kind].percent:.1f} % covered, {wanted:g} % required"
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
            yield f"and {counted(len(pairs) - 1, 'difference')} as a consequence"
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


PASSED: Final = 0
FAILED: Final = 1
UNREADABLE: Final = 2
LETTERS: Final = "dead-letters"
"""The source of records that is a router's dead letters; a file of that name is ``./dead-letters``."""
STANDARD_INPUT: Final = "-"
_GITHUB: Final = "GITHUB_ACTIONS"


@dataclass(slots=True)
class _Options:
    """Where catalogs and settings are from, when the command line says so and not the files."""

    catalog: tuple[str, ...]
    config: Path | None
    allow: Sequence[str]
    logins: Path | None
    base_uri: str
    declarations: Declarations = field(default_factory=Declarations)

    def of(self, file: CaseFile) -> tuple[tuple[str, ...], Path | None]:
        """Return the sources of the catalog (none: those of the settings) and the settings that a file is for."""
        config = self.config or file.config
        catalog = self.catalog or (() if self.config is not None else file.catalog)
        if not catalog and config is None:
            hint = "give --catalog PATH or --config CONFIG, or add a line `catalog: PATH` to the file"
            raise RouterError(f"{file.path} has no catalog", hint=hint)
        return catalog, config

    def judging(self, catalog: tuple[str, ...], config: Path | None) -> tuple[CaseEvaluator, Settings | None]:
        """Return what judges by these sources and settings."""
        if config is None:
            read = fetcher(self.logins, self.allow)
            loaded = usable_catalog(list(catalog), read, base_uri=self.base_uri, declarations=self.declarations)
            return CatalogJudging(loaded), None
        settings = load_settings(config)
        sources = list(catalog or settings.catalog.source)
        base_uri = self.base_uri or settings.catalog.base_uri
        loaded = usable_catalog(sources, fetcher_of(settings), base_uri=base_uri, declarations=self.declarations)
        return RouterJudging(loaded, settings), settings


def test(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", help="Case files, or folders with files `*.cases.yaml|json|jsonl`."),
    ],
    catalog: Annotated[
        list[str] | None,
        typer.Option("--catalog", metavar="PATH", help="Catalog to use instead of the case files' own; repeatable."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="CONFIG", help="Match and route with these settings."),
    ] = None,
    format: Annotated[OutputFormat, typer.Option("--format", help="`json` is one object.")] = OutputFormat.text,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Text: list definitions, templates and constraints without a case.")
    ] = False,
    least: Annotated[
        list[str] | None,
        typer.Option(
            "--min-coverage",
            metavar="[KIND=]PERCENT",
            help=f"Minimum percentage. KIND: {', '.join(KINDS)}; by default the first three; repeatable.",
        ),
    ] = None,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write results as JUnit XML.")
    ] = None,
    github: Annotated[
        bool | None,
        typer.Option("--github/--no-github", help=f"Annotate failures in GitHub; by default if {_GITHUB} is `true`."),
    ] = None,
    recorded: Annotated[
        str | None,
        typer.Option(
            "--record",
            metavar="SOURCE",
            help=f"Create cases in PATH from a file of records, `{STANDARD_INPUT}` (stdin) or `{LETTERS}`.",
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="With --record: maximum number of records.")] = COUNT,
    reveal: Annotated[bool, typer.Option("--reveal", help="With --record: keep what is marked as sensitive.")] = False,
    force: Annotated[bool, typer.Option("--force", help="With --record: overwrite an existing file.")] = False,
    allow: AllowAddresses = None,
    base_uri: BaseUri = "",
    logins: LoginsOption = None,
    _schema: Annotated[bool, schema_option("files of cases", case_schema)] = False,
) -> None:
    """Run test cases against a catalog, or with --config against a router's settings, offline and without Spark.

    Exit codes: 0 all pass, 1 a case fails or coverage is too low, 2 cases cannot be read.
    `--record -` creates cases from records on standard input, as `xrouter tap --format record` and `xrouter emit`
    print them.

    Example: xrouter test catalog/ --coverage --min-coverage 80 --junit report.xml
    """
    options = _Options(tuple(catalog or ()), config, allow or (), logins, base_uri)
    if recorded is not None:
        _record(paths, recorded, options, count=count, reveal=reveal, force=force)
        return
    wanted = _least(least or [])
    covered = CaseCoverage()
    try:
        files = read_cases(paths)
        results, seconds = _run(files, options, covered)
    except CasesUnreadable as error:
        for problem in error.problems:
            print_text(f"xrouter: error: {problem}", err=True)
        raise typer.Exit(UNREADABLE) from error
    failed = placed(result for result in results if not result.passed)
    shortages = covered.below(wanted)
    if junit_file is not None:
        write_file(junit(placed(results)), junit_file)
    _report(failed, len(results), seconds, covered, shortages, format, whole=coverage)
    if github if github is not None else os.environ.get(_GITHUB) == "true":
        for line in github_annotations(failed, shortages):
            print_text(line, err=format is OutputFormat.json)
    raise typer.Exit(FAILED if failed or shortages else PASSED)


def _run(files: Sequence[CaseFile], options: _Options, covered: CaseCoverage) -> tuple[list[CaseResult], float]:
    """Run all files, those of one catalog together; returns their results in the order of the files."""
    groups: dict[tuple[tuple[str, ...], Path | None], list[CaseFile]] = {}
    for file in files:
        groups.setdefault(options.of(file), []).append(file)
    by_file: dict[Path, list[CaseResult]] = {}
    seconds = 0.0
    for (sources, config), members in groups.items():
        if config is None:
            _refuse_routes(members)
        judging, _ = options.judging(sources, config)
        run = run_cases(members, judging)
        seconds += run.seconds
        covered.expect(judging.matcher)
        covered.take(judging.matcher, run.judged.batches)
        for result in run.results:
            by_file.setdefault(result.file.path, []).append(result)
    return [result for results in by_file.values() for result in results], seconds


def _refuse_routes(files: Sequence[CaseFile]) -> None:
    """Reject cases whose expectations need more than a catalog."""
    problems = [
        f"{file.path}: {case.name}: {name} requires a router's settings; give --config, or leave it out"
        for file in files
        for case in file.cases
        for expected in (case.expect, *(case.expect.get("events") or ()))
        for name in ROUTED
        if name in expected
    ]
    if problems:
        raise CasesUnreadable(problems)


def _report(
    failed: Sequence[LocatedResult],
    total: int,
    seconds: float,
    covered: CaseCoverage,
    shortages: Sequence[str],
    format: OutputFormat,
    *,
    whole: bool,
) -> None:
    if format is OutputFormat.json:
        print_json(json_report(failed, total, seconds, covered) | {"shortages": list(shortages)})
        return
    console = terminal(soft_wrap=True)
    write_text(console, failed, total, seconds)
    for line in (*covered.lines(whole=whole), *(f"too low: {text}" for text in shortages)):
        console.print(line)


def _least(given: Sequence[str]) -> dict[str, float]:
    """Parse the minimum coverage, by kind."""
    wanted: dict[str, float] = {}
    for text in given:
        kind, mark, number = text.rpartition("=")
        if mark and kind not in KINDS:
            near = get_close_matches(kind, KINDS, 1)
            raise typer.BadParameter(f"--min-coverage {kind!r} is none of {', '.join(KINDS)}{_meant(near)}")
        try:
            percent = float(number)
        except ValueError:
            percent = -1.0
        if not 0 <= percent <= 100:
            raise typer.BadParameter(f"--min-coverage {number!r} is not a number from 0 to 100")
        wanted.update(dict.fromkeys((kind,) if mark else ASKED, percent))
    return wanted


def _meant(near: Sequence[str]) -> str:
    return f"; did you mean {near[0]}?" if near else ""


def _record(paths: Sequence[Path], source: str, options: _Options, *, count: int, reveal: bool, force: bool) -> None:
    """Create cases from records, and write them."""
    if len(paths) != 1 or paths[0].suffix.lower() not in SUFFIXES:
        raise typer.BadParameter(f"--record writes one PATH, whose name ends in one of {', '.join(SUFFIXES)}")
    output = paths[0]
    require_absent(output, force=force)
    sources, config = options.of(CaseFile(output, b"", (), None, ()))
    judging, settings = options.judging(sources, config)
    marks = marks_of(options.declarations, judging.catalog)
    if settings is not None:
        marks |= marks_of_settings(settings.dead_letters.redact)
    with _records(source, settings) as records:
        recorded = record(records, judging, redactor_of(marks, reveal=reveal), count)
    if not recorded.cases:
        print_text("no cases: there are no records" if not recorded.hidden else _hidden(recorded.hidden), err=True)
        raise typer.Exit(FAILED)
    write_file(cases_as_text(head_of(sources, config, output), recorded.cases, output), output)
    if output.suffix.lower() not in LINES:
        write_file(case_schema().decode("utf-8"), output.parent / SCHEMA_COPY)
    print_text(f"{output}: {counted(len(recorded.cases), 'case')} recorded")
    if recorded.hidden:
        print_text(_hidden(recorded.hidden))


def _hidden(number: int) -> str:
    return f"{counted(number, 'record')} skipped, since their outcomes depend on sensitive values; --reveal keeps them"


@contextmanager
def _records(source: str, settings: Settings | None) -> Iterator[Iterator[Record]]:
    if source == LETTERS:
        if settings is None:
            raise typer.BadParameter(f"--record {LETTERS} requires --config, the router that has them")
        yield (letter.record() for letter in read_letters(settings))
    elif source == STANDARD_INPUT:
        yield records_of(sys.stdin.buffer, "standard input")
    else:
        try:
            file = open_input(source)
        except OSError as error:
            raise RouterError(f"{source} cannot be read: {error.strerror or type(error).__name__}") from error
        with file:
            yield records_of(file, source)
