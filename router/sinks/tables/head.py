"""The head of a Delta table's log: what the next append needs, without reading the log.

Appending files that are on disk already is one log entry, linked to the name of the next version: if that succeeds, no
other entry was missed. With delta-rs the same needs thirty times the CPU time, and it rejects tables with in-commit
timestamps, row tracking, clustering, widened types or column defaults, although an append hardly needs to support them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import PostCommitHookProperties
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from bindings.private_files import hold_lock, sync_path
from router.settings.values import is_url
from router.sinks.contract import Commit, StagedFile
from router.sinks.tables.requirements import TableRequirements, strip_constraints

# The log of a Delta table on disk, read and written entry by entry.
#
# delta-rs can write too little for us: it does not support in-commit timestamps and row tracking, lets two rewrites of
# the same files both commit, and reads all entries since the last checkpoint for each commit. So we write the entries.
# Each is written to a draft and linked to the name of its version, which fails if the version exists.

Action = Mapping[str, Any]
"""One line of an entry: the kind of the action, and its members."""
DRAFT: Final = "_commit_*.json.tmp"
"""Pattern of entries that are not linked yet, ours and those of delta-rs."""
ENGINE: Final = f"xregistry-router {version('xregistry-router')}"
_CHECKPOINT: Final = re.compile(r"([0-9]{20})\.checkpoint\..*(?:parquet|json)")
_ADDING: Final = frozenset({"add", "remove", "cdc", "commitInfo", "txn", "domainMetadata", "checkpointMetadata"})
"""Kinds of actions that change neither a table's definition nor how it is written."""


class TableLog:
    """The log of the table in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "_delta_log"

    def entry_path(self, number: int) -> Path:
        """Return the path of a version's entry."""
        return self._folder / f"{number:020d}.json"

    def read_actions(self, number: int) -> list[Any]:
        """Return the actions of a version.

        Raises:
            FileNotFoundError: the entry does not exist (any more).
        """
        # Split at line feeds only: texts in statistics may contain other line separators of Unicode.
        return [msgspec.json.decode(line) for line in self.entry_path(number).read_bytes().split(b"\n") if line.strip()]

    def find_newest(self, kind: str, number: int, wanted: Callable[[Action], bool] = lambda _: True) -> Any:
        """Return the newest action of a kind in the log up to a version; None if there is none."""
        checkpoint = max((each for each in self._iter_checkpoints() if each <= number), default=-1)
        for each in range(number, checkpoint, -1):
            for action in reversed(self.read_actions(each)):
                if kind in action and wanted(action[kind]):
                    return action[kind]
        return next((each for each in self._iter_actions(kind, checkpoint) if wanted(each)), None)

    def find_files_below(self, number: int, below: int) -> dict[tuple[str, str], Any]:
        """Return the files of a table at a version that have fewer bytes than *below*, as actions ``add``.

        The keys are path and deletion vector. Large files are skipped early, to save memory.
        """
        checkpoint = max((each for each in self._iter_checkpoints() if each <= number), default=-1)
        sidecars = (self._folder / "_sidecars" / each["path"] for each in self._iter_actions("sidecar", checkpoint))
        beside = (add for file in sidecars for add in _iter_file_actions(file, "add", below))
        known = {_file_key(add): add for add in (*self._iter_actions("add", checkpoint, below), *beside)}
        for each in range(checkpoint + 1, number + 1):
            for action in self.read_actions(each):
                if "remove" in action:
                    known.pop(_file_key(action["remove"]), None)
            for action in self.read_actions(each):
                if "add" in action:
                    known[_file_key(action["add"])] = action["add"]
        return {key: add for key, add in known.items() if add["size"] < below}

    def write_entry(self, number: int, actions: Iterable[Action]) -> None:
        """Write the entry of a version durably.

        Raises:
            CommitFailedError: another writer has the version, or replaced our entry.
            OSError: nothing was written.
        """
        # Old entries are removed, oldest first: without the previous entry, this version may have existed before.
        if not self.entry_path(number - 1).exists():
            raise CommitFailedError(f"version {number - 1} no longer exists")
        draft, entry = self._folder / DRAFT.replace("*", str(uuid4())), self.entry_path(number)
        try:
            with draft.open("xb") as file:
                file.write(b"".join(msgspec.json.encode(action) + b"\n" for action in actions))
                file.flush()
                os.fsync(file.fileno())
                ours = os.fstat(file.fileno()).st_ino
            os.link(draft, entry)
        except FileExistsError as error:
            raise CommitFailedError(f"version {number} exists already") from error
        finally:
            with suppress(OSError):
                draft.unlink()
        sync_path(self._folder)
        # Spark on a local disk checks that the name is free and then renames, which may replace our entry.
        if entry.stat().st_ino != ours:
            raise CommitFailedError(f"version {number} was replaced by another writer")

    def _iter_checkpoints(self) -> Iterator[int]:
        names = (_CHECKPOINT.fullmatch(file.name) for file in self._folder.glob("*.checkpoint*"))
        yield from (int(name[1]) for name in names if name)

    def _iter_actions(self, kind: str, number: int, below: int | None = None) -> Iterator[Any]:
        """Yield the actions of a kind in a checkpoint; if *below* is set, only of files with fewer bytes."""
        for file in self._folder.glob(f"{number:020d}.checkpoint*"):
            if file.suffix == ".json":
                lines = (msgspec.json.decode(line) for line in file.read_bytes().split(b"\n") if line.strip())
                yield from (action[kind] for action in lines if kind in action)
            else:
                yield from _iter_file_actions(file, kind, below)


def _file_key(file: Action) -> tuple[str, str]:
    vector = file.get("deletionVector") or {}
    return file["path"], f"{vector.get('storageType', '')}{vector.get('pathOrInlineDv', '')}{vector.get('offset', '')}"


def _iter_file_actions(file: Path, kind: str, below: int | None = None) -> Iterator[Any]:
    """Yield the actions of a kind in a Parquet file of a checkpoint; with *below*, only of files with fewer bytes."""
    content = pq.ParquetFile(file)
    if kind not in content.schema_arrow.names:
        return
    for batch in content.iter_batches(columns=[kind]):
        column = batch.column(kind).drop_null()
        if below is not None:
            column = column.filter(pc.less(pc.struct_field(column, "size"), below))
        yield from (_to_json_value(each, column.type) for each in column.to_pylist())


def _to_json_value(value: Any, kind: pa.DataType) -> Any:
    """Convert an action from Arrow's form to its JSON form: maps as objects, members without a value omitted."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        members = {field.name: _to_json_value(value[field.name], field.type) for field in kind}
        return {name: each for name, each in members.items() if each is not None}
    if pa.types.is_map(kind):
        return {name: _to_json_value(each, kind.item_type) for name, each in value}
    if pa.types.is_list(kind):
        return [_to_json_value(each, kind.value_type) for each in value]
    return value


# Files that are complete or absent, even after a crash of the machine.

_REWRITING: Final = ".xrouter-rewriting.lock"


def local_folder(uri: str) -> Path | None:
    """Return the folder of a table on disk; None for a table in an object store."""
    local = uri.removeprefix("file://")
    return None if is_url(local) else Path(local)


def make_changes_durable(uri: str, table: DeltaTable, before: int) -> None:
    """Update *table* to its newest version, and make all commits after the version *before* durable."""
    table.update_incremental()
    for number in range(before + 1, table.version() + 1):
        make_durable(uri, number)


def make_durable(uri: str, version: int) -> None:
    """Make the files of one commit, and its log entry, durable; does nothing for an object store."""
    folder = local_folder(uri)
    if folder is None:
        return
    log = TableLog(folder)
    entry = log.entry_path(version)
    added = [folder / unquote(action["add"]["path"]) for action in log.read_actions(version) if "add" in action]
    folders = {file.parent for file in added}
    for file in (*added, entry, *folders, folder, entry.parent):
        sync_path(file)


def hold_rewrite_lock(uri: str) -> AbstractContextManager[Any]:
    """Hold this machine's lock on replacing files of a table; wait while another process has it.

    delta-rs lets two rewrites of the same files both commit, which would duplicate rows. Appends do not need the lock.
    There is no lock for object stores: only one router may maintain a table there.
    """
    folder = local_folder(uri)
    return nullcontext() if folder is None else hold_lock(folder / "_delta_log" / _REWRITING)


def make_checkpoint_durable(uri: str, version: int) -> None:
    """Make a checkpoint of a table's log, and the reference to it, durable; does nothing for an object store."""
    folder = local_folder(uri)
    if folder is None:
        return
    log = folder / "_delta_log"
    for file in (*log.glob(f"{version:020d}.checkpoint*"), log / "_last_checkpoint", log):
        sync_path(file)


LEFT_TO_UPKEEP: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""Options for commits of delta-rs without checkpoints: upkeep writes them later, durably."""
_ROW_IDS: Final = "delta.rowTracking"


class TableHead:
    """The state of a table's log up to ``version``. ``table`` may be older; later entries only changed its files.

    ``schema`` are the table's columns without constraints, ``needs`` is what the table requires of writers.
    """

    def __init__(self, uri: str, table: DeltaTable) -> None:
        self.table = table
        self.version = table.version()
        self.schema = strip_constraints(pa.schema(table.schema().to_arrow()))
        self.needs = TableRequirements.from_table(table)
        folder = local_folder(uri)
        self._folder = folder or Path()
        self._log = TableLog(self._folder)
        self._app_versions: dict[str, int] = {}
        self._partitions = table.metadata().partition_columns
        self._row_ids: int | None = None
        self.can_append = folder is not None and not self.needs.mapped and self._log.entry_path(self.version).exists()
        """Whether :meth:`append` can be used: on local disk, if files use the table's column names."""

    def has_commit(self, commit: Commit) -> bool:
        """Whether the log has the commit's version, or a later one, for one of its apps."""
        return any(self.get_last_version(app) >= commit.version for app in commit.apps)

    def get_last_version(self, app: str) -> int:
        """Return the last version of an app; -1 if there is none."""
        if app not in self._app_versions:
            last = self.table.transaction_version(app)
            self._app_versions[app] = -1 if last is None else last
        return self._app_versions[app]

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """The table's current action ``metaData``."""
        return _drop_empty(self._log.find_newest("metaData", self.version))

    def append(self, files: Iterable[StagedFile], commit: Commit, metadata: Mapping[str, Any] | None = None) -> None:
        """Add files to the table in one durable entry; the folders of entry and files are made durable too.

        The files must be durable already. With *metadata*, the table's columns change.

        Raises:
            CommitFailedError: another writer was first.
            OSError: nothing was added.
        """
        files = tuple(files)
        # Up to the table's folder, since partition folders may be new.
        for folder in {parent for file in files for parent in Path(file.path).parents}:
            sync_path(self._folder / folder)
        parameters = {"mode": "Append", "partitionBy": msgspec.json.encode(self._partitions).decode()}
        actions: list[Action] = [self._make_transaction(commit.app, commit.version)]
        if metadata is not None:
            actions.append({"metaData": metadata})
        actions += [{"add": _make_add(file)} for file in files]
        self._commit("WRITE", parameters, actions, blind=True)
        self._app_versions[commit.app] = commit.version

    def revert_commit(self, files: Iterable[StagedFile], commit: Commit) -> None:
        """Remove a commit of this router from the table: its files, and its transaction.

        Raises:
            CommitFailedError: another writer was first.
            OSError: the entry cannot be written.
        """
        actions: list[Action] = [self._make_transaction(commit.app, commit.version - 1)]
        actions += [{"remove": _make_remove(_make_add(file), data_change=True)} for file in files]
        self._commit("DELETE", {"predicate": "[]"}, actions)
        self._app_versions[commit.app] = commit.version - 1

    def replace_files(self, removed: Iterable[Mapping[str, Any]], added: Iterable[Mapping[str, Any]]) -> None:
        """Replace files by others with the same rows; both are actions ``add``.

        The entry repeats the table's metadata, so that concurrent writers conflict with it and must start again:
        delta-rs would let two rewrites of the same files both commit, which would duplicate rows.

        Raises:
            CommitFailedError: another writer was first.
            OSError: the entry cannot be written.
        """
        actions: list[Action] = [{"metaData": self.metadata}]
        actions += [{"remove": _make_remove(file)} for file in removed]
        actions += [{"add": {**file, "dataChange": False}} for file in added]
        self._commit("OPTIMIZE", {"predicate": "[]", "zOrderBy": "[]"}, actions)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set properties of the table.

        Raises:
            CommitFailedError: another writer was first.
            OSError: the entry cannot be written.
        """
        configuration = {**self.metadata.get("configuration", {}), **properties}
        parameters = {"properties": msgspec.json.encode(properties).decode()}
        self._commit("SET TBLPROPERTIES", parameters, [{"metaData": {**self.metadata, "configuration": configuration}}])

    def read_new_entries(self) -> list[Action] | None:
        """Advance to the newest version, and return the actions since; None if the whole log must be read again."""
        followed: list[Action] = []
        known, written, ids = self.version, dict(self._app_versions), self._row_ids
        if not self.can_append or not self._log.entry_path(known).exists():
            return None
        while self._log.entry_path(known + 1).exists():
            try:
                actions = self._log.read_actions(known + 1)
            except (FileNotFoundError, msgspec.DecodeError):
                return None
            changes = [each for each in actions if not each.keys() <= _ADDING]
            if any(_drop_empty(each.get("metaData", {})) != self.metadata for each in changes):
                return None
            for action in actions:
                if "txn" in action:
                    written[action["txn"]["appId"]] = action["txn"]["version"]
                if "domainMetadata" in action:
                    ids = None
            followed += actions
            known += 1
        if not followed:
            return None
        self.version, self._app_versions, self._row_ids = known, written, ids
        return followed

    def _commit(
        self, operation: str, parameters: Mapping[str, str], actions: list[Action], *, blind: bool = False
    ) -> None:
        number, now = self.version + 1, time.time_ns() // 1_000_000
        info: dict[str, Any] = {}
        if self.needs.timestamps:
            first = self._log.read_actions(self.version)[0].get("commitInfo", {})
            now = info["inCommitTimestamp"] = max(now, first.get("inCommitTimestamp", -1) + 1)
        info |= {"timestamp": now, "operation": operation, "operationParameters": parameters, "engineInfo": ENGINE}
        info |= {"readVersion": self.version, "isBlindAppend": blind}
        if self.needs.row_ids:
            actions = [*self._assign_row_ids(number, actions)]
        self._log.write_entry(number, [{"commitInfo": info}, *actions])
        self.version = number

    def _assign_row_ids(self, number: int, actions: Iterable[Action]) -> Iterator[Action]:
        """Yield the actions with row ids for their files, then the highest row id (the Delta protocol, "Row IDs")."""
        highest = self._row_ids
        if highest is None:
            found = self._log.find_newest("domainMetadata", self.version, lambda each: each["domain"] == _ROW_IDS)
            highest = -1 if found is None else msgspec.json.decode(found["configuration"])["rowIdHighWaterMark"]
        for action in actions:
            if "add" in action:
                ids = {"baseRowId": highest + 1, "defaultRowCommitVersion": number}
                highest += msgspec.json.decode(action["add"]["stats"])["numRecords"]
                yield {"add": {**action["add"], **ids}}
            else:
                yield action
        configuration = msgspec.json.encode({"rowIdHighWaterMark": highest}).decode()
        yield {"domainMetadata": {"domain": _ROW_IDS, "configuration": configuration, "removed": False}}
        # Forgotten until the entry is committed: the value is read from the log again.
        self._row_ids = None

    def _make_transaction(self, app: str, number: int) -> Action:
        return {"txn": {"appId": app, "version": number, "lastUpdated": time.time_ns() // 1_000_000}}


def _drop_empty(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return metadata without empty members, which checkpoints omit and entries may omit."""
    return {name: value for name, value in metadata.items() if value is not None}


def _make_add(file: StagedFile) -> dict[str, Any]:
    """Return the action ``add`` for a new file (the Delta protocol, "Actions")."""
    add = {"path": quote(file.path, safe="/="), "partitionValues": dict(file.partition), "size": file.size}
    return add | {"modificationTime": file.modified, "dataChange": True, "stats": file.statistics}


def _make_remove(file: Mapping[str, Any], *, data_change: bool = False) -> dict[str, Any]:
    kept = {name: file[name] for name in ("path", "partitionValues", "size")}
    now = time.time_ns() // 1_000_000
    return {**kept, "deletionTimestamp": now, "dataChange": data_change, "extendedFileMetadata": True}


# Rows of Delta tables, read by Arrow.

_LOCAL: Final = "file"


def open_dataset(table: DeltaTable) -> Any:
    """Return the rows of an opened table as an Arrow dataset (``pyarrow.dataset.Dataset``).

    Files on disk are read with Arrow's own file system. The default would be a Python file system, whose files are
    released by threads long after the rows were read: if the process ends at that moment, the C++ library aborts it
    (SIGABRT) regardless of its exit code. For object stores there is no alternative yet.

    Raises:
        DeltaError: the table requires a feature that this reader lacks.
    """
    place = urlsplit(table.table_uri)
    if place.scheme != _LOCAL:
        return table.to_pyarrow_dataset()
    return table.to_pyarrow_dataset(filesystem=SubTreeFileSystem(unquote(place.path), LocalFileSystem()))
