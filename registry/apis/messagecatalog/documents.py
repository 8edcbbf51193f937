"""Conversion between stored entities and documents of Message Catalog 0.1, and reading of catalogs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final
from urllib.parse import quote

import msgspec

from catalog.dialects.detection import MESSAGE_CATALOG
from catalog.dialects.messages import CONTENT_ATTRIBUTES, SELECTORS, format_name_of, read_message, to_message_sections
from catalog.dialects.reading import DocumentReader, Format, read_format
from catalog.findings import Declarations, Findings, SourceLocation
from catalog.model import CLOUDEVENTS
from registry.core.ancestry import parse_number, version_sort_key
from registry.core.requests import ResourcePath, parse_resource_path
from registry.core.service import RegistrySession
from registry.core.views import ResponseBudget, ShownResource, find_shown, iter_shown, require_group, require_shown
from registry.errors import Refusal, invalid_value
from registry.http.access import decode_text
from registry.model.attributes import ModelAttribute, find_fault
from registry.store.entities import GroupEntity, Version

# Stored entities as documents of Message Catalog 0.1.
#
# Attributes unknown to 0.1 are included under their own names, as section 2.2.4 permits, so that reading a document
# restores the stored entity.

SPECVERSION: Final = "0.1"
LONG_TEXT: Final = "documentationtext"
"""The attribute for documentation that is not a URL: 0.1 has text, 1.0 a URL."""
COMMON_ATTRIBUTES: Final = ("description", "documentation", "tags", "relatedto", "relatedvia", "relation")
"""Attributes of a definition in 0.1, besides id, format and authority."""
VERSION_ATTRIBUTES: Final = frozenset((*CONTENT_ATTRIBUTES, *SELECTORS, "definition"))
"""1.0 attributes with the content of a version."""
_LAST_MEMBERS: Final = ("version", "createdtimeutc", "definition")


def group_document(group: GroupEntity) -> dict[str, Any]:
    """Return a group without its definitions; it may lack a format if it was written by the core API."""
    given = dict(group.attributes)
    form = format_name_of(given.pop("envelope", None), protocol := given.pop("protocol", None))
    if group.attributes.get("envelope") is not None and protocol is not None:
        given["protocol"] = protocol
    shown: dict[str, Any] = {"id": group.id, "specversion": SPECVERSION, **({"format": form} if form else {})}
    shown |= _pop_known(given)
    return {**shown, **given, "createdtimeutc": group.createdat, "updatedtimeutc": group.modifiedat}


def version_document(name: str, version: Version, group: GroupEntity, authority: str) -> dict[str, Any]:
    """Return a single version of the definition *name*; *authority* is the default."""
    given = dict(version.attributes)
    text = to_message_sections({key: value for key, value in given.items() if key in VERSION_ATTRIBUTES})
    given = {key: value for key, value in given.items() if key not in VERSION_ATTRIBUTES}
    form = text.format or format_name_of(group.attributes.get("envelope"), group.attributes.get("protocol"))
    number = parse_number(version.id)
    own = given.pop("authority", None)
    shown: dict[str, Any] = {"id": name, "specversion": SPECVERSION, "authority": own or authority}
    shown |= {"format": form} if form else {}
    shown |= _pop_known(given)
    shown |= {"version": version.id if number is None else number, "createdtimeutc": version.createdat}
    return {**shown, **given, **text.beside, "definition": text.definition}


def definition_document(versions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a definition from its single versions, the latest last: common attributes are moved to the definition."""
    listed = list(versions)
    common = {key: value for key, value in listed[-1].items() if key not in _LAST_MEMBERS}
    own: list[dict[str, Any]] = []
    for each in listed:
        less = {key: value for key, value in each.items() if key in _LAST_MEMBERS or common.get(key, value) != value}
        less |= {key: value for key, value in each.items() if key not in common}
        own.append({**less, **{key: None for key in common if key not in each}})
    return {**common, "versions": own}


def _pop_known(given: dict[str, Any]) -> dict[str, Any]:
    """Remove and return the attributes of *given* that 0.1 knows."""
    text = given.pop(LONG_TEXT, None)
    attributes: dict[str, Any] = {name: given.pop(name) for name in COMMON_ATTRIBUTES if name in given}
    return {**attributes, "documentation": text} if text is not None else attributes


_URL: Final = ModelAttribute("documentation", "url")
_URI: Final = ModelAttribute("authority", "uriabsolute")
_IDS: Final = frozenset(("id", "specversion"))
_READONLY: Final = frozenset(
    (
        *("epoch", "self", "shortself", "xid", "createdat", "modifiedat", "isdefault", "ancestorid", "versionid"),
        *("messageid", "messagegroupid", "meta", "metaurl", "versions", "versionsurl", "versionscount"),
        *("messages", "messagesurl", "messagescount", "createdtimeutc", "updatedtimeutc"),
    )
)
"""Members that only the server sets; they are ignored in requests."""
_LIST_MEMBERS: Final = ("definitions", "messagedefinitions")


def group_attributes(body: Mapping[str, Any], name: str, known: GroupEntity | None) -> dict[str, Any]:
    """Return the attributes of a group, with None for 0.1 attributes missing in the body.

    Raises:
        Refusal: something is missing or not valid.
    """
    check_identity(body, name, f"/{name}")
    given = {key: value for key, value in body.items() if key not in (*_IDS, *_READONLY, *_LIST_MEMBERS, "format")}
    form = body.get("format")
    if form is None and known is None:
        raise Refusal("required_attribute_missing", f"/{name}", list="format")
    if form is not None:
        given |= _selectors({"format": form, "protocol": given.pop("protocol", None)}, f"/{name}")
    return {**dict.fromkeys(("description", "tags")), **given, **_documentation(body, f"/{name}")}


def definitions_in(body: Mapping[str, Any], subject: str) -> list[Mapping[str, Any]]:
    """Return the definitions in a group's document.

    Raises:
        Refusal: they are not a list of objects.
    """
    definitions: list[Mapping[str, Any]] = []
    for name in _LIST_MEMBERS:
        if body.get(name) is not None:
            definitions += objects_in(body, name, subject)
    return definitions


def objects_in(body: Mapping[str, Any], name: str, subject: str) -> list[Mapping[str, Any]]:
    """Return a member of a body that must be a list of objects.

    Raises:
        Refusal: it is not.
    """
    listed = body.get(name)
    if not isinstance(listed, list) or not all(isinstance(each, Mapping) for each in listed):
        raise invalid_value(subject, name, "must be a list of objects")
    return listed


def iter_versions_in(body: Mapping[str, Any], subject: str) -> Iterator[Mapping[str, Any]]:
    """Yield the versions in a definition's document with common attributes; or the document itself as a version.

    Raises:
        Refusal: they are not a list of objects, or the list is empty.
    """
    if "versions" not in body:
        yield body
        return
    listed = objects_in(body, "versions", subject)
    if not listed:
        raise invalid_value(subject, "versions", "must not be empty")
    common = {name: value for name, value in body.items() if name not in ("versions", "version", "definition")}
    for each in listed:
        for name in ("id", "format"):
            if name in each and name in common and each[name] != common[name]:
                raise invalid_value(subject, name, "must be the same in all versions")
        yield {**common, **each}


def version_attributes(body: Mapping[str, Any], name: str, group: GroupEntity, subject: str) -> dict[str, Any]:
    """Return the attributes of a version of the definition *name*; null in the body is None.

    Raises:
        Refusal: something is missing or not valid.
    """
    check_identity(body, name, subject)
    content = body.get("definition")
    if not isinstance(content, Mapping):
        raise Refusal("required_attribute_missing", subject, list="definition")
    findings = Findings()
    reader = DocumentReader(MESSAGE_CATALOG, Declarations(), findings)
    form = read_format(
        {name: group.attributes.get(name) for name in SELECTORS}, SourceLocation(subject), _quiet_reader()
    )
    document = _with_group_format(body, form, subject)
    *_, message = read_message(subject, "", document, SourceLocation(subject), form, reader)
    # Fields of AMQP, MQTT and NATS are not extensible (section 3).
    wrong = next(
        (each for each in findings.sorted() if each.severity == "error" or each.rule == "unknown-option"), None
    )
    if wrong is not None:
        raise invalid_value(subject, wrong.pointer.lstrip("/") or "definition", wrong.message)
    attributes = {**message.attributes, **({"basemessage": message.base} if message.base is not None else {})}
    given = {key: value for key, value in message.other.items() if key not in (*_IDS, *_READONLY, "version")}
    given |= {key: None for key, value in body.items() if value is None and key not in (*_IDS, *_READONLY, "version")}
    _check_texts(given, subject)
    if "documentation" in body:
        given |= _documentation(body, subject)
    if attributes.get("envelope") not in (None, CLOUDEVENTS) and attributes.get("protocol") is None:
        attributes = {key: value for key, value in attributes.items() if key != "envelopemetadata"}
        attributes["definition"] = dict(content)  # of another format: stored unchanged
    if attributes.get("envelope") == CLOUDEVENTS and "basemessage" not in attributes:
        _check_event(attributes, name, subject)
    return {**given, **attributes}


def check_identity(body: Mapping[str, Any], name: str, subject: str) -> None:
    """Raise if a document does not match its path.

    Raises:
        Refusal: its id or ``specversion`` differs.
    """
    given = body.get("id")
    if given is not None and given != name:
        raise Refusal("mismatched_id", subject, singular="", invalid_id=str(given), expected_id=name)
    version = body.get("specversion")
    if version is not None and version != SPECVERSION:
        raise Refusal("unsupported_specversion", subject, specversion=str(version), list=SPECVERSION)


def _selectors(holder: Mapping[str, Any], subject: str) -> dict[str, str]:
    form = holder["format"]
    if not isinstance(form, str) or not form.strip():
        raise invalid_value(subject, "format", "must be a non-empty string")
    read = read_format(holder, SourceLocation(subject), _quiet_reader())
    selectors = {"envelope": read.envelope, "protocol": read.protocol}
    return {name: value for name, value in selectors.items() if value is not None}


def _quiet_reader() -> DocumentReader:
    return DocumentReader(MESSAGE_CATALOG, Declarations(), Findings())


def _with_group_format(body: Mapping[str, Any], form: Format, subject: str) -> dict[str, Any]:
    """Return a definition without its versions, with the format of its group if that has one."""
    document = {key: value for key, value in body.items() if key != "versions"}
    wanted = format_name_of(form.envelope, form.protocol)
    if document.get("format") is not None:
        given = _selectors({"format": document["format"]}, subject)
        if wanted and format_name_of(given.get("envelope"), given.get("protocol")) != wanted:
            raise Refusal("conflict", subject, error_detail=f"the format of the group is {wanted}")
    if not wanted:
        return document
    alone = document.get("protocol") is None and document.get("envelope") is None
    document.pop("format", None)
    return document if alone else {**document, "format": wanted}


def _check_texts(given: Mapping[str, Any], subject: str) -> None:
    for name in (*COMMON_ATTRIBUTES, "authority"):
        if given.get(name) is not None and not isinstance(given[name], str):
            raise invalid_value(subject, name, "must be a string")
    if given.get("authority") and (why := find_fault(given["authority"], _URI)):
        raise invalid_value(subject, "authority", why)


def _check_event(attributes: Mapping[str, Any], name: str, subject: str) -> None:
    """Check an event by section 3.2.1: its type is required, and equals its id."""
    kind = attributes.get("envelopemetadata", {}).get("type")
    value = kind.get("value") if isinstance(kind, dict) else kind
    if value is None:
        raise Refusal("required_attribute_missing", subject, list="definition.attributes.type")
    if value != name:
        raise invalid_value(subject, "definition.attributes.type", f"must be the id of the definition, {name}")


def _documentation(body: Mapping[str, Any], subject: str) -> dict[str, Any]:
    """Return documentation as stored: a URL under its name, other text in LONG_TEXT."""
    text = body.get("documentation")
    if text is not None and not isinstance(text, str):
        raise invalid_value(subject, "documentation", "must be a string")
    url = bool(text) and not find_fault(text, _URL)
    return {"documentation": text if url else None, LONG_TEXT: None if url else text}


# Paths (section 4.1), and URIs of versions (section 2.2.2).

GROUPS: Final = "messagegroups"
MESSAGES: Final = "messages"
DEFINITIONS: Final = "messagedefinitions"
VERSIONS: Final = "versions"
_SEGMENT: Final = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2}){1,128}", re.ASCII)


def parse_segments(path: bytes) -> tuple[str, ...]:
    """Return the path in the core API for a raw path below the catalog.

    Raises:
        Refusal: there is no such path.
    """
    text, inner = decode_text(path, "/"), path.removeprefix(b"/").removesuffix(b"/")
    parts = [decode_text(part, text) for part in inner.split(b"/")] if inner else []
    known = parts[1:2] in ([], [DEFINITIONS]) and parts[3:4] in ([], [VERSIONS])
    if not known or len(parts) > 5 or any(not part or "/" in part for part in parts):
        raise Refusal("api_not_found", text)
    return (GROUPS, *parts[:1], *(MESSAGES for _ in parts[1:2]), *parts[2:])


def catalog_path(xid: str) -> str:
    """Return the path below the catalog of an xid or a collection: '' or with a leading slash."""
    group, *rest = (*xid.split("/")[2:], "")
    parts = (group, DEFINITIONS if rest[1:] else "", *rest[1:])
    return "".join(f"/{quote(part, safe='@:!$&()*+,;=~')}" for part in parts if part)


def check_new_id(name: object, subject: str) -> str:
    """Return *name*, which must be valid as a new id.

    Raises:
        Refusal: it is not a ``segment-nz-nc`` of RFC 3986; the core checks the rest.
    """
    if not isinstance(name, str) or not _SEGMENT.fullmatch(name):
        why = "it must be an RFC 3986 path segment without colon, of at most 128 characters"
        raise Refusal("malformed_id", subject, id=str(name), error_detail=why)
    return name


def split_uri(uri: str) -> tuple[str, tuple[str, ...]] | None:
    """Split a version's URI into authority and path in the core API; None if it is not one."""
    head, marker, tail = uri.rpartition(f"/{DEFINITIONS}/")
    cut = max(head.rfind("/"), head.rfind(":") if head.lower().startswith("urn:") else -1)
    if not marker or cut <= 0 or not head[cut + 1 :]:
        return None
    try:
        segments = parse_segments(f"/{head[cut + 1 :]}/{DEFINITIONS}/{tail}".encode())
    except Refusal:
        return None
    return (head[:cut], segments) if tail.count("/") in (0, 2) and len(segments) in (4, 6) else None


# Reading groups, definitions, versions, and lists of them.

FILTERS: Final = ("id", "format", "description", "tags", "authority", "relatedto", "relation")
"""Attributes by which lists can be filtered, as query parameters."""


@dataclass(frozen=True, slots=True)
class ListRequest:
    """A page of a list: maximum number of entries, cursor, and filters."""

    limit: int
    after: str
    filters: Mapping[str, str]

    def matches(self, entry: Mapping[str, Any]) -> bool:
        """Whether an entry matches the filters."""
        return all(str(entry.get(name, "")) == value for name, value in self.filters.items())


@dataclass(frozen=True, slots=True)
class Representation:
    """The content of a response, its ETag, and in ``after`` the cursor of the next page; '' for none."""

    body: Any
    etag: str = ""
    after: str = ""


class CatalogReader:
    """Reads within one transaction; *authority* is the default authority of definitions. All methods raise Refusal."""

    def __init__(self, session: RegistrySession, authority: str, max_answer: int) -> None:
        self._session = session
        self._reader = session.reader
        self._authority = authority
        self._to_json = ResponseBudget(max_answer, "/").to_json

    def parse_path(self, segments: tuple[str, ...]) -> ResourcePath:
        """Return the place at a path of the core API."""
        return parse_resource_path(self._session.model, segments, f"/{'/'.join(segments)}")

    def find_path(self, segments: tuple[str, ...]) -> ResourcePath:
        """Return the place at a path of the core API to read; a model may have no type for groups."""
        if GROUPS not in self._session.model.groups:
            raise Refusal("not_found", f"/{'/'.join(segments[:2])}")
        return self.parse_path(segments)

    def definitions_of(self, group: str) -> ResourcePath:
        """Return the collection of a group's definitions, whose type the model may lack."""
        return self.parse_path((GROUPS, group, MESSAGES))

    def list_page(self, place: ResourcePath, page: ListRequest, *, whole: bool) -> Representation:
        """List groups (with *whole* including all definitions), definitions by their latest versions, or versions."""
        entries = ((name, each) for name, each in self._iter_entries(place, page, whole=whole) if page.matches(each))
        chosen = list(islice(entries, page.limit + 1))
        shown, more = chosen[: page.limit], len(chosen) > page.limit
        last = shown[-1][0] if more else ""
        body = [self._to_json(each) for _, each in shown]
        return Representation(body, after=last if place.kind == "versions" else last.lower())

    def show(self, place: ResourcePath, *, whole: bool = False) -> Representation:
        """Show a group, a definition by its latest version, or a version; with *whole* including everything in it."""
        group = require_group(self._reader, place)
        if place.kind == "group":
            if whole:
                return Representation(self._whole_group(place, group))
            return Representation(group_document(group), f'"{group.epoch}"')
        shown = require_shown(self._reader, place)
        source = shown.source
        if place.kind == "version":
            version = self._reader.version(f"{source.versions}/{place.vid}") if source is not None else None
            etag = f'"{version.epoch}"' if version is not None else ""
        else:
            version = self._latest_of(shown)
            etag = f'"{source.epoch}-{version.epoch}"' if source is not None and version is not None else ""
        if version is None or source is None:
            raise Refusal("not_found", place.xid)
        if whole and place.kind == "resource":
            return Representation(self._whole_definition(shown, group))
        return Representation(version_document(place.rid, version, group, self._authority), etag)

    def latest_version(self, place: ResourcePath) -> Version | None:
        """Return the latest version of a definition, None if it does not exist."""
        shown = find_shown(self._reader, place)
        return None if shown is None else self._latest_of(shown)

    def iter_latest(self, place: ResourcePath, after: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the definitions of a group by id, each by its latest version; *place* is a collection."""
        group = require_group(self._reader, place)
        for each in iter_shown(self._reader, place, after):
            latest, name = self._latest_of(each), each.resource.id
            if latest is not None:
                yield name, version_document(name, latest, group, self._authority)

    def _iter_entries(
        self, place: ResourcePath, page: ListRequest, *, whole: bool
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        if place.kind == "groups":
            for each in self._reader.iter_groups(place.xid, page.after):
                yield each.id, self._whole_group(place.child(each.id), each) if whole else group_document(each)
        elif place.kind == "resources":
            yield from self.iter_latest(place, page.after)
        else:
            group = require_group(self._reader, place)
            listed = self._sorted_versions(require_shown(self._reader, place))
            start = next((at for at, each in enumerate(listed, 1) if each.id == page.after), 0) if page.after else 0
            for version in listed[start:]:
                yield version.id, version_document(place.rid, version, group, self._authority)

    def _sorted_versions(self, shown: ShownResource) -> list[Version]:
        if shown.source is None:
            return []
        return sorted(self._reader.iter_versions(shown.source.versions), key=lambda each: version_sort_key(each.id))

    def _latest_of(self, shown: ShownResource) -> Version | None:
        """Return the latest version, which may differ from the core's default version."""
        return shown.default if shown.count < 2 else self._sorted_versions(shown)[-1]

    def _whole_definition(self, shown: ShownResource, group: GroupEntity) -> msgspec.Raw:
        versions = self._sorted_versions(shown)
        texts = [version_document(shown.resource.id, each, group, self._authority) for each in versions]
        return self._to_json(definition_document(texts))

    def _whole_group(self, place: ResourcePath, group: GroupEntity) -> dict[str, Any]:
        definitions = iter_shown(self._reader, self.definitions_of(place.gid))
        return {
            **group_document(group),
            "definitions": [self._whole_definition(each, group) for each in definitions if each.default is not None],
        }
