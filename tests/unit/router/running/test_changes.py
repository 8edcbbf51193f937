"""A changed catalog that waits for brokers says so, and the router stays ready on the last good one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from router.running.queries import Queries
from router.running.service import CatalogActivation
from router.settings import SourceSettings
from router.sources import Source
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.support.ports import free_ports


@pytest.mark.slow
def test_a_change_that_waits_for_brokers_is_told(state: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bindings.kafka.offsets.TIMEOUT_SECONDS", 0.0)
    servers = f"127.0.0.1:{free_ports(1)[0]}"
    wanted = SourceSettings(endpoint="/endpoints/new", start="latest")
    source = Source("/endpoints/new", "kafka", "kafka:new", "kafka-1", wanted, topic="new", servers=servers)
    nothing: Any = None
    active: list[Any] = []
    plans: Any = SimpleNamespace(active=SimpleNamespace(settings=wanted), activate=lambda plan, _: active.append(plan))
    intake: Any = SimpleNamespace(open_inbox=lambda _: None, receive_for_plan=lambda _: None)
    status = RouterStatus()
    status.set_catalog("e1", 3)
    status.query("kafka-0", "running")
    queries = Queries(nothing, state, plans, Metrics(), status, once=False)
    changes = CatalogActivation(plans, queries, intake, lambda _: None, status.set_pending_reason)
    unreachable: Any = SimpleNamespace(sources=(source,))
    changes.schedule(unreachable)
    changes.activate_if_ready()
    ready, answer = status.check_readiness()
    assert ready and not active
    assert answer["catalog"]["held"].startswith(f"Kafka at {servers} does not answer")
    reachable: Any = SimpleNamespace(sources=())
    changes.schedule(reachable)
    changes.activate_if_ready()
    assert active == [reachable]
    assert status.check_readiness()[1]["catalog"]["held"] == ""
