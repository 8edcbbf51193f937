"""Facts of Kafka records: selected columns where they settle a record, the exact codec where they do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.kafka.codec import PROTOCOL, parts_of_row
from bindings.kafka.facts import ENTRIES, odd, selector
from bindings.protocols import BINDINGS
from bindings.selectors import Expression, Field, Missing, Rows, Text
from router.facts import NO_SOURCE, PROTOCOL_NUMBERS, Facts, RawFacts, RawRow, join
from router.mapping import Defaults
from router.matcher import Matcher
from router.matching.constraints import CONTENT
from router.matching.context import Columns
from router.matching.segments import Int, SplitColumn

if TYPE_CHECKING:
    from pyspark.sql import Column

VERSION: Final = "e.specversion"
RAW: Final = "raw"
RAW_FIELDS: Final = ("key", "value", ENTRIES)
PLAIN: Final = ("topic", "partition", "offset", "timestamp")
YEAR_10000: Final = 253_402_300_800_000
"""Milliseconds from which RFC 3339 has no text. Negative ones are Kafka's way of saying that there is no time."""
TEXT_KEY: Final = "text_key"
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SOURCE_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        (ENTRIES, _HEADERS),
    ]
)
"""Rows as the codec takes them: Spark's Kafka source with ``timestamp`` in milliseconds."""


class KafkaSelection:
    """What a plan asks of Kafka rows: one expression per property, and the condition of odd rows."""

    def __init__(self, keys: Sequence[str], *, sniffs: bool) -> None:
        wanted = dict.fromkeys((VERSION, CONTENT, *keys))
        found = ((key, selector(key)) for key in wanted)
        self.selectors: dict[str, Expression] = {key: made for key, made in found if made is not None}
        self.odd = odd(keys, sniffs=sniffs)
        self.text_key = Text(Field("key"))

    def columns(self) -> list[Column]:
        """Return the Spark columns that :func:`facts_of_selected` reads, for a row of ``SOURCE_SCHEMA``."""
        from pyspark.sql import functions as F

        made = [F.col(name) for name in PLAIN]
        made += [expression.column().alias(key) for key, expression in self.selectors.items()]
        native = Missing(self.selectors[VERSION]).column()
        made.append(F.when(native, self.text_key.column()).alias(TEXT_KEY))
        made.append(F.when(self.odd.column(), F.struct(*RAW_FIELDS)).alias(RAW))
        return made

    def arrow(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the same columns by Arrow, for rows of ``SOURCE_SCHEMA``."""
        rows = Rows(batch, ENTRIES)
        made: dict[str, pa.Array] = {name: batch.column(name) for name in PLAIN}
        made.update({key: expression.arrow(rows) for key, expression in self.selectors.items()})
        native = pc.is_null(made[VERSION])
        made[TEXT_KEY] = pc.if_else(native, self.text_key.arrow(rows), pa.nulls(len(batch), pa.string()))
        raw = pa.StructArray.from_arrays([batch.column(name) for name in RAW_FIELDS], names=list(RAW_FIELDS))
        mask = self.odd.arrow(rows)
        made[RAW] = raw.take(pa.array(np.arange(len(batch)), mask=~mask.to_numpy(zero_copy_only=False)))
        return pa.RecordBatch.from_pydict(made)


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
    names = [name for name in selected.schema.names if name not in (*PLAIN, TEXT_KEY, RAW)]
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
        np.full(rows, PROTOCOL_NUMBERS[PROTOCOL], np.int64),
        events,
        sources,
        Defaults(identity, time, selected.column(CONTENT), selected.column(TEXT_KEY)),
    )


def _times(selected: pa.RecordBatch, times: pa.StringArray | None) -> pa.StringArray:
    milliseconds = selected.column("timestamp")
    told = pc.and_(pc.greater_equal(milliseconds, 0), pc.less(milliseconds, YEAR_10000))
    stamps = pc.if_else(told, milliseconds, pa.scalar(None, pa.int64())).cast(pa.timestamp("ms"))
    text = pc.strftime(stamps, format="%Y-%m-%dT%H:%M:%SZ")
    return text if times is None else pc.coalesce(text, times)
