"""One real-time query: it sends records on one by one, and notes how far it is when a batch of its time ends.

Spark writes the offsets of such a batch at its end. A query that is stopped inside one sends the records of it again,
so the router asks for the end of the batch at hand, and stops the query right after it; a crash repeats what came since
the last note. Nothing is pinned: whatever plan takes a record, it is sent to where that says, or to the rest topic.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from bindings.private import private_folder
from router.judging.plan import Plan
from router.logs import get_logger
from router.reading.generations import Generation
from router.realtime.records import sent_records, tally_of
from router.settling.types import settled_types
from router.sources.clusters import rest_client
from router.state.accounts import Accounts
from router.state.state import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from router.errors import RouterError
    from router.reading.planned import Spans
    from router.watching.metrics import Metrics
    from router.watching.status import Status

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
        self, name: str, generation: Generation, plan: Plan, metrics: Metrics, status: Status, accounts: Accounts
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

    def start(self, rows: DataFrame, state: State) -> StreamingQuery:
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
