"""``nearest`` written straight from semantics.md section 5: every candidate looked at in full, then sorted."""

from __future__ import annotations

from bindings.envelope import Envelope
from bindings.parts import Parts
from bindings.protocols import Binding, binding_of
from catalog.model import Catalog, Definition, Endpoint
from catalog.record import parse_record
from catalog.values import is_any_timestamp, media_type_matches
from tests.support.reference import Reference, checks_of, describes, envelope_name, holds, protocol_name
from tests.support.reference_mapping import is_template

Failed = tuple[str, ...]
"""The properties that failed, sorted."""


def nearest(catalog: Catalog, endpoint: Endpoint, line: str) -> list[tuple[str, Failed]]:
    """All candidates of an endpoint for a record that is no batch: fewest failed, most literals matched, then xid."""
    record = parse_record(line)
    binding = binding_of(record.protocol)
    assert binding is not None
    parts = binding.parts(record.native)
    sniffs = Reference(catalog, endpoint=endpoint.xid).sniffs
    envelope = binding.envelope(parts, record.body, lambda: sniffs(record, binding))
    ranked: list[tuple[int, int, str, Failed]] = []
    for xid in endpoint.candidates:
        definition = catalog.definitions[xid]
        if envelope_name(definition, endpoint) in (None, "CloudEvents/1.0"):
            failed, literals = _looked_at(definition, endpoint, binding, parts, envelope)
            ranked.append((len(failed), -literals, xid, tuple(sorted(failed))))
    return [(xid, failed) for _, _, xid, failed in sorted(ranked)]


def _looked_at(
    definition: Definition, endpoint: Endpoint, binding: Binding, parts: Parts, envelope: Envelope
) -> tuple[list[str], int]:
    """What failed, and how many literals matched."""
    failed: list[str] = []
    literals = 0
    event, protocol = envelope.is_event, protocol_name(definition, endpoint)
    has_envelope = envelope_name(definition, endpoint) is not None
    if protocol not in (None, binding.protocol):
        failed.append("protocol")
    unlike = not event and not describes(definition, protocol) and (has_envelope or protocol is not None)
    if unlike:
        failed.append("envelope")
    looked = envelope if has_envelope and (event or unlike) else None
    bound: dict[str, str] = {}
    for key, prop, texts in checks_of(definition, protocol, binding, parts, looked, hops=False):
        taken = holds(key, prop, texts, nats=protocol == "NATS")
        if taken is None:
            failed.append(key)
            continue
        if any(bound.setdefault(name, value) != value for name, value in taken):
            failed.append(key)
        any_time = prop.type == "timestamp" and is_any_timestamp(prop.value)
        literals += prop.value is not None and not any_time and not is_template(prop)
    content = envelope.attributes.get("datacontenttype") if event else envelope.content_type
    wanted = definition.datacontenttype
    if wanted and content is not None and not media_type_matches(wanted, content):
        failed.append("d")
    return failed, literals
