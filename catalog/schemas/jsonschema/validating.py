"""Validation with JSON Schema, drafts 04 to 2020-12, by jsonschema-rs.

``format`` is only an annotation in every draft: 2019-09 and later define it so, earlier ones leave it open, and a date
in a slightly different form should not change which definition a record matches. Regular expressions run in linear
time, except lookaround and backreferences, which are limited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

import jsonschema_rs
import msgspec

from catalog.parsing.pointers import resolve_pointer, to_pointer
from catalog.schemas.contract import (
    MAX_DIRECT_BYTES,
    Comparison,
    CostExceeded,
    Library,
    MissingTypeError,
    SchemaError,
    SchemaFault,
    SchemaSource,
    Validator,
    clip,
    make_fault,
    parse_json,
    worst_comparison,
)
from catalog.schemas.filling import UnsupportedSchema
from catalog.schemas.json.references import HOLDERS, SchemaDocuments, join_uri, list_of, mapping_of, pointer_of
from catalog.schemas.library import to_tree

# An upper bound of the work to validate a body, from a weight of the schema for one value.
#
# Native code cannot be interrupted, and few bytes may need hours: bodies beyond the bound go to the sandbox. The
# library does not limit ``multipleOf``, enums of objects, lookaround, references that fan out, and above all the errors
# of ``anyOf`` and ``oneOf``: each path through the schema to a value has its own, and a level may double them.

MAX_STEPS: Final = 20_000_000
"""Maximum steps, of about ten nanoseconds, to validate one body here."""
_ERROR_STEPS: Final = 50
"""How much more the first error of a body may take than its validation."""
_LISTING_STEPS: Final = 300
"""The same for all errors, because the library finds all before it returns any."""
_ENDLESS: Final = float(1 << 60)
_MAX_WEIGHED: Final = 100_000
_MAX_LEVELS: Final = 32
"""Levels of a body up to which the weight is computed; deeper bodies count as endless if it still grows."""
_LISTS: Final = ("allOf", "anyOf", "oneOf")
_IN_PLACE: Final = ("not", "if", "then", "else", "extends")
_BELOW: Final = (
    *("additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems", "contains"),
    *("propertyNames", "items", "contentSchema"),
)
_COUNTED: Final = re.compile(r"\{\d*,?(\d*)")
_BACKTRACKING: Final = re.compile(r"\(\?(?:[=!]|<[=!])|\\[1-9k]")
_COSTS: Final = {
    "multipleOf": 2_000,
    "uniqueItems": 200,
    "x-written": 200,
    "unevaluatedProperties": 50,
    "unevaluatedItems": 50,
}
_BACKTRACKING_COST: Final = 100_000


class WorkLimits:
    """Upper bounds of the work to validate a body: the weight of a schema, times the values of the body.

    The weight is that of the schema and of all that it applies to a value, or to one on each level.
    """

    def __init__(self, documents: SchemaDocuments, start: Any) -> None:
        self._documents = documents
        self._start = start
        self._known: dict[tuple[int, int], float] = {}
        self._patterns: set[str] = set()
        most, before, first = (self._weight_for(_MAX_LEVELS - each) for each in range(3))
        self._most = _ENDLESS if most - before > before - first else most
        self._per_byte = sum(map(_steps_per_byte, self._patterns))
        self.fast_bytes = int(min(MAX_DIRECT_BYTES, MAX_STEPS / (self._most + self._per_byte + 1)))
        """Every body up to this size can be validated fast."""

    def are_within(self, body: bytes, value: Any, factor: int = 1) -> bool:
        """Whether a body with this value can be handled fast, at *factor* times the work to validate it."""
        steps = MAX_STEPS / factor - len(body) * self._per_byte
        values = 1 + body.count(b",") + 2 * body.count(b":") + body.count(b"[")
        if values * self._most <= steps:
            return True
        values, levels = _measure(value)
        return levels <= _MAX_LEVELS and values * self._weight_for(levels) <= steps

    def _weight_for(self, levels: int) -> float:
        try:
            return self._weigh(self._start, levels)
        except RecursionError:
            return _ENDLESS

    def _weigh(self, schema: Any, levels: int) -> float:
        if not isinstance(schema, Mapping) or levels < 0:
            return 0
        key = id(schema), levels
        if key not in self._known:
            # A schema that applies itself to the same value has no end.
            self._known[key] = _ENDLESS
            if len(self._known) > _MAX_WEIGHED:
                return _ENDLESS
            weight = _keyword_cost(schema)
            self._patterns.update(_iter_patterns(schema))
            for each in self._iter_in_place(schema):
                weight += self._weigh(each, levels)
            for each in _iter_below(schema):
                weight += self._weigh(each, levels - 1)
            weight += max(
                (self._weigh(each, levels - 1) for each in mapping_of(schema, "properties").values()), default=0
            )
            self._known[key] = min(weight, _ENDLESS)
        return self._known[key]

    def _iter_in_place(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        for keyword in _LISTS:
            yield from list_of(schema, keyword)
        yield from (schema.get(keyword) for keyword in _IN_PLACE)
        for keyword in ("dependentSchemas", "dependencies"):
            yield from mapping_of(schema, keyword).values()
        for keyword in _REFERENCES:
            reference = schema.get(keyword)
            if isinstance(reference, str) and not _META.match(reference):
                try:
                    yield self._documents.find_target(reference, schema)
                except UnsupportedSchema:
                    yield schema  # without an end


def _measure(value: Any) -> tuple[int, int]:
    """Return how many values, including names, a value has, and on how many levels."""
    values, levels, level = 1, 0, [value]
    while level := [each for each in level if isinstance(each, dict | list) and each]:
        levels += 1
        values += sum(len(each) for each in level if isinstance(each, dict))
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
        values += len(level)
    return values, levels


def _iter_below(schema: Mapping[str, Any]) -> Iterator[Any]:
    yield from (schema.get(keyword) for keyword in _BELOW)
    for keyword in ("items", "prefixItems"):
        yield from list_of(schema, keyword)
    yield from mapping_of(schema, "patternProperties").values()


def _keyword_cost(schema: Mapping[str, Any]) -> float:
    """Return the steps of a schema's own keywords for one value."""
    cost = 10 + sum(steps for keyword, steps in _COSTS.items() if keyword in schema)
    options = [*list_of(schema, "enum"), schema.get("const")]
    if any(isinstance(each, (dict, list)) for each in options):
        cost += 5 * _measure(options)[0]
    cost += len(options)  # an error quotes them
    patterns = list(_iter_patterns(schema))
    cost += 30 * len(patterns) + 10 * len(mapping_of(schema, "properties")) + 5 * len(list_of(schema, "required"))
    return cost + sum(_BACKTRACKING_COST for each in patterns if _BACKTRACKING.search(each))


def _iter_patterns(schema: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(schema.get("pattern"), str):
        yield schema["pattern"]
    yield from mapping_of(schema, "patternProperties")


def _steps_per_byte(pattern: str) -> int:
    """Return the maximum steps per byte for a pattern; counted repetitions multiply the states."""
    states = 1
    for repetition in _COUNTED.finditer(pattern):
        count = repetition.group(1) or repetition.group()[1:].rstrip(",")
        states = min(1 << 60, states * max(1, int(count[:9] or 1)))
    return states if states > 1_000 else 1


BACKTRACK_LIMIT: Final = 100_000
"""Maximum backtracking steps of a regular expression; beyond, the text does not match."""
REGEX_BYTES: Final = 4 * 1024 * 1024
_HOME: Final = "http://catalog.invalid/"
"""The base of keys that are not URIs, to join relative references; nothing is fetched."""
REGEX_OPTIONS: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT, size_limit=REGEX_BYTES)
_VALIDATORS: Final[Mapping[str, type[jsonschema_rs.Validator]]] = {
    "04": jsonschema_rs.Draft4Validator,
    "06": jsonschema_rs.Draft6Validator,
    "07": jsonschema_rs.Draft7Validator,
    "2019-09": jsonschema_rs.Draft201909Validator,
    "2020-12": jsonschema_rs.Draft202012Validator,
}
_DIALECTS: Final = {
    **{draft: f"http://json-schema.org/draft-{draft}/schema#" for draft in ("04", "06", "07")},
    **{draft: f"https://json-schema.org/draft/{draft}/schema" for draft in ("2019-09", "2020-12")},
}
_DRAFT: Final = re.compile(r"(2019-09|2020-12)|(?:^|draft[-_/ ]?)0?([467])(?!\d)", re.IGNORECASE)
_META: Final = re.compile(r"https?://json-schema\.org/(?:draft|schema)", re.IGNORECASE)
_ABSOLUTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_MAPS: Final = frozenset({"properties", "patternProperties", "definitions", "$defs", "dependentSchemas"})
_NO_SCHEMAS: Final = frozenset({"enum", "const", "default", "examples", "example"})
_LATEST: Final = "2020-12"
REF_ALONE: Final = frozenset({"04", "06", "07"})
"""Drafts in which siblings of ``$ref`` are ignored."""
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def names_of(source: SchemaSource, library: Library) -> Mapping[str, str]:
    """Return ``title`` and ``$id`` of a schema, or of the writer's schema, if present."""
    tree = source.document if source.written is None else to_tree(source.written.schema.document)
    if source.written is None and source.pointer:
        try:
            tree = resolve_pointer(tree, source.pointer)
        except KeyError:
            return {}
    members = tree if isinstance(tree, dict) else {}
    given = {"title": members.get("title"), "$id": members.get("$id", members.get("id"))}
    return {kind: text for kind, text in given.items() if isinstance(text, str) and text}


class JsonSchemaValidator(Validator):
    """Validates JSON bodies with one schema; content types are ignored."""

    def __init__(self, validator: jsonschema_rs.Validator, work: WorkLimits) -> None:
        self._validator = validator
        self._work = work

    def fault(self, body: bytes | None, content_type: str | None, *, at_any_cost: bool = False) -> SchemaFault | None:
        """Return the first error of *body*; None if it is valid JSON and valid against the schema.

        Raises:
            CostExceeded: validation, or finding the error, may take too long, and *at_any_cost* is False.
        """
        if not at_any_cost and len(body or b"") > MAX_DIRECT_BYTES:
            raise CostExceeded
        value = parse_body(body)
        if isinstance(value, SchemaFault):
            return value
        body = body or b""
        if not at_any_cost and len(body) > self._work.fast_bytes and not self._work.are_within(body, value):
            raise CostExceeded
        try:
            if self._validator.is_valid(value):
                return None
            if not at_any_cost and not self._work.are_within(body, value, _ERROR_STEPS):
                raise CostExceeded
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            return _to_fault(error)
        except (ValueError, TypeError, RecursionError) as failure:
            return make_fault(f"the body cannot be held against the schema: {failure}")
        return make_fault("the body is not valid against the schema")

    def find_faults(
        self, body: bytes | None, content_type: str | None, limit: int, *, at_any_cost: bool
    ) -> list[SchemaFault]:
        """Return all errors; only the first if there may be too many. Raises as :meth:`fault`."""
        first, value = self.fault(body, content_type, at_any_cost=at_any_cost), parse_body(body)
        if first is None:
            return []
        if isinstance(value, SchemaFault) or not self._work.are_within(body or b"", value, _LISTING_STEPS):
            return [first]
        try:
            return [_to_fault(each) for each in islice(self._validator.iter_errors(value), limit)] or [first]
        except (ValueError, TypeError, RecursionError):
            return [first]


def _to_fault(error: jsonschema_rs.ValidationError) -> SchemaFault:
    return make_fault(error.message, to_pointer(error.instance_path))


def parse_body(body: bytes | None) -> Any:
    """Return the value of a JSON body without a byte order mark, or a fault if it is not valid JSON.

    Strings that are not Unicode and very deep nesting are faults, too.
    """
    if body is None:
        return make_fault("the body is missing; JSON is expected")
    try:
        return parse_json(body.removeprefix(BYTE_ORDER_MARK))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return make_fault(f"the body is not valid JSON: {error}")
    except RecursionError:
        return make_fault("the body nests too deeply to be looked into")


def compile_schema(source: SchemaSource, library: Library) -> JsonSchemaValidator:
    """Compile a schema, or the part that is selected by name or pointer, with all documents that it refers to.

    Raises:
        MissingTypeError: the selected part is missing.
        SchemaError: it is not a valid JSON schema, or has an unresolvable reference or an invalid expression.
    """
    document = _drop_unknown_dialect(to_tree(source.document))
    draft = draft_of(document, source.version)
    pointer = _pointer_of(document, source)
    home = _document_uri(source.uri)
    resources = dict(_iter_resources(source.uri, document, library))
    schema: Any = document
    if pointer:
        base = join_uri(home, _own_id(document)).partition("#")[0]
        resources[base] = document
        _check_part(document, pointer, draft)
        home, schema = f"{home}?part", {"$ref": f"{base}#{quote(pointer, safe='/~')}"}
    documents = SchemaDocuments(replace(source, document=document), library)
    return open_validator(schema, draft, documents, resolve_pointer(document, pointer), home=home, resources=resources)


def references_of(source: SchemaSource) -> Iterable[str]:
    """Return the URIs of other documents in ``$ref``, joined to an enclosing ``$id``, without meta-schemas."""
    return dict.fromkeys(reference for reference, _ in _iter_references(to_tree(source.document)))


def draft_of(document: Any, version: str) -> str:
    """Return the draft: from ``$schema``, else from the declared *version*, else the latest."""
    stated = document.get("$schema") if isinstance(document, dict) else None
    for text in (stated, version):
        match = _DRAFT.search(text) if isinstance(text, str) else None
        if match is not None:
            return match.group(1) or f"0{match.group(2)}"
    return _LATEST


def open_validator(
    schema: Any,
    draft: str,
    documents: SchemaDocuments,
    start: Any,
    *,
    home: str = _HOME,
    resources: Mapping[str, Any] = MappingProxyType({}),
    keywords: dict[str, Any] | None = None,
) -> JsonSchemaValidator:
    """Return the validator of a schema, whose work is bounded by the part *start* of its *documents*.

    *keywords* are the classes of keywords of our own.

    Raises:
        SchemaError: the schema is not valid.
    """

    def retrieve(uri: str) -> Any:
        return resources[uri.partition("#")[0]]

    with _schema_errors():
        validator = _VALIDATORS[draft](
            schema,
            validate_formats=False,
            base_uri=home,
            pattern_options=REGEX_OPTIONS,
            retriever=retrieve,
            keywords=keywords,
        )
    return JsonSchemaValidator(validator, WorkLimits(documents, start))


@contextmanager
def _schema_errors(pointer: str = "") -> Iterator[None]:
    """Raise SchemaError for the library's errors about the schema at a JSON pointer."""
    try:
        yield
    except jsonschema_rs.ValidationError as error:
        at = pointer + to_pointer(error.instance_path)
        raise SchemaError(clip(f"this is not a valid JSON schema: {error.message}"), pointer=at) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise SchemaError(clip(f"the JSON schema cannot be used: {error}"), pointer=pointer) from error


def _drop_unknown_dialect(document: Any) -> Any:
    """Return the schema without a ``$schema`` that is not a known draft, because custom meta-schemas are not loaded."""
    if isinstance(document, dict):
        declared = document.get("$schema")
        if declared is None or (isinstance(declared, str) and _META.match(declared)):
            return document
        return {name: value for name, value in document.items() if name != "$schema"}
    if isinstance(document, bool):
        return document
    raise SchemaError("this is not a JSON schema: it must be an object", hint="write an object, or correct its format")


def _check_part(document: Any, pointer: str, draft: str) -> None:
    """Validate a part of a document against the meta-schema; the rest of the document need not be a schema.

    Raises:
        MissingTypeError: there is no such part.
        SchemaError: it is not a valid schema.
    """
    try:
        part = resolve_pointer(document, pointer)
    except KeyError:
        raise MissingTypeError(f"the schema has nothing at {pointer}", hint="correct the reference") from None
    if isinstance(part, dict):
        part = {**part, "$schema": _DIALECTS[draft]}
    with _schema_errors(pointer):
        jsonschema_rs.meta.validate(part)


def find_start(source: SchemaSource) -> Any:
    """Return the selected part of a document with a valid schema.

    Raises:
        MissingTypeError, KeyError: the part is missing.
    """
    return resolve_pointer(source.document, _pointer_of(source.document, source))


def _pointer_of(document: Any, source: SchemaSource) -> str:
    """Return the JSON pointer of the selected part; empty for the whole document.

    Raises:
        MissingTypeError: there is no type with that name.
    """
    if source.pointer or not source.name:
        return source.pointer
    pointer = pointer_of(document, source.name)
    if pointer is None:
        members = document if isinstance(document, dict) else {}
        types = [members[holder] for holder in HOLDERS if isinstance(members.get(holder), dict)]
        known = sorted({key for each in types for key in each})
        hint = f"it has {', '.join(known[:8])}" if known else "leave the name out, or add it to $defs"
        raise MissingTypeError(f"the schema has no type {source.name}", hint=hint)
    return pointer


def _document_uri(key: str) -> str:
    """Return an absolute URI for the document *key*."""
    if "://" in key and "#" not in key:
        return key
    steps = ("up" if step == ".." else step for step in key.lstrip("/").split("/"))
    return _HOME + quote("/".join(steps), safe="/")


def _iter_resources(key: str, document: Any, library: Library) -> Iterator[tuple[str, Any]]:
    """Yield all documents that a schema refers to, with every URI to which its references may resolve."""
    waiting, seen = [(key, document, {_document_uri(key)})], {key}
    while waiting:
        base, tree, homes = waiting.pop()
        homes = {*homes, *(join_uri(home, _own_id(tree)) for home in homes)}
        for reference, written in dict.fromkeys(_iter_references(tree)):
            loaded = library.document(reference, base)
            if loaded is None:
                continue
            other = _drop_unknown_dialect(to_tree(loaded[1]))
            names = {join_uri(home, each) for home in homes for each in (reference, written)}
            for name in names:
                yield name.partition("#")[0], other
            if loaded[0] not in seen:
                seen.add(loaded[0])
                waiting.append((loaded[0], other, names))


def _iter_references(tree: Any) -> Iterator[tuple[str, str]]:
    """Return references to other documents, as pairs: joined to an absolute ``$id`` around them, and as written."""
    references: list[tuple[str, str]] = []
    own: set[str] = set()
    waiting: list[tuple[Any, str, bool]] = [(tree, "", False)]
    while waiting:
        node, base, is_map = waiting.pop()
        if isinstance(node, list):
            waiting.extend((each, base, False) for each in node if isinstance(each, (dict, list)))
        if not isinstance(node, dict):
            continue
        if not is_map:
            identifier = _own_id(node)
            if identifier and (base or _ABSOLUTE.match(identifier)):
                base = join_uri(base, identifier).partition("#")[0]
            own.update((base, identifier.partition("#")[0]))
            written = (node.get(keyword) for keyword in _REFERENCES)
            plain = (each.partition("#")[0] for each in written if isinstance(each, str) and not each.startswith("#"))
            references.extend((join_uri(base, each) if base else each, each) for each in plain)
        for name, part in node.items():
            if isinstance(part, (dict, list)) and (is_map or name not in _NO_SCHEMAS):
                waiting.append((part, base, not is_map and name in _MAPS))
    return (pair for pair in references if pair[0] and pair[0] not in own and not _META.match(pair[0]))


def _own_id(schema: Any) -> str:
    """Return ``$id`` (``id`` in draft 04), empty if it is missing or not a string."""
    if not isinstance(schema, dict):
        return ""
    own = schema.get("$id")
    if own is None and "draft-04" in str(schema.get("$schema")):
        own = schema.get("id")
    return own if isinstance(own, str) and not own.startswith("#") else ""


# Comparing two JSON schemas; members that the older one does not name are assumed absent from bodies.

_WORDS: Final = frozenset(
    {"title", "description", "$comment", "examples", "default", "deprecated", "$id", "id", "$schema"}
)
_NESTED: Final = frozenset({"items", "additionalItems", "contains", "additionalProperties", "propertyNames"})
_COMPARING_MAPS: Final = frozenset({"$defs", "definitions", "patternProperties"})
_BOUNDS: Final = frozenset(
    {"type", "enum", "const", "format", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    | {"multipleOf", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"}
)


def compare(old: Any, new: Any, at: str = "") -> Comparison:
    """Compare two schemas; *at* is the JSON pointer to them in their documents."""
    if old == new:
        return "same", ""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return "unknown", f"{at or '/'} is another kind of schema"
    comparisons: list[Comparison] = []
    for keyword in dict.fromkeys((*old, *new)):
        if keyword in _WORDS:
            comparisons.append(("compatible", f"{at}/{keyword} says otherwise"))
        elif old.get(keyword) != new.get(keyword):
            comparisons.append(_compare_keyword(keyword, old, new, at))
    return worst_comparison(comparisons)


def _compare_keyword(keyword: str, old: Mapping[str, Any], new: Mapping[str, Any], at: str) -> Comparison:
    one, other, here = old.get(keyword), new.get(keyword), f"{at}/{keyword}"
    if keyword == "properties" and isinstance(one or {}, dict) and isinstance(other or {}, dict):
        return _compare_properties(old, new, at)
    if keyword == "required" and isinstance(one or [], list) and isinstance(other or [], list):
        moved = sorted(map(str, set(map(str, one or [])) ^ set(map(str, other or []))))
        return ("incompatible", f"{here} changes for {', '.join(moved)}") if moved else ("compatible", "")
    if keyword in _BOUNDS:
        equal = keyword in ("enum", "type") and _sort_values(one) == _sort_values(other)
        return ("compatible", "") if equal else ("incompatible", f"{here} changes")
    if keyword in _NESTED and isinstance(one, dict) and isinstance(other, dict):
        return compare(one, other, here)
    if keyword in _COMPARING_MAPS and isinstance(one, dict) and isinstance(other, dict):
        shared = [compare(one[name], other[name], f"{here}/{name}") for name in one if name in other]
        return worst_comparison([*shared, ("compatible", "")])  # others matter where they are referenced
    return "unknown", f"{here} changes"


def _compare_properties(old: Mapping[str, Any], new: Mapping[str, Any], at: str) -> Comparison:
    """Compare members; a new one is compatible unless the old schema forbids unknown members."""
    one, other = old.get("properties") or {}, new.get("properties") or {}
    open_before = old.get("additionalProperties") in (None, True) and "patternProperties" not in old
    comparisons: list[Comparison] = []
    for name in dict.fromkeys((*one, *other)):
        here = f"{at}/properties/{name}"
        if name not in other:
            comparisons.append(("incompatible", f"{here} is gone"))
        elif name in one:
            comparisons.append(compare(one[name], other[name], here))
        elif open_before:
            comparisons.append(("compatible", f"{here} is new"))
        else:
            comparisons.append(("incompatible", f"{here} is new where nothing new was allowed"))
    return worst_comparison(comparisons)


def _sort_values(value: Any) -> Any:
    return sorted(map(repr, value)) if isinstance(value, list) else [repr(value)]
