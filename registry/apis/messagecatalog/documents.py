"""Conversion between stored entities and documents of Message Catalog 0.1, and reading of catalogs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal
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
from registry.core.views import ShownResource, iter_shown
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
        listed = body.get(name) if body.get(name) is not None else []
        if not isinstance(listed, list) or not all(isinstance(each, Mapping) for each in listed):
            raise invalid_value(subject, name, "must be a list of objects")
        definitions += listed
    return definitions


def iter_versions_in(body: Mapping[str, Any], subject: str) -> Iterator[Mapping[str, Any]]:
    """Yield the versions in a definition's document with common attributes; or the document itself as a version.

    Raises:
        Refusal: they are not a list of objects, or the list is empty.
    """
    if "versions" not in body:
        yield body
        return
    listed = body["versions"]
    if not isinstance(listed, list) or not listed or not all(isinstance(each, Mapping) for each in listed):
        raise invalid_value(subject, "versions", "must be a non-empty list of objects")
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
    wrong = next((each for each in findings.sorted() if _is_error(each.severity, each.rule)), None)
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


def _is_error(severity: str, rule: str) -> bool:
    """Whether a finding is an error in 0.1: fields of AMQP, MQTT and NATS are not extensible (section 3)."""
    return severity == "error" or rule == "unknown-option"


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


# Reading groups, definitions, versions, and lists of them.

# Paths (section 4.1), and URIs of versions (section 2.2.2).

Kind = Literal["catalog", "group", "definitions", "definition", "versions", "version"]
GROUPS: Final = "messagegroups"
MESSAGES: Final = "messages"
DEFINITIONS: Final = "messagedefinitions"
VERSIONS: Final = "versions"
_SEGMENT: Final = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2}){1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class CatalogPath:
    """A parsed path; ids below it are ''."""

    kind: Kind
    group: str = ""
    definition: str = ""
    version: str = ""

    @property
    def segments(self) -> tuple[str, ...]:
        """The path in the core API."""
        named: tuple[str, ...] = (GROUPS,)
        if self.group:
            named = (*named, self.group)
        if self.kind == "definitions" or self.definition:
            named = (*named, MESSAGES)
        if self.definition:
            named = (*named, self.definition)
        if self.kind in ("versions", "version"):
            named = (*named, VERSIONS)
        return (*named, self.version) if self.version else named

    @property
    def xid(self) -> str:
        """The xid in the core API, or the path of a collection."""
        return "/" + "/".join(self.segments)

    @property
    def path(self) -> str:
        """The path below the catalog: '' or with a leading slash."""
        parts = [self.group]
        if self.kind != "group" and self.group:
            parts.append(DEFINITIONS)
        parts.append(self.definition)
        if self.kind in ("versions", "version"):
            parts.append(VERSIONS)
        parts.append(self.version)
        return "".join(f"/{quote(part, safe='@:!$&()*+,;=~')}" for part in parts if part)

    def child_path(self, kind: Kind, *, definition: str = "", version: str = "") -> CatalogPath:
        """Return a path below, in the same group."""
        return CatalogPath(kind, self.group, definition or self.definition, version)


def parse_catalog_path(path: bytes) -> CatalogPath:
    """Parse the raw path below the catalog.

    Raises:
        Refusal: there is no such path.
    """
    text = decode_text(path, "/")
    parts = [decode_text(part, text) for part in path.split(b"/")]
    if parts and not parts[0]:
        parts = parts[1:]
    if parts and not parts[-1]:
        parts = parts[:-1]
    if not parts:
        return CatalogPath("catalog")
    if not all(parts) or len(parts) > 5 or any("/" in part for part in parts):
        raise Refusal("api_not_found", text)
    if len(parts) == 1:
        return CatalogPath("group", parts[0])
    if parts[1] != DEFINITIONS or (len(parts) > 3 and parts[3] != VERSIONS):
        raise Refusal("api_not_found", text)
    kinds: tuple[Kind, ...] = ("definitions", "definition", "versions", "version")
    return CatalogPath(kinds[len(parts) - 2], parts[0], *parts[2:3], *parts[4:5])


def check_new_id(name: object, subject: str) -> str:
    """Return *name*, which must be valid as a new id.

    Raises:
        Refusal: it is not a ``segment-nz-nc`` of RFC 3986; the core checks the rest.
    """
    if not isinstance(name, str) or not _SEGMENT.fullmatch(name):
        why = "it must be an RFC 3986 path segment without colon, of at most 128 characters"
        raise Refusal("malformed_id", subject, id=str(name), error_detail=why)
    return name


def split_uri(uri: str) -> tuple[str, CatalogPath] | None:
    """Split a version's URI into authority and path; None if it is not one."""
    head, marker, tail = uri.rpartition(f"/{DEFINITIONS}/")
    parts = tail.split("/")
    cut = max(head.rfind("/"), head.rfind(":") if head.lower().startswith("urn:") else -1)
    if not marker or cut <= 0 or not head[cut + 1 :]:
        return None
    try:
        target = parse_catalog_path(f"/{head[cut + 1 :]}/{DEFINITIONS}/{tail}".encode())
    except Refusal:
        return None
    return (head[:cut], target) if len(parts) in (1, 3) and target.kind in ("definition", "version") else None


FILTERS: Final = ("id", "format", "description", "tags", "authority", "relatedto", "relation")
"""Attributes by which lists can be filtered, as query parameters."""


@dataclass(frozen=True, slots=True)
class ListRequest:
    """A page of a list: maximum number of entries, cursor, filters, and maximum size of the JSON."""

    limit: int
    after: str
    filters: Mapping[str, str]
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Representation:
    """The content of a response, its ETag, and in ``after`` the cursor of the next page; '' for none."""

    body: Any
    etag: str = ""
    after: str = ""


class CatalogReader:
    """Reads within one transaction; *authority* is the default authority of definitions. All methods raise Refusal."""

    def __init__(self, session: RegistrySession, authority: str) -> None:
        self._session = session
        self._reader = session.reader
        self._authority = authority

    def list_groups(self, page: ListRequest, *, whole: bool) -> Representation:
        """List groups; with *whole* including all definitions."""
        left = _ResponseBudget(page.max_bytes)
        show = (lambda each: self._whole_group(each, left)) if whole else group_document
        entries = ((each.id, show(each)) for each in self._reader.iter_groups(f"/{GROUPS}", page.after))
        return _list_page(entries, page, left, "/")

    def show_group(self, target: CatalogPath, weight: int, *, whole: bool) -> Representation:
        """Show a group; with *whole* including all definitions."""
        group = self.find_group(target)
        if whole:
            return Representation(self._whole_group(group, _ResponseBudget(weight)))
        return Representation(group_document(group), f'"{group.epoch}"')

    def list_definitions(self, target: CatalogPath, page: ListRequest) -> Representation:
        """List the latest versions of a group's definitions."""
        group = self.find_group(target)
        left = _ResponseBudget(page.max_bytes)
        entries = (
            (each.resource.id, version_document(each.resource.id, latest, group, self._authority))
            for each in iter_shown(self._reader, self._core_path(target.child_path("definitions")), page.after)
            if (latest := self._latest_of(each)) is not None
        )
        return _list_page(entries, page, left, target.path)

    def show_definition(self, target: CatalogPath, weight: int, *, whole: bool) -> Representation:
        """Show the latest version of a definition; with *whole* the definition with all versions."""
        group, shown = self.find_group(target), self.find_definition(target)
        latest = self._latest_of(shown)
        if latest is None or shown.source is None:
            raise Refusal("not_found", target.path)
        if whole:
            return Representation(self._whole_definition(shown, group, _ResponseBudget(weight)))
        body = version_document(target.definition, latest, group, self._authority)
        return Representation(body, f'"{shown.source.epoch}-{latest.epoch}"')

    def list_versions(self, target: CatalogPath, page: ListRequest) -> Representation:
        """List the versions of a definition, by number."""
        group, shown = self.find_group(target), self.find_definition(target)
        listed = self._sorted_versions(shown)
        start = next((at for at, each in enumerate(listed, 1) if each.id == page.after), 0) if page.after else 0
        entries = (
            (each.id, version_document(target.definition, each, group, self._authority)) for each in listed[start:]
        )
        return _list_page(entries, page, _ResponseBudget(page.max_bytes), target.path, folded=False)

    def show_version(self, target: CatalogPath) -> Representation:
        """Show one version."""
        group, shown = self.find_group(target), self.find_definition(target)
        version = (
            self._reader.version(f"{shown.source.versions}/{target.version}") if shown.source is not None else None
        )
        if version is None:
            raise Refusal("not_found", target.path)
        return Representation(
            version_document(target.definition, version, group, self._authority), f'"{version.epoch}"'
        )

    def find_definition(self, target: CatalogPath) -> ShownResource:
        """Return a definition, with the target of its ``xref``."""
        place = self._core_path(target.child_path("definitions"))
        shown = next(iter_shown(self._reader, place, "", target.definition), None)
        if shown is None:
            raise Refusal("not_found", target.path)
        return shown

    def find_group(self, target: CatalogPath) -> GroupEntity:
        """Return the group of a path.

        Raises:
            Refusal: it does not exist.
        """
        group = self._reader.group(f"/{GROUPS}/{target.group}")
        if group is None:
            raise Refusal("not_found", f"/{target.group}")
        return group

    def latest_version(self, target: CatalogPath) -> Version | None:
        """Return the latest version of a definition, None if it does not exist."""
        try:
            return self._latest_of(self.find_definition(target))
        except Refusal:
            return None

    def iter_formats(self, target: CatalogPath) -> Iterator[str]:
        """Yield the formats of the latest versions of a group's definitions."""
        group = self.find_group(target)
        for each in iter_shown(self._reader, self._core_path(target.child_path("definitions"))):
            latest = self._latest_of(each)
            if latest is not None:
                yield str(version_document(each.resource.id, latest, group, self._authority).get("format", ""))

    def _core_path(self, target: CatalogPath) -> ResourcePath:
        return parse_resource_path(self._session.model, target.segments, target.path)

    def _sorted_versions(self, shown: ShownResource) -> list[Version]:
        if shown.source is None:
            return []
        return sorted(self._reader.iter_versions(shown.source.versions), key=lambda each: version_sort_key(each.id))

    def _latest_of(self, shown: ShownResource) -> Version | None:
        """Return the latest version, which may differ from the core's default version."""
        if shown.count < 2:
            return shown.default
        return self._sorted_versions(shown)[-1]

    def _whole_definition(self, shown: ShownResource, group: GroupEntity, budget: _ResponseBudget) -> dict[str, Any]:
        versions = self._sorted_versions(shown)
        texts = [version_document(shown.resource.id, each, group, self._authority) for each in versions]
        definition = definition_document(texts)
        budget.spend(definition, f"/{group.id}/{DEFINITIONS}/{shown.resource.id}")
        return definition

    def _whole_group(self, group: GroupEntity, budget: _ResponseBudget) -> dict[str, Any]:
        target = CatalogPath("definitions", group.id)
        definitions = [
            self._whole_definition(each, group, budget)
            for each in iter_shown(self._reader, self._core_path(target))
            if each.default is not None
        ]
        return {**group_document(group), "definitions": definitions}


class _ResponseBudget:
    """Limits the size of one response."""

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes

    def spend(self, entry: Any, path: str) -> None:
        self._left -= len(msgspec.json.encode(entry))
        if self._left < 0:
            raise Refusal("too_large", path)


def _list_page(
    entries: Iterator[tuple[str, dict[str, Any]]],
    page: ListRequest,
    budget: _ResponseBudget,
    path: str,
    *,
    folded: bool = True,
) -> Representation:
    def matches_filters(each: Mapping[str, Any]) -> bool:
        return all(str(each.get(name, "")) == value for name, value in page.filters.items())

    chosen = list(islice(((name, each) for name, each in entries if matches_filters(each)), page.limit + 1))
    shown = chosen[: page.limit]
    for _, each in shown:
        budget.spend(each, path)
    last = shown[-1][0] if len(chosen) > page.limit else ""
    return Representation([each for _, each in shown], after=last.lower() if folded else last)
