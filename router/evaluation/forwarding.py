"""Forward attributes, other headers, and the key of events whose parts are columns.

:mod:`router.evaluation.outputs` does the same for rows that the exact codec read, one by one. Kafka rows need neither:
the JVM has their headers.
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
"""Parts with the partition key of inbox records; the JVM has the key of Kafka records."""
PartialColumn = tuple[Int, pa.Array]
"""Row numbers, and the value of a column in each of these rows."""


def merge_columns(rows: int, kind: pa.DataType, fillings: Sequence[PartialColumn]) -> pa.Array:
    """Return a column of *rows* rows with the values of *fillings*, and null elsewhere; fillings do not overlap."""
    present = [filling for filling in fillings if len(filling[0])]
    if not present:
        return pa.nulls(rows, kind)
    owners = np.concatenate([own for own, _ in present])
    values = present[0][1] if len(present) == 1 else pa.concat_arrays([each for _, each in present])
    if len(owners) == rows and (np.diff(owners) > 0).all():
        return values
    places = np.full(rows, -1, np.int64)
    places[owners] = np.arange(len(owners))
    return values.take(pa.array(places, mask=places < 0))


def forwarded_header_name(key: str) -> str | None:
    """Return the header name under which a part is forwarded with an event, or None if it is not.

    Attributes of events are forwarded separately, and are not recognized here.
    """
    prefix = next((known for known in CARRIED_PREFIXES if key.startswith(known)), None)
    if prefix is None:
        return None
    name = key.removeprefix(prefix)
    if name.lower() == CONTENT_TYPE or name.startswith((LINEAGE, ATTRIBUTE)):
        return None
    return None if prefix == "headers." and name in CONNECTION_HEADERS else name


def forwarded_headers(outcomes: MatchOutcomes, settled: ColumnRows) -> PartialColumn:
    """Return the headers of routed rows that are not CloudEvents attributes, in order."""
    envelopes, entries = settled.envelopes, settled.envelopes.entries
    routed = _is_routed(outcomes, settled)
    names = [forwarded_header_name(key) for _, key in entries.pairs]
    goes = np.array([name is not None for name in names], bool)
    own = np.where(
        envelopes.events[entries.owners], (goes & ~envelopes.is_prefixed)[entries.numbers], goes[entries.numbers]
    )
    chosen = np.flatnonzero(own & routed[entries.owners])
    counts = np.bincount(entries.owners[chosen], minlength=entries.rows)[routed]
    texts = pa.array(["" if name is None else name for name in names], pa.string())
    return np.flatnonzero(routed) + settled.start, _select_header_lists(settled, chosen, counts, texts)


def binary_attributes(outcomes: MatchOutcomes, settled: ColumnRows) -> PartialColumn:
    """Return the attributes of routed events in binary mode with Kafka's names, in order; the content type last."""
    envelopes, entries = settled.envelopes, settled.envelopes.entries
    leaving = _is_routed(outcomes, settled) & envelopes.binary
    chosen = envelopes.attributes[leaving[entries.owners[envelopes.attributes]]]
    ordered, counts = _order_content_type_last(
        entries.owners[chosen], chosen, np.where(leaving, envelopes.contents, -1)
    )
    names = [
        CONTENT_TYPE if name in ("", CONTENT_TYPE_NAME) else f"{ATTRIBUTE}{name}" for name in envelopes.attribute_names
    ]
    return np.flatnonzero(leaving) + settled.start, _select_header_lists(
        settled, ordered, counts[leaving], pa.array(names, pa.string())
    )


def binary_typed_names(outcomes: MatchOutcomes, settled: ColumnRows) -> PartialColumn:
    """Return the names of integer and boolean attributes of routed events in binary mode, as
    :func:`bindings.events.typed_names` does.
    """
    envelopes, entries = settled.envelopes, settled.envelopes.entries
    if not envelopes.is_typed.any():
        return np.zeros(0, np.int64), pa.nulls(0, pa.string())
    leaving = _is_routed(outcomes, settled) & envelopes.binary
    chosen = envelopes.attributes[(leaving[entries.owners] & entries.is_kind(JSON_KIND))[envelopes.attributes]]
    chosen = chosen[envelopes.is_typed[entries.numbers[chosen]]]
    names = pa.array(envelopes.attribute_names, pa.string()).take(pa.array(entries.numbers[chosen]))
    return _join_names_by_row(entries.owners[chosen] + settled.start, names)


def json_typed_names(outcomes: MatchOutcomes, settled: ColumnRows) -> PartialColumn:
    """Return which attributes are integers or booleans in the JSON of routed events."""
    json, rows, leaving = settled.envelopes.json, settled.envelopes.json_rows, _is_routed_json(outcomes, settled)
    if json is None:
        return rows, pa.nulls(0, pa.string())
    chosen = np.flatnonzero(leaving[json.owners] & json.typed)
    names = pa.array(json.names, pa.string()).take(pa.array(json.codes[chosen]))
    return _join_names_by_row(rows[json.owners[chosen]] + settled.start, names)


def _join_names_by_row(owners: Int, names: pa.StringArray) -> PartialColumn:
    """Return each row of the ascending *owners* once, with its names joined by spaces."""
    if not len(owners):
        return owners, pa.nulls(0, pa.string())
    begins = np.flatnonzero(np.diff(owners, prepend=-1))
    offsets = pa.array(np.append(begins, len(owners)).astype(np.int32))
    return owners[begins], pc.binary_join(pa.ListArray.from_arrays(offsets, names), " ")


def partition_keys(outcomes: MatchOutcomes, settled: ColumnRows) -> PartialColumn:
    """Return the partition keys of events, routed or not: their own, else those of their records.

    Other dead letters have the key of their record; mapped events have theirs among their attributes.
    """
    facts, envelopes, entries = outcomes.facts, settled.envelopes, settled.envelopes.entries
    keys = envelopes.attribute_column(PARTITION_KEY).view(pa.binary())
    numbers = [number for number, (_, key) in enumerate(entries.pairs) if key in _KEYS]
    if numbers:
        places, _ = entries.first_and_repeats(entries.entries_of_pairs(numbers))
        mapped = ~envelopes.events & _is_routed(outcomes, settled)
        keys = pc.coalesce(keys, entries.values_at(np.where(mapped, -1, places)))
    real = facts.sources[settled.start : settled.start + len(keys)] != NO_SOURCE
    rows = np.flatnonzero(real & is_not_null(keys))
    return rows + settled.start, keys.take(pa.array(rows))


def partition_key_of(reading: ExactReading) -> bytes | None:
    """Return the partition key of a row that the exact codec read, as :func:`partition_keys` does."""
    own = reading.envelope.attributes.get(PARTITION_KEY)
    if own is not None:
        return own.encode()
    return next((part.value for part in reading.parts if part.key in _KEYS and part.value is not None), None)


def json_attributes(outcomes: MatchOutcomes, settled: ColumnRows) -> PartialColumn:
    """Return the attributes of routed events in JSON, as :func:`binary_attributes` does for binary mode."""
    json, rows, leaving = settled.envelopes.json, settled.envelopes.json_rows, _is_routed_json(outcomes, settled)
    if json is None:
        return rows, pa.nulls(0, HEADERS)
    chosen = np.flatnonzero(leaving[json.owners])
    # The content types follow the values.
    contents = np.where(leaving & is_not_null(json.types), len(json.values) + np.arange(len(rows)), -1)
    places, counts = _order_content_type_last(json.owners[chosen], chosen, contents)
    values = pa.concat_arrays([json.values, json.types.view(pa.binary())]).take(pa.array(places))
    codes = np.concatenate((json.codes, np.full(len(rows), len(json.names))))[places]
    names = pa.array([*(f"{ATTRIBUTE}{name}" for name in json.names), CONTENT_TYPE], pa.string())
    return rows[leaving] + settled.start, _build_header_lists(counts[leaving], names.take(pa.array(codes)), values)


def json_data(outcomes: MatchOutcomes, settled: ColumnRows) -> PartialColumn:
    """Return the data of routed events in JSON; null if an event has none."""
    json, rows, leaving = settled.envelopes.json, settled.envelopes.json_rows, _is_routed_json(outcomes, settled)
    if json is None:
        return rows, pa.nulls(0, pa.binary())
    return rows[leaving] + settled.start, json.data.filter(pa.array(leaving))


def _is_routed(outcomes: MatchOutcomes, settled: ColumnRows) -> Bool:
    routed: Bool = outcomes.winners[settled.start : settled.start + settled.envelopes.entries.rows] >= 0
    return routed


def _is_routed_json(outcomes: MatchOutcomes, settled: ColumnRows) -> Bool:
    """Return for each JSON row whether it is a routed event."""
    envelopes = settled.envelopes
    leaving: Bool = (_is_routed(outcomes, settled) & envelopes.is_json_event)[envelopes.json_rows]
    return leaving


def _order_content_type_last(owners: Int, chosen: Int, contents: Int) -> tuple[Int, Int]:
    """Return the entries ordered by row, the content type last in each row, and the number of entries per row.

    *owners* are the rows of the *chosen* entries, ascending; *contents* has the content type of each row, or -1.
    """
    typed = contents >= 0
    counts = np.bincount(owners, minlength=len(contents)) + typed
    last = np.cumsum(counts)[typed] - 1
    ordered = np.full(int(counts.sum()), -1, np.int64)
    ordered[last] = contents[typed]
    ordered[ordered < 0] = chosen
    return ordered, counts


def _select_header_lists(settled: ColumnRows, chosen: Int, counts: Int, names: pa.StringArray) -> pa.ListArray:
    """Return lists of the *chosen* entries, with *counts* entries each and their names."""
    entries = settled.envelopes.entries
    return _build_header_lists(
        counts, names.take(pa.array(entries.numbers[chosen])), entries.values.take(pa.array(chosen))
    )


def _build_header_lists(counts: Int, keys: pa.StringArray, values: pa.BinaryArray) -> pa.ListArray:
    offsets = pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
    return pa.ListArray.from_arrays(
        offsets, pa.StructArray.from_arrays([keys, values], fields=list(HEADERS.value_type))
    )


# Columns that relations add to outcomes:
# ``relation``, ``relatedto``: the definition's relation and its target, for the lineage.
# ``exchange``: correlates a request with its replies (:func:`decode_exchange`); only with the setting ``relations``.

EXCHANGE: Final = "exchange"
MAX_EXCHANGE_BYTES: Final = 1024
"""Maximum bytes of an id or value in ``exchange``. A longer one is truncated, and its hash is the key."""
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

    ``reply_properties`` has the properties that replies to a definition's records refer to; None without the column ``exchange``.
    """

    matcher: Matcher
    reply_properties: Mapping[str, tuple[str, ...]] | None

    @classmethod
    def from_catalog(cls, matcher: Matcher, catalog: Catalog, *, pairs: bool) -> RelationColumns:
        """Return the columns of a catalog; with *pairs* also ``exchange``."""
        return cls(matcher, _reply_properties(catalog) if pairs else None)

    @property
    def fields(self) -> list[tuple[str, pa.DataType]]:
        """Names and types of the columns."""
        names = RELATED if self.reply_properties is None else (*RELATED, EXCHANGE)
        return [(name, pa.string()) for name in names]

    def build(self, outcomes: MatchOutcomes) -> dict[str, pa.Array]:
        """Return the columns, with a row for each row of facts."""
        relations = [target.definition.relation for target in self.matcher.targets]
        winners = pa.array(outcomes.winners, mask=outcomes.winners < 0)
        kinds = pa.array([each.kind or None if each is not None else None for each in relations], pa.string())
        others = pa.array([each.to if each is not None else None for each in relations], pa.string())
        columns = dict(zip(RELATED, (kinds.take(winners), others.take(winners)), strict=True))
        return (
            columns
            if self.reply_properties is None
            else {**columns, EXCHANGE: self._exchange_column(outcomes, self.reply_properties)}
        )

    def _exchange_column(self, outcomes: MatchOutcomes, asked: Mapping[str, tuple[str, ...]]) -> pa.StringArray:
        parts = [bool(self._reply_relation_of(target) or asked.get(target.xid)) for target in self.matcher.targets]
        winners = np.where(outcomes.winners >= 0, outcomes.winners, -1)
        rows = np.flatnonzero(np.array([*parts, False], bool)[winners])
        at = pa.array(rows)
        keys = dict.fromkeys(("e.id", *self.matcher.correlations.keys))
        values = {key: property_column(outcomes, key).take(at).to_pylist() for key in keys}
        texts: list[str | None] = [None] * outcomes.facts.columns.rows
        for place, row in enumerate(rows.tolist()):
            target = self.matcher.targets[int(winners[row])]
            given = {key: column[place] for key, column in values.items() if column[place] is not None}
            exchange = _build_exchange(target.xid, self._reply_relation_of(target), asked.get(target.xid, ()), given)
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


def _build_exchange(
    xid: str, relation: Relation | None, asked: tuple[str, ...], given: Mapping[str, str]
) -> RelatedRecord:
    asks = tuple(_correlation_key(xid, of, given[of]) for of in asked if of in given)
    id = _truncate(given.get("e.id", ""))
    if relation is None:
        return RelatedRecord(id, asks)
    own = given.get(relation.via)
    if own is None:
        return RelatedRecord(id, asks, "")
    return RelatedRecord(
        id, asks, _correlation_key(relation.to, relation.of, _encode_as_related(relation, own)), _truncate(own)
    )


def _correlation_key(xid: str, of: str, value: str) -> str:
    octets = value.encode()
    known = value if len(octets) <= MAX_EXCHANGE_BYTES else _SEPARATOR + sha256(octets).hexdigest()
    return _SEPARATOR.join((xid, of, known))


def _truncate(value: str) -> str:
    octets = value.encode()
    return value if len(octets) <= MAX_EXCHANGE_BYTES else octets[:MAX_EXCHANGE_BYTES].decode(errors="ignore") + "…"


def _encode_as_related(relation: Relation, value: str) -> str:
    """Return a value in the encoding of the related message: MQTT correlation data is base64."""
    if relation.of == _BINARY and relation.via.startswith(_TEXTUAL):
        return base64.b64encode(value.encode()).decode()
    return value
