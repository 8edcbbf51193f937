"""What reading and writing AsyncAPI share: bindings of protocols, schema formats, patches, references, ids."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from catalog.parsing.texts import read_table
from catalog.values import plain_number

EXTENSION: Final = "x-xregistry"
JSON_SCHEMA: Final = "JsonSchema/draft-07"
"""What AsyncAPI's own schemas are read as: a superset of it, whose additions only describe."""
DEFAULT_VERSION: Final = "1.0.0"
"""The version of a document whose catalog has none."""
STRUCTURED: Final = "application/cloudevents+"
EVENT_ATTRIBUTES: Final = ("specversion", "id", "source", "type")
"""The attributes that every CloudEvent has."""


@dataclass(frozen=True, slots=True)
class ProtocolBinding:
    """How AsyncAPI describes a protocol.

    ``servers`` are the names of the protocol without and with TLS, ``schemes`` those of addresses; ``keys`` the names
    of its bindings, the usual one first. ``headers`` is the option that has the headers, ``prefixes`` those of
    CloudEvents attributes among them; ``about`` is the message option with the channel's address, ``channel`` that of
    endpoints. ``message`` and ``operation`` are options of messages, ``server`` and ``endpoint`` those of endpoints, by
    member of the binding.
    """

    servers: tuple[str, str] = ("", "")
    schemes: tuple[str, str] = ("", "")
    keys: tuple[str, ...] = ()
    headers: str = ""
    prefixes: tuple[str, ...] = ("ce-", "ce_")
    about: str = ""
    channel: str = ""
    message: Mapping[str, str] = field(default_factory=dict)
    operation: Mapping[str, str] = field(default_factory=dict)
    server: Mapping[str, str] = field(default_factory=dict)
    endpoint: Mapping[str, str] = field(default_factory=dict)


TABLES: Final = read_table(__package__, "tables.yaml", dict[str, dict[str, Any]])
BINDINGS: Final = msgspec.convert(TABLES["bindings"], dict[str, ProtocolBinding])
NO_BINDING: Final = ProtocolBinding()
"""Of messages whose protocol is not known."""


def binding_of(protocol: str | None) -> ProtocolBinding:
    """Return the binding of a 1.0 protocol; one without names if it is unknown or None."""
    return BINDINGS.get(protocol or "", NO_BINDING)


# Schema formats: the ``schemaFormat`` of AsyncAPI, and the 1.0 name.

_MEDIA: Final = re.compile(
    r"application/(?:vnd\.)?(aai\.asyncapi|schema|apache\.avro|google\.protobuf|xregistry)(?:\+(?:json|yaml))?+"
    r"(?:\s*+;\s*+(?:version|format)=([^\s;]++))?+\s*+",
    re.ASCII,
)
_FAMILIES: Final = {
    "schema": ("JsonSchema/", "draft-07"),
    "apache.avro": ("Avro/", "1.9.0"),
    "google.protobuf": ("Protobuf/", "3"),
    "xregistry": ("", ""),
}
_MEDIA_OF_FAMILY: Final = {"JsonSchema": "schema+json", "Avro": "vnd.apache.avro", "Protobuf": "vnd.google.protobuf"}


def format_of_media(media: Any) -> str:
    """Return the 1.0 schema format of a ``schemaFormat``; an unknown one as it is."""
    match = _MEDIA.fullmatch(media) if isinstance(media, str) else None
    if match is None or match[1] == "aai.asyncapi":
        return media if match is None and isinstance(media, str) and media else JSON_SCHEMA
    family, version = _FAMILIES[match[1]]
    return family + (match[2] or version)


def media_of_format(form: str) -> str:
    """Return the ``schemaFormat`` of a 1.0 schema format."""
    family, _, version = form.partition("/")
    known = _MEDIA_OF_FAMILY.get(family) if version else None
    return f"application/{known};version={version}" if known else f"application/vnd.xregistry;format={form}"


# Patches (RFC 7396).

LITERAL: Final = "$value"
"""The only member of an object in a patch that replaces a value as a whole, so that it may have null members."""


def merge_patch(target: Any, patch: Any) -> Any:
    """Return *target* with a JSON merge patch applied; ``{"$value": X}`` in it stands for X as it is."""
    if not isinstance(patch, dict):
        return patch
    if patch.keys() == {LITERAL}:
        return patch[LITERAL]
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def difference(current: Any, wanted: Any) -> Any:
    """Return the merge patch that makes *wanted* of *current*."""
    if not isinstance(current, dict) or not isinstance(wanted, dict):
        return _quoted(wanted)
    if None in wanted.values():
        return {LITERAL: wanted}
    patch: dict[str, Any] = dict.fromkeys(name for name in current if name not in wanted)
    for name, value in wanted.items():
        if name not in current:
            patch[name] = _quoted(value)
        elif json.dumps(current[name], sort_keys=True) != json.dumps(value, sort_keys=True):  # in JSON, true is not 1
            patch[name] = difference(current[name], value)
    return patch


def _quoted(value: Any) -> Any:
    """Return a value as in a patch: one with null members is written as a whole."""
    return {LITERAL: value} if isinstance(value, dict) and (_has_null(value) or LITERAL in value) else value


def _has_null(value: Any) -> bool:
    return isinstance(value, dict) and any(each is None or _has_null(each) for each in value.values())


# References.

_MAPS: Final = frozenset(
    {"properties", "patternProperties", "definitions", "$defs", "dependencies", "dependentSchemas"}
)
"""Keywords of JSON schemas whose members are schemas by name."""
_VALUES: Final = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are no schemas."""


def copy_schema(
    value: Any, change: Callable[[str], str] | None, spend: Callable[[int], None], *, named: bool = False
) -> Any:
    """Copy a schema with plain numbers and, if *change* is given, changed references.

    *spend* is called with the number of values. *named* is true where the keys of an object are names.
    """
    if isinstance(value, list):
        spend(len(value))
        return [copy_schema(each, change, spend, named=named) for each in value]
    if not isinstance(value, dict):
        return plain_number(value)
    spend(len(value))
    copy = {}
    for name, each in value.items():
        if name == "$ref" and isinstance(each, str) and change is not None and not named:
            copy[name] = change(each)
        elif not named and name in _VALUES:
            copy[name] = copy_schema(each, None, spend)
        else:
            copy[name] = copy_schema(each, change, spend, named=not named and name in _MAPS)
    return copy


# Names.

_NOT_ID: Final = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_ID: Final = 120


def to_id(text: str) -> str:
    """Return a text as an xRegistry id and an AsyncAPI key."""
    return _NOT_ID.sub(".", text).strip(".")[:_MAX_ID] or "unnamed"


class UnusedNames:
    """Gives out names, each once: with a number if it was given before."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def take(self, name: str) -> str:
        """Return *name*, or the next of its names with a number."""
        own = name
        while own in self._given:
            self._given[name] += 1
            own = f"{name}.{self._given[name]}"
        self._given[own] = 1
        return own

    def __contains__(self, name: str) -> bool:
        return name in self._given


_SECURE: Final = re.compile(r"(?:mqtt|amqp|http|nats)s1?|tls|(?:sasl_)?ssl|wss|.*secure.*")


def is_secure(scheme: str) -> bool:
    """Whether a protocol, or the scheme of an address, is one over TLS."""
    return _SECURE.fullmatch(scheme.lower()) is not None


def entity_at(tree: Mapping[str, Any], xid: str) -> dict[str, Any]:
    """Return the entity *xid* of an xRegistry document; an empty one if it is not there."""
    collection, owner, *rest = xid.lstrip("/").split("/", 3)
    node: Any = tree.get(collection, {}).get(owner, {})
    if rest:
        name, _, version = rest[1].partition("/versions/") if rest[0] == "schemas" else (rest[1], "", "")
        node = node.get(rest[0], {}).get(name, {})
        node = node.get("versions", {}).get(version, {}) if version else node
    return node if isinstance(node, dict) else {}
