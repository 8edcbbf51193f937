"""Drafts as one document: an xRegistry 1.0 fragment of message groups, schema groups and, where new, endpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from router.commands.dead_letters.suggesting.basis import Basis
from router.commands.dead_letters.suggesting.drafts import Draft, message_form
from router.commands.dead_letters.suggesting.placement import Placement
from router.commands.dead_letters.suggesting.schemas import FORMAT
from router.commands.dead_letters.suggesting.words import words_of

SPECVERSION: Final = "1.0-rc4"
_PLACEHOLDER: Final = re.compile(r"\{[^{}]*\}")
_NOT_ID: Final = re.compile(r"[^A-Za-z0-9_]+")
_LONGEST: Final = 100


@dataclass(frozen=True, slots=True)
class PlacedDraft:
    """A draft with its id, in the group that it goes into."""

    draft: Draft
    placement: Placement

    @property
    def xid(self) -> str:
        """The xid of the drafted definition."""
        return f"{self.placement.group}/messages/{self.draft.messageid}"


def placed(drafts: Sequence[Draft], placements: Mapping[tuple[str, str], Placement], basis: Basis) -> list[PlacedDraft]:
    """Give every draft an id that its group has not, made of what is literal in it; *placements* by endpoint, protocol.

    The same drafts in the same order get the same ids.
    """
    taken = {xid.lower() for xid in basis.declarations.messages}
    placed_drafts: list[PlacedDraft] = []
    for draft in drafts:
        placement = placements[draft.bundle.shape.endpoint, draft.bundle.shape.protocol]
        name = _name_of(draft)
        chosen, number = name, 2
        while f"{placement.group}/messages/{chosen}".lower() in taken:
            chosen, number = f"{name}.{number}", number + 1
        taken.add(f"{placement.group}/messages/{chosen}".lower())
        placed_drafts.append(PlacedDraft(replace(draft, messageid=chosen), placement))
    return placed_drafts


def attachments(placements: Iterable[Placement]) -> dict[str, list[str]]:
    """Return the groups, by endpoint, that an endpoint of the catalog has to be changed to list."""
    groups: dict[str, list[str]] = {}
    for each in placements:
        if each.attachment == "unlisted" and each.group not in groups.setdefault(each.endpoint, []):
            groups[each.endpoint].append(each.group)
    return groups


def fragment_of(drafts: Sequence[PlacedDraft]) -> dict[str, Any]:
    """Return the fragment; equal schemas of one group are written once."""
    groups: dict[str, dict[str, Any]] = {}
    schemas: dict[str, dict[str, Any]] = {}
    endpoints: dict[str, dict[str, Any]] = {}
    known: dict[tuple[str, bytes], str] = {}
    for each in drafts:
        placement, name = each.placement, each.placement.name
        schemaxid = None
        if each.draft.schema is not None:
            key = (name, msgspec.json.encode(each.draft.schema, order="deterministic"))
            if key not in known:
                group = schemas.setdefault(name, {"schemagroupid": name, "schemas": {}})
                group["schemas"][each.draft.messageid] = _schema_form(each.draft.messageid, each.draft.schema)
                known[key] = f"/schemagroups/{name}/schemas/{each.draft.messageid}"
            schemaxid = known[key]
        group = groups.setdefault(name, _group_form(placement, drafts))
        group["messages"][each.draft.messageid] = message_form(each.draft, schemaxid)
        if placement.attachment == "new":
            _add_endpoint(endpoints, placement, each.draft.bundle.shape.protocol)
    collections = {"endpoints": endpoints, "messagegroups": groups, "schemagroups": schemas}
    return {"specversion": SPECVERSION, **{key: collections[key] for key in collections if collections[key]}}


def _group_form(placement: Placement, drafts: Sequence[PlacedDraft]) -> dict[str, Any]:
    """Return a group with the defaults it has, or, when it is a new one, with the one protocol of all that is in it."""
    protocol = placement.protocol
    own = {each.placement.protocol for each in drafts if each.placement.group == placement.group}
    if len(own) > 1:
        protocol = None
    defaults = {"envelope": placement.envelope, "protocol": protocol}
    written = {name: value for name, value in defaults.items() if value is not None}
    return {"messagegroupid": placement.name, **written, "messages": {}}


def _schema_form(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    version = {"versionid": "1", "format": FORMAT, "schema": schema}
    return {"schemaid": name, "format": FORMAT, "versions": {"1": version}}


def _add_endpoint(endpoints: dict[str, dict[str, Any]], placement: Placement, protocol: str) -> None:
    name = placement.endpoint.rpartition("/")[2]
    form = endpoints.setdefault(
        name, {"endpointid": name, "usage": ["consumer"], "protocol": protocol, "messagegroups": []}
    )
    if form.get("protocol", protocol) != protocol:
        del form["protocol"]  # what comes over several protocols has none by default
    if placement.group not in form["messagegroups"]:
        form["messagegroups"].append(placement.group)


def _name_of(draft: Draft) -> str:
    bundle = draft.bundle
    values = {each.key: each.value for each in draft.asked if each.value is not None}
    if bundle.shape.event:
        telling = [values.get("e.type") or "event"]
    else:
        telling = [(bundle.shape.method or "").lower(), values.get(bundle.records[0].address) or ""]
    if bundle.pinned and bundle.shape.event:
        telling.append(values.get(bundle.records[0].address) or "")
    telling += [value for key, value in bundle.pins if value not in telling]
    words = [word for text in telling for word in words_of(_PLACEHOLDER.sub("", text)).words]
    clean = [_NOT_ID.sub("-", word).strip("-") for word in words]
    name = ".".join(word for word in clean if word)[:_LONGEST].strip(".-")
    return name or "message"
