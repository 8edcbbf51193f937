"""Sample payloads for JSON Schema, drafts 04 to 2020-12.

For each value, ``$ref``, ``allOf`` and one branch of ``oneOf``, ``anyOf`` and ``if`` are merged into one flat schema.
``not``, several patterns and the like are not solved: the validator may reject the value, and another attempt follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import jsonschema_rs
import msgspec

from catalog.schemas.contract import Library, SchemaSource
from catalog.schemas.filling import Chooser, PayloadSampler, UnsupportedSchema, make_matching_text, make_number_between
from catalog.schemas.json.references import SchemaDocuments, list_of, mapping_of, merge_schemas
from catalog.schemas.jsonschema.validating import REF_ALONE, draft_of, find_start

_HEIGHTS: Final = 6
"""Levels up to which the heights of branches are compared, to find the flattest."""
_NULL_CHANCE: Final = 0.1
_EXAMPLE_CHANCE: Final = 0.25
_DISTINCT_TRIES: Final = 20
_COMPOSED: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef", "allOf", "oneOf", "anyOf", "if", "then", "else"})
_IMPLIED: Final = (
    ("object", ("properties", "required", "additionalProperties", "patternProperties", "minProperties")),
    ("array", ("items", "prefixItems", "minItems", "contains", "uniqueItems")),
    ("number", ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
)
_PYTHON_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_STRING: Final = {"type": "string"}


def open_sampler(source: SchemaSource, library: Library) -> PayloadSampler:
    """Return the generator of sample payloads for a schema."""
    return JsonSchemaSampler(source, library, find_start(source))


class JsonSchemaSampler:
    """Makes sample payloads for the schema *start* of a document, as JSON text whatever the content type."""

    def __init__(self, source: SchemaSource, library: Library, start: Any) -> None:
        self._documents = SchemaDocuments(source, library)
        self._start = start
        self._heights: dict[tuple[int, int], int] = {}
        self._ref_alone = draft_of(source.document, source.version) in REF_ALONE

    def payload(self, chooser: Chooser, content_type: str) -> bytes:
        try:
            return msgspec.json.encode(self.make_value(self._start, chooser, 0))
        except RecursionError:
            raise UnsupportedSchema("a reference leads to itself") from None

    def make_value(self, schema: Any, chooser: Chooser, level: int) -> Any:
        """Return a random value for *schema* at this nesting level.

        Raises:
            UnsupportedSchema: the schema allows no value, or the value exceeds the limits.
        """
        chooser.count_value(level)
        plain = self._flatten_schema(schema, chooser, level)
        if "const" in plain:
            return plain["const"]
        if isinstance(plain.get("enum"), list):
            if not plain["enum"]:
                raise UnsupportedSchema("the schema allows no value")
            return chooser.pick(plain["enum"])
        kind = self._choose_type(plain, chooser)
        known = _known_values(plain, kind)
        if known and chooser.flip(_EXAMPLE_CHANCE):
            return chooser.pick(known)
        if kind == "object":
            return self._make_object(plain, chooser, level)
        if kind == "array":
            return self._make_array(plain, chooser, level)
        if kind in ("integer", "number"):
            return make_number_between(plain, chooser, whole=kind == "integer")
        if kind == "boolean":
            return chooser.flip(0.5)
        if "x-written" in plain:
            limits = {name: Decimal(each) for part in reversed(plain["x-written"]) for name, each in part.items()}
            return str(make_number_between(limits, chooser, whole=plain["x-type"] != "decimal"))
        return None if kind == "null" else _make_text(plain, known, chooser)

    def _flatten_schema(self, schema: Any, chooser: Chooser, level: int) -> Mapping[str, Any]:
        """Return the schema without composition: references followed, and one branch of each union chosen."""
        chooser.count_step()
        if schema is False:
            raise UnsupportedSchema("the schema allows no value")
        if not isinstance(schema, Mapping):
            return {}
        if _COMPOSED.isdisjoint(schema):
            return schema
        parts: list[Mapping[str, Any]] = []
        referred = self._documents.follow_reference(schema)
        if referred is not None:
            parts.append(self._flatten_schema(referred, chooser, level))
            if self._ref_alone:
                return merge_schemas(parts)
        parts.append({keyword: value for keyword, value in schema.items() if keyword not in _COMPOSED})
        composed = [*list_of(schema, "allOf"), *self._choose_branches(schema, chooser, level)]
        parts.extend(self._flatten_schema(each, chooser, level) for each in composed)
        return merge_schemas(parts)

    def _choose_branches(self, schema: Mapping[str, Any], chooser: Chooser, level: int) -> Iterable[Any]:
        for keyword in ("oneOf", "anyOf"):
            branches = [each for each in list_of(schema, keyword) if each is not False]
            if branches:
                yield min(branches, key=self._min_height) if chooser.is_minimal(level) else chooser.pick(branches)
        if "if" in schema:
            # A value for "else" must not match "if"; this is not ensured, but validated later.
            yield from ((schema["if"], schema.get("then", True)) if chooser.flip(0.5) else (schema.get("else", True),))

    def _min_height(self, schema: Any, limit: int = _HEIGHTS) -> int:
        """Return the minimum nesting of a schema's values; *limit* or more means that it may be endless."""
        if limit <= 0 or not isinstance(schema, Mapping) or "const" in schema or "enum" in schema:
            return 0
        if not self._documents.contains(schema):
            return self._composed_height(schema, limit)
        key = (id(schema), limit)
        if key not in self._heights:
            self._heights[key] = self._composed_height(schema, limit)
        return self._heights[key]

    def _composed_height(self, schema: Mapping[str, Any], limit: int) -> int:
        composed = [self._min_height(each, limit - 1) for each in list_of(schema, "allOf")]
        referred = self._documents.follow_reference(schema)
        if referred is not None:
            composed.append(self._min_height(referred, limit - 1) + 1)
        for keyword in ("oneOf", "anyOf"):
            composed.append(min((self._min_height(each, limit - 1) for each in list_of(schema, keyword)), default=0))
        members = schema.get("properties")
        for name in list_of(schema, "required"):
            if isinstance(members, Mapping):
                composed.append(1 + self._min_height(members.get(name), limit - 1))
        if schema.get("minItems"):
            composed.append(1 + self._min_height(schema.get("items"), limit - 1))
        return max(composed, default=0)

    def _choose_type(self, schema: Mapping[str, Any], chooser: Chooser) -> str:
        kind = schema.get("type")
        if isinstance(kind, list):
            if not kind:
                raise UnsupportedSchema("the schema allows no type")
            others = [each for each in kind if each != "null"]
            return "null" if not others or ("null" in kind and chooser.flip(_NULL_CHANCE)) else chooser.pick(others)
        if isinstance(kind, str):
            return kind
        return next((name for name, words in _IMPLIED if any(word in schema for word in words)), "string")

    def _make_object(self, schema: Mapping[str, Any], chooser: Chooser, level: int) -> dict[str, Any]:
        members = mapping_of(schema, "properties")
        chosen = dict.fromkeys(name for name in list_of(schema, "required") if isinstance(name, str))
        room = _size_of(schema, "maxProperties", len(members) + len(chosen))
        for name, member in members.items():
            if name not in chosen and len(chosen) < room and member is not False and chooser.includes(level):
                chosen[name] = None
        chosen = dict.fromkeys(_add_dependents(schema, chosen))
        applied = [each for name, each in mapping_of(schema, "dependentSchemas").items() if name in chosen]
        if applied:
            rest = {key: value for key, value in schema.items() if key != "dependentSchemas"}
            widened = merge_schemas([rest, *(self._flatten_schema(each, chooser, level) for each in applied)])
            return self._make_object({**widened, "required": [*chosen, *list_of(widened, "required")]}, chooser, level)
        filled: dict[str, Any] = {}
        for name in dict.fromkeys((*members, *chosen)):
            if name in chosen:
                filled[name] = self.make_value(self._member_schema(schema, name), chooser, level + 1)
        self._add_entries(schema, filled, chooser, level)
        return filled

    def _member_schema(self, schema: Mapping[str, Any], name: str) -> Any:
        """Return the schema of a member: from ``properties``, a pattern, or ``additionalProperties``."""
        members = mapping_of(schema, "properties")
        if name in members:
            return members[name]
        for pattern, member in mapping_of(schema, "patternProperties").items():
            if _matches_pattern(pattern, name):
                return member
        others = schema.get("additionalProperties", schema.get("unevaluatedProperties", {}))
        return {} if others is False else others  # required but not allowed: validation will fail

    def _add_entries(self, schema: Mapping[str, Any], filled: dict[str, Any], chooser: Chooser, level: int) -> None:
        """Add members with random names: as many as required, and a few if the schema describes no others."""
        patterns = mapping_of(schema, "patternProperties")
        others = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
        minimum = _size_of(schema, "minProperties", 0)
        describes = bool(patterns) or (isinstance(others, Mapping) and not mapping_of(schema, "properties"))
        maximum = _size_of(schema, "maxProperties", minimum + 2)
        count = chooser.pick_count(minimum, maximum, level) if describes else minimum
        for _ in range(_DISTINCT_TRIES + count):
            if len(filled) >= count:
                return
            name = self._make_free_name(schema, chooser)
            if name not in filled:
                filled[name] = self.make_value(self._member_schema(schema, name), chooser, level + 1)

    def _make_free_name(self, schema: Mapping[str, Any], chooser: Chooser) -> str:
        members = mapping_of(schema, "properties")
        patterns = [each for each, member in mapping_of(schema, "patternProperties").items() if member is not False]
        if schema.get("additionalProperties") is False and not patterns:
            return chooser.pick(list(members)) if members else chooser.make_word()
        if patterns:
            text = make_matching_text(chooser.pick(patterns), chooser)
            if text is not None:
                return text
        rule = schema.get("propertyNames")
        name = (
            self.make_value({"allOf": [_STRING, rule]}, chooser, 0)
            if isinstance(rule, Mapping)
            else chooser.make_word()
        )
        return name if isinstance(name, str) else chooser.make_word()

    def _make_array(self, schema: Mapping[str, Any], chooser: Chooser, level: int) -> list[Any]:
        items, places = schema.get("items", True), list_of(schema, "prefixItems")
        if isinstance(items, list):
            places, items = items, schema.get("additionalItems", True)
        minimum = max(_size_of(schema, "minItems", 0), len(places) if chooser.includes(level) else 0)
        maximum = _size_of(schema, "maxItems", -1)
        count = chooser.pick_count(minimum, None if maximum < 0 else maximum, level)
        if items is False:
            count = min(count, len(places))
        schemas: list[Any] = [places[at] if at < len(places) else items for at in range(count)]
        if "contains" in schema:
            needed = max(1, _size_of(schema, "minContains", 1))
            free = [at for at in range(len(places), len(schemas))][:needed]
            for at in free:
                schemas[at] = {"allOf": [items, schema["contains"]]}
            schemas += [{"allOf": [items, schema["contains"]]}] * (needed - len(free))
        return self._make_items(schemas, chooser, level, distinct=schema.get("uniqueItems") is True)

    def _make_items(self, schemas: list[Any], chooser: Chooser, level: int, *, distinct: bool) -> list[Any]:
        items: list[Any] = []
        seen: set[bytes] = set()
        for each in schemas:
            for _ in range(_DISTINCT_TRIES if distinct else 1):
                item = self.make_value(each, chooser, level + 1)
                text = msgspec.json.encode(item)
                if not distinct or text not in seen:
                    items.append(item)
                    seen.add(text)
                    break
        return items


def _add_dependents(schema: Mapping[str, Any], chosen: Iterable[str]) -> Iterable[str]:
    """Return the names, and those that they require by dependencies."""
    dependents = {**mapping_of(schema, "dependencies"), **mapping_of(schema, "dependentRequired")}
    waiting, names = list(chosen), dict.fromkeys(chosen)
    while waiting:
        for name in dependents.get(waiting.pop(), ()):
            if isinstance(name, str) and name not in names:
                names[name] = None
                waiting.append(name)
    return names


def _make_text(schema: Mapping[str, Any], known: Sequence[Any], chooser: Chooser) -> str:
    low, high = _size_of(schema, "minLength", 0), _size_of(schema, "maxLength", -1)
    patterns = [schema["pattern"]] if isinstance(schema.get("pattern"), str) else []
    formatted = chooser.make_formatted(str(schema.get("format") or schema.get("contentEncoding") or ""))
    texts = [formatted, *(make_matching_text(each, chooser) for each in patterns * _DISTINCT_TRIES)]
    for text in (*texts, *(chooser.random.sample(known, len(known)) if patterns else ())):
        if not isinstance(text, str) or len(text) < low or 0 <= high < len(text):
            continue
        if all(_matches_pattern(each, text) for each in patterns):
            return text
    return chooser.make_text(low, None if high < 0 else high)


def _known_values(schema: Mapping[str, Any], kind: str) -> list[Any]:
    """Return the examples and the default of the schema that have the type."""
    named = [*list_of(schema, "examples"), *([schema["default"]] if "default" in schema else [])]
    types = _PYTHON_TYPES.get(kind, ())
    return [each for each in named if isinstance(each, types) and (kind == "boolean" or not isinstance(each, bool))]


def _matches_pattern(pattern: str, name: str) -> bool:
    """Whether a name matches an ECMA 262 pattern, by the validator's own engine."""
    try:
        return jsonschema_rs.Draft202012Validator({"type": "string", "pattern": pattern}).is_valid(name)
    except (jsonschema_rs.ValidationError, ValueError):
        return False  # an invalid expression, which compiling the schema reports


def _size_of(schema: Mapping[str, Any], keyword: str, otherwise: int) -> int:
    value = schema.get(keyword)
    return int(value) if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool) else otherwise
