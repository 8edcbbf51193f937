"""``xrouter registry backup`` and ``restore``: all of a registry in one file, with its history and subscriptions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from registry.store.engine import StoreError
from registry.upkeep.copies import back_up, put_back
from router.commands.documents import check_free
from router.commands.registry.opening import ConfigArgument
from router.commands.registry.settings import load_registry
from router.errors import RouterError, StateError
from router.terminal import say

ForceOption = Annotated[bool, typer.Option("--force", help="Write over what is there.")]


def backup(
    config: ConfigArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write: SQLite's, or a dump of pg_dump.")],
    force: ForceOption = False,
) -> None:
    """Copy all of a registry, while it is served or not; the file is there as a whole or not at all.

    Example: xrouter registry backup registry.yaml registry.backup
    """
    _, settings = load_registry(config)
    check_free(file, force=force)
    with _reported(file):
        back_up(settings.store, file)
    say(f"{file} has all of the registry")


def restore(
    config: ConfigArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File that `backup` wrote.")],
    force: ForceOption = False,
) -> None:
    """Make a registry what a copy says, while nobody serves it; all that it has is replaced.

    Example: xrouter registry restore registry.yaml registry.backup --force
    """
    _, settings = load_registry(config)
    with _reported(file):
        put_back(settings.store, file, force=force)
    say(f"the registry is as {file} has it")


@contextmanager
def _reported(file: Path) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise StateError(str(error), hint=error.hint) from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise RouterError(f"{error.filename or file}: {reason}", hint="check the path and its rights") from error
