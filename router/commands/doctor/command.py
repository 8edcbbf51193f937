"""``xrouter doctor``: is everything there for a start?"""

# Small: help is shown without loading what the command needs.

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table

from router.commands.doctor.examining import examine
from router.examining.diagnosis import Diagnosis
from router.terminal import say, styled, terminal

_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="Settings, to look at catalog, state and brokers as well.")
    ] = None,
) -> None:
    """Look at what a start needs: Java, Spark, descriptors; with settings memory, disk, ports, catalog and brokers too.

    What would end `run` is `fail`, and ends this with 1; what `run` would wait for, or do without, is `warn`.

    Example: xrouter doctor router.yaml
    """
    diagnoses = list(examine(config))
    console = terminal()
    if console.is_terminal:
        console.print(_table(diagnoses))
    else:
        for each in diagnoses:
            remedy = f" (remedy: {each.remedy})" if each.remedy else ""
            say(f"{each.state:4} {each.name}: {each.observation}{remedy}")
    raise typer.Exit(1 if any(each.state == "fail" for each in diagnoses) else 0)


def _table(diagnoses: list[Diagnosis]) -> Table:
    table = Table("", "what", "found", "remedy")
    for each in diagnoses:
        table.add_row(styled((each.state, _COLOURS[each.state])), each.name, each.observation, each.remedy)
    return table
