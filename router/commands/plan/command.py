"""``xrouter plan``: what a new catalog would do to the last records, before a reload does it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, cast

import typer

from catalog.declared import Declarations
from catalog.model import Catalog
from router.commands.arguments import OutputFormat, usable_catalog
from router.commands.plan.chunks import Place
from router.commands.plan.files import file_of
from router.commands.plan.places import LastRecords
from router.commands.plan.reports import write_report
from router.commands.plan.samples import Sampling
from router.commands.plan.tally import Tally
from router.errors import CatalogUnavailable
from router.judging.comparing import DifferenceKind, Ways, compare_outcomes, notes_of
from router.judging.judging import JUDGING
from router.judging.plan import Plan
from router.letters.filters import moment_of
from router.letters.marks import marks_of, redactor_of
from router.letters.redaction import Marks, marks_of_settings
from router.logs import configure_logs
from router.settings import Settings, load_settings
from router.settings.catalogs import fetcher_of
from router.state.trust import Pins, clients_of, require_trusted
from router.terminal import say_json

LAST: Final = 1_000
MOST: Final = 100_000
FAILED: Final = 1
PENDING: Final = 3
"""References that cannot be reached and are named."""
_AGAIN: Final = "try again when it answers; a reload waits for it too"


class Origin(StrEnum):
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
        list[Origin] | None,
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
    sampling = Sampling(old, coming, redactor_of(marks, reveal=reveal))
    moment = moment_of(since, "--since")
    wanted = LastRecords((LAST if last is None else last) if moment is None else MOST, moment)
    read = origins if origins else [] if records else list(Origin)
    if read:
        # Servers that must not see our credentials are not asked: the router may have refused what the catalog says
        # now.
        require_trusted(clients_of(settings, old, before.sources), Pins(Path(settings.state)))
    places: list[Place] = []
    tally, ways = Tally(samples), Ways.of(settings)
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


def _loaded(sources: list[str], settings: Settings) -> tuple[Catalog, Marks]:
    """Load a catalog in the way of the settings; returns with it what it marks as sensitive."""
    declarations, read = Declarations(), settings.catalog
    loaded = usable_catalog(sources, fetcher_of(settings), base_uri=read.base_uri, declarations=declarations)
    if loaded.pending:
        # A reload waits for them; judged without, their definitions would look as if they were gone.
        away = ", ".join(loaded.pending[:PENDING])
        raise CatalogUnavailable(f"{', '.join(sources)} refers to what cannot be reached now: {away}", hint=_AGAIN)
    return loaded, marks_of(declarations, loaded)


def _places(last: LastRecords, before: Plan, origins: Sequence[Origin], files: Sequence[Path]) -> Iterator[Place]:
    settings = before.settings
    if Origin.topics in origins:
        yield from last.topics(before)
    if Origin.inbox in origins:
        yield from last.inbox(settings)
    if Origin.letters in origins:
        yield from last.letters(settings)
    yield from (file_of(path, last.most, last.since) for path in files)
