"""The process that Spark forks Python workers from, on the driver's machine: with what they need imported already.

Spark's own forks first, and each worker imports for itself: half a second of CPU for each core of each start, and once
more for each worker that takes the place of one that died. What is imported before the fork lies in memory once.
"""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Final

from pyspark.daemon import manager

NEEDED: Final = {
    "pyspark.worker": (
        "pandas",  # pyarrow asks for it with the first array it makes
        "router.judging.judging",
        "router.writing.render",
        "router.writing.staging",
    )
}
"""What workers need, by the module of Spark that they run."""


def main() -> None:
    """Import what the workers of ``sys.argv[1]`` need, and serve Spark."""
    runs = sys.argv[1]
    for name in (runs, *NEEDED.get(runs, ())):
        importlib.import_module(name)
    # A collection in a worker would write to each of these objects, and so copy the pages that they lie on.
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
