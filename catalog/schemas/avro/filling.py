"""Sample payloads for Avro: a plain datum or single-object message, or the JSON encoding for JSON content types."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any, Final

import fastavro
import msgspec

from catalog.schemas.avro.types import SINGLE_OBJECT, AvroSchema, branch_label, read_schema
from catalog.schemas.contract import Library, SchemaSource, is_json_data
from catalog.schemas.filling import MAX_SIZE, Chooser, PayloadSampler, UnsupportedSchema
from catalog.values import parse_timestamp

_NULL_CHANCE: Final = 0.1
_SECOND: Final = 1_000_000_000
_DAY: Final = 86_400 * _SECOND
_TIMES: Final[Mapping[str, Callable[[int], int]]] = {
    "date": lambda nanos: nanos // _DAY,
    "time-millis": lambda nanos: nanos % _DAY // 1_000_000,
    "time-micros": lambda nanos: nanos % _DAY // 1_000,
    "timestamp-millis": lambda nanos: nanos // 1_000_000,
    "timestamp-micros": lambda nanos: nanos // 1_000,
    "timestamp-nanos": lambda nanos: nanos,
    "local-timestamp-millis": lambda nanos: nanos // 1_000_000,
    "local-timestamp-micros": lambda nanos: nanos // 1_000,
    "local-timestamp-nanos": lambda nanos: nanos,
}
"""Converts nanoseconds since 1970 to the number that each logical type of time stores."""
_Form = Callable[[Any, Any], Any]
"""Converts a value to its encoding; the first argument is the union branch, or None."""


def open_sampler(source: SchemaSource, library: Library) -> PayloadSampler:
    """Return what makes payloads for a schema."""
    return AvroSampler(read_schema(source, library))


class AvroSampler:
    """Makes sample payloads for one Avro schema. Values of logical types are made in the underlying type."""

    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema
        # The canonical form is self-contained and has no logical types, so fastavro does not convert values.
        self._written = fastavro.parse_schema(msgspec.json.decode(schema.canonical))

    def payload(self, chooser: Chooser, content_type: str) -> bytes:
        if is_json_data(content_type):
            # fastavro's own JSON writer unrolls recursive types without end.
            return msgspec.json.encode(self._make_value(self._schema.root, chooser, 0, _to_json))
        datum = self._make_value(self._schema.root, chooser, 0, _to_datum)
        out = io.BytesIO()
        try:
            fastavro.schemaless_writer(out, self._written, datum)
        except (ValueError, TypeError, OverflowError, KeyError) as error:
            raise UnsupportedSchema(f"the Avro writer refuses what was made up: {str(error)[:120]}") from error
        header = SINGLE_OBJECT + self._schema.fingerprint if is_single_object(content_type) else b""
        return header + out.getvalue()

    def _make_value(self, schema: Any, chooser: Chooser, level: int, form: _Form) -> Any:
        chooser.count_value(level)
        if isinstance(schema, list):
            branch = self._choose_branch(schema, chooser, level)
            return form(branch, self._make_value(branch, chooser, level, form))
        if isinstance(schema, str) and schema in self._schema.named:
            return self._make_value(self._schema.named[schema], chooser, level, form)
        if isinstance(schema, str):
            return form(None, _make_primitive(schema, chooser))
        kind = schema["type"]
        if kind in ("record", "error"):
            return {each["name"]: self._make_value(each["type"], chooser, level + 1, form) for each in schema["fields"]}
        if kind == "array":
            count = chooser.pick_count(0, None, level)
            return [self._make_value(schema["items"], chooser, level + 1, form) for _ in range(count)]
        if kind == "map":
            names = [chooser.make_word() for _ in range(chooser.pick_count(0, None, level))]
            return {name: self._make_value(schema["values"], chooser, level + 1, form) for name in names}
        if kind == "enum":
            return chooser.pick(schema["symbols"])
        return form(None, _make_logical(schema, chooser) if "logicalType" in schema else _make_plain(schema, chooser))

    def _choose_branch(self, schema: list[Any], chooser: Chooser, level: int) -> Any:
        others = [each for each in schema if each != "null"]
        if "null" in schema and (not others or chooser.is_minimal(level) or chooser.flip(_NULL_CHANCE)):
            return "null"
        flat = [each for each in others if not self._is_record(each)]
        return chooser.pick(flat if flat and chooser.is_minimal(level) else others)

    def _is_record(self, schema: Any) -> bool:
        known = self._schema.named.get(schema, schema) if isinstance(schema, str) else schema
        return isinstance(known, Mapping) and known["type"] in ("record", "error")


def _to_datum(branch: Any, value: Any) -> Any:
    """Return the value unchanged: the binary writer finds the union branch itself."""
    return value


def _to_json(branch: Any, value: Any) -> Any:
    """Return the JSON encoding: bytes as Latin-1 text, and a union value as an object keyed by its type."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if branch is None or branch == "null":
        return value
    return {branch_label(branch): value}


def is_single_object(content_type: str) -> bool:
    """Whether a content type means Avro's single-object encoding, for example ``avro/single-object``."""
    media = content_type.lower()
    return "avro" in media and "single" in media


def _make_plain(schema: Mapping[str, Any], chooser: Chooser) -> Any:
    if schema["type"] == "fixed":
        return chooser.make_bytes(schema["size"], schema["size"])
    return _make_primitive(schema["type"], chooser)


def _make_primitive(kind: str, chooser: Chooser) -> Any:
    if kind == "null":
        return None
    if kind == "boolean":
        return chooser.flip(0.5)
    if kind in ("int", "long"):
        return chooser.random.randrange(1000)
    if kind in ("float", "double"):
        return chooser.random.randrange(100_000) / 64  # exact in a float, too
    if kind == "bytes":
        return chooser.make_bytes()
    return chooser.make_word()


def _make_logical(schema: Mapping[str, Any], chooser: Chooser) -> Any:
    logical, kind = schema["logicalType"], schema["type"]
    if logical in _TIMES and kind in ("int", "long"):
        return _TIMES[logical](parse_timestamp(chooser.now) or 0)
    if logical == "uuid" and kind == "string":
        return chooser.make_uuid()
    if logical == "decimal" and kind in ("bytes", "fixed"):
        digits = min(int(schema.get("precision", 1)), 6)
        size = min(schema["size"], MAX_SIZE) if kind == "fixed" else 4
        unscaled = chooser.random.randrange(min(10**digits, 2 ** max(0, 8 * min(size, 4) - 1)))
        return unscaled.to_bytes(size, "big", signed=True)
    return _make_plain(schema, chooser)
