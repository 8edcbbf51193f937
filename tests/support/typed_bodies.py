"""Bodies written and read by the formats' own libraries, with nothing of the router in between."""

from __future__ import annotations

import importlib.resources
import io
import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import Message
from grpc_tools import protoc  # type: ignore[import-untyped]

JSON: Final = "application/json"


def written(row: Mapping[str, Any], form: str, schema: Any, content_type: str) -> bytes:
    """Return the body of a row of ``tests/cases/workshop.yaml``."""
    if "hex" in row:
        return bytes.fromhex(row["hex"])
    if "message" in row:
        message = json_format.Parse(json.dumps(row["message"]), message_class(schema)())
        binary: bytes = message.SerializeToString()
        return json_format.MessageToJson(message).encode() if content_type == JSON else binary
    if "plain" in row:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(_without_logical_types(schema)), row["plain"])
        return out.getvalue()
    assert "body" in row, f"a row of {form} without a body"
    body: str = row["body"]
    return body.encode()


def read(body: bytes, form: str, schema: Any, name: str) -> dict[str, Any]:
    """Return the members of a body of plain values: scalars and lists, and unions of Avro as one member per branch."""
    family = form.partition("/")[0]
    if family == "Avro":
        return _avro(body, schema, name)
    if family == "Protobuf":
        message = message_class(schema, name).FromString(body)
        return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
    members: dict[str, Any] = json.loads(body)
    return members


@cache
def message_class(text: str, name: str = "") -> type[Message]:
    """Compile a proto file; return the class of the message of that name, else of the first."""
    with tempfile.TemporaryDirectory() as folder:
        source, compiled = Path(folder) / "it.proto", Path(folder) / "it.bin"
        source.write_text(text, encoding="utf-8")
        known = importlib.resources.files("grpc_tools") / "_proto"
        told = ["", f"-I{folder}", f"-I{known}", f"--descriptor_set_out={compiled}", "--include_imports", str(source)]
        assert protoc.main(told) == 0, text
        files = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    own = files[-1]
    prefix = f"{own.package}." if own.package else ""
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(prefix + (name or own.message_type[0].name)))


def _avro(body: bytes, schema: Any, name: str) -> dict[str, Any]:
    if isinstance(schema, list) and name:
        schema = next(each for each in schema if each["name"] == name)
    parsed = fastavro.parse_schema(schema)
    value: Any = fastavro.schemaless_reader(io.BytesIO(body), parsed, None, return_record_name=isinstance(schema, list))
    if not isinstance(schema, list):
        return dict(value)
    branch, members = value
    return {each["name"]: members if branch.endswith(f".{each['name']}") else None for each in schema}


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _without_logical_types(value) for key, value in schema.items() if key != "logicalType"}
    return [_without_logical_types(each) for each in schema] if isinstance(schema, list) else schema
