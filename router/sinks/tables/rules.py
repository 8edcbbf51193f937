"""Rows held against the rules of their table: constraints, invariants, what may not be null, generated columns.

A table says them in Spark's SQL, so Spark evaluates them: no other engine is right for any expression. A condition that
is not true of a row is broken by it, null included (the Delta protocol, "CHECK Constraints"). What cannot be computed
of a row is null (no ANSI mode): a row never stops the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from catalog.model import Catalog
from router.errors import SinkError
from router.sinks.contract import Rejected, Staged, StagedFile
from router.sinks.tables.evolving import conformed
from router.sinks.tables.form import Form
from router.sinks.tables.staging import TableStaging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROW: Final = "__row"
_BROKEN: Final = "__broken"
_PLACE: Final = ("position", "endpoint", "message")


@dataclass(slots=True)
class RowsOfCommit:
    """Rows of a commit, and those of them that the table's rules reject."""

    sink: str
    rows: pa.Table
    refused: tuple[Rejected, ...] = ()
    may_reject: bool = True

    def hold_to(self, form: Form, columns: pa.Schema) -> None:
        """Leave out the rows that break a rule of the table."""
        if form.rules:
            self.rows, more = by_rules(self.sink, self.rows, form, columns)
            self.refused += more


class FilesOfCommit:
    """Files of a commit as they go into the log: those that workers staged, or what the table's rules left of them."""

    def __init__(self, sink: str, staging: TableStaging, staged: Staged) -> None:
        self.staged = staged
        self.files = staged.files
        self.folder = Path(staging.folder)
        self.refused: tuple[Rejected, ...] = ()
        self.may_reject = staged.may_reject
        self._sink = sink
        self._staging = staging
        self._held_to: tuple[Form, pa.Schema] | None = None

    def hold_to(self, form: Form, columns: pa.Schema) -> None:
        """Write files anew that have rows which break a rule of the table, or lack what it computes."""
        if self._held_to == (form, columns) or not form.rules:
            return
        self.discard_own()
        self._held_to, self.refused = (form, columns), ()
        kept: list[StagedFile] = []
        for file in self.staged.files:
            rows = rows_of(self.folder, file)
            allowed, rejected = by_rules(self._sink, rows, form, columns)
            self.refused += rejected
            if not rejected and set(form.computed) <= set(rows.column_names):
                kept.append(file)
            elif allowed.num_rows:
                kept += self._staging.write(allowed, f"ruled-{os.getpid()}", Catalog())
        self.files = tuple(kept)
        fault = Staged(self.files).fault
        if fault is not None:
            raise fault

    def missing(self) -> list[StagedFile]:
        """Return the files that are not there as they were written."""
        return missing_files(self.folder, self.files)

    def discard_rest(self) -> None:
        """Remove the files that workers staged and others stand for."""
        kept = {file.path for file in self.files}
        self._staging.discard(file for file in self.staged.files if file.path not in kept)

    def discard_own(self) -> None:
        """Remove what was written anew."""
        theirs = {file.path for file in self.staged.files}
        self._staging.discard(file for file in self.files if file.path not in theirs)
        self.files = self.staged.files


def missing_files(folder: Path, files: Iterable[StagedFile]) -> list[StagedFile]:
    """Return the files that are not there as they were written."""

    def is_there(file: StagedFile) -> bool:
        try:
            return (folder / file.path).stat().st_size == file.size
        except OSError:
            return False

    return [file for file in files if not is_there(file)]


def rows_of(folder: Path, file: StagedFile) -> pa.Table:
    """Return the rows of a staged file, with the columns that it was parted by."""
    rows = pq.ParquetFile(folder / file.path).read()
    schema = pa.ipc.read_schema(pa.py_buffer(file.schema))
    for name, text in file.partition.items():
        kind = schema.field(name).type
        value = pa.array([text], pa.string())
        if pa.types.is_timestamp(kind):
            value = value.cast(pa.timestamp("us")).view(pa.int64()).view(kind)
        column = pa.repeat(value.cast(kind)[0], rows.num_rows)
        rows = rows.append_column(pa.field(name, kind), column)
    return rows.select(schema.names)


def by_rules(sink: str, rows: pa.Table, form: Form, columns: pa.Schema) -> tuple[pa.Table, tuple[Rejected, ...]]:
    """Return the rows that the rules of a table of these columns allow, with what it computes, and the others.

    Raises:
        SinkError: a rule cannot be evaluated, or rows break one that have no place to name them by.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    lacking = {name: sql for name, sql in form.computed.items() if name not in rows.column_names}
    given = conformed(rows, pa.schema([field for field in columns if field.name not in lacking]))
    numbered = given.append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
    try:
        frame = _session(sink).createDataFrame(numbered)
        for name, sql in lacking.items():
            frame = frame.withColumn(name, F.expr(sql))
        broken = (F.when(~F.coalesce(F.expr(check.sql), F.lit(False)), F.lit(check.name)) for check in form.checks)
        told = frame.select(
            _ROW, F.array_compact(F.array(F.lit(None).cast("string"), *broken)).alias(_BROKEN), *lacking
        )
        found = (told if lacking else told.where(F.size(_BROKEN) > 0)).toArrow().sort_by(_ROW)
    except PySparkException as error:
        names = "; ".join([*(check.name for check in form.checks), *form.computed])
        reason = str(error).partition("\n")[0]
        hint = "correct the rule, or drop it (ALTER TABLE ... DROP CONSTRAINT)"
        raise SinkError(sink, f"a rule of the table cannot be evaluated ({names}): {reason}", hint=hint) from error
    faults = {
        row: names for row, names in zip(found[_ROW].to_pylist(), found[_BROKEN].to_pylist(), strict=True) if names
    }
    for name in lacking:
        given = given.append_column(name, found[name].cast(columns.field(name).type))
    rejected = tuple(_rejected(sink, rows, row, names) for row, names in faults.items())
    allowed = given.filter(pa.array([row not in faults for row in range(rows.num_rows)], pa.bool_()))
    return allowed.select(columns.names), rejected


def _rejected(sink: str, rows: pa.Table, row: int, names: list[str]) -> Rejected:
    reason = f"the row breaks {', '.join(names)}"
    if not set(_PLACE) <= set(rows.column_names):
        raise SinkError(sink, reason, hint="drop the rule: what this table gets cannot become a dead letter")
    position, endpoint, message = (rows.column(name)[row].as_py() or "" for name in _PLACE)
    return Rejected(position, reason, endpoint, message)


def _session(sink: str) -> SparkSession:
    """Return a session of the router's Spark in which what cannot be computed is null."""
    from pyspark.sql import SparkSession

    running = SparkSession._instantiatedSession
    if running is None:
        raise SinkError(sink, "the table has rules, which only Spark can evaluate", hint="drop the rules of the table")
    session = running.newSession()
    session.conf.set("spark.sql.ansi.enabled", "false")
    session.conf.set("spark.sql.caseSensitive", "false")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session
