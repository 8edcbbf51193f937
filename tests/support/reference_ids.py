"""Which definitions take the id of a body, for the plain matcher (MATCHING.md#schema-ids)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from catalog.model import Catalog, Definition
from catalog.schemas.ids.client import WrittenSchema
from catalog.schemas.ids.deciding import PLAIN, Begin, FrameSettings, read_frame, read_message_place
from catalog.schemas.library import schema_source

MESSAGES = re.compile(r"\bmessage\s+(\w+)")
PACKAGE = re.compile(r"\bpackage\s+([\w.]+)\s*;")


class Held(NamedTuple):
    """How each definition that is left reads the body, by xid; and the reason when none is left."""

    begins: Mapping[str, Begin]
    reason: str = ""


def held(
    definitions: Iterable[Definition],
    everyone: Iterable[Definition],
    body: bytes | None,
    frames: FrameSettings,
    catalog: Catalog,
    fits: Callable[[Definition], bool],
) -> Held:
    """Hold the definitions that a record of Kafka matches against the id in its body; *everyone* is a candidate."""
    found = list(definitions)
    explicit = frames.framing != "auto"
    plain = Begin(frames.framing if explicit else "auto" if frames.registry is None else "none")
    frame = read_frame(body, frames.framing) if body is not None and frames.framing != "none" else None
    if frame is None or body is None:
        return Held({each.xid: Begin(frames.framing) for each in found})
    written = frames.registry.get_schema(frame.id) if frames.registry is not None else None
    declared = {each.xid: ids_of(each, frames, catalog) for each in everyone}
    certain = explicit or written is not None or any(frame.id in (ids or ()) for ids, _ in declared.values())
    begins: dict[str, Begin] = {}
    unread = False
    for each in found:
        source = schema_source(each, catalog.schemas)
        framed = source is not None and source.family != "XSD"
        ids, subject = declared[each.xid]
        if not certain and framed and fits(each):
            begins[each.xid] = PLAIN
            continue
        takes = True
        if ids is not None or subject is not None:
            takes = frame.id in (ids or ()) or (subject is not None and of_subject(written, subject))
        elif not framed:
            takes = True
        elif written is not None:
            takes = named_alike(each, written, body, frames, catalog)
            nowhere = written.family == "Protobuf" and message_at(written.document, body, frames) is None
            unread = unread or (source is not None and source.family == "Protobuf" and nowhere)
        elif frames.registry is not None or frames.required:
            takes, unread = False, True
        if takes and framed and written is None and source is not None and source.family == "Protobuf":
            message = message_at(source.document, body, frames)
            if message is None:
                begins[each.xid] = PLAIN
                continue
            takes = message == own_message(each, source.document)
        if takes:
            kind = ("confluent" if certain else "auto") if not explicit else frames.framing
            begins[each.xid] = Begin(kind, written) if framed else plain
    if found and not begins:
        return Held({}, "undecodable" if unread else "no-match")
    return Held(begins)


def ids_of(
    definition: Definition, frames: FrameSettings, catalog: Catalog
) -> tuple[set[str] | None, tuple[str, str] | None]:
    """The ids and the subject that a definition declares; None for none."""
    ids = set(catalog.schemas.get(definition.schemakey or "", {}).get("schemaids", ()))
    address = definition.dataschemauri or ""
    registry = frames.registry
    by_id = re.search(r"^(.*)/schemas/ids/([^/:?#]+)", address)
    if by_id and (registry is None or by_id[1] == registry.url):
        ids.add(by_id[2])
    ids |= {
        str(each.value) for each in definition.protocoloptions if each.name == "schemaid" and each.value is not None
    }
    subject = re.search(r"^(.*)/subjects/([^/:?#]+)(?:/versions/([0-9]+))?", address)
    of = (subject[2], subject[3] or "") if subject and registry is not None and subject[1] == registry.url else None
    return {each.lower() for each in ids} or None, of


def of_subject(written: WrittenSchema | None, subject: tuple[str, str]) -> bool:
    known = written.subjects if written is not None else ()
    return any(name == subject[0] and subject[1] in ("", str(version)) for name, version in known)


def named_alike(
    definition: Definition, written: WrittenSchema, body: bytes, frames: FrameSettings, catalog: Catalog
) -> bool:
    source = schema_source(definition, catalog.schemas)
    assert source is not None
    json_kinds = {"JsonSchema", "JsonStructure"}
    if source.family != written.family and not {source.family, written.family} <= json_kinds:
        return False
    if source.family == "Protobuf":
        return message_at(written.document, body, frames) == own_message(definition, source.document)
    own, theirs = names_of(source.document, source.family), names_of(json.loads(written.document), written.family)
    return next((own[kind] == theirs[kind] for kind in own if kind in theirs), True)


def names_of(tree: Any, family: str) -> dict[str, str]:
    if not isinstance(tree, dict):
        return {}
    if family == "JsonSchema":
        return {kind: tree[kind] for kind in ("title", "$id") if kind in tree}
    if "name" not in tree or family != "Avro":
        return {}
    name, space = tree["name"], tree.get("namespace")
    return {"name": f"{space}.{name}" if space and "." not in name else name}


def message_at(document: str, body: bytes, frames: FrameSettings) -> str | None:
    """The full name of the top-level message that a frame's indexes name."""
    frame = read_frame(body, frames.framing)
    data = frame.unpack(body) if frame is not None else None
    place = read_message_place(data, frames.framing) if isinstance(data, bytes) else None
    if place is None:
        return None
    names = MESSAGES.findall(document)
    at = place[0]
    if isinstance(at, tuple):
        return full(document, names[at[0]]) if len(at) == 1 and at[0] < len(names) else None
    if isinstance(at, int):
        return full(document, sorted(names)[at]) if at < len(names) else None
    return full(document, at) if at in names else None


def own_message(definition: Definition, document: str) -> str:
    return full(document, definition.schemaname.rpartition(".")[2] or MESSAGES.findall(document)[0])


def full(document: str, name: str) -> str:
    package = PACKAGE.search(document)
    return f"{package[1]}.{name}" if package else name
