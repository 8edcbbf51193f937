"""Rows of Delta tables, as Arrow reads them."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

_LOCAL: Final = "file"


def dataset_of(table: DeltaTable) -> Any:
    """Return the rows of a table as a dataset of Arrow (``pyarrow.dataset.Dataset``), of the version that was opened.

    Files on a disk are read by Arrow itself. Unless it is told so, it asks a file system in Python, and its threads let
    go of files of that when the rows are long there: a process that ends in this moment is aborted by the C++ library
    (SIGABRT), whatever its exit code was to be. Object stores have no other way yet.

    Raises:
        DeltaError: the table asks for what this reader cannot do.
    """
    place = urlsplit(table.table_uri)
    if place.scheme != _LOCAL:
        return table.to_pyarrow_dataset()
    return table.to_pyarrow_dataset(filesystem=SubTreeFileSystem(unquote(place.path), LocalFileSystem()))
