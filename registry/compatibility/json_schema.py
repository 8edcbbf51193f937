"""Compatibility of JSON schemas: whether all values of one are values of another."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from catalog.schemas.contract import CostExceeded, EmptyLibrary, SchemaError, SchemaSource, clip
from catalog.schemas.families import compile_schema, family_of
from catalog.schemas.filling import Chooser, UnsupportedSchema
from catalog.schemas.jsonschema.validating import draft_of
from catalog.schemas.sandbox import MAX_SECONDS, LimitExceeded, sandbox
from registry.compatibility.containment import is_contained
from registry.compatibility.schemas import Budget, Undecided

STEPS_PER_SECOND: Final = 500_000
"""Steps of a budget for a CPU second of a proof."""


def find_json_gap(reader: SchemaSource, writer: SchemaSource, budget: Budget) -> str:
    """Return why data written with *writer* may not be valid for *reader*, '' if it is proven to be valid.

    Raises:
        Undecided: neither a proof nor a counterexample was found.
    """
    drafts = {draft_of(each.document, each.version) for each in (reader, writer)}
    proven, seconds = False, 0.0
    if len(drafts) == 1:
        try:
            proven, seconds = sandbox.call(is_contained, writer.document, reader.document, *drafts)
        except LimitExceeded:
            seconds = MAX_SECONDS
    budget.spend(int(seconds * STEPS_PER_SECOND))
    if proven:
        return ""
    why = find_witness(writer, reader)
    if not why:
        raise Undecided("neither a proof nor a counterexample was found")
    return why


# Search for a counterexample: a value that one JSON schema accepts and another refuses, near sample values.
#
# Only a value that was found proves anything; the catalog's validators check each.

_TRIALS: Final = 20_000
_MAX_SEEDS: Final = 12
_MAX_CONSTANTS: Final = 60
_MAX_NAMES: Final = 100
_SAMPLE_TIME: Final = "2026-01-01T00:00:00Z"
_SAMPLES: Final[tuple[Any, ...]] = (None, True, 0, 1, -1, 0.5, "", "x", "x" * 300, [], [0, 0], {}, 10**9, -(10**9))
_UNKNOWN_MEMBER: Final = "anything_else"
_LIMIT_KEYWORDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_NAMING_KEYWORDS: Final = ("properties", "required", "dependentRequired", "dependentSchemas", "dependencies")
_LENGTH_KEYWORDS: Final = ("minLength", "maxLength")


def find_witness(smaller: SchemaSource, larger: SchemaSource) -> str:
    """Return why *larger* refuses a value that *smaller* accepts, with that value, '' if none was found.

    The result is deterministic.

    Raises:
        Undecided: one of the schemas cannot be used.
    """
    try:
        takes, refuses = (compile_schema(each, EmptyLibrary()) for each in (smaller, larger))
    except SchemaError as error:
        raise Undecided(str(error)) from error
    names, constants = _collect_words((smaller.document, larger.document))
    variants = (each for base in _iter_bases(smaller) for each in _iter_variants(base, names, constants))
    for value in islice(variants, _TRIALS):
        body = msgspec.json.encode(value)
        try:
            fault = refuses.fault(body, None) if takes.fault(body, None) is None else None
        except CostExceeded:
            continue
        if fault is not None:
            return f"{fault}, for example {clip(body.decode('utf-8'))}"
    return ""


def _iter_bases(schema: SchemaSource) -> Iterator[Any]:
    """Yield values of a schema: minimal, maximal, and between."""
    filler = family_of(schema.family).open_sampler(schema, EmptyLibrary())
    for seed in range(_MAX_SEEDS):
        try:
            chosen = Chooser(random.Random(seed), _SAMPLE_TIME, (0.0, 1.0, 0.5)[seed % 3])
            yield msgspec.json.decode(filler.payload(chosen, "application/json"))
        except UnsupportedSchema:
            continue


def _iter_variants(value: Any, names: Sequence[str], constants: Sequence[Any]) -> Iterator[Any]:
    """Yield a value, and others that differ from it in one location."""
    yield value
    yield from constants
    if isinstance(value, Mapping):
        for name in value:
            yield {key: each for key, each in value.items() if key != name}
        for name in names:
            if name not in value:
                yield from ({**value, name: each} for each in constants)
        for name, each in value.items():
            yield from ({**value, name: other} for other in _iter_variants(each, names, constants))
    elif isinstance(value, list):
        yield from ([*value, each] for each in constants)
        for index, each in enumerate(value[:4]):
            yield [*value[:index], *value[index + 1 :]]
            yield from (
                [*value[:index], other, *value[index + 1 :]] for other in _iter_variants(each, names, constants)
            )


def _collect_words(documents: Sequence[Any]) -> tuple[list[str], list[Any]]:
    """Return the member names in schemas, and boundary values."""
    names: dict[str, None] = {_UNKNOWN_MEMBER: None}
    constants: dict[str, Any] = {repr(each): each for each in _SAMPLES}
    waiting = list(documents)
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting.extend(each)
        if not isinstance(each, Mapping):
            continue
        waiting.extend(each.values())
        for keyword in _NAMING_KEYWORDS:
            members = each.get(keyword)
            if isinstance(members, Mapping | list):
                names.update({name: None for name in members if isinstance(name, str)})
        constants.update({repr(value): value for value in _iter_edge_values(each)})
    return list(names)[:_MAX_NAMES], list(constants.values())[:_MAX_CONSTANTS]


def _iter_edge_values(schema: Mapping[str, Any]) -> Iterator[Any]:
    if isinstance(schema.get("enum"), list):
        yield from schema["enum"]
    if "const" in schema:
        yield schema["const"]
    for name in _LIMIT_KEYWORDS:
        limit = schema.get(name)
        if isinstance(limit, int | float) and not isinstance(limit, bool):
            yield from (limit, limit + 1, limit - 1)
    for name in _LENGTH_KEYWORDS:
        length = schema.get(name)
        if isinstance(length, int) and length < 1000:
            yield from ("x" * length, "x" * (length + 1))
            yield "x" * max(0, length - 1)
