"""Entities in their older form and back, by the catalog's own readers and writers of both dialects.

``shown`` gives the older form of attributes of 1.0, ``read`` the attributes of an older form; both without identifiers,
epoch and times. A message that stands for another is one attribute of 1.0, ``xref``.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from catalog.convert import (
    config_form,
    definition_form,
    endpoint_form,
    group_form,
    newer_constraints,
    newer_options,
    schema_form,
)
from catalog.dialects.reading import reference_of
from catalog.dialects.registry import read
from catalog.findings import Declarations, DeclaredMessage, Findings, SourceLocation
from registry.core.lineage import as_object
from registry.core.requests import ABSENT, ResourcePath, place_of
from registry.core.views import CHECKS
from registry.errors import Refusal, invalid
from registry.http.access import Call, limit_of, query_of, tree_of
from registry.http.access import decoded_request as decoded
from registry.model.attributes import KEY, NAME, Model
from registry.store.entities import Version

# The collections under their older names, and references to what is in them.

GROUPS: Final[Mapping[str, str]] = {
    "endpoints": "endpoints",
    "messagegroups": "definitionGroups",
    "schemagroups": "schemaGroups",
}
"""The older names of types of groups, by those of 1.0."""
RESOURCES: Final[Mapping[str, str]] = {"messages": "definitions", "schemas": "schemas"}
"""The older names of types of resources, by those of 1.0."""
SINGULAR: Final[Mapping[str, str]] = {"messages": "definition", "schemas": "schema"}
_NEWER: Final = {
    **{older.lower(): newer for newer, older in (*GROUPS.items(), *RESOURCES.items())},
    **{name: name for name in (*GROUPS, *RESOURCES)},
    "schema": "schemas",
    "versions": "versions",
}
"""The names of 1.0 by older ones in lower case; the specification itself writes them in several ways."""
_LENGTHS: Final = (2, 4, 6)


def newer_name(name: str) -> str | None:
    """Return the name of 1.0 for a collection, in any letter case; None for what is none."""
    return _NEWER.get(name.lower())


def older_path(xid: str) -> str:
    """Return the path of an entity or a collection under its older names."""
    parts = xid.split("/")
    for place, names in ((1, GROUPS), (3, RESOURCES)):
        if len(parts) > place:
            parts[place] = names.get(parts[place], parts[place])
    return "/".join(parts)


@dataclass(frozen=True, slots=True)
class Links:
    """References as a face at *url* writes them: pointers within a *whole* document, else URLs."""

    url: str
    whole: bool = False

    def refer(self, reference: str) -> str:
        """Write a reference; one that leads elsewhere stays as it is."""
        xid = self.local(reference)
        return reference if xid is None else f"{'#' if self.whole else self.url}{older_path(xid)}"

    def local(self, reference: str) -> str | None:
        """Return the xid that a reference names, as a URL of this face, a pointer or an xid; None for any other."""
        path = reference.removeprefix(self.url if reference.startswith(f"{self.url}/") else "#")
        parts = path.split("/")[1:]
        if not path.startswith("/") or len(parts) not in _LENGTHS or not all(parts):
            return None
        names = [newer_name(name) for name in parts[::2]]
        if (
            names[0] not in GROUPS
            or any(name not in RESOURCES for name in names[1:2])
            or names[2:] not in ([], ["versions"])
        ):
            return None
        return "".join(f"/{name}/{each}" for name, each in zip(names, parts[1::2], strict=True))


# What a request is directed at: a place of the core, under its older path, and the flags of this face.

MAX_SEGMENTS: Final = 6
_METHODS: Final = {
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
    """A request taken apart. ``meta``, ``inline`` and ``model`` are flags, whatever their values."""

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
        """The methods that the place takes."""
        return _METHODS[self.place.kind]


def asked(call: Call, model: Model) -> ParsedRequest:
    """Take a request apart.

    Raises:
        Refusal: it cannot be read, or there is no such path.
    """
    path = decoded(call.path, "/")
    segments = [decoded(part, path) for part in call.path.split(b"/") if part]
    if len(segments) > MAX_SEGMENTS:
        raise Refusal("api_not_found", path)
    place = place_of(model, [_named(each, index, path) for index, each in enumerate(segments)], path)
    given = query_of(call.head.query)
    flags = {name: values[-1] for name, values in given.items()}
    cursor = flags.get("cursor", "")
    if not (cursor.isascii() and cursor.isprintable()):
        raise Refusal("bad_request", path, error_detail="the cursor is not from this registry")
    limit = min(limit_of(flags.get("limit"), path) or call.pages.usual, call.pages.most)
    meta = "meta" in flags and place.kind in ("resource", "version")
    epoch = _epoch(flags.get("epoch"), path)
    return ParsedRequest(path, place, meta, "inline" in flags, "model" in flags, epoch, limit, cursor)


def _named(segment: str, index: int, path: str) -> str:
    """Return what a segment of a path is in the core: ids as they are, collections by their names of 1.0."""
    if index % 2:
        return segment
    name = newer_name(segment)
    if name is None or name not in ((*GROUPS,), (*RESOURCES,), ("versions",))[index // 2]:
        raise Refusal("api_not_found", path)
    return name


def _epoch(text: str | None, path: str) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise Refusal("bad_flag", path, detail="epoch must be an unsigned integer", flag="epoch")
    return int(text)


# The model as this face shows it (``GET /?model``).

_GROUP = {"endpoints": "endpoint", "messagegroups": "definitionGroup", "schemagroups": "schemaGroup"}
_VERSIONS = {"messages": 0, "schemas": -1}


def model_of(model: Model) -> dict[str, Any]:
    """Return the types of groups that the registry has and this face shows, with their resources."""
    return {
        "groups": [
            {
                "singular": _GROUP[plural],
                "plural": older,
                "resources": [
                    {"singular": SINGULAR[name], "plural": RESOURCES[name], "versions": _VERSIONS[name]}
                    for name in model.groups[plural].resources
                    if name in RESOURCES
                ],
            }
            for plural, older in GROUPS.items()
            if plural in model.groups
        ]
    }


# Versions as this face counts them: the latest has the greatest id, where shorter ids are filled up from the left.

_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)
_DOTTED: Final = re.compile(r"([1-9][0-9]{0,15})((?:\.[0-9]{1,16}){1,3})", re.ASCII)


def rank(version: str) -> tuple[int, str]:
    """Return what versions are compared by: padded with spaces to one length, the shorter is the less."""
    return len(version), version


def latest(versions: Iterable[Version]) -> Version | None:
    """Return the latest version, None when there is none."""
    return max(versions, key=lambda each: rank(each.id), default=None)


def number(version: str) -> int | str:
    """Return the id of a version as the number that it is, else as it is."""
    return int(version) if _NUMBER.fullmatch(version) else version


def following(version: str, subject: str) -> str:
    """Return the id of the version after the latest: one more, or of dotted numbers the next whole one.

    Raises:
        Refusal: it is unknown which version follows.
    """
    if _NUMBER.fullmatch(version):
        return str(int(version) + 1)
    dotted = _DOTTED.fullmatch(version)
    if dotted is None:
        why = f"no version follows {version!r} by itself; put the next one at its own path"
        raise Refusal("bad_request", subject, error_detail=why)
    zeros = re.sub(r"[0-9]", "0", dotted[2])
    return f"{int(dotted[1]) + 1}{zeros}"


# What describes an entity, under older and under newer names; what has no place in 1.0 is kept apart, and not lost.

KEPT: Final = "cloudeventsregistry"
"""The attribute of 1.0 that holds the tags and extension attributes whose names 1.0 does not allow."""
_NEWER_ATTRIBUTES: Final = {"docs": "documentation"}
_OWN: Final = frozenset(("labels", KEPT, "id", "tags", "version", "versions", "specversion", *_NEWER_ATTRIBUTES))
"""Names that mean other things here than as extension attributes of 1.0, and those that are written by another."""
_OLDER: Final = {newer: older for older, newer in _NEWER_ATTRIBUTES.items()}


def newer_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an older body says beside its content, under the names of 1.0.

    Raises:
        Refusal: its tags are no map.
    """
    renamed: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    for name, value in given.items():
        if name == "tags":
            if not isinstance(value, Mapping):
                raise invalid("/", name, "must be a map")
            labels = {key: each for key, each in value.items() if KEY.fullmatch(key)}
            rest = {key: each for key, each in value.items() if key not in labels}
            renamed.update({"labels": labels} if labels else {})
            kept.update({name: rest} if rest else {})
        elif name == "deprecated" and isinstance(value, Mapping):
            renamed[name] = {_NEWER_ATTRIBUTES.get(key, key): each for key, each in value.items()}
        elif name in _NEWER_ATTRIBUTES or (NAME.fullmatch(name) and name not in ("labels", KEPT)):
            renamed[_NEWER_ATTRIBUTES.get(name, name)] = value
        else:
            kept[name] = value
    return {**renamed, **({KEPT: kept} if kept else {})}


def older_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an entity of 1.0 says beside its content, under older names: the inverse of :func:`newer_names`."""
    renamed: dict[str, Any] = {}
    for name, value in given.items():
        if name == "deprecated" and isinstance(value, Mapping):
            renamed[name] = {_OLDER.get(key, key): each for key, each in value.items()}
        elif name not in _OWN:
            renamed[_OLDER.get(name, name)] = value
    labels, kept = given.get("labels"), given.get(KEPT)
    rest = dict(kept) if isinstance(kept, Mapping) else {}
    tags = rest.pop("tags", None)
    united = {**(labels if isinstance(labels, Mapping) else {}), **(tags if isinstance(tags, Mapping) else {})}
    return {
        **renamed,
        **{name: each for name, each in rest.items() if name not in renamed},
        **({"tags": united} if united else {}),
    }


def present(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is not None."""
    return {name: value for name, value in given.items() if value is not None}


XREF: Final = "xref"
_MAPPING_OLDER: Final = "0.4-wip"
_MAPPING_NEWER: Final = "1.0-rc4"
_IDENTITY: Final = ("endpointid", "schemaid", "versionid", "xid", "meta", "versions")
_BASES: Final = ("basemessage", "basemessageuri", "basemessageurl", "basemessagexid")
_REFERENCES: Final = ("definitiongroups", "messagegroups")


class EntityMapping(Protocol):
    """The two forms of one kind of entity; ``read`` raises :class:`Refusal`."""

    def shown(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the older form."""

    def read(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes of 1.0."""


@dataclass(frozen=True, slots=True)
class GroupForm:
    """The forms of a group or an endpoint; *plural* is the name that 1.0 has for its type."""

    plural: str
    gid: str
    links: Links

    def shown(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the older form."""
        if self.plural == "schemagroups":
            return older_names(stored)
        into = _declared({"specversion": _MAPPING_NEWER, self.plural: {self.gid: stored}})
        if self.plural == "messagegroups":
            group = into.groups[f"/messagegroups/{self.gid}"]
            return {**older_names(group.other), **group_form(group)}
        endpoint = into.endpoints[f"/endpoints/{self.gid}"]
        other = {name: value for name, value in endpoint.other.items() if name != "protocoloptions"}
        written = _references(stored)
        return {**older_names(other), **config_form(endpoint, lambda each: self.links.refer(written.get(each, each)))}

    def read(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes of 1.0."""
        if self.plural == "schemagroups":
            return newer_names(body)
        into = _declared({"specversion": _MAPPING_OLDER, GROUPS[self.plural]: {self.gid: body}}, strict=True)
        if self.plural == "messagegroups":
            group = into.groups[f"/messagegroups/{self.gid}"]
            given = {"envelope": group.envelope, "protocol": group.protocol}
            return {**newer_names(group.other), **present(given)}
        endpoint = into.endpoints[f"/endpoints/{self.gid}"]
        written = _references(body)
        groups = [self.links.local(each) or written.get(each, each) for each in endpoint.messagegroups]
        form = endpoint_form(endpoint, groups)
        return newer_names({name: value for name, value in form.items() if name not in _IDENTITY})


@dataclass(frozen=True, slots=True)
class MessageForm:
    """The forms of a message, in a group that gives *defaults* (``envelope``, ``protocol``)."""

    plural: str
    gid: str
    mid: str
    defaults: Mapping[str, Any]
    links: Links

    def shown(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the older form."""
        xref = stored.get(XREF)
        tree = {name: value for name, value in stored.items() if name != XREF}
        if xref:  # what it shows is another's, whose own base does not count here
            tree = {**{name: value for name, value in tree.items() if name not in _BASES}, "meta": {XREF: xref}}
        message = self._message(_MAPPING_NEWER, "messages", tree)
        other = {name: value for name, value in message.other.items() if name != "meta"}
        # What an endpoint gives its messages applies only there: said of a message, it would apply everywhere.
        default = self.defaults.get("envelope") if self.plural == "messagegroups" else None
        content = definition_form(message, default, self.links.refer)
        if message.borrowed is not None and self.links.local(message.borrowed) is None and "uri" in stored:
            content["uri"] = stored["uri"]
        return {**older_names(other), **content}

    def read(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes of 1.0."""
        given = {name: value for name, value in body.items() if name not in ("versions", "meta")}
        message = self._message(_MAPPING_OLDER, "definitions", given, strict=True)
        own = dict(message.attributes)
        if own.get("envelopemetadata") is not None:
            own["envelopemetadata"] = newer_constraints(own["envelopemetadata"])
        if own.get("protocoloptions") is not None:
            protocol = own.get("protocol") or self.defaults.get("protocol")
            own["protocoloptions"] = newer_options(own["protocoloptions"], protocol)
        other = {name: value for name, value in message.other.items() if name != "uri"}
        return present(
            {**newer_names(other), **own, **self._schema(own), **self._bases(message, given, alone=not other)}
        )

    def _message(
        self, version: str, messages: str, body: Mapping[str, Any], *, strict: bool = False
    ) -> DeclaredMessage:
        collection = self.plural if version == _MAPPING_NEWER else GROUPS[self.plural]
        group = {**self.defaults, messages: {self.mid: body}}
        into = _declared({"specversion": version, collection: {self.gid: group}}, strict=strict)
        return into.messages[f"/{self.plural}/{self.gid}/messages/{self.mid}"]

    def _schema(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Name a schema of this registry by its xid; one deep in a document, by the pointer to it."""
        uri = own.get("dataschemauri")
        xid = self.links.local(uri) if uri is not None else None
        if xid is None or "/schemas/" not in xid:
            return {}
        if ":" in xid.rpartition("/")[2]:
            return {"dataschemauri": f"#{xid}"}
        return {"dataschemauri": None, "dataschemaxid": xid}

    def _bases(self, message: DeclaredMessage, body: Mapping[str, Any], *, alone: bool) -> dict[str, Any]:
        """Return what the message inherits from, or the one that it stands for where it says nothing itself."""
        if message.base is not None:
            return {"basemessage": self.links.local(message.base) or message.base}
        if message.borrowed is None:
            return {"uri": body.get("uri")}
        xid = self.links.local(message.borrowed)
        if xid is None:
            return {"uri": body.get("uri")}
        return {XREF: xid} if alone and not message.attributes else {"basemessage": xid}


class SchemaForm:
    """The forms of a version of a schema, but for its document."""

    def shown(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the older form."""
        return older_names({name: value for name, value in stored.items() if name not in CHECKS})

    def read(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes of 1.0, with the document as the body has it (``schema``, ``schemabase64``)."""
        form = schema_form("/schemagroups/g/schemas/s", body)
        return newer_names({name: value for name, value in form.items() if name not in _IDENTITY})


def _declared(tree: Mapping[str, Any], *, strict: bool = False) -> Declarations:
    """Read a document of one entity; with *strict* what it says wrongly is refused, since it would be lost."""
    into, findings = Declarations(), Findings()
    read(tree, SourceLocation(""), into, findings)
    wrong = [each for each in findings.sorted() if each.severity == "error"] if strict else []
    if wrong:
        raise Refusal("bad_request", wrong[0].pointer, error_detail=f"{wrong[0].message}: {wrong[0].hint}")
    return into


def _references(body: Mapping[str, Any]) -> dict[str, str]:
    """Return the references to groups as they are written, by how readers take them: other registries know no other."""
    listed = (value for name, value in body.items() if name.lower() in _REFERENCES and isinstance(value, list))
    return {reference_of(each): each for value in listed for each in value if isinstance(each, str)}


# Bodies of requests: what identifies an entity is taken apart from what it says.

_IDENTIFIERS: Final = ("id", "version", "epoch", "self", "specversion", "versions", "versionsurl", "versionscount")
_HELD: Final = tuple(f"{name}{end}" for name in RESOURCES.values() for end in ("", "url", "count"))
_TIMES: Final = {"createdOn": "createdat", "modifiedOn": "modifiedat"}
_TYPES: Final = frozenset(("definitiongroup", "endpoint", "schemagroup", "definition", "schema", "schemaversion"))


@dataclass(frozen=True, slots=True)
class Body:
    """What a body says: ``said`` under older names, ``times`` under those of 1.0; ``given`` is all of it."""

    given: Mapping[str, Any]
    said: Mapping[str, Any]
    times: Mapping[str, Any]


def body_of(tree: Mapping[str, Any], *, held: bool = False) -> Body:
    """Take a body apart; *held* is for groups, which name what they hold beside what they say."""
    left_out = {*_IDENTIFIERS, *(_HELD if held else ())}
    said = {name: value for name, value in tree.items() if name.lower() not in left_out and name not in _TIMES}
    kind = said.get("type")
    if isinstance(kind, str) and kind.lower() in _TYPES:
        said.pop("type")
    times = {newer: tree[older] for older, newer in _TIMES.items() if tree.get(older) is not None}
    return Body(tree, said, times)


def definition_body(tree: Mapping[str, Any]) -> Body:
    """Take the body of a definition apart, which may stand in its ``definition`` as listings nest it."""
    nested = tree.get("definition")
    rest = {name: value for name, value in tree.items() if name != "definition"}
    return body_of({**nested, **rest} if isinstance(nested, Mapping) else tree)


def object_of(call: Call, xid: str) -> Mapping[str, Any]:
    """Return the JSON object that a call has as body.

    Raises:
        Refusal: there is none.
    """
    tree = tree_of(call.body, xid)
    if tree is ABSENT:
        raise Refusal("missing_body", xid)
    return as_object(tree, xid)


def collection_of(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the collection that a group has in its body, empty when it has none.

    Raises:
        Refusal: it is no map.
    """
    collection = body.get(name)
    return {} if collection is None else as_object(collection, name)


def list_of(call: Call, xid: str) -> list[Mapping[str, Any]] | None:
    """Return the entities that the body of a deletion names, None when there is no body.

    Raises:
        Refusal: it is no list of entities with an ``id`` each.
    """
    tree = tree_of(call.body, xid)
    if tree is ABSENT:
        return None
    if not isinstance(tree, list) or not all(isinstance(each, dict) for each in tree):
        raise Refusal("bad_request", xid, error_detail="the body must be a list of objects with an id")
    return tree


# Documents of schemas as this face shows and takes them: JSON or text in ``schema``, all else in ``schemaBase64``.

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
BYTES: Final = "application/octet-stream"


def shown_document(document: bytes) -> dict[str, Any]:
    """Return the member that shows a document; nothing for an empty one."""
    if not document:
        return {}
    tree = _tree(document)
    if tree is not None:
        return {"schema": tree}
    try:
        return {"schema": document.decode("utf-8")}
    except UnicodeDecodeError:
        return {"schemaBase64": base64.b64encode(document).decode("ascii")}


def content_type(document: bytes) -> str:
    """Return the content type of a document that came without one."""
    shown = shown_document(document)
    return BYTES if "schemaBase64" in shown else TEXT if isinstance(shown.get("schema", ""), str) else JSON


def taken_document(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes of a version as the core takes them: a document that is text by its bytes, and its type."""
    schema = attributes.get("schema")
    if not isinstance(schema, str):
        return dict(attributes)
    document = schema.encode("utf-8", "surrogatepass")
    rest = {name: value for name, value in attributes.items() if name != "schema"}
    return {"contenttype": content_type(document), **rest, "schemabase64": base64.b64encode(document).decode("ascii")}


def _tree(document: bytes) -> Any:
    """Return the object or array that a document is; None for any other."""
    try:
        tree = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return tree if isinstance(tree, dict | list) else None


# What an entity says after a client of this face has replaced it: nothing is taken away that the face cannot say.
#
# What a client sends back as it was shown leaves what is stored as it is. Attributes that 1.0 alone knows stay until
# the client names them, with null to take one away.

_BY_FORMAT: Final = frozenset(("protocol", "protocoloptions", "envelopemetadata", "envelopeoptions"))
_NEWER_ONLY: Final[Mapping[str, frozenset[str]]] = {
    "messages": _BY_FORMAT | {"basemessage", "datacontenttype", "dataschemaxid", "icon", "deprecated"},
    "messagegroups": frozenset(("protocol", "icon", "deprecated", "constraints")),
    "endpoints": frozenset(("envelopeoptions", "icon", "constraints")),
    "schemagroups": frozenset(("format", "icon", "deprecated", "constraints")),
    "schemas": frozenset(("icon", "contenttype", "deprecated")),
}
"""Names in older forms that are those of 1.0 alone, which clients of this face cannot be expected to send back."""


def replaced(plural: str, form: EntityMapping, stored: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is to be stored when *body* replaces the older form of what is *stored*; see the module.

    Raises:
        Refusal: the body cannot be read.
    """
    shown = form.shown(stored)
    # A new format brings its own rules for messages: what the old one had beside it goes with it.
    changed = body.get("format") is not None and body["format"] != shown.get("format")
    spared = _NEWER_ONLY[plural] - (_BY_FORMAT if changed else frozenset())
    if body.get("uri") is not None:
        spared -= {"basemessage"}  # what a definition borrows takes its place
    kept = {name: value for name, value in shown.items() if name in spared and name not in body}
    said = form.read({**kept, **{name: value for name, value in body.items() if value is not None}})
    before = form.read(shown)
    if XREF in said or (XREF in stored and said != before):
        return said  # what stands for another has nothing of its own, and what it showed was the other's
    if XREF in stored:
        return {XREF: stored[XREF]}
    result: dict[str, Any] = {}
    for name in {**stored, **said}:
        value = stored.get(name) if said.get(name) == before.get(name) else said.get(name)
        if value is not None:
            result[name] = value
    return result
