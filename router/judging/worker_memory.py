"""A limit on the memory that judging takes in a Python worker of Spark.

A worker that asks for more than it may have gets a ``MemoryError``, which fails its task with a reason. Without the
limit the kernel would end some process of the machine. The limit holds only while our code runs: Spark's own code, when
it has no memory left to report an error, waits for an answer that never comes.
"""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from pyspark import Broadcast

    from router.judging.plan import Judge

ENVIRONMENT: Final = {"MIMALLOC_ARENA_EAGER_COMMIT": "0"}
"""For the workers: Arrow's allocator else takes a gigabyte at once, whether it needs it or not."""
SETTING: Final = "memory.worker"
_STATM: Final = Path("/proc/self/statm")
_DATA: Final = 5
_MIB: Final = 2**20

T = TypeVar("T")


@dataclass(slots=True)
class _Process:
    """What a worker knows of itself: its bytes ``bare`` of any plan, the plan it has, and its ceiling with that."""

    bare: int | None = None
    plan: Judge | None = None
    ceiling: int = 0


_process: Final = _Process()


def load(judge: Broadcast[Judge]) -> Judge:
    """Return the compiled plan, in a worker. What loading it takes is not counted against the limit."""
    before = data_bytes()
    if _process.bare is None:
        _process.bare = before
    plan = judge.value
    if plan is not _process.plan:
        if _process.plan is not None:
            gc.unfreeze()
        _process.plan = plan
        # A compiled plan is hundreds of thousands of objects that stay: collections need not look at them. Nor at what
        # lay in memory before the fork, as long as there was no plan before.
        gc.collect()
        gc.freeze()
        _process.ceiling = _process.bare + max(0, data_bytes() - before) + plan.memory
    return plan


def judging(plan: Judge, rows: int, judge: Callable[[], T]) -> T:
    """Return what *judge* returns, which looks at so many rows by the plan that was loaded.

    Raises:
        MemoryError: it needs more memory than there may be; names the setting. What it had taken is free again.
    """
    try:
        return _limited(_process.ceiling, judge)
    except MemoryError:
        pass  # Left behind before anything else, for its traceback holds on to all that was allocated.
    raise MemoryError(
        f"judging {rows} records takes a Python worker more memory than {SETTING} allows it, "
        f"{plan.memory // _MIB} MiB; raise {SETTING}"
    )


def data_bytes() -> int:
    """Return the bytes that count against the limit: private writable memory, resident or not."""
    try:
        return int(_STATM.read_text().split()[_DATA]) * resource.getpagesize()
    except OSError:
        return 0  # Not Linux: the limit below is then one on growth alone, if it holds at all.


def _limited(ceiling: int, call: Callable[[], T]) -> T:
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        ceiling = min(ceiling, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (ceiling, hard))
    try:
        return call()
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))
