"""A plan asked about Kafka records without Spark: the very functions of the match UDF, on Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from bindings.kafka.record_columns import SOURCE_SCHEMA
from bindings.protocols import BINDINGS
from catalog.model import Catalog
from catalog.record import parse_record
from router.evaluation.evaluator import outcome_lists, source_row
from router.evaluation.plan import Evaluator, Plan
from router.evaluation.stages import with_sizes
from router.settings import settings_from_dict

BROKER = "broker:9092"


def plan_of(catalog: Catalog, settings: Mapping[str, Any], folder: Path) -> Plan:
    """Return a plan; sinks without a type are Kafka topics of one broker."""
    sinks = {
        name: {"type": "kafka", "bootstrap_servers": BROKER, **sink} if "type" not in sink else sink
        for name, sink in settings["sinks"].items()
    }
    return Plan(
        catalog, settings_from_dict({"dead_letters": {"sinks": ["dead"]}, **settings, "sinks": sinks}, {}, folder)
    )


def kafka_rows(lines: Sequence[str]) -> pa.RecordBatch:
    """Return records of Kafka, one in each line, as rows of its source."""
    records = [parse_record(line) for line in lines]
    rows = [{**source_row(BINDINGS["KAFKA"].parts(each.native)), "value": each.body} for each in records]
    return pa.RecordBatch.from_pylist(rows, SOURCE_SCHEMA)


def judged(judge: Evaluator, rows: pa.RecordBatch) -> list[list[dict[str, Any]]]:
    """Return the outcomes of each row, as the match UDF gives them."""
    lists, _ = outcome_lists("kafka", judge, with_sizes("kafka", rows))
    outcomes: list[list[dict[str, Any]]] = lists.to_pylist()
    return outcomes
