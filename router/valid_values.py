"""Values that are valid for what a catalog declares: for a property type, and for a JSON schema.

Everything random comes from the generator handed in, so that equal seeds give equal values.
"""

from __future__ import annotations

import base64
import random
import string
import uuid
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from bindings.events import is_json
from catalog.model import Catalog, Definition, PropertyType
from router.mapping import inferred_content_type

_DEPTH: Final = 8
"""Levels of a schema that are followed; a recursive schema ends here with what it requires least of."""
_WORDS: Final = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "juniper")


def value_of(kind: PropertyType, random: random.Random, now: str) -> str:
    """Return a value that is valid for a property type, as text; *now* is the time as RFC 3339 text."""
    word = f"{random.choice(_WORDS)}-{random.randrange(10_000)}"
    if kind in ("uri", "urireference", "uritemplate"):
        return f"https://example.com/{word}"
    if kind == "binary":
        return base64.b64encode(random.randbytes(9)).decode("ascii")
    return {
        "boolean": random.choice(("true", "false")),
        "duration": f"PT{random.randrange(1, 60)}S",
        "integer": str(random.randrange(1, 1000)),
        "number": str(random.randrange(1, 100_000) / 100),
        "timestamp": now,
    }.get(kind, word)


def event_id(random: random.Random) -> str:
    """Return an id in the form of a version 4 UUID."""
    return str(uuid.UUID(int=random.getrandbits(128), version=4))


def content_type_of(definition: Definition) -> str:
    """Return the content type of a definition's data: the declared one, what its schema implies, else JSON."""
    declared = {prop.name: prop.value for prop in (*definition.protocoloptions, *definition.envelopemetadata)}
    native = (declared.get(name) for name in ("headers.content-type", "properties.content-type", "content_type"))
    for value in (definition.datacontenttype, declared.get("datacontenttype"), *native):
        if isinstance(value, str) and value and not value.startswith("application/cloudevents"):
            return value
    return inferred_content_type(definition.dataschemaformat) or "application/json"


def payload_of(
    definition: Definition, catalog: Catalog, content_type: str, number: int, random: random.Random, now: str
) -> bytes | None:
    """Return data for one message: for JSON what a known JSON schema asks, for text a line.

    None for other content types: Avro, Protobuf and XML are not written in this version.
    """
    if is_json(content_type):
        schema = _json_schema(definition, catalog)
        if schema is None:
            return msgspec.json.encode({"message": definition.messageid, "number": number})
        return msgspec.json.encode(_SchemaValues(schema, random, now).value(schema))
    if content_type.startswith("text/"):
        return f"{definition.messageid} {number}".encode()
    return None


def _json_schema(definition: Definition, catalog: Catalog) -> Any | None:
    if not (definition.dataschemaformat or "").lower().startswith("jsonschema"):
        return None
    found = definition.dataschema
    if found is None:
        reference = definition.dataschemaxid or (definition.dataschemauri or "").removeprefix("#")
        found = _registered(catalog.schemas.get(reference.partition("/versions/")[0]))
    if isinstance(found, str):
        try:
            found = msgspec.json.decode(found)
        except msgspec.DecodeError:
            return None
    return found if isinstance(found, dict) else None


def _registered(entry: Any) -> Any:
    """Return the schema of a registry entry: its own, else that of its default or last version."""
    if not isinstance(entry, Mapping):
        return None
    versions = entry.get("versions")
    if isinstance(versions, Mapping) and versions:
        entry = versions.get(str(entry.get("defaultversionid") or entry.get("versionid"))) or versions[max(versions)]
    return entry.get("schema") if isinstance(entry, Mapping) else None


class _SchemaValues:
    """Builds values for one JSON schema. Covers what message schemas use; conditions and patterns are not solved."""

    def __init__(self, root: Mapping[str, Any], random: random.Random, now: str) -> None:
        self._root = root
        self._random = random
        self._now = now

    def value(self, schema: Any, depth: int = 0) -> Any:
        """Return a value for *schema*; required members always, optional ones down to a few levels."""
        schema = self._followed(schema)
        if not isinstance(schema, Mapping) or depth > _DEPTH:
            return None
        for fixed in ("const", "default"):
            if fixed in schema:
                return schema[fixed]
        if schema.get("enum"):
            return self._random.choice(schema["enum"])
        for choice in ("oneOf", "anyOf"):
            if schema.get(choice):
                return self.value(schema[choice][0], depth + 1)
        kind = schema.get("type") or ("object" if "properties" in schema or "allOf" in schema else "string")
        if isinstance(kind, list):
            kind = next((each for each in kind if each != "null"), "null")
        return self._typed(str(kind), schema, depth)

    def _typed(self, kind: str, schema: Mapping[str, Any], depth: int) -> Any:
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return [self.value(schema.get("items", {}), depth + 1) for _ in range(max(1, schema.get("minItems", 1)))]
        if kind in ("integer", "number"):
            return self._number(kind, schema)
        if kind == "boolean":
            return self._random.random() < 0.5
        return None if kind == "null" else self._text(schema)

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for part in schema.get("allOf", ()):
            inherited = self.value(part, depth + 1)
            made.update(inherited if isinstance(inherited, dict) else {})
        required = schema.get("required", ())
        for name, member in schema.get("properties", {}).items():
            if name in required or depth < 2:
                made[name] = self.value(member, depth + 1)
        return made

    def _number(self, kind: str, schema: Mapping[str, Any]) -> int | float:
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        high = schema.get("maximum", schema.get("exclusiveMaximum", low + 100))
        if kind == "integer":
            low, high = low + ("exclusiveMinimum" in schema), high - ("exclusiveMaximum" in schema)
            return self._random.randint(int(low), max(int(low), int(high)))
        return float(round(low + (high - low) * (0.1 + 0.8 * self._random.random()), 2))

    def _text(self, schema: Mapping[str, Any]) -> str:
        known = {"date-time": self._now, "date": self._now[:10], "time": self._now[11:], "email": "ada@example.com"}
        if schema.get("format") in known:
            return known[schema["format"]]
        if schema.get("format") == "uuid":
            return event_id(self._random)
        kind: PropertyType = "uri" if str(schema.get("format")).startswith("uri") else "string"
        text = value_of(kind, self._random, self._now)
        text += "".join(self._random.choices(string.ascii_lowercase, k=max(0, schema.get("minLength", 0) - len(text))))
        return text[: schema.get("maxLength", len(text))]

    def _followed(self, schema: Any) -> Any:
        """Follow ``$ref`` into the same document; any other reference is left open."""
        for _ in range(_DEPTH):
            reference = schema.get("$ref") if isinstance(schema, Mapping) else None
            if not isinstance(reference, str) or not reference.startswith("#"):
                return schema
            schema = self._root
            for step in reference.removeprefix("#").split("/")[1:]:
                key = step.replace("~1", "/").replace("~0", "~")
                schema = schema.get(key) if isinstance(schema, Mapping) else None
        return None
