"""The plans of replay batches, kept in ``state/ledger/plans``: the running router's own are under its lock."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from catalog.parsing.regular import read_regular
from router.errors import BatchPinError
from router.judging.plan import Plan, plan_of
from router.state.durable import unfinished, write_durably

FOLDER: Final = "plans"


class ReplayPlans:
    """Plans by id. ``base`` is the folder that relative references of settings begin at."""

    def __init__(self, ledger: Path, base: Path, environ: Mapping[str, str] = os.environ) -> None:
        self._folder = ledger / FOLDER
        self._base = base
        self._environ = environ
        self._kept = ""

    def keep(self, plan: Plan) -> None:
        """Keep a plan, durably, and drop all others: only one replay batch can be pending."""
        path = self._folder / f"{plan.id}.json"
        if plan.id != self._kept:
            # Also where it is there: a process that died may have renamed it, and not made that durable.
            write_durably(path, plan.to_bytes())
            self._kept = plan.id
        others = (entry for entry in self._folder.glob("*.json") if entry != path)
        for other in (*others, *unfinished(self._folder)):
            other.unlink(missing_ok=True)

    def restore(self, plan_id: str) -> Plan:
        """Compile the plan with that id from what was kept.

        Raises:
            BatchPinError: it is not there, of another router version, or does not compile to itself.
        """
        path = self._folder / f"{plan_id}.json"
        try:
            document = read_regular(path)
        except FileNotFoundError as error:
            raise BatchPinError(
                f"an unfinished replay is pinned to plan {plan_id}, which is not in {self._folder}",
                hint="restore it from a backup of the state folder",
            ) from error
        plan = plan_of(document, environ=self._environ, base=self._base)
        if plan.id != plan_id:
            raise BatchPinError(
                f"plan {plan_id} of an unfinished replay does not compile to itself any more (now {plan.id})",
                hint="replay once with the router version that began it",
            )
        return plan
