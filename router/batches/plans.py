"""The plans of a running router: the active one, and those that unfinished batches are pinned to."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bindings.kafka.layouts import learned
from router.errors import BatchPinError
from router.judging.plan import Plan
from router.judging.tally import Tally
from router.state.state import State
from router.writing.writer import BatchWriter

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import SparkSession

    from router.judging.plan import Judge
    from router.watching.metrics import Metrics


@dataclass(slots=True, weakref_slot=True)
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
    """The active plan, and those that batches in progress were begun under; thread-safe.

    ``activate`` takes effect with the next batch of every query, never inside one. A plan stays loaded, with what its
    writer knows of a batch, for as long as it is active or somebody has hold of it: a batch keeps its own through all
    its tries, however many reloads come meanwhile.
    """

    def __init__(self, spark: SparkSession, state: State, plan: Plan, metrics: Metrics) -> None:
        self._spark = spark
        self._state = state
        self._metrics = metrics
        self._lock = threading.Lock()
        self._loaded: weakref.WeakValueDictionary[str, LoadedPlan] = weakref.WeakValueDictionary()
        self._active = plan
        self._current: LoadedPlan | None = None

    @property
    def active(self) -> Plan:
        """The plan that the next batch is judged by."""
        return self._active

    def activate(self, plan: Plan) -> None:
        """Make a plan the one for the next batches; it is compiled and sent to the workers first.

        Nothing is written: a plan is kept once a batch is pinned to it (:meth:`State.pin`).
        """
        loaded = self._load(plan)
        with self._lock:
            self._active, self._current = loaded.plan, loaded

    def current(self) -> LoadedPlan:
        """Return the active plan, loaded."""
        with self._lock:
            current = self._current
        return current or self._load(self._active)

    def pinned(self, plan_id: str, restore: Callable[[bytes], Plan]) -> LoadedPlan:
        """Return the plan with that id, compiled from its document if need be.

        Raises:
            BatchPinError: its document is gone, or of another version.
        """
        with self._lock:
            known = self._loaded.get(plan_id)
        if known is not None:
            return known
        if plan_id == self._active.id:
            return self._load(self._active)
        document = self._state.plan(plan_id)
        if document is None:
            raise BatchPinError(
                f"an unfinished batch is pinned to plan {plan_id}, and its file state/plans/{plan_id}.json is gone",
                hint="restore that file from a backup; or start once with the catalog and the settings that the batch "
                "began under, which make the same plan. Removing the query's checkpoint is no way out: it is then read "
                "from its first position again, and tables get every record a second time",
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
            return known
