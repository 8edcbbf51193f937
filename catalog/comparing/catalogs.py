"""All changes between two catalogs: definitions, what endpoints expect, and what can no longer be told apart."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from catalog.comparing.coverage import (
    COMPATIBLE,
    CatalogChange,
    CatalogDiff,
    asked_of,
    placeholders,
    property_relation,
    relation_of,
)
from catalog.definitions.candidates import candidate_of, verdicts
from catalog.definitions.constraints import is_now
from catalog.explaining import masked
from catalog.model import CLOUDEVENTS, Catalog, Definition, Endpoint, Property
from catalog.protocols.properties import changes_by_hop
from catalog.schemas.contract import Comparison
from catalog.schemas.families import FAMILIES
from catalog.values import text_of

# How one payload schema differs from another: for readers of old data and for writers of new, as far as it is plain.
#
# Compatible means both ways: a body that was valid stays valid, and what readers could rely upon stays so. Only changes
# that are plainly so are called that, those that plainly are not are called incompatible, and all others unknown. A
# member that a JSON schema did not name is taken to be absent from older bodies; Avro is compared by its schema
# resolution, for which a reader needs the writer's schema too.


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The schema of a definition.

    ``version`` follows the family in its format; ``document`` is None when it was not loaded. ``reference`` is where it
    is, ``part`` the deep link into it.
    """

    family: str
    version: str
    document: Any
    reference: str
    part: str


def schema_of(definition: Definition, catalog: Catalog) -> SchemaState | None:
    """Return the data schema of a definition, None when it has none."""
    reference = definition.dataschemauri or definition.dataschemaxid
    if definition.dataschema is None and not reference and definition.schemakey is None:
        return None
    held: Any = catalog.schemas.get(definition.schemakey or "")
    loaded = held if isinstance(held, Mapping) and "document" in held else {}
    form = definition.dataschemaformat or loaded.get("format") or ""
    document = loaded.get("document", definition.dataschema)
    family, _, version = str(form).lower().partition("/")
    part = definition.schemaname or definition.schemapointer
    return SchemaState(family, version, document, reference or "", part)


def compare_schemas(before: SchemaState, after: SchemaState) -> Comparison:
    """Return the verdict and the place that decides it, in words."""
    if before.family != after.family:
        return "incompatible", f"the format is {after.family or 'unsaid'}, and was {before.family or 'unsaid'}"
    if before.document is None or after.document is None:
        same = before.document is after.document and before.reference == after.reference
        return ("same", "") if same else ("unknown", "the document is not loaded")
    if before.part != after.part:
        return "unknown", f"it is the part {after.part or '/'} of the document, and was {before.part or '/'}"
    if before.version and after.version and before.version != after.version:
        return "unknown", f"the version of the format is {after.version}, and was {before.version}"
    old, new = _tree(before.document), _tree(after.document)
    if old == new:
        return "same", ""
    family = next((each for each in FAMILIES if each.name.lower() == before.family and each.compares), None)
    if family is None:
        return "unknown", f"documents of {before.family or 'an unsaid format'} are only compared for being equal"
    return family.compare(old, new)


def _tree(document: Any) -> Any:
    """Return a document as a tree when its text is JSON."""
    if isinstance(document, str) and document.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(document)
        except (ValueError, RecursionError):
            return document
    return document


# What changed in one definition: what it matches, what it takes out of records, and what it makes of them.

_SELECTORS: Final = ("envelope", "protocol", "protocol_declared", "datacontenttype")


def definition_changes(before: Definition, after: Definition, old: Catalog, new: Catalog) -> list[CatalogChange]:
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
    whole = CatalogChange(
        "definition-changed",
        after.xid,
        compatible=relation in COMPATIBLE and all(part.compatible for part in parts),
        relation=relation,
    )
    return [whole, *parts]


def _relations(before: Definition, after: Definition) -> Iterator[CatalogChange]:
    """Report the relation of a definition to others: consumers see it in the lineage, and it pairs exchanges."""
    if before.relation != after.relation:
        one, other = (None if each.relation is None else asdict(each.relation) for each in (before, after))
        yield CatalogChange("relation-changed", after.xid, compatible=one is None, before=one, after=other)


def _selectors(before: Definition, after: Definition) -> Iterator[CatalogChange]:
    for name in _SELECTORS:
        one, other = getattr(before, name), getattr(after, name)
        if name == "protocol_declared" and before.protocol != after.protocol:
            continue  # the protocol itself is reported
        if one != other:
            relation = relation_of(_only(before), _only(after))
            yield CatalogChange("selector-changed", after.xid, name, relation in COMPATIBLE, relation, one, other)


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


def _properties(before: Definition, after: Definition) -> Iterator[CatalogChange]:
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
        yield CatalogChange(kind, after.xid, name, compatible, relation, _shown(old), _shown(new), detail)  # type: ignore[arg-type]


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


def _contexts(before: Definition, after: Definition) -> Iterator[CatalogChange]:
    """Report placeholders: consumers of tables see their values as context."""
    one, other = placeholders(before, events=True), placeholders(after, events=True)
    yield from (CatalogChange("context-lost", after.xid, name, compatible=False) for name in one if name not in other)
    yield from (CatalogChange("context-gained", after.xid, name) for name in other if name not in one)
    native, natively = placeholders(before, events=False), placeholders(after, events=False)
    detail = "of records that are no events"
    for name in native:
        if name not in natively and name in other:
            yield CatalogChange("context-lost", after.xid, name, compatible=False, detail=detail)
    for name in natively:
        if name not in native and name in one:
            yield CatalogChange("context-gained", after.xid, name, detail=detail)


def _mapped(before: Definition, after: Definition) -> Iterator[CatalogChange]:
    """Report the attributes that native records get when they become events (JUDGING.md#mapping)."""
    one, other = _attributes(before), _attributes(after)
    if one is None or other is None:
        return  # only one of them maps, which the relation of the whole shows
    for name in dict.fromkeys((*one, *other)):
        if name not in other:
            yield CatalogChange("mapped-attribute-removed", after.xid, name, False, None, one[name])
        elif name not in one:
            yield CatalogChange("mapped-attribute-added", after.xid, name, True, None, None, other[name])
        elif one[name] != other[name]:
            yield CatalogChange("mapped-attribute-changed", after.xid, name, False, None, one[name], other[name])


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


def _schema(before: Definition, after: Definition, old: Catalog, new: Catalog) -> Iterator[CatalogChange]:
    one, other = schema_of(before, old), schema_of(after, new)
    if one is None or other is None:
        if one is not None:
            yield CatalogChange(
                "schema-removed", after.xid, one.reference, False, "wider", detail="bodies are not checked now"
            )
        elif other is not None:
            yield CatalogChange(
                "schema-added", after.xid, other.reference, False, "narrower", detail="bodies are checked now"
            )
        return
    verdict, detail = compare_schemas(one, other)
    if verdict != "same":
        relation = "same" if verdict == "compatible" else "unknown" if verdict == "unknown" else "different"
        yield CatalogChange(
            "schema-changed",
            after.xid,
            other.reference,
            verdict == "compatible",
            relation,  # type: ignore[arg-type]
            one.reference,
            other.reference,
            f"{verdict}: {detail}" if detail else verdict,
        )


_RULES: Final = {"indistinguishable": "ambiguous-now", "never-reached": "never-reached-now"}
_DEFAULTS: Final = ("envelope", "protocol", "envelopeoptions")
_ADDRESSING: Final = ("usage", "uris", "options")


def compare(old: Catalog, new: Catalog) -> CatalogDiff:
    """Return what changed from *old* to *new*.

    Definitions are compared without the defaults of endpoints, which are reported where they change. A definition that
    is gone while another with the same constraints has come is renamed.
    """
    if old.epoch and old.epoch == new.epoch:
        return CatalogDiff(old.epoch, new.epoch)
    renamed = _renamed(old, new)
    changes = [*_definitions(old, new, renamed), *_endpoints(old, new, renamed), *_undecided(old, new)]
    return CatalogDiff(old.epoch, new.epoch, tuple(changes))


def _definitions(old: Catalog, new: Catalog, renamed: Mapping[str, str]) -> Iterator[CatalogChange]:
    arrived = set(renamed.values())
    for xid, before in old.definitions.items():
        if xid in renamed:
            after = new.definitions[renamed[xid]]
            yield CatalogChange("definition-renamed", renamed[xid], "", False, "same", xid, renamed[xid])
            yield from definition_changes(before, after, old, new)
        elif xid in new.definitions:
            yield from definition_changes(before, new.definitions[xid], old, new)
        else:
            yield CatalogChange("definition-removed", xid, compatible=False, relation="narrower")
    for xid in new.definitions:
        if xid not in old.definitions and xid not in arrived:
            yield CatalogChange("definition-added", xid, relation="wider")


def _renamed(old: Catalog, new: Catalog) -> dict[str, str]:
    """Pair definitions that are gone with new ones of the same constraints; only where there is one of each."""
    gone: dict[str, list[str]] = {}
    for xid, definition in old.definitions.items():
        if xid not in new.definitions:
            gone.setdefault(_constraints(definition), []).append(xid)
    come: dict[str, list[str]] = {}
    for xid, definition in new.definitions.items():
        if xid not in old.definitions:
            come.setdefault(_constraints(definition), []).append(xid)
    return {xids[0]: come[key][0] for key, xids in gone.items() if len(xids) == len(come.get(key, ())) == 1}


def _constraints(definition: Definition) -> str:
    """Return all that a definition matches and makes, but for how it is called and what it derives from."""
    schema = repr(definition.dataschema) if definition.dataschema is not None else definition.dataschemauri
    alone = replace(
        definition,
        xid="",
        group="",
        base=(),
        schemauri=None,
        schemakey=None,
        dataschema=None,
        dataschemauri=schema,
    )
    return repr(alone)


def _endpoints(old: Catalog, new: Catalog, renamed: Mapping[str, str]) -> Iterator[CatalogChange]:
    for xid, before in old.endpoints.items():
        after = new.endpoints.get(xid)
        if after is None:
            yield CatalogChange("endpoint-removed", xid, compatible=False)
        else:
            yield from _endpoint(before, after, renamed)
    for xid in new.endpoints:
        if xid not in old.endpoints:
            yield CatalogChange("endpoint-added", xid)


def _endpoint(before: Endpoint, after: Endpoint, renamed: Mapping[str, str]) -> Iterator[CatalogChange]:
    for name in _DEFAULTS:
        if getattr(before, name) != getattr(after, name):
            one, other = masked(getattr(before, name)), masked(getattr(after, name))
            yield CatalogChange("endpoint-changed", after.xid, name, False, "different", one, other)
    for name in _ADDRESSING:
        if getattr(before, name) != getattr(after, name):
            one, other = masked(getattr(before, name)), masked(getattr(after, name))
            yield CatalogChange("address-changed", after.xid, name, True, "same", one, other, "filters nothing")
    known = {renamed.get(xid, xid) for xid in before.candidates}
    expected = frozenset(after.candidates)
    for xid in before.candidates:
        if renamed.get(xid, xid) not in expected:
            yield CatalogChange("candidate-removed", after.xid, xid, False, "narrower")
    yield from (
        CatalogChange("candidate-added", after.xid, xid, True, "wider") for xid in after.candidates if xid not in known
    )


def _undecided(old: Catalog, new: Catalog) -> Iterator[CatalogChange]:
    """Tell of definitions that could win a record before and never can now, among the candidates of one channel."""
    for scope, xids, endpoint in _scopes(new):
        competed, was = _scope(old, scope)
        before = _verdicts(old, competed, was)
        after = _verdicts(new, xids, endpoint)
        for (xid, rule), detail in after.items():
            if (xid, rule) not in before:
                kind = _RULES[rule]
                yield CatalogChange(kind, xid, scope, False, "narrower", detail=detail)  # type: ignore[arg-type]


def _scopes(catalog: Catalog) -> Iterator[tuple[str, tuple[str, ...], Endpoint | None]]:
    """Give what competes: the candidates of endpoints, and groups that no endpoint lists."""
    for endpoint in catalog.endpoints.values():
        yield endpoint.xid, endpoint.candidates, endpoint
    listed = {group for endpoint in catalog.endpoints.values() for group in endpoint.messagegroups}
    for xid, members in catalog.groups.items():
        if xid not in listed:
            yield xid, members, None


def _scope(catalog: Catalog, xid: str) -> tuple[tuple[str, ...], Endpoint | None]:
    endpoint = catalog.endpoints.get(xid)
    return (endpoint.candidates, endpoint) if endpoint else (catalog.groups.get(xid, ()), None)


def _verdicts(catalog: Catalog, xids: Iterable[str], endpoint: Endpoint | None) -> dict[tuple[str, str], str]:
    """Return what lint would warn of, by xid and rule; what only a body can tell apart is left to the body."""
    definitions: list[Definition] = [catalog.definitions[xid] for xid in xids]
    candidates = [candidate for each in definitions if (candidate := candidate_of(each, endpoint)) is not None]
    texts: dict[tuple[str, str], str] = {}
    for xid, verdict in verdicts(candidates):
        if verdict.rule == "never-reached" or verdict.severity == "warning":
            texts.setdefault((xid, verdict.rule), verdict.text)
    return texts
