"""A process that dies: it writes batches as workers stage them, tends the table now and then, and is killed at a point.

``tended_writer.py FOLDER BATCHES [POINT before|after COUNT]``: it dies at the COUNTth time that it meets the point.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from typing import Final

import pyarrow as pa

from catalog.model import Catalog
from router.sinks import Commit
from router.sinks.contract import StagedCommit, WriteResult
from router.sinks.jsonlines import WIDE
from router.sinks.tables.delta import DeltaSink
from router.sinks.tables.upkeep import Upkeep
from tests.support.kill_points import Point

EVERY: Final = 5
AT_ONCE: Final = (EVERY, 1 << 20, timedelta(0))
APP: Final = "generation/events"


def write(sink: DeltaSink, version: int, task: str = "0-x") -> WriteResult:
    """Write a batch of two rows as two tasks stage it."""
    commit = Commit(APP, version)
    staging = sink.make_stager(commit)
    assert staging is not None
    rows = [pa.Table.from_pylist([{"id": f"{version}-{row}", "data": b"{}"}], schema=WIDE) for row in range(2)]
    staged = StagedCommit(tuple(file for part in rows for file in staging.write(part, task, Catalog())))
    result = sink.commit_staged(staged, commit)
    if not staged.offered:
        staging.discard(staged.files)
    return result


def main(folder: str, batches: int, *death: str) -> None:
    if death:
        point, when, count = death
        left = [int(count)]

        def die() -> None:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

        Point.of(point).wrap(before=die if when == "before" else None, after=die if when == "after" else None)
    sink, upkeep = DeltaSink("lake", folder, WIDE), Upkeep("lake", *AT_ONCE)
    for version in range(batches):
        write(sink, version, f"{os.getpid()}-x")
        if version % EVERY == EVERY - 1:
            upkeep.maintain(folder)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
