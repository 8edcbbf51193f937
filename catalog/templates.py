"""Templates (RFC 6570 level 1, MATCHING.md#templates), compiled once and matched in linear time.

A placeholder is ``{name}`` with a name of letters, digits, ``_``, ``-`` and ``.``; other braces are literal text. As
placeholders never cross a separator, a value matches only if it has the template's separators, in order. Each segment
between two separators is a sequence of literals with gaps. Putting every literal at its leftmost position gives the
shortest split; if that fails, there is none. So there is no backtracking.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from catalog.findings import TemplateError
from catalog.model import PropertyType
from catalog.values import percent_decode, percent_encode

TEMPLATE_TYPES: Final[frozenset[PropertyType]] = frozenset(
    {"string", "symbol", "uri", "urireference", "uritemplate", "timestamp"}
)
"""Types whose values may have placeholders; braces in a value of any other type are literal text."""
_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z0-9_.\-]+)\}", re.ASCII)
_SEPARATORS: Final = {False: re.compile("(/)"), True: re.compile("([/.])")}


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One ``{name}`` of a template."""

    name: str


@dataclass(frozen=True, slots=True)
class TemplateSegment:
    """The text between two separators: ``literals[i]`` precedes ``names[i]``, the last literal ends the segment."""

    literals: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def is_gap(self) -> bool:
        """Whether it is one placeholder."""
        return self.literals == ("", "")

    def match_into(self, text: str, values: list[str]) -> bool:
        """Append the placeholders' values to *values*; return False if the text does not match."""
        head, tail = self.literals[0], self.literals[-1]
        if not self.names:
            return text == head
        if not text.startswith(head) or not text.endswith(tail):
            return False
        end = len(text) - len(tail)
        start = len(head)
        for literal in self.literals[1:-1]:
            place = text.find(literal, start + 1, end)
            if place < 0:
                return False
            values.append(text[start:place])
            start = place + len(literal)
        if start >= end:
            return False
        values.append(text[start:end])
        return True

    def fill_from(self, text: str) -> str:
        """Return the segment with everything between its first and last literal taken from *text*."""
        head, tail = self.literals[0], self.literals[-1]
        return head + text[len(head) : max(len(head), len(text) - len(tail))] + tail if self.names else head


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template. ``parts`` are literal texts and placeholders in order, with no two adjacent texts.

    ``dots`` makes ``.`` end a placeholder as ``/`` does (NATS subjects). Templates with equal text and ``dots`` are
    equal.
    """

    text: str
    dots: bool
    parts: tuple[str | Placeholder, ...] = field(compare=False)
    names: tuple[str, ...] = field(compare=False)
    segments: tuple[TemplateSegment, ...] = field(compare=False, repr=False)
    separators: tuple[str, ...] = field(compare=False, repr=False)

    @property
    def is_literal(self) -> bool:
        """Whether there is no placeholder."""
        return not self.names

    @property
    def is_bare(self) -> bool:
        """Whether one placeholder is the whole value; it then matches any non-empty text."""
        return len(self.parts) == 1 and bool(self.names)

    @property
    def literal_characters(self) -> int:
        """The number of characters outside placeholders, used for specificity."""
        return sum(len(part) for part in self.parts if isinstance(part, str))

    @property
    def fixed_text(self) -> str:
        """The part of :meth:`fill_from` that comes from the template itself, whatever the value."""
        return self._join([stretch.fill_from("") for stretch in self.segments])

    def fill_from_value(self, value: str) -> str | None:
        """Replace the placeholders by the corresponding text of *value*, to compare template and value.

        None if the value has other separators than the template.
        """
        pieces = self._split_value(value)
        if pieces is None:
            return None
        return self._join([stretch.fill_from(piece) for stretch, piece in zip(self.segments, pieces, strict=True)])

    def match(self, value: str, decode: bool = False) -> dict[str, str] | None:
        """Return the values of the placeholders, undecoded, or None if *value* does not match.

        A repeated placeholder must have the same value again; with *decode* the same after percent-decoding. The first
        spelling is returned.
        """
        if self.is_bare:
            return {self.names[0]: value} if value else None
        pieces = self._split_value(value)
        if pieces is None:
            return None
        values: list[str] = []
        for stretch, piece in zip(self.segments, pieces, strict=True):
            if not stretch.match_into(piece, values):
                return None
        return self._unite_values(values, decode)

    def expand(self, context: Mapping[str, str], *, encode: bool) -> str:
        """Replace placeholders by values; *encode* escapes them as RFC 6570 level 1 does.

        Raises:
            TemplateError: *context* lacks values; all are named.
        """
        missing = tuple(dict.fromkeys(name for name in self.names if name not in context))
        if missing:
            raise TemplateError(self.text, missing)
        return "".join(
            part if isinstance(part, str) else percent_encode(context[part.name]) if encode else context[part.name]
            for part in self.parts
        )

    def _split_value(self, value: str) -> list[str] | None:
        """Return the text between the separators of a value; None if it has other separators than the template."""
        pieces = _SEPARATORS[self.dots].split(value)
        if len(pieces) != 2 * len(self.segments) - 1 or tuple(pieces[1::2]) != self.separators:
            return None
        return pieces[::2]

    def _join(self, stretches: list[str]) -> str:
        return "".join(text + mark for text, mark in zip(stretches, (*self.separators, ""), strict=True))

    def _unite_values(self, values: list[str], decode: bool) -> dict[str, str] | None:
        taken: dict[str, str] = {}
        for name, value in zip(self.names, values, strict=True):
            first = taken.setdefault(name, value)
            if first != value and not (decode and percent_decode(first) == percent_decode(value)):
                return None
        return taken


def parse_template(text: str, *, dots: bool = False, literal: bool = False) -> Template:
    """Parse a template; a text without placeholders is valid too. With *literal*, braces are text."""
    tokens = [text] if literal else split_tokens(text)
    parts: list[str | Placeholder] = []
    for place, token in enumerate(tokens):
        if place % 2:
            parts.append(Placeholder(token))
        elif token:
            parts.append(token)
    stretches, separators = _split_segments(tokens, dots)
    return Template(text, dots, tuple(parts), tuple(tokens[1::2]), stretches, separators)


def split_tokens(text: str) -> list[str]:
    """Split a template into literal texts, at even indexes and possibly empty, and placeholder names, at odd ones."""
    return _PLACEHOLDER.split(text)


def _split_segments(tokens: list[str], dots: bool) -> tuple[tuple[TemplateSegment, ...], tuple[str, ...]]:
    """Split tokens (texts at even indexes, names at odd ones) at the separators in the texts."""
    stretches: list[TemplateSegment] = []
    separators: list[str] = []
    literals: list[str] = []
    names: list[str] = []
    for place, token in enumerate(tokens):
        if place % 2:
            names.append(token)
            continue
        first, *rest = _SEPARATORS[dots].split(token)
        literals.append(first)
        for separator, literal in zip(rest[::2], rest[1::2], strict=True):
            stretches.append(TemplateSegment(tuple(literals), tuple(names)))
            separators.append(separator)
            literals, names = [literal], []
    stretches.append(TemplateSegment(tuple(literals), tuple(names)))
    return tuple(stretches), tuple(separators)
