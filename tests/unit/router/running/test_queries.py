"""Queries that end and are started again."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bindings.kafka.client import KafkaUnreachable
from router.errors import BrokerUnreachable
from router.logs import configure_logs
from router.running.queries import FIRST_PAUSE, Queries, QueryRun
from router.settings.model import LogSettings
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus


@pytest.mark.parametrize(("last", "pause"), [(None, 8 * FIRST_PAUSE), (17, FIRST_PAUSE)])
def test_pauses_begin_anew_after_a_query_that_wrote_a_batch(last: int | None, pause: float, tmp_path: Path) -> None:
    nothing: Any = None
    queries = Queries(nothing, StateFolder(tmp_path), nothing, Metrics(), RouterStatus(), once=False)
    ended: Any = SimpleNamespace(exception=lambda: OSError("gone"), isActive=False)
    pipeline: Any = SimpleNamespace(failure=None, last=last, renewed={})
    running = QueryRun("inbox", (), nothing, pipeline, ended, pause=8 * FIRST_PAUSE)
    queries._running["inbox"] = running
    queries.supervise()
    assert running.query is None
    assert running.pause == 2 * pause


def test_a_query_waits_for_brokers_that_are_away_and_nobody_waits_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_logs(LogSettings())
    status, nothing = RouterStatus(), cast(Any, None)
    queries = Queries(nothing, StateFolder(tmp_path), nothing, Metrics(), status, once=False)
    running = queries._running["kafka-1"] = QueryRun("kafka-1", (), nothing)
    answers: list[Future[None]] = []
    tries: list[str] = []

    def start(one: QueryRun) -> None:
        tries.append(one.name)
        if len(tries) == 1:
            raise BrokerUnreachable("Kafka at k:9092 does not answer")
        one.query = cast(Any, SimpleNamespace(isActive=True))

    def ask(_: QueryRun) -> Future[None]:
        answers.append(Future())
        return answers[-1]

    monkeypatch.setattr(queries, "_launch", start)
    monkeypatch.setattr(queries, "_ask_brokers", ask)

    def check() -> None:
        running.restart_at = 0.0
        queries.supervise()

    check()
    state = status.check_readiness()[1]["queries"]["kafka-1"]
    assert (state["state"], state["reason"]) == ("starting", "Kafka at k:9092 does not answer")
    check()  # asks
    check()  # has no answer yet
    assert (len(tries), len(answers)) == (1, 1)
    answers[0].set_exception(KafkaUnreachable("Kafka at k:9092 does not answer: no such host"))
    check()
    assert (len(tries), status.check_readiness()[1]["queries"]["kafka-1"]["reason"][-12:]) == (1, "no such host")
    check()
    answers[1].set_result(None)
    check()
    assert (len(tries), running.away_since) == (2, None)
    log = capsys.readouterr().err
    assert log.count("brokers unreachable; query waits") == log.count("brokers reachable again; starting query") == 1
    assert "error" not in log


def test_a_query_that_has_ended_is_not_at_work(tmp_path: Path) -> None:
    nothing: Any = None
    queries = Queries(nothing, StateFolder(tmp_path), nothing, Metrics(), RouterStatus(), once=False)
    for name, ended in (("inbox", False), ("kafka-1", True)):
        queries._running[name] = QueryRun(name, (), nothing, ended=ended)
    assert queries.active_names == {"inbox"}


def test_the_time_to_find_a_batch_is_that_of_the_last_batch_though_spark_looks_on(tmp_path: Path) -> None:
    nothing: Any = None
    status = RouterStatus()
    queries = Queries(nothing, StateFolder(tmp_path), nothing, Metrics(), status, once=False)
    spark: Any = SimpleNamespace(lastProgress={"durationMs": {"triggerExecution": 700, "addBatch": 400}})
    queries._running["inbox"] = QueryRun("inbox", (), nothing, nothing, spark)
    queries.collect_progress()
    spark.lastProgress = {"durationMs": {"triggerExecution": 9, "latestOffset": 8}}  # It found nothing.
    queries.collect_progress()
    assert status.steps.to_json()["inbox"]["source_seconds"] == 0.3
