"""Where a wrong setting was written: a line of the file, or a variable of the environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from catalog.parsing.lines import lines_of
from catalog.parsing.regular import read_regular

VARIABLE: Final = "environment variable "
"""Begins the place of a value that came from the environment."""


def places_of(problems: Sequence[str], file: Path, laid: Mapping[str, str]) -> Iterator[str]:
    """Yield where the fault of each problem, a line ``key: fault``, was written.

    *laid* are the variables of the environment by the keys that have their values of them.
    """
    keys = [key_of(problem) for problem in problems]
    try:
        lines = lines_of(str(file), read_regular(file), {pointer_of(key) for key in keys if key})
    except OSError:
        lines = {}  # The file was removed after it was read.
    for key in keys:
        variable = _variable(key, laid)
        line = lines.get(pointer_of(key)) if key else None
        yield f"{VARIABLE}{variable}" if variable else str(file) if line is None else f"{file}:{line}"


def key_of(problem: str) -> str:
    """Return the key of a problem; empty for one of no key."""
    key, mark, _ = problem.partition(": ")
    return key if mark and " " not in key else ""


def pointer_of(key: str) -> str:
    """Return a key as a JSON pointer."""
    return "/" + key.replace(".", "/")


def _variable(key: str, laid: Mapping[str, str]) -> str:
    """Return the variable that gave a key its value, or what it is a part of; else one that gave a part of it."""
    above = [place for place in laid if key == place or key.startswith(f"{place}.")]
    below = [place for place in laid if place.startswith(f"{key}.")]
    nearest = max(above, key=len) if above else min(below, key=len) if below and key else ""
    return laid.get(nearest, "")
