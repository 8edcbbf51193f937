"""Rows of Delta tables are read without Python in Arrow's threads, which an ending process would trip over."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from router.sinks.tables.head import open_dataset
from tests.support.weights import ROOT

ODD = ["a b", "c:d", "e%20f", "g/h", "ü", "i#j?k", "l=m", None]
"""Values that no folder has as they are."""


@pytest.mark.parametrize("name", ["table", "of tästs + more"])
def test_rows_of_odd_places_are_those_that_were_written(tmp_path: Path, name: str) -> None:
    folder = str(tmp_path / name)
    rows = pa.table({"key": pa.array(ODD), "number": list(range(len(ODD)))})
    write_deltalake(folder, rows, partition_by=["key"])
    dataset = open_dataset(DeltaTable(folder))
    assert dataset.to_table().sort_by("number").select(["key", "number"]).to_pylist() == rows.to_pylist()
    assert dataset.count_rows(filter=pc.field("number") > 4) == len(ODD) - 5
    assert "py" not in dataset.filesystem.type_name and dataset.filesystem.type_name.startswith("subtree")


def test_nobody_reads_them_otherwise() -> None:
    asking = [path.name for path in (ROOT / "router").rglob("*.py") if ".to_pyarrow_" in path.read_text("utf-8")]
    assert asking == ["head.py"]
