"""Documents that mix the names of two dialects: the same definitions, level by level in the names of either.

A *level* is one kind of name: of the collection of groups, of that of messages, of what selects envelope and protocol,
of the constraints, of the schema, of the base. A document is written in the names of one dialect, and some levels of
it in those of another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import combinations, permutations
from pathlib import Path
from typing import Any, Final

from catalog.dialects import Dialect
from catalog.dialects.detection import DEFINITION_GROUPS as CEREG
from catalog.dialects.detection import MESSAGE_CATALOG as CNCF
from catalog.dialects.detection import OLDER_XREGISTRY as WIP
from catalog.dialects.detection import XREGISTRY
from tests.support.cases import read_cases

NEW: Final = XREGISTRY
DIALECTS: Final = (NEW, WIP, CEREG, CNCF)
LEVELS: Final = ("groups", "messages", "selectors", "content", "schema", "base")
_VERSIONS: Final = {NEW: "1.0-rc4", WIP: "0.5-wip", CEREG: "0.4-wip", CNCF: "0.1"}
_GROUPS: Final = {NEW: "messagegroups", WIP: "messagegroups", CEREG: "definitionGroups", CNCF: "groups"}
_MESSAGES: Final = {NEW: "messages", WIP: "messages", CEREG: "definitions", CNCF: "messagedefinitions"}
_SCHEMA: Final = {
    NEW: ("dataschemaformat", "dataschemauri"),
    WIP: ("schemaformat", "schemauri"),
    CEREG: ("schemaformat", "schemaurl"),
}
_BASE: Final = {NEW: "basemessage", WIP: "basemessageurl"}
_NOW: Final = {NEW: "0000-01-01T00:00:00Z"}
_OLD_NOW: Final = "01-01-0000T00:00:00Z"
_AMQP: Final = {"application-properties": "applicationproperties", "message-annotations": "messageannotations"}

Definition = Mapping[str, Any]
DEFINITIONS: Final[Mapping[str, Definition]] = read_cases(Path(__file__).resolve().parents[1] / "cases/hybrids.yaml")
"""What all documents say."""


def pairs() -> Iterator[tuple[Dialect, Dialect, tuple[str, ...]]]:
    """Give a document's dialect, another, and the levels in names of the other: each alone, each two, and all."""
    chosen = [*((level,) for level in LEVELS), *combinations(LEVELS, 2), LEVELS]
    for own, other in permutations(DIALECTS, 2):
        yield from ((own, other, levels) for levels in chosen)


def document(own: Dialect, other: Dialect, levels: Collection[str] = ()) -> dict[str, Any]:
    """Return the document of dialect *own* that has *levels* in the names of *other*."""
    of = {level: other if level in levels else own for level in LEVELS}
    members = {name: _message(definition, of) for name, definition in DEFINITIONS.items()}
    group = {_MESSAGES[of["messages"]]: _collection(members, of["messages"])}
    return {"specversion": _VERSIONS[own], _GROUPS[of["groups"]]: _collection({"g": group}, of["groups"])}


def _collection(members: Mapping[str, Any], dialect: Dialect) -> Any:
    if dialect is CNCF:
        return [{"id": name, **body} for name, body in members.items()]
    return dict(members)


def _message(definition: Definition, of: Mapping[str, Dialect]) -> dict[str, Any]:
    message: dict[str, Any] = {}
    for name in ("envelope", "protocol"):
        if name in definition:
            message[name if of["selectors"] in (NEW, WIP) else "format"] = definition[name]
    if definition["constraints"]:
        message.update(_content(definition, of["content"]))
    if "schema" in definition:
        message.update(zip(_SCHEMA.get(of["schema"], _SCHEMA[NEW]), definition["schema"], strict=True))
    if "base" in definition:
        collections = _GROUPS[of["groups"]], _MESSAGES[of["messages"]]
        message[_BASE.get(of["base"], _BASE[NEW])] = f"#/{collections[0]}/g/{collections[1]}/{definition['base']}"
    return message


def _content(definition: Definition, dialect: Dialect) -> dict[str, Any]:
    constraints = definition["constraints"]
    protocol = definition.get("protocol")
    if protocol is None:
        now = _NOW.get(dialect, _OLD_NOW)
        attributes = {
            name: {**body, "value": now} if body.get("value") == "now" else body for name, body in constraints.items()
        }
        if dialect is CNCF:
            return {"definition": {"attributes": attributes}}
        return {"metadata": {"attributes": attributes}} if dialect is CEREG else {"envelopemetadata": attributes}
    if dialect is CNCF:
        return {"definition": _sections(constraints, protocol)}
    dashed = dialect in (WIP, CEREG)
    options = {name.replace("_", "-") if dashed else name: body for name, body in constraints.items()}
    listed = options.pop("user-properties" if dashed else "user_properties", None)
    if listed is not None:
        bodies = [{name: body} if dialect is CEREG else {"name": name, **body} for name, body in listed.items()]
        options["user-properties" if dashed else "user_properties"] = bodies
    return {"metadata" if dialect is CEREG else "protocoloptions": options}


def _sections(constraints: Mapping[str, Any], protocol: str) -> dict[str, Any]:
    """Return the sections that Message Catalog 0.1 has for a protocol."""
    if protocol == "AMQP/1.0":
        return {_AMQP.get(name, name): body for name, body in constraints.items()}
    plain = {name.replace("_", ""): body for name, body in constraints.items() if name != "user_properties"}
    if protocol == "NATS":
        return {"pub": plain}
    return {"publish": plain, "userproperty": constraints["user_properties"]}
