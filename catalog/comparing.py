"""Compare two catalogs: definitions, candidates of endpoints, and definitions that can no longer win."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

from catalog.definitions.candidates import competing_candidates, find_never_winning, iter_scopes
from catalog.definitions.constraints import (
    CONTENT_TYPE_KEY,
    Constraint,
    constraint_of,
    content_constraint,
    covers,
    covers_property,
    demands_of,
    envelope_constraints,
    is_now,
    protocol_constraints,
    scope_of,
)
from catalog.explaining import mask_secrets
from catalog.model import CLOUDEVENTS, Catalog, Definition, Endpoint, Property
from catalog.protocols.properties import is_hop_by_hop
from catalog.schemas.contract import Comparison
from catalog.schemas.families import FAMILIES
from catalog.values import to_text

# The result of a comparison. The JSON forms are the output of ``catalog diff``.

Relation = Literal["same", "wider", "narrower", "different", "unknown"]
"""How the set of matching records changed: the same, more, fewer, different, or unknown."""
COMPATIBLE: Final = frozenset({"same", "wider"})


@dataclass(frozen=True, slots=True)
class CatalogChange:
    """One change of *xid*; ``name`` is the property, attribute, placeholder or candidate that changed.

    ``compatible`` is False if records may get another outcome, or consumers may lose or misread something.
    ``relation`` is set if records are constrained, ``detail`` adds what the other members do not show.
    """

    kind: str
    xid: str
    name: str = ""
    compatible: bool = True
    relation: Relation | None = None
    before: Any = None
    after: Any = None
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the change as JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class CatalogDiff:
    """All changes from the catalog of epoch ``before`` to that of ``after``, in a stable order."""

    before: str
    after: str
    changes: tuple[CatalogChange, ...] = ()

    @property
    def compatible(self) -> bool:
        """Whether all changes are compatible."""
        return all(change.compatible for change in self.changes)

    def to_json(self) -> dict[str, Any]:
        """Return ``{before, after, compatible, changes}``."""
        changes = [change.to_json() for change in self.changes]
        return {"before": self.before, "after": self.after, "compatible": self.compatible, "changes": changes}


# The records that a definition matches, and the placeholders that it reads.


def _demands(definition: Definition) -> dict[str, list[Constraint]]:
    content = content_constraint(definition)
    options = protocol_constraints(definition, definition.protocol or "", hop_by_hop=False)
    common = ((CONTENT_TYPE_KEY, content),) if content else ()
    return demands_of((*envelope_constraints(definition), *options, *common))


def _list_placeholders(definition: Definition, *, events: bool) -> dict[str, None]:
    """Return the placeholder names, in order, for events or for other records."""
    properties = (*(definition.envelopemetadata if events else ()), *definition.protocoloptions)
    constraints = (constraint_of("", prop) for prop in properties)
    return dict.fromkeys(name for each in constraints if each.kind == "template" for name in each.template.names)


def compare_match_sets(before: Definition, after: Definition) -> Relation:
    """Compare the sets of records that *before* and *after* match, ignoring defaults of endpoints."""
    was, now = _demands(before), _demands(after)
    wider = _is_same_kind(after, before) and covers(now, was)
    return _relation_from(wider, _is_same_kind(before, after) and covers(was, now))


def _relation_from(wider: bool, narrower: bool) -> Relation:
    if wider and narrower:
        return "same"
    return "wider" if wider else "narrower" if narrower else "different"


def _is_same_kind(big: Definition, small: Definition) -> bool:
    """Whether both are for the same envelope and protocol."""
    mine, its = scope_of(big, None), scope_of(small, None)
    if mine is None or its is None or mine[:2] != its[:2]:
        return False
    return mine.native or not its.native


# Compatibility of two payload schemas, for readers of old data and writers of new data.
#
# Compatible means both ways: valid bodies stay valid, and readers can rely on the same things. Anything not proven
# compatible or incompatible is unknown. A member that a JSON schema did not name is assumed to be absent
# in older bodies; Avro is compared by its schema resolution, for which a reader needs the writer's schema too.


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The schema of a definition.

    ``version`` follows the family in its format; ``document`` is None if it was not loaded. ``reference`` is its
    address, ``part`` the deep link into it.
    """

    family: str
    version: str
    document: Any
    reference: str
    part: str


def schema_state_of(definition: Definition, catalog: Catalog) -> SchemaState | None:
    """Return the data schema of a definition, None if it has none."""
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
    """Return the result and a text that explains it."""
    if before.family != after.family:
        return "incompatible", f"the format was {before.family or 'unknown'} and is now {after.family or 'unknown'}"
    if before.document is None or after.document is None:
        same = before.document is after.document and before.reference == after.reference
        return ("same", "") if same else ("unknown", "the document is not loaded")
    if before.part != after.part:
        return "unknown", f"the part of the document was {before.part or '/'} and is now {after.part or '/'}"
    if before.version and after.version and before.version != after.version:
        return "unknown", f"the version of the format was {before.version} and is now {after.version}"
    old, new = _parse_if_json(before.document), _parse_if_json(after.document)
    if old == new:
        return "same", ""
    family = next((each for each in FAMILIES if each.name.lower() == before.family and each.compares), None)
    if family is None:
        return "unknown", f"documents of {before.family or 'unknown format'} are only compared for equality"
    try:
        return family.compare(old, new)
    except RecursionError:
        return "unknown", "the documents nest too deeply to be compared"


def _parse_if_json(document: Any) -> Any:
    """Return the parsed document if it is JSON text, else the document itself."""
    if isinstance(document, str) and document.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(document)
        except (ValueError, RecursionError):
            return document
    return document


# Changes of one definition: the records it matches, its context attributes, and its mapping to events.

_SELECTORS: Final = ("envelope", "protocol", "protocol_declared", "datacontenttype")


def compare_definitions(before: Definition, after: Definition, old: Catalog, new: Catalog) -> list[CatalogChange]:
    """Return the changes between two definitions, with the xid of *after*; empty if none is relevant.

    The first change is for the definition as a whole: it can be "different" even if each property is wider, since
    repeated placeholders must have equal values.
    """
    parts = list(_compare_data_schemas(before, after, old, new))
    if before == after and not parts:
        return []
    parts = [
        *_compare_selectors(before, after),
        *_compare_properties(before, after),
        *_compare_placeholders(before, after),
        *_compare_mappings(before, after),
        *_compare_relations(before, after),
        *parts,
    ]
    relation = compare_match_sets(before, after)
    if not parts and relation == "same":
        return []
    whole = CatalogChange(
        "definition-changed",
        after.xid,
        compatible=relation in COMPATIBLE and all(part.compatible for part in parts),
        relation=relation,
    )
    return [whole, *parts]


def _compare_relations(before: Definition, after: Definition) -> Iterator[CatalogChange]:
    """Report changed relations: consumers see them in the lineage, and they correlate messages."""
    if before.relation != after.relation:
        one, other = (None if each.relation is None else asdict(each.relation) for each in (before, after))
        yield CatalogChange("relation-changed", after.xid, compatible=one is None, before=one, after=other)


def _compare_selectors(before: Definition, after: Definition) -> Iterator[CatalogChange]:
    for name in _SELECTORS:
        one, other = getattr(before, name), getattr(after, name)
        if name == "protocol_declared" and before.protocol != after.protocol:
            continue  # the protocol itself is reported
        if one != other:
            relation = compare_match_sets(_without_properties(before), _without_properties(after))
            yield CatalogChange("selector-changed", after.xid, name, relation in COMPATIBLE, relation, one, other)


def _without_properties(definition: Definition) -> Definition:
    """Return a copy with selectors only, without properties."""
    described = definition.protocol_declared or bool(definition.protocoloptions)
    return Definition(
        definition.xid,
        definition.group,
        definition.envelope,
        definition.protocol,
        described,
        datacontenttype=definition.datacontenttype,
    )


def _compare_properties(before: Definition, after: Definition) -> Iterator[CatalogChange]:
    one, other = _properties_by_key(before), _properties_by_key(after)
    was, now = _demands(before), _demands(after)
    for key in dict.fromkeys((*one, *other)):
        old, new = one.get(key, []), other.get(key, [])
        if old == new:
            continue
        wide, narrow = now.get(key, ()), was.get(key, ())
        relation = _relation_from(covers_property(key, wide, narrow), covers_property(key, narrow, wide))
        kind = "property-added" if not old else "property-removed" if not new else "property-changed"
        detail = "a hop-by-hop property; it filters only if the settings say so" if is_hop_by_hop(key[2:]) else ""
        name = ("envelopemetadata." if key.startswith("e.") else "protocoloptions.") + key[2:]
        compatible = relation in COMPATIBLE
        yield CatalogChange(kind, after.xid, name, compatible, relation, _to_json(old), _to_json(new), detail)


def _properties_by_key(definition: Definition) -> dict[str, list[Property]]:
    by_key: dict[str, list[Property]] = {}
    for scope, properties in (("e.", definition.envelopemetadata), ("p.", definition.protocoloptions)):
        for prop in properties:
            by_key.setdefault(scope + prop.name, []).append(prop)
    return by_key


def _to_json(properties: Sequence[Property]) -> Any:
    """Return ``{type, value, required}``, a list of them if there are several, None if there is none."""
    forms = [{"type": each.type, "value": each.value, "required": each.required} for each in properties]
    return forms if len(forms) > 1 else forms[0] if forms else None


def _compare_placeholders(before: Definition, after: Definition) -> Iterator[CatalogChange]:
    """Report placeholders: consumers of tables see their values as context."""
    one, other = _list_placeholders(before, events=True), _list_placeholders(after, events=True)
    yield from (CatalogChange("context-lost", after.xid, name, compatible=False) for name in one if name not in other)
    yield from (CatalogChange("context-gained", after.xid, name) for name in other if name not in one)
    native, natively = _list_placeholders(before, events=False), _list_placeholders(after, events=False)
    detail = "for records that are not events"
    for name in native:
        if name not in natively and name in other:
            yield CatalogChange("context-lost", after.xid, name, compatible=False, detail=detail)
    for name in natively:
        if name not in native and name in one:
            yield CatalogChange("context-gained", after.xid, name, detail=detail)


def _compare_mappings(before: Definition, after: Definition) -> Iterator[CatalogChange]:
    """Report the attributes that native records get when they are mapped to events (MATCHING.md#mapping)."""
    one, other = _mapped_attributes(before), _mapped_attributes(after)
    if one is None or other is None:
        return  # only one of them maps; the change of the whole definition shows that
    for name in dict.fromkeys((*one, *other)):
        if name not in other:
            yield CatalogChange("mapped-attribute-removed", after.xid, name, False, None, one[name])
        elif name not in one:
            yield CatalogChange("mapped-attribute-added", after.xid, name, True, None, None, other[name])
        elif one[name] != other[name]:
            yield CatalogChange("mapped-attribute-changed", after.xid, name, False, None, one[name], other[name])


def _mapped_attributes(definition: Definition) -> dict[str, str] | None:
    """Return the attributes that a definition gives to native records; None if it maps none."""
    if definition.protocol is None or not (definition.protocol_declared or definition.protocoloptions):
        return None
    attributes = {"type": definition.messageid}
    reference = definition.dataschemauri or definition.dataschemaxid
    attributes.update({"dataschema": reference} if reference else {})
    attributes.update({"datacontenttype": definition.datacontenttype} if definition.datacontenttype else {})
    for prop in definition.envelopemetadata if definition.envelope == CLOUDEVENTS else ():
        if prop.value is not None and not is_now(prop):
            attributes[prop.name] = to_text(prop.value)
    return attributes


def _compare_data_schemas(before: Definition, after: Definition, old: Catalog, new: Catalog) -> Iterator[CatalogChange]:
    one, other = schema_state_of(before, old), schema_state_of(after, new)
    if one is None or other is None:
        if one is not None:
            text = "bodies are no longer validated"
            yield CatalogChange("schema-removed", after.xid, one.reference, False, "wider", detail=text)
        elif other is not None:
            text = "bodies are now validated"
            yield CatalogChange("schema-added", after.xid, other.reference, False, "narrower", detail=text)
        return
    verdict, detail = compare_schemas(one, other)
    relations: dict[str, Relation] = {"compatible": "same", "unknown": "unknown"}
    if verdict != "same":
        relation, text = relations.get(verdict, "different"), f"{verdict}: {detail}" if detail else verdict
        fine, was, now = verdict == "compatible", one.reference, other.reference
        yield CatalogChange("schema-changed", after.xid, now, fine, relation, was, now, text)


_RULES: Final = {"indistinguishable": "ambiguous-now", "never-reached": "never-reached-now"}
_DEFAULTS: Final = ("envelope", "protocol", "envelopeoptions")
_ADDRESSING: Final = ("usage", "uris", "options")


def compare_catalogs(old: Catalog, new: Catalog) -> CatalogDiff:
    """Return the changes from *old* to *new*.

    Definitions are compared without the defaults of endpoints, which are reported separately. If a definition was
    removed and one with the same constraints was added, it is renamed.
    """
    if old.epoch and old.epoch == new.epoch:
        return CatalogDiff(old.epoch, new.epoch)
    renamed = _find_renamed(old, new)
    changes = [*_definition_changes(old, new, renamed), *_endpoint_changes(old, new, renamed), *_new_findings(old, new)]
    return CatalogDiff(old.epoch, new.epoch, tuple(changes))


def _definition_changes(old: Catalog, new: Catalog, renamed: Mapping[str, str]) -> Iterator[CatalogChange]:
    arrived = set(renamed.values())
    for xid, before in old.definitions.items():
        if xid in renamed:
            after = new.definitions[renamed[xid]]
            yield CatalogChange("definition-renamed", renamed[xid], "", False, "same", xid, renamed[xid])
            yield from compare_definitions(before, after, old, new)
        elif xid in new.definitions:
            yield from compare_definitions(before, new.definitions[xid], old, new)
        else:
            yield CatalogChange("definition-removed", xid, compatible=False, relation="narrower")
    for xid in new.definitions:
        if xid not in old.definitions and xid not in arrived:
            yield CatalogChange("definition-added", xid, relation="wider")


def _find_renamed(old: Catalog, new: Catalog) -> dict[str, str]:
    """Pair removed definitions with added ones of the same constraints, if there is exactly one of each."""
    gone, come = _by_fingerprint(old, new), _by_fingerprint(new, old)
    return {xids[0]: come[key][0] for key, xids in gone.items() if len(xids) == len(come.get(key, ())) == 1}


def _by_fingerprint(catalog: Catalog, other: Catalog) -> dict[str, list[str]]:
    """Return the definitions that *other* does not have."""
    found: dict[str, list[str]] = {}
    for xid, definition in catalog.definitions.items():
        if xid not in other.definitions:
            found.setdefault(_match_fingerprint(definition), []).append(xid)
    return found


def _match_fingerprint(definition: Definition) -> str:
    """Return a text that is equal for definitions that match and map alike, whatever their names and bases."""
    schema = repr(definition.dataschema) if definition.dataschema is not None else definition.dataschemauri
    alone = replace(
        definition, xid="", group="", base=(), schemauri=None, schemakey=None, dataschema=None, dataschemauri=schema
    )
    return repr(alone)


def _endpoint_changes(old: Catalog, new: Catalog, renamed: Mapping[str, str]) -> Iterator[CatalogChange]:
    for xid, before in old.endpoints.items():
        after = new.endpoints.get(xid)
        if after is None:
            yield CatalogChange("endpoint-removed", xid, compatible=False)
        else:
            yield from _compare_endpoint(before, after, renamed)
    for xid in new.endpoints:
        if xid not in old.endpoints:
            yield CatalogChange("endpoint-added", xid)


def _compare_endpoint(before: Endpoint, after: Endpoint, renamed: Mapping[str, str]) -> Iterator[CatalogChange]:
    for name in (*_DEFAULTS, *_ADDRESSING):
        if getattr(before, name) != getattr(after, name):
            one, other = mask_secrets(getattr(before, name)), mask_secrets(getattr(after, name))
            if name in _DEFAULTS:
                yield CatalogChange("endpoint-changed", after.xid, name, False, "different", one, other)
            else:
                yield CatalogChange("address-changed", after.xid, name, True, "same", one, other, "filters nothing")
    known = {renamed.get(xid, xid) for xid in before.candidates}
    expected = frozenset(after.candidates)
    for xid in before.candidates:
        if renamed.get(xid, xid) not in expected:
            yield CatalogChange("candidate-removed", after.xid, xid, False, "narrower")
    yield from (
        CatalogChange("candidate-added", after.xid, xid, True, "wider") for xid in after.candidates if xid not in known
    )


def _new_findings(old: Catalog, new: Catalog) -> Iterator[CatalogChange]:
    """Report definitions that could win records before and now never can."""
    for scope, endpoint, xids in iter_scopes(new, every=True):
        competed, was = _find_scope(old, scope)
        before = _lint_warnings(old, competed, was)
        after = _lint_warnings(new, xids, endpoint)
        for (xid, rule), detail in after.items():
            if (xid, rule) not in before:
                yield CatalogChange(_RULES[rule], xid, scope, False, "narrower", detail=detail)


def _find_scope(catalog: Catalog, xid: str) -> tuple[tuple[str, ...], Endpoint | None]:
    endpoint = catalog.endpoints.get(xid)
    return (endpoint.candidates, endpoint) if endpoint else (catalog.groups.get(xid, ()), None)


def _lint_warnings(catalog: Catalog, xids: Iterable[str], endpoint: Endpoint | None) -> dict[tuple[str, str], str]:
    """Return lint's findings on candidates that never win, by xid and rule, except where the body decides."""
    texts: dict[tuple[str, str], str] = {}
    for xid, verdict in find_never_winning(competing_candidates(catalog, xids, endpoint)):
        if verdict.rule == "never-reached" or verdict.severity == "warning":
            texts.setdefault((xid, verdict.rule), verdict.text)
    return texts
