"""What a catalog marks as sensitive: an extension of ours, read the same in every dialect.

A property of a message (an attribute of its envelope, a protocol option, a header) with the member ``sensitive: true``
marks its name; a property in a JSON schema or JsonStructure document with ``writeOnly: true`` or ``x-sensitive: true``
marks the JSON member of that name. Marks hold for all letters, since one that matched nothing has no definition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from glob import escape
from typing import Any, Final

from catalog.declared import Declarations
from catalog.errors import DocumentError
from catalog.load import load
from catalog.model import Catalog
from router.letters.redaction import Marks, Redactor, marks_of_settings
from router.logs import get_logger
from router.settings import Settings
from router.settings.catalogs import fetcher_of

SENSITIVE: Final = "sensitive"
_OF_SCHEMAS: Final = ("writeOnly", "x-sensitive")
_DECLARED: Final = ("envelopemetadata", "protocoloptions")
_log = get_logger()


def marked_catalog(settings: Settings) -> tuple[Catalog | None, Marks]:
    """Load the catalog of the settings; return it with all that is sensitive by it and by the settings.

    When it cannot be read nobody knows what it marks: then everything is sensitive, and a warning says so.
    """
    given = marks_of_settings(settings.dead_letters.redact)
    declarations = Declarations()
    read = settings.catalog
    try:
        catalog = load(read.source, fetcher=fetcher_of(settings), declarations=declarations, base_uri=read.base_uri)
    except DocumentError as error:
        _log.warning("the catalog cannot be read, so what it marks as sensitive is unknown", problem=str(error))
        return None, given | Marks(everything=True)
    return catalog, given | marks_of(declarations, catalog)


def redactor_of(marks: Marks, *, reveal: bool) -> Redactor:
    """Return what hides the marks, or with *reveal* nothing."""
    return Redactor(Marks() if reveal else marks)


def marks_of(declarations: Declarations, catalog: Catalog) -> Marks:
    """Return what a catalog marks."""
    names = {
        escape(name.lower())
        for message in declarations.messages.values()
        for attribute in _DECLARED
        for name in _marked(message.attributes.get(attribute))
    }
    members = {name for schema in catalog.schemas.values() for name in _members(schema.get("document"))}
    return Marks(names=frozenset(names), members=frozenset(members))


def _marked(node: Any, name: str = "") -> Iterator[str]:
    """Yield the names under which an object with the mark stands, at any depth."""
    if isinstance(node, Mapping):
        own = node.get("name")
        called = own if isinstance(own, str) and own else name
        if node.get(SENSITIVE) is True and called:
            yield called
        for key, value in node.items():
            yield from _marked(value, str(key))
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _marked(value, name)


def _members(node: Any) -> Iterator[str]:
    """Yield the names of marked properties in a schema document."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key == "properties" and isinstance(value, Mapping):
                for name, inner in value.items():
                    if isinstance(inner, Mapping) and any(inner.get(mark) is True for mark in _OF_SCHEMAS):
                        yield str(name)
            yield from _members(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _members(value)
