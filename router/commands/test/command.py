"""``xrouter test``: run test cases of a catalog, or create them from records."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Final
from xml.etree import ElementTree

import typer

from catalog.definitions.constraints import Constraint
from catalog.findings import Declarations, to_one_line, to_xml_text
from catalog.parsing.pointers import lines_of
from catalog.parsing.regular import open_input
from catalog.record import Record
from router.commands import arguments
from router.commands.arguments import write_text as write_file
from router.commands.test import runner
from router.commands.test.cases import (
    LINES,
    ROUTING_MEMBERS,
    SUFFIXES,
    CaseFile,
    CasesUnreadable,
    read_case_schema,
    read_cases,
)
from router.dead_letters.redaction import find_marks, make_redactor, parse_marks
from router.errors import GOOD, USAGE, WRONG, RouterError, hint_near
from router.matching.matcher import Matcher, MatchOutcomes
from router.matching.nearest import property_name
from router.settings import Settings, load_settings
from router.terminal import Terminal, plural, print_json, print_text, terminal, to_text

# Coverage: which definitions, templates and constraints of a catalog cases exercise.
#
# A record that matches a definition exercises the definition, its constraints on values that the record has, and its
# templates that set attributes of the event.

KINDS: Final = ("definitions", "templates", "constraints")
Result = dict[str, Any]
"""The result of a case, as the JSON report has it."""


class CaseCoverage:
    """Collects the coverage of cases over any number of catalogs: items are a definition, or one of its constraints."""

    def __init__(self) -> None:
        self._all: dict[str, set[tuple[str, str, str]]] = {kind: set() for kind in KINDS}
        self._exercised: dict[str, set[tuple[str, str, str]]] = {kind: set() for kind in KINDS}

    def add(self, matcher: Matcher, batches: Iterable[MatchOutcomes]) -> None:
        """Add the definitions and constraints of a matcher's candidates, and what batches exercise of them."""
        for number in {target for channel in matcher.channels for target in channel.candidates}:
            target = matcher.targets[number]
            self._all["definitions"].add((target.xid, "", ""))
            for key, constraint in (*(target.event or ()), *(target.native or ())):
                _add_constraint(self._all, target.xid, key, constraint)
        for outcomes in batches:
            facts = outcomes.facts
            for row, winner in enumerate(outcomes.winners.tolist()):
                if winner < 0:
                    continue
                target, event = matcher.targets[winner], bool(facts.events[row])
                self._exercised["definitions"].add((target.xid, "", ""))
                for key, constraint in target.constraints(event=event) or ():
                    if facts.values(row, key):
                        _add_constraint(self._exercised, target.xid, key, constraint)
                if not event:
                    # Its attribute templates map a native record.
                    program = matcher.mapper.programs[matcher.mapper.program_number(winner, int(facts.channels[row]))]
                    filled = {f"e.{each.name}" for each in program.attributes if any(one.name for one in each.pieces)}
                    for key, constraint in target.event or ():
                        if key in filled and constraint.kind == "template":
                            _add_constraint(self._exercised, target.xid, key, constraint)

    def to_json(self) -> dict[str, Any]:
        """Return the coverage as JSON for reports, by kind."""
        form = {}
        for kind in KINDS:
            missing, total = sorted(self._all[kind] - self._exercised[kind]), len(self._all[kind])
            named = [dict(zip(("message", "property", "expected"), each, strict=True)) for each in missing]
            form[kind] = {
                "all": total,
                "exercised": total - len(missing),
                "percent": round(100 * (total - len(missing)) / total, 2) if total else 100.0,
                "missing": [each if each["property"] else each["message"] for each in named],
            }
        return form


def _add_constraint(items: dict[str, set[tuple[str, str, str]]], xid: str, key: str, constraint: Constraint) -> None:
    kind = "templates" if constraint.kind == "template" else "constraints"
    items[kind].add((xid, property_name(key), constraint.expected))


def _iter_coverage_lines(coverage: Mapping[str, Any], *, detailed: bool) -> Iterator[str]:
    """Yield the coverage as lines; if *detailed*, with each item that no case exercises.

    Of a definition without a case only itself is named, and not all that it asks.
    """
    for kind, share in coverage.items():
        yield f"{kind} exercised: {share['exercised']} of {share['all']} ({share['percent']:.1f} %)"
        for item in share["missing"] if detailed else ():
            if isinstance(item, str):
                yield f"  no case: {item}"
            elif item["message"] not in coverage["definitions"]["missing"]:
                yield f"  no case: {item['message']} {item['property']}: {item['expected']}"


# Reports of results: as text, as JUnit's XML, and as annotations of GitHub.


def _locate_results(files: Iterable[CaseFile], results: Iterable[Result]) -> None:
    """Set the line numbers of results and of their differences."""
    by_name = {str(file.path): file for file in files}
    for name, members in groupby(results, key=lambda result: result["file"]):
        places = [place for each in members for place in (each, *each["differences"])]
        if by_name[name].path.suffix.lower() not in LINES:
            lines = lines_of(by_name[name].data, {place["pointer"] for place in places})
            for place in places:
                place["line"] = lines.get(place["pointer"])


def _iter_texts(result: Result) -> Iterator[str]:
    """Yield a line for each difference, and the explanation.

    If a record unexpectedly became a dead letter, or unexpectedly did not, other differences are only counted.
    """
    differences = result["differences"]
    outcome = [each for each in differences if each["pointer"].endswith("/expect/outcome")]
    for each in outcome or differences:
        at = "" if each["line"] in (None, result["line"]) else f"line {each['line']}: "
        yield f"{at}{runner.describe_difference(each)}"
    if outcome and len(differences) > 1:
        yield f"and {plural(len(differences) - 1, 'difference')} as a consequence"
    if result["why"]:
        yield f"why: {result['why']}"


def _print_failures(console: Terminal, report: Mapping[str, Any]) -> None:
    """Print the failed cases with their differences, and the counts."""
    for each in report["failures"]:
        place = each["file"] if each["line"] is None else f"{each['file']}:{each['line']}"
        console.print(to_text(("FAILED ", "bold red"), to_one_line(f"{place} {each['name']}")))
        for text in _iter_texts(each):
            console.print(to_text(to_one_line(f"  {text}")))
    counts = f"{report['passed']} of {plural(report['cases'], 'case')} passed"
    text = f"{counts}, matched in {report['seconds']:.2f} s"
    console.print(to_text((text, "bold red" if report["failed"] else "bold green")))


def _make_junit_report(results: Sequence[Result]) -> str:
    """Return all results as JUnit XML, with a suite for each file."""
    top = ElementTree.Element("testsuites", _count_results(results))
    for file, members in groupby(results, key=lambda each: each["file"]):
        group = list(members)
        suite = ElementTree.SubElement(top, "testsuite", {"name": to_xml_text(file), **_count_results(group)})
        for each in group:
            about = {"classname": Path(file).name, "name": each["name"], "file": file}
            about |= {} if each["line"] is None else {"line": str(each["line"])}
            case = ElementTree.SubElement(suite, "testcase", {name: to_xml_text(text) for name, text in about.items()})
            if texts := [*_iter_texts(each)]:
                failure = ElementTree.SubElement(case, "failure", {"message": to_xml_text(texts[0])})
                failure.text = to_xml_text("\n".join(texts))
    ElementTree.indent(top)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(top, encoding="unicode")}\n'


def _count_results(results: Sequence[Result]) -> dict[str, str]:
    failed = sum(bool(each["differences"]) for each in results)
    return {"tests": str(len(results)), "failures": str(failed), "errors": "0", "skipped": "0"}


def _iter_annotations(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield GitHub workflow commands that show failures at their lines."""
    for each in report["failures"]:
        line = next((wrong["line"] for wrong in each["differences"] if wrong["line"] is not None), each["line"])
        about = {"file": each["file"], **({} if line is None else {"line": str(line)}), "title": each["name"]}
        properties = ",".join(
            f"{name}={_escape_data(value).replace(':', '%3A').replace(',', '%2C')}" for name, value in about.items()
        )
        yield f"::error {properties}::{_escape_data('; '.join(_iter_texts(each)))}"
    for text in report["shortages"]:
        yield f"::error title=coverage::{_escape_data(text)}"


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


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

    def make_evaluator(
        self, catalog: tuple[str, ...], config: Path | None
    ) -> tuple[runner.CaseEvaluator, Settings | None]:
        """Return the evaluator for these catalog sources and settings, and the loaded settings."""
        if config is None:
            read = arguments.make_fetcher(self.logins, self.allow)
            loaded = arguments.load_usable(list(catalog), read, base_uri=self.base_uri, declarations=self.declarations)
            return runner.CatalogEvaluator(loaded), None
        settings = load_settings(config)
        loaded = arguments.load_catalog_of(settings, catalog, base_uri=self.base_uri, declarations=self.declarations)
        return runner.RouterEvaluator(loaded, settings), settings


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
    format: Annotated[arguments.OutputFormat, typer.Option("--format", help="`json` is one object.")] = "text",
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
    count: Annotated[int, typer.Option(min=1, help="With --record: maximum number of records.")] = runner.DEFAULT_COUNT,
    reveal: Annotated[bool, typer.Option("--reveal", help="With --record: keep what is marked as sensitive.")] = False,
    force: Annotated[bool, typer.Option("--force", help="With --record: overwrite an existing file.")] = False,
    allow: arguments.AllowAddresses = None,
    base_uri: arguments.BaseUri = "",
    logins: arguments.LoginsOption = None,
    _schema: Annotated[bool, arguments.schema_option("files of cases", read_case_schema)] = False,
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
    failed = [result for result in results if result["differences"]]
    _locate_results(files, failed if junit_file is None else results)
    shares = covered.to_json()
    report: dict[str, Any] = {
        "cases": len(results),
        "passed": len(results) - len(failed),
        "failed": len(failed),
        "seconds": round(seconds, 6),
        "failures": failed,
        "coverage": shares,
        "shortages": [
            f"{kind}: {shares[kind]['percent']:.1f} % covered, {required:g} % required"
            for kind, required in min_coverage.items()
            if 100 * shares[kind]["exercised"] < required * shares[kind]["all"]
        ],
    }
    if junit_file is not None:
        write_file(_make_junit_report(results), junit_file)
    if format == "json":
        print_json(report)
    else:
        console = terminal(soft_wrap=True)
        _print_failures(console, report)
        for line in _iter_coverage_lines(shares, detailed=coverage):
            console.print(line)
        for text in report["shortages"]:
            console.print(f"too low: {text}")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in _iter_annotations(report):
            print_text(line, err=format == "json")
    raise typer.Exit(WRONG if failed or report["shortages"] else GOOD)


def _run_files(files: Sequence[CaseFile], options: _Sources, covered: CaseCoverage) -> tuple[list[Result], float]:
    """Run all files, those with the same catalog together; return their results and the seconds."""
    groups: dict[tuple[tuple[str, ...], Path | None], list[CaseFile]] = {}
    for file in files:
        groups.setdefault(options.choose_sources(file), []).append(file)
    by_file: dict[str, list[Result]] = {}
    seconds = 0.0
    for (sources, config), members in groups.items():
        if config is None:
            _refuse_routes(members)
        evaluator, _ = options.make_evaluator(sources, config)
        results, batches, spent = runner.run_cases(members, evaluator)
        seconds += spent
        covered.add(evaluator.matcher, batches)
        for result in results:
            by_file.setdefault(result["file"], []).append(result)
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
    arguments.refuse_overwriting(output, force=force)
    sources, config = options.choose_sources(CaseFile(output, b"", (), None, ()))
    evaluator, settings = options.make_evaluator(sources, config)
    marks = find_marks(options.declarations, evaluator.catalog)
    if settings is not None:
        marks |= parse_marks(settings.dead_letters.redact)
    with _open_records(source, settings) as records:
        cases, hidden = runner.record_cases(records, evaluator, make_redactor(marks, reveal=reveal), count)
    if not cases:
        print_text("no cases: there are no records" if not hidden else _hidden_note(hidden), err=True)
        raise typer.Exit(WRONG)
    write_file(runner.format_cases(runner.make_head(sources, config, output), cases, output), output)
    if output.suffix.lower() not in LINES:
        write_file(read_case_schema().decode("utf-8"), output.parent / runner.SCHEMA_COPY)
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
        yield runner.iter_records(sys.stdin.buffer, "standard input")
    else:
        try:
            file = open_input(source)
        except OSError as error:
            raise RouterError(f"{source} cannot be read: {error.strerror or type(error).__name__}") from error
        with file:
            yield runner.iter_records(file, source)
