"""Read the groups, endpoints, messages and schemas that a document of any dialect declares.

A document of Message Catalog 0.1 may also be a single group or a single definition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from catalog.dialects.asyncapi.reading import translate
from catalog.dialects.detection import ASYNCAPI, XREGISTRY, Kind, detect, is_definition
from catalog.dialects.messages import parse_version_number, read_message
from catalog.dialects.reading import (
    MAX_ID,
    DocumentReader,
    Format,
    canonical_reference,
    declare_group,
    declare_message,
    declare_registry,
    declare_schemas,
    has_room,
    iter_collection,
    names_of,
    other_members,
    read_format,
    read_selector,
    report_deprecated,
    report_long_id,
    report_repeated,
    spellings_of,
)
from catalog.findings import Declarations, DeclaredEndpoint, DeclaredGroup, DeclaredMessage, Findings, SourceLocation
from catalog.parsing.nearest import find_nearest
from catalog.protocols.properties import (
    TEXTUAL,
    canonical_channel_option,
    canonical_protocol,
    channel_options,
    option_key,
)
from catalog.values import is_number, plain_number, to_text

# Endpoints: addresses and options in the spellings of all dialects.

_ACCESS_OPTIONS: Final = ("deployed", "authorization", "strict")
_READ_MEMBERS: Final = frozenset({"usage", "envelopeoptions", "endpoints"})
_NO_OPTIONS: Final = frozenset({"endpoints", "options", "deployed", "authorization", "strict", "protocol"})
_USAGES: Final = frozenset({"producer", "consumer", "subscriber"})
_ADDRESS_MEMBERS: Final = ("uri", "url", "href", "bootstrap.servers", "bootstrapservers", "servers")


def read_endpoint(
    xid: str, endpoint: Mapping[str, Any], place: SourceLocation, reader: DocumentReader
) -> DeclaredEndpoint:
    """Read one endpoint; its messages are read by the caller."""
    holder, beside = _find_options_holder(endpoint, place, reader)
    options = endpoint.get("envelopeoptions")
    form = read_format(endpoint, place, reader)
    inside = read_selector(holder.get("protocol"), canonical_protocol, place / "protocol", reader.findings)
    groups = tuple(_iter_group_references(endpoint, place, reader))
    protocol = inside if inside is not None and form.by_format else form.protocol or inside
    return DeclaredEndpoint(
        xid=xid,
        place=place,
        usage=_read_usage(endpoint.get("usage"), place / "usage", reader.findings),
        envelope=form.envelope,
        protocol=protocol,
        envelopeoptions=options if isinstance(options, dict) else {},
        uris=tuple(dict.fromkeys(_iter_addresses([holder.get("endpoints"), endpoint.get("endpoints")]))),
        options=_read_options(holder, protocol),
        messagegroups=tuple(reference for reference, _ in groups),
        groups_written=tuple(at for _, at in groups),
        other=_other_members({name: value for name, value in endpoint.items() if name != beside}, holder),
    )


def _find_options_holder(
    endpoint: Mapping[str, Any], place: SourceLocation, reader: DocumentReader
) -> tuple[Mapping[str, Any], str]:
    """Return the object with addresses and options, and the name of its member with options, if any."""
    for name, _ in reader.iter_names(endpoint, "holders", place, several=True):
        if isinstance(endpoint[name], dict):
            return endpoint[name], ""
    if isinstance(endpoint.get("options"), dict):
        return {"options": endpoint["options"]}, "options"
    return {}, ""


def _iter_group_references(
    endpoint: Mapping[str, Any], place: SourceLocation, reader: DocumentReader
) -> Iterator[tuple[str, SourceLocation]]:
    """Yield the references to message groups, under any of their names, with locations."""
    for name, _ in reader.iter_names(endpoint, "groups", place, several=True):
        for number, reference in enumerate(iter_references(endpoint[name], place / name, reader.findings)):
            yield reference, place / name / number


def _other_members(endpoint: Mapping[str, Any], holder: Mapping[str, Any]) -> dict[str, Any]:
    """Return all members except addresses and options; of the protocol options only those about access."""
    kept = {name: holder[name] for name in _ACCESS_OPTIONS if holder.get(name) is not None}
    taken = _READ_MEMBERS | names_of("selectors", "holders", "groups", "messages")
    return {**other_members(endpoint, taken), **({"protocoloptions": kept} if kept else {})}


def _read_usage(value: Any, place: SourceLocation, findings: Findings) -> tuple[str, ...]:
    if value is None:
        return ()
    listed = value if isinstance(value, list) else [value]
    usages = tuple(dict.fromkeys(each.strip().lower() for each in listed if isinstance(each, str)))
    for unknown in (usage for usage in usages if usage not in _USAGES):
        meant = find_nearest(unknown, _USAGES)
        hint = f"did you mean {meant}?" if meant else "use producer, consumer or subscriber"
        text = f"usage {unknown!r} is unknown"
        slip = meant and not _USAGES & set(usages)
        findings.add(place, "error" if slip else "warning", "unknown-usage", text, hint)
    if not usages:
        findings.warning(place, "wrong-shape", "usage is neither a string nor a list of strings", "write it as a list")
    return usages


def _iter_addresses(value: Any) -> Iterator[str]:
    """Yield all addresses in *value*: a text, a list, or an object with one of the known members."""
    if isinstance(value, str):
        yield from (part.strip() for part in value.split(",") if part.strip()) if "://" not in value else (value,)
    elif isinstance(value, list):
        for each in value:
            yield from _iter_addresses(each)
    elif isinstance(value, dict):
        for name in _ADDRESS_MEMBERS:
            yield from _iter_addresses(value.get(name))


def _read_options(holder: Mapping[str, Any], protocol: str | None) -> dict[str, Any]:
    """Merge the options beside the addresses with nested ones, which take precedence."""
    known = channel_options(protocol or "")
    nested = holder.get("options")
    united: dict[str, Any] = {}
    beside = {name: value for name, value in holder.items() if name not in _NO_OPTIONS}
    for source in (beside, nested if isinstance(nested, dict) else {}):
        for name, value in source.items():
            if value is not None:
                option = known.get(option_key(name))
                united[canonical_channel_option(name)] = _typed_value(_unwrap(value), option.kind if option else "")
    return united


def _typed_value(value: Any, kind: str) -> Any:
    """Return the value of an option; where text is expected, a number becomes its written text."""
    if isinstance(value, dict):
        return {name: _typed_value(each, "text" if kind == "map" else "") for name, each in value.items()}
    return to_text(value) if kind in TEXTUAL and is_number(value) else plain_number(value)


def _unwrap(value: Any) -> Any:
    """Unwrap ``{"value": x}``, which some documents use for options."""
    return value["value"] if isinstance(value, dict) and "value" in value and "name" not in value else value


def iter_references(value: Any, place: SourceLocation, findings: Findings) -> Iterator[str]:
    """Yield the references to message groups in a list, a map or a text; report anything else."""
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
            yield canonical_reference(reference)
        else:
            hint = "write the xid of a message group"
            findings.error(place / index, "wrong-shape", "a reference to a message group must be a string", hint)


_IDS: Final = ("id", "messageid", "definitionid", "messagegroupid", "definitiongroupid")
_OF_LISTS: Final = frozenset({"groups", "definitions", "messagedefinitions"})
"""Collections that are lists in Message Catalog 0.1."""


def read(tree: Mapping[str, Any], root: SourceLocation, into: Declarations, findings: Findings) -> bool:
    """Declare all entities of the document *tree* at *root*; return False if it is not a catalog.

    Values of the wrong type are reported and left out.
    """
    dialect = detect(tree)
    if dialect is None:
        return False
    if dialect is ASYNCAPI:
        translated = translate(tree, root, findings)
        if translated is None:
            return True
        (tree, root), dialect = translated, XREGISTRY
    reader = DocumentReader(dialect, into, findings)
    if dialect.is_replaced:
        report_deprecated(root, dialect.title, findings)
        findings.allow_older_spellings(root.file)
    single = is_definition(tree)
    if single:
        _read_lone_definition(tree, root, reader)
    elif dialect.is_listed and any(name.lower() in spellings_of("messages") for name in tree):
        _read_lone_group(tree, root, reader)
    else:
        declare_registry(tree, into)
    for key, group, place in _iter_collections(tree, "groups", root, reader):
        _read_group(f"/messagegroups/{key}", group, place, reader)
    for key, endpoint, place in iter_collection(tree, "endpoints", root, into, findings):
        _read_endpoint(f"/endpoints/{key}", endpoint, place, reader)
    for name in [name for name in tree if name.lower() == "schemagroups"]:
        declare_schemas(tree, name, root, into, findings)
    return True


def _read_lone_group(tree: Mapping[str, Any], root: SourceLocation, reader: DocumentReader) -> None:
    own = _member_id(tree)
    if own is None:
        reader.findings.error(root, "missing-id", "the group has no id and is left out", "give it an id")
    else:
        _read_group(f"/messagegroups/{own}", tree, root, reader)


def _read_lone_definition(tree: Mapping[str, Any], root: SourceLocation, reader: DocumentReader) -> None:
    """Read a document that is a single definition; the highest version is used."""
    own = _member_id(tree)
    if own is None:
        reader.findings.error(root, "missing-id", "the definition has no id and is left out", "give it an id")
        return
    if len(own) > MAX_ID:
        report_long_id(root, own, reader.findings)
        return
    group = f"/messagegroups/{own}"
    form = read_format(tree, root, reader)
    declare_group(DeclaredGroup(group, root, form.envelope, form.protocol), reader.declarations, reader.findings)
    for message in read_message(f"{group}/messages/{own}", group, tree, root, form, reader):
        known = reader.declarations.messages.get(message.xid)
        numbers = [parse_version_number(each.other.get("version")) for each in (known, message) if each is not None]
        if known is not None and numbers[0] != numbers[1]:
            if numbers[1] > numbers[0]:
                reader.declarations.messages[message.xid] = message
            continue
        declare_message(message, reader.declarations, reader.findings)


def _read_group(xid: str, group: Mapping[str, Any], place: SourceLocation, reader: DocumentReader) -> None:
    form = read_format(group, place, reader)
    other = other_members(group, names_of("selectors", "messages"))
    if reader.dialect.is_listed:
        other = other_members(other, {"id", *spellings_of("groups")})
    declare_group(DeclaredGroup(xid, place, form.envelope, form.protocol, other), reader.declarations, reader.findings)
    _read_messages(xid, group, place, form, reader)


def _read_endpoint(xid: str, endpoint: Mapping[str, Any], place: SourceLocation, reader: DocumentReader) -> None:
    known = reader.declarations.endpoints.get(xid)
    if known is not None:
        report_repeated(place, xid, known.place, reader.findings)
        return
    declared = read_endpoint(xid, endpoint, place, reader)
    reader.declarations.endpoints[xid] = declared
    quiet = replace(reader, findings=Findings())
    default = replace(read_format(endpoint, place, quiet), envelope=declared.envelope, protocol=declared.protocol)
    _read_messages(xid, endpoint, place, default, reader)


def _read_messages(
    xid: str, container: Mapping[str, Any], at: SourceLocation, default: Format, reader: DocumentReader
) -> None:
    """Declare the messages of a group or endpoint, with versions; of equal ids, the highest version is used."""
    latest: dict[str, tuple[Mapping[str, Any], SourceLocation]] = {}
    for key, message, place in _iter_collections(container, "messages", at, reader):
        known = latest.get(key)
        if known is None:
            latest[key] = (message, place)
        elif "version" in message or "version" in known[0]:
            if parse_version_number(message.get("version")) > parse_version_number(known[0].get("version")):
                latest[key] = (message, place)
        else:
            report_repeated(place, f"{xid}/messages/{key}", known[1], reader.findings)
    for key, (message, place) in latest.items():
        own = f"{xid}/messages/{key}"
        if not _declare_all(own, read_message(own, xid, message, place, default, reader), place, reader):
            return


def _declare_all(xid: str, read: Iterator[DeclaredMessage], place: SourceLocation, reader: DocumentReader) -> bool:
    """Declare a message and its versions; return False if the limit is reached."""
    if xid in reader.declarations.messages:
        *_, message = read
        declare_message(message, reader.declarations, reader.findings)
        return True
    for message in read:
        if not has_room(reader.declarations, place, reader.findings):
            return False
        reader.declarations.messages[message.xid] = message
    return True


def _iter_collections(
    holder: Mapping[str, Any], kind: Kind, at: SourceLocation, reader: DocumentReader
) -> Iterator[tuple[str, Mapping[str, Any], SourceLocation]]:
    """Yield the members of all collections of one kind in *holder*: of maps by key, of lists by id."""
    for name, _ in reader.iter_names(holder, kind, at, several=True):
        listed = reader.dialect.is_listed or name.lower() in _OF_LISTS
        if listed and isinstance(holder[name], list):
            yield from _iter_list(holder[name], at / name, reader)
        else:
            yield from iter_collection(holder, name, at, reader.declarations, reader.findings)


def _iter_list(
    entries: list[Any], at: SourceLocation, reader: DocumentReader
) -> Iterator[tuple[str, Mapping[str, Any], SourceLocation]]:
    for index, member in enumerate(entries):
        if not has_room(reader.declarations, at, reader.findings):
            return
        place = at / index
        if not isinstance(member, dict):
            text, hint = "a member of the list is not an object and is ignored", "write it as an object"
            reader.findings.error(place, "wrong-shape", text, hint)
            continue
        name = _member_id(member)
        if name is None:
            reader.findings.error(place, "missing-id", "this has no id and is left out", "give it an id")
        elif len(name) > MAX_ID:
            report_long_id(at, name, reader.findings)
        else:
            yield name, member, place


def _member_id(holder: Mapping[str, Any]) -> str | None:
    for name in _IDS:
        value = holder.get(name)
        if (isinstance(value, str) or is_number(value)) and value != "":
            return to_text(value)
    return None
