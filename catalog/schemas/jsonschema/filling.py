"""Values for JSON Schema, drafts 04 to 2020-12: made up from what a schema asks, not solved.

``$ref``, ``allOf`` and one branch each of ``oneOf``, ``anyOf`` and ``if`` are merged into one plain schema per value;
then the value is made. ``not``, two patterns at once and the like are left to the validator and another attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import jsonschema_rs
import msgspec

from catalog.schemas.contract import Library, SchemaSource
from catalog.schemas.filling import Filler, Filling, Unfillable, number_between, sample
from catalog.schemas.json.references import SchemaDocuments, merged
from catalog.schemas.jsonschema.validating import start_of

_MAX_HOPS: Final = 40
_HEIGHTS: Final = 6
"""Levels past which a branch counts as endless when the flattest is looked for."""
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
_REF_ALONE: Final = ("draft-03", "draft-04", "draft-06", "draft-07", "draft-3", "draft-4", "draft-6", "draft-7")
"""Drafts in which a ``$ref`` hides what stands beside it."""


def open_filler(source: SchemaSource, library: Library) -> Filler:
    """Return what makes payloads for a schema."""
    return JsonSchemaFiller(source, library, start_of(source))


class JsonSchemaFiller:
    """Makes values for one JSON schema, the ``start`` of its document, as JSON text whatever the content type."""

    def __init__(self, source: SchemaSource, library: Library, start: Any) -> None:
        self._documents = SchemaDocuments(source, library)
        self._start = start
        self._heights: dict[tuple[int, int], int] = {}
        declared = source.document.get("$schema") if isinstance(source.document, Mapping) else None
        version = declared if isinstance(declared, str) else source.version
        self._ref_alone = any(draft in version for draft in _REF_ALONE)

    def payload(self, filling: Filling, content_type: str) -> bytes:
        return msgspec.json.encode(self.value(self._start, filling, 0))

    def value(self, schema: Any, filling: Filling, level: int) -> Any:
        """Return a value for *schema* at that level of nesting.

        Raises:
            Unfillable: the schema allows nothing, or what it asks for never ends.
        """
        filling.spend(level)
        plain = self._plain(schema, filling, level)
        if "const" in plain:
            return plain["const"]
        if isinstance(plain.get("enum"), list):
            if not plain["enum"]:
                raise Unfillable("the schema allows no value")
            return filling.pick(plain["enum"])
        kind = self._kind(plain, filling)
        known = _known_values(plain, kind)
        if known and filling.chance(_EXAMPLE_CHANCE):
            return filling.pick(known)
        if kind == "object":
            return self._object(plain, filling, level)
        if kind == "array":
            return self._array(plain, filling, level)
        if kind in ("integer", "number"):
            return number_between(plain, filling, whole=kind == "integer")
        if kind == "boolean":
            return filling.chance(0.5)
        return None if kind == "null" else _text(plain, known, filling)

    def _plain(self, schema: Any, filling: Filling, level: int, hops: int = 0) -> Mapping[str, Any]:
        """Return the schema without composition: references followed, one branch of each choice taken."""
        filling.step()
        if schema is False or hops > _MAX_HOPS:
            raise Unfillable("the schema allows no value" if schema is False else "a reference leads to itself")
        if not isinstance(schema, Mapping):
            return {}
        if _COMPOSED.isdisjoint(schema):
            return schema
        parts: list[Mapping[str, Any]] = []
        referred = self._documents.referred(schema)
        if referred is not None:
            parts.append(self._plain(referred, filling, level, hops + 1))
            if self._ref_alone:
                return merged(parts)
        parts.append({keyword: value for keyword, value in schema.items() if keyword not in _COMPOSED})
        composed = [*_listed(schema, "allOf"), *self._branches(schema, filling, level)]
        parts.extend(self._plain(each, filling, level, hops + 1) for each in composed)
        return merged(parts)

    def _branches(self, schema: Mapping[str, Any], filling: Filling, level: int) -> Iterable[Any]:
        for keyword in ("oneOf", "anyOf"):
            branches = [each for each in _listed(schema, keyword) if each is not False]
            if branches:
                yield self._flattest(branches) if filling.is_lean(level) else filling.pick(branches)
        if "if" in schema:
            # What "else" wants must not match "if", which is left to chance and the validator.
            yield from (schema["if"], schema.get("then", True)) if filling.chance(0.5) else (schema.get("else", True),)

    def _flattest(self, branches: Sequence[Any]) -> Any:
        return min(branches, key=lambda branch: self._height(branch, _HEIGHTS))

    def _height(self, schema: Any, limit: int) -> int:
        """Return how many levels the least value of a schema has; *limit* or more means too many to tell."""
        if limit <= 0 or not isinstance(schema, Mapping) or "const" in schema or "enum" in schema:
            return 0
        if not self._documents.has(schema):
            return self._composed_height(schema, limit)
        key = (id(schema), limit)
        if key not in self._heights:
            self._heights[key] = self._composed_height(schema, limit)
        return self._heights[key]

    def _composed_height(self, schema: Mapping[str, Any], limit: int) -> int:
        composed = [self._height(each, limit - 1) for each in _listed(schema, "allOf")]
        referred = self._documents.referred(schema)
        if referred is not None:
            composed.append(self._height(referred, limit - 1) + 1)
        for keyword in ("oneOf", "anyOf"):
            composed.append(min((self._height(each, limit - 1) for each in _listed(schema, keyword)), default=0))
        members = schema.get("properties")
        for name in _listed(schema, "required"):
            if isinstance(members, Mapping):
                composed.append(1 + self._height(members.get(name), limit - 1))
        if schema.get("minItems"):
            composed.append(1 + self._height(schema.get("items"), limit - 1))
        return max(composed, default=0)

    def _kind(self, schema: Mapping[str, Any], filling: Filling) -> str:
        kind = schema.get("type")
        if isinstance(kind, list):
            if not kind:
                raise Unfillable("the schema allows no type")
            others = [each for each in kind if each != "null"]
            return "null" if not others or ("null" in kind and filling.chance(_NULL_CHANCE)) else filling.pick(others)
        if isinstance(kind, str):
            return kind
        return next((name for name, words in _IMPLIED if any(word in schema for word in words)), "string")

    def _object(self, schema: Mapping[str, Any], filling: Filling, level: int) -> dict[str, Any]:
        members = _mapping(schema, "properties")
        chosen = dict.fromkeys(name for name in _listed(schema, "required") if isinstance(name, str))
        room = _size(schema, "maxProperties", len(members) + len(chosen))
        for name, member in members.items():
            if name not in chosen and len(chosen) < room and member is not False and filling.wants(level):
                chosen[name] = None
        chosen = dict.fromkeys(_with_dependents(schema, chosen))
        applied = [each for name, each in _mapping(schema, "dependentSchemas").items() if name in chosen]
        if applied:
            rest = {key: value for key, value in schema.items() if key != "dependentSchemas"}
            widened = merged([rest, *(self._plain(each, filling, level) for each in applied)])
            return self._object({**widened, "required": [*chosen, *_listed(widened, "required")]}, filling, level)
        filled: dict[str, Any] = {}
        for name in dict.fromkeys((*members, *chosen)):
            if name in chosen:
                filled[name] = self.value(self._member(schema, name), filling, level + 1)
        self._add_entries(schema, filled, filling, level)
        return filled

    def _member(self, schema: Mapping[str, Any], name: str) -> Any:
        """Return the schema of a member by its name: its own, that of its pattern, or that of all others."""
        members = _mapping(schema, "properties")
        if name in members:
            return members[name]
        for pattern, member in _mapping(schema, "patternProperties").items():
            if _matches(pattern, name):
                return member
        others = schema.get("additionalProperties", schema.get("unevaluatedProperties", {}))
        return {} if others is False else others  # required and not allowed: the validator says so

    def _add_entries(self, schema: Mapping[str, Any], filled: dict[str, Any], filling: Filling, level: int) -> None:
        """Add members of free names: as many as are required, and a few where the schema describes nothing else."""
        patterns = _mapping(schema, "patternProperties")
        others = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
        least = _size(schema, "minProperties", 0)
        describes = bool(patterns) or (isinstance(others, Mapping) and not _mapping(schema, "properties"))
        most = _size(schema, "maxProperties", least + 2)
        wanted = filling.count(least, most, level) if describes else least
        for _ in range(_DISTINCT_TRIES + wanted):
            if len(filled) >= wanted:
                return
            name = self._free_name(schema, filling)
            if name not in filled:
                filled[name] = self.value(self._member(schema, name), filling, level + 1)

    def _free_name(self, schema: Mapping[str, Any], filling: Filling) -> str:
        members = _mapping(schema, "properties")
        patterns = [each for each, member in _mapping(schema, "patternProperties").items() if member is not False]
        if schema.get("additionalProperties") is False and not patterns:
            return filling.pick(list(members)) if members else filling.word()
        if patterns:
            text = sample(filling.pick(patterns), filling)
            if text is not None:
                return text
        names = schema.get("propertyNames")
        name = self.value({"allOf": [_STRING, names]}, filling, 0) if isinstance(names, Mapping) else filling.word()
        return name if isinstance(name, str) else filling.word()

    def _array(self, schema: Mapping[str, Any], filling: Filling, level: int) -> list[Any]:
        items, places = schema.get("items", True), schema.get("prefixItems")
        if isinstance(items, list):
            places, items = items, schema.get("additionalItems", True)
        places = places if isinstance(places, list) else []
        least = max(_size(schema, "minItems", 0), len(places) if filling.wants(level) else 0)
        most = _size(schema, "maxItems", -1)
        count = filling.count(least, None if most < 0 else most, level)
        if items is False:
            count = min(count, len(places))
        asked: list[Any] = [places[at] if at < len(places) else items for at in range(count)]
        if "contains" in schema:
            held = max(1, _size(schema, "minContains", 1))
            free = [at for at in range(len(places), len(asked))][:held]
            for at in free:
                asked[at] = {"allOf": [items, schema["contains"]]}
            asked += [{"allOf": [items, schema["contains"]]}] * (held - len(free))
        return self._items(asked, filling, level, distinct=schema.get("uniqueItems") is True)

    def _items(self, asked: list[Any], filling: Filling, level: int, *, distinct: bool) -> list[Any]:
        items: list[Any] = []
        seen: set[bytes] = set()
        for each in asked:
            for _ in range(_DISTINCT_TRIES if distinct else 1):
                item = self.value(each, filling, level + 1)
                text = msgspec.json.encode(item)
                if not distinct or text not in seen:
                    items.append(item)
                    seen.add(text)
                    break
        return items


def _with_dependents(schema: Mapping[str, Any], chosen: Iterable[str]) -> Iterable[str]:
    """Return the names with all that they require to be there as well."""
    dependents = {**_mapping(schema, "dependencies"), **_mapping(schema, "dependentRequired")}
    waiting, names = list(chosen), dict.fromkeys(chosen)
    while waiting:
        for name in dependents.get(waiting.pop(), ()):
            if isinstance(name, str) and name not in names:
                names[name] = None
                waiting.append(name)
    return names


def _text(schema: Mapping[str, Any], known: Sequence[Any], filling: Filling) -> str:
    low, high = _size(schema, "minLength", 0), _size(schema, "maxLength", -1)
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        for _ in range(_DISTINCT_TRIES):
            text = sample(pattern, filling)
            if text is None:
                break
            if low <= len(text) and (high < 0 or len(text) <= high):
                return text
        if known:
            return str(filling.pick(known))
    formatted = filling.formatted(str(schema.get("format") or schema.get("contentEncoding") or ""))
    if formatted is not None and low <= len(formatted) and (high < 0 or len(formatted) <= high):
        return formatted
    return filling.text(low, None if high < 0 else high)


def _known_values(schema: Mapping[str, Any], kind: str) -> list[Any]:
    """Return the values that the schema itself names, as far as they are of the type."""
    named = [*_listed(schema, "examples"), *([schema["default"]] if "default" in schema else [])]
    wanted = _PYTHON_TYPES.get(kind, ())
    return [each for each in named if isinstance(each, wanted) and (kind == "boolean" or not isinstance(each, bool))]


def _matches(pattern: str, name: str) -> bool:
    """Whether a name matches a pattern, asked of the one engine whose expressions these are."""
    try:
        return jsonschema_rs.Draft202012Validator({"type": "string", "pattern": pattern}).is_valid(name)
    except (jsonschema_rs.ValidationError, ValueError):
        return False  # no regular expression: the schema's own compiler reports that


def _listed(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def _mapping(schema: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    value = schema.get(keyword)
    return value if isinstance(value, Mapping) else {}


def _size(schema: Mapping[str, Any], keyword: str, otherwise: int) -> int:
    value = schema.get(keyword)
    return int(value) if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool) else otherwise
