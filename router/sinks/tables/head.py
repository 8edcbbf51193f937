"""The head of a Delta table's log: what one has to know to append the next entry, without reading the log.

An append of files that are on the disk already is one entry, linked to the name of the next version
(:mod:`router.sinks.tables.log`): so as long as that succeeds, nothing is in the log that we do not know. By delta-rs
the same costs thirty times the processor time, and it refuses tables with in-commit timestamps, row tracking,
clustering, widened types or column defaults, which ask little of an append.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import PostCommitHookProperties

from bindings.private import sync_path
from router.sinks.contract import Commit, StagedFile
from router.sinks.tables.files import local_folder
from router.sinks.tables.form import Form, plain
from router.sinks.tables.log import ENGINE, Action, Log, changes_the_table

LEFT_TO_UPKEEP: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""For commits of delta-rs: no batch waits for a checkpoint, and none is relied on before it is on the disk."""
_ROW_IDS: Final = "delta.rowTracking"


class Head:
    """What is known of a table's log up to ``version``. ``table`` may be older; later entries only changed its files.

    ``schema`` are the table's columns without what is required of them, ``form`` is what the table asks.
    """

    def __init__(self, uri: str, table: DeltaTable) -> None:
        self.table = table
        self.version = table.version()
        self.schema = plain(pa.schema(table.schema().to_arrow()))
        self.form = Form.of(table)
        folder = local_folder(uri)
        self._folder = folder or Path()
        self._log = Log(self._folder)
        self._written: dict[str, int] = {}
        self._partitions = table.metadata().partition_columns
        self._row_ids: int | None = None
        self.appends = folder is not None and not self.form.mapped and self._log.entry(self.version).exists()
        """Whether :meth:`append` may be used: on a local disk, where files have the table's names of columns."""

    def has(self, commit: Commit) -> bool:
        """Whether the log has this version of one of the commit's apps, or a later one."""
        return any(self.version_of(app) >= commit.version for app in commit.apps)

    def version_of(self, app: str) -> int:
        """Return the last version of an app, -1 where there is none."""
        if app not in self._written:
            last = self.table.transaction_version(app)
            self._written[app] = -1 if last is None else last
        return self._written[app]

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """The action ``metaData`` of the table."""
        return _said(self._log.newest("metaData", self.version))

    def append(self, files: Iterable[StagedFile], commit: Commit, metadata: Mapping[str, Any] | None = None) -> None:
        """Add files to the table in one entry, which is on the disk then, as are the folders that name it and them.

        The files themselves are to be there already. With *metadata* the table has other columns from then on.

        Raises:
            CommitFailedError: another entry was there first.
            OSError: the file system refuses; nothing was added.
        """
        files = tuple(files)
        for folder in {folder for file in files for folder in self._folders(file.path)}:
            sync_path(folder)
        parameters = {"mode": "Append", "partitionBy": msgspec.json.encode(self._partitions).decode()}
        actions: list[Action] = [self._transaction(commit.app, commit.version)]
        if metadata is not None:
            actions.append({"metaData": metadata})
        actions += [{"add": _added(file)} for file in files]
        self._link("WRITE", parameters, actions, blind=True)
        self._written[commit.app] = commit.version

    def take_back(self, files: Iterable[StagedFile], commit: Commit) -> None:
        """Remove a commit of ours from the table: these files of its, and that it was ever there.

        Raises:
            CommitFailedError: another entry was there first.
            OSError: the file system refuses.
        """
        actions: list[Action] = [self._transaction(commit.app, commit.version - 1)]
        actions += [{"remove": _removed(_added(file), data_change=True)} for file in files]
        self._link("DELETE", {"predicate": "[]"}, actions)
        self._written[commit.app] = commit.version - 1

    def rewrite(self, removed: Iterable[Mapping[str, Any]], added: Iterable[Mapping[str, Any]]) -> None:
        """Replace files by others with the same rows; both as actions ``add``.

        The entry says the table's metadata again. Nothing changes by that, but who began before it has to begin
        anew: delta-rs would let two rewrites of the same files both commit, and their rows would be there twice.

        Raises:
            CommitFailedError: another entry was there first.
            OSError: the file system refuses.
        """
        actions: list[Action] = [{"metaData": self.metadata}]
        actions += [{"remove": _removed(file)} for file in removed]
        actions += [{"add": {**file, "dataChange": False}} for file in added]
        self._link("OPTIMIZE", {"predicate": "[]", "zOrderBy": "[]"}, actions)

    def configure(self, properties: Mapping[str, str]) -> None:
        """Set properties of the table.

        Raises:
            CommitFailedError: another entry was there first.
            OSError: the file system refuses.
        """
        configuration = {**self.metadata.get("configuration", {}), **properties}
        parameters = {"properties": msgspec.json.encode(properties).decode()}
        self._link("SET TBLPROPERTIES", parameters, [{"metaData": {**self.metadata, "configuration": configuration}}])

    def follow(self) -> list[Action] | None:
        """Move to the newest version, and return the actions on the way; None where the log is to be read anew."""
        followed: list[Action] = []
        known, written, ids = self.version, dict(self._written), self._row_ids
        if not self.appends or not self._log.entry(known).exists():
            return None
        while self._log.entry(known + 1).exists():
            try:
                actions = self._log.actions(known + 1)
            except (FileNotFoundError, msgspec.DecodeError):
                return None
            changes = [each for each in actions if changes_the_table(each)]
            if any(_said(each.get("metaData", {})) != self.metadata for each in changes):
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
        self.version, self._written, self._row_ids = known, written, ids
        return followed

    def _link(
        self, operation: str, parameters: Mapping[str, str], actions: list[Action], *, blind: bool = False
    ) -> None:
        number, now = self.version + 1, time.time_ns() // 1_000_000
        info: dict[str, Any] = {}
        if self.form.timestamps:
            first = self._log.actions(self.version)[0].get("commitInfo", {})
            now = info["inCommitTimestamp"] = max(now, first.get("inCommitTimestamp", -1) + 1)
        info |= {"timestamp": now, "operation": operation, "operationParameters": parameters, "engineInfo": ENGINE}
        info |= {"readVersion": self.version, "isBlindAppend": blind}
        if self.form.row_ids:
            actions = [*self._with_row_ids(number, actions)]
        self._log.link(number, [{"commitInfo": info}, *actions])
        self.version = number

    def _with_row_ids(self, number: int, actions: Iterable[Action]) -> Iterator[Action]:
        """Yield actions whose files have ids for their rows, and the highest of these ids (the protocol, "Row IDs")."""
        highest = self._row_ids
        if highest is None:
            found = self._log.newest("domainMetadata", self.version, lambda each: each["domain"] == _ROW_IDS)
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
        # Only what is in the log counts: it is read again.
        self._row_ids = None

    def _transaction(self, app: str, number: int) -> Action:
        return {"txn": {"appId": app, "version": number, "lastUpdated": time.time_ns() // 1_000_000}}

    def _folders(self, path: str) -> Iterator[Path]:
        """Yield the folders that a file lies in, up to the table's own: those of partitions may be new."""
        yield from (self._folder / parent for parent in Path(path).parents)


def _said(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what metadata say: checkpoints leave out members without a value, and entries need not."""
    return {name: value for name, value in metadata.items() if value is not None}


def _added(file: StagedFile) -> dict[str, Any]:
    """Return what an entry says of a new file (the Delta protocol, "Actions")."""
    add = {"path": quote(file.path, safe="/="), "partitionValues": dict(file.partition), "size": file.size}
    return add | {"modificationTime": file.modified, "dataChange": True, "stats": file.statistics}


def _removed(file: Mapping[str, Any], *, data_change: bool = False) -> dict[str, Any]:
    kept = {name: file[name] for name in ("path", "partitionValues", "size")}
    now = time.time_ns() // 1_000_000
    return {**kept, "deletionTimestamp": now, "dataChange": data_change, "extendedFileMetadata": True}
