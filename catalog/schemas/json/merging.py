"""Several subschemas that hold for one value (``allOf``, a branch of ``oneOf``, a ``$ref`` with siblings) as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

Schema = Mapping[str, Any]
_NAMED: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_NESTED: Final = frozenset({"items", "additionalProperties", "propertyNames", "contains", "unevaluatedProperties"})
_TYPES: Final = ("null", "boolean", "object", "array", "number", "integer", "string")


def merged(parts: Iterable[Schema]) -> dict[str, Any]:
    """Return one schema that asks what all *parts* ask, as far as that can be said without solving anything.

    What cannot (two patterns, say) is that of the first part.
    """
    schema: dict[str, Any] = {}
    for part in parts:
        for keyword, value in part.items():
            schema[keyword] = _both(keyword, schema[keyword], value) if keyword in schema else value
    return schema


def both(left: Any, right: Any) -> Any:
    """Return a subschema that asks what two ask."""
    if left is True or left == {} or left == right:
        return right
    if right is True or right == {}:
        return left
    return False if left is False or right is False else {"allOf": [left, right]}


def types_of(schema: Schema) -> list[str]:
    """Return the names of the types that a schema allows, all when it does not say."""
    kind = schema.get("type", _TYPES)
    return [kind] if isinstance(kind, str) else [each for each in kind if isinstance(each, str)]


def _both(keyword: str, left: Any, right: Any) -> Any:
    if keyword in _NESTED:
        return both(left, right)
    if keyword in _NAMED and isinstance(left, Mapping) and isinstance(right, Mapping):
        shared = {name: both(left[name], right[name]) for name in left if name in right}
        return {**left, **right, **shared}
    combine = _COMBINED.get(keyword)
    return combine(left, right) if combine else left


def _common_types(left: Any, right: Any) -> list[str]:
    first, second = types_of({"type": left}), types_of({"type": right})
    common = [each for each in first if each in second]
    if "integer" not in common and ("integer" in first or "integer" in second):
        other = second if "integer" in first else first
        common += ["integer"] if "number" in other else []
    return common


def _common(left: Any, right: Any) -> Any:
    return [each for each in left if each in right] if isinstance(left, list) and isinstance(right, list) else left


def _union(left: Any, right: Any) -> Any:
    return list(dict.fromkeys([*left, *right])) if isinstance(left, list) and isinstance(right, list) else left


def _larger(left: Any, right: Any) -> Any:
    return right if _is_number(left) and _is_number(right) and right > left else left


def _smaller(left: Any, right: Any) -> Any:
    return right if _is_number(left) and _is_number(right) and right < left else left


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_COMBINED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "type": _common_types,
    "enum": _common,
    "required": _union,
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains"), _larger),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains"), _smaller),
    "uniqueItems": lambda left, right: left or right,
}
