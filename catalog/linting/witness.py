"""A record that two definitions match, as the values of its properties: made of their literals and templates.

What is found is a witness, and whoever shows it lets the matcher judge it first. None is no proof that there is none:
of two templates only the shortest joint values are tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from catalog.comparing.coverage import Asked
from catalog.definitions.constraints import MEDIA_PROPERTIES
from catalog.templates import parse, tokens_of
from catalog.values import canonical, is_timestamp, is_valid, media_type_matches

FILL: Final = "x"
_SAMPLES: Final = (FILL, "1", "true", "2026-01-02T03:04:05Z", "P1D", "AAAA")
"""One text of every type."""
_ALWAYS: Final = frozenset({"e.id", "e.source", "e.type"})
"""What every event has, and so must be valid wherever it is constrained."""
_TYPED: Final = frozenset({"number", "integer", "boolean", "timestamp", "binary"})
Asks = Mapping[str, Sequence[Asked]]
_Pieces = tuple[list[str], list[str]]
"""The segments of a template, and what separates them."""


def witness(one: Asks, other: Asks) -> dict[str, str] | None:
    """Return values, by key, with which a record satisfies both; None when none is found.

    The second round knows what placeholders have taken in the first, so that those that occur again can be the same.
    """
    contexts: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for _ in range(2):
        values: dict[str, str] = {}
        for key in dict.fromkeys((*one, *other)):
            asks = [(each, contexts[side]) for side, asked in enumerate((one, other)) for each in asked.get(key, ())]
            if not any(ask.needed or ask.form != "any" or key in _ALWAYS for ask, _ in asks):
                continue
            text = next((text for text in _tried(asks) if all(_takes(ask, text) for ask, _ in asks)), None)
            if text is None:
                return None
            values[key] = text
        filled = tuple(_context(side, values) for side in (one, other))
        if all(context is not None for context in filled):
            return values
        contexts = (_first(one, values), _first(other, values))
    return None


def with_content(asks: Asks, other: Asks, content: str | None) -> Asks:
    """Add that data is of the type *content* to what is asked of each content type that either side names."""
    if not content:
        return asks
    keys = [key for key in dict.fromkeys((*asks, *other)) if key in MEDIA_PROPERTIES]
    return {**asks, **{key: [*asks.get(key, ()), Asked(key, "media", "string", content)] for key in keys}}


def _tried(asks: Sequence[tuple[Asked, Mapping[str, str]]]) -> Iterator[str]:
    """Give texts that may satisfy all of *asks*, best first."""
    literals = [ask.text for ask, _ in asks if ask.form in ("literal", "media")]
    if literals:
        yield literals[0]
        return
    templates = [(ask, context) for ask, context in asks if ask.form == "template"]
    for ask, context in sorted(templates, key=lambda each: each[0].template.is_bare):
        yield _expanded(ask.text, context)
    whole = [ask for ask, _ in templates if not ask.template.is_bare]
    for ask in whole[1:]:
        joined = _joined(whole[0], ask)
        if joined is not None:
            yield joined
    yield from _SAMPLES


def _expanded(text: str, context: Mapping[str, str]) -> str:
    tokens = tokens_of(text)
    return "".join(context.get(token, FILL) if place % 2 else token for place, token in enumerate(tokens))


def _joined(one: Asked, other: Asked) -> str | None:
    """Return a text that fits two templates, segment by segment; None when none is found."""
    (mine, between), (its, besides) = _pieces(one), _pieces(other)
    if between != besides:
        return None
    segments: list[str] = []
    for first, second in zip(mine, its, strict=True):
        patterns = parse(first), parse(second)
        tried = _segment(tokens_of(first), tokens_of(second))
        fit = next((text for text in tried if all(pattern.match(text) is not None for pattern in patterns)), None)
        if fit is None:
            return None
        segments.append(fit)
    return "".join(part for pair in zip(segments, [*between, ""], strict=True) for part in pair)


def _pieces(ask: Asked) -> _Pieces:
    segments, between = [""], []
    for place, token in enumerate(tokens_of(ask.text)):
        if place % 2:
            segments[-1] += f"{{g{place}}}"  # names of their own: what repeats is seen when both are judged
            continue
        for character in token:
            if character == "/" or (ask.dots and character == "."):
                between.append(character)
                segments.append("")
            else:
                segments[-1] += character
    return segments, between


def _segment(one: Sequence[str], other: Sequence[str]) -> Iterator[str]:
    """Give texts that may fit two segments: either's own literals, then the ends and the middles of both."""
    for tokens in (one, other):
        yield "".join(token if place % 2 == 0 else FILL for place, token in enumerate(tokens))
    head = max(one[0], other[0], key=len)
    tail = max(one[-1], other[-1], key=len)
    middles = [token for tokens in (one, other) for token in tokens[2:-1:2]]
    yield head + tail
    for fill in ("", FILL):
        yield head + FILL + fill.join(middles) + FILL + tail


def _takes(ask: Asked, text: str) -> bool:
    """Tell whether a text satisfies one constraint."""
    if ask.form == "any":
        kind: str = ask.type
        return is_valid(kind, text, bits32=ask.key.startswith("e."))
    if ask.form == "media":
        return media_type_matches(ask.text, text)
    if ask.form == "template":
        fits = ask.template.match(text, ask.decodes) is not None
        return fits and (ask.type != "timestamp" or is_timestamp(text))
    if ask.text == text:
        return True
    wanted = canonical(ask.type, ask.text) if ask.type in _TYPED else None
    return wanted is not None and wanted == canonical(ask.type, text)


def _first(asks: Asks, values: Mapping[str, str]) -> dict[str, str]:
    """Return what each placeholder takes; a template that is nothing else comes last, since it takes anything."""
    context: dict[str, str] = {}
    templates = [ask for of_key in asks.values() for ask in of_key if ask.form == "template" and ask.key in values]
    for ask in sorted(templates, key=lambda each: each.template.is_bare):
        for name, text in (ask.template.match(values[ask.key], ask.decodes) or {}).items():
            if text != FILL:
                context.setdefault(name, text)
    return context


def _context(asks: Asks, values: Mapping[str, str]) -> dict[str, str] | None:
    """Return what placeholders take; None when one takes two values."""
    context: dict[str, str] = {}
    for ask in (each for of_key in asks.values() for each in of_key if each.form == "template"):
        for name, text in (ask.template.match(values.get(ask.key, ""), ask.decodes) or {}).items():
            if context.setdefault(name, text) != text:
                return None
    return context
