"""A real router that dies, as by a power cut, at a point that a test names.

``python -m tests.support.dying_router POINT before|after WHEN COMMAND...`` runs ``xrouter COMMAND...`` and kills its
own process at the first call of a function that it meets once it is time. POINT is one of
:mod:`tests.support.kill_points`, which refuses what is never met. WHEN is

* a number: once so many batches are written;
* ``reload``: once a changed catalog was read;
* ``judging:N``: at once, but no batch is pinned before N changed catalogs are active; the log says ``JUDGED`` then.

A chain of such routers meets each point in a batch, or a reload, of its own: what the router before it left unfinished
comes first.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Final

from router.cli import main
from tests.support.kill_points import Point

ENDED_BY_SIGNAL: Final = -signal.SIGKILL
BATCH_DONE: Final = "router.watching.metrics:Metrics.count_written_batch"
CATALOG_READ: Final = "router.running.reload:Reloader._try_catalog"
ACTIVATED: Final = "router.batches.plans:PlanCache.activate"
PINNED: Final = "router.state.state:BatchStore.pin"
JUDGED: Final = "a batch is judged, and not yet pinned"


class Fate:
    """When to die: armed once something was counted so many times."""

    def __init__(self, count: int) -> None:
        self._left = count
        self.armed = threading.Event()
        if count <= 0:
            self.armed.set()

    def count(self) -> None:
        """Count one."""
        self._left -= 1
        if self._left <= 0:
            self.armed.set()

    def meet(self) -> None:
        """Die, if it is time."""
        if self.armed.is_set():
            os.kill(os.getpid(), signal.SIGKILL)


def run(point: str, when: str, time: str, command: list[str]) -> None:
    """Run a command that is to die."""
    kind, _, number = time.partition(":")
    dying = Point.of(point)
    if kind == "reload":
        fate = Fate(1)
        dying.wrap(**{when: fate.meet})
        Point.of(CATALOG_READ).wrap(before=fate.count)
    elif kind == "judging":
        fate, reloaded = Fate(0), Fate(1 + int(number))
        dying.wrap(**{when: fate.meet})
        Point.of(ACTIVATED).wrap(after=reloaded.count)

        def hold() -> None:
            sys.stderr.write(JUDGED + "\n")
            sys.stderr.flush()
            reloaded.armed.wait()

        Point.of(PINNED).wrap(before=hold)
    else:
        fate = Fate(int(time))
        dying.wrap(**{when: fate.meet})
        # Outermost, so that a death at this very point still sees the batch as unwritten.
        Point.of(BATCH_DONE).wrap(after=fate.count)
    main(command)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
