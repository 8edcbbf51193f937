"""A real router that dies, as by a power cut, at a point of a batch that a test names.

``python -m tests.support.dying_router MODULE:PATH before|after BATCHES COMMAND...`` runs ``xrouter COMMAND...`` and
kills its own process at the first call of that function after so many batches are written. A chain of such routers
meets each point in a batch of its own: the one that the router before it left unfinished comes first.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
from typing import Any, Final

from router.cli import main
from router.metrics import Metrics

ENDED_BY_SIGNAL: Final = -signal.SIGKILL


class Fate:
    """When to die: armed once *batches* are written."""

    def __init__(self, batches: int) -> None:
        self._left = batches

    def batch_done(self, *_: Any) -> None:
        """Count a batch."""
        self._left -= 1

    def meet(self) -> None:
        """Die, if it is time."""
        if self._left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


def wrap(point: str, *, before: Any = None, after: Any = None) -> None:
    """Have the function at ``package.module:Class.name`` call *before* and *after* around itself."""
    module, _, path = point.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    function = getattr(owner, name)

    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        if before is not None:
            before()
        result = function(*arguments, **named)
        if after is not None:
            after()
        return result

    setattr(owner, name, wrapped)


def run(point: str, when: str, batches: int, command: list[str]) -> None:
    """Run a command that is to die."""
    fate = Fate(batches)
    wrap(point, **{when: fate.meet})
    # Outermost, so that a death at this very point still sees the batch as unwritten.
    wrap(f"{Metrics.__module__}:{Metrics.__name__}.batch_done", after=fate.batch_done)
    main(command)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
