"""The instance validator of json-structure, without what it would do to a router that must never stop.

Overridden is what rejects bodies that conform (constraints on numbers that travel as text, ``has``), what accepts those
that do not (booleans as numbers, a referenced type of which only parts are looked at), and every regular expression:
Python's may take exponential time on a body made for it. Steps are counted, for types within unions are tried as often
as there are ways to come to them, and no more errors are kept than a message can show.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import jsonschema_rs
from json_structure import InstanceValidator

from catalog.schemas.bodies import MAX_MESSAGE
from catalog.schemas.contract import MAX_FAULTS, TooCostly
from catalog.schemas.jsonschema.validating import REGEX_OPTIONS

MAX_STEPS: Final = 100_000
"""Values held against types for one body, before it is too costly for a process that has others to look at."""
_ENUM_STEP: Final = 16
"""Values of an enum that may be compared, and written into a message, for one step."""
_TEXT_NUMBERS: Final = frozenset({"int64", "uint64", "int128", "uint128", "decimal"})
_NUMBERS: Final = frozenset(
    {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32)}
    | {"number", "integer", "float8", "float", "double"}
)
_ANNOTATIONS: Final = frozenset(
    {"type", "name", "description", "examples", "altnames", "unit", "symbol", "deprecated", "default", "descriptions"}
)
_LIMITS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_KEY_PATTERNS: Final = ("patternProperties", "patternKeys")
_OWN: Final = frozenset({"pattern", "contains", "minContains", "maxContains", "keyNames", *_KEY_PATTERNS})


class _Errors(list[str]):
    """The first few errors of a value, none longer than can be shown: messages quote those of the types within."""

    def __init__(self, errors: Iterable[str] = ()) -> None:
        super().__init__(islice(errors, MAX_FAULTS))

    def append(self, error: str) -> None:
        if len(self) < MAX_FAULTS:
            super().append(error[: 4 * MAX_MESSAGE])


class Structure(InstanceValidator):  # type: ignore[misc] # the library ships no types
    """Finds the errors of one value; :meth:`errors_of` is the way in."""

    _steps: float = math.inf
    _errors: list[str]

    @property
    def errors(self) -> list[str]:
        """The errors so far; the library puts other lists in their place while it tries one of several types."""
        return self._errors

    @errors.setter
    def errors(self, errors: list[str]) -> None:
        self._errors = errors if isinstance(errors, _Errors) else _Errors(errors)

    def errors_of(self, value: Any, part: Mapping[str, Any] | None, *, steps: float = math.inf) -> list[str]:
        """Return what is wrong with a value, as the library words it; *part* is the type when it is not the root's.

        Raises:
            TooCostly: it takes more than *steps*.
        """
        self.errors = []
        self._steps = steps
        if part is None and "$root" not in self.root_schema:
            part = self.root_schema
        errors: list[str] = self.validate_instance(value, part)
        return errors

    def validate_instance(self, instance: Any, schema: Any = None, path: str = "#", meta: Any = None) -> list[str]:
        """Add the errors of one value below *path* to those found before, and return all."""
        options = schema.get("enum") if schema is not None else None
        self._spend(1 + len(options) // _ENUM_STEP if isinstance(options, list) else 1)
        kind = schema.get("type") if schema is not None else None
        if isinstance(kind, dict) and "$ref" in kind and schema.keys() <= _ANNOTATIONS:
            schema = {"$ref": kind["$ref"]}
        elif isinstance(instance, bool) and isinstance(kind, str) and kind in _NUMBERS:
            self.errors.append(f"Expected {kind} at {path}, got boolean")
            return self.errors
        elif schema is not None and "has" in schema:
            self._has(schema["has"], instance, path)
            schema = {name: value for name, value in schema.items() if name != "has"}
        errors: list[str] = super().validate_instance(instance, schema, path, meta)
        return errors

    def _spend(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise TooCostly

    def _validate_validation_addins(self, schema: Mapping[str, Any], instance: Any, path: str) -> None:
        kind = schema.get("type")
        if kind in _TEXT_NUMBERS:
            instance, schema = _as_numbers(instance, schema)
        if isinstance(instance, str) and isinstance(schema.get("pattern"), str) and kind == "string":
            if not matches(schema["pattern"], instance):
                self.errors.append(f"String at {path} does not match pattern {schema['pattern']}")
        elif isinstance(instance, dict):
            self._keys(schema, instance, path)
        elif isinstance(instance, list) and "contains" in schema:
            self._contains(schema, instance, path)
        if isinstance(instance, str) and schema.get("format") == "email":
            schema = {name: value for name, value in schema.items() if name != "format"}
            if not _is_email(instance):
                self.errors.append(f"String at {path} does not match format email")
        super()._validate_validation_addins({k: v for k, v in schema.items() if k not in _OWN}, instance, path)

    def _has(self, wanted: Any, instance: Any, path: str) -> None:
        if isinstance(instance, dict) and not any(self._conforms(value, wanted, path) for value in instance.values()):
            self.errors.append(f"Object at {path} has no property that 'has' asks for")

    def _keys(self, schema: Mapping[str, Any], instance: Mapping[str, Any], path: str) -> None:
        for keyword in _KEY_PATTERNS:
            patterns = schema.get(keyword)
            for pattern, part in patterns.items() if isinstance(patterns, dict) else ():
                self._spend(len(instance))
                for name, value in instance.items():
                    if matches(pattern, name):
                        self.validate_instance(value, part, f"{path}/{name}")
        names = schema.get("keyNames")
        if isinstance(names, dict):
            for name in instance:
                self.validate_instance(name, names, f"{path}/{name}")

    def _contains(self, schema: Mapping[str, Any], instance: list[Any], path: str) -> None:
        count = sum(self._conforms(each, schema["contains"], path) for each in instance)
        if not schema.get("minContains", 1) <= count <= schema.get("maxContains", len(instance)):
            self.errors.append(f"Array at {path} contains {count} elements of the kind that 'contains' asks for")

    def _conforms(self, value: Any, schema: Any, path: str) -> bool:
        kept, self.errors = self.errors, []
        try:
            return not self.validate_instance(value, schema, path)
        finally:
            self.errors = kept


def _is_email(text: str) -> bool:
    r"""Tell what the library's ``[^@]+@[^@]+\.[^@]+`` tells, which takes quadratic time on a text full of dots."""
    local, _, domain = text.partition("@")
    return bool(local) and "@" not in domain and "." in domain[1:-1]


def matches(pattern: str, text: str) -> bool:
    """Tell whether a text has a match of an ECMA regular expression, in bounded time; an unusable one asks nothing."""
    compiled = _pattern(pattern)
    return compiled is None or compiled.is_valid(text)


def unusable_patterns(document: Any) -> Iterator[str]:
    """Give the regular expressions of a schema that are none."""
    waiting = [document]
    while waiting:
        node = waiting.pop()
        members = node.values() if isinstance(node, dict) else node
        waiting.extend(each for each in members if isinstance(each, (dict, list)))
        if isinstance(node, dict):
            asked = [node.get("pattern"), *(key for name in _KEY_PATTERNS for key in _keys_of(node.get(name)))]
            yield from (each for each in asked if isinstance(each, str) and _pattern(each) is None)


def _keys_of(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, dict) else ()


@lru_cache(maxsize=1024)
def _pattern(pattern: str) -> jsonschema_rs.Validator | None:
    try:
        return jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=REGEX_OPTIONS)
    except ValueError:
        return None


def _as_numbers(instance: Any, schema: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Return a number that travels as text, and the limits set to it, as numbers; limits go when that cannot be."""
    others = {name: value for name, value in schema.items() if name not in _LIMITS}
    try:
        limits = {name: Decimal(str(schema[name])) for name in _LIMITS if name in schema}
        return Decimal(instance), {**others, **limits}
    except (InvalidOperation, TypeError, ValueError):
        return instance, others
