"""How a changed catalog takes effect, step by step, in an order in which a crash after any step loses nothing.

First the ledger gets the positions of what is to be read. Then queries whose topics change begin no more batches, the
others judge theirs by the new plan, and watchers learn of it. The inbox is there before gateways write to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from catalog.paused_gc import set_aside_from_gc
from router.batches.plans import PlanHolder
from router.errors import BrokerUnreachable, DiskError
from router.intake.intake import Intake
from router.judging.plan import Plan
from router.logs import get_logger
from router.running.queries import Queries

HOLD_FIRST: Final = 1.0
HOLD_MOST: Final = 60.0
_log = get_logger()


class Changes:
    """The change that waits to take effect, if there is one. Not for concurrent use."""

    def __init__(
        self,
        plans: PlanHolder,
        queries: Queries,
        intake: Intake,
        announce: Callable[[Plan], None],
        hold: Callable[[str], None],
    ) -> None:
        """``announce`` gets each plan that took effect; ``hold`` gets why one waits, or '' when none does."""
        self._plans = plans
        self._queries = queries
        self._intake = intake
        self._announce = announce
        self._hold = hold
        self._waiting: Plan | None = None
        self._pause = HOLD_FIRST
        self._again_at = 0.0

    def offer(self, plan: Plan) -> None:
        """Let a plan take effect at the next :meth:`check`, in place of one that still waits."""
        self._waiting, self._pause, self._again_at = plan, HOLD_FIRST, 0.0

    def check(self) -> None:
        """Let the plan that waits take effect.

        A broker that does not answer and a disk that refuses hold it, and the last good one goes on.

        Raises:
            RouterError: it cannot take effect at all.
        """
        if self._waiting is None or time.monotonic() < self._again_at:
            return
        plan = self._waiting
        try:
            self._intake.open_inbox(plan)
            self._queries.place(plan.sources)
        except (BrokerUnreachable, DiskError, OSError) as error:
            self._hold(str(error))
            _log.warning("catalog waits; the last good one goes on", problem=str(error), retry_seconds=self._pause)
            self._again_at = time.monotonic() + self._pause
            self._pause = min(self._pause * 2, HOLD_MOST)
            return
        self._waiting = None
        self._hold("")
        self._queries.retarget(plan.sources)
        self._plans.activate(plan, self._queries.at_work)
        self._announce(plan)
        set_aside_from_gc()
        self._intake.take(plan)
