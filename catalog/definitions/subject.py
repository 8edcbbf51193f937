"""What lint looks at: the catalog, what its documents declared, and the documents themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from catalog.declared import Declarations, DeclaredMessage, Place
from catalog.definitions.pointing import attribute_place, option_place
from catalog.dialects import Dialect, detect
from catalog.dialects.names import spellings
from catalog.documents.documents import Document
from catalog.findings import Findings
from catalog.model import Catalog, Definition, Property


@dataclass(frozen=True, slots=True)
class Declared:
    """One property of a definition that it does not simply inherit; its place is only looked up when it is reported."""

    definition: Definition
    message: DeclaredMessage
    prop: Property
    in_envelope: bool

    @property
    def place(self) -> Place:
        """Where the property is written; the message's own place when that is nowhere in it."""
        if self.in_envelope:
            place = attribute_place(self.message, self.prop.name)
        else:
            place = option_place(self.message, self.prop.name, self.definition.protocol)
        return place or self.message.place


@dataclass(frozen=True)
class Subject:
    """One load. ``findings`` is where rules report; the rest is only read."""

    catalog: Catalog
    declarations: Declarations
    documents: Sequence[Document]
    findings: Findings

    def definitions(self) -> Iterator[tuple[Definition, DeclaredMessage, Definition | None]]:
        """Give every definition with its declaration and, when it is a definition too, its nearest base."""
        for definition in self.catalog.definitions.values():
            base = self.catalog.definitions.get(definition.base[0]) if definition.base else None
            yield definition, self.declarations.messages[definition.xid], base

    def attributes(self) -> Iterator[Declared]:
        """Give the envelope attributes that definitions do not simply inherit."""
        for definition, message, base in self.definitions():
            for prop in _new(definition.envelopemetadata, base.envelopemetadata if base else ()):
                yield Declared(definition, message, prop, True)

    def options(self) -> Iterator[Declared]:
        """Give the protocol options that definitions do not simply inherit."""
        for definition, message, base in self.definitions():
            for prop in _new(definition.protocoloptions, base.protocoloptions if base else ()):
                yield Declared(definition, message, prop, False)

    @cached_property
    def endpoint_bodies(self) -> Mapping[str, Mapping[str, Any]]:
        """The endpoints as written, by xid; of one that is written twice the first, which is the one that counts."""
        bodies: dict[str, Mapping[str, Any]] = {}
        for tree in self._trees:
            for key, body in _members(tree, "endpoints").items():
                if isinstance(body, dict):
                    bodies.setdefault(f"/endpoints/{key}", body)
        return bodies

    @cached_property
    def groups_beside_endpoints(self) -> frozenset[str]:
        """Groups of documents that have endpoints too; those of other documents are for others to list."""
        with_endpoints = [tree for tree in self._trees if _members(tree, "endpoints")]
        names = spellings("groups")
        collections = (_members(tree, name) for tree in with_endpoints for name in tree if name.lower() in names)
        return frozenset(f"/messagegroups/{key}" for members in collections for key in members)

    @cached_property
    def dialects(self) -> Mapping[str, Dialect]:
        """The dialect of every document that is a catalog, by file."""
        trees = {each.file: each.tree for each in self.documents if isinstance(each.tree, dict)}
        return {file: dialect for file, tree in trees.items() if (dialect := detect(tree)) is not None}

    @property
    def _trees(self) -> list[dict[str, Any]]:
        return [document.tree for document in self.documents if isinstance(document.tree, dict)]


def _members(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    members = tree.get(name)
    return members if isinstance(members, dict) else {}


def _new(own: tuple[Property, ...], inherited: tuple[Property, ...]) -> Iterator[Property]:
    known = set(inherited)
    return (prop for prop in own if prop not in known)
