"""JSON schemas and JSON Structure documents of any shape, for hypothesis: ``ANY_SCHEMA`` gives (family, document)."""

from __future__ import annotations

import importlib.resources
import io
import json
import random
import tempfile
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import fastavro
import hypothesis.strategies as st
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import Message
from grpc_tools import protoc  # type: ignore[import-untyped]

from catalog.parsing.texts import parse_text
from catalog.schemas.contract import SchemaSource
from catalog.schemas.families import family_of
from catalog.schemas.filling import Chooser
from catalog.schemas.ids.client import RegistryUnavailableError, WrittenSchema
from tests.support.corpora import documents

Strategy: TypeAlias = "st.SearchStrategy[Any]"
TYPES: Strategy = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])
NAMES: Strategy = st.sampled_from(["a", "b", "x-c"])
SMALL: Strategy = st.integers(-2, 4)
TEXTS: Strategy = st.sampled_from(["^a+$", "^(?=x)x$", "[", "date-time", "uuid"])
LITERALS: Strategy = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS
)
SCHEMAS: Strategy = st.deferred(
    lambda: st.one_of(
        st.booleans(),
        st.fixed_dictionaries(
            {},
            optional={
                "type": st.one_of(TYPES, st.lists(TYPES, min_size=1, max_size=3, unique=True)),
                "enum": st.lists(LITERALS, min_size=1, max_size=3),
                "const": LITERALS,
                "default": LITERALS,
                **{each: st.dictionaries(NAMES, SCHEMAS, max_size=3) for each in ("properties", "dependentSchemas")},
                "patternProperties": st.dictionaries(st.sampled_from(["^x-", "^a$"]), SCHEMAS, max_size=1),
                "required": st.lists(NAMES, max_size=3, unique=True),
                **dict.fromkeys(("items", "additionalProperties", "propertyNames", "contains", "not"), SCHEMAS),
                **dict.fromkeys(("if", "then", "else"), SCHEMAS),
                **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), st.lists(SCHEMAS, min_size=1, max_size=3)),
                **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), SMALL),
                **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties"), st.integers(0, 4)),
                "multipleOf": st.sampled_from([1, 3, 0.1, 1e-300]),
                "uniqueItems": st.booleans(),
                **dict.fromkeys(("pattern", "format"), TEXTS),
                "$ref": st.sampled_from(["#", "#/properties/a", "#/$defs/n"]),
            },
        ),
    )
)
KINDS: Strategy = st.sampled_from([*"string int8 int64 decimal double boolean null date uuid binary any".split()])
STRUCTURES: Strategy = st.deferred(
    lambda: st.one_of(
        st.fixed_dictionaries({"type": st.one_of(KINDS, st.lists(KINDS, min_size=1, max_size=3, unique=True))}),
        st.fixed_dictionaries({"type": st.sampled_from(["array", "set"]), "items": STRUCTURES}),
        st.fixed_dictionaries({"type": st.just("map"), "values": STRUCTURES}),
        st.fixed_dictionaries({"type": st.just("choice"), "choices": MEMBERS}),
        st.fixed_dictionaries({"type": st.just("tuple"), "properties": MEMBERS, "tuple": st.lists(NAMES, max_size=2)}),
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": MEMBERS},
            optional={"required": st.lists(NAMES, max_size=2), "additionalProperties": st.booleans()},
        ),
        st.fixed_dictionaries({"type": st.just({"$ref": "#/definitions/n"})}),
    )
)
MEMBERS: Strategy = st.dictionaries(NAMES, STRUCTURES, min_size=1, max_size=3)
ANY_SCHEMA: Strategy = st.one_of(
    st.tuples(st.just("JsonSchema"), SCHEMAS.map(lambda s: {**s, "$defs": {"n": s}} if isinstance(s, dict) else s)),
    st.tuples(
        st.just("JsonStructure"),
        STRUCTURES.map(lambda s: {"name": "N", **s, "definitions": {"n": {"name": "n", **s}}}),
    ),
)


# A library of documents at hand, and the schemas of the real catalogs, or of our samples.


@dataclass(frozen=True, slots=True)
class Documents:
    """Gives documents by the reference as it is written."""

    documents: Mapping[str, Any]

    def document(self, reference: str, base: str) -> tuple[str, Any] | None:
        found = self.documents.get(reference)
        return None if found is None else (reference, found)


NOTHING = Documents({})


def real_schemas(*families: str) -> Iterator[tuple[str, Any]]:
    """Give place and document of every schema of the families in the real catalogs."""
    for path in documents():
        for document in _schemas(parse_text(path.name, path.read_bytes()).tree, families):
            yield path.name, document


def _schemas(tree: Any, families: tuple[str, ...]) -> Iterator[Any]:
    if isinstance(tree, list):
        for each in tree:
            yield from _schemas(each, families)
    elif isinstance(tree, dict):
        named = tree.get("format") or tree.get("schemaformat") or tree.get("dataschemaformat")
        document = tree.get("schema") or tree.get("dataschema")
        if document and isinstance(named, str) and named.lower().startswith(families):
            yield document
        for each in tree.values():
            yield from _schemas(each, families)


# Payloads of a schema that a test writes down, without a catalog around it.

NOW: Final = "2026-03-04T05:06:07.008Z"
FULLNESS: Final = (1.0, 0.6, 0.0)
SEEDS: Final = 20


def fillings() -> Iterator[Chooser]:
    """Give choices of many seeds, each from full to lean."""
    for seed in range(SEEDS):
        for fullness in FULLNESS:
            yield Chooser(random.Random(seed), NOW, fullness)


def payloads_of(
    family: str, document: Any, content_type: str = "", *, name: str = "", library: Documents = NOTHING
) -> Iterator[bytes]:
    """Give payloads for one schema, one for each of :func:`fillings`."""
    filler = family_of(family).open_sampler(SchemaSource(family, "", document, name=name), library)
    for filling in fillings():
        yield filler.payload(filling, content_type)


# Bodies written and read by the formats' own libraries, with nothing of the router in between.

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


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _without_logical_types(value) for key, value in schema.items() if key != "logicalType"}
    return [_without_logical_types(each) for each in schema] if isinstance(schema, list) else schema


# A schema registry in memory, and bodies as its serializers frame them.

URL = "https://registry.example"
FAMILIES = {"AVRO": "Avro", "PROTOBUF": "Protobuf", "JSON": "JsonSchema"}


@dataclass(unsafe_hash=True, slots=True)
class KnownIds:
    """Knows what it is told, as cases write it: ``{id: {schema, type, subjects: {S: V}, references}}``, as JSON."""

    text: str
    name: str = "main"
    url: str = URL
    away: bool = False

    def get_schema(self, schema_id: str) -> WrittenSchema | None:
        if self.away:
            raise RegistryUnavailableError(f"{self.url} does not answer")
        return _read(self.text).get(schema_id)


def known_ids(known: Mapping[Any, Mapping[str, Any]]) -> KnownIds:
    return KnownIds(json.dumps({str(key): entry for key, entry in known.items()}, sort_keys=True))


@lru_cache(maxsize=64)
def _read(text: str) -> dict[str, WrittenSchema]:
    return {
        key: WrittenSchema(
            key,
            FAMILIES[entry.get("type", "AVRO")],
            entry["schema"] if isinstance(entry["schema"], str) else json.dumps(entry["schema"]),
            {
                name: each if isinstance(each, str) else json.dumps(each)
                for name, each in entry.get("references", {}).items()
            },
            tuple(sorted(entry.get("subjects", {}).items())),
        )
        for key, entry in json.loads(text).items()
    }


def confluent(schema_id: int, data: bytes, indexes: Sequence[int] | None = None) -> bytes:
    """A body in Confluent's frame; *indexes* are those of a Protobuf message."""
    return b"\0" + schema_id.to_bytes(4, "big") + (b"" if indexes is None else _indexes(indexes)) + data


def apicurio(schema_id: int, data: bytes, message: str | None = None) -> bytes:
    name = b"" if message is None else message.encode()
    ref = b"" if message is None else bytes((len(name) + 2, 0x0A, len(name))) + name
    return b"\0" + schema_id.to_bytes(8, "big") + ref + data


def glue(schema_id: str, data: bytes, *, packed: bool = False) -> bytes:
    return bytes((3, 5 if packed else 0)) + uuid.UUID(schema_id).bytes + (zlib.compress(data) if packed else data)


def _indexes(indexes: Sequence[int]) -> bytes:
    return b"\0" if list(indexes) == [0] else bytes(each << 1 for each in (len(indexes), *indexes))
