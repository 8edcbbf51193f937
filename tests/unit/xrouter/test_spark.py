"""DataFrames that cannot be demultiplexed, and executors that lack the package."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark import SparkFiles
from pyspark.cloudpickle import dumps, loads

import xrouter
from router.rendering.payloads import PayloadColumns
from xrouter.columns import OUTCOMES
from xrouter.spark import _decode_batch, _open_columns, demultiplex, payload

KAFKA: Final = ["key", "value", "topic", "partition", "offset", "timestamp"]
SCHEMA: Final = {"type": "object", "properties": {"n": {"type": "integer"}}}
TYPED: Final = "/messagegroups/g/messages/Typed"
CATALOG: Final = {
    "messagegroups": {
        "g": {
            "messages": {
                "Plain": {},
                "Typed": {"dataschemaformat": "JsonSchema/draft-07", "dataschema": SCHEMA},
            }
        }
    }
}


@dataclass
class Frame:
    """Stands for a DataFrame: it has columns, and keeps what it is to be mapped with."""

    columns: list[str]
    mapped: list[Callable[[Iterator[Any]], Iterator[Any]]] = field(default_factory=list)

    def selectExpr(self, *columns: str) -> Frame:
        return self

    def mapInArrow(self, function: Callable[[Iterator[Any]], Iterator[Any]], schema: Any) -> Frame:
        self.mapped.append(loads(dumps(function)))  # type: ignore[no-untyped-call]
        return self


@pytest.fixture(scope="module")
def catalog() -> xrouter.LoadedCatalog:
    return xrouter.load(CATALOG)


@pytest.fixture
def mapped(catalog: xrouter.LoadedCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Any]]:
    """Map no rows as an executor does."""
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(tmp_path))
    frame = Frame([*KAFKA])
    demultiplex(frame, catalog)  # type: ignore[arg-type]
    return lambda: list(frame.mapped[0](iter([])))


def test_what_cannot_be_demultiplexed_is_told(catalog: xrouter.LoadedCatalog) -> None:
    frame: Any = Frame(["id"])
    with pytest.raises(ValueError, match=r"rows must have the columns key, value, .*; these have id"):
        demultiplex(frame, catalog)
    with pytest.raises(KeyError, match="no endpoint '/endpoints/x'"):
        demultiplex(Frame([*KAFKA]), catalog, endpoint="/endpoints/x")  # type: ignore[arg-type]
    for message, told in {"Type": "no definition 'Type'", "*/Typ": "no definition matches '\\*/Typ'"}.items():
        with pytest.raises(KeyError, match=told):
            payload(frame, catalog, message)
    with pytest.raises(ValueError, match="/messages/Plain has no typed columns: it names no schema"):
        payload(frame, catalog, "Plain")


def test_executors_without_the_package_are_told(
    mapped: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mapped() == []
    with monkeypatch.context() as patch:
        patch.setattr(metadata, "version", lambda name: "0.0.1")
        with pytest.raises(RuntimeError, match=r"the executors have xregistry-router 0\.0\.1, this program "):
            mapped()

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(RuntimeError, match="the Python of the executors lacks xregistry-router: install "):
        mapped()


def test_large_arrow_types_are_matched(catalog: xrouter.LoadedCatalog) -> None:
    types = {"key": pa.large_binary(), "value": pa.large_binary(), "topic": pa.large_string()}
    headers = pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    rows = pa.RecordBatch.from_pylist(
        [{"value": b'{"n": 3}', "topic": "t", "partition": 0, "offset": 1, "timestamp": 1, "headers": []}],
        pa.schema(
            [
                *types.items(),
                ("partition", pa.int32()),
                ("offset", pa.int64()),
                ("timestamp", pa.int64()),
                ("headers", headers),
            ]
        ),
    )
    outcomes = catalog.column_matcher().match_batch("kafka", rows)
    assert outcomes.column("position").to_pylist() == ["t-0-1"]
    wide = {"data": pa.large_binary(), "position": pa.large_string()}
    given = {
        name: outcomes.column(name).cast(wide.get(name, kind.type))
        for name, kind in zip(OUTCOMES.names, OUTCOMES, strict=True)
    }
    columns = _open_columns(pickle.dumps(({TYPED: catalog.definitions[TYPED]}, catalog.catalog.schemas)))
    given["message"] = pa.array([TYPED])
    schema = pa.schema([OUTCOMES.field("position"), ("payload", payload_type(columns)), ("undecoded", pa.string())])
    assert _decode_batch(columns, schema, pa.RecordBatch.from_pydict(given)).to_pylist() == [
        {"position": "t-0-1", "payload": {"n": 3}, "undecoded": None}
    ]


def payload_type(columns: PayloadColumns) -> pa.DataType:
    column = columns.get(TYPED)
    assert column is not None
    return column.type
