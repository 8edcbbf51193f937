"""Documents of every dialect: which groups, endpoints, messages and schemas they declare, under whichever names.

A document of Message Catalog 0.1 may also be one group, or a single definition, which is a group of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from catalog.dialects.detection import Kind, detect, is_definition
from catalog.dialects.messages import read_message, version_number
from catalog.dialects.reading import (
    MAX_ID,
    DocumentReader,
    Format,
    declare_group,
    declare_message,
    declare_registry,
    declare_schemas,
    deprecated,
    has_room,
    long_id,
    members,
    names_of,
    other_members,
    read_format,
    reference_of,
    repeated,
    spelled,
    spellings,
)
from catalog.findings import Declarations, DeclaredEndpoint, DeclaredGroup, DeclaredMessage, Findings, SourceLocation
from catalog.parsing.nearest import nearest
from catalog.protocols.properties import (
    TEXTUAL,
    canonical_channel_option,
    canonical_protocol,
    channel_options,
    option_key,
)
from catalog.values import is_number, plain_number, text_of

# Endpoints, whose addresses and options have been written in many ways.

_KEPT: Final = ("deployed", "authorization", "strict")
_TAKEN: Final = frozenset({"usage", "envelopeoptions", "endpoints"})
_NO_OPTIONS: Final = frozenset({"endpoints", "options", "deployed", "authorization", "strict", "protocol"})
_USAGES: Final = frozenset({"producer", "consumer", "subscriber"})
_ADDRESS_MEMBERS: Final = ("uri", "url", "href", "bootstrap.servers", "bootstrapservers", "servers")


def read_endpoint(
    xid: str, endpoint: Mapping[str, Any], place: SourceLocation, reader: DocumentReader
) -> DeclaredEndpoint:
    """Read one endpoint; its messages are read by the caller."""
    holder, beside = _holder(endpoint, place, reader)
    options = endpoint.get("envelopeoptions")
    form = read_format(endpoint, place, reader)
    inside = spelled(holder.get("protocol"), canonical_protocol, place / "protocol", reader.findings)
    groups = tuple(_groups(endpoint, place, reader))
    protocol = inside if inside is not None and form.by_format else form.protocol or inside
    return DeclaredEndpoint(
        xid=xid,
        place=place,
        usage=_usage(endpoint.get("usage"), place / "usage", reader.findings),
        envelope=form.envelope,
        protocol=protocol,
        envelopeoptions=options if isinstance(options, dict) else {},
        uris=tuple(dict.fromkeys(_addresses([holder.get("endpoints"), endpoint.get("endpoints")]))),
        options=_options(holder, protocol),
        messagegroups=tuple(reference for reference, _ in groups),
        groups_written=tuple(at for _, at in groups),
        other=_other({name: value for name, value in endpoint.items() if name != beside}, holder),
    )


def _holder(
    endpoint: Mapping[str, Any], place: SourceLocation, reader: DocumentReader
) -> tuple[Mapping[str, Any], str]:
    """Return what holds addresses and options, and the name of options that stand beside the rest, if they do."""
    for name, _ in reader.spelled(endpoint, "holders", place, several=True):
        if isinstance(endpoint[name], dict):
            return endpoint[name], ""
    if isinstance(endpoint.get("options"), dict):
        return {"options": endpoint["options"]}, "options"
    return {}, ""


def _groups(
    endpoint: Mapping[str, Any], place: SourceLocation, reader: DocumentReader
) -> Iterator[tuple[str, SourceLocation]]:
    """Give the references to message groups, under all of their names, with their places."""
    for name, _ in reader.spelled(endpoint, "groups", place, several=True):
        for number, reference in enumerate(group_references(endpoint[name], place / name, reader.findings)):
            yield reference, place / name / number


def _other(endpoint: Mapping[str, Any], holder: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is neither address nor option; of the protocol's options those that say how to get in."""
    kept = {name: holder[name] for name in _KEPT if holder.get(name) is not None}
    taken = _TAKEN | names_of("selectors", "holders", "groups", "messages")
    return {**other_members(endpoint, taken), **({"protocoloptions": kept} if kept else {})}


def _usage(value: Any, place: SourceLocation, findings: Findings) -> tuple[str, ...]:
    if value is None:
        return ()
    listed = value if isinstance(value, list) else [value]
    usages = tuple(dict.fromkeys(each.strip().lower() for each in listed if isinstance(each, str)))
    for unknown in (usage for usage in usages if usage not in _USAGES):
        meant = nearest(unknown, _USAGES)
        hint = f"did you mean {meant}?" if meant else "use producer, consumer or subscriber"
        text = f"usage {unknown!r} is unknown"
        slip = meant and not _USAGES & set(usages)
        findings.add(place, "error" if slip else "warning", "unknown-usage", text, hint)
    if not usages:
        findings.warning(place, "wrong-shape", "usage is neither a string nor a list of strings", "write it as a list")
    return usages


def _addresses(value: Any) -> Iterator[str]:
    """Give every address below *value*, whether text, list, or object with one of the known members."""
    if isinstance(value, str):
        yield from (part.strip() for part in value.split(",") if part.strip()) if "://" not in value else (value,)
    elif isinstance(value, list):
        for each in value:
            yield from _addresses(each)
    elif isinstance(value, dict):
        for name in _ADDRESS_MEMBERS:
            yield from _addresses(value.get(name))


def _options(holder: Mapping[str, Any], protocol: str | None) -> dict[str, Any]:
    """Unite options beside the addresses with nested ones, which count when both are given."""
    known = channel_options(protocol or "")
    nested = holder.get("options")
    united: dict[str, Any] = {}
    beside = {name: value for name, value in holder.items() if name not in _NO_OPTIONS}
    for source in (beside, nested if isinstance(nested, dict) else {}):
        for name, value in source.items():
            if value is not None:
                option = known.get(option_key(name))
                united[canonical_channel_option(name)] = _typed(_plain(value), option.kind if option else "")
    return united


def _typed(value: Any, kind: str) -> Any:
    """Return the value of an option; a number where a text is meant is the text that is written."""
    if isinstance(value, dict):
        return {name: _typed(each, "text" if kind == "map" else "") for name, each in value.items()}
    return text_of(value) if kind in TEXTUAL and is_number(value) else plain_number(value)


def _plain(value: Any) -> Any:
    """Unwrap ``{"value": x}``, which options should not have and sometimes do."""
    return value["value"] if isinstance(value, dict) and "value" in value and "name" not in value else value


def group_references(value: Any, place: SourceLocation, findings: Findings) -> Iterator[str]:
    """Give the references to message groups in a list, a map or a single text; report what is none."""
    listed = (
        value
        if isinstance(value, list)
        else []
        if value is None
        else list(value)
        if isinstance(value, dict)
        else [value]
    )
    for index, each in enumerate(listed):
        reference = each.get("uri") or each.get("xid") or each.get("xref") if isinstance(each, dict) else each
        if isinstance(reference, str) and reference:
            yield reference_of(reference)
        else:
            hint = "write the xid of a message group"
            findings.error(place / index, "wrong-shape", "a reference to a message group must be a string", hint)


_IDS: Final = ("id", "messageid", "definitionid", "messagegroupid", "definitiongroupid")
_OF_LISTS: Final = frozenset({"groups", "definitions", "messagedefinitions"})
"""Collections that Message Catalog 0.1 writes as lists."""


def read(tree: Mapping[str, Any], root: SourceLocation, into: Declarations, findings: Findings) -> bool:
    """Add everything that the document *tree* at *root* declares; return False if it is not a catalog.

    Values of the wrong type are reported and left out.
    """
    dialect = detect(tree)
    if dialect is None:
        return False
    reader = DocumentReader(dialect, into, findings)
    if dialect.is_replaced:
        deprecated(root, dialect.title, findings)
        findings.of_older_dialect(root.file)
    single = is_definition(tree)
    if single:
        _read_single(tree, root, reader)
    elif dialect.is_listed and any(name.lower() in spellings("messages") for name in tree):
        _read_lone_group(tree, root, reader)
    else:
        declare_registry(tree, into)
    for key, group, place in _collections(tree, "groups", root, reader):
        _read_group(f"/messagegroups/{key}", group, place, reader)
    for key, endpoint, place in members(tree, "endpoints", root, into, findings):
        _read_endpoint(f"/endpoints/{key}", endpoint, place, reader)
    for name in [name for name in tree if name.lower() == "schemagroups"]:
        declare_schemas(tree, name, root, into, findings)
    return True


def _read_lone_group(tree: Mapping[str, Any], root: SourceLocation, reader: DocumentReader) -> None:
    own = _id(tree)
    if own is None:
        reader.findings.error(root, "missing-id", "the group has no id and is left out", "give it an id")
    else:
        _read_group(f"/messagegroups/{own}", tree, root, reader)


def _read_single(tree: Mapping[str, Any], root: SourceLocation, reader: DocumentReader) -> None:
    """Read a definition that is a document of its own; of several versions of it the highest counts."""
    own = _id(tree)
    if own is None:
        reader.findings.error(root, "missing-id", "the definition has no id and is left out", "give it an id")
        return
    if len(own) > MAX_ID:
        long_id(root, own, reader.findings)
        return
    group = f"/messagegroups/{own}"
    form = read_format(tree, root, reader)
    declare_group(DeclaredGroup(group, root, form.envelope, form.protocol), reader.into, reader.findings)
    for message in read_message(f"{group}/messages/{own}", group, tree, root, form, reader):
        known = reader.into.messages.get(message.xid)
        numbers = [version_number(each.other.get("version")) for each in (known, message) if each is not None]
        if known is not None and numbers[0] != numbers[1]:
            if numbers[1] > numbers[0]:
                reader.into.messages[message.xid] = message
            continue
        declare_message(message, reader.into, reader.findings)


def _read_group(xid: str, group: Mapping[str, Any], place: SourceLocation, reader: DocumentReader) -> None:
    form = read_format(group, place, reader)
    other = other_members(group, names_of("selectors", "messages"))
    if reader.dialect.is_listed:
        other = other_members(other, {"id", *spellings("groups")})
    declare_group(DeclaredGroup(xid, place, form.envelope, form.protocol, other), reader.into, reader.findings)
    _read_messages(xid, group, place, form, reader)


def _read_endpoint(xid: str, endpoint: Mapping[str, Any], place: SourceLocation, reader: DocumentReader) -> None:
    known = reader.into.endpoints.get(xid)
    if known is not None:
        repeated(place, xid, known.place, reader.findings)
        return
    declared = read_endpoint(xid, endpoint, place, reader)
    reader.into.endpoints[xid] = declared
    quiet = replace(reader, findings=Findings())
    default = replace(read_format(endpoint, place, quiet), envelope=declared.envelope, protocol=declared.protocol)
    _read_messages(xid, endpoint, place, default, reader)


def _read_messages(
    xid: str, container: Mapping[str, Any], at: SourceLocation, default: Format, reader: DocumentReader
) -> None:
    """Add the messages of a group or an endpoint, with their versions; of several with one id the highest version."""
    latest: dict[str, tuple[Mapping[str, Any], SourceLocation]] = {}
    for key, message, place in _collections(container, "messages", at, reader):
        known = latest.get(key)
        if known is None:
            latest[key] = (message, place)
        elif "version" in message or "version" in known[0]:
            if version_number(message.get("version")) > version_number(known[0].get("version")):
                latest[key] = (message, place)
        else:
            repeated(place, f"{xid}/messages/{key}", known[1], reader.findings)
    for key, (message, place) in latest.items():
        own = f"{xid}/messages/{key}"
        if not _add(own, read_message(own, xid, message, place, default, reader), place, reader):
            return


def _add(xid: str, read: Iterator[DeclaredMessage], place: SourceLocation, reader: DocumentReader) -> bool:
    """Declare a message and its versions; one that is declared already is compared. False when there is no room."""
    if xid in reader.into.messages:
        *_, message = read
        declare_message(message, reader.into, reader.findings)
        return True
    for message in read:
        if not has_room(reader.into, place, reader.findings):
            return False
        reader.into.messages[message.xid] = message
    return True


def _collections(
    holder: Mapping[str, Any], kind: Kind, at: SourceLocation, reader: DocumentReader
) -> Iterator[tuple[str, Mapping[str, Any], SourceLocation]]:
    """Give the members of the collections of a kind that *holder* has: of maps by key, of lists by id."""
    for name, _ in reader.spelled(holder, kind, at, several=True):
        listed = reader.dialect.is_listed or name.lower() in _OF_LISTS
        if listed and isinstance(holder[name], list):
            yield from _listed(holder[name], at / name, reader)
        else:
            yield from members(holder, name, at, reader.into, reader.findings)


def _listed(
    entries: list[Any], at: SourceLocation, reader: DocumentReader
) -> Iterator[tuple[str, Mapping[str, Any], SourceLocation]]:
    for index, member in enumerate(entries):
        if not has_room(reader.into, at, reader.findings):
            return
        place = at / index
        if not isinstance(member, dict):
            text, hint = "a member of the list is not an object and is ignored", "write it as an object"
            reader.findings.error(place, "wrong-shape", text, hint)
            continue
        name = _id(member)
        if name is None:
            reader.findings.error(place, "missing-id", "this has no id and is left out", "give it an id")
        elif len(name) > MAX_ID:
            long_id(at, name, reader.findings)
        else:
            yield name, member, place


def _id(holder: Mapping[str, Any]) -> str | None:
    for name in _IDS:
        value = holder.get(name)
        if (isinstance(value, str) or is_number(value)) and value != "":
            return text_of(value)
    return None
