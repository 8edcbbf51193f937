"""Unknown attributes that are likely slips of known ones; the attributes that are known, and the rules of lint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from catalog.definitions.candidates import Subject
from catalog.dialects.reading import MAX_ID
from catalog.findings import SourceLocation
from catalog.model import Finding, Severity
from catalog.parsing.nearest import nearest
from catalog.parsing.texts import parse_text
from catalog.protocols.properties import squash

# Unknown attributes that are likely slips of known ones, and known ones at a level where they mean nothing.
#
# Extension attributes are allowed everywhere, so an unknown name is only remarked upon when a known one is near.

# The attributes that the dialects know, by level of a document; all else is an extension, which 1.0 allows.


@dataclass(frozen=True, slots=True)
class DocumentLevel:
    """One kind of object in a document.

    ``what`` names it in messages, ``names`` are its attributes in lower case, ``holds`` its collections with the kind
    of their members. ``elsewhere`` are attributes of other levels that mean nothing here, and where they belong.
    """

    what: str
    names: frozenset[str]
    holds: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)


_CORE: Final = frozenset(
    """
    id self shortself xid xref epoch name description documentation docs icon labels tags createdat modifiedat createdby
    createdon modifiedby modifiedon deprecated version versionid isdefault ancestor ancestorid contenttype readonly
    compatibility compatibilityauthority defaultversionid defaultversionurl defaultversionsticky meta metaurl metauri
    versions versionsurl versionsuri versionscount origin type $schema $id $comment
    """.split()
)
_GROUP_SELECTORS: Final = frozenset({"envelope", "protocol", "format", "binding"})
_SCHEMA_ATTRIBUTES: Final = frozenset(
    """
    dataschema dataschemaformat dataschemauri dataschemaurl dataschemaxid datacontenttype schema schemaformat schemauri
    schemaurl
    """.split()
)
_BASES: Final = frozenset({"basemessage", "basemessageuri", "basemessageurl", "basemessagexid"})

_MESSAGES: Final = ("messages", "definitions", "messagedefinitions")


def _collection(*names: str) -> frozenset[str]:
    """Return the names of collections with those of their addresses and counts."""
    return frozenset(name + suffix for name in names for suffix in ("", "url", "uri", "count"))


_OF_MESSAGES: Final = dict.fromkeys(
    ("protocoloptions", "protocolmetadata", "envelopemetadata", "envelopeoptions", "dataschemaformat", "basemessage"),
    "messages",
)
LEVELS: Final[Mapping[str, DocumentLevel]] = {
    "registry": DocumentLevel(
        "a registry",
        _CORE
        | {"specversion", "registryid", "capabilities", "model", "modelsource"}
        | _collection("messagegroups", "endpoints", "schemagroups", "definitiongroups", "groups"),
        {
            "messagegroups": "group",
            "groups": "group",
            "definitiongroups": "group",
            "endpoints": "endpoint",
            "schemagroups": "schemagroup",
        },
        {"messages": "message groups", "schemas": "schema groups"},
    ),
    "group": DocumentLevel(
        "a message group",
        _CORE | _GROUP_SELECTORS | {"messagegroupid", "definitiongroupid"} | _collection(*_MESSAGES),
        dict.fromkeys(_MESSAGES, "message"),
        _OF_MESSAGES,
    ),
    "endpoint": DocumentLevel(
        "an endpoint",
        _CORE
        | _GROUP_SELECTORS
        | {"endpointid", "usage", "channel", "deployed", "endpoints", "config", "options", "authorization", "strict"}
        | {"envelopeoptions", "protocoloptions", "protocolmetadata"}
        | _collection("messagegroups", "definitiongroups", *_MESSAGES),
        dict.fromkeys(_MESSAGES, "message"),
        {"envelopemetadata": "messages", "dataschemaformat": "messages", "basemessage": "messages"},
    ),
    "message": DocumentLevel(
        "a message",
        _CORE
        | _GROUP_SELECTORS
        | _SCHEMA_ATTRIBUTES
        | _BASES
        | {"messageid", "definitionid", "uri", "metadata", "definition", "config"}
        | {"envelopemetadata", "envelopeoptions", "protocoloptions", "protocolmetadata"},
        {"versions": "message"},
        {"usage": "endpoints", "messagegroups": "endpoints"},
    ),
    "property": DocumentLevel(
        "a property", frozenset({"name", "type", "value", "required", "description", "specurl", "specuri", "default"})
    ),
    "schemagroup": DocumentLevel(
        "a schema group", _CORE | {"schemagroupid", "format"} | _collection("schemas"), {"schemas": "schema"}
    ),
    "schema": DocumentLevel(
        "a schema",
        _CORE | {"schemaid", "format", "validation", "schema", "schemauri", "schemaurl", "schemabase64", "uri"},
        {"versions": "version"},
    ),
    "version": DocumentLevel(
        "a schema version",
        _CORE | {"schemaid", "format", "validation", "schema", "schemauri", "schemaurl", "schemabase64", "uri"},
    ),
}


Body = tuple[Mapping[str, Any], SourceLocation, str | int]
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


def _walk(subject: Subject, node: Mapping[str, Any], place: SourceLocation, level: str) -> None:
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


def _name(subject: Subject, name: str, holder: SourceLocation, level: str) -> None:
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


def _envelope(subject: Subject, message: Mapping[str, Any], place: SourceLocation) -> Iterator[Body]:
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


def _options(message: Mapping[str, Any], place: SourceLocation) -> Iterator[Body]:
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


# Every rule that a finding can name: what it says, why that matters, and where it comes from.
#
# The table is ``rules.yaml``, the one place for it: ``check --explain``, SARIF and ``catalog/RULES.md`` are made from
# it, and a test holds that nothing reports a rule, or a severity, that is not in there.

TABLE: Final = Path(__file__).with_name("rules.yaml")
_PAGE: Final = re.compile(r"\w+/([A-Z]+\.md(?:#[a-z-]+)?)")
"""A page of this project, as ``basis`` names it: by its path in the repository."""
_HEAD: Final = """\
# Rules of lint

What `xrouter check` can say, made from `catalog/linting/rules.yaml` (`python -m tests.support.rules_page` writes this
page anew). `xrouter check --explain RULE` explains one of them. An *error* is something that cannot be used; a
*warning* something that is used, and is unusual or will not do what it seems to; an *info* something that is right and
worth knowing. Where a rule has two severities, the usual one comes first.

An error marked *idle* says that something never receives, never matches or never validates, or that a reference leads
nowhere. `check` ends with 1. All else works and what is named may come later, so `run`, a reload, a registry and
`catalog push` accept the catalog all the same. A reload after which a source has no candidate left is refused all the
same (deploy/OPERATIONS.md#reload).
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``severities`` are those it reports with, the usual one first.

    ``doc`` says in one sentence what was found, ``why`` what comes of it, ``basis`` which text asks for it: a section
    of this project's pages, mostly of ``router/JUDGING.md``, or of a specification. The errors of an ``idle`` rule
    leave something without effect, which is a reason for ``check`` to fail and none to refuse a changed catalog.
    """

    id: str
    family: str
    severities: tuple[Severity, ...]
    doc: str
    why: str
    basis: str
    idle: bool = False

    @property
    def severity(self) -> Severity:
        """The usual severity."""
        return self.severities[0]


@cache
def rules() -> Mapping[str, Rule]:
    """Return all rules by id, family by family."""
    tree = parse_text(TABLE.name, TABLE.read_bytes()).tree
    return MappingProxyType(
        {
            name: Rule(
                name,
                family,
                tuple(body["severities"]),
                body["doc"],
                body["why"],
                body["basis"],
                body.get("idle", False),
            )
            for family, members in tree.items()
            for name, body in members.items()
        }
    )


def refusing(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the errors for which a changed catalog is refused: those of rules that are not idle."""
    return tuple(
        each for each in findings if each.severity == "error" and not (each.rule in rules() and rules()[each.rule].idle)
    )


def explanation(rule: Rule) -> str:
    """Return what ``check --explain`` says of a rule, as plain text of four lines."""
    return "\n".join((f"{rule.id} ({' or '.join(_severities(rule))})", rule.doc, rule.why, f"Basis: {rule.basis}"))


def page() -> str:
    """Return ``catalog/RULES.md``."""
    lines = [_HEAD]
    for family, members in groupby(rules().values(), key=lambda rule: rule.family):
        lines += [
            f"## {family}",
            "",
            "| Rule | Severity | What was found | What comes of it | Basis |",
            "|---|---|---|---|---|",
        ]
        for rule in members:
            basis = _PAGE.sub(r"[\1](../\g<0>)", rule.basis)
            cells = (f"`{rule.id}`", ", ".join(_severities(rule)), rule.doc, rule.why, basis)
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _severities(rule: Rule) -> tuple[str, ...]:
    return tuple(f"{each} (idle)" if rule.idle and each == "error" else each for each in rule.severities)
