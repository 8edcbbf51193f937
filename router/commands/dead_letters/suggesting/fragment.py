"""Write drafts as an xRegistry 1.0 fragment of message groups, schema groups and new endpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from catalog.convert import convert
from catalog.documents.documents import Document, read_documents
from catalog.documents.fetching import Fetcher
from catalog.findings import Declarations, Findings
from catalog.load import build_catalog
from catalog.model import CLOUDEVENTS, Catalog, Endpoint, Finding
from router.commands.dead_letters.suggesting.drafts import FORMAT, Draft, message_to_json
from router.commands.dead_letters.suggesting.sampling import split_words
from router.errors import RouterError

# The catalog that drafts are added to: alone, with a fragment as one more source, and merged with it.

FRAGMENT: Final = "the drafts"
"""The file name of the fragment in findings."""


class BaseCatalog:
    """A loaded catalog and its source documents.

    Raises:
        DocumentError: a source cannot be read.
    """

    def __init__(self, sources: Sequence[str | Path], fetcher: Fetcher | None = None) -> None:
        """Load *sources*; *fetcher* is required if they or their references are not local."""
        self._fetcher = fetcher if fetcher is not None else Fetcher(network=False)
        self._documents: list[Document] = read_documents(sources, Findings(), fetcher=self._fetcher)
        self.declarations = Declarations()
        self.catalog: Catalog = build_catalog(self._documents, Findings(), self.declarations, self._fetcher)
        self._known = {(each.rule, each.file, each.pointer) for each in self.catalog.findings}

    def with_fragment(self, fragment: Mapping[str, Any], attached: Mapping[str, Sequence[str]]) -> Catalog:
        """Load the catalog with a fragment as one more source.

        *attached* has groups by endpoint that are treated as if the endpoint listed them.
        """
        documents = [*self._documents, Document(FRAGMENT, dict(fragment))]
        catalog = build_catalog(documents, Findings(), None, self._fetcher)
        endpoints = dict(catalog.endpoints)
        for xid, groups in attached.items():
            endpoint = endpoints[xid]
            members = [member for group in groups for member in catalog.groups[group]]
            listed = dict.fromkeys((*endpoint.messagegroups, *groups))
            candidates = dict.fromkeys((*endpoint.candidates, *members))
            endpoints[xid] = replace(endpoint, messagegroups=tuple(listed), candidates=tuple(candidates))
        return replace(catalog, endpoints=endpoints)

    def new_findings(self, catalog: Catalog) -> list[Finding]:
        """Return the errors and warnings of *catalog* that the base catalog does not have."""
        return [
            each
            for each in catalog.findings
            if each.severity != "info" and (each.rule, each.file, each.pointer) not in self._known
        ]

    def merge_fragment(
        self, fragment: Mapping[str, Any], attached: Mapping[str, Sequence[str]]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the catalog merged with the fragment as an xRegistry 1.0-rc4 document.

        Endpoints list the groups in *attached*. The second value has the xids of entities left out because of errors.
        """
        converted = convert(self.catalog, self.declarations)
        document = dict(converted.document)
        for collection, nested in (("messagegroups", "messages"), ("schemagroups", "schemas"), ("endpoints", "")):
            added: Mapping[str, Any] = fragment.get(collection, {})
            held: dict[str, Any] = dict(document.get(collection, {}))
            for name, entity in added.items():
                known = held.get(name)
                if known is not None and nested:
                    held[name] = {**known, nested: {**known.get(nested, {}), **entity.get(nested, {})}}
                else:
                    held[name] = entity
            if held:
                document[collection] = held
        for xid, groups in attached.items():
            name = xid.rpartition("/")[2]
            endpoint = document["endpoints"][name]
            listed = dict.fromkeys((*endpoint.get("messagegroups", ()), *groups))
            document["endpoints"] = {**document["endpoints"], name: {**endpoint, "messagegroups": list(listed)}}
        return document, converted.left_out


# The group of a draft: if possible, a message group that its endpoint already lists.
#
# If two documents declare the same endpoint, the first counts and lint warns about the second. But if both declare the
# same group, their messages are merged. So a fragment that adds to a listed group takes effect without other changes;
# otherwise the endpoint must be changed to list the group of the drafts.

Attachment = Literal["listed", "missing", "new", "unlisted", "free"]
"""How the group is connected to its endpoint.

``listed``: the endpoint lists it. ``missing``: the endpoint lists it, but it is not declared. ``new``: the fragment
declares the endpoint. ``unlisted``: the endpoint must be changed to list it. ``free``: there is no endpoint.
"""
ENDPOINT: Final = re.compile(r"/endpoints/([^/?#{}\s]{1,128})")
_GROUP: Final = re.compile(r"(?:^|[/#])messagegroups/([^/?#]+)/?$")
_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._~@:\-]{0,127}")
_NOT_ID: Final = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Placement:
    """The group of the drafts of one endpoint.

    ``envelope`` and ``protocol`` are the defaults of the group. ``others`` are other endpoints of the same protocol
    that list the group, and so will accept the drafts as well.
    """

    endpoint: str
    group: str
    attachment: Attachment
    envelope: str | None = CLOUDEVENTS
    protocol: str | None = None
    others: tuple[str, ...] = ()

    @property
    def group_id(self) -> str:
        """The id of the group."""
        return self.group.rpartition("/")[2]


def choose_placement(endpoint: str, protocol: str, basis: BaseCatalog, wanted: str | None = None) -> Placement:
    """Choose the group for drafts of one endpoint (``""``: none) and protocol; *wanted* is the requested group.

    Raises:
        RouterError: *wanted* is not a valid group id, or its envelope or protocol does not fit the drafts.
    """
    known = basis.catalog.endpoints.get(endpoint)
    if wanted is not None:
        return _place_in_named_group(endpoint, protocol, basis, _validate_group_id(wanted))
    if known is None:
        name = ENDPOINT.fullmatch(endpoint)
        group = _make_unused_group(f"{_to_id(name.group(1))}.drafts" if name else "drafts", basis)
        return Placement(endpoint, group, "new" if name else "free", protocol=protocol)
    for reference in basis.declarations.endpoints[endpoint].messagegroups:
        missing = _find_undeclared_group(reference, basis)
        if missing is not None:
            return Placement(endpoint, missing, "missing", protocol=protocol)
    fitting = [_place_in_listed_group(known, group, basis) for group in _iter_fitting_groups(known, protocol, basis)]
    if fitting:
        return min(fitting, key=lambda each: (len(each.others), known.messagegroups.index(each.group)))
    group = _make_unused_group(f"{_to_id(endpoint.rpartition('/')[2])}.drafts", basis)
    return Placement(endpoint, group, "unlisted", protocol=protocol)


def _place_in_named_group(endpoint: str, protocol: str, basis: BaseCatalog, name: str) -> Placement:
    known = basis.catalog.endpoints.get(endpoint)
    folded = {each.lower(): each for each in basis.declarations.groups}
    group = folded.get(f"/messagegroups/{name}".lower(), f"/messagegroups/{name}")
    if group in basis.catalog.groups and not _is_fitting_group(group, protocol, basis):
        hint = "name another group, or leave --group out"
        raise RouterError(f"{group} is of another envelope or protocol than drafts for {protocol}", hint=hint)
    if known is None:
        placement: Placement = Placement(endpoint, group, "new" if ENDPOINT.fullmatch(endpoint) else "free")
    elif group in known.messagegroups:
        return _place_in_listed_group(known, group, basis)
    else:
        references = basis.declarations.endpoints[endpoint].messagegroups
        missing = any(_find_undeclared_group(reference, basis) == group for reference in references)
        placement = Placement(endpoint, group, "missing" if missing else "unlisted")
    declared = basis.declarations.groups.get(group)
    if declared is None:
        return placement
    return Placement(endpoint, group, placement.attachment, declared.envelope, declared.protocol)


def _validate_group_id(wanted: str) -> str:
    name = wanted.removeprefix("/messagegroups/")
    if not _ID.fullmatch(name):
        hint = "use letters, digits, . _ and -, such as --group Plant.Drafts"
        raise RouterError(f"--group {wanted!r} is no id of a message group", hint=hint)
    return name


def _iter_fitting_groups(endpoint: Endpoint, protocol: str, basis: BaseCatalog) -> Iterator[str]:
    for group in endpoint.messagegroups:
        if group.startswith("/messagegroups/") and _is_fitting_group(group, protocol, basis):
            yield group


def _is_fitting_group(group: str, protocol: str, basis: BaseCatalog) -> bool:
    """Whether the envelope and protocol of a group, which apply to all its messages, fit the drafts."""
    declared = basis.declarations.groups.get(group)
    if declared is None:
        return False
    return declared.envelope in (None, CLOUDEVENTS) and declared.protocol in (None, protocol)


def _place_in_listed_group(endpoint: Endpoint, group: str, basis: BaseCatalog) -> Placement:
    declared = basis.declarations.groups[group]
    others = tuple(
        each.xid
        for each in basis.catalog.endpoints.values()
        if each is not endpoint and group in each.messagegroups and each.protocol in (None, endpoint.protocol)
    )
    return Placement(endpoint.xid, group, "listed", declared.envelope, declared.protocol, others)


def _find_undeclared_group(reference: str, basis: BaseCatalog) -> str | None:
    """Return the group in the catalog that an endpoint refers to, if it is not declared; else None."""
    match = _GROUP.search(reference)
    if match is None or reference[: match.start(1)] not in ("#/messagegroups/", "/messagegroups/"):
        return None
    xid = f"/messagegroups/{match.group(1)}"
    known = {each.lower() for each in basis.declarations.groups}
    return xid if _ID.fullmatch(match.group(1)) and xid.lower() not in known else None


def _make_unused_group(name: str, basis: BaseCatalog) -> str:
    known = {each.lower() for each in basis.declarations.groups}
    chosen, number = f"/messagegroups/{name}", 2
    while chosen.lower() in known:
        chosen, number = f"/messagegroups/{name}{number}", number + 1
    return chosen


def _to_id(text: str) -> str:
    return _NOT_ID.sub("-", text).strip(".-")[:100] or "endpoint"


SPECVERSION: Final = "1.0-rc4"
_PLACEHOLDER: Final = re.compile(r"\{[^{}]*\}")
_NOT_IN_IDS: Final = re.compile(r"[^A-Za-z0-9_]+")
_MAX_ID: Final = 100


@dataclass(frozen=True, slots=True)
class PlacedDraft:
    """A draft with its id, in the group that it goes into."""

    draft: Draft
    placement: Placement

    @property
    def xid(self) -> str:
        """The xid of the drafted definition."""
        return f"{self.placement.group}/messages/{self.draft.messageid}"


def place_drafts(
    drafts: Sequence[Draft], placements: Mapping[tuple[str, str], Placement], basis: BaseCatalog
) -> list[PlacedDraft]:
    """Assign each draft a group and an unused id made of its literals; *placements* are by endpoint and protocol.

    The same drafts in the same order get the same ids.
    """
    taken = {xid.lower() for xid in basis.declarations.messages}
    placed_drafts: list[PlacedDraft] = []
    for draft in drafts:
        placement = placements[draft.bundle.shape.endpoint, draft.bundle.shape.protocol]
        name = _make_message_id(draft)
        chosen, number = name, 2
        while f"{placement.group}/messages/{chosen}".lower() in taken:
            chosen, number = f"{name}.{number}", number + 1
        taken.add(f"{placement.group}/messages/{chosen}".lower())
        placed_drafts.append(PlacedDraft(replace(draft, messageid=chosen), placement))
    return placed_drafts


def groups_to_list(placements: Iterable[Placement]) -> dict[str, list[str]]:
    """Return by endpoint the groups that the endpoint must be changed to list."""
    groups: dict[str, list[str]] = {}
    for each in placements:
        if each.attachment == "unlisted" and each.group not in groups.setdefault(each.endpoint, []):
            groups[each.endpoint].append(each.group)
    return groups


def make_fragment(drafts: Sequence[PlacedDraft]) -> dict[str, Any]:
    """Return the fragment of the drafts; equal schemas of a group are written once."""
    groups: dict[str, dict[str, Any]] = {}
    schemas: dict[str, dict[str, Any]] = {}
    endpoints: dict[str, dict[str, Any]] = {}
    known: dict[tuple[str, bytes], str] = {}
    for each in drafts:
        placement, name = each.placement, each.placement.group_id
        schemaxid = None
        if each.draft.schema is not None:
            key = (name, msgspec.json.encode(each.draft.schema, order="deterministic"))
            if key not in known:
                group = schemas.setdefault(name, {"schemagroupid": name, "schemas": {}})
                group["schemas"][each.draft.messageid] = _schema_to_json(each.draft.messageid, each.draft.schema)
                known[key] = f"/schemagroups/{name}/schemas/{each.draft.messageid}"
            schemaxid = known[key]
        group = groups.setdefault(name, _group_to_json(placement, drafts))
        group["messages"][each.draft.messageid] = message_to_json(each.draft, schemaxid)
        if placement.attachment == "new":
            _add_endpoint(endpoints, placement, each.draft.bundle.shape.protocol)
    collections = {"endpoints": endpoints, "messagegroups": groups, "schemagroups": schemas}
    return {"specversion": SPECVERSION, **{key: collections[key] for key in collections if collections[key]}}


def _group_to_json(placement: Placement, drafts: Sequence[PlacedDraft]) -> dict[str, Any]:
    """Return a group without messages, with its defaults; a new group declares the protocol that all drafts share."""
    protocol = placement.protocol
    own = {each.placement.protocol for each in drafts if each.placement.group == placement.group}
    if len(own) > 1:
        protocol = None
    defaults = {"envelope": placement.envelope, "protocol": protocol}
    written = {name: value for name, value in defaults.items() if value is not None}
    return {"messagegroupid": placement.group_id, **written, "messages": {}}


def _schema_to_json(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    version = {"versionid": "1", "format": FORMAT, "schema": schema}
    return {"schemaid": name, "format": FORMAT, "versions": {"1": version}}


def _add_endpoint(endpoints: dict[str, dict[str, Any]], placement: Placement, protocol: str) -> None:
    name = placement.endpoint.rpartition("/")[2]
    form = endpoints.setdefault(
        name, {"endpointid": name, "usage": ["consumer"], "protocol": protocol, "messagegroups": []}
    )
    if form.get("protocol", protocol) != protocol:
        del form["protocol"]  # an endpoint with several protocols has no default
    if placement.group not in form["messagegroups"]:
        form["messagegroups"].append(placement.group)


def _make_message_id(draft: Draft) -> str:
    bundle = draft.bundle
    values = {each.key: each.value for each in draft.properties if each.value is not None}
    if bundle.shape.event:
        telling = [values.get("e.type") or "event"]
    else:
        telling = [(bundle.shape.method or "").lower(), values.get(bundle.records[0].address) or ""]
    if bundle.pinned and bundle.shape.event:
        telling.append(values.get(bundle.records[0].address) or "")
    telling += [value for key, value in bundle.pins if value not in telling]
    words = [word for text in telling for word in split_words(_PLACEHOLDER.sub("", text)).words]
    clean = [_NOT_IN_IDS.sub("-", word).strip("-") for word in words]
    name = ".".join(word for word in clean if word)[:_MAX_ID].strip(".-")
    return name or "message"
