"""What a Delta table asks of those who write to it: its features, and the rules of its rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa
from deltalake import DeltaTable, Schema

_WRITER: Final = 7
_READER: Final = 3
_CONSTRAINT: Final = "delta.constraints."
_APPENDED: Final = frozenset(
    {
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "checkpointProtection",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "icebergCompatV1",
        "icebergCompatV2",
        "identityColumns",
        "inCommitTimestamp",
        "invariants",
        "rowTracking",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
        "variantType-preview",
    }
)
"""Features that an append can honour, or that ask nothing of it unless they are in use (:func:`_in_use`)."""
_BY_DELTA: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
    }
)
"""Features of tables that delta-rs itself writes to."""
_ROWS_KEPT: Final = frozenset({"rowTracking", "clustering", "columnMapping"})
"""Features by which a table knows where its rows are: its files are left to engines that keep that."""


@dataclass(frozen=True, slots=True)
class Check:
    """A condition of SQL that each row has to meet, and what to call it."""

    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class Form:
    """What a table asks. ``refused`` says why nobody here can write to it, empty for a table that can be written.

    ``checks`` are the conditions of its rows. ``computed`` has an expression of SQL for each column that has to be
    filled where rows lack it. With ``mapped`` its files have other names for its columns.
    """

    refused: str
    features: frozenset[str]
    checks: tuple[Check, ...]
    computed: Mapping[str, str]
    mapped: bool
    timestamps: bool
    row_ids: bool

    @classmethod
    def of(cls, table: DeltaTable) -> Self:
        """Read the form of a table that was opened."""
        protocol, configuration = table.protocol(), table.metadata().configuration
        features = frozenset((*(protocol.writer_features or ()), *(protocol.reader_features or ())))
        fields = json.loads(table.schema().to_json())["fields"]
        unknown = sorted((features - _APPENDED) | set(_in_use(configuration, fields)))
        refused = f"the table has features that cannot be written here: {', '.join(unknown)}" if unknown else ""
        if protocol.min_writer_version > _WRITER or protocol.min_reader_version > _READER:
            versions = f"reader {protocol.min_reader_version}, writer {protocol.min_writer_version}"
            refused = f"the table has a protocol that is not known here: {versions}"
        return cls(
            refused,
            features,
            tuple(checks_of(configuration, fields)),
            dict(_computed(fields)),
            configuration.get("delta.columnMapping.mode", "none") != "none",
            configuration.get("delta.enableInCommitTimestamps") == "true",
            "rowTracking" in features,
        )

    @property
    def merges(self) -> bool:
        """Whether small files can be merged here."""
        return not self.refused and not self.features & _ROWS_KEPT

    @property
    def rules(self) -> bool:
        """Whether rows are to be looked at before they are written."""
        return bool(self.checks or self.computed)

    @property
    def by_delta(self) -> bool:
        """Whether delta-rs can write to the table."""
        return self.features <= _BY_DELTA


def plain(schema: pa.Schema) -> pa.Schema:
    """Return the columns without what else a table says of them: nothing is required, and nothing has metadata."""
    return pa.schema([pa.field(field.name, _plain(field.type)) for field in schema])


def grown(metadata: Mapping[str, Any], columns: pa.Schema) -> dict[str, Any]:
    """Return the action ``metaData`` of a table with these columns, which has all that it said of its own."""
    known, wanted = json.loads(metadata["schemaString"]), json.loads(Schema.from_arrow(columns).to_json())
    return {**metadata, "schemaString": json.dumps(_grown(known, wanted), ensure_ascii=False)}


def checks_of(configuration: Mapping[str, str], fields: list[Any]) -> Iterator[Check]:
    """Yield the conditions on the rows of a table with this configuration and these fields, as its log has them."""
    for name, sql in sorted(configuration.items()):
        if name.startswith(_CONSTRAINT):
            yield Check(f"CHECK constraint {name.removeprefix(_CONSTRAINT)} ({sql})", sql)
    for field in _all(fields):
        if "delta.invariants" in field["metadata"]:
            sql = json.loads(field["metadata"]["delta.invariants"])["expression"]["expression"]
            yield Check(f"invariant of column {field['name']} ({sql})", sql)
    for field in fields:
        column = _quoted(field["name"])
        if not field["nullable"]:
            yield Check(f"NOT NULL of column {field['name']}", f"{column} IS NOT NULL")
        for inner in _not_null(column, field["type"], 0):
            yield Check(f"NOT NULL inside of column {field['name']}", inner)
        if "delta.generationExpression" in field["metadata"]:
            sql = field["metadata"]["delta.generationExpression"]
            yield Check(f"generated column {field['name']} ({sql})", f"{column} <=> ({sql})")


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _plain(kind.item_type))
    return kind


def _grown(known: Any, wanted: Any) -> Any:
    if not isinstance(known, dict) or not isinstance(wanted, dict):
        return known
    if known["type"] == "struct":
        more = {field["name"]: field for field in wanted["fields"]}
        fields = [
            {**each, "type": _grown(each["type"], more.pop(each["name"], each)["type"])} for each in known["fields"]
        ]
        return {**known, "fields": [*fields, *more.values()]}
    inner = "elementType" if known["type"] == "array" else "valueType"
    return {**known, inner: _grown(known[inner], wanted[inner])}


def _in_use(configuration: Mapping[str, str], fields: list[Any]) -> Iterator[str]:
    """Yield what a table uses of the features that an append cannot honour."""
    if any(name.startswith("delta.identity.") for field in _all(fields) for name in field["metadata"]):
        yield "identityColumns"
    for name in ("IcebergCompatV1", "IcebergCompatV2", "IcebergCompatV3"):
        if configuration.get(f"delta.enable{name}") == "true":
            yield f"i{name[1:]}"


def _all(fields: list[Any]) -> Iterator[Any]:
    """Yield fields, and those inside of them."""
    for field in fields:
        yield field
        kinds = [field["type"]]
        for kind in kinds:
            if isinstance(kind, dict):
                yield from _all(kind.get("fields", []))
                kinds += [kind[name] for name in ("elementType", "keyType", "valueType") if name in kind]


def _not_null(value: str, kind: Any, depth: int) -> Iterator[str]:
    """Yield the conditions that say of a value that nothing inside of it is null that may not be."""
    if not isinstance(kind, dict):
        return
    if kind["type"] == "struct":
        for field in kind["fields"]:
            member = f"{value}.{_quoted(field['name'])}"
            if not field["nullable"]:
                yield f"{value} IS NULL OR {member} IS NOT NULL"
            yield from _not_null(member, field["type"], depth)
        return
    each = f"x{depth}"
    listed, inner, nullable = (
        (value, kind["elementType"], kind["containsNull"])
        if kind["type"] == "array"
        else (f"map_values({value})", kind["valueType"], kind["valueContainsNull"])
    )
    conditions = [] if nullable else [f"{each} IS NOT NULL"]
    for condition in (*conditions, *_not_null(each, inner, depth + 1)):
        yield f"{value} IS NULL OR forall({listed}, {each} -> {condition})"


def _computed(fields: list[Any]) -> Iterator[tuple[str, str]]:
    for field in fields:
        for name in ("delta.generationExpression", "CURRENT_DEFAULT"):
            if name in field["metadata"]:
                yield field["name"], field["metadata"][name]


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
