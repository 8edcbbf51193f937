"""Resolve ``$ref`` for both JSON families: in the document, to a part with its own ``$id``, to another document.

Subschemas are identified by ``id()``, so that their references can be resolved after they were merged with others. The
trees belong to the catalog and never change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urljoin

from catalog.parsing.pointers import resolve_pointer, to_pointer
from catalog.schemas.contract import Library, SchemaSource
from catalog.schemas.filling import UnsupportedSchema
from catalog.values import is_number


def join_uri(base: str, reference: str) -> str:
    """Join URIs as in RFC 3986; an invalid reference is returned unchanged."""
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


_ANCHORS: Final = ("$anchor", "$dynamicAnchor")
_DYNAMIC: Final = ("$ref", "$dynamicRef", "$recursiveRef")


@dataclass(frozen=True, slots=True)
class _Home:
    """The resource of a subschema: the root for JSON pointers, and the base URI of other references.

    ``key`` is that of its document in the library.
    """

    root: Any
    uri: str
    key: str


class SchemaDocuments:
    """The documents of one schema; referenced ones are read from the library on first use."""

    def __init__(self, source: SchemaSource, library: Library) -> None:
        self.root = source.document
        self._library = library
        self._homes: dict[int, _Home] = {}
        self._named: dict[str, Any] = {}
        self._read: dict[str, Any] = {}
        self._index_parts(source.document, source.uri)

    def contains(self, schema: Mapping[str, Any]) -> bool:
        """Whether this object is part of a document, so that its ``id()`` stays valid."""
        return id(schema) in self._homes

    def follow_reference(self, schema: Mapping[str, Any]) -> Any:
        """Return the target of the reference in *schema*; None if it has none.

        Raises:
            UnsupportedSchema: it cannot be resolved.
        """
        for keyword in _DYNAMIC:
            reference = schema.get(keyword)
            if isinstance(reference, str):
                return self.find_target(reference, schema)
        return None

    def find_target(self, reference: str, at: Mapping[str, Any]) -> Any:
        """Return the target of a reference in the subschema *at*.

        Raises:
            UnsupportedSchema: it cannot be resolved.
        """
        home = self._homes.get(id(at)) or self._homes[id(self.root)]
        document, _, fragment = reference.partition("#")
        if document:
            home = self._find_home(document, home)
        if not fragment:
            return home.root
        if fragment.startswith("/"):
            try:
                return resolve_pointer(home.root, unquote(fragment))
            except KeyError:
                raise UnsupportedSchema(f"the schema has nothing at {unquote(fragment)[:80]}") from None
        named = self._named.get(f"{home.uri}#{fragment}", self._named.get(f"#{fragment}"))
        if named is None:
            raise UnsupportedSchema(f"the reference {reference[:80]} leads nowhere")
        return named

    def _find_home(self, document: str, home: _Home) -> _Home:
        uri = join_uri(home.uri, document)
        for known in (uri, document):
            if known in self._named:
                return self._homes[id(self._named[known])]
        if uri not in self._read:
            other = self._library.document(uri, home.key) or self._library.document(document, home.key)
            if other is None or not isinstance(other[1], (Mapping, bool)):
                raise UnsupportedSchema(f"the document {document[:80]} was not loaded")
            self._read[uri] = other[1]
            self._index_parts(other[1], other[0])
        return self._homes.get(id(self._read[uri])) or _Home(self._read[uri], uri, uri)

    def _index_parts(self, document: Any, uri: str) -> None:
        """Store the resource of each part of a document; a part with its own ``$id`` starts a new one."""
        waiting: list[tuple[Any, _Home]] = [(document, _Home(document, uri, uri))]
        while waiting:
            part, home = waiting.pop()
            if isinstance(part, Mapping):
                home = self._home_of_part(part, home)
                self._homes[id(part)] = home
                waiting.extend((each, home) for each in part.values() if isinstance(each, (Mapping, list)))
            elif isinstance(part, list):
                waiting.extend((each, home) for each in part if isinstance(each, (Mapping, list)))

    def _home_of_part(self, part: Mapping[str, Any], home: _Home) -> _Home:
        name = part.get("$id", part.get("id"))
        if isinstance(name, str):
            if name.startswith("#"):
                self._named.setdefault(f"{home.uri}{name}", part)
                self._named.setdefault(name, part)
            elif part is home.root or "$id" in part:
                home = _Home(part, join_uri(home.uri, name.partition("#")[0]), home.key)
                self._named.setdefault(home.uri, part)
        for keyword in _ANCHORS:
            if isinstance(part.get(keyword), str):
                self._named.setdefault(f"{home.uri}#{part[keyword]}", part)
                self._named.setdefault(f"#{part[keyword]}", part)
        return home


# Finding the selected type in a JSON document.

HOLDERS: Final = ("definitions", "$defs")
"""Members of a document that contain its types."""


def pointer_of(document: Any, name: str) -> str | None:
    """Return the JSON pointer of the type called *name*: a definition, a path, a title or an ``$id``.

    Return None if there is none.
    """
    members = document if isinstance(document, Mapping) else {}
    definitions = [(holder, types) for holder in HOLDERS if isinstance(types := members.get(holder), Mapping)]
    own = [to_pointer([holder, name]) for holder, types in definitions if name in types]
    for pointer in (*own, f"/{name}", *(f"/{holder}/{name}" for holder in HOLDERS)):
        try:
            resolve_pointer(document, pointer)
        except KeyError:
            continue
        return pointer
    if _has_name(members, name):
        return ""
    for holder, types in definitions:
        for key, part in types.items():
            if isinstance(part, Mapping) and _has_name(part, name):
                return to_pointer([holder, key])
    return None


def _has_name(schema: Mapping[str, Any], name: str) -> bool:
    own = schema.get("$id")
    last = re.split(r"[/#]", own.rstrip("#"))[-1] if isinstance(own, str) else None
    return name in (schema.get("title"), schema.get("$anchor"), own, last, (last or "").rpartition(".")[0] or None)


# Merging subschemas that apply to the same value (``allOf``, a branch of ``oneOf``, a ``$ref`` with siblings).

Schema = Mapping[str, Any]
_NAMED: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_NESTED: Final = frozenset({"items", "additionalProperties", "propertyNames", "contains", "unevaluatedProperties"})
_TYPES: Final = ("null", "boolean", "object", "array", "number", "integer", "string")


def mapping_of(schema: Schema, keyword: str) -> Mapping[str, Any]:
    """Return the object at a keyword; an empty one if it is absent or not an object."""
    value = schema.get(keyword)
    return value if isinstance(value, Mapping) else {}


def list_of(schema: Schema, keyword: str) -> list[Any]:
    """Return the list at a keyword; an empty one if it is absent or not a list."""
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def merge_schemas(parts: Iterable[Schema]) -> dict[str, Any]:
    """Return one schema that requires what all *parts* require, as far as keywords can be combined.

    For keywords that cannot be combined, such as two patterns, the first part counts.
    """
    schema: dict[str, Any] = {}
    for part in parts:
        for keyword, value in part.items():
            schema[keyword] = _intersect_keyword(keyword, schema[keyword], value) if keyword in schema else value
    return schema


def intersect(left: Any, right: Any) -> Any:
    """Return a subschema that requires what both require."""
    if left is True or left == {} or left == right:
        return right
    if right is True or right == {}:
        return left
    return False if left is False or right is False else {"allOf": [left, right]}


def allowed_types(schema: Schema) -> list[str]:
    """Return the names of the types that a schema allows; all if it has no ``type``."""
    kind = schema.get("type", _TYPES)
    return [kind] if isinstance(kind, str) else [each for each in kind if isinstance(each, str)]


def _intersect_keyword(keyword: str, left: Any, right: Any) -> Any:
    if keyword in _NESTED:
        return intersect(left, right)
    if keyword in _NAMED and isinstance(left, Mapping) and isinstance(right, Mapping):
        shared = {name: intersect(left[name], right[name]) for name in left if name in right}
        return {**left, **right, **shared}
    combine = _COMBINED.get(keyword)
    return combine(left, right) if combine else left


def _intersect_types(left: Any, right: Any) -> list[str]:
    first, second = allowed_types({"type": left}), allowed_types({"type": right})
    common = [each for each in first if each in second]
    if "integer" not in common and ("integer" in first or "integer" in second):
        other = second if "integer" in first else first
        common += ["integer"] if "number" in other else []
    return common


def _common_items(left: Any, right: Any) -> Any:
    return [each for each in left if each in right] if isinstance(left, list) and isinstance(right, list) else left


def _all_items(left: Any, right: Any) -> Any:
    return list(dict.fromkeys([*left, *right])) if isinstance(left, list) and isinstance(right, list) else left


def _max_of(left: Any, right: Any) -> Any:
    return right if is_number(left) and is_number(right) and right > left else left


def _min_of(left: Any, right: Any) -> Any:
    return right if is_number(left) and is_number(right) and right < left else left


_COMBINED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "type": _intersect_types,
    "enum": _common_items,
    "required": _all_items,
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains"), _max_of),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains"), _min_of),
    "uniqueItems": lambda left, right: left or right,
}
