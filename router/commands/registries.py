"""How commands read catalogs by the network: from where, and with which logins."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from catalog.documents.fetching import Fetcher
from catalog.documents.logins import Logins
from catalog.documents.reach import Reach

LoginsOption = Annotated[
    Path | None,
    typer.Option(
        "--logins",
        metavar="CONFIG",
        help="Settings whose `catalog.logins` are shown to registries; XROUTER_CATALOG__LOGINS__... go before them.",
    ),
]

_VARIABLES: Final = "XROUTER_CATALOG__LOGINS"


def fetcher(logins: Path | None, allow: Sequence[str] = ()) -> Fetcher:
    """Return what reads the catalogs of a command; *allow* is as for :class:`catalog.documents.reach.Reach`.

    Raises:
        ConfigError: the logins are no good.
        ValueError: an entry of *allow* that looks like a network is none.
    """
    return Fetcher(network=True, reach=Reach(allow), logins=_logins(logins))


def _logins(file: Path | None) -> Logins:
    if file is None and not any(name.startswith(_VARIABLES) for name in os.environ):
        return Logins()
    # Most catalogs need no login, and reading settings takes longer than reading most catalogs.
    from router.settings.registry_logins import read_logins

    return read_logins(file)
