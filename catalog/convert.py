"""Convert a loaded catalog to one xRegistry 1.0-rc4 document.

Reading the document gives the same definitions, endpoints and candidates as the sources. Entities with errors are left
out and named.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from catalog.definitions.inheritance import (
    BODY_MEMBERS,
    METADATA,
    OPTIONS,
    RELATED_TO,
    effective_of,
    iter_histories,
    merged_body,
    parse_short_entry,
    related_xid,
    relation_attributes,
)
from catalog.dialects.messages import flatten_attributes
from catalog.dialects.reading import default_version
from catalog.findings import (
    MESSAGE_REFERENCE,
    CatalogError,
    Declarations,
    DeclaredEndpoint,
    DeclaredGroup,
    DeclaredMessage,
    EffectiveMessage,
    has_no_controls,
)
from catalog.linting.attributes import rejecting_errors
from catalog.model import PROTOCOLS, Catalog, Property
from catalog.protocols.properties import (
    PROTOCOL_OPTIONS,
    add_nested_option,
    canonical_option,
    canonical_protocol,
    options_of,
)
from catalog.schemas.library import versions_of
from catalog.values import WrittenNumber, is_number, plain_number, to_text

# Attributes common to all xRegistry entities: identifiers first, then descriptive ones, then the rest.
#
# ``epoch`` and times are copied if the source has them, never invented. URLs and counts of a server (``self``,
# ``…url``, ``…count``) are left out.

ATTRIBUTE_ORDER: Final = (
    *("name", "description", "documentation", "icon", "labels", "epoch", "createdat", "modifiedat", "ancestorid"),
    "deprecated",
)
FIRST_VERSION: Final = "1"
"""The version id that registries assign if none is given."""
_TEXTS: Final = frozenset({"name", "description", "labels"})
_LOCATORS: Final = frozenset({"id", "xid", "self", "shortself", "metaurl", "defaultversionurl"})
_COLLECTIONS: Final = ("messages", "versions", "schemas", "messagegroups", "endpoints", "schemagroups")
_COUNTED: Final = frozenset(f"{name}{end}" for name in _COLLECTIONS for end in ("url", "count"))
_RENAMED: Final = {"ancestor": "ancestorid"}


def common_of(other: Mapping[str, Any], drop: Collection[str] = ()) -> dict[str, Any]:
    """Return the attributes of *other* under their 1.0 names, well-known ones first, without those in *drop*."""
    kept: dict[str, Any] = {}
    for name, value in other.items():
        if name not in _LOCATORS and name not in _COUNTED and name not in drop:
            known = _RENAMED.get(name, name)
            kept.setdefault(known, _numbers_to_text(value) if known in _TEXTS else value)
    return {**{name: kept[name] for name in ATTRIBUTE_ORDER if name in kept}, **kept}


def _numbers_to_text(value: Any) -> Any:
    """Replace numbers by their written text, also in maps."""
    if isinstance(value, dict):
        return {name: _numbers_to_text(each) for name, each in value.items()}
    return to_text(value) if is_number(value) else value


def last_id(xid: str) -> str:
    """Return the last id of an xid. Ids of old documents may contain slashes."""
    rest = xid.split("/", 2)[2]
    for collection in ("/messages/", "/schemas/"):
        _, separator, inner = rest.partition(collection)
        if separator:
            return inner
    return rest


def written_version(other: Mapping[str, Any]) -> str | None:
    """Return ``versionid``, or ``version`` of older documents."""
    for name in ("versionid", "version"):
        value = other.get(name)
        if (isinstance(value, str) or is_number(value)) and to_text(value):
            return to_text(value)
    return None


# Messages in 1.0-rc4: as declared, with their base, or flattened.
#
# Reading the output gives the same definition. Where a dialect replaces inherited values by a bare scalar or an empty
# text, each member is written out, since objects are merged in 1.0.

_DATA: Final = ("dataschemaformat", "dataschema", "dataschemauri", "dataschemaxid", "datacontenttype")
_DROPPED: Final = frozenset({"messageid", "versionid", "version", "meta", "xref", "uri"})
_OF_XREF: Final = frozenset({"messageid", "versionid", "xid", "meta", "epoch", "createdat", "modifiedat", "ancestorid"})
"""Attributes that an ``xref`` message has of its own; all others are those of its target."""
_OF_META: Final = frozenset({"messageid", "xid", "self", "xref", "versionid"})


def message_to_json(effective: EffectiveMessage, version: str) -> dict[str, Any]:
    """Return a message as declared, as JSON of 1.0-rc4."""
    own = effective.message.attributes
    form = _identity_attributes(effective.message, version)
    _add_base(form, effective)
    form.update({name: own[name] for name in ("envelope", "protocol") if own.get(name) is not None})
    options = form["protocoloptions"] = _write_sections(form, [each for each in _iter_written(effective) if each.own])
    options.update(_unknown_options(own.get(OPTIONS), effective.spelling, options))
    return _with_data(form, own)


def flat_message_to_json(effective: EffectiveMessage, version: str) -> dict[str, Any] | None:
    """Return a message with inherited values and without a base; None if it needs its base.

    It does if only the group of a base gives the protocol and the message has no options: such a default restricts but
    does not describe (MATCHING.md#envelope-and-protocol), and a message of another group cannot declare that.
    """
    form = _identity_attributes(effective.message, version)
    if effective.envelope is not None:
        form["envelope"] = effective.envelope
    properties = list(_iter_written(effective, flat=True))
    protocol, declared, group = effective.protocol, effective.protocol_declared, effective.group
    if protocol is not None and (declared or not group or group.protocol != protocol):
        if not declared and all(each.section != OPTIONS for each in properties):
            return None
        form["protocol"] = protocol
    form["protocoloptions"] = _write_sections(form, properties)
    _with_data(form, effective.attributes)
    for message in (base.message for base in effective.bases):
        for name, value in relation_attributes(message).items():
            form.setdefault(name, related_xid(message, value) if name == RELATED_TO else value)
    return form


def _identity_attributes(message: DeclaredMessage, version: str) -> dict[str, Any]:
    """Return identifiers and descriptive attributes."""
    owner = message.xid.partition("/versions/")[0] if message.hidden else message.xid
    meta = message.other.get("meta")
    kept = {name: value for name, value in meta.items() if name not in _OF_META} if isinstance(meta, dict) else {}
    return {
        "messageid": last_id(owner),
        "versionid": version,
        "xid": message.xid,
        **common_of(message.other, _DROPPED),
        **({"meta": kept} if kept else {}),
    }


def _add_base(form: dict[str, Any], effective: EffectiveMessage) -> None:
    """Add the base to *form*: its xid if it is in this document, else the reference as written.

    A message that borrows another becomes an ``xref`` if it declares nothing itself, else it gets the other as base.
    """
    message = effective.message
    base = effective.bases[0].message.xid if effective.bases else None
    here = base if base is not None and base.startswith("/") else None
    if message.borrowed is None:
        if here or message.base:
            form["basemessage"] = here or message.base
    elif base is not None and (message.attributes or _is_described(form) or here is None or "/versions/" in here):
        form["basemessage"] = here or message.borrowed
    elif here is None and MESSAGE_REFERENCE.search(message.borrowed) and not message.borrowed.startswith("/"):
        form["uri"] = message.borrowed  # may become resolvable later; an xref must be an xid
    else:
        form["meta"] = {**form.get("meta", {}), "xref": here or message.borrowed}
        for name in _OF_XREF - {"messageid", "xid", "meta"}:
            form.pop(name, None)


def _is_described(form: Mapping[str, Any]) -> bool:
    """Whether a message has a name, labels or the like, which an ``xref`` message cannot have."""
    return bool(form.keys() - _OF_XREF)


@dataclass(frozen=True, slots=True)
class _WrittenProperty:
    """A property to write: what the message says itself (``body``), and the property of its bases, if any."""

    section: str
    prop: Property
    own: bool
    body: Any
    inherited: Property | None
    is_required: bool

    def overlay(self) -> dict[str, Any]:
        """Return ``{type, value, required, …}`` that turns the inherited property into this one when merged."""
        raw = self.body if isinstance(self.body, dict) else {}
        prop, base = self.prop, self.inherited
        body: dict[str, Any] = {}
        unsaid = self.section == METADATA and prop.type != "string"
        if raw.get("type") is not None or ((prop.type, prop.wire) != (base.type, base.wire) if base else unsaid):
            body["type"] = prop.wire or prop.type
        inherited = base.value if base else None
        if (type(prop.value), prop.value) != (type(inherited), inherited):
            body["value"] = "" if prop.value is None else prop.value  # an empty text removes an inherited value
        elif prop.value is not None and ("value" in raw or not isinstance(self.body, dict)):
            body["value"] = prop.value
        if base is None:
            if prop.required and (self.section != METADATA or self.is_required):
                body["required"] = True  # what CloudEvents requires need not be written
        elif prop.required != base.required or raw.get("required") is not None:
            body["required"] = prop.required
        named = (*BODY_MEMBERS, "name")
        return {**body, **{name: value for name, value in raw.items() if name not in named and value is not None}}


def _iter_written(effective: EffectiveMessage, *, flat: bool = False) -> Iterator[_WrittenProperty]:
    """Yield all properties; with *flat*, as if the message itself declared all of each."""
    histories = list(iter_histories(effective))
    times = Counter((each.section, each.name) for each in histories)
    for each in histories:
        last, merged = each.history[-1], merged_body(each.history)
        own = last.message is effective.message
        raw: Any = last.raw if own else None
        below = each.history[:-1] if own else each.history
        inherited = None
        if flat:
            said = merged if isinstance(merged, dict) else {"value": merged}
            said = {name: said[name] for name in BODY_MEMBERS if said.get(name) is not None}
            raw = {**(raw if isinstance(raw, dict) else {}), **said}
        elif below and not last.replaces and times[each.section, each.name] == 1:  # else entries are not merged
            inherited = each._replace(history=below).read()
        gives = isinstance(merged, dict) and merged.get("required") is not None
        yield _WrittenProperty(each.section, each.read(), own, raw, inherited, gives)


def _write_sections(form: dict[str, Any], properties: Sequence[_WrittenProperty]) -> dict[str, Any]:
    """Add the envelope metadata to *form*; return the protocol options."""
    options: dict[str, Any] = {}
    for each in properties:
        if each.section == METADATA:
            form.setdefault(METADATA, {})[each.prop.name] = each.overlay()
        else:
            add_nested_option(options, each.prop.name, each.overlay())
    return options


def _with_data(form: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Add envelope options and data attributes, and leave out empty protocol options."""
    options = form.pop(OPTIONS)
    form.update({"envelopeoptions": data["envelopeoptions"]} if data.get("envelopeoptions") else {})
    form.update({OPTIONS: options} if options else {})
    form.update({name: data[name] for name in _DATA if data.get(name) is not None})
    return form


def _unknown_options(given: Any, spelling: str | None, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the protocol does not define, as written; older MQTT ones are below ``properties``."""
    unknown: dict[str, Any] = {}
    for name, value in given.items() if isinstance(given, dict) else ():
        if value is None or name in known or canonical_option(spelling, name) is not None:
            continue
        if name == "properties" and isinstance(value, dict) and (spelling or "").startswith("MQTT/"):
            unknown.update(_unknown_options(value, spelling, known))
        else:
            unknown[name] = value
    return unknown


# Endpoints in 1.0-rc4: addresses, options under 1.0 names, and all other attributes.

_CHANNEL_SPELLINGS: Final = {
    "clean-session": "cleansession",
    "consumer-group": "consumergroup",
    "topic-filter": "topicfilter",
    "will-message": "willmessage",
    "will-topic": "willtopic",
}
"""Options that 1.0-rc4 writes without dashes."""
_RESERVED: Final = frozenset({"endpoints", "options", "deployed", "authorization", "strict", "protocol"})
"""Names that are options only below ``options``, not beside the addresses."""
_DROPPED_OF_ENDPOINTS: Final = frozenset({"endpointid", "protocoloptions", "version"})


def convert_endpoint(declared: DeclaredEndpoint, groups: Sequence[str]) -> dict[str, Any]:
    """Return an endpoint that lists *groups*, without its messages."""
    form: dict[str, Any] = {
        "endpointid": last_id(declared.xid),
        "xid": declared.xid,
        **common_of(declared.other, _DROPPED_OF_ENDPOINTS),
        "usage": list(declared.usage),
        "envelope": declared.envelope,
        "envelopeoptions": dict(declared.envelopeoptions),
        "protocol": declared.protocol,
        "protocoloptions": _endpoint_options(declared),
        "messagegroups": list(groups),
    }
    return {name: value for name, value in form.items() if value}


def _endpoint_options(declared: DeclaredEndpoint) -> dict[str, Any]:
    options: dict[str, Any] = {}
    addresses = _endpoint_addresses(declared)
    if addresses:
        options["endpoints"] = addresses
    options.update(declared.other.get("protocoloptions", {}))
    nested: dict[str, Any] = {}
    for name, value in declared.options.items():
        holder = nested if name in _RESERVED else options
        holder[_CHANNEL_SPELLINGS.get(name, name)] = _wrap_value(value)
    return {**options, **({"options": nested} if nested else {})}


def _endpoint_addresses(declared: DeclaredEndpoint) -> list[Mapping[str, Any]]:
    """Return the addresses; hosts of one Kafka cluster become one entry of bootstrap servers."""
    if options_of(declared.protocol).bootstrap and not any("://" in uri for uri in declared.uris):
        return [{"bootstrap.servers": list(declared.uris)}] if declared.uris else []
    return [{"uri": uri} for uri in declared.uris]


def _wrap_value(value: Any) -> Any:
    """Wrap a value that readers would otherwise unwrap as ``{"value": …}``."""
    looks_wrapped = isinstance(value, dict) and "value" in value and "name" not in value
    return {"value": value} if value is None or looks_wrapped else value


# Schemas in 1.0-rc4: versions with documents or addresses under 1.0 names.

_RENAMED_OF_SCHEMAS: Final[Mapping[str, str]] = {
    "schemaformat": "format",
    "schemaobject": "schema",
    "schemauri": "schemaurl",
    "uri": "schemaurl",
    "url": "schemaurl",
}
_KNOWN: Final = ("format", "schema", "schemabase64", "schemaurl", "contenttype")
_DROPPED_OF_SCHEMAS: Final = frozenset({"schemaid", "versionid", "version", "versions", "defaultversionid", "meta"})
_META_OF_SCHEMAS: Final = frozenset({"schemaid", "xid", "self", "versionid"})


def convert_schema(xid: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema *xid*, declared as *body*."""
    listed = versions_of(body)
    default = default_version(body, listed)
    meta = body.get("meta")
    kept = (
        {name: value for name, value in meta.items() if name not in _META_OF_SCHEMAS} if isinstance(meta, dict) else {}
    )
    if default is not None:
        kept["defaultversionid"] = default
    return {
        "schemaid": last_id(xid),
        "versionid": default or written_version(body) or FIRST_VERSION,
        "xid": xid,
        **_to_new_names(body),
        **({"meta": kept} if kept else {}),
        **({"versions": {name: _version_to_json(xid, name, each) for name, each in listed.items()}} if listed else {}),
    }


def _version_to_json(xid: str, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"schemaid": last_id(xid), "versionid": name, "xid": f"{xid}/versions/{name}", **_to_new_names(body)}


def _to_new_names(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a version under 1.0 names. If several spellings occur, the 1.0 name wins."""
    folded: dict[str, Any] = {}
    for name, value in sorted(body.items(), key=lambda item: str(item[0]).lower() in _RENAMED_OF_SCHEMAS):
        lower = str(name).lower()
        canonical = _RENAMED_OF_SCHEMAS.get(lower, lower if lower in _KNOWN else name)
        if value is not None and value != "":
            folded.setdefault(canonical, value)
    return common_of(folded, _DROPPED_OF_SCHEMAS)


SPECVERSION: Final = "1.0-rc4"
REGISTRY: Final = "catalog"
"""The registry id if the sources have none."""
_OF_REGISTRY: Final = frozenset({"specversion", "registryid", "$schema", "model", "capabilities"})
"""Attributes of a registry that are written anew, or describe only the source's server."""
_OF_GROUP: Final = frozenset({"messagegroupid", "schemagroupid", "specversion", "version"})


@dataclass(frozen=True, slots=True)
class ConvertedCatalog:
    """A converted catalog: the document, the xids left out because of errors, and those that could not be flattened."""

    document: Mapping[str, Any]
    left_out: tuple[str, ...] = ()
    not_flat: tuple[str, ...] = ()


def convert(catalog: Catalog, declarations: Declarations, *, flatten: bool = False) -> ConvertedCatalog:
    """Return *catalog*, read from *declarations*, as an xRegistry 1.0-rc4 document.

    Messages are written as declared, with their bases; with *flatten*, inherited values are written out. A flattened
    definition no longer derives from its base, so a record that both match equally well becomes ambiguous.
    """
    messages = _MessageWriter(catalog, declarations, flatten=flatten)
    document: dict[str, Any] = {
        "specversion": SPECVERSION,
        "registryid": str(declarations.registry.get("registryid") or REGISTRY),
        "xid": "/",
        **common_of(declarations.registry, _OF_REGISTRY),
    }
    collections = {
        "endpoints": _write_endpoints(catalog, declarations, messages.write_group),
        "messagegroups": _write_groups(declarations, messages.write_group),
        "schemagroups": _write_schemagroups(declarations),
    }
    document.update({name: members for name, members in collections.items() if members})
    return ConvertedCatalog(document, tuple(messages.left_out), tuple(messages.not_flat))


class _MessageWriter:
    """Writes the messages of a group or endpoint, and collects those left out or not flattened."""

    def __init__(self, catalog: Catalog, declarations: Declarations, *, flatten: bool) -> None:
        self.left_out: list[str] = []
        self.not_flat: list[str] = []
        self._catalog = catalog
        self._declarations = declarations
        self._flatten = flatten
        self._versions: dict[str, dict[str, DeclaredMessage]] = {}
        self._members: dict[str, list[DeclaredMessage]] = {}
        for message in declarations.messages.values():
            if message.hidden:
                owner, _, version = message.xid.rpartition("/versions/")
                self._versions.setdefault(owner, {})[version] = message
            else:
                self._members.setdefault(message.group, []).append(message)
        self._errors = {(each.file, each.pointer) for each in rejecting_errors(catalog.findings)}

    def write_group(self, group: str) -> dict[str, Any]:
        """Return the messages of a group or endpoint as JSON, by id."""
        written = {}
        for message in self._members.get(group, ()):
            place = (message.place.file, message.place.pointer)
            if message.xid not in self._catalog.definitions and (place in self._errors or message.borrowed is None):
                self.left_out.append(message.xid)
                continue
            written[last_id(message.xid)] = self._write_message(message)
        return written

    def _write_message(self, message: DeclaredMessage) -> dict[str, Any]:
        versions = self._versions.get(message.xid, {})
        chosen = default_version(message.other, {name: each.other for name, each in versions.items()})
        version = chosen or written_version(message.other) or FIRST_VERSION
        effective = effective_of(message.xid, self._declarations)
        if self._flatten and message.xid in self._catalog.definitions:
            flat = flat_message_to_json(effective, version)
            if flat is not None:
                return flat
            self.not_flat.append(message.xid)
        form = message_to_json(effective, version)
        if versions:
            form["versions"] = {
                name: message_to_json(effective_of(each.xid, self._declarations), name)
                for name, each in versions.items()
            }
        return form


def _write_endpoints(catalog: Catalog, declarations: Declarations, messages: Callable[[str], Any]) -> dict[str, Any]:
    forms: dict[str, Any] = {}
    for xid, declared in declarations.endpoints.items():
        groups = _group_references(declared.messagegroups, catalog.endpoints[xid].messagegroups, declarations)
        form = convert_endpoint(declared, groups)
        inline = messages(xid)
        forms[last_id(xid)] = {**form, **({"messages": inline} if inline else {})}
    return forms


def _group_references(written: Sequence[str], resolved: Sequence[str], declarations: Declarations) -> list[str]:
    """Return the xids of groups in the document, then external and dangling references as written."""
    here = [xid for xid in resolved if xid.startswith("/")]
    known = {last_id(xid).lower() for xid in declarations.groups if xid.startswith("/")}
    away = len(here) < len(resolved)
    for reference in written:
        foreign = away and not reference.startswith(("#", "/")) and "/" in reference
        if foreign or reference.rstrip("/").rpartition("/")[2].lower() not in known:
            here.append(reference)
    return list(dict.fromkeys(here))


def _write_groups(declarations: Declarations, messages: Callable[[str], Any]) -> dict[str, Any]:
    forms: dict[str, Any] = {}
    for xid, group in declarations.groups.items():
        if not xid.startswith("/"):
            continue  # of another document, which is not copied
        defaults = {"envelope": group.envelope, "protocol": group.protocol}
        forms[last_id(xid)] = {
            "messagegroupid": last_id(xid),
            "xid": xid,
            **common_of(group.other, _OF_GROUP),
            **{name: value for name, value in defaults.items() if value is not None},
            "messages": messages(xid),
        }
    return forms


def _write_schemagroups(declarations: Declarations) -> dict[str, Any]:
    forms: dict[str, Any] = {}
    for xid, other in declarations.schemagroups.items():
        forms[last_id(xid)] = {"schemagroupid": last_id(xid), "xid": xid, **common_of(other, _OF_GROUP), "schemas": {}}
    for xid, body in declarations.schemas.items():
        group = xid.partition("/schemas/")[0]
        forms[last_id(group)]["schemas"][xid[len(group) + len("/schemas/") :]] = convert_schema(xid, body)
    return forms


# A document as JSON or YAML text.

_WIDTH: Final = 110
_NUMBER_LIKE: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
"""Texts that are numbers in YAML 1.2 but not in PyYAML's YAML 1.1, which would not quote them."""

_FASTEST: Final[Any] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def to_json_text(document: Mapping[str, Any]) -> str:
    """Return *document* as indented JSON.

    Raises:
        CatalogError: it contains a number that JSON cannot write.
    """
    try:
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = json.dumps(document, indent=2, allow_nan=False)  # a lone surrogate needs an escape
    except ValueError as error:
        raise CatalogError(f"the catalog contains a number that JSON cannot write: {error}") from error
    return text + "\n"


def to_yaml_text(document: Mapping[str, Any]) -> str:
    """Return *document* as YAML without aliases or tags, keeping the order of members.

    Raises:
        CatalogError: it contains a text that is not Unicode (a lone surrogate), which YAML cannot write.
    """
    try:
        plain = json.dumps(document, ensure_ascii=False)
        plain.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CatalogError(f"the catalog has a text that YAML cannot write: {error}; convert it to JSON") from error
    # Invisible and bidirectional characters must be visible to reviewers, so they are escaped.
    shown = has_no_controls(plain)
    text: str = yaml.dump(
        document, Dumper=_YamlDumper, sort_keys=False, allow_unicode=shown, width=_WIDTH, default_flow_style=False
    )
    return text


class _YamlDumper(_FASTEST):  # type: ignore[misc]  # which of the two base classes there is depends on the machine
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "'" if _NUMBER_LIKE.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _represent_number(dumper: yaml.SafeDumper, number: WrittenNumber) -> yaml.Node:
    return dumper.represent_data(plain_number(number))


_YamlDumper.add_representer(str, _represent_text)
_YamlDumper.add_multi_representer(WrittenNumber, _represent_number)


# Messages, groups and endpoints in CloudEvents Registry 0.4/0.5: the inverse of reading them.
#
# Reading the output gives the original (:mod:`catalog.dialects`). Attributes without a name in 0.4/0.5 keep their 1.0
# name, like extension attributes. Readers do not change protocol options;
# :func:`newer_options` and :func:`newer_constraints` convert those to 1.0.

Refer = Callable[[str], str]
"""Converts a reference such as ``/messagegroups/G`` to 0.4/0.5."""
_SAME: Final = ("envelopeoptions", "datacontenttype")
_SCHEMAS: Final = {"dataschemaformat": "schemaformat", "dataschema": "schema"}
_MAPS: Final = frozenset({("KAFKA", "headers"), ("NATS", "headers"), ("HTTP", "query")})
"""Lists of named values that are maps in 0.4/0.5."""
_OLDER_TYPES: Final = {"any": "var"}
_NEWER_TYPES: Final = {older: newer for newer, older in _OLDER_TYPES.items()}


def to_older_definition(message: DeclaredMessage, envelope: str | None, refer: Refer) -> dict[str, Any]:
    """Return the constraints and references of a definition, without identifiers and descriptive attributes.

    *envelope* is the default of its group, which every definition must repeat in 0.4/0.5.
    """
    own = message.attributes
    form = _write_format(own, None if message.base or message.borrowed else envelope)
    form.update({older: own[name] for name, older in _SCHEMAS.items() if own.get(name) is not None})
    form.update({name: own[name] for name in _SAME if own.get(name) is not None})
    uri, xid = own.get("dataschemauri"), own.get("dataschemaxid")
    if uri is not None:
        form["schemaurl"] = refer(uri)
        form.update({"dataschemaxid": xid} if xid is not None else {})
    elif xid is not None:
        form["schemaurl"] = refer(xid)
    if message.borrowed is not None:
        form["uri"] = refer(message.borrowed)
    if message.base is not None:
        form["basemessage"] = refer(message.base)
    return form


def to_older_group(group: DeclaredGroup) -> dict[str, Any]:
    """Return the default format of a group; empty if it has none."""
    if group.envelope is not None:
        return {"format": group.envelope, **({"protocol": group.protocol} if group.protocol is not None else {})}
    return _format_from_protocol(group.protocol)


def to_older_config(endpoint: DeclaredEndpoint, refer: Refer) -> dict[str, Any]:
    """Return the configuration of an endpoint, without identifiers and descriptive attributes.

    Only the first of several usages is written.
    """
    kept = endpoint.other.get("protocoloptions", {})
    config = {
        "protocol": endpoint.protocol,
        "endpoints": list(endpoint.uris),
        "options": dict(endpoint.options),
        **kept,
    }
    form = {
        "usage": endpoint.usage[0] if endpoint.usage else None,
        "format": endpoint.envelope,
        "envelopeoptions": dict(endpoint.envelopeoptions),
        "config": {name: value for name, value in config.items() if value not in (None, [], {})},
        "definitionGroups": [refer(each) for each in endpoint.messagegroups],
    }
    return {name: value for name, value in form.items() if value}


def to_newer_options(options: Mapping[str, Any], protocol: str | None) -> dict[str, Any]:
    """Return protocol options under the names and in the lists of 1.0; unknown ones are unchanged."""
    vocabulary = options_of(protocol)
    form: dict[str, Any] = {}
    for name, value in options.items():
        canonical = canonical_option(protocol, name) if protocol in PROTOCOL_OPTIONS else None
        written = canonical or name
        if canonical in vocabulary.lists and isinstance(value, dict | list):
            form[written] = list(_to_newer_entries(value))
        elif canonical in vocabulary.sections and isinstance(value, dict):
            form[written] = to_newer_constraints(value)
        else:
            form[written] = _to_older_constraint(value, _NEWER_TYPES)
    return form


def to_newer_constraints(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Return constraints by name, with the types of 1.0."""
    return {name: _to_older_constraint(body, _NEWER_TYPES) for name, body in holder.items()}


def _to_newer_entries(value: Mapping[str, Any] | list[Any]) -> Iterator[Any]:
    """Yield the entries of a list of named values as ``{name, …}``, also from a map or a list of ``{NAME: {…}}``."""
    pairs = value.items() if isinstance(value, Mapping) else [parse_short_entry(each) or ("", each) for each in value]
    for name, body in pairs:
        if not name:
            yield _to_older_constraint(body, _NEWER_TYPES)
        else:
            yield {
                "name": name,
                **(_to_older_constraint(body, _NEWER_TYPES) if isinstance(body, dict) else {"value": body}),
            }


def _format_from_protocol(protocol: str | None) -> dict[str, Any]:
    """Write a protocol: as ``format`` if it is a known one, else as ``protocol``."""
    if protocol is None:
        return {}
    return {"format" if canonical_protocol(protocol) in PROTOCOLS else "protocol": protocol}


def _write_format(own: Mapping[str, Any], default: str | None) -> dict[str, Any]:
    """Write envelope and protocol: one of them as ``format``, with its properties as ``metadata``."""
    envelope, protocol = own.get("envelope"), own.get("protocol")
    metadata, options = own.get("envelopemetadata"), own.get("protocoloptions")
    form: dict[str, Any]
    if envelope is None and "format" in (form := _format_from_protocol(protocol)):
        form["metadata"] = _to_older_options(options or {}, canonical_protocol(str(protocol)))
        rest = {"envelopemetadata": metadata}
    else:
        known = envelope or default
        form = {"format": known} if known is not None else {}
        if envelope is not None or metadata is not None:
            form["metadata"] = {"attributes": _to_older_constraints(flatten_attributes(metadata or {}))}
        rest = {"protocol": protocol, "protocoloptions": options}
    return {**form, **{name: value for name, value in rest.items() if value is not None}}


def _to_older_options(options: Mapping[str, Any], protocol: str) -> dict[str, Any]:
    vocabulary, form = options_of(protocol), {}
    for name, value in options.items():
        canonical = canonical_option(protocol, name) or name
        older = canonical.replace("_", "-") if protocol.startswith("MQTT/") else canonical
        if canonical in vocabulary.lists and isinstance(value, list):
            form[older] = _to_older_list(value, protocol, canonical)
        elif canonical in vocabulary.sections and isinstance(value, dict):
            form[older] = _to_older_constraints(value)
        else:
            form[older] = _to_older_constraint(value)
    return form


def _to_older_list(entries: list[Any], protocol: str, name: str) -> Any:
    """Convert a list of ``{name, …}`` to 0.4/0.5: a map if names are unique, or a list of ``{NAME: {…}}``."""
    bodies = [
        (each["name"], _to_older_constraint({key: value for key, value in each.items() if key != "name"}))
        for each in entries
        if isinstance(each, dict) and isinstance(each.get("name"), str)
    ]
    if len(bodies) < len(entries):
        return entries
    if (protocol, name) in _MAPS and len(dict(bodies)) == len(bodies):
        return dict(bodies)
    if name == "user_properties" and all(parse_short_entry({key: body}) for key, body in bodies):
        return [{key: body} for key, body in bodies]
    return [{"name": key, **body} for key, body in bodies]


def _to_older_constraints(holder: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _to_older_constraint(body) for name, body in holder.items()}


def _to_older_constraint(body: Any, types: Mapping[str, str] = _OLDER_TYPES) -> Any:
    kind = body.get("type") if isinstance(body, dict) else None
    return {**body, "type": types[kind]} if isinstance(kind, str) and kind in types else body
