"""Values for JSON Structure: all its types, in the JSON form that its core gives them.

64-bit and larger integers and decimals are texts there, sets and tuples arrays, maps and choices objects.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec

from catalog.schemas.contract import Library, SchemaSource
from catalog.schemas.filling import Filler, Filling, Unfillable, number_between, sample
from catalog.schemas.json.references import SchemaDocuments, merged
from catalog.schemas.jsonstructure.validating import start_of

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
_SCALARS: Final[Mapping[str, Callable[[Filling], Any]]] = {
    "null": lambda filling: None,
    "boolean": lambda filling: filling.chance(0.5),
    "binary": lambda filling: base64.b64encode(filling.bytes()).decode("ascii"),
    "date": lambda filling: filling.now[:10],
    "datetime": lambda filling: filling.now,
    "time": lambda filling: filling.now[11:].rstrip("Zz"),
    "duration": lambda filling: f"PT{filling.random.randrange(1, 60)}S",
    "uuid": lambda filling: filling.uuid(),
    "uri": lambda filling: f"https://example.com/{filling.word()}",
    "jsonpointer": lambda filling: f"#/{filling.word()}",
    "any": lambda filling: filling.word(),
}


def open_filler(source: SchemaSource, library: Library) -> Filler:
    """Return what makes payloads for a schema."""
    return JsonStructureFiller(source, library, start_of(source))


class JsonStructureFiller:
    """Makes values for one type of a JSON Structure document, as JSON text whatever the content type."""

    def __init__(self, source: SchemaSource, library: Library, start: Any) -> None:
        self._documents = SchemaDocuments(source, library)
        self._start = start
        self._compounds: Mapping[str, Callable[[Schema, Filling, int], Any]] = {
            "object": self._object,
            "array": self._array,
            "set": self._array,
            "map": self._map,
            "tuple": self._tuple,
            "choice": self._choice,
        }

    def payload(self, filling: Filling, content_type: str) -> bytes:
        return msgspec.json.encode(self.value(self._start, filling, 0))

    def value(self, schema: Any, filling: Filling, level: int) -> Any:
        """Return a value for a type at that level of nesting.

        Raises:
            Unfillable: the type cannot have values, or what it requires never ends.
        """
        filling.spend(level)
        plain = self._plain(schema, filling, level)
        if "const" in plain:
            return plain["const"]
        if isinstance(plain.get("enum"), list) and plain["enum"]:
            return filling.pick(plain["enum"])
        kind = str(plain.get("type"))
        if kind in self._compounds:
            return self._compounds[kind](plain, filling, level)
        return _scalar(kind, plain, filling)

    def _plain(self, schema: Any, filling: Filling, level: int, hops: int = 0) -> Schema:
        """Return the type with its name followed, its bases merged, and one branch of each choice taken."""
        filling.step()
        if not isinstance(schema, Mapping) or hops > _MAX_HOPS:
            raise Unfillable("the schema has no type at some place" if hops <= _MAX_HOPS else "a type is its own base")
        if isinstance(schema.get("$ref"), str):
            return self._plain(self._target(schema["$ref"], schema), filling, level, hops + 1)
        if schema.get("abstract") is True and hops == 0:
            raise Unfillable("an abstract type has no values")
        if _COMPOSED.isdisjoint(schema) and isinstance(schema.get("type"), str):
            return schema
        own = {key: value for key, value in schema.items() if key not in _COMPOSED}
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = own["type"] = self._alternative(kind, filling, level)
        parts: list[Schema] = [own]
        if isinstance(kind, Mapping):
            del own["type"]
            parts.append(self._plain(kind, filling, level, hops + 1))
        if kind != "choice":
            parts.extend(self._base(each, schema, filling, level, hops) for each in _texts(schema.get("$extends")))
        elif "$extends" in schema:
            parts.append({"$extends": schema["$extends"]})
        composed = self._composed(schema, filling)
        parts.extend(self._plain(each, filling, level, hops + 1) for each in composed if isinstance(each, Mapping))
        return merged(parts) if len(parts) > 1 else parts[0]

    def _base(self, reference: str, schema: Schema, filling: Filling, level: int, hops: int) -> Schema:
        base = self._target(reference, schema)
        plain = self._plain(base, filling, level, hops + 1)
        return {key: value for key, value in plain.items() if key not in ("type", "name", "$id")}

    def _target(self, reference: str, schema: Schema) -> Any:
        try:
            return self._documents.target(reference, schema)
        except Unfillable:
            imported = self._imported(reference, schema)
            if imported is None:
                raise
            return imported

    def _imported(self, reference: str, schema: Schema) -> Any:
        """Return a type that another document defines, which is imported where *reference* looks for it."""
        container, _, name = reference.rpartition("/")
        holders: list[Any] = []
        if container == "#/definitions":
            root = self._documents.target("#", schema)
            holders = [root, root.get("definitions")]  # what the root imports goes into its definitions
        elif container.startswith("#/"):
            holders = [self._documents.target(container, schema)]
        for holder in holders:
            for keyword in _IMPORTS:
                if isinstance(holder, Mapping) and isinstance(holder.get(keyword), str):
                    other = self._documents.target(holder[keyword], holder)
                    named = other.get("definitions", {}) if isinstance(other, Mapping) else {}
                    if name in named:
                        return named[name]
                    if keyword == "$import" and other.get("name") == name:
                        return other
        return None

    def _composed(self, schema: Schema, filling: Filling) -> Iterable[Any]:
        yield from schema["allOf"] if isinstance(schema.get("allOf"), list) else ()
        for keyword in ("oneOf", "anyOf"):
            if isinstance(schema.get(keyword), list) and schema[keyword]:
                yield filling.pick(schema[keyword])

    def _alternative(self, kinds: list[Any], filling: Filling, level: int) -> Any:
        others = [each for each in kinds if each != "null"]
        if "null" in kinds and (not others or filling.is_lean(level) or filling.chance(_NULL_CHANCE)):
            return "null"
        if not others:
            raise Unfillable("a union has no types")
        names = [each for each in others if isinstance(each, str)]
        return filling.pick(names if names and filling.is_lean(level) else others)

    def _object(self, schema: Schema, filling: Filling, level: int) -> dict[str, Any]:
        members = schema.get("properties")
        members = members if isinstance(members, Mapping) else {}
        required = _required(schema, filling)
        filled: dict[str, Any] = {}
        for name, member in members.items():
            if name in required or filling.wants(level):
                filled[name] = self.value(member, filling, level + 1)
        others = schema.get("additionalProperties")
        least = _size(schema, "minProperties", 0)
        if isinstance(others, Mapping) and not members:
            least = filling.count(least, None, level)
        for _ in range(_TRIES + least):
            if len(filled) >= least or others is False:
                break
            filled.setdefault(
                filling.word(), self.value(others, filling, level + 1) if isinstance(others, Mapping) else 0
            )
        return filled

    def _array(self, schema: Schema, filling: Filling, level: int) -> list[Any]:
        most = _size(schema, "maxItems", -1)
        count = filling.count(_size(schema, "minItems", 0), None if most < 0 else most, level)
        distinct = schema.get("type") == "set" or schema.get("uniqueItems") is True
        items: list[Any] = []
        seen: set[bytes] = set()
        for _ in range(count * (_TRIES if distinct else 1)):
            if len(items) == count:
                break
            item = self.value(schema.get("items", {"type": "any"}), filling, level + 1)
            text = msgspec.json.encode(item)
            if not distinct or text not in seen:
                items.append(item)
                seen.add(text)
        return items

    def _map(self, schema: Schema, filling: Filling, level: int) -> dict[str, Any]:
        most = _size(schema, "maxEntries", -1)
        wanted = filling.count(_size(schema, "minEntries", 0), None if most < 0 else most, level)
        names = schema.get("keyNames")
        entries: dict[str, Any] = {}
        for _ in range(_TRIES + wanted):
            if len(entries) >= wanted:
                break
            name = _scalar("string", names, filling) if isinstance(names, Mapping) else filling.word()
            entries.setdefault(name, self.value(schema.get("values", {"type": "any"}), filling, level + 1))
        return entries

    def _tuple(self, schema: Schema, filling: Filling, level: int) -> list[Any]:
        members, order = schema.get("properties"), schema.get("tuple")
        if not isinstance(members, Mapping) or not isinstance(order, list):
            raise Unfillable("a tuple type lists no members in order")
        return [self.value(members.get(name), filling, level + 1) for name in order]

    def _choice(self, schema: Schema, filling: Filling, level: int) -> dict[str, Any]:
        choices = schema.get("choices")
        if not isinstance(choices, Mapping) or not choices:
            raise Unfillable("a choice type has no choices")
        name = filling.pick(list(choices))
        value = self.value(choices[name], filling, level + 1)
        if "$extends" not in schema:
            return {name: value}
        if not isinstance(value, dict):
            raise Unfillable("an inline choice needs objects")
        return {str(schema.get("selector")): name, **value}


def _scalar(kind: str, schema: Schema, filling: Filling) -> Any:
    if kind in _INTEGERS:
        low, high = _INTEGERS[kind]
        number = number_between(schema, filling, whole=True, low=low, high=high)
        return str(number) if kind in _TEXT_INTEGERS else number
    if kind in _FLOATS:
        return number_between(schema, filling, whole=False)
    if kind == "decimal":
        return str(Decimal(repr(number_between(schema, filling, whole=False))))
    if kind == "string":
        return _text(schema, filling)
    make = _SCALARS.get(kind)
    if make is None:
        raise Unfillable(f"the type {kind[:40]} is unknown")
    return make(filling)


def _text(schema: Schema, filling: Filling) -> str:
    low, high = _size(schema, "minLength", 0), _size(schema, "maxLength", -1)
    most = None if high < 0 else high
    pattern = schema.get("pattern")
    for _ in range(_TRIES if isinstance(pattern, str) else 0):
        text = sample(str(pattern), filling)
        if text is None:
            examples = [each for each in schema.get("examples", ()) if isinstance(each, str)]
            return filling.pick(examples) if examples else filling.text(low, most)
        if low <= len(text) and (most is None or len(text) <= most):
            return text
    formatted = filling.formatted(str(schema.get("format") or ""))
    return formatted if formatted is not None else filling.text(low, most)


def _required(schema: Schema, filling: Filling) -> frozenset[str]:
    """Return the names that must be there; ``required`` may list several sets, of which one is to hold."""
    names = schema.get("required")
    names = names if isinstance(names, list) else []
    sets = [each for each in names if isinstance(each, list)]
    wanted = [*(each for each in names if isinstance(each, str)), *(filling.pick(sets) if sets else ())]
    dependents = schema.get("dependentRequired")
    for name in wanted:  # grows while it is read: what is required may require more
        more = dependents.get(name) if isinstance(dependents, Mapping) else None
        wanted.extend(each for each in more or () if each not in wanted)
    return frozenset(wanted)


def _texts(value: Any) -> list[str]:
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]


def _size(schema: Schema, keyword: str, otherwise: int) -> int:
    value = schema.get(keyword)
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise
