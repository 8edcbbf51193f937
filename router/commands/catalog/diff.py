"""``xrouter catalog diff``: what changed between two catalogs, and whether one can go on with the second."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from catalog.comparing import Change, Difference, compare
from catalog.errors import DocumentError
from catalog.load import load
from catalog.model import Catalog
from router.commands.arguments import OutputFormat
from router.commands.registries import LoginsOption, fetcher
from router.terminal import counted, say, say_json, shown_value, styled, terminal

COMPATIBLE: Final = 0
INCOMPATIBLE: Final = 1
UNREADABLE: Final = 2


def diff(
    old: Annotated[str, typer.Argument(metavar="A", help="File, folder or URL of the catalog as it was.")],
    new: Annotated[str, typer.Argument(metavar="B", help="The same of the catalog as it is to be.")],
    format: Annotated[OutputFormat, typer.Option("--format", help="`json` is one object.")] = OutputFormat.text,
    logins: LoginsOption = None,
) -> None:
    """Show what changed for consumers from catalog A to B, and whether it is compatible.

    Ends with 0 when nothing changed or all changes are compatible, 1 when one is not, 2 when a catalog cannot be read.
    Compatible is a change after which every record still reaches its definition and nothing of it is lost: definitions
    that match the same records or more (`same`, `wider`), and what is merely added. Incompatible are definitions
    removed, renamed, or matching fewer records or others (`narrower`, `different`), placeholders lost, attributes of
    mapped events changed, what has become ambiguous, and schemas that are not plainly compatible (`unknown`).

    Example: xrouter catalog diff old.xreg.json new.xreg.json
    """
    try:
        before, after = _loaded(old, logins), _loaded(new, logins)
    except DocumentError as error:
        say(f"xrouter: error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), err=True)
        raise typer.Exit(UNREADABLE) from error
    difference = compare(before, after)
    if format is OutputFormat.json:
        say_json(difference.to_json())
    else:
        write_difference(difference)
    raise typer.Exit(COMPATIBLE if difference.compatible else INCOMPATIBLE)


def _loaded(source: str, logins: Path | None) -> Catalog:
    return load([source], fetcher=fetcher(logins))


def write_difference(difference: Difference) -> None:
    """Write what changed for consumers, by definition, and how much of it is incompatible."""
    console = terminal(soft_wrap=True)
    shown = ""
    for change in difference.changes:
        if change.xid != shown:
            shown = change.xid
            console.print(styled((shown, "bold")))
        colour = "green" if change.compatible else "red"
        console.print(styled("  ", (change.kind, colour), description(change)))
    wrong = sum(not change.compatible for change in difference.changes)
    changes = counted(len(difference.changes), "change")
    console.print(f"{changes}, {wrong} incompatible" if difference.changes else "nothing changed for consumers")


def description(change: Change) -> str:
    """Write all of a change but kind and xid: name, relation, values and detail."""
    words = [change.name] if change.name else []
    if change.relation is not None:
        words.append(f"({change.relation})")
    if change.before is not None or change.after is not None:
        words.append(f"{shown_value(change.before)} -> {shown_value(change.after)}")
    text = " ".join(words)
    return f" {text}{': ' if text and change.detail else ''}{change.detail}".rstrip()
