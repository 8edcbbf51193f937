"""Detect the dialect of a document. To add one, write a :class:`Dialect` and list it in ``DIALECTS``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from catalog.parsing.texts import read_table

# Describing a dialect: how to detect its documents, its names, and how to read them.

Kind = Literal["groups", "messages", "selectors", "attributes", "bases", "holders", "metadata", "definition"]
"""Kinds of names: collections of groups and of messages; envelope and protocol (``selectors``); other attributes of a
message; its base; members of an endpoint with addresses and options (``holders``); members with either envelope
attributes or protocol options (``metadata``), and with sections of both (``definition``)."""
Names = Mapping[Kind, Mapping[str, str]]
"""The 1.0 names, by kind and lower-case spelling."""
_NAMES: Final = read_table(__package__, "names.yaml", dict[str, dict[Kind, dict[str, str]]])


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """A dialect of catalog documents (MATCHING.md#catalogs).

    The names of all dialects are accepted in every document; those not in ``names`` are reported as unusual.
    """

    title: str
    detects: Callable[[Mapping[str, Any]], bool]
    """Whether a document has this dialect, if no dialect listed before it does."""
    names: Names
    suffixes: tuple[str, ...] = ()
    """File suffixes besides those of JSON and YAML."""
    is_replaced: bool = True
    """Whether xRegistry 1.0 has replaced it."""
    checks_attributes: bool = True
    """Whether lint knows all its attributes, so that it can report misspelled ones."""
    is_listed: bool = False
    """Whether collections are lists of entries with an ``id``, and a document may be a single group."""
    numbers_versions: bool = False
    """Whether message versions are numbered: only the highest is used."""
    groups_give_formats: bool = False
    """Whether messages without envelope and protocol get those of their group as their own."""


# Signs shared by several dialects. Detection uses the content, never the file name (MATCHING.md#catalogs).

DEFINITION_GROUP_NAMES: Final = frozenset({"definitiongroups", "definitiongroupsurl"})
_COLLECTIONS: Final = frozenset({"messagegroups", "endpoints", "schemagroups", *DEFINITION_GROUP_NAMES})
_CORE: Final = frozenset(
    {"specversion", "registryid", "messagegroupsurl", "endpointsurl", "schemagroupsurl", "modelsource"}
)


def specversion_of(document: Mapping[str, Any]) -> str:
    """Return the specification version that a document states, empty if none."""
    return str(document.get("specversion", ""))


def lower_case_names(document: Mapping[str, Any]) -> set[str]:
    """Return the names of a document's members, in lower case."""
    return {name.lower() for name in document if isinstance(name, str)}


def has_collections(document: Mapping[str, Any]) -> bool:
    """Whether a document has registry collections, under their names since 0.4."""
    return not _COLLECTIONS.isdisjoint(lower_case_names(document))


def is_registry(document: Mapping[str, Any]) -> bool:
    """Whether a document is a registry, which may have no collections."""
    return not (_COLLECTIONS | _CORE).isdisjoint(lower_case_names(document))


def has_listed_groups(document: Mapping[str, Any]) -> bool:
    """Whether a document has ``groups`` with messages."""
    names = ("messagedefinitions", "definitions", "messages")
    groups = iter_members(document.get("groups"))
    return any(isinstance(group, dict) and any(name in group for name in names) for group in groups)


def iter_members(collection: Any) -> Iterator[Any]:
    """Yield the members of a map or list; nothing for other values."""
    if isinstance(collection, dict):
        yield from collection.values()
    elif isinstance(collection, list):
        yield from collection


# CloudEvents Registry 0.4 and 0.5, which has definition groups.


def _is_definition_groups(document: Mapping[str, Any]) -> bool:
    version = specversion_of(document)
    if not has_collections(document) or version.startswith("1."):
        return False
    old = not DEFINITION_GROUP_NAMES.isdisjoint(lower_case_names(document)) or "schemaGroups" in document
    return version.startswith("0.4") or old or any(map(_lists_definitions, iter_members(document.get("endpoints"))))


def _lists_definitions(endpoint: Any) -> bool:
    """Whether an endpoint calls its messages definitions; then the whole document uses this dialect."""
    return isinstance(endpoint, dict) and not lower_case_names(endpoint).isdisjoint(("definitions", "definitiongroups"))


DEFINITION_GROUPS: Final = Dialect(
    title="CloudEvents Registry 0.4/0.5",
    detects=_is_definition_groups,
    names=_NAMES["CloudEvents Registry 0.4/0.5"],
    suffixes=(".cereg",),
)


# CNCF Message Catalog 0.1: a list of groups, one group, or one definition with its versions.
#
# The sections of a definition are read by :mod:`catalog.dialects.messages`.


def is_definition(document: Mapping[str, Any]) -> bool:
    """Whether a document is a single definition or a version of one."""
    if not (_is_declared_as_catalog(document) or isinstance(document.get("format"), str)) or "id" not in document:
        return False
    versions = iter_members(document.get("versions"))
    return any(isinstance(each, dict) and isinstance(each.get("definition"), dict) for each in (document, *versions))


def _is_message_catalog(document: Mapping[str, Any]) -> bool:
    version = specversion_of(document)
    if has_collections(document):
        return version == "0.1"
    if _is_group(document) or is_definition(document):
        return True
    return has_listed_groups(document) and not version.startswith("1.")


def _is_group(document: Mapping[str, Any]) -> bool:
    """Whether a document is a group of messages, not another document with ``definitions`` (a JSON schema)."""
    if "messagedefinitions" in document:
        return True
    definitions = document.get("definitions", document.get("messages"))
    listed = isinstance(definitions, list) and isinstance(document.get("format"), str)
    return definitions is not None and (_is_declared_as_catalog(document) or listed)


def _is_declared_as_catalog(document: Mapping[str, Any]) -> bool:
    return specversion_of(document) == "0.1" or "authority" in document


MESSAGE_CATALOG: Final = Dialect(
    title="CNCF Message Catalog 0.1",
    detects=_is_message_catalog,
    names=_NAMES["CNCF Message Catalog 0.1"],
    checks_attributes=False,
    is_listed=True,
    numbers_versions=True,
    groups_give_formats=True,
)


# xRegistry 0.5: message groups, with attribute names that 1.0 changed.

OLDER_XREGISTRY: Final = Dialect(
    title="xRegistry 0.5",
    detects=lambda document: specversion_of(document).startswith("0.5") and is_registry(document),
    names=_NAMES["xRegistry 0.5"],
)


# xRegistry 1.0, whose names are the canonical ones.

XREGISTRY: Final = Dialect(
    title="xRegistry 1.0",
    detects=lambda document: is_registry(document) or has_listed_groups(document),
    names=_NAMES["xRegistry 1.0"],
    is_replaced=False,
)


# AsyncAPI 2 and 3, which :mod:`catalog.dialects.asyncapi.reading` translates into xRegistry 1.0.

ASYNCAPI: Final = Dialect(
    title="AsyncAPI",
    detects=lambda document: "asyncapi" in document and not has_collections(document),
    names={},
    is_replaced=False,
    checks_attributes=False,
)


# All dialects.

DIALECTS: Final[list[Dialect]] = [ASYNCAPI, MESSAGE_CATALOG, DEFINITION_GROUPS, OLDER_XREGISTRY, XREGISTRY]
"""In the order of detection."""
_SUFFIXES: Final = (".json", ".yaml", ".yml")


def detect(document: Mapping[str, Any]) -> Dialect | None:
    """Return the dialect of a document; None if it is not a catalog.

    A registry without messages counts as 1.0.
    """
    return next((dialect for dialect in DIALECTS if dialect.detects(document)), None)


def suffixes() -> tuple[str, ...]:
    """Return the suffixes of catalog files."""
    return (*_SUFFIXES, *(suffix for dialect in DIALECTS for suffix in dialect.suffixes))
