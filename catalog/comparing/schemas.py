"""How one payload schema differs from another: for readers of old data and for writers of new, as far as it is plain.

Compatible means both ways: a body that was valid stays valid, and what readers could rely upon stays so. Only changes
that are plainly so are called that, those that plainly are not are called incompatible, and all others unknown. A
member that a JSON schema did not name is taken to be absent from older bodies; Avro is compared by its schema
resolution, for which a reader needs the writer's schema too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from catalog.model import Catalog, Definition

Verdict = Literal["same", "compatible", "incompatible", "unknown"]
MAX_DEPTH: Final = 64
_RANK: Final[Mapping[Verdict, int]] = {"same": 0, "compatible": 1, "unknown": 2, "incompatible": 3}
_WORDS: Final = frozenset(
    {"title", "description", "$comment", "examples", "default", "deprecated", "$id", "id", "$schema"}
)
_NESTED: Final = frozenset({"items", "additionalItems", "contains", "additionalProperties", "propertyNames"})
_MAPS: Final = frozenset({"$defs", "definitions", "patternProperties"})
_BOUNDS: Final = frozenset(
    {"type", "enum", "const", "format", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    | {"multipleOf", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"}
)
_AVRO_WORDS: Final = frozenset({"doc", "aliases"})


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The schema of a definition.

    ``version`` follows the family in its format; ``document`` is None when it was not loaded. ``reference`` is where it
    is, ``part`` the deep link into it.
    """

    family: str
    version: str
    document: Any
    reference: str
    part: str


def schema_of(definition: Definition, catalog: Catalog) -> SchemaState | None:
    """Return the data schema of a definition, None when it has none."""
    reference = definition.dataschemauri or definition.dataschemaxid
    if definition.dataschema is None and not reference and definition.schemakey is None:
        return None
    held: Any = catalog.schemas.get(definition.schemakey or "")
    loaded = held if isinstance(held, Mapping) and "document" in held else {}
    form = definition.dataschemaformat or loaded.get("format") or ""
    document = loaded.get("document", definition.dataschema)
    family, _, version = str(form).lower().partition("/")
    part = definition.schemaname or definition.schemapointer
    return SchemaState(family, version, document, reference or "", part)


def compare_schemas(before: SchemaState, after: SchemaState) -> tuple[Verdict, str]:
    """Return the verdict and the place that decides it, in words."""
    if before.family != after.family:
        return "incompatible", f"the format is {after.family or 'unsaid'}, and was {before.family or 'unsaid'}"
    if before.document is None or after.document is None:
        same = before.document is after.document and before.reference == after.reference
        return ("same", "") if same else ("unknown", "the document is not loaded")
    if before.part != after.part:
        return "unknown", f"it is the part {after.part or '/'} of the document, and was {before.part or '/'}"
    if before.version and after.version and before.version != after.version:
        return "unknown", f"the version of the format is {after.version}, and was {before.version}"
    old, new = _tree(before.document), _tree(after.document)
    if old == new:
        return "same", ""
    compare = {"jsonschema": _json_schema, "avro": _avro}.get(before.family)
    if compare is None:
        return "unknown", f"documents of {before.family or 'an unsaid format'} are only compared for being equal"
    return compare(old, new, "", 0)


def _tree(document: Any) -> Any:
    """Return a document as a tree when its text is JSON."""
    if isinstance(document, str) and document.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(document)
        except (ValueError, RecursionError):
            return document
    return document


Found = tuple[Verdict, str]
Compare = Callable[[Any, Any, str, int], Found]


def _worst(found: list[Found]) -> Found:
    return max(found, key=lambda each: _RANK[each[0]], default=("same", ""))


def _json_schema(old: Any, new: Any, at: str, depth: int) -> Found:
    if old == new:
        return "same", ""
    if depth > MAX_DEPTH or not isinstance(old, dict) or not isinstance(new, dict):
        return "unknown", f"{at or '/'} is another kind of schema"
    found: list[Found] = []
    for keyword in dict.fromkeys((*old, *new)):
        if keyword in _WORDS:
            found.append(("compatible", f"{at}/{keyword} says otherwise"))
        elif old.get(keyword) != new.get(keyword):
            found.append(_keyword(keyword, old, new, at, depth))
    return _worst(found)


def _keyword(keyword: str, old: Mapping[str, Any], new: Mapping[str, Any], at: str, depth: int) -> Found:
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
        return _json_schema(one, other, here, depth + 1)
    if keyword in _MAPS and isinstance(one, dict) and isinstance(other, dict):
        shared = [_json_schema(one[name], other[name], f"{here}/{name}", depth + 1) for name in one if name in other]
        return _worst([*shared, ("compatible", "")])  # what is only in one matters where it is referred to
    return "unknown", f"{here} changes"


def _properties(old: Mapping[str, Any], new: Mapping[str, Any], at: str, depth: int) -> Found:
    """Compare members: a new one is nothing to those who do not know it, unless what they do not know was forbidden."""
    one, other = old.get("properties") or {}, new.get("properties") or {}
    open_before = old.get("additionalProperties") in (None, True) and "patternProperties" not in old
    found: list[Found] = []
    for name in dict.fromkeys((*one, *other)):
        here = f"{at}/properties/{name}"
        if name not in other:
            found.append(("incompatible", f"{here} is gone"))
        elif name in one:
            found.append(_json_schema(one[name], other[name], here, depth + 1))
        elif open_before:
            found.append(("compatible", f"{here} is new"))
        else:
            found.append(("incompatible", f"{here} is new where nothing new was allowed"))
    return _worst(found)


def _unordered(value: Any) -> Any:
    return sorted(map(repr, value)) if isinstance(value, list) else [repr(value)]


def _avro(old: Any, new: Any, at: str, depth: int) -> Found:
    if isinstance(old, dict) and isinstance(new, dict) and depth <= MAX_DEPTH:
        found: list[Found] = []
        for name in dict.fromkeys((*old, *new)):
            if name in _AVRO_WORDS:
                found.append(("compatible", ""))
            elif name == "fields":
                found.append(_fields(old.get(name), new.get(name), at, depth))
            elif name in ("items", "values") or (name == "type" and isinstance(old.get(name), dict | list)):
                found.append(_avro(old.get(name), new.get(name), f"{at}/{name}", depth + 1))
            elif old.get(name) != new.get(name):
                found.append(("incompatible", f"{at}/{name} changes"))
        return _worst(found)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new) and depth <= MAX_DEPTH:
        return _worst(
            [_avro(*each, f"{at}/{place}", depth + 1) for place, each in enumerate(zip(old, new, strict=True))]
        )
    return ("same", "") if old == new else ("incompatible", f"{at or '/'} changes")


def _fields(old: Any, new: Any, at: str, depth: int) -> Found:
    """Compare fields: one that comes or goes needs a default, with which either side reads the other."""
    if not isinstance(old, list) or not isinstance(new, list):
        return "unknown", f"{at}/fields is no list"
    one, other = _named(old), _named(new)
    found: list[Found] = []
    for name in dict.fromkeys((*one, *other)):
        here = f"{at}/fields/{name}"
        if name in one and name in other:
            found.append(_field(one[name], other[name], here, depth))
        elif "default" in (one.get(name) or other.get(name) or {}):
            found.append(("compatible", f"{here} {'is gone' if name in one else 'is new'}"))
        else:
            found.append(("incompatible", f"{here} {'is gone' if name in one else 'is new'} and has no default"))
    moved = [name for name in one if name in other] != [name for name in other if name in one]
    return _worst([*found, ("compatible", "") if moved else ("same", "")])


def _field(old: Mapping[str, Any], new: Mapping[str, Any], here: str, depth: int) -> Found:
    ignored = ("default", "order", *_AVRO_WORDS)
    one, other = ({name: value for name, value in each.items() if name not in ignored} for each in (old, new))
    return _worst([_avro(one, other, here, depth + 1), ("same" if old == new else "compatible", "")])


def _named(fields: list[Any]) -> dict[str, Any]:
    return {str(each.get("name")): each for each in fields if isinstance(each, dict)}
