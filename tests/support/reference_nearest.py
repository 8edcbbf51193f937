"""``nearest`` written straight from MATCHING.md#nearest-definitions: every candidate looked at in full, then sorted.

Between the literals that matched and the xid stands how many characters must change, for candidates that are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bindings.envelope import Envelope
from bindings.parts import Parts
from bindings.protocols import Binding, binding_of
from catalog.model import Catalog, Definition, Endpoint, Property
from catalog.record import parse_record
from catalog.values import is_any_timestamp, media_type_matches, to_text
from tests.support.reference import (
    BRACES,
    Reference,
    checks_of,
    describes,
    envelope_name,
    holds,
    is_template,
    protocol_name,
)

FAR: Final = 8
LONGEST: Final = 200
FARTHEST: Final = 63
Failed = tuple[str, ...]
"""The properties that failed, sorted."""


def nearest(catalog: Catalog, endpoint: Endpoint, line: str) -> list[tuple[str, Failed]]:
    """All candidates for a record that is no batch: fewest failed, most literals matched, least unlike, then xid."""
    record = parse_record(line)
    binding = binding_of(record.protocol)
    assert binding is not None
    parts = binding.split(record.native)
    sniffs = Reference(catalog, endpoint=endpoint.xid).sniffs
    envelope = binding.read_envelope(parts, record.body, lambda: sniffs(record, binding))
    ranked: list[tuple[int, int, int, str, Failed]] = []
    for xid in endpoint.candidates:
        definition = catalog.definitions[xid]
        if envelope_name(definition, endpoint) in (None, "CloudEvents/1.0"):
            failed, literals, unlike = _looked_at(definition, endpoint, binding, parts, envelope)
            ranked.append((len(failed), -literals, min(unlike, FARTHEST), xid, tuple(sorted(failed))))
    return [(xid, failed) for _, _, _, xid, failed in sorted(ranked)]


def _looked_at(
    definition: Definition, endpoint: Endpoint, binding: Binding, parts: Parts, envelope: Envelope
) -> tuple[list[str], int, int]:
    """What failed, how many literals matched, and how many characters must change."""
    failed: list[str] = []
    literals = unlike = 0
    event, protocol = envelope.is_event, protocol_name(definition, endpoint)
    has_envelope = envelope_name(definition, endpoint) is not None
    if protocol not in (None, binding.protocol):
        failed.append("protocol")
    eventless = not event and not describes(definition, protocol) and (has_envelope or protocol is not None)
    if eventless:
        failed.append("envelope")
    looked = envelope if has_envelope and (event or eventless) else None
    bound: dict[str, str] = {}
    for key, prop, texts in checks_of(definition, protocol, binding, parts, looked, hops=False):
        taken = holds(key, prop, texts, nats=protocol == "NATS")
        if taken is None:
            failed.append(key)
            unlike += _unlike(prop, texts, dots=protocol == "NATS" and key in ("p.subject", "p.reply-to"))
            continue
        if any(bound.setdefault(name, value) != value for name, value in taken):
            failed.append(key)
        any_time = prop.type == "timestamp" and is_any_timestamp(prop.value)
        literals += prop.value is not None and not any_time and not is_template(prop)
    content = envelope.attributes.get("datacontenttype") if event else envelope.content_type
    wanted = definition.datacontenttype
    if wanted and content is not None and not media_type_matches(wanted, content):
        failed.append("d")
        unlike += max(1, min(FAR, edits(wanted, content)))
    return failed, literals, unlike


def _unlike(prop: Property, texts: Sequence[str | None], *, dots: bool) -> int:
    """How far the first value is from what a property asks for; FAR when there is no text on either side."""
    text = texts[0] if texts else None
    any_time = prop.type == "timestamp" and is_any_timestamp(prop.value)
    if text is None or prop.value is None or any_time or prop.type == "binary":
        return FAR
    wanted = to_text(prop.value)
    if max(len(text), len(wanted)) > LONGEST:
        return FAR
    if not is_template(prop):
        return max(1, min(FAR, edits(wanted, text)))
    marks = "/." if dots else "/"
    if [each for each in BRACES.sub("", wanted) if each in marks] != [each for each in text if each in marks]:
        return FAR
    filled: list[str] = []
    for asked, found in zip(_stretches(wanted, marks), _stretches(text, marks), strict=True):
        first, *others = BRACES.split(asked)
        last = others[-1] if others else ""
        between = found[len(first) : max(len(first), len(found) - len(last))] if others else ""
        filled.append(first + between + last)
    return max(1, min(FAR, edits("/".join(filled), "/".join(_stretches(text, marks)))))


def _stretches(text: str, marks: str) -> list[str]:
    """What stands between separators; dots in the name of a placeholder are none."""
    stretches, depth = [""], BRACES.split(text)
    for place, piece in enumerate(depth):
        if place % 2:
            stretches[-1] += "{" + piece + "}"
            continue
        for character in piece:
            if character in marks:
                stretches.append("")
            else:
                stretches[-1] += character
    return stretches


def edits(one: str, other: str) -> int:
    """The edit distance by the table that everybody knows."""
    row = list(range(len(other) + 1))
    for place, character in enumerate(one, 1):
        above, row[0] = row[0], place
        for column, found in enumerate(other, 1):
            above, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, above + (character != found))
    return row[-1]
