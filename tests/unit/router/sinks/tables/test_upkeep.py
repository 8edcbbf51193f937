"""Tables stay small and whole: log and files are bounded while batches go on, through kills at every step of upkeep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from catalog.model import Catalog
from router.sinks import Commit
from router.sinks.contract import StagedCommit
from router.sinks.jsonlines import WIDE
from router.sinks.tables import upkeep as merging
from router.sinks.tables import upkeep as tending
from router.sinks.tables.delta import DeltaSink
from router.sinks.tables.upkeep import Upkeep
from tests.support.cases import read_cases
from tests.support.waiting import wait_until
from tests.unit.router.sinks.tables.tended_writer import APP, AT_ONCE, EVERY, write
from tests.unit.router.sinks.tables.test_staging import rows

CASES: Final[Mapping[str, Any]] = read_cases(Path(__file__).parents[4] / "cases" / "kill_points.yaml")

ROOT: Final = Path(__file__).parents[5]
HOUR: Final = timedelta(hours=1)
POINTS: Final = [tuple(each) for each in CASES["upkeep"]]
FEW: Final = (POINTS[2], POINTS[6])


def entries(folder: Path) -> list[Path]:
    return sorted((folder / "_delta_log").glob("*.json"))


def ids(files: Iterable[str]) -> Counter[str]:
    """Read the files that a log names, by an independent reader."""
    paths = (uri.removeprefix("file://") for uri in files)
    return Counter(each for path in paths for each in pq.ParquetFile(path).read(["id"])["id"].to_pylist())


def wanted(batches: int) -> Counter[str]:
    return Counter(f"{version}-{row}" for version in range(batches) for row in range(2))


@pytest.mark.slow
@pytest.mark.parametrize("batches", [60, pytest.param(1_000, marks=pytest.mark.full)])
def test_a_table_stays_small_while_batches_go_on(tmp_path: Path, batches: int) -> None:
    """Bounds are the same for any number of batches: those of one round, and of what is swept a little later."""
    upkeep = Upkeep("lake", 20, 1 << 20, timedelta(seconds=2))
    sink = DeltaSink("lake", str(tmp_path), WIDE, upkeep=upkeep)
    for version in range(batches):
        assert write(sink, version).rows == 2
        if version % 50 == 7:
            assert write(sink, version).repeated

    def small() -> bool:
        upkeep.maintain(str(tmp_path))
        return len(list((tmp_path / "_delta_log").iterdir())) <= 30 and len(list(tmp_path.glob("*.parquet"))) <= 10

    wait_until(small, 60, lambda: f"{len(entries(tmp_path))} entries")
    table = DeltaTable(tmp_path)
    assert len(table.file_uris()) <= 5
    assert ids(table.file_uris()) == wanted(batches)
    assert table.transaction_version(APP) == batches - 1
    history = Counter(each["operation"] for each in table.history())
    assert history["WRITE"] < batches
    again = DeltaSink("lake", str(tmp_path), WIDE)
    assert all(write(again, version).repeated for version in (0, batches // 2, batches - 1))
    assert ids(DeltaTable(tmp_path).file_uris()) == wanted(batches)


def test_many_small_files_are_merged_in_several_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "MOST", 6)
    monkeypatch.setattr(tending, "MOST", 6)
    sink = DeltaSink("lake", str(tmp_path), WIDE, partition_by=["type"])
    for version in range(6):
        for part in range(2):
            commit = Commit(f"{part}", version)
            given = sink.make_stager(commit)
            assert given is not None
            batch = rows(f"{version}-{part}", type=f"t {part}")
            sink.commit_staged(StagedCommit(tuple(given.write(batch, "0-x", Catalog()))), commit)
    assert Upkeep("lake", 5, 1 << 20, HOUR).maintain(str(tmp_path)) == (12, 2)
    table = DeltaTable(tmp_path)
    assert len(table.file_uris()) == 2 and ids(table.file_uris()) == wanted(6)
    assert [each["operation"] for each in table.history()].count("OPTIMIZE") == 2


def test_two_that_tend_a_table_at_once_double_nothing(tmp_path: Path) -> None:
    sink = DeltaSink("lake", str(tmp_path), WIDE)
    for version in range(30):
        write(sink, version)
    threads = [threading.Thread(target=Upkeep("lake", *AT_ONCE).maintain, args=[str(tmp_path)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert ids(DeltaTable(tmp_path).file_uris()) == wanted(30)


def test_batches_do_not_wait_for_upkeep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(self: Upkeep, uri: str) -> None:
        begun.set()
        assert go.wait(60)

    monkeypatch.setattr(Upkeep, "maintain", slow)
    sink = DeltaSink("lake", str(tmp_path), WIDE, upkeep=Upkeep("lake", 3, 1 << 20, HOUR))
    for version in range(3):
        write(sink, version)
    assert begun.wait(60)
    for version in range(3, 10):
        assert write(sink, version).rows == 2
    go.set()


def test_a_table_is_tended_however_often_routers_start(tmp_path: Path) -> None:
    for version in range(12):
        sink = DeltaSink("lake", str(tmp_path), WIDE, upkeep=Upkeep("lake", 10, 1 << 20, HOUR))
        write(sink, version)
    wait_until(lambda: len(DeltaTable(tmp_path).file_uris()) < 24, 60, "files to be merged")
    assert ids(DeltaTable(tmp_path).file_uris()) == wanted(12)


def test_what_a_batch_has_staged_is_left_alone(tmp_path: Path) -> None:
    sink, upkeep = DeltaSink("lake", str(tmp_path), WIDE), Upkeep("lake", *AT_ONCE)
    for version in range(4):
        write(sink, version)
    commit = Commit(APP, 4)
    given = sink.make_stager(commit)
    assert given is not None
    staged = StagedCommit(tuple(given.write(rows("4-0", "4-1"), "0-x", Catalog())))
    for file in staged.files:
        os.utime(tmp_path / file.path, (time.time() - 80_000,) * 2)
    for _ in range(2):
        upkeep.maintain(str(tmp_path))
    assert sink.commit_staged(staged, commit).rows == 2
    assert ids(DeltaTable(tmp_path).file_uris()) == wanted(5)


def test_orphans_of_any_kill_go_with_time(tmp_path: Path) -> None:
    sink, upkeep = DeltaSink("lake", str(tmp_path), WIDE), Upkeep("lake", *AT_ONCE)
    twice = sink.make_stager(Commit(APP, 0))
    assert twice is not None
    write(sink, 0)
    again = tmp_path / twice.write(rows("0-0"), "0-late", Catalog())[0].path
    merged = tmp_path / "part-00000-lost-c000.snappy.parquet"
    draft = tmp_path / "_delta_log" / "_commit_4d5c.json.tmp"
    foreign = tmp_path / "notes.txt"
    for file in (merged, draft, foreign):
        file.write_bytes(b"cut off")
    upkeep.maintain(str(tmp_path))
    assert merged.exists() and again.exists() and draft.exists()
    for file in (again, merged, draft, foreign):
        os.utime(file, (time.time() - 90_000,) * 2)
    upkeep.maintain(str(tmp_path))
    assert not again.exists() and not merged.exists() and not draft.exists() and foreign.exists()
    assert ids(DeltaTable(tmp_path).file_uris()) == wanted(1)


def test_readers_of_an_older_version_go_on_within_the_retention(tmp_path: Path) -> None:
    sink, upkeep = DeltaSink("lake", str(tmp_path), WIDE), Upkeep("lake", 5, 1 << 20, HOUR)
    readers = {}
    for version in range(20):
        write(sink, version)
        if version % 5 == 4:
            readers[version] = DeltaTable(tmp_path)
            upkeep.maintain(str(tmp_path))
    for version, reader in readers.items():
        assert ids(reader.file_uris()) == wanted(version + 1)
        assert ids(DeltaTable(tmp_path, version=reader.version()).file_uris()) == wanted(version + 1)


def test_another_writer_is_met_where_the_entry_is_written(tmp_path: Path) -> None:
    first, second = (DeltaSink("lake", str(tmp_path), WIDE) for _ in range(2))
    assert write(first, 0).rows == 2
    assert write(second, 0).repeated
    assert write(second, 1).rows == 2
    assert write(first, 1).repeated
    write_deltalake(tmp_path, DeltaTable(tmp_path).to_pyarrow_table().slice(0, 0), mode="append")
    assert write(first, 2).rows == 2
    assert write(second, 3).rows == 2
    assert ids(DeltaTable(tmp_path).file_uris()) == wanted(4)


def test_a_head_whose_entries_were_removed_reads_the_log_again(tmp_path: Path) -> None:
    first, second, upkeep = (
        DeltaSink("lake", str(tmp_path), WIDE),
        DeltaSink("lake", str(tmp_path), WIDE),
        Upkeep("lake", *AT_ONCE),
    )
    write(first, 0)
    for version in range(1, 6):
        write(second, version)
    upkeep.maintain(str(tmp_path))
    assert len(entries(tmp_path)) == 1
    assert write(first, 3).repeated
    assert write(first, 6).rows == 2
    assert ids(DeltaTable(tmp_path).file_uris()) == wanted(7)


@pytest.mark.slow
def test_killed_at_some_steps(tmp_path: Path) -> None:
    step_through(tmp_path / "lake", FEW)


@pytest.mark.full
def test_killed_at_every_step(tmp_path: Path) -> None:
    step_through(tmp_path / "lake", POINTS)


def step_through(folder: Path, points: Iterable[tuple[str, str]]) -> None:
    """Let a writer of the same batches die at each point in turn, in its second round; look at the table each time."""
    ended = 0
    for number, (point, when) in enumerate(points):
        batches = (number + 2) * EVERY
        assert run(folder, batches, point, when, "1") == -signal.SIGKILL, f"it did not die {when} {point}"
        found = ids(DeltaTable(folder).file_uris())
        assert set(found.values()) == {1} and set(found) <= set(wanted(batches))
        assert len(found) >= ended
        ended = len(found)
    assert run(folder, batches) == 0
    assert ids(DeltaTable(folder).file_uris()) == wanted(batches)
    assert len(entries(folder)) <= 2 * EVERY


def run(folder: Path, batches: int, *death: str) -> int:
    script = Path(__file__).with_name("tended_writer.py")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, str(script), str(folder), str(batches), *death], env=environ, timeout=120
    ).returncode
