"""A folder with one file for each batch, exactly once."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import BinaryIO, ClassVar

import pyarrow as pa

from bindings.private import sync_path
from router.settings.names import escape_value
from router.sinks.contract import ArrowSink, Commit, WriteResult
from router.sinks.tables.files import refused, write_atomically


class BatchFiles(ArrowSink):
    """Writes each batch as ``APP-VERSION`` and the ``suffix`` of its kind; names sort by app, then version.

    The file appears by a rename after its bytes are on disk, so that a batch survives power loss once ``write``
    returned, and no reader sees half of one. A repeated batch is known by the name of its file, so files must stay in
    the folder until the batch after them is written.
    """

    suffix: ClassVar[str]

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder

    @abstractmethod
    def fill(self, file: BinaryIO, rows: pa.Table) -> None:
        """Write the rows of a batch, of which there are some."""

    def write(self, rows: pa.Table, commit: Commit) -> WriteResult:
        """Write a batch once; see :class:`~router.sinks.contract.ArrowSink`."""
        if rows.num_rows == 0:
            return WriteResult(0)
        target = self._file(commit.app, commit.version)
        if self.already(commit):
            return WriteResult(0, repeated=True, before=rows.num_rows)
        try:
            write_atomically(target, lambda file: self.fill(file, rows))
        except OSError as error:
            raise refused(self._name, str(target), error) from error
        return WriteResult(rows.num_rows)

    def already(self, commit: Commit) -> bool:
        """Return whether there is a file of the batch, or of one that it is a part of. If so, make its name durable."""
        try:
            exists = any(self._file(app, commit.version).exists() for app in commit.apps)
            if exists:
                sync_path(self._folder)
        except OSError as error:
            raise refused(self._name, str(self._folder), error) from error
        return exists

    def _file(self, app: str, version: int) -> Path:
        return self._folder / f"{escape_value(app, '%')}-{version:012d}{self.suffix}"
