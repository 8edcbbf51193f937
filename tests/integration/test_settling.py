"""What expressions settle leaves as the matcher's outcome does, to the byte; the rest comes back as it was."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from catalog.load import load as load_catalog
from router.evaluation.plan import Plan
from router.realtime import find_fast_types, restore_origin, to_sent_records
from router.settings import settings_from_dict
from router.settings.values import LineageForm
from tests.integration.test_match_equals_run import HEADERS
from tests.integration.test_one_pass import FAILED, ONE
from tests.support import load, plain
from tests.support.evaluating import KAFKA_SCHEMA, single_write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
DEFINITIONS = 60
RECORDS = 2_000
REST = "rest"
TIMES = {"type": {"value": "timed"}, "time": {"required": True}, "n": {"type": "integer"}, "source": {"value": "{s}"}}
"""A definition whose values are looked at by their types."""
VALUES = (
    *(b"", b"\xff", b"/plant/a//b", b"/plant/p%2F1/lines/l2", b"/plant/p/lines/l/x", b'/plant/p"q/lines/l\n'),
    *(b"/plant//lines/l", "/plant/\u00e4\U0001f600/lines/\u2028".encode(), b"plant.event3", b"1.0", b"timed"),
    *(b"2026-01-02T03:04:05Z", b"2026-02-30T03:04:05Z", b"7", b"07", b"99999999999", b"\x7f/\\"),
    *("\x85".encode(), "/plant/p/lines/\uffff".encode(), "\U0001fffe".encode(), b"a\tb"),
)
OWN = ("xrouter-rest-topic", "xrouter-rest-partition", "xrouter-rest-offset", "xrouter-rest-timestamp")
"""Names that only the rest topic should have."""


def plan_for(folder: Path, lineage: LineageForm) -> Plan:
    document = load.catalog(DEFINITIONS, topic="in")
    group = next(iter(document["messagegroups"].values()))
    group["messages"]["timed"] = {"envelope": "CloudEvents/1.0", "envelopemetadata": TIMES}
    options = document["endpoints"]["plant"]["protocoloptions"]
    options["endpoints"] = [{"uri": "kafka://broker:9092"}]
    path = plain.write(folder, document, "c.json")
    sinks = {**ONE["sinks"], "bus": {**ONE["sinks"]["bus"], "lineage": lineage}}
    told = {**ONE, "sinks": sinks, "sources": [{"endpoint": "/endpoints/plant"}]}
    return Plan(load_catalog([path]), settings_from_dict(told, {}, folder))


def odd_records(chance: Random, count: int = RECORDS) -> Iterator[tuple[Any, ...]]:
    """Records of the load, many with headers that no sane client sends."""
    for number, (key, value, headers) in enumerate(load.records(count, DEFINITIONS)):
        mangled: list[tuple[str, bytes | None]] = list(headers)
        if number % 7 == 0:
            mangled = [("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_type", b"timed"), ("ce_source", b"/s")]
            mangled += [("ce_time", chance.choice(VALUES)), ("ce_n", chance.choice(VALUES))]
        for _ in range(chance.choice((0, 0, 1, 2))):
            _mangle(mangled, chance)
        yield key, value, "in", number % 3, number, 1_700_000_000_000 + number, mangled or None


def _mangle(headers: list[tuple[str, bytes | None]], chance: Random) -> None:
    fate = chance.random()
    place = chance.randrange(len(headers)) if headers else 0
    if fate < 0.3:
        odd = chance.choice(HEADERS)
        text = odd.get("value")
        value = base64.b64decode(odd["value_base64"]) if "value_base64" in odd else text and text.encode()
        headers.insert(place, (odd["name"], value if text != "" else b""))
    elif fate < 0.6 and headers:
        headers[place] = (headers[place][0], chance.choice(VALUES))
    elif fate < 0.7 and headers:
        headers.pop(place)
    elif fate < 0.8:
        headers.append((chance.choice(OWN), b"in"))
    elif fate < 0.9:
        headers.append(("x-trace", chance.choice([None, b"\xff", b"1"])))
    else:
        headers.append((chance.choice(("ce_extra", "ce_partitionkey", "ce_data")), chance.choice(VALUES)))


def position_of(headers: list[dict[str, Any]]) -> str:
    values = {each["key"]: each["value"] for each in headers}
    if "xrouter-position" in values:
        return str(values["xrouter-position"].decode())
    return str(json.loads(values["xrouter-lineage"])["position"])


@pytest.mark.parametrize(
    ("seed", "lineage"), [(1, True), pytest.param(2, "separate", marks=pytest.mark.full)], ids=["one", "separate"]
)
def test_what_is_settled_leaves_as_the_matcher_sends_it(
    spark: SparkSession, tmp_path: Path, seed: int, lineage: LineageForm
) -> None:
    from pyspark.sql import functions as F

    plan = plan_for(tmp_path, lineage)
    frame = spark.createDataFrame(list(odd_records(Random(seed))), KAFKA_SCHEMA)
    matched = single_write(frame, "kafka", plan).to_records(frame, FAILED).toArrow().to_pylist()
    whole = {position_of(each["headers"]): each for each in matched}
    rows = frame.withColumn("timestamp", F.timestamp_millis("timestamp"))
    types = find_fast_types(plan)
    assert len(types) == DEFINITIONS * 7 // 10 + 1
    sent = to_sent_records(rows, plan, types, REST).toArrow().to_pylist()
    settled = [each for each in sent if each["topic"] != REST]
    assert len(sent) == RECORDS and RECORDS / 5 < len(settled) < RECORDS
    for each in settled:
        assert each == whole[position_of(each["headers"])]
    assert {json.loads(each["value"])["want"] for each in settled} > {"plant.event0"}
    assert any(b"timed" in (header["value"] or b"") for each in settled for header in each["headers"])


def test_what_is_not_settled_comes_back_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    plan = plan_for(tmp_path, lineage=False)
    frame = spark.createDataFrame(list(odd_records(Random(3))), KAFKA_SCHEMA)
    sent = to_sent_records(frame.withColumn("timestamp", F.timestamp_millis("timestamp")), plan, [], REST)
    places = [F.lit(REST).alias("topic"), F.lit(0).alias("partition"), F.lit(5).cast("bigint").alias("offset")]
    at_rest = sent.select("key", "value", "headers", *places, F.timestamp_millis(F.lit(1)).alias("timestamp"))
    back = restore_origin(at_rest).select(*frame.columns)
    assert back.schema == frame.schema or back.dtypes == frame.dtypes
    assert sorted(map(repr, back.collect())) == sorted(map(repr, frame.collect()))


def test_what_somebody_else_wrote_there_stays_of_the_rest_topic(spark: SparkSession) -> None:
    ours: list[tuple[str, bytes | None]] = [
        (name, text) for name, text in zip(OWN, (b"in", b"0", b"7", b"1700000000000"), strict=True)
    ]
    forged: tuple[list[tuple[str, bytes | None]] | None, ...] = (
        None,
        [],
        ours[:3],
        [*ours, ("x", None)],
        [*reversed(ours)],
        [*ours[:2], (OWN[2], b"seven"), ours[3]],
        [*ours[:2], (OWN[2], None), ours[3]],
        [(OWN[0], b"\xff"), *ours[1:]],
    )
    rows = [(b"k", b"v", REST, 0, number, 5, headers) for number, headers in enumerate(forged)]
    frame = spark.createDataFrame(rows, KAFKA_SCHEMA)
    assert sorted(map(repr, restore_origin(frame).select(*frame.columns).collect())) == sorted(
        map(repr, frame.collect())
    )
