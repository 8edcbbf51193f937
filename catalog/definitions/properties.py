"""Merged attributes to properties: the type, value and need of every constrainable place (semantics.md section 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import NoneType
from typing import Any

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
from catalog.values import NOW, is_old_now


def definition_of(effective: Effective, findings: Findings) -> Definition:
    """Build the definition; what is odd about single properties is reported and read as well as it can be."""
    message = effective.message
    attributes = effective.attributes
    return Definition(
        xid=message.xid,
        group=message.group,
        envelope=effective.envelope,
        protocol=effective.protocol,
        protocol_declared=effective.protocol_declared,
        envelopemetadata=_envelope(effective, findings),
        protocoloptions=tuple(_options(effective, findings)),
        envelopeoptions=attributes.get("envelopeoptions", {}),
        dataschemaformat=attributes.get("dataschemaformat"),
        dataschema=attributes.get("dataschema"),
        dataschemauri=attributes.get("dataschemauri"),
        dataschemaxid=attributes.get("dataschemaxid"),
        datacontenttype=attributes.get("datacontenttype"),
        base=effective.base,
    )


def _envelope(effective: Effective, findings: Findings) -> tuple[Property, ...]:
    cloudevents = effective.envelope in (CLOUDEVENTS, None)
    found: list[Property] = []
    for name, body in effective.attributes.get("envelopemetadata", {}).items():
        default = ATTRIBUTE_TYPES.get(name, "string") if cloudevents else "string"
        report = Report(findings, partial(attribute_place, effective.message, name))
        found.append(property_of(name, body, default, report, required=cloudevents and name in ALWAYS_REQUIRED))
    return tuple(found)


def _options(effective: Effective, findings: Findings) -> Iterator[Property]:
    """Give the options that the protocol has; a base may have written others, for a protocol of its own."""
    protocol = effective.spelling
    vocabulary = VOCABULARIES.get(protocol or "", ANY_VOCABULARY)
    given = effective.attributes.get("protocoloptions", {})
    places = OptionPlaces(effective.message, protocol)
    for written, value in given.items():
        name = canonical_option(protocol, written)
        if name is None or (name != written and name in given):
            continue
        for path, body, default in _places(vocabulary, name, value):
            report = Report(findings, partial(places.of, path))
            yield property_of(path, body, default, report)


def _places(vocabulary: Vocabulary, name: str, value: Any) -> Iterator[tuple[str, Any, PropertyType]]:
    """Give path, body and default type of every property below one option."""
    if isinstance(value, Named) and name in vocabulary.lists:
        for inner, body in value.entries:
            yield f"{name}.{inner.lower() if name in vocabulary.lower else inner}", body, "string"
    elif isinstance(value, dict) and name in vocabulary.sections:
        table = vocabulary.sections[name]
        for written, body in value.items():
            known = written if table is None else canonical_member(table, written)
            if known is not None:
                yield f"{name}.{known}", body, table[known] if table is not None else "string"
    elif name in vocabulary.scalars:
        yield name, value, vocabulary.scalars[name]


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
    """Return a value as 1.0 spells it in its type, which for "now" is another spelling than before."""
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
