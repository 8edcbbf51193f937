"""``xrouter registry pull`` and ``push``: one round of replication with the peers of the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from registry.replication.peers import Exchange
from router.commands.registry.opening import ConfigArgument, opened
from router.commands.registry.settings import load_registry
from router.errors import RouterError
from router.terminal import counted, say

UrlArgument = Annotated[
    str | None, typer.Argument(metavar="URL", help="One of `replication`; without it, all of them.")
]


def pull(config: ConfigArgument, url: UrlArgument = None) -> None:
    """Take what other catalogs have changed since the last time, whatever `direction` says.

    Example: xrouter registry pull registry.yaml
    """
    _replicate(config, url, "pull")


def push(config: ConfigArgument, url: UrlArgument = None) -> None:
    """Give other catalogs what has changed here since the last time, whatever `direction` says.

    Example: xrouter registry push registry.yaml
    """
    _replicate(config, url, "push")


def _replicate(config: Path, url: str | None, direction: Literal["pull", "push"]) -> None:
    _, settings = load_registry(config)
    peers = [each for each in settings.peers if url in (None, each.url)]
    if not peers:
        named = ", ".join(each.url for each in settings.peers) or "none"
        raise RouterError(f"there is no such catalog in replication: {url or config}", hint=f"there are {named}")
    with opened(config) as service:
        for peer in peers:
            done = Exchange(service).run(peer, direction)
            say(f"{direction} {peer.url}: {counted(done.sent, 'change')}, {done.applied} of them new")
            for subject, why in done.reported:
                say(f"refused: {subject}: {why}", err=True)
            if done.refused:
                raise RouterError(f"{peer.url}: {counted(done.refused, 'change')} refused", hint="the first are above")
