"""``xrouter demo`` as users run it: it ends by itself and its sum is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.router import submit_options

LIMIT_SECONDS = 400


@pytest.mark.timeout(LIMIT_SECONDS + 30)
def test_the_demo_ends_by_itself_and_adds_up(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    command = [sys.executable, "-m", "xrouter", "demo", "--keep", str(folder)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        stdin=subprocess.DEVNULL,
        check=False,
        env={**os.environ, **submit_options()},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "416 in = 400 routed + 16 dead-lettered: adds up" in done.stdout
    for shown in ("Market.Tills.Sale", "no-match", "invalid-cloudevent", "undecodable", "/metrics"):
        assert shown in done.stdout
    events = DeltaTable(str(folder / "data" / "events")).to_pyarrow_table().to_pylist()
    letters = DeltaTable(str(folder / "data" / "dead_letters")).to_pyarrow_table().to_pylist()
    assert (len(events), len(letters)) == (400, 16)
    assert len({(row["source"], row["id"]) for row in events if not row["message"].endswith("DrawerOpened")}) == 360
    # Rows lie in the order of batches and partitions, which is nobody's promise.
    [sale] = [row for row in events if row["message"].endswith("Sale") and row["id"] == "7-R1"]
    assert sale["source"] == "/stores/7/tills/2"
    assert json.loads(sale["native"])["path"] == "/stores/7/tills/2/sales"
