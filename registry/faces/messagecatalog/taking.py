"""Documents of Message Catalog 0.1 as attributes of the core: read by the catalog's reader of that dialect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from catalog.declared import Declarations, Place
from catalog.dialects.message_catalog import MESSAGE_CATALOG
from catalog.dialects.messages import read_message
from catalog.dialects.messagewriting import SELECTORS, format_of
from catalog.dialects.names import DocumentReader
from catalog.dialects.reading import Format, read_format
from catalog.findings import Findings
from catalog.model import CLOUDEVENTS
from registry.errors import Refusal, invalid
from registry.faces.messagecatalog.showing import COMMON, LONG_TEXT, SPECVERSION
from registry.model.attributes import Attribute
from registry.model.values import fault_of
from registry.store.entities import Group

_URL: Final = Attribute("documentation", "url")
_URI: Final = Attribute("authority", "uriabsolute")
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


def group_attributes(body: Mapping[str, Any], name: str, known: Group | None) -> dict[str, Any]:
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


def version_attributes(body: Mapping[str, Any], name: str, group: Group, subject: str) -> dict[str, Any]:
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
    form = read_format({name: group.attributes.get(name) for name in SELECTORS}, Place(subject), _silent())
    document = _formatted(body, form, subject)
    *_, message = read_message(subject, "", document, Place(subject), form, reader)
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
    read = read_format(holder, Place(subject), _silent())
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
