"""The head of a Delta table's log, so that an append need not read the log.

delta-rs reads the entries since the last checkpoint anew around each of its commits, which takes ever longer until the
next one: tens of milliseconds of processor time where a hundred entries lie. An append of files that are on the disk
already is simpler. Its entry is written beside the log and linked to the name of the next version, which fails when
anybody has that version: so as long as it succeeds, nothing is in the log that we do not know.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import PostCommitHookProperties

from bindings.private import sync_path
from router.sinks.contract import Commit, StagedFile
from router.sinks.tables.files import local_folder

_PLAIN_WRITER: Final = 2
"""The last version of the writers' protocol in which an append needs nothing but its files."""
LEFT_TO_UPKEEP: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""For commits of delta-rs: no batch waits for a checkpoint, and none is relied on before it is on the disk."""
_ENGINE: Final = f"xregistry-router {version('xregistry-router')}"


class Head:
    """What is known of a table's log up to ``version``. ``table`` may be older; later entries only added files."""

    def __init__(self, uri: str, table: DeltaTable) -> None:
        self.table = table
        self.version = table.version()
        self.schema = pa.schema(table.schema().to_arrow())
        folder = local_folder(uri)
        self._folder = folder or Path()
        self._written: dict[str, int] = {}
        self._partitions = table.metadata().partition_columns
        self.appends = folder is not None and _is_plain(table) and self._entry(self.version).exists()
        """Whether :meth:`append` may be used: on a local disk, where the table asks nothing of those who append."""

    def has(self, commit: Commit) -> bool:
        """Tell whether the log has this version of one of the commit's apps, or a later one."""
        return any(self._version_of(app) >= commit.version for app in commit.apps)

    def _version_of(self, app: str) -> int:
        if app not in self._written:
            last = self.table.transaction_version(app)
            self._written[app] = -1 if last is None else last
        return self._written[app]

    def append(self, files: Iterable[StagedFile], commit: Commit) -> None:
        """Add files to the table in one entry, which is on the disk then, as are the folders that name it and them.

        The files themselves are to be there already.

        Raises:
            CommitFailedError: another entry was there first; the log is to be read again.
            OSError: the file system refuses; nothing was added.
        """
        files, entry = tuple(files), self._entry(self.version + 1)
        for folder in {folder for file in files for folder in self._folders(file.path)}:
            sync_path(folder)
        lines = b"".join(msgspec.json.encode(action) + b"\n" for action in self._actions(files, commit))
        written = entry.with_name(f"_commit_{uuid4()}.json.tmp")
        # Old entries are removed from the oldest on: without the one before, the next may have been there and be gone.
        if not self._entry(self.version).exists():
            raise CommitFailedError(f"version {self.version} is not there any more")
        try:
            with written.open("xb") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
            os.link(written, entry)
        except FileExistsError as error:
            raise CommitFailedError(f"version {self.version + 1} is there already") from error
        finally:
            with suppress(OSError):
                written.unlink()
        sync_path(entry.parent)
        self.version += 1
        self._written[commit.app] = commit.version

    def _entry(self, number: int) -> Path:
        return self._folder / "_delta_log" / f"{number:020d}.json"

    def _folders(self, path: str) -> Iterator[Path]:
        """Yield the folders that a file lies in, up to the table's own: those of partitions may be new."""
        yield from (self._folder / parent for parent in Path(path).parents)

    def _actions(self, files: Iterable[StagedFile], commit: Commit) -> Iterator[dict[str, Any]]:
        """Yield what the entry says (the Delta protocol, "Actions")."""
        now = time.time_ns() // 1_000_000
        parameters = {"mode": "Append", "partitionBy": msgspec.json.encode(self._partitions).decode()}
        info = {"timestamp": now, "operation": "WRITE", "operationParameters": parameters, "engineInfo": _ENGINE}
        yield {"commitInfo": info}
        yield {"txn": {"appId": commit.app, "version": commit.version, "lastUpdated": now}}
        for file in files:
            add = {"path": quote(file.path, safe="/="), "partitionValues": dict(file.partition), "size": file.size}
            add |= {"modificationTime": file.modified, "dataChange": True, "stats": file.statistics}
            yield {"add": add}


def _is_plain(table: DeltaTable) -> bool:
    protocol = table.protocol()
    features = [*(protocol.writer_features or ()), *(protocol.reader_features or ())]
    rules = any(field.metadata for field in table.schema().fields)
    return protocol.min_writer_version <= _PLAIN_WRITER and not features and not rules
