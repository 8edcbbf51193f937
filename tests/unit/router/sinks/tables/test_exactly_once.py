"""A process killed again and again at odd moments leaves each batch in the table exactly once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

ROOT = Path(__file__).parents[5]
BATCHES = 25
ROWS = 50
TRIES = 20
"""How often a process is begun that is to be killed: on a busy machine some end before."""


def ids(kind: str, folder: Path) -> Counter[str]:
    if kind == "delta":
        table = DeltaTable(folder)
        files = [Path(uri.removeprefix("file://")) for uri in table.file_uris()]
        return Counter(i for file in files for i in pq.ParquetFile(file).read(["id"])["id"].to_pylist())
    if kind == "parquet":
        files = sorted(folder.glob("*.parquet"))
        return Counter(i for file in files for i in pq.ParquetFile(file).read(["id"])["id"].to_pylist())
    lines = [line for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
    return Counter(json.loads(line)["cloudevent"]["id"] for line in lines)


def start(kind: str, folder: Path) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("repeated_writer.py")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), kind, str(folder), str(BATCHES)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", ["delta", "parquet", "jsonl"])
def test_kills_at_random_points(kind: str, kills: int, tmp_path: Path) -> None:
    chance = random.Random(7)
    folder = tmp_path / "lake"
    killed = 0
    for _ in range(TRIES):
        if killed == kills:
            break
        with start(kind, folder) as process:
            assert process.stdout is not None
            for _ in range(chance.randrange(1, BATCHES)):
                process.stdout.readline()
            try:
                # The point of death, not a synchronisation: somewhere inside the writes that follow.
                process.wait(chance.uniform(0, 0.03))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                killed += 1
    assert killed == kills
    with start(kind, folder) as process:
        assert process.wait(60) == 0
    assert ids(kind, folder) == Counter(f"{version}-{row}" for version in range(BATCHES) for row in range(ROWS))
