"""A real router that dies, as by a power cut, at a point that a test names.

``python -m tests.support.dying_router POINT before|after WHEN COMMAND...`` runs ``xrouter COMMAND...`` and kills its
own process at the first call of a function that it meets once it is time. POINT is ``MODULE:PATH``, or
``MODULE:PATH~TEXT`` for calls with that text in their arguments; an open file counts as its path. WHEN is

* a number: once so many batches are written;
* ``reload``: once a changed catalog was read;
* ``judging:N``: at once, but no batch is pinned before N changed catalogs are active; the log says ``JUDGED`` then.

A chain of such routers meets each point in a batch, or a reload, of its own: what the router before it left unfinished
comes first.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import threading
from typing import Any, Final

from router.cli import main

ENDED_BY_SIGNAL: Final = -signal.SIGKILL
BATCH_DONE: Final = "router.watching.metrics:Metrics.batch_done"
CATALOG_READ: Final = "router.running.reload:Reloader._consider"
ACTIVATED: Final = "router.batches.plans:PlanHolder.activate"
PINNED: Final = "router.state.state:State.pin"
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


def wrap(point: str, *, before: Any = None, after: Any = None) -> None:
    """Have the function at ``package.module:Class.name~text`` call *before* and *after* around itself."""
    place, _, text = point.partition("~")
    module, _, path = place.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    function = getattr(owner, name)

    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        concerned = not text or any(text in _shown(each) for each in arguments)
        if before is not None and concerned:
            before()
        result = function(*arguments, **named)
        if after is not None and concerned:
            after()
        return result

    setattr(owner, name, wrapped)


def _shown(argument: Any) -> str:
    """Return an argument as text; an open file, or the number of one, as the path that it was opened at."""
    try:
        return os.readlink(f"/proc/self/fd/{argument}") if isinstance(argument, int) else str(argument)
    except OSError:
        return str(argument)


def run(point: str, when: str, time: str, command: list[str]) -> None:
    """Run a command that is to die."""
    kind, _, number = time.partition(":")
    if kind == "reload":
        fate = Fate(1)
        wrap(point, **{when: fate.meet})
        wrap(CATALOG_READ, before=fate.count)
    elif kind == "judging":
        fate, reloaded = Fate(0), Fate(1 + int(number))
        wrap(point, **{when: fate.meet})
        wrap(ACTIVATED, after=reloaded.count)

        def hold() -> None:
            sys.stderr.write(JUDGED + "\n")
            sys.stderr.flush()
            reloaded.armed.wait()

        wrap(PINNED, before=hold)
    else:
        fate = Fate(int(time))
        wrap(point, **{when: fate.meet})
        # Outermost, so that a death at this very point still sees the batch as unwritten.
        wrap(BATCH_DONE, after=fate.count)
    main(command)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
