"""Documents of Message Catalog 0.1 as attributes of the core: read by the catalog's reader of that dialect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from catalog.dialects.detection import MESSAGE_CATALOG
from catalog.dialects.messages import read_message
from catalog.dialects.messagesections import CONTENT, SELECTORS, format_of, written
from catalog.dialects.reading import DocumentReader, Format, read_format
from catalog.findings import Declarations, Findings, SourceLocation
from catalog.model import CLOUDEVENTS
from registry.core.lineage import number_of
from registry.errors import Refusal, invalid
from registry.model.attributes import ModelAttribute, fault_of
from registry.store.entities import GroupEntity, Version

# Entities of the store as documents of Message Catalog 0.1.
#
# What 0.1 has no word for stands beside the rest under its own name, as section 2.2.4 permits: a document that is taken
# in again gives what it came from.

SPECVERSION: Final = "0.1"
LONG_TEXT: Final = "documentationtext"
"""Where documentation is kept that is no URL: 0.1 has text there, 1.0 has a URL."""
COMMON: Final = ("description", "documentation", "tags", "relatedto", "relatedvia", "relation")
"""What 0.1 says of a definition beside its id, format and authority."""
OWN: Final = frozenset((*CONTENT, *SELECTORS, "definition"))
"""Attributes of 1.0 that are the content of a version."""
_LAST: Final = ("version", "createdtimeutc", "definition")


def shown_group(group: GroupEntity) -> dict[str, Any]:
    """Return a group without its definitions; one that core writers gave no format has none."""
    given = dict(group.attributes)
    form = format_of(given.pop("envelope", None), protocol := given.pop("protocol", None))
    if group.attributes.get("envelope") is not None and protocol is not None:
        given["protocol"] = protocol
    shown: dict[str, Any] = {"id": group.id, "specversion": SPECVERSION, **({"format": form} if form else {})}
    shown |= _described(given)
    return {**shown, **given, "createdtimeutc": group.createdat, "updatedtimeutc": group.modifiedat}


def shown_version(name: str, version: Version, group: GroupEntity, authority: str) -> dict[str, Any]:
    """Return a version of the definition *name* by itself; *authority* is that of definitions that name none."""
    given = dict(version.attributes)
    text = written({key: value for key, value in given.items() if key in OWN})
    given = {key: value for key, value in given.items() if key not in OWN}
    form = text.format or format_of(group.attributes.get("envelope"), group.attributes.get("protocol"))
    number = number_of(version.id)
    own = given.pop("authority", None)
    shown: dict[str, Any] = {"id": name, "specversion": SPECVERSION, "authority": own or authority}
    shown |= {"format": form} if form else {}
    shown |= _described(given)
    shown |= {"version": version.id if number is None else number, "createdtimeutc": version.createdat}
    return {**shown, **given, **text.beside, "definition": text.definition}


def shown_definition(versions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a definition with versions that were shown singly, the latest last: what it has is common to them.

    A version has what differs from that.
    """
    listed = list(versions)
    common = {key: value for key, value in listed[-1].items() if key not in _LAST}
    own: list[dict[str, Any]] = []
    for each in listed:
        less = {key: value for key, value in each.items() if key in _LAST or common.get(key, value) != value}
        less |= {key: value for key, value in each.items() if key not in common}
        own.append({**less, **{key: None for key in common if key not in each}})
    return {**common, "versions": own}


def _described(given: dict[str, Any]) -> dict[str, Any]:
    """Take what 0.1 has words for out of *given*."""
    text = given.pop(LONG_TEXT, None)
    attributes: dict[str, Any] = {name: given.pop(name) for name in COMMON if name in given}
    return {**attributes, "documentation": text} if text is not None else attributes


_URL: Final = ModelAttribute("documentation", "url")
_URI: Final = ModelAttribute("authority", "uriabsolute")
_IDS: Final = frozenset(("id", "specversion"))
_SERVED: Final = frozenset(
    (
        *("epoch", "self", "shortself", "xid", "createdat", "modifiedat", "isdefault", "ancestorid", "versionid"),
        *("messageid", "messagegroupid", "meta", "metaurl", "versions", "versionsurl", "versionscount"),
        *("messages", "messagesurl", "messagescount", "createdtimeutc", "updatedtimeutc"),
    )
)
"""Members that only a server gives: they are not taken, whatever they say."""
_LISTS: Final = ("definitions", "messagedefinitions")


def group_attributes(body: Mapping[str, Any], name: str, known: GroupEntity | None) -> dict[str, Any]:
    """Return the attributes of a group, with None for those of 0.1 that the body does not have.

    Raises:
        Refusal: something is missing or invalid.
    """
    check_identity(body, name, f"/{name}")
    given = {key: value for key, value in body.items() if key not in (*_IDS, *_SERVED, *_LISTS, "format")}
    form = body.get("format")
    if form is None and known is None:
        raise Refusal("required_attribute_missing", f"/{name}", list="format")
    if form is not None:
        given |= _selectors({"format": form, "protocol": given.pop("protocol", None)}, f"/{name}")
    return {**dict.fromkeys(("description", "tags")), **given, **_documented(body, f"/{name}")}


def definitions_of(body: Mapping[str, Any], subject: str) -> list[Mapping[str, Any]]:
    """Return the definitions that a group's document has.

    Raises:
        Refusal: they are no list of objects.
    """
    definitions: list[Mapping[str, Any]] = []
    for name in _LISTS:
        listed = body.get(name) if body.get(name) is not None else []
        if not isinstance(listed, list) or not all(isinstance(each, Mapping) for each in listed):
            raise invalid(subject, name, "needs to be a list of objects")
        definitions += listed
    return definitions


def versions_in(body: Mapping[str, Any], subject: str) -> Iterator[Mapping[str, Any]]:
    """Yield the versions that a definition's document has, each with what is common; or the one that it is.

    Raises:
        Refusal: they are no list of objects, or there are none.
    """
    if "versions" not in body:
        yield body
        return
    listed = body["versions"]
    if not isinstance(listed, list) or not listed or not all(isinstance(each, Mapping) for each in listed):
        raise invalid(subject, "versions", "needs to be a list of objects, and not empty")
    common = {name: value for name, value in body.items() if name not in ("versions", "version", "definition")}
    for each in listed:
        for name in ("id", "format"):
            if name in each and name in common and each[name] != common[name]:
                raise invalid(subject, name, "needs to be the same in all versions")
        yield {**common, **each}


def version_attributes(body: Mapping[str, Any], name: str, group: GroupEntity, subject: str) -> dict[str, Any]:
    """Return the attributes of a version of the definition *name*; those that the body sets to null are None.

    Raises:
        Refusal: something is missing or invalid.
    """
    check_identity(body, name, subject)
    content = body.get("definition")
    if not isinstance(content, Mapping):
        raise Refusal("required_attribute_missing", subject, list="definition")
    findings = Findings()
    reader = DocumentReader(MESSAGE_CATALOG, Declarations(), findings)
    form = read_format({name: group.attributes.get(name) for name in SELECTORS}, SourceLocation(subject), _silent())
    document = _formatted(body, form, subject)
    *_, message = read_message(subject, "", document, SourceLocation(subject), form, reader)
    wrong = next((each for each in findings.sorted() if _is_wrong(each.severity, each.rule)), None)
    if wrong is not None:
        raise invalid(subject, wrong.pointer.lstrip("/") or "definition", wrong.message)
    attributes = {**message.attributes, **({"basemessage": message.base} if message.base is not None else {})}
    given = {key: value for key, value in message.other.items() if key not in (*_IDS, *_SERVED, "version")}
    given |= {key: None for key, value in body.items() if value is None and key not in (*_IDS, *_SERVED, "version")}
    _check_texts(given, subject)
    if "documentation" in body:
        given |= _documented(body, subject)
    if attributes.get("envelope") not in (None, CLOUDEVENTS) and attributes.get("protocol") is None:
        attributes = {key: value for key, value in attributes.items() if key != "envelopemetadata"}
        attributes["definition"] = dict(content)  # of a format defined elsewhere: it stays as it was written
    if attributes.get("envelope") == CLOUDEVENTS and "basemessage" not in attributes:
        _check_event(attributes, name, subject)
    return {**given, **attributes}


def check_identity(body: Mapping[str, Any], name: str, subject: str) -> None:
    """Make sure that a document is what its place says.

    Raises:
        Refusal: its id or the version of the specification is another.
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
        raise invalid(subject, "format", "needs to be a text that is not empty")
    read = read_format(holder, SourceLocation(subject), _silent())
    selectors = {"envelope": read.envelope, "protocol": read.protocol}
    return {name: value for name, value in selectors.items() if value is not None}


def _silent() -> DocumentReader:
    return DocumentReader(MESSAGE_CATALOG, Declarations(), Findings())


def _formatted(body: Mapping[str, Any], form: Format, subject: str) -> dict[str, Any]:
    """Return a definition without its versions, whose format is that of its group, if that has one."""
    document = {key: value for key, value in body.items() if key != "versions"}
    wanted = format_of(form.envelope, form.protocol)
    if document.get("format") is not None:
        given = _selectors({"format": document["format"]}, subject)
        if wanted and format_of(given.get("envelope"), given.get("protocol")) != wanted:
            raise Refusal("conflict", subject, error_detail=f"the format of the group is {wanted}")
    if not wanted:
        return document
    alone = document.get("protocol") is None and document.get("envelope") is None
    document.pop("format", None)
    return document if alone else {**document, "format": wanted}


def _is_wrong(severity: str, rule: str) -> bool:
    """Tell whether 0.1 forbids what a finding names: fields of AMQP, MQTT and NATS are not extensible (section 3)."""
    return severity == "error" or rule == "unknown-option"


def _check_texts(given: Mapping[str, Any], subject: str) -> None:
    for name in (*COMMON, "authority"):
        if given.get(name) is not None and not isinstance(given[name], str):
            raise invalid(subject, name, "needs to be a text")
    if given.get("authority") and (why := fault_of(given["authority"], _URI)):
        raise invalid(subject, "authority", why)


def _check_event(attributes: Mapping[str, Any], name: str, subject: str) -> None:
    """Check an event against section 3.2.1: it has a type, which is its id."""
    kind = attributes.get("envelopemetadata", {}).get("type")
    value = kind.get("value") if isinstance(kind, dict) else kind
    if value is None:
        raise Refusal("required_attribute_missing", subject, list="definition.attributes.type")
    if value != name:
        raise invalid(subject, "definition.attributes.type", f"needs to be the id of the definition, {name}")


def _documented(body: Mapping[str, Any], subject: str) -> dict[str, Any]:
    """Return documentation as the core keeps it: a URL under its name, any other text beside it."""
    text = body.get("documentation")
    if text is not None and not isinstance(text, str):
        raise invalid(subject, "documentation", "needs to be a text")
    url = bool(text) and not fault_of(text, _URL)
    return {"documentation": text if url else None, LONG_TEXT: None if url else text}
