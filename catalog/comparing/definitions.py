"""What changed in one definition: what it matches, what it takes out of records, and what it makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from catalog.comparing.changes import COMPATIBLE, Change
from catalog.comparing.coverage import asked_of, placeholders, property_relation, relation_of
from catalog.comparing.schemas import compare_schemas, schema_of
from catalog.definitions.constraints import is_now
from catalog.model import CLOUDEVENTS, Catalog, Definition, Property
from catalog.protocols.properties import changes_by_hop
from catalog.values import text_of

_SELECTORS: Final = ("envelope", "protocol", "protocol_declared", "datacontenttype")


def definition_changes(before: Definition, after: Definition, old: Catalog, new: Catalog) -> list[Change]:
    """Return the changes between two definitions, under the xid of *after*; empty when nothing matters.

    The first tells of the definition as a whole: each property may be wider and the whole be different, since
    placeholders of one name must hold one value.
    """
    parts = list(_schema(before, after, old, new))
    if before == after and not parts:
        return []
    parts = [
        *_selectors(before, after),
        *_properties(before, after),
        *_contexts(before, after),
        *_mapped(before, after),
        *_relations(before, after),
        *parts,
    ]
    relation = relation_of(before, after)
    if not parts and relation == "same":
        return []
    whole = Change(
        "definition-changed",
        after.xid,
        compatible=relation in COMPATIBLE and all(part.compatible for part in parts),
        relation=relation,
    )
    return [whole, *parts]


def _relations(before: Definition, after: Definition) -> Iterator[Change]:
    """Report the relation of a definition to others: consumers see it in the lineage, and it pairs exchanges."""
    if before.relation != after.relation:
        one, other = (None if each.relation is None else asdict(each.relation) for each in (before, after))
        yield Change("relation-changed", after.xid, compatible=one is None, before=one, after=other)


def _selectors(before: Definition, after: Definition) -> Iterator[Change]:
    for name in _SELECTORS:
        one, other = getattr(before, name), getattr(after, name)
        if name == "protocol_declared" and before.protocol != after.protocol:
            continue  # the protocol itself is reported
        if one != other:
            relation = relation_of(_only(before), _only(after))
            yield Change("selector-changed", after.xid, name, relation in COMPATIBLE, relation, one, other)


def _only(definition: Definition) -> Definition:
    """Return what a definition selects by, without its properties; options only tell whether there are any."""
    described = definition.protocol_declared or bool(definition.protocoloptions)
    return Definition(
        definition.xid,
        definition.group,
        definition.envelope,
        definition.protocol,
        described,
        datacontenttype=definition.datacontenttype,
    )


def _properties(before: Definition, after: Definition) -> Iterator[Change]:
    one, other = _by_key(before), _by_key(after)
    asked, asks = asked_of(before), asked_of(after)
    for key in dict.fromkeys((*one, *other)):
        old, new = one.get(key, []), other.get(key, [])
        if old == new:
            continue
        relation = property_relation(asked.get(key, ()), asks.get(key, ()))
        kind = "property-added" if not old else "property-removed" if not new else "property-changed"
        detail = "changes hop by hop, and filters only where settings say so" if changes_by_hop(key[2:]) else ""
        name = ("envelopemetadata." if key.startswith("e.") else "protocoloptions.") + key[2:]
        compatible = relation in COMPATIBLE
        yield Change(kind, after.xid, name, compatible, relation, _shown(old), _shown(new), detail)  # type: ignore[arg-type]


def _by_key(definition: Definition) -> dict[str, list[Property]]:
    by_key: dict[str, list[Property]] = {}
    for scope, properties in (("e.", definition.envelopemetadata), ("p.", definition.protocoloptions)):
        for prop in properties:
            by_key.setdefault(scope + prop.name, []).append(prop)
    return by_key


def _shown(properties: Sequence[Property]) -> Any:
    """Return ``{type, value, required}``, a list of such when there are several, None when there is none."""
    forms = [{"type": each.type, "value": each.value, "required": each.required} for each in properties]
    return forms if len(forms) > 1 else forms[0] if forms else None


def _contexts(before: Definition, after: Definition) -> Iterator[Change]:
    """Report placeholders: consumers of tables see their values as context."""
    one, other = placeholders(before, events=True), placeholders(after, events=True)
    yield from (Change("context-lost", after.xid, name, compatible=False) for name in one if name not in other)
    yield from (Change("context-gained", after.xid, name) for name in other if name not in one)
    native, natively = placeholders(before, events=False), placeholders(after, events=False)
    detail = "of records that are no events"
    for name in native:
        if name not in natively and name in other:
            yield Change("context-lost", after.xid, name, compatible=False, detail=detail)
    for name in natively:
        if name not in native and name in one:
            yield Change("context-gained", after.xid, name, detail=detail)


def _mapped(before: Definition, after: Definition) -> Iterator[Change]:
    """Report the attributes that native records get when they become events (JUDGING.md#mapping)."""
    one, other = _attributes(before), _attributes(after)
    if one is None or other is None:
        return  # only one of them maps, which the relation of the whole shows
    for name in dict.fromkeys((*one, *other)):
        if name not in other:
            yield Change("mapped-attribute-removed", after.xid, name, False, None, one[name])
        elif name not in one:
            yield Change("mapped-attribute-added", after.xid, name, True, None, None, other[name])
        elif one[name] != other[name]:
            yield Change("mapped-attribute-changed", after.xid, name, False, None, one[name], other[name])


def _attributes(definition: Definition) -> dict[str, str] | None:
    """Return the attributes that a definition gives to native records; None when it maps none."""
    if definition.protocol is None or not (definition.protocol_declared or definition.protocoloptions):
        return None
    attributes = {"type": definition.messageid}
    reference = definition.dataschemauri or definition.dataschemaxid
    attributes.update({"dataschema": reference} if reference else {})
    attributes.update({"datacontenttype": definition.datacontenttype} if definition.datacontenttype else {})
    for prop in definition.envelopemetadata if definition.envelope == CLOUDEVENTS else ():
        if prop.value is not None and not is_now(prop):
            attributes[prop.name] = text_of(prop.value)
    return attributes


def _schema(before: Definition, after: Definition, old: Catalog, new: Catalog) -> Iterator[Change]:
    one, other = schema_of(before, old), schema_of(after, new)
    if one is None or other is None:
        if one is not None:
            yield Change(
                "schema-removed", after.xid, one.reference, False, "wider", detail="bodies are not checked now"
            )
        elif other is not None:
            yield Change("schema-added", after.xid, other.reference, False, "narrower", detail="bodies are checked now")
        return
    verdict, detail = compare_schemas(one, other)
    if verdict != "same":
        relation = "same" if verdict == "compatible" else "unknown" if verdict == "unknown" else "different"
        yield Change(
            "schema-changed",
            after.xid,
            other.reference,
            verdict == "compatible",
            relation,  # type: ignore[arg-type]
            one.reference,
            other.reference,
            f"{verdict}: {detail}" if detail else verdict,
        )
