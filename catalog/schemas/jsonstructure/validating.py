"""Validation with JSON Structure (draft 02, core and extensions), by json-structure.

Its validator is written in Python, and handles about 5,000 bodies of twenty members per second.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import jsonschema_rs
from json_structure import InstanceValidator, SchemaValidator

from catalog.parsing.pointers import resolve_pointer
from catalog.schemas.contract import (
    MAX_DIRECT_BYTES,
    MAX_FAULTS,
    MAX_MESSAGE,
    CostExceeded,
    Library,
    MissingTypeError,
    SchemaError,
    SchemaFault,
    SchemaSource,
    clip,
    make_fault,
)
from catalog.schemas.jsonschema.validating import REGEX_OPTIONS, parse_body
from catalog.schemas.library import to_tree

# The instance validator of json-structure, with corrections and limits.
#
# Overridden are checks that reject valid bodies (limits of numbers written as text, ``has``) or accept invalid ones
# (booleans as numbers, partly checked references), and all regular expressions, because Python's may take exponential
# time. Steps are counted, because types in nested unions are tried in every combination, and the number of errors is
# limited to what a message can show.

MAX_STEPS: Final = 100_000
"""Maximum number of values validated for one body in this process; costlier bodies go to the sandbox."""
_ENUM_STEP: Final = 16
"""Number of enum values compared in one step."""
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


class _LimitedErrors(list[str]):
    """A list limited to MAX_FAULTS errors of limited length; messages may quote nested errors."""

    def __init__(self, errors: Iterable[str] = ()) -> None:
        super().__init__(islice(errors, MAX_FAULTS))

    def append(self, error: str) -> None:
        if len(self) < MAX_FAULTS:
            super().append(error[: 4 * MAX_MESSAGE])


class StructureValidator(InstanceValidator):  # type: ignore[misc] # the library ships no types
    """Finds the errors of one value by :meth:`find_errors`."""

    _steps: float = math.inf
    _errors: list[str]

    @property
    def errors(self) -> list[str]:
        """The errors so far; the library replaces the list while it tries one of several types."""
        return self._errors

    @errors.setter
    def errors(self, errors: list[str]) -> None:
        self._errors = errors if isinstance(errors, _LimitedErrors) else _LimitedErrors(errors)

    def find_errors(self, value: Any, part: Mapping[str, Any] | None, *, steps: float = math.inf) -> list[str]:
        """Return the library's error messages for a value; *part* is the type, None for the root's.

        Raises:
            CostExceeded: it needs more than *steps*.
        """
        self.errors = []
        self._steps = steps
        if part is None and "$root" not in self.root_schema:
            part = self.root_schema
        errors: list[str] = self.validate_instance(value, part)
        return errors

    def validate_instance(self, instance: Any, schema: Any = None, path: str = "#", meta: Any = None) -> list[str]:
        """Add the errors of one value at *path* to the errors so far, and return all."""
        options = schema.get("enum") if schema is not None else None
        self._spend_steps(1 + len(options) // _ENUM_STEP if isinstance(options, list) else 1)
        kind = schema.get("type") if schema is not None else None
        if isinstance(kind, dict) and "$ref" in kind and schema.keys() <= _ANNOTATIONS:
            schema = {"$ref": kind["$ref"]}
        elif isinstance(instance, bool) and isinstance(kind, str) and kind in _NUMBERS:
            self.errors.append(f"Expected {kind} at {path}, got boolean")
            return self.errors
        elif schema is not None and "has" in schema:
            self._check_has(schema["has"], instance, path)
            schema = {name: value for name, value in schema.items() if name != "has"}
        errors: list[str] = super().validate_instance(instance, schema, path, meta)
        return errors

    def _spend_steps(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise CostExceeded

    def _validate_validation_addins(self, schema: Mapping[str, Any], instance: Any, path: str) -> None:
        kind = schema.get("type")
        if kind in _TEXT_NUMBERS:
            instance, schema = _to_numbers(instance, schema)
        if isinstance(instance, str) and isinstance(schema.get("pattern"), str) and kind == "string":
            if not matches_pattern(schema["pattern"], instance):
                self.errors.append(f"String at {path} does not match pattern {schema['pattern']}")
        elif isinstance(instance, dict):
            self._check_keys(schema, instance, path)
        elif isinstance(instance, list) and "contains" in schema:
            self._check_contains(schema, instance, path)
        if isinstance(instance, str) and schema.get("format") == "email":
            schema = {name: value for name, value in schema.items() if name != "format"}
            if not _is_email(instance):
                self.errors.append(f"String at {path} does not match format email")
        super()._validate_validation_addins({k: v for k, v in schema.items() if k not in _OWN}, instance, path)

    def _check_has(self, schema: Any, instance: Any, path: str) -> None:
        if isinstance(instance, dict) and not any(self._is_valid(value, schema, path) for value in instance.values()):
            self.errors.append(f"Object at {path} has no property that matches 'has'")

    def _check_keys(self, schema: Mapping[str, Any], instance: Mapping[str, Any], path: str) -> None:
        for keyword in _KEY_PATTERNS:
            patterns = schema.get(keyword)
            for pattern, part in patterns.items() if isinstance(patterns, dict) else ():
                self._spend_steps(len(instance))
                for name, value in instance.items():
                    if matches_pattern(pattern, name):
                        self.validate_instance(value, part, f"{path}/{name}")
        names = schema.get("keyNames")
        if isinstance(names, dict):
            for name in instance:
                self.validate_instance(name, names, f"{path}/{name}")

    def _check_contains(self, schema: Mapping[str, Any], instance: list[Any], path: str) -> None:
        count = sum(self._is_valid(each, schema["contains"], path) for each in instance)
        if not schema.get("minContains", 1) <= count <= schema.get("maxContains", len(instance)):
            self.errors.append(f"Array at {path} contains {count} elements that match 'contains'")

    def _is_valid(self, value: Any, schema: Any, path: str) -> bool:
        outer, self.errors = self.errors, []
        try:
            return not self.validate_instance(value, schema, path)
        finally:
            self.errors = outer


def _is_email(text: str) -> bool:
    r"""Whether a text matches the library's ``[^@]+@[^@]+\.[^@]+``, which would take quadratic time."""
    local, _, domain = text.partition("@")
    return bool(local) and "@" not in domain and "." in domain[1:-1]


def matches_pattern(pattern: str, text: str) -> bool:
    """Whether a text matches an ECMA 262 expression, in bounded time; True for an invalid expression."""
    compiled = _compile_pattern(pattern)
    return compiled is None or compiled.is_valid(text)


def iter_invalid_patterns(document: Any) -> Iterator[str]:
    """Yield the invalid regular expressions of a schema."""
    waiting = [document]
    while waiting:
        node = waiting.pop()
        members = node.values() if isinstance(node, dict) else node
        waiting.extend(each for each in members if isinstance(each, (dict, list)))
        if isinstance(node, dict):
            asked = [node.get("pattern"), *(key for name in _KEY_PATTERNS for key in _keys_or_empty(node.get(name)))]
            yield from (each for each in asked if isinstance(each, str) and _compile_pattern(each) is None)


def _keys_or_empty(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, dict) else ()


@lru_cache(maxsize=1024)
def _compile_pattern(pattern: str) -> jsonschema_rs.Validator | None:
    try:
        return jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=REGEX_OPTIONS)
    except ValueError:
        return None


def _to_numbers(instance: Any, schema: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Return a number written as text, and its limits, as numbers; without limits if that is not possible."""
    others = {name: value for name, value in schema.items() if name not in _LIMITS}
    try:
        limits = {name: Decimal(str(schema[name])) for name in _LIMITS if name in schema}
        return Decimal(instance), {**others, **limits}
    except (InvalidOperation, TypeError, ValueError):
        return instance, others


_IMPORTS: Final = ("$import", "$importdefs")
_PLACE: Final = re.compile(r" at (#[^\s,]*)")
_INDEX: Final = re.compile(r"\[(\d+)\]")
_HARMLESS: Final = frozenset(
    {
        "SCHEMA_ROOT_MISSING_ID",
        "SCHEMA_ROOT_MISSING_NAME",
        "SCHEMA_NAME_INVALID",
        "SCHEMA_CONSTRAINT_TYPE_MISMATCH",
        "SCHEMA_CONSTRAINT_INVALID_FOR_TYPE",
        "SCHEMA_CONSTRAINT_VALUE_INVALID",
        "SCHEMA_USES_UNKNOWN_EXTENSION",
        "SCHEMA_EXTENSION_KEYWORD_NOT_ENABLED",
        "SCHEMA_REF_NOT_IN_TYPE",
    }
)
"""Error codes that do not affect which bodies are valid, such as a unit on a nullable number."""
_HARMLESS_TEXTS: Final = re.compile(
    r"must have a 'name'|must be an absolute URI|for type '\w+' must be a string|is not in 'properties'"
    r"|must have 'properties'|duplicate value|identifier pattern|not a valid regular expression|'altnames'"
    r"|^'(?:identity|relations)'"
)
"""More such errors, without a code of their own; regular expressions are checked separately, as ECMA 262."""


class JsonStructureValidator:
    """Validates JSON bodies with one type of a JSON Structure document."""

    def __init__(self, document: dict[str, Any], part: Mapping[str, Any] | None) -> None:
        self._document = document
        self._part = part
        self._structure = StructureValidator(document)

    def fault(self, body: bytes | None, content_type: str | None, *, at_any_cost: bool = False) -> SchemaFault | None:
        """Return the first error of *body*; None if it is valid JSON and valid against the schema.

        The content type is ignored.

        Raises:
            CostExceeded: it needs more than MAX_STEPS, and *at_any_cost* is False.
        """
        return next(iter(self._find_faults(body, at_any_cost=at_any_cost)), None)

    def faults(self, body: bytes | None, content_type: str | None) -> list[SchemaFault]:
        """Return all errors, at most MAX_FAULTS; raises like :meth:`fault`."""
        return self._find_faults(body, at_any_cost=False)

    def _find_faults(self, body: bytes | None, *, at_any_cost: bool) -> list[SchemaFault]:
        if body is not None and len(body) > MAX_DIRECT_BYTES and not at_any_cost:
            raise CostExceeded
        value = parse_body(body, doubles=True)
        if isinstance(value, SchemaFault):
            return [value]
        structure, part = self._structure, self._part
        if body is not None and b"$uses" in body:
            # Such a body enables extensions, which the library writes into the schema.
            structure, part = StructureValidator(copy.deepcopy(self._document)), copy.deepcopy(part)
        try:
            errors = structure.find_errors(value, part, steps=math.inf if at_any_cost else MAX_STEPS)
        except (CostExceeded, MemoryError):
            raise
        except RecursionError:
            return [make_fault("the body nests too deeply to be looked into")]
        except Exception as failure:  # an error in the library must not stop the stream
            return [make_fault(f"the body cannot be held against the schema: {failure!r}")]
        return [_fault_from_error(each) for each in errors]


def compile_schema(source: SchemaSource, library: Library) -> JsonStructureValidator:
    """Compile a document, for the selected type or its root.

    Raises:
        MissingTypeError: the selected type is missing.
        SchemaError: it is not a valid JSON Structure document, or an import was not loaded.
    """
    document = to_tree(source.document)
    if not isinstance(document, dict):
        raise SchemaError("this is not a JSON Structure document: it must be an object", hint="write it as an object")
    try:
        document = _add_imports(document, source.uri, library, {source.uri})
        part = _find_part(document, source)
        _check_document(document, anywhere=part is not None)
        return JsonStructureValidator(document, part)
    except SchemaError:
        raise
    except RecursionError as error:
        raise SchemaError("the JSON Structure document nests too deeply") from error
    except Exception as error:  # an error in the library, which callers report
        raise SchemaError(clip(f"the JSON Structure document cannot be used: {error!r}")) from error


def references_of(source: SchemaSource) -> Iterable[str]:
    """Return the addresses of imported documents."""
    return dict.fromkeys(_iter_imports(to_tree(source.document)))


def _iter_imports(document: Any) -> Iterable[str]:
    waiting = [document]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield from (node[keyword] for keyword in _IMPORTS if isinstance(node.get(keyword), str))
            waiting.extend(each for each in node.values() if isinstance(each, (dict, list)))
        elif isinstance(node, list):
            waiting.extend(each for each in node if isinstance(each, (dict, list)))


def _add_imports(document: dict[str, Any], key: str, library: Library, within: set[str]) -> dict[str, Any]:
    """Return a document with all imported types, recursively."""
    wanted = dict.fromkeys(_iter_imports(document))
    if not wanted:
        return document
    externals = []
    for reference in wanted:
        loaded = library.document(reference, key)
        if loaded is None:
            raise SchemaError(f"it imports {reference}, which was not loaded", hint="correct the address")
        if loaded[0] in within:
            raise SchemaError(f"it imports {reference}, which imports it again", hint="remove one of the imports")
        external = to_tree(loaded[1])
        if not isinstance(external, dict):
            raise SchemaError(f"it imports {reference}, which is not a JSON Structure document")
        whole = _add_imports(external, loaded[0], library, {*within, loaded[0]})
        externals.append({**whole, "$id": reference})
    imported = copy.deepcopy(document)
    failures = StructureValidator(imported, allow_import=True, external_schemas=externals).errors
    if failures:
        raise SchemaError(clip(failures[0]))
    return imported


def find_start(source: SchemaSource) -> Any:
    """Return the selected type of a valid document; by default the root, or what ``$root`` refers to.

    Raises:
        MissingTypeError: the type is missing.
    """
    document = source.document
    if isinstance(document, Mapping) and (part := _find_part(document, source)) is not None:
        return part
    root = document.get("$root") if isinstance(document, Mapping) and "type" not in document else None
    return {"$ref": root} if isinstance(root, str) else document


def _find_part(document: Mapping[str, Any], source: SchemaSource) -> Mapping[str, Any] | None:
    """Return the selected type; None for the root.

    Raises:
        MissingTypeError: the type is missing.
    """
    pointers = [source.pointer] if source.pointer else [f"/definitions/{source.name}", f"/{source.name}"]
    if not (source.pointer or source.name) or source.name == document.get("name"):
        return None
    for pointer in pointers:
        try:
            part = resolve_pointer(document, pointer)
        except KeyError:
            continue
        if isinstance(part, dict):
            return part
    known = document.get("definitions")
    hint = f"it has {', '.join(sorted(known)[:8])}" if isinstance(known, dict) and known else "correct the reference"
    raise MissingTypeError(f"the schema has no type {source.name or source.pointer}", hint=hint)


def _check_document(document: dict[str, Any], *, anywhere: bool) -> None:
    """Raise SchemaError for errors that affect validation; with *anywhere*, the root need not have a type."""
    for error in SchemaValidator(extended=True, allow_dollar=True).validate(copy.deepcopy(document)):
        harmless = error.code in _HARMLESS or _HARMLESS_TEXTS.search(error.message)
        if not harmless and not (anywhere and error.code == "SCHEMA_ROOT_MISSING_TYPE"):
            message = f"this is not a valid JSON Structure document: {error.message}"
            raise SchemaError(clip(message), pointer=_to_pointer(str(error.path)))
    for pattern in iter_invalid_patterns(document):
        raise SchemaError(clip(f"{pattern!r} is not a valid regular expression"), hint="write it as in ECMA-262")


def _fault_from_error(message: str) -> SchemaFault:
    match = _PLACE.search(message)
    return make_fault(message, _to_pointer(match.group(1)) if match else "")


def _to_pointer(path: str) -> str:
    """Convert the library's ``#/a/b[0]`` to a JSON pointer."""
    return _INDEX.sub(r"/\1", path.removeprefix("#"))
