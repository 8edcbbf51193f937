"""A value that one JSON schema takes and another refuses, looked for near values that are made up for the first.

Only a value that was found proves anything; the catalog's own validators judge each.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from catalog.schemas.compiling import compile_schema
from catalog.schemas.contract import SchemaError, SchemaSource, TooCostly, Validator
from catalog.schemas.families import family_of
from catalog.schemas.filling.filling import Filling, Unfillable
from registry.compatibility.formats import NoLibrary
from registry.compatibility.undecided import Undecided

_TRIALS: Final = 20_000
_SEEDS: Final = 12
_MOST_CONSTANTS: Final = 60
_MOST_NAMES: Final = 100
_MOST_LEVELS: Final = 12
_SHOWN: Final = 200
_NOW: Final = "2026-01-01T00:00:00Z"
_CONSTANTS: Final[tuple[Any, ...]] = (None, True, 0, 1, -1, 0.5, "", "x", "x" * 300, [], [0, 0], {}, 10**9, -(10**9))
_UNKNOWN: Final = "anything_else"
_LIMITS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_NAMING: Final = ("properties", "required", "dependentRequired", "dependentSchemas", "dependencies")
_LENGTHS: Final = ("minLength", "maxLength")


def witness(smaller: SchemaSource, larger: SchemaSource) -> str:
    """Return a value, as JSON and cut short, that *smaller* takes and *larger* refuses; '' when none was found.

    Equal schemas give the same value.

    Raises:
        Undecided: one of them cannot be used.
    """
    try:
        takes, refuses = (compile_schema(each, NoLibrary()) for each in (smaller, larger))
    except SchemaError as error:
        raise Undecided(str(error)) from error
    names, constants = _words((smaller.document, larger.document))
    tried = islice((each for base in _bases(smaller) for each in _near(base, names, constants, 0)), _TRIALS)
    for value in tried:
        body = msgspec.json.encode(value)
        if _keeps(takes, body) is True and _keeps(refuses, body) is False:
            text = body.decode("utf-8")
            return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return ""


def _keeps(validator: Validator, body: bytes) -> bool | None:
    try:
        return validator.fault(body, None) is None
    except TooCostly:
        return None


def _bases(schema: SchemaSource) -> Iterator[Any]:
    """Yield values of a schema: with as little as can be, with all, and between."""
    filler = family_of(schema.family).open_filler(schema, NoLibrary())
    for seed in range(_SEEDS):
        try:
            chosen = Filling(random.Random(seed), _NOW, (0.0, 1.0, 0.5)[seed % 3])
            yield msgspec.json.decode(filler.payload(chosen, "application/json"))
        except (Unfillable, RecursionError):
            continue


def _near(value: Any, names: Sequence[str], constants: Sequence[Any], level: int) -> Iterator[Any]:
    """Yield a value, and others that differ from it at one place."""
    yield value
    if level > _MOST_LEVELS:
        return
    yield from constants
    if isinstance(value, Mapping):
        for name in value:
            yield {key: each for key, each in value.items() if key != name}
        for name in names:
            if name not in value:
                yield from ({**value, name: each} for each in constants)
        for name, each in value.items():
            yield from ({**value, name: other} for other in _near(each, names, constants, level + 1))
    elif isinstance(value, list):
        yield from ([*value, each] for each in constants)
        for index, each in enumerate(value[:4]):
            yield [*value[:index], *value[index + 1 :]]
            yield from (
                [*value[:index], other, *value[index + 1 :]] for other in _near(each, names, constants, level + 1)
            )


def _words(documents: Sequence[Any]) -> tuple[list[str], list[Any]]:
    """Return the names of members in schemas, and values at the edge of what they allow."""
    names: dict[str, None] = {_UNKNOWN: None}
    constants: dict[str, Any] = {repr(each): each for each in _CONSTANTS}
    waiting = list(documents)
    while waiting and (len(names) < _MOST_NAMES or len(constants) < _MOST_CONSTANTS):
        each = waiting.pop()
        if isinstance(each, list):
            waiting.extend(each)
        if not isinstance(each, Mapping):
            continue
        waiting.extend(each.values())
        for keyword in _NAMING:
            members = each.get(keyword)
            if isinstance(members, Mapping | list):
                names.update({name: None for name in islice(members, _MOST_NAMES) if isinstance(name, str)})
        constants.update({repr(value): value for value in islice(_edges(each), _MOST_CONSTANTS)})
    return list(names)[:_MOST_NAMES], list(constants.values())[:_MOST_CONSTANTS]


def _edges(schema: Mapping[str, Any]) -> Iterator[Any]:
    if isinstance(schema.get("enum"), list):
        yield from schema["enum"]
    if "const" in schema:
        yield schema["const"]
    for name in _LIMITS:
        limit = schema.get(name)
        if isinstance(limit, int | float) and not isinstance(limit, bool):
            yield from (limit, limit + 1, limit - 1)
    for name in _LENGTHS:
        length = schema.get(name)
        if isinstance(length, int) and length < 1000:
            yield from ("x" * length, "x" * (length + 1))
            yield "x" * max(0, length - 1)
