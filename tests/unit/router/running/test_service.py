"""What a router shows before Spark has begun."""

from __future__ import annotations

from pathlib import Path

from router.overview.overview import Overview
from router.running.monitoring import Monitoring
from router.running.service import Service
from router.spark.session import Stopping
from router.state.state import Accounts, StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.unit.router.realtime.test_checks import ORDERS, plan

KEY = ("/endpoints/a", "routed", "")


def test_counts_go_on_where_they_were_from_the_first_look_at_them(tmp_path: Path) -> None:
    state, compiled = StateFolder(tmp_path), plan({"a": ORDERS})
    query = compiled.sources[0].query
    with state.accounts.changing(query) as account:
        account.taken = account.judged = account.records[KEY] = account.delivered["bus", KEY[0]] = 7
        account.records["/endpoints/gone", "routed", ""] = account.delivered["bus", "/endpoints/gone"] = 7
    metrics, status = Metrics(compiled.settings.sinks), RouterStatus()
    overview = Overview(compiled.settings, metrics, status, None)
    Service(compiled, state, tmp_path, Stopping(), Monitoring(metrics, status, 0, overview))
    labels = dict(zip(("endpoint", "outcome", "reason"), KEY, strict=True))
    counts = {
        "xrouter_records_total": labels,
        "xrouter_sink_records_total": {"sink": "bus", "endpoint": KEY[0]},
        "xrouter_taken_records_total": {"query": query},
    }
    for _ in range(2):
        assert {metrics.registry.get_sample_value(name, labels) for name, labels in counts.items()} == {7}
        # As each query of it does, which may begin after others, or take the place of a real-time one.
        metrics.resume(query, state.accounts.of(query))
    gone = {**labels, "endpoint": "/endpoints/gone"}
    assert metrics.registry.get_sample_value("xrouter_records_total", gone) is None
    with state.accounts.changing(query):
        pass
    kept = Accounts(state.database).of(query)
    assert (kept.taken, kept.judged, list(kept.records), list(kept.delivered)) == (7, 7, [KEY], [("bus", KEY[0])])
