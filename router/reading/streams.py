"""The streams that queries read: topics of one Kafka cluster, the inbox, or the topic in its place."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from bindings.inbox.source import NAME as INBOX_FORMAT
from bindings.kafka.client import KafkaClient, KafkaUnreachable
from bindings.kafka.offsets import KafkaOffsets, KafkaRange, mean_record_bytes, read_ranges
from bindings.kafka.store import to_inbox_columns
from router.errors import BrokerUnreachable, StateError
from router.logs import get_logger, shorten_list
from router.machine import BatchSizing
from router.reading.generations import Generation, Offsets, Spans, cluster_of, reaching_brokers, starting_offsets
from router.settings import Settings
from router.sources import INBOX, REST, Source, make_query_client
from router.state.state import StateFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = get_logger()


def records_of_batch(client: KafkaClient, topics: Sequence[str], generation: Generation, sizing: BatchSizing) -> int:
    """Return the most records of a batch; before the first batch their size is estimated from a few of them."""
    if sizing.mean is not None:
        return sizing.begin(None)
    records = sizing.begin(mean_record_bytes(client, topics, generation.positions()))
    if records < sizing.most:
        _log.info("records are large; batches get fewer records", bytes=round(sizing.mean or 0), records=records)
    return records


class QueryReader:
    """Reads what a query is for: topics of one cluster, the rest topic, or the inbox, local or in a topic.

    *sources* are those of a cluster's query.
    """

    def __init__(self, spark: SparkSession, settings: Settings, query: str, sources: Sequence[Source]) -> None:
        self._spark = spark
        self._settings = settings
        self._is_inbox = query == INBOX
        self._client = make_query_client(settings, query, sources)

    @property
    def has_offsets(self) -> bool:
        """Whether some offsets can be read again; not those of the local inbox."""
        return self._client is not None

    def stream(self, state: StateFolder, generation: Generation, sizing: BatchSizing | None) -> DataFrame:
        """Return the records of a generation, from where it begins, in batches as *sizing* asks for.

        None is for real-time mode, which has no such batches.

        Raises:
            BrokerUnreachable: the generation has not begun to read, and the brokers do not say which partitions there
                are.
        """
        client = self._client
        if client is None:
            assert sizing is not None
            reader = self._spark.readStream.format(INBOX_FORMAT).option("path", str(state.inbox))
            sizing.exact = True
            return reader.option("max_records", sizing.begin(None)).option("max_bytes", sizing.bound).load()
        topic = self._settings.inbox.kafka
        # Every topic is subscribed to, also one that does not exist yet: it is read from its first record once it does.
        topics = (topic.topic,) if self._is_inbox and topic is not None else generation.topics
        # Of the inbox and the rest topic all records were taken, so that they are read from the first.
        beginning = _beginning(client, generation, topics) if generation.starting else "earliest"
        reader = self._spark.readStream.format("kafka").options(**client.source_options(waits=sizing is None))
        reader = reader.options(**_subscribed(client, topics)).option("startingOffsets", beginning)
        if sizing is not None:
            reader = reader.option("maxOffsetsPerTrigger", records_of_batch(client, topics, generation, sizing))
        if self._settings.spark.min_partitions is not None:
            reader = reader.option("minPartitions", self._settings.spark.min_partitions)
        return self._load(reader)

    def read_spans(self, spans: Spans) -> DataFrame:
        """Return the records between some offsets."""
        assert self._client is not None
        starts, ends = (
            json.dumps({t: {str(n): span[at] for n, span in each.items()} for t, each in spans.items()})
            for at in (0, 1)
        )
        reader = self._spark.read.format("kafka").options(**self._client.source_options())
        reader = reader.option("assign", json.dumps({topic: list(each) for topic, each in spans.items()}))
        return self._load(reader.option("startingOffsets", starts).option("endingOffsets", ends))

    def read_ranges(self, ranges: tuple[KafkaRange, ...]) -> DataFrame:
        """Return the records of ranges of partitions by our own client, for what Spark's source cannot take.

        What brokers have no more ends a query that does not go on without it, as with Spark's source.
        """
        assert self._client is not None
        rows = read_ranges(self._spark, self._client, ranges, lossy=self._settings.on_data_loss != "stop")
        return to_inbox_columns(rows) if self._is_inbox else rows

    def _load(self, reader: Any) -> DataFrame:
        reader = reader.option("includeHeaders", "true")
        rows = reader.option("failOnDataLoss", str(self._settings.on_data_loss == "stop").lower()).load()
        return to_inbox_columns(rows) if self._is_inbox else rows


def _subscribed(client: KafkaClient, topics: Sequence[str]) -> dict[str, str]:
    """Return the option that names topics.

    Beside a topic by name that does not exist, Spark reads none of the others. A pattern takes those that exist at each
    batch, but has the brokers list all topics of the cluster for it.

    Raises:
        BrokerUnreachable: the brokers do not say which topics exist.
    """
    with reaching_brokers():
        there = KafkaOffsets(client).find_partitions(topics)
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
    with reaching_brokers():
        partitions = KafkaOffsets(client).find_partitions(topics)
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


# What brokers have lost of what was to be read: records, or whole topics that were deleted and made again.
#
# A topic made again has the name of the old one and another id, which brokers tell. Its offsets begin at 0, so whoever
# read on at the old position would pass over its first records, or wait for ever. The ids that were read are
# stored; where brokers have none (before Kafka 2.8), only a topic that is shorter is noticed.

Losses = Callable[[Spans], Spans]
"""Returns which of some offsets are lost at most; KafkaUnreachable where brokers do not say."""
HINT: Final = (
    "find out which records are gone; `on_data_loss: continue` reads what is left, and a topic made again from its "
    "first record"
)
_SURE_SECONDS: Final = 2.0


def topics_of_query(settings: Settings, query: str, sources: Sequence[Source], state: StateFolder) -> ReadTopics | None:
    """Return the topics of a query as their brokers know them; None for the local inbox."""
    client = make_query_client(settings, query, sources)
    return None if client is None else ReadTopics(client, query, state, lossy=settings.on_data_loss != "stop")


class ReadTopics:
    """The topics that one query reads, by the word of their brokers. It keeps its connection; not for concurrent use.

    *lossy* goes on with what is left when records are lost; else a loss ends the query, and the router.
    """

    def __init__(self, client: KafkaClient, query: str, state: StateFolder, *, lossy: bool) -> None:
        self._ends = KafkaOffsets(client)
        self._database = state.database
        # Lanes share what they know of a cluster, as they share positions.
        self._key = query if query in (INBOX, REST) else cluster_of(query)
        self._lossy = lossy

    @property
    def losses(self) -> Losses | None:
        """What is lost of a batch; None where Spark ends the query instead."""
        return self._lost if self._lossy else None

    def check(self, positions: Offsets) -> Spans:
        """Hold where topics are read on against what brokers have; return what is to be read from its first record.

        A loss is named in the log. A position behind the committed end waits: it was read as not committed.

        Raises:
            StateError: records are lost, and the settings do not go on without them.
            BrokerUnreachable: brokers do not answer, or a transaction is open before a position.
        """
        with reaching_brokers():
            ids = self._ends.topic_ids(positions)
            gone = self._gone(positions, ids)
            ends, last = self._ends.end_offsets(positions), self._ends.end_offsets(positions, committed=False)
            firsts = self._ends.first_offsets(ends)
        read = {topic for topic, numbers in positions.items() if any(at > 0 for at in numbers.values())}
        anew = self._anew(ids, read)
        again: Spans = {}
        lost: list[str] = []
        open_: list[str] = []
        for topic, partitions in ends.items():
            for number, end in partitions.items():
                at = positions[topic].get(str(number), -1)
                first, there = firsts[topic][number], last.get(topic, {}).get(number, end)
                if topic in anew:
                    again.setdefault(topic, {})[number] = (max(0, at), end)
                elif 0 <= at < first:
                    lost.append(f"{topic}-{number} no longer has offsets {at} to {first - 1}")
                elif at > there:
                    again.setdefault(topic, {})[number] = (at, there)
                    lost.append(f"{topic}-{number} was read up to offset {at} and now ends at {there}")
                elif at > end:
                    open_.append(f"{topic}-{number} is read up to offset {at}, and committed up to {end}")
        for topic, numbers in gone.items():
            places = ", ".join(f"{topic}-{number} was read up to offset {at}" for number, at in sorted(numbers.items()))
            lost.append(f"topic {topic} is gone: {places}")
            again[topic] = {number: (at, at) for number, at in numbers.items()}
        self._report_losses(again, anew, lost)
        if open_:
            raise BrokerUnreachable(
                f"records of an open transaction were read before: {shorten_list(open_)}; it must end first"
            )
        return again

    def _gone(self, positions: Offsets, ids: Mapping[str, str]) -> dict[str, dict[int, int]]:
        """Return where those topics were read on that exist no more; Spark reads nothing at all beside such a one."""
        gone = {
            topic: {int(number): at for number, at in numbers.items() if at >= 0}
            for topic, numbers in positions.items()
            if topic not in ids
        }
        if any(gone.values()):
            # A broker that has just started may not know its topics yet.
            time.sleep(_SURE_SECONDS)
            ids = self._ends.topic_ids(gone)
        return {topic: numbers for topic, numbers in gone.items() if numbers and topic not in ids}

    def made_anew(self, spans: Spans) -> Spans:
        """Return those of a batch's partitions whose topic was made again since it was read, each time until noted.

        Nothing where brokers do not say it now: the next batch asks again.

        Raises:
            StateError: there are some, and the settings do not go on without the records that were lost.
        """
        read = {topic for topic, numbers in spans.items() if any(first > 0 for first, _ in numbers.values())}
        try:
            anew = self._anew(self._ends.topic_ids(spans), read)
        except KafkaUnreachable as error:
            _log.debug("cannot check whether topics were recreated", problem=str(error))
            return {}
        again = {topic: partitions for topic, partitions in spans.items() if topic in anew}
        self._report_losses(again, anew)
        return again

    def note(self, topics: Collection[str]) -> None:
        """Note that these topics are read as they are now, from their first records."""
        with reaching_brokers():
            self._note({topic: id for topic, id in self._ends.topic_ids(topics).items() if id})

    def _report_losses(self, again: Spans, anew: Mapping[str, tuple[str, str]], lost: Sequence[str] = ()) -> None:
        lost = [
            f"topic {topic} was deleted and made again (id {anew[topic][0]}, now {anew[topic][1]}): "
            f"{topic}-{number} was read up to offset {first}, and now ends at {end}"
            for topic, partitions in sorted(again.items())
            if topic in anew
            for number, (first, end) in sorted(partitions.items())
        ] + [*lost]
        if lost and not self._lossy:
            raise StateError(f"records were lost at the broker before they were read: {shorten_list(lost)}", hint=HINT)
        if lost:
            _log.error("records were lost at the broker before they were read", places=lost)

    def _anew(self, ids: Mapping[str, str], read: Collection[str]) -> dict[str, tuple[str, str]]:
        """Return topics that were recreated, with their stored and current ids; store ids that are new.

        A topic that nothing was *read* of begins at its first record anyway.
        """
        stored = self._database.read("SELECT topic, id FROM topic_ids WHERE cluster = ?", (self._key,))
        known: dict[str, str] = dict(stored)
        other = {topic: id for topic, id in ids.items() if id and known.get(topic) != id}
        if new := {topic: id for topic, id in other.items() if topic not in known or topic not in read}:
            self._note(new)
        return {topic: (known[topic], id) for topic, id in other.items() if topic not in new}

    def _note(self, ids: Mapping[str, str]) -> None:
        with self._database.transaction() as connection:
            rows = [(self._key, topic, id) for topic, id in ids.items()]
            connection.executemany("INSERT OR REPLACE INTO topic_ids VALUES (?, ?, ?)", rows)

    def _lost(self, spans: Spans) -> Spans:
        """Return which of these offsets brokers have no more; whatever else held no record never held one.

        All of a partition's count where it ends before them: its topic was deleted, made anew or cut. What a broker
        removed after it was read counts as well, so it is the most that can be lost.

        Raises:
            KafkaUnreachable: they do not say.
        """
        ends = self._ends.end_offsets(spans)
        firsts = self._ends.first_offsets(ends)
        lost: Spans = {}
        for topic, partitions in spans.items():
            for number, (first, end) in partitions.items():
                there = ends.get(topic, {}).get(number, 0) >= end
                upto = min(max(first, firsts[topic][number]), end) if there else end
                if upto > first:
                    lost.setdefault(topic, {})[number] = (first, upto)
        return lost


def places_of(spans: Spans) -> list[str]:
    """Return spans of offsets for people."""
    return [
        f"{topic}-{number}: offsets {first} to {end - 1}"
        for topic, partitions in sorted(spans.items())
        for number, (first, end) in sorted(partitions.items())
    ]
