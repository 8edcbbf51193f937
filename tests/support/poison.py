"""The records of ``tests/cases/poison``: each is a list of parts and a body, as an inbox row."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import yaml

from bindings.inbox.source import SPARK_SCHEMA
from bindings.parts import InboxRow, Part
from catalog.load import load
from router.batches.pipeline import Pipeline
from router.batches.plans import PlanCache, SharedParts
from router.evaluation.plan import Plan
from router.reading.generations import Generation
from router.settings import settings_from_dict
from router.sources import INBOX
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.support import shop
from tests.support.cases import bytes_of, read_cases
from tests.support.readme import ROOT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CASES: Final = ROOT / "tests" / "cases" / "poison"
SENT: Final = 1_767_323_045_000_000
CAPTURES: Final = 200
STRUCTURED: Final = "application/cloudevents+json"


@dataclass(frozen=True, slots=True)
class Case:
    """One record, and how many outcomes it has."""

    name: str
    row: InboxRow
    outcomes: int
    small: bool


def catalog() -> dict[str, Any]:
    """Return the catalog, with a template of many placeholders where its file asks for one."""
    captures = "-".join(f"{{c{n}}}" for n in range(CAPTURES))
    text = (CASES / "catalog.yaml").read_text(encoding="utf-8").replace("{CAPTURES}", captures)
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def cases() -> list[Case]:
    """Return all records."""
    told = read_cases(CASES / "records.yaml")
    return [
        Case(each["name"], _row(n, each), int(each.get("outcomes", 1)), bool(each.get("small")))
        for n, each in enumerate(told)
    ]


def _row(number: int, told: dict[str, Any]) -> InboxRow:
    if "mqtt" in told:
        parts = [Part("topic_name", bytes_of(told["mqtt"]))]
        parts += [Part(name, value.encode()) for name, value in told.get("properties", {}).items()]
        return InboxRow("/endpoints/mqtt", "MQTT/5.0", SENT + number, parts, b"{}")
    path = told.get("native", "/web")
    parts = [Part("method", b"POST"), Part("path", bytes_of(path))]
    headers = _headers(number, told)
    parts += [Part(f"headers.{name}", value) for name, value in headers]
    return InboxRow("/endpoints/web", "HTTP", SENT + number, parts, _body(told))


def _headers(number: int, told: dict[str, Any]) -> list[tuple[str, bytes]]:
    if "batch" in told:
        return [("content-type", b"application/cloudevents-batch+json")]
    if "structured" in told:
        return [("content-type", STRUCTURED.encode())]
    content = told.get("content", "application/json").encode()
    if "native" in told:
        return [("content-type", content)]
    attributes = {"specversion": "1.0", "id": f"id-{number}", "source": "/s", "type": told.get("type", "plain")}
    attributes |= told.get("set", {})
    attributes |= {f"ext{n}": "x" for n in range(told.get("set_many", 0))}
    headers = [(f"ce-{name}", _percent(bytes_of(value))) for name, value in attributes.items()]
    headers += [("content-type", content)]
    headers += [(name, value.encode()) for name, value in told.get("headers", {}).items()]
    headers += [(name, base64.b64decode(value)) for name, value in told.get("headers_base64", {}).items()]
    return headers + [(f"x-{n}", b"v") for n in range(told.get("headers_many", 0))]


def _body(told: dict[str, Any]) -> bytes | None:
    if "batch" in told:
        return _thousand() if told["batch"] == "thousand" else bytes_of(told["batch"])
    if "structured" in told:
        return bytes_of(told["structured"])
    if "body_base64" in told:
        return base64.b64decode(told["body_base64"])
    body = told.get("body", "{}")
    return None if body is None else bytes_of(body)


def _percent(value: bytes) -> bytes:
    """Write a value as the HTTP binding asks for it."""
    return b"".join(bytes((c,)) if 0x21 <= c <= 0x7E and c not in b'"%' else b"%%%02X" % c for c in value)


def _thousand() -> bytes:
    return json.dumps(
        [{"specversion": "1.0", "id": f"b{n}", "source": "/s", "type": "plain", "data": n} for n in range(1_000)]
    ).encode()


# One query of a router without its stream, and records that no plan can judge: the size of a body says how it fails.
#
# The faults happen where they would: in Python workers of Spark, which import this module as they import ours.

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
    def outcome_type(self) -> Any:
        """The type of outcomes."""
        return self.outputs.outcome_type

    @property
    def used_attributes(self) -> Any:
        """The attributes that outcomes need."""
        return self.outputs.used_attributes

    def route_outcomes(self, outcomes: Any, arrivals: Any, sizes: Any) -> Any:
        """Fail, or ask the real one."""
        if np.any(sizes == RAISES):
            raise ValueError(f"cannot judge body {int(np.flatnonzero(sizes == RAISES)[0])} of 'this batch'")
        if np.any(sizes == DIES):
            os.kill(os.getpid(), signal.SIGSEGV)
        if np.any(sizes == HANGS):
            time.sleep(3600)
        if self.crowds and len(sizes) > CROWDS:
            raise MemoryError
        return self.outputs.route_outcomes(outcomes, arrivals, sizes)


def poisoned(plan: Plan, *, crowds: bool = False) -> Plan:
    """Return the plan, made to fail."""
    outputs: Any = Explosive(plan.evaluator.outputs, crowds)
    plan.__dict__["evaluator"] = replace(plan.evaluator, outputs=outputs)
    return plan


class Line:
    """One query of a router over the inbox, without its stream: batches are handed in."""

    def __init__(self, spark: SparkSession, state: StateFolder, plan: Plan, generation: Generation) -> None:
        self.metrics = Metrics(plan.settings.sinks)
        self.status = RouterStatus()
        plans = PlanCache(spark, state.batches, plan, self.metrics, lambda _: plan)
        plans.activate(plan)
        self.pipeline = Pipeline(INBOX, "inbox", generation, SharedParts(state, plans, self.metrics, self.status))

    def counted(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of a metric with these labels."""
        found = (sample for metric in self.metrics.registry.collect() for sample in metric.samples)
        return sum(s.value for s in found if s.name == name and labels.items() <= s.labels.items())


def plan_of(folder: Path, hook: str) -> Plan:
    """Return a plan that sends every event to two tables, a folder and a webhook, and writes letters to a table."""
    shop.write_catalog(folder, fixed=False)
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
