"""A real router that gives those it fetches catalogs and schemas from one second to answer, instead of thirty.

``python -m tests.support.hasty_router COMMAND...`` runs ``xrouter COMMAND...``.
"""

from __future__ import annotations

import sys
from typing import Final

from catalog.documents.fetching import Fetcher
from router.cli import main

FETCH_SECONDS: Final = 1.0


def hasten() -> None:
    """Shorten the time of one fetch wherever nobody asks for another."""
    defaults = Fetcher.__init__.__kwdefaults__
    assert defaults is not None and "fetch_seconds" in defaults
    defaults["fetch_seconds"] = FETCH_SECONDS


if __name__ == "__main__":
    hasten()
    main(sys.argv[1:])
