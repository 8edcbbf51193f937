"""Spark leaves no body in the JVM that judging would have to look at, for records that no sane client sends."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as bounds

from bindings.kafka.binding import parts_of_row
from bindings.kafka.record_columns import SMALL, KafkaReader, body_column
from bindings.protocols import BINDINGS
from catalog.load import load
from router.evaluation.comparing import Shadow
from router.evaluation.evaluator import TallyAccumulator
from router.evaluation.outputs import collect
from router.evaluation.plan import Plan
from router.evaluation.stages import HEADERS_TYPE, evaluated
from router.settings import settings_from_dict
from tests.support.kafka import batch_of, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
ROWS = 4_000
SCHEMA = f"key binary, value binary, topic string, partition int, offset long, timestamp long, headers {HEADERS_TYPE}"
KEYS = ("e.id", "e.type", "p.headers.a", "p.key", "p.topic", "d")
PADDING = b" " * SMALL


def drawn(count: int) -> list[tuple[Any, ...]]:
    """Rows that hypothesis makes, gathered so that one Spark job serves them all; the same in every run."""
    found: list[tuple[Any, ...]] = []

    @bounds(
        max_examples=count,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(rows())
    def gather(row: tuple[Any, ...]) -> None:
        found.append(row)

    gather()
    return found


def plenty(count: int) -> list[tuple[Any, ...]]:
    """The drawn rows and as many mixtures of their headers as make up the count."""
    base = drawn(500)
    rng = Random(7)
    entries = [header for row in base for header in row[-1] or ()]
    mixed = [
        (*rng.choice(base)[:-1], [rng.choice(entries) for _ in range(rng.randrange(7))])
        for _ in range(count - len(base))
    ]
    return base + mixed


@pytest.mark.parametrize("sniffs", [False, True])
def test_a_body_that_stays_in_the_jvm_tells_nothing(spark: SparkSession, sniffs: bool) -> None:
    made = [(key, value and value + PADDING, *rest) for key, value, *rest in plenty(ROWS)]
    batch = batch_of(made)
    column = body_column(["ä"], sniffs=sniffs).alias("value")
    given = spark.createDataFrame(made, SCHEMA).select(column).toArrow().column("value").combine_chunks()
    reader = KafkaReader(KEYS, sniffs=sniffs)
    left = batch.set_column(1, "value", given.cast(pa.binary()))
    assert reader.read(left).odd.tolist() == reader.read(batch).odd.tolist()
    out = 0
    for row, body in zip(batch.to_pylist(), given.to_pylist(), strict=True):
        if body is None and row["value"] is not None:
            out += 1
            assert row["topic"] != "ä"
            modes = (
                BINDINGS["KAFKA"].envelope(parts_of_row(row), each, lambda: sniffs) for each in (row["value"], None)
            )
            one, other = ((each.mode, each.attributes, each.faults) for each in modes)
            assert one == other and one[0] in ("native", "binary"), row
        else:
            assert body == row["value"]
    assert 0.1 < out / ROWS < 0.9, "some bodies should stay, and some not"


def test_small_bodies_come_along(spark: SparkSession) -> None:
    made = [(None, b"x" * size, "in", 0, 0, 0, None) for size in (0, 1, SMALL, SMALL + 1)]
    given = spark.createDataFrame(made, SCHEMA).select(body_column([], sniffs=True)).toArrow().column(0).to_pylist()
    assert [value is None for value in given] == [False, False, False, True]


def test_a_body_that_only_the_shadow_looks_at_comes_along(spark: SparkSession, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    message: dict[str, Any] = {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": "t"}}}
    strict = {**message, "dataschemaformat": "JsonSchema/draft-07", "dataschema": schema}
    settings = settings_from_dict(
        {
            "sinks": {"out": {"type": "jsonl", "path": "out"}},
            "routes": [{"to": ["out"]}],
            "dead_letters": {"sinks": ["out"]},
            "match": {"validate": "always"},
            "catalog": {"shadow_share": 10},
        },
        {},
        tmp_path,
    )
    plans: list[Plan] = []
    for name, told in (("old", message), ("new", strict)):
        endpoint = {
            "usage": ["consumer"],
            "protocol": "KAFKA",
            "protocoloptions": {"endpoints": [{"uri": "127.0.0.1:1"}], "options": {"topic": "in"}},
            "messages": {"m": told},
        }
        (tmp_path / f"{name}.json").write_text(json.dumps({"endpoints": {"e": endpoint}}))
        plans.append(Plan(load([tmp_path / f"{name}.json"]), settings))
    old, new = plans
    assert not old.judge.bodies and new.judge.bodies == {"in"}
    event = [("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_source", b"/s"), ("ce_type", b"t")]
    headers = [*event, ("content-type", b"application/json")]
    bodies = [b'{"n": %s}' % (b"1" if number % 3 else b'"x"') + PADDING for number in range(300)]
    made = [(None, body, "in", 0, number, 0, headers) for number, body in enumerate(bodies)]
    tallies = spark.sparkContext.accumulator({}, TallyAccumulator())
    workers = spark.sparkContext.broadcast(replace(old.judge, shadow=Shadow.of(old, new)))
    assert (
        evaluated(spark.createDataFrame(made, SCHEMA), "kafka", workers, tallies).where("m.route >= 0").count() == 300
    )
    counted = collect(tallies.value.values(), workers.value.matcher.targets)
    found: Counter[str] = Counter()
    for (*_, what, _, _), number in counted.shadow.items():
        found[what] += number
    assert found == {"unchanged": 200, "changed": 100, "dead-letter": 100}
