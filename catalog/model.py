"""The normalised catalog: what every dialect becomes, and all that matching ever sees.

Names are those of the xRegistry 1.0 message specification. Everything is immutable and plain, so that a
catalog can be hashed, written down with a plan and read back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

PropertyType = Literal[
    "any",
    "binary",
    "boolean",
    "duration",
    "integer",
    "number",
    "string",
    "symbol",
    "timestamp",
    "uri",
    "urireference",
    "uritemplate",
]
CLOUDEVENTS: Final = "CloudEvents/1.0"
PROTOCOLS: Final = ("HTTP", "AMQP/1.0", "MQTT/3.1.1", "MQTT/5.0", "KAFKA", "NATS")
"""Canonical protocol names. HTTP/1.1, HTTP/2 and HTTP/3 become HTTP, KAFKA/3.5 becomes KAFKA (JUDGING.md#matching)."""


@dataclass(frozen=True, slots=True)
class Property:
    """One constrainable place of a record.

    ``name`` is the attribute (``type``) for an envelope, else the path below ``protocoloptions`` in canonical
    spelling: ``topic``, ``key``, ``headers.NAME``, ``query.NAME``, ``path``, ``properties.subject``,
    ``application-properties.NAME``, ``user_properties.NAME``, ``topic_name``, ``subject``, ``reply-to``.
    HTTP header names, and ``content-type`` everywhere, are lower case. ``value`` is None for no constraint on
    the value, else a scalar as written (str, bool, int, float). ``type`` is never empty: the declared one, else
    the one CloudEvents or the 1.0 protocol table gives, else ``string``. ``wire`` is the AMQP type that a declared one
    names, where the property types do not tell it (``uuid``, ``ulong``, ``float``); it serves to produce only.
    """

    name: str
    type: PropertyType
    value: str | bool | int | float | None = None
    required: bool = False
    wire: str = ""


@dataclass(frozen=True, slots=True)
class Relation:
    """How messages of a definition are related to those of another (CNCF Message Catalog 0.1).

    ``to`` is the xid of the other, ``kind`` what the relation is: ``reply``, ``followup``, ``end``, ``report`` or any
    text, empty when that is not said. A message is related to the one whose property ``of`` has the value of its own
    property ``via``. Both are keys as constraints have them (``e.NAME``, ``p.PATH``), and empty where none is named
    that could identify it.
    """

    to: str
    kind: str = ""
    via: str = ""
    of: str = ""


@dataclass(frozen=True, slots=True)
class Definition:
    """One effective message definition, after inheritance and group defaults (JUDGING.md#inheritance).

    ``protocol_declared`` tells a protocol that the message or a base of it names from one that only its group
    gives as default, which restricts but does not describe. ``base`` lists the xids it derives from, nearest first.
    A name that occurs twice in one list of headers gives two properties; both must hold.
    ``schemauri`` is the absolute URI of the data schema, which mapped and emitted events have as ``dataschema``: a
    template when the envelope declares one, None when there is no schema or its address is not known.
    ``schemakey`` names the entry of :attr:`Catalog.schemas` that holds the data schema, None when there is none or it
    could not be loaded; ``schemaname`` is the ``:Name`` deep link, ``schemapointer`` a JSON pointer into that document.
    """

    xid: str
    group: str
    envelope: str | None = None
    protocol: str | None = None
    protocol_declared: bool = True
    envelopemetadata: tuple[Property, ...] = ()
    protocoloptions: tuple[Property, ...] = ()
    envelopeoptions: Mapping[str, Any] = field(default_factory=dict)
    dataschemaformat: str | None = None
    dataschema: Any = None
    dataschemauri: str | None = None
    dataschemaxid: str | None = None
    datacontenttype: str | None = None
    base: tuple[str, ...] = ()
    schemauri: str | None = None
    schemakey: str | None = None
    schemaname: str = ""
    schemapointer: str = ""
    relation: Relation | None = None

    @property
    def messageid(self) -> str:
        """The last segment of the xid, which is the default ``type`` of a mapped event."""
        return self.xid.rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A channel: where messages travel, and which definitions are expected there.

    ``candidates`` are the xids of its inline messages, then of all messages of its groups, each once.
    ``uris`` are the addresses in ``protocoloptions.endpoints`` whatever their spelling; ``options`` the merged
    channel options (``topic``, ``path``, ``method``, ``key``, ...), which address and never filter.
    """

    xid: str
    usage: tuple[str, ...] = ()
    envelope: str | None = None
    protocol: str | None = None
    envelopeoptions: Mapping[str, Any] = field(default_factory=dict)
    uris: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    messagegroups: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()


Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing lint has to say; ``hint`` is the remedy. The JSON form has exactly these members."""

    file: str
    pointer: str
    severity: Severity
    rule: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Catalog:
    """Everything read from one or more documents. ``epoch`` is a content hash of the normalised catalog:
    the same meaning gives the same epoch, whatever the formatting or the order of files.

    ``schemas`` holds one document per entry, ``{"format": text or None, "document": tree or text}``, and ``schemaids``
    where schema registries are said to know it by some, by key: the xid
    of a version (``/schemagroups/G/schemas/S/versions/V``), the URI it was fetched from, or ``XID#dataschema`` for one
    written into a definition. ``order`` lists the definitions in the order of their documents, which is no part of what
    the catalog means, and so of its epoch. ``pending`` are the URIs that could not be reached for now; a later load
    may have them.
    """

    definitions: Mapping[str, Definition] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    schemas: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    epoch: str = ""
    pending: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
