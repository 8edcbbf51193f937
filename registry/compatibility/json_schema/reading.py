"""JSON schemas taken apart: references followed, conjunctions laid out, types and bounds.

A value that a schema allows is allowed by each of its *conjuncts*: plain schemas without ``$ref`` and ``allOf``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from catalog.parsing.pointers import at_pointer
from catalog.schemas.jsonschema.validating import draft_of
from registry.compatibility.undecided import Undecided

Schema = Mapping[str, Any]
NEVER: Final[Schema] = {"not": {}}
"""The schema that allows nothing, which ``false`` is."""
MAX_STEPS: Final = 20_000
"""Looks into subschemas, past which nothing is decided."""
ALL_TYPES: Final = frozenset(("null", "boolean", "integer", "fraction", "string", "array", "object"))
NUMBERS: Final = frozenset(("integer", "fraction"))
_HIDES_SIBLINGS: Final = ("04", "06", "07")
_DRAFTS: Final = ("04", "06", "07", "2019-09", "2020-12")
_SINCE: Final = {
    **dict.fromkeys(("const", "contains", "propertyNames"), "06"),
    **dict.fromkeys(("if", "then", "else"), "07"),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "minContains", "maxContains"), "2019-09"),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), "2019-09"),
    "prefixItems": "2020-12",
}
"""Keywords that mean nothing in drafts before these."""
_UNFOLLOWED: Final = ("$dynamicRef", "$recursiveRef")


@dataclass(slots=True)
class Root:
    """One whole schema, in which references lead; ``version`` is what its format says, such as ``draft-07``."""

    document: Any
    version: str
    _draft: str = field(init=False)
    _steps: int = 0

    def __post_init__(self) -> None:
        self._draft = draft_of(self.document, self.version)

    def conjuncts(self, schema: Any) -> list[Schema]:
        """Return what all holds for the values of a schema.

        Raises:
            Undecided: a reference leads elsewhere, or to itself, or there is too much of it.
        """
        schemas: list[Schema] = []
        waiting = [schema]
        while waiting:
            self._steps += 1
            if self._steps > MAX_STEPS or len(waiting) > MAX_STEPS:
                raise Undecided("the schema refers to itself, or to too much")
            each = waiting.pop()
            if each is False:
                return [NEVER]
            if not isinstance(each, Mapping):
                continue
            if any(name in each for name in _UNFOLLOWED):
                raise Undecided("references that are dynamic are not followed")
            if each is not self.document and any(isinstance(each.get(name), str) for name in ("$id", "id")):
                raise Undecided("schemas with addresses of their own within another are not followed")
            if isinstance(each.get("$ref"), str):
                waiting.append(self._target(each["$ref"]))
                if self._draft in _HIDES_SIBLINGS:
                    continue
            if isinstance(each.get("allOf"), list):
                waiting.extend(each["allOf"])
            schemas.append({name: value for name, value in each.items() if self._counts(name)})
        return schemas

    def _counts(self, name: str) -> bool:
        since = _SINCE.get(name, _DRAFTS[0])
        return name not in ("$ref", "allOf") and _DRAFTS.index(since) <= _DRAFTS.index(self._draft)

    def _target(self, reference: str) -> Any:
        if not reference.startswith("#") or (reference[1:] and reference[1] != "/"):
            raise Undecided(f"the reference {reference} is not followed")
        try:
            return at_pointer(self.document, unquote(reference[1:]))
        except (LookupError, ValueError):
            raise Undecided(f"the reference {reference} leads nowhere") from None


def expanded(kind: Any) -> frozenset[str]:
    """Return what ``type`` allows."""
    names = kind if isinstance(kind, list) else [kind]
    return frozenset(part for name in names for part in (NUMBERS if name == "number" else (str(name),)))


def bound(conjuncts: Sequence[Schema], name: str, *, lowest: bool = False) -> float | None:
    """Return the strictest of a bound that is a number, None without one."""
    given = [each[name] for each in conjuncts if isinstance(each.get(name), int | float)]
    given = [each for each in given if not isinstance(each, bool)]
    return None if not given else min(given) if lowest else max(given)


def items_of(schema: Schema) -> tuple[Sequence[Any], Any]:
    """Return the schemas of the first items, and that of all others."""
    if isinstance(schema.get("prefixItems"), list):
        return schema["prefixItems"], schema.get("items", True)
    items = schema.get("items", True)
    return (items, schema.get("additionalItems", True)) if isinstance(items, list) else ((), items)


def mapping(schema: Schema, name: str) -> Mapping[str, Any]:
    """Return a map of subschemas, empty without one."""
    members = schema.get(name)
    return members if isinstance(members, Mapping) else {}
