"""A process of the router over batches in lists (:mod:`tests.support.listed`)."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, Final, cast

from router.batches.pipeline import Pipeline
from router.evaluation.plan import Plan
from router.reading.generations import Generation
from router.sources import INBOX
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.support.listed import Given, ListPlan, ListRows, World

RECORDS: Final = ListRows(
    tuple(
        Given(n, reason="no-match" if n == 5 else "", key={3: "B", 5: "A", 6: "A", 7: "C"}.get(n, "")) for n in range(8)
    )
)
"""5 is a dead letter, and 6 has its key."""


class Process:
    """The one query of a router: it remembers nothing of the processes before it."""

    def __init__(self, state: StateFolder, plan: Plan, world: World, generation: Generation) -> None:
        self.loaded = ListPlan(plan, world)
        self.plans = cast(Any, SimpleNamespace(active=plan, current=self.current, pinned=self.current))
        self.metrics = Metrics(plan.settings.sinks, [])
        self.status, plans = RouterStatus(), self.plans
        self.pipeline = Pipeline(INBOX, "inbox", generation, state, plans, self.metrics, self.status, lambda _: plan)

    def current(self, *pinned: object) -> ListPlan:
        """Return the plan that this process has loaded."""
        return self.loaded

    def batch(self, number: int = 0, rows: Any = RECORDS) -> None:
        """Take a batch, as Spark hands it in."""
        self.pipeline.batch(rows, number)

    def held(self) -> tuple[str, dict[str, float]]:
        """Return why the query is held, '' when it is not, and what the metrics say of it by sink."""
        query = self.status.ready()[1]["queries"][INBOX]
        samples = (sample for metric in self.metrics.registry.collect() for sample in metric.samples)
        gauge = {each.labels["sink"]: each.value for each in samples if each.name == "xrouter_query_held"}
        return query["reason"] if query["state"] == "held" else "", gauge

    def gap(self) -> float | None:
        """Return what is missing of what was taken, as the metrics have it."""
        return self.metrics.registry.get_sample_value("xrouter_conservation_gap", {"query": INBOX})

    def delivered(self) -> dict[str, int]:
        """Return the records that each sink has, as the metrics have it."""
        samples = (sample for metric in self.metrics.registry.collect() for sample in metric.samples)
        return {each.labels["sink"]: int(each.value) for each in samples if each.name == "xrouter_sink_records_total"}

    def counts(self) -> Counter[str]:
        """Return the records by what they ended as."""
        samples = (sample for metric in self.metrics.registry.collect() for sample in metric.samples)
        found: Counter[str] = Counter()
        for each in samples:
            if each.name == "xrouter_records_total" and each.value:
                found[each.labels["reason"] or each.labels["outcome"]] += int(each.value)
        return found
