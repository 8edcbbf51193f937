"""Endpoints, whose addresses and options have been written in many ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from catalog.declared import DeclaredEndpoint, Place
from catalog.dialects.declaring import other_members
from catalog.dialects.names import DocumentReader, names_of
from catalog.dialects.reading import read_format, reference_of, spelled
from catalog.findings import Findings
from catalog.parsing.nearest import nearest
from catalog.protocols.channel_options import TEXTUAL, channel_options, option_key
from catalog.protocols.properties import canonical_channel_option, canonical_protocol
from catalog.values import is_number, plain_number, text_of

_KEPT: Final = ("deployed", "authorization", "strict")
_TAKEN: Final = frozenset({"usage", "envelopeoptions", "endpoints"})
_NO_OPTIONS: Final = frozenset({"endpoints", "options", "deployed", "authorization", "strict", "protocol"})
_USAGES: Final = frozenset({"producer", "consumer", "subscriber"})
_ADDRESS_MEMBERS: Final = ("uri", "url", "href", "bootstrap.servers", "bootstrapservers", "servers")


def read_endpoint(xid: str, endpoint: Mapping[str, Any], place: Place, reader: DocumentReader) -> DeclaredEndpoint:
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


def _holder(endpoint: Mapping[str, Any], place: Place, reader: DocumentReader) -> tuple[Mapping[str, Any], str]:
    """Return what holds addresses and options, and the name of options that stand beside the rest, if they do."""
    for name, _ in reader.spelled(endpoint, "holders", place, several=True):
        if isinstance(endpoint[name], dict):
            return endpoint[name], ""
    if isinstance(endpoint.get("options"), dict):
        return {"options": endpoint["options"]}, "options"
    return {}, ""


def _groups(endpoint: Mapping[str, Any], place: Place, reader: DocumentReader) -> Iterator[tuple[str, Place]]:
    """Give the references to message groups, under all of their names, with their places."""
    for name, _ in reader.spelled(endpoint, "groups", place, several=True):
        for number, reference in enumerate(group_references(endpoint[name], place / name, reader.findings)):
            yield reference, place / name / number


def _other(endpoint: Mapping[str, Any], holder: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is neither address nor option; of the protocol's options those that say how to get in."""
    kept = {name: holder[name] for name in _KEPT if holder.get(name) is not None}
    taken = _TAKEN | names_of("selectors", "holders", "groups", "messages")
    return {**other_members(endpoint, taken), **({"protocoloptions": kept} if kept else {})}


def _usage(value: Any, place: Place, findings: Findings) -> tuple[str, ...]:
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
        findings.warning(place, "wrong-shape", "usage is neither a text nor a list of texts", "write it as a list")
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


def group_references(value: Any, place: Place, findings: Findings) -> Iterator[str]:
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
            findings.error(place / index, "wrong-shape", "a message group is named by text", hint)
