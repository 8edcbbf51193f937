"""All metrics that routers and registries have, as samples of them: for dashboards, rules and the reference."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import certifi
from prometheus_client.metrics_core import Metric

from bindings.certificates import CertificateCollector
from registry.backup import HistoryKeeper, HistoryLimits
from registry.core.ancestry import Linter
from registry.core.service import RegistryService
from registry.delivery.service import SubscriptionApi
from registry.delivery.subscriber_worker import Dispatch
from registry.delivery.subscriptions import DeliveryLimits, DeliverySettings, sources_of
from registry.http.server import DeliveryCollector, HistoryCollector, ReplicationCollector
from registry.replication.peers import Peer, Replication
from registry.store.engine import open_database
from router.evaluation.outputs import Tally
from router.watching.backlogs import INBOX, REST, Backlog
from router.watching.metrics import (
    DiskCollector,
    Metrics,
    RelationMetrics,
    StatusCollector,
    SubscriptionMetrics,
    watch_jvm,
)
from router.watching.shadow import EpochPair
from router.watching.status import RouterStatus
from tests.support.expecting import plan

RULES: Final = Path(__file__).resolve().parents[2] / "deploy" / "prometheus-rules.yml"
"""What is recorded and alerted of them."""


@cache
def families() -> tuple[Metric, ...]:
    """Return all metrics, as they are when everything has happened once."""
    metrics, status = Metrics(["s"], ["/endpoints/e"]), RouterStatus()
    status.gateway("http", True)
    status.inbox("")
    metrics.registry.register(StatusCollector(status))
    metrics.registry.register(DiskCollector({"state": Path.cwd()}))
    metrics.registry.register(CertificateCollector({"http.tls": Path(certifi.where())}))
    watch_jvm(metrics.registry, os.getpid())
    RelationMetrics(metrics.registry, lambda result: None)
    subscriptions = SubscriptionMetrics(metrics.registry)
    subscriptions.up("/endpoints/e", up=True)
    subscriptions.request("/endpoints/e", "create", "ok")
    tally = Tally()
    tally.definitions["/endpoints/e", "/m"] = 1
    tally.ties["/endpoints/e"] = 1
    tally.ids["/m", "1", "nothing"] = 1
    tally.delivered["s", "/endpoints/e"] = 1
    metrics.batch_done("q", tally, 0.1, 0)
    metrics.unfit_values("s", {"/m": 1})
    metrics.sinks.account("q", 1, 0, 0)
    metrics.backlogs.answered("q", {"/endpoints/e": Backlog(0), INBOX: Backlog(0), REST: Backlog(0)})
    metrics.backlogs.answered(INBOX, {INBOX: Backlog(0), "/endpoints/pushed": Backlog(0)})
    metrics.coverage.follow(plan("m"))
    metrics.catalog("e", 0)
    metrics.catalog_state.set_findings([])
    metrics.held("q", "s")
    metrics.expect_query("q")
    metrics.shadow.expect(["next.json"], ["/endpoints/e"])
    metrics.shadow.judging(EpochPair("e", "f"), 1)
    with tempfile.TemporaryDirectory() as folder:
        return *metrics.registry.collect(), *_families_of_a_registry(f"sqlite:///{folder}/r.db")


def _families_of_a_registry(store: str) -> Iterator[Metric]:
    database = open_database(store)
    service = RegistryService(database, Linter(), lambda *_: {})
    service.prepare("r")
    sources = sources_of("http://r", "")
    subscriptions_of = SubscriptionApi(database, sources, DeliverySettings(), lambda: None).delivery
    dispatch = Dispatch(database, {}, subscriptions_of, sources, DeliveryLimits())
    dispatch.tallies.of("subscriber")
    for collector in (
        DeliveryCollector(dispatch),
        ReplicationCollector(Replication(service, [Peer("http://p")])),
        HistoryCollector(HistoryKeeper(database, HistoryLimits())),
    ):
        yield from collector.collect()
    database.close()
