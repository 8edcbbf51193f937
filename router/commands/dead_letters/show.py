"""``xrouter dead-letters show``, ``purge`` and ``release``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from bindings.private import open_to
from router.commands.arguments import OutputFormat
from router.commands.match.explained import ExplanationWriter
from router.errors import RouterError, StateError
from router.letters.explaining import explained_now, redacted_story
from router.letters.letter import Letter, body_json, body_lines, native_rows, printable, time_text
from router.letters.listing import find_letter, standing_of
from router.letters.reading import read_letters
from router.letters.redaction import Redaction, marked_catalog, redactor_of
from router.letters.retention import RetentionLimits, purge
from router.logs import configure_logs
from router.matching.explanation import RecordExplained
from router.settings import load_settings
from router.settings.checks import retention_cautions
from router.settings.values import parse_duration
from router.state.ledger import Happening, LedgerEntry, LetterLedger
from router.state.ledger_database import instant
from router.terminal import say, say_json, say_row, terminal

# ``xrouter dead-letters show``: all there is to know of one letter, and what the current catalog would say of it.

Row = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ShownLetter:
    """One letter with its past and, when the catalog could be read, its present verdict; as it may be shown."""

    letter: Letter
    entry: LedgerEntry | None
    history: list[Happening]
    now: RecordExplained | None
    behind: int = 0
    """Letters of the same key that wait until this one is replayed."""

    @property
    def attempts(self) -> int:
        """How often it was written or replayed."""
        return self.letter.attempts + (self.entry.attempts if self.entry is not None else 0)


def show(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file.")],
    letter: Annotated[str, typer.Argument(metavar="ID", help="Id of the letter, or how it begins.")],
    reveal: Annotated[bool, typer.Option("--reveal", help="Show what is marked as sensitive.")] = False,
    format: Annotated[OutputFormat, typer.Option("--format", help="`json` is one object.")] = OutputFormat.text,
) -> None:
    """Show one dead letter whole, why it is one, and what the catalog would make of it now.

    Example: xrouter dead-letters show router.yaml 8f03d1d0e38d
    """
    settings = load_settings(config)
    configure_logs(settings.log)
    dead_letter = find_letter(read_letters(settings), letter)
    catalog, marks = marked_catalog(settings)
    redaction = redactor_of(marks, reveal=reveal).redact(dead_letter)
    with LetterLedger.open(Path(settings.state), create=False) as ledger:
        entry = ledger.entries([dead_letter.id]).get(dead_letter.id)
        history = [_redacted(each, redaction) for each in ledger.history(dead_letter.id)]
        behind = ledger.order.behind(dead_letter.id)
    now = None if catalog is None else redacted_story(explained_now(dead_letter, catalog, settings), redaction)
    shown = ShownLetter(redaction.letter, entry, history, now, behind)
    if format is OutputFormat.json:
        say_json(_form(shown))
    else:
        _print(shown)


def _redacted(happening: Happening, redaction: Redaction) -> Happening:
    detail = redaction.detail(happening.reason, happening.detail)
    return Happening(happening.at, happening.what, happening.replay, happening.reason, detail)


def _form(shown: ShownLetter) -> dict[str, Any]:
    letter = shown.letter
    outcomes = [dict(event.outcome) for event in shown.now.events] if shown.now is not None else None
    return {
        "letter": letter.id,
        "reason": letter.reason,
        "detail": letter.detail,
        "nearest": list(letter.nearest),
        "endpoint": letter.endpoint,
        "protocol": letter.protocol,
        "native": letter.native,
        **body_json(letter.body),
        "epoch": letter.epoch,
        "position": letter.position,
        "received": None if letter.received is None else instant(letter.received),
        "failed": None if letter.failed is None else instant(letter.failed),
        "attempts": shown.attempts,
        "standing": standing_of(shown.entry),
        "behind": shown.behind,
        "sink": letter.sink,
        "history": [_happening(each) for each in shown.history],
        "now": outcomes,
    }


def _happening(happening: Happening) -> dict[str, Any]:
    at = None if happening.at is None else instant(happening.at)
    form = {"at": at, "what": happening.what, "replay": happening.replay}
    return form | ({"reason": happening.reason, "detail": happening.detail} if happening.reason else {})


def _print(shown: ShownLetter) -> None:
    letter = shown.letter
    _table(f"dead letter {letter.id}", ("", "value"), _facts(shown))
    for near in letter.nearest:
        rows = [tuple(_side(each.get(member)) for member in ("property", "expected", "found")) for each in _wrong(near)]
        _table(f"nearest: {near.get('message')}", ("property", "expected", "found"), rows)
    _table("native record", ("property", "value"), native_rows(letter.native))
    _table("body", ("body",), ([line] for line in body_lines(letter.body)))
    if shown.history:
        rows = [
            (time_text(each.at), each.what, "-" if each.replay is None else str(each.replay), _why(each))
            for each in shown.history
        ]
        _table("history", ("when", "what", "replay", "why"), rows)
    if shown.now is None:
        say("now: unknown, since the catalog cannot be read")
        return
    say("under the catalog of now:")
    ExplanationWriter().write(shown.now)


def _facts(shown: ShownLetter) -> Iterator[Row]:
    letter = shown.letter
    yield "reason", letter.reason
    yield "detail", printable(letter.detail) or "-"
    yield "endpoint", printable(letter.endpoint or "-")
    yield "protocol", printable(letter.protocol)
    yield "position", printable(letter.position)
    yield "received", time_text(letter.received)
    yield "written", time_text(letter.failed)
    yield "epoch", letter.epoch
    yield "attempts", str(shown.attempts)
    yield "standing", standing_of(shown.entry)
    if shown.behind:
        yield "waiting behind it", f"{shown.behind} of the same key"
    yield "sink", letter.sink


def _wrong(near: Any) -> list[Any]:
    return [each for each in near.get("mismatches") or () if isinstance(each, dict)]


def _side(value: Any) -> str:
    return "-" if value is None else printable(str(value))


def _why(happening: Happening) -> str:
    return printable(f"{happening.reason}: {happening.detail}") if happening.reason else "-"


def _table(title: str, columns: tuple[str, ...], rows: Any) -> None:
    """Write rows as a table on a terminal, else as lines with tabs below their title."""
    if not sys.stdout.isatty():
        say(title)
        for row in (columns, *rows):
            say_row(("", *row))
        return
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    terminal().print(title, table)


# ``xrouter dead-letters purge``: what retention does in a running router, by hand.


def purge_letters(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file.")],
    older: Annotated[
        str | None, typer.Option(metavar="AGE", help="Remove letters older than this, such as 30d, and no others.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
) -> None:
    """Remove dead letters from tables and folders, by `dead_letters.retention` or by age; beside a running router.

    Example: xrouter dead-letters purge router.yaml --older 30d
    """
    settings = load_settings(config)
    configure_logs(settings.log)
    open_to(settings.readable_by)
    retention = settings.dead_letters.retention
    if older is None and not retention.on:
        hint = "give --older AGE, or set dead_letters.retention in the settings"
        raise RouterError("nothing says which dead letters are to be removed", hint=hint)
    limits = RetentionLimits(retention.age, retention.size) if older is None else RetentionLimits(_age(older))
    for _, caution in retention_cautions(settings):
        say(f"xrouter: {caution}", err=True)
    removals = purge(settings, limits, dry_run=dry_run)
    for removed in removals:
        verb = "would be removed" if dry_run else "removed"
        say(f"{removed.sink}: {removed.letters} letters {verb}, {removed.bytes} bytes")
    if not removals:
        say("nothing to remove")


def _age(text: str) -> timedelta:
    try:
        age = parse_duration(text)
    except ValueError as error:
        raise RouterError(f"--older {error}") from error
    if not isinstance(age, timedelta) or not age:
        raise RouterError("--older 0 would remove every dead letter", hint="give an age such as 1ms if that is meant")
    return age


# ``xrouter dead-letters release``: go on without a letter that nothing will repair (``dead_letters.order: park``).


def release(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file.")],
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of letters, or how they begin.")],
) -> None:
    """Let letters hold up later records of their keys no more. They stay dead letters; what waited can be replayed.

    Example: xrouter dead-letters release router.yaml 8f03d1d0e38d
    """
    settings = load_settings(config)
    with LetterLedger.open(Path(settings.state)) as ledger, ledger.exclusive():
        if ledger.pending() is not None:
            # A batch that is repeated must hold up what it held up before.
            raise StateError(
                "a replay is unfinished, so that no letter can be released",
                hint="run `xrouter dead-letters replay` once more: it finishes what it began",
            )
        known = ledger.order.numbers()
        chosen = [_one(known, text) for text in ids]
        waiting = sum(ledger.order.behind(letter) for letter in chosen)
        ledger.order.release(chosen)
    say(f"released {len(chosen)}; {waiting} letters waited behind: `xrouter dead-letters replay` sends them")


def _one(known: dict[str, int], text: str) -> str:
    matches = [letter for letter in known if letter.startswith(text.strip().lower())] if text.strip() else []
    if len(matches) != 1:
        what = "several letters that hold up a key begin" if matches else "no letter that holds up a key begins"
        raise RouterError(f"{what} with {text!r}", hint="`xrouter dead-letters list` shows ids; give more of one")
    return matches[0]
