"""Avro's schema resolution, as far as schemas decide it: whether a reader's schema reads what a writer's wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from registry.compatibility.undecided import Budget

_PROMOTIONS: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset(("long", "float", "double")),
    "long": frozenset(("float", "double")),
    "float": frozenset(("double",)),
    "string": frozenset(("bytes",)),
    "bytes": frozenset(("string",)),
}
_NAMED: Final = frozenset(("record", "error", "enum", "fixed"))


def unreadable(reader: Any, writer: Any, budget: Budget) -> str:
    """Return why data written with *writer* cannot be read with *reader*, '' when it always can.

    Raises:
        Undecided: it takes more than the budget.
    """
    return _Resolution(_named(reader), _named(writer), budget).fault(reader, writer, "", "")


@dataclass(slots=True)
class _Resolution:
    readers: Mapping[str, Any]
    writers: Mapping[str, Any]
    budget: Budget
    seen: set[tuple[str, str]] = field(default_factory=set)

    def fault(self, reader: Any, writer: Any, space: str, other: str) -> str:
        """Compare two schemas, which stand in the namespaces *space* and *other*."""
        self.budget.spend(1)
        reader, space = _resolved(reader, space, self.readers)
        writer, other = _resolved(writer, other, self.writers)
        if isinstance(writer, list):
            return next((why for each in writer if (why := self.fault(reader, each, space, other))), "")
        if isinstance(reader, list):
            faults = [self.fault(each, writer, space, other) for each in reader]
            return "" if "" in faults else f"no branch of the union reads {_type(writer)}"
        one, two = _type(reader), _type(writer)
        if one != two:
            return "" if one in _PROMOTIONS.get(two, ()) else f"{two} cannot be read as {one}"
        if one in ("array", "map"):
            key = "items" if one == "array" else "values"
            return self.fault(reader.get(key), writer.get(key), space, other)
        if one in _NAMED:
            return self._named_fault(one, reader, writer, space, other)
        return _logical(reader, writer)

    def _named_fault(self, kind: str, reader: Any, writer: Any, space: str, other: str) -> str:
        name, written = _full(reader, space), _full(writer, other)
        aliases = {_qualified(str(each), name.rpartition(".")[0]) for each in reader.get("aliases") or ()}
        if name.rpartition(".")[2] != written.rpartition(".")[2] and written not in aliases:
            return f"{kind} {written} is called {name}"
        if kind == "fixed":
            return "" if reader.get("size") == writer.get("size") else f"fixed {name} changes its size"
        if kind == "enum":
            known = set(reader.get("symbols") or ())
            gone = [each for each in writer.get("symbols") or () if each not in known]
            self.budget.spend(len(known))
            return f"enum {name} lacks {gone[0]}" if gone and "default" not in reader else ""
        if (name, written) in self.seen:
            return ""
        self.seen.add((name, written))
        return self._record_fault(name, reader, writer, name.rpartition(".")[0], written.rpartition(".")[0])

    def _record_fault(self, name: str, reader: Any, writer: Any, space: str, other: str) -> str:
        written = {each["name"]: each for each in writer.get("fields") or ()}
        self.budget.spend(len(written))
        for each in reader.get("fields") or ():
            names = (each["name"], *(each.get("aliases") or ()))
            counterpart = next((written[alias] for alias in names if alias in written), None)
            if counterpart is None:
                if "default" not in each:
                    return f"field {name}.{each['name']} has no default, and older data lacks it"
                continue
            why = self.fault(each.get("type"), counterpart.get("type"), space, other)
            if why:
                return f"field {name}.{each['name']}: {why}"
        return ""


def _logical(reader: Any, writer: Any) -> str:
    """Compare what scalars mean; decimals of another scale are other numbers."""
    one = reader if isinstance(reader, dict) else {}
    two = writer if isinstance(writer, dict) else {}
    if one.get("logicalType") == two.get("logicalType") == "decimal" and one.get("scale", 0) != two.get("scale", 0):
        return "the scale of a decimal changes"
    return ""


def _named(schema: Any) -> dict[str, Any]:
    """Return the named types that a schema defines, by full name."""
    types: dict[str, Any] = {}
    waiting = [(schema, "")]
    while waiting:
        each, space = waiting.pop()
        if isinstance(each, list):
            waiting.extend((branch, space) for branch in each)
        elif isinstance(each, dict):
            kind = each.get("type")
            if isinstance(kind, dict | list):
                waiting.append((kind, space))
            if kind in _NAMED:
                name = _full(each, space)
                types[name] = each
                space = name.rpartition(".")[0]
            waiting.extend((each[key], space) for key in ("items", "values") if key in each)
            waiting.extend((one.get("type"), space) for one in each.get("fields") or () if isinstance(one, dict))
    return types


def _resolved(schema: Any, space: str, names: Mapping[str, Any]) -> tuple[Any, str]:
    while isinstance(schema, dict) and isinstance(schema.get("type"), dict | list):
        schema = schema["type"]
    text = schema if isinstance(schema, str) else schema.get("type") if isinstance(schema, dict) else None
    if isinstance(text, str):
        for name in (_qualified(text, space), text):
            if name in names:
                return names[name], name.rpartition(".")[0]
    return schema, space


def _type(schema: Any) -> str:
    if isinstance(schema, dict):
        kind = schema.get("type")
        return "record" if kind == "error" else str(kind)
    return str(schema)


def _full(schema: Mapping[str, Any], space: str) -> str:
    return _qualified(str(schema.get("name")), str(schema.get("namespace", space)))


def _qualified(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"
