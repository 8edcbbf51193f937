"""Lint values, event attributes, mapping to events (MATCHING.md#mapping), selectors, relations and credentials."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from catalog.definitions.candidates import DeclaredProperty, Subject, check_candidates, schema_key_of
from catalog.definitions.constraints import envelope_constraints, excludes_nothing, protocol_constraints
from catalog.definitions.inheritance import RELATED_TO, RELATED_VIA, attribute_location, related_xid
from catalog.findings import DeclaredMessage, SourceLocation
from catalog.linting.attributes import check_attributes, check_endpoint_options, check_endpoints, check_options
from catalog.model import CLOUDEVENTS, PROTOCOLS, Definition, Property
from catalog.parsing.nearest import find_nearest
from catalog.protocols.properties import ALWAYS_REQUIRED, CONTENT_TYPES
from catalog.schemas.library import format_of
from catalog.templates import TEMPLATE_TYPES, split_tokens
from catalog.values import is_any_timestamp, is_valid, media_type_matches, to_text

# Placeholders in values, and text in braces that is not one (MATCHING.md#templates).

_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_BRACED_NAME: Final = re.compile(r"\s*[+#./;?&|!@=,$]?[\w ,.:*%\-]*")
"""Text probably meant as a placeholder: an operator or modifier of RFC 6570, a name with spaces, or empty."""


def is_literal(prop: Property) -> bool:
    """Whether a property has a value that is neither a template nor "now"."""
    if prop.value is None or is_any_timestamp(prop.value):
        return False
    return prop.type not in TEMPLATE_TYPES or not placeholder_names(to_text(prop.value))


def placeholder_names(text: str) -> list[str]:
    """Return the names of a template's placeholders, with repetitions."""
    return split_tokens(text)[1::2] if "{" in text else []


def iter_placeholder_names(properties: Iterable[Property]) -> Iterator[str]:
    """Yield the placeholder names in the values of properties."""
    for prop in properties:
        if isinstance(prop.value, str) and prop.type in TEMPLATE_TYPES:
            yield from placeholder_names(prop.value)


def find_adjacent(tokens: Sequence[str]) -> tuple[str, str] | None:
    """Return the first two placeholders with nothing between them, if any."""
    for place in range(2, len(tokens) - 1, 2):
        if not tokens[place]:
            return tokens[place - 1], tokens[place + 1]
    return None


def find_misread_braces(tokens: Sequence[str]) -> str | None:
    """Return text in braces that was probably meant as a placeholder; None if there is none. JSON is skipped."""
    for text in tokens[::2]:
        if '"' in text or ("{" not in text and "}" not in text):
            continue
        for braces in _BRACES.finditer(text):
            if _BRACED_NAME.fullmatch(braces.group(1)):
                return braces.group()
        rest = _BRACES.sub("", text)
        unpaired = next((character for character in rest if character in "{}"), None)
        if unpaired is not None:
            return unpaired
    return None


# Values that no record can have: of the wrong type, out of range, malformed media types, malformed placeholders.

MAX_SHOWN_TEXT: Final = 80
"""Maximum characters of a value shown in a message."""
_TOKEN: Final = r"[A-Za-z0-9!#$&^_.+*'`|~%\-]+"
_MEDIA_TYPE: Final = re.compile(rf"\s*{_TOKEN}/{_TOKEN}\s*(?:;.*)?", re.DOTALL)
_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "qos": (0, 2),
    "payload_format": (0, 1),
    "message_expiry_interval": (0, 2**32 - 1),
    "partition": (0, 2**31 - 1),
    "header.priority": (0, 255),
    "header.ttl": (0, 2**32 - 1),
    "status": (100, 599),
}
_METHOD: Final = re.compile(_TOKEN)


def check_values(subject: Subject) -> None:
    """Check the value of every property that a definition sets itself."""
    for declared in subject.attributes():
        _check_value(subject, declared)
        if declared.prop.name == "datacontenttype":
            _check_media_type(subject, declared.prop, declared.place)
    for declared in subject.options():
        if _check_value(subject, declared):
            _check_range(subject, declared)
        if declared.prop.name in CONTENT_TYPES:
            _check_media_type(subject, declared.prop, declared.place)
    for _, message, _ in subject.definitions():
        content = message.attributes.get("datacontenttype")
        if isinstance(content, str):
            _check_media_type(subject, Property("datacontenttype", "string", content), message.at("datacontenttype"))


def is_media_type(text: str) -> bool:
    """Whether a text is a media type, with or without parameters."""
    return _MEDIA_TYPE.fullmatch(text) is not None


def _check_value(subject: Subject, declared: DeclaredProperty) -> bool:
    """Report an invalid literal and malformed placeholders; return whether the value is fine."""
    prop = declared.prop
    if prop.value is None or is_any_timestamp(prop.value):
        return True
    text = to_text(prop.value)
    if prop.type in TEMPLATE_TYPES and ("{" in text or "}" in text):
        tokens = split_tokens(text)
        _check_placeholders(subject, declared, tokens)
        if len(tokens) > 1:
            return True
    if is_valid(prop.type, text, bits32=declared.in_envelope):
        return True
    message = f"the value {text[:MAX_SHOWN_TEXT]!r} of {prop.name} is not a valid {prop.type}"
    subject.findings.warning(declared.place, "value-type", message, "correct value or type")
    return False


def _check_placeholders(subject: Subject, declared: DeclaredProperty, tokens: Sequence[str]) -> None:
    name = declared.prop.name
    literal = find_misread_braces(tokens)
    if literal is not None:
        message = f"{literal[:MAX_SHOWN_TEXT]!r} in {name} is not a placeholder and is read as literal text"
        hint = "write {name} with letters, digits, _, - and . only"
        subject.findings.warning(declared.place, "not-a-placeholder", message, hint)
    pair = find_adjacent(tokens)
    if pair is not None:
        message = (
            f"{{{pair[0]}}} matches only one character of {name} and {{{pair[1]}}} the rest: nothing separates them"
        )
        hint = "put a separator between them, or merge them into one"
        subject.findings.warning(declared.place, "adjacent-placeholders", message, hint)


def _check_range(subject: Subject, declared: DeclaredProperty) -> None:
    prop = declared.prop
    bounds = _RANGES.get(prop.name)
    if (bounds is None and prop.name != "method") or not is_literal(prop):
        return
    text = to_text(prop.value)
    if bounds is not None and not (
        is_valid("integer", text) and len(text) < 20 and bounds[0] <= int(text) <= bounds[1]
    ):
        message = f"{prop.name} is {text[:MAX_SHOWN_TEXT]!r} but must be between {bounds[0]} and {bounds[1]}"
        subject.findings.warning(declared.place, "value-range", message, "correct the value, or remove it")
    if prop.name == "method" and not _METHOD.fullmatch(text):
        message = f"{text[:MAX_SHOWN_TEXT]!r} is not an HTTP method"
        subject.findings.warning(declared.place, "value-range", message, "write GET, POST, PUT or another method")


def _check_media_type(subject: Subject, prop: Property, place: SourceLocation) -> None:
    if is_literal(prop) and not is_media_type(to_text(prop.value)):
        message = f"the value {to_text(prop.value)[:MAX_SHOWN_TEXT]!r} of {prop.name} is not a media type"
        subject.findings.warning(place, "media-type", message, "write type/subtype, such as application/json")


_NAME: Final = re.compile(r"(?!data\Z)[a-z0-9]+", re.ASCII)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")
_TEXTUAL: Final = frozenset({"any", "string", "uritemplate"})
_POSSIBLE: Final[Mapping[str, frozenset[str]]] = {
    "specversion": frozenset({"any", "number", "string", "symbol"}),
    "time": _TEXTUAL | {"timestamp"},
    "datacontenttype": _TEXTUAL | {"symbol", "urireference", "uri"},
}
"""Possible types of attributes; CloudEvents attributes not listed can have any type."""
_WITH_RULES: Final = frozenset({"specversion", "id", "time", "dataschema"})
_NOT_FIXED: Final = frozenset({"id", "time"})
_FALLS_BACK: Final[Mapping[str, str]] = {
    "id": "the position of the message",
    "source": "the URI of its endpoint",
    "time": "the time of the message",
}
"""Attributes that mapping can always supply, and their default values."""
_REMEDY: Final = "use the placeholder in protocoloptions too, or set it in `context` of the source"
_HAS_DEFAULT: Final = frozenset({"type", "specversion", "datacontenttype", "dataschema", "partitionkey"})
"""Attributes that mapping can fill without a declared value (MATCHING.md#mapping)."""
MAPPING_RULES: Final = frozenset({"unmappable", "falls-back"})
"""What :func:`mapping` reports."""


def check_events(subject: Subject) -> None:
    """Check the envelope attributes of every definition with the CloudEvents envelope or none."""
    for declared in subject.attributes():
        if declared.definition.envelope in (None, CLOUDEVENTS):
            _check_declared(subject, declared)
            _check_literal(subject, declared)
    mapping(subject, {})


def _check_declared(subject: Subject, declared: DeclaredProperty) -> None:
    prop = declared.prop
    if not _NAME.fullmatch(prop.name):
        text = f"{prop.name[:MAX_SHOWN_TEXT]!r} is not a valid CloudEvents attribute name; no event has it"
        subject.findings.warning(
            declared.place, "attribute-name", text, "use only lower case letters and digits, and not the name data"
        )
    possible = _POSSIBLE.get(prop.name)
    if possible is not None and prop.type not in possible:
        text = f"{prop.name} never has the type {prop.type}"
        subject.findings.warning(
            declared.place, "attribute-type", text, f"use {' or '.join(sorted(possible - {'any'}))}"
        )

    if prop.name in ALWAYS_REQUIRED:
        metadata: Any = declared.effective.message.attributes.get("envelopemetadata", {})
        body = metadata.get(prop.name)
        if isinstance(body, dict) and body.get("required") is False:
            text = f"{prop.name} is required in every event, whatever the definition says"
            subject.findings.warning(declared.place, "always-required", text, "remove required")


def _check_literal(subject: Subject, declared: DeclaredProperty) -> None:
    prop = declared.prop
    if prop.name not in _WITH_RULES or not is_literal(prop):
        return
    if prop.name == "specversion" and prop.value not in ("1.0", 1.0):
        subject.findings.warning(declared.place, "specversion", "no event has this specversion", 'use "1.0"')
    if prop.name in _NOT_FIXED and is_valid(prop.type, to_text(prop.value)):
        text = f"{prop.name} has a fixed value, but differs in every event"
        hint = "remove the value" + (", or write 0000-01-01T00:00:00Z to match any time" if prop.name == "time" else "")
        subject.findings.warning(declared.place, "fixed-value", text, hint)
    if prop.name == "dataschema" and is_valid(prop.type, to_text(prop.value)):
        if not _SCHEME.match(to_text(prop.value)):
            text = "dataschema is a relative reference, but CloudEvents requires a URI"
            subject.findings.warning(
                declared.place, "relative-dataschema", text, "write the absolute URI, or remove the value"
            )


def mapping(subject: Subject, context: Mapping[str, frozenset[str]]) -> None:
    """Warn of definitions that match native records but cannot map them to events, or not as declared.

    *context* has, by xid of definitions, the placeholders that `context` of all their sources supplies.
    """
    for definition, _, _ in subject.definitions():
        _check_one_mapping(subject, definition, context.get(definition.xid, frozenset()))


def _check_one_mapping(subject: Subject, definition: Definition, context: frozenset[str]) -> None:
    if definition.envelope != CLOUDEVENTS or definition.protocol is None or not definition.protocoloptions:
        return
    message = subject.declarations.messages[definition.xid]
    supplied = {*iter_placeholder_names(definition.protocoloptions), *context}
    for prop in definition.envelopemetadata:
        lacking = _find_missing(prop, supplied)
        if not lacking:
            continue
        at = attribute_location(message, prop.name) or message.place
        text = f"a native message has no {', '.join(lacking)} for {prop.name}"
        meant = next(filter(None, (find_nearest(name, supplied) for name in lacking)), None)
        hint = f"did you mean {{{meant}}}?" if meant else _REMEDY
        if prop.name not in _FALLS_BACK:
            subject.findings.warning(at, "unmappable", text, hint)
        else:
            # Settings (`context`) may supply placeholders that no option has, but not misspelled ones.
            report = subject.findings.warning if meant else subject.findings.info
            report(at, "falls-back", f"{text}, which falls back to {_FALLS_BACK[prop.name]}", hint)


def _find_missing(prop: Property, supplied: set[str]) -> Sequence[str]:
    """Return what is missing to map an attribute: its value, or placeholders that nothing supplies."""
    if prop.value is None:
        lacks = prop.required and prop.name not in _HAS_DEFAULT and prop.name not in _FALLS_BACK
        return ("value",) if lacks else ()
    if prop.type not in TEMPLATE_TYPES or is_any_timestamp(prop.value):
        return ()
    return tuple(dict.fromkeys(name for name in placeholder_names(to_text(prop.value)) if name not in supplied))


# Contradictory declarations of payloads; whether schemas are valid is checked when they are linked.

_SCHEMAS: Final = ("dataschema", "dataschemauri")


def check_payloads(subject: Subject) -> None:
    """Check schema and content type of every definition that declares any."""
    for definition, message, base in subject.definitions():
        _check_format(subject, definition, message)
        if all(message.attributes.get(name) is not None for name in _SCHEMAS):
            text = "dataschema and dataschemauri exclude each other"
            subject.findings.warning(message.at("dataschemauri"), "mutually-exclusive", text, "keep one of them")
        _check_types(subject, definition, message, base)


def _check_format(subject: Subject, definition: Definition, message: DeclaredMessage) -> None:
    """Report a schema without format, as info if the format can be detected; otherwise linking reports it."""
    given = next((name for name in _SCHEMAS if message.attributes.get(name) is not None), None)
    if given is None or definition.dataschemaformat is not None:
        return
    linked = subject.catalog.schemas.get(definition.schemakey or "")
    known = format_of(None, linked) if linked is not None else None
    if linked is not None and known is None:
        return
    text = f"{given} is set but dataschemaformat is not" + (f"; {known.family} is assumed" if known else "")
    hint = "add dataschemaformat, such as JsonSchema/draft-07 or Avro/1.11"
    subject.findings.add(message.at(given), "info" if known else "warning", "missing-required", text, hint)


def _check_types(subject: Subject, definition: Definition, message: DeclaredMessage, base: Definition | None) -> None:
    """Report contradicting content types: message and envelope attribute both apply to the data."""
    if definition.envelope != CLOUDEVENTS or not definition.datacontenttype:
        return
    own, attribute = definition.datacontenttype, _envelope_content_type(definition)
    if base is not None and (own, attribute) == (base.datacontenttype, _envelope_content_type(base)):
        return
    place = message.at("datacontenttype")
    if "datacontenttype" not in message.attributes:
        place = attribute_location(message, "datacontenttype") or message.place
    if own.strip().lower().startswith("application/cloudevents"):
        text = f"datacontenttype must be that of the data, and no event has data of type {own}"
        subject.findings.warning(place, "content-type-conflict", text, "use the content type of the data")
    elif attribute and not (media_type_matches(own, attribute) or media_type_matches(attribute, own)):
        text = f"datacontenttype is {own} for the message and {attribute} in its envelope"
        subject.findings.warning(place, "content-type-conflict", text, "make them equal, or remove one of them")


def _envelope_content_type(definition: Definition) -> str | None:
    for prop in definition.envelopemetadata:
        if prop.name == "datacontenttype" and is_literal(prop):
            return to_text(prop.value)
    return None


# Envelope and protocol: unknown, missing, or different from the group's.


def _letters_and_digits(name: str) -> str:
    """Reduce a name to letters and digits, so that other characters do not count as differences."""
    return "".join(character for character in name.lower() if character.isalnum())


_PROTOCOLS_BY_NAME: Final = {
    **{_letters_and_digits(protocol.partition("/")[0]): protocol for protocol in PROTOCOLS},
    **{_letters_and_digits(protocol): protocol for protocol in PROTOCOLS},
}
"""Protocols by normalised name, with and without version."""


def check_selectors(subject: Subject) -> None:
    """Check the envelope and protocol of every definition and endpoint."""
    endpoints = subject.catalog.endpoints.values()
    enveloped = {xid for endpoint in endpoints if endpoint.envelope for xid in endpoint.candidates}
    for definition, message, base in subject.definitions():
        if definition.envelope not in (None, CLOUDEVENTS) and (base is None or base.envelope != definition.envelope):
            text = f"the envelope {definition.envelope} is unknown; the definition never matches"
            place = message.at("envelope") if "envelope" in message.attributes else message.place
            _report_envelope(subject, definition.envelope, text, place)
        if base is None or base.protocol != definition.protocol:
            place = message.at("protocol") if "protocol" in message.attributes else message.place
            _check_protocol(subject, definition.protocol, place)
        _check_has_selectors(subject, definition, message, definition.xid in enveloped)
        _check_group_defaults(subject, definition, message)
    for endpoint in endpoints:
        place = subject.declarations.endpoints[endpoint.xid].place
        _check_protocol(subject, endpoint.protocol, place)
        if endpoint.envelope not in (None, CLOUDEVENTS):
            text = f"the envelope {endpoint.envelope} is unknown; messages without an envelope of their own never match"
            _report_envelope(subject, endpoint.envelope, text, place)


def _check_protocol(subject: Subject, protocol: str | None, place: SourceLocation) -> None:
    if protocol is not None and protocol not in PROTOCOLS:
        text = f"the protocol {protocol} is unknown; nothing is ever received over it"
        hint = f"use one of {', '.join(PROTOCOLS)}"
        meant = _find_meant(protocol, _PROTOCOLS_BY_NAME)
        subject.findings.error(place, "unknown-protocol", text, f"did you mean {meant}?" if meant else hint)


def _find_meant(name: str, known: Mapping[str, str]) -> str | None:
    plain = _letters_and_digits(name)
    return known.get(plain) or known.get(find_nearest(plain, known) or "")


def _report_envelope(subject: Subject, envelope: str, text: str, place: SourceLocation) -> None:
    hint = f"use {CLOUDEVENTS}, or no envelope"
    meant = _find_meant(envelope, {_letters_and_digits(CLOUDEVENTS): CLOUDEVENTS})
    subject.findings.error(place, "unknown-envelope", text, f"did you mean {CLOUDEVENTS}?" if meant else hint)


def _check_has_selectors(subject: Subject, definition: Definition, message: DeclaredMessage, enveloped: bool) -> None:
    """Report options without a protocol, and attributes without an envelope."""
    endpoint = subject.declarations.endpoints.get(definition.group)
    known = definition.protocol or (endpoint.protocol if endpoint else None)
    if known is None and message.attributes.get("protocoloptions"):
        text, hint = "these options have no protocol", "add protocol to the message, or to its group"
        subject.findings.warning(message.at("protocoloptions"), "no-protocol", text, hint)
    if not enveloped and definition.envelope is None and message.attributes.get("envelopemetadata"):
        text = "these attributes have no envelope, so they constrain nothing"
        hint = f"add envelope: {CLOUDEVENTS} to the message, or to its group"
        subject.findings.warning(message.at("envelopemetadata"), "no-envelope", text, hint)


def _check_group_defaults(subject: Subject, definition: Definition, message: DeclaredMessage) -> None:
    """Report envelope and protocol that differ from the group's, which are binding except in 0.1."""
    group = subject.declarations.groups.get(definition.group)
    dialect = subject.dialects.get(message.place.file)
    if group is None or (dialect is not None and dialect.groups_give_formats):
        return
    for name, own, common in (
        ("envelope", definition.envelope, group.envelope),
        ("protocol", definition.protocol, group.protocol),
    ):
        if common is not None and own is not None and own != common:
            place = message.at(name) if name in message.attributes else message.place
            text = f"the {name} is {own}, but that of {group.xid} is {common}; they must be the same"
            hint = f"move it to a group of its own, or remove {name} from the group"
            subject.findings.warning(place, "group-mismatch", text, hint)


# Definitions without constraints: all records of their envelope and protocol match them.


def check_unconstrained(subject: Subject) -> None:
    """Report definitions that match everything; as info if others derive from it or it has a schema."""
    bases = {base for definition in subject.catalog.definitions.values() for base in definition.base}
    for xid, definition in subject.catalog.definitions.items():
        if not _matches_everything(definition):
            continue
        place = subject.declarations.messages[xid].place
        text = f"this definition has no constraints and matches {_describe_everything(definition)}"
        hint = "give an attribute or option a value that only its records have"
        if schema_key_of(definition) is not None:
            text += "; its data schema decides only where several definitions match"
            subject.findings.info(place, "takes-everything", text, hint)
        elif xid in bases:
            hint = "keep it in a group that no endpoint lists, if it is only meant as a base"
            subject.findings.info(place, "takes-everything", text, hint)
        else:
            subject.findings.warning(place, "takes-everything", text, hint)


def _matches_everything(definition: Definition) -> bool:
    """Whether a definition has no constraint; without envelope and protocol, a schema counts as one."""
    if definition.envelope not in (CLOUDEVENTS, None):
        return False
    if definition.envelope is None and definition.protocol is None and schema_key_of(definition) is not None:
        return False
    options = protocol_constraints(definition, definition.protocol or "", hop_by_hop=False)
    names: list[str] = []
    for key, constraint in chain(envelope_constraints(definition), options):
        if not excludes_nothing(key, constraint):
            return False  # true for nearly all definitions
        names.extend(constraint.template.names if constraint.kind == "template" else ())
    return not definition.datacontenttype and len(set(names)) == len(names)  # equal placeholders exclude records


def _describe_everything(definition: Definition) -> str:
    over = f" over {definition.protocol}" if definition.protocol else ""
    native = definition.protocol is not None and (definition.protocol_declared or definition.protocoloptions)
    if definition.envelope is not None and not native:
        return f"every CloudEvent{over}"
    return f"every record{over}"


# Relations without effect: to a missing definition, in a cycle, or by a property that identifies no message.

MAX_NAMED_XIDS: Final = 8
"""Maximum definitions of a cycle that are named."""


def check_relations(subject: Subject) -> None:
    """Check the relations that definitions declare; inherited ones are reported at the base."""
    for message in subject.declarations.messages.values():
        if not message.hidden and RELATED_TO in message.other:
            _check_target(subject, message)
    _check_cycles(subject)
    _check_properties(subject)


def _check_target(subject: Subject, message: DeclaredMessage) -> None:
    related = message.other[RELATED_TO]
    messages = subject.declarations.messages
    if isinstance(related, str) and related and related_xid(message, related) in messages:
        return
    text = f"{message.xid} is related to {related!r:.80}, which is not in its group"
    subject.findings.warning(message.at(RELATED_TO), "dangling-relation", text, "name a definition of the same group")


def _check_cycles(subject: Subject) -> None:
    """Report each cycle once, at its first definition."""
    definitions = subject.catalog.definitions
    done: set[str] = set()
    for xid in definitions:
        way: dict[str, None] = {}
        at: str | None = xid
        while at is not None and at not in done and at not in way:
            way[at] = None
            relation = definitions[at].relation
            at = relation.to if relation is not None else None
        if at in way:
            walked = list(way)
            circle = walked[walked.index(at) :]
            shown = (*circle[:MAX_NAMED_XIDS], "...") if len(circle) > MAX_NAMED_XIDS else (*circle, at)
            text = f"{at} is related to itself: {' -> '.join(shown)}"
            hint = "remove one relation from the cycle, so that one message starts the exchange"
            place = subject.declarations.messages[at].at(RELATED_TO)
            subject.findings.warning(place, "relation-cycle", text, hint)
        done.update(way)


def _check_properties(subject: Subject) -> None:
    for definition, message, _ in subject.definitions():
        via = message.other.get(RELATED_VIA)
        if via is not None and definition.relation is not None and not definition.relation.via:
            text = f"{message.xid} is related via {via!r:.80}, which cannot identify another message"
            hint = (
                "name an attribute of the event; in AMQP properties.correlationid, properties.groupid or "
                "applicationproperties.NAME; in MQTT 5 publish.correlationdata or userproperty.NAME"
            )
            subject.findings.warning(message.at(RELATED_VIA), "unusable-via", text, hint)


# Credentials in endpoints: found by the name of a member or the form of its value, and never printed.

_MESSAGES: Final = frozenset({"messages", "definitions", "messagegroups", "definitiongroups", "labels", "description"})
"""Members of an endpoint that are not configuration."""
_SECRET_NAME: Final = re.compile(
    r"(?:password|passwd|passphrase|pwd|secret|apikey|accesskey|accountkey|secretkey|sharedkey|privatekey|"
    r"token|credentials?|connectionstring|signingkey)$"
)
_NOT_LETTERS: Final = re.compile(r"[^a-z0-9]+")
_REFERENCE: Final = re.compile(
    r"\s*(?:\$?\{[^{}]*\}|\$\w+|<[^<>]*>|\*+|(?:file|env|vault|secret|keyvault|arn):.*|@.*)\s*"
)
"""Values that refer to a credential stored elsewhere, or flags that only say there is one."""
_VALUES: Final = (
    ("user and password", re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^/?#\s:@]*:(?!\$?\{)[^/?#\s@]+@")),
    (
        "a token",
        re.compile(r"[?&;](?:access_token|sig|api_?key|token|password|secret)=(?!\$?\{)[^&\s]+", re.IGNORECASE),
    ),
    (
        "a key",
        re.compile(
            r"\b(?:SharedAccessKey|AccountKey|SharedAccessSignature|password|pwd)\s*=\s*(?![\s$<{])[^;\s]+", re.I
        ),
    ),
    ("a token", re.compile(r"\s*(?:Bearer|Basic)\s+[A-Za-z0-9+/=._~\-]{8,}\s*", re.IGNORECASE)),
    ("a private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
)
MAX_TEXT: Final = 8192
"""Maximum characters of a string that are searched."""


def check_credentials(subject: Subject) -> None:
    """Search every endpoint, without its messages, for credentials."""
    for endpoint in subject.declarations.endpoints.values():
        for name, value in subject.endpoint_bodies.get(endpoint.xid, {}).items():
            if name.lower() not in _MESSAGES:
                for place, what in _find_credentials(name, value, endpoint.place / name):
                    hint = "remove it from the catalog and revoke it; let the settings read it from the environment"
                    subject.findings.warning(place, "credential-in-catalog", f"this looks like {what}", hint)


def _find_credentials(name: str, value: Any, place: SourceLocation) -> Iterator[tuple[SourceLocation, str]]:
    """Yield locations and kinds of credentials in a member and below it."""
    if isinstance(value, dict):
        described = value.get("name")
        if isinstance(described, str) and isinstance(value.get("value"), str):
            yield from _find_credentials(described, value["value"], place / "value")
            return
        for key, member in value.items():
            inner = name if key == "value" else key
            yield from _find_credentials(inner, member, place / key)
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _find_credentials(name, member, place / index)
    elif isinstance(value, (str, int)) and not isinstance(value, bool):
        what = _credential_kind(name, str(value))
        if what:
            yield place, what


def _credential_kind(name: str, text: str) -> str:
    """Return the kind of credential that a value looks like, empty if it is none."""
    if not text.strip() or _REFERENCE.fullmatch(text[:MAX_TEXT]):
        return ""
    if _SECRET_NAME.search(_NOT_LETTERS.sub("", name.lower())) and "://" not in text:
        return "a credential"
    return next((what for what, pattern in _VALUES if pattern.search(text[:MAX_TEXT])), "")


RULE_FAMILIES: Final[tuple[Callable[[Subject], None], ...]] = (
    check_attributes,
    check_selectors,
    check_values,
    check_options,
    check_events,
    check_payloads,
    check_endpoints,
    check_endpoint_options,
    check_credentials,
    check_relations,
    check_candidates,
    check_unconstrained,
)


def lint(subject: Subject) -> None:
    """Apply every rule that needs the whole catalog; invalid single values are reported while reading."""
    for family in RULE_FAMILIES:
        family(subject)
