"""What waits and what takes too long: told while it lasts, counted, and ended where it can be."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka.admin import AdminClient

from catalog.load import load
from router.batches.splitting import SAME_FAILURES
from router.evaluation.plan import Plan
from router.reading import generations
from router.settings import settings_from_dict
from router.sources import INBOX
from router.state.state import StateFolder
from router.watching import batches
from tests.conftest import Kafka, TopicFactory
from tests.support import shop
from tests.support.kafka import create_topics, read_all
from tests.support.poison import HANGS, Line, plan_of, poisoned, rows_of
from tests.support.waiting import wait_until
from tests.support.web import Answer, Webhook

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
LIMIT: Final = 240.0


def begun(line: Line, rows: DataFrame) -> threading.Thread:
    thread = threading.Thread(target=line.pipeline.batch, args=(rows, 0), daemon=True)
    thread.start()
    return thread


def query_of(line: Line) -> dict[str, Any]:
    found: dict[str, Any] = line.status.check_readiness()[1]["queries"][INBOX]
    return found


def test_a_target_that_does_not_answer_is_told_and_forgotten(
    spark: SparkSession, state: StateFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "WAITS_SECONDS", 4.0)
    answered = threading.Event()

    def answer(_: Any) -> Answer:
        answered.wait(LIMIT)
        return Answer()

    with Webhook(answer) as hook:
        line = Line(spark, state, plan_of(tmp_path, hook.url), generations.begin(state, INBOX, ()))
        thread = begun(line, rows_of(spark, 2, {}))
        wait_until(lambda: line.counted("xrouter_query_held", sink="hook") == 1, LIMIT, "the wait to be told")
        assert query_of(line)["state"] == "held"
        assert "sink hook: write stalled" in query_of(line)["reason"]
        answered.set()
        thread.join(LIMIT)
    assert not thread.is_alive()
    assert line.status.check_readiness()[1]["queries"][INBOX]["state"] == "running"
    assert line.counted("xrouter_query_held") == 0
    assert line.counted("xrouter_records_total", outcome="routed") == 2


def test_a_topic_that_is_gone_is_told_while_the_write_waits(
    spark: SparkSession,
    state: StateFolder,
    tmp_path: Path,
    kafka: Kafka,
    topic_factory: TopicFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "WAITS_SECONDS", 4.0)
    topic = topic_factory("gone")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    shop.write_catalog(tmp_path, fixed=False)
    told = shop.settings(tmp_path, "http://127.0.0.1:9/", state=str(tmp_path / "state"))
    told["sinks"]["hook"] = {"type": "kafka", "bootstrap_servers": kafka.bootstrap, "topic": topic}
    told["routes"] = [{"to": ["hook"]}]
    plan = Plan(load([str(tmp_path / "catalog.json")]), settings_from_dict(told, {}, tmp_path))
    line = Line(spark, state, plan, generations.begin(state, INBOX, ()))
    spark.sparkContext.setJobGroup("a-query", "as a streaming query has one")
    thread = begun(line, rows_of(spark, 2, {}))
    wait_until(lambda: line.counted("xrouter_query_held", sink="hook") == 1, LIMIT, "the wait to be told")
    # Told by the watch, while the first write waits for the brokers to know the topic.
    assert "write stalled" in query_of(line)["reason"]
    create_topics(kafka.bootstrap, [topic])
    thread.join(LIMIT)
    assert query_of(line)["state"] == "running"
    assert {json.loads(message.value or b"")["n"] for message in read_all(kafka.bootstrap, topic)} == {0, 1}


@pytest.mark.parametrize("limit", ["worker_timeout", pytest.param("batch_limit", marks=pytest.mark.full)])
def test_a_record_on_which_a_worker_hangs_is_ended(
    spark: SparkSession, state: StateFolder, tmp_path: Path, limit: str
) -> None:
    timeout = "spark.sql.execution.pyspark.udf.idleTimeoutSeconds"
    spark.conf.set("spark.sql.execution.pyspark.udf.killOnIdleTimeout", "true")
    # Longer than a worker that writes the dead letter needs on a busy machine.
    spark.conf.set(timeout, "8" if limit == "worker_timeout" else "0")
    spark.sparkContext.setJobGroup("a-query", "as a streaming query has one")
    try:
        with Webhook() as hook:
            plan = plan_of(tmp_path, hook.url)
            if limit == "batch_limit":
                told = {**plan.settings.unresolved, "batch_limit": "15s"}
                plan = Plan(plan.catalog, settings_from_dict(told, {}, tmp_path))
            line = Line(spark, state, poisoned(plan), generations.begin(state, INBOX, ()))
            line.pipeline.batch(rows_of(spark, 1, {0: HANGS}), 0)
    finally:
        spark.conf.set(timeout, "0")
    (letter,) = shop.rows_of(tmp_path / "dead")
    assert letter["reason"] == "undecodable"
    # Spark ends a worker that hangs, and on a busy machine may find it dead before it knows why, each time.
    assert limit in letter["detail"] or "a Python worker died" in letter["detail"]
    faults = [line.counted("xrouter_batch_faults_total", fault=each) for each in ("time", "worker")]
    assert sum(faults) >= SAME_FAILURES
    assert (line.counted("xrouter_batch_faults_total", fault="overdue") >= SAME_FAILURES) == (limit == "batch_limit")
    assert line.counted("xrouter_records_total", outcome="dead-letter", reason="undecodable") == 1
