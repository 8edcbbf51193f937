"""How much of a text is read at all, and which numbers: the same for JSON and YAML."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Final

from catalog.declared import Place
from catalog.errors import DocumentError
from catalog.values import written_number

MAX_DEPTH: Final = 128
MAX_NODES: Final = 2_000_000
"""Values of one document: those of some forty thousand definitions, which fit into 1 GiB with all made of them."""
MAX_DUPLICATES: Final = 10_000
"""Repeated keys of one document that are reported; more of them have one cause."""
MAX_DIGITS: Final = 300
"""Digits of an integer, so that each of them also has a double near it."""
_INTEGER: Final = re.compile(r"[-+]?[0-9]++", re.ASCII)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A tree, and the places of keys that occur twice in one object (the last value counts), the first of them."""

    tree: Any
    duplicates: tuple[Place, ...] = ()


def number_of(text: str) -> int | float:
    """Return the number that decimal digits, with sign, fraction or exponent, stand for.

    Raises:
        ValueError: it is too large to be kept.
    """
    if _INTEGER.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise ValueError(f"an integer of {len(text)} digits is too large")
        return int(text)
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def written_number_of(text: str) -> int | float:
    """Return the number of decimal digits, which keeps the text where that is not how the number is shown.

    Raises:
        ValueError: it is too large to be kept.
    """
    return written_number(number_of(text), text)


def too_deep(file: str) -> DocumentError:
    """Return the error for a document that nests too deeply."""
    return DocumentError(f"{file} nests deeper than {MAX_DEPTH} levels", file=file, hint="a catalog needs far fewer")


def too_large(file: str) -> DocumentError:
    """Return the error for a document of too many values, aliases written out."""
    hint = "split the document, or use fewer aliases"
    return DocumentError(f"{file} stands for more than {MAX_NODES} values", file=file, hint=hint)
