"""How much of its topics a query reads at a time, and the reading of some offsets again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from bindings.kafka.client import KafkaClient
from bindings.kafka.ranges import KafkaRange, read_ranges
from bindings.kafka.sampling import mean_record_bytes
from bindings.kafka.store import inbox_columns
from router.logs import get_logger
from router.machine.sizing import BatchSizing
from router.reading.generations import Generation
from router.reading.planned import Spans
from router.settings import Settings
from router.sources.clusters import query_client
from router.sources.sources import REST, Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ReadRanges = Callable[[tuple[KafkaRange, ...]], "DataFrame"]
ReadSpans = Callable[[Spans], "DataFrame"]
_Asked = TypeVar("_Asked")
_log = get_logger()


def records_of_batch(client: KafkaClient, topics: Sequence[str], generation: Generation, sizing: BatchSizing) -> int:
    """Return the most records of a batch; before the first batch their size is estimated from a few of them."""
    if sizing.mean is not None:
        return sizing.begin(None)
    records = sizing.begin(mean_record_bytes(client, topics, generation.positions()))
    if records < sizing.most:
        _log.info("records are large, so batches have fewer", bytes=round(sizing.mean or 0), records=records)
    return records


def spans_reader(spark: SparkSession, settings: Settings, query: str, sources: Sequence[Source]) -> ReadSpans | None:
    """Return what reads the records between some offsets, for a query of these sources; without any, for the inbox or
    the rest topic.

    None for the local inbox, which has no offsets.
    """

    def read(client: KafkaClient, spans: Spans) -> DataFrame:
        starts, ends = (
            {t: {str(n): span[at] for n, span in each.items()} for t, each in spans.items()} for at in (0, 1)
        )
        reader = spark.read.format("kafka").options(**client.reading()).option("includeHeaders", "true")
        reader = reader.option("assign", json.dumps({topic: list(each) for topic, each in spans.items()}))
        reader = reader.option("startingOffsets", json.dumps(starts)).option("endingOffsets", json.dumps(ends))
        return reader.option("failOnDataLoss", str(settings.on_data_loss == "stop").lower()).load()

    return _reader(settings, query, sources, read)


def ranges_reader(spark: SparkSession, settings: Settings, query: str, sources: Sequence[Source]) -> ReadRanges | None:
    """Return what reads ranges of partitions by our own client, for what Spark's source cannot take.

    None for the local inbox, which has no offsets. What brokers have no more ends a query that does not go on without
    it, as with Spark's source.
    """
    lossy = settings.on_data_loss != "stop"
    return _reader(settings, query, sources, partial(read_ranges, spark, lossy=lossy))


def _reader(
    settings: Settings, query: str, sources: Sequence[Source], read: Callable[[KafkaClient, _Asked], DataFrame]
) -> Callable[[_Asked], DataFrame] | None:
    """Return *read* for the cluster that has the query's records, its rows as those of the query."""
    client = query_client(settings, query, sources)
    if client is None:
        return None
    if query == REST or sources:
        return partial(read, client)
    return lambda asked: inbox_columns(read(client, asked))
