"""A schema registry in memory, and bodies as its serializers frame them."""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from catalog.schemas.ids.client import RegistryUnavailableError, WrittenSchema

URL = "https://registry.example"
FAMILIES = {"AVRO": "Avro", "PROTOBUF": "Protobuf", "JSON": "JsonSchema"}


@dataclass(unsafe_hash=True, slots=True)
class KnownIds:
    """Knows what it is told, as cases write it: ``{id: {schema, type, subjects: {S: V}, references}}``, as JSON."""

    text: str
    name: str = "main"
    url: str = URL
    away: bool = False

    def written(self, schema_id: str) -> WrittenSchema | None:
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
