"""Processes that die within a commit or a merge, one after the other on one table, beside another engine's rewrites.

``python -m tests.reliability.commit_kills FOLDER DEATHS`` prints what came of it as JSON. Each process is forked from
one that has all modules and no thread, so that a death takes half a second and not the start of an interpreter. It
writes batches as workers stage them, tends the table after each, and is killed before or after a step.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from router.errors import SinkError
from router.sinks.jsonlines import WIDE
from router.sinks.tables.delta import DeltaSink
from router.sinks.tables.upkeep import Upkeep, UpkeepRules
from tests.support.kill_points import Point
from tests.unit.router.sinks.tables.tended_writer import APP, write

RULES: Final = UpkeepRules(1, 1 << 20, timedelta(hours=1))
STEPS: Final = (
    "router.sinks.tables.delta:DeltaSink._add_files",
    "router.sinks.tables.head:TableHead.append",
    "router.sinks.tables.head:TableHead.replace_files",
    "router.sinks.tables.head:TableLog.write_entry",
    "router.sinks.tables.head:os.fsync",
    "router.sinks.tables.head:os.link",
    "router.sinks.tables.head:sync_path",
    "router.sinks.tables.upkeep:_write_merged_file",
    "router.sinks.tables.upkeep:_commit_replacement",
)
DEATHS: Final = tuple(itertools.product((1, 2, 3), STEPS, ("before", "after")))
BATCHES: Final = 12
"""Batches that a process writes at most: each dies before."""


def child(folder: str, count: int, step: str, when: str) -> None:
    """Write on from where the table is until death comes."""
    left = [count]

    def die() -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    Point.of(step).wrap(before=die if when == "before" else None, after=die if when == "after" else None)
    write_on(folder, BATCHES)


def write_on(folder: str, batches: int) -> None:
    """Repeat the last batch, as a router does after a death, and write more."""
    sink, upkeep = DeltaSink("lake", folder, WIDE), Upkeep("lake", RULES)
    known = DeltaTable(folder).transaction_version(APP) if DeltaTable.is_deltatable(folder) else None
    begin = 0 if known is None else known
    for version in range(begin, begin + batches):
        for _ in range(5):
            try:
                write(sink, version, f"{os.getpid()}-x")
                break
            except SinkError:
                continue
        upkeep.maintain(folder)


def rewrite_for_ever(folder: str) -> None:
    """Be the other engine: compact the table, again and again, until the end."""
    while True:
        with suppress(DeltaError, OSError):
            DeltaTable(folder).optimize.compact()
        # Without a pause there would be nothing left to merge for us.
        time.sleep(random.random() / 4)


def forked(work: object, *arguments: object) -> int:
    """Run a function in a process of its own; return its number."""
    number = os.fork()
    if not number:
        try:
            work(*arguments)  # type: ignore[operator]
        except BaseException as error:
            sys.stderr.write(f"{arguments}: {type(error).__name__}: {error}\n")
            os._exit(1)
        os._exit(0)
    return number


def main(folder: str, deaths: int) -> None:
    """Let so many processes die, and print how many met their step."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    told: Counter[str] = Counter()
    _, status = os.waitpid(forked(write_on, folder, 1), 0)
    other = forked(rewrite_for_ever, folder)
    for count, step, when in itertools.islice(itertools.cycle(DEATHS), deaths):
        _, status = os.waitpid(forked(child, folder, count, step, when), 0)
        met = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        told["killed" if met else f"ended with {status}"] += 1
        told[f"killed {when} {step.rpartition(':')[2]}"] += met
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)
    _, status = os.waitpid(forked(write_on, folder, 2), 0)
    told["last"] = status
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
