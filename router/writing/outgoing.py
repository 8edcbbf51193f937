"""Outcomes as records of Kafka, where one write serves all sinks: how each differs from the record as it arrived.

Most events leave as they arrived, with headers of lineage that Spark adds; for these Python returns only the values of
those headers. It makes the headers of all others: events of native records, those that the exact codec read, and dead
letters. The columns are those of :data:`TRACED` and :data:`OUTGOING`:

| column | meaning |
|---|---|
| ``message``, ``endpoint``, ``context`` | for the headers of lineage that Spark adds; with null it adds none |
| ``topic`` | where the record goes; null for the topic that all events have |
| ``key`` | the record's key; null for the one that it came with |
| ``headers`` | its headers before those of lineage; null for those that it came with |
| ``replaced`` | whether ``data`` stands for its body; null data are no body |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.texts import Bool, Entries, raw, valid
from bindings.kafka.facts import CONTENT_TYPE, LINEAGE
from router.judging.carried import HEADERS, filled
from router.judging.judging import Judged, Kind, judge_rows
from router.judging.outputs import RoutedOutcomes
from router.judging.plan import Judge, Plan
from router.judging.stages import letter_ids, positions_in
from router.matching.context import RELATED
from router.matching.facts import SCHEMA_ID
from router.matching.inbox_facts import instants, rfc3339
from router.matching.index.columns import BoolArray, IntArray, spread
from router.rendering.events import native_texts
from router.routing.destinations import column_of
from router.settings import KafkaSink
from router.settings.names import DestinationTemplate, NameTemplate, event_values, parse_name, value_name

# Lists of headers, and texts in them, for whole batches.

_ESCAPED: Final = re.compile(r'[\x00-\x1f"\\]')
_ESCAPED_RE2: Final = r'[\x00-\x1f"\\]'
_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def lists_of(named: Mapping[str, pa.StringArray | str | None], rows: int, only: Mapping[str, Bool]) -> pa.ListArray:
    """Return a header list per row with these names and values, in order; a null value stays a header without one.

    *only* maps some of the names to the rows that have such a header; all rows have the others.
    """
    texts = [each if isinstance(each, pa.Array) else pa.array([each] * rows, pa.string()) for each in named.values()]
    there = np.ones((rows, len(named)), bool)
    for place, name in enumerate(named):
        if name in only:
            there[:, place] = only[name]
    owners, names = np.nonzero(there)
    values = pa.concat_arrays(texts).take(pa.array(names * rows + owners)).cast(pa.binary())
    entries = pa.StructArray.from_arrays([pa.array(list(named)).take(pa.array(names)), values], names=["key", "value"])
    offsets = np.concatenate(([0], np.cumsum(there.sum(1)))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), entries).cast(HEADERS)


def joined(one: pa.ListArray, other: pa.ListArray) -> pa.ListArray:
    """Return per row the entries of one list and then those of the other; a null list has none."""
    lengths = (pc.fill_null(pc.list_value_length(each), 0).cast(pa.int64()) for each in (one, other))
    counts = [each.to_numpy(zero_copy_only=False) for each in lengths]
    pool = pa.concat_arrays([one.flatten(), other.flatten()])
    offsets = np.concatenate(([0], np.cumsum(counts[0] + counts[1])))
    # Entries of the first list stand at the beginning of each row's share, those of the other behind them.
    firsts = np.cumsum(counts[0]) - counts[0]
    others = np.cumsum(counts[1]) - counts[1] + int(counts[0].sum())
    indices = np.empty(int(offsets[-1]), np.int64)
    indices[spread(offsets[:-1], counts[0])[1]] = spread(firsts, counts[0])[1]
    indices[spread(offsets[:-1] + counts[0], counts[1])[1]] = spread(others, counts[1])[1]
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pool.take(pa.array(indices)))


def without(lists: pa.ListArray, name: str) -> pa.ListArray:
    """Return header lists without the first entry of that name; a null list becomes an empty one."""
    entries = Entries(lists)
    kept = np.ones(len(entries.codes), bool)
    first = entries.first(name)
    kept[first[first >= 0]] = False
    counts = np.bincount(entries.owners[kept], minlength=len(lists))
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), lists.flatten().filter(pa.array(kept)))


def context_json(contexts: pa.MapArray) -> pa.StringArray:
    """Return context attributes as JSON objects, as Spark writes them."""
    if contexts.items.null_count:
        return pa.array([_object(dict(each or ())) for each in contexts.to_pylist()], pa.string())
    bounds = contexts.offsets.to_numpy().astype(np.int64)
    counts, entries = np.diff(bounds), int(bounds[-1] - bounds[0])
    names = contexts.keys.slice(bounds[0], entries).dictionary_encode()
    heads = [pc.binary_join_element_wise(start, _escaped(names.dictionary), '":"', "") for start in ('{"', '","')]
    pool = pa.concat_arrays([*heads, pa.array(['"}', "{}"]), _escaped(contexts.items.slice(bounds[0], entries))])
    several, ends = len(heads[0]), 2 * len(heads[0])
    # The pieces of a row are a name and a value for each attribute, and an end. Taken in order they lie one behind the
    # other, so that the text of a row is where those of its pieces are.
    starts = 2 * (bounds - bounds[0]) + np.arange(len(bounds))
    owners = np.repeat(np.arange(len(counts)), counts)
    heads_at = 2 * np.arange(entries) + owners
    pieces = np.empty(int(starts[-1]), np.int64)
    pieces[heads_at] = names.indices.to_numpy() + several
    pieces[heads_at + 1] = ends + 2 + np.arange(entries)
    pieces[starts[:-1][counts > 0]] -= several
    pieces[starts[1:] - 1] = np.where(counts > 0, ends, ends + 1)
    texts = pool.take(pa.array(pieces))
    return pa.StringArray.from_buffers(len(counts), pa.py_buffer(raw(texts)[1][starts]), texts.buffers()[2])


def _escaped(texts: pa.StringArray) -> pa.StringArray:
    """Return texts, none of them null, as they stand between the quotes of JSON."""
    data, bounds = raw(texts)
    held = data[bounds[0] : bounds[-1]]
    if not ((held < ord(" ")) | (held == ord('"')) | (held == ord("\\"))).any():
        return texts
    special = pc.match_substring_regex(texts, _ESCAPED_RE2)
    changed = [_escaped_text(text) for text in texts.filter(special).to_pylist()]
    return pc.replace_with_mask(texts, special, pa.array(changed, pa.string()))


def _escaped_text(text: str) -> str:
    return _ESCAPED.sub(lambda match: _SHORT.get(match[0]) or f"\\u{ord(match[0]):04X}", text)


def _object(members: Mapping[str, str | None]) -> str:
    texts = ((name, "null" if text is None else f'"{_escaped_text(text)}"') for name, text in members.items())
    return "{" + ",".join(f'"{_escaped_text(name)}":{text}' for name, text in texts) + "}"


OUTGOING: Final = (
    pa.field("topic", pa.string()),
    pa.field("key", pa.binary()),
    pa.field("headers", HEADERS),
    pa.field("replaced", pa.bool_()),
    pa.field("data", pa.binary()),
)
TRACED: Final = tuple(pa.field(name, pa.string()) for name in ("message", "endpoint", "context"))
"""Columns that there are only where some events get headers of lineage."""
HEADER_CAP: Final = 4_000
"""Characters of a text in a dead letter's Kafka header; the outcome itself is never cut."""
_NO_ROWS: Final = np.zeros(0, np.int64)
_NO_BYTES: Final = pa.scalar(None, pa.binary())


@dataclass(frozen=True, slots=True)
class OnePass:
    """What the records of one attempt have in common.

    ``topic`` is that of all events, None when they have several. ``lineage`` and ``keys`` go by route: whether its
    events get headers of lineage, and the template of a key for those without one.
    """

    kind: Kind
    query: str
    epoch: str
    failed: str
    topic: str | None
    lineage: tuple[bool, ...]
    keys: tuple[DestinationTemplate | None, ...]

    @classmethod
    def of(cls, plan: Plan, kind: Kind, query: str = "", failed: str = "") -> OnePass:
        """Return that of a plan whose routes lead each event to one topic of Kafka."""
        routes = plan.routes
        sinks: dict[int, KafkaSink] = {}
        for name, numbers in routes.event_sinks.items():
            settings = plan.settings.sinks[name].topics
            assert settings is not None
            sinks.update(dict.fromkeys(numbers, settings))
        places = range(max(sinks, default=-1) + 1)
        lineage = tuple(place in sinks and sinks[place].lineage for place in places)
        keys = [sinks[place].key if place in sinks else None for place in places]
        templates = tuple(parse_name(key) if key is not None else None for key in keys)
        return cls(kind, query, plan.epoch, failed, _only_topic(routes.topics), lineage, templates)

    @property
    def traces(self) -> bool:
        """Whether some events get headers of lineage."""
        return any(self.lineage)

    @property
    def type(self) -> pa.StructType:
        """The type of a record."""
        return pa.struct([*(TRACED if self.traces else ()), *OUTGOING])

    def decide(self, judge: Judge, rows: pa.RecordBatch) -> Judged:
        """Judge one Arrow batch of the source's rows; one list of records for each, and their tally."""
        decided = judge_rows(self.kind, judge, rows)
        return decided.lists(_Records(self, decided, rows).build()), decided.counts


def _only_topic(topics: Mapping[str, NameTemplate]) -> str | None:
    """Return the topic of all events, when no value decides."""
    if len(topics) != 1:
        return None
    (template,) = topics.values()
    return None if template.variables else template.expand({}, escape="_")


class _Records:
    """The records of one Arrow batch."""

    def __init__(self, attempt: OnePass, decided: RoutedOutcomes, rows: pa.RecordBatch) -> None:
        self._attempt = attempt
        self._columns = decided.columns
        self._outcomes = decided.outcomes
        self._rows = rows
        self._sources = np.where(decided.sources >= 0, decided.sources, 0)
        self._routes: IntArray = decided.columns["route"].to_numpy(zero_copy_only=False).astype(np.int64)
        counts = np.zeros(len(self._routes), bool)
        counts[decided.order] = True
        self._events: BoolArray = counts & (self._routes >= 0)
        self._letters: IntArray = np.flatnonzero(counts & (self._routes < 0))

    def build(self) -> pa.StructArray:
        """Return one record for each row of facts, as :attr:`OnePass.type` says."""
        rare, traced = self._trace() if self._attempt.traces else (_NO_ROWS, {})
        context = traced.get("context")
        arrays = {
            **traced,
            "topic": self._topics(),
            "key": self._keys(),
            "headers": self._headers(rare, context),
            **self._bodies(),
        }
        type_ = self._attempt.type
        return pa.StructArray.from_arrays([arrays[field.name] for field in type_], fields=list(type_))

    def _trace(self) -> tuple[IntArray, dict[str, pa.Array]]:
        """Return the columns of lineage, and the rows of events whose headers of it Spark cannot add."""
        columns = self._columns
        wanted = np.array((*self._attempt.lineage, False), bool)
        lineage = self._events & wanted[np.where(self._events, self._routes, -1)]
        # Spark does not know the place in a batch of events, how a tie was decided, or any relation.
        rare = valid(columns["ambiguous"]) | valid(columns["place"])
        if "relatedto" in columns:
            rare = rare | valid(columns["relatedto"])
        if SCHEMA_ID in columns:
            rare = rare | valid(columns[SCHEMA_ID])
        usual = pa.array(lineage & ~rare)
        return np.flatnonzero(lineage & rare), {
            "message": pc.if_else(usual, columns["message"], pa.scalar(None, pa.string())),
            "endpoint": columns["endpoint"],
            "context": self._contexts(lineage),
        }

    def _contexts(self, wanted: BoolArray) -> pa.StringArray:
        """Return the context attributes of these rows as JSON, null for others."""
        return pc.if_else(pa.array(wanted), context_json(self._outcomes.contexts), pa.scalar(None, pa.string()))

    def _topics(self) -> pa.StringArray:
        usual = self._attempt.topic is not None
        names = [name for name in self._columns if name.startswith(("letters_",) if usual else ("topic_", "letters_"))]
        # Each record has one destination, so that at most one of them is there.
        return pc.coalesce(*(self._columns[name].cast(pa.string()) for name in names))

    def _keys(self) -> pa.BinaryArray:
        """Return the event's ``partitionkey``; for an event without any key what the sink's template gives."""
        columns, events = self._columns, pa.array(self._events)
        keys = columns["key"]
        own = self._outcomes.facts.columns.by_key.get("e.partitionkey")
        if own is not None and own.values.null_count < len(own.values):
            plain = pc.if_else(pc.is_null(columns["attributes"]), own.values.cast(pa.binary()), _NO_BYTES)
            keys = pc.coalesce(keys, plain)
        keys = pc.if_else(events, keys, _NO_BYTES)
        for route, template in enumerate(self._attempt.keys):
            if template is not None:
                lacking = self._events & (self._routes == route) & ~valid(keys) & ~self._came_with_key()
                rows = np.flatnonzero(lacking)
                expanded = self._expanded(template, rows).cast(pa.binary())
                keys = pc.replace_with_mask(keys, pa.array(lacking), expanded)
        return keys

    def _came_with_key(self) -> BoolArray:
        if self._attempt.kind != "kafka":
            return np.zeros(len(self._sources), bool)
        return valid(self._rows.column("key"))[self._sources]

    def _expanded(self, template: DestinationTemplate, rows: IntArray) -> pa.StringArray:
        """Return what a template gives for these rows; null where a value without a default is missing."""
        pieces: list[pa.Scalar | pa.StringArray] = []
        for place, part in enumerate(template.parts):
            if place % 2 == 0:
                pieces.append(pa.scalar(part))
                continue
            name, default = value_name(part), template.defaults[place // 2]
            values = column_of(self._outcomes, rows, name) if "." in name else self._settled(name, rows)
            if default:
                values = pc.if_else(pc.fill_null(pc.not_equal(values, ""), False), values, default)
            pieces.append(values)
        return pc.binary_join_element_wise(*pieces, "")

    def _settled(self, name: str, rows: IntArray) -> pa.StringArray:
        """Return a variable that definition and endpoint settle."""
        of = "endpoint" if name.startswith("endpoint") else "message"
        encoded = self._columns[of].take(pa.array(rows)).dictionary_encode()
        texts = (event_values(*(text, "") if of == "message" else ("", text), "", {}) for text in _texts(encoded))
        return pa.array([each[name] for each in texts], pa.string()).take(encoded.indices)

    def _bodies(self) -> dict[str, pa.Array]:
        spilled = pc.fill_null(self._columns["spilled"], False)
        data = pc.if_else(spilled, _NO_BYTES, self._columns["data"])
        return {"replaced": pc.or_(pc.fill_null(self._columns["replaced"], False), spilled), "data": data}

    def _headers(self, rare: IntArray, context: pa.StringArray | None) -> pa.ListArray:
        """Return the headers of made events and of letters; *rare* are events that get those of lineage here."""
        columns = self._columns
        given = np.flatnonzero(self._events & valid(columns["attributes"]))
        at = pa.array(given)
        rest = pc.coalesce(columns["passed"].take(at), self._others(given))
        lists = joined(columns["attributes"].take(at), rest)
        fillings = [(given, lists)]
        if len(self._letters):
            fillings.append((self._letters, self._letter_headers()))
        headers = filled(len(self._routes), HEADERS, fillings)
        if context is None or not len(rare):
            return headers
        whole = joined(pc.coalesce(headers.take(pa.array(rare)), self._came(rare)), self._lineage(rare, context))
        kept = np.setdiff1d(np.flatnonzero(valid(headers)), rare)
        return filled(len(self._routes), HEADERS, [(kept, headers.take(pa.array(kept))), (rare, whole)])

    def _came(self, rows: IntArray) -> pa.ListArray:
        """Return the headers that the records of these rows came with."""
        if self._attempt.kind != "kafka":
            return pa.nulls(len(rows), HEADERS)
        return self._rows.column("headers").take(pa.array(self._sources[rows])).cast(HEADERS)

    def _others(self, rows: IntArray) -> pa.ListArray:
        """Return what the columns of a record carried besides its content type."""
        came = self._came(rows)
        return without(came, CONTENT_TYPE) if self._attempt.kind == "kafka" else came

    def _lineage(self, rows: IntArray, context: pa.StringArray) -> pa.ListArray:
        at = pa.array(rows)
        message, endpoint = (self._columns[name].take(at) for name in ("message", "endpoint"))
        rare = {
            name: self._columns[name].take(at) for name in ("ambiguous", *RELATED, SCHEMA_ID) if name in self._columns
        }
        named: dict[str, pa.StringArray | str] = {
            "message": message,
            "endpoint": endpoint,
            "epoch": self._attempt.epoch,
            "position": self._positions(rows),
            "context": context.take(at),
            **rare,
        }
        return _ours(named, len(rows), {name: valid(texts) for name, texts in rare.items()})

    def _letter_headers(self) -> pa.ListArray:
        """Return the headers of dead letters: those that they came with, and ours behind them."""
        attempt, rows = self._attempt, self._letters
        names = ("reason", "detail", "nearest", "endpoint", "spilled", "passed")
        said = {name: self._columns[name].take(pa.array(rows)) for name in names}
        positions = self._positions(rows)
        letters = pa.array(letter_ids(attempt.query, positions), pa.string())
        came = self._arrivals(rows)
        named = {
            "letter": letters,
            "reason": said["reason"],
            "detail": pc.utf8_slice_codeunits(said["detail"], 0, HEADER_CAP),
            "nearest": pc.utf8_slice_codeunits(said["nearest"], 0, HEADER_CAP),
            "endpoint": pc.coalesce(said["endpoint"], came.endpoint),
            "protocol": came.protocol,
            "epoch": attempt.epoch,
            "position": positions,
            "received": rfc3339(came.received.cast(pa.timestamp("us"))),
            "failed": attempt.failed,
            "attempts": "1",
            **({} if came.native is None else {"native": came.native}),
            "spill": pc.binary_join_element_wise("spill/", letters, ".json", ""),
        }
        # Only a letter that was spilled says where.
        spilled = pc.fill_null(said["spilled"], False).to_numpy(zero_copy_only=False)
        return joined(pc.coalesce(said["passed"], came.headers), _ours(named, len(rows), {"spill": spilled}))

    def _positions(self, rows: IntArray) -> pa.StringArray:
        given = self._rows.take(pa.array(self._sources[rows]))
        return positions_in(self._attempt.kind, given, self._columns["place"].take(pa.array(rows)))

    def _arrivals(self, rows: IntArray) -> _Arrivals:
        """Return what letters say of how their records came."""
        given, headers = self._rows.take(pa.array(self._sources[rows])), self._came(rows)
        if self._attempt.kind == "kafka":
            protocol, nowhere = pa.array(["KAFKA"] * len(rows), pa.string()), pa.nulls(len(rows), pa.string())
            return _Arrivals(nowhere, protocol, instants(given.column("timestamp")), headers)
        raw = pa.StructArray.from_arrays(given.columns, names=given.schema.names)
        native = native_texts(self._attempt.kind, raw, self._columns["place"].take(pa.array(rows)))
        endpoint, protocol, received = (given.column(name) for name in ("endpoint", "protocol", "received"))
        return _Arrivals(endpoint, protocol, received, headers, native)


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """How the records of letters came: by which endpoint, when, and with which headers, or as which native records."""

    endpoint: pa.StringArray
    protocol: pa.StringArray
    received: pa.TimestampArray
    headers: pa.ListArray
    native: pa.StringArray | None = None


def _ours(named: Mapping[str, pa.StringArray | str], rows: int, only: Mapping[str, BoolArray]) -> pa.ListArray:
    prefixed = {f"{LINEAGE}{name}": texts for name, texts in named.items()}
    return lists_of(prefixed, rows, {f"{LINEAGE}{name}": those for name, those in only.items()})


def _texts(encoded: pa.DictionaryArray) -> list[str]:
    texts: list[str] = encoded.dictionary.to_pylist()
    return texts
