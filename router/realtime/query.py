"""Real-time mode: what must hold before it begins, what it sends and counts, and the rest topic."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from bindings.kafka.client import KafkaUnreachable
from bindings.kafka.ends import KafkaEnds
from bindings.kafka.facts import LINEAGE
from bindings.private import private_folder
from router.errors import BrokerUnreachable, ConfigError
from router.judging.outputs import ROUTED, Tally
from router.judging.plan import Plan
from router.judging.stages import HEADERS_TYPE, converts, header
from router.logs import get_logger
from router.reading.generations import Generation
from router.settings import Settings
from router.settling import NUMBER, SETTLED, SettledType, sent_headers, settled_types, table_of, with_settled
from router.sources import REST, rest_client, source_client
from router.state.accounts import Accounts
from router.state.state import StateFolder

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from router.errors import RouterError
    from router.reading.generations import Spans
    from router.watching.metrics import Metrics
    from router.watching.status import RouterStatus

# One real-time query: it sends records on one by one, and notes how far it is when a batch of its time ends.
#
# Spark writes the offsets of such a batch at its end. A query that is stopped inside one sends the records of it again,
# so the router asks for the end of the batch at hand, and stops the query right after it; a crash repeats what came
# since the last note. Nothing is pinned: whatever plan takes a record, it is sent to where that says, or to the rest
# topic.

# The rest topic: records that only the matcher decides, as they came, with where they came from.
#
# Where a record came from stands in its last headers, by their place: whatever headers a sender gave stay as they are,
# and are never taken for ours. A record of the rest topic that does not end so was written by somebody else; it is
# judged as a record of that topic, which no source reads.

_ORIGIN: Final = ("topic", "partition", "offset", "timestamp")
_NAMES: Final = tuple(f"{LINEAGE}rest-{name}" for name in _ORIGIN)


def rest_headers() -> Column:
    """Return the headers that a row of Spark's Kafka source goes to the rest topic with."""
    from pyspark.sql import functions as F

    values = (F.col("topic"), *(F.col(name).cast("string") for name in _ORIGIN[1:3]), _milliseconds().cast("string"))
    ours = F.array(*(header(name, value) for name, value in zip(_NAMES, values, strict=True)))
    return F.concat(F.coalesce("headers", F.array().cast(HEADERS_TYPE)), ours)


def restored(rows: DataFrame) -> DataFrame:
    """Return rows of the rest topic as those that they were in the topics that they came by.

    *rows* are those of Spark's Kafka source, or of our own client; timestamps become milliseconds.
    """
    from pyspark.sql import functions as F

    count = len(_ORIGIN)
    ours = F.when(F.size("headers") >= count, F.slice("headers", -count, count))
    timestamp = _milliseconds() if converts(rows, "kafka") else F.col("timestamp")
    marked = rows.withColumns({"timestamp": timestamp, "ours": ours})
    texts = [F.try_validate_utf8(F.get("ours", F.lit(place))["value"].cast("string")) for place in range(count)]
    numbers = [text.try_cast(kind) for text, kind in zip(texts[1:], ("int", "bigint", "bigint"), strict=True)]
    is_ours = F.coalesce(F.transform("ours", lambda entry: entry["key"]) == F.array(*map(F.lit, _NAMES)), F.lit(False))
    for value in (texts[0], *numbers):
        is_ours = is_ours & value.isNotNull()
    left = F.slice("headers", 1, F.greatest(F.size("headers") - count, F.lit(0)))
    # A record without headers has none, and not an empty list of them.
    came = F.when(F.size(left) > 0, left)
    origin = dict(zip(_ORIGIN, (texts[0], *numbers), strict=True))
    return marked.select(
        "key",
        "value",
        *(F.when(is_ours, value).otherwise(F.col(name)).alias(name) for name, value in origin.items()),
        F.when(is_ours, came).otherwise(F.col("headers")).alias("headers"),
    )


def _milliseconds() -> Column:
    from pyspark.sql import functions as F

    return F.unix_millis("timestamp")


# What a real-time query sends, and what it counts of it; all in expressions that Spark's real-time mode takes.

COUNTS: Final = "settled"
"""The name of the counts in Spark's reports."""


def sent_records(rows: DataFrame, plan: Plan, types: Sequence[SettledType], rest: str) -> DataFrame:
    """Return what becomes of rows of Spark's Kafka source: topic, key, value and headers of a record for each.

    What *types* settle goes where its type says, all else to the topic *rest*, as it came.
    """
    from pyspark.sql import functions as F

    decided = with_settled(rows, table_of(rows.sparkSession, types))
    # Exact, since there are no more numbers than it may keep apart; it is the one count by value that needs no groups.
    kept_apart = max(len(types), 2)
    number = F.when(F.col(SETTLED), F.col(NUMBER))
    counted = decided.observe(COUNTS, F.histogram_numeric(number, F.lit(kept_apart)).alias(COUNTS))
    return counted.select(
        F.when(F.col(SETTLED), F.col("to")).otherwise(F.lit(rest)).alias("topic"),
        "key",
        "value",
        F.when(F.col(SETTLED), sent_headers(plan.epoch)).otherwise(rest_headers()).alias("headers"),
    )


def tally_of(progress: Mapping[str, Any], types: Sequence[SettledType]) -> Tally:
    """Return the counts of a batch that Spark reports as done; what went to the rest topic is not among them."""
    tally = Tally()
    observed = (progress.get("observedMetrics") or {}).get(COUNTS)
    for bar in (observed[COUNTS] or ()) if observed is not None else ():
        settled, count = types[int(bar["x"])], int(bar["y"])
        endpoint = settled.endpoint or ""
        tally.records[(endpoint, ROUTED, "")] += count
        tally.delivered[(settled.way.sink, endpoint)] += count
        tally.definitions[settled.endpoint or "", settled.message] += count
    return tally


_LOOK: Final = 0.05
_LOUD: Final = (
    "org.apache.spark.util.Utils",
    "org.apache.spark.scheduler.TaskSchedulerImpl",
    "org.apache.spark.sql.execution.datasources.v2.DataWritingSparkTask",
    "org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec",
)
"""The logger that reports tasks that are ended, also in order."""
_log = get_logger()


class RealTimeQuery:
    """A real-time query of one plan. Not for concurrent use."""

    def __init__(
        self, name: str, generation: Generation, plan: Plan, metrics: Metrics, status: RouterStatus, accounts: Accounts
    ) -> None:
        self.name = name
        self.generation = generation
        self.plan = plan
        self.last: int | None = None
        self.failure: RouterError | None = None
        self.renewed: Spans = {}
        self._metrics = metrics
        self._status = status
        self._accounts = accounts
        self._types = settled_types(plan)
        self._query: StreamingQuery | None = None
        self._seen: int | None = None
        self._since = time.monotonic()
        self._asked: int | None = None
        assert plan.settings.realtime is not None
        self._settings = plan.settings.realtime
        metrics.expect_query(name)
        metrics.resume(name, accounts.of(name))

    def start(self, rows: DataFrame, state: StateFolder) -> StreamingQuery:
        """Start it on rows of Spark's Kafka source; its checkpoint is the generation's folder."""
        # A query in batches has its pins there, and the next start looks for it.
        private_folder(state.batches / self.name)
        seconds = self._settings.checkpoint.total_seconds()
        records = sent_records(rows, self.plan, self._types, self._settings.rest)
        writer = records.writeStream.queryName(self.name).format("kafka")
        writer = writer.options(**{"kafka.linger.ms": "0", **rest_client(self.plan.settings).jvm()})
        writer = writer.option("checkpointLocation", f"file://{self.generation.path}").outputMode("update")
        self._since = time.monotonic()
        _quiet()
        trigger = {"realTime": f"{int(seconds * 1000)} milliseconds"}
        self._query = writer.trigger(**trigger).start()
        _log.info("records are sent on one by one", query=self.name, settled_types=len(self._types))
        return self._query

    def progressed(self, progress: Any) -> None:
        """Take Spark's report on the last batch that has ended."""
        number = int(progress["batchId"])
        if number == self._seen:
            return
        tally = tally_of(progress, self._types)
        with self._accounts.changing(self.name) as account:
            account.count(tally)
        self._metrics.outcomes(tally)
        self._status.query(self.name, "running", batch=number)
        self._seen = self.last = number
        self._since = time.monotonic()

    def drain(self) -> None:
        """Ask for the end of the batch at hand."""
        if self._asked is None:
            self._asked = -1 if self._seen is None else self._seen

    @property
    def draining(self) -> bool:
        """Whether the query is to end."""
        return self._asked is not None

    @property
    def ended_batch(self) -> bool:
        """Whether a batch has ended since :meth:`drain`."""
        return self._asked is not None and self._seen is not None and self._seen > self._asked

    def wait_idle(self, seconds: float) -> bool:
        """Wait until a batch has ended since :meth:`drain`; False at once when none can within the time."""
        deadline = time.monotonic() + seconds
        ends = self._since + self._settings.checkpoint.total_seconds()
        while not self.ended_batch:
            if time.monotonic() > deadline or ends > deadline:
                return False
            if self._query is None or not self._query.isActive:
                return True
            time.sleep(_LOOK)
            if (progress := self._query.lastProgress) is not None:
                self.progressed(progress)
        return True

    def stop(self) -> None:
        """End it now; what it has sent since its last note is sent again by the next start."""
        if self._query is not None:
            self._query.stop()


def _quiet() -> None:
    """Keep Spark from logging tasks that end, which it does at length and moments after their query was stopped.

    Why one failed is in the error of its query.
    """
    from pyspark import SparkContext

    jvm = SparkContext._jvm
    assert jvm is not None
    log4j = jvm.org.apache.logging.log4j
    for name in _LOUD:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


# What must hold before a real-time query begins, besides what the settings alone show.


def require_real_time(plan: Plan, *, once: bool = False) -> None:
    """Make sure that real-time mode can read the sources of a plan; nothing is asked of one in batches.

    With *once* the router would end when all is read, which only batches can do.

    Raises:
        ConfigError: a source is no Kafka topic, they are not of one query, one is the rest topic, or no definition can
            be settled without the matcher; names it.
    """
    settings = plan.settings
    if settings.realtime is not None:
        for source in plan.sources:
            if source.topic == settings.realtime.rest:
                raise ConfigError(
                    f"source {source.endpoint}: its topic is the rest topic, so that records would go round for ever",
                    key="realtime.rest",
                    hint="name a topic that is the router's alone",
                )
    if not settings.is_real_time:
        return
    if once:
        raise ConfigError(
            "--once ends when all is read, and real-time mode waits for more",
            key="trigger",
            hint="set trigger to a duration; XROUTER_TRIGGER=500ms does so for one run",
        )
    for source in plan.sources:
        if source.pushed:
            raise ConfigError(
                f"source {source.endpoint}: real-time mode reads Kafka topics, and this is {source.kind}",
                key="sources",
                hint="leave it to another router, or set trigger to a duration",
            )
    if len({source.query for source in plan.sources}) > 1:
        names = ", ".join(source.endpoint for source in plan.sources)
        raise ConfigError(
            f"sources {names}: real-time mode reads one Kafka cluster, with one login and without lanes",
            key="sources",
            hint="give each cluster a router of its own, and leave out lanes",
        )
    if plan.sources and not settled_types(plan):
        raise ConfigError(
            "no definition can be settled without the matcher, so that nothing would be quicker in real-time mode",
            key="trigger",
            hint="see the operations notes on real-time mode for what definitions it takes, or set a duration",
        )


def require_rest_topic(settings: Settings, state: StateFolder) -> None:
    """Make sure that the rest topic is there, and that none is left whose records would never be read.

    Raises:
        ConfigError: it does not exist; or the settings have none, or another, and one was read before.
        BrokerUnreachable: its brokers do not answer.
    """
    checkpoint = state.checkpoints / REST
    if settings.realtime is None:
        if checkpoint.exists():
            raise ConfigError(
                f"a rest topic was read before, as {checkpoint} says, and may hold records that are not routed",
                key="realtime.rest",
                hint=f"keep realtime.rest; once `xrouter_rest_records` is 0, remove that folder and {REST!r} from "
                f'"generations" in {state.inventory.path}',
            )
        return
    try:
        known = KafkaEnds(rest_client(settings)).partitions([settings.realtime.rest])
    except KafkaUnreachable as error:
        raise BrokerUnreachable(
            f"rest topic: {error}", hint="start the broker, or correct bootstrap_servers"
        ) from error
    if settings.realtime.rest not in known:
        raise ConfigError(
            f"the rest topic {settings.realtime.rest} does not exist",
            key="realtime.rest",
            hint="create it, with a retention that fits; each of its partitions takes a core",
        )


def require_cores(spark: SparkSession, plan: Plan, topics: Sequence[str]) -> None:
    """Make sure that each partition of the sources has a core for itself, and each of the rest topic another.

    A real-time query keeps its cores, and waits silently for one that it lacks.

    Raises:
        ConfigError: Spark has fewer; names both numbers.
        BrokerUnreachable: the brokers do not say how many partitions there are.
    """
    assert plan.settings.realtime is not None
    try:
        read = KafkaEnds(source_client(plan.sources[0])).partitions(topics)
        rest = KafkaEnds(rest_client(plan.settings)).partitions([plan.settings.realtime.rest])
    except KafkaUnreachable as error:
        raise BrokerUnreachable(str(error)) from error
    sources, others, there = sum(map(len, read.values())), sum(map(len, rest.values())), cores_of(spark)
    needed = sources + others
    if there < needed:
        raise ConfigError(
            f"real-time mode needs {needed} cores, one for each partition: of sources {sources}, of the rest topic "
            f"{others}; spark.master has {there}",
            key="spark.master",
            hint=f"set spark.master: local[{needed}], which may be more than the machine has; or add executors",
        )


def cores_of(spark: SparkSession) -> int:
    """Return how many tasks run at the same time."""
    context = spark.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
