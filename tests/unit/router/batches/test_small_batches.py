"""A small batch is read by fewer tasks than its topics have partitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from router.batches.splitting import TASK_RECORDS, Splitting
from router.machine import BatchSizing
from router.reading.generations import Generation
from router.state.database import StateDatabase
from router.state.state import BatchStore


class Rows:
    """Stands for the rows of a batch, and knows how many tasks are to read them."""

    tasks: int | None = None

    def coalesce(self, tasks: int) -> Rows:
        """Have so many tasks read them."""
        self.tasks = tasks
        return self


@pytest.mark.parametrize(
    ("ends", "tasks"),
    [
        ([100, 100], 1),
        ([TASK_RECORDS, 1], None),
        ([TASK_RECORDS - 1, 1], 1),
        ([600, 600, 600], 2),
        ([100, 0, 0], None),
        ([0, 0], None),
        ([100_000] * 50, None),
        ([100] * 50, 5),
    ],
)
def test_tasks_are_as_many_as_its_records_are_worth(tmp_path: Path, ends: list[int], tasks: int | None) -> None:
    rows: Any = Rows()
    assert splitting(tmp_path, ends, 0).rows(rows) is rows
    assert rows.tasks == tasks


def test_a_batch_whose_offsets_are_not_known_is_read_as_it_is(tmp_path: Path) -> None:
    rows: Any = Rows()
    splitting(tmp_path, [100, 100], 1).rows(rows)
    assert rows.tasks is None


def splitting(folder: Path, ends: list[int], batch: int) -> Splitting:
    """Return a batch of a query whose first batch ends there in each partition of its topic."""
    (folder / "offsets").mkdir()
    told = {"a": {str(number): end for number, end in enumerate(ends)}}
    (folder / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(told)}")
    starts = json.dumps({"a": {str(number): 0 for number in range(len(ends))}})
    generation = Generation(folder, "g", ("a",), starts)
    store = BatchStore(StateDatabase(folder))
    made = Splitting(store, "kafka-1", "kafka", generation, BatchSizing(2**26, 100_000))
    made.begin(batch)
    return made
