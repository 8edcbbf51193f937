"""How many files, and so connections, this process may open."""

from __future__ import annotations

import resource
from typing import Final

ENOUGH: Final = 4096
"""Descriptors with which the defaults of all limits can be reached, with room for Spark, inbox and tables."""
LEAST: Final = 512
"""Descriptors below which no router starts: the JVM alone opens some 300 files."""


def raise_descriptor_limit() -> None:
    """Raise the limit on open files as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptor_limit() -> int:
    """Return how many files this process may open once it has raised its limit; a very large number for no limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 2**31 if hard == resource.RLIM_INFINITY else hard
