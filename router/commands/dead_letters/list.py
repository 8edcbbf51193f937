"""``xrouter dead-letters list``: how many there are of what kind, and the newest of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, cast, get_args

import typer
from rich.padding import Padding
from rich.table import Table

from router.commands.arguments import OutputFormat
from router.letters.filters import Endpoints, Messages, Reasons, Since, Until, filter_of
from router.letters.listing import By, Listed, Listing, listing
from router.letters.marks import marked_catalog, redactor_of
from router.letters.reading import read_letters
from router.letters.showing import printable, time_text
from router.logs import configure_logs
from router.settings import load_settings
from router.settings.routes import REASONS
from router.state.ledger import LetterLedger, Standing
from router.terminal import Terminal, counted, say, say_json_lines, say_row, styled, terminal

_COLUMNS: Final = ("letter", "written", "reason", "endpoint", "attempts", "standing", "detail")
_DETAIL: Final = 100
_ID: Final = 12
"""Characters of a detail and of an id in a table, enough to tell them apart; lines for other programs have all."""
_TIME: Final = 20
"""Characters of a time."""
_ROOM: Final = 120
"""Columns of a terminal from which on there is room for one line a letter."""
_INDENT: Final = 2
_REASON: Final = max(map(len, REASONS))
_CASES: Final = 20
"""Lines of one table of counts; the rest is summed."""


class StandingOption(StrEnum):
    """Which letters are listed, by what became of them."""

    open = "open"
    replayed = "replayed"
    parked = "parked"
    all = "all"


class ByOption(StrEnum):
    """What letters are counted by."""

    reason = "reason"
    endpoint = "endpoint"
    nearest = "nearest"
    none = "none"


def list_letters(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file.")],
    reason: Reasons = None,
    endpoint: Endpoints = None,
    message: Messages = None,
    since: Since = None,
    until: Until = None,
    standing: Annotated[
        StandingOption, typer.Option("--standing", help="Letters that are open, replayed, parked, or all.")
    ] = StandingOption.open,
    limit: Annotated[int, typer.Option(min=0, help="How many of the newest letters are listed.")] = 20,
    by: Annotated[
        list[ByOption] | None, typer.Option("--by", help="What to count by; may be repeated; `none` leaves counts out.")
    ] = None,
    reveal: Annotated[bool, typer.Option("--reveal", help="Show what is marked as sensitive.")] = False,
    format: Annotated[OutputFormat, typer.Option("--format", help="`json` is one object a line.")] = OutputFormat.text,
) -> None:
    """List dead letters: counts by reason, endpoint and nearest definition, then the newest.

    Example: xrouter dead-letters list router.yaml --reason no-match --since 2h
    """
    settings = load_settings(config)
    configure_logs(settings.log)
    standings: Sequence[Standing] = () if standing is StandingOption.all else (cast(Standing, standing.value),)
    selection = filter_of(
        reasons=reason, endpoints=endpoint, messages=message, since=since, until=until, standings=standings
    )
    asked = [cast(By, each.value) for each in by or ()] or list(get_args(By))
    _, marks = marked_catalog(settings)
    redactor = redactor_of(marks, reveal=reveal)
    letters = read_letters(settings, bodies=redactor.looks_at_bodies)
    with LetterLedger.open(Path(settings.state), create=False) as ledger:
        kinds = () if ByOption.none in (by or ()) else asked
        page = listing(letters, ledger, selection, redactor, kinds, limit)
    if format is OutputFormat.json:
        say_json_lines(_forms(page))
    elif not page.total:
        say(_nothing(page), err=True)
    elif sys.stdout.isatty():
        _print(page)
    else:
        for row in _rows(page):
            say_row(row)


def _nothing(page: Listing) -> str:
    if not page.seen:
        return "there are no dead letters; `xrouter top` shows what still waits to be judged"
    there = "there is" if page.seen == 1 else "there are"
    return (
        f"nothing listed: {there} {counted(page.seen, 'dead letter')}, none as asked for (`--standing all` takes more)"
    )


def _forms(page: Listing) -> Iterator[dict[str, object]]:
    for by, counts in page.counts.items():
        for value, number in counts.most_common():
            yield {"by": by, "value": value, "letters": number}
    yield from (listed.to_json() for listed in page.newest)


def _rows(page: Listing) -> Iterator[tuple[str, ...]]:
    """Yield the lines for a stream that is no terminal: counts, then letters, each with a heading."""
    for by, counts in page.counts.items():
        yield by, "letters"
        yield from ((printable(value), str(number)) for value, number in counts.most_common())
    if page.newest:
        yield _COLUMNS
    yield from (_row(listed, 0) for listed in page.newest)


def _row(listed: Listed, most: int) -> tuple[str, ...]:
    return (
        listed.id[:_ID] if most else listed.id,
        time_text(listed.failed, short=True),
        listed.reason,
        printable(listed.endpoint or "-"),
        str(listed.attempts),
        listed.standing,
        printable(listed.detail, most),
    )


def _print(page: Listing) -> None:
    console = terminal()
    for by, counts in page.counts.items():
        table = Table(by, "letters")
        shown = counts.most_common(_CASES)
        for value, number in shown:
            table.add_row(printable(value), str(number))
        if len(counts) > len(shown):
            table.add_row("and others", str(page.total - sum(number for _, number in shown)))
        console.print(f"{page.total} dead letters by {by}", table)
    console.print(f"the newest {len(page.newest)} of {page.total}; `xrouter dead-letters show` takes their ids")
    if console.width < _ROOM:
        _print_narrow(console, page)
        return
    table = Table()
    for name, width in zip(_COLUMNS, (_ID, _TIME, None, None, None, None, None), strict=True):
        table.add_column(name, no_wrap=True, overflow="ellipsis", min_width=width)
    for listed in page.newest:
        table.add_row(*_row(listed, _DETAIL))
    console.print(table)


def _print_narrow(console: Terminal, page: Listing) -> None:
    """Write a letter on a line and its detail below, where columns for all would have no width."""
    for listed in page.newest:
        letter, written, reason, endpoint, attempts, standing, detail = _row(listed, _DETAIL)
        first = styled((f"{letter:<{_ID}}", "bold"), f"  {written:<{_TIME}}  {reason:<{_REASON}}  {endpoint}")
        console.print(first, no_wrap=True, overflow="ellipsis")
        summary = f"{standing}, {counted(int(attempts), 'attempt')}: {detail}"
        console.print(Padding(styled(summary), (0, 0, 0, _INDENT)))
