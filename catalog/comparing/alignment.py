"""One template laid over another, segment by segment: does it fit, and what do its placeholders then hold?"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

from catalog.templates import Placeholder, Template, parse
from catalog.values import percent_decode

_SEPARATORS: Final = {False: re.compile("(/)"), True: re.compile("([/.])")}
_Part = str | Placeholder


@dataclass(frozen=True, slots=True)
class Token:
    """What is known of a placeholder's value: its ``text``, or that it is what another's ``name`` holds, or nothing.

    Equal tokens stand for equal values; an opaque one equals none but itself, by its place.
    """

    kind: Literal["text", "name", "opaque"]
    value: str
    place: str = ""

    def of(self, key: str, *, decode: bool) -> Token:
        """Return the token as the property *key* has it."""
        if self.kind == "opaque":
            return replace(self, place=key)
        return Token("text", percent_decode(self.value)) if self.kind == "text" and decode else self


def opaque(number: int) -> Token:
    """Return a token of which nothing is known, for the placeholder of that number."""
    return Token("opaque", str(number))


def aligned(big: Template, small: Template, *, literal: bool) -> list[Token] | None:
    """Return what the placeholders of *big* hold in whatever *small* matches; None when not all of it fits.

    With *literal* the text of *small* is no template: its braces are text.
    """
    parts: tuple[_Part, ...] = (small.text,) if literal else small.parts
    if big.is_bare:
        return [_whole(parts, 0)]
    if not literal and small.is_bare:
        return None
    mine, its = _segments(big.parts, big.dots), _segments(parts, big.dots)
    if mine[1] != its[1]:
        return None
    tokens: list[Token] = []
    for segment, other in zip(mine[0], its[0], strict=True):
        segment_tokens = _segment(segment, other, big.dots, len(tokens))
        if segment_tokens is None:
            return None
        tokens.extend(segment_tokens)
    return tokens


def _whole(parts: tuple[_Part, ...], number: int) -> Token:
    if len(parts) != 1:
        return opaque(number)
    only = parts[0]
    return Token("text", only) if isinstance(only, str) else Token("name", only.name)


def _segments(parts: tuple[_Part, ...], dots: bool) -> tuple[list[tuple[_Part, ...]], list[str]]:
    """Cut parts at the separators in their texts; empty texts are left out."""
    segments: list[list[_Part]] = [[]]
    separators: list[str] = []
    for part in parts:
        if isinstance(part, Placeholder):
            segments[-1].append(part)
            continue
        first, *rest = _SEPARATORS[dots].split(part)
        if first:
            segments[-1].append(first)
        for separator, text in zip(rest[::2], rest[1::2], strict=True):
            separators.append(separator)
            segments.append([text] if text else [])
    return [tuple(segment) for segment in segments], separators


def _segment(big: tuple[_Part, ...], small: tuple[_Part, ...], dots: bool, number: int) -> list[Token] | None:
    """Lay one segment over another; *number* is that of its first placeholder."""
    shape = [None if isinstance(part, Placeholder) else part for part in big]
    if shape == [None if isinstance(part, Placeholder) else part for part in small]:
        return [Token("name", part.name) for part in small if isinstance(part, Placeholder)]
    if shape == [None]:
        return [_whole(small, number)] if small else None
    if all(isinstance(part, str) for part in small):
        text = "".join(part for part in small if isinstance(part, str))
        return _taken(big, text, dots)
    return None


def _taken(big: tuple[_Part, ...], text: str, dots: bool) -> list[Token] | None:
    """Match a literal segment; placeholders get names of their own, so that each gives its value."""
    names = [part for part in big if isinstance(part, Placeholder)]
    if not names:
        return [] if "".join(part for part in big if isinstance(part, str)) == text else None
    numbered = iter(range(len(names)))
    template = parse(
        "".join(part if isinstance(part, str) else f"{{{next(numbered)}}}" for part in big),
        dots=dots,
    )
    taken = template.match(text)
    return None if taken is None else [Token("text", taken[str(place)]) for place in range(len(names))]
