"""The log of a Delta table on a disk, read and written entry by entry.

delta-rs reads the log well, and writes less than we need: it knows no in-commit timestamps and no row tracking, lets
two rewrites of the same files both commit, and reads all entries since the last checkpoint around each of its commits.
So entries are ours. Each is written beside the log and linked to the name of its version, which fails when anybody has
that version: whoever links one knows every entry before it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import CommitFailedError

from bindings.private import sync_path

Action = Mapping[str, Any]
"""One line of an entry: the kind of the action, and its members."""
DRAFT: Final = "_commit_*.json.tmp"
"""Names of entries that are not linked yet, ours and those of delta-rs."""
ENGINE: Final = f"xregistry-router {version('xregistry-router')}"
_CHECKPOINT: Final = re.compile(r"([0-9]{20})\.checkpoint\..*(?:parquet|json)")
_ADDING: Final = frozenset({"add", "remove", "cdc", "commitInfo", "txn", "domainMetadata", "checkpointMetadata"})
"""Kinds of actions that change neither what a table is nor how it is written."""


class Log:
    """The log of the table in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "_delta_log"

    def entry(self, number: int) -> Path:
        """Return where the entry of a version is."""
        return self._folder / f"{number:020d}.json"

    def actions(self, number: int) -> list[Any]:
        """Return the actions of a version.

        Raises:
            FileNotFoundError: there is no such entry, or not any more.
        """
        # Lines end in a line feed and nothing else: texts of statistics hold other separators of Unicode as they are.
        return [msgspec.json.decode(line) for line in self.entry(number).read_bytes().split(b"\n") if line.strip()]

    def newest(self, kind: str, number: int, wanted: Callable[[Action], bool] = lambda _: True) -> Any:
        """Return the newest action of a kind, as it stands in the log up to a version; None when there is none."""
        checkpoint = max((each for each in self._checkpoints() if each <= number), default=-1)
        for each in range(number, checkpoint, -1):
            for action in reversed(self.actions(each)):
                if kind in action and wanted(action[kind]):
                    return action[kind]
        return next((each for each in self._kept(kind, checkpoint) if wanted(each)), None)

    def files(self, number: int, below: int) -> dict[tuple[str, str], Any]:
        """Return the files of a table at a version that have fewer bytes than *below*, as actions ``add``.

        They are by path and deletion vector. Of a table with many large files, few are held in memory.
        """
        checkpoint = max((each for each in self._checkpoints() if each <= number), default=-1)
        sidecars = (self._folder / "_sidecars" / each["path"] for each in self._kept("sidecar", checkpoint))
        beside = (add for file in sidecars for add in _column(file, "add", below))
        known = {_file_key(add): add for add in (*self._kept("add", checkpoint, below), *beside)}
        for each in range(checkpoint + 1, number + 1):
            for action in self.actions(each):
                if "remove" in action:
                    known.pop(_file_key(action["remove"]), None)
            for action in self.actions(each):
                if "add" in action:
                    known[_file_key(action["add"])] = action["add"]
        return {key: add for key, add in known.items() if add["size"] < below}

    def link(self, number: int, actions: Iterable[Action]) -> None:
        """Write the entry of a version, which is on the disk then.

        Raises:
            CommitFailedError: another entry was there first, or took the place of ours.
            OSError: the file system refuses; nothing was written.
        """
        # Old entries are removed from the oldest on: without the one before, the next may have been there and be gone.
        if not self.entry(number - 1).exists():
            raise CommitFailedError(f"version {number - 1} is not there any more")
        draft, entry = self._folder / DRAFT.replace("*", str(uuid4())), self.entry(number)
        try:
            with draft.open("xb") as file:
                file.write(b"".join(msgspec.json.encode(action) + b"\n" for action in actions))
                file.flush()
                os.fsync(file.fileno())
                ours = os.fstat(file.fileno()).st_ino
            os.link(draft, entry)
        except FileExistsError as error:
            raise CommitFailedError(f"version {number} is there already") from error
        finally:
            with suppress(OSError):
                draft.unlink()
        sync_path(self._folder)
        # Spark on a local disk looks whether the name is free and renames then: in between, it replaces what we linked.
        if entry.stat().st_ino != ours:
            raise CommitFailedError(f"version {number} was replaced by another writer")

    def _checkpoints(self) -> Iterator[int]:
        names = (_CHECKPOINT.fullmatch(file.name) for file in self._folder.glob("*.checkpoint*"))
        yield from (int(name[1]) for name in names if name)

    def _kept(self, kind: str, number: int, below: int | None = None) -> Iterator[Any]:
        """Yield the actions of a kind that a checkpoint has, of files those with fewer bytes than *below*."""
        for file in self._folder.glob(f"{number:020d}.checkpoint*"):
            if file.suffix == ".json":
                lines = (msgspec.json.decode(line) for line in file.read_bytes().split(b"\n") if line.strip())
                yield from (action[kind] for action in lines if kind in action)
            else:
                yield from _column(file, kind, below)


def _file_key(file: Action) -> tuple[str, str]:
    vector = file.get("deletionVector") or {}
    return file["path"], f"{vector.get('storageType', '')}{vector.get('pathOrInlineDv', '')}{vector.get('offset', '')}"


def changes_the_table(action: Action) -> bool:
    """Whether an action may change what a table is, or how it is written."""
    return not action.keys() <= _ADDING


def _column(file: Path, kind: str, below: int | None = None) -> Iterator[Any]:
    """Yield the actions of a kind that a Parquet file of a checkpoint has, of files those with fewer bytes."""
    content = pq.ParquetFile(file)
    if kind not in content.schema_arrow.names:
        return
    for batch in content.iter_batches(columns=[kind]):
        column = batch.column(kind).drop_null()
        if below is not None:
            column = column.filter(pc.less(pc.struct_field(column, "size"), below))
        yield from (_plain(each, column.type) for each in column.to_pylist())


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return what Arrow made of an action as its JSON is: maps as objects, and no members without a value."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        members = {field.name: _plain(value[field.name], field.type) for field in kind}
        return {name: each for name, each in members.items() if each is not None}
    if pa.types.is_map(kind):
        return {name: _plain(each, kind.item_type) for name, each in value}
    if pa.types.is_list(kind):
        return [_plain(each, kind.value_type) for each in value]
    return value
