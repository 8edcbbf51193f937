"""Unknown attributes that are likely slips of known ones, and known ones at a level where they mean nothing.

Extension attributes are allowed everywhere, so an unknown name is only remarked upon when a known one is near.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from catalog.declared import Place
from catalog.definitions.subject import Subject
from catalog.dialects.declaring import MAX_ID
from catalog.linting.known_names import LEVELS
from catalog.parsing.nearest import nearest
from catalog.protocols.properties import squash

Body = tuple[Mapping[str, Any], Place, str | int]
"""What an object holds, the place of its holder, and its own key therein."""
_CLOUDEVENTS: Final = ("specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema")
_NESTING_OPTIONS: Final = frozenset(
    {
        *("headers", "query", "userproperties", "properties", "applicationproperties", "messageannotations"),
        *("deliveryannotations", "header", "footer"),
    }
)
"""Options that hold several properties, as squashed names."""


def attributes(subject: Subject) -> None:
    """Look at the names of all attributes of all documents, of dialects whose attributes are all known."""
    for document in subject.documents:
        dialect = subject.dialects.get(document.file)
        if dialect is not None and dialect.checks_attributes:
            _walk(subject, document.tree, document.root, "registry")


def _walk(subject: Subject, node: Mapping[str, Any], place: Place, level: str) -> None:
    for name, value in node.items():
        _name(subject, name, place, level)
        kind = LEVELS[level].holds.get(name.lower())
        if kind is not None and isinstance(value, dict):
            for key, member in value.items():
                if isinstance(member, dict) and len(key) <= MAX_ID:
                    _walk(subject, member, place / name / key, kind)
    if level == "message":
        for body, at, key in (*_envelope(subject, node, place), *_options(node, place)):
            for name in body:
                if _misplaced(name, "property") is not None:
                    _name(subject, name, at / key, "property")


def _name(subject: Subject, name: str, holder: Place, level: str) -> None:
    warning = _misplaced(name, level)
    if warning is not None:
        subject.findings.warning(holder / name, "unknown-attribute", *warning)


@lru_cache(maxsize=4096)
def _misplaced(name: str, level: str) -> tuple[str, str] | None:
    """Return message and hint for an attribute name at a level; None when there is nothing to say."""
    here = LEVELS[level]
    if name.lower() in here.names:
        return None
    belongs = here.elsewhere.get(name.lower())
    if belongs is not None:
        return f"{name} of {here.what} means nothing; it is ignored", f"move it to the {belongs}"
    meant = nearest(name, here.names)
    if meant is None:
        return None
    return f"{here.what} has no attribute {name}; it is ignored", f"did you mean {meant}?"


def _envelope(subject: Subject, message: Mapping[str, Any], place: Place) -> Iterator[Body]:
    """Give the bodies of envelope attributes, and report names that are likely slips of CloudEvents' own."""
    for holder in ("envelopemetadata", "metadata"):
        attributes: Any = message.get(holder)
        at = place / holder
        if isinstance(attributes, dict) and isinstance(attributes.get("attributes"), dict):
            attributes, at = attributes["attributes"], at / "attributes"
        elif holder == "metadata":
            continue  # what it holds depends on the format; options are checked against their protocol
        for name, body in attributes.items() if isinstance(attributes, dict) else ():
            meant = _attribute(name)
            if meant is not None and meant not in attributes:
                text = f"{name} is an extension attribute, close to {meant} of CloudEvents"
                subject.findings.warning(at / name, "unknown-attribute", text, f"did you mean {meant}?")
            if isinstance(body, dict):
                yield body, at, name


@lru_cache(maxsize=4096)
def _attribute(name: str) -> str | None:
    """Return the CloudEvents attribute that a name is a slip of; one that merely contains it is a name of its own."""
    if name in _CLOUDEVENTS or any(known in name for known in _CLOUDEVENTS if known != "id"):
        return None
    return nearest(name, (known for known in _CLOUDEVENTS if known != "id"))


def _options(message: Mapping[str, Any], place: Place) -> Iterator[Body]:
    """Give the bodies of protocol options that are written as objects."""
    for holder in ("protocoloptions", "protocolmetadata"):
        options = message.get(holder)
        for name, value in options.items() if isinstance(options, dict) else ():
            if squash(name) not in _NESTING_OPTIONS:
                if isinstance(value, dict):
                    yield value, place / holder, name
                continue
            at = place / holder / name
            entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
            for key, body in entries:
                if isinstance(body, dict):
                    yield body, at, key
