"""How long each file of tests takes, so that the long ones begin first and no worker idles at the end.

The seconds are in ``file_weights.json``, by path below the checkout. ``make weights`` writes them from the reports of a
run: ``make test PYTEST_FLAGS=--junitxml=FILE``, then ``make weights REPORT=FILE``.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Final
from xml.etree import ElementTree

ROOT: Final = Path(__file__).resolve().parents[2]
WEIGHTS: Final = Path(__file__).resolve().with_name("file_weights.json")


def longest_first(paths: Iterable[str], weights: Mapping[str, float]) -> list[str]:
    """Return *paths* without repetitions, heaviest first; those without a weight stand where the median would."""
    unknown = median(weights.values()) if weights else 0.0
    return sorted(dict.fromkeys(paths), key=lambda path: -weights.get(path, unknown))


def read_weights() -> dict[str, float]:
    """Return seconds by path of a file."""
    found: dict[str, float] = json.loads(WEIGHTS.read_text(encoding="utf-8"))
    return found


def measured(report: Path) -> dict[str, float]:
    """Return the seconds of each file in a JUnit report of pytest, with what fixtures took."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):
        seconds[_file(case.attrib["classname"])] += float(case.attrib["time"])
    return {path: round(spent, 1) for path, spent in sorted(seconds.items())}


def _file(dotted: str) -> str:
    """Return the file of a class name such as ``tests.unit.test_x.TestY``; only files end the search."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        path = "/".join(parts[:length]) + ".py"
        if (ROOT / path).is_file():
            return path
    raise ValueError(f"{dotted} is in no file of this checkout: take a report of its own tests")


def main(arguments: list[str]) -> int:
    """Write the weights anew from the report that is named."""
    (report,) = arguments
    WEIGHTS.write_text(json.dumps(measured(Path(report)), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
