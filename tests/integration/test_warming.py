"""A router that says it is ready has done what the first batch of a session else pays for, and has written nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from catalog.load import load as load_catalog
from router.batches.plans import PlanCache
from router.evaluation.evaluator import Kind
from router.evaluation.plan import Plan
from router.running.queries import make_sample_row
from router.settings import settings_from_dict
from router.watching.metrics import Metrics
from tests.conftest import Kafka, TopicFactory
from tests.support import load, plain
from tests.support.kafka import produce, written
from tests.support.ports import free_ports
from tests.support.processes import below, command_of
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.broker
LIMIT: Final = 240.0
WORKER: Final = "pyspark.worker"


def catalog_with_http(folder: Path, topic: str) -> Path:
    """Write the load's catalog, with an HTTP endpoint of the same groups."""
    document = load.catalog(10, topic=topic)
    document["endpoints"]["web"] = plain.endpoint("HTTP", {"path": "/in"}, *document["messagegroups"])
    return plain.write(folder, document)


def settings(kafka: Kafka, catalog: Path, sinks: dict[str, Any]) -> dict[str, Any]:
    told = load.settings(kafka.bootstrap, catalog, sinks)
    told["sources"].append({"endpoint": "/endpoints/web"})
    return told


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["kafka", "inbox"])
@pytest.mark.parametrize("way", ["one write", "staged", "each sink"])
def test_nothing_is_written_and_nothing_is_counted(
    kafka: Kafka, topic_factory: TopicFactory, spark: SparkSession, tmp_path: Path, way: str, kind: Kind
) -> None:
    source, out = topic_factory("in"), topic_factory("out")
    topics, tables = plain.topics(kafka.bootstrap, bus=out, dead=out), plain.tables(tmp_path / "tables", "lake", "dead")
    sinks: dict[str, dict[str, Any]] = {
        "one write": topics,
        "staged": tables,
        "each sink": {"bus": {**topics["bus"], "mode": "structured"}, **tables},
    }
    told = settings(kafka, catalog_with_http(tmp_path, source), sinks[way])
    plan = Plan(load_catalog([told["catalog"]["source"]]), settings_from_dict(told, {}, tmp_path))
    metrics = Metrics(plan.settings.sinks)
    loaded = PlanCache(spark, None, plan, metrics).current()
    assert loaded.one_pass is (way == "one write")
    place = next(each for each in plan.sources if each.pushed is (kind == "inbox"))
    kept = set(spark.sparkContext._jsc.getPersistentRDDs())
    jobs = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup(f"warming {way} {kind}", "of a test")
    loaded.warm(make_sample_row(spark, kind, place), kind)
    assert len(jobs.getJobIdsForGroup(f"warming {way} {kind}")) >= 1
    writes = metrics.registry.get_sample_value("xrouter_sink_writes_total", {"sink": "dead", "result": "ok"})
    assert not writes and not loaded.tallies and not loaded.once
    assert not (tmp_path / "tables").exists()
    assert written(kafka.bootstrap, out) == 0
    assert set(spark.sparkContext._jsc.getPersistentRDDs()) <= kept


@pytest.mark.full
def test_a_ready_router_has_its_workers_and_no_record(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, tmp_path: Path
) -> None:
    source, (port,) = topic_factory("in"), free_ports(1)
    told = settings(kafka, catalog_with_http(tmp_path, source), plain.tables(tmp_path / "tables", "lake", "dead"))
    router.configure({**told, "http": {"port": port}, "log": {"level": "debug"}})
    router.start()
    assert "the first batch is warmed" in router.log, router.log[-3000:]
    assert any(WORKER in command_of(pid) for pid in below(router.pid))
    assert not (tmp_path / "tables").exists()
    assert router.total("xrouter_records_total") == 0 and router.total("xrouter_sink_writes_total") == 0
    plain.post(port, "/in", {}, **plain.http_headers("plant.event0", source="/plant/p/lines/l"))
    produce(kafka.bootstrap, source, load.records(5, 10, bad=0))
    wait_until(lambda: router.total("xrouter_records_total", outcome="routed") == 6, LIMIT, lambda: router.log[-3000:])
    assert router.stop() == 0, router.log[-3000:]
    # One that is stopped before that ends as quietly.
    router.launch()
    wait_until(lambda: router.log.count("[router.running.service] metrics=") == 2, LIMIT, lambda: router.log[-3000:])
    assert router.stop() == 0, router.log[-3000:]
    # Spark's own Python of the source, which the end of the JVM ends, says so at length: no more than a debugging line.
    said = [line for line in router.log.split("\n") if "[debug" not in line]
    assert not [line for line in said if "Traceback" in line or "[error" in line], router.log[-5000:]
