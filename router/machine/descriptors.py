"""How many files, and so connections, this process may open."""

from __future__ import annotations

import resource
from typing import Final

from router.logs import get_logger

ENOUGH: Final = 4096
"""Descriptors with which the defaults of all limits can be reached, with room for Spark, inbox and tables."""
_log = get_logger()


def raise_descriptor_limit() -> int:
    """Raise the limit on open files as far as this process may, say so in the log when it stays low, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit = descriptor_limit()
    if limit < ENOUGH:
        _log.warning(
            "the limit on open files is low: fewer senders can be connected at a time",
            limit=limit,
            hint=f"raise it to {ENOUGH} or more (ulimit -Hn, LimitNOFILE of systemd, --ulimit nofile of containers)",
        )
    return limit


def descriptor_limit() -> int:
    """Return how many files this process may open once it has raised its limit; a very large number for no limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 2**31 if hard == resource.RLIM_INFINITY else hard
