"""The walk over the types of an Avro schema, for all that makes functions of them: checks, values, values of JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from catalog.schemas.avro.types import PRIMITIVES

F = TypeVar("F")


@dataclass(slots=True)
class TypeCompiler(Generic[F]):
    """Compiles each named type once, to a function of what its parts were compiled to.

    References are *deferred*: they look into the table when they are called, because types may be recursive.
    """

    named: Mapping[str, Any]
    record: Callable[[Mapping[str, Any], Sequence[F]], F]
    union: Callable[[Sequence[Any], Sequence[F]], F]
    array: Callable[[F], F]
    map: Callable[[F], F]
    leaf: Callable[[Any, str], F]
    deferred: Callable[[Mapping[str, F], str], F]
    _compiled: dict[str, F] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set)

    def compiled(self, schema: Any) -> F:
        """Return the function of a type."""
        if isinstance(schema, list):
            return self.union(schema, [self.compiled(branch) for branch in schema])
        if isinstance(schema, str) and schema not in PRIMITIVES:
            if schema not in self._begun:
                self._begun.add(schema)
                self._compiled[schema] = self.compiled(self.named[schema])
            return self.deferred(self._compiled, schema)
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind in ("record", "error"):
            name = schema["name"]
            self._begun.add(name)
            self._compiled[name] = self.record(schema, [self.compiled(each["type"]) for each in schema["fields"]])
            return self._compiled[name]
        if kind == "array":
            return self.array(self.compiled(schema["items"]))
        return self.map(self.compiled(schema["values"])) if kind == "map" else self.leaf(schema, kind)
