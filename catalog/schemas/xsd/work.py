"""How much work an XML Schema may make of a body, as far as its documents show.

libxml2 compares a value with each value of an enumeration, and tries patterns and content models that can be read in
several ways in all of them: it gives up after half a second, but does so for each value of a body.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from lxml import etree

from catalog.schemas.contract import MAX_DIRECT_BYTES
from catalog.schemas.xsd.documents import XS, safe_parser

MAX_STEPS: Final = 20_000_000
"""Steps of about ten nanoseconds that one body may take."""
_VALUE_STEPS: Final = 500
_OPTION_STEPS: Final = 2
_MAX_SQUARED: Final = 4096
"""Bytes of a body up to which trying all ways to split its values in two takes a moment."""
_REPEATED_GROUP: Final = re.compile(r"\)(?:[*+]|\{)")
_VARIABLE: Final = re.compile(r"[*+]|\{\d*,")
_GROUPS: Final = (f"{XS}sequence", f"{XS}choice", f"{XS}group")


class XsdWork:
    """Bounds on the work of validating bodies by one schema."""

    def __init__(self, texts: Mapping[str, bytes]) -> None:
        roots = [etree.fromstring(text, safe_parser(encoding="utf-8")) for text in texts.values()]
        self._options = max((_options(root) for root in roots), default=0)
        patterns = [str(each.get("value")) for root in roots for each in root.iter(f"{XS}pattern")]
        self._ambiguous = any(map(_REPEATED_GROUP.search, patterns)) or any(map(_has_ambiguous_model, roots))
        self._squares = any(len(_VARIABLE.findall(pattern)) > 1 for pattern in patterns)

    def is_soon_done(self, body: bytes) -> bool:
        """Tell whether validating a body takes a moment at most."""
        if self._ambiguous or len(body) > (_MAX_SQUARED if self._squares else MAX_DIRECT_BYTES):
            return False
        steps = _VALUE_STEPS + _OPTION_STEPS * self._options
        if len(body) * steps <= MAX_STEPS:
            return True
        return (body.count(b"<") // 2 + body.count(b"=") + body.count(b" ")) * steps <= MAX_STEPS


def _options(root: etree._Element) -> int:
    counts: dict[etree._Element | None, int] = {}
    for each in root.iter(f"{XS}enumeration"):
        counts[each.getparent()] = counts.get(each.getparent(), 0) + 1
    return max(counts.values(), default=0)


def _has_ambiguous_model(root: etree._Element) -> bool:
    """Tell whether a group is repeated a number of times, or within another that is repeated."""
    for each in root.iter(*_GROUPS):
        times = str(each.get("maxOccurs", "1"))
        if times not in ("0", "1", "unbounded"):
            return True
        if times == "unbounded" and any(
            str(over.get("maxOccurs", "1")) != "1" for over in each.iterancestors(*_GROUPS)
        ):
            return True
    return False
