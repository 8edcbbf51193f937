"""Columns with the attributes, other headers and keys of events whose parts are columns.

:mod:`router.evaluation.outputs` does the same for rows that the exact codec read one by one. Kafka rows need
neither: their headers are in the source row.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.entries import Bool, Int, is_not_null
from bindings.columns.envelopes import CONTENT_TYPE_NAME
from bindings.kafka.record_columns import ATTRIBUTE, CONTENT_TYPE, LINEAGE
from bindings.parts import JSON_KIND
from bindings.protocols import BINDINGS, CARRIED_PREFIXES
from catalog.model import Catalog, Relation
from catalog.protocols.properties import CONNECTION_HEADERS
from router.matching.context import RELATED, property_column
from router.matching.matcher import Matcher, MatchOutcomes
from router.matching.record_columns import NO_SOURCE, ColumnRows, ExactReading

HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
PARTITION_KEY: Final = "partitionkey"
_KEYS: Final = frozenset(each.partition_key for each in BINDINGS.values() if not each.sending.key_name) - {""}
"""Parts with the partition key of inbox records; Kafka records have theirs in the source row."""
PartialColumn = tuple[Int, pa.Array]
"""Row numbers, and the values of a column in these rows."""


def merge_columns(rows: int, kind: pa.DataType, parts: Sequence[PartialColumn]) -> pa.Array:
    """Return a column of *rows* rows with the values of *parts*, which do not overlap, and null elsewhere."""
    present = [part for part in parts if len(part[0])]
    if not present:
        return pa.nulls(rows, kind)
    owners = np.concatenate([numbers for numbers, _ in present])
    values = present[0][1] if len(present) == 1 else pa.concat_arrays([each for _, each in present])
    if len(owners) == rows and (np.diff(owners) > 0).all():
        return values
    indices = np.full(rows, -1, np.int64)
    indices[owners] = np.arange(len(owners))
    return values.take(pa.array(indices, mask=indices < 0))


def forwarded_header_name(key: str) -> str | None:
    """Return the header name under which a part is forwarded with an event, or None if it is not.

    Attributes of events are forwarded separately, and are not recognized here.
    """
    prefix = next((each for each in CARRIED_PREFIXES if key.startswith(each)), None)
    if prefix is None:
        return None
    name = key.removeprefix(prefix)
    if name.lower() == CONTENT_TYPE or name.startswith((LINEAGE, ATTRIBUTE)):
        return None
    return None if prefix == "headers." and name in CONNECTION_HEADERS else name


def forwarded_headers(outcomes: MatchOutcomes, columns: ColumnRows) -> PartialColumn:
    """Return the headers of routed rows that are not CloudEvents attributes, in order."""
    envelopes, entries = columns.envelopes, columns.envelopes.entries
    routed = _is_routed(outcomes, columns)
    names = [forwarded_header_name(key) for _, key in entries.pairs]
    is_forwarded = np.array([name is not None for name in names], bool)
    in_events, in_others = is_forwarded & ~envelopes.is_prefixed, is_forwarded
    kept = np.where(envelopes.events[entries.owners], in_events[entries.numbers], in_others[entries.numbers])
    chosen = np.flatnonzero(kept & routed[entries.owners])
    counts = np.bincount(entries.owners[chosen], minlength=entries.rows)[routed]
    texts = pa.array(["" if name is None else name for name in names], pa.string())
    return np.flatnonzero(routed) + columns.start, _select_header_lists(columns, chosen, counts, texts)


def binary_attributes(outcomes: MatchOutcomes, columns: ColumnRows) -> PartialColumn:
    """Return the attributes of routed events in binary mode with Kafka's names, in order; the content type last."""
    envelopes, entries = columns.envelopes, columns.envelopes.entries
    is_routed = _is_routed(outcomes, columns) & envelopes.binary
    chosen = envelopes.attributes[is_routed[entries.owners[envelopes.attributes]]]
    contents = np.where(is_routed, envelopes.contents, -1)
    ordered, counts = _put_content_type_last(entries.owners[chosen], chosen, contents)
    names = [
        CONTENT_TYPE if name in ("", CONTENT_TYPE_NAME) else f"{ATTRIBUTE}{name}" for name in envelopes.attribute_names
    ]
    lists = _select_header_lists(columns, ordered, counts[is_routed], pa.array(names, pa.string()))
    return np.flatnonzero(is_routed) + columns.start, lists


def binary_typed_names(outcomes: MatchOutcomes, columns: ColumnRows) -> PartialColumn:
    """Return the names of typed attributes in routed events of binary mode, as :func:`bindings.events.typed_names`."""
    envelopes, entries = columns.envelopes, columns.envelopes.entries
    if not envelopes.is_typed.any():
        return np.zeros(0, np.int64), pa.nulls(0, pa.string())
    is_routed = _is_routed(outcomes, columns) & envelopes.binary
    chosen = envelopes.attributes[(is_routed[entries.owners] & entries.is_kind(JSON_KIND))[envelopes.attributes]]
    chosen = chosen[envelopes.is_typed[entries.numbers[chosen]]]
    names = pa.array(envelopes.attribute_names, pa.string()).take(pa.array(entries.numbers[chosen]))
    return _join_names_by_row(entries.owners[chosen] + columns.start, names)


def json_typed_names(outcomes: MatchOutcomes, columns: ColumnRows) -> PartialColumn:
    """Return the names of attributes that are integers or booleans in routed JSON events."""
    json, rows, is_routed = columns.envelopes.json, columns.envelopes.json_rows, _is_routed_json(outcomes, columns)
    if json is None:
        return rows, pa.nulls(0, pa.string())
    chosen = np.flatnonzero(is_routed[json.owners] & json.typed)
    names = pa.array(json.names, pa.string()).take(pa.array(json.codes[chosen]))
    return _join_names_by_row(rows[json.owners[chosen]] + columns.start, names)


def _join_names_by_row(owners: Int, names: pa.StringArray) -> PartialColumn:
    """Return the names of each row, joined by spaces; *owners* are the rows of the names, ascending."""
    if not len(owners):
        return owners, pa.nulls(0, pa.string())
    begins = np.flatnonzero(np.diff(owners, prepend=-1))
    offsets = pa.array(np.append(begins, len(owners)).astype(np.int32))
    return owners[begins], pc.binary_join(pa.ListArray.from_arrays(offsets, names), " ")


def partition_keys(outcomes: MatchOutcomes, columns: ColumnRows) -> PartialColumn:
    """Return the partition keys of events, routed or not: the attribute, else the key of the record.

    Dead letters that are no events have the key of their record. Mapped events have the key among their attributes.
    """
    facts, envelopes, entries = outcomes.facts, columns.envelopes, columns.envelopes.entries
    keys = envelopes.attribute_column(PARTITION_KEY).view(pa.binary())
    numbers = [number for number, (_, key) in enumerate(entries.pairs) if key in _KEYS]
    if numbers:
        indices, _ = entries.first_and_repeats(entries.entries_of_pairs(numbers))
        mapped = ~envelopes.events & _is_routed(outcomes, columns)
        keys = pc.coalesce(keys, entries.values_at(np.where(mapped, -1, indices)))
    real = facts.sources[columns.start : columns.start + len(keys)] != NO_SOURCE
    rows = np.flatnonzero(real & is_not_null(keys))
    return rows + columns.start, keys.take(pa.array(rows))


def partition_key_of(reading: ExactReading) -> bytes | None:
    """Return the partition key of a row that the exact codec read, as :func:`partition_keys` does."""
    key = reading.envelope.attributes.get(PARTITION_KEY)
    if key is not None:
        return key.encode()
    return next((part.value for part in reading.parts if part.key in _KEYS and part.value is not None), None)


def json_attributes(outcomes: MatchOutcomes, columns: ColumnRows) -> PartialColumn:
    """Return the attributes of routed JSON events, as :func:`binary_attributes` does for binary mode."""
    json, rows, is_routed = columns.envelopes.json, columns.envelopes.json_rows, _is_routed_json(outcomes, columns)
    if json is None:
        return rows, pa.nulls(0, HEADERS)
    chosen = np.flatnonzero(is_routed[json.owners])
    # The content types follow the values.
    contents = np.where(is_routed & is_not_null(json.types), len(json.values) + np.arange(len(rows)), -1)
    indices, counts = _put_content_type_last(json.owners[chosen], chosen, contents)
    values = pa.concat_arrays([json.values, json.types.view(pa.binary())]).take(pa.array(indices))
    codes = np.concatenate((json.codes, np.full(len(rows), len(json.names))))[indices]
    names = pa.array([*(f"{ATTRIBUTE}{name}" for name in json.names), CONTENT_TYPE], pa.string())
    return rows[is_routed] + columns.start, _build_header_lists(counts[is_routed], names.take(pa.array(codes)), values)


def json_data(outcomes: MatchOutcomes, columns: ColumnRows) -> PartialColumn:
    """Return the data of routed JSON events; null if an event has none."""
    json, rows, is_routed = columns.envelopes.json, columns.envelopes.json_rows, _is_routed_json(outcomes, columns)
    if json is None:
        return rows, pa.nulls(0, pa.binary())
    return rows[is_routed] + columns.start, json.data.filter(pa.array(is_routed))


def _is_routed(outcomes: MatchOutcomes, columns: ColumnRows) -> Bool:
    routed: Bool = outcomes.winners[columns.start : columns.start + columns.envelopes.entries.rows] >= 0
    return routed


def _is_routed_json(outcomes: MatchOutcomes, columns: ColumnRows) -> Bool:
    """Return which of the JSON rows are routed events."""
    envelopes = columns.envelopes
    is_routed: Bool = (_is_routed(outcomes, columns) & envelopes.is_json_event)[envelopes.json_rows]
    return is_routed


def _put_content_type_last(owners: Int, chosen: Int, contents: Int) -> tuple[Int, Int]:
    """Order the entries by row, the content type last in each row; return them with the number of entries per row.

    *owners* are the rows of the *chosen* entries, ascending; *contents* has the content type of each row, or -1.
    """
    typed = contents >= 0
    counts = np.bincount(owners, minlength=len(contents)) + typed
    last = np.cumsum(counts)[typed] - 1
    ordered = np.full(int(counts.sum()), -1, np.int64)
    ordered[last] = contents[typed]
    ordered[ordered < 0] = chosen
    return ordered, counts


def _select_header_lists(columns: ColumnRows, chosen: Int, counts: Int, names: pa.StringArray) -> pa.ListArray:
    """Return lists of the *chosen* entries, with *counts* entries each and their names."""
    entries = columns.envelopes.entries
    keys = names.take(pa.array(entries.numbers[chosen]))
    return _build_header_lists(counts, keys, entries.values.take(pa.array(chosen)))


def _build_header_lists(counts: Int, keys: pa.StringArray, values: pa.BinaryArray) -> pa.ListArray:
    offsets = pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
    entries = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS.value_type))
    return pa.ListArray.from_arrays(offsets, entries)


# The columns that relations add to outcomes:
# ``relation``, ``relatedto``: the definition's relation and its target, for the lineage.
# ``exchange``: correlates a request with its replies (:func:`decode_exchange`); only with the setting ``relations``.

EXCHANGE: Final = "exchange"
MAX_EXCHANGE_BYTES: Final = 1024
"""Maximum bytes of an id or value in ``exchange``. A longer one is truncated, and its key has a hash."""
_SEPARATOR: Final = "\x1f"
_TEXTUAL: Final = "p.user_properties."
_BINARY: Final = "p.correlation_data"


class RelatedRecord(msgspec.Struct, frozen=True, array_like=True):
    """The correlation of one record, of bounded length. ``id`` is the event's id.

    ``asks`` are the keys that replies to this record have. ``answers`` is set for a reply: the key of its request, or
    empty if the reply does not name one.
    """

    id: str
    asks: tuple[str, ...] = ()
    answers: str | None = None
    correlation: str = ""


_DECODER: Final = msgspec.json.Decoder(RelatedRecord)


def decode_exchange(text: str) -> RelatedRecord:
    """Decode a value of the column ``exchange``."""
    return _DECODER.decode(text)


@dataclass(frozen=True, slots=True)
class RelationColumns:
    """Builds the relation columns for a plan whose catalog has relations.

    ``reply_properties`` has, by definition, the properties that replies refer to; None without the column ``exchange``.
    """

    matcher: Matcher
    reply_properties: Mapping[str, tuple[str, ...]] | None

    @classmethod
    def from_catalog(cls, matcher: Matcher, catalog: Catalog, *, pairs: bool) -> RelationColumns:
        """Return the builder for a catalog; with *pairs* it also builds ``exchange``."""
        return cls(matcher, _reply_properties(catalog) if pairs else None)

    @property
    def fields(self) -> list[tuple[str, pa.DataType]]:
        """Names and types of the columns."""
        names = RELATED if self.reply_properties is None else (*RELATED, EXCHANGE)
        return [(name, pa.string()) for name in names]

    def build(self, outcomes: MatchOutcomes) -> dict[str, pa.Array]:
        """Return the columns by name, with the rows of the evaluated columns."""
        relations = [target.definition.relation for target in self.matcher.targets]
        winners = pa.array(outcomes.winners, mask=outcomes.winners < 0)
        kinds = pa.array([each.kind or None if each is not None else None for each in relations], pa.string())
        others = pa.array([each.to if each is not None else None for each in relations], pa.string())
        columns = dict(zip(RELATED, (kinds.take(winners), others.take(winners)), strict=True))
        if self.reply_properties is not None:
            columns[EXCHANGE] = self._exchange_column(outcomes, self.reply_properties)
        return columns

    def _exchange_column(self, outcomes: MatchOutcomes, asked: Mapping[str, tuple[str, ...]]) -> pa.StringArray:
        is_related = [bool(self._reply_relation_of(target) or asked.get(target.xid)) for target in self.matcher.targets]
        winners = np.where(outcomes.winners >= 0, outcomes.winners, -1)
        rows = np.flatnonzero(np.array([*is_related, False], bool)[winners])
        at = pa.array(rows)
        keys = dict.fromkeys(("e.id", *self.matcher.correlations.keys))
        values = {key: property_column(outcomes, key).take(at).to_pylist() for key in keys}
        texts: list[str | None] = [None] * outcomes.facts.columns.rows
        for index, row in enumerate(rows.tolist()):
            target = self.matcher.targets[int(winners[row])]
            given = {key: column[index] for key, column in values.items() if column[index] is not None}
            exchange = _to_exchange(target.xid, self._reply_relation_of(target), asked.get(target.xid, ()), given)
            texts[row] = msgspec.json.encode(exchange).decode()
        return pa.array(texts, pa.string())

    def _reply_relation_of(self, target: Any) -> Relation | None:
        relation: Relation | None = target.definition.relation
        return relation if relation is not None and relation.via else None


def _reply_properties(catalog: Catalog) -> dict[str, tuple[str, ...]]:
    """Return, by definition, the properties that replies to its records refer to."""
    asked: dict[str, dict[str, None]] = {}
    for definition in catalog.definitions.values():
        relation = definition.relation
        if relation is not None and relation.of:
            asked.setdefault(relation.to, {})[relation.of] = None
    return {xid: tuple(keys) for xid, keys in asked.items()}


def _to_exchange(xid: str, relation: Relation | None, asked: tuple[str, ...], own: Mapping[str, str]) -> RelatedRecord:
    asks = tuple(_correlation_key(xid, of, own[of]) for of in asked if of in own)
    id = _truncate(own.get("e.id", ""))
    if relation is None:
        return RelatedRecord(id, asks)
    value = own.get(relation.via)
    if value is None:
        return RelatedRecord(id, asks, "")
    key = _correlation_key(relation.to, relation.of, _encode_as_related(relation, value))
    return RelatedRecord(id, asks, key, _truncate(value))


def _correlation_key(xid: str, of: str, value: str) -> str:
    octets = value.encode()
    short = value if len(octets) <= MAX_EXCHANGE_BYTES else _SEPARATOR + sha256(octets).hexdigest()
    return _SEPARATOR.join((xid, of, short))


def _truncate(value: str) -> str:
    octets = value.encode()
    return value if len(octets) <= MAX_EXCHANGE_BYTES else octets[:MAX_EXCHANGE_BYTES].decode(errors="ignore") + "…"


def _encode_as_related(relation: Relation, value: str) -> str:
    """Return a value in the encoding of the related message: MQTT correlation data is base64."""
    if relation.of == _BINARY and relation.via.startswith(_TEXTUAL):
        return base64.b64encode(value.encode()).decode()
    return value
