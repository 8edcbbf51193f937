"""``xrouter plan``: what a new catalog would do to the last records, before a reload does it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer

from catalog.errors import one_line
from catalog.findings import Declarations
from catalog.model import Catalog
from router.commands.arguments import OutputFormat, usable_catalog
from router.commands.plan.samples import ChangedSample, ChangeSampler, ChangeTally, LastRecords, ReadLocation, file_of
from router.errors import CatalogUnavailable
from router.judging.comparing import KINDS, DifferenceKind, SinksByRoute, compare_outcomes, notes_of
from router.judging.judging import JUDGING
from router.judging.plan import Plan
from router.letters.listing import moment_of
from router.letters.redaction import SensitiveMarks, marks_of, marks_of_settings, redactor_of
from router.logs import configure_logs
from router.settings import Settings, load_settings
from router.settings.catalogs import fetcher_of
from router.state.trust import Pins, clients_of, require_trusted
from router.terminal import counted, say_json, styled, terminal

# The report for people.

GROUPS: Final = 20
"""Pairs of before and after that are shown of each kind; JSON has them all."""
_STYLES: Final = {"dead-letter": "bold red", "definition": "bold red", "matched": "bold green"}


def write_report(tally: ChangeTally, places: Iterable[ReadLocation], notes: Iterable[str]) -> None:
    """Write what changes, kind by kind, and what was looked at."""
    console = terminal(soft_wrap=True)
    for place in places:
        summary = "; ".join([counted(place.records, "record"), *place.notes])
        console.print(styled(one_line(f"{place.name}: {summary}")))
    for note in notes:
        console.print(styled(("note", "yellow"), one_line(f": {note}")))
    for kind, words in KINDS.items():
        if not tally.kinds[kind]:
            continue
        console.print(styled((f"{words}: {tally.kinds[kind]}", _STYLES.get(kind, "bold yellow"))))
        groups = [(each, number) for each, number in tally.groups.most_common() if each[0] == kind]
        for (_, before, after), number in groups[:GROUPS]:
            console.print(styled(one_line(f"  {number}  {before if before == after else f'{before} -> {after}'}")))
        if len(groups) > GROUPS:
            console.print(f"  and {len(groups) - GROUPS} more pairs, which --format json has")
        for sample in tally.samples.get(kind, ()):
            for line in _lines(sample):
                console.print(styled(one_line(line)))
    total = counted(tally.outcomes, "outcome")
    console.print(f"{total}: {tally.outcomes - tally.changed} unchanged, {tally.changed} changed")


def _lines(sample: ChangedSample) -> Iterator[str]:
    others = f" (also {', '.join(KINDS[kind] for kind in sample.kinds[1:])})" if sample.kinds[1:] else ""
    yield f"    {sample.position}{others}"
    yield f"      before: {_verdict_line(sample.before)}"
    yield f"      after:  {_verdict_line(sample.after)}"
    if sample.cause:
        yield f"      cause:  {sample.cause}"


def _verdict_line(verdict: Mapping[str, Any]) -> str:
    """Say one side of a sample in a line."""
    if "message" in verdict:
        text = str(verdict["message"])
    else:
        detail = f": {verdict['detail']}" if "detail" in verdict else ""
        text = f"dead letter, {verdict['reason']}{detail}"
    text += f" -> {', '.join(verdict['sinks'])}"
    for name in ("topics", "context", "attributes"):
        if name in verdict:
            values = (f"{key}={'(none)' if value is None else value}" for key, value in verdict[name].items())
            text += f"; {name}: {', '.join(values)}"
    return text


LAST: Final = 1_000
MOST: Final = 100_000
FAILED: Final = 1
PENDING: Final = 3
"""References that cannot be reached and are named."""
_AGAIN: Final = "try again when it answers; a reload waits for it too"


class RecordSource(StrEnum):
    """Where records are taken from."""

    topics = "topics"
    inbox = "inbox"
    letters = "dead-letters"


class FailOn(StrEnum):
    """Which differences end the command with 1."""

    letter = "dead-letter"
    definition = "definition"
    route = "route"
    event = "event"
    none = "none"


def plan(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings; their catalog is the one before.")],
    new: Annotated[
        list[str],
        typer.Option("--new", metavar="CATALOG", help="File, folder or URL of the new catalog; may be repeated."),
    ],
    last: Annotated[
        int | None,
        typer.Option(
            "--last", metavar="N", min=1, max=MOST, help=f"The last N records of each place; {LAST} by default."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help=f"Records from then on (2026-01-02T03:04:05Z, a day, 2h ago), at most the last {MOST} of each place.",
        ),
    ] = None,
    origins: Annotated[
        list[RecordSource] | None,
        typer.Option(
            "--from", help="Take records of these alone; may be repeated. All three, unless --records is given."
        ),
    ] = None,
    records: Annotated[
        list[Path] | None,
        typer.Option("--records", metavar="FILE", help="Records as `match` takes them, or cases; may be repeated."),
    ] = None,
    fail_on: Annotated[
        list[FailOn] | None,
        typer.Option(
            "--fail-on", help="Differences that end with 1; may be repeated. By default dead-letter and definition."
        ),
    ] = None,
    samples: Annotated[int, typer.Option(metavar="N", min=0, max=1_000, help="Samples of each kind.")] = 5,
    reveal: Annotated[bool, typer.Option("--reveal", help="Show what is marked as sensitive.")] = False,
    format: Annotated[OutputFormat, typer.Option("--format", help="`json` is one object.")] = OutputFormat.text,
) -> None:
    """Judge the last records under the catalog of the settings and under a new one, and show what would change.

    Records are those of topics, of the inbox as far as it still has them, of dead letters, and of files. Nothing is
    written, committed or started. Ends with 0 when nothing is taken away, 1 when records would become dead letters or
    change their definition (see --fail-on).

    Example: xrouter plan router.yaml --new next.xreg.json --last 5000
    """
    if last is not None and since is not None:
        raise typer.BadParameter("--last and --since exclude each other; give one of them")
    chosen = fail_on or [FailOn.letter, FailOn.definition]
    if FailOn.none in chosen and len(chosen) > 1:
        raise typer.BadParameter("--fail-on none goes alone")
    settings = load_settings(config)
    configure_logs(settings.log)
    old, old_marks = _loaded(list(settings.catalog.source), settings)
    coming, new_marks = _loaded(new, settings)
    before, after = Plan(old, settings), Plan(coming, settings)
    marks = old_marks | new_marks | marks_of_settings(settings.dead_letters.redact)
    sampling = ChangeSampler(old, coming, redactor_of(marks, reveal=reveal))
    moment = moment_of(since, "--since")
    wanted = LastRecords((LAST if last is None else last) if moment is None else MOST, moment)
    read = origins if origins else [] if records else list(RecordSource)
    if read:
        # Servers that must not see our credentials are not asked: the router may have refused what the catalog says
        # now.
        require_trusted(clients_of(settings, old, before.sources), Pins(Path(settings.state)))
    places: list[ReadLocation] = []
    tally, ways = ChangeTally(samples), SinksByRoute.of(settings)
    for place in _places(wanted, before, read, records or ()):
        places.append(place)
        for chunk in place.chunks():
            judge = JUDGING[chunk.kind]
            one, other = judge(before.judge, chunk.rows), judge(after.judge, chunk.rows)
            tally.add(chunk, compare_outcomes(chunk, one, other, ways), sampling.sample)
    notes = list(notes_of(before, after))
    if format is OutputFormat.json:
        say_json(tally.to_json(places, notes, {"before": old.epoch, "after": coming.epoch}))
    else:
        write_report(tally, places, notes)
    if tally.fails(cast(DifferenceKind, each.value) for each in chosen):
        raise typer.Exit(FAILED)


def _loaded(sources: list[str], settings: Settings) -> tuple[Catalog, SensitiveMarks]:
    """Load a catalog in the way of the settings; returns with it what it marks as sensitive."""
    declarations, read = Declarations(), settings.catalog
    loaded = usable_catalog(sources, fetcher_of(settings), base_uri=read.base_uri, declarations=declarations)
    if loaded.pending:
        # A reload waits for them; judged without, their definitions would look as if they were gone.
        away = ", ".join(loaded.pending[:PENDING])
        raise CatalogUnavailable(f"{', '.join(sources)} refers to what cannot be reached now: {away}", hint=_AGAIN)
    return loaded, marks_of(declarations, loaded)


def _places(
    last: LastRecords, before: Plan, origins: Sequence[RecordSource], files: Sequence[Path]
) -> Iterator[ReadLocation]:
    settings = before.settings
    if RecordSource.topics in origins:
        yield from last.topics(before)
    if RecordSource.inbox in origins:
        yield from last.inbox(settings)
    if RecordSource.letters in origins:
        yield from last.letters(settings)
    yield from (file_of(path, last.most, last.since) for path in files)
