"""``xrouter test``: run test cases of a catalog, or create them from records."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple
from xml.etree import ElementTree

import typer

from catalog.definitions.constraints import Constraint
from catalog.findings import Declarations, to_one_line, to_xml_text
from catalog.parsing.regular import open_input
from catalog.record import Record
from router.commands.arguments import (
    AllowAddresses,
    BaseUri,
    LoginsOption,
    OutputFormat,
    load_catalog_of,
    load_usable,
    make_fetcher,
    refuse_overwriting,
    schema_option,
)
from router.commands.arguments import write_text as write_file
from router.commands.test.cases import (
    LINES,
    ROUTING_MEMBERS,
    SUFFIXES,
    CaseFile,
    CasesUnreadable,
    read_case_schema,
    read_cases,
)
from router.commands.test.runner import (
    DEFAULT_COUNT,
    SCHEMA_COPY,
    CaseEvaluator,
    CaseResult,
    CatalogEvaluator,
    RouterEvaluator,
    format_cases,
    iter_records,
    make_head,
    record_cases,
    run_cases,
)
from router.dead_letters.redaction import find_marks, make_redactor, parse_marks
from router.errors import GOOD, USAGE, WRONG, RouterError, hint_near
from router.matching.matcher import Matcher, MatchOutcomes
from router.matching.nearest import property_name
from router.settings import Settings, load_settings
from router.terminal import Terminal, plural, print_json, print_text, terminal, to_text

# Reports of results: as text, as JSON, as JUnit's XML, and as annotations of GitHub.

# Coverage: which definitions, templates and constraints of a catalog cases exercise.
#
# A record that matches a definition exercises the definition, its constraints on values that the record has, and its
# templates that set attributes of the event.

KINDS: Final = ("definitions", "templates", "constraints")
_WHOLE: Final = 100.0


class CoveredItem(NamedTuple):
    """Something that cases may exercise: a definition, or one of its constraints."""

    message: str
    property: str = ""
    expected: str = ""

    def __str__(self) -> str:
        return f"{self.message} {self.property}: {self.expected}" if self.property else self.message

    def to_json(self) -> Any:
        """Return the item as JSON for reports."""
        return self._asdict() if self.property else self.message


@dataclass(slots=True)
class CoverageShare:
    """All items of one kind, and those that were exercised."""

    all: set[CoveredItem] = field(default_factory=set)
    exercised: set[CoveredItem] = field(default_factory=set)

    @property
    def missing(self) -> list[CoveredItem]:
        """The items that no case exercises, sorted."""
        return sorted(self.all - self.exercised)

    @property
    def percent(self) -> float:
        """The exercised share in percent; 100 if there are no items."""
        return _WHOLE * len(self.all & self.exercised) / len(self.all) if self.all else _WHOLE

    def to_json(self) -> dict[str, Any]:
        """Return the item as JSON for reports."""
        missing = self.missing
        counts = {"all": len(self.all), "exercised": len(self.all) - len(missing), "percent": round(self.percent, 2)}
        return {**counts, "missing": [item.to_json() for item in missing]}


class CaseCoverage:
    """Collects the coverage of cases over any number of catalogs."""

    def __init__(self) -> None:
        self.shares: Mapping[str, CoverageShare] = {kind: CoverageShare() for kind in KINDS}

    def add_candidates(self, matcher: Matcher) -> None:
        """Add the definitions and constraints of a matcher's candidates."""
        for number in {target for channel in matcher.channels for target in channel.candidates}:
            target = matcher.targets[number]
            self.shares["definitions"].all.add(CoveredItem(target.xid))
            for key, constraint in (*(target.event or ()), *(target.native or ())):
                item = _make_item(target.xid, key, constraint)
                self.shares[_coverage_kind(constraint)].all.add(item)

    def add_outcomes(self, matcher: Matcher, batches: Iterable[MatchOutcomes]) -> None:
        """Add the items that the rows of batches exercise."""
        for outcomes in batches:
            facts = outcomes.facts
            for row, winner in enumerate(outcomes.winners.tolist()):
                if winner < 0:
                    continue
                target = matcher.targets[winner]
                self.shares["definitions"].exercised.add(CoveredItem(target.xid))
                event = bool(facts.events[row])
                for key, constraint in target.constraints(event=event) or ():
                    if facts.values(row, key):
                        self.shares[_coverage_kind(constraint)].exercised.add(_make_item(target.xid, key, constraint))
                if not event:
                    self._count_templates(matcher, winner, int(facts.channels[row]))

    def _count_templates(self, matcher: Matcher, target: int, channel: int) -> None:
        """Add the attribute templates that map a native record."""
        program = matcher.mapper.programs[matcher.mapper.program_number(target, channel)]
        filled = {f"e.{each.name}" for each in program.attributes if any(piece.name for piece in each.pieces)}
        for key, constraint in matcher.targets[target].event or ():
            if key in filled and constraint.kind == "template":
                item = _make_item(matcher.targets[target].xid, key, constraint)
                self.shares["templates"].exercised.add(item)

    def find_shortages(self, min_coverage: Mapping[str, float]) -> list[str]:
        """Return a text for each kind whose coverage is below the minimum."""
        return [
            f"{kind}: {self.shares[kind].percent:.1f} % covered, {required:g} % required"
            for kind, required in min_coverage.items()
            if self.shares[kind].percent < required
        ]

    def format_lines(self, *, detailed: bool) -> list[str]:
        """Return the report as lines; if *detailed*, with each item that no case exercises.

        Of a definition without a case only itself is named, and not all that it asks.
        """
        texts = []
        exercised = {item.message for item in self.shares["definitions"].exercised}
        for kind, share in self.shares.items():
            missing = share.missing
            total = len(share.all)
            texts.append(f"{kind} exercised: {total - len(missing)} of {total} ({share.percent:.1f} %)")
            if detailed:
                texts += (f"  no case: {item}" for item in missing if not item.property or item.message in exercised)
        return texts

    def to_json(self) -> dict[str, Any]:
        """Return the coverage as JSON for reports, by kind."""
        return {kind: share.to_json() for kind, share in self.shares.items()}


def _coverage_kind(constraint: Constraint) -> str:
    return "templates" if constraint.kind == "template" else "constraints"


def _make_item(xid: str, key: str, constraint: Constraint) -> CoveredItem:
    return CoveredItem(xid, property_name(key), constraint.expected)


@dataclass(frozen=True, slots=True)
class LocatedResult:
    """A result with the line numbers of its case and of each difference."""

    result: CaseResult
    line: int | None
    lines: tuple[int | None, ...]

    @property
    def file(self) -> str:
        """The path of its file."""
        return str(self.result.file.path)

    @property
    def location(self) -> str:
        """The file, and the line of the case."""
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def iter_texts(self) -> Iterator[str]:
        """Yield a line for each difference, and the explanation.

        If a record unexpectedly became a dead letter, or unexpectedly did not, other differences are only counted.
        """
        pairs = [*zip(self.result.differences, self.lines, strict=True)]
        other = [pair for pair in pairs if pair[0].pointer.endswith("/expect/outcome")]
        for each, line in other or pairs:
            at = "" if line is None or line == self.line else f"line {line}: "
            yield f"{at}{each}"
        if other and len(pairs) > 1:
            yield f"and {plural(len(pairs) - 1, 'difference')} as a consequence"
        if self.result.why:
            yield f"why: {self.result.why}"

    def to_json(self) -> dict[str, Any]:
        """Return the item as JSON for reports."""
        wrong = [
            {"pointer": each.pointer, "line": line, "expected": each.expected, "found": each.actual}
            for each, line in zip(self.result.differences, self.lines, strict=True)
        ]
        case, head = self.result.case, {"file": self.file, "line": self.line}
        rest = {"differences": wrong, "why": self.result.why, "outcome": self.result.outcome}
        return {**head, "pointer": case.pointer, "name": case.name, **rest}


def locate_results(results: Iterable[CaseResult]) -> list[LocatedResult]:
    """Return the results with their line numbers, in the same order."""
    located: list[LocatedResult] = []
    for _, members in groupby(results, key=lambda result: result.file.path):
        group = list(members)
        places = [(each.case, each.case.pointer) for each in group]
        places += [(each.case, wrong.pointer) for each in group for wrong in each.differences]
        lines = group[0].file.find_lines(places)
        for each in group:
            own = tuple(lines.get((each.case, wrong.pointer)) for wrong in each.differences)
            located.append(LocatedResult(each, lines.get((each.case, each.case.pointer)), own))
    return located


def print_failures(console: Terminal, failed: Sequence[LocatedResult], total: int, seconds: float) -> None:
    """Print the failed cases with their differences, and the counts."""
    for each in failed:
        console.print(to_text(("FAILED ", "bold red"), to_one_line(f"{each.location} {each.result.case.name}")))
        for text in each.iter_texts():
            console.print(to_text(to_one_line(f"  {text}")))
    passed = f"{total - len(failed)} of {plural(total, 'case')} passed, matched in {seconds:.2f} s"
    console.print(to_text((passed, "bold red" if failed else "bold green")))


def format_json(failed: Sequence[LocatedResult], total: int, seconds: float, coverage: CaseCoverage) -> dict[str, Any]:
    """Return the report as one object."""
    counts = {"cases": total, "passed": total - len(failed), "failed": len(failed), "seconds": round(seconds, 6)}
    return {**counts, "failures": [each.to_json() for each in failed], "coverage": coverage.to_json()}


def make_junit_report(results: Sequence[LocatedResult]) -> str:
    """Return all results as JUnit XML, with a suite for each file."""
    top = ElementTree.Element("testsuites", _count_results(results))
    for file, members in groupby(results, key=lambda each: each.file):
        group = list(members)
        suite = ElementTree.SubElement(top, "testsuite", {"name": to_xml_text(file), **_count_results(group)})
        for each in group:
            line = {} if each.line is None else {"line": str(each.line)}
            about = {
                "classname": to_xml_text(Path(file).name),
                "name": to_xml_text(each.result.case.name),
                "file": to_xml_text(file),
                **line,
            }
            case = ElementTree.SubElement(suite, "testcase", about)
            if not each.result.passed:
                texts = [*each.iter_texts()]
                failure = ElementTree.SubElement(case, "failure", {"message": to_xml_text(texts[0])})
                failure.text = to_xml_text("\n".join(texts))
    ElementTree.indent(top)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(top, encoding="unicode")}\n'


def iter_annotations(failed: Iterable[LocatedResult], shortages: Iterable[str]) -> Iterator[str]:
    """Yield GitHub workflow commands that show failures at their lines."""
    for each in failed:
        line = next((line for line in each.lines if line is not None), each.line)
        about = {"file": each.file, **({} if line is None else {"line": str(line)}), "title": each.result.case.name}
        properties = ",".join(f"{name}={_escape_property(value)}" for name, value in about.items())
        yield f"::error {properties}::{_escape_data('; '.join(each.iter_texts()))}"
    for text in shortages:
        yield f"::error title=coverage::{_escape_data(text)}"


def _count_results(results: Sequence[LocatedResult]) -> dict[str, str]:
    failed = sum(not each.result.passed for each in results)
    return {"tests": str(len(results)), "failures": str(failed), "errors": "0", "skipped": "0"}


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")


LETTERS: Final = "dead-letters"
"""Argument for a router's dead letters; a file with this name is written ``./dead-letters``."""
STANDARD_INPUT: Final = "-"


@dataclass(slots=True)
class _Sources:
    """The catalogs and settings of the command line, which override those of case files."""

    catalog: tuple[str, ...]
    config: Path | None
    allow: Sequence[str]
    logins: Path | None
    base_uri: str
    declarations: Declarations = field(default_factory=Declarations)

    def choose_sources(self, file: CaseFile) -> tuple[tuple[str, ...], Path | None]:
        """Return the catalog sources (none: those of the settings) and the settings for a case file."""
        config = self.config or file.config
        catalog = self.catalog or (() if self.config is not None else file.catalog)
        if not catalog and config is None:
            hint = "give --catalog PATH or --config CONFIG, or add a line `catalog: PATH` to the file"
            raise RouterError(f"{file.path} has no catalog", hint=hint)
        return catalog, config

    def make_evaluator(self, catalog: tuple[str, ...], config: Path | None) -> tuple[CaseEvaluator, Settings | None]:
        """Return the evaluator for these catalog sources and settings, and the loaded settings."""
        if config is None:
            read = make_fetcher(self.logins, self.allow)
            loaded = load_usable(list(catalog), read, base_uri=self.base_uri, declarations=self.declarations)
            return CatalogEvaluator(loaded), None
        settings = load_settings(config)
        loaded = load_catalog_of(settings, catalog, base_uri=self.base_uri, declarations=self.declarations)
        return RouterEvaluator(loaded, settings), settings


def test(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH", help="Case files, or folders with files `*.cases.yaml|json|jsonl`.")
    ],
    catalog: Annotated[
        list[str] | None,
        typer.Option("--catalog", metavar="PATH", help="Catalog to use instead of the case files' own; repeatable."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="CONFIG", help="Match and route with these settings.")
    ] = None,
    format: Annotated[OutputFormat, typer.Option("--format", help="`json` is one object.")] = "text",
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Text: list definitions, templates and constraints without a case.")
    ] = False,
    least: Annotated[
        list[str] | None,
        typer.Option(
            "--min-coverage",
            metavar="[KIND=]PERCENT",
            help=f"Minimum percentage. KIND: {', '.join(KINDS)}; by default all; repeatable.",
        ),
    ] = None,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write results as JUnit XML.")
    ] = None,
    recorded: Annotated[
        str | None,
        typer.Option(
            "--record",
            metavar="SOURCE",
            help=f"Create cases in PATH from a file of records, `{STANDARD_INPUT}` (stdin) or `{LETTERS}`.",
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="With --record: maximum number of records.")] = DEFAULT_COUNT,
    reveal: Annotated[bool, typer.Option("--reveal", help="With --record: keep what is marked as sensitive.")] = False,
    force: Annotated[bool, typer.Option("--force", help="With --record: overwrite an existing file.")] = False,
    allow: AllowAddresses = None,
    base_uri: BaseUri = "",
    logins: LoginsOption = None,
    _schema: Annotated[bool, schema_option("files of cases", read_case_schema)] = False,
) -> None:
    """Run test cases against a catalog, or with --config against a router's settings, offline and without Spark.

    Exit codes: 0 all pass, 1 a case fails or coverage is too low, 2 cases cannot be read.
    `--record -` creates cases from records on standard input, as `xrouter tap --format record` and `xrouter emit`
    print them.

    Example: xrouter test catalog/ --coverage --min-coverage 80 --junit report.xml
    """
    options = _Sources(tuple(catalog or ()), config, allow or (), logins, base_uri)
    if recorded is not None:
        _add_cases(paths, recorded, options, count=count, reveal=reveal, force=force)
        return
    min_coverage = _parse_min_coverage(least or [])
    covered = CaseCoverage()
    try:
        files = read_cases(paths)
        results, seconds = _run_files(files, options, covered)
    except CasesUnreadable as error:
        for problem in error.problems:
            print_text(f"xrouter: error: {problem}", err=True)
        raise typer.Exit(USAGE) from error
    failed = locate_results(result for result in results if not result.passed)
    shortages = covered.find_shortages(min_coverage)
    if junit_file is not None:
        write_file(make_junit_report(locate_results(results)), junit_file)
    _print_report(failed, len(results), seconds, covered, shortages, format, detailed=coverage)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in iter_annotations(failed, shortages):
            print_text(line, err=format == "json")
    raise typer.Exit(WRONG if failed or shortages else GOOD)


def _run_files(files: Sequence[CaseFile], options: _Sources, covered: CaseCoverage) -> tuple[list[CaseResult], float]:
    """Run all files, those with the same catalog together; return their results and the seconds."""
    groups: dict[tuple[tuple[str, ...], Path | None], list[CaseFile]] = {}
    for file in files:
        groups.setdefault(options.choose_sources(file), []).append(file)
    by_file: dict[Path, list[CaseResult]] = {}
    seconds = 0.0
    for (sources, config), members in groups.items():
        if config is None:
            _refuse_routes(members)
        evaluator, _ = options.make_evaluator(sources, config)
        results, batches, spent = run_cases(members, evaluator)
        seconds += spent
        covered.add_candidates(evaluator.matcher)
        covered.add_outcomes(evaluator.matcher, batches)
        for result in results:
            by_file.setdefault(result.file.path, []).append(result)
    return [result for each in by_file.values() for result in each], seconds


def _refuse_routes(files: Sequence[CaseFile]) -> None:
    """Reject cases whose expectations need more than a catalog."""
    problems = [
        f"{file.path}: {case.name}: {name} requires a router's settings; give --config, or leave it out"
        for file in files
        for case in file.cases
        for expected in (case.expect, *(case.expect.get("events") or ()))
        for name in ROUTING_MEMBERS
        if name in expected
    ]
    if problems:
        raise CasesUnreadable(problems)


def _print_report(
    failed: Sequence[LocatedResult],
    total: int,
    seconds: float,
    covered: CaseCoverage,
    shortages: Sequence[str],
    format: OutputFormat,
    *,
    detailed: bool,
) -> None:
    if format == "json":
        print_json(format_json(failed, total, seconds, covered) | {"shortages": list(shortages)})
        return
    console = terminal(soft_wrap=True)
    print_failures(console, failed, total, seconds)
    for line in (*covered.format_lines(detailed=detailed), *(f"too low: {text}" for text in shortages)):
        console.print(line)


def _parse_min_coverage(given: Sequence[str]) -> dict[str, float]:
    """Parse the minimum coverage, by kind."""
    min_coverage: dict[str, float] = {}
    for text in given:
        kind, mark, number = text.rpartition("=")
        if mark and kind not in KINDS:
            raise typer.BadParameter(f"--min-coverage {kind!r} is not a kind; {hint_near(kind, KINDS)}")
        try:
            percent = float(number)
        except ValueError:
            percent = -1.0
        if not 0 <= percent <= 100:
            raise typer.BadParameter(f"--min-coverage {number!r} is not a number from 0 to 100")
        min_coverage.update(dict.fromkeys((kind,) if mark else KINDS, percent))
    return min_coverage


def _add_cases(paths: Sequence[Path], source: str, options: _Sources, *, count: int, reveal: bool, force: bool) -> None:
    """Create cases from records, and write them."""
    if len(paths) != 1 or paths[0].suffix.lower() not in SUFFIXES:
        raise typer.BadParameter(f"--record writes one PATH, whose name ends in one of {', '.join(SUFFIXES)}")
    output = paths[0]
    refuse_overwriting(output, force=force)
    sources, config = options.choose_sources(CaseFile(output, b"", (), None, ()))
    evaluator, settings = options.make_evaluator(sources, config)
    marks = find_marks(options.declarations, evaluator.catalog)
    if settings is not None:
        marks |= parse_marks(settings.dead_letters.redact)
    with _open_records(source, settings) as records:
        cases, hidden = record_cases(records, evaluator, make_redactor(marks, reveal=reveal), count)
    if not cases:
        print_text("no cases: there are no records" if not hidden else _hidden_note(hidden), err=True)
        raise typer.Exit(WRONG)
    write_file(format_cases(make_head(sources, config, output), cases, output), output)
    if output.suffix.lower() not in LINES:
        write_file(read_case_schema().decode("utf-8"), output.parent / SCHEMA_COPY)
    print_text(f"{output}: {plural(len(cases), 'case')} recorded")
    if hidden:
        print_text(_hidden_note(hidden))


def _hidden_note(number: int) -> str:
    return f"{plural(number, 'record')} skipped, since their outcomes depend on sensitive values; --reveal keeps them"


@contextmanager
def _open_records(source: str, settings: Settings | None) -> Iterator[Iterator[Record]]:
    if source == LETTERS:
        if settings is None:
            raise typer.BadParameter(f"--record {LETTERS} requires --config, the router that has them")
        from router.dead_letters.reading import read_dead_letters  # loads what reads topics and tables

        yield (letter.to_record() for letter in read_dead_letters(settings))
    elif source == STANDARD_INPUT:
        yield iter_records(sys.stdin.buffer, "standard input")
    else:
        try:
            file = open_input(source)
        except OSError as error:
            raise RouterError(f"{source} cannot be read: {error.strerror or type(error).__name__}") from error
        with file:
            yield iter_records(file, source)
