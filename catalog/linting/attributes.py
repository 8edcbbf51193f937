"""Known attributes, unknown ones that are probably misspelled, and the table of lint rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Final

import msgspec

from catalog.definitions.candidates import DeclaredProperty, Subject
from catalog.definitions.inheritance import option_location
from catalog.dialects.reading import MAX_ID
from catalog.findings import SourceLocation
from catalog.model import Definition, Endpoint, Finding, Severity
from catalog.parsing.nearest import find_nearest
from catalog.parsing.texts import read_table
from catalog.protocols.properties import (
    ROLES,
    TEXTUAL,
    ChannelOption,
    Role,
    channel_options,
    kafka_topic_fault,
    mqtt_filter_fault,
    nats_subject_fault,
    option_key,
    options_of,
    squash_name,
)
from catalog.templates import split_tokens
from catalog.values import is_websocket_address, parse_whole_number

# Attributes that are probably misspelled, and known ones at a level where they have no meaning.
#
# Extension attributes are allowed everywhere, so an unknown name is reported only if it is close to a known one.

# The known attributes, by kind of object; all others are extensions, which 1.0 allows.


@dataclass(frozen=True, slots=True)
class DocumentLevel:
    """One kind of object in a document.

    ``what`` is its name in messages, ``names`` are its attributes in lower case, ``holds`` its collections with the
    kind of their members. ``elsewhere`` are attributes without meaning here, with the level where they belong.
    """

    what: str
    names: frozenset[str] = frozenset()
    holds: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_names(self) -> frozenset[str]:
        """The attributes, with those of collections and those that all entities have."""
        common = () if self is _LEVELS["property"] else _LEVELS["common"].names
        return self.names.union(common, (f"{name}{end}" for name in self.holds for end in ("", "url", "uri", "count")))


_LEVELS: Final = read_table(__package__, "levels.yaml", dict[str, DocumentLevel])
Body = tuple[Mapping[str, Any], SourceLocation, str | int]
"""The object's content, the location of its parent, and its own key there."""
_CLOUDEVENTS: Final = ("specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema")
_NESTING_OPTIONS: Final = frozenset(
    {
        *("headers", "query", "userproperties", "properties", "applicationproperties", "messageannotations"),
        *("deliveryannotations", "header", "footer"),
    }
)
"""Options that contain several properties, as squashed names."""


def check_attributes(subject: Subject) -> None:
    """Check the names of all attributes of all documents whose dialect has a complete list of attributes."""
    for document in subject.documents:
        dialect = subject.dialects.get(document.file)
        if dialect is not None and dialect.checks_attributes:
            _check_object(subject, document.tree, document.root, "registry")


def _check_object(subject: Subject, node: Mapping[str, Any], place: SourceLocation, level: str) -> None:
    for name, value in node.items():
        _check_name(subject, name, place, level)
        kind = _LEVELS[level].holds.get(name.lower())
        if kind is not None and isinstance(value, dict):
            for key, member in value.items():
                if isinstance(member, dict) and len(key) <= MAX_ID:
                    _check_object(subject, member, place / name / key, kind)
    if level == "message":
        for body, at, key in (*_iter_attribute_bodies(subject, node, place), *_iter_option_bodies(node, place)):
            for name in body:
                if _find_misplaced(name, "property") is not None:
                    _check_name(subject, name, at / key, "property")


def _check_name(subject: Subject, name: str, holder: SourceLocation, level: str) -> None:
    warning = _find_misplaced(name, level)
    if warning is not None:
        subject.findings.warning(holder / name, "unknown-attribute", *warning)


@lru_cache(maxsize=4096)
def _find_misplaced(name: str, level: str) -> tuple[str, str] | None:
    """Return message and hint for an attribute name at a level; None if there is nothing to report."""
    here = _LEVELS[level]
    if name.lower() in here.all_names:
        return None
    belongs = here.elsewhere.get(name.lower())
    if belongs is not None:
        return f"{name} has no meaning in {here.what}; it is ignored", f"move it to the {belongs}"
    meant = find_nearest(name, here.all_names)
    if meant is None:
        return None
    return f"{here.what} has no attribute {name}; it is ignored", f"did you mean {meant}?"


def _iter_attribute_bodies(subject: Subject, message: Mapping[str, Any], place: SourceLocation) -> Iterator[Body]:
    """Yield the bodies of envelope attributes; report probably misspelled CloudEvents attributes."""
    for holder in ("envelopemetadata", "metadata"):
        attributes: Any = message.get(holder)
        at = place / holder
        if isinstance(attributes, dict) and isinstance(attributes.get("attributes"), dict):
            attributes, at = attributes["attributes"], at / "attributes"
        elif holder == "metadata":
            continue  # its contents depend on the format; options are checked with their protocol
        for name, body in attributes.items() if isinstance(attributes, dict) else ():
            meant = _find_misspelled(name)
            if meant is not None and meant not in attributes:
                text = f"{name} is an extension attribute with a name close to the CloudEvents attribute {meant}"
                subject.findings.warning(at / name, "unknown-attribute", text, f"did you mean {meant}?")
            if isinstance(body, dict):
                yield body, at, name


@lru_cache(maxsize=4096)
def _find_misspelled(name: str) -> str | None:
    """Return the CloudEvents attribute that a name probably misspells; None if there is none."""
    if name in _CLOUDEVENTS or any(known in name for known in _CLOUDEVENTS if known != "id"):
        return None
    return find_nearest(name, (known for known in _CLOUDEVENTS if known != "id"))


def _iter_option_bodies(message: Mapping[str, Any], place: SourceLocation) -> Iterator[Body]:
    """Yield the bodies of protocol options that are written as objects."""
    for holder in ("protocoloptions", "protocolmetadata"):
        options = message.get(holder)
        for name, value in options.items() if isinstance(options, dict) else ():
            if squash_name(name) not in _NESTING_OPTIONS:
                if isinstance(value, dict):
                    yield value, place / holder, name
                continue
            at = place / holder / name
            entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
            for key, body in entries:
                if isinstance(body, dict):
                    yield body, at, key


# The table of rules: what was found, why that matters, and which specification requires it.
#
# The table is ``rules.yaml``; ``check --explain``, SARIF and ``catalog/RULES.md`` are made from it. A test makes sure
# that only rules and severities of this table are reported.


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``severities`` are those it reports with, the usual one first.

    ``doc`` says in one sentence what was found, ``why`` what the consequence is, ``basis`` which text requires it: a
    section of this project's pages, mostly of ``router/MATCHING.md``, or of a specification. An error of an ``idle``
    rule leaves something without effect: ``check`` fails, but a changed catalog is not rejected.
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
        """Return the usual severity."""
        return self.severities[0]


@cache
def load_rules() -> Mapping[str, Rule]:
    """Return all rules by id, ordered by family."""
    tree = read_table(__package__, "rules.yaml", dict[str, dict[str, dict[str, Any]]])
    rows = [{"id": name, "family": family, **row} for family, members in tree.items() for name, row in members.items()]
    return {rule.id: rule for rule in msgspec.convert(rows, list[Rule])}


def rejecting_errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the errors that reject a changed catalog: those of rules that are not idle."""
    idle = {rule.id for rule in load_rules().values() if rule.idle}
    return tuple(each for each in findings if each.severity == "error" and each.rule not in idle)


def explain_rule(rule: Rule) -> str:
    """Return the output of ``check --explain`` for a rule: four lines of text."""
    return "\n".join((f"{rule.id} ({' or '.join(list_severities(rule))})", rule.doc, rule.why, f"Basis: {rule.basis}"))


def list_severities(rule: Rule) -> tuple[str, ...]:
    """Return the severities of a rule as they are shown."""
    return tuple(f"{each} (idle)" if rule.idle and each == "error" else each for each in rule.severities)


# Protocol options that can never match: wildcards, removed headers, and options that exclude each other.

_WILDCARD: Final = re.compile(r"[+#*>]")
_CHARACTERS: Final = re.compile(r"[+#]")
_TOKENS: Final = re.compile(r"(?<![^.])[*>](?![^.])")


def check_options(subject: Subject) -> None:
    """Check the protocol options of every definition, and the destinations that producers publish to."""
    for declared in subject.options():
        _check_wildcard(subject, declared)
        _check_stripped(subject, declared)
    for definition, _, base in subject.definitions():
        _check_exclusive(subject, definition, base)
    for endpoint in subject.catalog.endpoints.values():
        name = options_of(endpoint.protocol).publishes
        value = endpoint.options.get(name) if name else None
        if isinstance(value, str) and "producer" in endpoint.usage:
            place = subject.declarations.endpoints[endpoint.xid].place
            _report_wildcard(subject, endpoint.protocol, value, f"the {name} that {endpoint.xid} publishes to", place)


def _check_wildcard(subject: Subject, declared: DeclaredProperty) -> None:
    prop, protocol = declared.prop, declared.definition.protocol
    if prop.name in options_of(protocol).names and isinstance(prop.value, str) and _WILDCARD.search(prop.value):
        _report_wildcard(subject, protocol, prop.value, prop.name, declared.place)


def _report_wildcard(subject: Subject, protocol: str | None, value: str, what: str, place: SourceLocation) -> None:
    """Report a wildcard in the literal part of a name; if dots separate levels, only a whole level counts."""
    wildcards = _TOKENS if options_of(protocol).dotted else _CHARACTERS
    for text in split_tokens(value)[::2]:
        wildcard = wildcards.search(text)
        if wildcard is not None:
            message = f"{what} contains the wildcard {wildcard.group()}; no message can be published to such a name"
            hint = "use a placeholder such as {name} instead"
            subject.findings.warning(place, "publish-wildcard", message, hint)
            return


def _check_stripped(subject: Subject, declared: DeclaredProperty) -> None:
    prop = declared.prop
    withheld = options_of(declared.definition.protocol).withheld
    if prop.name.lower() in withheld and (prop.required or prop.value is not None):
        text = f"gateways remove {prop.name.split('.', 1)[1]} from every record, so the definition never matches"
        subject.findings.warning(
            declared.place, "never-received", text, "remove the constraint; gateways check the credentials"
        )


def _check_exclusive(subject: Subject, definition: Definition, base: Definition | None) -> None:
    pair = options_of(definition.protocol).exclusive
    if not pair:
        return
    given = {prop.name for prop in definition.protocoloptions if prop.value is not None or prop.required}
    inherited = {prop.name for prop in base.protocoloptions} if base is not None else set()
    if given.issuperset(pair) and not inherited.issuperset(pair):
        message = subject.declarations.messages[definition.xid]
        effective = subject.declarations.effective[definition.xid]
        written = (option_location(effective, name) for name in reversed(pair))
        place = next((at for at in written if at is not None), message.place)
        text = f"{pair[0]} and {pair[1]} exclude each other; no record has both"
        subject.findings.warning(place, "mutually-exclusive", text, f"keep {pair[0]} or {pair[1]}")


# The options of endpoints: unknown ones, invalid values, and what the router does not support.
#
# ``catalog/protocols/channel_options.yaml`` says how each option is used. The usage of an endpoint gives it roles: the
# router receives where others consume or subscribe, and sends where others produce.

OPTION_HOLDERS: Final = ("protocoloptions", "protocolmetadata", "config")
"""Members of an endpoint that contain its options, in all dialects."""
_USAGES: Final[Mapping[str, Role]] = {"consumer": "receives", "subscriber": "receives", "producer": "sends"}
_LOGINS: Final[Mapping[str, str]] = {
    "plain": "set username and password of the source or sink",
    "oauth2": "configure a token file that is kept fresh, or the Kafka client's own OAuth, in the settings",
    "x509cert": "set tls.cert and tls.key of the source or sink",
    "apikey": "set api_key of an HTTP sink",
}
Check = tuple[str, Callable[[Any], bool]]
_ADDRESSES: Final[Mapping[str, tuple[str, Callable[[str], str]]]] = {
    "filter": ("topic filter", mqtt_filter_fault),
    "subject": ("subject", nats_subject_fault),
    "topic": ("topic", kafka_topic_fault),
}
"""The kinds of address options, each with a function that returns why a text is invalid."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_whole_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_seconds(value: Any) -> bool:
    if isinstance(value, str):
        return bool(parse_whole_number(value))
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


_CHECKS: Final[Mapping[str, Check]] = {
    "text": ("a non-empty string", _is_text),
    "whole": ("a whole number", _is_whole_number),
    "number": ("a whole number of 0 or more", lambda value: _is_whole_number(value) and value >= 0),
    "seconds": ("a number of seconds", _is_seconds),
    "flag": ("true or false", lambda value: isinstance(value, bool)),
    "map": ("a map", lambda value: isinstance(value, dict)),
    "qos": ("0, 1 or 2", lambda value: _is_whole_number(value) and 0 <= value <= 2),
    "handling": ("0, 1 or 2", lambda value: _is_whole_number(value) and 0 <= value <= 2),
    "texts": (
        "a string or a list of strings",
        lambda value: _is_text(value) or (isinstance(value, list) and all(map(_is_text, value))),
    ),
    "acks": ("-1, 0 or 1", lambda value: value == "all" or (_is_whole_number(value) and -1 <= value <= 1)),
    "mode": ("move or copy", lambda value: value in ("move", "copy")),
    "deliver": ("all or new", lambda value: value in ("all", "new")),
}
"""Allowed values, by the kinds of the table."""


_Report = tuple[Severity, str, str, str]
"""Severity, rule, message and hint of a finding about an option."""


def check_endpoint_options(subject: Subject) -> None:
    """Check the options of every endpoint whose protocol is known."""
    for endpoint in subject.catalog.endpoints.values():
        place = subject.declarations.endpoints[endpoint.xid].place
        body = subject.endpoint_bodies.get(endpoint.xid, {})
        if not channel_options(endpoint.protocol or ""):
            continue
        places = _option_locations(body, place) if endpoint.options else {}
        for name, value in endpoint.options.items():
            for report in _check_option(endpoint, name, value):
                subject.findings.add(places.get(squash_name(name), place), *report)
        _check_authorization(subject, endpoint, place, body)


def _check_option(endpoint: Endpoint, name: str, value: Any) -> Iterator[_Report]:
    """Yield what is wrong with an option: unknown, else invalid, else unsupported in a role of the endpoint."""
    known = channel_options(endpoint.protocol or "")
    option = known.get(option_key(name))
    if option is None:
        meant = find_nearest(option_key(name), known)
        names = ", ".join(dict.fromkeys(each.name for each in known.values()))
        text = f"endpoints of {endpoint.protocol} have no option {name}; it is ignored"
        hint = f"did you mean {known[meant].name}?" if meant else f"use {names}, or options of the client in settings"
        yield "warning" if meant else "info", "unknown-endpoint-option", text, hint
    elif invalid := _find_invalid(endpoint, name, value, option):
        yield invalid
    else:
        yield from _iter_unsupported(endpoint, name, value, option)


def _find_invalid(endpoint: Endpoint, name: str, value: Any, option: ChannelOption) -> _Report | None:
    """Return what is wrong with a value that is invalid whatever the role; None for a valid one."""
    if option.kind in _ADDRESSES and value not in (None, ""):
        what, fault_of = _ADDRESSES[option.kind]
        fault = fault_of(value) if isinstance(value, str) else "it is not a string"
        text = f"{name} of {endpoint.xid} is not a valid {what}, so nothing is ever received there: {fault}"
        hint = f"write a valid {what} instead of {value!r:.80}"
        return ("error", "endpoint-option", text, hint) if fault else None
    wanted, check = _CHECKS.get(option.kind if option.kind not in TEXTUAL else "text", ("", None))
    if check is None or check(value):
        return None
    text = f"{name} of a {endpoint.protocol} endpoint must be {wanted}"
    return "warning", "endpoint-option", text, f"write {wanted}"


def _iter_unsupported(endpoint: Endpoint, name: str, value: Any, option: ChannelOption) -> Iterator[_Report]:
    """Yield why an option is not supported in a role of the endpoint, or has no meaning in any of them."""
    if option.other_name:
        text = f"endpoints of {endpoint.protocol} have no option {name}; it is read as {option.name}"
        yield "info", "unknown-endpoint-option", text, f"write {option.name}"
    roles = tuple(dict.fromkeys(_USAGES[usage] for usage in endpoint.usage if usage in _USAGES)) or ROLES
    meant = [role for role in roles if role in option.roles]
    exemption = next(filter(None, (option.find_unsupported(role, value) for role in meant)), None)
    if not meant:
        others = "consumers" if "receives" in option.roles else "producers"
        text = f"{name} of {endpoint.xid} is ignored: only endpoints for {others} have this option"
        yield "info", "unhonoured-option", text, "remove it, or add the usage"
    elif exemption is not None:
        shown = f" {str(value).lower()}" if isinstance(value, (bool, int)) else ""
        text = f"{name}{shown} of {endpoint.xid} is not supported: {exemption.why}"
        yield exemption.severity, "unhonoured-option", text, exemption.hint


def _check_authorization(subject: Subject, endpoint: Endpoint, place: SourceLocation, body: Mapping[str, Any]) -> None:
    """Report an endpoint that describes its authorization: credentials belong into the settings."""
    for kind, at in _iter_authorizations(body, place):
        text = f"authorization {kind or 'of no type'} of {endpoint.xid} is ignored: credentials come from the settings"
        hint = _LOGINS.get(squash_name(kind), "give the source or sink its credentials in the settings")
        subject.findings.info(at, "unhonoured-option", text, hint)


def _iter_authorizations(body: Mapping[str, Any], place: SourceLocation) -> Iterator[tuple[str, SourceLocation]]:
    for held in OPTION_HOLDERS:
        holder = body.get(held)
        written = holder.get("authorization") if isinstance(holder, dict) else None
        for each in written if isinstance(written, list) else [written]:
            if isinstance(each, dict):
                yield str(each.get("type") or ""), place / held / "authorization"


def _option_locations(body: Mapping[str, Any], place: SourceLocation) -> dict[str, SourceLocation]:
    """Return where each option of an endpoint is set, by its name in lower case without separators."""
    places: dict[str, SourceLocation] = {}
    for held in OPTION_HOLDERS:
        holder = body.get(held)
        if not isinstance(holder, dict):
            continue
        for options, at in ((holder.get("options"), place / held / "options"), (holder, place / held)):
            for key in options if isinstance(options, dict) else ():
                places.setdefault(squash_name(key), at / key)
    return places


# Endpoints without messages, and groups without endpoints.

RECEIVING: Final = frozenset({"consumer", "subscriber"})
"""Usages of endpoints that the router receives from."""


def check_endpoints(subject: Subject) -> None:
    """Check every endpoint, and report groups that no endpoint lists."""
    for endpoint in subject.catalog.endpoints.values():
        place = subject.declarations.endpoints[endpoint.xid].place
        body = subject.endpoint_bodies.get(endpoint.xid, {})
        if not endpoint.candidates:
            hint = "list a message group, or add messages"
            subject.findings.warning(place, "no-candidates", f"{endpoint.xid} has no message definitions", hint)
        if not endpoint.usage and body.get("usage") is None:  # an invalid usage is reported by the reader
            hint = "write usage: [consumer], [producer] or [subscriber]"
            subject.findings.warning(place, "missing-required", f"{endpoint.xid} has no usage", hint)
        _check_protocols(subject, endpoint, place)
        _check_address(subject, endpoint, place, body)
        _check_transport(subject, endpoint, place)
    _check_unlisted_groups(subject)


def _check_protocols(subject: Subject, endpoint: Endpoint, place: SourceLocation) -> None:
    """Report an endpoint whose candidates are all for other protocols."""
    protocols = {subject.catalog.definitions[xid].protocol for xid in endpoint.candidates}
    if endpoint.protocol is not None and protocols and not protocols & {None, endpoint.protocol}:
        others = ", ".join(sorted(filter(None, protocols)))
        text = f"{endpoint.xid} uses {endpoint.protocol}, but all its messages are for {others}"
        hint = "correct the protocol, or list a group with that protocol"
        subject.findings.error(place, "endpoint-mismatch", text, hint)


def _check_address(subject: Subject, endpoint: Endpoint, place: SourceLocation, body: Mapping[str, Any]) -> None:
    """Report a deployed endpoint without address, unless gateways host its protocol."""
    if endpoint.uris or options_of(endpoint.protocol).hosted or not RECEIVING & set(endpoint.usage):
        return
    holders = (body, *(body.get(name) for name in OPTION_HOLDERS))
    if any(isinstance(holder, dict) and holder.get("deployed") is True for holder in holders):
        text = f"{endpoint.xid} is deployed but has no address"
        subject.findings.info(place, "no-address", text, 'add protocoloptions.endpoints, such as [{"uri": "..."}]')


def _check_transport(subject: Subject, endpoint: Endpoint, place: SourceLocation) -> None:
    """Report an endpoint whose addresses are all WebSockets, which no gateway or sink supports."""
    if options_of(endpoint.protocol).streamed and endpoint.uris and all(map(is_websocket_address, endpoint.uris)):
        text = f"{endpoint.xid} has only WebSocket addresses, which this router does not support"
        hint = "add the broker's address over TCP or TLS, or set `uris` of the source or `uri` of the sink"
        subject.findings.warning(place, "websockets-only", text, hint)


def _check_unlisted_groups(subject: Subject) -> None:
    """Report groups that no endpoint lists, if there are endpoints; groups that contain only bases are not reported."""
    listed = {group for endpoint in subject.catalog.endpoints.values() for group in endpoint.messagegroups}
    bases = {base.split("/messages/")[0] for each in subject.catalog.definitions.values() for base in each.base[:1]}
    for xid, members in subject.catalog.groups.items():
        if members and xid in subject.groups_beside_endpoints and xid not in listed and xid not in bases:
            text = f"no endpoint lists {xid}, so its {len(members)} messages are received nowhere"
            hint = "list it in messagegroups of an endpoint"
            subject.findings.info(subject.declarations.groups[xid].place, "unreachable-group", text, hint)
