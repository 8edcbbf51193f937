"""Convert a whole load to one document: registry, endpoints, message groups and schema groups.

Reading the document gives the same definitions, endpoints and candidates as the sources. Entities with errors are left
out and named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import yaml

from catalog.definitions.constraints import (
    MEMBERS,
    Level,
    MergedProperty,
    applicable_levels,
    levels_of,
    merged_properties,
)
from catalog.definitions.inheritance import TO, overlaid, relation_attributes, short_entry, target_of
from catalog.dialects.messages import flat_attributes
from catalog.dialects.reading import default_version
from catalog.findings import (
    MESSAGE_REFERENCE,
    CatalogError,
    Declarations,
    DeclaredEndpoint,
    DeclaredGroup,
    DeclaredMessage,
    is_harmless,
)
from catalog.linting.attributes import rejecting_errors
from catalog.model import PROTOCOLS, Catalog, Property
from catalog.protocols.properties import (
    AMQP_SECTIONS,
    VOCABULARIES,
    canonical_option,
    canonical_protocol,
    vocabulary_of,
)
from catalog.values import WrittenNumber, is_number, plain_number, text_of

# The attributes that every xRegistry entity has: identifiers first, then what people wrote, then everything else.
#
# What only a server can know is not made up: ``epoch`` and times are kept where the source has them, and what locates
# an entity on a server (``self``, ``…url``, ``…count``) is left out, since the document is a new place.

FIRST: Final = (
    *("name", "description", "documentation", "icon", "labels", "epoch", "createdat", "modifiedat", "ancestorid"),
    "deprecated",
)
FIRST_VERSION: Final = "1"
"""The id that registries give to the first version of what comes without one."""
_TEXTS: Final = frozenset({"name", "description", "labels"})
_LOCATORS: Final = frozenset({"id", "xid", "self", "shortself", "metaurl", "defaultversionurl"})
_COLLECTIONS: Final = ("messages", "versions", "schemas", "messagegroups", "endpoints", "schemagroups")
_COUNTED: Final = frozenset(f"{name}{end}" for name in _COLLECTIONS for end in ("url", "count"))
_RENAMED: Final = {"ancestor": "ancestorid"}


def common(other: Mapping[str, Any], drop: Collection[str] = ()) -> dict[str, Any]:
    """Return the attributes of *other* that are kept, under their 1.0 names, well-known ones first."""
    kept: dict[str, Any] = {}
    for name, value in other.items():
        if name not in _LOCATORS and name not in _COUNTED and name not in drop:
            known = _RENAMED.get(name, name)
            kept.setdefault(known, _as_text(value) if known in _TEXTS else value)
    return {**{name: kept[name] for name in FIRST if name in kept}, **kept}


def _as_text(value: Any) -> Any:
    """Return texts, and maps of them, in which numbers are the texts that are written."""
    if isinstance(value, dict):
        return {name: _as_text(each) for name, each in value.items()}
    return text_of(value) if is_number(value) else value


def last(xid: str) -> str:
    """Return the id that ends the xid of a group, message or schema; ids of old documents may have slashes."""
    rest = xid.split("/", 2)[2]
    for collection in ("/messages/", "/schemas/"):
        _, separator, inner = rest.partition(collection)
        if separator:
            return inner
    return rest


def version_of(other: Mapping[str, Any]) -> str | None:
    """Return the version that older documents write as ``version``, or newer ones as ``versionid``."""
    for name in ("versionid", "version"):
        value = other.get(name)
        if (isinstance(value, str) or is_number(value)) and text_of(value):
            return text_of(value)
    return None


# One message to its 1.0-rc4 form: as declared, with its base, or flattened to what is effective.
#
# Written is what makes the same definition when it is read again. Where a dialect lets a bare scalar or an empty text
# replace what is inherited, the form says so member by member, since objects of 1.0 merge.

_PLAIN: Final = ("dataschemaformat", "dataschema", "dataschemauri", "dataschemaxid", "datacontenttype")
_LISTS: Final = frozenset({"headers", "query", "user_properties"})
_DROPPED: Final = frozenset({"messageid", "versionid", "version", "meta", "xref", "uri"})
_OF_XREF: Final = frozenset({"messageid", "versionid", "xid", "meta", "epoch", "createdat", "modifiedat", "ancestorid"})
"""What is said of a message whatever it is, and is the other's where it is an ``xref``."""
_OF_META: Final = frozenset({"messageid", "xid", "self", "xref", "versionid"})


def message_form(
    message: DeclaredMessage, chain: Sequence[str], declarations: Declarations, version: str
) -> dict[str, Any]:
    """Return the form of a message as declared, in its *version*.

    *chain* is its xid and the xids of its bases, nearest first.
    """
    levels = levels_of(chain, declarations)
    own = message.attributes
    form = _identity(message, version)
    _refer(form, message, chain)
    for name in ("envelope", "protocol"):
        if own.get(name) is not None:
            form[name] = own[name]
    written = [each for each in merged_properties(levels) if each.own or _differs(each)]
    form.update(_sections(written, own, levels[0].spelling))
    form.update({name: own[name] for name in _PLAIN if own.get(name) is not None})
    return form


def flat_form(
    message: DeclaredMessage, chain: Sequence[str], declarations: Declarations, version: str
) -> dict[str, Any] | None:
    """Return the form of an effective message, without bases; None when it cannot be said without them.

    That is so when only the group of a base gives the protocol and the message has no options: such a default
    restricts and does not describe (MATCHING.md#envelope-and-protocol), which a message of another group cannot
    declare.
    """
    levels = levels_of(chain, declarations)
    own_group = levels[0].group
    form = _identity(message, version)
    envelope = levels[0].envelope
    if envelope is not None:
        form["envelope"] = envelope
    properties = merged_properties(levels)
    declared = any(level.message.attributes.get("protocol") for level in levels)
    if levels[0].protocol is not None and (declared or not own_group or own_group.protocol != levels[0].protocol):
        described = any(each.section == "protocoloptions" for each in properties)
        if not declared and not described:
            return None
        form["protocol"] = levels[0].protocol
    plain = _merged(levels)
    form.update(_sections([_alone(each) for each in properties], plain, levels[0].spelling, keep=False))
    form.update({name: plain[name] for name in _PLAIN if plain.get(name) is not None})
    for level in levels[1:]:
        for name, value in relation_attributes(level.message).items():
            form.setdefault(name, target_of(level.message, value) if name == TO else value)
    return form


def _identity(message: DeclaredMessage, version: str) -> dict[str, Any]:
    """Return identifiers, and all that says nothing about how the message looks."""
    owner = message.xid.partition("/versions/")[0] if message.hidden else message.xid
    meta = message.other.get("meta")
    kept = {name: value for name, value in meta.items() if name not in _OF_META} if isinstance(meta, dict) else {}
    return {
        "messageid": last(owner),
        "versionid": version,
        "xid": message.xid,
        **common(message.other, _DROPPED),
        **({"meta": kept} if kept else {}),
    }


def _refer(form: dict[str, Any], message: DeclaredMessage, chain: Sequence[str]) -> None:
    """Add the base, by its xid where it is in the document, else as written.

    A message that borrows another and says nothing of its own is an ``xref``; one that says more has it as base.
    """
    base = chain[1] if len(chain) > 1 else None
    here = base if base is not None and base.startswith("/") else None
    if message.borrowed is None:
        if here or message.base:
            form["basemessage"] = here or message.base
    elif base is not None and (message.attributes or _described(form) or here is None or "/versions/" in here):
        form["basemessage"] = here or message.borrowed
    elif here is None and MESSAGE_REFERENCE.search(message.borrowed) and not message.borrowed.startswith("/"):
        form["uri"] = message.borrowed  # which may lead somewhere some day; an xref is an xid
    else:
        form["meta"] = {**form.get("meta", {}), "xref": here or message.borrowed}
        for name in _OF_XREF - {"messageid", "xid", "meta"}:
            form.pop(name, None)


def _described(form: Mapping[str, Any]) -> bool:
    """Whether a message has a name, labels or the like, which nothing can have that is another by ``xref``."""
    return bool(form.keys() - _OF_XREF)


def _differs(each: MergedProperty) -> bool:
    """Tell a property that nobody lays over and that still is another here, as with another default type."""
    return each.inherited is not None and each.inherited != each.property


def _alone(each: MergedProperty) -> MergedProperty:
    """Return the property as if the message itself said all of it."""
    said = {name: word.value for name, word in each.members.items()}
    body = {**(each.body if isinstance(each.body, dict) else {}), **said}
    return replace(each, hidden=(), own=True, body=body, inherited=None)


def _sections(
    properties: Sequence[MergedProperty], plain: Mapping[str, Any], spelling: str | None, *, keep: bool = True
) -> dict[str, Any]:
    """Return envelope metadata and options, and the protocol's options; *keep* also what no protocol knows."""
    metadata: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for each in properties:
        body, name = _body(each), each.property.name
        section, _, inner = name.partition(".")
        if each.section == "envelopemetadata":
            metadata[name] = body
        elif inner and section in _LISTS:
            options.setdefault(section, []).append({"name": inner, **body})
        elif inner and section in AMQP_SECTIONS:
            options.setdefault(section, {})[inner] = body
        else:
            options[name] = body
    if keep:
        options.update(_unknown(plain.get("protocoloptions"), spelling, options))
    sections = {
        "envelopemetadata": metadata,
        "envelopeoptions": plain.get("envelopeoptions"),
        "protocoloptions": options,
    }
    return {name: section for name, section in sections.items() if section}


def _unknown(given: Any, spelling: str | None, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that mean nothing to the protocol, as written; older MQTT ones stand below ``properties``."""
    unknown: dict[str, Any] = {}
    for name, value in given.items() if isinstance(given, dict) else ():
        if value is None or name in known or canonical_option(spelling, name) is not None:
            continue
        if name == "properties" and isinstance(value, dict) and (spelling or "").startswith("MQTT/"):
            unknown.update(_unknown(value, spelling, known))
        else:
            unknown[name] = value
    return unknown


def _body(each: MergedProperty) -> dict[str, Any]:
    """Return ``{type, value, required, …}`` such that, laid over what is inherited, it makes the property."""
    raw = each.body if isinstance(each.body, dict) else {}
    prop, base = each.property, each.inherited
    body: dict[str, Any] = {}
    unsaid = each.section == "envelopemetadata" and prop.type != "string"
    if raw.get("type") is not None or ((prop.type, prop.wire) != (base.type, base.wire) if base else unsaid):
        body["type"] = prop.wire or prop.type
    _add_value(body, prop, base, said="value" in raw or not isinstance(each.body, dict | None))
    if base is None:
        if prop.required and not (each.section == "envelopemetadata" and "required" not in each.members):
            body["required"] = True  # what CloudEvents insists on and nobody says stays unsaid
    elif prop.required != base.required or raw.get("required") is not None:
        body["required"] = prop.required
    extra = {name: value for name, value in raw.items() if name not in (*MEMBERS, "name") and value is not None}
    return {**body, **extra}


def _add_value(body: dict[str, Any], prop: Property, base: Property | None, *, said: bool) -> None:
    """Add the value; an empty text takes an inherited one away."""
    inherited = base.value if base else None
    if (type(prop.value), prop.value) != (type(inherited), inherited):
        body["value"] = "" if prop.value is None else prop.value
    elif prop.value is not None and said:
        body["value"] = prop.value


def _merged(levels: Sequence[Level]) -> dict[str, Any]:
    """Return the attributes about data and the envelope's options as all levels make them."""
    merged: dict[str, Any] = {}
    for names, those in ((_PLAIN, levels), (("envelopeoptions",), applicable_levels("envelopeoptions", levels))):
        for level in reversed(those):
            given = level.message.attributes
            merged = overlaid(merged, {name: given[name] for name in names if name in given})
    return merged


# One endpoint to its 1.0-rc4 form: addresses, options in the names of 1.0, and what else it says.

_SPELLED: Final = {
    "clean-session": "cleansession",
    "consumer-group": "consumergroup",
    "topic-filter": "topicfilter",
    "will-message": "willmessage",
    "will-topic": "willtopic",
}
"""Options that 1.0-rc4 writes without dashes; the others have them there too."""
_RESERVED: Final = frozenset({"endpoints", "options", "deployed", "authorization", "strict", "protocol"})
"""Names that are no options beside the addresses, and are when they stand below ``options``."""
_DROPPED_OF_ENDPOINTS: Final = frozenset({"endpointid", "protocoloptions", "version"})


def endpoint_form(declared: DeclaredEndpoint, groups: Sequence[str]) -> dict[str, Any]:
    """Return the form of an endpoint that lists *groups*, without its messages."""
    form: dict[str, Any] = {
        "endpointid": last(declared.xid),
        "xid": declared.xid,
        **common(declared.other, _DROPPED_OF_ENDPOINTS),
        "usage": list(declared.usage),
        "envelope": declared.envelope,
        "envelopeoptions": dict(declared.envelopeoptions),
        "protocol": declared.protocol,
        "protocoloptions": _options(declared),
        "messagegroups": list(groups),
    }
    return {name: value for name, value in form.items() if value}


def _options(declared: DeclaredEndpoint) -> dict[str, Any]:
    options: dict[str, Any] = {}
    addresses = _addresses(declared)
    if addresses:
        options["endpoints"] = addresses
    options.update(declared.other.get("protocoloptions", {}))
    nested: dict[str, Any] = {}
    for name, value in declared.options.items():
        holder = nested if name in _RESERVED else options
        holder[_SPELLED.get(name, name)] = _wrapped(value)
    return {**options, **({"options": nested} if nested else {})}


def _addresses(declared: DeclaredEndpoint) -> list[Mapping[str, Any]]:
    """Return the addresses; where they are hosts of one cluster, that is one entry of bootstrap servers."""
    if vocabulary_of(declared.protocol).bootstrap and not any("://" in uri for uri in declared.uris):
        return [{"bootstrap.servers": list(declared.uris)}] if declared.uris else []
    return [{"uri": uri} for uri in declared.uris]


def _wrapped(value: Any) -> Any:
    """Wrap a value that would itself be read as the wrapping ``{"value": …}`` of older documents."""
    looks_wrapped = isinstance(value, dict) and "value" in value and "name" not in value
    return {"value": value} if value is None or looks_wrapped else value


# One schema resource to its 1.0-rc4 form: versions with documents or addresses under the names of 1.0.

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


def schema_form(xid: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of the schema *xid*, whose declaration is *body*."""
    versions = body.get("versions")
    listed = {str(k): v for k, v in versions.items() if isinstance(v, dict)} if isinstance(versions, dict) else {}
    default = default_version(body, listed)
    meta = body.get("meta")
    kept = (
        {name: value for name, value in meta.items() if name not in _META_OF_SCHEMAS} if isinstance(meta, dict) else {}
    )
    if default is not None:
        kept["defaultversionid"] = default
    return {
        "schemaid": last(xid),
        "versionid": default or version_of(body) or FIRST_VERSION,
        "xid": xid,
        **_renamed(body),
        **({"meta": kept} if kept else {}),
        **({"versions": {name: _version(xid, name, each) for name, each in listed.items()}} if listed else {}),
    }


def _version(xid: str, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"schemaid": last(xid), "versionid": name, "xid": f"{xid}/versions/{name}", **_renamed(body)}


def _renamed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a version says, under 1.0 names in any letter case; the 1.0 name counts when there are several."""
    folded: dict[str, Any] = {}
    for name, value in sorted(body.items(), key=lambda item: str(item[0]).lower() in _RENAMED_OF_SCHEMAS):
        lower = str(name).lower()
        canonical = _RENAMED_OF_SCHEMAS.get(lower, lower if lower in _KNOWN else name)
        if value is not None and value != "":
            folded.setdefault(canonical, value)
    return common(folded, _DROPPED_OF_SCHEMAS)


SPECVERSION: Final = "1.0-rc4"
REGISTRY: Final = "catalog"
"""The id of a registry whose sources name none."""
_OF_REGISTRY: Final = frozenset({"specversion", "registryid", "$schema", "model", "capabilities"})
"""What the document says itself, or what only describes the server that a source came from."""
_OF_GROUP: Final = frozenset({"messagegroupid", "schemagroupid", "specversion", "version"})


@dataclass(frozen=True, slots=True)
class Converted:
    """The document; the xids left out because of errors, and those that had to keep their base though flattened."""

    document: Mapping[str, Any]
    left_out: tuple[str, ...] = ()
    not_flat: tuple[str, ...] = ()


def convert(catalog: Catalog, declarations: Declarations, *, flatten: bool = False) -> Converted:
    """Return *catalog*, read from *declarations*, as an xRegistry 1.0-rc4 document.

    Messages are written as declared, with their bases; with *flatten* as effective. A flat definition no longer
    derives from its base, so a record that both match equally well becomes ambiguous.
    """
    messages = _Messages(catalog, declarations, flatten=flatten)
    document: dict[str, Any] = {
        "specversion": SPECVERSION,
        "registryid": str(declarations.registry.get("registryid") or REGISTRY),
        "xid": "/",
        **common(declarations.registry, _OF_REGISTRY),
    }
    collections = {
        "endpoints": _endpoints(catalog, declarations, messages.of),
        "messagegroups": _groups(declarations, messages.of),
        "schemagroups": _schemagroups(declarations),
    }
    document.update({name: members for name, members in collections.items() if members})
    return Converted(document, tuple(messages.left_out), tuple(messages.not_flat))


class _Messages:
    """Writes the messages of a group or endpoint, and notes what could not be written as wanted."""

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
        self._tails = _tails(catalog)
        self._errors = {(each.file, each.pointer) for each in rejecting_errors(catalog.findings)}

    def of(self, group: str) -> dict[str, Any]:
        """Return the messages of a group or an endpoint by id."""
        written = {}
        for message in self._members.get(group, ()):
            place = (message.place.file, message.place.pointer)
            if message.xid not in self._catalog.definitions and (place in self._errors or message.borrowed is None):
                self.left_out.append(message.xid)
                continue
            written[last(message.xid)] = self._form(message)
        return written

    def _form(self, message: DeclaredMessage) -> dict[str, Any]:
        versions = self._versions.get(message.xid, {})
        chosen = default_version(message.other, {name: each.other for name, each in versions.items()})
        version = chosen or version_of(message.other) or FIRST_VERSION
        if self._flatten and message.xid in self._catalog.definitions:
            flat = flat_form(message, self._chain(message.xid), self._declarations, version)
            if flat is not None:
                return flat
            self.not_flat.append(message.xid)
        form = message_form(message, self._chain(message.xid), self._declarations, version)
        if versions:
            form["versions"] = {
                name: message_form(each, self._chain(each.xid), self._declarations, name)
                for name, each in versions.items()
            }
        return form

    def _chain(self, xid: str) -> tuple[str, ...]:
        definition = self._catalog.definitions.get(xid)
        return (xid, *definition.base) if definition else (xid, *self._tails.get(xid, ()))


def _tails(catalog: Catalog) -> dict[str, tuple[str, ...]]:
    """Return the bases of everything that is a base; versions are bases and no definitions of their own."""
    tails: dict[str, tuple[str, ...]] = {}
    for definition in catalog.definitions.values():
        for place, xid in enumerate(definition.base):
            if xid in tails:
                break
            tails[xid] = definition.base[place + 1 :]
    return tails


def _endpoints(catalog: Catalog, declarations: Declarations, messages: Callable[[str], Any]) -> dict[str, Any]:
    forms: dict[str, Any] = {}
    for xid, declared in declarations.endpoints.items():
        groups = _listed(declared.messagegroups, catalog.endpoints[xid].messagegroups, declarations)
        form = endpoint_form(declared, groups)
        inline = messages(xid)
        forms[last(xid)] = {**form, **({"messages": inline} if inline else {})}
    return forms


def _listed(written: Sequence[str], resolved: Sequence[str], declarations: Declarations) -> list[str]:
    """Return the groups of the document by xid, then the references that lead elsewhere or nowhere, as written."""
    here = [xid for xid in resolved if xid.startswith("/")]
    known = {last(xid).lower() for xid in declarations.groups if xid.startswith("/")}
    away = len(here) < len(resolved)
    for reference in written:
        foreign = away and not reference.startswith(("#", "/")) and "/" in reference
        if foreign or reference.rstrip("/").rpartition("/")[2].lower() not in known:
            here.append(reference)
    return list(dict.fromkeys(here))


def _groups(declarations: Declarations, messages: Callable[[str], Any]) -> dict[str, Any]:
    forms: dict[str, Any] = {}
    for xid, group in declarations.groups.items():
        if not xid.startswith("/"):
            continue  # of another document, where it stays
        defaults = {"envelope": group.envelope, "protocol": group.protocol}
        forms[last(xid)] = {
            "messagegroupid": last(xid),
            "xid": xid,
            **common(group.other, _OF_GROUP),
            **{name: value for name, value in defaults.items() if value is not None},
            "messages": messages(xid),
        }
    return forms


def _schemagroups(declarations: Declarations) -> dict[str, Any]:
    forms: dict[str, Any] = {}
    for xid, other in declarations.schemagroups.items():
        forms[last(xid)] = {"schemagroupid": last(xid), "xid": xid, **common(other, _OF_GROUP), "schemas": {}}
    for xid, body in declarations.schemas.items():
        group = xid.partition("/schemas/")[0]
        forms[last(group)]["schemas"][xid[len(group) + len("/schemas/") :]] = schema_form(xid, body)
    return forms


# A document as the text of JSON or YAML, which any reader takes for the same tree.

_WIDTH: Final = 110
_NUMBER_LIKE: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
"""Numbers of YAML 1.2 that PyYAML, which reads 1.1, does not take for numbers and so would not quote."""

_FASTEST: Final[Any] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def json_text(document: Mapping[str, Any]) -> str:
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


def yaml_text(document: Mapping[str, Any]) -> str:
    """Return *document* as YAML without aliases or tags, in the order of the document.

    Raises:
        CatalogError: it contains a text that is not Unicode (a lone surrogate), which YAML cannot write.
    """
    try:
        plain = json.dumps(document, ensure_ascii=False)
        plain.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CatalogError(f"the catalog has a text that YAML cannot write: {error}; convert it to JSON") from error
    # Marks that hide or turn text must be seen by whoever reviews the document, so they are written as escapes.
    shown = is_harmless(plain)
    text: str = yaml.dump(
        document, Dumper=_Dumper, sort_keys=False, allow_unicode=shown, width=_WIDTH, default_flow_style=False
    )
    return text


class _Dumper(_FASTEST):  # type: ignore[misc]  # which of the two base classes there is depends on the machine
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "'" if _NUMBER_LIKE.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _number(dumper: yaml.SafeDumper, number: WrittenNumber) -> yaml.Node:
    return dumper.represent_data(plain_number(number))


_Dumper.add_representer(str, _text)
_Dumper.add_multi_representer(WrittenNumber, _number)


# Messages, groups and endpoints in the names of CloudEvents Registry 0.4/0.5: the inverse of how they are read.
#
# Reading a form gives what it was made of (:mod:`catalog.dialects`). What 0.4/0.5 has no name for stands beside the
# rest under its name of 1.0, as extension attributes do. Readers leave the options of protocols as they are written;
# :func:`newer_options` and :func:`newer_constraints` give those the spelling of 1.0.

Refer = Callable[[str], str]
"""Writes a reference, such as ``/messagegroups/G``, in the names of 0.4/0.5."""
_SAME: Final = ("envelopeoptions", "datacontenttype")
_SCHEMAS: Final = {"dataschemaformat": "schemaformat", "dataschema": "schema"}
_MAPS: Final = frozenset({("KAFKA", "headers"), ("NATS", "headers"), ("HTTP", "query")})
"""Lists of named values that are maps in 0.4/0.5."""
_OLDER_TYPES: Final = {"any": "var"}
_NEWER_TYPES: Final = {older: newer for newer, older in _OLDER_TYPES.items()}


def definition_form(message: DeclaredMessage, envelope: str | None, refer: Refer) -> dict[str, Any]:
    """Return what a definition says, without identifiers and what only describes it.

    *envelope* is the default of its group, which 0.4/0.5 has each definition repeat.
    """
    own = message.attributes
    form = _formatted(own, None if message.base or message.borrowed else envelope)
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


def group_form(group: DeclaredGroup) -> dict[str, Any]:
    """Return the format that a group gives its definitions; nothing when it gives none."""
    if group.envelope is not None:
        return {"format": group.envelope, **({"protocol": group.protocol} if group.protocol is not None else {})}
    return _format_of(group.protocol)


def config_form(endpoint: DeclaredEndpoint, refer: Refer) -> dict[str, Any]:
    """Return what an endpoint says, without identifiers and what only describes it.

    Of several usages 0.4/0.5 has the first.
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


def newer_options(options: Mapping[str, Any], protocol: str | None) -> dict[str, Any]:
    """Return options of a protocol under the names, and in the lists, of 1.0; what is unknown stays as it is."""
    vocabulary = vocabulary_of(protocol)
    form: dict[str, Any] = {}
    for name, value in options.items():
        canonical = canonical_option(protocol, name) if protocol in VOCABULARIES else None
        written = canonical or name
        if canonical in vocabulary.lists and isinstance(value, dict | list):
            form[written] = list(_entries(value))
        elif canonical in vocabulary.sections and isinstance(value, dict):
            form[written] = newer_constraints(value)
        else:
            form[written] = _definition_groups_body(value, _NEWER_TYPES)
    return form


def newer_constraints(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Return constraints by their names, with the types of 1.0."""
    return {name: _definition_groups_body(body, _NEWER_TYPES) for name, body in holder.items()}


def _entries(value: Mapping[str, Any] | list[Any]) -> Iterator[Any]:
    """Give the entries of a list of named values, from a map or from a list of ``{NAME: {…}}`` too."""
    pairs = value.items() if isinstance(value, Mapping) else [short_entry(each) or ("", each) for each in value]
    for name, body in pairs:
        if not name:
            yield _definition_groups_body(body, _NEWER_TYPES)
        else:
            yield {
                "name": name,
                **(_definition_groups_body(body, _NEWER_TYPES) if isinstance(body, dict) else {"value": body}),
            }


def _format_of(protocol: str | None) -> dict[str, Any]:
    """Write a protocol as format, which can be one that readers know; others have a name of their own."""
    if protocol is None:
        return {}
    return {"format" if canonical_protocol(protocol) in PROTOCOLS else "protocol": protocol}


def _formatted(own: Mapping[str, Any], default: str | None) -> dict[str, Any]:
    """Write envelope and protocol: one of them is the format, and what belongs to it is the metadata."""
    envelope, protocol = own.get("envelope"), own.get("protocol")
    metadata, options = own.get("envelopemetadata"), own.get("protocoloptions")
    form: dict[str, Any]
    if envelope is None and "format" in (form := _format_of(protocol)):
        form["metadata"] = _definition_groups_options(options or {}, canonical_protocol(str(protocol)))
        rest = {"envelopemetadata": metadata}
    else:
        known = envelope or default
        form = {"format": known} if known is not None else {}
        if envelope is not None or metadata is not None:
            form["metadata"] = {"attributes": _bodies(flat_attributes(metadata or {}))}
        rest = {"protocol": protocol, "protocoloptions": options}
    return {**form, **{name: value for name, value in rest.items() if value is not None}}


def _definition_groups_options(options: Mapping[str, Any], protocol: str) -> dict[str, Any]:
    vocabulary, form = vocabulary_of(protocol), {}
    for name, value in options.items():
        canonical = canonical_option(protocol, name) or name
        older = canonical.replace("_", "-") if protocol.startswith("MQTT/") else canonical
        if canonical in vocabulary.lists and isinstance(value, list):
            form[older] = _named(value, protocol, canonical)
        elif canonical in vocabulary.sections and isinstance(value, dict):
            form[older] = _bodies(value)
        else:
            form[older] = _definition_groups_body(value)
    return form


def _named(entries: list[Any], protocol: str, name: str) -> Any:
    """Write a list of ``{name, …}`` as 0.4/0.5 has it: a map where names are unique, or ``{NAME: {…}}`` each."""
    bodies = [
        (each["name"], _definition_groups_body({key: value for key, value in each.items() if key != "name"}))
        for each in entries
        if isinstance(each, dict) and isinstance(each.get("name"), str)
    ]
    if len(bodies) < len(entries):
        return entries
    if (protocol, name) in _MAPS and len(dict(bodies)) == len(bodies):
        return dict(bodies)
    if name == "user_properties" and all(short_entry({key: body}) for key, body in bodies):
        return [{key: body} for key, body in bodies]
    return [{"name": key, **body} for key, body in bodies]


def _bodies(holder: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _definition_groups_body(body) for name, body in holder.items()}


def _definition_groups_body(body: Any, types: Mapping[str, str] = _OLDER_TYPES) -> Any:
    kind = body.get("type") if isinstance(body, dict) else None
    return {**body, "type": types[kind]} if isinstance(kind, str) and kind in types else body
