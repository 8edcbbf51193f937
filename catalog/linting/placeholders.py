"""Which types take placeholders, and what stands in braces without being one (JUDGING.md#templates)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from catalog.model import Property
from catalog.templates import TEMPLATE_TYPES, tokens_of
from catalog.values import is_any_timestamp, text_of

_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_MEANT: Final = re.compile(r"\s*[+#./;?&|!@=,$]?[\w ,.:*%\-]*")
"""What was probably meant as a placeholder: an operator or modifier of RFC 6570, a name with spaces, nothing."""


def is_literal(prop: Property) -> bool:
    """Tell whether a property has a value without placeholders, that is not "now" either."""
    if prop.value is None or is_any_timestamp(prop.value):
        return False
    return prop.type not in TEMPLATE_TYPES or not names_of(text_of(prop.value))


def names_of(text: str) -> list[str]:
    """Return the names of the placeholders of a template, as often as they occur."""
    return tokens_of(text)[1::2] if "{" in text else []


def names_in(properties: Iterable[Property]) -> Iterator[str]:
    """Give the names of all placeholders in several values."""
    for prop in properties:
        if isinstance(prop.value, str) and prop.type in TEMPLATE_TYPES:
            yield from names_of(prop.value)


def adjacent(tokens: Sequence[str]) -> tuple[str, str] | None:
    """Return the first two placeholders with nothing between them."""
    for place in range(2, len(tokens) - 1, 2):
        if not tokens[place]:
            return tokens[place - 1], tokens[place + 1]
    return None


def misread(tokens: Sequence[str]) -> str | None:
    """Return the literal text in braces that was probably meant as a placeholder; a JSON text is not."""
    for text in tokens[::2]:
        if '"' in text or ("{" not in text and "}" not in text):
            continue
        for braces in _BRACES.finditer(text):
            if _MEANT.fullmatch(braces.group(1)):
                return braces.group()
        rest = _BRACES.sub("", text)
        unpaired = next((character for character in rest if character in "{}"), None)
        if unpaired is not None:
            return unpaired
    return None
