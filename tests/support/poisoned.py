"""One query of a router without its stream, and records that no plan can judge: the size of a body says how it fails.

The faults happen where they would: in Python workers of Spark, which import this module as they import ours.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bindings.inbox.source import SPARK_SCHEMA
from catalog.load import load
from router.batches.pipeline import Pipeline
from router.batches.plans import PlanHolder
from router.evaluation.plan import Plan
from router.reading.generations import Generation
from router.settings import settings_from_dict
from router.sources import INBOX
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.support import shop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RAISES: Final = 666
DIES: Final = 667
HANGS: Final = 668
CROWDS: Final = 50
"""More rows than this in one Arrow batch are too many for a worker, when a test says so."""


@dataclass
class Explosive:
    """Stands before what builds the outcomes, and fails at bodies of certain sizes; at crowds too, if told."""

    outputs: Any
    crowds: bool = False

    @property
    def type(self) -> Any:
        """The type of outcomes."""
        return self.outputs.type

    @property
    def attributes(self) -> Any:
        """The attributes that outcomes need."""
        return self.outputs.attributes

    def needs_bodies(self, channel: int) -> bool:
        """Ask the real one."""
        return bool(self.outputs.needs_bodies(channel))

    def lists(self, decided: Any) -> Any:
        """Ask the real one."""
        return self.outputs.lists(decided)

    def decide(self, outcomes: Any, arrivals: Any, sizes: Any) -> Any:
        """Fail, or ask the real one."""
        if np.any(sizes == RAISES):
            raise ValueError(f"cannot judge body {int(np.flatnonzero(sizes == RAISES)[0])} of 'this batch'")
        if np.any(sizes == DIES):
            os.kill(os.getpid(), signal.SIGSEGV)
        if np.any(sizes == HANGS):
            time.sleep(3600)
        if self.crowds and len(sizes) > CROWDS:
            raise MemoryError
        return self.outputs.decide(outcomes, arrivals, sizes)


def poisoned(plan: Plan, *, crowds: bool = False) -> Plan:
    """Return the plan, made to fail."""
    outputs: Any = Explosive(plan.judge.outputs, crowds)
    plan.__dict__["judge"] = replace(plan.judge, outputs=outputs)
    return plan


class Line:
    """One query of a router over the inbox, without its stream: batches are handed in."""

    def __init__(self, spark: SparkSession, state: StateFolder, plan: Plan, generation: Generation) -> None:
        self.metrics = Metrics(plan.settings.sinks, [])
        self.status = RouterStatus()
        plans = PlanHolder(spark, state, plan, self.metrics)
        plans.activate(plan)
        self.pipeline = Pipeline(INBOX, "inbox", generation, state, plans, self.metrics, self.status, lambda _: plan)

    def counted(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of a metric with these labels."""
        found = (sample for metric in self.metrics.registry.collect() for sample in metric.samples)
        return sum(s.value for s in found if s.name == name and labels.items() <= s.labels.items())


def plan_of(folder: Path, hook: str) -> Plan:
    """Return a plan that sends every event to two tables, a folder and a webhook, and writes letters to a table."""
    shop.write_catalog(folder, mended=False)
    told = shop.settings(folder, hook, state=str(folder / "state"))
    told["sinks"] |= {
        "lake": {"type": "table", "path": str(folder / "lake")},
        "kinds": {"type": "table", "layout": "definition", "path": str(folder / "kinds")},
        "lines": {"type": "jsonl", "path": str(folder / "lines")},
    }
    told["routes"] = [{"to": ["lake", "kinds", "lines", "hook"]}]
    return Plan(load([str(folder / "catalog.json")]), settings_from_dict(told, {}, folder))


def rows_of(spark: SparkSession, count: int, sizes: dict[int, int], reasons: dict[int, str] | None = None) -> DataFrame:
    """Return inbox rows: good events but for those of a size that fails or with a reason of their own, by number."""
    rows: list[tuple[Any, ...]] = []
    for n in range(count):
        (row,) = shop.records((reasons or {}).get(n, "good"), [n])
        body = b"x" * sizes[n] if n in sizes else row.body
        moment = 1_767_323_045 + n
        rows.append((row.endpoint, "HTTP", moment, [tuple(part) for part in row.properties], body, f"u-{n % 2}-1-{n}"))
    from pyspark.sql import functions as F
    from pyspark.sql.types import LongType, StructField, StructType

    fields = [StructField("received", LongType()) if f.name == "received" else f for f in SPARK_SCHEMA.fields]
    made = spark.createDataFrame(rows, StructType(fields)).coalesce(1)
    return made.withColumn("received", F.timestamp_seconds("received")).select(*SPARK_SCHEMA.names)
