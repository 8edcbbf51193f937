"""``xrouter dead-letters release``: go on without a letter that nothing will repair (``dead_letters.order: park``)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from router.errors import RouterError, StateError
from router.settings import load_settings
from router.state.ledger import LetterLedger
from router.terminal import say


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
