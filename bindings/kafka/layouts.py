"""Header layouts: which names, in which order. Records of one producer share theirs, so most can be judged at once.

What names alone say of a record (repeats, malformed attribute names, ours) is asked of each layout once, in Python, and
then remembered: a row whose layout is known to be plain skips those conditions in the JVM. An unknown layout costs
time and changes nothing else. A layout is a text: how many names there are, then the names by lines. A name with a line
break is never plain, so among plain layouts the text is unambiguous.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

CONTENT_TYPE: Final = "content-type"
VERSION: Final = "ce_specversion"
DATA: Final = "ce_data"
MOST: Final = 500
"""Layouts that are remembered; producers with ever new names must not fill the memory."""
MOST_NAMES: Final = 40
"""Attribute names that plain layouts may have between them, since each is looked at in every row."""
_ATTRIBUTE: Final = re.compile(r"ce_[a-z0-9]+")


def is_plain(layout: str, constrained: frozenset[str]) -> bool:
    """Tell whether nothing about these names needs the exact codec; *constrained* are header names of definitions."""
    count, *names = layout.split("\n")
    if str(len(names)) != count:
        return False
    event = VERSION in names
    for name in names:
        if name.startswith("xrouter-") or (name != CONTENT_TYPE and name.lower() == CONTENT_TYPE):
            return False
        if name.startswith("ce_") and not (event and _ATTRIBUTE.fullmatch(name) and name != DATA):
            return False
        # Of repeats the first that has a value counts, which names alone do not tell.
        decides = name in constrained or name == CONTENT_TYPE or name.startswith("ce_")
        if decides and names.count(name) > 1:
            return False
    return True


def attribute_headers(layouts: Iterable[str]) -> tuple[str, ...]:
    """Return the attribute headers that occur in these layouts, each once."""
    found = {name for layout in layouts for name in layout.split("\n")[1:] if name.startswith("ce_")}
    return tuple(sorted(found))


def learned(known: frozenset[str], new: Iterable[str]) -> frozenset[str]:
    """Return the known layouts with new ones among them, as far as the limits allow."""
    grown = set(known)
    for layout in sorted(set(new) - known):
        if len(grown) < MOST and len(attribute_headers((*grown, layout))) <= MOST_NAMES:
            grown.add(layout)
    return frozenset(grown)
