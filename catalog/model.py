"""The normalised catalog, which every dialect is converted to and which matching uses.

Names are those of the xRegistry 1.0 message specification. Everything is immutable and plain, so that a catalog can be
hashed, stored with a plan and read back.
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
"""Canonical protocol names. HTTP/1.1, HTTP/2 and HTTP/3 become HTTP, KAFKA/3.5 becomes KAFKA (MATCHING.md#matching)."""


@dataclass(frozen=True, slots=True)
class Property:
    """A constrained property of a record.

    ``name`` is the attribute (``type``) for an envelope, else the path below ``protocoloptions`` in canonical
    spelling: ``topic``, ``key``, ``headers.NAME``, ``query.NAME``, ``path``, ``properties.subject``,
    ``application-properties.NAME``, ``user_properties.NAME``, ``topic_name``, ``subject``, ``reply-to``.
    HTTP header names, and ``content-type`` everywhere, are lower case. ``value`` is None for no constraint on
    the value, else a scalar as written (str, bool, int, float). ``type`` is never empty: the declared one, else
    the one of CloudEvents or the 1.0 protocol table, else ``string``. ``wire`` is the AMQP type that a declared one
    names, where property types do not (``uuid``, ``ulong``, ``float``); it is only used to produce.
    """

    name: str
    type: PropertyType
    value: str | bool | int | float | None = None
    required: bool = False
    wire: str = ""


@dataclass(frozen=True, slots=True)
class Relation:
    """The relation of a definition's messages to those of another (CNCF Message Catalog 0.1).

    ``to`` is the xid of the other, ``kind`` the kind of relation: ``reply``, ``followup``, ``end``, ``report`` or any
    text, empty if it is not stated. A message is related to the one whose property ``of`` has the value of its own
    property ``via``. Both are keys as in constraints (``e.NAME``, ``p.PATH``), and empty if there is none that could
    identify a message.
    """

    to: str
    kind: str = ""
    via: str = ""
    of: str = ""


@dataclass(frozen=True, slots=True)
class Definition:
    """An effective message definition, after inheritance and group defaults (MATCHING.md#inheritance).

    ``protocol_declared`` is True if the message or a base of it names the protocol, False if only its group does, as
    a default, which restricts but does not describe. ``base`` lists the xids it derives from, nearest first.
    A name that occurs twice in one list of headers gives two properties; both must hold.
    ``schemauri`` is the absolute URI of the data schema, which mapped and emitted events have as ``dataschema``: a
    template if the envelope declares one, None if there is no schema or its address is unknown.
    ``schemakey`` is the key of the data schema in :attr:`Catalog.schemas`, None if there is none or it could not be
    loaded; ``schemaname`` is the ``:Name`` deep link, ``schemapointer`` a JSON pointer into that document.
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
    """A channel for messages, with its addresses and the definitions that it offers.

    ``candidates`` are the xids of its inline messages, then of all messages of its groups, each once.
    ``uris`` are the addresses in ``protocoloptions.endpoints`` whatever their spelling; ``options`` the merged
    channel options (``topic``, ``path``, ``method``, ``key``, ...), which address the channel and never filter.
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
    """A finding of lint; ``hint`` says how to fix it. The JSON form has exactly these members."""

    file: str
    pointer: str
    severity: Severity
    rule: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Catalog:
    """A loaded catalog. ``epoch`` is a content hash of the normalised catalog:
    the same meaning gives the same epoch, whatever the formatting or the order of files.

    ``schemas`` has one document per entry, ``{"format": text or None, "document": tree or text}``, by key: the xid of a
    version (``/schemagroups/G/schemas/S/versions/V``), the URI it was fetched from, or ``XID#dataschema`` for one
    inside a definition; some entries have ``schemaids``, its ids in schema registries. ``order`` lists the definitions
    in the order of their documents, which is not part of the epoch. ``pending`` are the URIs that are unavailable at
    present; a later load may have them.
    """

    definitions: Mapping[str, Definition] = field(default_factory=dict)
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    schemas: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    epoch: str = ""
    pending: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
