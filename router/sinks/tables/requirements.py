"""What a Delta table requires of its writers: features, and rules for its rows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema

from catalog.model import Catalog
from router.errors import SinkError
from router.rendering.payloads import conform_rows
from router.sinks.contract import RejectedRow, StagedCommit, StagedFile
from router.sinks.tables.staging import TableFileStager

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WRITER: Final = 7
_READER: Final = 3
_CONSTRAINT: Final = "delta.constraints."
_APPENDED: Final = frozenset(
    (
        "allowColumnDefaults appendOnly changeDataFeed checkConstraints checkpointProtection clustering "
        "columnMapping deletionVectors domainMetadata generatedColumns icebergCompatV1 icebergCompatV2 "
        "identityColumns inCommitTimestamp invariants rowTracking timestampNtz typeWidening "
        "typeWidening-preview v2Checkpoint vacuumProtocolCheck variantType variantType-preview"
    ).split()
)
"""Features that an append supports, or that require nothing unless they are in use (:func:`_iter_unsupported`)."""
_BY_DELTA: Final = frozenset(
    (
        "appendOnly changeDataFeed checkConstraints columnMapping deletionVectors generatedColumns "
        "invariants timestampNtz v2Checkpoint variantType"
    ).split()
)
"""Features of tables that delta-rs can write to."""
_ROWS_KEPT: Final = frozenset({"rowTracking", "clustering", "columnMapping"})
"""Features that track the location of rows: only engines that support them may merge files."""


@dataclass(frozen=True, slots=True)
class TableConstraint:
    """A condition in SQL that each row must meet, and its name."""

    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class TableRequirements:
    """A table's requirements for writers. ``refusal`` is why the router cannot write to it; empty if it can.

    ``checks`` are conditions on its rows. ``computed`` has an SQL expression for each column that must be computed if
    rows lack it. With ``mapped``, its files use other column names.
    """

    refusal: str
    features: frozenset[str]
    checks: tuple[TableConstraint, ...]
    computed: Mapping[str, str]
    mapped: bool
    timestamps: bool
    row_ids: bool

    @classmethod
    def from_table(cls, table: DeltaTable) -> Self:
        """Read the requirements of an open table."""
        protocol, configuration = table.protocol(), table.metadata().configuration
        features = frozenset((*(protocol.writer_features or ()), *(protocol.reader_features or ())))
        fields = json.loads(table.schema().to_json())["fields"]
        unknown = sorted((features - _APPENDED) | set(_iter_unsupported(configuration, fields)))
        refused = f"the table has features that cannot be written here: {', '.join(unknown)}" if unknown else ""
        if protocol.min_writer_version > _WRITER or protocol.min_reader_version > _READER:
            versions = f"reader {protocol.min_reader_version}, writer {protocol.min_writer_version}"
            refused = f"the table has an unsupported protocol: {versions}"
        return cls(
            refused,
            features,
            tuple(iter_constraints(configuration, fields)),
            dict(_iter_computed(fields)),
            configuration.get("delta.columnMapping.mode", "none") != "none",
            configuration.get("delta.enableInCommitTimestamps") == "true",
            "rowTracking" in features,
        )

    @property
    def can_merge(self) -> bool:
        """Whether the router can merge the table's small files."""
        return not self.refusal and not self.features & _ROWS_KEPT

    @property
    def has_rules(self) -> bool:
        """Whether rows must be checked before they are written."""
        return bool(self.checks or self.computed)

    @property
    def can_use_delta_rs(self) -> bool:
        """Whether delta-rs can write to the table."""
        return self.features <= _BY_DELTA


def strip_constraints(schema: pa.Schema) -> pa.Schema:
    """Return the columns without constraints and metadata."""
    return pa.schema([pa.field(field.name, _strip_type(field.type)) for field in schema])


def add_columns(metadata: Mapping[str, Any], columns: pa.Schema) -> dict[str, Any]:
    """Return a table's action ``metaData`` with these columns, and all else unchanged."""
    known, wanted = json.loads(metadata["schemaString"]), json.loads(Schema.from_arrow(columns).to_json())
    return {**metadata, "schemaString": json.dumps(_extend(known, wanted), ensure_ascii=False)}


def iter_constraints(configuration: Mapping[str, str], fields: list[Any]) -> Iterator[TableConstraint]:
    """Yield the conditions on rows from a table's configuration and fields, as in its log."""
    for name, sql in sorted(configuration.items()):
        if name.startswith(_CONSTRAINT):
            yield TableConstraint(f"CHECK constraint {name.removeprefix(_CONSTRAINT)} ({sql})", sql)
    for field in _iter_nested(fields):
        if "delta.invariants" in field["metadata"]:
            sql = json.loads(field["metadata"]["delta.invariants"])["expression"]["expression"]
            yield TableConstraint(f"invariant of column {field['name']} ({sql})", sql)
    for field in fields:
        column = _quote_name(field["name"])
        if not field["nullable"]:
            yield TableConstraint(f"NOT NULL of column {field['name']}", f"{column} IS NOT NULL")
        for inner in _iter_not_null(column, field["type"], 0):
            yield TableConstraint(f"NOT NULL inside of column {field['name']}", inner)
        if "delta.generationExpression" in field["metadata"]:
            sql = field["metadata"]["delta.generationExpression"]
            yield TableConstraint(f"generated column {field['name']} ({sql})", f"{column} <=> ({sql})")


def _strip_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _strip_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_strip_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _strip_type(kind.item_type))
    return kind


def _extend(known: Any, wanted: Any) -> Any:
    if not isinstance(known, dict) or not isinstance(wanted, dict):
        return known
    if known["type"] == "struct":
        more = {field["name"]: field for field in wanted["fields"]}
        fields = [
            {**each, "type": _extend(each["type"], more.pop(each["name"], each)["type"])} for each in known["fields"]
        ]
        return {**known, "fields": [*fields, *more.values()]}
    inner = "elementType" if known["type"] == "array" else "valueType"
    return {**known, inner: _extend(known[inner], wanted[inner])}


def _iter_unsupported(configuration: Mapping[str, str], fields: list[Any]) -> Iterator[str]:
    """Yield the features in use that an append cannot support."""
    if any(name.startswith("delta.identity.") for field in _iter_nested(fields) for name in field["metadata"]):
        yield "identityColumns"
    for name in ("IcebergCompatV1", "IcebergCompatV2", "IcebergCompatV3"):
        if configuration.get(f"delta.enable{name}") == "true":
            yield f"i{name[1:]}"


def _iter_nested(fields: list[Any]) -> Iterator[Any]:
    """Yield fields and all nested fields."""
    for field in fields:
        yield field
        kinds = [field["type"]]
        for kind in kinds:
            if isinstance(kind, dict):
                yield from _iter_nested(kind.get("fields", []))
                kinds += [kind[name] for name in ("elementType", "keyType", "valueType") if name in kind]


def _iter_not_null(value: str, kind: Any, depth: int) -> Iterator[str]:
    """Yield the NOT NULL conditions of nested members of a value."""
    if not isinstance(kind, dict):
        return
    if kind["type"] == "struct":
        for field in kind["fields"]:
            member = f"{value}.{_quote_name(field['name'])}"
            if not field["nullable"]:
                yield f"{value} IS NULL OR {member} IS NOT NULL"
            yield from _iter_not_null(member, field["type"], depth)
        return
    each = f"x{depth}"
    listed, inner, nullable = (
        (value, kind["elementType"], kind["containsNull"])
        if kind["type"] == "array"
        else (f"map_values({value})", kind["valueType"], kind["valueContainsNull"])
    )
    conditions = [] if nullable else [f"{each} IS NOT NULL"]
    for condition in (*conditions, *_iter_not_null(each, inner, depth + 1)):
        yield f"{value} IS NULL OR forall({listed}, {each} -> {condition})"


def _iter_computed(fields: list[Any]) -> Iterator[tuple[str, str]]:
    for field in fields:
        for name in ("delta.generationExpression", "CURRENT_DEFAULT"):
            if name in field["metadata"]:
                yield field["name"], field["metadata"][name]


def _quote_name(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


# Checking rows against the rules of their table: constraints, invariants, NOT NULL, generated columns.
#
# The rules are Spark SQL, so Spark evaluates them: no other engine is correct for every expression. A row breaks a
# condition that is false or null (the Delta protocol, "CHECK Constraints"). An expression that fails for a row is null
# (no ANSI mode), so that a row never blocks the others.

_ROW: Final = "__row"
_BROKEN: Final = "__broken"
_PLACE: Final = ("position", "endpoint", "message")


class FilesOfCommit:
    """Files of a commit for the log: those that workers staged, or rewritten ones without rejected rows."""

    def __init__(self, sink: str, staging: TableFileStager, staged: StagedCommit) -> None:
        self.staged = staged
        self.files = staged.files
        self.folder = Path(staging.folder)
        self.refused: tuple[RejectedRow, ...] = ()
        self.may_reject = staged.may_reject
        self._sink = sink
        self._staging = staging
        self._applied_rules: tuple[TableRequirements, pa.Schema] | None = None

    def apply_rules(self, form: TableRequirements, columns: pa.Schema) -> None:
        """Rewrite files that have rows that break a rule of the table, or lack its computed columns."""
        if self._applied_rules == (form, columns) or not form.has_rules:
            return
        self.discard_rewritten()
        self._applied_rules, self.refused = (form, columns), ()
        kept: list[StagedFile] = []
        for file in self.staged.files:
            rows = read_rows(self.folder, file)
            allowed, rejected = split_by_rules(self._sink, rows, form, columns)
            self.refused += rejected
            if not rejected and set(form.computed) <= set(rows.column_names):
                kept.append(file)
            elif allowed.num_rows:
                kept += self._staging.write(allowed, f"ruled-{os.getpid()}", Catalog())
        self.files = tuple(kept)
        fault = StagedCommit(self.files).fault
        if fault is not None:
            raise fault

    def find_missing(self) -> list[StagedFile]:
        """Return the files that are missing or changed."""
        return find_missing_files(self.folder, self.files)

    def discard_replaced(self) -> None:
        """Remove the staged files that were rewritten."""
        kept = {file.path for file in self.files}
        self._staging.discard(file for file in self.staged.files if file.path not in kept)

    def discard_rewritten(self) -> None:
        """Remove the rewritten files."""
        theirs = {file.path for file in self.staged.files}
        self._staging.discard(file for file in self.files if file.path not in theirs)
        self.files = self.staged.files


def find_missing_files(folder: Path, files: Iterable[StagedFile]) -> list[StagedFile]:
    """Return the files that are missing or changed."""

    def is_there(file: StagedFile) -> bool:
        try:
            return (folder / file.path).stat().st_size == file.size
        except OSError:
            return False

    return [file for file in files if not is_there(file)]


def read_rows(folder: Path, file: StagedFile) -> pa.Table:
    """Return the rows of a staged file, including its partition columns."""
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


def split_by_rules(
    sink: str, rows: pa.Table, form: TableRequirements, columns: pa.Schema
) -> tuple[pa.Table, tuple[RejectedRow, ...]]:
    """Split rows into those that meet the table's rules, with its computed columns, and rejected ones.

    Raises:
        SinkError: a rule cannot be evaluated, or rows without a position break one.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    lacking = {name: sql for name, sql in form.computed.items() if name not in rows.column_names}
    given = conform_rows(rows, pa.schema([field for field in columns if field.name not in lacking]))
    numbered = given.append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
    try:
        frame = _make_session(sink).createDataFrame(numbered)
        for name, sql in lacking.items():
            frame = frame.withColumn(name, F.expr(sql))
        broken = (F.when(~F.coalesce(F.expr(check.sql), F.lit(False)), F.lit(check.name)) for check in form.checks)
        evaluated = frame.select(
            _ROW, F.array_compact(F.array(F.lit(None).cast("string"), *broken)).alias(_BROKEN), *lacking
        )
        found = (evaluated if lacking else evaluated.where(F.size(_BROKEN) > 0)).toArrow().sort_by(_ROW)
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
    rejected = tuple(_make_rejected_row(sink, rows, row, names) for row, names in faults.items())
    allowed = given.filter(pa.array([row not in faults for row in range(rows.num_rows)], pa.bool_()))
    return allowed.select(columns.names), rejected


def _make_rejected_row(sink: str, rows: pa.Table, row: int, names: list[str]) -> RejectedRow:
    reason = f"the row breaks {', '.join(names)}"
    if not set(_PLACE) <= set(rows.column_names):
        raise SinkError(sink, reason, hint="drop the rule: what this table gets cannot become a dead letter")
    position, endpoint, message = (rows.column(name)[row].as_py() or "" for name in _PLACE)
    return RejectedRow(position, reason, endpoint, message)


def _make_session(sink: str) -> SparkSession:
    """Create a session of the router's Spark without ANSI mode: expressions that fail are null."""
    from pyspark.sql import SparkSession

    running = SparkSession._instantiatedSession
    if running is None:
        raise SinkError(sink, "the table has rules that only Spark can evaluate", hint="drop the rules of the table")
    session = running.newSession()
    session.conf.set("spark.sql.ansi.enabled", "false")
    session.conf.set("spark.sql.caseSensitive", "false")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session
