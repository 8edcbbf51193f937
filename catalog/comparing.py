"""Compare two catalogs: definitions, candidates of endpoints, and definitions that can no longer win."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, cast

from catalog.definitions.candidates import candidate_of, find_never_winning
from catalog.definitions.constraints import (
    TYPED_LITERALS,
    constraint_of,
    is_now,
    literals_equal,
    parse_cached_template,
    scope_of,
)
from catalog.explaining import mask_secrets
from catalog.model import CLOUDEVENTS, Catalog, Definition, Endpoint, Property, PropertyType
from catalog.protocols.properties import REPEATED_PREFIXES, is_dotted, is_hop_by_hop
from catalog.schemas.contract import Comparison
from catalog.schemas.families import FAMILIES
from catalog.templates import Placeholder, Template, parse_template
from catalog.values import decode_binary, is_timestamp, is_valid, media_type_matches, percent_decode, to_text, value_key

# Whether one definition matches every record that another matches (MATCHING.md

# Compare two templates segment by segment: does one match all that the other matches, and with which placeholder
# values?

_SEPARATORS: Final = {False: re.compile("(/)"), True: re.compile("([/.])")}
_Part = str | Placeholder


@dataclass(frozen=True, slots=True)
class PlaceholderValue:
    """What is known about a placeholder's value: its ``text``, that it equals placeholder ``name``, or nothing.

    Equal objects mean equal values. An opaque value equals only itself.
    """

    kind: Literal["text", "name", "opaque"]
    value: str
    place: str = ""

    def for_property(self, key: str, *, decode: bool) -> PlaceholderValue:
        """Return the value as the property *key* reads it, percent-decoded with *decode*."""
        if self.kind == "opaque":
            return replace(self, place=key)
        return PlaceholderValue("text", percent_decode(self.value)) if self.kind == "text" and decode else self


def unknown_value(number: int) -> PlaceholderValue:
    """Return an unknown value for placeholder *number*."""
    return PlaceholderValue("opaque", str(number))


def align_templates(big: Template, small: Template, *, literal: bool) -> list[PlaceholderValue] | None:
    """Return the values of *big*'s placeholders in any text that *small* matches; None if *big* may not match.

    With *literal* the text of *small* is not a template: its braces are text.
    """
    parts: tuple[_Part, ...] = (small.text,) if literal else small.parts
    if big.is_bare:
        return [_value_of_parts(parts, 0)]
    if not literal and small.is_bare:
        return None
    mine, its = _split_segments(big.parts, big.dots), _split_segments(parts, big.dots)
    if mine[1] != its[1]:
        return None
    tokens: list[PlaceholderValue] = []
    for segment, other in zip(mine[0], its[0], strict=True):
        segment_tokens = _align_segments(segment, other, big.dots, len(tokens))
        if segment_tokens is None:
            return None
        tokens.extend(segment_tokens)
    return tokens


def _value_of_parts(parts: tuple[_Part, ...], number: int) -> PlaceholderValue:
    if len(parts) != 1:
        return unknown_value(number)
    only = parts[0]
    return PlaceholderValue("text", only) if isinstance(only, str) else PlaceholderValue("name", only.name)


def _split_segments(parts: tuple[_Part, ...], dots: bool) -> tuple[list[tuple[_Part, ...]], list[str]]:
    """Split parts at the separators in their texts; empty texts are left out."""
    segments: list[list[_Part]] = [[]]
    separators: list[str] = []
    for part in parts:
        if isinstance(part, Placeholder):
            segments[-1].append(part)
            continue
        first, *rest = _SEPARATORS[dots].split(part)
        if first:
            segments[-1].append(first)
        for separator, text in zip(rest[::2], rest[1::2], strict=True):
            separators.append(separator)
            segments.append([text] if text else [])
    return [tuple(segment) for segment in segments], separators


def _align_segments(
    big: tuple[_Part, ...], small: tuple[_Part, ...], dots: bool, number: int
) -> list[PlaceholderValue] | None:
    """Align two segments; *number* is that of the first placeholder."""
    shape = [None if isinstance(part, Placeholder) else part for part in big]
    if shape == [None if isinstance(part, Placeholder) else part for part in small]:
        return [PlaceholderValue("name", part.name) for part in small if isinstance(part, Placeholder)]
    if shape == [None]:
        return [_value_of_parts(small, number)] if small else None
    if all(isinstance(part, str) for part in small):
        text = "".join(part for part in small if isinstance(part, str))
        return _match_literal(big, text, dots)
    return None


def _match_literal(big: tuple[_Part, ...], text: str, dots: bool) -> list[PlaceholderValue] | None:
    """Match a literal segment. Placeholders are numbered, so that repeated names keep separate values."""
    names = [part for part in big if isinstance(part, Placeholder)]
    if not names:
        return [] if "".join(part for part in big if isinstance(part, str)) == text else None
    numbered = iter(range(len(names)))
    template = parse_template(
        "".join(part if isinstance(part, str) else f"{{{next(numbered)}}}" for part in big), dots=dots
    )
    taken = template.match(text)
    return None if taken is None else [PlaceholderValue("text", taken[str(place)]) for place in range(len(names))]


# The result of a comparison. The JSON forms are the output of ``catalog diff``.

Relation = Literal["same", "wider", "narrower", "different", "unknown"]
"""How the set of matching records changed: the same, more, fewer, different, or unknown."""
Kind = Literal[
    "definition-added",
    "definition-removed",
    "definition-renamed",
    "definition-changed",
    "selector-changed",
    "property-added",
    "property-removed",
    "property-changed",
    "relation-changed",
    "schema-added",
    "schema-removed",
    "schema-changed",
    "context-gained",
    "context-lost",
    "mapped-attribute-added",
    "mapped-attribute-removed",
    "mapped-attribute-changed",
    "endpoint-added",
    "endpoint-removed",
    "endpoint-changed",
    "address-changed",
    "candidate-added",
    "candidate-removed",
    "ambiguous-now",
    "never-reached-now",
]
COMPATIBLE: Final = frozenset({"same", "wider"})


@dataclass(frozen=True, slots=True)
class CatalogChange:
    """One change of *xid*; ``name`` is the property, attribute, placeholder or candidate that changed.

    ``compatible`` is False if records may get another outcome, or consumers may lose or misread something.
    ``relation`` is set if records are constrained, ``detail`` adds what the other members do not show.
    """

    kind: Kind
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


# Does one definition match every record that another matches? Decided from their constraints (MATCHING.md#constraints).
#
# "Yes" is certain (a test checks it with the matcher); "no" means "not proven". So a change is reported as wider or
# narrower only if that is proven, and as different otherwise.

_ALWAYS_THERE: Final = frozenset({"e.id", "e.source", "e.type", "e.specversion"})
_REPEATING: Final = tuple(f"p.{name}" for name in REPEATED_PREFIXES)
"""Properties that may have several values in a record, any of which may satisfy a constraint."""
_WIDER: Final = {
    "integer": "number",
    "number": "uri",
    "boolean": "uri",
    "duration": "uri",
    "uri": "symbol",
    "timestamp": "symbol",
    "binary": "symbol",
    "symbol": "string",
    "string": "any",
}
"""The next wider type by valid values; the three URI types are equal, and ``binary`` is base64 in an envelope."""
_URIS: Final = frozenset({"uri", "urireference", "uritemplate"})
_NEVER_EMPTY: Final = frozenset({"integer", "number", "boolean", "duration", "timestamp"})

Form = Literal["any", "literal", "media", "template"]


@dataclass(frozen=True, slots=True)
class RequiredValue:
    """The constraint on one property, with the key ``e.NAME`` or ``p.PATH``; if ``is_required``, it must be present."""

    key: str
    form: Form
    type: PropertyType
    text: str = ""
    is_required: bool = False
    dots: bool = False

    @property
    def percent_decodes(self) -> bool:
        """Whether values of placeholders are percent-decoded."""
        return self.type == "uritemplate"

    @property
    def template(self) -> Template:
        """The value as a template; a literal is one without placeholders."""
        return parse_cached_template(self.text, self.dots)

    @property
    def accepts_any_text(self) -> bool:
        """Whether every text is accepted."""
        return self.form == "any" and (self.type in ("any", "string") or self.accepts_bytes)

    @property
    def accepts_bytes(self) -> bool:
        """Whether a value that is not text is accepted. Event attributes are always text."""
        return self.is_bytes or (self.form == "any" and self.type in ("any", "binary") and self.key.startswith("p."))

    @property
    def is_bytes(self) -> bool:
        """Whether it is a binary literal: raw bytes in a protocol, base64 in an event."""
        return self.form == "literal" and self.type == "binary" and self.key.startswith("p.")


def constraints_by_key(definition: Definition) -> dict[str, list[RequiredValue]]:
    """Return the constraints of a definition by property key."""
    asks: dict[str, list[RequiredValue]] = {}
    for prop in definition.envelopemetadata:
        asks.setdefault(f"e.{prop.name}", []).append(_required_value(f"e.{prop.name}", prop))
    for prop in definition.protocoloptions:
        if not is_hop_by_hop(prop.name):
            dots = is_dotted(definition.protocol or "", prop.name)
            asks.setdefault(f"p.{prop.name}", []).append(_required_value(f"p.{prop.name}", prop, dots=dots))
    return asks


def list_placeholders(definition: Definition, *, events: bool) -> dict[str, None]:
    """Return the placeholder names, in order, for events or for other records."""
    properties = (*(definition.envelopemetadata if events else ()), *definition.protocoloptions)
    asked = (_required_value("e." + prop.name, prop) for prop in properties)
    return dict.fromkeys(name for each in asked if each.form == "template" for name in each.template.names)


def compare_match_sets(before: Definition, after: Definition) -> Relation:
    """Compare the sets of records that *before* and *after* match."""
    return _relation_from(definition_covers(after, before), definition_covers(before, after))


def compare_property(before: Sequence[RequiredValue], after: Sequence[RequiredValue]) -> Relation:
    """Compare the accepted values of one property, ignoring placeholders shared with other properties."""
    return _relation_from(_pair_constraints(after, before) is not None, _pair_constraints(before, after) is not None)


def definition_covers(big: Definition, small: Definition) -> bool:
    """Whether *big* certainly matches every record that *small* matches, ignoring endpoint defaults."""
    return constraints_cover(big, small, constraints_by_key(big), constraints_by_key(small))


def constraints_cover(
    big: Definition,
    small: Definition,
    wanted: Mapping[str, Sequence[RequiredValue]],
    given: Mapping[str, Sequence[RequiredValue]],
) -> bool:
    """Like :func:`definition_covers`, with precomputed constraints (:func:`constraints_by_key`)."""
    if not _is_same_kind(big, small):
        return False
    if big.datacontenttype and not (
        small.datacontenttype and media_type_matches(big.datacontenttype, small.datacontenttype)
    ):
        return False
    tokens: dict[str, list[PlaceholderValue]] = {}
    for key, asks in wanted.items():
        pairs = _pair_constraints(asks, given.get(key, ()))
        if pairs is None:
            return False
        for mine, its in pairs:
            if mine.form == "template":
                shared = len(asks) == len(given.get(key, ())) == 1
                for name, token in zip(mine.template.names, _placeholder_values(mine, its, shared=shared), strict=True):
                    tokens.setdefault(name, []).append(token)
    return all(len(set(values)) == 1 for values in tokens.values()) and _decoded_alike(wanted, given)


def _decoded_alike(wanted: Mapping[str, Sequence[RequiredValue]], given: Mapping[str, Sequence[RequiredValue]]) -> bool:
    """Whether placeholders that *wanted* reads both raw and decoded are also read both ways in *given*.

    Their values must be equal both raw and decoded, which comparing single constraints cannot ensure.
    """
    readings: dict[str, set[RequiredValue]] = {}
    for each in (each for asks in wanted.values() for each in asks if each.form == "template"):
        for name in each.template.names:
            readings.setdefault(name, set()).add(each)
    known = {each for asks in given.values() for each in asks}
    return all(uses <= known for uses in readings.values() if len({each.percent_decodes for each in uses}) > 1)


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


def _required_value(key: str, prop: Property, *, dots: bool = False) -> RequiredValue:
    constraint = constraint_of(key, prop, dots=dots)
    needed = not constraint.optional and key not in _ALWAYS_THERE
    if constraint.kind in ("present", "optional"):
        return RequiredValue(key, "any", prop.type, is_required=needed)
    return RequiredValue(key, cast(Form, constraint.kind), prop.type, constraint.value or "", needed, constraint.dots)


def _pair_constraints(
    big: Sequence[RequiredValue], small: Sequence[RequiredValue]
) -> list[tuple[RequiredValue, RequiredValue]] | None:
    """Pair each constraint of *big* with one of *small* that implies it; None if any has no such partner."""
    pairs: list[tuple[RequiredValue, RequiredValue]] = []
    for each in big:
        among = small or (RequiredValue(each.key, "any", "any"),)
        implying = next((other for other in among if _implies(other, each)), None)
        if implying is None:
            return None
        pairs.append((each, implying))
    return pairs


def _implies(small: RequiredValue, big: RequiredValue) -> bool:
    return (small.is_required or not big.is_required) and _covers_texts(big, small)


def _covers_texts(big: RequiredValue, small: RequiredValue) -> bool:
    """Whether *big* accepts every value that *small* accepts."""
    if big.form == "any":
        return _is_valid_for(big, small)
    if big.form == "template":
        return _template_covers(big, small)
    if small.form != big.form:
        return False
    if big.form == "media":
        return media_type_matches(big.text, small.text)
    if big.is_bytes or small.is_bytes:
        return big.is_bytes and small.is_bytes and decode_binary(big.text) == decode_binary(small.text)
    if not literals_equal(big.type, big.text, small.text):
        return False
    return _is_exact_literal(small) or big.type == small.type or (small.type == "integer" and big.type == "number")


def _is_valid_for(big: RequiredValue, small: RequiredValue) -> bool:
    """Whether everything that *small* accepts is valid for the type of *big*."""
    if small.is_bytes:
        return big.accepts_bytes
    if big.accepts_any_text:
        return big.accepts_bytes or not small.accepts_bytes
    if small.form == "any":
        return not small.accepts_bytes and _is_subtype(small.type, big.type)
    if small.form == "literal":
        valid = is_valid(big.type, small.text, bits32=big.key.startswith("e."))
        return valid and (_is_exact_literal(small) or _is_subtype(small.type, big.type))
    return small.form == "template" and small.type == "timestamp" and _is_subtype(small.type, big.type)


def _is_subtype(narrow: str, wide: str) -> bool:
    """Whether every value valid for one type is valid for the other."""
    wanted = "uri" if wide in _URIS else wide
    current: str | None = "uri" if narrow in _URIS else narrow
    while current is not None and current != wanted:
        current = _WIDER.get(current)
    return current is not None


def _template_covers(big: RequiredValue, small: RequiredValue) -> bool:
    """Whether the template of *big* matches every value that *small* accepts."""
    if small.is_bytes or (big.type == "timestamp" and not _allows_only_timestamps(small)):
        return False
    template = big.template
    if template.is_bare:
        return small.form != "any" or small.type in _NEVER_EMPTY
    literal = small.form == "literal" and _is_exact_literal(small)
    tokens = align_templates(template, small.template, literal=literal) if literal or small.form == "template" else None
    if tokens is None:
        return False
    return len(set(zip(template.names, tokens, strict=True))) == len(set(template.names))


def _allows_only_timestamps(small: RequiredValue) -> bool:
    if small.form == "literal":
        return is_timestamp(small.text) and (small.type == "timestamp" or _is_exact_literal(small))
    return small.form in ("any", "template") and small.type == "timestamp"


def _is_exact_literal(literal: RequiredValue) -> bool:
    """Whether a literal equals only its own text."""
    typed = literal.type in TYPED_LITERALS and value_key(literal.type, literal.text) is not None
    return not (typed or literal.is_bytes)


def _placeholder_values(big: RequiredValue, small: RequiredValue, *, shared: bool) -> Iterator[PlaceholderValue]:
    """Yield what is known about each placeholder of the template *big* when a text matches the template *small*.

    If a property may have several values, both may match different ones, unless their constraints are the same.
    """
    names = big.template.names
    repeats = big.key.startswith(_REPEATING)
    certain = small.form in ("literal", "template") and not (repeats and not (shared and _covers_texts(small, big)))
    tokens = None
    if certain and small.form == "literal" and _is_exact_literal(small):
        tokens = align_templates(big.template, small.template, literal=True)
    elif certain and small.form == "template" and small.percent_decodes == big.percent_decodes:
        tokens = align_templates(big.template, small.template, literal=False)
    if tokens is None:
        tokens = [unknown_value(number) for number in range(len(names))]
    for token in tokens:
        yield token.for_property(big.key, decode=big.percent_decodes)


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
    return family.compare(old, new)


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
    asked, asks = constraints_by_key(before), constraints_by_key(after)
    for key in dict.fromkeys((*one, *other)):
        old, new = one.get(key, []), other.get(key, [])
        if old == new:
            continue
        relation = compare_property(asked.get(key, ()), asks.get(key, ()))
        kind = "property-added" if not old else "property-removed" if not new else "property-changed"
        detail = "a hop-by-hop property; it filters only if the settings say so" if is_hop_by_hop(key[2:]) else ""
        name = ("envelopemetadata." if key.startswith("e.") else "protocoloptions.") + key[2:]
        compatible = relation in COMPATIBLE
        yield CatalogChange(kind, after.xid, name, compatible, relation, _to_json(old), _to_json(new), detail)  # type: ignore[arg-type]


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
    one, other = list_placeholders(before, events=True), list_placeholders(after, events=True)
    yield from (CatalogChange("context-lost", after.xid, name, compatible=False) for name in one if name not in other)
    yield from (CatalogChange("context-gained", after.xid, name) for name in other if name not in one)
    native, natively = list_placeholders(before, events=False), list_placeholders(after, events=False)
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
            yield CatalogChange(
                "schema-removed", after.xid, one.reference, False, "wider", detail="bodies are no longer validated"
            )
        elif other is not None:
            yield CatalogChange(
                "schema-added", after.xid, other.reference, False, "narrower", detail="bodies are now validated"
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
    gone: dict[str, list[str]] = {}
    for xid, definition in old.definitions.items():
        if xid not in new.definitions:
            gone.setdefault(_match_fingerprint(definition), []).append(xid)
    come: dict[str, list[str]] = {}
    for xid, definition in new.definitions.items():
        if xid not in old.definitions:
            come.setdefault(_match_fingerprint(definition), []).append(xid)
    return {xids[0]: come[key][0] for key, xids in gone.items() if len(xids) == len(come.get(key, ())) == 1}


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
    for name in _DEFAULTS:
        if getattr(before, name) != getattr(after, name):
            one, other = mask_secrets(getattr(before, name)), mask_secrets(getattr(after, name))
            yield CatalogChange("endpoint-changed", after.xid, name, False, "different", one, other)
    for name in _ADDRESSING:
        if getattr(before, name) != getattr(after, name):
            one, other = mask_secrets(getattr(before, name)), mask_secrets(getattr(after, name))
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
    for scope, xids, endpoint in _iter_scopes(new):
        competed, was = _find_scope(old, scope)
        before = _lint_warnings(old, competed, was)
        after = _lint_warnings(new, xids, endpoint)
        for (xid, rule), detail in after.items():
            if (xid, rule) not in before:
                kind = _RULES[rule]
                yield CatalogChange(kind, xid, scope, False, "narrower", detail=detail)  # type: ignore[arg-type]


def _iter_scopes(catalog: Catalog) -> Iterator[tuple[str, tuple[str, ...], Endpoint | None]]:
    """Yield competing definitions: the candidates of endpoints, and groups that no endpoint lists."""
    for endpoint in catalog.endpoints.values():
        yield endpoint.xid, endpoint.candidates, endpoint
    listed = {group for endpoint in catalog.endpoints.values() for group in endpoint.messagegroups}
    for xid, members in catalog.groups.items():
        if xid not in listed:
            yield xid, members, None


def _find_scope(catalog: Catalog, xid: str) -> tuple[tuple[str, ...], Endpoint | None]:
    endpoint = catalog.endpoints.get(xid)
    return (endpoint.candidates, endpoint) if endpoint else (catalog.groups.get(xid, ()), None)


def _lint_warnings(catalog: Catalog, xids: Iterable[str], endpoint: Endpoint | None) -> dict[tuple[str, str], str]:
    """Return lint's findings on candidates that never win, by xid and rule, except where the body decides."""
    definitions: list[Definition] = [catalog.definitions[xid] for xid in xids]
    candidates = [candidate for each in definitions if (candidate := candidate_of(each, endpoint)) is not None]
    texts: dict[tuple[str, str], str] = {}
    for xid, verdict in find_never_winning(candidates):
        if verdict.rule == "never-reached" or verdict.severity == "warning":
            texts.setdefault((xid, verdict.rule), verdict.text)
    return texts
