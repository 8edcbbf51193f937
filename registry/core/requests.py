"""Requests and responses independent of the protocol: paths, documents, filters, sorting and ETags."""

from __future__ import annotations

import base64
import binascii
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from typing import Any, Final, Literal

import msgspec

from catalog.values import parse_whole_number
from registry.errors import Refusal, invalid_value, join_values
from registry.model.attributes import WILDCARD, GroupType, Model, ResourceType, parse_time
from registry.store.entities import EntityReader

# Documents of versions: from a request's attributes to bytes, and back (core ``spec.md``, ``<RESOURCE>``).


@dataclass(frozen=True, slots=True)
class GivenDocument:
    """The document in a request: ``body`` has its bytes, None if only its URL is stored."""

    body: bytes | None


def parse_document(
    kind: ResourceType, body: Mapping[str, Any], attributes: dict[str, Any], subject: str, *, patch: bool, media: str
) -> GivenDocument | None:
    """Return the document in a body, None if it has none.

    *attributes* are the version's new attributes; content type and URL are set in them. *media* is the content type of
    the request.

    Raises:
        Refusal: several attributes contain it, or its base64 is invalid.
    """
    if not kind.hasdocument:
        return None
    tree, encoded, url = kind.document_names
    present = [name for name in (tree, encoded, url) if name in body]
    if not present:
        return None
    if len(present) > 1:
        raise Refusal("one_resource", subject, list=join_values((tree, encoded, url)))
    (name,) = present
    value = body[name]
    if name != url:
        attributes.pop(url, None)
    if value is None:
        return GivenDocument(b"")
    if name == url:
        return GivenDocument(None)
    said = attributes.get("contenttype") if patch else body.get("contenttype")
    if said is None and (patch or name == tree):
        attributes["contenttype"] = media
    if name == tree:
        return GivenDocument(_to_bytes(kind, value, attributes.get("contenttype")))
    try:
        return GivenDocument(base64.b64decode(value, validate=True))
    except (binascii.Error, TypeError, ValueError):
        raise invalid_value(subject, encoded, "must be base64") from None


def document_member(kind: ResourceType, document: bytes, contenttype: str | None, *, binary: bool) -> tuple[str, Any]:
    """Return the attribute that contains a document, and its value: JSON, text, or base64."""
    tree, encoded, _ = kind.document_names
    form = "binary" if binary or not document else kind.representation_of(contenttype)
    try:
        if form == "json":
            return tree, msgspec.json.decode(document)
        if form == "string":
            return tree, document.decode("utf-8")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return encoded, base64.b64encode(document).decode("ascii")


def _to_bytes(kind: ResourceType, value: Any, contenttype: object) -> bytes:
    if isinstance(value, str) and kind.representation_of(str(contenttype)) != "json":
        return value.encode("utf-8", "surrogatepass")
    return msgspec.json.encode(value)


# Requests and responses of any protocol.

Verb = Literal["read", "replace", "patch", "add", "delete"]
"""GET, PUT, PATCH, POST and DELETE."""
ABSENT: Final = object()
"""The body of a request that has none."""


@dataclass(frozen=True, slots=True)
class Flags:
    """The unparsed flags of a request (core ``spec.md``, Request Flags); None and () for none."""

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


def _allow_all(group: str) -> bool:
    return True


def check_may_write(may_write: Callable[[str], bool], group: str, subject: str = "") -> None:
    """Raise unless a sender may write to a group; *subject* is an entity in it.

    Raises:
        Refusal: ``forbidden``.
    """
    if not may_write(group):
        raise Refusal("forbidden", subject or group, error_detail=f"these credentials do not allow writes to {group}")


@dataclass(frozen=True, slots=True)
class RequestSender:
    """The sender of a request: name for history, and permissions; ``writes`` is whether it may write to any group."""

    name: str
    administrator: bool = False
    may_write: Callable[[str], bool] = _allow_all
    writes: bool = False


@dataclass(frozen=True, slots=True)
class RegistryRequest:
    """A request to the registry.

    ``segments`` is the decoded path without ``$details``; ``path`` is used in errors. ``details`` requests the metadata
    of a resource or version with a document. ``body`` is the parsed JSON body, ABSENT without one. If the body is a
    document, ``document`` has it, and ``body`` the attributes from headers. ``who`` is the writer's name for history;
    ``may_write`` is given a group's xid ('' for the registry) and returns whether the writer may write there.
    ``matches`` is ``If-Match``, ``known`` is ``If-None-Match``; ``*`` matches any existing entity. ``replicated`` is
    whether the write comes from another catalog: it is not linted, and keeps its mark from there. ``from_client`` is
    whether the flags come from a client of the core API, so that the capabilities apply. ``exact`` is a document of the
    whole registry from which written entities get their epochs and times.
    """

    verb: Verb
    segments: tuple[str, ...]
    path: str
    base: str
    flags: Flags = field(default_factory=Flags)
    details: bool = False
    body: Any = ABSENT
    document: GivenDocument | None = None
    contenttype: str = "application/json"
    limit: int | None = None
    cursor: str = ""
    who: str = ""
    administrator: bool = False
    may_write: Callable[[str], bool] = _allow_all
    matches: tuple[str, ...] | None = None
    max_answer: int = 64 * 2**20
    known: tuple[str, ...] = ()
    replicated: bool = False
    from_client: bool = False
    exact: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """The response to a request.

    ``body`` is None for a response without one, or if the client's copy is current. ``document`` is set if the response
    is a document, and ``body`` then has the attributes for headers; ``document_url`` is set for an external document.
    ``after`` is where the next page begins ('' for no more), ``count`` the number of entities if known.
    ``location`` is the URL of a created entity, ``version`` the URL of the version updated or created. ``findings`` are
    lint's findings about a write.
    """

    body: Mapping[str, Any] | None
    document: bytes | None = None
    document_url: str = ""
    name: str = ""
    location: str = ""
    version: str = ""
    etag: str = ""
    after: str = ""
    count: int | None = None
    interaction: str = ""
    findings: tuple[Mapping[str, str], ...] = ()


# Paths, xids and ids (core ``spec.md``, ``<SINGULAR>id`` and ``xid``).

Kind = Literal["registry", "groups", "group", "resources", "resource", "meta", "versions", "version"]
_KINDS: Final[tuple[Kind, ...]] = ("registry", "groups", "group", "resources", "resource", "versions", "version")
_ID_FORM: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9\-._~:@]{0,127}", re.ASCII)
_RESERVED: Final = frozenset(("null", "request"))


@dataclass(frozen=True, slots=True)
class ResourcePath:
    """The path of an entity or a collection, which may not exist; its types do. Ids below the path are ''."""

    kind: Kind
    group_type: GroupType | None = None
    gid: str = ""
    resource_type: ResourceType | None = None
    rid: str = ""
    vid: str = ""

    @property
    def group(self) -> GroupType:
        """The group type; must not be called on the registry itself."""
        assert self.group_type is not None
        return self.group_type

    @property
    def resource(self) -> ResourceType:
        """The resource type; must not be called on a group or above."""
        assert self.resource_type is not None
        return self.resource_type

    @property
    def xid(self) -> str:
        """The path from the root, which is the xid of an entity."""
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
        """Whether it is a collection."""
        return self.kind in ("groups", "resources", "versions")

    def child(self, name: str) -> ResourcePath:
        """Return the path of an entity of this collection."""
        if self.kind == "groups":
            return ResourcePath("group", self.group_type, name)
        if self.kind == "resources":
            return ResourcePath("resource", self.group_type, self.gid, self.resource_type, name)
        return ResourcePath("version", self.group_type, self.gid, self.resource_type, self.rid, name)

    def collection(self, plural: str) -> ResourcePath:
        """Return the path of a collection of this entity; its type must have it."""
        if self.kind == "group":
            return ResourcePath("resources", self.group_type, self.gid, self.group.resources[plural])
        return ResourcePath("versions", self.group_type, self.gid, self.resource_type, self.rid)

    @property
    def owner(self) -> ResourcePath:
        """The resource of a version or a meta, the group of a resource."""
        if self.kind in ("meta", "versions", "version"):
            return ResourcePath("resource", self.group_type, self.gid, self.resource_type, self.rid)
        return ResourcePath("group", self.group_type, self.gid)


def parse_resource_path(model: Model, segments: Sequence[str], path: str) -> ResourcePath:
    """Parse the decoded *segments* of a path; *path* is for errors.

    Raises:
        Refusal: a type is unknown, or the path is too deep.
    """
    names = (*segments, *("",) * 6)
    group, resource = model.groups.get(names[0]), None
    if segments and group is None:
        raise Refusal("unknown_group_type", path, name=names[0])
    if group is not None and len(segments) > 2:
        resource = group.resources.get(names[2])
        if resource is None:
            raise Refusal("unknown_resource_type", path, group=group.plural, name=names[2])
    is_meta = names[4] == "meta"
    if len(segments) > (5 if is_meta else 6) or (len(segments) > 4 and names[4] not in ("meta", "versions")):
        raise Refusal("api_not_found", path)
    return ResourcePath("meta" if is_meta else _KINDS[len(segments)], group, names[1], resource, names[3], names[5])


def check_id(identifier: object, subject: str, *, version: bool = False) -> str:
    """Return *identifier*, which must be valid for a new entity.

    Raises:
        Refusal: ``malformed_id``.
    """
    if not isinstance(identifier, str) or not _ID_FORM.fullmatch(identifier):
        why = "an id has 1 to 128 letters, digits and -._~:@, and begins with a letter, a digit or _"
        raise Refusal("malformed_id", subject, id=str(identifier), error_detail=why)
    if version and identifier in _RESERVED:
        raise Refusal("malformed_id", subject, id=identifier, error_detail="it is reserved")
    return identifier


def parse_xref(model: Model, xref: object, source: ResourcePath, subject: str) -> str:
    """Return the target xid of an ``xref``.

    Raises:
        Refusal: ``malformed_xref``: it is not the xid of another resource of the same type.
    """
    text = str(xref)
    parts = text.split("/")
    group = model.groups.get(parts[1]) if len(parts) == 5 and not parts[0] else None
    target = group.resources.get(parts[3]) if group is not None else None
    if not isinstance(xref, str) or target is None or not all(_ID_FORM.fullmatch(parts[index]) for index in (2, 4)):
        why = "it is not the xid of a resource"
    elif target.home != source.resource.home or target.plural != source.resource.plural:
        why = "it has another resource type"
    elif text == source.xid:
        why = "it is the resource itself"
    else:
        return text
    raise Refusal("malformed_xref", subject, xref=text, error_detail=why)


# ETags of responses with more than one entity: for configuration a hash of its content, otherwise of the last change.
#
# The latter contain the number and the interaction of the registry's last change, since a registry recreated at the
# same URL repeats numbers. A conditional request with such a tag is answered without reading any entity.

EXPORT: Final = "export"
_DISTRIBUTION: Final = "xregistry-router"
_DIGEST_BYTES: Final = 6


def has_several_entities(place: ResourcePath | str, flags: Flags) -> bool:
    """Whether a response shows more than one plain entity, so that an entity's ETag does not identify it."""
    if isinstance(place, str):
        return place == EXPORT
    if place.is_collection:
        return True
    return bool(flags.inline or flags.filter or flags.doc or flags.binary or flags.collections)


def response_etag(reader: EntityReader, request: RegistryRequest) -> str:
    """Return the ETag of such a response; equal tags mean equal responses to the same request by the same release."""
    asked = request.base, request.segments, request.details, request.flags, request.limit, request.cursor
    return page_etag(reader, (request.max_answer, asked))


def page_etag(reader: EntityReader, asked: object) -> str:
    """Return the ETag of a response that depends only on *asked* and the state of the registry."""
    number, change = reader.last_change()
    said = repr((_release_digest(), asked, change)).encode()
    return f'"{number}.{blake2b(said, digest_size=_DIGEST_BYTES).hexdigest()}"'


def body_etag(body: Mapping[str, Any]) -> str:
    """Return the ETag of a body, for ``If-Match``; it ignores other changes of the registry."""
    said = msgspec.json.encode(body, order="deterministic")
    return f'"{blake2b(said, digest_size=2 * _DIGEST_BYTES).hexdigest()}"'


@cache
def _release_digest() -> str:
    return version(_DISTRIBUTION)


def check_conditions(tags: set[str], matches: Sequence[str] | None, known: Sequence[str] | None, subject: str) -> None:
    """Check ``If-Match`` and ``If-None-Match`` of a write against the current *tags*, none if there is no entity.

    Raises:
        Refusal: ``precondition_failed``.
    """
    if (matches is not None and not tags & set(matches)) or tags & set(known or ()):
        raise Refusal("precondition_failed", subject)


def parse_epoch(text: str | None, path: str) -> int | None:
    """Return the flag ``epoch`` as a number, None without it.

    Raises:
        Refusal: it is not an unsigned integer.
    """
    if text is None:
        return None
    if (epoch := parse_whole_number(text)) is None:
        raise Refusal("bad_flag", path, detail="epoch must be an unsigned integer", flag="epoch")
    return epoch


# Filters: expressions in dot notation over entities and those below them (core ``spec.md``, Filter Flag).

# Dot notation: ``labels.stage``, ``info['my.key']``, ``list[2]``; in filters ``.*`` and ``[*]`` too.

_PART_FORM: Final = re.compile(
    r"\.(?P<name>[A-Za-z0-9_:\-]+|\*)|\.?\[(?:(?P<index>\d{1,9}|\*)|'(?P<single>[^']*)'|\"(?P<double>[^\"]*)\")\]"
)
Part = str | int
ANY_PART: Final = "\0any"
"""``*``: every member or item."""


def parse_path(text: str) -> tuple[Part, ...]:
    """Parse a path: names as text, array indexes as numbers.

    Raises:
        ValueError: it is not a path.
    """
    parts: list[Part] = []
    rest = text if text[:1] == "[" else f".{text}"
    while rest:
        hit = _PART_FORM.match(rest)
        if hit is None:
            raise ValueError(f"{text!r} is not a path in dot notation")
        name, index, single, double = hit.group("name", "index", "single", "double")
        if "*" in (name, index):
            parts.append(ANY_PART)
        elif index is not None:
            parts.append(int(index))
        else:
            parts.append(next(each for each in (name, single, double) if each is not None))
        rest = rest[hit.end() :]
    return tuple(parts)


def iter_values_at(tree: Any, parts: tuple[Part, ...]) -> Iterator[Any]:
    """Yield the values at a path; there may be several if a part is ANY."""
    if not parts:
        yield tree
        return
    first, rest = parts[0], parts[1:]
    if first == ANY_PART:
        members = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list) else ()
        for each in members:
            yield from iter_values_at(each, rest)
    elif isinstance(first, int):
        if isinstance(tree, list) and first < len(tree):
            yield from iter_values_at(tree[first], rest)
    elif isinstance(tree, Mapping) and tree.get(first) is not None:
        yield from iter_values_at(tree[first], rest)


_EXPRESSION_FORM: Final = re.compile(r"(?P<path>[^=<>!]+)(?:(?P<sign><=|>=|<>|!=|=|<|>)(?P<value>.*))?", re.DOTALL)
EXCLUDE_ALL: Final = "excludeall"
MAX_EXPRESSIONS: Final = 50


@dataclass(frozen=True, slots=True)
class Expression:
    """One comparison; without an ``operator`` the attribute must exist. A ``value`` of None is ``null``."""

    path: tuple[Part, ...]
    operator: str = ""
    value: str | None = None

    def matches(self, entity: Mapping[str, Any]) -> bool:
        """Whether it matches an entity's attributes."""
        values = [each for each in iter_values_at(entity, self.path) if each is not None]
        if (
            self.operator == ""
            or (self.operator in ("!=", "<>") and self.value is None)
            or (self.operator, self.value) == ("=", "*")
        ):
            return bool(values)
        if self.value is None:
            return not values
        if self.operator in ("!=", "<>"):
            return not any(_compares(each, "=", self.value) for each in values)
        return any(_compares(each, self.operator, self.value) for each in values)


Clause = tuple[Expression, ...]
"""Expressions that must all match."""
Clauses = tuple[Clause, ...] | None
"""Clauses of which one must match; None matches everything."""
NO_CLAUSES: Final[tuple[Clause, ...]] = ()


def parse_filters(texts: Sequence[str], path: str) -> Clauses:
    """Parse the values of the flag ``filter``, each a clause; without a value everything matches.

    Raises:
        Refusal: ``bad_filter``.
    """
    if not texts:
        return None
    if any(EXCLUDE_ALL in (part.strip() for part in each.split(",")) for each in texts):
        if list(texts) != [EXCLUDE_ALL]:
            raise _filter_refusal(path, EXCLUDE_ALL, "it cannot be combined with other expressions")
        return NO_CLAUSES
    clauses = tuple(tuple(_parse_expression(part, path) for part in _split_at_commas(each)) for each in texts)
    if sum(map(len, clauses)) > MAX_EXPRESSIONS:
        raise _filter_refusal(path, texts[0], f"there are more than {MAX_EXPRESSIONS} expressions")
    return clauses


def remaining_clauses(
    clauses: Clauses, shown: Mapping[str, Any], collections: Iterable[str], exists: Callable[[str, Clause], bool]
) -> Clauses:
    """Return the clauses that apply below an entity, None if everything below it matches.

    *shown* are its attributes, *collections* the names of its collections; *exists* returns whether a collection has an
    entity that matches a clause relative to it. An entity that no clause matches gets :data:`NO_CLAUSES`.
    """
    if clauses is None:
        return None
    names = frozenset(collections)
    left: list[Clause] = []
    for clause in clauses:
        own = [each for each in clause if each.path[0] not in names]
        below = tuple(each for each in clause if each.path[0] in names)
        if not all(each.matches(shown) for each in own):
            continue
        wanted = {str(each.path[0]) for each in below}
        if all(exists(name, clauses_within((below,), name)[0]) for name in wanted):
            if not below:
                return None
            left.append(below)
    return tuple(left)


def clauses_within(clauses: Sequence[Clause], name: str) -> tuple[Clause, ...]:
    """Return the clauses for a collection, relative to its entities."""
    narrowed = (
        tuple(replace(each, path=each.path[1:]) for each in clause if each.path[0] == name and len(each.path) > 1)
        for clause in clauses
    )
    return tuple(clause for clause in narrowed if clause)


def _split_at_commas(text: str) -> list[str]:
    """Split at commas that are not in bracketed quotes."""
    parts, quote = [""], ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"" and parts[-1].endswith("["):
            quote = character
        if character == "," and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _parse_expression(text: str, path: str) -> Expression:
    match = _EXPRESSION_FORM.fullmatch(text)
    if match is None:
        raise _filter_refusal(path, text, "it is neither an attribute nor a comparison")
    try:
        parts = parse_path(match["path"])
    except ValueError as error:
        raise _filter_refusal(path, text, str(error)) from None
    sign, value = match["sign"] or "", match["value"]
    if value == "null":
        value = None
        if sign in ("<", "<=", ">", ">="):
            raise _filter_refusal(path, text, "null can only be compared with =, != and <>")
    if value is not None and sign in ("<", "<=", ">", ">=") and len(_split_pattern(value)) > 1:
        raise _filter_refusal(path, text, r"a wildcard is allowed only with =, != and <>; write \* for the character")
    return Expression(parts, sign, value)


def _compares(actual: Any, sign: str, expected: str) -> bool:
    """Whether a comparison holds; of texts that are times by the time, and ``=`` of others by the pattern."""
    other: Any = None
    if isinstance(actual, bool):
        other = {"true": True, "false": False}.get(expected)
    elif isinstance(actual, int | float):
        other = _parse_number(expected)
    elif isinstance(actual, str):
        moment = parse_time(expected)
        own = None if moment is None else parse_time(actual)
        if sign == "=" and own is None:
            return _matches_pattern(actual.lower(), expected.lower())
        actual, other = (own, moment) if own is not None else (actual.lower(), expected.lower())
    return other is not None and bool(_OPERATORS[sign](actual, other))


_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _matches_pattern(text: str, pattern: str) -> bool:
    """Whether a text matches a pattern with ``*``, in at most the time of their lengths' product."""
    pieces = _split_pattern(pattern)
    if len(pieces) == 1:
        return text == pieces[0]
    first, *middle, last = pieces
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in middle:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


def _split_pattern(pattern: str) -> list[str]:
    pieces = [""]
    for token in re.findall(r"\\.|[^\\*]+|.", pattern, re.DOTALL):
        if token == "*":
            pieces.append("")
        else:
            pieces[-1] += "*" if token == r"\*" else token
    return pieces


def _parse_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _filter_refusal(path: str, value: str, why: str) -> Refusal:
    return Refusal("bad_filter", path, value=value, error_detail=why)


# The order of a collection by an attribute (core ``spec.md``, Sort Flag).

SortKey = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Sorting:
    """The attribute to sort by, and the direction."""

    path: tuple[Part, ...]
    descending: bool

    def sort_key(self, entity: Mapping[str, Any], identifier: str) -> SortKey:
        """Return the sort key of an entity: the attribute, then its id; a missing attribute is lowest."""
        value = next(iter_values_at(entity, self.path), None)
        return (*_value_sort_key(value), identifier.lower())


def parse_sorting(text: str, place: ResourcePath, path: str) -> Sorting:
    """Parse the flag ``sort`` of a request to *place*.

    Raises:
        Refusal: the place is not a collection, or its entities cannot have the attribute.
    """
    if not place.is_collection:
        raise Refusal("sort_noncollection", path)
    name, mark, order = text.partition("=")
    if mark and order.lower() not in ("asc", "desc"):
        raise _sort_refusal(path, text, "the order must be asc or desc")
    try:
        parts = parse_path(name)
    except ValueError as error:
        raise _sort_refusal(path, text, str(error)) from None
    _check_sort_path(parts, text, place, path)
    return Sorting(parts, order.lower() == "desc")


def _check_sort_path(parts: tuple[Part, ...], text: str, place: ResourcePath, path: str) -> None:
    first = parts[0]
    kind = place.resource_type
    known = dict(place.group.attributes) if kind is None else dict(kind.attributes)
    if place.kind == "resources" and kind is not None:
        known |= kind.resource
    collections = set(place.group.resources) if kind is None else {"versions"}
    if ANY_PART in parts:
        raise _sort_refusal(path, text, "* is not allowed")
    if first in collections:
        raise _sort_refusal(path, text, "attributes of nested collections are not supported")
    attribute = known.get(str(first))
    if attribute is None and WILDCARD not in known:
        raise _sort_refusal(path, text, f"unknown attribute {first}")
    if attribute is not None and len(parts) == 1 and not attribute.is_scalar and attribute.type != "any":
        raise _sort_refusal(path, text, f"{first} is not a scalar")


def _value_sort_key(value: Any) -> tuple[int, Any]:
    if value is None or isinstance(value, dict | list):
        return 0, 0
    if isinstance(value, bool):
        return 1, int(value)
    if isinstance(value, int | float):
        return 2, value
    moment = parse_time(str(value))
    return (3, moment.isoformat()) if moment is not None else (3, str(value).lower())


def _sort_refusal(path: str, value: str, why: str) -> Refusal:
    return Refusal("bad_sort", path, value=value, error_detail=why)
