"""The streams that queries read: topics of one Kafka cluster, the inbox, or the topic in its place."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from bindings.inbox.source import NAME as INBOX_FORMAT
from bindings.kafka.client import KafkaClient, KafkaUnreachable
from bindings.kafka.ends import KafkaEnds, mean_record_bytes
from bindings.kafka.ranges import KafkaRange, read_ranges
from bindings.kafka.store import inbox_columns
from router.errors import BrokerUnreachable
from router.logs import get_logger
from router.machine import BatchSizing
from router.reading.generations import Generation, Spans, starting_offsets
from router.settings import Settings
from router.sources import REST, Source, inbox_client, query_client, rest_client, source_client
from router.state.state import StateFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# How much of its topics a query reads at a time, and the reading of some offsets again.

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


def kafka_rows(
    spark: SparkSession,
    settings: Settings,
    sources: Sequence[Source],
    generation: Generation,
    sizing: BatchSizing | None,
) -> DataFrame:
    """Return the records of a generation's topics, from where it begins, in batches as *sizing* asks for.

    None is for real-time mode, which has no such batches.

    Raises:
        BrokerUnreachable: the generation has not begun to read, and the brokers do not say which partitions there are.
    """
    # Every topic is subscribed to, also one that does not exist yet: it is read from its first record once it does.
    return _generation_rows(spark, settings, source_client(sources[0]), generation, sizing)


def rest_rows(spark: SparkSession, settings: Settings, generation: Generation, sizing: BatchSizing) -> DataFrame:
    """Return the records of the rest topic, from the first, since all of them were taken.

    Raises:
        BrokerUnreachable: as :func:`kafka_rows`.
    """
    return _generation_rows(spark, settings, rest_client(settings), generation, sizing)


def inbox_rows(
    spark: SparkSession, settings: Settings, state: StateFolder, generation: Generation, sizing: BatchSizing
) -> DataFrame:
    """Return the rows of the inbox, from the first, since all of them were acknowledged.

    Raises:
        BrokerUnreachable: as :func:`kafka_rows`, for a topic as the inbox that was deleted and made again.
    """
    topic = settings.inbox.kafka
    if topic is not None:
        client = inbox_client(topic)
        beginning = _beginning(client, generation, (topic.topic,)) if generation.starting else "earliest"
        records = records_of_batch(client, (topic.topic,), generation, sizing)
        return inbox_columns(_topics(spark, settings, client, (topic.topic,), beginning, records))
    reader = spark.readStream.format(INBOX_FORMAT).option("path", str(state.inbox))
    sizing.exact = True
    return reader.option("max_records", sizing.begin(None)).option("max_bytes", sizing.bound).load()


def _generation_rows(
    spark: SparkSession, settings: Settings, client: KafkaClient, generation: Generation, sizing: BatchSizing | None
) -> DataFrame:
    beginning = _beginning(client, generation, generation.topics)
    records = None if sizing is None else records_of_batch(client, generation.topics, generation, sizing)
    return _topics(spark, settings, client, generation.topics, beginning, records)


def _topics(
    spark: SparkSession,
    settings: Settings,
    client: KafkaClient,
    topics: Sequence[str],
    beginning: str,
    records: int | None,
) -> DataFrame:
    reader = spark.readStream.format("kafka").options(**client.reading(waits=records is None))
    reader = reader.options(**_subscribed(client, topics)).option("includeHeaders", "true")
    if records is not None:
        reader = reader.option("maxOffsetsPerTrigger", records)
    reader = reader.option("failOnDataLoss", str(settings.on_data_loss == "stop").lower())
    if settings.spark.min_partitions is not None:
        reader = reader.option("minPartitions", settings.spark.min_partitions)
    return reader.option("startingOffsets", beginning).load()


def _subscribed(client: KafkaClient, topics: Sequence[str]) -> dict[str, str]:
    """Return the option that names topics.

    Beside a topic by name that does not exist, Spark reads none of the others. A pattern takes those that exist at each
    batch, but has the brokers list all topics of the cluster for it.

    Raises:
        BrokerUnreachable: the brokers do not say which topics exist.
    """
    try:
        there = KafkaEnds(client).partitions(topics)
    except KafkaUnreachable as error:
        raise BrokerUnreachable(str(error)) from error
    lacking = sorted(set(topics) - set(there))
    for topic in lacking:
        _log.warning("topic does not exist yet", topic=topic)
    if not lacking:
        return {"subscribe": ",".join(topics)}
    # Names of topics have letters, digits, dashes, underscores and dots.
    return {"subscribePattern": "|".join(topic.replace(".", "[.]") for topic in topics)}


def _beginning(client: KafkaClient, generation: Generation, topics: Sequence[str]) -> str:
    """Return Spark's ``startingOffsets``, which must name the partitions that there are, and no others."""
    if generation.begun:
        return "earliest"  # Spark requires it, but follows its checkpoint.
    try:
        partitions = KafkaEnds(client).partitions(topics)
    except KafkaUnreachable as error:
        raise BrokerUnreachable(str(error)) from error
    # A partition added before Spark has looked as well fails the query, and its next start comes by here again.
    return starting_offsets(partitions, json.loads(generation.starting or "{}")) if partitions else "earliest"


def start_query(
    rows: DataFrame,
    name: str,
    batch: Callable[[DataFrame, int], None],
    generation: Generation,
    settings: Settings,
    *,
    once: bool,
) -> StreamingQuery:
    """Start a query that gives *batch* the rows of one batch after the other, with the number of each.

    Its checkpoint is the generation's folder. With *once* it ends by itself when what is there now is done.
    """
    writer = rows.writeStream.queryName(name).foreachBatch(batch)
    writer = writer.option("checkpointLocation", f"file://{generation.path}")
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{int(settings.between_batches.total_seconds() * 1000)} milliseconds").start()
