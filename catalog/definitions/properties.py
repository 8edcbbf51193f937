"""Merged attributes to properties: type, value and need of every constrainable place (JUDGING.md#property-types)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import NoneType
from typing import Any, Final, NamedTuple

from catalog.declared import Place
from catalog.definitions.inheritance import Effective
from catalog.definitions.options import Named
from catalog.definitions.pointing import OptionPlaces, attribute_place
from catalog.findings import Findings
from catalog.model import CLOUDEVENTS, Definition, Property, PropertyType
from catalog.protocols.properties import (
    ALWAYS_REQUIRED,
    AMQP_SECTIONS,
    ANY_VOCABULARY,
    ATTRIBUTE_TYPES,
    VOCABULARIES,
    Vocabulary,
    canonical_member,
    canonical_option,
    canonical_type,
    wire_type,
)
from catalog.values import NOW, Written, is_old_now, plain_number, text_of

_NUMBERS: Final = frozenset({"any", "boolean", "integer", "number"})


def definition_of(effective: Effective, findings: Findings) -> Definition:
    """Build the definition; what is odd about single properties is reported and read as well as it can be."""
    message, attributes = effective.message, effective.attributes
    at_attribute, at_option = partial(attribute_place, message), OptionPlaces(message, effective.spelling).of
    return Definition(
        xid=message.xid,
        group=message.group,
        envelope=effective.envelope,
        protocol=effective.protocol,
        protocol_declared=effective.protocol_declared,
        envelopemetadata=tuple(_read(attribute_bodies(attributes, effective.envelope), findings, at_attribute)),
        protocoloptions=tuple(_read(option_bodies(attributes, effective.spelling), findings, at_option)),
        envelopeoptions=attributes.get("envelopeoptions", {}),
        dataschemaformat=attributes.get("dataschemaformat"),
        dataschema=attributes.get("dataschema"),
        dataschemauri=attributes.get("dataschemauri"),
        dataschemaxid=attributes.get("dataschemaxid"),
        datacontenttype=attributes.get("datacontenttype"),
        base=effective.base,
    )


def _read(bodies: Iterable[PropertyBody], findings: Findings, at: Callable[[str], Place | None]) -> Iterator[Property]:
    for each in bodies:
        report = Report(findings, partial(at, each.path))
        yield property_of(each.path, each.body, each.default, report, required=each.required)


class PropertyBody(NamedTuple):
    """What merged attributes say of one property; it is ``required`` where CloudEvents says so, whatever they say."""

    path: str
    body: Any
    default: PropertyType
    required: bool = False


def attribute_bodies(attributes: Mapping[str, Any], envelope: str | None) -> Iterator[PropertyBody]:
    """Give the attributes of an envelope, which is CloudEvents where none is named."""
    cloudevents = envelope in (CLOUDEVENTS, None)
    for name, body in attributes.get("envelopemetadata", {}).items():
        default = ATTRIBUTE_TYPES.get(name, "string") if cloudevents else "string"
        yield PropertyBody(name, body, default, cloudevents and name in ALWAYS_REQUIRED)


def option_bodies(attributes: Mapping[str, Any], protocol: str | None) -> Iterator[PropertyBody]:
    """Give the options that the protocol has; a base may have written others, for a protocol of its own."""
    vocabulary = VOCABULARIES.get(protocol or "", ANY_VOCABULARY)
    given = attributes.get("protocoloptions", {})
    for written, value in given.items():
        name = canonical_option(protocol, written)
        if name is not None and (name == written or name not in given):
            yield from _places(vocabulary, name, value)


def _places(vocabulary: Vocabulary, name: str, value: Any) -> Iterator[PropertyBody]:
    """Give every property below one option."""
    if isinstance(value, Named) and name in vocabulary.lists:
        for inner, body in value.entries:
            yield PropertyBody(f"{name}.{inner.lower() if name in vocabulary.lower else inner}", body, "string")
    elif isinstance(value, dict) and name in vocabulary.sections:
        table = vocabulary.sections[name]
        for written, body in value.items():
            known = written if table is None else canonical_member(table, written)
            if known is not None:
                yield PropertyBody(f"{name}.{known}", body, table[known] if table is not None else "string")
    elif name in vocabulary.scalars:
        yield PropertyBody(name, value, vocabulary.scalars[name])


@dataclass(frozen=True, slots=True)
class Report:
    """Where to report on one property; what a message inherits is reported where it is written, and only there.

    ``find`` gives that place, None for an inherited property; it is asked only when there is something to report.
    """

    findings: Findings
    find: Callable[[], Place | None] | None

    def warning(self, rule: str, message: str, hint: str) -> None:
        place = self.find() if self.find is not None else None
        if place is not None:
            self.findings.warning(place, rule, message, hint)


def property_of(name: str, body: Any, default: PropertyType, report: Report, *, required: bool = False) -> Property:
    """Read ``{type, value, required}``, or a bare scalar that stands for its ``value``."""
    if not isinstance(body, dict):
        return Property(name, default, _of_type(default, _value(body, report)), required)
    declared = body.get("type")
    kind = canonical_type(declared) if isinstance(declared, str) and declared else default
    if not isinstance(declared, (str, NoneType)) or kind is None:
        hint = "use one of the types of the 1.0 message specification"
        report.warning("unknown-type", f"the type {declared!r:.80} of {name} is unknown; read as {default}", hint)
    value = _of_type(kind or default, _value(body.get("value"), report))
    wire = wire_type(declared) if isinstance(declared, str) and name.partition(".")[0] in AMQP_SECTIONS else ""
    return Property(name, kind or default, value, required or _required(body, report), wire)


def _of_type(kind: PropertyType, value: str | bool | int | float | None) -> str | bool | int | float | None:
    """Return a value as 1.0 spells it in its type: a number, or the text that is written where a text is meant."""
    if isinstance(value, Written):
        return plain_number(value) if kind in _NUMBERS else text_of(value)
    return NOW if kind == "timestamp" and is_old_now(value) else value


def _required(body: Mapping[str, Any], report: Report) -> bool:
    value = body.get("required")
    if value is None or isinstance(value, bool):
        return bool(value)
    report.warning("wrong-shape", f"required is {value!r:.80}, no boolean", "write true or false")
    return str(value).strip().lower() == "true"


def _value(value: Any, report: Report) -> str | bool | int | float | None:
    if value is None or value == "":
        return None
    if isinstance(value, (str, bool, int, float)):
        return value
    report.warning("wrong-shape", "a value is a text, number or boolean; this one is ignored", "write a scalar")
    return None
