"""A batch that fails by itself: written in parts until the record is found, everything once, through crashes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from router.batches import waiting
from router.reading import generations
from router.sources import INBOX
from router.state.state import StateFolder
from tests.support import plain, shop
from tests.support.poison import CROWDS, DIES, RAISES, Line, plan_of, poisoned, rows_of
from tests.support.web import Webhook

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
COUNT: Final = 12
WRONG: Final = {5: "no-match"}
"""A dead letter that is nobody's fault."""


@pytest.fixture(autouse=True)
def _no_pause_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "RETRY_FIRST", 0)


def number(name: str) -> int:
    return int(name.rpartition("-")[2])


def in_tables(folder: Path) -> dict[str, list[int]]:
    """Return the numbers of the events at each sink that is exactly once, sorted."""
    found = {
        "lake": [number(row["id"]) for row in shop.rows_of(folder / "lake")],
        "kinds": [number(row["id"]) for row in shop.rows_of(folder / "kinds" / "G" / "good")],
        "lines": [number(line["cloudevent"]["id"]) for line in plain.lines_of(folder / "lines")],
    }
    return {name: sorted(numbers) for name, numbers in found.items()}


def letters_of(folder: Path) -> dict[int, dict[str, Any]]:
    rows = shop.rows_of(folder / "dead")
    found = {number(row["position"]): row for row in rows}
    assert len(found) == len(rows)
    return found


def assert_all_but(folder: Path, bad: set[int], count: int = COUNT) -> None:
    """Assert that every record has its one outcome, and the bad ones became letters that name the fault."""
    good = [n for n in range(count) if n not in bad and n not in WRONG]
    assert in_tables(folder) == {"lake": good, "kinds": good, "lines": good}
    letters = letters_of(folder)
    assert {n: row["reason"] for n, row in letters.items()} == {**dict.fromkeys(bad, "undecodable"), **WRONG}


def test_the_records_that_fail_are_found_and_the_rest_goes_on(
    spark: SparkSession, state: StateFolder, tmp_path: Path
) -> None:
    count = 6
    rows = rows_of(spark, count, {2: RAISES, 3: DIES}, WRONG)
    with Webhook() as hook:
        line = Line(spark, state, poisoned(plan_of(tmp_path, hook.url)), generations.begin(state, INBOX, ()))
        line.pipeline.batch(rows, 0)
    assert_all_but(tmp_path, {2, 3}, count)
    letters = letters_of(tmp_path)
    assert letters[2]["detail"].startswith("ValueError: cannot judge body")
    assert letters[3]["detail"] == "a Python worker died (signal or out of memory)"
    assert (letters[2]["body"], letters[2]["endpoint"]) == (b"x" * RAISES, shop.SHOP)
    assert json.loads(letters[2]["native"])["path"] == "/shop"
    # A message target took each once too, since nothing was written before all was judged.
    assert Counter(number(request.header("ce-id") or "") for request in hook.taken) == Counter(
        n for n in range(count) if n not in {2, 3, 5}
    )
    assert line.counted("xrouter_records_total", outcome="routed") == count - 3
    assert line.counted("xrouter_records_total", outcome="dead-letter", reason="undecodable") == 2
    assert line.counted("xrouter_records_total", outcome="dead-letter", reason="no-match") == 1
    assert line.status.check_readiness()[1]["queries"][INBOX]["state"] == "running"


def test_a_batch_that_runs_out_of_memory_is_cut_until_it_fits(
    spark: SparkSession, state: StateFolder, tmp_path: Path
) -> None:
    count = 4 * CROWDS
    rows = rows_of(spark, count, {}, WRONG)
    with Webhook() as hook:
        line = Line(
            spark, state, poisoned(plan_of(tmp_path, hook.url), crowds=True), generations.begin(state, INBOX, ())
        )
        line.pipeline.batch(rows, 0)
    assert {n: row["reason"] for n, row in letters_of(tmp_path).items()} == WRONG
    assert line.counted("xrouter_records_total", outcome="routed") == count - 1
