"""How one JSON schema differs from another; a member that the older did not name is taken to be absent from bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from catalog.schemas.contract import MAX_DEPTH, Comparison, worst

_WORDS: Final = frozenset(
    {"title", "description", "$comment", "examples", "default", "deprecated", "$id", "id", "$schema"}
)
_NESTED: Final = frozenset({"items", "additionalItems", "contains", "additionalProperties", "propertyNames"})
_MAPS: Final = frozenset({"$defs", "definitions", "patternProperties"})
_BOUNDS: Final = frozenset(
    {"type", "enum", "const", "format", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    | {"multipleOf", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"}
)


def compare(before: Any, after: Any) -> Comparison:
    """Compare two schemas."""
    return _compare(before, after, "", 0)


def _compare(old: Any, new: Any, at: str, depth: int) -> Comparison:
    if old == new:
        return "same", ""
    if depth > MAX_DEPTH or not isinstance(old, dict) or not isinstance(new, dict):
        return "unknown", f"{at or '/'} is another kind of schema"
    comparisons: list[Comparison] = []
    for keyword in dict.fromkeys((*old, *new)):
        if keyword in _WORDS:
            comparisons.append(("compatible", f"{at}/{keyword} says otherwise"))
        elif old.get(keyword) != new.get(keyword):
            comparisons.append(_keyword(keyword, old, new, at, depth))
    return worst(comparisons)


def _keyword(keyword: str, old: Mapping[str, Any], new: Mapping[str, Any], at: str, depth: int) -> Comparison:
    one, other, here = old.get(keyword), new.get(keyword), f"{at}/{keyword}"
    if keyword == "properties" and isinstance(one or {}, dict) and isinstance(other or {}, dict):
        return _properties(old, new, at, depth)
    if keyword == "required" and isinstance(one or [], list) and isinstance(other or [], list):
        moved = sorted(map(str, set(map(str, one or [])) ^ set(map(str, other or []))))
        return ("incompatible", f"{here} changes for {', '.join(moved)}") if moved else ("compatible", "")
    if keyword in _BOUNDS:
        equal = keyword in ("enum", "type") and _unordered(one) == _unordered(other)
        return ("compatible", "") if equal else ("incompatible", f"{here} changes")
    if keyword in _NESTED and isinstance(one, dict) and isinstance(other, dict):
        return _compare(one, other, here, depth + 1)
    if keyword in _MAPS and isinstance(one, dict) and isinstance(other, dict):
        shared = [_compare(one[name], other[name], f"{here}/{name}", depth + 1) for name in one if name in other]
        return worst([*shared, ("compatible", "")])  # what is only in one matters where it is referred to
    return "unknown", f"{here} changes"


def _properties(old: Mapping[str, Any], new: Mapping[str, Any], at: str, depth: int) -> Comparison:
    """Compare members: a new one is nothing to those who do not know it, unless what they do not know was forbidden."""
    one, other = old.get("properties") or {}, new.get("properties") or {}
    open_before = old.get("additionalProperties") in (None, True) and "patternProperties" not in old
    comparisons: list[Comparison] = []
    for name in dict.fromkeys((*one, *other)):
        here = f"{at}/properties/{name}"
        if name not in other:
            comparisons.append(("incompatible", f"{here} is gone"))
        elif name in one:
            comparisons.append(_compare(one[name], other[name], here, depth + 1))
        elif open_before:
            comparisons.append(("compatible", f"{here} is new"))
        else:
            comparisons.append(("incompatible", f"{here} is new where nothing new was allowed"))
    return worst(comparisons)


def _unordered(value: Any) -> Any:
    return sorted(map(repr, value)) if isinstance(value, list) else [repr(value)]
