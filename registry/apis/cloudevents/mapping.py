"""Conversion between stored entities and the older format, with the catalog's readers and writers of both dialects.

``to_older`` converts 1.0 attributes to the older format, ``to_core`` back; both without ids, epoch and times.
A reference to another message is the 1.0 attribute ``xref``.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from catalog.convert import (
    convert_endpoint,
    convert_schema,
    to_newer_constraints,
    to_newer_options,
    to_older_config,
    to_older_definition,
    to_older_group,
)
from catalog.dialects.reading import canonical_reference
from catalog.dialects.registry import read
from catalog.findings import Declarations, DeclaredMessage, Findings, SourceLocation
from registry.core.ancestry import as_object
from registry.core.requests import ABSENT, ResourcePath, parse_epoch, parse_resource_path
from registry.core.views import CHECKS
from registry.errors import Refusal, invalid_value
from registry.http.access import ApiCall, decode_text, parse_json, parse_query
from registry.model.attributes import KEY, NAME, Model
from registry.store.entities import Version

# Older names of collections, and references.

OLDER_GROUPS: Final[Mapping[str, str]] = {
    "endpoints": "endpoints",
    "messagegroups": "definitionGroups",
    "schemagroups": "schemaGroups",
}
"""Older names of group types, by 1.0 name."""
OLDER_RESOURCES: Final[Mapping[str, str]] = {"messages": "definitions", "schemas": "schemas"}
"""Older names of resource types, by 1.0 name."""
OLDER_SINGULARS: Final[Mapping[str, str]] = {"messages": "definition", "schemas": "schema"}
_CORE_COLLECTIONS: Final = {
    **{older.lower(): newer for newer, older in (*OLDER_GROUPS.items(), *OLDER_RESOURCES.items())},
    **{name: name for name in (*OLDER_GROUPS, *OLDER_RESOURCES)},
    "schema": "schemas",
    "versions": "versions",
}
"""1.0 names by lower-case older names; the specification spells them in several ways."""
_ENTITY_LENGTHS: Final = (2, 4, 6)


def to_core_collection(name: str) -> str | None:
    """Return the 1.0 name of a collection, ignoring case; None if unknown."""
    return _CORE_COLLECTIONS.get(name.lower())


def to_older_path(xid: str) -> str:
    """Return the path of an entity or a collection with older names."""
    parts = xid.split("/")
    for place, names in ((1, OLDER_GROUPS), (3, OLDER_RESOURCES)):
        if len(parts) > place:
            parts[place] = names.get(parts[place], parts[place])
    return "/".join(parts)


@dataclass(frozen=True, slots=True)
class Links:
    """Converts references for an API at *url*: to pointers if *as_pointers*, else to URLs."""

    url: str
    as_pointers: bool = False

    def convert_reference(self, reference: str) -> str:
        """Convert a reference; external ones are unchanged."""
        xid = self.xid_of_reference(reference)
        return reference if xid is None else f"{'#' if self.as_pointers else self.url}{to_older_path(xid)}"

    def xid_of_reference(self, reference: str) -> str | None:
        """Return the xid of a reference (a URL of this API, a pointer or an xid), None if it is external."""
        path = reference.removeprefix(self.url if reference.startswith(f"{self.url}/") else "#")
        parts = path.split("/")[1:]
        if not path.startswith("/") or len(parts) not in _ENTITY_LENGTHS or not all(parts):
            return None
        names = [to_core_collection(name) for name in parts[::2]]
        if (
            names[0] not in OLDER_GROUPS
            or any(name not in OLDER_RESOURCES for name in names[1:2])
            or names[2:] not in ([], ["versions"])
        ):
            return None
        return "".join(f"/{name}/{each}" for name, each in zip(names, parts[1::2], strict=True))


# Paths and flags of requests.

MAX_SEGMENTS: Final = 6
_METHODS_BY_LENGTH: Final = {
    "registry": ("GET", "HEAD"),
    "groups": ("GET", "HEAD", "POST", "DELETE"),
    "group": ("GET", "HEAD", "PUT", "DELETE"),
    "resources": ("GET", "HEAD", "POST", "DELETE"),
    "resource": ("GET", "HEAD", "PUT", "POST", "DELETE"),
    "versions": ("GET", "HEAD", "DELETE"),
    "version": ("GET", "HEAD", "PUT", "DELETE"),
}


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A parsed request. ``meta``, ``inline`` and ``model`` are flags, whatever their values."""

    path: str
    place: ResourcePath
    meta: bool
    inline: bool
    model: bool
    epoch: int | None
    limit: int
    cursor: str

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods allowed at the path."""
        return _METHODS_BY_LENGTH[self.place.kind]


def parse_request(call: ApiCall, model: Model) -> ParsedRequest:
    """Parse a request.

    Raises:
        Refusal: it is not valid, or the path does not exist.
    """
    path = decode_text(call.path, "/")
    segments = [decode_text(part, path) for part in call.path.split(b"/") if part]
    if len(segments) > MAX_SEGMENTS:
        raise Refusal("api_not_found", path)
    place = parse_resource_path(model, [_core_segment(each, index, path) for index, each in enumerate(segments)], path)
    given = parse_query(call.head.query)
    flags = {name: values[-1] for name, values in given.items()}
    limit, cursor = call.parse_page(flags.get("limit"), flags.get("cursor"), path)
    meta = "meta" in flags and place.kind in ("resource", "version")
    epoch = parse_epoch(flags.get("epoch"), path)
    return ParsedRequest(path, place, meta, "inline" in flags, "model" in flags, epoch, limit, cursor)


def _core_segment(segment: str, index: int, path: str) -> str:
    """Return a path segment of the core API: ids unchanged, collections by 1.0 name."""
    if index % 2:
        return segment
    name = to_core_collection(segment)
    if name is None or name not in ((*OLDER_GROUPS,), (*OLDER_RESOURCES,), ("versions",))[index // 2]:
        raise Refusal("api_not_found", path)
    return name


# The model in the older format (``GET /?model``).

_GROUP = {"endpoints": "endpoint", "messagegroups": "definitionGroup", "schemagroups": "schemaGroup"}
_VERSIONS = {"messages": 0, "schemas": -1}


def shown_model(model: Model) -> dict[str, Any]:
    """Return the registry's group types that this API shows, with their resource types."""
    return {
        "groups": [
            {
                "singular": _GROUP[plural],
                "plural": older,
                "resources": [
                    {"singular": OLDER_SINGULARS[name], "plural": OLDER_RESOURCES[name], "versions": _VERSIONS[name]}
                    for name in model.groups[plural].resources
                    if name in OLDER_RESOURCES
                ],
            }
            for plural, older in OLDER_GROUPS.items()
            if plural in model.groups
        ]
    }


# Order of versions: the latest has the greatest id; shorter ids are padded on the left.

_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)
_DOTTED: Final = re.compile(r"([1-9][0-9]{0,15})((?:\.[0-9]{1,16}){1,3})", re.ASCII)


def version_sort_key(version: str) -> tuple[int, str]:
    """Return the sort key of a version id: shorter ids are lower."""
    return len(version), version


def latest_version(versions: Iterable[Version]) -> Version | None:
    """Return the latest version, None if there is none."""
    return max(versions, key=lambda each: version_sort_key(each.id), default=None)


def number_or_text(version: str) -> int | str:
    """Return a version id as a number if possible, else unchanged."""
    return int(version) if _NUMBER.fullmatch(version) else version


def next_version_id(version: str, subject: str) -> str:
    """Return the version id after the latest one: the next number, or the next major of dotted numbers.

    Raises:
        Refusal: the id has no successor.
    """
    if _NUMBER.fullmatch(version):
        return str(int(version) + 1)
    dotted = _DOTTED.fullmatch(version)
    if dotted is None:
        why = f"the version after {version!r} is unknown; PUT the next one to its own path"
        raise Refusal("bad_request", subject, error_detail=why)
    zeros = re.sub(r"[0-9]", "0", dotted[2])
    return f"{int(dotted[1]) + 1}{zeros}"


# Descriptive attributes under older and 1.0 names; those without a 1.0 equivalent are stored in one attribute.

OLDER_ATTRIBUTE: Final = "cloudeventsregistry"
"""The 1.0 attribute with tags and extension attributes whose names 1.0 does not allow."""
_CORE_ATTRIBUTES: Final = {"docs": "documentation"}
_RESERVED_NAMES: Final = frozenset(
    ("labels", OLDER_ATTRIBUTE, "id", "tags", "version", "versions", "specversion", *_CORE_ATTRIBUTES)
)
"""Names with another meaning than as 1.0 extension attributes, and names handled elsewhere."""
_OLDER_ATTRIBUTES: Final = {newer: older for older, newer in _CORE_ATTRIBUTES.items()}


def to_core_attributes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the descriptive attributes of an older body under 1.0 names.

    Raises:
        Refusal: its tags are not a map.
    """
    renamed: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    for name, value in given.items():
        if name == "tags":
            if not isinstance(value, Mapping):
                raise invalid_value("/", name, "must be a map")
            labels = {key: each for key, each in value.items() if KEY.fullmatch(key)}
            rest = {key: each for key, each in value.items() if key not in labels}
            renamed.update({"labels": labels} if labels else {})
            kept.update({name: rest} if rest else {})
        elif name == "deprecated" and isinstance(value, Mapping):
            renamed[name] = {_CORE_ATTRIBUTES.get(key, key): each for key, each in value.items()}
        elif name in _CORE_ATTRIBUTES or (NAME.fullmatch(name) and name not in ("labels", OLDER_ATTRIBUTE)):
            renamed[_CORE_ATTRIBUTES.get(name, name)] = value
        else:
            kept[name] = value
    return {**renamed, **({OLDER_ATTRIBUTE: kept} if kept else {})}


def to_older_attributes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return descriptive attributes of a 1.0 entity under older names: the inverse of :func:`to_core_attributes`."""
    renamed: dict[str, Any] = {}
    for name, value in given.items():
        if name == "deprecated" and isinstance(value, Mapping):
            renamed[name] = {_OLDER_ATTRIBUTES.get(key, key): each for key, each in value.items()}
        elif name not in _RESERVED_NAMES:
            renamed[_OLDER_ATTRIBUTES.get(name, name)] = value
    labels, kept = given.get("labels"), given.get(OLDER_ATTRIBUTE)
    rest = dict(kept) if isinstance(kept, Mapping) else {}
    tags = rest.pop("tags", None)
    united = {**(labels if isinstance(labels, Mapping) else {}), **(tags if isinstance(tags, Mapping) else {})}
    return {
        **renamed,
        **{name: each for name, each in rest.items() if name not in renamed},
        **({"tags": united} if united else {}),
    }


def drop_nulls(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that are not None."""
    return {name: value for name, value in given.items() if value is not None}


XREF: Final = "xref"
_MAPPING_OLDER: Final = "0.4-wip"
_MAPPING_NEWER: Final = "1.0-rc4"
_IDENTITY_NAMES: Final = ("endpointid", "schemaid", "versionid", "xid", "meta", "versions")
_BASE_ATTRIBUTES: Final = ("basemessage", "basemessageuri", "basemessageurl", "basemessagexid")
_REFERENCES: Final = ("definitiongroups", "messagegroups")


@dataclass(frozen=True, slots=True)
class GroupMapping:
    """Converts a group or an endpoint; *plural* is the 1.0 name of its type."""

    plural: str
    gid: str
    links: Links

    def to_older(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the older format."""
        if self.plural == "schemagroups":
            return to_older_attributes(stored)
        into = _parse_document({"specversion": _MAPPING_NEWER, self.plural: {self.gid: stored}})
        if self.plural == "messagegroups":
            group = into.groups[f"/messagegroups/{self.gid}"]
            return {**to_older_attributes(group.other), **to_older_group(group)}
        endpoint = into.endpoints[f"/endpoints/{self.gid}"]
        other = {name: value for name, value in endpoint.other.items() if name != "protocoloptions"}
        written = _written_references(stored)
        return {
            **to_older_attributes(other),
            **to_older_config(endpoint, lambda each: self.links.convert_reference(written.get(each, each))),
        }

    def to_core(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the 1.0 attributes."""
        if self.plural == "schemagroups":
            return to_core_attributes(body)
        into = _parse_document(
            {"specversion": _MAPPING_OLDER, OLDER_GROUPS[self.plural]: {self.gid: body}}, strict=True
        )
        if self.plural == "messagegroups":
            group = into.groups[f"/messagegroups/{self.gid}"]
            given = {"envelope": group.envelope, "protocol": group.protocol}
            return {**to_core_attributes(group.other), **drop_nulls(given)}
        endpoint = into.endpoints[f"/endpoints/{self.gid}"]
        written = _written_references(body)
        groups = [self.links.xid_of_reference(each) or written.get(each, each) for each in endpoint.messagegroups]
        form = convert_endpoint(endpoint, groups)
        return to_core_attributes({name: value for name, value in form.items() if name not in _IDENTITY_NAMES})


@dataclass(frozen=True, slots=True)
class MessageMapping:
    """Converts a message in a group with *defaults* (``envelope``, ``protocol``)."""

    plural: str
    gid: str
    mid: str
    defaults: Mapping[str, Any]
    links: Links

    def to_older(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the older format."""
        xref = stored.get(XREF)
        tree = {name: value for name, value in stored.items() if name != XREF}
        if xref:  # it shows another message, whose base does not apply here
            tree = {
                **{name: value for name, value in tree.items() if name not in _BASE_ATTRIBUTES},
                "meta": {XREF: xref},
            }
        message = self._parse_message(_MAPPING_NEWER, "messages", tree)
        other = {name: value for name, value in message.other.items() if name != "meta"}
        # Defaults of an endpoint apply only there; in a message they would apply everywhere.
        default = self.defaults.get("envelope") if self.plural == "messagegroups" else None
        content = to_older_definition(message, default, self.links.convert_reference)
        if message.borrowed is not None and self.links.xid_of_reference(message.borrowed) is None and "uri" in stored:
            content["uri"] = stored["uri"]
        return {**to_older_attributes(other), **content}

    def to_core(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the 1.0 attributes."""
        given = {name: value for name, value in body.items() if name not in ("versions", "meta")}
        message = self._parse_message(_MAPPING_OLDER, "definitions", given, strict=True)
        own = dict(message.attributes)
        if own.get("envelopemetadata") is not None:
            own["envelopemetadata"] = to_newer_constraints(own["envelopemetadata"])
        if own.get("protocoloptions") is not None:
            protocol = own.get("protocol") or self.defaults.get("protocol")
            own["protocoloptions"] = to_newer_options(own["protocoloptions"], protocol)
        other = {name: value for name, value in message.other.items() if name != "uri"}
        return drop_nulls(
            {
                **to_core_attributes(other),
                **own,
                **self._schema_attributes(own),
                **self._base_attributes(message, given, alone=not other),
            }
        )

    def _parse_message(
        self, version: str, messages: str, body: Mapping[str, Any], *, strict: bool = False
    ) -> DeclaredMessage:
        collection = self.plural if version == _MAPPING_NEWER else OLDER_GROUPS[self.plural]
        group = {**self.defaults, messages: {self.mid: body}}
        into = _parse_document({"specversion": version, collection: {self.gid: group}}, strict=strict)
        return into.messages[f"/{self.plural}/{self.gid}/messages/{self.mid}"]

    def _schema_attributes(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Refer to a schema of this registry by xid, or by a pointer if it is inside a document."""
        uri = own.get("dataschemauri")
        xid = self.links.xid_of_reference(uri) if uri is not None else None
        if xid is None or "/schemas/" not in xid:
            return {}
        if ":" in xid.rpartition("/")[2]:
            return {"dataschemauri": f"#{xid}"}
        return {"dataschemauri": None, "dataschemaxid": xid}

    def _base_attributes(self, message: DeclaredMessage, body: Mapping[str, Any], *, alone: bool) -> dict[str, Any]:
        """Return the base of a message, or its ``xref`` if it has no content of its own."""
        if message.base is not None:
            return {"basemessage": self.links.xid_of_reference(message.base) or message.base}
        if message.borrowed is None:
            return {"uri": body.get("uri")}
        xid = self.links.xid_of_reference(message.borrowed)
        if xid is None:
            return {"uri": body.get("uri")}
        return {XREF: xid} if alone and not message.attributes else {"basemessage": xid}


class SchemaMapping:
    """Converts a version of a schema, except its document."""

    def to_older(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the older format."""
        return to_older_attributes({name: value for name, value in stored.items() if name not in CHECKS})

    def to_core(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the 1.0 attributes, with the document as in the body (``schema``, ``schemabase64``)."""
        form = convert_schema("/schemagroups/g/schemas/s", body)
        return to_core_attributes({name: value for name, value in form.items() if name not in _IDENTITY_NAMES})


EntityMapping = GroupMapping | MessageMapping | SchemaMapping
"""Converts one kind of entity; ``to_core`` raises :class:`Refusal`."""


def _parse_document(tree: Mapping[str, Any], *, strict: bool = False) -> Declarations:
    """Parse a document of one entity; with *strict* refuse invalid parts, which would be lost."""
    into, findings = Declarations(), Findings()
    read(tree, SourceLocation(""), into, findings)
    wrong = [each for each in findings.sorted() if each.severity == "error"] if strict else []
    if wrong:
        raise Refusal("bad_request", wrong[0].pointer, error_detail=f"{wrong[0].message}: {wrong[0].hint}")
    return into


def _written_references(body: Mapping[str, Any]) -> dict[str, str]:
    """Return references to groups as written, by their parsed form."""
    listed = (value for name, value in body.items() if name.lower() in _REFERENCES and isinstance(value, list))
    return {canonical_reference(each): each for value in listed for each in value if isinstance(each, str)}


# Bodies of requests: identifiers and content.

_IDENTIFIERS: Final = ("id", "version", "epoch", "self", "specversion", "versions", "versionsurl", "versionscount")
_RESOURCE_MEMBERS: Final = tuple(f"{name}{end}" for name in OLDER_RESOURCES.values() for end in ("", "url", "count"))
_TIME_NAMES: Final = {"createdOn": "createdat", "modifiedOn": "modifiedat"}
_TYPES: Final = frozenset(("definitiongroup", "endpoint", "schemagroup", "definition", "schema", "schemaversion"))


@dataclass(frozen=True, slots=True)
class ParsedBody:
    """A parsed body: ``content`` under older names, ``times`` under 1.0 names; ``given`` is the whole body."""

    given: Mapping[str, Any]
    content: Mapping[str, Any]
    times: Mapping[str, Any]


def parse_body(tree: Mapping[str, Any], *, with_resources: bool = False) -> ParsedBody:
    """Parse a body; *with_resources* is for groups, whose bodies include resources."""
    left_out = {*_IDENTIFIERS, *(_RESOURCE_MEMBERS if with_resources else ())}
    said = {name: value for name, value in tree.items() if name.lower() not in left_out and name not in _TIME_NAMES}
    kind = said.get("type")
    if isinstance(kind, str) and kind.lower() in _TYPES:
        said.pop("type")
    times = {newer: tree[older] for older, newer in _TIME_NAMES.items() if tree.get(older) is not None}
    return ParsedBody(tree, said, times)


def parse_definition_body(tree: Mapping[str, Any]) -> ParsedBody:
    """Parse the body of a definition, which may be nested in ``definition``, as in listings."""
    nested = tree.get("definition")
    rest = {name: value for name, value in tree.items() if name != "definition"}
    return parse_body({**nested, **rest} if isinstance(nested, Mapping) else tree)


def parse_object(call: ApiCall, xid: str) -> Mapping[str, Any]:
    """Return the JSON object in the body of a call.

    Raises:
        Refusal: there is none.
    """
    tree = parse_json(call.body, xid)
    if tree is ABSENT:
        raise Refusal("missing_body", xid)
    return as_object(tree, xid)


def collection_in_group(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a collection in the body of a group, empty if absent.

    Raises:
        Refusal: it is not a map.
    """
    collection = body.get(name)
    return {} if collection is None else as_object(collection, name)


def parse_deletion_list(call: ApiCall, xid: str) -> list[Mapping[str, Any]] | None:
    """Return the entities in the body of a deletion, None if there is no body.

    Raises:
        Refusal: it is not a list of objects with an ``id`` each.
    """
    tree = parse_json(call.body, xid)
    if tree is ABSENT:
        return None
    if not isinstance(tree, list) or not all(isinstance(each, dict) for each in tree):
        raise Refusal("bad_request", xid, error_detail="the body must be a list of objects with an id")
    return tree


# Documents of schemas in the older format: JSON or text in ``schema``, others in ``schemaBase64``.

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
BYTES: Final = "application/octet-stream"


def document_member(document: bytes) -> dict[str, Any]:
    """Return the member with a document; none for an empty document."""
    if not document:
        return {}
    tree = _parse_json(document)
    if tree is not None:
        return {"schema": tree}
    try:
        return {"schema": document.decode("utf-8")}
    except UnicodeDecodeError:
        return {"schemaBase64": base64.b64encode(document).decode("ascii")}


def guess_content_type(document: bytes) -> str:
    """Return a content type for a document without one."""
    shown = document_member(document)
    return BYTES if "schemaBase64" in shown else TEXT if isinstance(shown.get("schema", ""), str) else JSON


def document_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the core attributes of a version: a text document becomes bytes and a content type."""
    schema = attributes.get("schema")
    if not isinstance(schema, str):
        return dict(attributes)
    document = schema.encode("utf-8", "surrogatepass")
    rest = {name: value for name, value in attributes.items() if name != "schema"}
    return {
        "contenttype": guess_content_type(document),
        **rest,
        "schemabase64": base64.b64encode(document).decode("ascii"),
    }


def _parse_json(document: bytes) -> Any:
    """Return the document as object or array, None if it is neither."""
    try:
        tree = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return tree if isinstance(tree, dict | list) else None


# Replacing an entity in the older format without losing attributes that it cannot express.
#
# A client that sends back what it read changes nothing. Attributes that only 1.0 has stay until the client names them,
# with null to delete one.

_BY_FORMAT: Final = frozenset(("protocol", "protocoloptions", "envelopemetadata", "envelopeoptions"))
_CORE_ONLY: Final[Mapping[str, frozenset[str]]] = {
    "messages": _BY_FORMAT | {"basemessage", "datacontenttype", "dataschemaxid", "icon", "deprecated"},
    "messagegroups": frozenset(("protocol", "icon", "deprecated", "constraints")),
    "endpoints": frozenset(("envelopeoptions", "icon", "constraints")),
    "schemagroups": frozenset(("format", "icon", "deprecated", "constraints")),
    "schemas": frozenset(("icon", "contenttype", "deprecated")),
}
"""Members that only 1.0 has, which clients of this API need not send back."""


def replace_attributes(
    plural: str, form: EntityMapping, stored: Mapping[str, Any], body: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the attributes to store when *body* replaces the older format of *stored*.

    Raises:
        Refusal: the body is not valid.
    """
    shown = form.to_older(stored)
    # A new format has its own rules for messages: members of the old one are dropped.
    changed = body.get("format") is not None and body["format"] != shown.get("format")
    spared = _CORE_ONLY[plural] - (_BY_FORMAT if changed else frozenset())
    if body.get("uri") is not None:
        spared -= {"basemessage"}  # replaced by xref
    kept = {name: value for name, value in shown.items() if name in spared and name not in body}
    said = form.to_core({**kept, **{name: value for name, value in body.items() if value is not None}})
    before = form.to_core(shown)
    if XREF in said or (XREF in stored and said != before):
        return said  # a reference has no content of its own
    if XREF in stored:
        return {XREF: stored[XREF]}
    result: dict[str, Any] = {}
    for name in {**stored, **said}:
        value = stored.get(name) if said.get(name) == before.get(name) else said.get(name)
        if value is not None:
            result[name] = value
    return result
