"""``xrouter test``: cases beside a catalog held against it, or made of records."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Final

import typer

from catalog.findings import Declarations
from catalog.parsing.regular import open_input
from catalog.record import Record
from router.commands.arguments import (
    AllowAddresses,
    BaseUri,
    LoginsOption,
    OutputFormat,
    check_free,
    fetcher,
    schema_option,
    usable_catalog,
)
from router.commands.arguments import write_text as write_file
from router.commands.test.cases import LINES, ROUTED, SUFFIXES, CaseFile, CasesUnreadable, read_cases
from router.commands.test.reports import (
    ASKED,
    KINDS,
    CaseCoverage,
    LocatedResult,
    github_annotations,
    json_report,
    junit,
    placed,
    write_text,
)
from router.commands.test.running import (
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
from router.errors import RouterError
from router.letters.reading import read_letters
from router.letters.redaction import marks_of, marks_of_settings, redactor_of
from router.settings import Settings, load_settings
from router.settings.catalogs import fetcher_of
from router.terminal import counted, say, say_json, terminal

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
            hint = "give --catalog PATH or --config CONFIG, or write a line `catalog: PATH` into it"
            raise RouterError(f"{file.path} names no catalog", hint=hint)
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
        typer.Argument(metavar="PATH", help="Files of cases, or folders with files `*.cases.yaml|json|jsonl`."),
    ],
    catalog: Annotated[
        list[str] | None,
        typer.Option("--catalog", metavar="PATH", help="Catalog, instead of the one that files name; may be repeated."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="CONFIG", help="Judge as a router with these settings does, routes included."),
    ] = None,
    format: Annotated[OutputFormat, typer.Option("--format", help="`json` is one object.")] = OutputFormat.text,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Text: name the definitions, templates and constraints without a case.")
    ] = False,
    least: Annotated[
        list[str] | None,
        typer.Option(
            "--min-coverage",
            metavar="[KIND=]PERCENT",
            help=f"Fail below it; KIND is one of {', '.join(KINDS)}, else each of the first three; may be repeated.",
        ),
    ] = None,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write the results as JUnit's XML.")
    ] = None,
    github: Annotated[
        bool | None,
        typer.Option(
            "--github/--no-github", help=f"Annotate failures for GitHub; by default when {_GITHUB} is `true`."
        ),
    ] = None,
    recorded: Annotated[
        str | None,
        typer.Option(
            "--record",
            metavar="SOURCE",
            help=f"Make cases, into the one PATH: of a file of records, `{STANDARD_INPUT}` or `{LETTERS}` of --config.",
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="With --record: how many records at most.")] = COUNT,
    reveal: Annotated[bool, typer.Option("--reveal", help="With --record: keep what is marked as sensitive.")] = False,
    force: Annotated[bool, typer.Option("--force", help="With --record: write over a file that is there.")] = False,
    allow: AllowAddresses = None,
    base_uri: BaseUri = "",
    logins: LoginsOption = None,
    _schema: Annotated[bool, schema_option("files of cases", case_schema)] = False,
) -> None:
    """Hold cases against a catalog, or with --config against a router's settings, offline and without Spark.

    Ends with 0 when all pass, 1 when one fails or coverage is too low, 2 when cases cannot be read.
    Cases are made of records that `xrouter tap --format record`, `xrouter emit` or anything else writes as lines:
    `--record -` reads them.

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
            say(f"xrouter: error: {problem}", err=True)
        raise typer.Exit(UNREADABLE) from error
    failed = placed(result for result in results if not result.passed)
    shortages = covered.below(wanted)
    if junit_file is not None:
        write_file(junit(placed(results)), junit_file)
    _report(failed, len(results), seconds, covered, shortages, format, whole=coverage)
    if github if github is not None else os.environ.get(_GITHUB) == "true":
        for line in github_annotations(failed, shortages):
            say(line, err=format is OutputFormat.json)
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
    """Refuse cases that ask for what a catalog alone does not decide."""
    problems = [
        f"{file.path}: {case.name}: {name} takes a router's settings; give --config, or leave it out"
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
        say_json(json_report(failed, total, seconds, covered) | {"shortages": list(shortages)})
        return
    console = terminal(soft_wrap=True)
    write_text(console, failed, total, seconds)
    for line in (*covered.lines(whole=whole), *(f"too low: {text}" for text in shortages)):
        console.print(line)


def _least(given: Sequence[str]) -> dict[str, float]:
    """Read minimums, by kind."""
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
            raise typer.BadParameter(f"--min-coverage {number!r} is no number from 0 to 100")
        wanted.update(dict.fromkeys((kind,) if mark else ASKED, percent))
    return wanted


def _meant(near: Sequence[str]) -> str:
    return f"; did you mean {near[0]}?" if near else ""


def _record(paths: Sequence[Path], source: str, options: _Options, *, count: int, reveal: bool, force: bool) -> None:
    """Make cases of records, and write them."""
    if len(paths) != 1 or paths[0].suffix.lower() not in SUFFIXES:
        raise typer.BadParameter(f"--record writes one PATH, whose name ends in one of {', '.join(SUFFIXES)}")
    output = paths[0]
    check_free(output, force=force)
    sources, config = options.of(CaseFile(output, b"", (), None, ()))
    judging, settings = options.judging(sources, config)
    marks = marks_of(options.declarations, judging.catalog)
    if settings is not None:
        marks |= marks_of_settings(settings.dead_letters.redact)
    with _records(source, settings) as records:
        recorded = record(records, judging, redactor_of(marks, reveal=reveal), count)
    if not recorded.cases:
        say(
            "no cases: there is no record to make one of" if not recorded.hidden else _hidden(recorded.hidden), err=True
        )
        raise typer.Exit(FAILED)
    write_file(cases_as_text(head_of(sources, config, output), recorded.cases, output), output)
    if output.suffix.lower() not in LINES:
        write_file(case_schema().decode("utf-8"), output.parent / SCHEMA_COPY)
    say(f"{output}: {counted(len(recorded.cases), 'case')} recorded")
    if recorded.hidden:
        say(_hidden(recorded.hidden))


def _hidden(number: int) -> str:
    return f"{counted(number, 'record')} left out, since what decides about them is sensitive; --reveal keeps it"


@contextmanager
def _records(source: str, settings: Settings | None) -> Iterator[Iterator[Record]]:
    if source == LETTERS:
        if settings is None:
            raise typer.BadParameter(f"--record {LETTERS} takes the --config of the router that has them")
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
