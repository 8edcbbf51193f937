"""Facts of Kafka records: columns where they settle a record, the exact codec where they do not."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.texts import texts_of
from bindings.kafka.codec import PROTOCOL, parts_of_row
from bindings.kafka.facts import KafkaColumns, KafkaReader
from bindings.protocols import BINDINGS
from router.matching.facts import NO_SOURCE, Facts, RawFacts, RawRow, protocol_number
from router.matching.index.columns import Columns, Int, SplitColumn
from router.matching.joining import join
from router.matching.mapping import Defaults
from router.matching.matcher import Matcher
from router.matching.moments import instants, rfc3339

_PLACE: Final = ("topic", "partition", "offset")
HEAD: Final = "head"
"""A column of the first bytes of bodies, for rows whose body may not be there."""
_RAW: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


def facts_of_kafka(
    rows: pa.RecordBatch,
    matcher: Matcher,
    reader: KafkaReader,
    channels: Int,
    *,
    bodies: bool = True,
    times: pa.StringArray | None = None,
) -> Facts:
    """Return the facts of rows of ``SOURCE_SCHEMA``; ``times`` stand in for rows without a timestamp.

    ``bodies`` tells that the bodies that schemas look at are there. Odd rows are excluded from the columns' part (their
    channel there is unknown) and appended from the codec.
    """
    read = reader.read(rows)
    odd = np.flatnonzero(read.odd)
    settled = _settled(rows, read, channels, odd, bodies=bodies, times=times)
    heads = rows.column(HEAD if HEAD in rows.schema.names else "value")
    if not len(odd):
        matcher.ids.find(settled, heads)
        return settled
    exact = RawFacts(matcher.keys)
    binding = BINDINGS[PROTOCOL]
    at = pa.array(odd)
    time = times_of(rows.column("timestamp").take(at), None if times is None else times.take(at)).to_pylist()
    for row, entry, moment in zip(odd.tolist(), rows.select(_RAW).take(at).to_pylist(), time, strict=True):
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
                moment,
            )
        )
    facts = join(settled, exact.build(), matcher.keys)
    matcher.ids.find(facts, heads)
    return facts


def _settled(
    rows: pa.RecordBatch, read: KafkaColumns, channels: Int, odd: Int, *, bodies: bool, times: pa.StringArray | None
) -> Facts:
    count = rows.num_rows
    own = channels.copy()
    own[odd] = -1
    sources = np.arange(count)
    sources[odd] = NO_SOURCE
    return Facts(
        Columns(count, {name: SplitColumn(text) for name, text in read.texts.items()}),
        own,
        np.full(count, protocol_number(PROTOCOL), np.int64),
        read.events.astype(np.int64),
        sources,
        _defaults(rows, read, times),
        bodies=rows.column("value") if bodies else None,
        codings=read.coding if bodies else None,
    )


def _defaults(rows: pa.RecordBatch, read: KafkaColumns, times: pa.StringArray | None) -> Defaults:
    """Return what native records give the events they become; events have their own, and null here."""
    native = np.flatnonzero(~read.events)
    at = pa.array(native)
    back = np.full(rows.num_rows, -1, np.int64)
    back[native] = np.arange(len(native))
    places = pa.array(back, mask=back < 0)
    identity = positions_of(rows.select(_PLACE).take(at))
    time = times_of(rows.column("timestamp").take(at), None if times is None else times.take(at))
    key = texts_of(rows.column("key").take(at))
    return Defaults(identity.take(places), time.take(places), read.content, key.take(places))


def positions_of(rows: pa.RecordBatch) -> pa.StringArray:
    """Return where each row of Kafka lies, as the positions of its events and letters begin."""
    topic = pc.fill_null(rows.column("topic"), "")
    numbers = (rows.column(name).cast(pa.string()) for name in ("partition", "offset"))
    return pc.binary_join_element_wise(topic, *numbers, "-")


def times_of(milliseconds: pa.Int64Array, times: pa.StringArray | None = None) -> pa.StringArray:
    """Return timestamps of Kafka as RFC 3339, else ``times``."""
    text = rfc3339(instants(milliseconds))
    return text if times is None else pc.coalesce(text, times)
