"""Requests and answers as the registry understands them: the paths, documents and ETags in them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from typing import Any, Final, Literal

import msgspec

from registry.errors import Refusal, invalid, listed
from registry.model.attributes import ANYTHING, GroupType, Model, ResourceType, moment_of, normalized
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


# Filters: expressions in dot notation over entities and what is below them (core ``spec.md``, Filter Flag).

# Dot notation: ``labels.stage``, ``info['my.key']``, ``list[2]``; in filters ``.*`` and ``[*]`` too.

_PART: Final = re.compile(
    r"\.?(?:(?P<name>[A-Za-z0-9_:\-]+|\*)|\[(?P<index>\d{1,9}|\*)\]|\['(?P<single>[^']*)'\]|\[\"(?P<double>[^\"]*)\"\])"
)
MAX_PARTS: Final = 32
Part = str | int
ANY: Final = "\0any"
"""Stands for ``*``: every member or item."""
MISSING: Final = object()


def parts_of(text: str) -> tuple[Part, ...]:
    """Read a path: names as text, places in arrays as numbers.

    Raises:
        ValueError: it is none.
    """
    parts: list[Part] = []
    at = 0
    while at < len(text):
        hit = _PART.match(text, at)
        if hit is None or (at == 0 and text[0] == ".") or len(parts) == MAX_PARTS or _glued(hit, at):
            raise ValueError(f"{text!r} is no path in dot notation")
        name, index, single, double = hit.group("name", "index", "single", "double")
        if "*" in (name, index):
            parts.append(ANY)
        elif index is not None:
            parts.append(int(index))
        else:
            parts.append(next(each for each in (name, single, double) if each is not None))
        at = hit.end()
    if not parts:
        raise ValueError("the path is empty")
    return tuple(parts)


def values_at(tree: Any, parts: tuple[Part, ...]) -> Iterator[Any]:
    """Yield what is at a path; several values where a part stands for any, none where there is nothing."""
    if not parts:
        yield tree
        return
    first, rest = parts[0], parts[1:]
    if first == ANY:
        members = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list) else ()
        for each in members:
            yield from values_at(each, rest)
    elif isinstance(first, int):
        if isinstance(tree, list) and first < len(tree):
            yield from values_at(tree[first], rest)
    elif isinstance(tree, Mapping) and tree.get(first) is not None:
        yield from values_at(tree[first], rest)


def _glued(hit: re.Match[str], at: int) -> bool:
    """Tell whether a name follows something else without a dot between them."""
    return at > 0 and hit["name"] is not None and hit.group()[0] != "."


_FORM: Final = re.compile(r"(?P<path>[^=<>!]+)(?:(?P<sign><=|>=|<>|!=|=|<|>)(?P<value>.*))?", re.DOTALL)
EXCLUDE_ALL: Final = "excludeall"
MAX_EXPRESSIONS: Final = 50


@dataclass(frozen=True, slots=True)
class Expression:
    """One comparison; without a ``sign`` the attribute needs to be there. A ``value`` of None is ``null``."""

    path: tuple[Part, ...]
    sign: str = ""
    value: str | None = None

    def holds(self, entity: Mapping[str, Any]) -> bool:
        """Tell whether it holds for an entity's attributes."""
        values = [each for each in values_at(entity, self.path) if each is not None]
        if (
            self.sign == ""
            or (self.sign in ("!=", "<>") and self.value is None)
            or (self.sign, self.value) == ("=", "*")
        ):
            return bool(values)
        if self.value is None:
            return not values
        if self.sign in ("!=", "<>"):
            return not any(_equal(each, self.value) for each in values)
        if self.sign == "=":
            return any(_equal(each, self.value) for each in values)
        return any(_ordered(each, self.sign, self.value) for each in values)


Clause = tuple[Expression, ...]
"""Expressions that must all hold."""
Clauses = tuple[Clause, ...] | None
"""Clauses of which one must hold; None lets everything through."""
NOTHING: Final[tuple[Clause, ...]] = ()


def read_filters(given: Sequence[str], path: str) -> Clauses:
    """Read the values of the flag, each a clause; none of them lets everything through.

    Raises:
        Refusal: ``bad_filter``.
    """
    if not given:
        return None
    if any(EXCLUDE_ALL in (part.strip() for part in each.split(",")) for each in given):
        if list(given) != [EXCLUDE_ALL]:
            raise _bad(path, EXCLUDE_ALL, "it stands alone")
        return NOTHING
    clauses = tuple(tuple(_expression(part, path) for part in _split(each)) for each in given)
    if sum(map(len, clauses)) > MAX_EXPRESSIONS:
        raise _bad(path, given[0], f"there are more than {MAX_EXPRESSIONS} expressions")
    return clauses


def surviving(
    clauses: Clauses,
    shown: Mapping[str, Any],
    collections: Iterable[str],
    exists: Callable[[str, Clause], bool],
) -> Clauses:
    """Return what is left of clauses below an entity that they let through: None for all of it.

    *shown* are its attributes, *collections* the names of those below it; *exists* tells whether one of them has an
    entity for which a clause, relative to it, holds. An entity that no clause lets through gets :data:`NOTHING`.
    """
    if clauses is None:
        return None
    names = frozenset(collections)
    left: list[Clause] = []
    for clause in clauses:
        own = [each for each in clause if each.path[0] not in names]
        below = tuple(each for each in clause if each.path[0] in names)
        if not all(each.holds(shown) for each in own):
            continue
        wanted = {str(each.path[0]) for each in below}
        if all(exists(name, within((below,), name)[0]) for name in wanted):
            if not below:
                return None
            left.append(below)
    return tuple(left)


def within(clauses: Sequence[Clause], name: str) -> tuple[Clause, ...]:
    """Return the clauses for entities of a collection: what each says of it, relative to them."""
    narrowed = (
        tuple(replace(each, path=each.path[1:]) for each in clause if each.path[0] == name and len(each.path) > 1)
        for clause in clauses
    )
    return tuple(clause for clause in narrowed if clause)


def _split(text: str) -> list[str]:
    """Split at commas that no quotes in brackets hold."""
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


def _expression(text: str, path: str) -> Expression:
    match = _FORM.fullmatch(text)
    if match is None:
        raise _bad(path, text, "it is no attribute, alone or with a comparison")
    try:
        parts = parts_of(match["path"])
    except ValueError as error:
        raise _bad(path, text, str(error)) from None
    sign, value = match["sign"] or "", match["value"]
    if value == "null":
        value = None
        if sign in ("<", "<=", ">", ">="):
            raise _bad(path, text, "null is neither less nor more than anything")
    if value is not None and sign in ("<", "<=", ">", ">=") and len(_pieces(value)) > 1:
        raise _bad(path, text, r"a wildcard is for =, != and <> alone; write \* for the character")
    return Expression(parts, sign, value)


def _equal(actual: Any, wanted: str) -> bool:
    if isinstance(actual, bool):
        return wanted == ("true" if actual else "false")
    if isinstance(actual, int | float):
        number = _number(wanted)
        return number is not None and number == actual
    if isinstance(actual, str):
        return _like(actual.lower(), wanted.lower()) or _same_moment(actual, wanted)
    return False


def _like(text: str, pattern: str) -> bool:
    """Compare with a pattern of ``*``, in time linear in both but for their product at worst."""
    pieces = _pieces(pattern)
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


def _pieces(pattern: str) -> list[str]:
    pieces, escaped = [""], False
    for character in pattern:
        if escaped:
            pieces[-1] += character if character == "*" else f"\\{character}"
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == "*":
            pieces.append("")
        else:
            pieces[-1] += character
    if escaped:
        pieces[-1] += "\\"
    return pieces


def _ordered(actual: Any, sign: str, wanted: str) -> bool:
    if isinstance(actual, bool):
        if wanted not in ("true", "false"):
            return False
        return _compare(int(actual), int(wanted == "true"), sign)
    if isinstance(actual, int | float):
        number = _number(wanted)
        return number is not None and _compare(actual, number, sign)
    if not isinstance(actual, str):
        return False
    one, other = moment_of(actual), moment_of(wanted)
    if one is not None and other is not None:
        return _compare(one, other, sign)
    return _compare(actual.lower(), wanted.lower(), sign)


def _compare(one: Any, other: Any, sign: str) -> bool:
    result: bool = {"<": one < other, "<=": one <= other, ">": one > other, ">=": one >= other}[sign]
    return result


def _same_moment(actual: str, wanted: str) -> bool:
    return moment_of(wanted) is not None and moment_of(actual) is not None and normalized(actual) == normalized(wanted)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _bad(path: str, value: str, why: str) -> Refusal:
    return Refusal("bad_filter", path, value=value, error_detail=why)


# The order of a collection by an attribute (core ``spec.md``, Sort Flag).

SortKey = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Sorting:
    """By which attribute, and whether the highest comes first."""

    path: tuple[Part, ...]
    descending: bool

    def key(self, entity: Mapping[str, Any], identifier: str) -> SortKey:
        """Return what an entity is ordered by: the attribute, then its id; one without the attribute is lowest."""
        value = next(values_at(entity, self.path), None)
        return (*_rank(value), identifier.lower())


def read_sorting(text: str, place: ResourcePath, path: str) -> Sorting:
    """Read the flag for a request to *place*.

    Raises:
        Refusal: the place is no collection, or the value no attribute that its entities may have.
    """
    if not place.is_collection:
        raise Refusal("sort_noncollection", path)
    name, mark, order = text.partition("=")
    if mark and order.lower() not in ("asc", "desc"):
        raise _bad_sort(path, text, "the order is asc or desc")
    try:
        parts = parts_of(name)
    except ValueError as error:
        raise _bad_sort(path, text, str(error)) from None
    _check(parts, text, place, path)
    return Sorting(parts, order.lower() == "desc")


def _check(parts: tuple[Part, ...], text: str, place: ResourcePath, path: str) -> None:
    first = parts[0]
    kind = place.resource_type
    known = dict(place.group.attributes) if kind is None else dict(kind.attributes)
    if place.kind == "resources" and kind is not None:
        known |= kind.resource
    collections = set(place.group.resources) if kind is None else {"versions"}
    if ANY in parts:
        raise _bad_sort(path, text, "an attribute is one, so * cannot be in it")
    if first in collections:
        raise _bad_sort(path, text, "nested collections are not looked into")
    attribute = known.get(str(first))
    if attribute is None and ANYTHING not in known:
        raise _bad_sort(path, text, f"there is no attribute {first}")
    if attribute is not None and len(parts) == 1 and not attribute.scalar and attribute.type != "any":
        raise _bad_sort(path, text, f"{first} is no scalar")


def _rank(value: Any) -> tuple[int, Any]:
    if value is None or isinstance(value, dict | list):
        return 0, 0
    if isinstance(value, bool):
        return 1, int(value)
    if isinstance(value, int | float):
        return 2, value
    moment = moment_of(str(value))
    return (3, moment.isoformat()) if moment is not None else (3, str(value).lower())


def _bad_sort(path: str, value: str, why: str) -> Refusal:
    return Refusal("bad_sort", path, value=value, error_detail=why)
