"""The attributes that the dialects know, by level of a document; all else is an extension, which 1.0 allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class DocumentLevel:
    """One kind of object in a document.

    ``what`` names it in messages, ``names`` are its attributes in lower case, ``holds`` its collections with the kind
    of their members. ``elsewhere`` are attributes of other levels that mean nothing here, and where they belong.
    """

    what: str
    names: frozenset[str]
    holds: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)


_CORE: Final = frozenset(
    """
    id self shortself xid xref epoch name description documentation docs icon labels tags createdat modifiedat createdby
    createdon modifiedby modifiedon deprecated version versionid isdefault ancestor ancestorid contenttype readonly
    compatibility compatibilityauthority defaultversionid defaultversionurl defaultversionsticky meta metaurl metauri
    versions versionsurl versionsuri versionscount origin type $schema $id $comment
    """.split()
)
_GROUP_SELECTORS: Final = frozenset({"envelope", "protocol", "format", "binding"})
_SCHEMA_ATTRIBUTES: Final = frozenset(
    """
    dataschema dataschemaformat dataschemauri dataschemaurl dataschemaxid datacontenttype schema schemaformat schemauri
    schemaurl
    """.split()
)
_BASES: Final = frozenset({"basemessage", "basemessageuri", "basemessageurl", "basemessagexid"})

_MESSAGES: Final = ("messages", "definitions", "messagedefinitions")


def _collection(*names: str) -> frozenset[str]:
    """Return the names of collections with those of their addresses and counts."""
    return frozenset(name + suffix for name in names for suffix in ("", "url", "uri", "count"))


_OF_MESSAGES: Final = dict.fromkeys(
    ("protocoloptions", "protocolmetadata", "envelopemetadata", "envelopeoptions", "dataschemaformat", "basemessage"),
    "messages",
)
LEVELS: Final[Mapping[str, DocumentLevel]] = {
    "registry": DocumentLevel(
        "a registry",
        _CORE
        | {"specversion", "registryid", "capabilities", "model", "modelsource"}
        | _collection("messagegroups", "endpoints", "schemagroups", "definitiongroups", "groups"),
        {
            "messagegroups": "group",
            "groups": "group",
            "definitiongroups": "group",
            "endpoints": "endpoint",
            "schemagroups": "schemagroup",
        },
        {"messages": "message groups", "schemas": "schema groups"},
    ),
    "group": DocumentLevel(
        "a message group",
        _CORE | _GROUP_SELECTORS | {"messagegroupid", "definitiongroupid"} | _collection(*_MESSAGES),
        dict.fromkeys(_MESSAGES, "message"),
        _OF_MESSAGES,
    ),
    "endpoint": DocumentLevel(
        "an endpoint",
        _CORE
        | _GROUP_SELECTORS
        | {"endpointid", "usage", "channel", "deployed", "endpoints", "config", "options", "authorization", "strict"}
        | {"envelopeoptions", "protocoloptions", "protocolmetadata"}
        | _collection("messagegroups", "definitiongroups", *_MESSAGES),
        dict.fromkeys(_MESSAGES, "message"),
        {"envelopemetadata": "messages", "dataschemaformat": "messages", "basemessage": "messages"},
    ),
    "message": DocumentLevel(
        "a message",
        _CORE
        | _GROUP_SELECTORS
        | _SCHEMA_ATTRIBUTES
        | _BASES
        | {"messageid", "definitionid", "uri", "metadata", "definition", "config"}
        | {"envelopemetadata", "envelopeoptions", "protocoloptions", "protocolmetadata"},
        {"versions": "message"},
        {"usage": "endpoints", "messagegroups": "endpoints"},
    ),
    "property": DocumentLevel(
        "a property", frozenset({"name", "type", "value", "required", "description", "specurl", "specuri", "default"})
    ),
    "schemagroup": DocumentLevel(
        "a schema group", _CORE | {"schemagroupid", "format"} | _collection("schemas"), {"schemas": "schema"}
    ),
    "schema": DocumentLevel(
        "a schema",
        _CORE | {"schemaid", "format", "validation", "schema", "schemauri", "schemaurl", "schemabase64", "uri"},
        {"versions": "version"},
    ),
    "version": DocumentLevel(
        "a schema version",
        _CORE | {"schemaid", "format", "validation", "schema", "schemauri", "schemaurl", "schemabase64", "uri"},
    ),
}
