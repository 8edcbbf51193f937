"""From a JSON schema of either family to a shape: references followed, what holds together merged, unions settled.

A union is typed when all its branches have one shape, null aside; integers and other numbers are numbers. Any other
stays JSON text, and so does a type within itself: tables have no columns without end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from catalog.schemas.columns.shapes import DOUBLE, Leaf, Member, Shape, Struct
from catalog.schemas.columns.survey import Path, Survey
from catalog.schemas.filling.filling import Unfillable
from catalog.schemas.json.merging import merged
from catalog.schemas.json.references import SchemaDocuments

Schema = Mapping[str, Any]
Within = tuple[int, ...]
"""Schemas that are being looked into, by identity; those that are only merged into another, by the negative of it."""
MAX_HOPS: Final = 64
_BRANCHES: Final = ("oneOf", "anyOf")


class Untypable(Exception):
    """A place that has no type; the message says why."""


class Never(Exception):
    """A place that no value but null can be at."""


@dataclass(slots=True)
class _Flat:
    """What one schema asks, without references: parts that hold together, and groups of which one branch holds."""

    parts: list[Schema] = field(default_factory=list)
    groups: list[Sequence[Any]] = field(default_factory=list)
    within: Within = ()


class Composition(ABC):
    """Finds the shapes of one document and all that it refers to; each family says what is special to it."""

    keywords: frozenset[str] = frozenset()
    """Keywords that decide upon columns, without those of composition."""

    def __init__(self, documents: SchemaDocuments, survey: Survey) -> None:
        self.documents = documents
        self.survey = survey

    def root(self, schema: Any) -> Shape | None:
        """Return the shape of payloads; None when nothing of them can be typed."""
        try:
            return self._composed(schema, (), (id(schema),))
        except (Untypable, Unfillable) as error:
            self.survey.note((), f"has no columns: {error}")
        except Never:
            self.survey.note((), "has no columns: no value but null is allowed")
        return None

    def shape(self, schema: Any, path: Path, within: Within) -> Shape:
        """Return the shape at a place in payloads, JSON text where there is no other."""
        fields = self.survey.fields
        try:
            return self._composed(schema, path, within)
        except (Untypable, Unfillable) as error:
            why = str(error)
        except Never:
            why = "no value but null is allowed"
        self.survey.fields = fields
        return self.survey.text(path, why)

    def struct(self, asked: Mapping[str, Any], path: Path, within: Within, *, positional: bool = False) -> Struct:
        """Return the shape of an object with those members.

        Raises:
            Untypable: there is no room for them.
        """
        if not asked:
            raise Untypable("it has no members")
        columns = self.survey.columns(path, list(asked))
        if not columns:
            raise Untypable("the payload has too many fields")
        members = (Member(name, column, self.shape(asked[name], (*path, name), within)) for name, column in columns)
        return Struct(tuple(members), positional)

    @abstractmethod
    def plain(self, schema: Schema, path: Path, within: Within) -> Shape:
        """Return the shape of a schema without references and composition.

        Raises:
            Untypable: there is none.
            Never: it allows nothing but null.
        """

    @abstractmethod
    def bases(self, schema: Schema) -> Iterable[tuple[Any, bool]]:
        """Give what *schema* refers to, each with whether it is the very type meant, and not one that it builds upon.

        Raises:
            Unfillable: a reference leads nowhere.
        """

    def rest(self, schema: Schema) -> Schema:
        """Return what of a schema counts beside what it refers to."""
        return schema

    def groups(self, schema: Schema) -> Iterable[Sequence[Any]]:
        """Give the unions of a schema, each as its branches."""
        rest = self.rest(schema)
        return (rest[each] for each in _BRANCHES if isinstance(rest.get(each), list) and rest[each])

    def _composed(self, schema: Any, path: Path, within: Within) -> Shape:
        passed = self.survey.limit(path)
        if passed:
            raise Untypable(passed)
        flat = _Flat(within=within)
        self._flatten(schema, flat, 0, is_type=True)
        whole = merged(flat.parts)
        if not flat.groups:
            return self.plain(whole, path, flat.within)
        others = [{"anyOf": list(group)} for group in flat.groups[1:]]
        base = [whole, *others] if whole or others else []
        return self._union(base, flat.groups[0], path, flat.within)

    def _union(self, base: Sequence[Schema], branches: Sequence[Any], path: Path, within: Within) -> Shape:
        shapes: list[Shape] = []
        fields = most = self.survey.fields
        for branch in branches:
            self.survey.fields = fields
            try:
                shape = self._composed({"allOf": [*base, branch]} if base else branch, path, within)
            except Never:
                continue
            most = max(most, self.survey.fields)
            if shape not in shapes:
                shapes.append(shape)
        self.survey.fields = most
        if not shapes:
            raise Never
        if len(shapes) == 1:
            return shapes[0]
        if all(isinstance(each, Leaf) and each.kind in ("integer", "number") for each in shapes):
            return DOUBLE
        raise Untypable("it may be of several types")

    def _flatten(self, schema: Any, flat: _Flat, hops: int, *, is_type: bool) -> None:
        if schema is False:
            raise Never
        if schema is True:
            return
        passed = "a reference leads to itself" if hops > MAX_HOPS else self.survey.limit(())
        if passed or not isinstance(schema, Mapping):
            raise Untypable(passed or "the schema is no object there")
        for target, is_same in self.bases(schema):
            if isinstance(target, Mapping):
                self._enter(target, flat, is_type=is_type and is_same)
            self._flatten(target, flat, hops + 1, is_type=is_type and is_same)
        rest = self.rest(schema)
        own = {keyword: value for keyword, value in rest.items() if keyword in self.keywords}
        if own:
            flat.parts.append(own)
        together = rest.get("allOf")
        for each in together if isinstance(together, list) else ():
            self._flatten(each, flat, hops + 1, is_type=False)
        flat.groups.extend(self.groups(schema))

    def _enter(self, target: Any, flat: _Flat, *, is_type: bool) -> None:
        """Note that *target* is looked into. A type is looked into once as itself, and once as a part of others."""
        key = id(target)
        if key in flat.within or (not is_type and -key in flat.within):
            raise Untypable("the type contains itself")
        flat.within = (*flat.within, key if is_type else -key)
