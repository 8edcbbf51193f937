"""Facts of Kafka records: selected columns where they settle a record, the exact codec where they do not."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.codings import NAME
from bindings.kafka.codec import PROTOCOL, parts_of_row
from bindings.kafka.conditions import Not, OneOf
from bindings.kafka.facts import ALWAYS, ENTRIES, LAYOUT, constrained_headers, odd, selector
from bindings.kafka.layouts import MOST, is_plain
from bindings.kafka.selectors import Expression, Field, FirstBytes, Layout, Rows, Selected, Text
from bindings.protocols import BINDINGS
from catalog.definitions.constraints import CONTENT
from catalog.values import YEAR_10000
from router.matching.facts import NO_SOURCE, Facts, RawFacts, RawRow, join, protocol_number
from router.matching.index.columns import Columns, Int, SplitColumn
from router.matching.mapping import Defaults
from router.matching.matcher import Matcher

if TYPE_CHECKING:
    from pyspark.sql import Column

VERSION: Final = "e.specversion"
RAW: Final = "raw"
RAW_FIELDS: Final = ("key", "value", ENTRIES)
PLAIN: Final = ("topic", "partition", "offset", "timestamp")
TEXT_KEY: Final = "text_key"
SIZE: Final = "size"
BODY: Final = "body"
"""The body, where a data schema may have to look at it; it stays in the JVM elsewhere."""
CODING: Final = "coding"
"""The content coding of that body."""
_CODING: Final = Text(FirstBytes(ENTRIES, NAME))


class KafkaSelection:
    """What a plan asks of Kafka rows, in two steps: one column per property, then the condition of odd rows on them.

    ``known`` are layouts found plain so far; rows of others bring theirs along, so that they can be learned. ``bodies``
    are the topics whose bodies schemas may look at; None stands for all.
    """

    def __init__(
        self,
        keys: Sequence[str],
        *,
        sniffs: bool,
        known: frozenset[str] = frozenset(),
        bodies: Collection[str] | None = (),
    ) -> None:
        selected = ((key, selector(key)) for key in dict.fromkeys((*ALWAYS, *keys)))
        self.selectors: dict[str, Expression] = {
            key: expression for key, expression in selected if expression is not None
        }
        self.keys = [key for key in self.selectors if key in (VERSION, CONTENT, *keys)]
        self.odd = odd(keys, sniffs=sniffs, known=known)
        self.unknown = Not(OneOf(Selected(LAYOUT), known))
        self.text_key = Text(Field("key"))
        self.bodies = None if bodies is None else sorted(bodies)

    @property
    def names(self) -> list[str]:
        """The columns that :func:`facts_of_selected` reads, in order."""
        body = [] if self.bodies == [] else [BODY, CODING]
        return [*PLAIN, *self.keys, TEXT_KEY, LAYOUT, SIZE, RAW, *body]

    def first(self) -> list[Column]:
        """Return the Spark columns of the first step, for a row of ``SOURCE_SCHEMA``."""
        columns = [expression.column().alias(key) for key, expression in self.selectors.items()]
        return [*columns, Layout(ENTRIES).column().alias(LAYOUT)]

    def columns(self) -> list[Column]:
        """Return the Spark columns of ``names``, for a row with those of the first step."""
        from pyspark.sql import functions as F

        columns = [F.col(f"`{name}`") for name in (*PLAIN, *self.keys)]
        columns.append(F.when(F.col(f"`{VERSION}`").isNull(), self.text_key.column()))
        columns.append(F.when(self.unknown.column(), F.col(LAYOUT)))
        columns.append(F.coalesce(F.octet_length("key"), F.lit(0)) + F.coalesce(F.octet_length("value"), F.lit(0)))
        columns.append(F.when(self.odd.column(), F.struct(*RAW_FIELDS)))
        wanted = (F.col("value"), _CODING.column())
        if self.bodies is None:
            columns += wanted
        elif self.bodies:
            columns += (F.when(F.col("topic").isin(self.bodies), each) for each in wanted)
        return columns

    def arrow(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the same columns by Arrow, for rows of ``SOURCE_SCHEMA``."""
        source = Rows(batch, ENTRIES)
        columns = {name: batch.column(name) for name in batch.schema.names}
        columns |= {key: expression.arrow(source) for key, expression in self.selectors.items()}
        columns[LAYOUT] = Layout(ENTRIES).arrow(source)
        rows = Rows(pa.RecordBatch.from_pydict(columns), ENTRIES)
        none = pa.nulls(len(batch), pa.string())
        columns[TEXT_KEY] = pc.if_else(pc.is_null(columns[VERSION]), self.text_key.arrow(rows), none)
        raw = pa.StructArray.from_arrays([batch.column(name) for name in RAW_FIELDS], names=list(RAW_FIELDS))
        mask = self.odd.arrow(rows)
        columns[RAW] = raw.take(pa.array(np.arange(len(batch)), mask=~mask.to_numpy(zero_copy_only=False)))
        lengths = [pc.fill_null(pc.binary_length(batch.column(name)), 0) for name in ("key", "value")]
        columns[SIZE] = pc.add(*lengths)
        columns[LAYOUT] = pc.if_else(self.unknown.arrow(rows), columns[LAYOUT], none)
        columns[BODY], columns[CODING] = batch.column("value"), _CODING.arrow(source)
        return pa.RecordBatch.from_pydict({name: columns[name] for name in self.names})


def plain_layouts(selected: pa.RecordBatch, keys: Sequence[str]) -> list[str]:
    """Return the layouts that selected rows brought along and that are plain, for later batches to know."""
    constrained = frozenset(constrained_headers(keys))
    brought = pc.drop_null(pc.unique(selected.column(LAYOUT))).to_pylist()
    return [layout for layout in brought[:MOST] if is_plain(layout, constrained)]


def facts_of_selected(
    selected: pa.RecordBatch, matcher: Matcher, channels: Int, times: pa.StringArray | None = None
) -> Facts:
    """Return the facts of selected Kafka rows; ``times`` stand in for rows without a timestamp.

    Odd rows are excluded from the columns' part (their channel there is unknown) and appended from the codec.
    """
    raw = selected.column(RAW)
    odd_rows = np.flatnonzero(pc.is_valid(raw).to_numpy(zero_copy_only=False))
    time = _times(selected, times)
    plain = _plain(selected, channels, odd_rows, time)
    if not len(odd_rows):
        return plain
    exact = RawFacts(matcher.index.keys)
    binding = BINDINGS[PROTOCOL]
    for row in odd_rows.tolist():
        entry: dict[str, Any] = {name: selected.column(name)[row].as_py() for name in PLAIN} | raw[row].as_py()
        channel = int(channels[row])
        exact.add(
            RawRow(
                row,
                binding,
                parts_of_row(entry),
                entry["value"],
                channel,
                lambda channel=channel: matcher.sniffs(channel, PROTOCOL),  # type: ignore[misc]
                f"{entry['topic'] or ''}-{entry['partition']}-{entry['offset']}",
                time[row].as_py(),
            )
        )
    return join(plain, exact.build(), matcher.index.keys)


def _plain(selected: pa.RecordBatch, channels: Int, odd_rows: Int, time: pa.StringArray) -> Facts:
    rows = selected.num_rows
    names = [name for name in selected.schema.names if name not in (*PLAIN, TEXT_KEY, LAYOUT, SIZE, RAW, BODY, CODING)]
    events = pc.is_valid(selected.column(VERSION)).to_numpy(zero_copy_only=False).astype(np.int64)
    own = channels.copy()
    own[odd_rows] = -1
    sources = np.arange(rows)
    sources[odd_rows] = NO_SOURCE
    identity = pc.binary_join_element_wise(
        pc.fill_null(selected.column("topic"), ""),
        selected.column("partition").cast(pa.string()),
        selected.column("offset").cast(pa.string()),
        "-",
    )
    return Facts(
        Columns(rows, {name: SplitColumn(selected.column(name)) for name in names}),
        own,
        np.full(rows, protocol_number(PROTOCOL), np.int64),
        events,
        sources,
        Defaults(identity, time, selected.column(CONTENT), selected.column(TEXT_KEY)),
        bodies=selected.column(BODY) if BODY in selected.schema.names else None,
        codings=selected.column(CODING) if CODING in selected.schema.names else None,
    )


def _times(selected: pa.RecordBatch, times: pa.StringArray | None) -> pa.StringArray:
    milliseconds = selected.column("timestamp")
    # Negative ones are Kafka's way of saying that there is no time; RFC 3339 has no text for years past 9999.
    dated = pc.and_(pc.greater_equal(milliseconds, 0), pc.less(milliseconds, YEAR_10000))
    stamps = pc.if_else(dated, milliseconds, pa.scalar(None, pa.int64())).cast(pa.timestamp("ms"))
    text = pc.strftime(stamps, format="%Y-%m-%dT%H:%M:%SZ")
    return text if times is None else pc.coalesce(text, times)
