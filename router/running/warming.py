"""What the first batch would else pay for is done before the router says that it is ready.

In a new session the first batch takes seconds more than the second: the JVM loads classes and compiles, Python workers
start, load the plan and meet each function once. So one row of each kind of source is judged beside the start, in a
thread of its own, by the way that batches take (:meth:`router.batches.plans.LoadedPlan.warm`). The row is of no source:
nothing is read, written or counted. If a batch comes first, as at a start with records that wait, it is not kept back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Self

from bindings.inbox.source import SPARK_SCHEMA
from router.batches.plans import LoadedPlan
from router.judging.judging import Kind
from router.logs import get_logger
from router.sources import Source
from router.spark.jvm import jvm_alive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from router.watching.status import RouterStatus

MOST_SECONDS: Final = 60.0
"""A start waits no longer, whatever keeps the row: batches say by themselves what is in their way."""
_GROUP: Final = "warming"
_END_SECONDS: Final = 10.0
_KAFKA: Final[Mapping[str, str]] = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""The columns of Spark's Kafka source."""
_log = get_logger()


class Warming:
    """Judges rows of each kind of source that a plan reads. A context: nothing of it outlives its end."""

    def __init__(self, spark: SparkSession, loaded: LoadedPlan, status: RouterStatus) -> None:
        self._spark = spark
        self._loaded = loaded
        self._status = status
        self._ending = False
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=_GROUP, daemon=True)

    def __enter__(self) -> Self:
        self._status.warming(True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.warming(False)
        self._ending = True
        if not jvm_alive():
            return
        # Spark logs a task that is ended at length, as an error. It is over in moments, or on a machine with no time.
        self._thread.join(_END_SECONDS)
        if self._thread.is_alive():
            self._spark.sparkContext.setLogLevel("OFF")
            self._spark.sparkContext.cancelJobGroup(_GROUP)
            self._thread.join(_END_SECONDS)

    def check(self) -> None:
        """Let the router be ready, once nothing is to be waited for any more."""
        if not self._thread.is_alive() or time.monotonic() - self._began > MOST_SECONDS:
            self._status.warming(False)

    def _run(self) -> None:
        plan = self._loaded.plan
        try:
            self._spark.sparkContext.setJobGroup(_GROUP, "the first batch is made quick", interruptOnCancel=False)
            kinds: dict[Kind, Source] = {}
            for source in plan.sources:
                kinds.setdefault("inbox" if source.pushed else "kafka", source)
            for kind, source in kinds.items():
                if self._ending:
                    return
                self._loaded.warm(rows_like(self._spark, kind, source), kind)
            _log.debug("the first batch is warmed", seconds=round(time.monotonic() - self._began, 2))
        except Exception as error:  # It only saves time. The batch that meets the same says what is wrong.
            _log.debug("the first batch is not warmed", problem=str(error)[:500])


def rows_like(spark: SparkSession, kind: Kind, source: Source) -> DataFrame:
    """Return one row as those of a source, for one task: other workers are forked when more records come at a time."""
    from pyspark.sql import functions as F

    columns = _KAFKA if kind == "kafka" else {field.name: field.dataType.simpleString() for field in SPARK_SCHEMA}
    values = {
        **dict.fromkeys(("partition", "offset", "timestamp", "timestampType", "received"), F.lit(0)),
        "topic": F.lit(source.topic),
        "endpoint": F.lit(source.endpoint),
        "protocol": F.lit(source.protocol),
        "position": F.lit("0"),
        "properties": F.array(),
    }
    return spark.range(0, 1, 1, 1).select(
        *(values.get(name, F.lit(None)).cast(type_).alias(name) for name, type_ in columns.items())
    )
