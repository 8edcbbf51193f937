"""The process that Spark forks Python workers from, on the driver's machine: with what they need imported already.

Spark's own forks first, and each worker imports for itself: half a second of CPU for each core of each start, and once
more for each worker that takes the place of one that died. What is imported before the fork lies in memory once.

A process may only fork while it has one thread: a lock that another holds would stay locked in the child. Libraries
that start threads when they are imported are asked not to; should there be some all the same, Spark's own process takes
our place.
"""

# Small: Spark starts it by name, before anything else is loaded.

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
from pathlib import Path
from typing import Any, Final

NEEDED: Final = {
    "pyspark.worker": (
        "pandas",  # pyarrow asks for it with the first array it makes
        "router.evaluation.evaluator",
        "router.writing.kafka_records",
        "router.writing.staging",
    )
}
"""What workers need, by the module of Spark that they run."""
QUIET: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "_RJEM_MALLOC_CONF": "background_thread:false",
}
"""Has numpy, pyarrow and deltalake start no thread with their import."""
_TASKS: Final = Path("/proc/self/task")
_SPARKS: Final = "pyspark.daemon"


def main() -> None:
    """Import what the workers of ``sys.argv[1]`` need, and serve Spark."""
    runs = sys.argv[1]
    before = {name: os.environ.get(name) for name in QUIET}
    os.environ |= QUIET
    for name in (runs, *NEEDED.get(runs, ())):
        importlib.import_module(name)
    if count_threads() > 1:
        _run_spark_daemon(before)
    from pyspark import daemon

    daemon.worker = silence_disconnects(daemon.worker)
    # A collection in a worker would write to each of these objects, and so copy the pages that they lie on.
    gc.freeze()
    daemon.manager()


def silence_disconnects(work: Any) -> Any:
    """Return pyspark's function that serves one task, without the error that Spark's end of the connection is gone.

    It leaves the plan out of pyspark's collections between tasks. Spark closes the connection when it has no use for
    the task any more, as when a query stops. The worker ends then, and pyspark would print a traceback past the logs.
    """

    def worker(connection: socket.socket, authenticated: bool) -> Any:
        # pyspark has collected all cycles behind the last task, and does so behind this one. What is here now is no
        # garbage: the plan, and what it has learnt of its definitions, which would take longer to walk than a task.
        gc.freeze()
        try:
            return work(connection, authenticated)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return 1

    return worker


def count_threads() -> int:
    """Return how many threads this process has, those of libraries too; where nobody can tell, 1."""
    try:
        return len(list(_TASKS.iterdir()))
    except OSError:
        return 1


def _run_spark_daemon(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value
    os.execv(sys.executable, [sys.executable, "-m", _SPARKS, *sys.argv[1:]])


if __name__ == "__main__":
    main()
