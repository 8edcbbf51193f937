"""How one Avro schema differs from another, by schema resolution, for which a reader needs the writer's schema too."""

# Small: a family is loaded file by file, and this one only to compare.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from catalog.schemas.contract import MAX_DEPTH, Comparison, worst

_WORDS: Final = frozenset({"doc", "aliases"})


def compare(before: Any, after: Any) -> Comparison:
    """Compare two schemas."""
    return _compare(before, after, "", 0)


def _compare(old: Any, new: Any, at: str, depth: int) -> Comparison:
    if isinstance(old, dict) and isinstance(new, dict) and depth <= MAX_DEPTH:
        comparisons: list[Comparison] = []
        for name in dict.fromkeys((*old, *new)):
            if name in _WORDS:
                comparisons.append(("compatible", ""))
            elif name == "fields":
                comparisons.append(_fields(old.get(name), new.get(name), at, depth))
            elif name in ("items", "values") or (name == "type" and isinstance(old.get(name), dict | list)):
                comparisons.append(_compare(old.get(name), new.get(name), f"{at}/{name}", depth + 1))
            elif old.get(name) != new.get(name):
                comparisons.append(("incompatible", f"{at}/{name} changes"))
        return worst(comparisons)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new) and depth <= MAX_DEPTH:
        return worst(
            [_compare(*each, f"{at}/{place}", depth + 1) for place, each in enumerate(zip(old, new, strict=True))]
        )
    return ("same", "") if old == new else ("incompatible", f"{at or '/'} changes")


def _fields(old: Any, new: Any, at: str, depth: int) -> Comparison:
    """Compare fields: one that comes or goes needs a default, with which either side reads the other."""
    if not isinstance(old, list) or not isinstance(new, list):
        return "unknown", f"{at}/fields is no list"
    one, other = _named(old), _named(new)
    comparisons: list[Comparison] = []
    for name in dict.fromkeys((*one, *other)):
        here = f"{at}/fields/{name}"
        if name in one and name in other:
            comparisons.append(_field(one[name], other[name], here, depth))
        elif "default" in (one.get(name) or other.get(name) or {}):
            comparisons.append(("compatible", f"{here} {'is gone' if name in one else 'is new'}"))
        else:
            comparisons.append(("incompatible", f"{here} {'is gone' if name in one else 'is new'} and has no default"))
    moved = [name for name in one if name in other] != [name for name in other if name in one]
    return worst([*comparisons, ("compatible", "") if moved else ("same", "")])


def _field(old: Mapping[str, Any], new: Mapping[str, Any], here: str, depth: int) -> Comparison:
    ignored = ("default", "order", *_WORDS)
    one, other = ({name: value for name, value in each.items() if name not in ignored} for each in (old, new))
    return worst([_compare(one, other, here, depth + 1), ("same" if old == new else "compatible", "")])


def _named(fields: list[Any]) -> dict[str, Any]:
    return {str(each.get("name")): each for each in fields if isinstance(each, dict)}
