"""Where ``$ref`` leads, for both JSON families: in the document, to a part with its own ``$id``, to another document.

A subschema is known by its identity, so that it can be taken out of its place, merged with others and still be asked
where its references lead. The trees are those of the catalog and never change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

from catalog.parsing.pointers import at_pointer
from catalog.schemas.contract import Library, SchemaSource
from catalog.schemas.filling.filling import Unfillable

_MAX_DOCUMENTS: Final = 200
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")
_DYNAMIC: Final = ("$ref", "$dynamicRef", "$recursiveRef")


@dataclass(frozen=True, slots=True)
class _Home:
    """The resource that a subschema belongs to: the tree that pointers start at, and the URI that others start at."""

    root: Any
    uri: str


class SchemaDocuments:
    """The documents of one schema; they are read from the library when a reference first asks for them."""

    def __init__(self, source: SchemaSource, library: Library) -> None:
        self.root = source.document
        self._library = library
        self._homes: dict[int, _Home] = {}
        self._named: dict[str, Any] = {}
        self._read: dict[str, Any] = {}
        self._add(source.document, source.uri)

    def has(self, schema: Mapping[str, Any]) -> bool:
        """Tell whether that very object is a part of a document that was read, and so will stay."""
        return id(schema) in self._homes

    def referred(self, schema: Mapping[str, Any]) -> Any:
        """Return what the reference of *schema* leads to; None when it has none.

        Raises:
            Unfillable: it leads nowhere.
        """
        for keyword in _DYNAMIC:
            reference = schema.get(keyword)
            if isinstance(reference, str):
                return self.target(reference, schema)
        return None

    def target(self, reference: str, at: Mapping[str, Any]) -> Any:
        """Return what a reference leads to that is written in the subschema *at*.

        Raises:
            Unfillable: it leads nowhere.
        """
        home = self._homes.get(id(at)) or self._homes[id(self.root)]
        document, fragment = urldefrag(reference)
        if document:
            home = self._home(document, home)
        if not fragment:
            return home.root
        if fragment.startswith("/"):
            return self.pointed(home.root, unquote(fragment))
        named = self._named.get(f"{home.uri}#{fragment}", self._named.get(f"#{fragment}"))
        if named is None:
            raise Unfillable(f"the reference {reference[:80]} leads nowhere")
        return named

    def pointed(self, tree: Any, pointer: str) -> Any:
        """Return what a JSON pointer names in *tree*.

        Raises:
            Unfillable: it names nothing.
        """
        try:
            return at_pointer(tree, pointer)
        except KeyError:
            raise Unfillable(f"the schema has nothing at {pointer[:80]}") from None

    def _home(self, document: str, home: _Home) -> _Home:
        uri = urljoin(home.uri, document)
        for known in (uri, document):
            if known in self._named:
                return self._homes[id(self._named[known])]
        if uri not in self._read:
            if len(self._read) >= _MAX_DOCUMENTS:
                raise Unfillable("the schema is spread over too many documents")
            other = self._library.document(document, home.uri)
            if other is None or not isinstance(other[1], (Mapping, bool)):
                raise Unfillable(f"the document {document[:80]} was not loaded")
            self._read[uri] = other[1]
            self._add(other[1], other[0])
        return self._homes.get(id(self._read[uri])) or _Home(self._read[uri], uri)

    def _add(self, document: Any, uri: str) -> None:
        """Note the home of each part of a document; a part with an ``$id`` of its own is a home."""
        waiting: list[tuple[Any, _Home]] = [(document, _Home(document, uri))]
        while waiting:
            part, home = waiting.pop()
            if isinstance(part, Mapping):
                home = self._named_home(part, home)
                self._homes[id(part)] = home
                waiting.extend((each, home) for each in part.values() if isinstance(each, (Mapping, list)))
            elif isinstance(part, list):
                waiting.extend((each, home) for each in part if isinstance(each, (Mapping, list)))

    def _named_home(self, part: Mapping[str, Any], home: _Home) -> _Home:
        name = part.get("$id", part.get("id"))
        if isinstance(name, str):
            if name.startswith("#"):
                self._named.setdefault(f"{home.uri}{name}", part)
                self._named.setdefault(name, part)
            elif part is home.root or "$id" in part:
                home = _Home(part, urljoin(home.uri, urldefrag(name).url))
                self._named.setdefault(home.uri, part)
        for keyword in _ANCHORS:
            if isinstance(part.get(keyword), str):
                self._named.setdefault(f"{home.uri}#{part[keyword]}", part)
                self._named.setdefault(f"#{part[keyword]}", part)
        return home
