"""Tables stay small and whole: log and files are bounded while batches go on, through kills at every step of upkeep."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import PrimitiveType

from catalog.model import Catalog
from router.errors import SinkError
from router.sinks import Commit
from router.sinks.contract import StagedCommit
from router.sinks.jsonlines import WIDE
from router.sinks.tables import head
from router.sinks.tables import upkeep as merging
from router.sinks.tables import upkeep as tending
from router.sinks.tables.delta import DeltaSink
from router.sinks.tables.head import TableHead, TableLog
from router.sinks.tables.upkeep import Upkeep
from tests.support.cases import read_cases
from tests.support.waiting import wait_until
from tests.unit.router.sinks.tables.tended_writer import APP, AT_ONCE, EVERY, write
from tests.unit.router.sinks.tables.test_staging import ids, rows, staged

CASES: Final[Mapping[str, Any]] = read_cases(Path(__file__).parents[4] / "cases" / "kill_points.yaml")

ROOT: Final = Path(__file__).parents[5]
HOUR: Final = timedelta(hours=1)
POINTS: Final = [tuple(each) for each in CASES["upkeep"]]
FEW: Final = (POINTS[2], POINTS[6])


def entries(folder: Path) -> list[Path]:
    return sorted((folder / "_delta_log").glob("*.json"))


def ids_of(files: Iterable[str]) -> Counter[str]:
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
    assert ids_of(table.file_uris()) == wanted(batches)
    assert table.transaction_version(APP) == batches - 1
    history = Counter(each["operation"] for each in table.history())
    assert history["WRITE"] < batches
    again = DeltaSink("lake", str(tmp_path), WIDE)
    assert all(write(again, version).repeated for version in (0, batches // 2, batches - 1))
    assert ids_of(DeltaTable(tmp_path).file_uris()) == wanted(batches)


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
    assert len(table.file_uris()) == 2 and ids_of(table.file_uris()) == wanted(6)
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
    assert ids_of(DeltaTable(tmp_path).file_uris()) == wanted(30)


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
    assert ids_of(DeltaTable(tmp_path).file_uris()) == wanted(12)


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
    assert ids_of(DeltaTable(tmp_path).file_uris()) == wanted(5)


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
    assert ids_of(DeltaTable(tmp_path).file_uris()) == wanted(1)


def test_readers_of_an_older_version_go_on_within_the_retention(tmp_path: Path) -> None:
    sink, upkeep = DeltaSink("lake", str(tmp_path), WIDE), Upkeep("lake", 5, 1 << 20, HOUR)
    readers = {}
    for version in range(20):
        write(sink, version)
        if version % 5 == 4:
            readers[version] = DeltaTable(tmp_path)
            upkeep.maintain(str(tmp_path))
    for version, reader in readers.items():
        assert ids_of(reader.file_uris()) == wanted(version + 1)
        assert ids_of(DeltaTable(tmp_path, version=reader.version()).file_uris()) == wanted(version + 1)


def test_another_writer_is_met_where_the_entry_is_written(tmp_path: Path) -> None:
    first, second = (DeltaSink("lake", str(tmp_path), WIDE) for _ in range(2))
    assert write(first, 0).rows == 2
    assert write(second, 0).repeated
    assert write(second, 1).rows == 2
    assert write(first, 1).repeated
    write_deltalake(tmp_path, DeltaTable(tmp_path).to_pyarrow_table().slice(0, 0), mode="append")
    assert write(first, 2).rows == 2
    assert write(second, 3).rows == 2
    assert ids_of(DeltaTable(tmp_path).file_uris()) == wanted(4)


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
    assert ids_of(DeltaTable(tmp_path).file_uris()) == wanted(7)


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
        found = ids_of(DeltaTable(folder).file_uris())
        assert set(found.values()) == {1} and set(found) <= set(wanted(batches))
        assert len(found) >= ended
        ended = len(found)
    assert run(folder, batches) == 0
    assert ids_of(DeltaTable(folder).file_uris()) == wanted(batches)
    assert len(entries(folder)) <= 2 * EVERY


def run(folder: Path, batches: int, *death: str) -> int:
    script = Path(__file__).with_name("tended_writer.py")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, str(script), str(folder), str(batches), *death], env=environ, timeout=120
    ).returncode


# Tables that other engines write to as well: whatever they commit, and whenever, each row is there once.


Change = Callable[[DeltaTable], Any]
CHANGES: Final[Mapping[str, Change]] = {
    "compact": lambda table: table.optimize.compact(),
    "z-order": lambda table: table.optimize.z_order(["id"]),
    "delete": lambda table: table.delete("id = '1-0'"),
    "update": lambda table: table.update(new_values={"type": "changed"}, predicate="id = '1-0'"),
    "merge": lambda table: (
        table.merge(pa.table({"id": ["1-0"]}), "s.id = t.id", "s", "t").when_matched_delete().execute()
    ),
    "restore": lambda table: table.restore(table.version() - 1),
    "append": lambda table: write_deltalake(table, rows("foreign"), mode="append"),
    "overwrite": lambda table: write_deltalake(table, rows("foreign"), mode="overwrite"),
    "vacuum": lambda table: table.vacuum(0, dry_run=False, enforce_retention_duration=False),
    "properties": lambda table: table.alter.set_table_properties({"delta.appendOnly": "false"}),
    "column": lambda table: table.alter.add_columns([Field("more", PrimitiveType("string"))]),
}
AFTER: Final[Mapping[str, Callable[[list[str]], list[str]]]] = {
    "delete": lambda known: [each for each in known if each != "1-0"],
    "merge": lambda known: [each for each in known if each != "1-0"],
    "restore": lambda known: [each for each in known if not each.startswith("3-")],
    "append": lambda known: sorted([*known, "foreign"]),
    "overwrite": lambda known: ["foreign"],
}
"""What a change that was committed leaves of the rows; all where it is not named."""
BATCHES: Final = 4


def table_of(folder: Path) -> DeltaSink:
    """Make a table of some small files that upkeep has not seen yet, but for what it sets in the table."""
    sink = DeltaSink("lake", str(folder), WIDE, grows=True)
    write(sink, 0)
    Upkeep("lake", *AT_ONCE)._set_retention(str(folder), folder)
    for version in range(1, BATCHES):
        write(sink, version)
    return sink


def known() -> list[str]:
    return sorted(f"{version}-{row}" for version in range(BATCHES) for row in range(2))


def committed(change: Callable[[], Any]) -> bool:
    """Make a change, and return whether it was committed; whoever was first makes the other begin anew."""
    try:
        change()
    except (DeltaError, FileNotFoundError):
        return False
    return True


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_began_before_our_merge_ends_before_or_after_it(name: str, tmp_path: Path) -> None:
    sink, theirs = table_of(tmp_path), DeltaTable(tmp_path)
    began = DeltaTable(tmp_path)
    assert merging.merge_small_files(str(tmp_path), tmp_path, 1 << 20).before == 2 * BATCHES
    done = committed(lambda: CHANGES[name](began))
    assert theirs.version() < DeltaTable(tmp_path).version()
    expected = AFTER.get(name, list)(known()) if done else known()
    assert ids(tmp_path) == expected
    assert write(sink, BATCHES).rows == 2
    assert ids(tmp_path) == sorted([*expected, f"{BATCHES}-0", f"{BATCHES}-1"])


@pytest.mark.parametrize("name", CHANGES)
def test_a_merge_that_began_before_their_change_gives_up_or_has_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table_of(tmp_path)
    replace = merging._commit_replacement
    done: list[bool] = []

    def interrupted(*arguments: Any) -> bool:
        if not done:
            done.append(committed(lambda: CHANGES[name](DeltaTable(tmp_path))))
        return replace(*arguments)

    monkeypatch.setattr(merging, "_commit_replacement", interrupted)
    merging.merge_small_files(str(tmp_path), tmp_path, 1 << 20)
    expected = AFTER.get(name, list)(known()) if done == [True] else known()
    assert done and ids(tmp_path) == expected
    assert write(sink, BATCHES).rows == 2
    assert merging.merge_small_files(str(tmp_path), tmp_path, 1 << 20).before
    assert ids(tmp_path) == sorted([*expected, f"{BATCHES}-0", f"{BATCHES}-1"])


def test_a_merge_meets_appends_of_batches_and_commits_behind_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table_of(tmp_path)
    rewrite, more = TableHead.replace_files, iter(range(BATCHES, BATCHES + 3))

    def late(self: TableHead, *arguments: Any) -> None:
        for version in more:
            write(sink, version)
            break
        rewrite(self, *arguments)

    monkeypatch.setattr(TableHead, "replace_files", late)
    assert merging.merge_small_files(str(tmp_path), tmp_path, 1 << 20).before == 2 * BATCHES
    assert ids(tmp_path) == sorted([*known(), *(f"{BATCHES + each}-{row}" for each in range(3) for row in range(2))])


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def vacuum(file: Path) -> None:
    DeltaTable(file.parent).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


def remove_folder(file: Path) -> None:
    shutil.rmtree(file.parent)


@pytest.mark.parametrize("loss", [cut, Path.unlink, vacuum, remove_folder])
def test_files_that_are_gone_before_their_commit_are_staged_again(loss: Callable[[Path], Any], tmp_path: Path) -> None:
    sink = DeltaSink("lake", str(tmp_path / "t"), WIDE)
    write(sink, 0)
    commit = Commit(APP, 1)
    files = staged(sink, commit, rows("1-0"), rows("1-1"))
    loss(tmp_path / "t" / files.files[1].path)
    with pytest.raises(SinkError, match="missing or truncated"):
        sink.commit_staged(files, commit)
    assert not files.offered
    assert write(sink, 1).rows == 2
    expected = ["1-0", "1-1"] if loss is remove_folder else ["0-0", "0-1", "1-0", "1-1"]
    assert ids(tmp_path / "t") == expected


@pytest.mark.parametrize("dies", [False, True], ids=["in the same process", "by the next process"])
def test_a_commit_whose_files_go_at_that_very_moment_is_taken_back(
    dies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = DeltaSink("lake", str(tmp_path), WIDE)
    write(sink, 0)
    commit = Commit(APP, 1)
    files = staged(sink, commit, rows("1-0"), rows("1-1"))
    append = TableHead.append

    def raced(self: TableHead, *arguments: Any) -> None:
        append(self, *arguments)
        (tmp_path / files.files[0].path).unlink()
        if dies:
            raise KeyboardInterrupt

    monkeypatch.setattr(TableHead, "append", raced)
    with pytest.raises(KeyboardInterrupt if dies else SinkError):
        sink.commit_staged(files, commit)
    monkeypatch.undo()
    if dies:
        sink = DeltaSink("lake", str(tmp_path), WIDE)
        with pytest.raises(SinkError, match="removed by another writer"):
            write(sink, 1)
    assert not sink.has_commit(commit)
    assert write(sink, 1).rows == 2
    assert write(sink, 1).repeated
    assert ids(tmp_path) == ["0-0", "0-1", "1-0", "1-1"]


def test_a_merge_whose_file_goes_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table_of(tmp_path)
    rewrite = TableHead.replace_files

    def raced(self: TableHead, removed: Any, added: Any) -> None:
        rewrite(self, removed, added)
        for file in added:
            if "-merged" in file["path"]:
                (tmp_path / file["path"]).unlink()

    monkeypatch.setattr(TableHead, "replace_files", raced)
    before = TableLog(tmp_path).find_files_below(DeltaTable(tmp_path).version(), 1 << 20)
    assert merging.merge_small_files(str(tmp_path), tmp_path, 1 << 20).before == 0
    assert ids(tmp_path) == known()
    after = TableLog(tmp_path).find_files_below(DeltaTable(tmp_path).version(), 1 << 20)
    assert {key: {**add, "dataChange": True} for key, add in after.items()} == before


def test_a_file_with_a_deletion_vector_is_left_alone_and_the_others_are_merged(tmp_path: Path) -> None:
    table_of(tmp_path)
    log, version = TableLog(tmp_path), DeltaTable(tmp_path).version()
    file, *others = log.find_files_below(version, 1 << 20).values()
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 1, "sizeInBytes": 36}
    features = ["deletionVectors", "appendOnly", "invariants"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features[:1],
        "writerFeatures": features,
    }
    marked = {**file, "deletionVector": {**vector, "cardinality": 1}}
    log.write_entry(version + 1, [{"protocol": protocol}, {"remove": {**file, "dataChange": True}}, {"add": marked}])
    assert merging.merge_small_files(str(tmp_path), tmp_path, 1 << 20) == (len(others), 1)
    left = log.find_files_below(version + 2, 1 << 20).values()
    assert [each for each in left if "deletionVector" in each] == [marked] and len(left) == 2


def test_an_entry_that_another_writer_renames_over_ours_is_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark on a local disk looks whether the name of a version is free, and renames to it then."""
    sink = DeltaSink("lake", str(tmp_path), WIDE)
    write(sink, 0)
    link = os.link
    raced: list[Path] = []

    def overwritten(draft: Path, entry: Path) -> None:
        link(draft, entry)
        if not raced:
            raced.append(entry)
            theirs = tmp_path / "theirs.json"
            theirs.write_text('{"commitInfo":{"timestamp":1,"operation":"WRITE"}}\n')
            theirs.rename(entry)

    monkeypatch.setattr(os, "link", overwritten)
    assert write(sink, 1).rows == 2
    assert raced and ids(tmp_path) == ["0-0", "0-1", "1-0", "1-1"]


def test_many_commits_of_others_hold_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = DeltaSink("lake", str(tmp_path), WIDE)
    write(sink, 0)
    link, busy = head.TableLog.write_entry, iter(range(10))

    def raced(self: head.TableLog, number: int, actions: Any) -> None:
        for _ in busy:
            write_deltalake(tmp_path, rows("foreign"), mode="append")
            break
        link(self, number, actions)

    monkeypatch.setattr(head.TableLog, "write_entry", raced)
    assert write(sink, 1).rows == 2
    assert len(ids(tmp_path)) == 14


def test_who_never_lets_us_commit_is_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, commit = DeltaSink("lake", str(tmp_path), WIDE), Commit(APP, 1)
    write(sink, 0)
    staging = sink.make_stager(commit)
    assert staging is not None

    def refused(self: head.TableLog, number: int, actions: Any) -> None:
        raise CommitFailedError(f"version {number} is there already")

    monkeypatch.setattr(head.TableLog, "write_entry", refused)
    with pytest.raises(SinkError, match="consecutive commits failed"):
        sink.commit_staged(StagedCommit(tuple(staging.write(rows("1-0"), "0-x", Catalog()))), commit)
