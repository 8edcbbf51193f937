"""``xrouter dead-letters suggest``: message definitions drafted for dead letters that none matched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from catalog.convert import json_text, yaml_text
from catalog.record import Record
from router.commands.arguments import check_free, write_text
from router.commands.dead_letters.suggesting.fragment import Basis
from router.commands.dead_letters.suggesting.sampling import Hides
from router.commands.dead_letters.suggesting.suggesting import DRAFTABLE, LEAST, Suggested, Suggestion
from router.commands.dead_letters.suggesting.suggesting import suggest as drafted
from router.letters.letter import Letter, printable
from router.letters.listing import (
    Endpoints,
    Filter,
    Messages,
    Reasons,
    Since,
    Until,
    filter_of,
    standing_of,
    with_entries,
)
from router.letters.reading import read_letters
from router.letters.redaction import Redactor, SensitiveMarks, marks_of, marks_of_settings
from router.settings import Settings, load_settings
from router.settings.catalogs import fetcher_of
from router.state.ledger import LetterLedger
from router.terminal import say, say_row, terminal

_COLUMNS: Final = ("draft", "letters", "matched", "address or type", "properties")


class SuggestFormat(StrEnum):
    """What the document is written as."""

    yaml = "yaml"
    json = "json"


def suggest(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file.")],
    reason: Reasons = None,
    endpoint: Endpoints = None,
    message: Messages = None,
    since: Since = None,
    until: Until = None,
    sink: Annotated[
        list[str] | None, typer.Option("--sink", metavar="NAME", help="Letters of this sink; may be repeated.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="NAME", help="Message group of the drafts; else one the endpoint lists.")
    ] = None,
    least: Annotated[int, typer.Option("--min", metavar="N", min=1, help="Letters that make a draft.")] = LEAST,
    form: Annotated[
        SuggestFormat | None, typer.Option("--format", help="By default what the name of --output says, else yaml.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Where to write; without it, standard output.")
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Write the whole catalog with the drafts in it, as one document.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Draft message definitions for open dead letters that match none, as a fragment to add to the catalog.

    Each draft is tried by the router's own matcher on the letters it is for. Review them before use: what is literal
    and what is a placeholder is inferred. Nothing is changed but the file that is written.

    Example: xrouter dead-letters suggest router.yaml --output draft.xreg.json
    """
    check_free(output, force=force)
    settings = load_settings(config)
    reasons = reason or sorted(DRAFTABLE)
    selection = filter_of(
        reasons=reasons, endpoints=endpoint, messages=message, since=since, until=until, standings=("open",)
    )
    basis = Basis(settings.catalog.source, fetcher_of(settings))
    with LetterLedger.open(Path(settings.state), create=False) as ledger:
        records = _records(read_letters(settings, sinks=sink or ()), ledger, selection)
        suggestion = drafted(records, basis, group=group, least=least, hides=_hides(settings, basis))
    if suggestion.drafts:
        document = _merged(suggestion, basis) if merge else suggestion.fragment
        text = yaml_text(document) if _form(form, output) is SuggestFormat.yaml else json_text(document)
        write_text(text, output)
    _report(suggestion, settings, output, merge=merge)


def _merged(suggestion: Suggestion, basis: Basis) -> Mapping[str, Any]:
    document, left_out = basis.merged(suggestion.fragment, suggestion.attached)
    for xid in left_out:
        say(f"xrouter: warning: {xid} has an error and is left out", err=True)
    return document


def _records(letters: Iterable[Letter], ledger: LetterLedger, selection: Filter) -> Iterator[Record]:
    for letter, entry in with_entries(letters, ledger):
        if selection.takes(letter, standing_of(entry)):
            yield letter.record()


def _hides(settings: Settings, basis: Basis) -> Hides:
    """Return a check for sensitive values: catalogs are published, and letters are not."""
    marks: SensitiveMarks = marks_of_settings(settings.dead_letters.redact) | marks_of(
        basis.declarations, basis.catalog
    )
    redactor = Redactor(marks)
    members = marks.members | {pointer.rpartition("/")[2] for pointer in marks.pointers}

    def hides(name: str, path: str) -> bool:
        return redactor.hides(name, path) or (not path and (name in members or "*" in members))

    return hides


def _form(form: SuggestFormat | None, output: Path | None) -> SuggestFormat:
    if form is not None:
        return form
    return SuggestFormat.json if output is not None and output.suffix.lower() == ".json" else SuggestFormat.yaml


def _report(suggestion: Suggestion, settings: Settings, output: Path | None, *, merge: bool) -> None:
    """Report what was drafted, on standard output unless the document is there."""
    aside = output is None
    console = terminal(err=aside)
    if suggestion.drafts and console.is_terminal:
        table = Table(*_COLUMNS, title=f"{len(suggestion.drafts)} drafts", title_justify="left")
        for each in suggestion.drafts:
            table.add_row(*_row(each))
        console.print(table)
    elif suggestion.drafts:
        for row in (_COLUMNS, *map(_row, suggestion.drafts)):
            say_row(row, err=aside)
    for line in _lines(suggestion, settings, output, merge=merge):
        say(printable(line), err=aside)


def _row(each: Suggested) -> tuple[str, ...]:
    properties = ", ".join(printable(name) for name in each.properties) or "-"
    return each.xid, str(each.letters), f"{each.matched:.1%}", printable(each.address, 80) or "-", properties


def _lines(suggestion: Suggestion, settings: Settings, output: Path | None, *, merge: bool) -> Iterator[str]:
    for each in suggestion.drafts:
        yield from (f"{each.xid}: {note}" for note in each.notes)
    yield from (f"lint: {finding}" for finding in suggestion.findings)
    yield from suggestion.notes
    for why, count in sorted(suggestion.left_out.items()):
        yield f"{count} letters left out: {why}"
    if not suggestion.drafts:
        yield "no letters to draft a definition from"
        return
    place = str(output) if output is not None else "the document"
    if merge:
        yield f"{place} is the whole catalog with the drafts; review it, and let catalog.source name it instead"
        return
    yield f"to use {place}, review it and add it to catalog.source: {' '.join(map(str, settings.catalog.source))}"
    for xid, groups in sorted(suggestion.attached.items()):
        yield f"{xid} has to list {', '.join(groups)} in its messagegroups; --merge writes a catalog in which it does"
