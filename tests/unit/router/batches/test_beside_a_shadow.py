"""A batch that fails with a shadow catalog beside it goes on without, and has lost none of its tries."""

from __future__ import annotations

from typing import Any, cast

import pytest

from router.batches.pipeline import Pipeline
from router.batches.plans import SharedParts
from router.batches.splitting import SAME_FAILURES
from router.evaluation.plan import Plan
from router.reading.generations import Generation
from router.sources import INBOX
from router.state.state import StateFolder
from router.watching.metrics import Metrics
from router.watching.status import RouterStatus
from tests.support.listed import RECORDS, ListPlan, World, plan_of
from tests.unit.router.batches.test_conservation import begun, planned

FAULT = ValueError("a schema that nobody expected")


class Shadowed(ListPlan):
    """A plan beside which a shadow judges, with which every batch fails."""

    __slots__ = ()

    def __init__(self, plan: Plan, world: World, alone: ListPlan) -> None:
        super().__init__(plan, world)
        self.without_shadow = alone

    def outcomes(self, *given: Any, **more: Any) -> Any:
        """Fail."""
        raise FAULT


class Failing(ListPlan):
    """A plan by which the first batches fail."""

    __slots__ = ("left",)

    def __init__(self, plan: Plan, world: World, times: int) -> None:
        super().__init__(plan, world)
        self.left = times

    def outcomes(self, *given: Any, **more: Any) -> Any:
        """Fail for a while."""
        if self.left:
            self.left -= 1
            raise FAULT
        return super().outcomes(*given, **more)


class Plans:
    """What a pipeline asks for plans, with a shadow until it is set aside."""

    def __init__(self, plan: Plan, world: World, failing: int = 0) -> None:
        self.active = plan
        self.alone = Failing(plan, world, failing)
        self.loaded: ListPlan = Shadowed(plan, world, self.alone)
        self.reasons: list[str] = []

    def current(self, *pinned: object) -> ListPlan:
        """Return the plan, with the shadow while there is one."""
        return self.loaded

    pinned = current

    def set_aside_shadow(self, reason: str) -> None:
        """Note why."""
        self.reasons.append(reason)
        self.loaded = self.alone


def pipeline_of(plans: Plans, state: StateFolder, generation: Generation) -> tuple[Pipeline, Metrics]:
    metrics = Metrics(plans.active.settings.sinks)
    made = Pipeline(INBOX, "inbox", generation, SharedParts(state, cast(Any, plans), metrics, RouterStatus()))
    return made, metrics


@pytest.mark.parametrize("failing", [0, SAME_FAILURES - 1])
def test_what_failed_with_it_is_tried_again_without(state: StateFolder, world: World, failing: int) -> None:
    generation = begun(state)
    planned(generation, 0, {"t": {"0": 8}})
    plans = Plans(plan_of(["lake"]), world, failing)
    pipeline, metrics = pipeline_of(plans, state, generation)
    pipeline.batch(RECORDS, 0)  # type: ignore[arg-type]
    assert len(world.numbers("lake")) == 7
    # The try with the shadow is none of its own: another failure, and the batch would have been cut.
    fault = {"query": INBOX, "fault": "error"}
    assert metrics.registry.get_sample_value("xrouter_batch_faults_total", fault) == failing
    if failing:
        assert plans.reasons == []  # It fails without, too: the shadow is not why.
    else:
        assert not state.database.read("SELECT * FROM notes")
        (reason,) = plans.reasons
        assert reason.startswith(f"batch 0 of {INBOX} failed only with it: ValueError")
