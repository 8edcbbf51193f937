"""Demultiplex DataFrames by a catalog: batches and streams, with any Spark from 3.5, classic or Connect.

::

    catalog = xrouter.load("garden.xreg.json")
    rows = spark.readStream.format("kafka").option("includeHeaders", "true")....load()
    outcomes = demultiplex(rows, catalog, endpoint="/endpoints/garden")
    moisture = payload(outcomes, catalog, "Moisture")

Both are pure transformations: no state, nothing goes through the driver. Executors need this package, installed or
shipped as a wheel (``--py-files``, ``spark.addArtifacts``).
"""

from __future__ import annotations

import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from catalog.model import Catalog
from catalog.schemas.columns import PayloadColumn, payload_column, payload_findings
from router.evaluation.evaluator import INBOX_COLUMNS, Kind
from router.sinks.tables.payloads import decode_payloads
from xrouter.columns import OUTCOMES, ColumnMatcher
from xrouter.matching import LoadedCatalog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

_KAFKA: Final = ("key", "value", "topic", "partition", "offset", "timestamp")
_NO_HEADERS: Final = "cast(null as array<struct<key:string,value:binary>>) as headers"
_MAX_CACHED: Final = 4
"""Most compiled catalogs that a Python worker keeps."""
_cached: Final[OrderedDict[str, Any]] = OrderedDict()
Batches = Iterator[pa.RecordBatch]


def demultiplex(rows: DataFrame, catalog: LoadedCatalog, *, endpoint: str | None = None) -> DataFrame:
    """Match the rows of Spark's Kafka source, or of the inbox; return a row for each outcome.

    The columns are those of :data:`xrouter.columns.OUTCOMES`: ``outcome``, ``reason``, ``detail``, ``nearest``,
    ``message``, ``endpoint``, ``context``, ``event``, ``data``, ``position``, ``epoch``. *rows* have ``key``,
    ``value``, ``topic``, ``partition``, ``offset``, ``timestamp`` and, with the source's option ``includeHeaders``,
    ``headers``; or ``endpoint``, ``protocol``, ``received``, ``properties``, ``body`` and ``position``. The definitions
    of *endpoint* are the candidates of all rows; without it those of the endpoints that read a row's topic, else all.

    Raises:
        KeyError: the catalog has no such endpoint.
        ValueError: the rows have other columns.
    """
    kind, columns = _source_columns(rows)
    matcher = pickle.dumps(catalog.column_matcher(endpoint))
    function = partial(_match_batches, kind, _digest(matcher), matcher)
    return rows.selectExpr(*columns).mapInArrow(function, _to_spark_schema(OUTCOMES))


def payload(outcomes: DataFrame, catalog: LoadedCatalog, message: str) -> DataFrame:
    """Return the records of one definition with their data as typed columns.

    *outcomes* are what :func:`demultiplex` returned; *message* is an xid or the last part of one. The columns are
    ``event``, ``context``, ``payload`` (a struct by the definition's schema), ``undecoded`` (why the payload is null,
    else null) and ``position``. The frame of a schema registry before a body is removed.

    Raises:
        KeyError: there is no such definition, or several.
        ValueError: the definition has no schema that columns can be made of.
    """
    xid = catalog.find_definition(message)
    column = payload_column(catalog.catalog, xid)
    if column is None:
        reasons = "; ".join(payload_findings(catalog.catalog, xid)) or "it names no schema"
        raise ValueError(f"{xid} has no typed columns: {reasons}")
    schema = pa.schema(
        [
            OUTCOMES.field("event"),
            OUTCOMES.field("context"),
            ("payload", column.type),
            ("undecoded", pa.string()),
            OUTCOMES.field("position"),
        ]
    )
    document = pickle.dumps((catalog.catalog.definitions[xid], dict(catalog.catalog.schemas)))
    function = partial(_decode_batches, xid, _digest(document), document, schema)
    chosen = outcomes.where(outcomes["outcome"] == "routed").where(outcomes["message"] == xid)
    names = ("event", "context", "data", "endpoint", "position")
    return chosen.select(*names).mapInArrow(function, _to_spark_schema(schema))


def _source_columns(rows: DataFrame) -> tuple[Kind, list[str]]:
    """Return the kind of rows, and the expressions that select their columns."""
    names = set(rows.columns)
    if names.issuperset(_KAFKA):
        milliseconds = "unix_millis(timestamp) as timestamp"
        plain = [each if each != "timestamp" else milliseconds for each in _KAFKA]
        return "kafka", [*plain, "headers" if "headers" in names else _NO_HEADERS]
    if names.issuperset(INBOX_COLUMNS):
        return "inbox", list(INBOX_COLUMNS)
    raise ValueError(
        f"rows must have the columns {', '.join(_KAFKA)} of Spark's Kafka source, or {', '.join(INBOX_COLUMNS)}; "
        f"these have {', '.join(rows.columns)}"
    )


def _digest(document: bytes) -> str:
    return hashlib.sha256(document).hexdigest()


def _load_cached(key: str, document: bytes) -> Any:
    """Return what a worker has compiled, or unpickle it: tasks of one worker share it."""
    if key not in _cached:
        _cached[key] = pickle.loads(document)
        if len(_cached) > _MAX_CACHED:
            _cached.popitem(last=False)
    return _cached[key]


def _match_batches(kind: Kind, key: str, document: bytes, batches: Batches) -> Batches:
    matcher: ColumnMatcher = _load_cached(key, document)
    for rows in batches:
        yield matcher.match_batch(kind, rows)


def _decode_batches(xid: str, key: str, document: bytes, schema: pa.Schema, batches: Batches) -> Batches:
    definition, schemas = _load_cached(key, document)
    column: PayloadColumn | None = payload_column(Catalog({xid: definition}, {}, {}, schemas), xid)
    assert column is not None
    for rows in batches:
        count, event = rows.num_rows, rows.column("event")
        values = {
            "data": rows.column("data"),
            "datacontenttype": pc.struct_field(event, "datacontenttype"),
            "native": pa.repeat("{}", count),
            "protocol": pa.repeat("KAFKA", count),
            "endpoint": rows.column("endpoint"),
        }
        payloads, undecoded = decode_payloads(column, pa.table(values), {})
        reasons: list[str | None] = [None] * count
        for each in undecoded:
            reasons[each.row] = f"{each.column}: {each.why}" if each.column else each.why
        result = [event, rows.column("context"), payloads, pa.array(reasons, pa.string()), rows.column("position")]
        yield pa.RecordBatch.from_arrays(
            [each.cast(field.type) for each, field in zip(result, schema, strict=True)], schema=schema
        )


def _to_spark_schema(schema: pa.Schema) -> Any:
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    types: list[tuple[str, DataType]] = [(field.name, from_arrow_type(field.type)) for field in schema]
    return StructType([StructField(name, each) for name, each in types])
