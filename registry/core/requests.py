"""Requests and answers as the registry understands them: the paths, documents and ETags in them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from typing import Any, Final, Literal

import msgspec

from registry.errors import Refusal, invalid, listed
from registry.model.types import GroupType, Model, ResourceType
from registry.store.entities import EntityReader

# The documents of versions: from a request's attributes to bytes, and back (core ``spec.md``, ``<RESOURCE>``).


@dataclass(frozen=True, slots=True)
class Given:
    """What a request says of a document: ``body`` has its bytes, None for none here. ``url`` means it is elsewhere."""

    body: bytes | None
    url: bool = False


def given_document(
    kind: ResourceType, body: Mapping[str, Any], attributes: dict[str, Any], subject: str, *, patch: bool, media: str
) -> Given | None:
    """Return the document that a body gives, None when it says nothing of one.

    *attributes* are what the version stores, as far as the body makes them; content type and URL are set in there.
    *media* is the content type of the request.

    Raises:
        Refusal: more than one attribute gives it, or its base64 cannot be read.
    """
    if not kind.hasdocument:
        return None
    tree, encoded, url = kind.document_names
    present = [name for name in (tree, encoded, url) if name in body]
    if not present:
        return None
    if len(present) > 1:
        raise Refusal("one_resource", subject, list=listed((tree, encoded, url)))
    (name,) = present
    value = body[name]
    if name != url:
        attributes.pop(url, None)
    if value is None:
        return Given(b"")
    if name == url:
        return Given(None, url=True)
    said = attributes.get("contenttype") if patch else body.get("contenttype")
    if said is None and (patch or name == tree):
        attributes["contenttype"] = media
    if name == tree:
        return Given(_bytes(kind, value, attributes.get("contenttype")))
    try:
        return Given(base64.b64decode(value, validate=True))
    except (binascii.Error, TypeError, ValueError):
        raise invalid(subject, encoded, "needs to be base64") from None


def shown_document(kind: ResourceType, document: bytes, contenttype: str | None, *, binary: bool) -> tuple[str, Any]:
    """Return the attribute that shows a document, and its value: JSON, text, or base64."""
    tree, encoded, _ = kind.document_names
    form = "binary" if binary or not document else kind.form_of(contenttype)
    try:
        if form == "json":
            return tree, msgspec.json.decode(document)
        if form == "string":
            return tree, document.decode("utf-8")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return encoded, base64.b64encode(document).decode("ascii")


def _bytes(kind: ResourceType, value: Any, contenttype: object) -> bytes:
    if isinstance(value, str) and kind.form_of(str(contenttype)) != "json":
        return value.encode("utf-8", "surrogatepass")
    return msgspec.json.encode(value)


# A request and its answer as the registry understands them, whatever protocol carries them.

Verb = Literal["read", "replace", "patch", "add", "delete"]
"""GET, PUT, PATCH, POST and DELETE."""
ABSENT: Final = object()
"""A body that is not there."""


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags of a request as they are written (core ``spec.md``, Request Flags); None and () for none."""

    inline: Sequence[str] = ()
    filter: Sequence[str] = ()
    ignore: Sequence[str] = ()
    sort: str | None = None
    epoch: str | None = None
    setdefaultversionid: str | None = None
    specversion: str | None = None
    doc: bool = False
    collections: bool = False
    binary: bool = False


def _everybody(group: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class RegistryRequest:
    """What is asked for.

    ``segments`` is the path, decoded, without ``$details``; ``path`` is how errors name it. ``details`` asks for the
    metadata where there is a document too. ``body`` is the JSON tree of a body, ABSENT without one. Where a document is
    the body, ``document`` has it, and ``body`` the attributes beside it. ``who`` is the writer's name for history;
    ``may_write`` takes a group's xid ('' for the registry), and says whether the writer may write there. ``matches``
    are ETags of which one must be that of the entity, ``known`` those of answers that the reader has, or, of a write,
    of which none may be; ``*`` stands for whatever is there. ``replicated`` means that another catalog has the write
    already: it is not linted, and keeps its mark from there. ``from_client``
    means that the flags come from a client of the core API, so capabilities say which count. ``exact`` is a document of
    the whole registry whose epochs and times what is written has, whatever the write did to them.
    """

    verb: Verb
    segments: tuple[str, ...]
    path: str
    base: str
    flags: Flags = field(default_factory=Flags)
    details: bool = False
    body: Any = ABSENT
    document: Given | None = None
    contenttype: str = "application/json"
    limit: int | None = None
    cursor: str = ""
    who: str = ""
    administrator: bool = False
    may_write: Callable[[str], bool] = _everybody
    matches: tuple[str, ...] | None = None
    max_answer: int = 64 * 2**20
    known: tuple[str, ...] = ()
    replicated: bool = False
    from_client: bool = False
    exact: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Paging:
    """Where the next page begins ('' for nowhere), and how many entities there are, if that is known."""

    after: str
    count: int | None


@dataclass(frozen=True, slots=True)
class Response:
    """What comes of a request.

    ``body`` is None for an answer without one, or one that the reader has already. ``document`` is set where the
    document is the answer, and ``body`` then has the attributes that go beside it; ``elsewhere`` is the URL of a
    document that is not kept here. ``location`` is the URL of an entity that was created, ``version`` that of the
    version that was met or made. ``findings`` are what lint says of a write.
    """

    body: Mapping[str, Any] | None
    document: bytes | None = None
    elsewhere: str = ""
    name: str = ""
    location: str = ""
    version: str = ""
    etag: str = ""
    paging: Paging | None = None
    interaction: str = ""
    findings: tuple[Mapping[str, str], ...] = ()


# Where in a registry something is: paths, xids, and ids (core ``spec.md``, ``<SINGULAR>id`` and ``xid``).

Kind = Literal["registry", "groups", "group", "resources", "resource", "meta", "versions", "version"]
_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9\-._~:@]{0,127}", re.ASCII)
_RESERVED: Final = frozenset(("null", "request"))


@dataclass(frozen=True, slots=True)
class ResourcePath:
    """An entity or a collection, which need not exist; its types do. Ids are '' where the place is not so deep."""

    kind: Kind
    group_type: GroupType | None = None
    gid: str = ""
    resource_type: ResourceType | None = None
    rid: str = ""
    vid: str = ""

    @property
    def group(self) -> GroupType:
        """The type of group; only below the registry."""
        assert self.group_type is not None
        return self.group_type

    @property
    def resource(self) -> ResourceType:
        """The type of resource; only below groups."""
        assert self.resource_type is not None
        return self.resource_type

    @property
    def xid(self) -> str:
        """The path from the root: of an entity its xid."""
        if self.group_type is None:
            return "/"
        path = f"/{self.group_type.plural}"
        if self.gid:
            path += f"/{self.gid}"
        if self.resource_type is not None:
            path += f"/{self.resource_type.plural}"
        if self.rid:
            path += f"/{self.rid}"
        if self.kind == "version":
            return f"{path}/versions/{self.vid}"
        return f"{path}/{self.kind}" if self.kind in ("meta", "versions") else path

    @property
    def is_collection(self) -> bool:
        """Whether entities are below it by their ids alone."""
        return self.kind in ("groups", "resources", "versions")

    def child(self, name: str) -> ResourcePath:
        """Return the place of an entity of this collection."""
        if self.kind == "groups":
            return ResourcePath("group", self.group_type, name)
        if self.kind == "resources":
            return ResourcePath("resource", self.group_type, self.gid, self.resource_type, name)
        return ResourcePath("version", self.group_type, self.gid, self.resource_type, self.rid, name)

    def collection(self, plural: str) -> ResourcePath:
        """Return the place of a collection of this entity, which its type has."""
        if self.kind == "group":
            return ResourcePath("resources", self.group_type, self.gid, self.group.resources[plural])
        return ResourcePath("versions", self.group_type, self.gid, self.resource_type, self.rid)

    @property
    def owner(self) -> ResourcePath:
        """The resource of a version or a meta, the group of a resource."""
        if self.kind in ("meta", "versions", "version"):
            return ResourcePath("resource", self.group_type, self.gid, self.resource_type, self.rid)
        return ResourcePath("group", self.group_type, self.gid)


def place_of(model: Model, segments: Sequence[str], path: str) -> ResourcePath:
    """Return the place at a path, given as its decoded *segments*; *path* is for errors.

    Raises:
        Refusal: a type is unknown, or there is nothing so deep.
    """
    if not segments:
        return ResourcePath("registry")
    group = model.groups.get(segments[0])
    if group is None:
        raise Refusal("unknown_group_type", path, name=segments[0])
    place = ResourcePath("groups", group)
    if len(segments) > 1:
        place = replace(place, kind="group", gid=segments[1])
    if len(segments) > 2:
        resource = group.resources.get(segments[2])
        if resource is None:
            raise Refusal("unknown_resource_type", path, group=group.plural, name=segments[2])
        place = replace(place, kind="resources", resource_type=resource)
    if len(segments) > 3:
        place = replace(place, kind="resource", rid=segments[3])
    if len(segments) > 4:
        if segments[4] not in ("meta", "versions") or (segments[4] == "meta" and len(segments) > 5) or segments[6:]:
            raise Refusal("api_not_found", path)
        place = replace(place, kind="meta" if segments[4] == "meta" else "versions")
    if len(segments) > 5:
        place = replace(place, kind="version", vid=segments[5])
    return place


def check_id(identifier: object, subject: str, *, version: bool = False) -> str:
    """Return an id for a new entity.

    Raises:
        Refusal: ``malformed_id``.
    """
    if not isinstance(identifier, str) or not _ID.fullmatch(identifier):
        why = "it has letters, digits and -._~:@, begins with a letter, a digit or _, and is of 1 to 128 characters"
        raise Refusal("malformed_id", subject, id=str(identifier), error_detail=why)
    if version and identifier in _RESERVED:
        raise Refusal("malformed_id", subject, id=identifier, error_detail="it is reserved")
    return identifier


def target_of(model: Model, xref: object, source: ResourcePath, subject: str) -> str:
    """Return the xid that an ``xref`` of a resource names.

    Raises:
        Refusal: ``malformed_xref``: it is no xid of a resource of the same type.
    """
    text = str(xref)
    parts = text.split("/")
    group = model.groups.get(parts[1]) if len(parts) == 5 and not parts[0] else None
    target = group.resources.get(parts[3]) if group is not None else None
    if not isinstance(xref, str) or target is None or not all(_ID.fullmatch(parts[index]) for index in (2, 4)):
        why = "it is no xid of a resource"
    elif target.home != source.resource.home or target.plural != source.resource.plural:
        why = "it is of another type of resource"
    elif text == source.xid:
        why = "it is the resource itself"
    else:
        return text
    raise Refusal("malformed_xref", subject, xref=text, error_detail=why)


# ETags of answers that are no single entity: configuration has a tag of its content, other answers one of their age.
#
# The latter name the registry's last change by its number and its interaction, since a registry that is created anew at
# the same URL repeats numbers. So a client that asks again with such a tag is answered without a look at any entity.

EXPORT: Final = "export"
_DISTRIBUTION: Final = "xregistry-router"
_DIGEST_BYTES: Final = 6


def shows_more(place: ResourcePath | str, flags: Flags) -> bool:
    """Tell whether an answer shows more than one plain entity, so that the ETag of the entity does not cover it."""
    if isinstance(place, str):
        return place == EXPORT
    if place.is_collection:
        return True
    return bool(flags.inline or flags.filter or flags.doc or flags.binary or flags.collections)


def tag_of(reader: EntityReader, request: RegistryRequest) -> str:
    """Return the ETag of such an answer; equal tags are of equal answers to the same question by the same program."""
    asked = request.base, request.segments, request.details, request.flags, request.limit, request.cursor
    return tag_of_page(reader, (request.max_answer, asked))


def tag_of_page(reader: EntityReader, asked: object) -> str:
    """Return the ETag of an answer that is the same to the same question until something in the registry changes."""
    number, change = reader.last_change()
    said = repr((_program(), asked, change)).encode()
    return f'"{number}.{blake2b(said, digest_size=_DIGEST_BYTES).hexdigest()}"'


def tag_of_body(body: Mapping[str, Any]) -> str:
    """Return the ETag of an answer that may be guarded by ``If-Match``, whatever else has changed in the registry."""
    said = msgspec.json.encode(body, order="deterministic")
    return f'"{blake2b(said, digest_size=2 * _DIGEST_BYTES).hexdigest()}"'


@cache
def _program() -> str:
    return version(_DISTRIBUTION)
