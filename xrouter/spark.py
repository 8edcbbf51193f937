"""Demultiplex DataFrames by a catalog: batches and streams, with any Spark from 3.5, classic or Connect.

::

    catalog = xrouter.load("garden.xreg.json")
    rows = spark.readStream.format("kafka").option("includeHeaders", "true")....load()
    outcomes = demultiplex(rows, catalog, endpoint="/endpoints/garden")
    moisture = payload(outcomes, catalog, "Moisture")

Both are pure transformations: no state, nothing goes through the driver. The Python of the executors needs this
package: installed, or shipped with the program (section "Executors" of deploy/docs/howto/python.md).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from fnmatch import filter as filter_names
from functools import lru_cache, partial, reduce
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catalog.model import Catalog
from catalog.schemas.columns import payload_findings
from router.evaluation.evaluator import INBOX_COLUMNS, Kind
from router.rendering.payloads import PayloadColumns, conform_rows, decode_payloads, evolve_schema
from xrouter.columns import OUTCOMES, ColumnMatcher
from xrouter.matching import LoadedCatalog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PACKAGE: Final = "xregistry-router"
_KAFKA: Final = ("key", "value", "topic", "partition", "offset", "timestamp")
_NO_HEADERS: Final = "cast(null as array<struct<key:string,value:binary>>) as headers"
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
    return _map_batches(rows.selectExpr(*columns), partial(_match_batches, kind, matcher), OUTCOMES)


def payload(outcomes: DataFrame, catalog: LoadedCatalog, message: str) -> DataFrame:
    """Return the records of one definition, or of several, with their data as typed columns.

    *outcomes* are what :func:`demultiplex` returned. *message* is an xid, the last part of one, or a pattern of xids
    such as ``/messagegroups/garden/*``. The columns are ``message``, ``event``, ``context``, ``payload`` (a struct by
    the definition's schema), ``undecoded`` (why the payload is null, else null) and ``position``. Definitions that a
    pattern selects share the struct, which has the members of all; those without typed columns are left out. The frame
    of a schema registry before a body is removed.

    Raises:
        KeyError: there is no such definition, or several, or the pattern selects none.
        ValueError: no definition has a schema that columns can be made of.
    """
    definitions = catalog.definitions
    xids = filter_names(definitions, message) if "*" in message else [catalog.find_definition(message)]
    if not xids:
        raise KeyError(f"no definition matches {message!r}")
    opened = PayloadColumns(catalog.catalog)
    columns = {xid: column for xid in xids if (column := opened.get(xid)) is not None}
    if not columns:
        reasons = "; ".join(payload_findings(catalog.catalog, xids[0])) or "it names no schema"
        raise ValueError(f"{xids[0]} has no typed columns: {reasons}")
    types = (pa.schema(list(each.type)) for each in dict.fromkeys(columns.values()))
    struct = pa.struct(list(reduce(evolve_schema, types)))
    schema = pa.schema(
        [
            OUTCOMES.field("message"),
            OUTCOMES.field("event"),
            OUTCOMES.field("context"),
            ("payload", struct),
            ("undecoded", pa.string()),
            OUTCOMES.field("position"),
        ]
    )
    document = pickle.dumps(({xid: definitions[xid] for xid in columns}, dict(catalog.catalog.schemas)))
    chosen = outcomes.where(outcomes["outcome"] == "routed").where(outcomes["message"].isin(*columns))
    rows = chosen.select("message", "event", "context", "data", "endpoint", "position")
    return _map_batches(rows, partial(_decode_batches, document, schema), schema)


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


def _map_batches(rows: DataFrame, function: Callable[[Batches], Batches], schema: pa.Schema) -> DataFrame:
    """Apply a function of this package to Arrow batches; executors find the package when it first runs."""
    from pyspark.sql.pandas.types import from_arrow_schema

    document, expected = pickle.dumps(function), version(_PACKAGE)

    def run(batches: Batches) -> Batches:
        # Spark sends a nested function by value: it imports what it needs, and nothing of ours before it is found.
        import pickle
        import sys
        from importlib.metadata import version
        from pathlib import Path

        from pyspark import SparkFiles

        remedy = "install xregistry-router for it, or ship xrouter_packages.tar.gz or xrouter.zip"
        root = Path(SparkFiles.getRootDirectory())
        # Streams over Connect have the server's folder as root: that of their session is in it, and not on the path.
        for name in ("xrouter_packages", "xrouter.zip"):
            shipped = (str(each) for each in (root / name, *root.glob(f"*/{name}")) if each.exists())
            sys.path.extend(each for each in shipped if each not in sys.path)
        try:
            if (found := version("xregistry-router")) != expected:
                raise RuntimeError(f"the executors have xregistry-router {found}, this program {expected}: {remedy}")
            function: Callable[[Batches], Batches] = pickle.loads(document)
        except ModuleNotFoundError as error:
            raise RuntimeError(f"the Python of the executors lacks {error.name}: {remedy}") from error
        return function(batches)

    return rows.mapInArrow(run, from_arrow_schema(schema, True))


@lru_cache(maxsize=4)
def _load_matcher(document: bytes) -> ColumnMatcher:
    """Return the matcher of a pickle; tasks of one worker share it."""
    matcher: ColumnMatcher = pickle.loads(document)
    return matcher


def _match_batches(kind: Kind, document: bytes, batches: Batches) -> Batches:
    matcher = _load_matcher(document)
    for rows in batches:
        yield matcher.match_batch(kind, rows)


@lru_cache(maxsize=256)
def _open_columns(document: bytes) -> PayloadColumns:
    """Return the payload columns of the definitions of a pickle; tasks of one worker share them."""
    definitions, schemas = pickle.loads(document)
    return PayloadColumns(Catalog(definitions, {}, {}, schemas))


def _decode_batches(document: bytes, schema: pa.Schema, batches: Batches) -> Batches:
    columns = _open_columns(document)
    for rows in batches:
        yield _decode_batch(columns, schema, rows)


def _decode_batch(columns: PayloadColumns, schema: pa.Schema, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Decode the data of routed rows with the columns of their definitions, one schema after the other."""
    names = rows.schema.names
    given = [rows.column(name).cast(OUTCOMES.field(name).type) for name in names]
    rows = pa.RecordBatch.from_arrays(given, names=names)
    messages = pc.dictionary_encode(rows.column("message"))
    codes = messages.indices.to_numpy()
    reasons: list[str | None] = [None] * rows.num_rows
    parts, order = [pa.nulls(0, schema.field("payload").type)], [np.empty(0, np.int64)]
    found = [column for xid in messages.dictionary.to_pylist() if (column := columns.get(xid)) is not None]
    for column in dict.fromkeys(found):
        at = np.flatnonzero(np.array([each is column for each in found])[codes])
        some = rows.take(pa.array(at))
        values = {
            "data": some.column("data"),
            "datacontenttype": pc.struct_field(some.column("event"), "datacontenttype"),
            "native": pa.repeat("{}", len(at)),
            "protocol": pa.repeat("KAFKA", len(at)),
            "endpoint": some.column("endpoint"),
        }
        payloads, undecoded = decode_payloads(column, pa.table(values), {})
        for each in undecoded:
            for row in each.rows or (each.row,):
                reasons[at[row]] = f"{each.column}: {each.why}" if each.column else each.why
        placed = conform_rows(pa.table({"payload": payloads}), pa.schema([schema.field("payload")]))
        parts.append(placed.column(0).combine_chunks())
        order.append(at)
    payload = pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(order))))
    made = {"payload": payload, "undecoded": pa.array(reasons, pa.string())}
    return pa.RecordBatch.from_arrays(
        [rows.column(each.name) if each.name in names else made[each.name] for each in schema], schema=schema
    )
