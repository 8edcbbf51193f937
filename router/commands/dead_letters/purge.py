"""``xrouter dead-letters purge``: what retention does in a running router, by hand."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from bindings.private import open_to
from router.errors import RouterError
from router.letters.retention import RetentionLimits, purge
from router.logs import configure_logs
from router.settings import load_settings
from router.settings.security import retention_cautions
from router.settings.values import parse_duration
from router.terminal import say


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
