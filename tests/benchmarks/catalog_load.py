"""How long does a catalog take from its file to a plan that judges? ``make bench-catalog``

Steps as ``run`` does them: read and resolve (with lint), compile the matcher, and judge one record, on one thread.
Each size is loaded several times in one process; the median counts, and the first, cold, is printed beside it.
"""

from __future__ import annotations

import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from catalog.load import load
from router.matching.records import RecordMatcher
from tests.benchmarks.machine import options, say
from tests.support.load import catalog as catalog_of

T = TypeVar("T")
RECORD = json.dumps(
    {
        "endpoint": "/endpoints/plant",
        "protocol": "KAFKA",
        "native": {"topic": "plant", "key": "p1/l1", "headers": [{"name": "kind", "value": "k7"}]},
    }
)


def main() -> None:
    """Run the benchmark and print a table."""
    chosen = options(__doc__, rounds=3, sizes=[10, 100, 1_000, 10_000])
    lines = ["definitions    load s   compile s     sum s   first sum s", "-" * 56]
    with tempfile.TemporaryDirectory(prefix="xrouter-bench-") as folder:
        for size in chosen.sizes:
            path = Path(folder) / f"{size}.json"
            path.write_text(json.dumps(catalog_of(size, topic="plant")), encoding="utf-8")
            lines.append(_line(path, size, chosen.rounds))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    say("\n".join(lines))
    say(f"peak memory of the process {peak:,.0f} MiB")


def _line(path: Path, size: int, rounds: int) -> str:
    found = [_round(path) for _ in range(rounds)]
    loads, compiles = (statistics.median(column) for column in zip(*found, strict=True))
    return f"{size:11,d} {loads:9.2f} {compiles:11.2f} {loads + compiles:9.2f} {sum(found[0]):13.2f}"


def _round(path: Path) -> tuple[float, float]:
    reading, catalog = _timed(lambda: load([path]))
    compiling, _ = _timed(lambda: RecordMatcher(catalog, endpoint="/endpoints/plant").decide([RECORD]))
    return reading, compiling


def _timed(action: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    made = action()
    return time.perf_counter() - start, made


if __name__ == "__main__":
    main()
