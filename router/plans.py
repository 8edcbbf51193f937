"""The plans of a running router: the active one, and those that unfinished batches are pinned to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bindings.kafka.layouts import learned
from router.errors import BatchPinError
from router.plan import Plan
from router.state import State
from router.tally import Tally
from router.writing import BatchWriter

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import SparkSession

    from router.metrics import Metrics
    from router.plan import Judge


@dataclass(slots=True)
class LoadedPlan:
    """A plan on its way through the session: broadcast to the workers, with its writer and what it learned."""

    plan: Plan
    judge: Broadcast[Judge]
    writer: BatchWriter
    layouts: frozenset[str] = frozenset()

    def learn(self, tally: Tally) -> Tally:
        """Remember the plain header layouts of a batch, which make the next one faster."""
        self.layouts = learned(self.layouts, tally.layouts)
        return tally


class PlanHolder:
    """The active plan, and the pinned ones that retried batches need; thread-safe.

    ``activate`` takes effect with the next batch of every query, never inside one.
    """

    def __init__(self, spark: SparkSession, state: State, plan: Plan, metrics: Metrics) -> None:
        self._spark = spark
        self._state = state
        self._metrics = metrics
        self._lock = threading.Lock()
        self._loaded: dict[str, LoadedPlan] = {}
        self._active = plan

    @property
    def active(self) -> Plan:
        """The plan that the next batch is judged by."""
        return self._active

    def activate(self, plan: Plan) -> None:
        """Make a plan the one for the next batches; it is compiled and sent to the workers first."""
        self._load(plan)
        self._state.put_plan(plan.id, plan.to_bytes())
        with self._lock:
            self._active = plan

    def current(self) -> LoadedPlan:
        """Return the active plan, loaded."""
        return self._load(self._active)

    def pinned(self, plan_id: str, restore: Callable[[bytes], Plan]) -> LoadedPlan:
        """Return the plan with that id, compiled from its document if need be.

        Raises:
            BatchPinError: its document is gone, or of another version.
        """
        if plan_id in self._loaded or plan_id == self._active.id:
            return self._load(self._active) if plan_id == self._active.id else self._loaded[plan_id]
        document = self._state.plan(plan_id)
        if document is None:
            raise BatchPinError(
                f"an unfinished batch is pinned to plan {plan_id}, which is not in the state folder",
                hint="restore state/plans from a backup, or remove the query's checkpoint to start it anew",
            )
        plan = restore(document)
        if plan.id != plan_id:
            raise BatchPinError(
                f"plan {plan_id} of an unfinished batch does not compile to itself any more (now {plan.id})",
                hint="start the router version that began the batch once, so that it finishes it",
            )
        return self._load(plan)

    def _load(self, plan: Plan) -> LoadedPlan:
        with self._lock:
            known = self._loaded.get(plan.id)
            if known is None:
                judge = self._spark.sparkContext.broadcast(plan.judge)
                known = self._loaded[plan.id] = LoadedPlan(plan, judge, BatchWriter(plan, self._metrics.sink_write))
                for stale in [key for key in self._loaded if key not in (plan.id, self._active.id)][:-2]:
                    self._loaded.pop(stale).judge.unpersist()
            return known
