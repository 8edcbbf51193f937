"""Tables that other engines write to as well: whatever they commit, and whenever, each row is there once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
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
from router.sinks.tables.delta import DeltaSink
from router.sinks.tables.head import TableHead, TableLog
from router.sinks.tables.upkeep import Upkeep
from tests.unit.router.sinks.tables.tended_writer import APP, AT_ONCE, write
from tests.unit.router.sinks.tables.test_staging import ids, rows, staged

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
