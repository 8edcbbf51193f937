"""The dialects, and which of them a document is written in. One more is a :class:`Dialect` in ``DIALECTS``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

# What a dialect is to the others: how its documents are known, its own names, and how they are read.

Kind = Literal["groups", "messages", "selectors", "attributes", "bases", "holders", "metadata", "definition"]
"""Kinds of names: of the collections of groups and of messages; of what selects envelope and protocol; of the other
attributes of a message, and its base; of what holds addresses and options of an endpoint; of envelope attributes or
protocol options that are told apart by content (``metadata``), and in sections (``definition``)."""
Names = Mapping[Kind, Mapping[str, str]]
"""By kind and spelling in lower case: the name of 1.0."""


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """A dialect of MATCHING.md#catalogs; :mod:`catalog.dialects.detection` lists them all.

    The names of all dialects are read in every document; ``names`` are a document's own, and not remarked
    upon.
    """

    title: str
    detects: Callable[[Mapping[str, Any]], bool]
    """Recognises a document of this dialect, once those listed before have not taken it."""
    names: Names
    suffixes: tuple[str, ...] = ()
    """Endings of its files, beside those of JSON and YAML."""
    is_replaced: bool = True
    """Whether xRegistry 1.0 has replaced it."""
    checks_attributes: bool = True
    """Whether lint knows all its attributes, so that it can report slips."""
    is_listed: bool = False
    """Whether collections are lists of entries with an ``id``, and a document may be one group."""
    numbers_versions: bool = False
    """Whether versions of a message are numbered: the highest counts, and nothing refers to the others."""
    groups_give_formats: bool = False
    """Whether the envelope and protocol of a group are its messages' own where they name none."""


# Signs that several dialects are known by; content tells, never a file name (MATCHING.md#catalogs).

DEFINITION_GROUP_NAMES: Final = frozenset({"definitiongroups", "definitiongroupsurl"})
_COLLECTIONS: Final = frozenset({"messagegroups", "endpoints", "schemagroups", *DEFINITION_GROUP_NAMES})
_CORE: Final = frozenset(
    {"specversion", "registryid", "messagegroupsurl", "endpointsurl", "schemagroupsurl", "modelsource"}
)


def version_of(document: Mapping[str, Any]) -> str:
    """Return what a document says of its version, which counts before the names it uses."""
    return str(document.get("specversion", ""))


def folded_names(document: Mapping[str, Any]) -> set[str]:
    """Return the names of a document's members in lower case."""
    return {name.lower() for name in document if isinstance(name, str)}


def has_collections(document: Mapping[str, Any]) -> bool:
    """Tell a document with collections of a registry, under their names since 0.4."""
    return not _COLLECTIONS.isdisjoint(folded_names(document))


def is_registry(document: Mapping[str, Any]) -> bool:
    """Tell a registry, which may have no collections at all."""
    return not (_COLLECTIONS | _CORE).isdisjoint(folded_names(document))


def has_listed_groups(document: Mapping[str, Any]) -> bool:
    """Tell a document with ``groups`` of messages."""
    names = ("messagedefinitions", "definitions", "messages")
    groups = members_of(document.get("groups"))
    return any(isinstance(group, dict) and any(name in group for name in names) for group in groups)


def members_of(collection: Any) -> Iterator[Any]:
    """Give the members of a map or a list; of anything else nothing."""
    if isinstance(collection, dict):
        yield from collection.values()
    elif isinstance(collection, list):
        yield from collection


# CloudEvents Registry 0.4 and 0.5, whose groups are of definitions.


def _detects(document: Mapping[str, Any]) -> bool:
    version = version_of(document)
    if not has_collections(document) or version.startswith("1."):
        return False
    old = not DEFINITION_GROUP_NAMES.isdisjoint(folded_names(document)) or "schemaGroups" in document
    return version.startswith("0.4") or old or any(map(_names_definitions, members_of(document.get("endpoints"))))


def _names_definitions(endpoint: Any) -> bool:
    """Tell an endpoint that names its messages as definitions; in the same document all else is so too."""
    return isinstance(endpoint, dict) and not folded_names(endpoint).isdisjoint(("definitions", "definitiongroups"))


DEFINITION_GROUPS: Final = Dialect(
    title="CloudEvents Registry 0.4/0.5",
    detects=_detects,
    names={
        "groups": {"definitiongroups": "messagegroups"},
        "messages": {"definitions": "messages"},
        "selectors": {"format": "envelope", "protocol": "protocol"},
        "attributes": {
            "schemaformat": "dataschemaformat",
            "schema": "dataschema",
            "schemauri": "dataschemauri",
            "schemaurl": "dataschemauri",
            "datacontenttype": "datacontenttype",
        },
        "holders": {"protocoloptions": "protocoloptions", "config": "protocoloptions"},
        "metadata": {"metadata": "envelopemetadata"},
    },
    suffixes=(".cereg",),
)


# CNCF Message Catalog 0.1: lists of groups of definitions, one group, or one definition with its versions.
#
# What a definition holds in sections is read by :mod:`catalog.dialects.messages`.


def is_definition(document: Mapping[str, Any]) -> bool:
    """Tell a definition that is a document of its own, with its versions or as one of them."""
    if not (_says_so(document) or isinstance(document.get("format"), str)) or "id" not in document:
        return False
    versions = members_of(document.get("versions"))
    return any(isinstance(each, dict) and isinstance(each.get("definition"), dict) for each in (document, *versions))


def _is_message_catalog(document: Mapping[str, Any]) -> bool:
    version = version_of(document)
    if has_collections(document):
        return version == "0.1"
    if _is_group(document) or is_definition(document):
        return True
    return has_listed_groups(document) and not version.startswith("1.")


def _is_group(document: Mapping[str, Any]) -> bool:
    """Tell a group of message definitions from other documents with ``definitions``, such as a JSON schema."""
    if "messagedefinitions" in document:
        return True
    definitions = document.get("definitions", document.get("messages"))
    listed = isinstance(definitions, list) and isinstance(document.get("format"), str)
    return definitions is not None and (_says_so(document) or listed)


def _says_so(document: Mapping[str, Any]) -> bool:
    return version_of(document) == "0.1" or "authority" in document


MESSAGE_CATALOG: Final = Dialect(
    title="CNCF Message Catalog 0.1",
    detects=_is_message_catalog,
    names={
        "groups": {"groups": "messagegroups"},
        "messages": {"definitions": "messages", "messagedefinitions": "messages"},
        "selectors": {"format": "envelope"},
        "attributes": {"datacontenttype": "datacontenttype"},
        "definition": {"definition": "envelopemetadata and protocoloptions"},
    },
    checks_attributes=False,
    is_listed=True,
    numbers_versions=True,
    groups_give_formats=True,
)


# xRegistry 0.5: message groups, with names that 1.0 has changed.

OLDER_XREGISTRY: Final = Dialect(
    title="xRegistry 0.5",
    detects=lambda document: version_of(document).startswith("0.5") and is_registry(document),
    names={
        "groups": {"messagegroups": "messagegroups"},
        "messages": {"messages": "messages"},
        "selectors": {"envelope": "envelope", "format": "envelope", "protocol": "protocol", "binding": "protocol"},
        "attributes": {
            "envelopemetadata": "envelopemetadata",
            "envelopeoptions": "envelopeoptions",
            "protocoloptions": "protocoloptions",
            "protocolmetadata": "protocoloptions",
            "schemaformat": "dataschemaformat",
            "schema": "dataschema",
            "dataschemaurl": "dataschemauri",
            "schemauri": "dataschemauri",
            "schemaurl": "dataschemauri",
            "datacontenttype": "datacontenttype",
        },
        "bases": dict.fromkeys(("basemessageuri", "basemessageurl", "basemessagexid"), "basemessage"),
        "holders": {"protocoloptions": "protocoloptions", "protocolmetadata": "protocoloptions"},
        "metadata": {"metadata": "envelopemetadata"},
    },
)


# xRegistry 1.0, the dialect of all others' canonical names.

XREGISTRY: Final = Dialect(
    title="xRegistry 1.0",
    detects=lambda document: is_registry(document) or has_listed_groups(document),
    names={
        "groups": {"messagegroups": "messagegroups"},
        "messages": {"messages": "messages"},
        "selectors": {"envelope": "envelope", "protocol": "protocol"},
        "attributes": {
            "envelopemetadata": "envelopemetadata",
            "envelopeoptions": "envelopeoptions",
            "protocoloptions": "protocoloptions",
            "dataschemaformat": "dataschemaformat",
            "dataschema": "dataschema",
            "schema": "dataschema",
            "dataschemauri": "dataschemauri",
            "schemauri": "dataschemauri",
            "schemaurl": "dataschemauri",
            "dataschemaxid": "dataschemaxid",
            "datacontenttype": "datacontenttype",
        },
        "bases": {"basemessage": "basemessage"},
        "holders": {"protocoloptions": "protocoloptions"},
    },
    is_replaced=False,
)


# The dialects, and which of them a document is written in. One more is a file, and its entry in ``DIALECTS``.

DIALECTS: Final[list[Dialect]] = [MESSAGE_CATALOG, DEFINITION_GROUPS, OLDER_XREGISTRY, XREGISTRY]
"""In the order in which they are asked whether a document is theirs."""
_SUFFIXES: Final = (".json", ".yaml", ".yml")


def detect(document: Mapping[str, Any]) -> Dialect | None:
    """Return the dialect of a document's tree; None when it is no catalog at all.

    A registry that merely has no messages is one of 1.0.
    """
    return next((dialect for dialect in DIALECTS if dialect.detects(document)), None)


def suffixes() -> tuple[str, ...]:
    """Return the endings of files that are read in a folder, and that tell the address of a document."""
    return (*_SUFFIXES, *(suffix for dialect in DIALECTS for suffix in dialect.suffixes))
