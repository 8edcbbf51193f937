"""Sample payloads for JSON Structure, with all its types.

Integers of 64 bits and more and decimals are JSON strings, sets and tuples arrays, maps and choices objects.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec

from catalog.schemas.contract import Library, SchemaSource
from catalog.schemas.filling import Chooser, PayloadSampler, UnsupportedSchema, make_matching_text, make_number_between
from catalog.schemas.json.references import SchemaDocuments, merge_schemas
from catalog.schemas.jsonstructure.validating import find_start

Schema = Mapping[str, Any]
_MAX_HOPS: Final = 40
_NULL_CHANCE: Final = 0.1
_TRIES: Final = 20
_INTEGERS: Final[Mapping[str, tuple[int, int]]] = {
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64, 128)},
    **{f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64, 128)},
    "integer": (-(2**31), 2**31 - 1),
}
_TEXT_INTEGERS: Final = frozenset({"int64", "uint64", "int128", "uint128"})
_FLOATS: Final = frozenset({"number", "float8", "float", "double", "float16", "float32", "float64"})
_COMPOSED: Final = frozenset({"allOf", "anyOf", "oneOf", "if", "then", "else", "$ref", "$extends", "abstract"})
_IMPORTS: Final = ("$import", "$importdefs")
_SCALARS: Final[Mapping[str, Callable[[Chooser], Any]]] = {
    "null": lambda chooser: None,
    "boolean": lambda chooser: chooser.flip(0.5),
    "binary": lambda chooser: base64.b64encode(chooser.make_bytes()).decode("ascii"),
    "date": lambda chooser: chooser.now[:10],
    "datetime": lambda chooser: chooser.now,
    "time": lambda chooser: chooser.now[11:].rstrip("Zz"),
    "duration": lambda chooser: f"PT{chooser.random.randrange(1, 60)}S",
    "uuid": lambda chooser: chooser.make_uuid(),
    "uri": lambda chooser: f"https://example.com/{chooser.make_word()}",
    "jsonpointer": lambda chooser: f"#/{chooser.make_word()}",
    "any": lambda chooser: chooser.make_word(),
}


def open_sampler(source: SchemaSource, library: Library) -> PayloadSampler:
    """Return the generator of sample payloads for a schema."""
    return JsonStructureSampler(source, library, find_start(source))


class JsonStructureSampler:
    """Makes sample payloads for one type of a document, as JSON text whatever the content type."""

    def __init__(self, source: SchemaSource, library: Library, start: Any) -> None:
        self._documents = SchemaDocuments(source, library)
        self._start = start
        self._compounds: Mapping[str, Callable[[Schema, Chooser, int], Any]] = {
            "object": self._make_object,
            "array": self._make_array,
            "set": self._make_array,
            "map": self._make_map,
            "tuple": self._make_tuple,
            "choice": self._make_choice,
        }

    def payload(self, chooser: Chooser, content_type: str) -> bytes:
        return msgspec.json.encode(self.make_value(self._start, chooser, 0))

    def make_value(self, schema: Any, chooser: Chooser, level: int) -> Any:
        """Return a random value for a type at this nesting level.

        Raises:
            UnsupportedSchema: the type allows no value, or the value exceeds the limits.
        """
        chooser.count_value(level)
        plain = self._flatten(schema, chooser, level)
        if "const" in plain:
            return plain["const"]
        if isinstance(plain.get("enum"), list) and plain["enum"]:
            return chooser.pick(plain["enum"])
        kind = str(plain.get("type"))
        if kind in self._compounds:
            return self._compounds[kind](plain, chooser, level)
        return _make_scalar(kind, plain, chooser)

    def _flatten(self, schema: Any, chooser: Chooser, level: int, hops: int = 0) -> Schema:
        """Return the type with references resolved, bases merged, and one alternative of each union chosen."""
        chooser.count_step()
        if not isinstance(schema, Mapping) or hops > _MAX_HOPS:
            raise UnsupportedSchema(
                "the schema has no type at some place" if hops <= _MAX_HOPS else "a type is its own base"
            )
        if isinstance(schema.get("$ref"), str):
            return self._flatten(self._find_target(schema["$ref"], schema), chooser, level, hops + 1)
        if schema.get("abstract") is True and hops == 0:
            raise UnsupportedSchema("an abstract type has no values")
        if _COMPOSED.isdisjoint(schema) and isinstance(schema.get("type"), str):
            return schema
        own = {key: value for key, value in schema.items() if key not in _COMPOSED}
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = own["type"] = self._choose_type(kind, chooser, level)
        parts: list[Schema] = [own]
        if isinstance(kind, Mapping):
            del own["type"]
            parts.append(self._flatten(kind, chooser, level, hops + 1))
        if kind != "choice":
            parts.extend(
                self._flat_base(each, schema, chooser, level, hops) for each in _strings(schema.get("$extends"))
            )
        elif "$extends" in schema:
            parts.append({"$extends": schema["$extends"]})
        composed = self._choose_branches(schema, chooser)
        parts.extend(self._flatten(each, chooser, level, hops + 1) for each in composed if isinstance(each, Mapping))
        return merge_schemas(parts) if len(parts) > 1 else parts[0]

    def _flat_base(self, reference: str, schema: Schema, chooser: Chooser, level: int, hops: int) -> Schema:
        base = self._find_target(reference, schema)
        plain = self._flatten(base, chooser, level, hops + 1)
        return {key: value for key, value in plain.items() if key not in ("type", "name", "$id")}

    def _find_target(self, reference: str, schema: Schema) -> Any:
        try:
            return self._documents.find_target(reference, schema)
        except UnsupportedSchema:
            imported = self._find_import(reference, schema)
            if imported is None:
                raise
            return imported

    def _find_import(self, reference: str, schema: Schema) -> Any:
        """Return the type of an imported document that *reference* names; None if there is none."""
        container, _, name = reference.rpartition("/")
        holders: list[Any] = []
        if container == "#/definitions":
            root = self._documents.find_target("#", schema)
            holders = [root, root.get("definitions")]  # imports at the root add to the definitions
        elif container.startswith("#/"):
            holders = [self._documents.find_target(container, schema)]
        for holder in holders:
            for keyword in _IMPORTS:
                if isinstance(holder, Mapping) and isinstance(holder.get(keyword), str):
                    other = self._documents.find_target(holder[keyword], holder)
                    named = other.get("definitions", {}) if isinstance(other, Mapping) else {}
                    if name in named:
                        return named[name]
                    if keyword == "$import" and other.get("name") == name:
                        return other
        return None

    def _choose_branches(self, schema: Schema, chooser: Chooser) -> Iterable[Any]:
        yield from schema["allOf"] if isinstance(schema.get("allOf"), list) else ()
        for keyword in ("oneOf", "anyOf"):
            if isinstance(schema.get(keyword), list) and schema[keyword]:
                yield chooser.pick(schema[keyword])

    def _choose_type(self, kinds: list[Any], chooser: Chooser, level: int) -> Any:
        others = [each for each in kinds if each != "null"]
        if "null" in kinds and (not others or chooser.is_minimal(level) or chooser.flip(_NULL_CHANCE)):
            return "null"
        if not others:
            raise UnsupportedSchema("a union has no types")
        names = [each for each in others if isinstance(each, str)]
        return chooser.pick(names if names and chooser.is_minimal(level) else others)

    def _make_object(self, schema: Schema, chooser: Chooser, level: int) -> dict[str, Any]:
        members = schema.get("properties")
        members = members if isinstance(members, Mapping) else {}
        required = _required_names(schema, chooser)
        filled: dict[str, Any] = {}
        for name, member in members.items():
            if name in required or chooser.includes(level):
                filled[name] = self.make_value(member, chooser, level + 1)
        others = schema.get("additionalProperties")
        minimum = _size_of(schema, "minProperties", 0)
        if isinstance(others, Mapping) and not members:
            minimum = chooser.pick_count(minimum, None, level)
        for _ in range(_TRIES + minimum):
            if len(filled) >= minimum or others is False:
                break
            filled.setdefault(
                chooser.make_word(), self.make_value(others, chooser, level + 1) if isinstance(others, Mapping) else 0
            )
        return filled

    def _make_array(self, schema: Schema, chooser: Chooser, level: int) -> list[Any]:
        maximum = _size_of(schema, "maxItems", -1)
        count = chooser.pick_count(_size_of(schema, "minItems", 0), None if maximum < 0 else maximum, level)
        distinct = schema.get("type") == "set" or schema.get("uniqueItems") is True
        items: list[Any] = []
        seen: set[bytes] = set()
        for _ in range(count * (_TRIES if distinct else 1)):
            if len(items) == count:
                break
            item = self.make_value(schema.get("items", {"type": "any"}), chooser, level + 1)
            text = msgspec.json.encode(item)
            if not distinct or text not in seen:
                items.append(item)
                seen.add(text)
        return items

    def _make_map(self, schema: Schema, chooser: Chooser, level: int) -> dict[str, Any]:
        maximum = _size_of(schema, "maxEntries", -1)
        count = chooser.pick_count(_size_of(schema, "minEntries", 0), None if maximum < 0 else maximum, level)
        names = schema.get("keyNames")
        entries: dict[str, Any] = {}
        for _ in range(_TRIES + count):
            if len(entries) >= count:
                break
            name = _make_scalar("string", names, chooser) if isinstance(names, Mapping) else chooser.make_word()
            entries.setdefault(name, self.make_value(schema.get("values", {"type": "any"}), chooser, level + 1))
        return entries

    def _make_tuple(self, schema: Schema, chooser: Chooser, level: int) -> list[Any]:
        members, order = schema.get("properties"), schema.get("tuple")
        if not isinstance(members, Mapping) or not isinstance(order, list):
            raise UnsupportedSchema("a tuple type lists no members in order")
        return [self.make_value(members.get(name), chooser, level + 1) for name in order]

    def _make_choice(self, schema: Schema, chooser: Chooser, level: int) -> dict[str, Any]:
        choices = schema.get("choices")
        if not isinstance(choices, Mapping) or not choices:
            raise UnsupportedSchema("a choice type has no choices")
        name = chooser.pick(list(choices))
        value = self.make_value(choices[name], chooser, level + 1)
        if "$extends" not in schema:
            return {name: value}
        if not isinstance(value, dict):
            raise UnsupportedSchema("an inline choice needs objects")
        return {str(schema.get("selector")): name, **value}


def _make_scalar(kind: str, schema: Schema, chooser: Chooser) -> Any:
    if kind in _INTEGERS:
        low, high = _INTEGERS[kind]
        number = make_number_between(schema, chooser, whole=True, low=low, high=high)
        return str(number) if kind in _TEXT_INTEGERS else number
    if kind in _FLOATS:
        return make_number_between(schema, chooser, whole=False)
    if kind == "decimal":
        return str(Decimal(repr(make_number_between(schema, chooser, whole=False))))
    if kind == "string":
        return _make_text(schema, chooser)
    make = _SCALARS.get(kind)
    if make is None:
        raise UnsupportedSchema(f"the type {kind[:40]} is unknown")
    return make(chooser)


def _make_text(schema: Schema, chooser: Chooser) -> str:
    low, high = _size_of(schema, "minLength", 0), _size_of(schema, "maxLength", -1)
    max_length = None if high < 0 else high
    pattern = schema.get("pattern")
    for _ in range(_TRIES if isinstance(pattern, str) else 0):
        text = make_matching_text(str(pattern), chooser)
        if text is None:
            examples = [each for each in schema.get("examples", ()) if isinstance(each, str)]
            return chooser.pick(examples) if examples else chooser.make_text(low, max_length)
        if low <= len(text) and (max_length is None or len(text) <= max_length):
            return text
    formatted = chooser.make_formatted(str(schema.get("format") or ""))
    return formatted if formatted is not None else chooser.make_text(low, max_length)


def _required_names(schema: Schema, chooser: Chooser) -> frozenset[str]:
    """Return the required names; if ``required`` lists alternative sets, one is chosen."""
    names = schema.get("required")
    names = names if isinstance(names, list) else []
    sets = [each for each in names if isinstance(each, list)]
    required = [*(each for each in names if isinstance(each, str)), *(chooser.pick(sets) if sets else ())]
    dependents = schema.get("dependentRequired")
    for name in required:  # grows during iteration, because names may require others
        more = dependents.get(name) if isinstance(dependents, Mapping) else None
        required.extend(each for each in more or () if each not in required)
    return frozenset(required)


def _strings(value: Any) -> list[str]:
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]


def _size_of(schema: Schema, keyword: str, otherwise: int) -> int:
    value = schema.get(keyword)
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise
