"""Proofs that all values of one JSON schema are values of another, by jsonschema-rs.

Its ``covers`` may need hours for schemas of a few kilobytes, and proves nothing of recursive types that change, which a
registry must let evolve. The process with limits imports this module, so its own imports are few.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from graphlib import TopologicalSorter
from typing import Any, Final
from urllib.parse import unquote

import jsonschema_rs

from catalog.parsing.pointers import resolve_pointer

# A proof by induction on the size of values. Wherever the smaller schema refers to a definition, its value is assumed
# to be one of the larger schema's definition at the same pointer, which is then proven of each such definition. Below
# ``not`` and other keywords that do not grow with what is in them, references keep their own meaning. Nothing is
# assumed beside ``unevaluated...``, which excludes the more the less its references evaluate.

_DRAFTS: Final = {
    "04": jsonschema_rs.Draft4,
    "06": jsonschema_rs.Draft6,
    "07": jsonschema_rs.Draft7,
    "2019-09": jsonschema_rs.Draft201909,
    "2020-12": jsonschema_rs.Draft202012,
}
HIDES_SIBLINGS: Final = ("04", "06", "07")
"""Drafts where ``$ref`` hides what stands beside it."""
_DATA: Final = ("const", "enum", "default", "examples")
_DEFINITIONS: Final = ("$defs", "definitions")
_BY_NAME: Final = ("properties", "patternProperties", *_DEFINITIONS)
_BELOW: Final = ("items", "prefixItems", "additionalItems", "additionalProperties")
_UNSUPPORTED: Final = frozenset(("$id", "id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef"))
_UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")
_LARGER: Final = "#/$defs/larger"
_SMALLER: Final = "#/$defs/smaller"
_ASSUMING: Final = "#/$defs/assuming"
"""The smaller schema with the assumptions of the proof."""
_MAX_STEPS: Final = 20


def is_contained(smaller: Any, larger: Any, draft: str) -> bool:
    """Whether all values of *smaller* are proven to be values of *larger*."""
    if _text_of(smaller) == _text_of(larger):
        return True
    one, other = (frozenset(_iter_references(each)) for each in (smaller, larger))
    return any(_is_proven(smaller, larger, draft, each) for each in dict.fromkeys((frozenset(), one & other)))


def _is_proven(smaller: Any, larger: Any, draft: str, assumed: Collection[str]) -> bool:
    try:
        # A definition that applies itself to the same value, even by others, is no base for an induction.
        known = _iter_references(smaller) if assumed else ()
        in_place = {each: set(_iter_references(_resolve(smaller, each), in_place=True)) for each in known}
        TopologicalSorter(in_place).prepare()
        documents = {
            "larger": _rewrite(larger, _LARGER),
            "smaller": _rewrite(smaller, _SMALLER),
            "assuming": _rewrite(smaller, _ASSUMING, assumed),
        }
        for each in ("#", *assumed):
            one, other = (_canonical(documents, f"{at}{each[1:]}", draft) for at in (_ASSUMING, _LARGER))
            if other.covers(one) != jsonschema_rs.canonical.Containment.YES:
                return False
    except (ValueError, LookupError, RecursionError):
        return False
    return True


def _canonical(documents: Mapping[str, Any], reference: str, draft: str) -> jsonschema_rs.CanonicalSchema:
    """Return the schema at a reference, which is not a reference itself; equal references in it are the same."""
    whole = {"$defs": documents}
    schema = _resolve(whole, reference)
    for _ in range(_MAX_STEPS):
        alone = isinstance(schema, dict) and (draft in HIDES_SIBLINGS or schema.keys() - _DEFINITIONS == {"$ref"})
        if not alone or "$ref" not in schema:
            break
        schema = _resolve(whole, schema["$ref"])
    given = {**schema, **whole} if isinstance(schema, dict) else schema
    return jsonschema_rs.canonicalize(given, draft=_DRAFTS[draft], validate_formats=False, offline=True)


def _resolve(document: Any, reference: str) -> Any:
    return resolve_pointer(document, unquote(reference[1:]))


def _iter_references(schema: Any, *, in_place: bool = False) -> Iterator[str]:
    """Yield the references in a schema, or only those that apply to the same value as it does."""
    if isinstance(schema, list):
        for each in schema:
            yield from _iter_references(each, in_place=in_place)
    elif isinstance(schema, dict):
        for name, value in schema.items():
            if name == "$ref" and isinstance(value, str):
                yield value
            elif name in _BY_NAME and isinstance(value, dict):
                for each in () if in_place else value.values():
                    yield from _iter_references(each)
            elif name not in _DATA and not (in_place and name in _BELOW):
                yield from _iter_references(value, in_place=in_place)


def _rewrite(schema: Any, at: str, assumed: Collection[str] = (), *, top: bool = True, grows: bool = True) -> Any:
    """Return a schema as part of the document *at* a reference; *grows* is whether that grows with it."""
    if isinstance(schema, list):
        return [_rewrite(each, at, assumed, top=False, grows=grows) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if any(isinstance(schema.get(name), str) for name in _UNSUPPORTED - ({"$id", "id"} if top else set())):
        raise ValueError("dynamic references, anchors, and nested schemas with their own $id are not supported")
    if assumed and not schema.keys().isdisjoint(_UNEVALUATED):
        raise ValueError("nothing can be assumed beside what is not evaluated")
    rewritten: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "$ref" and isinstance(value, str):
            if value != "#" and not value.startswith("#/"):
                raise ValueError(f"the external reference {value} is not resolved")
            own = at if at != _ASSUMING or grows else _SMALLER
            rewritten[name] = f"{_LARGER if own == _ASSUMING and value in assumed else own}{value[1:]}"
        elif name in _BY_NAME and isinstance(value, dict):
            kept = _without_redundant(schema) if name == "properties" else value
            rewritten[name] = {key: _rewrite(each, at, assumed, top=False, grows=grows) for key, each in kept.items()}
        elif name in _DATA:
            rewritten[name] = value
        elif name not in ("$schema", "$id", "id"):
            deeper = grows and (name in _BELOW or name in ("allOf", "anyOf"))
            rewritten[name] = _rewrite(value, at, assumed, top=False, grows=deeper)
    return rewritten


def _without_redundant(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the declared members of an object, without those declared like all others."""
    members: Mapping[str, Any] = schema["properties"]
    if "additionalProperties" not in schema or "patternProperties" in schema:
        return members
    rest = _text_of(schema["additionalProperties"])
    return {key: each for key, each in members.items() if _text_of(each) != rest}


def _text_of(schema: Any) -> str:
    """Return the JSON of a schema, which is the same for equal ones: ``==`` takes ``true`` for 1."""
    return json.dumps(schema, sort_keys=True)
