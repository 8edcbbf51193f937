"""Overlapping definitions, as `check` reports them: each with a record that, by the matcher, both take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from bindings.envelope import attribute_part
from bindings.events import encode_event
from bindings.protocols import BINDINGS, Binding
from catalog.definitions.candidates import schema_of
from catalog.findings import Declarations, Findings
from catalog.linting.overlaps import Overlap
from catalog.model import Catalog, Definition, Endpoint, Finding, Property, PropertyType
from router.matching.records import RecordMatcher

_ANY_PROTOCOL: Final = "HTTP"
"""The protocol of a witness where neither definition names one."""
_REQUIRED: Final = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
_STRUCTURED: Final = "application/cloudevents+json"


def overlap_findings(overlaps: Sequence[Overlap], catalog: Catalog, declarations: Declarations) -> tuple[Finding, ...]:
    """Return the findings about overlaps; one whose record the matcher does not give to both is left out."""
    findings = Findings()
    for overlap, record, both in proven(overlaps, catalog):
        text = msgspec.json.encode(record).decode()
        for mine, its in ((overlap.one, overlap.other), (overlap.other, overlap.one)):
            message = f"on {overlap.scope}: {its.xid} overlaps with this; both match {text}"
            place = declarations.messages[mine.xid].place
            if both.get("reason") == "ambiguous" and not _schema_tells_apart(overlap):
                hint = "let a value differ that both have, or make one more specific: such a record is ambiguous"
                findings.warning(place, "overlap", message, hint)
            else:
                winner = both.get("message", "the one of the two that counts")
                hint = f"nothing is to be done if such a record is rightly for {winner}"
                findings.info(place, "overlap", message, hint)
    return findings.sorted()


def proven(
    overlaps: Sequence[Overlap], catalog: Catalog
) -> Iterator[tuple[Overlap, Mapping[str, Any], Mapping[str, Any]]]:
    """Give the overlaps of which the matcher says that both definitions match the record.

    With the record, and what becomes of it where both are candidates.
    """
    records = [witness_record(each) for each in overlaps]
    for overlap, record, (one, other, both) in zip(overlaps, records, _judged(overlaps, records, catalog), strict=True):
        if _matches(one) and _matches(other):
            yield overlap, record, both


def witness_record(overlap: Overlap) -> dict[str, Any]:
    """Return the native record, in the form of JUDGING.md#records, that has the values of an overlap."""
    binding = BINDINGS[overlap.protocol or _ANY_PROTOCOL]
    attributes = {key[2:]: text for key, text in overlap.values.items() if key.startswith("e.")}
    options = [(_property(key[2:], overlap), text) for key, text in overlap.values.items() if key.startswith("p.")]
    parts = binding.sending.option_parts(options)
    record: dict[str, Any] = {"protocol": binding.protocol}
    if overlap.event:
        event = {**_REQUIRED, **attributes}
        if binding.binary and not _asks_structured(binding, overlap):
            parts += [attribute_part(binding.rule, *each) for each in event.items()]
        else:
            record["body"] = encode_event(event, None).decode()
            if binding.binary:
                parts += [attribute_part(binding.rule, "datacontenttype", _STRUCTURED)]
    return {**record, "native": binding.native(parts)}


def _asks_structured(binding: Binding, overlap: Overlap) -> bool:
    """Tell whether the native content type that is asked for is that of structured events."""
    return overlap.values.get(f"p.{binding.rule.content_type}", "").lower().startswith(_STRUCTURED)


def _property(name: str, overlap: Overlap) -> Property:
    kinds: dict[str, PropertyType] = {
        each.name: each.type for definition in (overlap.other, overlap.one) for each in definition.protocoloptions
    }
    return Property(name, kinds.get(name, "string"))


def _judged(
    overlaps: Sequence[Overlap], records: Sequence[Mapping[str, Any]], catalog: Catalog
) -> list[tuple[Mapping[str, Any], ...]]:
    """Return, for each overlap, what becomes of its record: with either definition alone, and with both.

    One matcher is compiled for all, of the definitions that are in question only, each on channels of its own.
    """
    definitions: dict[str, Definition] = {}
    endpoints: dict[str, Endpoint] = {}
    lines: list[bytes | str] = []
    for number, (overlap, record) in enumerate(zip(overlaps, records, strict=True)):
        pair = (overlap.one, overlap.other)
        definitions.update({each.xid: each for each in pair})
        like = overlap.endpoint or Endpoint(overlap.scope)
        for name, members in enumerate(((pair[0],), (pair[1],), pair)):
            xid = f"/endpoints/{number}.{name}"
            endpoints[xid] = replace(like, xid=xid, messagegroups=(), candidates=tuple(each.xid for each in members))
            lines.append(msgspec.json.encode({**record, "endpoint": xid}))
    only = replace(catalog, definitions=definitions, groups={}, endpoints=endpoints)
    outcomes = RecordMatcher(only, validation="never").decide(lines)
    return [tuple(outcomes[place : place + 3]) for place in range(0, len(outcomes), 3)]


def _matches(outcome: Mapping[str, Any]) -> bool:
    """Tell whether a record matches; whether it can be mapped does not count, since settings may change that."""
    return bool(outcome["outcome"] == "routed" or outcome["reason"] == "unmappable")


def _schema_tells_apart(overlap: Overlap) -> bool:
    """Tell whether definitions have two schemas, of which a body may fit one only."""
    schemas = {schema_of(overlap.one), schema_of(overlap.other)}
    return len(schemas) == 2 and None not in schemas
