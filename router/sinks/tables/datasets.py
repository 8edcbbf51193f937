"""Rows of Delta tables, as Arrow reads them."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

_LOCAL: Final = "file"


def dataset_of(table: DeltaTable) -> Any:
    """Return the rows of a table as a dataset of Arrow (``pyarrow.dataset.Dataset``), of the version that was opened.

    Arrow itself reads files on a disk, since we name its own file system. By default it would use one in Python, whose
    files its threads release long after the rows are there: if the process ends at that moment, the C++ library aborts
    it (SIGABRT), whatever its exit code was to be. For object stores there is no other way yet.

    Raises:
        DeltaError: the table asks for what this reader cannot do.
    """
    place = urlsplit(table.table_uri)
    if place.scheme != _LOCAL:
        return table.to_pyarrow_dataset()
    return table.to_pyarrow_dataset(filesystem=SubTreeFileSystem(unquote(place.path), LocalFileSystem()))
